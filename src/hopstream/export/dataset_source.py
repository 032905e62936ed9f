"""How is a dataset of any number of parts read piece by piece, in the order of keys?

A part's nodes ascend by key, so the nodes of a stretch of keys are one stretch in each part. Edges lie in the order of
the nodes that they are grouped by: their ends and places are dealt out to files by ranges of edge keys, and each range
is put in order in memory. Features are read where they are, through memory maps.

[Cost] Memory for one range of edges; 36 bytes of disk per edge. Rows that
    were appended to are put together in memory, per part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, check_file, offsets_of
from hopstream.dataset.book import ends_of
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.layout import Dataset, PartArrays, open_dataset
from hopstream.dataset.overlays import newest_part
from hopstream.errors import FormatError, IdRangeError, SchemaError
from hopstream.ingest.chunked.ragged import RaggedSource, cut_rows
from hopstream.ingest.chunked.sources import (
    BLOCK_ROWS,
    ChunkedEdges,
    ChunkedGraph,
    ChunkedNodes,
    ColumnSource,
    EdgeSource,
    Ends,
    FeatureSource,
    Piece,
    Span,
)
from hopstream.ingest.chunking.raw_files import append_values
from hopstream.schema import EdgeType, FeatureSchema

RANGE_EDGES = 1 << 20
"""Edges that are put in order at a time."""
DEALT_EDGES = 1 << 18
"""Edges that are dealt out at a time."""
RAGGED_ROWS = 1 << 14
PLACE = np.dtype([("key", np.int64), ("src", np.int64), ("dst", np.int64), ("item", np.int64), ("part", np.int32)])
"""An edge: its key, its ends' keys, its part, and its place there."""


class KeyMask(ColumnSource):
    """A split whose keys lie in several parts, as a mask."""

    def __init__(self, keys: list[IntArray], num_rows: int) -> None:
        """Keep the keys, which ascend over all parts."""
        self._keys = keys
        self.num_rows, self.dtype, self.shape = num_rows, np.dtype(np.bool_), ()

    def read(self, start: int, stop: int) -> Array:
        """As ``ColumnSource.read``."""
        mask = np.zeros(stop - start, np.bool_)
        for keys in self._keys:
            first, last = np.searchsorted(keys, [start, stop])
            mask[keys[first:last] - start] = True
        return mask


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
    manifest = dataset.manifest
    if manifest.schema.label_types:
        raise SchemaError(f"{root} has label types, which a unigraph cannot hold; write it before it is split")
    for name, record in manifest.files.items():
        check_file(root / name, record)
    parts = [newest_part(dataset.open_part(part)) for part in range(manifest.book.num_parts)]
    nodes = {t: _nodes(dataset, parts, t) for t in manifest.schema.nodes}
    edges = {t: _edges(dataset, parts, t, scratch / f"edges-{i}") for i, t in enumerate(manifest.schema.edges)}
    masks: dict[EdgeType, dict[str, ColumnSource]] = {
        t: {name: KeyMask([p.links[t].splits[name] for p in parts], edges[t].num_edges) for name in names}
        for t, names in manifest.schema.edge_splits.items()
        if names
    }
    return ChunkedGraph(name=root.name, root=root, nodes=nodes, edges=edges), masks


def _nodes(dataset: Dataset, parts: list[PartArrays], node_type: str) -> ChunkedNodes:
    manifest = dataset.manifest
    num_nodes = manifest.book.num_ids(node_type)
    keys = [part.node_keys[node_type] for part in parts]
    features: dict[str, FeatureSource] = {}
    for name, schema in manifest.schema.nodes[node_type].items():
        columns = [part.node_features[node_type][name] for part in parts]
        features[name] = _source_of(schema, num_nodes, _NodePlaces(columns, keys))
    masks: dict[str, ColumnSource] = {
        name: KeyMask([part.splits[node_type][name] for part in parts], num_nodes)
        for name in manifest.schema.splits.get(node_type, ())
    }
    return ChunkedNodes(num_nodes=num_nodes, features=features, masks=masks)


class _NodePlaces:
    """Where the rows of nodes are, by key."""

    def __init__(self, columns: list[Column], keys: list[IntArray]) -> None:
        self.columns, self._keys = columns, keys

    def find(self, start: int, stop: int) -> Iterator[tuple[Column, IntArray, IntArray]]:
        """For each part its column, the rows that are asked for, and where they belong among those."""
        for column, keys in zip(self.columns, self._keys, strict=True):
            first, last = np.searchsorted(keys, [start, stop]).tolist()
            if last > first:
                yield column, np.arange(first, last), keys[first:last] - start


class _EdgePlaces:
    """Where the rows of edges are, by key."""

    def __init__(self, columns: list[Column], places: Array) -> None:
        self.columns, self._places = columns, places

    def find(self, start: int, stop: int) -> Iterator[tuple[Column, IntArray, IntArray]]:
        """As ``_NodePlaces.find``."""
        rows = self._places[start:stop]
        for part, column in enumerate(self.columns):
            here = np.flatnonzero(rows["part"] == part)
            if len(here):
                yield column, np.ascontiguousarray(rows["item"][here]), here


_Places = _NodePlaces | _EdgePlaces


def _source_of(schema: FeatureSchema, num_rows: int, places: _Places) -> FeatureSource:
    return _Fixed(schema, num_rows, places) if schema.is_fixed_width else _Ragged(schema, num_rows, places)


class _Fixed(ColumnSource):
    """A feature of fixed width, over all parts."""

    def __init__(self, schema: FeatureSchema, num_rows: int, places: _Places) -> None:
        self.num_rows, self.dtype, self.shape = num_rows, schema.numpy_dtype, schema.shape
        self._places = places

    def read(self, start: int, stop: int) -> Array:
        if not 0 <= start <= stop <= self.num_rows:
            raise IdRangeError(f"rows {start}..{stop} of a column of {self.num_rows} rows")
        values = np.empty((stop - start, *self.shape), self.dtype)
        for column, rows, targets in self._places.find(start, stop):
            values[targets] = column[rows]  # type: ignore[index]
        return values


class _Ragged(RaggedSource):
    """A feature of strings or lists, over all parts."""

    def __init__(self, schema: FeatureSchema, num_rows: int, places: _Places) -> None:
        self.num_rows, self.dtype, self.shape = num_rows, schema.numpy_dtype, schema.shape
        self.is_string = schema.is_string
        self.num_elements = sum(len(column.values) for column in places.columns if isinstance(column, RaggedArray))
        self._places = places

    def pieces(self, start: int, stop: int) -> Iterator[RaggedArray]:
        for first in range(start, stop, RAGGED_ROWS):
            last = min(first + RAGGED_ROWS, stop)
            lengths = np.empty(last - first, np.int64)
            for column, rows, targets in self._places.find(first, last):
                lengths[targets] = column.offsets[rows + 1] - column.offsets[rows]  # type: ignore[union-attr]
            for begin, end in cut_rows(offsets_of(lengths), self.element_bytes):
                yield self._piece(first + begin, first + end)

    def _piece(self, start: int, stop: int) -> RaggedArray:
        found = [(c.take(rows), at) for c, rows, at in self._places.find(start, stop) if isinstance(c, RaggedArray)]
        order = np.empty(stop - start, np.int64)
        order[np.concatenate([at for _, at in found])] = np.arange(stop - start)
        return self.joined([rows for rows, _ in found]).take(order)


class PlacedEdges(EdgeSource):
    """Ends of edges in the order of their keys."""

    def __init__(self, places: Array) -> None:
        """Keep the places, by key."""
        self._places, self.num_edges = places, len(places)

    def pieces(self, max_rows: int) -> list[Piece]:
        """As ``EdgeSource.pieces``."""
        ends = ((first, min(first + max_rows, self.num_edges)) for first in range(0, self.num_edges, max_rows))
        return [
            Piece(first=first, stop=stop, spans=(Span(file=0, first_row=first, num_rows=stop - first),))
            for first, stop in ends
        ]

    def read(self, piece: Piece) -> Iterator[Ends]:
        """As ``EdgeSource.read``."""
        for first in range(piece.first, piece.stop, BLOCK_ROWS):
            rows = self._places[first : min(first + BLOCK_ROWS, piece.stop)]
            yield first, np.ascontiguousarray(rows["src"]), np.ascontiguousarray(rows["dst"])


def _edges(dataset: Dataset, parts: list[PartArrays], edge_type: EdgeType, folder: Path) -> ChunkedEdges:
    manifest = dataset.manifest
    owner = (edge_type, manifest.directions[0])
    places = _places_by_key(dataset, parts, edge_type, folder)
    features: Mapping[str, FeatureSource] = {
        name: _source_of(schema, len(places), _EdgePlaces([p.edges[owner].features[name] for p in parts], places))
        for name, schema in manifest.schema.edges[edge_type].items()
    }
    return ChunkedEdges(num_edges=len(places), ends=PlacedEdges(places), features=features)


def _places_by_key(dataset: Dataset, parts: list[PartArrays], edge_type: EdgeType, folder: Path) -> Array:
    """``PLACE[num_edges]``, mapped from a file."""
    num_edges = dataset.manifest.book.num_edges(edge_type)
    folder.mkdir(parents=True)
    if not num_edges:
        return np.empty(0, PLACE)
    num_ranges = -(-num_edges // RANGE_EDGES)
    spilled = [folder / f"range-{number}" for number in range(num_ranges)]
    for block in _edge_blocks(dataset, parts, edge_type):
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
            rows = np.fromfile(path, PLACE) if path.exists() else np.empty(0, PLACE)
            in_order = np.empty(min(RANGE_EDGES, num_edges - first), PLACE)
            in_order["key"] = -1
            if len(rows) == len(in_order) and int(rows["key"].max()) < num_edges:
                in_order[rows["key"] - first] = rows
            if (in_order["key"] < 0).any():
                raise FormatError(f"{dataset.root}: keys of edges are not 0..{num_edges - 1}, each once")
            append_values(file, in_order)
            path.unlink(missing_ok=True)
    return np.memmap(ordered, PLACE, "r")


def _edge_blocks(dataset: Dataset, parts: list[PartArrays], edge_type: EdgeType) -> Iterator[Array]:
    """All edges as they are stored, in blocks; edges without keys are numbered as they come."""
    direction = dataset.manifest.directions[0]
    own_type, other_type = ends_of(edge_type, direction)
    bounds = dataset.manifest.book.offsets(other_type)
    num_before = 0
    for number, part in enumerate(parts):
        edges = part.edges[edge_type, direction]
        for first, last, start, stop in row_chunks(edges.indptr, DEALT_EDGES):
            for begin in range(start, stop, DEALT_EDGES):
                end = min(begin + DEALT_EDGES, stop)
                starts: IntArray = np.clip(edges.indptr[first : last + 1], begin, end)
                own = np.repeat(part.node_keys[own_type][first:last], starts[1:] - starts[:-1])
                other = _keys_of_ids(dataset, parts, other_type, bounds, edges.indices[begin:end])
                block = np.empty(end - begin, PLACE)
                block["key"] = np.arange(num_before + begin, num_before + end)
                if edges.keys is not None:
                    block["key"] = edges.keys[begin:end]
                block["src"], block["dst"] = (other, own) if direction == "in" else (own, other)
                block["part"], block["item"] = number, np.arange(begin, end)
                yield block
        num_before += len(edges.indices)


def _keys_of_ids(dataset: Dataset, parts: list[PartArrays], node_type: str, bounds: IntArray, ids: Array) -> IntArray:
    """The key of each id."""
    given = ids.astype(np.int64)
    if len(given) and (int(given.min()) < 0 or int(given.max()) >= int(bounds[len(parts)])):
        raise FormatError(f"{dataset.root}: ids of {node_type} lie outside 0..{int(bounds[len(parts)]) - 1}")
    keys = np.empty(len(given), np.int64)
    of_part = np.searchsorted(bounds[: len(parts) + 1], given, side="right") - 1
    for part in np.unique(of_part).tolist():
        here = of_part == part
        keys[here] = parts[part].node_keys[node_type][given[here] - bounds[part]]
    return keys
