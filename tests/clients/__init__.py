"""Tests with real client packages. A package, so that its daemon, of package scope, ends with it."""
