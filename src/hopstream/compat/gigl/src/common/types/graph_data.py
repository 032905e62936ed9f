"""Names of node types and edge types."""

from __future__ import annotations

from typing import NamedTuple, NewType

NodeType = NewType("NodeType", str)
Relation = NewType("Relation", str)


class EdgeType(NamedTuple):
    """Source node type, relation and destination node type; equal to the plain tuple of the three."""

    src_node_type: NodeType
    relation: Relation
    dst_node_type: NodeType

    def __repr__(self) -> str:
        """Return the form ``user-rates-movie``."""
        return "-".join(self)

    def tuple_repr(self) -> tuple[NodeType, Relation, NodeType]:
        """Return the plain tuple."""
        return (self.src_node_type, self.relation, self.dst_node_type)
