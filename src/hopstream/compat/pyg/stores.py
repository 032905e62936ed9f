"""Reads a dataset for PyG's remote backend, from sources that worker processes open for themselves.

``DatasetFeatureStore`` and ``DatasetGraphStore`` are PyG's ``FeatureStore`` and ``GraphStore`` over a dataset, wherever
its parts are. Nodes and edges are named by their keys: their order in the graph that the dataset was made of.

Maps of files may be shared with processes that are forked, connections may not, and neither can be sent. So a source is
kept by name, and opened by each process that uses it.
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
from hopstream.store.sources import check_source
from hopstream.store.whole import WholeEdges, fetch_rows, read_edges

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings


class ProcessStore:
    """A source that can be sent to other processes, and is opened once in each; safe to use from many threads."""

    def __init__(self, source: Source, settings: StoreSettings | None = None) -> None:
        """Open the source.

        Args:
            source: See ``open_store``. A store that is given open is not closed here, and cannot be sent.
            settings: Deadline and security, where servers are asked.

        Raises:
            FormatError: The folder is not a dataset, or the file is not a cluster file.
            SettingsError: The source is nothing that can be opened.
            StoreError: A server cannot be reached, or refused to answer.
        """
        if not isinstance(source, Store):
            check_source(source)
            source = source if isinstance(source, str) else os.fspath(source)
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
        """The store of this process.

        Raises:
            SettingsError: It was closed, or this process was forked from one that has connections to servers.
            FormatError: As for ``__init__``, where this process opens it.
            StoreError: As for ``__init__``, where this process opens it.
        """
        with self._lock:
            if self._is_closed:
                raise SettingsError("the source was closed; open another")
            if self._store is None:
                self._open()
            elif self._process_id != os.getpid() and not isinstance(self._store, LocalStore):
                raise SettingsError(
                    "this process was forked from one that has connections to servers, which it cannot use; start "
                    "worker processes anew: multiprocessing_context='spawn', or use num_workers=0"
                )
            return self._store  # type: ignore[return-value]  # opened just now

    def _open(self) -> None:
        self._process_id = os.getpid()
        self._store = open_store(self._source, self._settings)
        if self._store is not self._source:
            # Also when nobody holds this any more or the program ends: a connection must not outlive the interpreter.
            weakref.finalize(self, _close, self._store, self._process_id)

    def edge_ids(self, store: Store, edge_type: EdgeType) -> IntArray:
        """int64[num_edges], the id of each edge key; 8 bytes per edge of each type asked for, read once per process.

        Raises:
            SettingsError: The dataset keeps no edge keys.
        """
        with self._edge_lock:
            if edge_type not in self._edge_ids:
                edges = read_edges(store, edge_type)
                if edges.edge_keys is None:
                    raise SettingsError(
                        f"features of {type_label(edge_type)} are asked for by edge key, and the dataset keeps no edge "
                        "keys; write the parts again with edge keys"
                    )
                ids = self._edge_ids[edge_type] = np.empty_like(edges.edge_ids)
                ids[edges.edge_keys] = edges.edge_ids
            return self._edge_ids[edge_type]

    def close(self) -> None:
        """Close what was opened here; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            if self._store is not None and self._store is not self._source:
                _close(self._store, self._process_id)

    def __getstate__(self) -> dict[str, object]:
        """What another process opens; an open store refuses to be sent."""
        return {"source": self._source, "settings": self._settings}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Become a source that is opened when it is first used."""
        self._begin(**state)  # type: ignore[arg-type]  # what __getstate__ gives


def _close(store: Store, process_id: int) -> None:
    """Close a store in the process that opened it; one that was forked from there leaves it alone."""
    if os.getpid() == process_id:
        store.close()


SourceLike = Any
"""A ``Source``, one of the stores here, or a pair of them."""
BatchLike = TypeVar("BatchLike", Data, HeteroData)
NO_EDGE_TYPE = (None, None)
"""What PyG calls the edges of a graph without types where it names features."""


def open_stores(
    source: Source, store_settings: StoreSettings | None = None
) -> tuple[DatasetFeatureStore, DatasetGraphStore]:
    """PyG's pair ``(feature_store, graph_store)`` over one dataset, which is opened once.

    Args:
        source: A dataset folder, a ``cluster.json``, an address such as ``tcp://host:7001``, or an open store.
        store_settings: Deadline, token and certificates, where servers are asked.

    Raises:
        FormatError: ``source`` is no dataset and no cluster file.
        SettingsError: ``source`` is nothing that can be opened.
        StoreError: A server cannot be reached, or refused to answer.
    """
    feature_store = DatasetFeatureStore(source, store_settings)
    return feature_store, DatasetGraphStore(feature_store)


def process_store(source: SourceLike, settings: StoreSettings | None = None) -> tuple[ProcessStore, bool]:
    """The source of stores that are open, or a new one; and whether it is new, so that its opener closes it."""
    given = source[0] if isinstance(source, tuple | list) and len(source) == 2 else source
    if isinstance(given, DatasetFeatureStore | DatasetGraphStore):
        if settings is not None:
            raise SettingsError("store_settings are those that the stores were opened with; leave them out")
        return given.source, False
    return ProcessStore(source, settings), True


class _DatasetStore:
    """What both stores have: a source, which may be shared, and is opened anew by other processes."""

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
        """The store in one line."""
        schema = self.store.schema
        return f"{type(self).__name__}({len(schema.nodes)} node types, {len(schema.edges)} edge types)"


class DatasetFeatureStore(_DatasetStore, FeatureStore):  # type: ignore[misc]  # torch_geometric has no types
    """The features of a dataset as PyG's ``FeatureStore``; it is read-only, and safe to use from many threads.

    A group is a node type or an edge type; in a graph without types, None for nodes and ``(None, None)`` for edges.
    Rows are in the order of keys. What is no tensor, strings and rows of varying length, is not there.
    """

    def __init__(self, source: SourceLike, store_settings: StoreSettings | None = None) -> None:
        """Open the source, or share that of another store; see ``open_stores``."""
        super().__init__()
        self._open(source, store_settings)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Every tensor that there is, by group and name.

        Features of edges of a graph without types are left out, because PyG's loaders would take nodes' rows of them.
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
        """A split as PyG's loaders take it as ``input_nodes``: int64[n] keys, after their type if the graph has types.

        Raises:
            UnknownNameError: There is no such node type or split.
            SettingsError: No node type where the graph has several.
        """
        store = self.store
        seeds = read_seeds(store, split if node_type is None else (node_type, split), "split")
        keys = to_tensor(seeds.keys_at(np.arange(seeds.num_seeds, dtype=np.int64)), False)
        return keys if store.schema.is_homogeneous else (seeds.node_type, keys)

    def input_edges(self, split: str | None = None, edge_type: EdgeType | None = None) -> tuple[Any, Tensor]:
        """A split of links, or all edges of a type, as PyG's loaders take it as ``edge_label_index``.

        Returns:
            The edge type, None where the graph has no types, and int64[2, n] keys of sources and destinations.

        Raises:
            UnknownNameError: There is no such edge type or split, or the dataset does not keep links.
            SettingsError: No edge type where the graph has several.
        """
        store = self.store
        links = read_link_inputs(store, split if edge_type is None else (edge_type, split), None, None)
        found = links.links_at(store, np.arange(links.num_links, dtype=np.int64))
        keys = torch.from_numpy(np.stack([found.src_keys, found.dst_keys]))
        return (None if store.schema.is_homogeneous else links.edge_type), keys

    def add_edge_features(self, batch: BatchLike) -> BatchLike:
        """A batch of PyG's loaders with the features of its edges, which they do not fetch from stores themselves.

        Give it to them as ``transform=feature_store.add_edge_features``. Where edges are is kept, 8 bytes for each edge
        of a type with features; ``hopstream.NeighborLoader`` needs no such table.

        Raises:
            SettingsError: The batch does not name its edges, as the dataset keeps no edge keys.
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
        """Rows of several tensors, in one round trip where none is wanted whole."""
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
        """The node type or edge type that a group names, once the feature is known to be a tensor of it."""
        schema = self.store.schema
        group = attr.group_name
        if schema.is_homogeneous and (group is None or group == NO_EDGE_TYPE):
            entity: str | EdgeType = NODE if group is None else EDGE
        else:
            entity = group if isinstance(group, str) else schema.edge_type_of(group)
        feature: FeatureSchema = schema.feature(entity, attr.attr_name)
        if not feature.is_fixed_width:
            raise UnknownNameError(
                f"{attr.attr_name!r} of {type_label(entity)} is {feature}, which is no tensor; "
                "hopstream.NeighborLoader brings such features"
            )
        return entity

    def _num_rows(self, entity: str | EdgeType) -> int:
        book = self.store.book
        return book.num_ids(entity) if isinstance(entity, str) else book.num_edges(entity)

    def _ids(self, store: Store, entity: str | EdgeType, index: Any) -> IntArray:
        """int64[n], the ids of what an index says, which are keys."""
        keys = _keys(index, self._num_rows(entity), type_label(entity))
        if not isinstance(entity, str):
            return self.source.edge_ids(store, entity)[keys]
        return keys if store.book.ids_are_keys else store.lookup(entity, keys)


class DatasetGraphStore(_DatasetStore, GraphStore):  # type: ignore[misc]  # torch_geometric has no types
    """The edges of a dataset as PyG's ``GraphStore``; it is read-only, and safe to use from many threads.

    Edges of a type are read whole when they are asked for, in COO (the order of their keys), CSC or CSR layout, and are
    not kept here. So PyG's own ``NeighborSampler`` holds the whole topology, where ``DatasetSampler`` asks for what it
    draws.
    """

    def __init__(self, source: SourceLike, store_settings: StoreSettings | None = None) -> None:
        """Open the source, or share that of another store; see ``open_stores``."""
        super().__init__()
        self._open(source, store_settings)

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Every edge type: as CSC where edges are in the order of their sources' times, as PyG needs it, else COO."""
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
        """Whether PyG's own temporal sampling is right on these edges.

        It takes the times of edges in the order of their keys, as if that were the order of CSC, so edges with times of
        their own are shown as not sorted, which it refuses.
        """
        time_attr, schema = self.store.time_attr, self.store.schema
        return "in" in self.store.directions and time_attr is not None and time_attr not in schema.edges[edge_type]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        row, col, _ = self._read(edge_attr.edge_type, edge_attr.layout)
        return row, col

    def _edge_to_layout(
        self, attr: EdgeAttr, layout: EdgeLayout, store: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, columns and the key of each edge in that order, as PyG's samplers ask for them."""
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
    """Where each node's edges begin, the other ends, and edge keys, in the order that a layout wants."""
    indptr, others, keys = edges.indptr, edges.neighbor_keys, edges.edge_keys
    if by_destination != (edges.direction == "in"):
        src_keys, dst_keys = edges.ends()
        own, others = (dst_keys, src_keys) if by_destination else (src_keys, dst_keys)
        place = np.argsort(own, kind="stable") if keys is None else np.lexsort((keys, own))
        indptr = np.searchsorted(own[place], np.arange(num_nodes + 1)).astype(np.int64)
        others, keys = others[place], None if keys is None else keys[place]
    return torch.from_numpy(indptr), torch.from_numpy(others), None if keys is None else torch.from_numpy(keys)


def _is_one(index: Any) -> bool:
    """Whether an index asks for one row, which has no dimension of rows."""
    return isinstance(index, int | np.integer)


def _keys(index: Any, num_rows: int, label: str) -> IntArray:
    """int64[n], the keys that an index stands for, as of an array of so many rows.

    Raises:
        IdRangeError: A key outside 0..n-1.
        SettingsError: It is no index.
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
