"""What are a graph tensor's context, node sets and edge sets?

A piece belongs to one graph, where ``sizes`` is int[num_components], or to a batch of them, where it is
int[num_graphs, num_components]. Sizes and indices are int32 where they are given as lists, as TensorFlow has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from hopstream.arrays import IntArray
from hopstream.compat.tfgnn.adjacency import Adjacency, integers
from hopstream.compat.tfgnn.fields import Field, Fields, items_of, rows_of
from hopstream.compat.tfgnn.specs import ContextSpec, EdgeSetSpec, NodeSetSpec, TensorSpec
from hopstream.errors import SchemaError
from hopstream.tfgnn.values import FeatureValues


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

    def _sizes_spec(self) -> TensorSpec:
        return TensorSpec(self.sizes.shape, self.sizes.dtype.name)

    def _features_spec(self) -> dict[str, TensorSpec]:
        shown_rows = {
            name: rows_of(values, self.sizes, is_uniform=self._has_uniform_rows())
            for name, values in self.items.items()
        }
        return {name: TensorSpec.of(values) for name, values in shown_rows.items()}


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
        return ContextSpec(features_spec=self._features_spec(), sizes_spec=self._sizes_spec())


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
        return NodeSetSpec(features_spec=self._features_spec(), sizes_spec=self._sizes_spec())


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
        return EdgeSetSpec(
            features_spec=self._features_spec(), sizes_spec=self._sizes_spec(), adjacency_spec=self.adjacency.spec
        )
