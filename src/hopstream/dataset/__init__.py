"""Datasets on disk: prepares, changes, verifies, copies and reads them.

Each public name is loaded on first use; importing ``hopstream.dataset`` loads neither torch nor numba.
"""

from hopstream.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
