"""Names of ``torch_geometric.distributed.dist_neighbor_loader``."""

from hopstream.compat.pyg.dist_loader import DistNeighborLoader

__all__ = ["DistNeighborLoader"]
