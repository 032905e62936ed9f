"""Sampling without a loader: random walks, and the settings of sampling.

``__init__.pyi`` lists them; each is loaded on first use.
"""

from hopstream.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
