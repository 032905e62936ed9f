"""Context, node sets and edge sets of graph tensors, and conversion of users' values.

A piece belongs to one graph, with ``sizes`` int[num_components], or to a batch, with ``sizes``
int[num_graphs, num_components]. Sizes and indices from lists become int32, as in TensorFlow.

Values of one shape are arrays; strings are ``bytes`` in an object array. Values of varying size are ``FeatureValues``.
A batch stores the values of all items in sequence, and presents the values of each graph as a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray
from hopstream.checks import known_words
from hopstream.compat.tfgnn.specs import (
    SOURCE,
    TARGET,
    AdjacencySpec,
    ContextSpec,
    EdgeSetSpec,
    NodeSetSpec,
    TensorSpec,
)
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.tfgnn.values import Dim, FeatureValues

Field = Array | FeatureValues
"""Values of a feature: dtype[items, ...], or values of varying size."""


def held(values: Any) -> FeatureValues:
    """Convert values to ``FeatureValues``. Lists of numbers become int32 or float32, as in TensorFlow.

    Args:
        values: An array, ``FeatureValues``, a ``RaggedArray``, or nested lists of any lengths.

    Raises:
        SchemaError: Lists are not equally deep, or hold neither numbers nor strings.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "OSU" and values.ndim:
        given = values.reshape(-1).tolist()
        if all(isinstance(value, str | bytes) for value in given):  # an empty array counts as strings
            strings = FeatureValues.of(given).flat if given else RaggedArray.from_strings([])
            return FeatureValues(strings, len(values), values.shape[1:])
    made = FeatureValues.of(values)
    if isinstance(values, np.ndarray | RaggedArray | FeatureValues) or isinstance(made.flat, RaggedArray):
        return made
    flat = made.flat
    if flat.dtype == np.float64:
        flat = flat.astype(np.float32)
    elif flat.dtype.kind in "iu" and (not len(flat) or -(2**31) <= int(flat.min()) <= int(flat.max()) < 2**31):
        flat = flat.astype(np.int32)
    return FeatureValues(flat, made.num_items, made.dims)


def ragged_constant(rows: Any, ragged_rank: int | None = None) -> FeatureValues:
    """Convert nested lists to values with ragged dimensions, like ``tf.ragged.constant``.

    Args:
        rows: Nested lists of numbers or strings.
        ragged_rank: Number of ragged dimensions, without the items' own; None for all.

    Raises:
        SchemaError: Lists are not equally deep, or hold neither numbers nor strings.
    """
    made = held(rows)
    num_ragged = len(made.dims) if ragged_rank is None else ragged_rank
    if not 0 <= num_ragged <= len(made.dims):
        raise SchemaError(f"ragged_rank is {ragged_rank}; lists this deep have 0 to {len(made.dims)}")
    dims: list[Dim] = []
    num_rows = made.num_items
    for number, dim in enumerate(made.dims):
        dims.append(np.full(num_rows, dim, np.int64) if number < num_ragged and isinstance(dim, int) else dim)
        num_rows = num_rows * dim if isinstance(dim, int) else int(dim.sum())
    return FeatureValues(made.flat, made.num_items, tuple(dims))


def shown(values: FeatureValues) -> Field:
    """Convert values to the user's form: an array if no dimension varies."""
    sizes = [dim for dim in values.dims if isinstance(dim, int)]
    if len(sizes) < len(values.dims):
        return values
    flat: Array
    if isinstance(values.flat, RaggedArray):
        flat = np.empty(len(values.flat), object)
        flat[:] = FeatureValues(values.flat, len(values.flat)).tolist()
    else:
        flat = values.flat
    return flat.reshape(values.num_items, *sizes)


def items_of(values: Any, sizes: IntArray, where: str) -> FeatureValues:
    """Return the values of all items, from values for one graph or for a batch.

    Args:
        values: As for ``held``; values of a batch have a row per graph.
        sizes: int[num_components], or int[num_graphs, num_components].
        where: Name of the values in errors.

    Raises:
        SchemaError: The number of items or graphs differs from ``sizes``.
    """
    made = held(values)
    if sizes.ndim == 2:
        counts = sizes.sum(axis=1)
        dims = made.dims
        if made.num_items != len(counts) or not dims or not bool(np.all(np.asarray(dims[0]) == counts)):
            raise SchemaError(f"{where} has {made.num_items} rows; a batch has one per graph: {counts.tolist()} items")
        made = FeatureValues(made.flat, int(counts.sum()), dims[1:])
    if made.num_items != int(sizes.sum()):
        raise SchemaError(f"{where} has values of {made.num_items} items; sizes are {sizes.tolist()}")
    return made


def rows_of(items: FeatureValues, sizes: IntArray, *, is_uniform: bool = False) -> FeatureValues:
    """Return the values of all items with a row per graph, if ``sizes`` are those of a batch.

    Args:
        items: Values of all items.
        sizes: int[num_components], or int[num_graphs, num_components].
        is_uniform: All graphs have equally many items, so the rows are not ragged.
    """
    if sizes.ndim == 1:
        return items
    counts: Dim = int(sizes.shape[1]) if is_uniform else sizes.sum(axis=1, dtype=np.int64)
    return FeatureValues(items.flat, len(sizes), (counts, *items.dims))


class Fields(Mapping[str, Field]):
    """Features of a set by name; an access makes the feature's values."""

    def __init__(self, items: Mapping[str, FeatureValues], sizes: IntArray, where: str, *, is_uniform: bool) -> None:
        """Set the values of all items and the sizes of a set; ``where`` is the set's name in errors."""
        self._items, self._sizes, self._where, self._is_uniform = items, sizes, where, is_uniform

    def __getitem__(self, name: str) -> Field:
        """Return the values of one feature."""
        if name not in self._items:
            raise UnknownNameError(f"{self._where} has no feature {name!r}; {known_words(name, self._items)}")
        return shown(rows_of(self._items[name], self._sizes, is_uniform=self._is_uniform))

    def __iter__(self) -> Iterator[str]:
        """Yield the names of features."""
        return iter(self._items)

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self._items)

    def __repr__(self) -> str:
        """Return the names and shapes of features."""
        shapes = (f"{name!r}: {[values.num_items, *values.shape]}" for name, values in self._items.items())
        return f"Fields({', '.join(shapes)})"


def integers(values: Any, where: str) -> IntArray:
    """Convert sizes or indices to int32 or int64: arrays keep their width, lists become int32 if they fit.

    Raises:
        SchemaError: The values are not integers.
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
    """Ends of the edges of a set. Indices of nodes count from the first node of their graph.

    Attributes:
        source_name: The node set of sources.
        target_name: The node set of targets.
        flat: int[num_edges], the sources of all graphs in sequence, and the targets.
        num_edges: Number of edges; int64[num_graphs] for a batch.
    """

    source_name: str
    target_name: str
    flat: tuple[IntArray, IntArray]
    num_edges: int | IntArray

    @classmethod
    def from_indices(cls, source: tuple[str, Any], target: tuple[str, Any]) -> Adjacency:
        """Make the adjacency of edges.

        Args:
            source: The node set of the sources, and int[num_edges], the sources; for a batch, a row per graph.
            target: The node set of the targets, and int[num_edges], the targets; for a batch, a row per graph.

        Raises:
            SchemaError: The numbers of sources and targets differ, or they are not integers.
        """
        sources, num_sources = _indices_of(source[1], "source")
        targets, num_targets = _indices_of(target[1], "target")
        if not np.array_equal(num_sources, num_targets):
            raise SchemaError(f"there are {num_sources} sources and {num_targets} targets; an edge has one of each")
        return cls(source_name=source[0], target_name=target[0], flat=(sources, targets), num_edges=num_sources)

    @property
    def source(self) -> Field:
        """int[num_edges], the sources; for a batch, a row per graph."""
        return self[SOURCE]

    @property
    def target(self) -> Field:
        """int[num_edges], the targets; for a batch, a row per graph."""
        return self[TARGET]

    def __getitem__(self, node_tag: int) -> Field:
        """Return the indices of ``SOURCE`` or ``TARGET``."""
        flat = self.flat[_checked(node_tag)]
        return flat if isinstance(self.num_edges, int) else FeatureValues(flat, len(self.num_edges), (self.num_edges,))

    def node_set_name(self, node_tag: int) -> str:
        """Return the node set of ``SOURCE`` or ``TARGET``."""
        return (self.source_name, self.target_name)[_checked(node_tag)]

    def get_indices_dict(self) -> dict[int, tuple[str, Field]]:
        """Return the node set and the indices of ``SOURCE`` and of ``TARGET``."""
        return {tag: (self.node_set_name(tag), self[tag]) for tag in (SOURCE, TARGET)}

    @property
    def spec(self) -> AdjacencySpec:
        """Spec of the adjacency."""
        dtype = self.flat[0].dtype.name
        shape = (self.num_edges,) if isinstance(self.num_edges, int) else (len(self.num_edges), None)
        return AdjacencySpec(self.source_name, self.target_name, TensorSpec(shape, dtype))


def _checked(node_tag: int) -> int:
    if node_tag not in (SOURCE, TARGET):
        raise UnknownNameError(f"edges have no end {node_tag!r}; use SOURCE, {SOURCE}, or TARGET, {TARGET}")
    return node_tag


def _indices_of(values: Any, where: str) -> tuple[IntArray, int | IntArray]:
    """Return all indices, and the number of edges: one number, or one per graph of a batch."""
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
    """Check and return the sizes of a set.

    Raises:
        SchemaError: The sizes are not integers of at least 0, for one graph or for graphs of equally many components.
    """
    sizes = integers(values, f"sizes of {where}")
    if sizes.ndim not in (1, 2):
        raise SchemaError(f"sizes of {where} have shape {list(sizes.shape)}; use [num_components], of a batch [n, m]")
    if sizes.size and int(sizes.min()) < 0:
        raise SchemaError(f"sizes of {where} hold {int(sizes.min())}; sizes are 0 or more")
    return sizes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Piece:
    """Common part of context, node sets and edge sets.

    Attributes:
        sizes: int[num_components], number of items of each component; int[num_graphs, num_components] for a batch.
        items: Values of all items by name.
    """

    sizes: IntArray
    items: Mapping[str, FeatureValues] = field(default_factory=dict)
    _kind: ClassVar[str] = "the piece"

    def __getitem__(self, name: str) -> Field:
        """Return the values of a feature.

        Raises:
            UnknownNameError: There is no such feature.
        """
        return self.features[name]

    @property
    def features(self) -> Fields:
        """Features by name: dtype[items, ...], or ``FeatureValues``; for a batch, a row per graph."""
        return Fields(self.items, self.sizes, self._kind, is_uniform=self._has_uniform_rows())

    def get_features_dict(self) -> dict[str, Field]:
        """Return the features by name, in a new dict."""
        return dict(self.features)

    @property
    def rank(self) -> int:
        """1 for a batch of graphs, otherwise 0."""
        return self.sizes.ndim - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """``(num_graphs,)`` for a batch, otherwise ``()``."""
        return self.sizes.shape[:-1]

    @property
    def total_size(self) -> int:
        """Number of items in all components of all graphs."""
        return int(self.sizes.sum())

    @property
    def num_components(self) -> Any:
        """Number of components of the graph; int64[num_graphs] for a batch."""
        number = int(self.sizes.shape[-1])
        return np.full(len(self.sizes), number, np.int64) if self.rank else number

    @property
    def total_num_components(self) -> int:
        """Number of components of all graphs."""
        return int(self.sizes.size)

    def replace_features(self: AnyPiece, features: Mapping[str, Any]) -> AnyPiece:
        """Return the same piece with exactly these features.

        Raises:
            SchemaError: A feature has another number of items.
        """
        return replace(self, items={n: items_of(v, self.sizes, f"{self._kind}.{n}") for n, v in features.items()})

    def _has_uniform_rows(self) -> bool:
        return False

    def _common_specs(self) -> dict[str, Any]:
        """Return the common part of all pieces' specs: those of features and of sizes."""
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
    """Features of components."""

    __slots__ = ()
    _kind = "context"

    @classmethod
    def from_fields(
        cls, *, features: Mapping[str, Any] | None = None, sizes: Any = None, shape: Sequence[int] = (),
        indices_dtype: Any = np.int32,
    ) -> Context:  # fmt: skip
        """Make a context.

        Args:
            features: dtype[num_components, ...] by name; dtype[num_graphs, num_components, ...] for a batch.
            sizes: Ones, one per component; None for the number of items of the first feature.
            shape: ``(num_graphs,)`` for a batch, if ``sizes`` is None.
            indices_dtype: dtype of ``sizes``, int32 or int64.

        Raises:
            SchemaError: Features have different numbers of components.
        """
        if sizes is None:
            first = next((FeatureValues.of(values) for values in (features or {}).values()), None)
            number: Any = 1 if first is None else first.dims[0] if shape and first.dims else first.num_items
            if not isinstance(number, int):
                raise SchemaError("context features of a batch must have the same number of components in each graph")
            sizes = np.ones((*shape, number), indices_dtype)
        checked = sizes_of(sizes, "context")
        return cls(sizes=checked).replace_features(features or {})

    def _has_uniform_rows(self) -> bool:
        return True

    @property
    def spec(self) -> ContextSpec:
        """Shapes and dtypes of the context."""
        return ContextSpec(**self._common_specs())


class NodeSet(_Piece):
    """Nodes of one set."""

    __slots__ = ()
    _kind = "node set"

    @classmethod
    def from_fields(cls, *, features: Mapping[str, Any] | None = None, sizes: Any) -> NodeSet:
        """Make a node set.

        Args:
            features: dtype[num_nodes, ...] or values of varying size, by name; for a batch, a row per graph.
            sizes: int[num_components], nodes per component; int[num_graphs, num_components] for a batch.

        Raises:
            SchemaError: A feature has another number of nodes.
        """
        return cls(sizes=sizes_of(sizes, "a node set")).replace_features(features or {})

    @property
    def spec(self) -> NodeSetSpec:
        """Shapes and dtypes of the node set."""
        return NodeSetSpec(**self._common_specs())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EdgeSet(_Piece):
    """Edges of one set.

    Attributes:
        adjacency: The ends of the edges.
    """

    adjacency: Adjacency
    _kind: ClassVar[str] = "edge set"

    @classmethod
    def from_fields(cls, *, features: Mapping[str, Any] | None = None, sizes: Any, adjacency: Adjacency) -> EdgeSet:
        """Make an edge set.

        Args:
            features: dtype[num_edges, ...] or values of varying size, by name; for a batch, a row per graph.
            sizes: int[num_components], edges per component; int[num_graphs, num_components] for a batch.
            adjacency: The ends of the edges.

        Raises:
            SchemaError: A feature, or the adjacency, has another number of edges.
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
        """Shapes and dtypes of the edge set."""
        return EdgeSetSpec(adjacency_spec=self.adjacency.spec, **self._common_specs())
