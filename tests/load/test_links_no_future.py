"""Checks that no neighbour or edge from the future, nor a link left out, appears around a link."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hopstream.errors import SettingsError
from hopstream.load.batch import MiniBatch
from hopstream.load.links import LinkNeighborLoader
from hopstream.schema import EdgeType
from hopstream.store.local import LocalStore
from tests.timed_worlds import BOUGHT, BUYS, LIKE, MAX_TIME, Sight, World, worlds

WAYS: list[dict[str, Any]] = [
    {},
    {"replace": True},
    {"temporal_strategy": "last"},
    {"weight_attr": "weight"},
    {"weight_attr": "weight", "sampling": "top_k"},
    {"sampling": "labor"},
]
HOLDING = {
    False: {BUYS: (), LIKE: ()},
    "self": {BUYS: ((BUYS, False),), LIKE: ((LIKE, False),)},
    True: {BUYS: ((BUYS, False), (BOUGHT, True)), LIKE: ((LIKE, False), (LIKE, True))},
}
"""``exclude_links`` to the type of links to where they are left out, and whether backwards."""


@dataclass(frozen=True)
class Links:
    """Pairs of nodes, many of them edges of a world, each with its time."""

    edge_type: EdgeType
    keys: np.ndarray
    times: np.ndarray


@st.composite
def links_in_worlds(draw: st.DrawFn) -> tuple[World, Links]:
    world = draw(worlds())
    edge_type = draw(st.sampled_from([BUYS, LIKE]))
    num_links = draw(st.integers(1, 4))

    def numbers(high: int) -> list[int]:
        return draw(st.lists(st.integers(0, high), min_size=num_links, max_size=num_links))

    keys = [numbers(world.graph.nodes[t].num_nodes - 1) for t in (edge_type[0], edge_type[2])]
    return world, Links(edge_type=edge_type, keys=np.array(keys), times=np.array(numbers(MAX_TIME)))


@settings(
    max_examples=12,
    deadline=None,
    # Every example is a dataset on disk, so a search for a smaller one would outlast the limit for hanging tests.
    phases=(Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    found=links_in_worlds(),
    exclude_links=st.sampled_from(list(HOLDING)),
    subgraph_type=st.sampled_from(["directional", "bidirectional", "induced"]),
    neg_sampling=st.sampled_from([None, "binary", "triplet"]),
    direction=st.sampled_from(["in", "out"]),
    time_inclusive=st.booleans(),
    count=st.sampled_from([-1, 1, 3]),
    num_parts=st.integers(1, 2),
)
def test_nothing_around_a_link_is_from_the_future(found: tuple[World, Links], num_parts: int, **options: Any) -> None:
    world, links = found
    with tempfile.TemporaryDirectory() as folder, world.store(Path(folder) / "parts", num_parts) as store:
        for way in WAYS:
            if not world.has_weights and "weight_attr" in way:
                continue
            try:
                _check(world, links, store, {**options, **way})
            except SettingsError as error:
                # Few hops outwards may follow no edge type that has weights or times.
                if "none of the followed edge types" not in str(error):
                    raise


def _check(world: World, links: Links, store: LocalStore, options: dict[str, Any]) -> None:
    num_neighbors = [options.pop("count")] * world.num_hops
    with LinkNeighborLoader(
        store, num_neighbors, (links.edge_type, links.keys), 2, edge_label_time=links.times, time_attr="time",
        reverse_types={BUYS: BOUGHT}, rng_seed=world.rng_seed, collate="numpy", num_threads=0, **options,
    ) as loader:  # fmt: skip
        batches = list(loader)
    for batch in batches:
        latest = links.times[batch.input_ids] - (not options["time_inclusive"])
        _sight(batch).assert_nothing_later(world.graph, latest)
        _assert_left_out(batch, links, HOLDING[options["exclude_links"]][links.edge_type])
    assert np.concatenate([batch.input_ids for batch in batches]).tolist() == list(range(len(links.times)))


def _sight(batch: MiniBatch) -> Sight:
    """Nodes beyond the seeds, and edges, of a batch, each with the number of its tree."""
    assert batch.trees is not None
    nodes = {}
    for node_type, keys in batch.node_keys.items():
        num_seeds = batch.num_sampled_nodes[node_type][0]
        nodes[node_type] = (keys[num_seeds:], batch.trees[node_type][num_seeds:])
    edges = {}
    for edge_type, (src, dst) in batch.edge_index.items():
        trees = batch.trees[edge_type[0]][src]
        assert np.array_equal(trees, batch.trees[edge_type[2]][dst])
        edges[edge_type] = (batch.edge_keys[edge_type], trees)
    return Sight(nodes=nodes, edges=edges)


def _assert_left_out(batch: MiniBatch, links: Links, holding: tuple[tuple[EdgeType, bool], ...]) -> None:
    positives = links.keys[:, batch.input_ids]
    for edge_type, is_reverse in holding:
        src, dst = batch.edge_index[edge_type]
        pairs = np.stack([batch.node_keys[edge_type[0]][src], batch.node_keys[edge_type[2]][dst]])
        left_out = set(map(tuple, (positives[::-1] if is_reverse else positives).T.tolist()))
        assert not left_out & set(map(tuple, pairs.T.tolist())), edge_type
