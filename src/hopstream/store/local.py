"""How are requests answered from parts whose files are on this machine?

A ``LocalStore`` maps any number of parts of one dataset and answers across them with one kernel call per request:
kernels are given a table of the parts' addresses. Nothing is copied but the answer, and pages are shared between
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError, IdRangeError, SettingsError, StoreUnavailable, UnknownNameError
from hopstream.kernels.gather import gather_elements, gather_ranges, gather_rows
from hopstream.kernels.memory import address_table
from hopstream.kernels.neighbors import draw_neighbors, edge_ranges
from hopstream.kernels.ownership import first_unowned
from hopstream.partition.book import Owner, owner_label
from hopstream.partition.layout import Dataset, EdgeArrays, PartArrays
from hopstream.schema import Direction, EdgeType, FeatureSchema
from hopstream.store.contract import KEY, FetchRequest, Pending, SampleReply, SampleRequest, Store

T = TypeVar("T")
NO_POSITIONS: IntArray = np.empty(0, np.int64)
KEY_SCHEMA = FeatureSchema(dtype="int64")


class _Deferred(Generic[T]):
    """Work that is done by whoever asks for its result."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work

    def result(self) -> T:
        return self._work()


class _Topology:
    """Address tables of one edge type and direction over all parts."""

    def __init__(self, edges: Sequence[EdgeArrays | None]) -> None:
        present = [e for e in edges if e is not None]
        self.indices_dtype = present[0].indices.dtype
        self.indptrs = address_table([e.indptr if e else None for e in edges])
        self.indices = address_table([e.indices if e else None for e in edges])


class _ColumnTable:
    """Address tables of one column over all parts."""

    def __init__(self, feature: FeatureSchema, columns: Sequence[Column | None]) -> None:
        self.feature = feature
        self.word = word_dtype(feature.row_bytes)
        ragged = [c if isinstance(c, RaggedArray) else None for c in columns]
        values = [c.values if isinstance(c, RaggedArray) else c for c in columns]
        self.values = address_table([None if v is None else _as_words(v, self.word) for v in values])
        self.row_offsets = address_table([None if r is None else r.offsets for r in ragged])


class LocalStore(Store):
    """Answers from the mapped files of some or all parts of a dataset."""

    def __init__(self, dataset: Dataset, parts: Sequence[int] | None = None) -> None:
        """Map the parts.

        Args:
            dataset: An opened dataset.
            parts: The parts to map; None means all of them.

        Raises:
            UnknownNameError: The dataset has no such part.
            FormatError: A file of a part is missing, truncated or not what the manifest says.
        """
        manifest = dataset.manifest
        self.schema = manifest.schema
        self.book = manifest.book
        self.directions = manifest.directions
        self.dataset_id = manifest.dataset_id
        self.parts = tuple(sorted(set(range(self.book.num_parts) if parts is None else parts)))
        unknown = [p for p in self.parts if not 0 <= p < self.book.num_parts]
        if unknown or not self.parts:
            raise UnknownNameError(f"parts {unknown or list(self.parts)} of {self.book.num_parts} (numbered from 0)")
        self._maps: list[PartArrays | None] = [None] * self.book.num_parts
        for part in self.parts:
            self._maps[part] = dataset.open_part(part)
        self._is_present = np.array([m is not None for m in self._maps])
        self._is_closed = False
        self._topologies: dict[tuple[EdgeType, Direction], _Topology] = {}
        self._columns: dict[tuple[Owner, str], _ColumnTable] = {}
        for edges in self.book.edge_offsets:
            self._topologies[edges] = _Topology([m and m.edges[edges] for m in self._maps])
        # With one part the format says that id equals key, which saves a cache miss per expanded node.
        has_one_part = self.book.num_parts == 1
        self._keys = {
            t: address_table([None if m is None or has_one_part else m.node_keys[t] for m in self._maps])
            for t in self.schema.nodes
        }

    def submit_sample(self, requests: Sequence[SampleRequest]) -> Pending[list[SampleReply]]:
        """Draw neighbours when the result is asked for; see ``Store.sample``."""
        return _Deferred(lambda: [self._sample(request) for request in requests])

    def submit_fetch(self, requests: Sequence[FetchRequest]) -> Pending[list[dict[str, Column]]]:
        """Read columns when the result is asked for; see ``Store.fetch``."""
        return _Deferred(lambda: [self._fetch(request) for request in requests])

    def lookup(self, node_type: str, keys: IntArray) -> IntArray:
        """Ids of nodes given by key; see ``Store.lookup``."""
        self.schema.check_node_type(node_type)
        offsets = self.book.key_offsets(node_type)
        keys = np.asarray(keys, np.int64)
        self._check_owned(f"{node_type} keys", keys, offsets)
        maps = address_table([m and m.ids_of_keys[node_type] for m in self._maps])
        out = np.empty((len(keys), 1), np.int64)
        gather_rows(keys, offsets, maps, out, NO_POSITIONS)
        return out[:, 0]

    def split(self, node_type: str, name: str) -> IntArray:
        """Keys of a split; see ``Store.split``."""
        self.schema.check_node_type(node_type)
        known = self.schema.splits.get(node_type, ())
        if name not in known:
            raise UnknownNameError(f"node type {node_type!r} has no split {name!r}; known: {list(known)}")
        return np.concatenate([m.splits[node_type][name] for m in self._maps if m is not None])

    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """Edges of each id; see ``Store.degrees``."""
        topology = self._topology(edge_type, direction)
        ids, offsets = self._checked_ids(_end_type(edge_type, direction), ids)
        degrees = np.empty(len(ids), np.int64)
        scratch = (np.empty(len(ids), np.int32), np.empty(len(ids), np.int64), np.empty(len(ids), np.int32))
        edge_ranges(ids, offsets, topology.indptrs, -1, False, scratch[0], scratch[1], degrees, scratch[2])
        return degrees

    def close(self) -> None:
        """Refuse further requests. The files stay mapped until the store is collected: a kernel may still read them."""
        self._is_closed = True

    def _sample(self, request: SampleRequest) -> SampleReply:
        topology = self._topology(request.edge_type, request.direction)
        if request.count < -1:
            raise SettingsError(f"count is {request.count}; give -1 for all neighbours, or 0 and above")
        node_type = _end_type(request.edge_type, request.direction)
        ids, offsets = self._checked_ids(node_type, request.ids)
        num_ids = len(ids)
        parts, counts = np.empty(num_ids, np.int32), np.empty(num_ids, np.int32)
        starts, degrees = np.empty(num_ids, np.int64), np.empty(num_ids, np.int64)
        total = edge_ranges(
            ids, offsets, topology.indptrs, request.count, request.is_replacing, parts, starts, degrees, counts
        )
        neighbor_ids = np.empty(total, topology.indices_dtype)
        edge_ids = np.empty(total, np.int64)
        draw_neighbors(
            ids, offsets, self._keys[node_type], topology.indices, np.uint64(request.rng_seed), request.is_replacing,
            request.count == -1, parts, starts, degrees, counts,
            self.book.edge_offsets[request.edge_type, request.direction], neighbor_ids, edge_ids,
        )  # fmt: skip
        return SampleReply(
            counts=counts, neighbor_ids=neighbor_ids, edge_ids=edge_ids if request.wants_edge_ids else None
        )

    def _fetch(self, request: FetchRequest) -> dict[str, Column]:
        self._check_owner(request.owner)
        ids, offsets = self._checked_ids(request.owner, request.ids)
        positions = NO_POSITIONS if request.positions is None else request.positions
        given: Mapping[str, Array] = request.out or {}
        columns: dict[str, Column] = {}
        for name in request.names:
            table = self._column(request.owner, name)
            if table.feature.is_fixed_width:
                out = given.get(name)
                columns[name] = _gather_fixed(table, ids, offsets, out, positions)
            else:
                columns[name] = _gather_ragged(table, ids, offsets)
        return columns

    def _topology(self, edge_type: EdgeType, direction: Direction) -> _Topology:
        self._check_owner((edge_type, direction))
        return self._topologies[edge_type, direction]

    def _check_owner(self, owner: Owner) -> None:
        if isinstance(owner, str):
            self.schema.check_node_type(owner)
            return
        self.schema.check_edge_type(owner[0])
        if owner[1] not in self.directions:
            raise UnknownNameError(
                f"{owner_label(owner)}: the dataset holds direction {'|'.join(self.directions)}; "
                f"write the parts again with direction {owner[1]!r} or 'both'"
            )

    def _column(self, owner: Owner, name: str) -> _ColumnTable:
        table = self._columns.get((owner, name))
        if table is None:
            table = _ColumnTable(self._feature(owner, name), [m and _part_column(m, owner, name) for m in self._maps])
            self._columns[owner, name] = table
        return table

    def _feature(self, owner: Owner, name: str) -> FeatureSchema:
        if name == KEY:
            return KEY_SCHEMA
        return self.schema.feature(owner if isinstance(owner, str) else owner[0], name)

    def _checked_ids(self, owner: Owner, ids: IntArray) -> tuple[IntArray, IntArray]:
        ids = np.ascontiguousarray(ids, np.int64)
        offsets = self.book.offsets(owner)
        self._check_owned(f"{owner_label(owner)} ids", ids, offsets)
        return ids, offsets

    def _check_owned(self, what: str, ids: IntArray, offsets: IntArray) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"the store of parts {list(self.parts)} is closed")
        row = first_unowned(ids, offsets, self._is_present)
        if row < 0:
            return
        identifier = int(ids[row])
        if not 0 <= identifier < offsets[-1]:
            raise IdRangeError(f"{what}[{row}] is {identifier}; they are 0..{int(offsets[-1]) - 1}")
        part = int(np.searchsorted(offsets, identifier, side="right")) - 1
        raise IdRangeError(f"{what}[{row}] is {identifier} of part {part}; this store holds parts {list(self.parts)}")


def word_dtype(row_bytes: int) -> np.dtype[Any]:
    """The widest unsigned integer whose size divides a row, so that kernels copy rows of any dtype."""
    return np.dtype(f"uint{8 * next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)}")


def _as_words(values: Array, word: np.dtype[Any]) -> NDArray[Any]:
    if not values.flags.c_contiguous:
        raise FormatError(f"a column of {values.dtype}{list(values.shape)} is not in C order; write the dataset again")
    return values.reshape(-1).view(word) if values.size else np.empty(0, word)


def _end_type(edge_type: EdgeType, direction: Direction) -> str:
    """The node type whose nodes are expanded."""
    return edge_type[2] if direction == "in" else edge_type[0]


def _part_column(part: PartArrays, owner: Owner, name: str) -> Column:
    if isinstance(owner, str):
        return part.node_keys[owner] if name == KEY else part.node_features[owner][name]
    edges = part.edges[owner]
    if name != KEY:
        return edges.features[name]
    if edges.keys is None:
        raise UnknownNameError(
            f"{owner_label(owner)}: the dataset keeps no edge keys; write the parts again with edge keys"
        )
    return edges.keys


def _gather_fixed(
    table: _ColumnTable, ids: IntArray, offsets: IntArray, out: Array | None, positions: IntArray
) -> Array:
    feature = table.feature
    if out is None:
        out = np.empty((len(ids), *feature.shape), feature.numpy_dtype)
    elif out.dtype != feature.numpy_dtype or out.shape[1:] != feature.shape or not out.flags.c_contiguous:
        raise SettingsError(f"out is {out.dtype}{list(out.shape)}; the column is {feature}, C-contiguous")
    num_rows = int(positions.max()) + 1 if len(positions) else len(ids)
    if len(out) < num_rows or (len(positions) and (len(positions) != len(ids) or int(positions.min()) < 0)):
        raise SettingsError(f"out has {len(out)} rows for {len(ids)} ids and {len(positions)} positions")
    if feature.row_bytes and len(ids):
        words = out.reshape(len(out), -1).view(table.word)
        gather_rows(ids, offsets, table.values, words, positions)
    return out


def _gather_ragged(table: _ColumnTable, ids: IntArray, offsets: IntArray) -> RaggedArray:
    feature = table.feature
    parts, starts = np.empty(len(ids), np.int32), np.empty(len(ids), np.int64)
    lengths = np.empty(len(ids), np.int64)
    total = gather_ranges(ids, offsets, table.row_offsets, parts, starts, lengths)
    values = np.empty((total, *feature.shape), feature.numpy_dtype)
    if feature.row_bytes and total:
        words = cast(Array, values.reshape(total, -1).view(table.word))
        gather_elements(table.values, parts, starts, lengths, words)
    return RaggedArray(values, offsets_of(lengths), feature.is_string)
