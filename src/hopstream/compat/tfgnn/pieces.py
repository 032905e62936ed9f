"""Holds the context, the node sets and the edge sets of graph tensors.

A piece belongs to one graph, where ``sizes`` is int[num_components], or to a batch of them, where it is
int[num_graphs, num_components]. Sizes and indices are int32 where they are given as lists, as TensorFlow has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from hopstream.arrays import IntArray, RaggedArray
from hopstream.compat.tfgnn.fields import Field, Fields, items_of, rows_of
from hopstream.compat.tfgnn.names import SOURCE, TARGET
from hopstream.compat.tfgnn.specs import AdjacencySpec, ContextSpec, EdgeSetSpec, NodeSetSpec, TensorSpec
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.tfgnn.values import FeatureValues


def integers(values: Any, where: str) -> IntArray:
    """Sizes or indices as int32 or int64: arrays as they are, lists as int32 where they fit.

    Raises:
        SchemaError: They are no integers.
    """
    array = np.asarray(values)
    if not array.size:
        array = array.astype(array.dtype if array.dtype.kind == "i" else np.int32)
    if array.dtype.kind not in "iu":
        raise SchemaError(f"{where} is {array.dtype}; sizes and indices are integers")
    is_given = isinstance(values, np.ndarray)
    is_small = not array.size or -(2**31) <= int(array.min()) <= int(array.max()) < 2**31
    if array.dtype == np.int32 or (not is_given and is_small):
        return array.astype(np.int32, copy=False)
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Adjacency:
    """Which nodes the edges of a set connect. Nodes are counted from the first one of their graph.

    Attributes:
        source_name: The node set of sources.
        target_name: The node set of targets.
        flat: int[num_edges], the sources of all graphs one after the other, and the targets.
        num_edges: How many edges there are; int64[num_graphs] of a batch.
    """

    source_name: str
    target_name: str
    flat: tuple[IntArray, IntArray]
    num_edges: int | IntArray

    @classmethod
    def from_indices(cls, source: tuple[str, Any], target: tuple[str, Any]) -> Adjacency:
        """The adjacency of edges.

        Args:
            source: The node set that edges come from, and int[num_edges], their sources; a row per graph of a batch.
            target: Likewise the node set that they go to, and their targets.

        Raises:
            SchemaError: There are more sources than targets, or fewer, or they are no integers.
        """
        sources, num_sources = _indices_of(source[1], "source")
        targets, num_targets = _indices_of(target[1], "target")
        if not np.array_equal(num_sources, num_targets):
            raise SchemaError(f"there are {num_sources} sources and {num_targets} targets; an edge has one of each")
        return cls(source_name=source[0], target_name=target[0], flat=(sources, targets), num_edges=num_sources)

    @property
    def source(self) -> Field:
        """int[num_edges], the sources; a row per graph of a batch."""
        return self[SOURCE]

    @property
    def target(self) -> Field:
        """int[num_edges], the targets; a row per graph of a batch."""
        return self[TARGET]

    def __getitem__(self, node_tag: int) -> Field:
        """The indices of ``SOURCE`` or ``TARGET``."""
        flat = self.flat[_checked(node_tag)]
        return flat if isinstance(self.num_edges, int) else FeatureValues(flat, len(self.num_edges), (self.num_edges,))

    def node_set_name(self, node_tag: int) -> str:
        """The node set of ``SOURCE`` or ``TARGET``."""
        return (self.source_name, self.target_name)[_checked(node_tag)]

    def get_indices_dict(self) -> dict[int, tuple[str, Field]]:
        """The node set and the indices of ``SOURCE`` and of ``TARGET``."""
        return {tag: (self.node_set_name(tag), self[tag]) for tag in (SOURCE, TARGET)}

    @property
    def spec(self) -> AdjacencySpec:
        """What it connects."""
        dtype = self.flat[0].dtype.name
        shape = (self.num_edges,) if isinstance(self.num_edges, int) else (len(self.num_edges), None)
        return AdjacencySpec(self.source_name, self.target_name, TensorSpec(shape, dtype))


def _checked(node_tag: int) -> int:
    if node_tag not in (SOURCE, TARGET):
        raise UnknownNameError(f"edges have no end {node_tag!r}; use SOURCE, {SOURCE}, or TARGET, {TARGET}")
    return node_tag


def _indices_of(values: Any, where: str) -> tuple[IntArray, int | IntArray]:
    """All indices, and how many edges there are: one number, or one per graph of a batch."""
    made = FeatureValues.of(values)
    if isinstance(made.flat, RaggedArray) or len(made.dims) > 1:
        got = f"{'strings' if isinstance(made.flat, RaggedArray) else made.flat.dtype}{[made.num_items, *made.shape]}"
        raise SchemaError(f"{where} is {got}; indices are integers[num_edges], of a batch a row per graph")
    is_given = isinstance(values, np.ndarray | FeatureValues | RaggedArray)
    flat = integers(made.flat if is_given else made.flat.tolist(), where)
    if not made.dims:
        return flat, len(flat)
    (dim,) = made.dims
    return flat, np.full(made.num_items, dim, np.int64) if isinstance(dim, int) else dim


def sizes_of(values: Any, where: str) -> IntArray:
    """The sizes of a set.

    Raises:
        SchemaError: They are no integers of 0 or more, of one graph or of several with equally many components.
    """
    sizes = integers(values, f"sizes of {where}")
    if sizes.ndim not in (1, 2):
        raise SchemaError(f"sizes of {where} have shape {list(sizes.shape)}; use [num_components], of a batch [n, m]")
    if sizes.size and int(sizes.min()) < 0:
        raise SchemaError(f"sizes of {where} hold {int(sizes.min())}; sizes are 0 or more")
    return sizes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Piece:
    """What context, node sets and edge sets have in common.

    Attributes:
        sizes: int[num_components], items of each component; int[num_graphs, num_components] of a batch.
        items: Values of all items by name.
    """

    sizes: IntArray
    items: Mapping[str, FeatureValues] = field(default_factory=dict)
    _kind: ClassVar[str] = "the piece"

    def __getitem__(self, name: str) -> Field:
        """The values of a feature.

        Raises:
            UnknownNameError: There is no such feature.
        """
        return self.features[name]

    @property
    def features(self) -> Fields:
        """The features by name: dtype[items, ...], or ``FeatureValues`` of varying sizes; a row per graph."""
        return Fields(self.items, self.sizes, self._kind, is_uniform=self._has_uniform_rows())

    def get_features_dict(self) -> dict[str, Field]:
        """The features by name, in a new dict."""
        return dict(self.features)

    @property
    def rank(self) -> int:
        """1 for a batch of graphs, else 0."""
        return self.sizes.ndim - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """``(num_graphs,)`` of a batch, else ``()``."""
        return self.sizes.shape[:-1]

    @property
    def total_size(self) -> int:
        """Items in all components of all graphs."""
        return int(self.sizes.sum())

    @property
    def num_components(self) -> Any:
        """Components of the graph; int64[num_graphs] of a batch."""
        number = int(self.sizes.shape[-1])
        return np.full(len(self.sizes), number, np.int64) if self.rank else number

    @property
    def total_num_components(self) -> int:
        """Components of all graphs."""
        return int(self.sizes.size)

    def replace_features(self: AnyPiece, features: Mapping[str, Any]) -> AnyPiece:
        """The same piece with these features and no others.

        Raises:
            SchemaError: A feature has values of another number of items.
        """
        return replace(self, items={n: items_of(v, self.sizes, f"{self._kind}.{n}") for n, v in features.items()})

    def _has_uniform_rows(self) -> bool:
        return False

    def _common_specs(self) -> dict[str, Any]:
        """What the specs of all pieces have: those of features and of sizes."""
        rows = {
            name: rows_of(values, self.sizes, is_uniform=self._has_uniform_rows())
            for name, values in self.items.items()
        }
        return {
            "features_spec": {name: TensorSpec.of(values) for name, values in rows.items()},
            "sizes_spec": TensorSpec(self.sizes.shape, self.sizes.dtype.name),
        }


AnyPiece = TypeVar("AnyPiece", bound=_Piece)


class Context(_Piece):
    """The features of components as a whole."""

    __slots__ = ()
    _kind = "context"

    @classmethod
    def from_fields(
        cls, *, features: Mapping[str, Any] | None = None, sizes: Any = None, shape: Sequence[int] = (),
        indices_dtype: Any = np.int32,
    ) -> Context:  # fmt: skip
        """A context.

        Args:
            features: dtype[num_components, ...] by name; dtype[num_graphs, num_components, ...] of a batch.
            sizes: Ones, as many as there are components; worked out of the first feature if None.
            shape: ``(num_graphs,)`` of a batch, where ``sizes`` does not say so.
            indices_dtype: int32 or int64, of ``sizes``.

        Raises:
            SchemaError: Features are of different numbers of components.
        """
        if sizes is None:
            first = next((FeatureValues.of(values) for values in (features or {}).values()), None)
            number: Any = 1 if first is None else first.dims[0] if shape and first.dims else first.num_items
            if not isinstance(number, int):
                raise SchemaError("context features of a batch have equally many components in each graph")
            sizes = np.ones((*shape, number), indices_dtype)
        checked = sizes_of(sizes, "context")
        return cls(sizes=checked).replace_features(features or {})

    def _has_uniform_rows(self) -> bool:
        return True

    @property
    def spec(self) -> ContextSpec:
        """What shapes and dtypes there are."""
        return ContextSpec(**self._common_specs())


class NodeSet(_Piece):
    """The nodes of one set."""

    __slots__ = ()
    _kind = "node set"

    @classmethod
    def from_fields(cls, *, features: Mapping[str, Any] | None = None, sizes: Any) -> NodeSet:
        """A node set.

        Args:
            features: dtype[num_nodes, ...] or values that vary in size, by name; a row per graph of a batch.
            sizes: int[num_components], nodes of each component; int[num_graphs, num_components] of a batch.

        Raises:
            SchemaError: A feature has values of another number of nodes.
        """
        return cls(sizes=sizes_of(sizes, "a node set")).replace_features(features or {})

    @property
    def spec(self) -> NodeSetSpec:
        """What shapes and dtypes there are."""
        return NodeSetSpec(**self._common_specs())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EdgeSet(_Piece):
    """The edges of one set.

    Attributes:
        adjacency: Which nodes they connect.
    """

    adjacency: Adjacency
    _kind: ClassVar[str] = "edge set"

    @classmethod
    def from_fields(cls, *, features: Mapping[str, Any] | None = None, sizes: Any, adjacency: Adjacency) -> EdgeSet:
        """An edge set.

        Args:
            features: dtype[num_edges, ...] or values that vary in size, by name; a row per graph of a batch.
            sizes: int[num_components], edges of each component; int[num_graphs, num_components] of a batch.
            adjacency: Which nodes they connect.

        Raises:
            SchemaError: A feature, or the adjacency, is of another number of edges.
        """
        checked = sizes_of(sizes, "an edge set")
        wanted = checked.sum(axis=-1, dtype=np.int64)
        if not np.array_equal(adjacency.num_edges, wanted):
            raise SchemaError(
                f"the adjacency has {adjacency.num_edges} edges; sizes {checked.tolist()} have {wanted.tolist()}"
            )
        return cls(sizes=checked, adjacency=adjacency).replace_features(features or {})

    @property
    def spec(self) -> EdgeSetSpec:
        """What shapes and dtypes there are."""
        return EdgeSetSpec(adjacency_spec=self.adjacency.spec, **self._common_specs())
