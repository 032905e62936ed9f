"""Which roots does a file list, and which parts does it give them?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hopstream.dataset.listing import read_listing
from hopstream.dataset.part_numbers import parse_parts
from hopstream.errors import FormatError, SettingsError
from hopstream.transfer.place import RootList
from hopstream.uris import shown_uri


def read_root_list(path: Path) -> list[tuple[str, str | None]]:
    """Read a file with a line ``URI [parts]`` per root; see ``read_listing`` for what is left out.

    Returns:
        The URI of each root and the text of its parts, which all roots have or none.

    Raises:
        FormatError: The file is missing, lists nothing, or has a line that is none; the message has its number.
    """
    found: list[tuple[str, str | None]] = []
    for where, words in read_listing(path, "root", "URI [parts]"):
        parts = words[1] if len(words) == 2 else None
        if found and (found[0][1] is None) != (parts is None):
            raise FormatError(f"{where} and the lines before differ: name the parts of all roots, or of none")
        found.append((words[0], parts))
    return found


def roots_of_list(listed: Sequence[tuple[str, str | None]], num_parts: int) -> RootList:
    """What ``place`` takes, of what ``read_root_list`` read.

    Raises:
        SettingsError: The parts of a root are no numbers and ranges, or a root is listed twice.
    """
    if not listed or listed[0][1] is None:
        return [uri for uri, _ in listed]
    roots: dict[str, Sequence[int]] = {}
    for uri, text in listed:
        if uri in roots:
            raise SettingsError(f"{shown_uri(uri)} is given as a root twice; name it once, with all of its parts")
        roots[uri] = parse_parts(text or "all", num_parts, f"the line of {shown_uri(uri)}")
    return roots
