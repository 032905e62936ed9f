"""Stores of a dataset for PyG's remote backend; each worker process opens the source for itself.

``DatasetFeatureStore`` and ``DatasetGraphStore`` are PyG's ``FeatureStore`` and ``GraphStore`` over a dataset, local or
on servers. Keys identify nodes and edges: their order in the original graph.

Forked processes may share memory maps of files, but not connections, and neither can be pickled. So a source is kept by
name, and each process that uses it opens it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, HeteroData, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from hopstream.arrays import Array, IntArray, to_array
from hopstream.dataset.book import Entity
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.load.link_inputs import read_link_inputs
from hopstream.load.pyg import to_tensor
from hopstream.sample.seeds import read_seeds
from hopstream.schema import EDGE, NODE, EdgeType, FeatureSchema, type_label
from hopstream.store import Source, open_store
from hopstream.store.contract import FetchRequest, Store
from hopstream.store.local import LocalStore
from hopstream.store.sources import read_location
from hopstream.store.whole import WholeEdges, fetch_rows, read_edges

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings


class ProcessStore:
    """Source that other processes can receive and that each process opens once. Thread-safe."""

    def __init__(self, source: Source, settings: StoreSettings | None = None) -> None:
        """Open the source.

        Args:
            source: See ``open_store``. An open store is not closed here, and cannot be pickled.
            settings: Deadline and security for requests to servers.

        Raises:
            FormatError: The folder is not a dataset, or the file is not a cluster file.
            SettingsError: The source cannot be opened.
            StoreError: A server cannot be reached, or refused to answer.
        """
        if not isinstance(source, Store):
            source = read_location(source)
        self._begin(source, settings)
        self.store()

    def _begin(self, source: str | Store, settings: StoreSettings | None) -> None:
        self._source = source
        self._settings = settings
        self._lock, self._edge_lock = threading.Lock(), threading.Lock()
        self._edge_ids: dict[EdgeType, IntArray] = {}
        self._store: Store | None = None
        self._process_id = 0
        self._is_closed = False

    def store(self) -> Store:
        """Return the store of this process.

        Raises:
            SettingsError: The source was closed, or this process was forked from one that has connections to servers.
            FormatError: As for ``__init__``, if this process opens the source.
            StoreError: As for ``__init__``, if this process opens the source.
        """
        with self._lock:
            if self._is_closed:
                raise SettingsError("the source was closed; open another")
            if self._store is None:
                self._open()
            elif self._process_id != os.getpid() and not isinstance(self._store, LocalStore):
                raise SettingsError(
                    "this process was forked from one that has connections to servers, which it cannot use; start "
                    "new worker processes: multiprocessing_context='spawn', or use num_workers=0"
                )
            return self._store  # type: ignore[return-value]  # opened just now

    def _open(self) -> None:
        self._process_id = os.getpid()
        self._store = open_store(self._source, self._settings)
        if self._store is not self._source:
            # Also closes the store if it is garbage-collected or at exit: a connection must not outlive the
            # interpreter.
            weakref.finalize(self, _close, self._store, self._process_id)

    def edge_ids(self, store: Store, edge_type: EdgeType) -> IntArray:
        """Return int64[num_edges], the id of each edge key.

        Each process reads the ids once per edge type, and keeps 8 bytes per edge.

        Raises:
            SettingsError: The dataset has no edge keys.
        """
        with self._edge_lock:
            if edge_type not in self._edge_ids:
                edges = read_edges(store, edge_type)
                if edges.edge_keys is None:
                    raise SettingsError(
                        f"features of {type_label(edge_type)} are requested by edge key, but the dataset keeps no edge "
                        "keys; write the parts again with edge keys"
                    )
                ids = self._edge_ids[edge_type] = np.empty_like(edges.edge_ids)
                ids[edges.edge_keys] = edges.edge_ids
            return self._edge_ids[edge_type]

    def close(self) -> None:
        """Close the store if it was opened here; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            if self._store is not None and self._store is not self._source:
                _close(self._store, self._process_id)

    def __getstate__(self) -> dict[str, object]:
        """Return the source and settings for another process; an open store cannot be pickled."""
        return {"source": self._source, "settings": self._settings}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a source, which opens on first use."""
        self._begin(**state)  # type: ignore[arg-type]  # what __getstate__ gives


def _close(store: Store, process_id: int) -> None:
    """Close a store in the process that opened it; do nothing in a forked one."""
    if os.getpid() == process_id:
        store.close()


SourceLike = Any
"""A ``Source``, one of the stores in this module, or a pair of them."""
BatchLike = TypeVar("BatchLike", Data, HeteroData)
NO_EDGE_TYPE = (None, None)
"""PyG's group of the edges of a graph without types."""


def open_stores(
    source: Source, store_settings: StoreSettings | None = None
) -> tuple[DatasetFeatureStore, DatasetGraphStore]:
    """Open PyG's pair ``(feature_store, graph_store)`` over one dataset, which is opened once.

    Args:
        source: A dataset folder, a ``cluster.json``, an address such as ``tcp://host:7001``, or an open store.
        store_settings: Deadline, token and certificates for requests to servers.

    Raises:
        FormatError: ``source`` is no dataset and no cluster file.
        SettingsError: ``source`` cannot be opened.
        StoreError: A server cannot be reached, or refused to answer.
    """
    feature_store = DatasetFeatureStore(source, store_settings)
    return feature_store, DatasetGraphStore(feature_store)


def process_store(source: SourceLike, settings: StoreSettings | None = None) -> tuple[ProcessStore, bool]:
    """Return the source of open stores, or a new one; and whether it is new, for the caller to close."""
    given = source[0] if isinstance(source, tuple | list) and len(source) == 2 else source
    if isinstance(given, DatasetFeatureStore | DatasetGraphStore):
        if settings is not None:
            raise SettingsError("store_settings are those that the stores were opened with; leave them out")
        return given.source, False
    return ProcessStore(source, settings), True


class _DatasetStore:
    """Common part of both stores: a source, which stores may share, and which other processes open again."""

    def _open(self, source: SourceLike, settings: StoreSettings | None) -> None:
        self.source, self._is_own = process_store(source, settings)

    @property
    def store(self) -> Store:
        """The store of this process."""
        return self.source.store()

    def close(self) -> None:
        """Close the source if it was opened here; a second call does nothing."""
        if self._is_own:
            self.source.close()

    def __enter__(self) -> Any:
        """Use the store as a context that closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the store."""
        self.close()

    def __repr__(self) -> str:
        """Return the store in one line."""
        schema = self.store.schema
        return f"{type(self).__name__}({len(schema.nodes)} node types, {len(schema.edges)} edge types)"


class DatasetFeatureStore(_DatasetStore, FeatureStore):  # type: ignore[misc]  # torch_geometric has no types
    """Read-only features of a dataset as PyG's ``FeatureStore``. Thread-safe.

    A group is a node type or an edge type. In a graph without types it is None for nodes and ``(None, None)`` for
    edges. Rows are in the order of keys. Strings and rows of varying length are left out, because they are no tensors.
    """

    def __init__(self, source: SourceLike, store_settings: StoreSettings | None = None) -> None:
        """Open the source, or share the source of another store; see ``open_stores``."""
        super().__init__()
        self._open(source, store_settings)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the group and name of every tensor.

        Features of edges in a graph without types are left out, because PyG's loaders would index them by nodes.
        """
        schema = self.store.schema
        nodes = [(None if schema.is_homogeneous else t, fs) for t, fs in schema.nodes.items()]
        edges = [] if schema.is_homogeneous else list(schema.edges.items())
        return [
            TensorAttr(group, name)
            for group, features in (*nodes, *edges)
            for name, feature in features.items()
            if feature.is_fixed_width
        ]

    def input_nodes(self, split: str, node_type: str | None = None) -> Tensor | tuple[str, Tensor]:
        """Return a split in the form of ``input_nodes`` of PyG's loaders.

        That is int64[n] keys, with their type first in a graph with types.

        Raises:
            UnknownNameError: There is no such node type or split.
            SettingsError: No node type is given and the graph has several.
        """
        store = self.store
        seeds = read_seeds(store, split if node_type is None else (node_type, split), "split")
        keys = to_tensor(seeds.keys_at(np.arange(seeds.num_seeds, dtype=np.int64)), False)
        return keys if store.schema.is_homogeneous else (seeds.node_type, keys)

    def input_edges(self, split: str | None = None, edge_type: EdgeType | None = None) -> tuple[Any, Tensor]:
        """Return a split of links, or all edges of a type, as ``edge_label_index`` of PyG's loaders.

        Returns:
            The edge type, None in a graph without types, and int64[2, n] keys of sources and destinations.

        Raises:
            UnknownNameError: There is no such edge type or split, or the dataset does not keep links.
            SettingsError: No edge type is given and the graph has several.
        """
        store = self.store
        links = read_link_inputs(store, split if edge_type is None else (edge_type, split), None, None)
        found = links.links_at(store, np.arange(links.num_links, dtype=np.int64))
        keys = torch.from_numpy(np.stack([found.src_keys, found.dst_keys]))
        return (None if store.schema.is_homogeneous else links.edge_type), keys

    def add_edge_features(self, batch: BatchLike) -> BatchLike:
        """Add the features of edges to a batch of PyG's loaders, which do not fetch them from stores.

        Pass the method to the loaders as ``transform=feature_store.add_edge_features``. The store keeps a table of 8
        bytes per edge for each type with features. ``hopstream.NeighborLoader`` needs no such table.

        Raises:
            SettingsError: The batch has no edge keys, because the dataset has none.
        """
        schema = self.store.schema
        wanted: list[TensorAttr] = []
        for edge_type, features in schema.edges.items():
            names = [name for name, feature in features.items() if feature.is_fixed_width]
            storage = batch if schema.is_homogeneous else batch[edge_type]
            if names and "e_id" not in storage:
                raise SettingsError(f"the batch has no e_id of {type_label(edge_type)}; write the parts with edge keys")
            wanted += [TensorAttr(edge_type, name, storage.e_id) for name in names]
        for attr, tensor in zip(wanted, self._multi_get_tensor(wanted), strict=True):
            (batch if schema.is_homogeneous else batch[attr.group_name])[attr.attr_name] = tensor
        return batch

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: Sequence[TensorAttr]) -> list[Tensor]:
        """Return rows of several tensors, with one round trip for all that are not read whole."""
        store = self.store
        groups: dict[tuple[str | EdgeType, int], list[int]] = {}
        for number, attr in enumerate(attrs):
            groups.setdefault((self._owner(attr), id(attr.index)), []).append(number)
        found: dict[int, Array] = {}
        requests: list[FetchRequest] = []
        asked: list[list[int]] = []
        for (entity, _), numbers in groups.items():
            index = attrs[numbers[0]].index
            ids = self._ids(store, entity, index)
            features = {attrs[n].attr_name: store.schema.feature(entity, attrs[n].attr_name) for n in numbers}
            rows_of: Entity = entity if isinstance(entity, str) else (entity, store.directions[0])
            if index is None or isinstance(index, slice):
                rows = fetch_rows(store, rows_of, features, ids)
                found.update({n: rows[attrs[n].attr_name] for n in numbers})
            else:
                requests.append(FetchRequest(entity=rows_of, names=tuple(features), ids=ids))
                asked.append(numbers)
        for numbers, answer in zip(asked, store.fetch(requests) if requests else [], strict=True):
            found.update({n: np.asarray(answer[attrs[n].attr_name]) for n in numbers})
        return [to_tensor(found[n][0] if _is_one(attr.index) else found[n], False) for n, attr in enumerate(attrs)]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        try:
            entity = self._owner(attr)
        except UnknownNameError:
            return None
        return (self._num_rows(entity), *self.store.schema.feature(entity, attr.attr_name).shape)

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise _read_only("put_tensor")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise _read_only("remove_tensor")

    def _owner(self, attr: TensorAttr) -> str | EdgeType:
        """Return the type of a group; check that the feature is a tensor."""
        schema = self.store.schema
        group = attr.group_name
        if schema.is_homogeneous and (group is None or group == NO_EDGE_TYPE):
            entity: str | EdgeType = NODE if group is None else EDGE
        else:
            entity = group if isinstance(group, str) else schema.edge_type_of(group)
        feature: FeatureSchema = schema.feature(entity, attr.attr_name)
        if not feature.is_fixed_width:
            raise UnknownNameError(
                f"{attr.attr_name!r} of {type_label(entity)} is {feature}, which is not a tensor; "
                "hopstream.NeighborLoader brings such features"
            )
        return entity

    def _num_rows(self, entity: str | EdgeType) -> int:
        book = self.store.book
        return book.num_ids(entity) if isinstance(entity, str) else book.num_edges(entity)

    def _ids(self, store: Store, entity: str | EdgeType, index: Any) -> IntArray:
        """Return int64[n], the ids of an index, which holds keys."""
        keys = _keys(index, self._num_rows(entity), type_label(entity))
        if not isinstance(entity, str):
            return self.source.edge_ids(store, entity)[keys]
        return keys if store.book.ids_are_keys else store.lookup(entity, keys)


class DatasetGraphStore(_DatasetStore, GraphStore):  # type: ignore[misc]  # torch_geometric has no types
    """Read-only edges of a dataset as PyG's ``GraphStore``. Thread-safe.

    A request reads all edges of a type, in COO (the order of their keys), CSC or CSR layout, without a cache. So PyG's
    own ``NeighborSampler`` holds the whole topology, while ``DatasetSampler`` requests only its draws.
    """

    def __init__(self, source: SourceLike, store_settings: StoreSettings | None = None) -> None:
        """Open the source, or share the source of another store; see ``open_stores``."""
        super().__init__()
        self._open(source, store_settings)

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return every edge type: as CSC if edges are sorted by their sources' times, as PyG needs, else COO."""
        schema, book = self.store.schema, self.store.book
        return [
            EdgeAttr(
                edge_type=None if schema.is_homogeneous else edge_type,
                layout=EdgeLayout.CSC if self._is_sorted_by_time(edge_type) else EdgeLayout.COO,
                size=(book.num_ids(edge_type[0]), book.num_ids(edge_type[2])),
            )
            for edge_type in schema.edges
        ]

    def _is_sorted_by_time(self, edge_type: EdgeType) -> bool:
        """Return whether PyG's own temporal sampling is correct on the edges of a type.

        PyG takes the times of edges in the order of their keys as if it were the order of CSC. So edges with times of
        their own are declared unsorted, which PyG refuses.
        """
        time_attr, schema = self.store.time_attr, self.store.schema
        return "in" in self.store.directions and time_attr is not None and time_attr not in schema.edges[edge_type]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        row, col, _ = self._read(edge_attr.edge_type, edge_attr.layout)
        return row, col

    def _edge_to_layout(
        self, attr: EdgeAttr, layout: EdgeLayout, store: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return rows, columns and edge keys in a layout, as PyG's samplers request them."""
        if store:
            raise _read_only("store=True")
        return self._read(attr.edge_type, layout)

    def _read(self, given: EdgeType | None, layout: EdgeLayout) -> tuple[Tensor, Tensor, Tensor | None]:
        store = self.store
        edge_type = EDGE if given is None and store.schema.is_homogeneous else store.schema.edge_type_of(given)
        wanted = "out" if layout == EdgeLayout.CSR else "in"
        direction = wanted if wanted in store.directions else store.directions[0]
        edges = read_edges(store, edge_type, direction)
        src_keys, dst_keys = edges.ends()
        if layout == EdgeLayout.COO:
            if edges.edge_keys is not None:
                place = np.argsort(edges.edge_keys)
                src_keys, dst_keys = src_keys[place], dst_keys[place]
            return torch.from_numpy(src_keys), torch.from_numpy(dst_keys), None
        sizes = [store.book.num_ids(edge_type[end]) for end in (0, 2)]
        indptr, others, keys = _grouped(edges, wanted == "in", sizes[1 if wanted == "in" else 0])
        return (others, indptr, keys) if layout == EdgeLayout.CSC else (indptr, others, keys)

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise _read_only("put_edge_index")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise _read_only("remove_edge_index")


def _grouped(edges: WholeEdges, by_destination: bool, num_nodes: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the offsets of nodes, the other ends, and edge keys, in the order of a layout."""
    indptr, others, keys = edges.indptr, edges.neighbor_keys, edges.edge_keys
    if by_destination != (edges.direction == "in"):
        src_keys, dst_keys = edges.ends()
        own, others = (dst_keys, src_keys) if by_destination else (src_keys, dst_keys)
        place = np.argsort(own, kind="stable") if keys is None else np.lexsort((keys, own))
        indptr = np.searchsorted(own[place], np.arange(num_nodes + 1)).astype(np.int64)
        others, keys = others[place], None if keys is None else keys[place]
    return torch.from_numpy(indptr), torch.from_numpy(others), None if keys is None else torch.from_numpy(keys)


def _is_one(index: Any) -> bool:
    """Return whether an index selects one row, without a dimension of rows."""
    return isinstance(index, int | np.integer)


def _keys(index: Any, num_rows: int, label: str) -> IntArray:
    """Return int64[n], the keys that an index selects from ``num_rows`` rows.

    Raises:
        IdRangeError: A key is outside 0..n-1.
        SettingsError: ``index`` is no index.
    """
    if index is None or isinstance(index, slice):
        return np.arange(*(slice(None) if index is None else index).indices(num_rows), dtype=np.int64)
    keys = np.atleast_1d(to_array(index))
    if keys.dtype == np.bool_ and keys.shape == (num_rows,):
        return np.flatnonzero(keys).astype(np.int64, copy=False)
    if keys.ndim != 1 or (keys.dtype.kind not in "iu" and len(keys)):
        raise SettingsError(
            f"index of {label} is {keys.dtype}{list(keys.shape)}; give integer keys, a mask of {num_rows} rows, a "
            "slice, an integer, or None for all"
        )
    bad = np.flatnonzero((keys < 0) | (keys >= num_rows))
    if len(bad):
        raise IdRangeError(f"index[{bad[0]}] of {label} is {int(keys[bad[0]])}; keys are 0..{num_rows - 1}")
    return keys.astype(np.int64)


def _read_only(what: str) -> SettingsError:
    return SettingsError(
        f"{what} is not possible: a dataset is not changed through PyG; hopstream.append adds to it, "
        "hopstream.write_parts writes another"
    )
