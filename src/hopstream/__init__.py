"""Hopstream: the names of the main road, and its public modules.

``__init__.pyi`` lists them; each is loaded on first use, so importing the package loads neither torch nor numba.
"""

from hopstream.public import public_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
