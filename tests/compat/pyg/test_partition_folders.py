"""Checks that labels and splits beside PyG's partition files come back.

They have the file names of PyG's scripts and of its document.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hopstream
import hopstream.compat.pyg as pyg_dist
from hopstream.errors import FormatError, SchemaError, SettingsError, UnknownNameError
from tests.compat.pyg.graphs import heterogeneous, homogeneous


def labelled(make):
    data = make()
    nodes = data["paper"] if make is heterogeneous else data
    nodes.y = torch.arange(len(nodes.x)) % 3
    nodes.train_mask = nodes.y == 0
    nodes.test_mask = nodes.y == 2
    return hopstream.graph_from_data(data)


@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_labels_and_splits_survive_a_round_trip(make, tmp_path):
    graph = labelled(make)
    owners = {t: np.arange(nodes.num_nodes) % 2 for t, nodes in graph.nodes.items()}
    pyg_dist.write_partition_folders(graph, tmp_path, "toy", owners=owners)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        "toy-label", "toy-partitions", "toy-test-partitions", "toy-train-partitions",
    ]  # fmt: skip
    labels = torch.load(tmp_path / "toy-label" / "label.pt", weights_only=True)
    train = [
        torch.load(tmp_path / "toy-train-partitions" / f"partition{part}.pt", weights_only=True) for part in (0, 1)
    ]
    assert labels.tolist() == [row % 3 for row in range(len(labels))]
    assert [bool((ids % 2 == part).all()) and bool((labels[ids] == 0).all()) for part, ids in enumerate(train)] == [
        1,
        1,
    ]
    node_type = "paper" if make is heterogeneous else None
    found, parts = pyg_dist.read_partition_folders(tmp_path, "toy", node_type)
    assert found.fingerprint() == graph.fingerprint()
    assert {t: of.tolist() for t, of in parts.items()} == {t: of.tolist() for t, of in owners.items()}


def test_names_of_the_document_are_read_and_labels_are_taken_from_their_file(tmp_path):
    graph = labelled(homogeneous)
    without = replace(
        graph, nodes={"node": replace(graph.nodes["node"], features={"x": graph.nodes["node"].features["x"]})}
    )
    pyg_dist.write_partitions(without, tmp_path / "toy-partitions", num_parts=2, method="random")
    for folder in ("toy-labels", "toy-train-partitions"):
        (tmp_path / folder).mkdir()
    torch.save(torch.arange(15), tmp_path / "toy-labels" / "label.pt")
    torch.save(torch.tensor([3, 1]), tmp_path / "toy-train-partitions" / "partion0.pt")
    torch.save(torch.tensor([2]), tmp_path / "toy-train-partitions" / "partion1.pt")
    found, _ = pyg_dist.read_partition_folders(tmp_path, "toy")
    assert found.nodes["node"].features["y"].tolist() == list(range(15))
    assert found.splits["node"]["train"].tolist() == [1, 2, 3]


def test_several_types_have_labels(tmp_path):
    data = heterogeneous()
    data["paper"].y, data["author"].y = torch.arange(12), torch.arange(7)
    graph = hopstream.graph_from_data(data)
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=2, method="random")
    pyg_dist.write_partition_folders(tmp_path / "parts", tmp_path / "pyg", "toy")
    assert pyg_dist.read_partition_folders(tmp_path / "pyg", "toy")[0].fingerprint() == graph.fingerprint()


def test_error_asks_for_unknown_types_and_overwrite(tmp_path):
    graph = labelled(heterogeneous)
    pyg_dist.write_partition_folders(graph, tmp_path, "toy", num_parts=2, method="random")
    with pytest.raises(SettingsError, match=r"does not name the type of its nodes; give node_type, one of \['author'"):
        pyg_dist.read_partition_folders(tmp_path, "toy")
    with pytest.raises(UnknownNameError, match=r"node type 'book' does not exist"):
        pyg_dist.read_partition_folders(tmp_path, "toy", "book")
    with pytest.raises(SettingsError, match=r"toy-label holds tensor files; give overwrite=True"):
        pyg_dist.write_partition_folders(graph, tmp_path, "toy", num_parts=2, method="random")
    pyg_dist.write_partition_folders(graph, tmp_path, "toy", num_parts=2, method="random", overwrite=True)
    torch.save([1], tmp_path / "toy-label" / "label.pt")
    with pytest.raises(FormatError, match=r"label.pt holds list; wanted a tensor"):
        pyg_dist.read_partition_folders(tmp_path, "toy", "paper")
    with pytest.raises(FormatError, match=r"META.json cannot be read"):
        pyg_dist.read_partition_folders(tmp_path, "other")


TO, CITES, WRITES = ("node", "to", "node"), ("paper", "cites", "paper"), ("author", "writes", "paper")


def with_links(types, timed=False):
    """A graph with parallel edges whose edges of some types are split."""
    rng = np.random.default_rng(3)
    sizes = {"node": 20} if TO in types else {"paper": 12, "author": 7}
    edges = {
        t: np.stack([rng.integers(0, sizes[t[0]], 40), rng.integers(0, sizes[t[2]], 40)])
        for t in ((TO,) if TO in types else (CITES, WRITES))
    }
    features = {t: {"edge_time": rng.integers(5, 99, 40)} if timed else {} for t in edges}
    graph = hopstream.graph_from_arrays(edges, num_nodes=sizes, edge_features=features)
    splits = {t: {"train": np.arange(0, 40, 2), "test": np.arange(1, 40, 4)} for t in types}
    return replace(graph, edge_splits=splits).check()


@pytest.mark.parametrize(("types", "timed"), [([TO], False), ([TO], True), ([CITES], True), ([CITES, WRITES], False)])
def test_link_splits_survive_a_round_trip(types, timed, tmp_path):
    graph = with_links(types, timed)
    owners = {t: np.arange(nodes.num_nodes) % 3 for t, nodes in graph.nodes.items()}
    pyg_dist.write_partition_folders(graph, tmp_path, "toy", owners=owners)
    edge_type = CITES if types == [CITES] else None
    found, _ = pyg_dist.read_partition_folders(tmp_path, "toy", edge_type=edge_type)
    assert found.fingerprint() == graph.fingerprint()
    assert {t: {n: k.tolist() for n, k in of.items()} for t, of in found.edge_splits.items()} == {
        t: {n: k.tolist() for n, k in of.items()} for t, of in graph.edge_splits.items()
    }
    links = torch.load(tmp_path / "toy-train-partitions" / "partition1.pt", weights_only=True)
    table = graph.edges[types[0]]
    links = links if len(types) == 1 else links[types[0]]
    keys = links["edge_id"].numpy()
    assert len(keys) and (owners[types[0][2]][table.dst_keys[keys]] == 1).all()
    assert links["edge_label_index"].tolist() == [table.src_keys[keys].tolist(), table.dst_keys[keys].tolist()]
    assert links["edge_label"].tolist() == [1.0] * len(keys)
    assert ("edge_label_time" in links) == timed
    if timed:
        assert links["edge_label_time"].tolist() == (table.features["edge_time"][keys] - 1).tolist()


def test_links_from_other_tools_are_found_by_their_ends(tmp_path):
    graph = with_links([TO])
    table = graph.edges[TO]
    ends = np.stack([table.src_keys, table.dst_keys])
    pairs, counts = np.unique(ends, axis=1, return_counts=True)
    single = np.flatnonzero([(end == pairs[:, counts == 1].T).all(1).any() for end in ends.T])
    many = pairs[:, counts > 1][:, :1]
    assert len(single) > 5 and many.shape == (2, 1)
    pyg_dist.write_partition_folders(replace(graph, edge_splits={}), tmp_path, "toy", num_parts=2, method="random")
    (tmp_path / "toy-train-partitions").mkdir()
    path = tmp_path / "toy-train-partitions" / "partition0.pt"
    torch.save({"edge_label_index": torch.from_numpy(ends[:, single[::-1]])}, path)
    found, _ = pyg_dist.read_partition_folders(tmp_path, "toy")
    assert found.edge_splits[TO]["train"].tolist() == single.tolist()
    for wrong, count in ((many, int(counts[counts > 1][0])), ([[19], [19]], 0)):
        torch.save({"edge_label_index": torch.as_tensor(wrong)}, path)
        with pytest.raises(FormatError, match=rf"partition0.pt: link 0 from .* matches {count} edges of the graph"):
            pyg_dist.read_partition_folders(tmp_path, "toy")


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ({"edge_label_index": torch.zeros(2, 3)}, "has no edge_label_index of integers"),
        ({"edge_label_index": torch.zeros(3, 2, dtype=torch.int64)}, "has no edge_label_index of integers"),
        ({TO: {"edge_label": torch.zeros(2)}}, "has no edge_label_index of integers"),
        ({TO: {}}, "has no edge_label_index of integers"),
        (
            {"edge_label_index": torch.zeros(2, 1, dtype=torch.int64), "edge_id": torch.zeros(1)},
            "edge_id must be an integer for each of 1 links",
        ),
        (
            {"edge_label_index": torch.tensor([[19], [19]]), "edge_id": torch.tensor([10**9])},
            "link 0 from 19 to 19 is not edge 1000000000, its ",
        ),
    ],
)
def test_invalid_links_are_refused(links, words, tmp_path):
    graph = replace(with_links([TO]), edge_splits={})
    pyg_dist.write_partition_folders(graph, tmp_path, "toy", num_parts=2, method="random")
    (tmp_path / "toy-val-partitions").mkdir()
    torch.save(links, tmp_path / "toy-val-partitions" / "partition0.pt")
    with pytest.raises(FormatError, match=words):
        pyg_dist.read_partition_folders(tmp_path, "toy")


def test_link_types_are_required_and_split_names_are_unique(tmp_path):
    graph = with_links([CITES])
    pyg_dist.write_partition_folders(graph, tmp_path, "toy", num_parts=2, method="random")
    with pytest.raises(SettingsError, match=r"give edge_type, one of \[\('paper', 'cites', 'paper'\), \('author'"):
        pyg_dist.read_partition_folders(tmp_path, "toy")
    with pytest.raises(UnknownNameError, match=r"edge type \('a', 'b', 'c'\) does not exist"):
        pyg_dist.read_partition_folders(tmp_path, "toy", edge_type=("a", "b", "c"))
    both = replace(graph, splits={"paper": {"train": np.arange(3)}})
    with pytest.raises(SchemaError, match="nodes and links both have a split 'train'"):
        pyg_dist.write_partition_folders(both, tmp_path / "other", "toy", num_parts=2, method="random")
    assert not (tmp_path / "other").exists()


def test_files_foreign_to_the_new_graph_are_refused_and_kept(tmp_path):
    first = labelled(homogeneous)
    pyg_dist.write_partition_folders(first, tmp_path, "toy", num_parts=2, method="random")
    nodes = {t: replace(of, features={"x": of.features["x"]}) for t, of in first.nodes.items()}
    second = replace(first, nodes=nodes, splits={"node": {"train": np.arange(4)}})
    (tmp_path / "toy-labels").mkdir()
    wanted = r"toy-label, .*toy-labels, .*toy-test-partitions would be read as labels or splits of this graph"
    for overwrite in (False, True):
        with pytest.raises(SettingsError, match=wanted):
            pyg_dist.write_partition_folders(second, tmp_path, "toy", num_parts=2, method="random", overwrite=overwrite)
    (tmp_path / "toy-labels").rmdir()
    assert pyg_dist.read_partition_folders(tmp_path, "toy")[0].fingerprint() == first.fingerprint()
    for folder in ("toy-label", "toy-test-partitions"):
        (tmp_path / folder).rename(tmp_path / f"old-{folder}")
    pyg_dist.write_partition_folders(second, tmp_path, "toy", num_parts=2, method="random", overwrite=True)
    assert pyg_dist.read_partition_folders(tmp_path, "toy")[0].fingerprint() == second.fingerprint()


def test_names_that_begin_alike_are_apart(tmp_path):
    graphs = {"ogbn": labelled(homogeneous), "ogbn-mag": labelled(heterogeneous), "b[1]*": labelled(homogeneous)}
    for _ in range(2):
        for name, graph in graphs.items():
            pyg_dist.write_partition_folders(graph, tmp_path, name, num_parts=2, method="random", overwrite=True)
    for name, graph in graphs.items():
        node_type = "paper" if name == "ogbn-mag" else None
        found, _ = pyg_dist.read_partition_folders(tmp_path, name, node_type)
        assert found.fingerprint() == graph.fingerprint()
    with pytest.raises(SchemaError, match=r"'../d' cannot be the name of a file"):
        pyg_dist.write_partition_folders(graphs["ogbn"], tmp_path / "inner", "../d", num_parts=2, method="random")
