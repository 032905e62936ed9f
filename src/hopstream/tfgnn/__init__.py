"""TF-GNN's formats: schemas, sampling specs, ``tf.Example`` files and graphs as arrays.

Each public name is loaded on first use; importing ``hopstream.tfgnn`` loads neither torch nor numba.
"""

from hopstream.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
