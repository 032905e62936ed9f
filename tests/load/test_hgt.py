"""Checks the promises of the loader of HGT sampling, and the contents of its batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HGTConv

from hopstream.errors import IdRangeError, SettingsError, StateError, UnknownNameError
from hopstream.load.hgt import HGTLoader
from tests.conftest import make_typed_graph
from tests.load.contract import BatchesContract
from tests.load.graphs import flat, local_store, make_plain_graph

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
COUNTS = {"paper": [5, 4], "author": [3, 2]}


@pytest.fixture(scope="module")
def graph():
    return make_typed_graph(np.random.default_rng(5))


@pytest.fixture(scope="module")
def stores(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hgt")
    return {n: local_store(graph, folder / str(n), n) for n in (1, 3)}


class TestHGTLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, stores):
        def new(**options):
            options = {"batch_size": 7, "shuffle": True, "collate": "numpy", "num_threads": 2, **options}
            return HGTLoader(stores[3], COUNTS, "paper", **options)

        return new


def test_a_batch_has_budgets_of_nodes_and_all_edges_between_them(graph, stores):
    with HGTLoader(stores[3], num_samples=COUNTS, input_nodes=("paper", [4, 0, 9]), batch_size=3) as loader:
        batch = next(iter(loader))
        assert repr(loader) == "HGTLoader(3 seeds (paper, keys), batch_size=3, 1 batches on rank 0 of 1)"
    assert isinstance(batch, HeteroData)
    batch.validate()
    assert batch["paper"].n_id[:3].tolist() == [4, 0, 9]
    assert (batch["paper"].batch_size, batch["paper"].input_id.tolist()) == (3, [0, 1, 2])
    assert batch["paper"].num_sampled_nodes == [3, 5, 4]
    assert batch["author"].num_sampled_nodes == [0, 3, 2]
    assert batch["institute"].num_nodes == 0
    for src, name, dst in (CITES, WRITES):
        stored, found = graph.edges[src, name, dst], batch[src, name, dst]
        is_inside = np.isin(stored.src_keys, batch[src].n_id) & np.isin(stored.dst_keys, batch[dst].n_id)
        assert sorted(found.e_id.tolist()) == np.flatnonzero(is_inside).tolist()
        assert batch[dst].n_id[found.edge_index[1]].tolist() == stored.dst_keys[found.e_id].tolist()
    assert np.array_equal(batch["paper"].feat, graph.nodes["paper"].features["feat"][batch["paper"].n_id])


def test_a_model_of_pyg_trains_on_it(stores):
    torch.manual_seed(0)
    with HGTLoader(stores[1], COUNTS, ("paper", "train"), 8, node_features={"paper": ["feat"]}) as loader:
        batch = next(iter(loader))
    batch["author"].feat = torch.ones(batch["author"].num_nodes, 5)
    features = {t: batch[t].feat for t in ("paper", "author")}
    edges = {t: batch[t].edge_index for t in (CITES, WRITES)}
    model = HGTConv(5, 4, (["paper", "author"], [CITES, WRITES]))
    scores = model(features, edges)["paper"][: batch["paper"].batch_size]
    scores.sum().backward()
    assert scores.shape == (8, 4)


def test_graphs_without_types(tmp_path):
    with local_store(make_plain_graph(np.random.default_rng(6)), tmp_path, 2) as store:
        with HGTLoader(store, [6, 4], "train", batch_size=5) as loader:
            batch = next(iter(loader))
        assert isinstance(batch, Data)
        assert batch.num_sampled_nodes == [5, 6, 4]


def test_repeated_seeds_have_rows_of_their_own(stores):
    with HGTLoader(stores[3], COUNTS, ("paper", [4, 9, 4]), 3, collate="numpy") as loader:
        batch = next(iter(loader))
    assert batch.node_keys["paper"][:3].tolist() == [4, 9, 4]
    ends = batch.edge_index[CITES][1]
    assert (ends == 0).sum() == (ends == 2).sum() > 0


def test_a_chosen_batch(stores):
    with HGTLoader(stores[3], COUNTS, "paper", collate="numpy") as loader:
        assert flat(loader([7, 3])) == flat(loader([7, 3])) != flat(loader([7, 4]))


def test_a_state_of_other_numbers_is_refused(stores):
    with (
        HGTLoader(stores[3], COUNTS, "paper") as one,
        HGTLoader(stores[3], [5, 4], "paper") as other,
        pytest.raises(StateError, match="num_samples"),
    ):
        other.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((COUNTS, ("paper", [99])), {}, IdRangeError, "99"),
        ((COUNTS,), {}, SettingsError, "several node types; give seeds="),
        (([0],), {"input_nodes": "papr"}, UnknownNameError, "papr"),
        (({"papr": [1]}, "paper"), {}, UnknownNameError, "papr"),
        ((COUNTS, "paper"), {"direction": "out"}, SettingsError, "direction is 'out'; the dataset holds in"),
        ((COUNTS, "paper"), {"num_neighbors": [3]}, SettingsError, "num_neighbors= is no option .*: give num_samples="),
        ((COUNTS, "paper"), {"disjoint": True}, SettingsError, "disjoint= is no option of HGTLoader: HGT sampling"),
    ],
)  # fmt: skip
def test_hgt_arguments_that_do_not_fit_are_refused(stores, arguments, options, error, message):
    with pytest.raises(error, match=message):
        HGTLoader(stores[3], *arguments, **options)
