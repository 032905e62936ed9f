"""Reads a dataset of any number of parts piece by piece, in the order of keys.

Where a node is follows from its id. Where an edge is, and the keys of its ends, is dealt out to files by ranges of edge
keys, and each range is put in order in memory. Features are read where they are, through memory maps.

[Cost] Memory for one range of edges, and what ``edge_keys`` takes; 36 bytes of disk per edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import Owner, ends_of
from hopstream.dataset.chunks import positions_of
from hopstream.dataset.key_book import KeyBook
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.overlays import edge_pieces
from hopstream.dataset.read_back import edge_keys, neighbors_of
from hopstream.dataset.rows import DatasetRows
from hopstream.errors import FormatError, IdRangeError, SchemaError
from hopstream.graph.graph import EdgeTable
from hopstream.ingest.chunked.memory import MemoryEdges, MemoryMask
from hopstream.ingest.chunked.sources import (
    ChunkedEdges,
    ChunkedGraph,
    ChunkedNodes,
    ColumnSource,
    FeatureSource,
    RaggedSource,
    cut_rows,
)
from hopstream.ingest.chunking.buckets import append_values
from hopstream.schema import EdgeType, FeatureSchema

RANGE_EDGES = 1 << 20
"""Edges that are put in order at a time."""
DEALT_EDGES = 1 << 18
"""Edges that are dealt out at a time."""
RAGGED_ROWS = 1 << 14
PLACE = np.dtype([("key", np.int64), ("src", np.int64), ("dst", np.int64), ("item", np.int64), ("piece", np.int32)])
"""An edge: its key, its ends' keys, its piece, and its place there."""


def chunked_of_dataset(
    root: Path, scratch: Path
) -> tuple[ChunkedGraph, dict[EdgeType, dict[str, ColumnSource]]]:  # fmt: skip
    """A dataset as a source of pieces, and the masks of the splits of its edges.

    Args:
        root: Its folder.
        scratch: A folder to work in, which must stay while pieces are read.

    Raises:
        FormatError: It is no dataset of a format that this version reads, or damaged.
        ChecksumError: A file is not the one that was written.
        SchemaError: It holds label types.
    """
    dataset = open_dataset(root)
    schema, book = dataset.manifest.schema, dataset.manifest.book
    if schema.label_types:
        raise SchemaError(f"{root} has label types, which a unigraph cannot hold; write it before it is split")
    rows, direction = DatasetRows(dataset.root, dataset.manifest), dataset.manifest.directions[0]
    rows.check_files(dataset.manifest.files)
    parts = [dataset.open_part(part) for part in range(book.num_parts)]
    nodes = {
        t: ChunkedNodes(
            num_nodes=book.num_ids(t),
            features=_features(
                features, _node_finder(rows, t), [part.node_features[t] for part in parts], book.num_ids(t)
            ),
            masks={n: MemoryMask(book.num_ids(t), *(p.splits[t][n] for p in parts)) for n in schema.splits.get(t, ())},
        )
        for t, features in schema.nodes.items()
    }
    edges: dict[EdgeType, ChunkedEdges] = {}
    for number, (edge_type, features) in enumerate(schema.edges.items()):
        places = _places_by_key(rows, edge_type, KeyBook(dataset), scratch / f"edges-{number}")
        pieces = [piece.features for piece in edge_pieces(book, parts, (edge_type, direction)) if piece is not None]
        ends = EdgeTable(src_keys=places["src"], dst_keys=places["dst"])
        edges[edge_type] = ChunkedEdges(
            num_edges=len(places),
            ends=MemoryEdges(ends),
            features=_features(features, _edge_finder(places), pieces, len(places)),
        )
    masks: dict[EdgeType, dict[str, ColumnSource]] = {
        t: {name: MemoryMask(edges[t].num_edges, *(p.links[t].splits[name] for p in parts)) for name in names}
        for t, names in schema.edge_splits.items()
        if names
    }
    return ChunkedGraph(name=root.name, root=root, nodes=nodes, edges=edges), masks


Find = Callable[[int, int], tuple[IntArray, IntArray]]
"""``find(start, stop)`` gives the piece of each row of a stretch of keys, and its place there; integer[n] each."""


def _node_finder(rows: DatasetRows, node_type: str) -> Find:
    offsets = rows.book.node_offsets[node_type]

    def find(start: int, stop: int) -> tuple[IntArray, IntArray]:
        ids = rows.ids_of_keys(node_type, start, stop)
        parts = rows.book.parts_of(node_type, ids)
        return parts, ids - offsets[parts]

    return find


def _edge_finder(places: Array) -> Find:
    return lambda start, stop: (places["piece"][start:stop], places["item"][start:stop])


def _features(
    schemas: Mapping[str, FeatureSchema], find: Find, pieces: Sequence[Mapping[str, Column]], num_rows: int
) -> dict[str, FeatureSource]:
    """The sources of features from those of each piece."""
    found: dict[str, FeatureSource] = {}
    for name, schema in schemas.items():
        columns = [features[name] for features in pieces]
        source = _Fixed if schema.is_fixed_width else _Ragged
        found[name] = source(schema, num_rows, columns, find)
    return found


def _found(columns: Sequence[Column], find: Find, start: int, stop: int) -> Iterator[tuple[Column, IntArray, IntArray]]:
    """For each piece its column, the places of the rows that it has of a stretch, and where these stand in it."""
    pieces, places = find(start, stop)
    for piece in np.flatnonzero(np.bincount(pieces)).tolist():
        here = np.flatnonzero(pieces == piece)
        yield columns[piece], places[here], here


class _Fixed(ColumnSource):
    """A feature of fixed width, over all pieces."""

    def __init__(self, schema: FeatureSchema, num_rows: int, columns: Sequence[Column], find: Find) -> None:
        self.num_rows, self.dtype, self.shape = num_rows, schema.numpy_dtype, schema.shape
        self._columns, self._find = columns, find

    def read(self, start: int, stop: int) -> Array:
        if not 0 <= start <= stop <= self.num_rows:
            raise IdRangeError(f"rows {start}..{stop} of a column of {self.num_rows} rows")
        values = np.empty((stop - start, *self.shape), self.dtype)
        for column, places, targets in _found(self._columns, self._find, start, stop):
            values[targets] = column[places]  # type: ignore[index]
        return values


class _Ragged(RaggedSource):
    """A feature of strings or lists, over all pieces."""

    def __init__(self, schema: FeatureSchema, num_rows: int, columns: Sequence[Column], find: Find) -> None:
        self.num_rows, self.dtype, self.shape = num_rows, schema.numpy_dtype, schema.shape
        self.is_string = schema.is_string
        self._columns, self._find = [column for column in columns if isinstance(column, RaggedArray)], find
        self.num_elements = sum(len(column.values) for column in self._columns)

    def pieces(self, start: int, stop: int) -> Iterator[RaggedArray]:
        for first in range(start, stop, RAGGED_ROWS):
            last = min(first + RAGGED_ROWS, stop)
            lengths = np.empty(last - first, np.int64)
            for column, places, targets in _found(self._columns, self._find, first, last):
                lengths[targets] = column.offsets[places + 1] - column.offsets[places]  # type: ignore[union-attr]
            for begin, end in cut_rows(offsets_of(lengths), self.element_bytes):
                yield self._piece(first + begin, first + end)

    def _piece(self, start: int, stop: int) -> RaggedArray:
        found = [
            (column.take(places), at)
            for column, places, at in _found(self._columns, self._find, start, stop)
            if isinstance(column, RaggedArray)
        ]
        order = np.empty(stop - start, np.int64)
        order[np.concatenate([at for _, at in found])] = np.arange(stop - start)
        return self.joined([taken for taken, _ in found]).take(order)


def _places_by_key(rows: DatasetRows, edge_type: EdgeType, book: KeyBook, folder: Path) -> Array:
    """``PLACE[num_edges]``, mapped from a file."""
    num_edges = rows.book.num_edges(edge_type)
    folder.mkdir(parents=True)
    if not num_edges:
        return np.empty(0, PLACE)
    num_ranges = -(-num_edges // RANGE_EDGES)
    spilled = [folder / f"range-{number}" for number in range(num_ranges)]
    for block in _place_blocks(rows, edge_type, book):
        of_range = block["key"] // RANGE_EDGES
        order = np.argsort(of_range, kind="stable")
        bounds = np.searchsorted(of_range[order], np.arange(num_ranges + 1))
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            with spilled[number].open("ab") as file:
                append_values(file, block[order[bounds[number] : bounds[number + 1]]])
    ordered = folder / "ordered"
    with ordered.open("wb") as file:
        for number, path in enumerate(spilled):
            first = number * RANGE_EDGES
            found = np.fromfile(path, PLACE) if path.exists() else np.empty(0, PLACE)
            in_order = np.empty(min(RANGE_EDGES, num_edges - first), PLACE)
            in_order["key"] = -1
            if len(found) == len(in_order) and int(found["key"].max()) < num_edges:
                in_order[found["key"] - first] = found
            if (in_order["key"] < 0).any():
                raise FormatError(f"{rows.root}: keys of edges are not 0..{num_edges - 1}, each once")
            append_values(file, in_order)
            path.unlink(missing_ok=True)
    return np.memmap(ordered, PLACE, "r")


def _place_blocks(rows: DatasetRows, edge_type: EdgeType, book: KeyBook) -> Iterator[Array]:
    """The places of all edges, in blocks, in the order in which they are stored."""
    owner: Owner = (edge_type, rows.manifest.directions[0])
    own_type, other_type = ends_of(*owner)
    keys_of = edge_keys(rows, edge_type)
    for block in rows.blocks(owner, DEALT_EDGES):
        places = np.empty(int(block.counts.sum()), PLACE)
        own = np.repeat(book.keys_of(own_type, block.row_ids), block.counts)
        other = book.keys_of(other_type, neighbors_of(rows, owner, block))
        places["src"], places["dst"] = (other, own) if owner[1] == "in" else (own, other)
        places["key"], places["item"] = keys_of(block), positions_of(block.starts, block.counts)
        places["piece"] = block.piece
        yield places
