"""How are requests answered from parts whose files are on this machine?

A ``LocalStore`` maps any number of parts of one dataset and answers across them with one kernel call per request:
kernels are given a table of the parts' addresses. Nothing is copied but the answer, and pages are shared between
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError, IdRangeError, SettingsError, StoreUnavailable, UnknownNameError
from hopstream.kernels.gather import gather_elements, gather_ranges, gather_rows
from hopstream.kernels.memory import address_table
from hopstream.kernels.neighbors import TOO_MANY, draw_neighbors, edge_ranges
from hopstream.kernels.ownership import first_unowned
from hopstream.partition.book import Owner, owner_label
from hopstream.partition.layout import Dataset, PartArrays
from hopstream.schema import Direction, EdgeType, FeatureSchema
from hopstream.store.contract import (
    KEY,
    KEY_SCHEMA,
    MAX_COUNT,
    FetchRequest,
    Pending,
    SampleReply,
    SampleRequest,
    Store,
)
from hopstream.store.requests import check_split

T = TypeVar("T")
NO_POSITIONS: IntArray = np.empty(0, np.int64)


class _Deferred(Generic[T]):
    """Work that is done by whoever asks for its result."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work

    def result(self) -> T:
        return self._work()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingTables:
    """What the sampling kernels need of one edge type and direction; rows are parts, zeros where one is not here.

    Attributes:
        node_type: Node type of the nodes that are expanded.
        offsets: int64[num_parts + 1], id ranges of that type.
        keys: int64[num_parts, 2], address table of its keys; zeros where id equals key.
        indptrs: int64[num_parts, 2], address table of ``indptr``.
        indices: int64[num_parts, 2], address table of ``indices``.
        indices_dtype: uint32 or int64.
        edge_offsets: int64[num_parts + 1], id ranges of the edges.
    """

    node_type: str
    offsets: IntArray
    keys: IntArray
    indptrs: IntArray
    indices: IntArray
    indices_dtype: np.dtype[Any]
    edge_offsets: IntArray


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
        self.graph_id = manifest.graph_id
        self.parts = tuple(sorted(set(range(self.book.num_parts) if parts is None else parts)))
        unknown = [p for p in self.parts if not 0 <= p < self.book.num_parts]
        if unknown or not self.parts:
            raise UnknownNameError(f"parts {unknown or list(self.parts)} of {self.book.num_parts} (numbered from 0)")
        self._maps: list[PartArrays | None] = [None] * self.book.num_parts
        for part in self.parts:
            self._maps[part] = dataset.open_part(part)
        self._is_present = np.array([m is not None for m in self._maps])
        self._is_closed = False
        self._columns: dict[tuple[Owner, str], _ColumnTable] = {}
        self._tables = {owner: self._sampling_tables(*owner) for owner in self.book.edge_offsets}

    @property
    def is_whole(self) -> bool:
        """All parts of the dataset are here."""
        return len(self.parts) == self.book.num_parts

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
        maps = address_table([m.ids_of_keys[node_type] if m else None for m in self._maps])
        out = np.empty((len(keys), 1), np.int64)
        gather_rows(keys, offsets, maps, out, NO_POSITIONS)
        return out[:, 0]

    def split(self, node_type: str, name: str) -> IntArray:
        """Keys of a split; see ``Store.split``."""
        return np.concatenate(self.split_runs(node_type, name))

    def split_runs(self, node_type: str, name: str) -> list[IntArray]:
        """The keys of ``split`` as they lie in the files, one array per part, not copied."""
        check_split(self, node_type, name)
        return [m.splits[node_type][name] for m in self._maps if m is not None]

    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """Edges of each id; see ``Store.degrees``."""
        tables = self.tables(edge_type, direction)
        ids = self.check_ids(tables.node_type, ids)
        degrees = np.empty(len(ids), np.int64)
        parts, counts, starts = np.empty(len(ids), np.int32), np.empty(len(ids), np.int32), np.empty(len(ids), np.int64)
        total = edge_ranges(
            ids, tables.offsets, tables.indptrs, tables.indices, -1, False, parts, starts, degrees, counts
        )
        check_range(total, ids, owner_label((edge_type, direction)))
        return degrees

    def sample_run(self, request: SampleRequest, first: int, num_edges: int) -> SampleReply:
        """Some of all the edges of one node, so that a node of very many edges can be answered piece by piece.

        Args:
            request: Names one node; its ``count`` and ``is_replacing`` are not looked at.
            first: The first edge of the node that is wanted, counted from 0 in stored order.
            num_edges: How many; the node has ``first + num_edges`` or more.
        """
        owner = (request.edge_type, request.direction)
        tables = self.tables(*owner)
        ids = self.check_ids(tables.node_type, request.ids)
        parts, counts = np.empty(1, np.int32), np.empty(1, np.int32)
        starts, degrees = np.empty(1, np.int64), np.empty(1, np.int64)
        total = edge_ranges(
            ids[:1], tables.offsets, tables.indptrs, tables.indices, -1, False, parts, starts, degrees, counts
        )
        check_range(total, ids, owner_label(owner))
        part = self._maps[int(parts[0])]
        if len(ids) != 1 or part is None or first < 0 or num_edges < 0 or first + num_edges > int(degrees[0]):
            raise IdRangeError(f"edges {first}..{first + num_edges - 1} of {len(ids)} nodes; it has {degrees[0]}")
        positions = np.arange(starts[0] + first, starts[0] + first + num_edges, dtype=np.int64)
        neighbor_ids = part.edges[owner].indices[int(starts[0]) + first : int(starts[0]) + first + num_edges]
        return SampleReply(
            counts=np.array([num_edges], np.int32),
            neighbor_ids=np.asarray(neighbor_ids),
            edge_ids=positions + tables.edge_offsets[int(parts[0])] if request.wants_edge_ids else None,
        )

    def row_lengths(self, owner: Owner, name: str, ids: IntArray) -> IntArray:
        """int64[n], elements in each row of a ragged or string column.

        Raises:
            UnknownNameError: The dataset has no such type, direction or column.
            SettingsError: The rows of the column all have one length.
            IdRangeError: An id is out of range or of a part that is not here.
        """
        self._check_owner(owner)
        table = self._column(owner, name)
        if table.feature.is_fixed_width:
            raise SettingsError(f"{owner_label(owner)}.{name} is {table.feature}; lengths are told of ragged columns")
        ids = self.check_ids(owner, ids)
        return _ragged_ranges(table, ids, self.book.offsets(owner), f"{owner_label(owner)}.{name}")[2]

    def close(self) -> None:
        """Refuse further requests. The files stay mapped until the store is collected: a kernel may still read them."""
        self._is_closed = True

    def tables(self, edge_type: EdgeType, direction: Direction) -> SamplingTables:
        """The address tables of one edge type and direction; valid while the store is referred to.

        Raises:
            UnknownNameError: The dataset has no such edge type, or does not hold the direction.
        """
        self._check_owner((edge_type, direction))
        return self._tables[edge_type, direction]

    def check_ids(self, owner: Owner, ids: IntArray) -> IntArray:
        """The ids as contiguous int64, after checking that each belongs to a part of this store.

        Raises:
            IdRangeError: An id is out of range or of a part that is not here.
            StoreUnavailable: The store is closed.
        """
        ids = np.ascontiguousarray(ids, np.int64)
        self._check_owned(f"{owner_label(owner)} ids", ids, self.book.offsets(owner))
        return ids

    def _sampling_tables(self, edge_type: EdgeType, direction: Direction) -> SamplingTables:
        node_type = edge_type[2] if direction == "in" else edge_type[0]
        edges = [m.edges[edge_type, direction] if m else None for m in self._maps]
        # With one part the format says that id equals key, which saves a cache miss per expanded node.
        has_keys = self.book.num_parts > 1
        return SamplingTables(
            node_type=node_type,
            offsets=self.book.offsets(node_type),
            keys=address_table([m.node_keys[node_type] if m and has_keys else None for m in self._maps]),
            indptrs=address_table([e.indptr if e else None for e in edges]),
            indices=address_table([e.indices if e else None for e in edges]),
            indices_dtype=next(e.indices.dtype for e in edges if e),
            edge_offsets=self.book.offsets((edge_type, direction)),
        )

    def _sample(self, request: SampleRequest) -> SampleReply:
        tables = self.tables(request.edge_type, request.direction)
        if not -1 <= request.count <= MAX_COUNT:
            raise SettingsError(f"count is {request.count}; give -1 for all neighbours, or 0 to {MAX_COUNT}")
        ids = self.check_ids(tables.node_type, request.ids)
        num_ids = len(ids)
        parts, counts = np.empty(num_ids, np.int32), np.empty(num_ids, np.int32)
        starts, degrees = np.empty(num_ids, np.int64), np.empty(num_ids, np.int64)
        total = edge_ranges(
            ids,
            tables.offsets,
            tables.indptrs,
            tables.indices,
            request.count,
            request.is_replacing,
            parts,
            starts,
            degrees,
            counts,
        )
        check_range(total, ids, owner_label((request.edge_type, request.direction)))
        neighbor_ids = np.empty(total, tables.indices_dtype)
        edge_ids = np.empty(total, np.int64)
        draw_neighbors(
            ids, tables.offsets, tables.keys, tables.indices, np.uint64(request.rng_seed),
            request.is_replacing and request.count >= 0, parts, starts, degrees, counts, tables.edge_offsets,
            neighbor_ids, edge_ids,
        )  # fmt: skip
        return SampleReply(
            counts=counts, neighbor_ids=neighbor_ids, edge_ids=edge_ids if request.wants_edge_ids else None
        )

    def _fetch(self, request: FetchRequest) -> dict[str, Column]:
        self._check_owner(request.owner)
        ids, offsets = self.check_ids(request.owner, request.ids), self.book.offsets(request.owner)
        positions = NO_POSITIONS if request.positions is None else request.positions
        given: Mapping[str, Array] = request.out or {}
        columns: dict[str, Column] = {}
        for name in request.names:
            table = self._column(request.owner, name)
            if table.feature.is_fixed_width:
                out = given.get(name)
                columns[name] = _gather_fixed(table, ids, offsets, out, positions)
            else:
                columns[name] = _gather_ragged(table, ids, offsets, f"{owner_label(request.owner)}.{name}")
        return columns

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
            table = _ColumnTable(
                self._feature(owner, name), [_part_column(m, owner, name) if m else None for m in self._maps]
            )
            self._columns[owner, name] = table
        return table

    def _feature(self, owner: Owner, name: str) -> FeatureSchema:
        if name == KEY:
            return KEY_SCHEMA
        return self.schema.feature(owner if isinstance(owner, str) else owner[0], name)

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


def check_range(total: int, ids: IntArray, where: str) -> None:
    """Raise ``FormatError`` where a kernel found a row's range outside its file.

    Raises:
        SettingsError: A node has more edges than can be counted in one answer.
    """
    if total == TOO_MANY:
        raise SettingsError(f"{where}: a node has more than {MAX_COUNT} edges; give a count instead of -1")
    if total < 0:
        raise FormatError(f"{where}: the row of id {int(ids[-1 - total])} lies outside its file; verify the dataset")


def _gather_ragged(table: _ColumnTable, ids: IntArray, offsets: IntArray, where: str) -> RaggedArray:
    feature = table.feature
    parts, starts, lengths = _ragged_ranges(table, ids, offsets, where)
    total = int(lengths.sum())
    values = np.empty((total, *feature.shape), feature.numpy_dtype)
    if feature.row_bytes and total:
        words = cast(Array, values.reshape(total, -1).view(table.word))
        gather_elements(table.values, parts, starts, lengths, words)
    return RaggedArray(values, offsets_of(lengths), feature.is_string)


def _ragged_ranges(
    table: _ColumnTable, ids: IntArray, offsets: IntArray, where: str
) -> tuple[NDArray[np.int32], IntArray, IntArray]:
    """Part, first element and length of each row of a ragged column, int32[n], int64[n] and int64[n]."""
    parts, starts = np.empty(len(ids), np.int32), np.empty(len(ids), np.int64)
    lengths = np.empty(len(ids), np.int64)
    width = table.feature.row_bytes // table.word.itemsize
    total = gather_ranges(ids, offsets, table.row_offsets, table.values, width, parts, starts, lengths)
    check_range(total, ids, where)
    return parts, starts, lengths
