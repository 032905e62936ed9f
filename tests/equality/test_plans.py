"""Is every way to sample bit-equal, wherever the parts are?

One part in this process is the yardstick. Nodes, trees, edges, edge keys and counts must be the same over three and
four parts here, and over four servers, each in a process of its own. A plan runs in the thread that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator

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
NUM_BATCHES = 3


@pytest.fixture(scope="module")
def raw() -> Raw:
    return Raw(make_timed_graph(np.random.default_rng(RNG_SEED), num_users=150, num_items=200), "time", "weight")


@pytest.fixture(scope="module")
def places(raw: Raw, tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[Places]:
    with settled(
        tmp_path_factory.mktemp("plans"), {"timed": Written(raw.graph, options_of(raw))}, server_pool
    ) as found:
        yield found["timed"]


@pytest.mark.parametrize("name", MODES)
def test_subgraphs_are_bit_equal(raw: Raw, places: Places, name: str) -> None:
    found = {}
    for topology in (YARDSTICK, *TOPOLOGIES):
        with places.open(topology) as store:
            found[topology] = _run(raw, store, name)
    for topology in TOPOLOGIES:
        for batch, (ours, wanted) in enumerate(zip(found[topology], found[YARDSTICK], strict=True)):
            assert ours == wanted, f"{topology}, batch {batch}, rng_seed {RNG_SEED}"
    assert len({str(batch.node_keys) for batch in found[YARDSTICK]}) == NUM_BATCHES


def _run(raw: Raw, store: Store, name: str) -> list[Found]:
    plan = plan_of(raw, MODES[name])
    runner, rng = PlanRunner(store, plan), np.random.default_rng(RNG_SEED)
    found = []
    for _ in range(NUM_BATCHES):
        seeds = draw_seeds(raw, plan, MODES[name].is_excluding, rng)
        found.append(in_keys(store, runner.run(seeds_in_ids(store, seeds))))
    return found
