"""Names of ``torch_geometric.distributed.dist_link_neighbor_loader``."""

from hopstream.compat.pyg.dist_loader import DistLinkNeighborLoader

__all__ = ["DistLinkNeighborLoader"]
