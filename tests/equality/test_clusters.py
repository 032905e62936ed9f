"""Checks that batches of whole clusters are bit-equal, over any parts and threads.

One process over one part is the yardstick.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hopstream.load.clusters import ClusterLoader
from tests.conftest import make_typed_graph
from tests.equality.batches import Batches, assert_all_differ, compared_batches, in_places
from tests.load.graphs import make_plain_graph
from tests.processes import ServerPool
from tests.topologies import YARDSTICK, Places, Written, settled

CASES = {
    "plain": ("plain", np.arange(80) % 9, {}),
    "outwards": ("plain", np.arange(80) % 9, {"direction": "out"}),
    "typed": ("typed", {"paper": np.arange(60) % 8, "author": np.arange(25) % 5 * 2}, {"edge_keys": False}),
    "one type": ("typed", {"author": np.arange(25) % 11}, {}),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[dict[str, Places]]:
    rng = np.random.default_rng(3)
    made = {"plain": make_plain_graph(rng), "typed": make_typed_graph(rng)}
    graphs = {name: Written(graph, {"direction": "both"}) for name, graph in made.items()}
    with settled(tmp_path_factory.mktemp("clusters"), graphs, server_pool) as found:
        yield found


@pytest.fixture(scope="module")
def wanted(places: dict[str, Places]) -> dict[str, Batches]:
    return {case: batches_of(places, case, YARDSTICK, 0) for case in CASES}


def batches_of(places: dict[str, Places], case: str, topology: str, num_threads: int) -> Batches:
    name, clusters, more = CASES[case]
    options = {"batch_size": 3, "shuffle": True, "collate": "numpy", "num_threads": num_threads, **more}
    with places[name].open(topology) as store, ClusterLoader(store, clusters, **options) as loader:
        return compared_batches(loader)


@pytest.mark.parametrize(("case", "topology", "num_threads"), [*in_places(list(CASES))])
def test_batches_are_bit_equal(
    places: dict[str, Places], wanted: dict[str, Batches], case: str, topology: str, num_threads: int
) -> None:
    found = batches_of(places, case, topology, num_threads)
    assert len(found) >= 3
    assert found == wanted[case]


def test_cases_differ_from_each_other(wanted: dict[str, Batches]) -> None:
    """Check that this file's comparison can fail."""
    assert_all_differ(wanted)
