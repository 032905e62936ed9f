"""Gives a graph in memory the interface of a chunked graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.errors import FormatError, IdRangeError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.ingest.chunked.sources import (
    BLOCK_ROWS,
    ChunkedEdges,
    ChunkedGraph,
    ChunkedNodes,
    ColumnSource,
    EdgeRange,
    EdgeSource,
    Ends,
    FeatureSource,
    RaggedSource,
    Span,
    cut_rows,
    slice_rows,
)


class MemoryColumn(ColumnSource):
    """A feature in memory."""

    def __init__(self, array: Array) -> None:
        """Keep the array."""
        self._array = array
        self.num_rows, self.dtype, self.shape = len(array), array.dtype, tuple(array.shape[1:])

    def read(self, start: int, stop: int) -> Array:
        """Return some rows, which share memory with the feature if it is in C order."""
        if not 0 <= start <= stop <= self.num_rows:
            raise IdRangeError(f"rows {start}..{stop} of a column of {self.num_rows} rows")
        return np.ascontiguousarray(self._array[start:stop])


class MemoryRagged(RaggedSource):
    """A feature of strings, or of lists of any length, in memory."""

    def __init__(self, array: RaggedArray) -> None:
        """Keep the array."""
        self._array = array
        self.num_rows, self.dtype, self.shape = len(array), array.values.dtype, tuple(array.values.shape[1:])
        self.is_string, self.num_elements = array.is_string, len(array.values)

    def pieces(self, start: int, stop: int) -> Iterator[RaggedArray]:
        """Yield some rows, which share memory with the feature."""
        offsets = self._array.offsets[start : stop + 1]
        for first, last in cut_rows(offsets, self.element_bytes):
            yield slice_rows(self._array, start + first, start + last)

    def lengths(self, start: int, stop: int) -> IntArray:
        """Return the number of elements of some rows."""
        return np.diff(self._array.offsets[start : stop + 1])


class MemoryMask(ColumnSource):
    """The keys of a split, in memory or memory-mapped, as a mask."""

    def __init__(self, num_rows: int, *keys: IntArray) -> None:
        """Keep the keys, which must ascend across all arrays."""
        self._keys = keys
        self.num_rows, self.dtype, self.shape = num_rows, np.dtype(np.bool_), ()

    def read(self, start: int, stop: int) -> Array:
        """Return whether each of some rows is in the split."""
        mask = np.zeros(stop - start, np.bool_)
        for keys in self._keys:
            first, last = np.searchsorted(keys, [start, stop])
            mask[keys[first:last] - start] = True
        return mask


class MemoryEdges(EdgeSource):
    """The keys of edge ends, in memory or memory-mapped."""

    def __init__(self, table: EdgeTable) -> None:
        """Keep the table."""
        self._table = table
        self.num_edges = table.num_edges

    def pieces(self, max_rows: int) -> list[EdgeRange]:
        """Cut the edges into consecutive ranges."""
        ends = ((first, min(first + max_rows, self.num_edges)) for first in range(0, self.num_edges, max_rows))
        return [
            EdgeRange(first=first, stop=stop, spans=(Span(file=0, first_row=first, num_rows=stop - first),))
            for first, stop in ends
        ]

    def read(self, piece: EdgeRange) -> Iterator[Ends]:
        """Yield the ends of a range of edges in blocks."""
        if not 0 <= piece.first <= piece.stop <= self.num_edges:
            raise FormatError(f"edges {piece.first}..{piece.stop} of {self.num_edges}; the piece is another graph's")
        for first in range(piece.first, piece.stop, BLOCK_ROWS):
            stop = min(first + BLOCK_ROWS, piece.stop)
            src_keys, dst_keys = self._table.src_keys[first:stop], self._table.dst_keys[first:stop]
            yield first, np.ascontiguousarray(src_keys), np.ascontiguousarray(dst_keys)


def chunked_of_graph(graph: Graph) -> ChunkedGraph:
    """Wrap a graph in memory as a chunked graph that shares its arrays; the graph must be checked.

    Splits of edges and label types are dropped, because a chunked graph cannot hold them.
    """
    return ChunkedGraph(
        name="graph",
        root=Path(),
        transforms=graph.transforms,
        nodes={
            t: ChunkedNodes(
                num_nodes=table.num_nodes,
                features=_columns(table.features),
                masks={name: MemoryMask(table.num_nodes, keys) for name, keys in graph.splits.get(t, {}).items()},
            )
            for t, table in graph.nodes.items()
        },
        edges={
            t: ChunkedEdges(num_edges=table.num_edges, ends=MemoryEdges(table), features=_columns(table.features))
            for t, table in graph.edges.items()
        },
    )


def _columns(features: Mapping[str, Column]) -> dict[str, FeatureSource]:
    return {
        name: MemoryRagged(column) if isinstance(column, RaggedArray) else MemoryColumn(column)
        for name, column in features.items()
    }
