"""Loaders: mini-batches for training and inference in PyTorch.

Each public name is loaded on first use; importing ``hopstream.load`` loads neither torch nor numba.
"""

from hopstream.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
