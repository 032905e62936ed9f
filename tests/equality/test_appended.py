"""Checks that batches of an appended dataset equal those of the graph written in one go.

One part that was written in one go is the yardstick. Others have one append or three, of new nodes and of edges between
new and old ones, and are read here or asked of servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader
from hopstream.load.ppr import PPRLoader
from hopstream.preparation.write import write_parts
from hopstream.sample.hops import PlanRunner
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.settings import StoreSettings
from tests.equality import test_links, test_node_modes, test_ppr
from tests.equality.batches import Batches, compared_batches
from tests.grown import grow
from tests.naive_plans import Found, Raw, in_keys, seeds_in_ids
from tests.plan_modes import MODES, draw_seeds, options_of, plan_of
from tests.processes import ServerPool
from tests.timed_graphs import make_timed_graph

NODES, LINKS, PPR, PLANS = "nodes", "links", "ppr", "plans"
ONE, MANY, FEW, SERVED = "in one go", "1 part, 3 appends", "3 parts, 1 append", "2 parts, 3 appends, served"
PLACES = {MANY: (1, 3), FEW: (3, 1), SERVED: (2, 3)}
TIMES = {"time_attr": "time", "neighbor_keys": True, "direction": "both"}
PLAN_GRAPH = make_timed_graph(np.random.default_rng(71), num_users=150, num_items=200)
GRAPHS = {
    **{
        (NODES, name): (graph, {**TIMES, "weight_attr": test_node_modes.WEIGHT[name]})
        for name, graph in test_node_modes.GRAPHS.items()
    },
    **{(LINKS, name): (written.graph, dict(written.options)) for name, written in test_links.GRAPHS.items()},
    **{(PPR, name): (graph, {"direction": "both"}) for name, graph in test_ppr.make_graphs().items()},
    (PLANS, "timed"): (PLAN_GRAPH, options_of(Raw(PLAN_GRAPH, "time", "weight"))),
}
FEW_MODES = [
    "excluding",
    "replacing",
    "joining, weighted, temporal",
    "disjoint, excluding",
    "temporal, exclusive",
    "reaching, disjoint",
    "last, excluding",
    "weighted, temporal",
    "top-k, temporal",
    "labor, one for all hops",
    "labor, temporal",
    "bidirectional, true edges",
    "bidirectional, temporal",
    "induced, one type followed, forwards, temporal",
]
FEW_CASES = [
    (NODES, "typed", "weighted in time"),
    (NODES, "typed", "labor in time"),
    (NODES, "typed", "induced in time"),
    (LINKS, "ratings", "latest at given times"),
    (LINKS, "ratings", "heaviest, left out of several types"),
    (PPR, "typed", "channels"),
]
FEW_GRAPHS = list(dict.fromkeys(case[:2] for case in FEW_CASES))


@dataclass(frozen=True)
class Place:
    """Folders of all graphs in all places, and servers of some of them."""

    folders: dict[tuple[str, str, str], Path]
    locations: dict[tuple[str, str], list[str]]
    raw: Raw | None

    @contextmanager
    def open(self, kind: str, name: str, place: str) -> Iterator[Store]:
        with ExitStack() as stack:
            if place != SERVED:
                yield stack.enter_context(LocalStore(open_dataset(self.folders[kind, name, place])))
                return
            settings = StoreSettings(prefer_local=False)
            yield stack.enter_context(
                RoutedStore([RemoteStore(location, settings) for location in self.locations[kind, name]])
            )


@contextmanager
def _settled(root: Path, graphs: list[tuple[str, str]], server_pool: ServerPool) -> Iterator[Place]:
    """Write some graphs in all places, and serve them."""
    folders, raw = {}, None
    for kind, name in graphs:
        graph, options = GRAPHS[kind, name]
        grown = grow(graph, np.random.default_rng(5))
        raw = Raw(grown.graph, "time", "weight") if kind == PLANS else raw
        folders[kind, name, ONE] = root / f"{kind}-{name}-one"
        wanted = write_parts(grown.graph, folders[kind, name, ONE], num_parts=1, **options)
        for number, (place, (num_parts, num_appends)) in enumerate(PLACES.items()):
            folders[kind, name, place] = root / f"{kind}-{name}-{number}"
            found = grown.write(folders[kind, name, place], num_parts, num_appends, **options)
            assert found.graph_id == wanted.graph_id
            assert found.checksums == wanted.checksums
    num_parts, num_appends = PLACES[SERVED]
    parts = [[0, 2], [1], [*range(3, num_parts + num_appends)]]
    with server_pool.serve([folders[kind, name, SERVED] for kind, name in graphs], parts) as locations:
        yield Place(folders, dict(zip(graphs, locations, strict=True)), raw)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[Place]:
    with _settled(tmp_path_factory.mktemp("few"), [*FEW_GRAPHS, (PLANS, "timed")], server_pool) as found:
        yield found


def batches_of(places: Place, case: tuple[str, str, str], place: str) -> Batches:
    kind, name, mode = case
    with places.open(kind, name, place) as store:
        return _batches(store, kind, name, mode)


def _batches(store: Store, kind: str, name: str, mode: str) -> Batches:
    common = {"shuffle": True, "collate": "numpy", "rng_seed": 3}
    if kind == PPR:
        settings = test_ppr.SETTINGS[name][mode]
        with PPRLoader(store, test_ppr.SEEDS[name], settings, batch_size=17, **common) as loader:
            return compared_batches(loader)
    if kind == LINKS:
        options = {"num_neighbors": [3, 2], "batch_size": 36, **common, **test_links.MODES[name][mode]}
        with LinkNeighborLoader(store, **options) as loader:
            return compared_batches(loader)
    options = {"batch_size": 14, **common, **test_node_modes.OPTIONS[name], **test_node_modes.MODES[name][mode]}
    if "weight_attr" in options:
        options["weight_attr"] = test_node_modes.WEIGHT[name]
    with NeighborLoader(store, **options) as loader:
        return compared_batches(loader)


@pytest.mark.parametrize("case", FEW_CASES, ids=", ".join)
def test_batches_are_bit_equal(few: Place, case: tuple[str, str, str]) -> None:
    wanted = batches_of(few, case, ONE)
    for place in PLACES:
        assert batches_of(few, case, place) == wanted, place


@pytest.mark.parametrize(("mode", "place"), [*zip(FEW_MODES, cycle(PLACES))])
def test_subgraphs_are_bit_equal(few: Place, mode: str, place: str) -> None:
    assert few.raw is not None
    with few.open(PLANS, "timed", ONE) as store:
        wanted = _subgraphs(few.raw, store, mode)
    with few.open(PLANS, "timed", place) as store:
        assert _subgraphs(few.raw, store, mode) == wanted


def _subgraphs(raw: Raw, store: Store, mode: str) -> list[Found]:
    plan = plan_of(raw, MODES[mode])
    runner, rng = PlanRunner(store, plan), np.random.default_rng(71)
    found = []
    for _ in range(2):
        seeds = draw_seeds(raw, plan, MODES[mode], rng)
        found.append(in_keys(store, runner.run(seeds_in_ids(store, seeds))))
    return found
