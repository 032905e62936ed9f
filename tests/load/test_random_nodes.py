"""Checks that random nodes come in random order, all in turn, and the same over any parts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hopstream.errors import SettingsError, StateError
from hopstream.load.loader import RandomNodeLoader
from tests.load.contract import BatchesContract
from tests.load.graphs import flat, local_store, make_plain_graph

NUM_NODES = 200


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    root = tmp_path_factory.mktemp("random")
    graph = make_plain_graph(np.random.default_rng(0))
    return {n: local_store(graph, root / str(n), n) for n in (1, 3)}


def make(store, **options):
    settings = {"num_neighbors": [2, 2], "batch_size": 16, "num_batches": 5, "collate": "numpy", "num_threads": 0}
    return RandomNodeLoader(store, **{**settings, **options})


class TestRandomNodeLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, stores):
        return lambda **options: make(stores[1], **options)


def keys_of(loader, num_epochs):
    return np.concatenate([batch.node_keys["node"][:16] for _ in range(num_epochs) for batch in loader])


def test_every_node_occurs_once_before_any_repeats(stores):
    num_nodes = stores[1].book.num_ids("node")
    with make(stores[1]) as loader:
        keys = keys_of(loader, -(-2 * num_nodes // 80) + 1)
    for start in (0, num_nodes):
        assert sorted(keys[start : start + num_nodes]) == list(range(num_nodes)), f"pass from {start}"
    assert keys[:num_nodes].tolist() != keys[num_nodes : 2 * num_nodes].tolist()


def test_parts_and_ranks_do_not_change_batches(stores):
    with make(stores[1], num_batches=6) as one, make(stores[3], num_batches=6, num_threads=4) as three:
        wanted = [flat(batch) for batch in one]
        assert [flat(batch) for batch in three] == wanted
    by_index = {}
    for rank in range(2):
        with make(stores[3], num_batches=3, rank=rank, world_size=2) as loader:
            by_index.update({batch.index: flat(batch) for batch in loader})
    assert [by_index[index] for index in range(6)] == wanted


def test_a_batch_larger_than_the_graph_holds_nodes_twice(stores):
    with make(stores[1], batch_size=1000, num_batches=1) as loader:
        (batch,) = loader
        assert batch.batch_size == 1000
        counts = np.bincount(batch.node_keys["node"][:1000])
    assert counts.max() - counts.min() <= 1


def test_it_runs_beside_another_loader(stores):
    with make(stores[1], num_batches=2) as one, make(stores[1], num_batches=2, rng_seed=1) as other:
        pairs = list(zip(one, other, strict=True))
    assert len(pairs) == 2
    assert all(flat(a) != flat(b) for a, b in pairs)


def test_bad_options_and_states_are_refused(stores):
    with pytest.raises(SettingsError, match="num_batches is 0; it must be an integer, 1 to"):
        make(stores[1], num_batches=0)
    with pytest.raises(SettingsError, match="random nodes have no seed time"):
        make(stores[1], time_attr="time")
    with make(stores[1]) as one, make(stores[1], num_batches=4) as other:
        next(iter(one))
        with pytest.raises(StateError, match="num_batches 5; this loader has 4"):
            other.load_state_dict(one.state_dict())


def test_seeds_may_be_some_nodes(stores):
    with make(stores[1], seeds=np.arange(10), batch_size=5, num_batches=4) as loader:
        found = list(itertools.chain.from_iterable(batch.node_keys["node"][:5].tolist() for batch in loader))
    assert sorted(found[:10]) == sorted(found[10:]) == list(range(10))
