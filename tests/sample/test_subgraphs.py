"""Checks that any run of a plan equals the plain answer, for every field of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.preparation.write import write_parts
from hopstream.sample.hops import PlanRunner
from hopstream.store.local import LocalStore
from tests.naive_plans import Raw, in_keys, run_plan, seeds_in_ids
from tests.plan_modes import MODES, draw_seeds, options_of, plan_of
from tests.timed_graphs import make_timed_graph

RNG_SEED = 20260802


class SeparateStore(LocalStore):
    """A whole store whose ops are sampled and relabelled one after the other, as over servers."""

    @property
    def is_whole(self) -> bool:
        """False, so that ops are not fused."""
        return False


@pytest.fixture(scope="module")
def raw() -> Raw:
    return Raw(make_timed_graph(np.random.default_rng(RNG_SEED)), "time", "weight")


@pytest.fixture(scope="module")
def find_store(raw: Raw, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int, type], LocalStore]]:
    """A store of the graph in a given number of parts."""
    root = tmp_path_factory.mktemp("timed")
    stores: dict[tuple[int, type], LocalStore] = {}

    def find(num_parts: int, kind: type) -> LocalStore:
        folder = root / str(num_parts)
        if not folder.exists():
            write_parts(raw.graph, folder, num_parts=num_parts, method="random", rng_seed=4, **options_of(raw))
        if (num_parts, kind) not in stores:
            stores[num_parts, kind] = kind(open_dataset(folder))
        return stores[num_parts, kind]

    yield find
    for store in stores.values():
        store.close()


@pytest.mark.parametrize(("number", "name"), [*enumerate(MODES)], ids=list(MODES))
def test_equals_the_plain_answer(
    raw: Raw, find_store: Callable[[int, type], LocalStore], number: int, name: str
) -> None:
    """Each mode is fused over one number of parts and separate over the other, in turn."""
    plan = plan_of(raw, MODES[name])
    rng = np.random.default_rng(RNG_SEED + 1)
    all_seeds = [draw_seeds(raw, plan, MODES[name], rng) for _ in range(2)]
    wanted = [run_plan(raw, plan, seeds) for seeds in all_seeds]
    assert sum(len(edges) for found in wanted for edges in found.edges.values()) > 5
    for num_parts, kind in zip((1, 3), (LocalStore, SeparateStore)[:: 1 - 2 * (number % 2)], strict=True):
        store = find_store(num_parts, kind)
        runner = PlanRunner(store, plan)
        found = [in_keys(store, runner.run(seeds_in_ids(store, seeds))) for seeds in all_seeds]
        assert found == wanted, f"{num_parts} parts, {kind.__name__}, rng_seed {RNG_SEED}"
