"""Copies rows of other parts into a part, so that sampling asks others less often.

A halo is only ever a cache: with and without it every batch is the same.
"""
