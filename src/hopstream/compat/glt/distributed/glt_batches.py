"""Batches of GraphLearn-for-PyTorch's loaders: which columns they need, and what of them has which name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch_geometric.data import Data, HeteroData

from hopstream.compat.glt.distributed.batches import BatchForm
from hopstream.compat.glt.distributed.graph_facts import EDGE_FEATURE, LABEL, GraphFacts, Kind, tensor_columns
from hopstream.compat.glt.partition_reading import NODE_FEATURE, WEIGHT
from hopstream.schema import EdgeType


@dataclass(frozen=True)
class GLTFacts(GraphFacts):
    """The types of a graph by their own names: one that has types has them, however few.

    Attributes:
        with_features: Batches have features.
        with_edge_features: Batches have features of edges.
    """

    with_features: bool = True
    with_edge_features: bool = True
    least_count: ClassVar[int] = -1

    @property
    def kind(self) -> Kind:
        """Whether the graph has types."""
        return "homogeneous" if self.schema.is_homogeneous else "typed"

    def node_columns(self, node_type: str) -> tuple[str, ...]:
        """The columns of a node type that are its feature tensor."""
        return tensor_columns(self.schema.nodes[node_type], NODE_FEATURE) if self.with_features else ()

    def edge_columns(self, edge_type: EdgeType) -> tuple[str, ...]:
        """The columns of an edge type that are its feature tensor; weights are none."""
        if not (self.with_features and self.with_edge_features):
            return ()
        names = tensor_columns(self.schema.edges[edge_type], EDGE_FEATURE)
        return tuple(name for name in names if name != WEIGHT)


class NodeForm(BatchForm):
    """Renames the attributes of batches around nodes: as ``BatchForm``, with ids of edges of all types."""

    __slots__ = ()

    def _set_edges(self, made: Any, given: Any, edge_type: EdgeType | None, *, is_ppr: bool = False) -> None:
        super()._set_edges(made, given, edge_type, is_ppr=is_ppr)
        if self.has_edges and "e_id" in given:
            made["edge"] = given["e_id"]


class SubgraphForm(NodeForm):
    """Renames the attributes of induced subgraphs; ``mapping`` are the places of the seeds among ``node``."""

    __slots__ = ()

    def _set_seeds(self, made: Any, given: Any, nodes: Any) -> None:
        super()._set_seeds(made, given, nodes)
        if "batch_size" in given:
            made["mapping"] = torch.arange(int(given["batch_size"]))


class LinkForm(NodeForm):
    """Renames the attributes of batches around links.

    ``edge_label_index`` has the ends of links in the order of ``edge_index``: destinations come first where edges were
    followed forwards, and in graphs without types always. There are no labels of nodes.
    """

    __slots__ = ()

    def __call__(self, data: Data | HeteroData) -> Data | HeteroData:
        """A batch with the other names; it shares the tensors."""
        made = super().__call__(data)
        for store in made.stores:
            for name in ("batch", LABEL):
                store.pop(name, None)
            if "edge_label_index" in store and (isinstance(made, Data) or self.edge_dir == "out"):
                store["edge_label_index"] = store["edge_label_index"].flip(0)
        if isinstance(made, Data):
            made["batch_size"] = 0
        return made
