"""HGT sampling: draws a number of nodes per node type and layer, and takes all edges between them.

In each layer, every new node gives each of its neighbours along an edge type a share of one over its number of edges of
that type. The budget of a node that is not sampled yet is the sum of its shares from all layers so far. A layer draws
nodes of each type in proportion to the squares of their budgets, without replacement.

Source: Hu et al., "Heterogeneous Graph Transformer", WWW 2020, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hopstream.arrays import IntArray
from hopstream.dataset.book import ends_of
from hopstream.errors import SettingsError
from hopstream.kernels.budgets import random_waits
from hopstream.kernels.hashing import derive_seed
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SamplePlan, SeedNodes, checked_counts
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.sample.slots import SlotMap
from hopstream.schema import Direction, GraphSchema
from hopstream.store.contract import KEY, FetchRequest, SampleReply, SampleRequest, Store

NumSamples = Sequence[int] | Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HGTPlan(SamplePlan):
    """Plan of HGT sampling: it has no ops, and its subgraphs are induced.

    Attributes:
        num_samples: Node type to the nodes to draw per layer, -1 for all candidates; a number per hop for each type.
    """

    num_samples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def plan_hgt(
    schema: GraphSchema, num_samples: NumSamples, seed_type: str, direction: Direction, wants_edge_ids: bool
) -> HGTPlan:
    """Make the plan of HGT sampling.

    Args:
        schema: The graph's schema.
        num_samples: Nodes to draw per layer, for each node type or by node type; types that a mapping leaves out get
            no nodes. -1 means all candidates.
        seed_type: Node type of the seeds.
        direction: The direction in which edges lead to candidates.
        wants_edge_ids: Also find the ids of the edges.

    Raises:
        UnknownNameError: The schema has no such node type.
        SettingsError: A number is below -1, node types have different numbers of layers, or there is no layer.
    """
    schema.check_node_type(seed_type)
    if isinstance(num_samples, Mapping):
        for node_type in num_samples:
            schema.check_node_type(node_type)
        given = {t: checked_counts(f"num_samples[{t!r}]", counts) for t, counts in num_samples.items()}
    else:
        given = dict.fromkeys(schema.nodes, checked_counts("num_samples", num_samples))
    lengths = {len(counts) for counts in given.values()}
    if len(lengths) != 1:
        raise SettingsError(f"num_samples has node types of {sorted(lengths)} layers; give each type the same number")
    (num_hops,) = lengths
    return HGTPlan(
        seed_types=(seed_type,), ops=(), num_hops=num_hops, wants_edge_ids=wants_edge_ids,
        settings=SamplingSettings(direction=direction, subgraph_type="induced"),
        num_samples={t: tuple(given.get(t, [0] * num_hops)) for t in schema.nodes},
    )  # fmt: skip


class _Pool:
    """Candidates of one node type in one batch, seeds and sampled nodes included.

    Attributes:
        known: Slots of the candidates.
        budgets: float64[num_nodes], the budget of each.
        is_taken: bool[num_nodes], whether it is a seed or sampled.
        keys: int64[m], keys of the first ``m`` candidates.
    """

    def __init__(self) -> None:
        self.known = SlotMap()
        self.reset()

    def reset(self) -> None:
        """Remove all candidates."""
        self.known.reset()
        self.budgets, self.is_taken, self.keys = np.empty(0), np.empty(0, np.bool_), np.empty(0, np.int64)

    def add(self, ids: IntArray, shares: np.ndarray) -> IntArray:
        """Add a share to the budget of each id; return int64[n], their slots."""
        slots = np.empty(len(ids), np.int64)
        self.known.assign(ids, slots)
        num_new = self.known.num_nodes - len(self.budgets)
        self.budgets = np.append(self.budgets, np.zeros(num_new))
        self.is_taken = np.append(self.is_taken, np.zeros(num_new, np.bool_))
        np.add.at(self.budgets, slots, shares)  # one after the other, so sums do not depend on where parts are
        return slots

    def take(self, slots: IntArray) -> IntArray:
        """Mark candidates as taken; return int64[n], their ids."""
        self.is_taken[slots] = True
        ids: IntArray = self.known.ids()[slots]
        return ids

    def draw(self, slots: IntArray, count: int, rng_seed: int) -> IntArray:
        """Draw ``count`` candidates in proportion to their squared budgets; return their slots, ascending."""
        keys, waits = self.keys[slots], np.empty(len(slots))
        random_waits(keys, self.budgets[slots] ** 2, np.uint64(rng_seed), waits)
        longest = np.partition(waits, count - 1)[count - 1] if count else -1.0
        shortest = np.flatnonzero(waits <= longest)  # more than ``count`` if waits are equal
        drawn = shortest[np.lexsort((keys[shortest], waits[shortest]))[:count]]
        return np.sort(slots[drawn])


class HGTRunner(PlanRunner):
    """Runner of HGT sampling over one store for many batches, in reused memory. Not thread-safe."""

    def __init__(self, store: Store, plan: HGTPlan) -> None:
        """Check the plan against the store; see ``PlanRunner``."""
        super().__init__(store, plan)
        self._num_samples = plan.num_samples
        self._followed = plan.directions_over(store)
        self._pools = {node_type: _Pool() for node_type in store.schema.nodes}

    def _hops(
        self, seeds: SeedNodes, end_hop: Callable[[], None]
    ) -> Generator[list[SampleRequest], list[SampleReply], None]:
        for node_type, pool in self._pools.items():
            pool.reset()
            ids = seeds.ids.get(node_type, np.empty(0, np.int64))
            pool.take(pool.add(ids, np.zeros(len(ids))))
        new = dict(seeds.ids)
        for hop in range(self._plan.num_hops):
            asked = [
                (edge_type, direction, new[expanded])
                for edge_type, direction in self._followed.items()
                if len(new.get(expanded := ends_of(edge_type, direction)[0], ()))
            ]
            requests = [
                SampleRequest(edge_type=edge_type, direction=direction, ids=ids, count=-1)
                for edge_type, direction, ids in asked
            ]
            try:
                replies = (yield requests) if requests else []
            except MemoryError as error:
                num_nodes = sum(len(ids) for _, _, ids in asked)
                raise SettingsError(
                    f"layer {hop + 1} of num_samples asks for all neighbours of {num_nodes:,} nodes, which is more "
                    "than memory holds; give a smaller num_samples or batch_size"
                ) from error
            for (edge_type, direction, _), reply in zip(asked, replies, strict=True):
                shares = np.repeat(1.0 / np.maximum(reply.counts, 1), reply.counts)
                self._pools[ends_of(edge_type, direction)[1]].add(np.asarray(reply.neighbor_ids, np.int64), shares)
            new = self._draw(hop, seeds.rng_seed)
            for node_type, ids in new.items():
                self._slots[node_type].assign(ids, np.empty(len(ids), np.int64))
            end_hop()

    def _draw(self, hop: int, rng_seed: int) -> dict[str, IntArray]:
        """Draw the nodes of one layer; return node type to int64[n], their ids in order of discovery."""
        open_slots = {t: np.flatnonzero(~pool.is_taken) for t, pool in self._pools.items()}
        counts = {t: self._num_samples[t][hop] for t in self._pools}
        drawn_types = [t for t, slots in open_slots.items() if 0 < counts[t] < len(slots)]
        self._find_keys(drawn_types)
        for node_type in drawn_types:
            seed = rng_seed ^ derive_seed("hgt", hop, node_type)
            open_slots[node_type] = self._pools[node_type].draw(open_slots[node_type], counts[node_type], seed)
        return {t: pool.take(open_slots[t][: 0 if counts[t] == 0 else None]) for t, pool in self._pools.items()}

    def _find_keys(self, node_types: list[str]) -> None:
        """Find the keys of all candidates of some types, with one call of the store."""
        missing = {t: self._pools[t].known.ids()[len(self._pools[t].keys) :].copy() for t in node_types}
        found = list(missing.values())
        if not self._store.book.ids_are_keys and missing:
            requests = [FetchRequest(entity=t, names=(KEY,), ids=ids) for t, ids in missing.items()]
            found = [np.asarray(columns[KEY]) for columns in self._store.fetch(requests)]
        for node_type, keys in zip(missing, found, strict=True):
            self._pools[node_type].keys = np.append(self._pools[node_type].keys, keys)
