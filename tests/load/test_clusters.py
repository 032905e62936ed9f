"""Checks the promises of the loader of clusters, and the contents of its batches."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

import hopstream
from hopstream.errors import SettingsError, StateError, UnknownNameError
from hopstream.load.clusters import ClusterLoader
from tests.conftest import make_typed_graph
from tests.load.contract import BatchesContract
from tests.load.graphs import flat, local_store, make_plain_graph

NUM_NODES = 80
CLUSTERS = np.random.default_rng(8).integers(-3, 9, NUM_NODES)


@pytest.fixture(scope="module")
def graph():
    return make_plain_graph(np.random.default_rng(6), NUM_NODES)


@pytest.fixture(scope="module")
def stores(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters")
    return {n: local_store(graph, folder / str(n), n) for n in (1, 4)}


class TestClusterLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, stores):
        def new(**options):
            options = {"batch_size": 2, "shuffle": True, "collate": "numpy", "num_threads": 2, **options}
            return ClusterLoader(stores[4], CLUSTERS, **options)

        return new


@pytest.mark.parametrize("num_parts", [1, 4])
def test_batches_are_what_pyg_cuts_out_of_the_graph(graph, stores, num_parts):
    """PyG's ``ClusterLoader`` gives the subgraph between the nodes of some clusters."""
    edges = graph.edges["node", "to", "node"]
    edge_index = torch.from_numpy(np.stack([edges.src_keys, edges.dst_keys]))
    seen = []
    with ClusterLoader(stores[num_parts], CLUSTERS, batch_size=5, shuffle=True) as loader:
        assert len(loader) == 3
        for batch in loader:
            assert isinstance(batch, Data)
            chosen = set(CLUSTERS[batch.n_id])
            assert torch.equal(batch.n_id.sort()[0], torch.from_numpy(np.flatnonzero(np.isin(CLUSTERS, list(chosen)))))
            kept, _ = subgraph(batch.n_id, edge_index, num_nodes=NUM_NODES)
            assert sorted(batch.n_id[batch.edge_index].T.tolist()) == sorted(kept.T.tolist())
            assert torch.equal(batch.n_id[batch.edge_index], edge_index[:, batch.e_id])
            assert np.array_equal(batch.x, graph.nodes["node"].features["x"][batch.n_id])
            assert (batch.batch_size, batch.input_id.tolist()) == (batch.num_nodes, batch.n_id.tolist())
            seen += sorted(chosen)
    assert sorted(seen) == sorted(set(CLUSTERS))
    assert seen != sorted(seen)


def test_nodes_come_cluster_by_cluster(stores):
    with ClusterLoader(stores[1], CLUSTERS, batch_size=4, collate="numpy") as loader:
        keys = [batch.node_keys["node"].tolist() for batch in loader]
    assert [*chain.from_iterable(keys)] == np.argsort(CLUSTERS, kind="stable").tolist()


def test_ranks_share_the_clusters_of_an_epoch(stores):
    found = []
    for rank in range(2):
        options = {"batch_size": 2, "shuffle": True, "rank": rank, "world_size": 2, "collate": "numpy"}
        with ClusterLoader(stores[4], CLUSTERS, **options) as loader:
            found.append([flat(batch) for batch in loader])
    with ClusterLoader(stores[1], CLUSTERS, batch_size=2, shuffle=True, collate="numpy") as loader:
        whole = [flat(batch) for batch in loader]
    assert len(found[0]) == len(found[1]) == 3
    assert [batch for pair in zip(*found, strict=True) for batch in pair] == whole


def test_parts_are_the_clusters_without_others(tmp_path: Path, graph):
    hopstream.write_parts(graph, tmp_path / "g", num_parts=4, method="hash")
    with ClusterLoader(tmp_path / "g", shuffle=True, collate="numpy") as loader:
        assert len(loader) == 4
        parts = [np.sort(batch.node_keys["node"]).tolist() for batch in loader]
        inputs = [batch.input_ids.tolist() for batch in loader]
    dataset = hopstream.open_dataset(tmp_path / "g")
    owned = [dataset.open_part(part).node_keys["node"].tolist() for part in range(4)]
    assert sorted(parts) == sorted(owned)
    assert parts != owned
    assert sorted(chain.from_iterable(parts)) == list(range(NUM_NODES))
    assert sorted(map(sorted, inputs)) == sorted(parts)


def test_an_empty_part_is_no_cluster(tmp_path: Path, graph):
    owners = {"node": np.where(np.arange(NUM_NODES) < 30, 0, 2).astype(np.int32)}
    hopstream.write_parts(graph, tmp_path / "g", num_parts=4, method="file", owners=owners)
    with ClusterLoader(tmp_path / "g", collate="numpy") as loader:
        assert [batch.node_keys["node"].tolist() for batch in loader] == [[*range(30)], [*range(30, NUM_NODES)]]


def test_appended_nodes_are_a_part(tmp_path: Path, graph):
    hopstream.write_parts(graph, tmp_path / "g", num_parts=2, method="hash")
    features = {"x": np.zeros((3, 3), np.float32), "y": np.zeros(3, np.int64)}
    hopstream.append(tmp_path / "g", nodes={"node": features})
    with ClusterLoader(tmp_path / "g", collate="numpy") as loader:
        *_, last = [batch.node_keys["node"].tolist() for batch in loader]
    assert last == [80, 81, 82]


def test_clusters_of_typed_graphs_hold_nodes_of_all_types(tmp_path: Path):
    graph = make_typed_graph(np.random.default_rng(5))
    hopstream.write_parts(graph, tmp_path / "g", num_parts=3, method="hash")
    clusters = {"author": np.arange(25) % 3 * 2, "paper": np.arange(60) % 4}
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    with ClusterLoader(tmp_path / "g", clusters, collate="numpy") as loader:
        batches = list(loader)
    assert len(batches) == 5  # clusters 0 to 4
    for number, batch in enumerate(batches):
        assert batch.seed_type == "paper"
        for node_type, of_type in clusters.items():
            assert batch.node_keys[node_type].tolist() == np.flatnonzero(of_type == number).tolist()
        assert not len(batch.node_keys["institute"])
        for src, name, dst in (cites, writes):
            edges = graph.edges[src, name, dst]
            is_inside = (clusters[src][edges.src_keys] == number) & (clusters[dst][edges.dst_keys] == number)
            assert sorted(batch.edge_keys[src, name, dst]) == np.flatnonzero(is_inside).tolist()
    with ClusterLoader(tmp_path / "g") as loader:
        assert sum(batch["author"].num_nodes for batch in loader) == 25


def test_clusters_of_assign_nodes(graph):
    settings = hopstream.dataset.PartitionSettings(num_parts=6, method="ldg")
    clusters = hopstream.dataset.assign_nodes(graph, settings).owners
    with ClusterLoader(graph, clusters, batch_size=2) as loader:
        assert sum(batch.num_nodes for batch in loader) == NUM_NODES


@pytest.mark.parametrize("others", [(4, -CLUSTERS), (4, None), (1, None)])
def test_a_state_of_other_clusters_is_refused(stores, others):
    num_parts, clusters = others
    with (
        ClusterLoader(stores[4], CLUSTERS if num_parts == 4 else None, batch_size=2, remainder="pad") as one,
        ClusterLoader(stores[num_parts], clusters, batch_size=2, remainder="pad") as other,
        pytest.raises(StateError, match="clusters"),
    ):
        other.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("clusters", "options", "error", "message"),
    [
        (CLUSTERS[:-1], {}, SettingsError, r"clusters of 'node' are int64\[79\]; give the integer .* per node: \[80\]"),
        (CLUSTERS / 2, {}, SettingsError, r"clusters of 'node' are float64\[80\]"),
        ({"nod": CLUSTERS}, {}, UnknownNameError, "nod"),
        ({}, {}, SettingsError, r"clusters are given of no node \(no type\)"),
        (None, {"batch_size": 9, "drop_last": True}, SettingsError, "too few for one batch"),
        (None, {"num_neighbors": [3]}, SettingsError, "num_neighbors= is no option of ClusterLoader: a batch has all"),
        (None, {"seeds": [3]}, SettingsError, "seeds= is no option of ClusterLoader: clusters="),
        (None, {"cluster_data": 1}, SettingsError, "cluster_data= is no option"),
        (None, {"time_attr": "time"}, SettingsError, "time_attr= is no option"),
    ],
)
def test_clusters_that_do_not_fit_are_refused(stores, clusters, options, error, message):
    with pytest.raises(error, match=message):
        ClusterLoader(stores[4], clusters, **options)


def test_a_typed_graph_needs_types(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"several node types; give clusters=.* with some of paper, author"):
        ClusterLoader(make_typed_graph(np.random.default_rng(5)), np.arange(60))
