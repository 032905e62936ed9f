"""Interfaces of a graph whose columns and edges are read in pieces, from files or memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError, IdRangeError, SchemaError, quoted
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.user_columns import check_graph
from hopstream.schema import STRING, EdgeType, FeatureSchema, GraphSchema

BLOCK_BYTES = 8 << 20
"""Largest size of a block of rows; a single larger row is a block of its own."""
OFFSET_BYTES = 8


class RaggedSource(ABC):
    """The rows of one ragged feature.

    Attributes:
        num_rows: Number of rows.
        dtype: Dtype of the elements; uint8 for strings.
        shape: Shape of one element.
        is_string: Rows are UTF-8 strings.
        num_elements: Approximate number of elements of all rows; only used to cut the work.
    """

    num_rows: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_string: bool
    num_elements: int

    @property
    def schema(self) -> FeatureSchema:
        """The schema of the feature."""
        if self.is_string:
            return FeatureSchema(dtype=STRING)
        return FeatureSchema(dtype=self.dtype.name, shape=self.shape, is_ragged=True)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return self.schema.row_bytes

    @property
    def row_bytes(self) -> int:
        """Approximate average bytes of one row with its offset."""
        return OFFSET_BYTES + -(-self.num_elements * self.element_bytes // max(1, self.num_rows))

    def stretches(self, num_rows: int) -> Iterator[tuple[int, int]]:
        """Yield ranges ``(first row, end row)`` of about ``num_rows`` rows; of no rows, one empty range.

        If decoding can only start at certain rows, ranges start there and can be longer. So reading range by range
        costs no more than reading all rows at once.
        """
        first = 0
        while first == 0 or first < self.num_rows:
            stop = min(self._next_start(first + num_rows), self.num_rows)
            yield first, stop
            first = max(stop, 1)

    def _next_start(self, row: int) -> int:
        """Return the first row at or after ``row`` at which reading can start."""
        return row

    @abstractmethod
    def pieces(self, start: int, stop: int) -> Iterator[RaggedArray]:
        """Read a range of rows in pieces of about ``BLOCK_BYTES`` at most, or of one row; see ``blocks``."""

    def blocks(self, start: int, stop: int) -> Iterator[RaggedArray]:
        """Read a range of rows in blocks of at most ``BLOCK_BYTES``, or of one row.

        The bounds of blocks depend only on the rows, not on how they are stored.

        Args:
            start: First row.
            stop: End row, exclusive; ``start <= stop <= num_rows``.

        Raises:
            FormatError: A file is damaged, or has changed since it was opened.
            SchemaError: A row has no value, or is not UTF-8.
            IdRangeError: The rows are outside 0..num_rows.
        """
        if not 0 <= start <= stop <= self.num_rows:
            raise IdRangeError(f"rows {start}..{stop} of a column of {self.num_rows} rows")
        waiting: list[RaggedArray] = []
        room = BLOCK_BYTES
        for piece in self.pieces(start, stop):
            sizes = piece.offsets * self.element_bytes + np.arange(len(piece) + 1) * OFFSET_BYTES
            first = 0
            while first < len(piece):
                last = int(np.searchsorted(sizes, sizes[first] + room, side="right")) - 1
                if last > first or not waiting:
                    last = max(last, first + 1)
                    waiting.append(slice_rows(piece, first, last))
                    room, first = room - int(sizes[last] - sizes[first]), last
                if first < len(piece):  # the next row has no room
                    yield self.joined(waiting)
                    waiting, room = [], BLOCK_BYTES
        if waiting:
            yield self.joined(waiting)

    def read(self, start: int, stop: int) -> RaggedArray:
        """Read a range of rows at once; see ``blocks``."""
        return self.joined(list(self.blocks(start, stop)))

    def lengths(self, start: int, stop: int) -> IntArray:
        """Read int64[stop - start], the number of elements of each row; see ``blocks``."""
        found = np.empty(max(0, stop - start), np.int64)
        row = 0
        for block in self.blocks(start, stop):
            found[row : row + len(block)] = np.diff(block.offsets)
            row += len(block)
        return found

    def joined(self, blocks: Iterable[RaggedArray]) -> RaggedArray:
        """Concatenate blocks of the feature."""
        held = list(blocks)
        if len(held) == 1:
            return held[0]
        values = [np.empty((0, *self.shape), self.dtype), *(block.values for block in held)]
        lengths = [np.empty(0, np.int64), *(np.diff(block.offsets) for block in held)]
        return RaggedArray(np.concatenate(values), offsets_of(np.concatenate(lengths)), self.is_string)


def slice_rows(rows: RaggedArray, first: int, stop: int) -> RaggedArray:
    """Return the rows ``[first, stop)``, which share memory with ``rows``."""
    offsets = rows.offsets[first : stop + 1]
    return RaggedArray(rows.values[offsets[0] : offsets[-1]], offsets - offsets[0], rows.is_string)


def cut_rows(offsets: IntArray, element_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges ``(first row, end row)`` of at most about ``BLOCK_BYTES``, or of one row.

    Args:
        offsets: int64[num_rows + 1], ascending; the first element of each row.
        element_bytes: Bytes of one element.
    """
    most = max(1, BLOCK_BYTES // max(1, element_bytes))
    first, num_rows = 0, len(offsets) - 1
    while first < num_rows:
        last = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        last = min(max(last, first + 1), first + max(1, BLOCK_BYTES // OFFSET_BYTES), num_rows)
        yield first, last
        first = last


BLOCK_ROWS = 1 << 20
"""Most edges of a block."""

Ends = tuple[int, IntArray, IntArray]
"""First edge key of a block, then the keys of its sources and destinations, int64[num_rows] each."""


class ColumnSource(ABC):
    """The rows of one feature of fixed width."""

    num_rows: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Shape of one row."""

    @property
    def schema(self) -> FeatureSchema:
        """The schema of the feature."""
        return FeatureSchema(dtype=self.dtype.name, shape=self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.schema.row_bytes

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        r"""Read a range of rows; memory is bounded by its size.

        Args:
            start: First row.
            stop: End row, exclusive; ``start <= stop <= num_rows``.

        Returns:
            dtype[stop - start, \*shape], in C order.

        Raises:
            FormatError: A file is damaged, or has changed since it was opened.
            SchemaError: A row has no value, or another shape.
            IdRangeError: The rows are outside 0..num_rows.
        """


FeatureSource = ColumnSource | RaggedSource


def fixed_features(features: Mapping[str, FeatureSource]) -> dict[str, ColumnSource]:
    """Select the features of fixed width."""
    return {name: source for name, source in features.items() if isinstance(source, ColumnSource)}


def ragged_features(features: Mapping[str, FeatureSource]) -> dict[str, RaggedSource]:
    """Select the features of strings, or of lists of any length."""
    return {name: source for name, source in features.items() if isinstance(source, RaggedSource)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive rows of one file.

    Attributes:
        file: Index of the file in its table.
        first_row: First row in the file.
        num_rows: Number of rows.
        first_byte: Offset of the rows in the file; CSV only.
        end_byte: End offset of the rows, exclusive; CSV only.
    """

    file: int
    first_row: int
    num_rows: int
    first_byte: int = 0
    end_byte: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRange:
    """A range of edges that one task reads.

    Attributes:
        first: First edge key.
        stop: End edge key, exclusive.
        spans: The rows that hold the edges, in order.
    """

    first: int
    stop: int
    spans: tuple[Span, ...]

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.stop - self.first

    def to_json(self) -> list[Any]:
        """Return a JSON value for ``from_json``."""
        spans = [[s.file, s.first_row, s.num_rows, s.first_byte, s.end_byte] for s in self.spans]
        return [self.first, self.stop, spans]

    @classmethod
    def from_json(cls, value: object) -> EdgeRange:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: The value does not describe a range of edges.
        """
        try:
            first, stop, spans = cast(list[Any], value)
            found = tuple(
                Span(file=int(f), first_row=int(r), num_rows=int(n), first_byte=int(b), end_byte=int(e))
                for f, r, n, b, e in spans
            )
            return cls(first=int(first), stop=int(stop), spans=found)
        except (TypeError, ValueError) as error:
            raise FormatError(f"not a piece of edges ({error}): {quoted(value)}") from error


class EdgeSource(ABC):
    """The ends of one edge type's edges, in the order of edge keys."""

    num_edges: int

    @abstractmethod
    def pieces(self, max_rows: int) -> list[EdgeRange]:
        """Cut the edges into consecutive pieces; repeated calls return the same pieces.

        The first call counts the rows of CSV files that the metadata does not count.

        Raises:
            FormatError: A file cannot be read.
            SchemaError: The number of edges in the files contradicts the metadata.
        """

    @abstractmethod
    def read(self, piece: EdgeRange) -> Iterator[Ends]:
        """Read the ends of a piece's edges in blocks of at most ``BLOCK_ROWS``.

        Raises:
            FormatError: A file is damaged, or has changed since the pieces were cut.
            SchemaError: An end is not an integer, or a file has more or fewer edges than it should.
            IdRangeError: An end is not a key of its node type. The message names the file and the line or row.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkedNodes:
    """All nodes of one type.

    Attributes:
        num_nodes: Number of nodes.
        features: Feature name to its rows.
        masks: Split name to its mask, bool[num_nodes].
    """

    num_nodes: int
    features: Mapping[str, FeatureSource] = field(default_factory=dict)
    masks: Mapping[str, ColumnSource] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkedEdges:
    """All edges of one type.

    Attributes:
        num_edges: Number of edges.
        ends: Their ends.
        features: Feature name to its rows.
    """

    num_edges: int
    ends: EdgeSource
    features: Mapping[str, FeatureSource] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkedGraph:
    """A graph whose columns and edges are read on demand; only sizes, dtypes and paths are in memory.

    Attributes:
        name: ``graph_name`` of its metadata.
        root: Folder of its metadata; empty for a graph in memory.
        metadata_filename: Name of the metadata file in that folder.
        nodes: Node type to its nodes.
        edges: Edge type to its edges.
        transforms: See ``Graph``.
    """

    name: str
    root: Path
    metadata_filename: str = "metadata.json"
    nodes: Mapping[str, ChunkedNodes]
    edges: Mapping[EdgeType, ChunkedEdges]
    transforms: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def splits(self) -> Mapping[str, Mapping[str, IntArray]]:
        """Node type to split name to keys, ascending; the first access reads the masks."""
        return {
            node_type: {
                name: np.concatenate([np.empty(0, np.int64), *keys_of_mask(mask)]) for name, mask in nodes.masks.items()
            }
            for node_type, nodes in self.nodes.items()
            if nodes.masks
        }

    @property
    def schema(self) -> GraphSchema:
        """The schema of the graph; nothing is read."""
        return GraphSchema(
            nodes={t: {n: c.schema for n, c in nodes.features.items()} for t, nodes in self.nodes.items()},
            edges={t: {n: c.schema for n, c in edges.features.items()} for t, edges in self.edges.items()},
            splits={t: tuple(nodes.masks) for t, nodes in self.nodes.items() if nodes.masks},
        )

    def load(self) -> Graph:
        """Read everything into memory.

        Raises:
            FormatError: A file is damaged.
            SchemaError: The files contradict the metadata.
            IdRangeError: An edge names a node that does not exist.
        """
        graph = Graph(
            nodes={
                t: NodeTable(num_nodes=nodes.num_nodes, features=_read_all(nodes.features))
                for t, nodes in self.nodes.items()
            },
            edges={t: _edge_table(edges) for t, edges in self.edges.items()},
            splits=self.splits,
            transforms=self.transforms,
        ).check()
        check_graph(graph, is_exempt=True)
        return graph


def _read_all(features: Mapping[str, FeatureSource]) -> dict[str, Column]:
    return {name: column.read(0, column.num_rows) for name, column in features.items()}


def _edge_table(edges: ChunkedEdges) -> EdgeTable:
    pieces = edges.ends.pieces(BLOCK_ROWS)  # checks the number of edges before memory is allocated
    src_keys, dst_keys = np.empty(edges.num_edges, np.int64), np.empty(edges.num_edges, np.int64)
    for piece in pieces:
        for first, src, dst in edges.ends.read(piece):
            src_keys[first : first + len(src)] = src
            dst_keys[first : first + len(dst)] = dst
    return EdgeTable(src_keys=src_keys, dst_keys=dst_keys, features=_read_all(edges.features))


def keys_of_mask(mask: ColumnSource) -> Iterator[IntArray]:
    """Yield the keys of a split in blocks."""
    step = 8 * BLOCK_ROWS
    for start in range(0, mask.num_rows, step):
        yield start + np.flatnonzero(mask.read(start, min(start + step, mask.num_rows))).astype(np.int64, copy=False)


def checked_mask(where: str, column: FeatureSource) -> ColumnSource:
    """Return the column of a split after checking it.

    Raises:
        SchemaError: The column is not bool[num_nodes].
    """
    if isinstance(column, RaggedSource):
        raise SchemaError(f"{where} is {column.schema}; a split is bool[num_nodes]: convert it to bool")
    if column.dtype != np.bool_ or column.shape:
        remedy = "choose one of its columns" if column.shape else "convert it to bool"
        shape = [column.num_rows, *column.shape]
        raise SchemaError(f"{where} is {column.dtype}{shape}; a split is bool[num_nodes]: {remedy}")
    return column
