"""Do loaders give the same batches from a dataset and from one that was made of it?"""

from __future__ import annotations

import torch

from hopstream.load.loader import NeighborLoader
from hopstream.preparation.reshard.reshard_job import reshard
from hopstream.preparation.write import write_parts
from tests.dataset.timed_graphs import timed_graph
from tests.preparation.reshard.sources import cut_small


def test_batches_are_equal(tmp_path, monkeypatch, rng):
    graph = timed_graph(rng)
    cut_small(monkeypatch, 20)
    write_parts(graph, tmp_path / "old", num_parts=3, method="random", time_attr="time", weight_attr="rating")
    reshard(tmp_path / "old", tmp_path / "new", num_parts=4, method="ldg", num_workers=0)

    def batches(name: str) -> list[object]:
        with NeighborLoader(
            tmp_path / name, num_neighbors=[3, 2], batch_size=7, seeds="movie", rng_seed=3, shuffle=True
        ) as loader:
            return list(loader)

    pairs = list(zip(batches("old"), batches("new"), strict=True))
    assert pairs
    for old, new in pairs:
        for kind in ("user", "movie"):
            assert torch.equal(old[kind].n_id, new[kind].n_id)
        for edge_type in old.edge_types:
            assert torch.equal(old[edge_type].edge_index, new[edge_type].edge_index)
            assert torch.equal(old[edge_type].e_id, new[edge_type].e_id)
