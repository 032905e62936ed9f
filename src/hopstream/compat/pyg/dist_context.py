"""Names of ``torch_geometric.distributed.dist_context``."""

from hopstream.compat.pyg.rpc import DistContext, DistRole

__all__ = ["DistContext", "DistRole"]
