"""Opens chunked graphs: checks the metadata against the files, and reads features and edges."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError
from hopstream.ingest.chunked.edge_files import EdgeFile, NpyFile, open_edge_file, open_npy
from hopstream.ingest.chunked.metadata import FileSpec, TypeSpec, describes_chunks, read_chunked_metadata
from hopstream.ingest.chunked.sources import (
    ChunkedEdges,
    ChunkedGraph,
    ChunkedNodes,
    ColumnSource,
    EdgeRange,
    EdgeSource,
    Ends,
    FeatureSource,
    Span,
    checked_mask,
)
from hopstream.ingest.json_files import read_json
from hopstream.ingest.objects.attributes import MASKS
from hopstream.places.cache import copied_here, folder_copied_here
from hopstream.places.paths import AnyPath, path_of
from hopstream.schema import EdgeType

if TYPE_CHECKING:
    from hopstream.ingest.chunked.parquet import ParquetColumn


SHOWN_FILES = 8
"""Most files of a table that a message names."""


def open_feature(spec: FileSpec, num_rows: int, what: str) -> FeatureSource:
    """Open the files of a feature: read their headers or footers.

    Lists are read, too, if only they tell whether rows are ragged.

    Args:
        spec: The files.
        num_rows: Number of rows that the files must have in total.
        what: Word for a row in messages, ``node`` or ``edge``.

    Raises:
        FormatError: A file is damaged or truncated.
        SchemaError: No file is listed, files differ in dtype or shape, or the total number of rows is wrong.
    """
    files = [_open_column(spec, file) for file in range(len(spec.names))]
    if not files:
        raise SchemaError(f"{spec.label} lists no file, so its dtype is unknown; list an empty file")
    offsets = offsets_of(np.array([file.num_rows for file in files], np.int64))
    if offsets[-1] != num_rows:
        shown = shown_counts(spec, [file.num_rows for file in files])
        raise SchemaError(f"{spec.label} has {offsets[-1]} rows {shown}; {num_rows} {what}s are declared")
    if _are_ragged(files):
        from hopstream.ingest.chunked.parquet_ragged import ParquetRagged  # Arrow takes 40 MB of each worker's memory

        columns = [file for file in files if not isinstance(file, NpyFile)]
        return ParquetRagged(spec.names, columns, offsets)
    return FileColumn(spec.names, files, offsets)


def _are_ragged(files: Sequence[NpyFile | ParquetColumn]) -> bool:
    """Return whether rows are ragged: a file declares it, or lists of undeclared length differ in length."""
    columns = [file for file in files if not isinstance(file, NpyFile)]
    if any(file.is_ragged for file in columns):
        return True
    open_columns = [file for file in columns if file.element_shape is not None]
    if not open_columns:
        return False
    if len(open_columns) == len(columns) and len({file.shape for file in columns} - {None}) > 1:
        return True
    from hopstream.ingest.chunked.parquet_ragged import are_of_one_length  # Arrow costs a worker 40 MB

    return not are_of_one_length(open_columns)


class FileColumn(ColumnSource):
    """A feature in ``.npy`` or Parquet files."""

    def __init__(self, names: Sequence[str], files: Sequence[NpyFile | ParquetColumn], offsets: IntArray) -> None:
        """Check that all files have one dtype and one shape.

        Args:
            names: File names as in the metadata.
            files: The opened files, at least one.
            offsets: int64[num_files + 1], the first row of each file.

        Raises:
            SchemaError: The files differ in dtype or shape.
        """
        self._files, self._offsets, self.num_rows = files, offsets, int(offsets[-1])
        self.dtype = self._files[0].dtype.newbyteorder("=")
        self.shape = next((file.shape for file in self._files if file.shape is not None), (0,))
        for file in self._files:
            if file.dtype.newbyteorder("=") != self.dtype or file.shape not in (self.shape, None):
                got = f"{file.dtype.name} with rows of shape {file.shape}"
                wanted = f"{self.dtype.name} with rows of shape {self.shape}"
                raise SchemaError(
                    f"{file.shown} is {got}; {names[0]} is {wanted}: write all files of a feature with one dtype and "
                    "row shape"
                )

    def read(self, start: int, stop: int) -> Array:
        """Read some rows from the files that hold them."""
        if not 0 <= start <= stop <= self.num_rows:
            raise IdRangeError(f"rows {start}..{stop} of a column of {self.num_rows} rows")
        out = np.empty((stop - start, *self.shape), self.dtype)
        file = int(np.searchsorted(self._offsets, start, side="right")) - 1
        row = start
        while row < stop:
            last = min(stop, int(self._offsets[file + 1]))
            if row < last:
                self._files[file].read_into(row - int(self._offsets[file]), out[row - start : last - start])
            row, file = last, file + 1
        return out


class FileEdges(EdgeSource):
    """The ends of one edge type's edges, in CSV, Parquet or ``.npy`` files."""

    def __init__(self, edge_type: EdgeType, spec: TypeSpec, num_nodes: tuple[int | None, int | None]) -> None:
        """Open the files: read their sizes, headers or footers.

        Args:
            edge_type: The edge type.
            spec: Its metadata.
            num_nodes: Number of nodes of the source type and of the destination type; None where ends are raw ids,
                which are not checked.

        Raises:
            FormatError: A file is damaged or truncated.
            SchemaError: A file does not hold pairs of integers, or its number of edges contradicts the metadata.
        """
        self.num_edges = spec.num_rows
        self._ends = ((edge_type[0], "source", num_nodes[0]), (edge_type[2], "destination", num_nodes[1]))
        self._spec = spec.ends or FileSpec(label=":".join(edge_type), root=Path())
        self._files = [open_edge_file(self._spec, file) for file in range(len(self._spec.names))]
        self._declared: Sequence[int | None] = spec.chunk_rows or [None] * len(self._files)
        self._cuts: dict[int, list[EdgeRange]] = {}
        known = [file.count(declared) for file, declared in zip(self._files, self._declared, strict=False)]
        counts = [count for count in known if count is not None]
        if len(counts) == len(known):
            self._check_total(counts)

    def pieces(self, max_rows: int) -> list[EdgeRange]:
        """Cut the edges of all files into spans."""
        if max_rows not in self._cuts:
            spans: list[list[Span]] = []
            for number, (file, declared) in enumerate(zip(self._files, self._declared, strict=False)):
                spans.append(file.spans(number, declared, max_rows))
                count = sum(span.num_rows for span in spans[-1])
                if declared is not None and count != declared:
                    raise SchemaError(f"{file.shown} has {count} edges; the metadata says {declared}")
            self._check_total([sum(span.num_rows for span in of_file) for of_file in spans])
            self._cuts[max_rows] = _packed([span for of_file in spans for span in of_file], max_rows)
        return self._cuts[max_rows]

    def read(self, piece: EdgeRange) -> Iterator[Ends]:
        """Read the ends of a span's edges in blocks."""
        key = piece.first
        for span in piece.spans:
            if not 0 <= span.file < len(self._files):
                raise FormatError(f"{self._spec.label} has {len(self._files)} files; the piece is another graph's")
            file = self._files[span.file]
            row, end = span.first_row, span.first_row + span.num_rows
            for first_row, src_keys, dst_keys in file.read(span):
                row = first_row + len(src_keys)
                if row > end:
                    break
                _check_range(file, first_row, src_keys, self._ends[0])
                _check_range(file, first_row, dst_keys, self._ends[1])
                yield key, src_keys, dst_keys
                key += len(src_keys)
            if row != end:
                got = f"more than {span.num_rows}" if row > end else row - span.first_row
                where = f"{file.place(span.first_row)} and on holds {got} edges"
                raise SchemaError(f"{where}; the metadata or an earlier count says {span.num_rows}")

    def _check_total(self, counts: Sequence[int]) -> None:
        if sum(counts) != self.num_edges:
            shown = shown_counts(self._spec, counts)
            raise SchemaError(
                f"{self._spec.label} has {sum(counts)} edges {shown}; {self.num_edges} edges are declared"
            )


def _open_column(spec: FileSpec, file: int) -> NpyFile | ParquetColumn:
    if spec.format == "numpy":
        return open_npy(spec.path(file), spec.shown(file))
    from hopstream.ingest.chunked.parquet import open_parquet_column  # Arrow takes 40 MB of each worker's memory

    return open_parquet_column(spec.path(file), spec.shown(file))


def _check_range(file: EdgeFile, first_row: int, keys: IntArray, end: tuple[str, str, int | None]) -> None:
    node_type, what, num_nodes = end
    if num_nodes is not None and len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= num_nodes):
        row = int(np.argmax((keys < 0) | (keys >= num_nodes)))
        wanted = f"keys of {node_type} are 0..{num_nodes - 1}" if num_nodes else f"{node_type} has no nodes"
        raise IdRangeError(f"{file.place(first_row + row)} has {what} {int(keys[row])}; {wanted}")


def _packed(spans: Sequence[Span], max_rows: int) -> list[EdgeRange]:
    """Join consecutive spans to pieces of at most ``max_rows``, so that many small files make few pieces."""
    pieces: list[EdgeRange] = []
    first, num_rows = 0, 0
    held: list[Span] = []
    for span in (*spans, None):
        if held and (span is None or num_rows + span.num_rows > max_rows):
            pieces.append(EdgeRange(first=first, stop=first + num_rows, spans=tuple(held)))
            first, held, num_rows = first + num_rows, [], 0
        if span is not None:
            held.append(span)
            num_rows += span.num_rows
    return pieces


def shown_counts(spec: FileSpec, counts: Sequence[int]) -> str:
    """Return a text with the number of files and the rows of the first ones, for messages."""
    pairs = zip(spec.names[:SHOWN_FILES], counts, strict=False)
    shown = ", ".join(f"{name} {count}" for name, count in pairs)
    more = ", …" if len(counts) > SHOWN_FILES else ""
    return f"in {len(counts)} file{'' if len(counts) == 1 else 's'} ({shown}{more})"


METADATA = "metadata.json"


def is_chunked(path: str | os.PathLike[str] | AnyPath) -> bool:
    """Return whether a JSON file is the metadata of a chunked graph; its fields tell."""
    try:
        return describes_chunks(read_json(path_of(path)))
    except FormatError:  # the reader of the source reports the error
        return False


def open_chunked(
    path: str | os.PathLike[str], metadata_filename: str = METADATA, first_keys: Mapping[str, int] | None = None,
    *, raw_types: Collection[str] = (),
) -> ChunkedGraph:  # fmt: skip
    """Open a chunked graph: read its metadata and the headers or footers of its files.

    If the footers of Parquet files leave open whether a feature's lists all have one length, lists are read as well, up
    to 512 MiB of a feature.

    If the metadata does not count the lines of CSV files, they are counted when edges are cut into pieces.

    Args:
        path: The folder, or the metadata file in it.
        metadata_filename: Name of the metadata file in the folder.
        first_keys: Node type to the key of its first node in this graph, by default 0. For graphs that hold a part of
            the nodes: edges may name any key from 0 to the last node of this graph.
        raw_types: Node types that edges name by raw id. Then the ends are any integers, and not keys.

    Raises:
        FormatError: A file is missing, damaged or truncated, or has an unknown format.
        SchemaError: A field of the metadata is missing or wrong, counts contradict each other or the files, dtypes or
            shapes differ between files, or a path leads out of the folder.
        SettingsError: ``metadata_filename`` is not a plain file name.
    """
    given = path_of(path)
    root = folder_copied_here(given) if given.suffix == ".json" else copied_here(given)
    if root.is_file():
        root, metadata_filename = root.parent, root.name
    if Path(metadata_filename).name != metadata_filename or metadata_filename in ("", ".", ".."):
        raise SettingsError(f"metadata_filename is {metadata_filename!r}; wanted the name of a file in the folder")
    metadata = read_chunked_metadata(root / metadata_filename)
    graph = ChunkedGraph(
        name=metadata.name,
        root=root,
        metadata_filename=metadata_filename,
        nodes={t: _nodes(t, spec) for t, spec in metadata.nodes.items()},
        edges={t: _edges(t, spec, metadata.nodes, first_keys or {}, raw_types) for t, spec in metadata.edges.items()},
        transforms=metadata.transforms,
    )
    _ = graph.schema  # raises SchemaError for invalid names
    return graph


def _nodes(node_type: str, spec: TypeSpec) -> ChunkedNodes:
    columns = _columns(spec.features, spec.num_rows, "node")
    masks = {
        MASKS[name]: checked_mask(f"{node_type}.{name}", column) for name, column in columns.items() if name in MASKS
    }
    features = {name: column for name, column in columns.items() if name not in MASKS}
    return ChunkedNodes(num_nodes=spec.num_rows, features=features, masks=masks)


def _edges(
    edge_type: EdgeType, spec: TypeSpec, nodes: Mapping[str, TypeSpec], first_keys: Mapping[str, int],
    raw_types: Collection[str],
) -> ChunkedEdges:  # fmt: skip
    src, dst = (
        None if t in raw_types else first_keys.get(t, 0) + nodes[t].num_rows for t in (edge_type[0], edge_type[2])
    )
    return ChunkedEdges(
        num_edges=spec.num_rows,
        ends=FileEdges(edge_type, spec, (src, dst)),
        features=_columns(spec.features, spec.num_rows, "edge"),
    )


def _columns(features: Mapping[str, FileSpec], num_rows: int, what: str) -> dict[str, FeatureSource]:
    return {name: open_feature(spec, num_rows, what) for name, spec in features.items()}
