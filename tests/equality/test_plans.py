"""Is every way to sample bit-equal, wherever the parts are?

One part in this process is the yardstick. Nodes, trees, edges, edge keys and counts must be the same over three and
four parts here, and over four servers, each in a process of its own. A plan runs in the thread that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from hopstream.sample.hops import PlanRunner
from hopstream.store.contract import Store
from tests.naive_plans import Found, Raw, in_keys, seeds_in_ids
from tests.plan_modes import MODES, draw_seeds, options_of, plan_of
from tests.processes import ServerPool
from tests.timed_graphs import make_timed_graph
from tests.topologies import TOPOLOGIES, YARDSTICK, Places, Written, settled

RNG_SEED = 71
NUM_BATCHES = 2


@pytest.fixture(scope="module")
def raw() -> Raw:
    return Raw(make_timed_graph(np.random.default_rng(RNG_SEED), num_users=150, num_items=200), "time", "weight")


@pytest.fixture(scope="module")
def places(raw: Raw, tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[Places]:
    with settled(
        tmp_path_factory.mktemp("plans"), {"timed": Written(raw.graph, options_of(raw))}, server_pool
    ) as found:
        yield found["timed"]


@pytest.fixture(scope="module")
def wanted(raw: Raw, places: Places) -> Callable[[str], list[Found]]:
    """What a mode gives over the yardstick."""

    @cache
    def run(name: str) -> list[Found]:
        with places.open(YARDSTICK) as store:
            return _run(raw, store, name)

    return run


def _in_turn() -> Iterator[Any]:
    """Each mode in one topology, which take turns; in the others in slow runs."""
    for (number, name), (place, topology) in product(enumerate(MODES), enumerate(TOPOLOGIES)):
        marks = [] if place == number % len(TOPOLOGIES) else [pytest.mark.slow]
        yield pytest.param(name, topology, marks=marks, id=f"{name}-{topology}")


@pytest.mark.parametrize(("name", "topology"), [*_in_turn()])
def test_subgraphs_are_bit_equal(
    raw: Raw, places: Places, wanted: Callable[[str], list[Found]], name: str, topology: str
) -> None:
    with places.open(topology) as store:
        found = _run(raw, store, name)
    for batch, (ours, theirs) in enumerate(zip(found, wanted(name), strict=True)):
        assert ours == theirs, f"{topology}, batch {batch}, rng_seed {RNG_SEED}"
    assert len({str(batch.node_keys) for batch in found}) == NUM_BATCHES


def _run(raw: Raw, store: Store, name: str) -> list[Found]:
    plan = plan_of(raw, MODES[name])
    runner, rng = PlanRunner(store, plan), np.random.default_rng(RNG_SEED)
    found = []
    for _ in range(NUM_BATCHES):
        seeds = draw_seeds(raw, plan, MODES[name], rng)
        found.append(in_keys(store, runner.run(seeds_in_ids(store, seeds))))
    return found
