"""Training with GiGL's loaders equals training with Hopstream's own: the same batches, and weights equal in all bits.

Models and loops are those of ``examples/gigl_nodes.py`` and ``examples/gigl_links.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import hopstream
from hopstream.compat.gigl.distributed import DistABLPLoader, DistNeighborLoader
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType
from tests.compat.gigl.conftest import Connect
from tests.examples.real_data import functions_of
from tests.examples.test_movielens import write_movielens

SEED, NUM_EPOCHS = 3, 10
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    """A process group of this process alone, for DistributedDataParallel; one thread, so that sums have one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)


def check_equal(ours: Any, theirs: Any, names: dict[str, str]) -> None:
    """Two batches of one type hold the same tensors; ``names`` are ours and those of GiGL."""
    for name, other in names.items():
        assert torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(theirs[other])), name


def check_weights(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    weights = theirs.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in ours.state_dict().items())


def test_labels_of_papers(connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = functions_of("gigl_nodes.py", monkeypatch)
    graph = hopstream.read_graph(example["CORA"])
    hopstream.write_parts(graph, tmp_path / "cora", num_parts=2, method="hash")
    dataset = connect(tmp_path / "cora", 2)
    settings = example["Settings"](num_classes=7, num_epochs=NUM_EPOCHS)
    how: list[dict[str, Any]] = [
        {"num_neighbors": list(settings.num_neighbors), "batch_size": settings.batch_size, "shuffle": True},
        {"num_neighbors": example["ALL_NEIGHBORS"], "batch_size": 256},
    ]
    theirs = [
        DistNeighborLoader(dataset, input_nodes=dataset.fetch_node_ids(split=split), rng_seed=SEED, **one)
        for split, one in zip(("train", "test"), how, strict=True)
    ]
    ours = [
        hopstream.NeighborLoader(tmp_path / "cora", seeds=split, rng_seed=SEED, **one)
        for split, one in zip(("train", "test"), how, strict=True)
    ]
    found = []
    num_steps = NUM_EPOCHS * example["steps_of_epoch"](dataset, settings.batch_size)
    for loaders in (ours, theirs):
        torch.manual_seed(SEED)
        model = example["SageOfBatch"](dataset.fetch_node_feature_info().dim, settings)
        first = {name: weight.clone() for name, weight in model.state_dict().items()}
        example["train"](model, loaders[0], settings, num_steps)
        assert not any(torch.equal(weight, first[name]) for name, weight in model.state_dict().items())
        found.append((model, example["evaluate"](model, loaders[1])))
    check_weights(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] >= 0.76
    names = {"n_id": "node", "edge_index": "edge_index", "x": "x", "y": "y", "batch_size": "batch_size"}
    for one, other in zip(ours, theirs, strict=True):
        num_batches = 0
        for batch, twin in zip(one, other, strict=True):
            check_equal(batch, twin, names)
            num_batches += 1
        assert num_batches == len(one)
        one.close()
        other.shutdown()


def as_gigl(data: HeteroData) -> HeteroData:
    """One of our batches under GiGL's names."""
    for node_type in data.node_types:
        data[node_type].node = data[node_type].n_id
        if "batch_size" in data[node_type]:
            data[node_type].batch = data[node_type].n_id[: data[node_type].batch_size]
    for edge_type in data.edge_types:
        if "y_positive" in data[edge_type]:
            data.y_positive = data[edge_type].pop("y_positive")
    return data


def test_links_of_users(connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = functions_of("gigl_links.py", monkeypatch)
    rates, labels, fanout = example["RATES"], example["LABELS"], example["NUM_NEIGHBORS"]
    write_movielens(tmp_path, np.random.default_rng(0))
    graph = example["read_movielens"](tmp_path)
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=2, method="hash", direction="both")
    dataset = connect(tmp_path / "parts", 2)
    movies = dataset.fetch_node_ids(node_type="movie")
    popularity = np.bincount(graph.edges[rates].dst_keys, minlength=graph.nodes["movie"].num_nodes)
    how = {"batch_size": example["ANCHORS"], "rng_seed": SEED}
    theirs: list[Any] = [
        DistABLPLoader(
            dataset, fanout, dataset.fetch_ablp_input(split, None, None, "user", EdgeType(*rates)),
            shuffle=split == "train", use_label_edge_index_output=True, **how,
        )
        for split in ("train", "test")
    ]  # fmt: skip
    theirs.append(DistNeighborLoader(dataset, fanout, ("movie", movies), batch_size=256, shuffle=True, rng_seed=SEED))
    users = {split: graph.splits["user"][split] for split in ("train", "test")}
    rows = {user: graph.edges[labels].dst_keys[graph.edges[labels].src_keys == user] for user in range(60)}
    ours: list[Any] = [
        hopstream.ABLPLoader(
            tmp_path / "parts", {**fanout, labels: [0, 0]}, ("user", nodes), supervision=rates,
            labels={rates: [rows[user] for user in nodes.tolist()]}, shuffle=split == "train", transform=as_gigl, **how,
        )
        for split, nodes in users.items()
    ]  # fmt: skip
    ours.append(
        hopstream.NeighborLoader(
            tmp_path / "parts", {**fanout, labels: [0, 0]}, "movie", 256, shuffle=True, rng_seed=SEED, transform=as_gigl
        )
    )
    found = []
    for loaders in (ours, theirs):
        torch.manual_seed(SEED)
        model = example["Scores"](
            example["Recommender"](len(popularity), dataset.fetch_node_feature_info()["movie"].dim)
        )
        example["train"](model, loaders[0], loaders[2], 20 * len(loaders[0]))
        found.append((model, example["test"](model, loaders[1], loaders[2], torch.from_numpy(popularity))))
    check_weights(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] and found[0][1][0] > max(found[0][1][1], 0.5)
    for one, other in zip(ours, theirs, strict=True):
        for batch, twin in zip(one, other, strict=True):
            for node_type in ("user", "movie"):
                check_equal(batch[node_type], twin[node_type], {"node": "node"})
            for edge_type in fanout:
                check_equal(batch[edge_type], twin[edge_type], {"edge_index": "edge_index", "edge_attr": "edge_attr"})
            if one is not ours[2]:
                assert torch.equal(batch.y_positive, twin.y_positive)
        one.close()
        other.shutdown()
