"""How is a graph tensor of random values made, to try out a schema?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopstream.arrays import IntArray, RaggedArray, offsets_of
from hopstream.compat.tfgnn.examples import check_scalar
from hopstream.compat.tfgnn.graph_tensor import GraphTensor
from hopstream.compat.tfgnn.specs import EdgeSetSpec, GraphTensorSpec, TensorSpec
from hopstream.compat.tfgnn.tags import CONTEXT, EDGES, NODES
from hopstream.errors import SettingsError
from hopstream.tfgnn.graph_tensor import EdgePieces, GraphPieces, NodePieces
from hopstream.tfgnn.readout import SHADOW, is_readout, readout_edge
from hopstream.tfgnn.spec import FieldSpec
from hopstream.tfgnn.values import Dim, FeatureValues

SampleDict = Mapping[tuple[str, str | None, str], Sequence[Any]]
"""Values to draw from, by type of set, name of the set (None for the context) and name of the feature."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def random_graph_tensor(
    spec: GraphTensorSpec, sample_dict: SampleDict | None = None, row_lengths_range: tuple[int, int] = (2, 8),
    validate: bool = True, num_components_range: tuple[int, int] = (1, 1), *, rng_seed: int | None = None,
) -> GraphTensor:  # fmt: skip
    """A graph tensor of a spec with random sizes, edges and values; its readouts are as they should be.

    Args:
        spec: What sets and features there are; its own numbers of items do not count.
        sample_dict: Values to draw features from, by ``(NODES, "paper", "year")``; for the context by
            ``(CONTEXT, None, "label")``. Others are integers below 1000, reals in [0, 1), or letters.
        row_lengths_range: The fewest and the most nodes of a set in a component, and values in a dimension that varies.
        validate: There for TF-GNN's sake: what is made is always checked.
        num_components_range: The fewest and the most components.
        rng_seed: The same seed gives the same graph; None: another one each time.

    Raises:
        SchemaError: It is the spec of a batch.
        SettingsError: A range is empty, or begins below 0.
    """
    check_scalar(spec, "random_graph_tensor")
    for what, (low, high) in (("row_lengths_range", row_lengths_range), ("num_components_range", num_components_range)):
        if not 0 <= low <= high:
            raise SettingsError(f"{what} is {(low, high)}; give 0 or more, and no less")
    rng = np.random.default_rng(rng_seed)
    num_components = int(rng.integers(num_components_range[0], num_components_range[1] + 1))
    maker = _Maker(rng, num_components, row_lengths_range, sample_dict or {})
    return GraphTensor.of_pieces(maker.graph(spec), indices_dtype=spec.indices_dtype)


@dataclass(frozen=True, slots=True)
class _Edges:
    sizes: IntArray
    source: IntArray
    target: IntArray


@dataclass(frozen=True, slots=True)
class _Maker:
    """Draws what graphs are made of.

    Attributes:
        rng: What numbers come from.
        num_components: How many components to make.
        lengths: The fewest and the most items.
        samples: Values to draw from.
    """

    rng: np.random.Generator
    num_components: int
    lengths: tuple[int, int]
    samples: SampleDict

    def graph(self, spec: GraphTensorSpec) -> GraphPieces:
        """The pieces of one graph."""
        readouts = {n: of for n, of in spec.edge_sets_spec.items() if _readout_of(n) == of.adjacency_spec.target_name}
        made: dict[str, _Edges] = {}
        sizes = {n: self._sizes() for n in spec.node_sets_spec}
        for name in [n for n in spec.edge_sets_spec if n not in readouts]:
            ends = spec.edge_sets_spec[name].adjacency_spec
            made[name] = self._edges(sizes[ends.source_name], sizes[ends.target_name])
        for name in spec.node_sets_spec:
            if name.startswith(SHADOW) and name.removeprefix(SHADOW) in made:
                sizes[name] = made[name.removeprefix(SHADOW)].sizes
        for name in filter(is_readout, spec.node_sets_spec):
            made |= self._readout(name, readouts, sizes)
        edge_sets = {}
        for name, of in spec.edge_sets_spec.items():
            ends, one = of.adjacency_spec, made[name]
            edge_sets[name] = EdgePieces(
                sizes=one.sizes, source=one.source, target=one.target, source_set=ends.source_name,
                target_set=ends.target_name, features=self._features(EDGES, name, of.features_spec, one.sizes),
            )  # fmt: skip
        ones = np.ones(self.num_components, np.int64)
        return GraphPieces(
            component_offsets=np.array([0, self.num_components], np.int64),
            context=self._features(CONTEXT, None, spec.context_spec.features_spec, ones),
            node_sets={
                n: NodePieces(sizes=sizes[n], features=self._features(NODES, n, of.features_spec, sizes[n]))
                for n, of in spec.node_sets_spec.items()
            },
            edge_sets=edge_sets,
        )

    def _sizes(self) -> IntArray:
        return self.rng.integers(self.lengths[0], self.lengths[1] + 1, self.num_components)

    def _edges(self, num_sources: IntArray, num_targets: IntArray) -> _Edges:
        """About as many edges as nodes, or twice as many; none in components without nodes."""
        both = np.where((num_sources > 0) & (num_targets > 0), num_sources + num_targets, 0)
        sizes = self.rng.integers(both * 2 // 3, both * 9 // 4 + 1)
        return _Edges(sizes, self._nodes(num_sources, sizes), self._nodes(num_targets, sizes))

    def _nodes(self, num_nodes: IntArray, counts: IntArray) -> IntArray:
        """``counts[i]`` nodes out of component ``i``."""
        return np.repeat(offsets_of(num_nodes)[:-1], counts) + self.rng.integers(0, np.repeat(num_nodes, counts))

    def _readout(
        self, name: str, edge_sets: Mapping[str, EdgeSetSpec], sizes: dict[str, IntArray]
    ) -> dict[str, _Edges]:
        """The edge sets of a readout: for each key, each prediction has an edge in one of its sets."""
        by_key: dict[str, list[str]] = {}
        for edge_set in sorted(edge_sets):
            of = readout_edge(edge_set)
            if of is not None and of[0] == name:
                by_key.setdefault(of[1], []).append(edge_set)
        held = {n: sizes[edge_sets[n].adjacency_spec.source_name] for names in by_key.values() for n in names}
        for names in by_key.values():  # nothing is predicted where there is nothing to read out
            sizes[name] = np.where(sum(held[n] for n in names) > 0, sizes[name], 0)
        components = np.repeat(np.arange(self.num_components), sizes[name])
        found: dict[str, _Edges] = {}
        for names in by_key.values():
            # Each prediction takes the set with the highest of random numbers; empty ones have none above 0.
            lots = np.stack([(held[n][components] > 0) * self.rng.uniform(0.5, 1, len(components)) for n in names])
            chosen = np.argmax(lots, axis=0)
            for number, edge_set in enumerate(names):
                target = np.flatnonzero(chosen == number)
                counts = np.bincount(components[target], minlength=self.num_components)
                found[edge_set] = _Edges(counts, self._nodes(held[edge_set], counts), target)
        return found

    def _features(
        self, set_type: str, set_name: str | None, features: Mapping[str, TensorSpec], sizes: IntArray
    ) -> dict[str, FeatureValues]:
        made = {}
        for name, spec in features.items():
            samples = self.samples.get((set_type, set_name, name))
            made[name] = self._values(FieldSpec(dtype=spec.dtype, shape=spec.shape[1:]), int(sizes.sum()), samples)
        return made

    def _values(self, spec: FieldSpec, num_items: int, samples: Sequence[Any] | None) -> FeatureValues:
        dims: list[Dim] = []
        num_rows = num_items
        for size in spec.shape:
            dim = size if size is not None else self.rng.integers(self.lengths[0], self.lengths[1] + 1, num_rows)
            dims.append(dim)
            num_rows = num_rows * dim if isinstance(dim, int) else int(dim.sum())
        if samples is not None:
            drawn = FeatureValues.of(list(samples)).take(self.rng.integers(0, len(samples), num_rows)).flat
            given = FeatureValues(drawn, num_rows).matching(FieldSpec(dtype=spec.dtype), "sample_dict").flat
            return FeatureValues(given, num_items, tuple(dims))
        return FeatureValues(self._flat(spec, num_rows), num_items, tuple(dims))

    def _flat(self, spec: FieldSpec, number: int) -> Any:
        if spec.is_string:
            return RaggedArray.from_strings([LETTERS[i] for i in self.rng.integers(0, len(LETTERS), number)])
        dtype = spec.numpy_dtype
        if dtype.kind == "f":
            return self.rng.random(number, np.float32).astype(dtype)
        if dtype.kind == "b":
            return self.rng.integers(0, 2, number).astype(dtype)
        low, high = (100, 1000) if dtype.itemsize == 8 else (10, 100)
        return self.rng.integers(low, high, number).astype(dtype)


def _readout_of(edge_set: str) -> str | None:
    """The readout node set that the name of an edge set speaks of."""
    edge = readout_edge(edge_set)
    return None if edge is None else edge[0]
