"""Checks the promises of the loader of PageRank neighbourhoods, and the contents of its batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from hopstream.errors import IdRangeError, SettingsError, StateError, UnknownNameError
from hopstream.load.loader import NeighborLoader
from hopstream.load.ppr import PPRLoader
from hopstream.sample.ppr_settings import PPRSettings
from tests.conftest import make_typed_graph
from tests.load.contract import BatchesContract
from tests.load.graphs import flat, local_store, make_plain_graph

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


@pytest.fixture(scope="module")
def plain_stores(tmp_path_factory):
    graph, folder = make_plain_graph(np.random.default_rng(6)), tmp_path_factory.mktemp("plain")
    return {n: local_store(graph, folder / str(n), n) for n in (1, 4)}


@pytest.fixture(scope="module")
def typed_stores(tmp_path_factory):
    graph, folder = make_typed_graph(np.random.default_rng(5)), tmp_path_factory.mktemp("typed")
    return {n: local_store(graph, folder / str(n), n) for n in (1, 3)}


class TestPlainPPRLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, plain_stores):
        def new(**options):
            settings = PPRSettings(max_ppr_nodes=8, num_neighbors_per_hop=3)
            options = {"batch_size": 6, "shuffle": True, "collate": "numpy", "num_threads": 3, **options}
            return PPRLoader(plain_stores[4], None, settings, **options)

        return new


class TestTypedPPRLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, typed_stores):
        def new(**options):
            channels = {CITES: 0.5, (CITES, WRITES): 0.5}
            settings = PPRSettings(max_ppr_nodes=8, typed_channel_ratios=channels, include_sampled_edges=True)
            options = {"batch_size": 7, "shuffle": True, "collate": "numpy", "num_threads": 2, **options}
            return PPRLoader(typed_stores[3], "paper", settings, **options)

        return new


def first_batch(store, seeds, settings=None, **options):
    with PPRLoader(store, seeds, settings, num_threads=0, **{"batch_size": 4, **options}) as loader:
        return next(iter(loader))


class TestPlainBatches:
    def test_a_data_has_the_edges_of_the_neighbourhoods(self, plain_stores):
        batch = first_batch(plain_stores[4], [9, 5, 7, 5])
        assert isinstance(batch, Data)
        assert batch.n_id[:4].tolist() == [9, 5, 7, 5]
        assert (batch.batch_size, batch.input_id.tolist()) == (4, [0, 1, 2, 3])
        assert batch.x.shape == (batch.num_nodes, 3)
        assert batch.num_sampled_nodes == [4, batch.num_nodes - 4]
        assert (batch.edge_index.dtype, batch.edge_attr.dtype) == (torch.int64, torch.float32)
        assert batch.edge_attr.shape == (batch.edge_index.shape[1], 2)
        assert batch.edge_index[0].unique().tolist() == [0, 1, 2, 3]
        assert batch.edge_index[1].unique().tolist() == list(range(batch.num_nodes))
        for seed in range(4):
            attributes = batch.edge_attr[batch.edge_index[0] == seed]
            assert (attributes[:-1, 0] >= attributes[1:, 0]).all()
            assert (batch.edge_index[:, batch.edge_index[0] == seed][1][attributes[:, 1] == 1] == seed).all()
        assert not {"e_id", "num_sampled_edges", "ppr_edge_index"} & set(batch.keys())

    def test_the_graph_s_own_edges_are_kept_beside_neighbourhoods(self, plain_stores):
        settings = PPRSettings(include_sampled_edges=True)
        batch = first_batch(plain_stores[4], [9, 5, 7], settings)
        alone = first_batch(plain_stores[4], [9, 5, 7])
        assert torch.equal(batch.ppr_edge_index, alone.edge_index)
        assert torch.equal(batch.ppr_edge_attr, alone.edge_attr)
        graph = make_plain_graph(np.random.default_rng(6)).edges["node", "to", "node"]
        keys = batch.n_id[batch.edge_index].numpy()
        assert keys.tolist() == [graph.src_keys[batch.e_id].tolist(), graph.dst_keys[batch.e_id].tolist()]
        assert np.array_equal(batch.edge_attr, graph.features["edge_attr"][batch.e_id])
        assert len(batch.e_id) == len(batch.e_id.unique()) > 0

    def test_numpy_batches_have_neighbourhoods_by_type(self, plain_stores):
        batch = first_batch(plain_stores[1], [9, 5], collate="numpy")
        found = batch.attributes["node", "ppr", "node"]
        assert list(found) == ["edge_index", "edge_attr"]
        assert found["edge_attr"].dtype == np.float32
        assert batch.edge_index["node", "to", "node"].shape == (2, 0)
        beside = first_batch(plain_stores[1], [9, 5], PPRSettings(include_sampled_edges=True), collate="numpy")
        assert list(beside.attributes["node", "ppr", "node"]) == ["ppr_edge_index", "ppr_edge_attr"]

    def test_a_node_feature_that_would_be_hidden_is_refused(self, tmp_path):
        graph = make_plain_graph(np.random.default_rng(6))
        graph.nodes["node"].features["edge_attr"] = graph.nodes["node"].features.pop("y")
        with local_store(graph, tmp_path) as store:
            with pytest.raises(SettingsError, match="feature 'edge_attr' of the nodes would hide"):
                PPRLoader(store)
            assert "edge_attr" in first_batch(store, None, collate="numpy").node_features["node"]
            PPRLoader(store, node_features=["x"]).close()


class TestTypedBatches:
    def test_a_heterodata_has_edges_to_every_type_that_can_be_reached(self, typed_stores):
        batch = first_batch(typed_stores[3], ("paper", [4, 0, 9]))
        assert isinstance(batch, HeteroData)
        reached = [("paper", "ppr", "paper"), ("paper", "ppr", "author")]
        assert [t for t in batch.edge_types if t[1] == "ppr"] == reached
        assert batch["paper"].n_id[:3].tolist() == [4, 0, 9]
        for edge_type in reached:
            edges = batch[edge_type]
            assert edges.edge_attr.shape == (edges.edge_index.shape[1], 2)
            assert edges.edge_index[1].unique().tolist() == list(range(batch[edge_type[2]].num_nodes))
        assert batch["institute"].num_nodes == 0
        assert batch[CITES].edge_index.shape == (2, 0)
        batch.validate()

    def test_channels_have_three_columns_each(self, typed_stores):
        settings = PPRSettings(typed_channel_ratios={CITES: 0.5, WRITES: 0.5})
        batch = first_batch(typed_stores[3], ("paper", [4, 0, 9]), settings)
        attributes = batch["paper", "ppr", "author"].edge_attr
        assert attributes.shape[1] == 2 + 3 * 2
        assert (attributes[:, 2:5] == 0).all()  # no author is cited
        assert torch.equal(attributes[:, [0, 1]], attributes[:, [5, 6]])
        assert (attributes[:, 7] == 1).all()

    def test_sampled_edges_bring_their_keys_and_features(self, typed_stores):
        settings = PPRSettings(include_sampled_edges=True)
        batch = first_batch(typed_stores[3], ("paper", [4, 0, 9]), settings)
        graph = make_typed_graph(np.random.default_rng(5)).edges[WRITES]
        edges = batch[WRITES]
        assert np.array_equal(edges.weight, graph.features["weight"][edges.e_id])
        assert batch["author"].n_id[edges.edge_index[0]].tolist() == graph.src_keys[edges.e_id].tolist()


def test_parts_threads_and_sampling_order_do_not_change_batches(typed_stores):
    settings = PPRSettings(num_neighbors_per_hop=2, alpha=0.2)
    options = {"batch_size": 9, "shuffle": True, "collate": "numpy"}
    with (
        PPRLoader(typed_stores[1], "paper", settings, num_threads=0, **options) as one,
        PPRLoader(typed_stores[3], "paper", settings, num_threads=4, **options) as other,
    ):
        assert [flat(batch) for batch in one] == [flat(batch) for batch in other]


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.4},
        {"eps": 1e-3},
        {"max_ppr_nodes": 9},
        {"enable_residual_topup": False},
        {"num_neighbors_per_hop": 7},
        {"max_fetch_iterations": 3},
        {"limit_per_type": True},
        {"include_sampled_edges": True},
        {"edge_types": [CITES]},
        {"typed_channel_ratios": {CITES: 0.5, WRITES: 0.5}},
        {"typed_channel_ratios": {(CITES, WRITES): 1.0}},
    ],
    ids=str,
)
def test_a_state_of_other_settings_is_refused(typed_stores, change):
    with (
        PPRLoader(typed_stores[1], "paper") as one,
        PPRLoader(typed_stores[3], "paper", PPRSettings(**change)) as other,
    ):
        with pytest.raises(StateError):
            other.load_state_dict(one.state_dict())
        one.load_state_dict(one.state_dict())


def test_a_state_of_another_kind_of_loader_is_refused(typed_stores):
    class Own(PPRLoader):
        """A class of the user's."""

    with (
        PPRLoader(typed_stores[1], "paper") as one,
        NeighborLoader(typed_stores[1], [2], "paper") as other,
        Own(typed_stores[1], "paper") as own,
    ):
        with pytest.raises(StateError, match="state is of a NeighborLoader; this is a PPRLoader: load"):
            one.load_state_dict(other.state_dict())
        own.load_state_dict(one.state_dict())
        one.load_state_dict(own.state_dict())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seeds": ("paper", [60])}, IdRangeError, "keys of 'paper' are 0..59"),
        ({"seeds": "person"}, UnknownNameError, "'person' is not a node type"),
        (
            {"seeds": "paper", "alpha": 0.2},
            SettingsError,
            r"alpha= is no option of PPRLoader: it is a field of settings: settings=PPRSettings\(alpha=",
        ),
        ({"seeds": "paper", "direction": "in"}, SettingsError, "direction= .* it is a field of settings"),
        ({"seeds": "paper", "settings": {"alpha": 0.2}}, SettingsError, r"give PPRSettings\(alpha=…, eps=…\), or None"),
        (
            {"seeds": "paper", "num_neighbors": [2]},
            SettingsError,
            r"num_neighbors= is no option .*=PPRSettings\(",
        ),
        (
            {"seeds": "paper", "time_attr": "t"},
            SettingsError,
            "time_attr= is no option of PPRLoader: PageRank ignores times",
        ),
        ({"seeds": "paper", "disjoint": True}, SettingsError, "disjoint= is no option .* of its own already"),
        (
            {"seeds": "paper", "weight_attr": "w"},
            SettingsError,
            "weight_attr= is no option .* PageRank ignores weights",
        ),
        (
            {"seeds": "paper", "sampling": "labor"},
            SettingsError,
            "sampling= is no option .*as PPRSettings defines them",
        ),
        (
            {"seeds": "paper", "edge_features": ["weight"]},
            SettingsError,
            "a PPR batch has no edges of the graph; use",
        ),
        (
            {"seeds": "paper", "edge_keys": True},
            SettingsError,
            "edge_keys is True, but a PPR batch has no edges of the graph",
        ),
        (
            {"seeds": "paper", "settings": PPRSettings(direction="out")},
            SettingsError,
            "the dataset holds in; write the",
        ),
    ],
    ids=str,
)
def test_invalid_options_are_refused(typed_stores, options, error, message):
    with pytest.raises(error, match=message):
        PPRLoader(typed_stores[1], **options)


def test_error_for_a_walk_past_its_limit_names_the_batch(typed_stores):
    settings = PPRSettings(max_nodes_touched=2)
    with PPRLoader(typed_stores[3], "paper", settings, batch_size=10) as loader:
        with pytest.raises(SettingsError, match=r"the walk from paper \d+ reached more than") as raised:
            list(loader)
        assert any("batch 0 of epoch 0 was made (sampling)" in note for note in raised.value.__notes__)


def test_repr_describes_the_loader(plain_stores):
    with PPRLoader(plain_stores[1], "train", PPRSettings(alpha=0.25), batch_size=16) as loader:
        assert repr(loader) == (
            "PPRLoader(40 seeds (node, split 'train'), alpha=0.25, eps=0.0001, max_ppr_nodes=50, batch_size=16, "
            "3 batches on rank 0 of 1)"
        )
