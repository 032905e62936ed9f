"""Samples a batch of seeds, nodes or links, to graph tensors, one per seed.

One run of the plan samples the trees of all seeds. Then nodes and edges are grouped by tree, so columns are fetched in
the order in which they are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray
from hopstream.errors import SettingsError
from hopstream.export.plan import add_link_readout, check_weights, repeated_edge_types, starts_from_links
from hopstream.export.settings import Seconds
from hopstream.graph.graph import SampledEdges
from hopstream.kernels.relabel import group_by_tree
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SamplePlan, SeedNodes
from hopstream.sample.slots import SlotMap
from hopstream.schema import EdgeType
from hopstream.store.contract import TREE_SHIFT, FetchRequest, Store
from hopstream.tfgnn.graph_schema import edge_set_names
from hopstream.tfgnn.graph_tensor import EdgePieces, GraphPieces, NodePieces
from hopstream.tfgnn.values import FeatureValues

EDGE_BYTES = 16
"""Bytes of an edge's two ends."""
ROW_BYTES = 32
"""Assumed size of a list or string until the first ones are fetched."""


@dataclass(frozen=True, slots=True, eq=False)
class TreeItems:
    """Items of all trees, grouped by tree.

    Attributes:
        offsets: int64[num_trees + 1], ranges of ``order``.
        order: int64[n], indices of the items, grouped by tree.
        places: int64[n], the position of each item in its tree.
    """

    offsets: IntArray
    order: IntArray
    places: IntArray

    @classmethod
    def of(cls, trees: IntArray, num_trees: int) -> TreeItems:
        """Group items, given the tree of each, int64[n]."""
        grouped = cls(np.empty(num_trees + 1, np.int64), np.empty(len(trees), np.int64), np.empty(len(trees), np.int64))
        group_by_tree(trees, grouped.offsets, grouped.order, grouped.places)
        return grouped

    def first(self, num_trees: int) -> TreeItems:
        """Return the items of the first trees; ``places`` still covers all items."""
        return TreeItems(self.offsets[: num_trees + 1], self.order[: self.offsets[num_trees]], self.places)


class SubgraphMaker:
    """Maker of graph tensors, sampled from a store. One thread uses one maker."""

    def __init__(self, store: Store, plan: SamplePlan, features: Mapping[str | EdgeType, Sequence[str]]) -> None:
        """Check the plan against the store.

        Args:
            store: Where the graph is.
            plan: A disjoint plan with one seed type, or with two, of a link's source and target.
            features: Node type or edge type to the features to fetch.

        Raises:
            UnknownNameError: The store's graph has no such type or feature.
            SettingsError: The dataset does not hold what the plan needs.
        """
        for entity, names in features.items():
            for name in names:
                store.schema.feature(entity, name)
        check_weights(plan, store)
        self._store, self._plan, self._features = store, plan, features
        self._runner = PlanRunner(store, plan)
        self._is_of_links = starts_from_links(plan)
        self._edge_sets = edge_set_names(store.schema)
        self._repeated = repeated_edge_types(plan)
        self._distinct = SlotMap()
        self._row_bytes = {entity: _row_bytes(store, entity, names) for entity, names in features.items()}
        self.gathering = Seconds()  # for columns

    def make(
        self, seed_keys: IntArray, rng_seed: int, trees: IntArray | None = None, *, max_bytes: int | None = None
    ) -> GraphPieces:
        """Sample the graph tensors of some seeds; each depends only on its key, its tree and the rng seed.

        Args:
            seed_keys: int64[n], keys; for links int64[n, 2], keys of sources and targets. Seeds may be repeated.
            rng_seed: 64 bits.
            trees: int64[n], distinct tree numbers of the seeds in any order, as from ``samples.trees_of``; 0..n-1 if
                None.
            max_bytes: Limit of the values' bytes: only the first graphs within it are made, at least one; None for no
                limit. The size is estimated before values are fetched; for lists and strings from earlier fetches.

        Returns:
            n graphs, or with ``max_bytes`` the first of them, of one component each. Seeds are the first nodes of their
            set. Of a link, the source comes first, then the target; if both are the same node, it occurs once. Links
            have a readout of ``_readout/source`` and ``_readout/target``.

        Raises:
            SettingsError: The shape of the keys does not fit the plan.
            StoreError: The store failed.
        """
        trees = np.arange(len(seed_keys), dtype=np.int64) if trees is None else trees
        self._check_shape(seed_keys, trees)
        num_trees = len(trees)
        found = self._runner.run(self._seeds(seed_keys, rng_seed, trees))
        of_nodes = {t: _places_of(of, trees) for t, of in (found.trees or {}).items()}
        nodes = {t: TreeItems.of(of, num_trees) for t, of in of_nodes.items()}
        drawn = {t: self._each_once(t, edges, of_nodes[t[0]]) for t, edges in found.edges.items()}
        edges = {t: TreeItems.of(of_nodes[t[0]][of.src_slots], num_trees) for t, of in drawn.items()}
        if max_bytes is not None and num_trees > 1:
            num_trees = self._num_within(nodes, edges, max_bytes)
            nodes = {t: of.first(num_trees) for t, of in nodes.items()}
            edges = {t: of.first(num_trees) for t, of in edges.items()}
        columns = self._fetch(found.node_ids, nodes, drawn, edges)
        pieces = GraphPieces(
            component_offsets=np.arange(num_trees + 1, dtype=np.int64),
            node_sets={
                t: NodePieces(sizes=np.diff(of.offsets), features=_values(columns.get(t, {})))
                for t, of in nodes.items()
            },
            edge_sets={
                name: EdgePieces(
                    sizes=np.diff(edges[t].offsets), source_set=t[0], target_set=t[2],
                    source=nodes[t[0]].places[drawn[t].src_slots[edges[t].order]],
                    target=nodes[t[2]].places[drawn[t].dst_slots[edges[t].order]],
                    features=_values(columns.get(t, {})),
                )
                for name, t in self._edge_sets.items()
            },
        )  # fmt: skip
        return self._with_readout(pieces, seed_keys[:num_trees]) if self._is_of_links else pieces

    def _check_shape(self, seed_keys: IntArray, trees: IntArray) -> None:
        wanted = (len(trees), 2) if self._is_of_links else (len(trees),)
        if seed_keys.shape != wanted:
            kind = "links, sources and targets" if self._is_of_links else "nodes"
            raise SettingsError(
                f"seed_keys are {seed_keys.dtype}{list(seed_keys.shape)}; the plan starts from {kind}: "
                f"give int64{list(wanted)}"
            )

    def _seeds(self, seed_keys: IntArray, rng_seed: int, trees: IntArray) -> SeedNodes:
        """Build the seeds of the trees; a link's source comes before its target."""
        types, ids, of_ids = self._plan.seed_types, {}, {}
        if not self._is_of_links:
            ids, of_ids = {types[0]: seed_keys}, {types[0]: trees}
        elif types[0] != types[1]:
            ids, of_ids = dict(zip(types, seed_keys.T, strict=True)), dict.fromkeys(types, trees)
        else:
            is_first = np.ones(seed_keys.shape, np.bool_)
            is_first[:, 1] = seed_keys[:, 0] != seed_keys[:, 1]
            ids, of_ids = {types[0]: seed_keys[is_first]}, {types[0]: np.repeat(trees, is_first.sum(axis=1))}
        ids = {t: self._store.lookup(t, np.ascontiguousarray(keys)) for t, keys in ids.items()}
        return SeedNodes(ids=ids, rng_seed=rng_seed, trees=of_ids)

    def _with_readout(self, pieces: GraphPieces, seed_keys: IntArray) -> GraphPieces:
        source_type, target_type = self._plan.seed_types
        is_second = (seed_keys[:, 0] != seed_keys[:, 1]) & (source_type == target_type)
        sources = np.zeros(len(seed_keys), np.int64)
        return add_link_readout(pieces, (source_type, target_type), sources, is_second.astype(np.int64))

    def _each_once(self, edge_type: EdgeType, drawn: SampledEdges, of_nodes: IntArray) -> SampledEdges:
        """Drop edges that another op has drawn earlier in the same tree."""
        if edge_type not in self._repeated or drawn.edge_ids is None:
            return drawn
        _, slots = self._distinct.number(of_nodes[drawn.src_slots] << TREE_SHIFT | drawn.edge_ids)
        # Slots are numbered in order of appearance, so a new edge has a higher slot than all edges before it.
        is_new = np.diff(np.maximum.accumulate(slots), prepend=-1) > 0
        return SampledEdges(
            src_slots=drawn.src_slots[is_new], dst_slots=drawn.dst_slots[is_new], edge_ids=drawn.edge_ids[is_new],
            direction=drawn.direction,
        )  # fmt: skip

    def _num_within(self, nodes: Mapping[str, TreeItems], edges: Mapping[EdgeType, TreeItems], max_bytes: int) -> int:
        """Return how many of the first trees fit into ``max_bytes``, at least one."""
        total: IntArray = np.zeros(1, np.int64)
        entities: list[tuple[str | EdgeType, TreeItems]] = [*nodes.items(), *edges.items()]
        for entity, of in entities:
            ends = 0 if isinstance(entity, str) else EDGE_BYTES
            total = total + of.offsets * (ends + sum(self._row_bytes.get(entity, {}).values()))
        return max(1, int(np.searchsorted(total, max_bytes, side="right")) - 1)

    def _fetch(
        self, node_ids: Mapping[str, IntArray], nodes: Mapping[str, TreeItems], drawn: Mapping[EdgeType, SampledEdges],
        edges: Mapping[EdgeType, TreeItems],
    ) -> dict[str | EdgeType, Mapping[str, Column]]:  # fmt: skip
        """Fetch the columns of all items, grouped by tree."""
        entities: list[str | EdgeType] = []
        requests: list[FetchRequest] = []
        for entity, names in self._features.items():
            if not names:
                continue
            entities.append(entity)
            if isinstance(entity, str):
                request = FetchRequest(entity=entity, names=tuple(names), ids=node_ids[entity][nodes[entity].order])
            else:
                of = drawn[entity]
                edge_ids = of.src_slots[:0] if of.edge_ids is None else of.edge_ids
                request = FetchRequest(
                    entity=(entity, of.direction), names=tuple(names), ids=edge_ids[edges[entity].order]
                )
            requests.append(request)
        started = Seconds.now()
        fetched = self._store.fetch(requests)
        self.gathering += Seconds.now() - started
        for entity, columns in zip(entities, fetched, strict=True):
            for name, column in columns.items():
                if isinstance(column, RaggedArray) and len(column):
                    num_bytes = column.values.nbytes + column.offsets.nbytes
                    self._row_bytes[entity][name] = max(self._row_bytes[entity][name], -(-num_bytes // len(column)))
        return dict(zip(entities, fetched, strict=True))


def _row_bytes(store: Store, entity: str | EdgeType, names: Sequence[str]) -> dict[str, int]:
    """Return the bytes per value of each feature.

    For lists and strings it is ``ROW_BYTES``, until some are fetched.
    """
    schemas = {name: store.schema.feature(entity, name) for name in names}
    return {
        name: ROW_BYTES if of.is_string or of.is_ragged else max(8, np.dtype(of.dtype).itemsize * math.prod(of.shape))
        for name, of in schemas.items()
    }


def _places_of(of_nodes: IntArray, trees: IntArray) -> IntArray:
    """Return int64[n], the index in ``trees`` of each node's tree."""
    if len(trees) and int(trees[-1]) - int(trees[0]) == len(trees) - 1 and bool(np.all(np.diff(trees) == 1)):
        places: IntArray = of_nodes - trees[0]
    else:
        order = np.argsort(trees)
        places = order[np.searchsorted(trees[order], of_nodes)]
    return places


def _values(columns: Mapping[str, Column]) -> dict[str, FeatureValues]:
    return {name: FeatureValues.of(column) for name, column in columns.items()}
