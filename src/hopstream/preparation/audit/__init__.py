"""Checks that all of a dataset is true, and that it is the graph that it was written from.

``docs/guide-verify.md`` says for users what is checked. Nothing here stops at the first thing that is wrong.
"""
