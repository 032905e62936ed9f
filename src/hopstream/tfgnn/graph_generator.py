"""Draws random graph tensors that fit a spec, for tests of models and of readers of examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import SchemaError
from hopstream.kernels.hashing import derive_seed
from hopstream.tfgnn.graph_tensor import EdgePieces, GraphPieces, NodePieces, concatenate_graphs
from hopstream.tfgnn.random_settings import RandomSettings
from hopstream.tfgnn.readout import SHADOW, is_readout, readout_edge
from hopstream.tfgnn.spec import FieldSpec, GraphSpec
from hopstream.tfgnn.values import Dim, FeatureValues

LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
MAX_VALUES = 1 << 26
INT_BOUND = 100
"""Upper bound of random integers; every integer dtype can hold them."""


def random_graphs(
    spec: GraphSpec, numbers: Iterable[int], *, rng_seed: int = 0, settings: RandomSettings | None = None
) -> GraphPieces:
    """Draw random graphs of a spec; each depends only on its number and the rng seed.

    Readouts are valid: each component has one prediction, and for each key one edge to it, from a random node (or edge)
    of a random one of the key's sets. A component has no prediction if the sets of a key are empty.

    Args:
        spec: The sets and features.
        numbers: The numbers of the graphs, such as ``range(10)``.
        rng_seed: 64 bits.
        settings: Sizes of the graphs; ``RandomSettings()`` by default.

    Raises:
        SchemaError: There are no numbers, or a feature would have more than ``MAX_VALUES`` values.
    """
    chosen = settings or RandomSettings()
    return concatenate_graphs([_Draw(spec, chosen, derive_seed("graph", rng_seed, n)).graph() for n in numbers])


class _Draw:
    """Generator of one graph."""

    def __init__(self, spec: GraphSpec, settings: RandomSettings, seed: int) -> None:
        self._spec, self._settings = spec, settings
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._node_sizes: dict[str, IntArray] = {}
        self._edges: dict[str, tuple[IntArray, IntArray, IntArray]] = {}
        """Sizes, sources and targets."""

    def graph(self) -> GraphPieces:
        spec, num_components = self._spec, self._settings.num_components
        for name in spec.node_sets:
            if not is_readout(name) and not name.startswith(SHADOW):
                self._node_sizes[name] = self._sizes(self._settings.min_nodes, self._settings.max_nodes)
        for name, of in spec.edge_sets.items():
            if readout_edge(name) is None:
                self._draw_edges(name, of.source, of.target)
        for name in spec.node_sets:
            if name.startswith(SHADOW):
                self._node_sizes[name] = self._edges[name.removeprefix(SHADOW)][0]
        for name in spec.node_sets:
            if is_readout(name):
                self._draw_readout(name)
        return GraphPieces(
            component_offsets=np.array([0, num_components], np.int64),
            context=self._features("context/", spec.context, num_components),
            node_sets={
                name: NodePieces(
                    sizes=self._node_sizes[name],
                    features=self._features(f"nodes/{name}.", of.features, int(self._node_sizes[name].sum())),
                )
                for name, of in spec.node_sets.items()
            },
            edge_sets={
                name: EdgePieces(
                    sizes=self._edges[name][0], source=self._edges[name][1], target=self._edges[name][2],
                    source_set=of.source, target_set=of.target,
                    features=self._features(f"edges/{name}.", of.features, len(self._edges[name][1])),
                )
                for name, of in spec.edge_sets.items()
            },
        )  # fmt: skip

    def _sizes(self, least: int, most: int) -> IntArray:
        return self._rng.integers(least, most + 1, self._settings.num_components, np.int64)

    def _draw_edges(self, name: str, source_set: str, target_set: str) -> None:
        num_sources, num_targets = self._node_sizes[source_set], self._node_sizes[target_set]
        sizes = np.where((num_sources > 0) & (num_targets > 0), self._sizes(0, self._settings.max_edges), 0)
        self._edges[name] = (sizes, self._ends(sizes, num_sources), self._ends(sizes, num_targets))

    def _ends(self, sizes: IntArray, num_nodes: IntArray) -> IntArray:
        """Draw for each edge a random node of its component."""
        firsts = offsets_of(num_nodes)[:-1]
        return np.repeat(firsts, sizes) + self._rng.integers(0, np.repeat(num_nodes, sizes))

    def _draw_readout(self, node_set: str) -> None:
        by_key: dict[str, list[str]] = {}
        for name in sorted(self._spec.edge_sets):
            found = readout_edge(name)
            if found is not None and found[0] == node_set:
                by_key.setdefault(found[1], []).append(name)
        sizes_of = {n: self._node_sizes[self._spec.edge_sets[n].source] for of in by_key.values() for n in of}
        has_all = np.ones(self._settings.num_components, np.bool_)
        for names in by_key.values():
            has_all &= np.any([sizes_of[name] > 0 for name in names], axis=0)
        self._node_sizes[node_set] = has_all.astype(np.int64)
        predictions: IntArray = np.cumsum(has_all) - has_all
        for names in by_key.values():
            # Choose the set with the highest draw; empty sets have draw 0.
            draws = np.array([self._rng.random(len(has_all)) * (sizes_of[name] > 0) for name in names])
            chosen = np.argmax(draws, axis=0)
            for number, name in enumerate(names):
                sizes = (has_all & (chosen == number)).astype(np.int64)
                self._edges[name] = (sizes, self._ends(sizes, sizes_of[name]), predictions[sizes > 0])

    def _features(self, key: str, features: Mapping[str, FieldSpec], num_items: int) -> dict[str, FeatureValues]:
        return {name: self._values(key + name, spec, num_items) for name, spec in features.items()}

    def _values(self, key: str, spec: FieldSpec, num_items: int) -> FeatureValues:
        dims: list[Dim] = []
        num_rows = num_items
        for size in spec.shape:
            if size is not None:
                dims.append(size)
                num_rows *= size
                _check_size(key, spec, num_items, num_rows)
                continue
            lengths = self._rng.integers(self._settings.min_row, self._settings.max_row + 1, num_rows, np.int64)
            dims.append(lengths)
            num_rows = int(lengths.sum())
            _check_size(key, spec, num_items, num_rows)
        return FeatureValues(self._flat(spec, num_rows), num_items, tuple(dims))

    def _flat(self, spec: FieldSpec, num_values: int) -> Array | RaggedArray:
        if spec.is_string:
            lengths = self._rng.integers(0, self._settings.max_letters + 1, num_values, np.int64)
            letters = LETTERS[self._rng.integers(0, len(LETTERS), int(lengths.sum()))]
            return RaggedArray(letters, offsets_of(lengths), is_string=True)
        if spec.numpy_dtype.kind == "f":
            return self._rng.standard_normal(num_values).astype(spec.numpy_dtype)
        bound = 2 if spec.dtype == "bool" else INT_BOUND
        return self._rng.integers(0, bound, num_values).astype(spec.numpy_dtype)


def _check_size(key: str, spec: FieldSpec, num_items: int, num_values: int) -> None:
    if num_values > MAX_VALUES:
        raise SchemaError(
            f"{key}: {num_items} items of shape {list(spec.shape)} have {num_values:,} values; "
            f"a random graph has at most {MAX_VALUES:,} of a feature"
        )
