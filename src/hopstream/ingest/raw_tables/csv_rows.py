"""Cuts CSV text at the ends of rows and finds the lines that rows begin on, however long their cells are."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from hopstream.errors import FormatError

MAX_ROW_BYTES = 1 << 30
"""A longer row is no row: a quotation mark was never closed, or somebody wants memory."""


def whole_rows(
    read: Callable[[int], bytes], delimiter: str, piece_bytes: int, max_row_bytes: int = MAX_ROW_BYTES
) -> Iterator[bytes]:
    """The text of a file in pieces that end where rows end, as Arrow reads rows.

    Args:
        read: Gives up to so many next bytes, and none at the end.
        delimiter: One ASCII character.
        piece_bytes: How much is read at once. A longer row has a piece that grows until the row ends.
        max_row_bytes: What no row is longer than.

    Raises:
        FormatError: A row is longer.
    """
    rows = _rows_pattern(delimiter)
    rest, wanted = b"", piece_bytes
    while block := read(wanted):
        text = rest + block
        end = _end_of_rows(rows, text)
        if end:
            piece, rest, wanted = text[:end], text[end:], piece_bytes
            del text, block
            yield piece
            continue
        rest, wanted = text, min(max(piece_bytes, len(text)), max_row_bytes + 1 - len(text))
        if wanted <= 0:
            raise FormatError(f"a row is longer than {max_row_bytes} bytes")
    if rest:
        yield rest


def _rows_pattern(delimiter: str) -> re.Pattern[bytes]:
    """Whole rows. No quantifier gives anything back, so the search takes time in proportion to the text."""
    mark = re.escape(delimiter).encode()
    rest = rb"[^" + mark + rb"\r\n]*+"
    cell = rb'(?:"[^"]*+(?:""[^"]*+)*+"' + rest + rb'|[^"' + mark + rb"\r\n]" + rest + rb")?+"
    return re.compile(rb"(?:" + cell + rb"(?:" + mark + cell + rb")*+(?:\r\n?|\n))*+")


def _end_of_rows(rows: re.Pattern[bytes], text: bytes) -> int:
    """Where the last row ends that ends in a text, which begins with a row; 0 where none does."""
    if b'"' not in text:
        return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    begin = 3 if text.startswith(b"\xef\xbb\xbf") else 0  # the mark of UTF-8 before the first cell
    match = rows.match(text, begin)
    end = begin if match is None else match.end()
    return 0 if end == begin else end


def csv_rows(file: IO[str] | Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The line, from 1, and the cells of each row; empty lines are no rows, and a quoted cell may hold several lines.

    Raises:
        csv.Error: A row is none.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))  # 131,072 is what the module begins with
    reader = csv.reader(file, delimiter=delimiter)
    line = 1
    for cells in reader:
        if cells:
            yield line, cells
        line = reader.line_num + 1
