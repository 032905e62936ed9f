"""Do labels and splits beside PyG's partition files come back, in the spellings of its scripts and its document?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hopstream
import hopstream.compat.pyg as pyg_dist
from hopstream.errors import FormatError, SettingsError, UnknownNameError
from tests.compat.pyg.graphs import heterogeneous, homogeneous


def labelled(make):
    data = make()
    nodes = data["paper"] if make is heterogeneous else data
    nodes.y = torch.arange(len(nodes.x)) % 3
    nodes.train_mask = nodes.y == 0
    nodes.test_mask = nodes.y == 2
    return hopstream.graph_from_data(data)


@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_labels_and_splits_come_back(make, tmp_path):
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


def test_what_cannot_be_told_is_asked_for(tmp_path):
    graph = labelled(heterogeneous)
    pyg_dist.write_partition_folders(graph, tmp_path, "toy", num_parts=2, method="random")
    with pytest.raises(SettingsError, match=r"does not say of which nodes it is; give node_type, one of \['author'"):
        pyg_dist.read_partition_folders(tmp_path, "toy")
    with pytest.raises(UnknownNameError, match=r"there is no node type 'book'"):
        pyg_dist.read_partition_folders(tmp_path, "toy", "book")
    with pytest.raises(SettingsError, match=r"toy-label holds tensor files; give overwrite=True"):
        pyg_dist.write_partition_folders(graph, tmp_path, "toy", num_parts=2, method="random")
    pyg_dist.write_partition_folders(graph, tmp_path, "toy", num_parts=2, method="random", overwrite=True)
    torch.save([1], tmp_path / "toy-label" / "label.pt")
    with pytest.raises(FormatError, match=r"label.pt holds list; wanted a tensor"):
        pyg_dist.read_partition_folders(tmp_path, "toy", "paper")
    with pytest.raises(FormatError, match=r"META.json cannot be read"):
        pyg_dist.read_partition_folders(tmp_path, "other")
