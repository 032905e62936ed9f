"""The names of ``dgl.distributed`` that are here: partitioning, and what looks at parts."""

from __future__ import annotations

from hopstream.compat.dgl.book import RangePartitionBook
from hopstream.compat.dgl.graphbolt import dgl_partition_to_graphbolt
from hopstream.compat.dgl.loading import load_partition, load_partition_book, load_partition_feats
from hopstream.compat.dgl.partition import partition_graph
from hopstream.compat.dgl.reading import read_partitions
from hopstream.compat.dgl.splitting import edge_split, node_split

__all__ = [
    "RangePartitionBook",
    "dgl_partition_to_graphbolt",
    "edge_split",
    "load_partition",
    "load_partition_book",
    "load_partition_feats",
    "node_split",
    "partition_graph",
    "read_partitions",
]


def __getattr__(name: str) -> object:
    """Tell which names there are.

    Raises:
        AttributeError: Always.
    """
    if name.startswith("__"):  # asked by Python itself
        raise AttributeError(name)
    raise AttributeError(
        f"dgl.distributed.{name} is not here; there are {', '.join(__all__)}; in place of DGL's servers and loaders "
        "use hopstream.write_parts, hopstream serve and hopstream.NeighborLoader"
    )
