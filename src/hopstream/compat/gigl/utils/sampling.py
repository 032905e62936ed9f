"""Fan-outs as text, and anchors with labels in the form of ``fetch_ablp_input``."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hopstream.compat.gigl.src.common.types.graph_data import EdgeType, NodeType
from hopstream.errors import SettingsError, quoted
from hopstream.schema import is_edge_type

MAX_TEXT = 10_000
"""Limit of characters in a fan-out."""


@dataclass(frozen=True, eq=False)
class ABLPInputNodes:
    """Anchors of one server, and the label nodes of each.

    Attributes:
        anchor_nodes: int64[n], ids.
        anchor_node_type: Type of the anchors.
        labels: Supervision edge type, from anchors to label nodes, to int64[n, m] ids of positives and int64[n, k] of
            negatives, or None without negatives; rows are padded with -1.
    """

    anchor_nodes: Tensor
    anchor_node_type: NodeType
    labels: dict[EdgeType, tuple[Tensor, Tensor | None]]


def parse_fanout(fanout_str: str) -> list[int] | dict[EdgeType, list[int]]:
    """Parse neighbours per hop from a text: ``[10, 5]``, or ``{("user", "to", "item"): [10, 5]}``.

    Args:
        fanout_str: A list of integers, or a dict from three strings to such lists, in Python's syntax; only literals
            are parsed.

    Raises:
        SettingsError: The text has another form, or is longer than ``MAX_TEXT``.
    """
    value: Any = None
    if isinstance(fanout_str, str) and len(fanout_str) <= MAX_TEXT:
        try:
            value = ast.literal_eval(fanout_str)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = None
    if _is_fanout(value):
        return list(value)
    if not isinstance(value, dict) or not all(is_edge_type(key) and _is_fanout(hops) for key, hops in value.items()):
        raise SettingsError(
            f"the fan-out is {quoted(fanout_str)}; write [10, 5], or {{('user', 'to', 'item'): [10, 5]}}, in "
            f"{MAX_TEXT} characters at most"
        )
    return {EdgeType(*key): hops for key, hops in value.items()}


def _is_fanout(value: object) -> bool:
    return isinstance(value, list) and all(type(count) is int for count in value)
