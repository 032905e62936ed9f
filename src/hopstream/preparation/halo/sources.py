"""Reads rows of any part that are copied into halos, and holds sets of nodes as bitmaps."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import Entity, ends_of, entity_label
from hopstream.dataset.chunks import cut_counts, positions_of, row_chunks
from hopstream.dataset.layout import Dataset, EdgeArrays, PartArrays
from hopstream.errors import FormatError
from hopstream.kernels.gather import gather_elements, gather_ranges, gather_rows, word_dtype
from hopstream.kernels.halo import count_marks, list_marks, mark_neighbors, mark_range
from hopstream.kernels.memory import address_table
from hopstream.schema import Direction, EdgeType

Chances = NDArray[np.float64]


class NumberTables:
    """Allocator of arrays with a number for each node, in memory while they fit, then in files.

    The files are unlinked, so nothing remains however the process ends. Their pages belong to the page cache, which the
    kernel reclaims.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        """Set the folder on whose disk the files lie, and the memory for arrays."""
        self._folder, self._left = folder, memory_bytes

    def new(self, num_nodes: int) -> Chances:
        """Return float64[num_nodes], zeros.

        Raises:
            OSError: The disk has no room.
        """
        num_bytes = num_nodes * 8
        if num_bytes <= self._left:
            self._left -= num_bytes
            return np.zeros(num_nodes)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            # Reserves the blocks: a full disk at the write of a mapped page would kill the process.
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            return np.frombuffer(mmap.mmap(file.fileno(), num_bytes), np.float64)


CHUNK_ROWS = 1 << 18
"""Nodes that are processed, or whose fixed-width rows are copied, at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeBitmap:
    """Set of nodes of one type.

    Attributes:
        marks: uint64[ceil(num_nodes / 64)], a bit per node, by id.
    """

    marks: NDArray[np.uint64]

    @classmethod
    def empty(cls, num_nodes: int) -> NodeBitmap:
        """Make an empty set."""
        return cls(np.zeros(-(-num_nodes // 64), np.uint64))

    @classmethod
    def of_range(cls, num_nodes: int, first: int, stop: int) -> NodeBitmap:
        """Make the set of the ids ``[first, stop)``."""
        found = cls.empty(num_nodes)
        mark_range(found.marks, first, stop)
        return found

    def __len__(self) -> int:
        """Return the number of nodes in the set."""
        return int(count_marks(self.marks))

    def chunks(self) -> Iterator[IntArray]:
        """Yield the ids in the set, ascending, in blocks."""
        word = 0
        while word < len(self.marks):
            ids = np.empty(CHUNK_ROWS, np.int64)
            word, count = list_marks(self.marks, word, ids)
            if count:
                yield ids[:count]

    def ids(self) -> IntArray:
        """Return int64[n], the ids in the set, ascending."""
        return np.concatenate([np.empty(0, np.int64), *self.chunks()])


@dataclass(frozen=True, slots=True, eq=False)
class EdgesOf:
    """Edges of some nodes, in the order of the nodes.

    Attributes:
        nodes: A bitmap or int64[n], ascending ids.
        first_edges: Yields int64[k] and int64[k], the id of the first edge and the number of edges of each node of a
            block of ids.
        num_edges: Number of edges of all nodes.
    """

    nodes: NodeBitmap | IntArray
    first_edges: Callable[[IntArray], tuple[IntArray, IntArray]]
    num_edges: int

    def __len__(self) -> int:
        """Return the number of edges."""
        return self.num_edges

    def chunks(self) -> Iterator[IntArray]:
        """Yield the ids of the edges, in blocks; a node with very many edges is in several."""
        for ids in chunks_of(self.nodes):
            firsts, counts = self.first_edges(ids)
            for rows, skipped, taken in cut_counts(counts, CHUNK_ROWS):
                yield positions_of(firsts[rows] + skipped, taken)


Rows = NodeBitmap | EdgesOf | IntArray
"""Rows that are copied, by id: nodes in ascending order, or edges."""


def chunks_of(rows: Rows) -> Iterator[IntArray]:
    """Yield the ids in blocks."""
    if not isinstance(rows, np.ndarray):
        yield from rows.chunks()
        return
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]


CHUNK_BYTES = 8 << 20
"""Bytes of a column that are copied at a time, unless one row is larger."""


class Values:
    """Column of all parts for kernels: flat arrays of words, so that one kernel copies every dtype."""

    def __init__(self, columns: Sequence[Array]) -> None:
        """Take the column of each part."""
        self.dtype, self.shape = columns[0].dtype, columns[0].shape[1:]
        self.item_bytes = math.prod(self.shape) * self.dtype.itemsize
        self.word = word_dtype(self.item_bytes)
        self.width = self.item_bytes // self.word.itemsize
        self._kept = columns
        self.table = address_table([c.reshape(-1).view(self.word) if c.size else None for c in columns])

    def as_items(self, words: NDArray[Any], num_items: int) -> Array:
        """View copied words as items of the column."""
        if not self.item_bytes:
            return np.empty((num_items, *self.shape), self.dtype)
        return words.reshape(-1).view(self.dtype).reshape(num_items, *self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class RowRanges:
    """Locations of nodes' rows in the arrays of their parts.

    Attributes:
        offsets: int64[num_parts + 1], ranges of the nodes' ids.
        starts: int64[num_parts, 2], address table of the row offsets.
        where: Name of the rows in errors.
    """

    offsets: IntArray
    starts: IntArray
    where: str

    def of(self, ids: IntArray, values: Values) -> tuple[NDArray[np.int32], IntArray, IntArray]:
        """Return part, first item and number of items of some rows.

        Raises:
            FormatError: A row lies outside its file.
        """
        parts = np.empty(len(ids), np.int32)
        starts, lengths = np.empty((2, len(ids)), np.int64)
        total = gather_ranges(ids, self.offsets, self.starts, values.table, values.width, parts, starts, lengths)
        if total < 0:
            raise FormatError(
                f"{self.where}: the row of id {int(ids[-1 - total])} lies outside its file; verify the dataset"
            )
        return parts, starts, lengths

    def blocks(self, values: Values, rows: Rows) -> Iterator[Array]:
        """Yield the items of some rows, one row after the other, in blocks."""
        for ids in chunks_of(rows):
            places = self.of(ids, values)
            max_items = max(1, CHUNK_BYTES // max(1, values.item_bytes))
            for first, stop, start, end in row_chunks(offsets_of(places[2]), max_items):
                words: NDArray[Any] = np.empty((end - start, values.width), values.word)
                if words.size:
                    parts, starts, lengths = (array[first:stop] for array in places)
                    gather_elements(values.table, parts, starts, lengths, words)
                yield values.as_items(words, end - start)


class Parts:
    """All parts of a dataset, memory-mapped."""

    def __init__(self, dataset: Dataset) -> None:
        """Open the parts.

        Raises:
            FormatError: A file is missing, truncated, or contradicts the manifest.
        """
        self.dataset, self.manifest, self.book = dataset, dataset.manifest, dataset.manifest.book
        self.arrays: list[PartArrays] = [dataset.open_part(part) for part in range(self.book.num_parts)]

    def edges(self, entity: tuple[EdgeType, Direction]) -> list[EdgeArrays]:
        """Return the edges of each part."""
        return [part.edges[entity] for part in self.arrays]

    @cached_property
    def edge_ranges(self) -> Mapping[tuple[EdgeType, Direction], RowRanges]:
        """Locations of nodes' edges, by edge type and direction."""
        return {
            entity: RowRanges(
                self.book.offsets(ends_of(*entity)[0]),
                address_table([e.indptr for e in self.edges(entity)]),
                f"{self.dataset.root}: {entity_label(entity)}",
            )
            for entity in self.book.edge_offsets
        }

    def columns(self, entity: Entity, name: str) -> list[Column]:
        """Return a feature of each part."""
        if isinstance(entity, str):
            return [part.node_features[entity][name] for part in self.arrays]
        return [edges.features[name] for edges in self.edges(entity)]

    def ragged(self, entity: Entity, name: str) -> tuple[RowRanges, Values] | None:
        """Return a ragged feature; None if the feature has a fixed width."""
        ragged = [column for column in self.columns(entity, name) if isinstance(column, RaggedArray)]
        if not ragged:
            return None
        starts = address_table([c.offsets for c in ragged])
        where = f"{self.dataset.root}: {entity_label(entity)}.{name}"
        return RowRanges(self.book.offsets(entity), starts, where), Values([c.values for c in ragged])

    def fixed_blocks(self, entity: Entity, columns: Sequence[Column], rows: Rows) -> Iterator[Array]:
        """Yield rows of a fixed-width column, in blocks."""
        values, offsets = Values([c for c in columns if isinstance(c, np.ndarray)]), self.book.offsets(entity)
        step = max(1, CHUNK_BYTES // max(1, values.item_bytes))
        for ids in chunks_of(rows):
            for start in range(0, len(ids), step):
                num_rows = min(step, len(ids) - start)
                words: NDArray[Any] = np.empty((num_rows, values.width), values.word)
                if words.size:
                    gather_rows(ids[start : start + step], offsets, values.table, words)
                yield values.as_items(words, num_rows)

    def mark(self, entity: tuple[EdgeType, Direction], ids: IntArray, marks: NDArray[np.uint64]) -> None:
        """Mark the neighbours of some nodes in a bitmap of the other end's type.

        Raises:
            FormatError: A row lies outside its file, or names a node that does not exist.
        """
        indices, ranges = [e.indices for e in self.edges(entity)], self.edge_ranges[entity]
        item = np.empty(0, indices[0].dtype)
        num_others = self.book.num_ids(ends_of(*entity)[1])
        wrong = mark_neighbors(ids, ranges.offsets, ranges.starts, address_table(indices), item, num_others, marks)
        if wrong:
            self.refuse(entity, int(ids[-1 - wrong]))

    def refuse(self, entity: Entity, identifier: int) -> NoReturn:
        """Raise ``FormatError`` for the row of an id."""
        raise FormatError(
            f"{self.dataset.root}: {entity_label(entity)}: the row of id {identifier} lies outside its file, or names "
            "a node that does not exist; verify the dataset"
        )
