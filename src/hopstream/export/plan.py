"""Converts a TF-GNN ``SamplingSpec`` to a plan, and adds readouts of seeds and links to graphs.

Each graph has one prediction: for its seed, which is the first node of its set, or for the link between its two seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.checks import known_words
from hopstream.dataset.book import entity_label
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
    data_sets,
    seed_of,
    strategy_name,
    strategy_of,
)
from hopstream.tfgnn.values import FeatureValues

SEED_KEY = "seed"
LINK_KEYS = ("source", "target")


def add_seed_readout(pieces: GraphPieces, node_set: str, labels: Sequence[str] = ()) -> GraphPieces:
    """Add a readout of the seed to each graph.

    The readout is node set ``_readout`` of one node, and edge set ``_readout/seed``.

    Args:
        pieces: Graphs of one component whose seeds are the first nodes of their set.
        node_set: The seeds' node set.
        labels: Features to move: ``_readout`` gets the seed's value, and the node set loses the feature, because a
            model would see the answer there.

    Returns:
        New pieces that share unchanged parts.

    Raises:
        SchemaError: The node set or a label does not exist, a graph has no node in the node set, values of a label vary
            in size, or the graphs have a readout of seeds already.
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
    """Add a readout of the link to each graph: node set ``_readout`` of one node, and two edge sets.

    The edge sets are ``_readout/source`` and ``_readout/target``.

    Args:
        pieces: Graphs of one component.
        node_sets: The node sets of sources and of targets.
        source_places: int64[num_graphs], the source's position in its node set.
        target_places: int64[num_graphs], the target's position in its node set.

    Raises:
        SchemaError: A node set does not exist, or the graphs have a readout of links already.
    """
    places = (source_places, target_places)
    return add_readout(pieces, dict(zip(LINK_KEYS, zip(node_sets, places, strict=True), strict=True)))


def with_readout_values(pieces: GraphPieces, values: Mapping[str, FeatureValues]) -> GraphPieces:
    """Add features, such as labels of links, to the readout.

    Args:
        pieces: Graphs that have a readout.
        values: Feature name to values, one per prediction.

    Raises:
        SchemaError: The graphs have no readout, a feature exists already, or the number of values is not that of
            predictions.
    """
    if READOUT not in pieces.node_sets:
        raise SchemaError(f"node set {READOUT!r} does not exist; known: {', '.join(sorted(pieces.node_sets))}")
    held = pieces.node_sets[READOUT]
    num_predictions = int(np.sum(held.sizes))
    for name, of in values.items():
        if name in held.features:
            raise SchemaError(f"{READOUT} has a feature {name!r} already")
        if of.num_items != num_predictions:
            raise SchemaError(f"{READOUT}.{name} has values of {of.num_items} items for {num_predictions} predictions")
    with_values = replace(held, features={**held.features, **values})
    return replace(pieces, node_sets={**pieces.node_sets, READOUT: with_values})


def declare_seed_readout(schema: Any, node_set: str, labels: Sequence[str] = ()) -> None:
    """Declare in a ``GraphSchema`` message what ``add_seed_readout`` adds to graphs.

    Raises:
        SchemaError: The node set or a label does not exist.
    """
    if node_set not in schema.node_sets:
        raise SchemaError(f"node set {node_set!r} does not exist; {known_words(node_set, sorted(schema.node_sets))}")
    features = schema.node_sets[node_set].features
    _declare_edges(schema, f"{READOUT}/{SEED_KEY}", node_set)
    for name in labels:
        if name not in features:
            raise SchemaError(f"{node_set} has no feature {name!r}; {known_words(name, sorted(features))}")
        schema.node_sets[READOUT].features[name].CopyFrom(features[name])
        del features[name]


def declare_link_readout(schema: Any, source_set: str, target_set: str) -> None:
    """Declare in a ``GraphSchema`` message what ``add_link_readout`` adds; existing edge sets are kept."""
    for name, node_set in zip(LINK_ENDS, (source_set, target_set), strict=True):
        _declare_edges(schema, name, node_set)


def declare_readout_values(schema: Any, values: Mapping[str, FeatureSchema]) -> None:
    """Declare in a ``GraphSchema`` message the features that ``with_readout_values`` adds.

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
    """Convert a spec to a plan for a dataset.

    Ops follow edges from source to target, and every seed grows its own tree.

    A spec that starts from links gives a plan with two seed types, of a link's source and target; both ends grow one
    tree. If their node sets differ, an op after the seed op expands the end that its edge set starts from. So the two
    specs, for sources and targets, that TF-GNN's ``create_link_prediction_sampling_model`` takes are one spec here.

    Args:
        spec: A ``SamplingSpec`` message.
        schema: The dataset's schema; ``edge_set_names`` gives the names of edge sets.
        subgraph_type: ``directional``: the drawn edges; ``induced``: all edges between the sampled nodes, also of edge
            sets that no op follows.
        link_set: The node set of both ends of links, or two as ``source,target``. None: the node set that the ops after
            the seed op start from, or the only node set.
        where: Name of the spec in messages.

    Raises:
        SchemaError: The spec contradicts itself or the schema, or the node sets of links are unknown.
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
    """Find the one node set that the ops after the seed op start from.

    Raises:
        SchemaError: There is no such node set, or several.
    """
    name = spec.symmetric_link_seed_op.op_name
    starts = sorted({
        schema.edge_sets[op.edge_set_name].source
        for op in spec.sampling_ops
        if name in op.input_op_names and op.edge_set_name in schema.edge_sets
    })  # fmt: skip
    if not starts and len(data_sets(schema)) == 1:
        starts = data_sets(schema)
    if not starts:
        known = ", ".join(data_sets(schema))
        raise SchemaError(
            f"{LINK_SEEDS} {quoted(name)}: no op follows it, so its node set is unknown; give link_set, one of {known}"
        )
    if len(starts) > 1:
        raise SchemaError(
            f"{LINK_SEEDS} {quoted(name)}: the ops that follow start from {' and '.join(starts)}, so the node set of "
            f"the sources is ambiguous; give link_set, such as '{starts[0]},{starts[1]}' (source,target)"
        )
    return str(starts[0])


def of_ends(what: str, given: str | None, num_ends: int) -> tuple[Any, ...]:
    """Split a setting for the ends of seeds.

    For links, it is one name for both ends or two as ``source,target``.

    Args:
        what: Name of the setting.
        given: Its value, or None.
        num_ends: 1 if seeds are nodes, 2 if they are links.

    Raises:
        SettingsError: There are more than two names.
    """
    names = [given] if given is None or num_ends == 1 else given.split(",")
    if len(names) > 2:
        raise SettingsError(f"{what} is {given!r}; give one name, or two as 'source,target'")
    return tuple(names * num_ends)[:num_ends]


def op_name_of(name: str) -> str:
    """Return the name in the spec of an op of a plan."""
    return name.partition("/")[2]


def in_words_of_spec(message: str, plan: SamplePlan) -> str:
    """Replace the names of ops and strategies in a message about a plan by their names in the spec."""
    numbers = {strategy: number for number, strategy in STRATEGIES.items()}
    for op in plan.ops:
        named = f"op {op_name_of(op.name)!r}"
        message = message.replace(f"op {op.name!r}", named).replace(
            f"{entity_label((op.edge_type, op.direction))}: strategy {op.strategy!r}",
            f"{named}: {strategy_name(numbers[op.strategy])}",
        )
    return message


def starts_from_links(plan: SamplePlan) -> bool:
    """Return whether each tree of a plan grows from the two ends of a link."""
    return len(plan.seed_types) == 2


def check_weights(plan: SamplePlan, store: Store) -> None:
    """Check that a dataset's sampling weights are the feature that specs mean by weights.

    Raises:
        SettingsError: An op draws by weight, and the dataset was written with another ``weight_attr``.
    """
    by_weight = [op for op in plan.ops if op.strategy in BY_WEIGHT]
    if by_weight and store.weight_attr is not None and store.weight_attr not in WEIGHT_NAMES:
        raise SettingsError(
            f"op {op_name_of(by_weight[0].name)!r} draws by {' or '.join(WEIGHT_NAMES)}; the dataset was written with "
            f"weight_attr={store.weight_attr!r}; write it again with the other"
        )


def repeated_edge_types(plan: SamplePlan) -> set[EdgeType]:
    """Return the edge types that several ops follow; their edges may be drawn twice."""
    followed = [op.edge_type for op in plan.ops]
    return {edge_type for edge_type in followed if followed.count(edge_type) > 1}


def most_drawn(plan: SamplePlan) -> int | None:
    """Return an upper bound of the edges drawn per tree; None if an op draws all edges."""
    reached = {SEEDS: len(plan.seed_types)}
    for op in plan.ops:
        if op.count < 0:
            return None
        reached[op.name] = op.count * sum(reached[name] for name in op.inputs)
    return sum(reached.values())
