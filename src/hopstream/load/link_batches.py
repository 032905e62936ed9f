"""Makes batches of links, from positives to columns.

A batch belongs to one thread from its first to its last step: find the ends of the links, draw negatives, run the plan
from all ends, fetch all columns. What a model is trained on, slots of ends and labels, are attributes of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.graph.subgraph import Subgraph
from hopstream.load.batch import BatchMaker, Convert, Runner, SeedBatch, SubgraphReader
from hopstream.load.link_inputs import LinkInputs
from hopstream.load.order import SeedOrder
from hopstream.sample.negative_pairs import NegativeSampler, Positives
from hopstream.sample.plan import SeedNodes
from hopstream.sample.sampling import Sampling
from hopstream.sample.slots import SlotMap
from hopstream.schema import EdgeType
from hopstream.store.contract import Links, Store


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTask:
    """What a loader of links starts from.

    Attributes:
        store: Where links are asked for.
        inputs: The links; labels are as batches show them.
        order: Which of them make which batch.
        sampling: How neighbourhoods are drawn.
        negatives: Where negatives come from, or None.
        excluded: Edge types that hold the links of a batch (False) or their reverses (True), which are not followed.
    """

    store: Store
    inputs: LinkInputs
    order: SeedOrder
    sampling: Sampling
    negatives: NegativeSampler | None
    excluded: tuple[tuple[EdgeType, bool], ...]

    @property
    def is_triplet(self) -> bool:
        """Batches show triplets, not labelled pairs."""
        return self.negatives is not None and self.negatives.how.mode == "triplet"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ends:
    """The ends of a batch's links, positives first, as seeds.

    Attributes:
        keys: Node type to int64[n] keys of seeds.
        src_slots: int64[num_sources], slots of sources: positives, then negatives, if those have their own.
        dst_slots: int64[num_destinations], slots of destinations: positives, then negatives.
        trees: Node type to int64[n], the tree of each seed; None where trees are not disjoint.
        num_trees: Numbers of trees end here.
    """

    keys: Mapping[str, IntArray]
    src_slots: IntArray
    dst_slots: IntArray
    trees: Mapping[str, IntArray] | None = None
    num_trees: int = 0


class LinkMaker(BatchMaker):
    """Makes batches of neighbourhoods of links. One thread uses one maker."""

    def __init__(self, runner: Runner, reader: SubgraphReader, task: LinkTask, convert: Convert) -> None:
        """Bring together what makes a batch."""
        super().__init__(runner, reader, convert)
        self._task = task
        self._slot_map = SlotMap()

    def _start(self, epoch: int, step: int) -> SeedBatch:
        task, settings = self._task, self._task.sampling.settings
        span = task.order.span(step)
        positions = task.order.positions(epoch, span)
        rng_seed = task.order.batch_seed(epoch, span)
        self.stage = "finding the ends of links"
        links = task.inputs.links_at(task.store, positions)
        negatives = np.empty((2, 0), np.int64)
        if task.negatives is not None:
            self.stage = "drawing negatives"
            times = links.times if settings.is_temporal else None
            positives = Positives(src_keys=links.src_keys, dst_keys=links.dst_keys, times=times)
            negatives = task.negatives.draw(positives, rng_seed)
        src_keys = links.src_keys if task.is_triplet else np.concatenate([links.src_keys, negatives[0]])
        dst_keys = np.concatenate([links.dst_keys, negatives[1]])
        ends = (
            self._trees(src_keys, dst_keys, len(positions)) if settings.is_disjoint else self._joint(src_keys, dst_keys)
        )
        self.stage = "looking up seeds"
        ids = {node_type: self._reader.ids_of(node_type, keys) for node_type, keys in ends.keys.items()}
        return SeedBatch(
            index=span.index,
            seeds=SeedNodes(
                ids=ids,
                rng_seed=rng_seed,
                trees=ends.trees,
                times=_tree_times(links, ends.num_trees) if settings.is_temporal else None,
                excluded=self._excluded(ids, ends, len(positions)),
                labor=task.sampling.labor_seeds(task.order.settings.rng_seed, epoch, span.index),
            ),
            seed_type=task.inputs.edge_type,
            input_ids=positions,
            attributes=self._attributes(links, ends, positions),
            arrange=None if ends.trees is None else partial(_number_trees_by_link, num_links=len(positions)),
        )

    def _joint(self, src_keys: IntArray, dst_keys: IntArray) -> _Ends:
        """Every node once, in order of first occurrence, sources first."""
        src_type, _, dst_type = self._task.inputs.edge_type
        if src_type == dst_type:
            keys, slots = self._slot_map.number(np.concatenate([src_keys, dst_keys]))
            return _Ends(keys={src_type: keys}, src_slots=slots[: len(src_keys)], dst_slots=slots[len(src_keys) :])
        distinct_src, src_slots = self._slot_map.number(src_keys)
        distinct_dst, dst_slots = self._slot_map.number(dst_keys)
        return _Ends(keys={src_type: distinct_src, dst_type: distinct_dst}, src_slots=src_slots, dst_slots=dst_slots)

    def _trees(self, src_keys: IntArray, dst_keys: IntArray, num_links: int) -> _Ends:
        """Every end with a tree of its own, whose number modulo the number of links is that of the end's link."""
        src_type, _, dst_type = self._task.inputs.edge_type
        num_src, num_dst = len(src_keys), len(dst_keys)
        first_dst = -(-num_src // num_links) * num_links
        src_trees = np.arange(num_src, dtype=np.int64)
        dst_trees = np.arange(first_dst, first_dst + num_dst, dtype=np.int64)
        if src_type == dst_type:
            keys = {src_type: np.concatenate([src_keys, dst_keys])}
            trees = {src_type: np.concatenate([src_trees, dst_trees])}
            dst_slots = np.arange(num_src, num_src + num_dst, dtype=np.int64)
        else:
            keys = {src_type: src_keys, dst_type: dst_keys}
            trees = {src_type: src_trees, dst_type: dst_trees}
            dst_slots = np.arange(num_dst, dtype=np.int64)
        return _Ends(keys=keys, src_slots=src_trees, dst_slots=dst_slots, trees=trees, num_trees=first_dst + num_dst)

    def _excluded(self, ids: Mapping[str, IntArray], ends: _Ends, num_links: int) -> dict[EdgeType, IntArray]:
        """Pairs of ids between which no edge is followed: the batch's positives, not its negatives."""
        src_type, _, dst_type = self._task.inputs.edge_type
        found: dict[EdgeType, IntArray] = {}
        for edge_type, is_reverse in self._task.excluded:
            pairs = np.stack([ids[src_type][ends.src_slots[:num_links]], ids[dst_type][ends.dst_slots[:num_links]]])
            pairs = pairs[::-1] if is_reverse else pairs
            found[edge_type] = np.concatenate([found[edge_type], pairs], axis=1) if edge_type in found else pairs
        return {edge_type: np.ascontiguousarray(pairs) for edge_type, pairs in found.items()}

    def _attributes(
        self, links: Links, ends: _Ends, positions: IntArray
    ) -> dict[str | EdgeType | None, dict[str, Array]]:
        num_links = len(positions)
        times = links.times if self._task.sampling.settings.is_temporal else None
        if self._task.is_triplet:
            return self._triplets(ends, num_links, times)
        attributes: dict[str, Array] = {"edge_label_index": np.stack([ends.src_slots, ends.dst_slots])}
        labels = self._labels(positions, len(ends.src_slots) - num_links)
        if labels is not None:
            attributes["edge_label"] = labels
        if times is not None:
            attributes["edge_label_time"] = np.resize(times, len(ends.src_slots))
        return {self._task.inputs.edge_type: attributes}

    def _labels(self, positions: IntArray, num_negatives: int) -> Array | None:
        """Labels of positives, then zeros; where the user gave none and there are negatives, ones, then zeros."""
        given = self._task.inputs.labels
        if given is None and self._task.negatives is None:
            return None
        labels = np.ones(len(positions), np.float32) if given is None else given[positions]
        return np.concatenate([labels, np.zeros((num_negatives, *labels.shape[1:]), labels.dtype)])

    def _triplets(
        self, ends: _Ends, num_links: int, times: IntArray | None
    ) -> dict[str | EdgeType | None, dict[str, Array]]:
        src_type, _, dst_type = self._task.inputs.edge_type
        # Negative k belongs to link k % num_links.
        negatives = np.ascontiguousarray(ends.dst_slots[num_links:].reshape(-1, num_links).T)
        found: dict[str | EdgeType | None, dict[str, Array]] = {src_type: {}, dst_type: {}}
        found[src_type]["src_index"] = ends.src_slots
        found[dst_type]["dst_pos_index"] = ends.dst_slots[:num_links]
        found[dst_type]["dst_neg_index"] = negatives[:, 0] if negatives.shape[1] == 1 else negatives
        if times is not None:
            for attributes in found.values():
                attributes["seed_time"] = times
        return found


def _tree_times(links: Links, num_trees: int) -> IntArray | None:
    """int64[num_trees], the time of each tree's link."""
    return None if links.times is None else np.resize(links.times, num_trees)


def _number_trees_by_link(subgraph: Subgraph, num_links: int) -> Subgraph:
    """Give both ends of a link and of its negatives the link's number, as in PyG."""
    trees = {node_type: of % num_links for node_type, of in (subgraph.trees or {}).items()}
    return replace(subgraph, trees=trees)
