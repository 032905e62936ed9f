"""Local store: answers requests from parts whose files are on this machine.

A ``LocalStore`` maps any number of parts of one dataset. It answers a request over all of them with one kernel call,
because kernels take a table of the parts' addresses. Nothing is copied but the answer, and processes share pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from hopstream.arrays import Array, Column, IntArray
from hopstream.buffers import BufferPool
from hopstream.dataset.book import Entity, entity_label
from hopstream.dataset.halo_layout import HaloArrays, open_halo
from hopstream.dataset.layout import Dataset, PartArrays
from hopstream.dataset.overlays import edge_pieces
from hopstream.dataset.paths import link_folder, node_folder, split_path
from hopstream.dataset.verify import REMEDY, check_ascending
from hopstream.errors import FormatError, IdRangeError, SettingsError, StoreUnavailable, UnknownNameError
from hopstream.kernels.gather import gather_rows
from hopstream.kernels.lookups import first_unowned
from hopstream.kernels.memory import address_table
from hopstream.schema import Direction, EdgeType, FeatureSchema, type_label
from hopstream.store.contract import (
    KEY,
    KEY_SCHEMA,
    Deferred,
    FetchRequest,
    Links,
    Pending,
    SampleReply,
    SampleRequest,
    Store,
)
from hopstream.store.drawing import (
    DrawBuffers,
    SamplingTables,
    count_eligible,
    draw_reply,
    find_edge_ids,
    find_row_edges,
    replaces,
    sampling_tables,
)
from hopstream.store.halo import ColumnTable, gather_fixed, gather_ragged, piece_columns, ragged_ranges
from hopstream.store.located import LocatedRows
from hopstream.store.requests import (
    check_edge_split,
    check_entity,
    check_find_edges,
    check_links,
    check_sample_request,
    check_split,
    has_own_times,
)

T = TypeVar("T")
NO_KEYS: IntArray = np.empty(0, np.int64)


class LocalStore(Store):
    """Store of some or all parts of a dataset, whose files it maps."""

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
        self.take_facts(manifest)
        self.has_neighbor_keys = manifest.has_neighbor_keys or manifest.book.ids_are_keys
        self.parts = tuple(sorted(set(range(self.book.num_parts) if parts is None else parts)))
        unknown = [p for p in self.parts if not 0 <= p < self.book.num_parts]
        if unknown or not self.parts:
            raise UnknownNameError(
                f"the dataset has parts 0..{self.book.num_parts - 1}; got {unknown or list(self.parts)}"
            )
        self._maps: list[PartArrays | None] = [None] * self.book.num_parts
        for part in self.parts:
            self._maps[part] = dataset.open_part(part)
        self._is_present = np.array([m is not None for m in self._maps])
        self._dataset = dataset
        self._is_closed = False
        self._columns: dict[tuple[Entity, str], ColumnTable] = {}
        self._tables = {entity: sampling_tables(self.book, self._maps, *entity) for entity in self.book.edge_offsets}

    @property
    def folder(self) -> Path:
        """The dataset's folder."""
        return self._dataset.root

    @property
    def halo_id(self) -> str | None:
        """Fingerprint of the dataset's halo; None without a halo."""
        halo = self._dataset.manifest.halo
        return None if halo is None else halo.halo_id

    def open_halos(self) -> list[HaloArrays]:
        """Open the halos of the store's parts; none if all parts are mapped.

        Raises:
            FormatError: A file of a halo is missing, truncated or not what the manifest says.
        """
        if self.is_whole:
            return []
        return [halo for part in self.parts if (halo := open_halo(self._dataset, part)) is not None]

    @property
    def is_whole(self) -> bool:
        """Whether all parts of the dataset are mapped."""
        return len(self.parts) == self.book.num_parts

    def submit_sample(self, requests: Sequence[SampleRequest]) -> Pending[list[SampleReply]]:
        """Draw neighbours when the result is asked for; see ``Store.sample``."""
        return Deferred(lambda: [self._sample(request) for request in requests])

    def submit_fetch(self, requests: Sequence[FetchRequest]) -> Pending[list[dict[str, Column]]]:
        """Read columns when the result is asked for; see ``Store.fetch``."""
        return Deferred(lambda: [self._fetch(request) for request in requests])

    def lookup(self, node_type: str, keys: IntArray) -> IntArray:
        """Return the ids of nodes given by key; see ``Store.lookup``."""
        self.schema.check_node_type(node_type)
        offsets = self.book.key_offsets(node_type)
        keys = np.asarray(keys, np.int64)
        self._check_owned(f"{node_type} keys", keys, offsets)
        maps = address_table([m.ids_of_keys[node_type] if m else None for m in self._maps])
        out = np.empty((len(keys), 1), np.int64)
        gather_rows(keys, offsets, maps, out)
        self._check_found(node_type, keys, out[:, 0])
        return out[:, 0]

    def _check_found(self, node_type: str, keys: IntArray, ids: IntArray) -> None:
        """Refuse wrong ids in ``id_of_key.npy``: ids of no node, or of a node with another key."""
        is_known = (ids >= 0) & (ids < self.book.num_ids(node_type))
        is_wrong = ~is_known
        if not self.is_whole:
            is_known[is_known] = self._is_present[self.book.parts_of(node_type, ids[is_known])]
        found = gather_fixed(self._column(node_type, KEY), ids[is_known], self.book.offsets(node_type))
        is_wrong[is_known] = found != keys[is_known]
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            keeper = int(np.searchsorted(self.book.key_offsets(node_type), keys[row], side="right")) - 1
            path = self._root / node_folder(keeper, node_type) / "id_of_key.npy"
            why = "key.npy of its part has another key in this row" if is_known[row] else "no node has this id"
            raise FormatError(f"{path} says that key {keys[row]} has id {ids[row]}, but {why}; {REMEDY}")

    def find_own(self, node_type: str, keys: IntArray) -> IntArray:
        """Return the ids of nodes that ``parts`` own, int64[n], -1 for other nodes; sends no request.

        Args:
            node_type: The node type.
            keys: int64[n], keys of nodes of any part.
        """
        self._check_open()
        ids, offsets = np.full(len(keys), -1, np.int64), self.book.offsets(node_type)
        for part, start in zip(self._maps, offsets, strict=False):
            own_keys = NO_KEYS if part is None else part.node_keys[node_type]
            if len(own_keys):
                rows = np.searchsorted(own_keys, keys).clip(max=len(own_keys) - 1)
                is_own = own_keys[rows] == keys
                ids[is_own] = start + rows[is_own]
        return ids

    def split(self, node_type: str, name: str) -> IntArray:
        """Return the keys of a split; see ``Store.split``."""
        return np.concatenate(self.split_runs(node_type, name))

    def split_runs(self, node_type: str, name: str) -> list[IntArray]:
        """Return the keys of ``split`` as mapped arrays, one per part."""
        check_split(self, node_type, name)
        runs = {m.part: m.splits[node_type][name] for m in self._maps if m is not None}
        for part, keys in runs.items():
            path = split_path(node_folder(part, node_type), name)
            self._check_split(path, keys, self.book.key_offsets(node_type)[part : part + 2])
        return list(runs.values())

    def _check_split(self, path: PurePosixPath, keys: IntArray, ends: IntArray) -> None:
        check_ascending(f"{self._root / path}: keys", keys, int(ends[0]), int(ends[1]))

    def edge_split(self, edge_type: EdgeType, name: str) -> IntArray:
        """Return the edge keys of a split; see ``Store.edge_split``."""
        return np.concatenate(self.edge_split_runs(edge_type, name))

    def edge_split_runs(self, edge_type: EdgeType, name: str) -> list[IntArray]:
        """Return the keys of ``edge_split`` as mapped arrays, one per part."""
        check_edge_split(self, edge_type, name)
        self._check_open()
        runs = {m.part: m.links[edge_type].splits[name] for m in self._maps if m is not None}
        for part, keys in runs.items():
            path = split_path(link_folder(part, edge_type), name)
            self._check_split(path, keys, self.book.link_offsets(edge_type)[part : part + 2])
        return list(runs.values())

    def links(self, edge_type: EdgeType, edge_keys: IntArray) -> Links:
        """Return end nodes and times of edges given by edge key; see ``Store.links``."""
        check_links(self, edge_type, edge_keys)
        keys, offsets = np.ascontiguousarray(edge_keys, np.int64), self.book.link_offsets(edge_type)
        self._check_owned(f"{type_label(edge_type)} edge keys", keys, offsets)
        kept = [m.links[edge_type] if m else None for m in self._maps]

        def gather(columns: Sequence[IntArray | None]) -> IntArray:
            out = np.empty((len(keys), 1), np.int64)
            gather_rows(keys, offsets, address_table(columns), out)
            return out[:, 0]

        ends = {
            "src_key.npy": (edge_type[0], gather([part.src_keys if part else None for part in kept])),
            "dst_key.npy": (edge_type[2], gather([part.dst_keys if part else None for part in kept])),
        }
        for name, (node_type, found) in ends.items():
            row = first_unowned(found, self.book.offsets(node_type)[[0, -1]], np.ones(1, np.bool_))
            if row >= 0:
                path = link_folder(int(np.searchsorted(offsets, keys[row], side="right")) - 1, edge_type) / name
                raise FormatError(
                    f"{self._root / path} says that edge key {keys[row]} has the end {found[row]}, which is not a key "
                    f"of {node_type}; {REMEDY}"
                )
        return Links(
            src_keys=ends["src_key.npy"][1],
            dst_keys=ends["dst_key.npy"][1],
            times=gather([part.times if part else None for part in kept]) if has_own_times(self, edge_type) else None,
        )

    def find_edges(self, edge_type: EdgeType, direction: Direction, ids: IntArray, neighbor_ids: IntArray) -> IntArray:
        """Find the first edge between each id and its neighbour; see ``Store.find_edges``."""
        check_find_edges(self, edge_type, direction, ids, neighbor_ids)
        tables = self.tables(edge_type, direction)
        ids = tables.newest(self.check_ids(tables.node_type, ids))
        return find_edge_ids(tables, ids, neighbor_ids)

    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """Return the number of edges of each id; see ``Store.degrees``."""
        tables = self.tables(edge_type, direction)
        ids = tables.newest(self.check_ids(tables.node_type, ids))
        return find_row_edges(tables, ids).degrees

    def degrees_in_time(self, request: SampleRequest) -> IntArray:
        """Return the number of edges of each id that the request's times allow, int64[n]."""
        tables = self.tables(request.edge_type, request.direction)
        ids = tables.newest(self.check_ids(tables.node_type, request.ids))
        return DrawBuffers().find_ranges(tables, replace(request, count=0), ids).nodes.degrees

    def num_drawn_bound(self, request: SampleRequest) -> IntArray:
        """Return an upper bound of the neighbours that each id draws, int64[n]; cheaper than drawing.

        The bound is the exact number except in two cases: excluded neighbours are counted unless there are candidates,
        and edges of weight 0 are counted. The request is checked as in ``sample``.
        """
        check_sample_request(self, request)
        tables = self.tables(request.edge_type, request.direction)
        ids = tables.newest(self.check_ids(tables.node_type, request.ids))
        ranges = DrawBuffers().find_ranges(tables, request, ids)
        if request.candidates is None:
            return ranges.nodes.counts.astype(np.int64)
        num_eligible = count_eligible(tables, request, ranges)
        if replaces(request):
            return np.where(num_eligible > 0, request.count, 0)
        return num_eligible if request.count < 0 else num_eligible.clip(max=request.count)

    def sample_run(self, request: SampleRequest, first: int, num_edges: int) -> SampleReply:
        """Return a range of one node's edges, so that a node with very many edges can be answered in pieces.

        Args:
            request: Request for one node; ``count`` and ``is_replacing`` are ignored.
            first: First edge of the range, counted from 0 in stored order.
            num_edges: Number of edges; the node must have at least ``first + num_edges``.
        """
        entity = (request.edge_type, request.direction)
        tables = self.tables(*entity)
        ids = tables.newest(self.check_ids(tables.node_type, request.ids))
        nodes = find_row_edges(tables, ids)
        piece = int(nodes.parts[0]) if len(ids) == 1 else -1
        edges = edge_pieces(self.book, self._maps, entity)[piece] if piece >= 0 else None
        if edges is None or first < 0 or num_edges < 0 or first + num_edges > int(nodes.degrees[0]):
            degrees = nodes.degrees[:9].tolist()
            raise IdRangeError(f"edges {first}..{first + num_edges - 1} of {len(ids)} nodes; they have {degrees}")
        start = int(nodes.starts[0]) + first
        positions = np.arange(start, start + num_edges, dtype=np.int64)
        reply = SampleReply(
            counts=np.array([num_edges], np.int32),
            neighbor_ids=np.asarray(edges.indices[start : start + num_edges]),
            edge_ids=positions + tables.addresses.edge_offsets[piece],
        )
        return self._with_wanted(request, reply)

    def explain_damage(self, error: FormatError | IdRangeError) -> FormatError | IdRangeError:
        """Return an error that names the first damaged file of the parts; see ``Store.explain_damage``.

        A ``FormatError`` is returned unchanged if no file is damaged: it may be about a message.
        """
        if not self._dataset.root.is_dir():  # the folder was removed; mapped files remain as they were
            return error
        found = self._dataset.find_damage(self.parts)
        if found is None and isinstance(error, FormatError):
            return error
        where = f"run hopstream verify {self._root}"
        return FormatError(f"{error}; the dataset is damaged: {found or where}")

    @property
    def _root(self) -> Path:
        return self._dataset.root

    def row_lengths(self, entity: Entity, name: str, ids: IntArray) -> IntArray:
        """Return the number of elements in each row of a ragged or string column, int64[n].

        Raises:
            UnknownNameError: The dataset has no such type, direction or column.
            SettingsError: The column has a fixed width.
            IdRangeError: An id is out of range, or of a part that is not mapped.
        """
        check_entity(self, entity)
        table = self._column(entity, name)
        if table.feature.is_fixed_width:
            raise SettingsError(f"{entity_label(entity)}.{name} is {table.feature}; only ragged columns have lengths")
        ids = self.check_ids(entity, ids)
        return ragged_ranges(table, ids, self.book.offsets(entity), f"{entity_label(entity)}.{name}")[2]

    def close(self) -> None:
        """Refuse further requests; files stay mapped until the store is collected, as kernels may read them."""
        self._is_closed = True

    def tables(self, edge_type: EdgeType, direction: Direction) -> SamplingTables:
        """Return the address tables of one edge type and direction, valid while the store is alive.

        Raises:
            UnknownNameError: The dataset has no such edge type, or does not hold the direction.
        """
        check_entity(self, (edge_type, direction))
        return self._tables[edge_type, direction]

    def check_ids(self, entity: Entity, ids: IntArray) -> IntArray:
        """Return the ids as contiguous int64, after checking that this store's parts own them.

        Raises:
            IdRangeError: An id is out of range, or of a part that is not mapped.
            StoreUnavailable: The store is closed.
        """
        ids = np.ascontiguousarray(ids, np.int64)
        piece_parts = self.book.piece_parts(entity) if self.book.has_overlays(entity) else None
        self._check_owned(f"{entity_label(entity)} ids", ids, self.book.offsets(entity), piece_parts)
        return ids

    def _sample(self, request: SampleRequest) -> SampleReply:
        check_sample_request(self, request)
        return self.draw(request)

    def draw(self, request: SampleRequest) -> SampleReply:
        """Draw the neighbours of a request that ``check_sample_request`` has accepted; see ``Store.sample``."""
        tables = self.tables(request.edge_type, request.direction)
        ids = tables.newest(self.check_ids(tables.node_type, request.ids))
        return self._with_wanted(request, draw_reply(tables, request, ids))

    def _with_wanted(self, request: SampleRequest, reply: SampleReply) -> SampleReply:
        """Return a reply with edge keys if they are wanted, and without edge ids if they are not."""
        keys, entity = None, (request.edge_type, request.direction)
        if request.wants_edge_keys and reply.edge_ids is not None:
            keys = gather_fixed(self._column(entity, KEY), reply.edge_ids, self.book.offsets(entity))
        return replace(reply, edge_ids=reply.edge_ids if request.wants_edge_ids else None, edge_keys=keys)

    def _fetch(self, request: FetchRequest) -> dict[str, Column]:
        check_entity(self, request.entity)
        ids, offsets = self.check_ids(request.entity, request.ids), self.book.offsets(request.entity)
        given: Mapping[str, Array] = request.out or {}
        columns: dict[str, Column] = {}
        for name in request.names:
            table = self._column(request.entity, name)
            if table.feature.is_fixed_width:
                columns[name] = gather_fixed(table, ids, offsets, given.get(name))
            else:
                columns[name] = gather_ragged(table, ids, offsets, f"{entity_label(request.entity)}.{name}")
        return columns

    def locate(self, entity: Entity, ids: IntArray, positions: IntArray, located: LocatedRows) -> None:
        """Locate rows in mapped files; the addresses are valid while the store is alive.

        Args:
            entity: A node type, or an (edge type, direction).
            ids: int64[n].
            positions: int64[n], places of the ids in ``located``.
            located: Receives the addresses.

        Raises:
            UnknownNameError: The dataset has no such type or feature.
            IdRangeError: An id is out of range, or of a part that is not mapped.
        """
        ids, offsets = self.check_ids(entity, ids), self.book.offsets(entity)
        for name in located.names:
            self._column(entity, name).locate(name, ids, offsets, positions, located)

    def reader(self, request: FetchRequest, buffers: BufferPool) -> Callable[[slice], list[Array]]:
        """Prepare to read ranges of rows of fixed width into arrays of ``buffers``; ids are checked once.

        Raises:
            UnknownNameError: The dataset has no such type or feature.
            IdRangeError: An id is out of range, or of a part that is not mapped.
        """
        ids, offsets = self.check_ids(request.entity, request.ids), self.book.offsets(request.entity)
        tables = [self._column(request.entity, name) for name in request.names]

        def read(rows: slice) -> list[Array]:
            self._check_open()
            some = ids[rows]
            arrays: list[Array] = []
            for table in tables:
                out = buffers.take((len(some), *table.feature.shape), table.feature.numpy_dtype)
                arrays.append(gather_fixed(table, some, offsets, out))
            return arrays

        return read

    def _column(self, entity: Entity, name: str) -> ColumnTable:
        table = self._columns.get((entity, name))
        if table is None:
            table = ColumnTable(self._feature(entity, name), piece_columns(self.book, self._maps, entity, name))
            self._columns[entity, name] = table
        return table

    def _feature(self, entity: Entity, name: str) -> FeatureSchema:
        if name == KEY:
            return KEY_SCHEMA
        return self.schema.feature(entity if isinstance(entity, str) else entity[0], name)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"the store of parts {list(self.parts)} is closed")

    def _check_owned(self, what: str, ids: IntArray, offsets: IntArray, piece_parts: IntArray | None = None) -> None:
        """Refuse ids outside the ranges of mapped parts, or of pieces of such parts."""
        self._check_open()
        row = first_unowned(ids, offsets, self._is_present if piece_parts is None else self._is_present[piece_parts])
        if row < 0:
            return
        identifier = int(ids[row])
        if not 0 <= identifier < offsets[-1]:
            raise IdRangeError(f"{what}[{row}] is {identifier}; they are 0..{int(offsets[-1]) - 1}")
        piece = int(np.searchsorted(offsets, identifier, side="right")) - 1
        part = piece if piece_parts is None else int(piece_parts[piece])
        raise IdRangeError(f"{what}[{row}] is {identifier} of part {part}; this store holds parts {list(self.parts)}")
