"""Dataset of one storage server: its parts of a Hopstream dataset, and the whole graph over all servers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
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
from hopstream.errors import SettingsError
from hopstream.partition.layout import open_dataset
from hopstream.schema import Direction, EdgeType, FeatureSchema
from hopstream.store.contract import FetchRequest, Store
from hopstream.store.local import LocalStore
from hopstream.uris import local_path


class DistDataset:
    """Some parts of a Hopstream dataset. Safe to use from many threads.

    Attributes:
        folder: The dataset.
        edge_dir: The direction in which edges are followed.
        num_partitions: Servers that share the parts.
        partition_idx: This one.
        parts: Its parts, a run of all parts of the dataset.
        max_labels_per_anchor_node: Labels of one anchor and edge type, at most; None for all.
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
            num_partitions: Servers that share the parts; at most as many as there are parts.
            partition_idx: Which one this is.
            max_labels_per_anchor_node: Labels of one anchor and edge type, at most: the first as they are stored. None
                for all.

        Raises:
            SettingsError: The dataset does not hold the direction, or has too few parts, or the limit is below 1.
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
                "it with as many parts as there are servers, or more"
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
        self._open_graph: Callable[[], Store] | None = None
        self._graph: Store | None = self.store if len(self.parts) == num_parts else None

    @property
    def has_graph(self) -> bool:
        """Whether all parts can be read: they are here, or the other servers are known."""
        return self._graph is not None or self._open_graph is not None

    def attach(self, open_graph: Callable[[], Store]) -> None:
        """Know how the whole graph is opened, which the dataset then closes."""
        with self._lock:
            self._open_graph = open_graph

    def graph(self) -> Store:
        """A store of all parts, opened when it is first needed.

        Raises:
            SettingsError: Parts are elsewhere, and the other servers are not known.
            StoreError: A server cannot be reached.
        """
        with self._lock:
            if self._graph is None:
                if self._open_graph is None:
                    raise SettingsError(
                        f"parts {list(self.parts)} of {self.folder} are here, and no server is known for the others; "
                        "call init_server first"
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

    def own_keys(self, node_type: str) -> IntArray:
        """int64[n], the keys of the nodes of its parts, ascending."""
        offsets = self.store.book.offsets(node_type)
        ids = np.arange(int(offsets[self.parts[0]]), int(offsets[self.parts[-1] + 1]), dtype=np.int64)
        return np.sort(key_column(self.store, node_type, ids))

    def own_split(self, node_type: str, split: str) -> IntArray:
        """int64[n], the keys of the nodes of a split that its parts own, ascending.

        Raises:
            UnknownNameError: There is no such split.
        """
        keys = self.own_keys(node_type)
        return keys[np.isin(keys, self.graph().split(node_type, split))]

    def partition_of(self, node_type: str, keys: IntArray) -> IntArray:
        """int64[n], the partition that owns each node."""
        parts = self.graph().book.parts_of(node_type, self.graph().lookup(node_type, keys))
        num_parts = self.store.book.num_parts
        starts = [num_parts * p // self.num_partitions for p in range(self.num_partitions)]
        return np.searchsorted(np.array(starts), parts, "right").astype(np.int64) - 1

    def node_tensor(self, node_type: str, keys: IntArray) -> torch.Tensor:
        """[n, dim], the feature tensor of some nodes.

        Raises:
            SettingsError: The type has no features.
        """
        names = self.facts.node_columns(node_type)
        if not names:
            raise SettingsError(f"node type {node_type!r} has no features; its columns are not numbers")
        return join_columns([to_torch(column) for column in self._columns(node_type, names, keys)])

    def label_tensor(self, node_type: str, keys: IntArray) -> torch.Tensor:
        """[n, …], the labels of some nodes.

        Raises:
            SettingsError: The type has no labels.
        """
        if not self.facts.has_labels(node_type):
            raise SettingsError(f"node type {node_type!r} has no labels; they are the column {LABEL!r}")
        return to_torch(self._columns(node_type, (LABEL,), keys)[0])

    def _columns(self, node_type: str, names: tuple[str, ...], keys: IntArray) -> list[Array]:
        graph = self.graph()
        ids = graph.lookup(node_type, keys)
        columns = graph.fetch([FetchRequest(owner=node_type, names=names, ids=ids)])[0]
        return [np.asarray(columns[name]) for name in names]

    def own_edges(self, edge_type: EdgeType) -> tuple[IntArray, IntArray]:
        """int64[n] keys of the sources and of the destinations of the edges of its parts."""
        from hopstream.store.whole import read_edges

        near_is_source = self.edge_dir == "out"
        rows, cols = read_edges(self.graph(), edge_type, self.edge_dir).ends()
        near, near_type = (rows, edge_type[0]) if near_is_source else (cols, edge_type[2])
        is_own = self.partition_of(near_type, near) == self.partition_idx
        return rows[is_own], cols[is_own]


def key_column(store: Store, node_type: str, ids: IntArray) -> IntArray:
    """int64[n], the keys of nodes given by id."""
    from hopstream.store.contract import KEY

    return np.asarray(store.fetch([FetchRequest(owner=node_type, names=(KEY,), ids=ids)])[0][KEY], np.int64)


def width_and_dtype(features: dict[str, FeatureSchema], names: tuple[str, ...]) -> tuple[int, torch.dtype] | None:
    """Width and dtype of a feature tensor; None where there is none."""
    info = tensor_info(features, names)
    return None if info is None else (info[0], torch_dtype(info[1]))
