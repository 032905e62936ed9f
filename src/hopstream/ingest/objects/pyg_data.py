"""Makes a graph from a PyG ``Data`` or ``HeteroData``, or from three of ``RandomLinkSplit``.

The objects are recognized by their methods; neither torch nor torch_geometric is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest.objects.attributes import (
    SPLIT_IDX,
    SPLITS_ARE_CALLED,
    Attributes,
    features_like_splits,
    graph_from_attributes,
    graph_from_typed_attributes,
    is_like_split,
    left_out,
)
from hopstream.ingest.objects.link_splits import LINKS, SPLITS, with_links
from hopstream.schema import EDGE, NODE, EdgeType, type_label

LOG = logging.getLogger(__name__)

UNREAD = frozenset({"HyperGraphData", "TemporalData"})
"""Classes with the methods of ``Data`` but another meaning: hyperedges, streams of events."""


@runtime_checkable
class DataLike(Protocol):
    """A ``torch_geometric.data.Data``."""

    def to_dict(self) -> dict[str, Any]:
        """Return attribute name to value."""
        ...

    def is_node_attr(self, key: str) -> bool:
        """Return whether PyG considers an attribute to be one of nodes."""
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
        """Return the attributes of one type."""
        ...


DataObjects = DataLike | HeteroDataLike | Sequence[DataLike | HeteroDataLike]


def graph_from_data(data: DataObjects) -> Graph:
    """Make a graph from a PyG data object.

    ``hopstream.ingest.objects.attributes`` describes the meaning of attributes. For a ``Data``, the types are ``node``
    and ``(node, to, node)``. Tensors on other devices are copied to main memory; other tensors share memory with the
    data object. Attributes of the graph as a whole are dropped, and a warning in the log names them. Another warning
    names bool features that are named like splits.

    Args:
        data: A :class:`torch_geometric.data.Data` or :class:`torch_geometric.data.HeteroData`; or the three objects for
            training, validation and testing that PyG's ``RandomLinkSplit`` returns. In that case the graph has the
            nodes and edges of the first, and the links of all three as label types with splits (see
            ``hopstream.ingest.objects.link_splits``).

    Raises:
        SchemaError: The object is not a data object, keeps its edges in ``adj_t``, or has no ``edge_index`` or no edge
            type; or an attribute has the wrong number of rows for its name; or three objects are not link splits of one
            graph; or a feature has the name of an attribute of every batch, such as ``n_id`` or ``batch``.
        IdRangeError: An edge, link or split names a node that does not exist.
    """
    if isinstance(data, list | tuple):
        if len(data) != len(SPLITS):
            raise SchemaError(f"got {len(data)} data objects; give one, or the three that RandomLinkSplit returns")
        objects = [_read(one) for one in data]
        _warn_of(objects[0], has_links=True)
        edges = [{t: of for t, of in attributes.items() if isinstance(t, tuple)} for _, attributes in objects]
        return with_links(objects[0][0], edges)
    found = _read(data)
    _warn_of(found)
    return found[0]


def _read(data: object) -> tuple[Graph, dict[Any, Attributes]]:
    """Read a data object: the graph, and the attributes by type; key None for the graph as a whole."""
    if isinstance(data, HeteroDataLike):
        if not data.edge_types:
            names = ", ".join(repr(node_type) for node_type in data.node_types) or "nothing"
            raise SchemaError(
                f"the HeteroData has no edge type with an edge_index; it has {names}; for an edge type without edges, "
                "give shape [2, 0]"
            )
        nodes: dict[str, Attributes] = {node_type: data[node_type].to_dict() for node_type in data.node_types}
        edges: dict[EdgeType, Attributes] = {edge_type: data[edge_type].to_dict() for edge_type in data.edge_types}
        of_graph = dict(cast(Any, data).to_dict().get("_global_store", {}))
        split_idx = of_graph.get(SPLIT_IDX)
        if isinstance(split_idx, Mapping) and all(isinstance(of, Mapping) for of in split_idx.values()):
            del of_graph[SPLIT_IDX]
            for node_type in nodes:
                keys = {name: of[node_type] for name, of in split_idx.items() if node_type in of}
                nodes[node_type] = {SPLIT_IDX: keys, **nodes[node_type]} if keys else nodes[node_type]
        return graph_from_typed_attributes(nodes, edges), {**nodes, **edges, None: of_graph}
    if isinstance(data, DataLike) and not UNREAD & {kind.__name__ for kind in type(data).__mro__}:
        attributes = data.to_dict()
        return graph_from_attributes(attributes), {EDGE: attributes}
    raise SchemaError(
        f"{type(data).__name__} is neither a PyG Data nor a HeteroData; hopstream.graph has graph_from_arrays, "
        "graph_from_scipy and graph_from_networkx for other objects"
    )


def _warn_of(found: tuple[Graph, Mapping[Any, Attributes]], *, has_links: bool = False) -> None:
    """Log warnings for dropped attributes, and for features that may be splits."""
    graph, attributes = found
    names: list[str] = []
    features: list[str] = []
    for entity, of_entity in attributes.items():
        entities: list[Any] = (
            [NODE, EDGE] if entity == EDGE and graph.schema.is_homogeneous else [entity] if entity else []
        )
        label = f"{entity if isinstance(entity, str) else type_label(entity)}." if len(entities) == 1 else ""
        names += [label + name for name in left_out(graph, of_entity, *entities) if not (has_links and name in LINKS)]
        features += [label + name for name in features_like_splits(graph, of_entity, *entities)]
    links = [name for name in names if name.rpartition(".")[2] in LINKS]
    if links:
        LOG.warning(
            "%s are left out: links to predict are not edges; give the three objects that RandomLinkSplit returned, "
            "as read_graph((train_data, val_data, test_data)), or give them to LinkNeighborLoader",
            ", ".join(links),
        )
    others = [name for name in names if name not in links]
    if others:
        LOG.warning("%s are left out: they have no row per node or edge", ", ".join(others))
    like_splits = [name for name in others if is_like_split(name.rpartition(".")[2])]
    if like_splits:
        LOG.warning("%s may be splits and are left out: %s", ", ".join(like_splits), SPLITS_ARE_CALLED)
    if features:
        LOG.warning(
            "%s may be splits, but are read as features, which models see: %s", ", ".join(features), SPLITS_ARE_CALLED
        )
