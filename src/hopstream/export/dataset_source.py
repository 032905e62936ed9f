"""Reads a dataset of any number of parts in pieces, in key order.

The id of a node gives its place. The ids of edges and the keys of their ends are sorted by edge key: they are
partitioned to files by ranges of edge keys, and each range is sorted in memory. Features are fetched by id.

[Cost] Memory for one range of edges, and for ``edge_keys``; 32 bytes of disk per edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import Entity, ends_of
from hopstream.dataset.chunks import positions_of
from hopstream.dataset.key_book import KeyBook
from hopstream.dataset.layout import Dataset, open_dataset
from hopstream.dataset.read_back import edge_keys, neighbors_of
from hopstream.dataset.rows import DatasetRows, RaggedFiles
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
from hopstream.store.contract import FetchRequest
from hopstream.store.local import LocalStore

RANGE_EDGES = 1 << 20
"""Edges that are sorted at a time."""
DEALT_EDGES = 1 << 18
"""Edges that are partitioned at a time."""
RAGGED_ROWS = 1 << 14
PLACE = np.dtype([("key", np.int64), ("src", np.int64), ("dst", np.int64), ("id", np.int64)])
"""An edge: its key, its ends' keys, and its id."""
IdsOf = Callable[[int, int], IntArray]
"""``ids_of(start, stop)`` returns the ids of a range of keys."""


def chunked_of_dataset(
    root: Path, scratch: Path
) -> tuple[ChunkedGraph, dict[EdgeType, dict[str, ColumnSource]]]:  # fmt: skip
    """Open a dataset as a chunked graph; also return the masks of its edge splits.

    Args:
        root: Folder of the dataset.
        scratch: Folder for temporary files, which must exist as long as the graph is read.

    Raises:
        FormatError: The folder is not a dataset of a format that this version reads, or it is damaged.
        ChecksumError: The checksum of a file differs.
        SchemaError: The dataset has label types.
    """
    dataset = open_dataset(root)
    schema = dataset.manifest.schema
    if schema.label_types:
        raise SchemaError(f"{root} has label types, which a unigraph cannot hold; write it before it is split")
    source = DatasetSource(dataset)
    source.rows.check_files(dataset.manifest.files)
    nodes = {t: source.nodes(t) for t in schema.nodes}
    edges = {t: source.edges(t, source.places(t, scratch / f"edges-{n}")) for n, t in enumerate(schema.edges)}
    masks = {t: source.edge_masks(t) for t, names in schema.edge_splits.items() if names}
    return ChunkedGraph(name=root.name, root=root, nodes=nodes, edges=edges), masks


class DatasetSource:
    """The tables of a dataset, in key order.

    Attributes:
        rows: The rows of the dataset.
        store: Its store.
    """

    def __init__(self, dataset: Dataset) -> None:
        """Open the rows; nothing is read."""
        self.rows, self.store = DatasetRows(dataset.root, dataset.manifest), LocalStore(dataset)
        self._dataset, self._book = dataset, dataset.manifest.book

    def nodes(self, node_type: str) -> ChunkedNodes:
        """Return the nodes of a type."""
        num_nodes, splits = self._book.num_ids(node_type), self.store.schema.splits.get(node_type, ())
        return ChunkedNodes(
            num_nodes=num_nodes,
            features=self._features(node_type, num_nodes, partial(self.rows.ids_of_keys, node_type)),
            masks={name: MemoryMask(num_nodes, *self.store.split_runs(node_type, name)) for name in splits},
        )

    def places(self, edge_type: EdgeType, folder: Path) -> Array:
        """Return ``PLACE[num_edges]``, mapped from a file: the edges of a type, in key order.

        Args:
            edge_type: The edge type.
            folder: A new folder for files, which must exist as long as the edges are read.

        Raises:
            FormatError: The dataset is damaged.
        """
        return _places_by_key(self.rows, edge_type, KeyBook(self._dataset), folder)

    def edges(self, edge_type: EdgeType, places: Array) -> ChunkedEdges:
        """Return the edges of a type, given their places."""
        ids = places["id"]
        return ChunkedEdges(
            num_edges=len(places),
            ends=MemoryEdges(EdgeTable(src_keys=places["src"], dst_keys=places["dst"])),
            features=self._features((edge_type, self.store.directions[0]), len(places), lambda a, b: ids[a:b]),
        )

    def edge_masks(self, edge_type: EdgeType) -> dict[str, ColumnSource]:
        """Return the masks of the splits of edges of a type."""
        num_edges = self._book.num_edges(edge_type)
        names = self.store.schema.edge_splits.get(edge_type, ())
        return {name: MemoryMask(num_edges, *self.store.edge_split_runs(edge_type, name)) for name in names}

    def of_keys(self, node_type: str, name: str, keys: IntArray) -> FeatureSource:
        """Return a feature of some nodes, with repetitions, in the order of the keys."""
        return self._feature(node_type, name, len(keys), lambda a, b: self.store.lookup(node_type, keys[a:b]))

    def _features(self, entity: Entity, num_rows: int, ids_of: IdsOf) -> dict[str, FeatureSource]:
        return {name: self._feature(entity, name, num_rows, ids_of) for name in self.rows.columns(entity).features}

    def _feature(self, entity: Entity, name: str, num_rows: int, ids_of: IdsOf) -> FeatureSource:
        files, column = self.rows.columns(entity).features[name], _Column(self.store, entity, name, ids_of)
        schema = self.store.schema.feature(entity if isinstance(entity, str) else entity[0], name)
        if not isinstance(files, RaggedFiles):
            return _Fixed(schema, num_rows, column)
        paths = (str(folder / files.values.name) for folder in self.rows.folders(entity))
        return _Ragged(schema, num_rows, sum(self.rows.manifest.files[path].shape[0] for path in paths), column)


@dataclass(frozen=True, slots=True)
class _Column:
    """A feature in a store, read by ranges of keys."""

    store: LocalStore
    entity: Entity
    name: str
    ids_of: IdsOf

    def fetch(self, start: int, stop: int) -> Column:
        request = FetchRequest(entity=self.entity, names=(self.name,), ids=self.ids_of(start, stop))
        return self.store.fetch([request])[0][self.name]

    def lengths(self, start: int, stop: int) -> IntArray:
        return self.store.row_lengths(self.entity, self.name, self.ids_of(start, stop))


class _Fixed(ColumnSource):
    """A feature of fixed width."""

    def __init__(self, schema: FeatureSchema, num_rows: int, column: _Column) -> None:
        self.num_rows, self.dtype, self.shape = num_rows, schema.numpy_dtype, schema.shape
        self._column = column

    def read(self, start: int, stop: int) -> Array:
        if not 0 <= start <= stop <= self.num_rows:
            raise IdRangeError(f"rows {start}..{stop} of a column of {self.num_rows} rows")
        return cast(Array, self._column.fetch(start, stop))


class _Ragged(RaggedSource):
    """A feature of strings or lists."""

    def __init__(self, schema: FeatureSchema, num_rows: int, num_elements: int, column: _Column) -> None:
        self.num_rows, self.dtype, self.shape = num_rows, schema.numpy_dtype, schema.shape
        self.is_string, self.num_elements = schema.is_string, num_elements
        self._column = column

    def pieces(self, start: int, stop: int) -> Iterator[RaggedArray]:
        for first in range(start, stop, RAGGED_ROWS):
            lengths = self._column.lengths(first, min(first + RAGGED_ROWS, stop))
            for begin, end in cut_rows(offsets_of(lengths), self.element_bytes):
                yield cast(RaggedArray, self._column.fetch(first + begin, first + end))


def _places_by_key(rows: DatasetRows, edge_type: EdgeType, book: KeyBook, folder: Path) -> Array:
    """Write ``PLACE[num_edges]`` in key order to a file, and map it.

    Raises:
        FormatError: The keys of the edges are not 0..num_edges-1, each once.
    """
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
                raise FormatError(f"{rows.root}: keys of edges must be 0..{num_edges - 1}, each once")
            append_values(file, in_order)
            path.unlink(missing_ok=True)
    return np.memmap(ordered, PLACE, "r")


def _place_blocks(rows: DatasetRows, edge_type: EdgeType, book: KeyBook) -> Iterator[Array]:
    """Yield the places of all edges in blocks, in stored order."""
    entity: Entity = (edge_type, rows.manifest.directions[0])
    own_type, other_type = ends_of(*entity)
    keys_of = edge_keys(rows, edge_type)
    for block in rows.blocks(entity, DEALT_EDGES):
        places = np.empty(int(block.counts.sum()), PLACE)
        own = np.repeat(book.keys_of(own_type, block.row_ids), block.counts)
        other = book.keys_of(other_type, neighbors_of(rows, entity, block))
        places["src"], places["dst"] = (other, own) if entity[1] == "in" else (own, other)
        places["key"] = keys_of(block)
        places["id"] = rows.book.offsets(entity)[block.piece] + positions_of(block.starts, block.counts)
        yield places
