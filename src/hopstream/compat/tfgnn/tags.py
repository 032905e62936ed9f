"""What are the parts of a graph tensor called?"""

from __future__ import annotations

import re

_AUXILIARY = re.compile(r"[_#!%.^~][a-zA-Z0-9_]*")
CONTEXT, NODES, EDGES = "context", "nodes", "edges"
"""Types of sets, and how the names of their features begin."""
SOURCE, TARGET = 0, 1
"""The two ends of an edge."""
HIDDEN_STATE = "hidden_state"
"""What models call the feature that they compute."""
DEFAULT_STATE_NAME = HIDDEN_STATE
"""An older name of ``HIDDEN_STATE``."""


def reverse_tag(tag: int) -> int:
    """The other end of an edge.

    Raises:
        ValueError: ``tag`` is neither ``SOURCE`` nor ``TARGET``.
    """
    if tag not in (SOURCE, TARGET):
        raise ValueError(f"tag is {tag!r}; an edge has SOURCE, {SOURCE}, and TARGET, {TARGET}")
    return TARGET if tag == SOURCE else SOURCE


def get_aux_type_prefix(set_name: str) -> str | None:
    """How the name of an auxiliary set begins, such as ``_readout``; None for objects and relations of their own."""
    match = _AUXILIARY.match(set_name)
    return None if match is None else match[0]
