"""Reads texts that name parts, such as ``0,2-5``."""

from __future__ import annotations

import re

from hopstream.errors import SettingsError

_PIECE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)


def parse_parts(text: str, num_parts: int, where: str = "--parts") -> tuple[int, ...]:
    """Parts from numbers and ranges: ``0,2``, ``4-7``, ``all``.

    Args:
        text: The text.
        num_parts: How many parts the dataset has.
        where: What messages say holds the text.

    Returns:
        The parts, ascending, each once.

    Raises:
        SettingsError: The text is none of these, or names a part that is not there.
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
