"""Names of the types that GraphLearn-for-PyTorch's functions take and return."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum

import numpy as np
from torch import Tensor

from hopstream.compat.glt.distributed.graph_facts import reversed_type
from hopstream.compat.glt.partition_books import PartitionBook as PartitionBook
from hopstream.compat.glt.partition_files import FeaturePartitionData as FeaturePartitionData
from hopstream.compat.glt.partition_files import GraphPartitionData as GraphPartitionData
from hopstream.compat.glt.partition_files import as_str as as_str
from hopstream.schema import EdgeType as EdgeType

NodeType = str
reverse_edge_type = reversed_type
TensorDataType = Tensor | np.ndarray
NodeLabel = TensorDataType | dict[NodeType, TensorDataType]
NodeIndex = TensorDataType | dict[NodeType, TensorDataType]


class Split(Enum):
    """The nodes of a split, as seeds: the dataset's splits ``train``, ``val`` (or ``valid``) and ``test``."""

    train = "train"
    valid = "valid"
    test = "test"

    def name_among(self, known: Collection[str]) -> str:
        """Return the dataset's name of this split."""
        return "val" if self is Split.valid and "val" in known else self.value


HeteroGraphPartitionData = dict[EdgeType, GraphPartitionData]
HeteroFeaturePartitionData = dict[NodeType | EdgeType, FeaturePartitionData]
HeteroNodePartitionDict = dict[NodeType, PartitionBook]
HeteroEdgePartitionDict = dict[EdgeType, PartitionBook]
Seeds = Tensor | str | Split
"""Ids; if servers sample, also a file of ids that ``torch.save`` wrote, or a split."""
InputNodes = Seeds | Sequence[Seeds] | tuple[NodeType, Seeds | Sequence[Seeds]]
EdgeIndexTensor = Tensor | tuple[Tensor, Tensor]
InputEdges = EdgeIndexTensor | EdgeType | tuple[EdgeType, EdgeIndexTensor | None]
NumNeighbors = list[int] | dict[EdgeType, list[int]]
