"""Reads the lines and cells of a text file of edges, and finds the line that is wrong."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, cast

from hopstream.errors import FormatError, SchemaError, SettingsError

BLANKS = " "
"""The delimiter of files whose values lie between blanks and tabs, any number of them."""
DELIMITERS = "\t,; |"
"""Tried in this order on the first line."""
COMMENTS = (b"#", b"%")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
END_NAMES = (
    ("source", "target"), ("src", "dst"), ("from", "to"), ("source_id", "target_id"), ("src_id", "dst_id"),
    ("from_id", "to_id"), ("fromnodeid", "tonodeid"), ("head", "tail"), ("subject", "object"), ("user", "item"),
    ("user_id", "item_id"), ("userid", "itemid"), ("userid", "movieid"), ("user_id", "movie_id"),
)  # fmt: skip
"""What headers call the ends of edges, in lower case."""
OTHER_END_NAMES = (("u", "v"), ("i", "j"), ("node1", "node2"), ("node_1", "node_2"), ("start", "end"))
"""The same, where the line is known to be a header."""
MATRIX_MARKET = b"%%MatrixMarket"
BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)
_RUNS = ((re.compile(rb"[ \t]+"), b" "), (re.compile(rb" ?(\r?\n) ?"), rb"\1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeListText:
    """A text file with an edge on each line, whose first lines were looked at.

    Attributes:
        path: The file.
        delimiter: The character between two values; a blank stands for any number of blanks and tabs.
        header: The cells of the line that names the columns; None where there is none.
    """

    path: Path
    delimiter: str
    header: tuple[str, ...] | None

    @property
    def end_places(self) -> tuple[int, int]:
        """The columns of source and target: those that the header calls so, or else the first two."""
        known = (*END_NAMES, *OTHER_END_NAMES)
        return (None if self.header is None else _named_ends(self.header, known)) or (0, 1)

    @contextmanager
    def open_rows(self) -> Iterator[Joined]:
        """The bytes of all lines with edges."""
        with open_text(self.path) as file:
            lines = _lines_of(file)
            if self.header is not None:
                next(lines)
            first = (line for _, line in islice(lines, 1))
            blocks = chain(first, iter(lambda: file.read(BLOCK_BYTES) + _read_line(file), b""))
            yield Joined(map(_with_single_blanks if self.delimiter == BLANKS else _with_an_end, blocks))

    def line_where(self, is_wrong: Callable[[list[str]], bool]) -> tuple[int, list[str]] | None:
        """The first line with edges, from 1, whose cells are wrong, and these; None where none is."""
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
    """Find out what is between two values, and whether the first line names columns.

    Args:
        path: The file.
        delimiter: What is between two values; None: look.
        has_header: Whether the first line that is no comment names the columns; None: look.
        are_raw: Whether source and target may be any text.

    Raises:
        SchemaError: There are no lines, or it cannot be told whether the first is a header.
        SettingsError: The delimiter is not one character, or there is none to be seen.
    """
    if delimiter is not None and not _is_delimiter(delimiter):
        raise SettingsError(
            f"{path}: delimiter is {delimiter!r}; give the one character between values (ASCII), or ' ' for any number "
            "of blanks"
        )
    with open_text(path) as file:
        if file.read(len(MATRIX_MARKET)) == MATRIX_MARKET:
            raise FormatError(
                f"{path} is a Matrix Market file, whose numbers begin with 1; give hopstream.graph_from_scipy what "
                "scipy.io.mmread reads of it"
            )
        file.seek(0)
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise FormatError(f"{path} is text in UTF-16; write it again in UTF-8")
        file.seek(0)
        lines = [line for _, line in islice(_lines_of(file), 2)]
    if not lines:
        raise SchemaError(f"{path} has no line that is no comment; wanted an edge on each line")
    first = lines[0].decode("utf-8", errors="replace").strip("\r\n")
    chosen = _delimiter_of(first) if delimiter is None else delimiter
    if not chosen:
        raise SettingsError(f"{path} has no {' '.join(map(repr, DELIMITERS))} in its first line; give the delimiter")
    cells = [cells_of(line, chosen) for line in lines]
    is_header = _is_header(path, cells, are_raw=are_raw) if has_header is None else has_header
    if re.search(r"[\s,;|]\{.*\}\s*$", first if not is_header else ""):
        raise SchemaError(
            f"{path} has a dict behind its edges, as networkx.write_edgelist writes them; read it with "
            "networkx.read_edgelist and hopstream.graph_from_networkx, or write it with data=False or data=['weight']"
        )
    return EdgeListText(path=path, delimiter=chosen, header=tuple(cells[0]) if is_header else None)


@contextmanager
def open_text(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked.

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
    """The values of a line, without blanks around them."""
    text = line.decode("utf-8", errors="replace").strip("\r\n")
    if delimiter == BLANKS:
        return text.split()
    return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter), [])]


def is_integer(cell: str) -> bool:
    """Whether a cell is an integer, of any size."""
    return _INTEGER.fullmatch(cell) is not None


class _TooLong(Exception):
    """A line that nobody would write an edge on."""


def _read_line(file: IO[bytes]) -> bytes:
    """The rest of a line, and its end."""
    line = file.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise _TooLong(f"a line has more than {MAX_LINE_BYTES} bytes; wanted an edge on each line")
    return line


class Joined:
    """Blocks of bytes as a file that can only be read."""

    closed = False

    def __init__(self, blocks: Iterator[bytes]) -> None:
        """Begin with the first block."""
        self._blocks, self._rest = blocks, b""

    def peek(self) -> bool:
        """Whether there are any bytes."""
        self._rest = self._rest or next(self._blocks, b"")
        return bool(self._rest)

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
        """Leave the file to its opener."""
        self.closed = True


def _lines_of(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines and their numbers, from 1, behind the comments at the begin, but for empty ones."""
    is_begin = True
    for number, line in enumerate(iter(lambda: _read_line(file), b""), 1):
        text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if text.strip() and not (is_begin and text.startswith(COMMENTS)):
            is_begin = False
            yield number, text


def _with_single_blanks(block: bytes) -> bytes:
    """Whole lines, whose blanks and tabs became one between two values and none around them."""
    if block.startswith((b" ", b"\t")) or any(run in block for run in (b"  ", b"\t", b" \n", b" \r", b"\n ")):
        for pattern, by in _RUNS:
            block = pattern.sub(by, block)
        block = block.strip(b" ") or b"\n"
    return _with_an_end(block)


def _with_an_end(block: bytes) -> bytes:
    """Whole lines; Arrow reads no line that is alone and has no end."""
    return block if block.endswith((b"\n", b"\r")) else block + b"\n"


def _is_delimiter(given: object) -> bool:
    return isinstance(given, str) and len(given) == 1 and given.isascii() and given not in '\r\n"'


def _delimiter_of(line: str) -> str:
    """The first delimiter in a line; nothing where there is none."""
    chosen = next((mark for mark in DELIMITERS if mark in line.strip()), "")
    if chosen == "\t" and BLANKS in line:
        are_numbers = all(_NUMBER.fullmatch(cell) for cell in line.split())  # as KONECT has them
        return BLANKS if are_numbers else chosen
    return chosen


def _named_ends(header: Sequence[str], known: Sequence[tuple[str, str]] = END_NAMES) -> tuple[int, int] | None:
    """The columns that a header calls source and target in so many words."""
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
            f"{path} has {ends} in its first line and integers in the next: tell with has_header=True or False whether "
            "the first names the columns"
        )
    return True
