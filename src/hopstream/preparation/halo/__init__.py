"""Which rows of other parts does a part keep copies of, and what are they for?

A halo is only ever a cache: with and without it every batch is the same.
"""
