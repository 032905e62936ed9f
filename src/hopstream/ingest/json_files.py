"""Reads JSON files and refuses repeated keys."""

from __future__ import annotations

import json

from hopstream.errors import FormatError
from hopstream.places.paths import AnyPath


def read_json(path: AnyPath) -> object:
    """Read a JSON file.

    Raises:
        FormatError: The file is missing or not JSON, or an object in it has a key twice.
    """
    try:
        value: object = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_refuse_repeated_keys)
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    except (ValueError, OSError, RecursionError) as error:
        raise FormatError(f"{path} cannot be read as JSON ({error})") from error
    return value


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key is repeated among {[key for key, _ in pairs]}")
    return found
