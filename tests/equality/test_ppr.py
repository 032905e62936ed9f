"""Checks that neighbourhoods by personalised PageRank are bit-equal, over any parts and threads.

One process over one part is the yardstick.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.ppr import PPRLoader
from hopstream.sample.ppr_settings import PPRSettings
from hopstream.schema import EDGE, NODE
from tests.conftest import make_typed_graph
from tests.equality.batches import Batches, assert_all_differ, compared_batches, in_places
from tests.processes import ServerPool
from tests.topologies import YARDSTICK, Places, Written, settled

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
SETTINGS = {
    "plain": {
        "exact": PPRSettings(alpha=0.2, eps=1e-5),
        "lists cut short": PPRSettings(alpha=0.2, num_neighbors_per_hop=3, max_fetch_iterations=3),
        "with sampled edges": PPRSettings(num_neighbors_per_hop=4, include_sampled_edges=True, max_ppr_nodes=9),
    },
    "typed": {
        "one walk": PPRSettings(direction="out", alpha=0.1),
        "channels": PPRSettings(
            typed_channel_ratios={CITES: 0.4, WRITES: 0.2, (CITES, WRITES): 0.4}, num_neighbors_per_hop=3,
            max_ppr_nodes=11, include_sampled_edges=True,
        ),
        "per type": PPRSettings(limit_per_type=True, max_ppr_nodes=5, eps=0.02),
    },
}  # fmt: skip
CASES = [(name, case) for name, cases in SETTINGS.items() for case in cases]
SEEDS = {"plain": "train", "typed": ("paper", "train")}


def make_graphs() -> dict[str, Graph]:
    rng = np.random.default_rng(3)
    num_nodes, num_edges = 150, 1100
    plain = Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes, features={"x": rng.standard_normal((num_nodes, 3))})},
        edges={
            EDGE: EdgeTable(
                src_keys=rng.integers(0, num_nodes, num_edges),
                dst_keys=(rng.random(num_edges) ** 3 * num_nodes).astype(np.int64),
                features={"w": rng.random(num_edges)},
            )
        },
        splits={NODE: {"train": np.arange(0, num_nodes, 3)}},
    ).check()
    return {"plain": plain, "typed": make_typed_graph(rng, num_papers=100, num_authors=40)}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[dict[str, Places]]:
    graphs = {name: Written(graph, {"direction": "both"}) for name, graph in make_graphs().items()}
    with settled(tmp_path_factory.mktemp("ppr"), graphs, server_pool) as found:
        yield found


@pytest.fixture(scope="module")
def wanted(places: dict[str, Places]) -> dict[tuple[str, str], Batches]:
    return {case: batches_of(places, case, YARDSTICK, 0) for case in CASES}


def batches_of(
    places: dict[str, Places], case: tuple[str, str], topology: str, num_threads: int, rng_seed: int = 7
) -> Batches:
    name, mode = case
    options = {"batch_size": 17, "shuffle": True, "collate": "numpy", "rng_seed": rng_seed, "num_threads": num_threads}
    with (
        places[name].open(topology) as store,
        PPRLoader(store, SEEDS[name], SETTINGS[name][mode], **options) as loader,
    ):
        return compared_batches(loader)


@pytest.mark.parametrize(("case", "topology", "num_threads"), [*in_places(CASES)])
def test_batches_are_bit_equal(
    places: dict[str, Places], wanted: dict, case: tuple[str, str], topology: str, num_threads: int
) -> None:
    found = batches_of(places, case, topology, num_threads)
    assert len(found) == len(wanted[case]) == 4
    assert found == wanted[case]


def test_settings_differ_from_each_other_and_between_seeds(places: dict[str, Places], wanted: dict) -> None:
    """Check that this file's comparison can fail, and that every setting has an effect."""
    for name, settings in SETTINGS.items():
        assert_all_differ({case: wanted[name, case] for case in settings})
    case = ("plain", "lists cut short")
    assert batches_of(places, case, YARDSTICK, 0, rng_seed=8) != wanted[case]
