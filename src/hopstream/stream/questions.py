"""Questions about the graph of a cluster: types, books, splits, labels and degrees.

A store over the cluster answers them. It is opened on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from hopstream.arrays import Column, IntArray, to_array
from hopstream.checks import OfOneProcess, check_choice
from hopstream.dataset.book import ends_of
from hopstream.errors import SettingsError, StateError
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema, type_label
from hopstream.store.cluster import Cluster, open_cluster
from hopstream.store.contract import FetchRequest, Store
from hopstream.store.requests import check_entity
from hopstream.store.settings import StoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShape:
    """Shape and dtype of a feature.

    Attributes:
        dim: Numbers per node or edge, 1 for a scalar; per element if rows differ in length.
        dtype: A numpy dtype name, or ``"string"``.
        is_ragged: Whether rows differ in length.
    """

    dim: int
    dtype: str
    is_ragged: bool = False


class GraphQuestions(OfOneProcess):
    """Questions about the graph of a cluster. Safe to use from many threads."""

    _remedy = "make one in each process, from the same cluster.json or addresses"

    def __init__(self, cluster: Cluster, settings: StoreSettings) -> None:
        """Keep the servers' addresses; sends no request.

        Raises:
            SettingsError: ``settings`` is not a ``StoreSettings``.
        """
        self._cluster = cluster
        self._settings = cluster.access(settings)
        self._opening = threading.Lock()
        self._is_closed = False
        self._opened: Store | None = None

    def __enter__(self) -> Self:
        """Return the graph; the ``with`` block closes its connections."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Disconnect; a second call does nothing. Loaders have their own connections and go on."""
        with self._opening:
            self._is_closed = True
            store, self._opened = self._opened, None
        if store is not None:
            store.close()

    def fetch_schema(self) -> GraphSchema:
        """Return node types, edge types, their features and splits."""
        return self._store().schema

    def fetch_node_types(self) -> tuple[str, ...]:
        """Return all node types."""
        return tuple(self._store().schema.nodes)

    def fetch_edge_types(self) -> tuple[EdgeType, ...]:
        """Return all edge types."""
        return tuple(self._store().schema.edges)

    def fetch_node_feature_info(self) -> dict[str, dict[str, FeatureShape]]:
        """Return shapes and dtypes of features, by node type and name."""
        return {node_type: _infos(features) for node_type, features in self._store().schema.nodes.items()}

    def fetch_edge_feature_info(self) -> dict[EdgeType, dict[str, FeatureShape]]:
        """Return shapes and dtypes of features, by edge type and name."""
        return {edge_type: _infos(features) for edge_type, features in self._store().schema.edges.items()}

    def fetch_node_partition_book(self) -> dict[str, IntArray]:
        """Return int64[num_parts + 1] per node type: part ``p`` owns ids ``[offsets[p], offsets[p + 1])``.

        Ids number the nodes part by part. ``get_node_partition_id`` returns the part of a node given by key.
        """
        return {node_type: offsets.copy() for node_type, offsets in self._store().book.node_offsets.items()}

    def fetch_edge_partition_book(self) -> dict[tuple[EdgeType, Direction], IntArray]:
        """Return int64[num_parts + 1] per (edge type, direction): the ranges of edge ids of parts."""
        return {entity: offsets.copy() for entity, offsets in self._store().book.edge_offsets.items()}

    def get_node_partition_id(self, node_type: str, keys: Any) -> IntArray:
        """Return the part that owns each node, int64[n]; nodes are given by key.

        Raises:
            UnknownNameError: The graph has no such node type.
            IdRangeError: A key outside 0..n-1 of the type.
            StoreError: A required server is unreachable, or refused to answer.
        """
        store = self._store()
        return store.book.parts_of(node_type, _lookup(store, node_type, keys))

    def fetch_edge_dir(self) -> tuple[Direction, ...]:
        """Return the directions in which edges can be followed: ``in``, ``out`` or both."""
        return self._store().directions

    def fetch_weight_attr(self) -> str | None:
        """Return the edge feature that holds weights; None if the dataset was written without weights."""
        return self._store().weight_attr

    def fetch_edge_weights_registered(self) -> bool:
        """Return whether the dataset was written with weights, so that weighted draws are possible."""
        return self._store().weight_attr is not None

    def fetch_split(self, node_type: str, split: str) -> IntArray:
        """Return the keys of the nodes of a split, int64[n], ascending.

        Loaders read splits themselves: ``seeds=(node_type, split)``, divided by ``rank`` and ``world_size``.

        Raises:
            UnknownNameError: The graph has no such node type or split.
            StoreError: A required server is unreachable, or refused to answer.
        """
        return self._store().split(node_type, split)

    def fetch_node_labels(self, node_type: str, name: str, keys: Any) -> Column:
        """Return a feature of some nodes, such as their classes.

        Args:
            node_type: The node type.
            name: Name of the feature.
            keys: int64[n], any order, repetitions allowed.

        Returns:
            The feature's rows in the order of ``keys``.

        Raises:
            UnknownNameError: The graph has no such node type or feature.
            IdRangeError: A key outside 0..n-1 of the type.
            StoreError: A required server is unreachable, or refused to answer.
        """
        store = self._store()
        store.schema.feature(node_type, name)
        ids = _lookup(store, node_type, keys)
        return store.fetch([FetchRequest(entity=node_type, names=(name,), ids=ids)])[0][name]

    def fetch_degrees(
        self,
        node_type: str,
        keys: Any,
        *,
        edge_type: EdgeType | str | None = None,
        direction: Direction | None = None,
    ) -> IntArray:
        """Return the number of edges of some nodes.

        Args:
            node_type: The node type.
            keys: int64[n], any order, repetitions allowed.
            edge_type: The edge type; None adds up all edge types that these nodes have in the direction.
            direction: ``in``: edges that end at the node; ``out``: edges that start there. None means ``in`` if the
                dataset holds it, as in loaders.

        Returns:
            int64[n], in the order of ``keys``.

        Raises:
            UnknownNameError: The graph has no such node type or edge type, or the dataset does not hold the direction.
            SettingsError: The edge type has no edges at nodes of this type in this direction.
            IdRangeError: A key outside 0..n-1 of the type.
            StoreError: A required server is unreachable, or refused to answer.
        """
        store = self._store()
        store.schema.check_node_type(node_type)
        if direction is None:
            direction = "in" if "in" in store.directions else "out"
        check_choice("direction", direction, ("in", "out"))
        if edge_type is None:
            counted = [t for t in store.schema.edges if ends_of(t, direction)[0] == node_type]
        else:
            counted = [store.schema.edge_type_of(edge_type)]
        for each in counted:
            check_entity(store, (each, direction))
            if (near := ends_of(each, direction)[0]) != node_type:
                raise SettingsError(
                    f"edges of {type_label(each)} in direction {direction!r} belong to {near!r}, not to "
                    f"{node_type!r}; choose the other direction or node type"
                )
        ids = _lookup(store, node_type, keys)
        total = np.zeros(len(ids), np.int64)
        for each in counted:
            total += store.degrees(each, direction, ids)
        return total

    def _store(self) -> Store:
        """Return the store over all parts, which is opened on first use."""
        with self._opening:
            if self._is_closed:
                raise StateError("the graph was closed; make another RemoteGraph to ask it")
            if self._opened is None:
                self._opened = open_cluster(self._cluster, self._settings)
            return self._opened


def _infos(features: Mapping[str, FeatureSchema]) -> dict[str, FeatureShape]:
    return {
        name: FeatureShape(
            dim=int(np.prod(one.shape, dtype=np.int64)), dtype=one.dtype, is_ragged=not one.is_fixed_width
        )
        for name, one in features.items()
    }


def _lookup(store: Store, node_type: str, keys: Any) -> IntArray:
    """Return the ids of nodes; keys are an array of any integer dtype."""
    store.schema.check_node_type(node_type)
    array = to_array(keys)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SettingsError(f"keys are {array.dtype}{list(array.shape)}; give int64[n]")
    return store.lookup(node_type, np.ascontiguousarray(array, np.int64))
