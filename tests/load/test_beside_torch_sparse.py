"""Compares HGT and ShaDow batches with those of PyG, where torch-sparse is installed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import HGTLoader as TheirHGTLoader
from torch_geometric.loader import ShaDowKHopSampler

from hopstream.load.hgt import HGTLoader
from hopstream.load.loader import NeighborLoader

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
WRITTEN = ("paper", "written_by", "author")


@pytest.fixture(autouse=True)
def real() -> None:
    """PyG samples such batches by torch-sparse only."""
    pytest.importorskip("torch_sparse", exc_type=ImportError)


def typed_data() -> HeteroData:
    """Papers and authors, all with fewer edges per type than torch-sparse's limit of 50."""
    generator = torch.Generator().manual_seed(1)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.arange(60)[:, None], torch.arange(25)[:, None]
    written = torch.stack(
        [torch.randint(25, (150,), generator=generator), torch.randint(60, (150,), generator=generator)]
    )
    data[CITES].edge_index = torch.randint(60, (2, 200), generator=generator)
    data[WRITES].edge_index, data[WRITTEN].edge_index = written, written.flip(0)
    return data


def pairs_of(edge_index: torch.Tensor, ends: tuple[torch.Tensor, torch.Tensor]) -> Counter[tuple[int, int]]:
    return Counter(zip(ends[0][edge_index[0]].tolist(), ends[1][edge_index[1]].tolist(), strict=True))


@pytest.mark.parametrize("num_hops", [1, 2])
def test_hgt_batches_of_all_candidates(num_hops: int) -> None:
    data, options = typed_data(), {"input_nodes": ("paper", torch.arange(9)), "batch_size": 3}
    with HGTLoader(data, [10_000] * num_hops, **options) as ours:
        for batch, theirs in zip(ours, TheirHGTLoader(data, [10_000] * num_hops, **options), strict=True):
            assert batch["paper"].x[:3].tolist() == theirs["paper"].x[:3].tolist()
            for node_type in data.node_types:
                assert sorted(batch[node_type].x.tolist()) == sorted(theirs[node_type].x.tolist())
            for src, name, dst in data.edge_types:
                found = [
                    pairs_of(one[src, name, dst].edge_index, (one[src].x[:, 0], one[dst].x[:, 0]))
                    for one in (batch, theirs)
                ]
                assert found[0] == found[1]


def test_hgt_draws_follow_the_same_law() -> None:
    """The share of batches in which each node is drawn differs by less than 5 sigma."""
    data, num_runs = typed_data(), 1500
    num_samples = {"paper": [3, 2], "author": [2, 2]}
    options = {"input_nodes": ("paper", torch.tensor([5, 8, 13] * num_runs)), "batch_size": 3}
    drawn = []
    with HGTLoader(data, num_samples, edge_keys=False, **options) as ours:
        for loader in (ours, TheirHGTLoader(data, num_samples, **options)):
            counts = {"paper": np.zeros(60), "author": np.zeros(25)}
            for batch in loader:
                for node_type, of_type in counts.items():
                    of_type[batch[node_type].x[:, 0].unique().numpy()] += 1
            drawn.append(np.concatenate([*counts.values()]))
    share = sum(drawn) / (2 * num_runs)
    sigma = np.sqrt(2 * num_runs * share * (1 - share))
    assert (abs(drawn[0] - drawn[1]) <= 5 * sigma + 1e-9).all()
    assert (share > 0.01).sum() > 20


def test_shadow_batches_of_all_neighbours() -> None:
    generator = torch.Generator().manual_seed(2)
    data = Data(x=torch.arange(80)[:, None], edge_index=torch.randint(80, (2, 160), generator=generator), num_nodes=80)
    theirs = ShaDowKHopSampler(data, depth=2, num_neighbors=1000, batch_size=8)
    with NeighborLoader(data, [-1, -1], batch_size=8, disjoint=True, subgraph_type="induced") as ours:
        for batch, other in zip(ours, theirs, strict=True):
            roots = batch.x[: batch.batch_size]
            assert roots.tolist() == other.x[other.root_n_id].tolist()
            found = []
            for one in (batch, other):
                labels = one.batch * 1000 + one.x[:, 0]  # of tree and node
                found.append((sorted(labels.tolist()), pairs_of(one.edge_index, (labels, labels))))
            assert found[0] == found[1]
