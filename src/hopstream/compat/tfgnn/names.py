"""Names the types of sets and the ends of edges, and says of TF-GNN's other names what to use instead."""

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

_KERAS = "it is for Keras models; train with PyTorch Geometric on hopstream.NeighborLoader or on exported samples"
_OPS = "it is a step of a model; use PyTorch Geometric's layers, or numpy with adjacency.source and .target"
_PADDING = "it pads graphs to the fixed sizes that TPUs need, and nothing here needs those; batch with parse_example"
_PIPELINE = "it works on tf.data pipelines; read records with read_records and batch them with parse_example"
_CHECKS = "what is made or read is always checked"
_HYPER = "edges with more than two ends cannot be written to files; use Adjacency"
_ALIASES = "it only stands for a type; write str, int, numpy.ndarray or Mapping"
_KINDS = "use isinstance with GraphTensor, numpy.ndarray, or FeatureValues, which fields of varying sizes are"
_PRINT = "print write_example(graph), or call tolist on fields"

_NAMES = {
    _KERAS: "keras models runner experimental",
    _OPS: (
        "broadcast broadcast_node_to_edges broadcast_context_to_nodes broadcast_context_to_edges pool "
        "pool_edges_to_node pool_nodes_to_context pool_edges_to_context pool_neighbors_to_node "
        "pool_neighbors_to_node_feature get_registered_reduce_operation_names mask_edges add_self_loops "
        "shuffle_features_globally combine_values reorder_nodes shuffle_nodes node_degree convert_to_line_graph "
        "softmax softmax_edges_per_node"
    ),
    _PADDING: (
        "pad_to_total_sizes assert_satisfies_size_constraints satisfies_size_constraints assert_satisfies_total_sizes "
        "satisfies_total_sizes find_tight_size_constraints learn_fit_or_skip_size_constraints SizeConstraints "
        "FeatureDefaultValues"
    ),
    _PIPELINE: "dataset_filter_with_summary dataset_from_generator",
    _CHECKS: (
        "enable_graph_tensor_inputs_validation disable_graph_tensor_inputs_validation assert_constraints "
        "check_scalar_graph_tensor check_homogeneous_graph_tensor"
    ),
    _HYPER: "HyperAdjacency HyperAdjacencySpec",
    _ALIASES: (
        "Fields FieldsSpec FieldOrFields FieldSpec FieldName SetName SetType NodeSetName EdgeSetName IncidentNodeTag "
        "IncidentNodeOrContextTag"
    ),
    _KINDS: "is_dense_tensor is_ragged_tensor is_graph_tensor",
    _PRINT: "graph_tensor_to_values",
}
REASONS = {name: reason for reason, names in _NAMES.items() for name in names.split()}
"""Why each name is not here."""


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


def missing_name(name: str) -> AttributeError:
    """The error for a name that is not here, with the reason and what to use."""
    if name in REASONS:
        return AttributeError(f"hopstream.compat.tfgnn has no {name!r}: {REASONS[name]}")
    return AttributeError(f"hopstream.compat.tfgnn has no {name!r}; docs/compat-tfgnn.md lists the names that it has")
