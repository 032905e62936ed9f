"""What are the parts of a graph tensor called?"""

from __future__ import annotations

CONTEXT, NODES, EDGES = "context", "nodes", "edges"
"""Types of sets, and how the names of their features begin."""
SOURCE, TARGET = 0, 1
"""The two ends of an edge."""
HIDDEN_STATE = "hidden_state"
"""What models call the feature that they compute."""


def reverse_tag(tag: int) -> int:
    """The other end of an edge.

    Raises:
        ValueError: ``tag`` is neither ``SOURCE`` nor ``TARGET``.
    """
    if tag not in (SOURCE, TARGET):
        raise ValueError(f"tag is {tag!r}; an edge has SOURCE, {SOURCE}, and TARGET, {TARGET}")
    return TARGET if tag == SOURCE else SOURCE
