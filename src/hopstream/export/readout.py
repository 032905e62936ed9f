"""The nodes of a sampled subgraph that a prediction is read out from, and their labels.

A subgraph is sampled around what is to be predicted, so there is one prediction per graph: its seed, which is the first
node of its set, or the link between its two seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.checks import known_words
from hopstream.errors import SchemaError
from hopstream.schema import FeatureSchema, GraphSchema
from hopstream.tfgnn.graph_schema import schema_message
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.readout import READOUT, add_readout, add_readout_from_first_node, structured_readout
from hopstream.tfgnn.sampling_spec import LINK_ENDS
from hopstream.tfgnn.values import FeatureValues

SEED_KEY = "seed"
LINK_KEYS = ("source", "target")


def add_seed_readout(pieces: GraphPieces, node_set: str, labels: Sequence[str] = ()) -> GraphPieces:
    """Read each graph out at its seed: node set ``_readout`` of one node, edge set ``_readout/seed``.

    Args:
        pieces: Graphs of one component whose seeds are the first nodes of their set.
        node_set: The seeds' node set.
        labels: Features of it that move: ``_readout`` gets the seed's value, and the node set, where a model would see
            the answer, loses them.

    Returns:
        New pieces, which share what did not change.

    Raises:
        SchemaError: The node set or a label is not there, a graph has no node in it, values of a label vary in size, or
            the graphs have a readout of seeds already.
    """
    read = add_readout_from_first_node(pieces, SEED_KEY, node_set)
    values = {name: structured_readout(read, SEED_KEY, name, validate=False) for name in labels}
    held = read.node_sets[node_set]
    kept = {name: of for name, of in held.features.items() if name not in values}
    return with_readout_values(
        replace(read, node_sets={**read.node_sets, node_set: replace(held, features=kept)}), values
    )


def add_link_readout(
    pieces: GraphPieces, node_sets: tuple[str, str], source_places: IntArray, target_places: IntArray
) -> GraphPieces:
    """Read each graph out at the ends of its link: ``_readout`` of one node, ``_readout/source``, ``_readout/target``.

    Args:
        pieces: Graphs of one component.
        node_sets: Those of sources and of targets.
        source_places: int64[num_graphs], the source's place among the nodes of its graph.
        target_places: int64[num_graphs], likewise the target's.

    Raises:
        SchemaError: A node set is not there, or a readout of links is.
    """
    places = (source_places, target_places)
    return add_readout(pieces, dict(zip(LINK_KEYS, zip(node_sets, places, strict=True), strict=True)))


def with_readout_values(pieces: GraphPieces, values: Mapping[str, FeatureValues]) -> GraphPieces:
    """Add features, such as labels of links, to the readout.

    Args:
        pieces: Graphs that have a readout.
        values: Values per prediction by name.

    Raises:
        SchemaError: The graphs have no readout, or values are there already or for another number of predictions.
    """
    if READOUT not in pieces.node_sets:
        raise SchemaError(f"node set {READOUT!r} is not there; known: {', '.join(sorted(pieces.node_sets))}")
    held = pieces.node_sets[READOUT]
    num_predictions = int(np.sum(held.sizes))
    for name, of in values.items():
        if name in held.features:
            raise SchemaError(f"{READOUT} has a feature {name!r} already")
        if of.num_items != num_predictions:
            raise SchemaError(f"{READOUT}.{name} has values of {of.num_items} items; there are {num_predictions}")
    with_values = replace(held, features={**held.features, **values})
    return replace(pieces, node_sets={**pieces.node_sets, READOUT: with_values})


def declare_seed_readout(schema: Any, node_set: str, labels: Sequence[str] = ()) -> None:
    """Say in a ``GraphSchema`` message what ``add_seed_readout`` does to graphs.

    Raises:
        SchemaError: The node set or a label is not there.
    """
    if node_set not in schema.node_sets:
        raise SchemaError(f"node set {node_set!r} is not there; {known_words(node_set, sorted(schema.node_sets))}")
    features = schema.node_sets[node_set].features
    _declare_edges(schema, f"{READOUT}/{SEED_KEY}", node_set)
    for name in labels:
        if name not in features:
            raise SchemaError(f"{node_set} has no feature {name!r}; {known_words(name, sorted(features))}")
        schema.node_sets[READOUT].features[name].CopyFrom(features[name])
        del features[name]


def declare_link_readout(schema: Any, source_set: str, target_set: str) -> None:
    """Say in a ``GraphSchema`` message what ``add_link_readout`` does to graphs; what it says already is kept."""
    for name, node_set in zip(LINK_ENDS, (source_set, target_set), strict=True):
        _declare_edges(schema, name, node_set)


def declare_readout_values(schema: Any, values: Mapping[str, FeatureSchema]) -> None:
    """Say in a ``GraphSchema`` message which features ``with_readout_values`` adds.

    Raises:
        SchemaError: A feature is of a kind that TF-GNN does not store.
    """
    declared = schema_message(GraphSchema(nodes={READOUT: dict(values)}, edges={}))
    schema.node_sets[READOUT].features.MergeFrom(declared.node_sets[READOUT].features)


def _declare_edges(schema: Any, name: str, source_set: str) -> None:
    schema.node_sets[READOUT].SetInParent()
    if name not in schema.edge_sets:
        schema.edge_sets[name].source, schema.edge_sets[name].target = source_set, READOUT
