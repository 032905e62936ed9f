"""Reads pairs of integers from the lines of a stretch of a CSV file, and finds where lines end.

A line is two integers with one delimiter between them. There is no header, no quoting, and no empty line, so a row is a
line and lines are counted by counting line feeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from hopstream.arrays import IntArray
from hopstream.errors import FormatError, SchemaError
from hopstream.ingest.chunked.edge_files import EdgeFile, Rows
from hopstream.ingest.chunked.sources import Span

SHORTEST_LINE = 4
PARSED_BYTES = (4 << 20) - SHORTEST_LINE
"""How much is parsed at once: at most ``BLOCK_ROWS`` of the shortest lines."""
COUNTED_BYTES = 1 << 20
NAMES = ["src", "dst"]
LINE_FEED = ord("\n")


class LinesFile(EdgeFile):
    """One CSV file."""

    def __init__(self, path: Path, shown: str, delimiter: str) -> None:
        """Look at the size of the file."""
        self._path = path
        self.shown = shown
        self._delimiter = delimiter
        self._num_bytes = path.stat().st_size

    def place(self, row: int) -> str:
        """A row, as messages show it: its line, from 1."""
        return f"{self.shown} line {row + 1}"

    def count(self, declared: int | None) -> int | None:
        """As ``EdgeFile.count``."""
        shortest = (declared or 0) * SHORTEST_LINE - 1  # the last line may end without a line feed
        if declared is not None and (bool(declared) != bool(self._num_bytes) or self._num_bytes < shortest):
            raise SchemaError(f"{self.shown} is {self._num_bytes} bytes; the metadata says {declared} edges")
        return declared if self._num_bytes else 0

    def spans(self, number: int, declared: int | None, max_rows: int) -> list[Span]:
        """As ``EdgeFile.spans``; lines are counted where the whole file is not one span of rows that are declared.

        Raises:
            FormatError: The file cannot be read, or is shorter than it was.
        """
        if declared is not None and declared <= max_rows:
            return [_span(number, 0, declared, 0, self._num_bytes)] if declared else []
        found: list[Span] = []
        num_lines, first_byte, at = 0, 0, 0
        for block in self._blocks(0, self._num_bytes, COUNTED_BYTES):
            values = np.frombuffer(block, np.uint8)
            here = int(np.count_nonzero(values == LINE_FEED))
            wanted = (len(found) + 1) * max_rows - num_lines
            if here >= wanted:
                ends = np.flatnonzero(values == LINE_FEED)
                for end in ends[wanted - 1 :: max_rows]:
                    found.append(_span(number, len(found) * max_rows, max_rows, first_byte, at + int(end) + 1))
                    first_byte = found[-1].end_byte
            num_lines += here
            at += len(block)
            is_ended = values[-1] == LINE_FEED
        if first_byte < self._num_bytes:
            first_row = len(found) * max_rows
            num_rows = num_lines + (not is_ended) - first_row
            found.append(_span(number, first_row, num_rows, first_byte, self._num_bytes))
        return found

    def read(self, span: Span) -> Iterator[Rows]:
        """As ``EdgeFile.read``.

        Raises:
            FormatError: A line has not two cells, or the file is shorter than it was.
            SchemaError: A cell is no integer.
        """
        row, rest = span.first_row, b""
        for block in self._blocks(span.first_byte, span.end_byte, PARSED_BYTES):
            cut = block.rfind(b"\n") + 1
            if not cut and len(rest) + len(block) > PARSED_BYTES:
                raise FormatError(f"{self.place(row)} is longer than {PARSED_BYTES} bytes; is the file a CSV file?")
            lines, rest = rest + block[:cut], block[cut:] if cut else rest + block
            for part in self._parsed(row, lines):
                yield row, *part
                row += len(part[0])
        for part in self._parsed(row, rest):
            yield row, *part

    def _parsed(self, row: int, lines: bytes) -> Iterator[tuple[IntArray, IntArray]]:
        if not lines:
            return
        read = pacsv.ReadOptions(column_names=NAMES, use_threads=False, block_size=len(lines) + 1)
        parse = pacsv.ParseOptions(delimiter=self._delimiter, quote_char=False, ignore_empty_lines=False)
        convert = pacsv.ConvertOptions(column_types=dict.fromkeys(NAMES, pa.int64()), null_values=[])
        try:
            table = pacsv.read_csv(pa.BufferReader(lines), read, parse, convert)
        except pa.ArrowException as error:
            raise self._error(row, lines, error) from error
        if b"x" in lines or b"X" in lines:  # Arrow reads 0x10 as 16
            raise self._error(row, lines, None)
        if not table.num_rows or table.num_rows != lines.count(b"\n") + (lines[-1] != LINE_FEED):
            raise self._error(row, lines, None)
        for batch in table.to_batches():
            yield batch.column(0).to_numpy(), batch.column(1).to_numpy()

    def _error(self, row: int, lines: bytes, error: Exception | None) -> FormatError | SchemaError:
        """What is wrong with the first bad line; slow, but only an error reads lines this way."""
        delimiter = self._delimiter.encode()
        for number, line in enumerate(lines.removesuffix(b"\n").split(b"\n"), row):
            cells = line.removesuffix(b"\r").split(delimiter)
            if len(cells) != len(NAMES):
                shown = line[:100].decode(errors="backslashreplace")
                return FormatError(
                    f"{self.place(number)} is {shown!r}, {len(cells)} cells with delimiter {self._delimiter!r}; wanted "
                    f"two integers, as in '0{self._delimiter}1'"
                )
            bad = next((cell for cell in cells if not _is_int64(cell)), None)
            if bad is not None:
                shown = bad[:100].decode(errors="backslashreplace")
                return SchemaError(f"{self.place(number)} has {shown!r}; wanted an integer")
        last_line = row + lines.count(b"\n")
        return FormatError(f"{self.shown} lines {row + 1} to {last_line} cannot be read as csv ({error})")

    def _blocks(self, first_byte: int, end_byte: int, block_bytes: int) -> Iterator[bytes]:
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(first_byte)
                while first_byte < end_byte:
                    block = file.read(min(block_bytes, end_byte - first_byte))
                    if not block:
                        raise FormatError(f"{self.shown} is shorter than when it was opened; was it replaced?")
                    yield block
                    first_byte += len(block)
        except OSError as error:
            raise FormatError(f"{self.shown} cannot be read ({error})") from error


def _span(file: int, first_row: int, num_rows: int, first_byte: int, end_byte: int) -> Span:
    return Span(file=file, first_row=first_row, num_rows=num_rows, first_byte=first_byte, end_byte=end_byte)


def _is_int64(cell: bytes) -> bool:
    return bool(re.fullmatch(rb"[ \t]*-?\d{1,19}[ \t]*", cell)) and -(1 << 63) <= int(cell) < 1 << 63
