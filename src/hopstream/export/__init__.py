"""Export: writes sampled subgraphs and whole graphs as files for TF-GNN.

Each public name is loaded on first use; importing ``hopstream.export`` loads neither torch nor numba.
"""

from hopstream.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
