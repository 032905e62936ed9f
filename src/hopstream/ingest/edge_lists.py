"""Which graph does a text file with an edge on each line hold?

The files that SNAP, KONECT and NetworkX write: lines of comments first, then source, target, and perhaps values of the
edge, with one character between them. They may be gzipped.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from hopstream.arrays import Array, IntArray
from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.build import graph_from_arrays
from hopstream.ingest.columns import ColumnLike
from hopstream.ingest.ids import sorted_raw_ids, strings_column

OPTIONS = ("delimiter", "has_header", "columns", "ids", "num_nodes")
COMMENTS = (b"#", b"%")
DELIMITERS = "\t,; |"
"""Tried in this order on the first line."""
WEIGHT, RAW_ID = "weight", "raw_id"


def graph_from_edge_list(
    path: str | os.PathLike[str], *, delimiter: str | None = None, has_header: bool = False,
    columns: Sequence[str] = (), ids: Literal["keys", "raw"] = "keys", num_nodes: int | None = None,
) -> Graph:  # fmt: skip
    """Make a graph of a text file with an edge on each line: source, target, and perhaps values.

    Lines at the begin of the file that start with ``#`` or ``%`` are comments. Edges keep the order of the lines, and
    have the direction that is written.

    Args:
        path: The file; ``.gz`` is unpacked.
        delimiter: The character between two values; None takes the first of tab, comma, semicolon, space and bar that
            is in the first line.
        has_header: The first line that is no comment names the columns.
        columns: What the values after source and target are called, where no header names them. A single one is called
            ``weight`` if nothing is said.
        ids: What source and target are: ``keys``, 0..n-1; or ``raw``, any integers or strings, whose keys are their
            order (integers by value, strings by their UTF-8 bytes). Raw ids are kept as the feature ``raw_id``.
        num_nodes: Nodes, where ``ids`` are keys and the last ones have no edge.

    Returns:
        A graph with one node type and one edge type, and a feature of edges for each further column.

    Raises:
        FormatError: The file is missing, cannot be unpacked, or is no table of one delimiter.
        SchemaError: It has fewer than two columns, further ones without names, empty values, or ends that are no
            integers though they are keys.
        IdRangeError: A key is negative, or not below ``num_nodes``.
        SettingsError: An option is out of its range.
    """
    source = Path(path)
    if ids not in ("keys", "raw"):
        raise SettingsError(f"ids is {ids!r}; it must be keys or raw")
    if ids == "raw" and num_nodes is not None:
        raise SettingsError("num_nodes is given and ids is raw: nodes are those that edges name; leave it out")
    if isinstance(columns, str):
        raise SettingsError(f"columns is {columns!r}; wanted a list of names")
    table = _read(source, delimiter, has_header)
    features = dict(zip(_value_names(source, table, columns, has_header), table.columns[2:], strict=True))
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            row = column.is_null().index(True).as_py()
            raise SchemaError(f"{source}: row {row} has no value in column {name!r}; fill it in, or remove the line")
    ends, node_features = _ends(source, table, ids)
    return graph_from_arrays(
        ends, num_nodes=num_nodes, node_features=node_features,
        edge_features={name: _values(column) for name, column in features.items()},
    )  # fmt: skip


def _read(path: Path, delimiter: str | None, has_header: bool) -> pa.Table:
    """The table; its columns are named by the header or by their numbers."""
    try:
        with _after_comments(path) as (file, first):
            if not first.strip():
                raise SchemaError(f"{path} has no line that is no comment; wanted an edge on each line")
            text = first.decode("utf-8", errors="replace").rstrip("\r\n")
            chosen = delimiter or next((mark for mark in DELIMITERS if mark in text), "")
            if len(chosen) != 1:
                raise SettingsError(f"{path}: delimiter is {chosen!r}; give the one character between values")
            rows = _Joined(chain([first], iter(lambda: file.read(1 << 20), b"")))
            table = pacsv.read_csv(
                pa.PythonFile(rows, "r"),
                read_options=pacsv.ReadOptions(autogenerate_column_names=not has_header),
                parse_options=pacsv.ParseOptions(delimiter=chosen, quote_char=False if chosen == " " else '"'),
            )
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} cannot be read as an edge list ({error})") from error
    if table.num_columns < 2:
        raise SchemaError(f"{path} has one column between {chosen!r}; give the delimiter of source and target")
    return table


@contextmanager
def _after_comments(path: Path) -> Iterator[tuple[IO[bytes], bytes]]:
    """The file, unpacked and read up to its first line that is no comment, and that line."""
    with cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb") as file:
        line = file.readline()
        while line.startswith(COMMENTS) or (line and not line.strip()):
            line = file.readline()
        yield file, line


class _Joined:
    """Blocks of bytes as a file that can only be read."""

    closed = False

    def __init__(self, blocks: Iterator[bytes]) -> None:
        """Begin with the first block."""
        self._blocks, self._rest = blocks, b""

    def read(self, size: int = -1) -> bytes:
        """The next bytes, and none at the end."""
        while size < 0 or len(self._rest) < size:
            block = next(self._blocks, b"")
            if not block:
                size = len(self._rest)
                break
            self._rest += block
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def close(self) -> None:
        """Leave the file to whoever opened it."""
        self.closed = True


def _value_names(path: Path, table: pa.Table, columns: Collection[str], has_header: bool) -> list[str]:
    num_values = table.num_columns - 2
    if has_header and not columns:
        return list(table.column_names[2:])
    if num_values == 1 and not columns:
        return [WEIGHT]
    if len(set(columns)) != num_values:
        raise SchemaError(
            f"{path} has {num_values} columns after source and target, and columns names {list(columns)}; give a name "
            "for each"
        )
    return list(columns)


def _ends(
    path: Path, table: pa.Table, ids: Literal["keys", "raw"]
) -> tuple[tuple[IntArray, IntArray], dict[str, ColumnLike]]:
    """Keys of sources and targets, and what nodes have: their raw ids, if they are any."""
    pair = table.columns[:2]
    if ids == "keys":
        for what, column in zip(("source", "target"), pair, strict=True):
            if column.type != pa.int64():
                raise SchemaError(
                    f"{path}: {what} is {column.type}, in row 0 {column[0].as_py()!r}; keys are integers: give "
                    "ids='raw' for other names, or has_header=True where the first line names columns"
                )
        return (pair[0].to_numpy(), pair[1].to_numpy()), {}
    is_text = any(column.type != pa.int64() for column in pair)
    cells = [chunk.cast(pa.string()) if is_text else chunk for column in pair for chunk in column.chunks]
    raw = sorted_raw_ids(cells, None)
    num_chunks = pair[0].num_chunks
    return (raw.keys_of(cells[:num_chunks]), raw.keys_of(cells[num_chunks:])), {RAW_ID: raw.as_column()}


def _values(column: pa.ChunkedArray) -> ColumnLike:
    """Numbers as numpy has them; all else as strings."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
        values: Array = np.ascontiguousarray(column.to_numpy())
        return values
    return strings_column([chunk.cast(pa.string()) for chunk in column.chunks])
