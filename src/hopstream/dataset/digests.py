"""Hashes a JSON object, so that a change of any of its values is noticed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hopstream.graph.graph import hex_digest

DIGEST = "digest"
"""The field of a file that holds the hash of all other fields; files of earlier revisions lack it."""


def content_digest(value: Mapping[str, Any]) -> str:
    """Return 32 hexadecimal digits, the 128-bit BLAKE2b hash of an object with sorted keys and no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hex_digest(text.encode())
