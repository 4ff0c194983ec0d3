"""End-to-end tests. A package, so that daemons of package scope end with it: other tests look at children."""
