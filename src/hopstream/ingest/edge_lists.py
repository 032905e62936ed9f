"""Reads a graph from a text file with one edge per line; errors name the wrong line.

It reads the files that SNAP, KONECT, NetworkX and pandas write: lines of comments, an optional header, then lines of
source, target and optional values of the edge. Files may be gzipped.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from hopstream.arrays import Array, IntArray
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError, quoted
from hopstream.graph.graph import Graph
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.ingest.raw_tables.raw_ids import sorted_raw_ids, strings_column
from hopstream.ingest.user_columns import ColumnLike
from hopstream.places.cache import copied_here
from hopstream.places.paths import path_of
from hopstream.schema import STRING

BLANKS = " "
"""Delimiter for values separated by any number of blanks and tabs."""
DELIMITERS = "\t,; |"
"""Delimiters to look for in the first line, in this order."""
COMMENTS = (b"#", b"%")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
END_NAMES = (
    ("source", "target"), ("src", "dst"), ("from", "to"), ("source_id", "target_id"), ("src_id", "dst_id"),
    ("from_id", "to_id"), ("fromnodeid", "tonodeid"), ("head", "tail"), ("subject", "object"), ("user", "item"),
    ("user_id", "item_id"), ("userid", "itemid"), ("userid", "movieid"), ("user_id", "movie_id"),
)  # fmt: skip
"""Header names of the ends of edges, in lower case; a line with such a pair is a header."""
OTHER_END_NAMES = (("u", "v"), ("i", "j"), ("node1", "node2"), ("node_1", "node_2"), ("start", "end"))
"""Further header names of the ends; they do not show that a line is a header, because data could hold them."""
MATRIX_MARKET = b"%%MatrixMarket"
BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)
_RUNS = ((re.compile(rb"[ \t]+"), b" "), (re.compile(rb" ?(\r?\n) ?"), rb"\1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeListText:
    """A text file with one edge per line, whose delimiter and header are known.

    Attributes:
        path: The file.
        delimiter: The character between two values; a blank means any number of blanks and tabs.
        header: The cells of the line that names the columns; None without such a line.
    """

    path: Path
    delimiter: str
    header: tuple[str, ...] | None

    @property
    def end_places(self) -> tuple[int, int]:
        """Indices of the columns of source and target: named by the header, by default the first two."""
        known = (*END_NAMES, *OTHER_END_NAMES)
        return (None if self.header is None else _named_ends(self.header, known)) or (0, 1)

    @contextmanager
    def open_rows(self) -> Iterator[Joined]:
        """Open the lines with edges as a stream of bytes."""
        with open_text(self.path) as file:
            lines = _lines_of(file)
            if self.header is not None:
                next(lines)
            first = (line for _, line in islice(lines, 1))
            blocks = chain(first, iter(lambda: file.read(BLOCK_BYTES) + _read_line(file), b""))
            yield Joined(map(_with_single_blanks if self.delimiter == BLANKS else _with_an_end, blocks))

    def line_where(self, is_wrong: Callable[[list[str]], bool]) -> tuple[int, list[str]] | None:
        """Find the first line with an edge whose cells are wrong.

        Returns:
            The line number, from 1, and its cells; or None.
        """
        with open_text(self.path) as file:
            lines = _lines_of(file)
            if self.header is not None:
                next(lines)
            for number, line in lines:
                cells = cells_of(line, self.delimiter)
                if is_wrong(cells):
                    return number, cells
        return None


def look_at(path: Path, delimiter: str | None, has_header: bool | None, *, are_raw: bool) -> EdgeListText:
    """Detect the delimiter of a file, and whether its first line is a header.

    Args:
        path: The file.
        delimiter: The character between two values; None to detect it.
        has_header: Whether the first line after the comments names the columns; None to detect it.
        are_raw: Whether source and target may be any text.

    Raises:
        FormatError: The file is missing or cannot be unpacked, or it is a Matrix Market file or in UTF-16.
        SchemaError: The file has no edges, its edges have dicts, or the first line may or may not be a header.
        SettingsError: The delimiter is not one character, or the first line has no known delimiter.
    """
    if delimiter is not None and not _is_delimiter(delimiter):
        raise SettingsError(
            f"{path}: delimiter is {delimiter!r}; give the one character between values (ASCII), or ' ' for any number "
            "of blanks"
        )
    with open_text(path) as file:
        if file.read(len(MATRIX_MARKET)) == MATRIX_MARKET:
            raise FormatError(
                f"{path} is a Matrix Market file, which counts from 1; read it with scipy.io.mmread and "
                "hopstream.graph.graph_from_scipy"
            )
        file.seek(0)
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise FormatError(f"{path} is text in UTF-16; write it again in UTF-8")
        file.seek(0)
        lines = [line for _, line in islice(_lines_of(file), 2)]
    if not lines:
        raise SchemaError(f"{path} has only comment lines; wanted an edge on each line")
    first = lines[0].decode("utf-8", errors="replace").strip("\r\n")
    chosen = _delimiter_of(first) if delimiter is None else delimiter
    if not chosen:
        raise SettingsError(f"{path} has no {' '.join(map(repr, DELIMITERS))} in its first line; give the delimiter")
    cells = [cells_of(line, chosen) for line in lines]
    is_header = _is_header(path, cells, are_raw=are_raw) if has_header is None else has_header
    if re.search(r"[\s,;|]\{.*\}\s*$", first if not is_header else ""):
        raise SchemaError(
            f"{path} has a dict after each edge, as networkx.write_edgelist writes by default; write it with "
            "data=False or data=['weight'], or read it with networkx.read_edgelist and "
            "hopstream.graph.graph_from_networkx"
        )
    return EdgeListText(path=path, delimiter=chosen, header=tuple(cells[0]) if is_header else None)


@contextmanager
def open_text(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacking ``.gz``; errors inside the context are turned into ``FormatError``.

    Raises:
        FormatError: The file is missing, or cannot be unpacked.
    """
    try:
        with cast(IO[bytes], gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    except (OSError, EOFError, csv.Error, _TooLong) as error:
        raise FormatError(f"{path} cannot be read as an edge list ({error})") from error


def cells_of(line: bytes, delimiter: str) -> list[str]:
    """Split a line into its values, without surrounding blanks."""
    text = line.decode("utf-8", errors="replace").strip("\r\n")
    if delimiter == BLANKS:
        return text.split()
    return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter), [])]


def is_integer(cell: str) -> bool:
    """Return whether a cell is an integer, of any size."""
    return _INTEGER.fullmatch(cell) is not None


class _TooLong(Exception):
    """A line is longer than ``MAX_LINE_BYTES``."""


def _read_line(file: IO[bytes]) -> bytes:
    """Read to the end of the line, line end included.

    Raises:
        _TooLong: The line is longer than ``MAX_LINE_BYTES``.
    """
    line = file.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise _TooLong(f"a line has more than {MAX_LINE_BYTES} bytes; wanted an edge on each line")
    return line


class Joined:
    """A read-only file object over blocks of bytes."""

    closed = False

    def __init__(self, blocks: Iterator[bytes]) -> None:
        """Start at the first block."""
        self._blocks, self._rest = blocks, b""

    def peek(self) -> bool:
        """Return whether bytes are left."""
        self._rest = self._rest or next(self._blocks, b"")
        return bool(self._rest)

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes, or all if negative; empty at the end."""
        while size < 0 or len(self._rest) < size:
            block = next(self._blocks, b"")
            if not block:
                size = len(self._rest)
                break
            self._rest += block
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def close(self) -> None:
        """Mark the object as closed; the caller closes the underlying file."""
        self.closed = True


def _lines_of(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers, from 1, without leading comments and empty lines."""
    is_begin = True
    for number, line in enumerate(iter(lambda: _read_line(file), b""), 1):
        text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if text.strip() and not (is_begin and text.startswith(COMMENTS)):
            is_begin = False
            yield number, text


def _with_single_blanks(block: bytes) -> bytes:
    """Replace runs of blanks and tabs between values by one blank, and strip those around lines."""
    if block.startswith((b" ", b"\t")) or any(run in block for run in (b"  ", b"\t", b" \n", b" \r", b"\n ")):
        for pattern, by in _RUNS:
            block = pattern.sub(by, block)
        block = block.strip(b" ") or b"\n"
    return _with_an_end(block)


def _with_an_end(block: bytes) -> bytes:
    """Add a missing line end: Arrow does not read a single line without one."""
    return block if block.endswith((b"\n", b"\r")) else block + b"\n"


def _is_delimiter(given: object) -> bool:
    return isinstance(given, str) and len(given) == 1 and given.isascii() and given not in '\r\n"'


def _delimiter_of(line: str) -> str:
    """Return the first of ``DELIMITERS`` that is in a line; "" if there is none."""
    chosen = next((mark for mark in DELIMITERS if mark in line.strip()), "")
    if chosen == "\t" and BLANKS in line:
        are_numbers = all(_NUMBER.fullmatch(cell) for cell in line.split())  # KONECT mixes tabs and blanks
        return BLANKS if are_numbers else chosen
    return chosen


def _named_ends(header: Sequence[str], known: Sequence[tuple[str, str]] = END_NAMES) -> tuple[int, int] | None:
    """Return the columns whose names are one of the known pairs; None without such a pair."""
    names = [name.lower() for name in header]
    return next(((names.index(a), names.index(b)) for a, b in known if names.count(a) == names.count(b) == 1), None)


def _is_header(path: Path, rows: Sequence[list[str]], *, are_raw: bool) -> bool:
    first, ends = rows[0], rows[0][:2]
    if _named_ends(first):
        return True
    if len(rows) < 2 or any(map(is_integer, ends)) or not all(map(is_integer, rows[1][:2])):
        return False
    if are_raw:
        raise SchemaError(
            f"{path} has {ends} in its first line and integers in the second; give has_header=True if the first line "
            "names the columns, else has_header=False"
        )
    return True


OPTIONS = ("delimiter", "has_header", "columns", "ids", "num_nodes")
WEIGHT, RAW_ID = "weight", "raw_id"
ENDS = ("source", "target")
MOST_NODES_PER_EDGE, NODES_ALWAYS = 1000, 1_000_000
"""Keys that make more nodes than this per edge, and more than this in total, are assumed to be raw ids."""
MAX_INTEGER = (1 << 63) - 1


def graph_from_edge_list(
    path: str | os.PathLike[str], *, delimiter: str | None = None, has_header: bool | None = None,
    columns: Sequence[str] = (), ids: Literal["keys", "raw"] = "keys", num_nodes: int | None = None,
) -> Graph:  # fmt: skip
    """Make a graph from a text file with one edge per line: source, target and optional values.

    Lines at the start of the file that begin with ``#`` or ``%`` are comments; empty lines are skipped. Edges keep the
    order and the direction of the lines.

    Args:
        path: The file; ``.gz`` is unpacked.
        delimiter: The character between two values; a blank means any number of blanks and tabs. None takes the first
            of tab, comma, semicolon, blank and bar that occurs in the first line.
        has_header: Whether the first line after the comments names the columns. None detects a header in two cases:
            two names are a pair such as ``source`` and ``target``, ``src`` and ``dst`` or ``from`` and ``to``; or the
            first two cells are not integers, and those of the next line are. Columns with such a pair of names are the
            ends; otherwise the first two columns are.
        columns: Names of the values beside source and target, if no header names them. The default name of a single
            column of numbers is ``weight``.
        ids: ``keys`` if source and target are keys, 0..n-1. ``raw`` if they are any integers or strings: their keys
            follow their order, integers by value and strings by UTF-8 bytes, without surrounding blanks. If one integer
            starts with a zero, like a postcode, all are strings. Raw ids are kept as the feature ``raw_id``.
        num_nodes: Number of nodes if ``ids`` is ``keys``, needed if the last nodes have no edges.

    Returns:
        A graph with one node type and one edge type, and an edge feature for each further column.

    Raises:
        FormatError: The file is missing or cannot be unpacked, lines have different numbers of values, a quotation
            mark is closed in another line, or it is a Matrix Market file.
        SchemaError: The file has fewer than two columns, further columns without names, empty values, integers above
            2**63 that would be rounded, or comments between edges; or ``ids`` is ``keys`` and an end is not an
            integer; or keys make more than 1000 nodes per edge and more than a million nodes, and ``num_nodes`` is not
            given.
        IdRangeError: A key is negative, or not below ``num_nodes``.
        SettingsError: An option is out of range.
    """
    source = copied_here(path_of(path))
    if ids not in ("keys", "raw"):
        raise SettingsError(f"ids is {ids!r}; it must be keys or raw")
    if ids == "raw" and num_nodes is not None:
        raise SettingsError("num_nodes is given and ids is raw, so the edges determine the nodes; leave it out")
    if isinstance(columns, str):
        raise SettingsError(f"columns is {columns!r}; wanted a list of names")
    if has_header is not None and not isinstance(has_header, bool):
        raise SettingsError(f"has_header is {has_header!r}; wanted True, False or None")
    is_count = isinstance(num_nodes, int | np.integer) and not isinstance(num_nodes, bool) and num_nodes >= 0
    if num_nodes is not None and not is_count:
        raise SettingsError(f"num_nodes is {num_nodes!r}; wanted an integer, 0 or more")
    text = look_at(source, delimiter, has_header, are_raw=ids == "raw")
    table = _read(text, set(text.end_places) if ids == "raw" else set())
    times = {place for place, column in enumerate(table.columns) if pa.types.is_temporal(column.type)}
    if times:  # keep times as text: Arrow would format them differently from the file
        table = _read(
            text, {place for place, column in enumerate(table.columns) if pa.types.is_string(column.type)} | times
        )
    pair, rest = _apart(text, table)
    names = _value_names(text, rest, columns)
    for name, column, place in zip((*ENDS, *names), (*pair, *rest), _places(text, len(rest)), strict=True):
        _refuse_empty(text, name, column, place)
        if name not in ENDS:
            _refuse_rounded(text, name, column, place)
    node_features: dict[str, ColumnLike] = {}
    if ids == "keys":
        ends = _keys(text, pair, num_nodes)
    else:
        _refuse_comments(text, table)
        raw = sorted_raw_ids([chunk for column in pair for chunk in column.chunks], _raw_dtype(pair))
        ends = raw.keys_of(pair[0].chunks), raw.keys_of(pair[1].chunks)
        node_features[RAW_ID] = raw.as_column()
    return graph_from_arrays(
        ends, num_nodes=num_nodes, node_features=node_features,
        edge_features={name: _values(column) for name, column in zip(names, rest, strict=True)},
    )  # fmt: skip


def _read(text: EdgeListText, as_text: set[int]) -> pa.Table:
    """Read all columns in file order; those in ``as_text`` as strings."""
    wrong: list[int] = []

    def note(row: pacsv.InvalidRow) -> str:
        wrong.append(row.expected_columns)
        return "error"

    try:
        with text.open_rows() as rows:
            start = rows.peek()
            table = pacsv.read_csv(
                pa.PythonFile(rows, "r"),
                read_options=pacsv.ReadOptions(autogenerate_column_names=True),
                parse_options=pacsv.ParseOptions(
                    delimiter=text.delimiter, quote_char=False if text.delimiter == BLANKS else '"',
                    invalid_row_handler=note,
                ),
                convert_options=pacsv.ConvertOptions(column_types={f"f{place}": pa.string() for place in as_text}),
            ) if start else _no_rows(text)  # fmt: skip
    except (pa.ArrowException, UnicodeDecodeError) as error:
        found = text.line_where(lambda cells: len(cells) != wrong[0]) if wrong else None
        if found is not None:
            raise FormatError(
                f"{text.path} cannot be read as an edge list: line {found[0]} has {len(found[1])} values between "
                f"{_shown(text)}, lines before it {wrong[0]}"
            ) from error
        raise FormatError(f"{text.path} cannot be read as an edge list ({error})") from error
    if table.num_columns < 2:
        raise SchemaError(
            f"{text.path} has one column with delimiter {text.delimiter!r}; give the delimiter between source and "
            "target"
        )
    _refuse_joined_lines(text, table)
    if text.header is not None and len(text.header) != table.num_columns:
        raise SchemaError(
            f"{text.path} names {len(text.header)} columns in its header, and its lines have {table.num_columns}"
        )
    return table


def _refuse_joined_lines(text: EdgeListText, table: pa.Table) -> None:
    """Refuse values with line ends, which an unclosed quotation mark causes."""
    for column in table.columns:
        if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\n")).as_py():
            value = next(cell for cell in column.to_pylist() if "\n" in cell).split("\n")[0]
            raise FormatError(
                f"{text.path} cannot be read as an edge list: a quotation mark before {quoted(value)} is closed in "
                "another line; leave quotation marks out"
            )


def _no_rows(text: EdgeListText) -> pa.Table:
    columns = text.header or ()
    return pa.table({f"f{place}": pa.array([], pa.int64()) for place in range(len(columns))})


def _shown(text: EdgeListText) -> str:
    return "blanks" if text.delimiter == BLANKS else repr(text.delimiter)


def _places(text: EdgeListText, num_values: int) -> list[int]:
    """Return the indices of the columns: source, target, then values."""
    ends = text.end_places
    return [*ends, *(place for place in range(num_values + 2) if place not in ends)]


def _apart(
    text: EdgeListText, table: pa.Table
) -> tuple[tuple[pa.ChunkedArray, pa.ChunkedArray], list[pa.ChunkedArray]]:
    """Separate source and target from the columns of values; texts of both ends are stripped."""
    source, target, *rest = (table.column(place) for place in _places(text, table.num_columns - 2))
    if pa.types.is_string(source.type) and pa.types.is_string(target.type):
        source, target = pc.utf8_trim_whitespace(source), pc.utf8_trim_whitespace(target)
    return (source, target), rest


def _refuse_empty(text: EdgeListText, name: str, column: pa.ChunkedArray, place: int) -> None:
    is_text = pa.types.is_string(column.type)
    if not column.null_count and not (name in ENDS and is_text and pc.any(pc.equal(column, "")).as_py()):
        return
    row = (pc.equal(column, "") if is_text else column.is_null()).index(True).as_py()
    seen = iter(range(row + 1))
    found = text.line_where(lambda cells: next(seen) == row)
    line = f"line {found[0]}" if found else f"row {row}"
    told = f", but {quoted(found[1][place])}" if found and found[1][place:] and found[1][place] else ""
    raise SchemaError(f"{text.path}: {line} has no value in column {name!r}{told}; fill it in, or remove the line")


def _refuse_rounded(text: EdgeListText, name: str, column: pa.ChunkedArray, place: int) -> None:
    """Refuse integers beyond int64, which Arrow rounds to floats."""
    if not pa.types.is_floating(column.type) or not pc.any(pc.greater_equal(pc.abs(column), float(1 << 63))).as_py():
        return
    found = text.line_where(lambda cells: is_integer(cells[place]) and abs(int(cells[place])) > MAX_INTEGER)
    if found is not None:
        raise SchemaError(
            f"{text.path}: column {name!r} in line {found[0]} is {found[1][place]}, which exceeds 64 bits and would be "
            "rounded; leave the column out, or write a letter before its numbers to keep them as text"
        )


def _refuse_comments(text: EdgeListText, table: pa.Table) -> None:
    """Refuse lines that look like comments after the first edge; as raw ids they would become nodes."""
    first = table.column(0)
    if pa.types.is_string(first.type):
        row = pc.or_(pc.starts_with(first, "#"), pc.starts_with(first, "%")).index(True).as_py()
        if row >= 0:
            found = text.line_where(lambda cells: cells[0].startswith(("#", "%")))
            raise SchemaError(
                f"{text.path}: line {found[0] if found else row} starts with {quoted(first[row].as_py()[0])}, like a "
                "comment, but comments are allowed only at the beginning; remove the line"
            )


def _raw_dtype(pair: tuple[pa.ChunkedArray, pa.ChunkedArray]) -> str | None:
    """Return STRING if raw ids such as ``007`` or ``-0`` would change as integers, else None."""
    for column in pair:
        if pa.types.is_string(column.type) and pc.any(pc.match_substring_regex(column, r"^-?0[0-9]|^-0$")).as_py():
            return STRING
    return None


def _value_names(text: EdgeListText, rest: Sequence[pa.ChunkedArray], columns: Sequence[str]) -> list[str]:
    num_values = len(rest)
    if text.header is not None and not columns:
        names = [text.header[place] for place in _places(text, num_values)[2:]]
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if "" in names or repeated:
            raise SchemaError(
                f"{text.path} has the header {list(text.header)}, in which "
                f"{f'{repeated[0]!r} occurs twice' if repeated and repeated[0] else 'a column has no name'}; name "
                "each column once (pandas: to_csv(index=False))"
            )
        return names
    if num_values == 1 and not columns:
        if pa.types.is_string(rest[0].type) and len(rest[0]):
            raise SchemaError(
                f"{text.path} has a text column after source and target ({quoted(rest[0][0].as_py())}, …), which "
                "cannot be a weight; name it with columns, or give a header if the columns are in another order"
            )
        return [WEIGHT]
    if len(columns) != num_values or len(set(columns)) != num_values:
        raise SchemaError(
            f"{text.path} has {num_values} columns after source and target, but columns is {list(columns)}; give a "
            "name for each with columns"
        )
    return list(columns)


def _keys(
    text: EdgeListText, pair: tuple[pa.ChunkedArray, pa.ChunkedArray], num_nodes: int | None
) -> tuple[IntArray, IntArray]:
    """Check the keys of sources and targets, and return them.

    Raises:
        SchemaError: An end is not an integer, or the keys are most likely raw ids.
        IdRangeError: A key is out of range.
    """
    for what, place, column in zip(ENDS, text.end_places, pair, strict=True):
        if column.type != pa.int64():
            found = text.line_where(lambda cells, place=place: not _is_key(cells[place]))  # type: ignore[misc]
            where = f"in line {found[0]} {quoted(found[1][place])}" if found else f"as {column.type}"
            raise SchemaError(
                f"{text.path}: {what} is not a 64-bit integer {where}; keys are integers: give ids='raw' for other "
                "names, or has_header=True if the first line names columns"
            )
    source, target = (column.to_numpy() for column in pair)
    most = MAX_INTEGER if num_nodes is None else num_nodes - 1
    for what, place, keys in zip(ENDS, text.end_places, (source, target), strict=True):
        if len(keys) and (int(keys.min()) < 0 or int(keys.max()) > most):
            found = text.line_where(lambda cells, place=place: not 0 <= int(cells[place]) <= most)  # type: ignore[misc]
            where = "" if found is None else f" in line {found[0]} is {found[1][place]}"
            wanted = "0 or more" if num_nodes is None else f"0..{most}, as num_nodes is {num_nodes}"
            raise IdRangeError(f"{text.path}: {what}{where}; keys are {wanted}")
    largest = max((int(keys.max()) for keys in (source, target) if len(keys)), default=0)
    if num_nodes is None and largest >= max(NODES_ALWAYS, MOST_NODES_PER_EDGE * len(source)):
        found = text.line_where(lambda cells: str(largest) in cells)
        raise SchemaError(
            f"{text.path}: the id {largest}{f' in line {found[0]}' if found else ''} implies {largest + 1} nodes for "
            f"{len(source)} edges, because ids are read as keys 0..n-1; give ids='raw' if the ids are names, or "
            "num_nodes if the graph has that many nodes"
        )
    return source, target


def _is_key(cell: str) -> bool:
    return is_integer(cell) and -MAX_INTEGER - 1 <= int(cell) <= MAX_INTEGER


def _values(column: pa.ChunkedArray) -> ColumnLike:
    """Convert a column: numbers and bool to numpy, all other types to strings."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
        values: Array = np.ascontiguousarray(column.to_numpy())
        return values
    return strings_column([chunk.cast(pa.string()) for chunk in column.chunks])
