"""Names of PyG's distributed and remote interfaces.

Write ``import hopstream.compat.pyg as pyg_dist`` in place of ``import torch_geometric.distributed as pyg_dist``. A name
is loaded on first use.
"""

from hopstream.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
