"""Halo store: gathers rows of columns and draws edges from local copies of other parts' rows.

The halos of local parts are treated as parts of a separate graph. Its ids are *rows*: positions in the lists of copied
nodes, one halo after the other. So the kernels that draw and gather over parts serve halos, too. Draws use the nodes'
own keys, and answers have the edges' own ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import Entity, PartitionBook, ends_of, entity_label
from hopstream.dataset.halo_layout import HaloArrays
from hopstream.dataset.layout import EdgeArrays, PartArrays
from hopstream.dataset.overlays import edge_pieces
from hopstream.errors import FormatError, SettingsError, UnknownNameError
from hopstream.kernels.gather import (
    gather_elements,
    gather_numbers,
    gather_ranges,
    gather_rows,
    locate_rows,
    word_dtype,
)
from hopstream.kernels.halo import find_edge_rows, find_rows, number_edges
from hopstream.kernels.memory import address_table
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema
from hopstream.store.contract import KEY, KEY_SCHEMA, SampleReply, SampleRequest
from hopstream.store.drawing import (
    SamplingTables,
    check_range,
    draw_reply,
    find_edge_ids,
    find_row_edges,
    sampling_tables,
)
from hopstream.store.located import LocatedRows


class ColumnTable:
    """Address tables of one column over all pieces."""

    def __init__(self, feature: FeatureSchema, columns: Sequence[Column | None]) -> None:
        """Take a column of each piece, None for an unmapped one; the caller keeps the columns alive."""
        self.feature = feature
        ragged = [c if isinstance(c, RaggedArray) else None for c in columns]
        values = [c.values if isinstance(c, RaggedArray) else c for c in columns]
        stored = next((v.dtype for v in values if v is not None), feature.numpy_dtype)
        self.is_narrow = stored != feature.numpy_dtype
        """Whether the column holds numbers, such as edge keys, in fewer bits than requests get."""
        self.word = stored if self.is_narrow else word_dtype(feature.row_bytes)
        self.values = address_table([None if v is None else _as_words(v, self.word) for v in values])
        self.row_offsets = address_table([None if r is None else r.offsets for r in ragged])

    def locate(self, name: str, ids: IntArray, offsets: IntArray, positions: IntArray, located: LocatedRows) -> None:
        """Locate the rows of checked ids of a column of fixed width; narrow numbers are copied first."""
        if self.is_narrow:
            located.take(positions, {name: located.kept(gather_fixed(self, ids, offsets))})
            return
        width = self.feature.row_bytes // self.word.itemsize
        locate_rows(ids, offsets, self.values, width, self.word.itemsize, positions, located.addresses_of(name))


def _as_words(values: Array, word: np.dtype[Any]) -> NDArray[Any]:
    if not values.flags.c_contiguous:
        raise FormatError(f"a column of {values.dtype}{list(values.shape)} is not in C order; write the dataset again")
    return values.reshape(-1).view(word) if values.size else np.empty(0, word)


def piece_columns(
    book: PartitionBook, maps: Sequence[PartArrays | None], entity: Entity, name: str
) -> list[Column | None]:
    """Return a column of each piece of an entity's ids; None for a piece that is not mapped.

    Raises:
        UnknownNameError: The column is the key, and the dataset keeps no edge keys.
    """
    if isinstance(entity, str):
        return [(m.node_keys[entity] if name == KEY else m.node_features[entity][name]) if m else None for m in maps]
    return [_edge_column(edges, entity, name) if edges else None for edges in edge_pieces(book, maps, entity)]


def _edge_column(edges: EdgeArrays, entity: Entity, name: str) -> Column:
    if name != KEY:
        return edges.features[name]
    if edges.keys is None:
        raise _no_edge_keys(entity)
    return edges.keys


def _no_edge_keys(entity: Entity) -> UnknownNameError:
    return UnknownNameError(
        f"{entity_label(entity)}: the dataset keeps no edge keys; write the parts again with edge keys"
    )


def gather_fixed(table: ColumnTable, ids: IntArray, offsets: IntArray, out: Array | None = None) -> Array:
    """Gather rows of a column of fixed width, into ``out`` if given; see ``FetchRequest``.

    Args:
        table: The column.
        ids: int64[n], checked.
        offsets: int64[num_pieces + 1], id ranges.
        out: Array to write to, or None for a new one.

    Raises:
        SettingsError: ``out`` does not fit.
    """
    feature = table.feature
    if out is None:
        out = np.empty((len(ids), *feature.shape), feature.numpy_dtype)
    elif out.dtype != feature.numpy_dtype or out.shape[1:] != feature.shape or not out.flags.c_contiguous:
        raise SettingsError(f"out is {out.dtype}{list(out.shape)}; the column is {feature}, C-contiguous")
    if len(out) < len(ids):
        raise SettingsError(f"out has {len(out)} rows for {len(ids)} ids")
    if table.is_narrow:
        gather_numbers(ids, offsets, table.values, np.empty(0, table.word), out)
    elif feature.row_bytes and len(ids):
        words = out.reshape(len(out), -1).view(table.word)
        gather_rows(ids, offsets, table.values, words)
    return out


def gather_ragged(table: ColumnTable, ids: IntArray, offsets: IntArray, where: str) -> RaggedArray:
    """Gather rows of a ragged or string column; ``where`` is its name in errors.

    Raises:
        FormatError: A row lies outside its file.
    """
    feature = table.feature
    parts, starts, lengths = ragged_ranges(table, ids, offsets, where)
    total = int(lengths.sum())
    values = np.empty((total, *feature.shape), feature.numpy_dtype)
    if feature.row_bytes and total:
        words = cast(Array, values.reshape(total, -1).view(table.word))
        gather_elements(table.values, parts, starts, lengths, words)
    return RaggedArray(values, offsets_of(lengths), feature.is_string)


def ragged_ranges(
    table: ColumnTable, ids: IntArray, offsets: IntArray, where: str
) -> tuple[NDArray[np.int32], IntArray, IntArray]:
    """Return part, first element and length of each row of a ragged column, int32[n], int64[n], int64[n].

    Raises:
        FormatError: A row lies outside its file.
    """
    parts, starts = np.empty(len(ids), np.int32), np.empty(len(ids), np.int64)
    lengths = np.empty(len(ids), np.int64)
    width = table.feature.row_bytes // table.word.itemsize
    total = gather_ranges(ids, offsets, table.row_offsets, table.values, width, parts, starts, lengths)
    check_range(total, ids, where)
    return parts, starts, lengths


NO_POSITIONS: IntArray = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Directory:
    """Index of the ascending ids of one halo; see ``find_rows``."""

    ids: IntArray
    starts: IntArray
    shift: int

    @classmethod
    def of(cls, ids: IntArray, num_ids: int) -> _Directory:
        """Make an index with about one entry per id."""
        shift = 0
        while num_ids >> shift > max(1, len(ids)):
            shift += 1
        bounds = np.arange((num_ids >> shift) + 2, dtype=np.int64) << shift
        return cls(ids, np.searchsorted(ids, bounds), shift)


class _NodeSet:
    """Nodes of one type in halos, numbered by row."""

    def __init__(self, lists: Sequence[IntArray], num_ids: int) -> None:
        self.offsets = offsets_of(np.array([len(ids) for ids in lists]))
        self._directories = [_Directory.of(ids, num_ids) for ids in lists]

    def find(self, ids: IntArray, offsets: IntArray, is_here: NDArray[np.bool_]) -> IntArray:
        """Return the row of each id, int64[n]; -1 if no halo has it or its part is local."""
        rows = np.full(len(ids), -1, np.int64)
        for directory, first_row in zip(self._directories, self.offsets, strict=False):
            if len(directory.ids):
                find_rows(ids, offsets, is_here, directory.ids, directory.starts, directory.shift, int(first_row), rows)
        return rows


class HaloStore:
    """Store of the rows that halos hold. Safe to use from many threads."""

    def __init__(
        self, halos: Sequence[HaloArrays], schema: GraphSchema, book: PartitionBook, parts_here: Sequence[int]
    ) -> None:
        """Keep one or more halos.

        Args:
            halos: Halos of one dataset.
            schema: Schema of the dataset.
            book: Book of the dataset.
            parts_here: Local parts, whose rows are not looked up in halos.
        """
        self._halos, self._schema, self._book = halos, schema, book
        self._is_here = np.isin(np.arange(book.num_parts), parts_here)
        self._cached = {t: _NodeSet([h.cached[t].ids for h in halos], book.num_ids(t)) for t in halos[0].cached}
        self._nodes = {t: _NodeSet([h.node_ids[t] for h in halos], book.num_ids(t)) for t in halos[0].node_ids}
        self._tables = self._sampling_tables()
        self._edge_offsets = {
            entity: offsets_of(np.array([len(h.edges[entity].indices) for h in halos])) for entity in self._tables
        }
        self._edge_starts = {entity: address_table([h.edge_starts[entity] for h in halos]) for entity in self._tables}
        entities: list[Entity] = [*schema.nodes, *self._tables]
        self._columns = {
            (entity, name): self._column(entity, name) for entity in entities for name in self.names(entity)
        }

    def names(self, entity: Entity) -> tuple[str, ...]:
        """Return the columns of rows of ``find_columns``, ``KEY`` included."""
        if isinstance(entity, str):
            if entity in self._cached:
                return (KEY, *self._halos[0].cached[entity].features)
            return (KEY,) if entity in self._nodes else ()
        if entity not in self._tables:
            return ()
        edges = self._halos[0].edges[entity]
        return (*((KEY,) if edges.keys is not None else ()), *edges.features)

    def find_nodes(self, entity: tuple[EdgeType, Direction], ids: IntArray) -> IntArray | None:
        """Return the row of each node whose edges are in a halo, int64[n], else -1; None without such halos.

        Args:
            entity: Edge type and direction to sample.
            ids: int64[n], checked ids of nodes that are expanded.
        """
        node_type = ends_of(*entity)[0]
        if entity not in self._tables:
            return None
        return self._nodes[node_type].find(ids, self._book.offsets(node_type), self._is_here)

    def find_columns(self, entity: Entity, ids: IntArray) -> IntArray | None:
        """Return the row of each id whose columns are in a halo, int64[n], else -1; None without such halos."""
        offsets = self._book.offsets(entity)
        if isinstance(entity, str):
            known = self._cached.get(entity) or self._nodes.get(entity)
            return None if known is None else known.find(ids, offsets, self._is_here)
        if not self.names(entity):
            return None
        rows = np.full(len(ids), -1, np.int64)
        for halo, first_edge in zip(self._halos, self._edge_offsets[entity], strict=False):
            starts, indptr = halo.edge_starts[entity], halo.edges[entity].indptr
            find_edge_rows(ids, offsets, self._is_here, starts, indptr, int(first_edge), rows)
        return rows

    def sample(self, request: SampleRequest) -> SampleReply:
        """Draw neighbours; node ids in ``ids`` and ``excluded[0]`` are rows, neighbours are ids."""
        tables = self._tables[request.edge_type, request.direction]
        rows = np.ascontiguousarray(request.ids, np.int64)
        reply = draw_reply(tables, request, rows)
        keys = None
        if reply.edge_ids is not None:
            starts = self._edge_starts[request.edge_type, request.direction]
            number_edges(rows, tables.addresses.offsets, tables.addresses.indptrs, starts, reply.counts, reply.edge_ids)
            if request.wants_edge_keys:
                entity = (request.edge_type, request.direction)
                if KEY not in self.names(entity):
                    raise _no_edge_keys(entity)
                of_edges = cast(IntArray, self.find_columns(entity, reply.edge_ids))
                keys = gather_fixed(self._columns[entity, KEY], of_edges, self._edge_offsets[entity])
        return replace(reply, edge_ids=reply.edge_ids if request.wants_edge_ids else None, edge_keys=keys)

    def degrees(self, entity: tuple[EdgeType, Direction], rows: IntArray) -> IntArray:
        """Return the number of edges of some rows, int64[n]."""
        return find_row_edges(self._tables[entity], rows).degrees

    def find_edges(self, entity: tuple[EdgeType, Direction], rows: IntArray, neighbor_ids: IntArray) -> IntArray:
        """Return the first edge between each row and its neighbour, int64[n]; -1 for none."""
        tables = self._tables[entity]
        edge_ids = find_edge_ids(tables, rows, neighbor_ids)
        is_found = edge_ids >= 0
        found = edge_ids[is_found]
        ones = np.ones(len(found), np.int32)
        addresses = tables.addresses
        number_edges(rows[is_found], addresses.offsets, addresses.indptrs, self._edge_starts[entity], ones, found)
        edge_ids[is_found] = found
        return edge_ids

    def locate(self, entity: Entity, rows: IntArray, positions: IntArray, located: LocatedRows) -> None:
        """Locate rows of columns of fixed width; see ``LocalStore.locate``."""
        for name in located.names:
            self._columns[entity, name].locate(name, rows, self._column_offsets(entity), positions, located)

    def fetch_ragged(self, entity: Entity, names: Sequence[str], rows: IntArray) -> dict[str, Column]:
        """Read rows of ragged columns among ``names``."""
        offsets, where = self._column_offsets(entity), f"halo: {entity_label(entity)}"
        return {name: gather_ragged(self._columns[entity, name], rows, offsets, f"{where}.{name}") for name in names}

    def _column_offsets(self, entity: Entity) -> IntArray:
        if isinstance(entity, str):
            return (self._cached.get(entity) or self._nodes[entity]).offsets
        return self._edge_offsets[entity]

    def _column(self, entity: Entity, name: str) -> ColumnTable:
        if not isinstance(entity, str):
            edges = [h.edges[entity] for h in self._halos]
            if name == KEY:
                return ColumnTable(KEY_SCHEMA, [each.keys for each in edges])
            return ColumnTable(self._schema.edges[entity[0]][name], [each.features[name] for each in edges])
        if entity not in self._cached:
            return ColumnTable(KEY_SCHEMA, [h.node_keys[entity] for h in self._halos])
        if name == KEY:
            return ColumnTable(KEY_SCHEMA, [h.cached[entity].keys for h in self._halos])
        return ColumnTable(self._schema.nodes[entity][name], [h.cached[entity].features[name] for h in self._halos])

    def _sampling_tables(self) -> dict[tuple[EdgeType, Direction], SamplingTables]:
        """Make sampling tables that treat the halos as parts and rows as ids."""
        entities = [entity for entity in self._book.edge_offsets if entity in self._halos[0].edges]
        # One empty part more: with a single part, ids would be taken for keys.
        num_parts = len(self._halos) + 1
        book = PartitionBook(
            num_parts=num_parts,
            node_offsets={t: np.append(known.offsets, known.offsets[-1]) for t, known in self._nodes.items()},
            edge_offsets={entity: np.zeros(num_parts + 1, np.int64) for entity in entities},
        )
        maps = [*map(_as_part, self._halos), None]
        return {entity: sampling_tables(book, maps, *entity) for entity in entities}


def _as_part(halo: HaloArrays) -> PartArrays:
    return PartArrays(
        part=halo.part, node_keys=halo.node_keys, ids_of_keys={}, splits={}, node_features={}, edges=halo.edges
    )
