"""Which names of ``dgl.distributed`` are here? Partitioning, and what looks at parts."""

from __future__ import annotations

from hopstream.compat.dgl.book import RangePartitionBook
from hopstream.compat.dgl.loading import load_partition, load_partition_book, load_partition_feats
from hopstream.compat.dgl.partition import partition_graph
from hopstream.compat.dgl.reading import read_partitions
from hopstream.compat.dgl.splitting import edge_split, node_split

__all__ = [
    "RangePartitionBook",
    "edge_split",
    "load_partition",
    "load_partition_book",
    "load_partition_feats",
    "node_split",
    "partition_graph",
    "read_partitions",
]
