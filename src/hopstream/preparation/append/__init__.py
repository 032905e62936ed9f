"""Adds nodes and edges to a dataset."""
