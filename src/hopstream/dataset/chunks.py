"""Splits row ranges into bounded chunks, and parses texts that name parts, machines or roots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.errors import FormatError, SettingsError

MAX_FILE_BYTES = 16 << 20


def read_listing(path: Path, what: str, line: str) -> list[tuple[str, list[str]]]:
    """Read a file with one item per line, without blank lines and ``#`` comments.

    Args:
        path: The file.
        what: What a line names, in one word, for messages.
        line: Pattern of a line for messages, such as ``name [other]``; no line has more words.

    Returns:
        ``file:number`` and the words of each line.

    Raises:
        FormatError: The file is missing, too long, not text, or empty, or a line has too many words.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FormatError(f"{path} has more than {MAX_FILE_BYTES} bytes, so it is not a list of {what}s")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing; write a line '{line}' for each {what}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} cannot be read: {error}") from error
    listed: list[tuple[str, list[str]]] = []
    for number, told in enumerate(text.splitlines(), start=1):
        words = told.split()
        comment = next((i for i, word in enumerate(words) if word.startswith("#")), len(words))
        if not comment:
            continue
        if comment > len(line.split()):
            raise FormatError(f"{path}:{number} has {comment} words; a line is '{line}'")
        listed.append((f"{path}:{number}", words[:comment]))
    if not listed:
        raise FormatError(f"{path} names no {what}; write a line '{line}' for each")
    return listed


_PIECE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)


def parse_parts(text: str, num_parts: int, where: str = "--parts") -> tuple[int, ...]:
    """Parse parts from numbers and ranges: ``0,2``, ``4-7``, ``all``.

    Args:
        text: The text.
        num_parts: Number of parts of the dataset.
        where: Name of the text in messages.

    Returns:
        The parts, ascending, without duplicates.

    Raises:
        SettingsError: The text has another form, or names a part that does not exist.
    """
    if text == "all":
        return tuple(range(num_parts))
    parts: set[int] = set()
    for piece in text.split(","):
        found = _PIECE.fullmatch(piece)
        if not found:
            raise SettingsError(f"{where} has {piece!r}; write numbers and ranges such as 0,2 or 4-7, or all")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last >= num_parts:
            raise SettingsError(f"{where} has {piece!r}; the dataset's parts are numbered 0..{num_parts - 1}")
        parts.update(range(first, last + 1))
    return tuple(sorted(parts))


CHUNK_ITEMS = 1 << 22
"""Edges, or elements of ragged rows, per chunk."""


def row_chunks(offsets: IntArray, num_items: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Yield ``(first row, end row, first item, end item)`` of chunks of about ``num_items`` items.

    A row with more items is a chunk of its own. A chunk has at most ``num_items`` rows, too.

    Args:
        offsets: int64[num_rows + 1], ascending.
        num_items: Items per chunk; None for ``CHUNK_ITEMS``.
    """
    num_items = CHUNK_ITEMS if num_items is None else num_items
    first, num_rows = 0, len(offsets) - 1
    while first < num_rows:
        start = int(offsets[first])
        last = int(np.searchsorted(offsets, start + num_items, side="right")) - 1
        last = min(max(last, first + 1), first + num_items, num_rows)
        yield first, last, start, int(offsets[last])
        first = last


def stretches_of(starts: Array, bounds: IntArray) -> Iterable[tuple[int, int, int]]:
    """Yield ``(which, first, stop)``, the non-empty ranges of ``starts`` in each range of ``bounds``.

    Args:
        starts: integer[n], ascending.
        bounds: int64[m + 1], ascending.
    """
    places = np.searchsorted(starts, bounds)
    for which in np.flatnonzero(np.diff(places)):
        yield int(which), int(places[which]), int(places[which + 1])


def overlaps(first: int, stop: int, bounds: IntArray) -> Iterable[tuple[int, int, int]]:
    """Yield ``(which, begin, end)``, the overlap of ``[first, stop)`` with each range of ``bounds``."""
    which = int(np.searchsorted(bounds, first, side="right")) - 1
    while first < stop:
        end = min(stop, int(bounds[which + 1]))
        if end > first:
            yield which, first, end
        first, which = max(first, end), which + 1


def cut_counts(counts: IntArray, max_items: int) -> Iterator[tuple[slice, int, IntArray]]:
    """Cut rows into chunks of at most ``max_items`` items; a longer row is split into several chunks.

    Args:
        counts: int64[n], the items of each row.
        max_items: Most items per chunk.

    Yields:
        The chunk's rows, the items of its first row in earlier chunks, and int64[rows], the items of each row in the
        chunk.
    """
    for first, stop, begin, end in row_chunks(offsets_of(counts), max_items):
        if end - begin <= max_items:
            yield slice(first, stop), 0, counts[first:stop]
        else:
            for skipped in range(0, end - begin, max_items):
                yield slice(first, stop), skipped, np.array([min(max_items, end - begin - skipped)], np.int64)


def positions_of(starts: IntArray, counts: IntArray) -> IntArray:
    """Return int64[sum(counts)], the positions ``starts[i] .. starts[i] + counts[i] - 1`` of each row."""
    offsets = offsets_of(counts)
    return np.arange(int(offsets[-1]), dtype=np.int64) + np.repeat(starts - offsets[:-1], counts)
