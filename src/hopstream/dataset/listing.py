"""Reads the lines of a short list that a user wrote, of machines or of roots."""

from __future__ import annotations

from pathlib import Path

from hopstream.errors import FormatError

MAX_FILE_BYTES = 16 << 20


def read_listing(path: Path, what: str, line: str) -> list[tuple[str, list[str]]]:
    """Read a file with a line per thing; blank lines, and what follows a ``#`` at a word's begin, are left out.

    Args:
        path: The file.
        what: What a line stands for, in one word.
        line: What is on a line, as messages show it, ``name [other]``; no line has more words.

    Returns:
        ``file:number`` and the words of each line.

    Raises:
        FormatError: The file is missing, too long, no text, or lists nothing, or a line has too many words.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FormatError(f"{path} has more than {MAX_FILE_BYTES} bytes; it is no list of {what}s")
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
