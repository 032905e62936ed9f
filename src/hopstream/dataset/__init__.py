"""Datasets on disk: prepares, changes, verifies, copies and reads them.

``__init__.pyi`` lists them; each is loaded on first use.
"""

from hopstream.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
