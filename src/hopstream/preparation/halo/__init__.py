"""Copies rows of other parts into a part, so that sampling sends fewer requests.

A halo is only a cache: every batch is the same with and without it.
"""
