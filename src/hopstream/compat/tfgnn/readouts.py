"""Readouts: add predictions to graph tensors, and read values from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopstream.arrays import offsets_of
from hopstream.checks import known_words
from hopstream.compat.tfgnn.examples import check_scalar
from hopstream.compat.tfgnn.graph_tensor import GraphTensor
from hopstream.compat.tfgnn.pieces import Field, NodeSet, shown
from hopstream.compat.tfgnn.schemas import create_schema_pb_from_graph_spec
from hopstream.compat.tfgnn.specs import GraphTensorSpec
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.tfgnn import readout
from hopstream.tfgnn.readout import READOUT, SHADOW


def add_readout_from_first_node(
    graph: GraphTensor, key: str, *, node_set_name: str, readout_node_set: str = READOUT
) -> GraphTensor:
    """Add a prediction per component, read from its first node in one set, which is the seed in samples.

    Args:
        graph: One graph, of any number of components.
        key: Name of the readout.
        node_set_name: The node set of the first nodes.
        readout_node_set: ``_readout``, or ``_readout:<tag>``; if it exists, it must have one node per component.

    Raises:
        SchemaError: The set does not exist, a component has no node in it, or the readout already has the key.
    """
    check_scalar(graph, "add_readout_from_first_node")
    made = readout.add_readout_from_first_node(graph.pieces(), key, node_set_name, readout_node_set=readout_node_set)
    return GraphTensor.of_pieces(made, indices_dtype=graph.indices_dtype)


def structured_readout(
    graph: GraphTensor, key: str, *, feature_name: str, readout_node_set: str = READOUT, validate: bool = True
) -> Field:
    """Return the values that predictions read.

    Args:
        graph: One graph, of any number of components.
        key: A key of the readout.
        feature_name: A feature of every set from which the key reads, of one shape.
        readout_node_set: Node set of the readout.
        validate: Check the readout's indices first.

    Returns:
        dtype[num_predictions, ...].

    Raises:
        SchemaError: The readout is invalid, or a feature is missing or has another shape than the others.
    """
    check_scalar(graph, "structured_readout")
    pieces = graph.pieces()
    return shown(readout.structured_readout(pieces, key, feature_name, node_set=readout_node_set, validate=validate))


def structured_readout_into_feature(  # noqa: PLR0913 - what TF-GNN's own takes, by the same names
    graph: GraphTensor, key: str, *, feature_name: str, new_feature_name: str | None = None,
    remove_input_feature: bool = False, overwrite: bool = False, readout_node_set: str = READOUT, validate: bool = True,
) -> GraphTensor:  # fmt: skip
    """Add the values of ``structured_readout`` as a feature of the predictions.

    Args:
        graph: One graph, of any number of components.
        key: A key of the readout.
        feature_name: A feature of every set from which the key reads.
        new_feature_name: Name of the predictions' feature; None for ``feature_name``.
        remove_input_feature: Remove the feature from the sets that it was read from.
        overwrite: Replace an existing feature of the predictions.
        readout_node_set: Node set of the readout.
        validate: Check the readout's indices first.

    Raises:
        SchemaError: As for ``structured_readout``, or the predictions already have such a feature.
    """
    new_name = new_feature_name or feature_name
    values = structured_readout(
        graph, key, feature_name=feature_name, readout_node_set=readout_node_set, validate=validate
    )
    _check_new(graph, new_name, readout_node_set, overwrite)
    if remove_input_feature:
        names = readout.readout_edges(graph.pieces(), readout_node_set)[key]
        held = [graph.edge_sets[name].adjacency.source_name for name in names]
        graph = graph.remove_features(
            node_sets={of: [feature_name] for of in held if not of.startswith(SHADOW)},
            edge_sets={of.removeprefix(SHADOW): [feature_name] for of in held if of.startswith(SHADOW)},
        )
    return _with_feature(graph, readout_node_set, new_name, values)


def context_readout_into_feature(
    graph: GraphTensor, *, feature_name: str, new_feature_name: str | None = None, remove_input_feature: bool = False,
    overwrite: bool = False, readout_node_set: str = READOUT,
) -> GraphTensor:  # fmt: skip
    """Add a context feature as a feature of the predictions, one per component.

    Args:
        graph: One graph, of any number of components.
        feature_name: A context feature.
        new_feature_name: Name of the predictions' feature; None for ``feature_name``.
        remove_input_feature: Remove the feature from the context.
        overwrite: Replace an existing feature of the predictions.
        readout_node_set: Node set of the readout; it is added if missing.

    Raises:
        SchemaError: The number of predictions differs from that of components, or the predictions already have the
            feature.
        UnknownNameError: There is no such context feature.
    """
    check_scalar(graph, "context_readout_into_feature")
    name, sizes = new_feature_name or feature_name, graph.context.sizes
    values = graph.context[feature_name]
    if readout_node_set not in graph.node_sets:
        if not readout.is_readout(readout_node_set):
            raise SchemaError(f"{readout_node_set!r} is called neither {READOUT} nor {READOUT}:<letters, digits, _>")
        node_sets = {**graph.node_sets, readout_node_set: NodeSet.from_fields(sizes=sizes)}
        graph = GraphTensor.from_pieces(graph.context, node_sets, graph.edge_sets)
    elif not np.array_equal(graph.node_sets[readout_node_set].sizes, sizes):
        got = graph.node_sets[readout_node_set].sizes.tolist()
        raise SchemaError(f"node set {readout_node_set!r} has sizes {got}; wanted one prediction per component")
    _check_new(graph, name, readout_node_set, overwrite)
    if remove_input_feature:
        graph = graph.remove_features(context=[feature_name])
    return _with_feature(graph, readout_node_set, name, values)


def gather_first_node(graph: GraphTensor, node_set_name: str, *, feature_name: str) -> Field:
    """Return the values of the first node of each component in one set.

    Returns:
        dtype[num_components, ...].

    Raises:
        SchemaError: A component has no node in the set, or values vary in size.
        UnknownNameError: There is no such set or feature.
    """
    check_scalar(graph, "gather_first_node")
    if node_set_name not in graph.node_sets:
        raise UnknownNameError(
            f"node set {node_set_name!r} does not exist; {known_words(node_set_name, graph.node_sets)}"
        )
    nodes = graph.node_sets[node_set_name]
    if feature_name not in nodes.items:
        raise UnknownNameError(
            f"node set {node_set_name!r} has no feature {feature_name!r}; {known_words(feature_name, nodes.items)}"
        )
    if not bool(np.all(nodes.sizes)):
        raise SchemaError(f"component {int(np.argmin(nodes.sizes))} has no node in {node_set_name!r}")
    return shown(nodes.items[feature_name].take(offsets_of(nodes.sizes)[:-1]))


def validate_graph_tensor_spec_for_readout(
    graph_spec: GraphTensorSpec, required_keys: Sequence[str] | None = None, *, readout_node_set: str = READOUT
) -> None:
    """Refuse a spec with an invalid readout.

    Args:
        graph_spec: A graph's spec.
        required_keys: Required keys; None requires at least one.
        readout_node_set: Node set of the readout.

    Raises:
        SchemaError: The node set is missing, or an edge set has the wrong name or target.
        UnknownNameError: A key is missing.
    """
    if readout_node_set not in graph_spec.node_sets_spec:
        known = ", ".join(graph_spec.node_sets_spec) or "none"
        raise SchemaError(f"node set {readout_node_set!r} does not exist; known: {known}")
    problems = list(readout.readout_problems(create_schema_pb_from_graph_spec(graph_spec)))
    if problems:
        raise SchemaError("; ".join(problems))
    edges = (readout.readout_edge(name) for name in graph_spec.edge_sets_spec)
    keys = sorted({edge[1] for edge in edges if edge is not None and edge[0] == readout_node_set})
    missing = [key for key in required_keys or () if key not in keys]
    if missing or not (keys or required_keys):
        wanted = f"key {missing[0]!r}" if missing else "key at all"
        raise UnknownNameError(f"{readout_node_set} has no {wanted}; known: {', '.join(keys) or 'none'}")


def validate_graph_tensor_for_readout(
    graph: GraphTensor, required_keys: Sequence[str] | None = None, *, readout_node_set: str = READOUT
) -> GraphTensor:
    """Return the graph if its readout is valid, including the indices.

    Raises:
        SchemaError: As ``validate_graph_tensor_spec_for_readout``, or a prediction does not have exactly one edge.
        UnknownNameError: A key is missing.
    """
    check_scalar(graph, "validate_graph_tensor_for_readout")
    validate_graph_tensor_spec_for_readout(graph.spec, required_keys, readout_node_set=readout_node_set)
    readout.check_readout(graph.pieces(), readout_node_set)
    return graph


def _check_new(graph: GraphTensor, name: str, readout_node_set: str, overwrite: bool) -> None:
    if not overwrite and name in graph.node_sets[readout_node_set].items:
        raise SchemaError(f"{readout_node_set} has feature {name!r} already; pass overwrite=True to replace it")


def _with_feature(graph: GraphTensor, node_set: str, name: str, values: Field) -> GraphTensor:
    return graph.replace_features(node_sets={node_set: {**graph.node_sets[node_set].items, name: values}})
