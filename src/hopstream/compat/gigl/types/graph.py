"""GiGL's graph types: default types, edge types of labels, and facts of features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

import torch

from hopstream.checks import read_integer
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType as EdgeType
from hopstream.compat.gigl.src.common.types.graph_data import NodeType as NodeType
from hopstream.compat.gigl.src.common.types.graph_data import Relation as Relation
from hopstream.errors import SettingsError

T = TypeVar("T")
AnyEdgeType = TypeVar("AnyEdgeType", EdgeType, tuple[str, str, str])

DEFAULT_HOMOGENEOUS_NODE_TYPE = NodeType("default_homogeneous_node_type")
DEFAULT_HOMOGENEOUS_EDGE_TYPE = EdgeType(DEFAULT_HOMOGENEOUS_NODE_TYPE, Relation("to"), DEFAULT_HOMOGENEOUS_NODE_TYPE)
POSITIVE_LABEL_TAG = "_gigl_positive"
NEGATIVE_LABEL_TAG = "_gigl_negative"
BITS = (1, 2, 4, 8)


@dataclass(frozen=True)
class FeatureInfo:
    """Width and dtype of the features of a node type or edge type.

    Attributes:
        dim: Numbers per row.
        dtype: dtype of the numbers.
    """

    dim: int
    dtype: torch.dtype


@dataclass(frozen=True)
class FeatureQuantizationMetadata:
    """Packing of some columns of a feature into bytes.

    Attributes:
        bits: Bits per packed number: 1, 2, 4 or 8.
        feature_dim: Number of columns, packed or not.
        quantized_feature_indices: Indices of the packed columns, each once.
        clip_min: Lower bound for clipping, with 2, 4 or 8 bits.
        clip_max: Upper bound for clipping, with 2, 4 or 8 bits.
        neg_mean: Decoded value of negative numbers, with 1 bit.
        pos_mean: Decoded value of other numbers, with 1 bit.

    Raises:
        SettingsError: ``bits`` is another number, or the columns are not distinct columns of the feature.
    """

    bits: int
    feature_dim: int
    quantized_feature_indices: tuple[int, ...] = ()
    clip_min: float | None = None
    clip_max: float | None = None
    neg_mean: float | None = None
    pos_mean: float | None = None

    def __post_init__(self) -> None:
        """Check bits and columns."""
        if self.bits not in BITS:
            raise SettingsError(f"bits is {self.bits!r}; it must be one of {', '.join(map(str, BITS))}")
        read_integer("feature_dim", self.feature_dim, 0)
        columns = self.quantized_feature_indices
        for place, column in enumerate(columns):
            if not 0 <= column < self.feature_dim:
                raise SettingsError(
                    f"quantized_feature_indices[{place}] is {column}; the feature has columns 0..{self.feature_dim - 1}"
                )
        if len(set(columns)) < len(columns):
            raise SettingsError(f"quantized_feature_indices are {columns}; give each column once")

    @property
    def quantized_feature_dim(self) -> int:
        """Number of packed columns."""
        return len(self.quantized_feature_indices)

    @property
    def packed_feature_dim(self) -> int:
        """Bytes per row of packed columns."""
        return -(-self.quantized_feature_dim * self.bits // 8)

    @property
    def raw_feature_indices(self) -> tuple[int, ...]:
        """Indices of the unpacked columns, ascending."""
        packed = set(self.quantized_feature_indices)
        return tuple(column for column in range(self.feature_dim) if column not in packed)

    @property
    def raw_feature_dim(self) -> int:
        """Number of unpacked columns."""
        return self.feature_dim - self.quantized_feature_dim


def message_passing_to_positive_label(message_passing_edge_type: AnyEdgeType) -> AnyEdgeType:
    """Return the edge type of an edge type's positive labels, in the class of the argument."""
    return _with_relation(message_passing_edge_type, message_passing_edge_type[1] + POSITIVE_LABEL_TAG)


def message_passing_to_negative_label(message_passing_edge_type: AnyEdgeType) -> AnyEdgeType:
    """Return the edge type of an edge type's negative labels, in the class of the argument."""
    return _with_relation(message_passing_edge_type, message_passing_edge_type[1] + NEGATIVE_LABEL_TAG)


def is_label_edge_type(edge_type: AnyEdgeType) -> bool:
    """Return whether an edge type holds labels."""
    return edge_type[1].endswith((POSITIVE_LABEL_TAG, NEGATIVE_LABEL_TAG))


def label_edge_type_to_message_passing_edge_type(label_edge_type: AnyEdgeType) -> AnyEdgeType:
    """Return the edge type to which an edge type of labels belongs.

    Raises:
        SettingsError: The edge type holds no labels.
    """
    if not is_label_edge_type(label_edge_type):
        raise SettingsError(
            f"{tuple(label_edge_type)} holds no labels; relations of those that do end in {POSITIVE_LABEL_TAG} or "
            f"{NEGATIVE_LABEL_TAG}"
        )
    relation = label_edge_type[1]
    tag = POSITIVE_LABEL_TAG if relation.endswith(POSITIVE_LABEL_TAG) else NEGATIVE_LABEL_TAG
    return _with_relation(label_edge_type, relation.removesuffix(tag))


def select_label_edge_types(
    message_passing_edge_type: AnyEdgeType, edge_entities: Iterable[AnyEdgeType]
) -> tuple[AnyEdgeType, AnyEdgeType | None]:
    """Select the edge types of an edge type's labels.

    Args:
        message_passing_edge_type: The edge type.
        edge_entities: The existing edge types.

    Returns:
        The edge type of positives, and the edge type of negatives or None.

    Raises:
        SettingsError: There is no edge type of positives.
    """
    there = {tuple(edge_type): edge_type for edge_type in edge_entities}
    positive = message_passing_to_positive_label(message_passing_edge_type)
    if tuple(positive) not in there:
        raise SettingsError(
            f"{tuple(message_passing_edge_type)} has no positive labels: there is no {tuple(positive)} among "
            f"{list(there)}"
        )
    return there[tuple(positive)], there.get(tuple(message_passing_to_negative_label(message_passing_edge_type)))


def reverse_edge_type(edge_type: AnyEdgeType) -> AnyEdgeType:
    """Return the edge type with its ends swapped and the same relation."""
    return _like(edge_type, (edge_type[2], edge_type[1], edge_type[0]))


def _with_relation(edge_type: AnyEdgeType, relation: str) -> AnyEdgeType:
    return _like(edge_type, (edge_type[0], relation, edge_type[2]))


def _like(edge_type: AnyEdgeType, names: tuple[str, str, str]) -> AnyEdgeType:
    """Return three names as an edge type of the same class as another."""
    return EdgeType(*cast(Any, names)) if isinstance(edge_type, EdgeType) else names


@overload
def to_heterogeneous_node(x: None) -> None: ...
@overload
def to_heterogeneous_node(x: T | dict[NodeType, T]) -> dict[NodeType, T]: ...
def to_heterogeneous_node(x: Any) -> Any:
    """Return values by node type; a value without types gets the default node type, and None stays None."""
    return x if x is None or isinstance(x, dict) else {DEFAULT_HOMOGENEOUS_NODE_TYPE: x}


@overload
def to_heterogeneous_edge(x: None) -> None: ...
@overload
def to_heterogeneous_edge(x: T | dict[EdgeType, T]) -> dict[EdgeType, T]: ...
def to_heterogeneous_edge(x: Any) -> Any:
    """Return values by edge type; a value without types gets the default edge type, and None stays None."""
    return x if x is None or isinstance(x, dict) else {DEFAULT_HOMOGENEOUS_EDGE_TYPE: x}


@overload
def to_homogeneous(x: None) -> None: ...
@overload
def to_homogeneous(x: Mapping[NodeType, T]) -> T: ...
@overload
def to_homogeneous(x: Mapping[EdgeType, T]) -> T: ...
@overload
def to_homogeneous(x: T) -> T: ...
def to_homogeneous(x: Any) -> Any:
    """Return the only value of a mapping by types, or any other value unchanged.

    Raises:
        SettingsError: The mapping has no value, or several.
    """
    if not isinstance(x, Mapping):
        return x
    if len(x) != 1:
        raise SettingsError(f"there are values for {len(x)} types, {list(x)}; wanted the value of one type")
    return next(iter(x.values()))
