"""Facts of a graph in the form of GraphLearn-for-PyTorch and GiGL: types, feature tensors, labels.

GLT and GiGL have one tensor of features per type; a dataset has columns by name. The tensor is the column ``x`` of
nodes or ``edge_attr`` of edges if it exists. Otherwise it joins all numeric columns of fixed width except ``y``, in the
order of the schema. The column ``y`` holds labels of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import torch

from hopstream.arrays import Array
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema, type_label

NODE_FEATURE, EDGE_FEATURE, LABEL, WEIGHT = "x", "edge_attr", "y", "weight"
DEFAULT_NODE_TYPE = "default_homogeneous_node_type"
DEFAULT_EDGE_TYPE: EdgeType = (DEFAULT_NODE_TYPE, "to", DEFAULT_NODE_TYPE)
POSITIVE, NEGATIVE = "_gigl_positive", "_gigl_negative"
"""Suffixes of the relations of edge types that hold labels."""
Kind = Literal["homogeneous", "labeled", "typed"]


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Types of a graph, with the user's names and the dataset's.

    A ``labeled`` graph has one node type and one message-passing edge type, and edge types that hold labels. Its types
    have GiGL's two default names; the dataset's names are accepted too.

    Attributes:
        schema: Schema of the dataset.
    """

    schema: GraphSchema
    least_count: ClassVar[int] = 0
    """Smallest number of neighbours that is accepted; -1 means all."""
    has_all_edge_ids: ClassVar[bool] = False
    """Whether batches with ids of edges also have ids of edges without features."""

    @property
    def kind(self) -> Kind:
        """Whether the graph has types."""
        if self.schema.is_homogeneous:
            return "homogeneous"
        return "labeled" if len(self.schema.nodes) == 1 and len(self.message_types) == 1 else "typed"

    @property
    def message_types(self) -> tuple[EdgeType, ...]:
        """Message-passing edge types: all that hold no labels."""
        return tuple(t for t in self.schema.message_types if not t[1].endswith((POSITIVE, NEGATIVE)))

    @property
    def label_types(self) -> tuple[EdgeType, ...]:
        """The edge types that hold labels."""
        return tuple(t for t in self.schema.edges if t not in self.message_types)

    def node_types(self) -> list[str] | None:
        """Return the names of the node types; None for a homogeneous graph."""
        return None if self.kind == "homogeneous" else [self.shown_node(t) for t in self.schema.nodes]

    def edge_types(self) -> list[EdgeType] | None:
        """Return the names of the edge types; None for a homogeneous graph."""
        return None if self.kind == "homogeneous" else [self.shown_edge(t) for t in self.schema.edges]

    def shown_node(self, node_type: str) -> str:
        """Return the user's name of a node type."""
        return DEFAULT_NODE_TYPE if self.kind == "labeled" else node_type

    def shown_edge(self, edge_type: EdgeType) -> EdgeType:
        """Return the user's name of an edge type."""
        if self.kind != "labeled":
            return edge_type
        own = self.message_types[0]
        relation = edge_type[1].replace(own[1], DEFAULT_EDGE_TYPE[1], 1) if edge_type != own else DEFAULT_EDGE_TYPE[1]
        return (DEFAULT_NODE_TYPE, relation, DEFAULT_NODE_TYPE)

    def node_type(self, given: str | None) -> str:
        """Return the dataset's name of a node type.

        Raises:
            SettingsError: A type is given for a homogeneous graph, or is missing for a graph with several.
            UnknownNameError: The graph has no such type.
        """
        if given is None and self.kind == "typed":
            raise SettingsError(
                f"the node type is missing, and the dataset has {', '.join(self.schema.nodes)}; give one of them: as "
                f"node_type, or with the ids of seeds: ({next(iter(self.schema.nodes))!r}, ids)"
            )
        if given is None or (self.kind == "labeled" and given == DEFAULT_NODE_TYPE):
            return next(iter(self.schema.nodes))
        if self.kind == "homogeneous":
            raise SettingsError(f"node_type is {given!r}; the dataset is homogeneous: leave node_type out")
        self.schema.check_node_type(given)
        return given

    def edge_type(self, given: Sequence[str] | None) -> EdgeType:
        """Return the dataset's name of an edge type.

        Raises:
            SettingsError: A type is given for a homogeneous graph, or is missing for a graph with several.
            UnknownNameError: The graph has no such type.
        """
        if given is None and self.kind == "typed":
            names = ", ".join(map(type_label, self.schema.edges))
            raise SettingsError(f"edge_type is missing; the dataset has the types {names}")
        if given is None:
            return next(iter(self.message_types or self.schema.edges))
        if self.kind == "homogeneous":
            raise SettingsError(f"edge_type is {given!r}; the dataset is homogeneous: leave edge_type out")
        wanted = cast(EdgeType, tuple(given))
        for edge_type in self.schema.edges:
            if wanted in (edge_type, self.shown_edge(edge_type)):
                return edge_type
        self.schema.check_edge_type(wanted)
        raise UnknownNameError(f"the graph has no edge type {wanted}")  # pragma: no cover - the check has raised

    def label_types_of(self, supervision: EdgeType) -> tuple[EdgeType, EdgeType | None]:
        """Return the edge types of the positive and the negative labels of a supervision edge type.

        Their relations end in ``_gigl_positive`` and ``_gigl_negative``. Without such a type, positives are in the edge
        type that ``hold_out_links`` took from the supervision type, or else in the supervision type itself.
        """
        src, relation, dst = supervision
        positive, negative = (src, relation + POSITIVE, dst), (src, relation + NEGATIVE, dst)
        found = negative if negative in self.schema.edges else None
        if positive in self.schema.edges:
            return positive, found
        taken = [label for label, of in self.schema.label_types.items() if of[0] == supervision]
        return (taken[0] if taken else supervision), found

    def node_columns(self, node_type: str) -> tuple[str, ...]:
        """Return the columns that form a node type's feature tensor."""
        return tensor_columns(self.schema.nodes[node_type], NODE_FEATURE)

    def edge_columns(self, edge_type: EdgeType) -> tuple[str, ...]:
        """Return the columns that form an edge type's feature tensor."""
        return tensor_columns(self.schema.edges[edge_type], EDGE_FEATURE)

    def has_labels(self, node_type: str) -> bool:
        """Return whether nodes of a type have labels."""
        return LABEL in self.schema.nodes[node_type]


class GLTFacts(GraphFacts):
    """Types of a graph with the dataset's names; a graph with types keeps them, even a single one."""

    __slots__ = ()
    least_count: ClassVar[int] = -1
    has_all_edge_ids: ClassVar[bool] = True

    @property
    def kind(self) -> Kind:
        """Whether the graph has types."""
        return "homogeneous" if self.schema.is_homogeneous else "typed"

    def edge_columns(self, edge_type: EdgeType) -> tuple[str, ...]:
        """Return the columns that form an edge type's feature tensor, without weights."""
        names = tensor_columns(self.schema.edges[edge_type], EDGE_FEATURE)
        return tuple(name for name in names if name != WEIGHT)


def tensor_columns(features: Mapping[str, FeatureSchema], name: str) -> tuple[str, ...]:
    """Return the columns that form a type's feature tensor: the column of a name, or all numeric ones."""
    if name in features and features[name].is_fixed_width:
        return (name,)
    return tuple(n for n, f in features.items() if f.is_fixed_width and n != LABEL and f.numpy_dtype.kind in "fiub")


def tensor_info(features: Mapping[str, FeatureSchema], names: Sequence[str]) -> tuple[int, np.dtype[np.generic]] | None:
    """Return width and dtype of the feature tensor of some columns, or None without columns."""
    if not names:
        return None
    dim = sum(math.prod(features[name].shape) for name in names)
    return dim, features[names[0]].numpy_dtype if len(names) == 1 else np.dtype(np.float32)


def join_columns(columns: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join columns to one tensor [n, dim]: a single column with its dtype, or several as float32."""
    flat = [column.reshape(len(column), math.prod(column.shape[1:])) for column in columns]
    return flat[0] if len(flat) == 1 else torch.cat([column.to(torch.float32) for column in flat], dim=1)


def to_torch(array: Array) -> torch.Tensor:
    """Convert an array to a tensor, which shares the memory of a writable array."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    """Convert a numpy dtype to torch's."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def reversed_type(edge_type: EdgeType) -> EdgeType:
    """Return the name of the reverse edge type: ends swapped, prefix ``rev_`` added or removed.

    Between nodes of one type the name stays, as in GraphLearn-for-PyTorch.
    """
    src, relation, dst = edge_type
    if src == dst:
        return edge_type
    return (dst, relation.removeprefix("rev_") if relation.startswith("rev_") else f"rev_{relation}", src)


def edge_direction(given: str) -> Direction:
    """Check a direction.

    Raises:
        SettingsError: The direction is neither ``in`` nor ``out``.
    """
    if given not in ("in", "out"):
        raise SettingsError(f"the direction of sampling is {given!r}; it must be 'in' or 'out'")
    return cast(Direction, given)
