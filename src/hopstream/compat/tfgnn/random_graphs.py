"""Generator of graph tensors with random values, for tests of a schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hopstream.compat.tfgnn.examples import check_scalar
from hopstream.compat.tfgnn.graph_tensor import GraphTensor
from hopstream.compat.tfgnn.pieces import Context, EdgeSet, NodeSet
from hopstream.compat.tfgnn.schemas import create_schema_pb_from_graph_spec
from hopstream.compat.tfgnn.specs import CONTEXT, EDGES, NODES, GraphTensorSpec, TensorSpec
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.tfgnn.graph_generator import random_graphs
from hopstream.tfgnn.random_settings import RandomSettings
from hopstream.tfgnn.readout import readout_problems
from hopstream.tfgnn.spec import FieldSpec
from hopstream.tfgnn.values import FeatureValues

SampleDict = Mapping[tuple[str, str | None, str], Sequence[Any]]
"""Values to draw from, by type of set, name of the set (None for the context) and name of the feature."""
EDGES_PER_NODE = 4


def random_graph_tensor(
    spec: GraphTensorSpec, sample_dict: SampleDict | None = None, row_lengths_range: tuple[int, int] = (2, 8),
    validate: bool = True, num_components_range: tuple[int, int] = (1, 1), *, rng_seed: int | None = None,
) -> GraphTensor:  # fmt: skip
    """Make a graph tensor of a spec with random sizes, edges and values; its readouts are valid.

    Args:
        spec: Sets and features; its numbers of items are ignored.
        sample_dict: Values from which features are drawn, by ``(NODES, "paper", "year")``, or for the context by
            ``(CONTEXT, None, "label")``. Other features are drawn as in ``hopstream.tfgnn.random_graphs``.
        row_lengths_range: Smallest and largest number of nodes of a set per component, and of values in a ragged
            dimension.
        validate: No effect, as in TF-GNN's signature: the result is always checked.
        num_components_range: Smallest and largest number of components, at least 1.
        rng_seed: Seed; equal seeds give equal graphs. None for a random seed.

    Raises:
        SchemaError: ``spec`` describes a batch, a readout is invalid, or samples have another dtype.
        SettingsError: A range is empty, or starts too low.
        UnknownNameError: Samples are given for a feature that does not exist.
    """
    check_scalar(spec, "random_graph_tensor")
    problems = list(readout_problems(create_schema_pb_from_graph_spec(spec)))
    if problems:
        raise SchemaError("; ".join(problems))
    for what, (low, high) in (("row_lengths_range", row_lengths_range), ("num_components_range", num_components_range)):
        if not 0 <= low <= high:
            raise SettingsError(f"{what} is {(low, high)}; give (low, high) with 0 <= low <= high")
    rng = np.random.default_rng(rng_seed)
    low, high = row_lengths_range
    settings = RandomSettings(
        num_components=int(rng.integers(num_components_range[0], num_components_range[1] + 1)),
        min_nodes=low, max_nodes=high, max_edges=EDGES_PER_NODE * high, min_row=low, max_row=high,
    )  # fmt: skip
    pieces = random_graphs(spec.graph_spec(), [0], rng_seed=int(rng.integers(1 << 62)), settings=settings)
    graph = GraphTensor.of_pieces(pieces, indices_dtype=spec.indices_dtype)
    for key, samples in (sample_dict or {}).items():
        graph = _with_samples(graph, key, samples, rng)
    return graph


def _with_samples(
    graph: GraphTensor, key: tuple[str, str | None, str], samples: Sequence[Any], rng: np.random.Generator
) -> GraphTensor:
    """Return the same graph with other values of one feature, of the same dtype and dimensions."""
    set_type, set_name, name = key
    known: dict[tuple[str, str | None], Context | NodeSet | EdgeSet] = {(CONTEXT, None): graph.context}
    known |= {(NODES, n): of for n, of in graph.node_sets.items()}
    known |= {(EDGES, n): of for n, of in graph.edge_sets.items()}
    piece = known.get((set_type, set_name))
    if piece is None or name not in piece.items:
        raise UnknownNameError(f"sample_dict names {key}, which is not a feature of the spec")
    old = piece.items[name]
    drawn = FeatureValues.of(list(samples)).take(rng.integers(0, len(samples), len(old.flat)))
    flat = drawn.matching(FieldSpec(dtype=TensorSpec.of(old).dtype), f"sample_dict[{key}]").flat
    items = {**piece.items, name: FeatureValues(flat, old.num_items, old.dims)}
    if set_name is None:
        return graph.replace_features(context=items)
    changed = {set_name: items}
    return graph.replace_features(node_sets=changed) if set_type == NODES else graph.replace_features(edge_sets=changed)
