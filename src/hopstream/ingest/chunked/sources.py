"""The interface of a graph whose columns and edges are read piece by piece, wherever they are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from hopstream.arrays import Array, Column, IntArray
from hopstream.errors import FormatError, SchemaError, quoted
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.batch_names import check_graph
from hopstream.ingest.chunked.ragged import RaggedSource
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema

BLOCK_ROWS = 1 << 20
"""The most edges that are handed over at once."""

Ends = tuple[int, IntArray, IntArray]
"""First edge key of a block, then the keys of its sources and destinations, int64[num_rows] each."""


class ColumnSource(ABC):
    """The rows of one feature of fixed width, cut over files."""

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
        r"""Read some rows; memory is bounded by what is asked for.

        Args:
            start: First row.
            stop: One after the last, ``start <= stop <= num_rows``.

        Returns:
            dtype[stop - start, \*shape], in C order.

        Raises:
            FormatError: A file is damaged, or has changed since it was opened.
            SchemaError: A row has no value, or is of another shape.
            IdRangeError: The rows are outside 0..num_rows.
        """


FeatureSource = ColumnSource | RaggedSource


def fixed_features(features: Mapping[str, FeatureSource]) -> dict[str, ColumnSource]:
    """The features whose rows are of one shape."""
    return {name: source for name, source in features.items() if isinstance(source, ColumnSource)}


def ragged_features(features: Mapping[str, FeatureSource]) -> dict[str, RaggedSource]:
    """The features whose rows are strings, or lists of any length."""
    return {name: source for name, source in features.items() if isinstance(source, RaggedSource)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive rows of one file.

    Attributes:
        file: Number of the file in its table.
        first_row: First row, counted in the file.
        num_rows: How many rows.
        first_byte: Where the rows start in the file; CSV only.
        end_byte: Where they end; CSV only.
    """

    file: int
    first_row: int
    num_rows: int
    first_byte: int = 0
    end_byte: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of edges that one task reads.

    Attributes:
        first: First edge key.
        stop: One after the last.
        spans: Where they are, in order.
    """

    first: int
    stop: int
    spans: tuple[Span, ...]

    @property
    def num_edges(self) -> int:
        """How many edges."""
        return self.stop - self.first

    def to_json(self) -> list[Any]:
        """A JSON value that ``from_json`` reads back."""
        spans = [[s.file, s.first_row, s.num_rows, s.first_byte, s.end_byte] for s in self.spans]
        return [self.first, self.stop, spans]

    @classmethod
    def from_json(cls, value: object) -> Piece:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: The value is no piece.
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
    """The ends of the edges of one type, in their order."""

    num_edges: int

    @abstractmethod
    def pieces(self, max_rows: int) -> list[Piece]:
        """Cut the edges into pieces that cover them in order; the same pieces each time.

        CSV files whose rows nobody has counted are counted here, once.

        Raises:
            FormatError: A file cannot be read.
            SchemaError: Files have another number of edges than the metadata says.
        """

    @abstractmethod
    def read(self, piece: Piece) -> Iterator[Ends]:
        """Read the ends of a piece's edges in blocks of at most ``BLOCK_ROWS``.

        Raises:
            FormatError: A file is damaged, or has changed since the pieces were cut.
            SchemaError: An end is no integer, or a file has more or fewer edges than it should.
            IdRangeError: An end is no key of its node type. The message names file and line, row, or row group.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkedNodes:
    """All nodes of one type.

    Attributes:
        num_nodes: How many there are.
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
        num_edges: How many there are.
        ends: Their ends.
        features: Feature name to its rows.
    """

    num_edges: int
    ends: EdgeSource
    features: Mapping[str, FeatureSource] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkedGraph:
    """A graph of which only sizes, dtypes and places of files are in memory.

    Attributes:
        name: What its metadata calls it.
        root: Folder of its metadata; empty for a graph in memory.
        metadata_filename: Name of the metadata in that folder.
        nodes: Node type to its nodes.
        edges: Edge type to its edges.
    """

    name: str
    root: Path
    metadata_filename: str = "metadata.json"
    nodes: Mapping[str, ChunkedNodes]
    edges: Mapping[EdgeType, ChunkedEdges]

    @cached_property
    def splits(self) -> Mapping[str, Mapping[str, IntArray]]:
        """Node type to split name to keys, ascending; masks are read when this is first asked for."""
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
            SchemaError: What the files hold is not what the metadata says.
            IdRangeError: An edge names a node that is not there.
        """
        graph = Graph(
            nodes={
                t: NodeTable(num_nodes=nodes.num_nodes, features=_read_all(nodes.features))
                for t, nodes in self.nodes.items()
            },
            edges={t: _edge_table(edges) for t, edges in self.edges.items()},
            splits=self.splits,
        ).check()
        check_graph(graph, is_exempt=True)
        return graph


def _read_all(features: Mapping[str, FeatureSource]) -> dict[str, Column]:
    return {name: column.read(0, column.num_rows) for name, column in features.items()}


def _edge_table(edges: ChunkedEdges) -> EdgeTable:
    pieces = edges.ends.pieces(BLOCK_ROWS)  # counts what nobody has counted, before memory is taken
    src_keys, dst_keys = np.empty(edges.num_edges, np.int64), np.empty(edges.num_edges, np.int64)
    for piece in pieces:
        for first, src, dst in edges.ends.read(piece):
            src_keys[first : first + len(src)] = src
            dst_keys[first : first + len(dst)] = dst
    return EdgeTable(src_keys=src_keys, dst_keys=dst_keys, features=_read_all(edges.features))


def keys_of_mask(mask: ColumnSource) -> Iterator[IntArray]:
    """The keys of a split, in blocks."""
    step = 8 * BLOCK_ROWS
    for start in range(0, mask.num_rows, step):
        yield start + np.flatnonzero(mask.read(start, min(start + step, mask.num_rows))).astype(np.int64, copy=False)


def checked_mask(where: str, column: FeatureSource) -> ColumnSource:
    """The column of a split.

    Raises:
        SchemaError: It has not one bool per node.
    """
    if isinstance(column, RaggedSource):
        raise SchemaError(f"{where} is {column.schema}; a split is bool[num_nodes]: convert it to bool")
    if column.dtype != np.bool_ or column.shape:
        remedy = "choose one of its columns" if column.shape else "convert it to bool"
        shape = [column.num_rows, *column.shape]
        raise SchemaError(f"{where} is {column.dtype}{shape}; a split is bool[num_nodes]: {remedy}")
    return column
