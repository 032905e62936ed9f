"""How does a PyG ``Data`` or ``HeteroData`` become a graph?

The objects are known by their methods alone: neither torch nor torch_geometric is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest.attributes import graph_from_attributes, graph_from_typed_attributes
from hopstream.schema import EdgeType

UNREAD = frozenset({"HyperGraphData", "TemporalData"})
"""Classes with the methods of a ``Data`` that mean other things: edges of many nodes, streams of events."""


@runtime_checkable
class DataLike(Protocol):
    """A ``torch_geometric.data.Data``."""

    def to_dict(self) -> dict[str, Any]:
        """Attribute name to value."""
        ...

    def is_node_attr(self, key: str) -> bool:
        """Whether PyG takes an attribute for the nodes'."""
        ...


@runtime_checkable
class HeteroDataLike(Protocol):
    """A ``torch_geometric.data.HeteroData``."""

    @property
    def node_types(self) -> Sequence[str]:
        """Node types that have attributes."""
        ...

    @property
    def edge_types(self) -> Sequence[EdgeType]:
        """Edge types that have attributes."""
        ...

    def __getitem__(self, key: Any) -> Any:
        """The attributes of one type."""
        ...


def graph_from_data(data: DataLike | HeteroDataLike) -> Graph:
    """Make a graph of a PyG data object; ``hopstream.ingest.attributes`` says which attribute becomes what.

    A ``Data`` gets the types ``node`` and ``(node, to, node)``. Tensors on another device are copied to main memory,
    all others are shared with the data object. Attributes of the graph as a whole are left out.

    Raises:
        SchemaError: The object is no data object, keeps its edges in ``adj_t``, has no ``edge_index`` or no
            edge type, or has attributes whose rows fit neither nodes nor edges though their names say so.
        IdRangeError: An edge names a node that is not there.
    """
    if isinstance(data, HeteroDataLike):
        if not data.edge_types:
            names = ", ".join(repr(node_type) for node_type in data.node_types) or "nothing"
            raise SchemaError(
                f"the HeteroData has no edge type with an edge_index; it has {names}; one without edges has an "
                "edge_index of shape [2, 0]"
            )
        return graph_from_typed_attributes(
            {node_type: data[node_type].to_dict() for node_type in data.node_types},
            {edge_type: data[edge_type].to_dict() for edge_type in data.edge_types},
        )
    if isinstance(data, DataLike) and not UNREAD & {kind.__name__ for kind in type(data).__mro__}:
        return graph_from_attributes(data.to_dict())
    raise SchemaError(f"{type(cast(object, data)).__name__} is neither a PyG Data nor a HeteroData")
