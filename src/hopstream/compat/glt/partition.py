"""Names of ``graphlearn_torch.partition``, and converters of its folders to datasets and back."""

from hopstream.compat.glt.partition_books import GLTPartitionBook, OffsetId2Index, PartitionBook, RangePartitionBook
from hopstream.compat.glt.partition_files import (
    FeaturePartitionData,
    GraphPartitionData,
    cat_feature_cache,
    load_partition,
)
from hopstream.compat.glt.partition_reading import read_partitions
from hopstream.compat.glt.partition_writing import write_partitions

__all__ = [
    "FeaturePartitionData",
    "GLTPartitionBook",
    "GraphPartitionData",
    "OffsetId2Index",
    "PartitionBook",
    "RangePartitionBook",
    "cat_feature_cache",
    "load_partition",
    "read_partitions",
    "write_partitions",
]
