"""Dataset of one storage server: its parts, and the whole graph over all servers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from hopstream.arrays import Array, IntArray
from hopstream.checks import read_integer
from hopstream.compat.glt.distributed.graph_facts import (
    LABEL,
    GraphFacts,
    edge_direction,
    join_columns,
    tensor_info,
    to_torch,
    torch_dtype,
)
from hopstream.dataset.book import Entity, ends_of, entity_label
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.paths import MANIFEST
from hopstream.engine.atomic_folder import open_work
from hopstream.errors import FormatError, SettingsError, StateError, StoreTimeout
from hopstream.schema import Direction, EdgeType, FeatureSchema
from hopstream.store.contract import KEY, KEY_SCHEMA, FetchRequest, Store
from hopstream.store.local import LocalStore
from hopstream.store.whole import fetch_rows, read_edges_of
from hopstream.uris import local_path

KEPT_BYTES = 256 << 20
"""Cache size in bytes of keys and books that other ranks may request too."""
BOOK = "partition book"
MAKE_S = 3600.0
"""Deadline in seconds for another process that makes the same dataset."""
READ_S = 600.0
"""Deadline in seconds for another caller that reads the same keys or book."""
LOOK_S = 0.2


class DistDataset:
    """Some parts of a Hopstream dataset. Thread-safe.

    Attributes:
        folder: The dataset's folder.
        edge_dir: The direction in which edges are followed.
        num_partitions: Number of servers that share the parts.
        partition_idx: Rank of this server.
        parts: The parts of this server, a contiguous range of the dataset's parts.
        max_labels_per_anchor_node: Limit of labels per anchor and edge type; None for no limit.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        edge_dir: str = "in",
        num_partitions: int = 1,
        partition_idx: int = 0,
        max_labels_per_anchor_node: int | None = None,
    ) -> None:
        """Open the parts of one server.

        Args:
            folder: A dataset that ``hopstream prepare`` or ``write_parts`` wrote.
            edge_dir: ``in`` follows edges from their destinations to their sources, ``out`` the other way.
            num_partitions: Number of servers that share the parts; at most the number of parts.
            partition_idx: Rank of this server.
            max_labels_per_anchor_node: Limit of labels per anchor and edge type, in stored order. None for no limit.

        Raises:
            SettingsError: The dataset does not have the direction, or has too few parts, or the limit is below 1.
            FormatError: The folder is no dataset.
        """
        self.folder: Path = local_path(folder)
        self.edge_dir: Direction = edge_direction(edge_dir)
        self.num_partitions, self.partition_idx = num_partitions, partition_idx
        if max_labels_per_anchor_node is not None:
            read_integer("max_labels_per_anchor_node", max_labels_per_anchor_node, 1)
        self.max_labels_per_anchor_node = max_labels_per_anchor_node
        dataset = open_dataset(self.folder)
        num_parts = dataset.manifest.book.num_parts
        if not 0 <= partition_idx < num_partitions <= num_parts:
            raise SettingsError(
                f"partition {partition_idx} of {num_partitions} of {self.folder}, which has {num_parts} parts; write "
                "it with at least one part per server"
            )
        self.parts = tuple(
            range(num_parts * partition_idx // num_partitions, num_parts * (partition_idx + 1) // num_partitions)
        )
        self.store = LocalStore(dataset, list(self.parts))
        if self.edge_dir not in self.store.directions:
            self.store.close()
            raise SettingsError(
                f"{self.folder} holds edges {'|'.join(self.store.directions)}; it cannot be followed {edge_dir!r}: "
                "write it again with direction='both'"
            )
        self.facts = GraphFacts(self.store.schema)
        self._lock = threading.Lock()
        self._keeping = threading.Lock()
        self._reading: dict[tuple[Entity, str | None], threading.Lock] = {}
        self._kept: dict[tuple[Entity, str | None], IntArray] = {}
        self._open_graph: Callable[[], Store] | None = None
        self._graph: Store | None = self.store if len(self.parts) == num_parts else None

    @property
    def has_graph(self) -> bool:
        """Whether all parts can be read: they are local, or the other servers are known."""
        return self._graph is not None or self._open_graph is not None

    def attach(self, open_graph: Callable[[], Store]) -> None:
        """Set the function that opens the whole graph; the dataset closes that graph."""
        with self._lock:
            self._open_graph = open_graph

    def graph(self) -> Store:
        """Return a store of all parts, opened on first use.

        Raises:
            SettingsError: Some parts are not local, and the other servers are not known.
            StoreError: A server cannot be reached.
        """
        with self._lock:
            if self._graph is None:
                if self._open_graph is None:
                    raise SettingsError(
                        f"this process holds parts {list(self.parts)} of {self.folder}, and no server is known for the "
                        "others; call init_server first"
                    )
                self._graph = self._open_graph()
            return self._graph

    def close(self) -> None:
        """Close the stores; a second call does nothing."""
        with self._lock:
            graph, self._graph = self._graph, None
        if graph is not None and graph is not self.store:
            graph.close()
        self.store.close()

    def num_own(self, node_type: str) -> int:
        """Return the number of nodes of its parts."""
        return len(self._own_ids(node_type))

    def own_keys(self, node_type: str) -> IntArray:
        """Return int64[n], the keys of the nodes of its parts, ascending; read-only."""
        return self._once(node_type, None, lambda: np.sort(_keys_of(self.store, node_type, self._own_ids(node_type))))

    def own_split(self, node_type: str, split: str) -> IntArray:
        """Return int64[n], the keys of the nodes of a split in its parts, ascending; read-only.

        Raises:
            UnknownNameError: There is no such split.
        """

        def read() -> IntArray:
            keys = self.own_keys(node_type)
            return keys[np.isin(keys, self.graph().split(node_type, split))]

        return self._once(node_type, split, read)

    def own_edges(self, edge_type: EdgeType) -> tuple[IntArray, IntArray]:
        """Return int64[n] keys of the sources and of the destinations of the edges of its parts."""
        near = ends_of(edge_type, self.edge_dir)[0]
        keys = self.own_keys(near)
        indptr, others = self.edges_of(edge_type, self.edge_dir, keys)
        own = np.repeat(keys, np.diff(indptr))
        return (own, others) if self.edge_dir == "out" else (others, own)

    def edges_of(self, edge_type: EdgeType, direction: Direction, keys: IntArray) -> tuple[IntArray, IntArray]:
        """Return all edges of some nodes of its parts.

        Args:
            edge_type: The edge type.
            direction: A direction that the dataset has.
            keys: int64[n], own nodes at the end that stores the edges.

        Returns:
            int64[n + 1], the offset of each node's edges, and int64[m] keys of their other ends, in stored order.
        """
        near, far = ends_of(edge_type, direction)
        indptr, replies = read_edges_of(self.store, edge_type, direction, self.store.find_own(near, keys))
        others = np.empty(indptr[-1], np.int64)
        for places, reply in replies:
            ids, rows = np.unique(reply.neighbor_ids, return_inverse=True)
            others[places] = _keys_of(self.graph(), far, ids.astype(np.int64))[rows]
        return indptr, others

    def partition_of(self, node_type: str, keys: IntArray) -> IntArray:
        """Return int64[n], the partition that owns each node."""
        return self._partitions(self.graph().book.parts_of(node_type, self.graph().lookup(node_type, keys)))

    def partition_book(self, entity: Entity) -> IntArray:
        """Return int64[n], the partition of each node of a type, or each edge of a type and direction.

        The array is read-only. Row ``k`` belongs to key ``k``.

        Raises:
            FormatError: No part has a key, or a part has a key without a node or edge.
            UnknownNameError: The dataset has no edge keys.
        """

        def read() -> IntArray:
            book, graph = self.store.book, self.graph()
            num_keys = book.num_ids(entity) if isinstance(entity, str) else book.num_edges(entity[0])
            found = np.full(num_keys, -1, np.int64)
            offsets, partitions = book.offsets(entity), self._partitions(book.piece_parts(entity))
            for start, stop, partition in zip(offsets[:-1], offsets[1:], partitions, strict=True):
                keys = _keys_of(graph, entity, np.arange(start, stop))
                if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= num_keys):
                    raise FormatError(
                        f"{entity_label(entity)}: a part of {self.folder} has keys from {keys.min()} to {keys.max()}; "
                        f"keys are 0..{num_keys - 1}; run hopstream verify on the dataset"
                    )
                found[keys] = partition
            if len(missing := np.flatnonzero(found < 0)):
                raise FormatError(
                    f"{entity_label(entity)}: key {missing[0]}, and {len(missing) - 1} more, are in no part of "
                    f"{self.folder}; run hopstream verify on the dataset"
                )
            return found

        return self._once(entity, BOOK, read)

    def _own_ids(self, node_type: str) -> IntArray:
        offsets = self.store.book.offsets(node_type)
        return np.arange(int(offsets[self.parts[0]]), int(offsets[self.parts[-1] + 1]), dtype=np.int64)

    def _partitions(self, parts: IntArray) -> IntArray:
        """Return int64[n], the partition to which each part belongs."""
        num_parts = self.store.book.num_parts
        starts = [num_parts * p // self.num_partitions for p in range(self.num_partitions)]
        return np.searchsorted(np.array(starts), parts, "right").astype(np.int64) - 1

    def _once(self, entity: Entity, what: str | None, read: Callable[[], IntArray]) -> IntArray:
        """Return the array from ``read``, and cache it unless it exceeds the cache.

        Ranks start together and request the same array. One caller reads, and the others wait for its result.

        Raises:
            StoreTimeout: Another caller has been reading the same for ``READ_S``.
        """
        key = entity, what
        with self._keeping:
            reading = self._reading.setdefault(key, threading.Lock())
        if not reading.acquire(timeout=READ_S):
            raise StoreTimeout(
                f"{entity_label(entity)}: another caller has been reading the {what or 'keys'} for {READ_S:g} s; call "
                "again, or check the disk and the other servers"
            )
        try:
            with self._keeping:
                found = self._kept.pop(key, None)
            if found is None:
                found = read()
                found.flags.writeable = False
            if found.nbytes <= KEPT_BYTES:
                with self._keeping:
                    self._kept[key] = found
                    while sum(one.nbytes for one in self._kept.values()) > KEPT_BYTES:
                        del self._kept[next(iter(self._kept))]
            return found
        finally:
            reading.release()

    def node_tensor(self, node_type: str, keys: IntArray) -> torch.Tensor:
        """Return [n, dim], the feature tensor of some nodes.

        Raises:
            SettingsError: The type has no features.
        """
        names = self.facts.node_columns(node_type)
        if not names:
            raise SettingsError(f"node type {node_type!r} has no features; its columns are not numbers")
        return join_columns([to_torch(column) for column in self._columns(node_type, names, keys)])

    def label_tensor(self, node_type: str, keys: IntArray) -> torch.Tensor:
        """Return [n, …], the labels of some nodes.

        Raises:
            SettingsError: The type has no labels.
        """
        if not self.facts.has_labels(node_type):
            raise SettingsError(f"node type {node_type!r} has no labels; they are the column {LABEL!r}")
        return to_torch(self._columns(node_type, (LABEL,), keys)[0])

    def _columns(self, node_type: str, names: tuple[str, ...], keys: IntArray) -> list[Array]:
        graph = self.graph()
        ids = graph.lookup(node_type, keys)
        columns = graph.fetch([FetchRequest(entity=node_type, names=names, ids=ids)])[0]
        return [np.asarray(columns[name]) for name in names]


def _keys_of(store: Store, entity: Entity, ids: IntArray) -> IntArray:
    """Return int64[n], the keys of nodes or edges given by id."""
    return fetch_rows(store, entity, {KEY: KEY_SCHEMA}, ids)[KEY]


def width_and_dtype(features: dict[str, FeatureSchema], names: tuple[str, ...]) -> tuple[int, torch.dtype] | None:
    """Return width and dtype of a feature tensor, or None without columns."""
    info = tensor_info(features, names)
    return None if info is None else (info[0], torch_dtype(info[1]))


def made_once(out: Path, make: Callable[[], object], wait_s: float = MAKE_S) -> Path:
    """Return a dataset's folder; if it is missing, one process makes it while the others wait.

    Args:
        out: The folder of the dataset.
        make: Makes the dataset. Its errors are raised at once.
        wait_s: Deadline in seconds for another process that makes the same dataset.

    Raises:
        StateError: Another process has been making it for longer than the deadline.
    """
    ends = time.monotonic() + wait_s
    with ExitStack() as lock:
        while not (out / MANIFEST).is_file():
            try:
                lock.enter_context(open_work(out.with_name(f"{out.name}.once")))
            except StateError as error:
                if time.monotonic() > ends:
                    raise StateError(
                        f"{out} has been prepared by another process for over {wait_s:g} s; wait longer, or end it"
                    ) from error
                time.sleep(LOOK_S)
            else:
                if not (out / MANIFEST).is_file():  # another process may have made it meanwhile
                    make()
                break
    return out
