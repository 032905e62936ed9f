"""Deletes nodes and edges of a dataset, and replaces rows of nodes."""
