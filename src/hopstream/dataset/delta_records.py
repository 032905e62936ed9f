"""Records of appended deltas, in a manifest and on the wire."""

from __future__ import annotations

import re
from typing import Any, cast

from hopstream.dataset.book import Delta, EdgeOwner, Overlay, PartitionBook
from hopstream.errors import FormatError
from hopstream.schema import Direction, EdgeType


def deltas_to_json(book: PartitionBook) -> list[dict[str, Any]]:
    """A JSON value that ``deltas_from_json`` reads back."""
    return [
        {
            "digest": delta.digest,
            "edges": [{"type": list(edge_type), "new": count} for edge_type, count in delta.num_edges.items()],
            "overlays": [
                {
                    "type": list(owner[0]),
                    "direction": owner[1],
                    "part": o.part,
                    "rows": o.num_rows,
                    "edges": o.num_edges,
                    "new": o.num_new,
                }
                for owner, overlays in delta.overlays.items()
                for o in overlays
            ],
        }
        for delta in book.deltas
    ]


def deltas_from_json(value: Any) -> tuple[Delta, ...]:
    """Read what ``deltas_to_json`` wrote; the book that they go into checks them against its parts.

    Raises:
        FormatError: The value is something else.
    """
    try:
        return tuple(_delta(number, record) for number, record in enumerate(value, 1))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"deltas cannot be read ({error!r}): {str(value)[:200]}") from error


def _delta(number: int, record: dict[str, Any]) -> Delta:
    overlays: dict[EdgeOwner, tuple[Overlay, ...]] = {}
    for told in record["overlays"]:
        owner = (_edge_type(told["type"]), cast(Direction, told["direction"]))
        overlay = Overlay(
            delta=number, part=_count(told["part"]), num_rows=_count(told["rows"]), num_edges=_count(told["edges"]),
            num_new=_count(told["new"]),
        )  # fmt: skip
        overlays[owner] = (*overlays.get(owner, ()), overlay)
    return Delta(
        num_edges={_edge_type(e["type"]): _count(e["new"]) for e in record["edges"]}, overlays=overlays,
        digest=_digest(record["digest"]),
    )  # fmt: skip


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{32}", value):
        raise ValueError(f"{str(value)[:80]!r} is no digest")
    return value


def _edge_type(value: Any) -> EdgeType:
    source, relation, destination = value
    return str(source), str(relation), str(destination)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no count")
    return value
