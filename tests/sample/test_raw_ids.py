"""Checks that raw ids lead to the keys of their nodes, and that doors take them in place of keys."""

from __future__ import annotations

import numpy as np
import pytest

import hopstream
from hopstream.arrays import RaggedArray
from hopstream.dataset import raw_ids
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.raw_ids import ids_of_rows
from hopstream.dataset.rows import DatasetRows
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.sample import find_keys
from hopstream.sample import raw_ids as lookups

NUM_USERS, NUM_FILMS = 500, 40
RATES = ("user", "rates", "film")


@pytest.fixture
def graph(rng: np.random.Generator) -> hopstream.Graph:
    names = [f"größe {number % 97}|{number}" for number in rng.permutation(NUM_USERS)]
    titles = [f"film {number // 2}" for number in range(NUM_FILMS)]
    ids = rng.permutation(NUM_FILMS).astype(np.uint64) + np.uint64(2**64 - 100)
    ends = rng.integers(0, (NUM_USERS, NUM_FILMS), (900, 2)).T
    return hopstream.graph_from_arrays(
        {RATES: ends},
        node_features={
            "user": {"name": names, "age": np.arange(NUM_USERS)},
            "film": {"id": ids, "title": titles, "number": np.arange(NUM_FILMS) - 7, "size": np.ones(NUM_FILMS)},
        },
    )


@pytest.fixture
def parts(graph, tmp_path):
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=3, method="hash")
    return tmp_path / "parts"


def names_of(graph: hopstream.Graph) -> list[str]:
    return list(graph.nodes["user"].features["name"])


@pytest.mark.parametrize("block", [1 << 18, 7])
def test_raw_ids_lead_to_keys(graph, parts, rng, monkeypatch, block):
    monkeypatch.setattr(lookups, "NODES_AT_ONCE", block)
    keys = rng.integers(0, NUM_USERS, 300)
    names = names_of(graph)
    assert find_keys(parts, "user", [names[key] for key in keys]).tolist() == keys.tolist()
    assert find_keys(parts, "user", np.array(names)).tolist() == list(range(NUM_USERS))
    films = graph.nodes["film"].features
    assert find_keys(parts, "film", films["id"][::-1]).tolist() == list(range(NUM_FILMS))[::-1]
    assert find_keys(parts, "film", [str(films["id"][5])]).tolist() == [5]
    assert find_keys(parts, "film", [-7, "-6", "002"], id_feature="number").tolist() == [0, 1, 9]
    with hopstream.open_store(parts) as store:
        assert find_keys(store, "film", [-7], id_feature="number").tolist() == [0]
        assert find_keys(store, "user", []).tolist() == []


def test_equal_hashes_are_told_apart(graph, parts, monkeypatch):
    monkeypatch.setattr(raw_ids, "hash_strings", lambda values, offsets, out: out.fill(3))
    names = names_of(graph)
    assert find_keys(parts, "user", [names[5], names[499], names[5], names[0]]).tolist() == [5, 499, 5, 0]
    with pytest.raises(IdRangeError, match=r"raw_ids\[1\] is 'x'; no node of type 'user' has it in feature 'name'"):
        find_keys(parts, "user", [names[5], "x"])


def test_files_give_the_same_raw_ids_as_a_store(graph, parts, monkeypatch):
    monkeypatch.setattr(raw_ids, "NODES_AT_ONCE", 50)
    more = {"name": ["new"], "age": np.array([1])}
    hopstream.append(parts, nodes={"user": more})
    dataset = open_dataset(parts)
    rows = DatasetRows(dataset.root, dataset.manifest)
    for node_type, feature in (("user", "name"), ("film", "id")):
        found = {}
        for keys, ids in ids_of_rows(rows, node_type, feature):
            found |= dict(zip(keys.tolist(), ids, strict=True))
        known = [*graph.nodes[node_type].features[feature], *(["new"] if feature == "name" else [])]
        assert [found[key] for key in range(len(known))] == known


def test_signed_and_unsigned_ids_are_told_apart(parts, graph):
    with pytest.raises(IdRangeError, match=r"raw_ids\[0\] is -100; no node"):
        find_keys(parts, "film", [-100])
    with pytest.raises(IdRangeError, match=rf"raw_ids\[0\] is {2**64 - 7}; no node"):
        find_keys(parts, "film", np.array([2**64 - 7], np.uint64), id_feature="number")
    with pytest.raises(IdRangeError, match=rf"raw_ids\[1\] is '{2**70}'; no node"):
        find_keys(parts, "film", ["3", str(2**70)], id_feature="number")


def test_what_cannot_be_is_refused(parts):
    with pytest.raises(SettingsError, match=r"film\.title is 'film 3' of nodes 6 and 7; raw ids must be unique"):
        find_keys(parts, "film", ["film 3"], id_feature="title")
    with pytest.raises(SettingsError, match="id_feature is 'size', which is float64"):
        find_keys(parts, "film", [1], id_feature="size")
    with pytest.raises(UnknownNameError, match="'nome'"):
        find_keys(parts, "film", [1], id_feature="nome")
    with pytest.raises(SettingsError, match=r"raw_ids is float64\[1\]; give strings or integers \[n\]"):
        find_keys(parts, "film", [1.5])
    with pytest.raises(SettingsError, match="True is bool; raw ids are bytes, str or int"):
        find_keys(parts, "user", np.array(["a", True], object))


def batches_of(loader: object) -> list[list[bytes]]:
    with loader:
        return [
            [*(keys.tobytes() for keys in batch.node_keys.values()), batch.edge_index[RATES].tobytes()]
            for batch in loader
        ]


def test_a_loader_gives_the_same_batches_for_raw_ids_and_for_keys(graph, parts):
    names, how = names_of(graph), {"num_neighbors": [3, 3], "batch_size": 8, "shuffle": True, "collate": "numpy"}
    keys = [7, 3, 400, 7, 12, 99, 23, 1, 0, 499]
    by_name = hopstream.NeighborLoader(parts, seeds=("user", [names[key] for key in keys]), **how)
    assert batches_of(by_name) == batches_of(hopstream.NeighborLoader(parts, seeds=("user", keys), **how))


def test_servers_are_asked_for_raw_ids(graph, parts, server_pool):
    names, dataset_id = names_of(graph), open_dataset(parts).manifest.dataset_id
    with server_pool.serve_cluster(parts, dataset_id, [[0], [1, 2]]) as cluster:
        assert find_keys(cluster, "user", [names[7], names[400]]).tolist() == [7, 400]
        loader = hopstream.NeighborLoader(cluster, [2], seeds=("user", [names[9]]), batch_size=1, collate="numpy")
        assert batches_of(loader)[0][0][:8] == np.int64(9).tobytes()


@pytest.mark.parametrize("num_links", [2, 3, 10])
def test_links_are_given_by_raw_ids(graph, parts, num_links):
    how = {"num_neighbors": [3], "batch_size": 4, "collate": "numpy", "neg_sampling": "binary"}
    edges = graph.edges[RATES]
    src, dst = edges.src_keys[:num_links], edges.dst_keys[:num_links]
    names, ids = names_of(graph), graph.nodes["film"].features["id"]
    raw = [[names[key] for key in src], [str(ids[key]) for key in dst]]
    wanted = batches_of(hopstream.LinkNeighborLoader(parts, edge_label_index=(RATES, [src, dst]), **how))
    for given in ((RATES, raw), (RATES, tuple(raw)), raw, np.array(raw), [raw[0], dst]):
        assert batches_of(hopstream.LinkNeighborLoader(parts, edge_label_index=given, **how)) == wanted
    with pytest.raises(IdRangeError, match=r"edge_label_index\[1\]\[0\] is '5'; no node of type 'film'"):
        hopstream.LinkNeighborLoader(parts, edge_label_index=(RATES, [[names[0]], ["5"]]), **how)


def test_walks_start_from_raw_ids(tmp_path):
    names = RaggedArray.from_strings(["a", "b", "c"])
    ring = hopstream.graph_from_arrays(np.array([[0, 1, 2], [1, 2, 0]]), node_features={"raw_id": names})
    hopstream.write_parts(ring, tmp_path / "ring", num_parts=1, method="hash", direction="out")
    assert hopstream.random_walks(tmp_path / "ring", ["c", "a"], walk_length=2).tolist() == [[2, 0, 1], [0, 1, 2]]
