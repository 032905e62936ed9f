"""How is a graph tensor of one node set and one edge set made?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hopstream.compat.tfgnn.adjacency import Adjacency
from hopstream.compat.tfgnn.graph_tensor import GraphTensor
from hopstream.compat.tfgnn.pieces import Context, EdgeSet, NodeSet
from hopstream.compat.tfgnn.specs import GraphTensorSpec
from hopstream.compat.tfgnn.tags import EDGES, HIDDEN_STATE, NODES, get_aux_type_prefix
from hopstream.errors import SchemaError
from hopstream.tfgnn.values import FeatureValues


def homogeneous(  # noqa: PLR0913 - what TF-GNN's own takes, by the same names
    source: Any, target: Any, *, node_features: Any = None, edge_features: Any = None,
    context_features: Mapping[str, Any] | None = None, node_set_name: str = NODES, edge_set_name: str = EDGES,
    node_set_sizes: Any = None, edge_set_sizes: Any = None,
) -> GraphTensor:  # fmt: skip
    """A graph of one node set and one edge set.

    Args:
        source: int[num_edges], the node that each edge comes from.
        target: int[num_edges], the node that it goes to.
        node_features: Features of nodes by name, or one alone, which is called ``hidden_state``.
        edge_features: Likewise of edges.
        context_features: Features of components by name.
        node_set_name: What the node set is called.
        edge_set_name: What the edge set is called.
        node_set_sizes: int[num_components]; one component with all nodes that have features if None.
        edge_set_sizes: int[num_components]; one component with all edges if None.

    Raises:
        SchemaError: It is not said how many nodes there are, or numbers do not fit.
    """
    nodes, edges = _by_name(node_features), _by_name(edge_features)
    if node_set_sizes is None:
        if not nodes:
            raise SchemaError("neither node_features nor node_set_sizes says how many nodes there are")
        node_set_sizes = [FeatureValues.of(next(iter(nodes.values()))).num_items]
    sizes = [len(source)] if edge_set_sizes is None else edge_set_sizes
    adjacency = Adjacency.from_indices((node_set_name, source), (node_set_name, target))
    return GraphTensor.from_pieces(
        Context.from_fields(features=context_features, sizes=np.ones(len(sizes), np.int32)),
        {node_set_name: NodeSet.from_fields(features=nodes, sizes=node_set_sizes)},
        {edge_set_name: EdgeSet.from_fields(features=edges, sizes=sizes, adjacency=adjacency)},
    )


def get_homogeneous_node_and_edge_set_name(graph: GraphTensor | GraphTensorSpec) -> tuple[str, str]:
    """The names of the only node set and the only edge set; auxiliary ones, such as ``_readout``, do not count.

    Raises:
        SchemaError: There are others, or none.
    """
    spec = graph.spec if isinstance(graph, GraphTensor) else graph
    node_sets = [name for name in spec.node_sets_spec if get_aux_type_prefix(name) is None]
    edge_sets = [name for name in spec.edge_sets_spec if get_aux_type_prefix(name) is None]
    if len(node_sets) != 1 or len(edge_sets) != 1:
        raise SchemaError(f"there are node sets {node_sets} and edge sets {edge_sets}; wanted one of each")
    return node_sets[0], edge_sets[0]


def _by_name(features: Any) -> Mapping[str, Any]:
    if features is None:
        return {}
    return features if isinstance(features, Mapping) else {HIDDEN_STATE: features}
