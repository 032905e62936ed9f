"""Which roots does a file list, and which parts does it give them?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hopstream.errors import FormatError, SettingsError
from hopstream.partition.part_numbers import parse_parts
from hopstream.transfer.place import RootList
from hopstream.transfer.uris import shown_uri

MAX_FILE_BYTES = 16 << 20


def read_root_list(path: Path) -> list[tuple[str, str | None]]:
    """Read a file with a line ``URI [parts]`` per root; blank lines and what follows ``#`` after a space are left out.

    Returns:
        The URI of each root and the text of its parts, which all roots have or none.

    Raises:
        FormatError: The file is missing, lists nothing, or has a line that is none; the message has its number.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FormatError(f"{path} has more than {MAX_FILE_BYTES} bytes; it is no list of roots")
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing; write a line 'URI [parts]' for each root") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} cannot be read: {error}") from error
    found: list[tuple[str, str | None]] = []
    for number, line in enumerate(lines, start=1):
        words = [] if line.lstrip().startswith("#") else line.partition(" #")[0].split()
        if not words:
            continue
        if len(words) > 2:
            raise FormatError(f"{path}:{number} has {len(words)} words; a line is 'URI [parts]', parts as in 0,2-5")
        parts = words[1] if len(words) == 2 else None
        if found and (found[0][1] is None) != (parts is None):
            raise FormatError(f"{path}:{number} and the lines before differ: name the parts of all roots, or of none")
        found.append((words[0], parts))
    if not found:
        raise FormatError(f"{path} lists no root; write a line 'URI [parts]' for each")
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
