"""May a folder be written, given what is read for it?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hopstream.errors import SettingsError
from hopstream.uris import local_path


def check_apart(out: str | os.PathLike[str], inputs: Mapping[str, str | os.PathLike[str]], name: str = "out") -> None:
    """Refuse a place to write that is, holds, or lies in something that is read.

    Folders beside each other are apart, whatever they lie in; so is a folder beside a file that is read.

    Args:
        out: The place.
        inputs: What is read, in a few words, to where it is: a folder, or a file. The metadata of a chunked graph
            stands for its folder, out of which its files do not lead.
        name: The argument that gave the place, for the message.

    Raises:
        SettingsError: They are not apart; the message says which is in which.
    """
    target = Path(os.path.realpath(local_path(out)))
    for what, given in inputs.items():
        given = local_path(given)
        path = _folder_of_pieces(given) or given
        source = Path(os.path.realpath(path))
        if target == source:
            how = f"which is {what} itself"
        elif source in target.parents and not source.is_file():
            how = f"which lies in {path}, {what}"
        elif target in source.parents:
            how = f"which holds {path}, {what}"
        else:
            continue
        raise SettingsError(f"{name} is {out}, {how}; give a folder beside what is read")


def _folder_of_pieces(path: Path) -> Path | None:
    if path.suffix != ".json" or not path.is_file():
        return None
    from hopstream.ingest.chunked import is_chunked  # only here: it loads Arrow, which not all who ask here need
    from hopstream.ingest.described import are_partitions

    return path.parent if are_partitions(path) or is_chunked(path) else None
