"""Checks that every strategy draws the edges of the plain answer, with any amount of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopstream.kernels.eligible import Draws, Nodes, Scratch, Variates, Weights, count_eligible, filter_sets
from hopstream.kernels.memory import address_table
from hopstream.kernels.weighted import weight_kind
from hopstream.schema import EDGE
from hopstream.store.contract import TREE_SHIFT, LaborSeeds, SampleRequest
from hopstream.store.drawing import DRAWS
from tests import naive, naive_sampling, naive_weighted
from tests.kernels.draw_inputs import NOTHING, make_tables
from tests.naive_sampling import Edge

LABOR_SEEDS = LaborSeeds(first=11, second=12, share=0.25)
NUM_NEIGHBORS = 40
NUM_IDS = 30
DEGREES = [0, 1, 2, 5, 30, 600]
"""Numbers of edges; one is above ``SCANNED``, so its draws reject excluded edges."""


class Hand:
    """Twelve nodes in two parts, each part with six degrees, in the form that kernels take."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rows = [self._row(rng, degree) for degree in (*DEGREES, *DEGREES)]
        parts = self.rows[:6], self.rows[6:]
        self._columns: dict[str, list[NDArray[Any]]] = {
            "keys": [100 + np.arange(6), 200 + np.arange(6)],
            "indices": [np.array([e.neighbor for row in part for e in row], np.uint32) for part in parts],
            "sums": [
                np.array([s for row in part for s in naive_weighted.running_sums(weights(row))]) for part in parts
            ],
            "aliases": [
                np.array([e for row in part for e in naive_weighted.alias_entries(weights(row))], np.uint64)
                for part in parts
            ],
            "orders": [
                np.array([p for row in part for p in np.argsort([-w for w in weights(row)], kind="stable")], np.uint32)
                for part in parts
            ],
        }
        self._columns["weights"] = [np.array([w for row in part for w in weights(row)], np.float32) for part in parts]
        # A neighbour's key is its id plus 5000, as if keys differed from ids.
        self._columns["neighbor_keys"] = [np.asarray(c, np.int64) + 5000 for c in self._columns["indices"]]
        self.parts = np.repeat([0, 1], 6).astype(np.int32)
        self.degrees = np.array([len(row) for row in self.rows])
        self.starts = np.concatenate([np.cumsum([0, *DEGREES[:-1]])] * 2)
        addresses = {name: address_table(columns) for name, columns in self._columns.items()}
        self.tables = make_tables(offsets=np.array([0, 6, 12]), keys=addresses["keys"], indices=addresses["indices"])
        self._neighbor_keys = addresses["neighbor_keys"]
        self._weights = Weights(
            **{name: addresses[name] for name in ("sums", "aliases", "orders", "weights")},
            kind=weight_kind(np.dtype(np.float32)),
        )

    def source(self, request: SampleRequest) -> Weights | Variates | None:
        if request.strategy == "labor":
            seeds = np.uint64(LABOR_SEEDS.first), np.uint64(LABOR_SEEDS.second)
            return Variates(self._neighbor_keys, np.empty(0, np.int64), *seeds, LABOR_SEEDS.share)
        return self._weights if request.strategy in ("weighted", "top_k") else None

    def nodes(self, request: SampleRequest, num_eligible: NDArray[np.int64]) -> Nodes:
        ids = request.ids
        trees, counts = NOTHING if request.trees is None else request.trees, np.full(len(ids), -1, np.int32)
        return Nodes(ids, trees, self.parts[ids], self.starts[ids], num_eligible, self.degrees[ids], counts)

    @staticmethod
    def _row(rng: np.random.Generator, degree: int) -> list[Edge]:
        neighbors = rng.integers(0, NUM_NEIGHBORS, degree).tolist()
        drawn = rng.choice([0.0, 0.0, 0.5, 1.0, 3.0], degree).tolist()
        return [Edge(n, edge, None, w) for edge, (n, w) in enumerate(zip(neighbors, drawn, strict=True))]

    def choose(
        self, request: SampleRequest, num_eligible: NDArray[np.int64], room: int = 0, listed: int = 64
    ) -> list[list[int]]:
        """Positions in its row that each id chooses, starting with little memory."""
        positions, scratch = np.empty(room, np.int64), make_scratch(listed)
        nodes, draws = (
            self.nodes(request, num_eligible),
            Draws(request.count, request.is_replacing, np.uint64(request.rng_seed)),
        )
        sets = filter_sets(None if request.excluded is None else tuple(request.excluded), request.candidates)
        is_limited = request.excluded is not None or request.candidates is not None
        rule = sets.to_filter(TREE_SHIFT) if is_limited or request.strategy in ("top_k", "labor") else None
        done = written = calls = 0
        while True:
            done, written, num_positions, num_scratch = DRAWS[request.strategy](
                self.tables, self.source(request), rule, draws, nodes, scratch, done, positions, written
            )
            calls += 1
            if done == len(request.ids):
                break
            assert calls < 100
            assert num_positions > len(positions) or num_scratch > len(scratch.listed)
            positions = np.concatenate([positions, np.empty(max(0, num_positions - len(positions)), np.int64)])
            scratch = make_scratch(max(num_scratch, len(scratch.listed)))
        assert written == nodes.counts.sum()
        chosen = np.split(positions[:written], np.cumsum(nodes.counts)[:-1])
        return [(own - start).tolist() for own, start in zip(chosen, nodes.starts, strict=True)]

    def wanted(self, request: SampleRequest, num_eligible: NDArray[np.int64]) -> list[list[int]]:
        answer = []
        for index, identifier in enumerate(request.ids.tolist()):
            key = 100 + identifier if identifier < 6 else 194 + identifier
            stream = naive.node_stream(request.rng_seed, key)
            if request.trees is not None:
                stream = naive.node_stream(stream, int(request.trees[index]))
            row = self.rows[identifier][: int(num_eligible[index])]
            own = naive_sampling.of_tree(request, index)
            if request.strategy == "labor":
                shifted = replace(own, excluded=shift(own.excluded, 1), candidates=shift(own.candidates))
                row = [replace(edge, neighbor=edge.neighbor + 5000) for edge in row]
                chosen = naive_sampling.choose(row, shifted, identifier, stream)
            else:
                chosen = naive_sampling.choose(row, own, identifier, stream, self.rows[identifier])
            answer.append([edge.edge_key for edge in chosen])
        return answer


def shift(values: NDArray[np.int64] | None, row: int | None = None) -> NDArray[np.int64] | None:
    """The neighbours' ids as their keys."""
    if values is None:
        return None
    moved = values.copy()
    moved[... if row is None else row] += 5000
    return moved


def weights(row: list[Edge]) -> list[float]:
    return [edge.weight or 0.0 for edge in row]


def make_scratch(capacity: int) -> Scratch:
    return Scratch(np.empty(capacity, np.int64), np.empty(capacity), np.empty(capacity), np.empty(capacity, np.uint64))


def make_request(rng: np.random.Generator, strategy: Any, count: int, limits: str) -> SampleRequest:
    """All nodes several times; excluded are half of the neighbours of half of the nodes.

    Candidates are a third of all neighbours, others in each tree; some trees have none.
    """
    trees = rng.integers(0, 9, NUM_IDS) * 932_067
    allowed = [t << TREE_SHIFT | n for t in np.unique(trees).tolist()[2:] for n in range(t % 5, NUM_NEIGHBORS, 3)]
    excluded = np.stack(np.meshgrid(np.arange(0, 12, 2), np.arange(0, NUM_NEIGHBORS, 2))).reshape(2, -1)
    return SampleRequest(
        edge_type=EDGE, direction="in", ids=rng.integers(0, 12, NUM_IDS), count=count,
        rng_seed=int(rng.integers(1 << 60)), strategy=strategy, trees=trees,
        labor=LABOR_SEEDS if strategy == "labor" else None,
        excluded=rng.permutation(excluded, axis=1) if "excluded" in limits else None,
        candidates=np.array(allowed) if "candidates" in limits else None,
    )  # fmt: skip


@pytest.mark.parametrize("strategy", DRAWS)
@pytest.mark.parametrize(
    ("limits", "count"),
    [
        *(("", count) for count in (-1, 0, 1, 4, 70)),
        *(("excluded", count) for count in (-1, 0, 1, 4, 70)),
        *(("candidates", count) for count in (-1, 4)),
        *(("excluded, candidates", count) for count in (1, 70)),
    ],
)
def test_choices_equal_the_plain_answer(rng: np.random.Generator, strategy: str, limits: str, count: int) -> None:
    if strategy in ("last", "labor") and (count < 0 or (strategy == "last" and not limits)):
        return  # then stores draw uniformly, or only read
    hand = Hand(rng)
    request = make_request(rng, strategy, count, limits)
    whole = hand.degrees[request.ids]
    for num_eligible in (whole, whole // 2, whole // 50):
        wanted = hand.wanted(request, num_eligible)
        assert hand.choose(request, num_eligible) == wanted
        assert hand.choose(request, num_eligible, room=10_000, listed=1000) == wanted


@pytest.mark.parametrize("strategy", ["uniform", "weighted"])
@pytest.mark.parametrize("limits", ["", "excluded", "candidates"])
def test_choices_with_replacement_equal_the_plain_answer(rng: np.random.Generator, strategy: str, limits: str) -> None:
    hand = Hand(rng)
    for count in (1, 9, 70):
        request = replace(make_request(rng, strategy, count, limits), is_replacing=True)
        num_eligible = hand.degrees[request.ids]
        assert hand.choose(request, num_eligible) == hand.wanted(request, num_eligible)


@pytest.mark.parametrize("limits", ["excluded", "candidates", "excluded, candidates"])
def test_eligible_edges_are_counted(rng: np.random.Generator, limits: str) -> None:
    hand = Hand(rng)
    request = make_request(rng, "uniform", -1, limits)
    degrees = hand.degrees[request.ids]
    found = np.empty(len(degrees), np.int64)
    sets = filter_sets(None if request.excluded is None else tuple(request.excluded), request.candidates)
    count_eligible(hand.tables, sets.to_filter(TREE_SHIFT), hand.nodes(request, degrees), found)
    assert found.tolist() == [len(row) for row in hand.wanted(request, degrees)]


def test_a_hub_with_all_neighbors_excluded_draws_none(rng: np.random.Generator) -> None:
    """After a bounded number of rejections the row is scanned, and no edge is left."""
    hand = Hand(rng)
    everyone = np.stack([np.full(NUM_NEIGHBORS, 5), np.arange(NUM_NEIGHBORS)])
    but_one = everyone[:, everyone[1] != hand.rows[5][17].neighbor]
    request = replace(make_request(rng, "uniform", 20, ""), ids=np.array([5]), trees=None)
    assert hand.choose(replace(request, excluded=everyone), hand.degrees[[5]]) == [[]]
    left = [e.edge_key for e in hand.rows[5] if e.neighbor == hand.rows[5][17].neighbor]
    few = hand.choose(replace(request, excluded=but_one), hand.degrees[[5]])
    assert few == [left[:20]] if len(left) <= 20 else len(set(few[0])) == 20
