"""Checks that a halo changes no batch, in any way of sampling, and saves requests to other parts.

One part is here, with copies of rows of others; the rest is asked of servers, which know nothing of the halo.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.load.loader import NeighborLoader
from hopstream.preparation.halo.run import add_halo
from hopstream.store.routed import RoutedStore
from tests.equality import test_equality, test_links, test_node_modes
from tests.equality.batches import compared_batches
from tests.processes import ServerPool
from tests.topologies import YARDSTICK, Places, Written, settled

NEAR = "1 part here, 3 asked"
HALOS = {
    "one hop": {"hops": 1},
    "hottest": {"hops": 0, "budget": 3000},
    "one hop, hottest": {"hops": 1, "features": "all", "budget": 3000},
    "two hops, all": {"hops": 2, "features": "all"},
    "hottest edges": {"hops": 0, "edge_budget": 20_000, "budget": 3000},
}
WAYS = {"nodes": test_node_modes, "links": test_links}
ALL_CASES = [(kind, case) for kind, module in WAYS.items() for case in module.CASES]
CASES_OF_HALO = {
    "one hop": ALL_CASES[::6],
    "hottest": ALL_CASES[1::12],
    "one hop, hottest": ALL_CASES[2::6],
    "two hops, all": ALL_CASES[4::6],
    "hottest edges": ALL_CASES[3::6],
}
"""Every second way of sampling, with some halo."""
Found = dict[str, dict[str, Places]]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[Found]:
    graphs = {
        f"nodes {name}": Written(
            graph, {"time_attr": "time", "weight_attr": test_node_modes.WEIGHT[name], "neighbor_keys": True}
        )
        for name, graph in test_node_modes.GRAPHS.items()
    }
    graphs |= {f"links {name}": written for name, written in test_links.GRAPHS.items()}
    graphs |= {f"typeless {name}": Written(case.graph) for name, case in test_equality.CASES.items()}
    with settled(tmp_path_factory.mktemp("halo"), graphs, server_pool) as found:
        yield {
            kind: {name.partition(" ")[2]: place for name, place in found.items() if name.startswith(kind)}
            for kind in ("nodes", "links", "typeless")
        }


@pytest.fixture(scope="module", params=HALOS)
def halo(request: pytest.FixtureRequest, places: Found) -> str:
    """Every dataset of four parts has this halo; the servers were started before it was there."""
    for place in [place for of_kind in places.values() for place in of_kind.values()]:
        dataset_id = open_dataset(place.folders[4]).manifest.dataset_id
        assert add_halo(place.folders[4], **HALOS[request.param]).manifest.dataset_id == dataset_id
    return request.param


def test_ways_of_sampling(places: Found, halo: str) -> None:
    for kind, case in CASES_OF_HALO[halo]:
        wanted, found = (WAYS[kind].batches_of(places[kind], case, *place) for place in ((YARDSTICK, 0), (NEAR, 1)))
        assert found == wanted, (halo, kind, case)


@pytest.mark.parametrize("name", test_equality.CASES)
def test_every_kind_of_column(places: Found, halo: str, name: str) -> None:
    """Ragged columns and strings of nodes, and features of edges, which the last halo has."""
    options, found = test_equality.CASES[name].options, {}
    for topology in (YARDSTICK, NEAR):
        with (
            places["typeless"][name].open(topology) as store,
            NeighborLoader(store, shuffle=True, collate="numpy", rng_seed=3, **options) as loader,
        ):
            found[topology] = compared_batches(loader)
            counts = store.traffic() if isinstance(store, RoutedStore) else {}
    assert found[NEAR] == found[YARDSTICK]
    assert (counts["sample"].halo_ids > 0) is (halo != "hottest")
    assert (counts["fetch"].halo_ids > 0) is ((halo, name) != ("one hop", "homogeneous")), "keys come with features"
    has_every_row = (halo, name) == ("two hops, all", "homogeneous")
    assert (counts["fetch"].remote_ids == 0) is has_every_row
