"""Tests of the sampler for PyG's loaders: options, when its draws change, and what it refuses."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput, NumNeighbors

import hopstream
from hopstream.compat.pyg import DatasetSampler, open_stores
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from tests.compat.pyg.worlds import assert_same_batch
from tests.load.link_graphs import RATES

ALL = torch.arange(80)


@pytest.fixture
def folder(found_worlds):
    return found_worlds["plain"].folder


def edges_of(sampler: DatasetSampler, nodes: torch.Tensor = ALL) -> list[int]:
    return sampler.sample_from_nodes(NodeSamplerInput(None, nodes)).edge.tolist()


def assert_refused(loader: NodeLoader, message: str) -> None:
    """The first batch is an error of the settings, and no worker process is left."""
    batches = iter(loader)
    try:
        with pytest.raises(SettingsError, match=message):
            next(batches)
    finally:
        batches._shutdown_workers()


def test_draws_follow_torch_unless_there_is_a_seed(folder):
    with DatasetSampler(folder, [2]) as sampler:
        torch.manual_seed(1)
        first, second = edges_of(sampler), edges_of(sampler)
        torch.manual_seed(1)
        assert edges_of(sampler) == first != second
    with DatasetSampler(folder, [2], rng_seed=3) as sampler:
        epochs = [[edges_of(sampler) for _ in range(2)] for epoch in (0, 1) if sampler.set_epoch(epoch) is None]
        sampler.set_epoch(0)
        assert edges_of(sampler) == epochs[0][0]
        assert len({tuple(edges) for epoch in epochs for edges in epoch}) == 4


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_worker_processes_over_a_folder(folder):
    data = open_stores(folder)
    with data[0] as features:
        sampler = DatasetSampler(data, [3, 2], rng_seed=9)
        loader = NodeLoader(
            data, sampler, ALL, batch_size=16, num_workers=2, multiprocessing_context="fork",
            transform=features.add_edge_features,
        )  # fmt: skip
        assert_refused(loader, "rng_seed with worker processes draws the same in every epoch")
        with hopstream.NeighborLoader(folder, [3, 2], batch_size=16, rng_seed=9, num_threads=0) as wanted:
            for epoch in range(2):
                sampler.set_epoch(epoch)
                for found, ours in zip(loader, wanted, strict=True):
                    assert_same_batch(found, ours)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forked_processes_cannot_use_connections(found_worlds):
    data = open_stores(found_worlds["plain"].addresses, hopstream.StoreSettings(prefer_local=False))
    with data[0]:
        loader = NodeLoader(data, DatasetSampler(data, [2]), ALL, num_workers=1, multiprocessing_context="fork")
        assert_refused(loader, "multiprocessing_context='spawn'")


def test_numbers_of_neighbours_may_change_in_a_copy(folder):
    with DatasetSampler(folder, NumNeighbors([2])) as sampler:
        other = copy.copy(sampler)
        other.num_neighbors = [-1]
        assert len(edges_of(other)) == 400
        assert len(edges_of(sampler)) < 160
        with pytest.raises(SettingsError, match="num_neighbors"):
            other.num_neighbors = [-2]
    with pytest.raises(SettingsError, match="the source was closed"):
        edges_of(sampler)


def test_counts_per_type_with_a_default(found_worlds):
    counts = NumNeighbors({RATES: [1]}, default=[0])
    with DatasetSampler(found_worlds["ratings"].folder, counts) as sampler:
        assert sampler.is_hetero
        assert sampler.edge_permutation is None
        out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(60), input_type="movie"))
    assert {t for t, edges in out.num_sampled_edges.items() if sum(edges)} == {RATES}


def test_bad_inputs_are_refused(found_worlds, folder):
    pairs = {"row": torch.tensor([0]), "col": torch.tensor([1])}
    with DatasetSampler(folder, [2]) as sampler:
        with pytest.raises(IdRangeError, match=r"input_nodes\[1\] is 80"):
            edges_of(sampler, torch.tensor([0, 80]))
        with pytest.raises(SettingsError, match="input_time needs time_attr="):
            sampler.sample_from_nodes(NodeSamplerInput(None, ALL, time=ALL))
        with pytest.raises(SettingsError, match="edge_label_time needs time_attr="):
            sampler.sample_from_edges(EdgeSamplerInput(None, **pairs, time=torch.tensor([3])))
        with pytest.raises(SettingsError, match="triplets have no labels"):
            links = EdgeSamplerInput(None, **pairs, label=torch.tensor([3]))
            sampler.sample_from_edges(links, NegativeSampling("triplet"))
        with pytest.raises(SettingsError, match="epoch is -1"):
            sampler.set_epoch(-1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_hops'"):
        DatasetSampler(folder, [2], num_hops=2)
    with pytest.raises(SettingsError, match="store_settings are those that the stores were opened with"):
        DatasetSampler(open_stores(folder), [2], store_settings=hopstream.StoreSettings())
    with DatasetSampler(found_worlds["ratings"].folder, [2], time_attr="time") as sampler:
        assert sampler.is_temporal
        assert sampler.disjoint
        with pytest.raises(SettingsError, match=r"2 node types .* and input_type is None"):
            edges_of(sampler)
        with pytest.raises(UnknownNameError, match="unknown node type 'book'"):
            sampler.sample_from_nodes(NodeSamplerInput(None, ALL, input_type="book"))
        with pytest.raises(SettingsError, match="give edge_label_time="):
            sampler.sample_from_edges(EdgeSamplerInput(None, **pairs, input_type=RATES))


def test_settings_are_checked_at_once(folder):
    with pytest.raises(UnknownNameError, match="time_attr is 'when'"):
        DatasetSampler(folder, [2], time_attr="when")


def test_repeated_seeds_have_separate_slots(folder):
    with DatasetSampler(folder, [-1]) as sampler:
        out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([4, 4])))
    assert out.node[:2].tolist() == [4, 4]
    assert np.bincount(out.col, minlength=2).tolist() == [len(out.col) / 2] * 2


def test_edges_without_keys(tmp_path, found_worlds):
    """Batches without edge keys; PyG's loaders then bring no features of edges."""
    world = found_worlds["ratings"]
    hopstream.write_parts(world.graph, tmp_path / "parts", num_parts=2, method="random", keep_edge_keys=False)
    with DatasetSampler(tmp_path / "parts", [2]) as sampler:
        batch = next(iter(NodeLoader(world.data, sampler, ("movie", torch.arange(60)), batch_size=60)))
    assert batch[RATES].edge_index.size(1) > 60
    assert "e_id" not in batch[RATES]
    assert "stars" not in batch[RATES]
