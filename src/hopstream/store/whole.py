"""Whole reads: all edges of a type, all rows of a column, or the ids of edges given by key.

Each request has a bounded size, so it meets its deadline for graphs of any size. The whole result is in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, find_sorted
from hopstream.dataset.book import Entity, ends_of
from hopstream.errors import IdRangeError, UnknownNameError
from hopstream.schema import Direction, EdgeType, FeatureSchema, type_label
from hopstream.store.contract import KEY, KEY_SCHEMA, FetchRequest, SampleReply, SampleRequest, Store

MAX_EDGES = 1 << 22
"""Largest number of edges in one request, unless one node has more."""
MAX_ROWS = 1 << 20
"""Largest number of nodes, or of rows of columns, in one request."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeEdges:
    """All edges of a type, grouped by the node that keeps them; nodes are in the order of their keys.

    Attributes:
        direction: ``in``: edges are grouped by destination; ``out``: by source.
        indptr: int64[num_nodes + 1], start of each node's edges.
        neighbor_keys: int64[num_edges], keys of the other ends; within a node in stored order, which is the order of
            time if the dataset was written with times.
        edge_ids: int64[num_edges], ids in that direction.
        edge_keys: int64[num_edges], or None if the dataset keeps no edge keys.
    """

    direction: Direction
    indptr: IntArray
    neighbor_keys: IntArray
    edge_ids: IntArray
    edge_keys: IntArray | None

    def ends(self) -> tuple[IntArray, IntArray]:
        """Return the keys of sources and of destinations, int64[num_edges] each, in the order of edges."""
        own = np.repeat(np.arange(len(self.indptr) - 1, dtype=np.int64), np.diff(self.indptr))
        return (self.neighbor_keys, own) if self.direction == "in" else (own, self.neighbor_keys)


def read_edges(store: Store, edge_type: EdgeType, direction: Direction | None = None) -> WholeEdges:
    """Read all edges of a type.

    Args:
        store: A store of all parts.
        edge_type: The edge type.
        direction: A direction of the store; None for its first one.

    Raises:
        UnknownNameError: The graph has no such edge type.
        StoreError: A server failed or did not answer in time.
    """
    store.schema.check_edge_type(edge_type)
    direction = store.directions[0] if direction is None else direction
    near, far = ends_of(edge_type, direction)
    ids = _ids_in_key_order(store, near)
    far_keys = _keys_in_id_order(store, far, ids if far == near else None)
    indptr, replies = read_edges_of(store, edge_type, direction, ids)
    neighbor_keys, edge_ids = np.empty(indptr[-1], np.int64), np.empty(indptr[-1], np.int64)
    for places, reply in replies:
        neighbor_keys[places] = far_keys[reply.neighbor_ids]
        edge_ids[places] = reply.edge_ids
    edge_keys = None
    if keeps_edge_keys(store, direction):
        edge_keys = fetch_rows(store, (edge_type, direction), {KEY: KEY_SCHEMA}, edge_ids)[KEY]
    return WholeEdges(
        direction=direction, indptr=indptr, neighbor_keys=neighbor_keys, edge_ids=edge_ids, edge_keys=edge_keys
    )


def read_edges_of(
    store: Store, edge_type: EdgeType, direction: Direction, ids: IntArray
) -> tuple[IntArray, Iterator[tuple[slice, SampleReply]]]:
    """Read all edges of some nodes, in bounded requests.

    Args:
        store: A store of the parts that own the nodes.
        edge_type: The edge type.
        direction: A direction of the store.
        ids: int64[n], nodes that keep the edges.

    Returns:
        int64[n + 1], start of each node's edges; and an iterator over replies with edge ids, each with the range of its
        edges among all edges.
    """
    degrees = [store.degrees(edge_type, direction, ids[block]) for block in _blocks(len(ids), MAX_ROWS)]
    indptr = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(np.concatenate([indptr[:0], *degrees]), out=indptr[1:])

    def replies() -> Iterator[tuple[slice, SampleReply]]:
        for first, stop in _stretches(indptr):
            request = SampleRequest(
                edge_type=edge_type, direction=direction, ids=ids[first:stop], count=-1, wants_edge_ids=True
            )
            yield slice(int(indptr[first]), int(indptr[stop])), store.sample([request])[0]

    return indptr, replies()


def fetch_rows(
    store: Store, entity: Entity, features: dict[str, FeatureSchema], ids: IntArray
) -> dict[str, NDArray[Any]]:
    """Read rows of columns of fixed width into new arrays, in bounded requests.

    Args:
        store: A store of all parts.
        entity: A node type, or an (edge type, direction).
        features: Schemas of the columns by name.
        ids: int64[n].

    Returns:
        An array of n rows per name.
    """
    out = {name: np.empty((len(ids), *feature.shape), feature.numpy_dtype) for name, feature in features.items()}
    for block in _blocks(len(ids), MAX_ROWS):
        part_of = {name: array[block] for name, array in out.items()}
        store.fetch([FetchRequest(entity=entity, names=tuple(features), ids=ids[block], out=part_of)])
    return out


def keeps_edge_keys(store: Store, direction: Direction) -> bool:
    """Return whether a store has original edge keys; a dataset keeps them for all edge types or for none."""
    for edge_type in store.schema.edges:
        if store.book.num_ids((edge_type, direction)):
            request = FetchRequest(entity=(edge_type, direction), names=(KEY,), ids=np.zeros(1, np.int64))
            try:
                store.fetch([request])
            except UnknownNameError:
                return False
            return True
    return True


def _ids_in_key_order(store: Store, node_type: str) -> IntArray:
    """Return the id of each key, int64[num_nodes]."""
    keys = np.arange(store.book.num_ids(node_type), dtype=np.int64)
    if store.book.ids_are_keys:
        return keys
    return np.concatenate([keys[:0], *(store.lookup(node_type, keys[b]) for b in _blocks(len(keys), MAX_ROWS))])


def _keys_in_id_order(store: Store, node_type: str, ids: IntArray | None) -> IntArray:
    """Return the key of each id, int64[num_nodes]; ``ids`` are the ids in the order of keys, if known."""
    ids = _ids_in_key_order(store, node_type) if ids is None else ids
    keys = np.empty_like(ids)
    keys[ids] = np.arange(len(ids), dtype=np.int64)
    return keys


def _blocks(num_rows: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, num_rows)) for first in range(0, num_rows, size))


def _stretches(indptr: IntArray) -> Iterator[tuple[int, int]]:
    """Yield ranges of nodes with at most ``MAX_EDGES`` edges and ``MAX_ROWS`` nodes, or of one node."""
    first, num_nodes = 0, len(indptr) - 1
    while first < num_nodes:
        stop = int(np.searchsorted(indptr, indptr[first] + MAX_EDGES, side="right")) - 1
        stop = min(max(stop, first + 1), first + MAX_ROWS, num_nodes)
        yield first, stop
        first = stop


class EdgeIdsOfKeys:
    """Index from edge keys to ids, per part. Safe to use from many threads.

    The keys of a part's edges are fetched when the part is first needed, and kept: 16 bytes per edge of the part.
    """

    def __init__(self, store: Store, edge_type: EdgeType) -> None:
        """Prepare an index of one edge type, direction ``in``.

        Args:
            store: Store of every part that will be looked up; its edges have keys.
            edge_type: The edge type.
        """
        self._store = store
        self._edge_type = edge_type
        self._sorted: dict[int, tuple[IntArray, IntArray]] = {}
        self._lock = threading.Lock()
        self._locks: dict[int, threading.Lock] = {}

    def find(self, keys: IntArray, parts: IntArray) -> IntArray:
        """Return the id of each edge, int64[n].

        Args:
            keys: int64[n] edge keys, any order, repetitions allowed.
            parts: int64[n], part that holds each edge.

        Raises:
            IdRangeError: A part does not exist, or holds no edge with that key.
            StoreError: A server failed or did not answer in time.
        """
        ids = np.empty(len(keys), np.int64)
        for part in np.unique(parts).tolist():
            (rows,) = np.nonzero(parts == part)
            known, ids_of = self._part(part)
            places = find_sorted(known, keys[rows])
            if len(unknown := rows[places < 0]):
                raise IdRangeError(
                    f"edge {int(keys[unknown[0]])} of {type_label(self._edge_type)} is not in part {part} "
                    f"({len(known)} edges), although edge_pb assigns it there; a part must hold the edges whose "
                    "destination it owns"
                )
            ids[rows] = ids_of[places]
        return ids

    def _part(self, part: int) -> tuple[IntArray, IntArray]:
        """Return the keys of a part's edges, ascending, and the id of each."""
        offsets = self._store.book.edge_offsets[self._edge_type, "in"]
        if not 0 <= part < len(offsets) - 1:
            raise IdRangeError(f"part is {part}; parts are numbered 0..{len(offsets) - 2}")
        with self._lock:
            of_part = self._locks.setdefault(part, threading.Lock())
        with of_part:  # a lock per part: a slow server does not block lookups in other parts
            if part not in self._sorted:
                ids = np.arange(int(offsets[part]), int(offsets[part + 1]))
                keys = fetch_rows(self._store, (self._edge_type, "in"), {KEY: KEY_SCHEMA}, ids)[KEY]
                order = np.argsort(keys, kind="stable")
                self._sorted[part] = keys[order], ids[order]
            return self._sorted[part]
