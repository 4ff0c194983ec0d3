"""Holds a device against the reference on a model's own weights: for the command, and at a model's first load."""
