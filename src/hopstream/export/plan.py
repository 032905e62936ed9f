"""Turns a TF-GNN ``SamplingSpec`` into a plan, and finds the nodes that a prediction is read out from.

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
from hopstream.errors import SchemaError, SettingsError, quoted
from hopstream.sample.plan import SEEDS, SampleOp, SamplePlan
from hopstream.sample.sampling_settings import SamplingSettings, SubgraphType
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema
from hopstream.store.contract import BY_WEIGHT, Store, Strategy
from hopstream.tfgnn.graph_schema import edge_set_names, schema_message
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.readout import READOUT, add_readout, add_readout_from_first_node, structured_readout
from hopstream.tfgnn.sampling_spec import (
    LATEST_K,
    LINK_ENDS,
    RANDOM_UNIFORM,
    RANDOM_WEIGHTED,
    TOP_K,
    WEIGHT_NAMES,
    check_spec,
    seed_of,
    strategy_of,
)
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


STRATEGIES: dict[int, Strategy] = {
    TOP_K: "top_k", RANDOM_UNIFORM: "uniform", RANDOM_WEIGHTED: "weighted", LATEST_K: "last",
}  # fmt: skip
LINK_SEEDS = "symmetric_link_seed_op"


def plan_of_spec(
    spec: Any,
    schema: GraphSchema,
    *,
    subgraph_type: SubgraphType = "directional",
    link_set: str | None = None,
    where: str = "spec",
) -> SamplePlan:
    """The plan of a spec over a dataset: edges are followed from source to target, and every seed grows its own tree.

    A spec that starts from links gives a plan with two seed types, those of a link's source and target; the two ends
    grow one tree. Where their node sets differ, an op that follows the seed op expands the end that its edge set starts
    from. So a spec of TF-GNN for sources and one for targets, as its ``create_link_prediction_sampling_model`` takes,
    are one spec here.

    Args:
        spec: A ``SamplingSpec`` message.
        schema: The dataset's schema. Edge sets are called as ``edge_set_names`` says.
        subgraph_type: ``directional``: the edges that were drawn; ``induced``: all between the nodes found, also of
            edge sets that no op follows.
        link_set: The node set of both ends of links, or, as ``source,target``, those of their sources and of their
            targets; None: where the ops that follow the seed op start from, or the only one there is.
        where: What errors call the spec.

    Raises:
        SchemaError: The spec contradicts itself or the schema, or does not say which nodes links join.
        SettingsError: ``link_set`` names more than two node sets.
    """
    message = schema_message(schema)
    if spec.WhichOneof("seed_type") == LINK_SEEDS:
        declare_link_readout(message, *of_ends("link_set", link_set or _link_set(spec, message), 2))
    check_spec(spec, message, where)
    seed_name, seed_sets = seed_of(spec, message)
    edge_types = edge_set_names(schema)
    names = {seed_name: SEEDS}
    ops: list[SampleOp] = []
    for number, op in enumerate(spec.sampling_ops):
        names[op.op_name] = f"{number}/{op.op_name}"
        ops.append(
            SampleOp(
                name=names[op.op_name], inputs=tuple(names[i] for i in op.input_op_names),
                edge_type=edge_types[op.edge_set_name], direction="out", count=op.sample_size,
                strategy=STRATEGIES[strategy_of(op, message.edge_sets[op.edge_set_name])], expands="reached",
            )
        )  # fmt: skip
    return SamplePlan(
        seed_types=seed_sets, ops=tuple(ops), num_hops=len(ops),
        wants_edge_ids=True, settings=SamplingSettings(disjoint=True, subgraph_type=subgraph_type, direction="out"),
    )  # fmt: skip


def _link_set(spec: Any, schema: Any) -> str:
    """The node set that the ops behind the seed op start from."""
    name = spec.symmetric_link_seed_op.op_name
    starts = sorted({
        schema.edge_sets[op.edge_set_name].source
        for op in spec.sampling_ops
        if name in op.input_op_names and op.edge_set_name in schema.edge_sets
    })  # fmt: skip
    if not starts and len(schema.node_sets) == 1:
        starts = list(schema.node_sets)
    if not starts:
        known = ", ".join(sorted(schema.node_sets))
        raise SchemaError(
            f"{LINK_SEEDS} {quoted(name)}: no op follows it, so its node set is unknown; give link_set, one of {known}"
        )
    if len(starts) > 1:
        raise SchemaError(
            f"{LINK_SEEDS} {quoted(name)}: ops that follow it start from {' and '.join(starts)}, so it is not known "
            f"which of them holds the sources of links; give link_set, such as '{starts[0]},{starts[1]}': source, "
            "target"
        )
    return str(starts[0])


def of_ends(what: str, given: str | None, num_ends: int) -> tuple[Any, ...]:
    """A setting for each end of a seed: one name for both ends of links, or two with a comma between them.

    Args:
        what: The setting.
        given: Its value; None where it is not set.
        num_ends: 1 where seeds are nodes, 2 where they are links.

    Raises:
        SettingsError: There are more than two names.
    """
    names = [given] if given is None or num_ends == 1 else given.split(",")
    if len(names) > 2:
        raise SettingsError(f"{what} is {given!r}; give one name, or two as 'source,target'")
    return tuple(names * num_ends)[:num_ends]


def op_name_of(name: str) -> str:
    """What the spec calls an op of a plan."""
    return name.partition("/")[2]


def in_words_of_spec(message: str, plan: SamplePlan) -> str:
    """A message about a plan, with ops called as the spec calls them."""
    for op in plan.ops:
        message = message.replace(f"op {op.name!r}", f"op {op_name_of(op.name)!r}")
    return message


def starts_from_links(plan: SamplePlan) -> bool:
    """Whether each tree of a plan grows from the two ends of a link."""
    return len(plan.seed_types) == 2


def check_weights(plan: SamplePlan, store: Store) -> None:
    """Refuse to draw by another feature than the one that specs mean by weights.

    Raises:
        SettingsError: The dataset was written to be drawn by another one.
    """
    by_weight = [op for op in plan.ops if op.strategy in BY_WEIGHT]
    if by_weight and store.weight_attr is not None and store.weight_attr not in WEIGHT_NAMES:
        raise SettingsError(
            f"op {op_name_of(by_weight[0].name)!r} draws by {' or '.join(WEIGHT_NAMES)}; the dataset was written with "
            f"weight_attr={store.weight_attr!r}; write it again with the other"
        )


def repeated_edge_types(plan: SamplePlan) -> set[EdgeType]:
    """Edge types that several ops follow, so that an edge may be drawn twice."""
    followed = [op.edge_type for op in plan.ops]
    return {edge_type for edge_type in followed if followed.count(edge_type) > 1}


def most_drawn(plan: SamplePlan) -> int | None:
    """The most edges that the ops of a plan draw in a tree, or None where one draws all."""
    reached = {SEEDS: len(plan.seed_types)}
    for op in plan.ops:
        if op.count < 0:
            return None
        reached[op.name] = op.count * sum(reached[name] for name in op.inputs)
    return sum(reached.values())
