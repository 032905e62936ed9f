"""Adds, checks and reads readouts: the node sets and edge sets that define predictions.

[Names] Node set ``_readout``, or ``_readout:<tag>``, has a node per prediction. Edge sets ``<readout>/<key>`` or
    ``<readout>/<key>/<suffix>`` lead from node sets to it; for each key, every prediction has exactly one edge. Node
    set ``_shadow/<edge set>`` has a node per edge of an edge set, so that edges can be read out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hopstream.arrays import IntArray, offsets_of
from hopstream.checks import known_words
from hopstream.errors import SchemaError
from hopstream.tfgnn.graph_tensor import EdgePieces, GraphPieces, NodePieces
from hopstream.tfgnn.values import FeatureValues

READOUT, SHADOW = "_readout", "_shadow/"
_READOUT_NAME = re.compile(r"_readout(?::[A-Za-z0-9_]+)?")
_READOUT_EDGE = re.compile(r"(_readout(?::[A-Za-z0-9_]+)?)/(\w+)(?:/(.+))?")


def is_readout(node_set: str) -> bool:
    """Return whether the name of a node set is that of a readout."""
    return _READOUT_NAME.fullmatch(node_set) is not None


def readout_edge(edge_set: str) -> tuple[str, str] | None:
    """Return the readout node set and the key of an edge set; None if it is not part of a readout."""
    match = _READOUT_EDGE.fullmatch(edge_set)
    return None if match is None else (match[1], match[2])


def readout_problems(schema: Any) -> Iterator[str]:
    """Yield the problems of the readouts in a ``GraphSchema`` message, one line each."""
    seen: dict[tuple[str, str, str], str] = {}
    for name in sorted(schema.node_sets):
        if name.startswith(READOUT) and not is_readout(name):
            yield f"node set {name!r} is called neither {READOUT} nor {READOUT}:<letters, digits, _>"
        if name.startswith(SHADOW) and name.removeprefix(SHADOW) not in schema.edge_sets:
            yield f"node set {name!r} stands for edge set {name.removeprefix(SHADOW)!r}, which does not exist"
    for name, edges in sorted(schema.edge_sets.items()):
        if not name.startswith(READOUT):
            continue
        found = readout_edge(name)
        if found is None:
            yield f"edge set {name!r} is called neither {READOUT}/<key> nor {READOUT}/<key>/<suffix>"
        elif edges.target != found[0]:
            yield f"edge set {name!r} goes to {edges.target!r}; its target is {found[0]!r}"
        else:
            other = seen.setdefault((*found, edges.source), name)
            if other != name:
                yield f"edge sets {other!r} and {name!r} both read key {found[1]!r} from node set {edges.source!r}"


def readout_edges(graph: GraphPieces, node_set: str = READOUT) -> dict[str, list[str]]:
    """Return the edge sets of each key of a readout node set, in order of names."""
    found: dict[str, list[str]] = {}
    for name in sorted(graph.edge_sets):
        of = readout_edge(name)
        if of is not None and of[0] == node_set:
            found.setdefault(of[1], []).append(name)
    return found


def check_readout(graph: GraphPieces, node_set: str = READOUT, keys: Sequence[str] | None = None) -> None:
    """Check that each prediction has exactly one readout edge for each key.

    Args:
        graph: Graphs, one or a batch.
        node_set: The readout node set.
        keys: The keys to check; all if None.

    Raises:
        SchemaError: The node set or a key is missing, targets of an edge set do not ascend, or a prediction has no edge
            or several; the message names the key and the edge set.
    """
    if node_set not in graph.node_sets:
        raise SchemaError(f"node set {node_set!r} does not exist; {known_words(node_set, sorted(graph.node_sets))}")
    by_key = readout_edges(graph, node_set)
    for key in by_key if keys is None else keys:
        if key not in by_key:
            raise SchemaError(f"{node_set} has no key {key!r}; {known_words(key, by_key)}")
        _check_key(graph, node_set, key, by_key[key])


def _check_key(graph: GraphPieces, node_set: str, key: str, names: list[str]) -> None:
    sizes = np.diff(graph.item_offsets(graph.node_sets[node_set].sizes))
    targets = []
    for name in names:
        edges = graph.edge_sets[name]
        offsets = graph.item_offsets(edges.sizes)
        flat = _across(edges.target, offsets, sizes)
        if len(flat) > 1 and not bool(np.all(flat[1:] > flat[:-1])):
            at = int(np.argmin(flat[1:] > flat[:-1])) + 1
            raise SchemaError(f"edge set {name!r}: target {edges.target[at]} at edge {at} does not ascend")
        targets.append(flat)
    together = np.sort(np.concatenate(targets))
    if not np.array_equal(together, np.arange(int(sizes.sum()))):
        raise SchemaError(
            f"key {key!r} of {node_set}: {len(together)} edges of {', '.join(names)} do not read out each of "
            f"{int(sizes.sum())} predictions exactly once"
        )


def _across(indices: IntArray, item_offsets: IntArray, sizes: IntArray) -> IntArray:
    """Convert indices that count from the start of each graph to indices into the whole batch."""
    return indices + np.repeat(offsets_of(sizes)[:-1], np.diff(item_offsets))


def add_readout(
    graph: GraphPieces, sources: Mapping[str, tuple[str, IntArray]], *, node_set: str = READOUT,
    features: Mapping[str, FeatureValues] | None = None,
) -> GraphPieces:  # fmt: skip
    """Add a readout of one prediction per graph's component.

    Args:
        graph: Graphs, one or a batch.
        sources: Key to a node set and int64[num_components], the node to read in each component, counted from the first
            node of its graph.
        node_set: Name of the readout node set.
        features: Feature name to values, one per prediction, for example labels.

    Raises:
        SchemaError: The graphs have this readout or key already, or a node set does not exist.
    """
    if not is_readout(node_set):
        raise SchemaError(f"{node_set!r} is called neither {READOUT} nor {READOUT}:<letters, digits, _>")
    num_components = int(graph.component_offsets[-1])
    ones = np.ones(num_components, np.int64)
    there = graph.node_sets.get(node_set)
    if there is not None and (features or not np.array_equal(there.sizes, ones)):
        raise SchemaError(f"node set {node_set!r} exists already, with other predictions or values")
    known = readout_edges(graph, node_set)
    edge_sets = dict(graph.edge_sets)
    target = np.arange(num_components, dtype=np.int64)
    target -= np.repeat(graph.component_offsets[:-1], np.diff(graph.component_offsets))
    for key, (source_set, nodes) in sources.items():
        if key in known:
            raise SchemaError(f"{node_set} has key {key!r} already, in {', '.join(known[key])}")
        if source_set not in graph.node_sets:
            raise SchemaError(
                f"node set {source_set!r} does not exist; {known_words(source_set, sorted(graph.node_sets))}"
            )
        edge_sets[f"{node_set}/{key}"] = EdgePieces(
            sizes=ones, source=nodes, target=target, source_set=source_set, target_set=node_set
        )
    node_sets = {**graph.node_sets, node_set: there or NodePieces(sizes=ones, features=features or {})}
    return GraphPieces(
        component_offsets=graph.component_offsets, context=graph.context, node_sets=node_sets, edge_sets=edge_sets
    )


def add_readout_from_first_node(
    graph: GraphPieces, key: str, node_set_name: str, *, readout_node_set: str = READOUT
) -> GraphPieces:
    """Add a readout of the first node of each component in one node set; samplers put the seed there.

    Raises:
        SchemaError: The node set does not exist, a component has no node in it, or the key exists already.
    """
    if node_set_name not in graph.node_sets:
        raise SchemaError(
            f"node set {node_set_name!r} does not exist; {known_words(node_set_name, sorted(graph.node_sets))}"
        )
    sizes = graph.node_sets[node_set_name].sizes
    if len(sizes) and int(sizes.min()) == 0:
        raise SchemaError(f"component {int(np.argmin(sizes))} has no node in {node_set_name!r} to read out")
    starts = offsets_of(sizes)[:-1]
    per_graph = np.repeat(graph.item_offsets(sizes)[:-1], np.diff(graph.component_offsets))
    return add_readout(graph, {key: (node_set_name, starts - per_graph)}, node_set=readout_node_set)


def structured_readout(
    graph: GraphPieces, key: str, feature_name: str, *, node_set: str = READOUT, validate: bool = True
) -> FeatureValues:
    """Read a feature of the nodes, or edges, that the predictions are read out from.

    Args:
        graph: Graphs, one or a batch.
        key: Key of the readout.
        feature_name: Name of a feature of uniform shape that every set of the key has.
        node_set: The readout node set.
        validate: Check the readout first.

    Returns:
        Values, one per prediction, in order.

    Raises:
        SchemaError: The readout is invalid, a set lacks the feature, or shapes differ between sets.
    """
    if validate:
        check_readout(graph, node_set, [key])
    sizes = np.diff(graph.item_offsets(graph.node_sets[node_set].sizes))
    found: list[FeatureValues] = []
    targets: list[IntArray] = []
    for name in readout_edges(graph, node_set)[key]:
        edges = graph.edge_sets[name]
        offsets = graph.item_offsets(edges.sizes)
        held_sizes, values = _read_from(graph, edges.source_set, feature_name)
        found.append(values.take(_across(edges.source, offsets, np.diff(graph.item_offsets(held_sizes)))))
        targets.append(_across(edges.target, offsets, sizes))
    return FeatureValues.concatenate(found).take(np.argsort(np.concatenate(targets), kind="stable"))


def _read_from(graph: GraphPieces, source_set: str, feature_name: str) -> tuple[IntArray, FeatureValues]:
    """Return sizes and values of a node set; for a shadow node set, those of its edge set."""
    name = source_set.removeprefix(SHADOW)
    held: NodePieces | EdgePieces = graph.edge_sets[name] if name != source_set else graph.node_sets[name]
    if name != source_set and not np.array_equal(held.sizes, graph.node_sets[source_set].sizes):
        raise SchemaError(f"node set {source_set!r} has other sizes than edge set {name!r}, which it stands for")
    if feature_name not in held.features:
        raise SchemaError(f"{name} has no feature {feature_name!r}; {known_words(feature_name, held.features)}")
    return held.sizes, held.features[feature_name]
