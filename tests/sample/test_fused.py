"""Checks that drawing and relabelling in one pass finds what two passes find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.kernels.neighbors import TREE_SHIFT as KERNEL_TREE_SHIFT
from hopstream.kernels.relabel import pack_neighbors
from hopstream.preparation.write import write_parts
from hopstream.sample.hops import FusedSampler
from hopstream.sample.slots import EdgeBuffer, SlotMap
from hopstream.store.contract import TREE_SHIFT, LaborSeeds, SampleRequest
from hopstream.store.local import LocalStore
from tests.store.cases import BUYS, make_timed_graph

NUM_IDS = 60
LIMITS: list[dict[str, Any]] = [
    {},
    {"trees": np.arange(NUM_IDS) % 7},
    {"times": np.arange(NUM_IDS) - 5},
    {"excluded": np.array([[0, 0, 3], [1, 2, 5]])},
    {"candidates": np.arange(0, 30, 2)},
    {"trees": np.arange(NUM_IDS) % 7, "times": np.arange(NUM_IDS) - 5, "excluded": np.array([[0, 0, 3], [1, 2, 5]])},
]


@pytest.fixture(scope="module", params=[1, 3])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStore]:
    folder = tmp_path_factory.mktemp("fused") / "parts"
    write_parts(
        make_timed_graph(), folder, num_parts=request.param, method="hash", time_attr="stamp", weight_attr="price",
        neighbor_keys=True,
    )  # fmt: skip
    with LocalStore(open_dataset(folder)) as opened:
        yield opened


def requests(strategy: Any) -> list[SampleRequest]:
    ids = np.random.default_rng(3).integers(0, 20, NUM_IDS)
    request = SampleRequest(
        edge_type=BUYS, direction="in", ids=ids, count=4, rng_seed=9, wants_edge_ids=True, strategy=strategy,
        labor=LaborSeeds(first=5) if strategy == "labor" else None,
    )  # fmt: skip
    return [replace(request, count=count, **limit) for count in (-1, 0, 4) for limit in LIMITS]


@pytest.mark.parametrize("strategy", ["uniform", "weighted", "top_k", "last", "labor"])
def test_one_pass_equals_two_passes(store: LocalStore, strategy: str) -> None:
    """Maps start small, grow while they are filled, and keep what earlier requests found."""
    sampler, fused = FusedSampler(store), {False: (SlotMap(), EdgeBuffer()), True: (SlotMap(), EdgeBuffer())}
    plain = {False: SlotMap(), True: SlotMap()}
    slots: dict[bool, list[int]] = {False: [], True: []}
    edge_ids: dict[bool, list[int]] = {False: [], True: []}
    for request in requests(strategy):
        has_trees = request.trees is not None
        neighbors, edges = fused[has_trees]
        counts = sampler.sample(request, neighbors, edges, 0)
        (reply,) = store.sample([request])
        assert counts.tolist() == reply.counts.tolist()
        found = reply.neighbor_ids.astype(np.int64)
        if request.trees is not None:
            pack_neighbors(reply.neighbor_ids, reply.counts, request.trees, TREE_SHIFT, found)
        out = np.empty(len(found), np.int64)
        plain[has_trees].assign(found, out)
        slots[has_trees] += out.tolist()
        assert reply.edge_ids is not None
        edge_ids[has_trees] += reply.edge_ids.tolist()
    for has_trees, (neighbors, edges) in fused.items():
        wanted = plain[has_trees]
        assert neighbors.node_ids[: neighbors.num_nodes].tolist() == wanted.node_ids[: wanted.num_nodes].tolist()
        assert edges.slots[0, : edges.num_edges].tolist() == slots[has_trees]
        assert edges.edge_ids[: edges.num_edges].tolist() == edge_ids[has_trees]


def test_a_node_of_two_trees_has_two_slots(store: LocalStore) -> None:
    ids = store.lookup("item", np.array([0, 0]))
    request = SampleRequest(edge_type=BUYS, direction="in", ids=ids, count=-1, trees=np.array([3, 8]))
    neighbors, edges = SlotMap(), EdgeBuffer()
    counts = FusedSampler(store).sample(request, neighbors, edges, 0)
    pairs = neighbors.node_ids[: neighbors.num_nodes]
    assert counts[0] == counts[1]
    assert sorted(set((pairs >> TREE_SHIFT).tolist())) == [3, 8]
    first, second = (pairs[pairs >> TREE_SHIFT == tree] & ((1 << TREE_SHIFT) - 1) for tree in (3, 8))
    assert first.tolist() == second.tolist()


def test_the_kernel_packs_trees_as_documented() -> None:
    assert KERNEL_TREE_SHIFT == TREE_SHIFT


def test_memory_stays_as_it_is_when_requests_of_two_dtypes_take_turns(store: LocalStore) -> None:
    """Neighbours of trees take 64 bits, others 32; a change of dtype must not double the buffer each time."""
    sampler = FusedSampler(store)
    few, many = requests("uniform")[:2]
    neighbors, edges = SlotMap(), EdgeBuffer()
    sizes = []
    for _ in range(30):
        for request in (few, many):
            neighbors.reset()
            edges.num_edges = 0
            sampler.sample(request, neighbors, edges, 0)
        sizes.append(sampler._neighbors.nbytes)
    assert sizes == sizes[:1] * 30
