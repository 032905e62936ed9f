"""Stores, servers and clients: reads a dataset from a folder or over the network.

Each public name is loaded on first use; importing ``hopstream.serve`` loads neither torch nor numba.
"""

from hopstream.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
