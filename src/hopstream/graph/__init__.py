"""Graphs in memory: reads, makes, converts and splits them.

Each public name is loaded on first use; importing ``hopstream.graph`` loads neither torch nor numba.
"""

from hopstream.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
