"""Checks that loaders are called, sized and weighted like those of PyG."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, WeightedRandomSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ImbalancedSampler

from hopstream.errors import IdRangeError, SettingsError, StateError
from hopstream.load import setup
from hopstream.load.ablp import ABLPLoader
from hopstream.load.hgt import HGTLoader
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.load_settings import OrderSettings
from hopstream.load.loader import NeighborLoader, RandomNodeLoader
from hopstream.load.order import WeightedOrder, read_seed_weights
from hopstream.load.ppr import PPRLoader
from tests.load.graphs import flat


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    edge_index = torch.from_numpy(rng.integers(0, 200, (2, 3000)))
    y = torch.from_numpy((rng.random(200) < 0.1).astype(np.int64))
    return Data(x=torch.arange(200.0)[:, None], edge_index=edge_index, y=y)


def test_a_call_makes_one_batch_of_chosen_seeds(data: Data) -> None:
    seeds = torch.arange(100, 200)
    with NeighborLoader(data, [4, 2], input_nodes=seeds, batch_size=8, num_workers=0) as loader:
        batch = loader(torch.tensor([3, 99, 3]))
        assert batch.n_id[: batch.batch_size].tolist() == [103, 199, 103]
        assert batch.input_id.tolist() == [3, 99, 3]
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        assert torch.equal(loader([3, 99, 3]).n_id, batch.n_id)
        loader.set_epoch(1)
        assert not torch.equal(loader([3, 99, 3]).n_id, batch.n_id)
        for wrong in ([100], [-1]):
            with pytest.raises(IdRangeError, match=r"^index\[0\] is .*; positions of seeds are 0\.\.99"):
                loader(wrong)
        for wrong in ([0.5], 3, [[1]]):
            with pytest.raises(SettingsError, match=r"^index is .*; give one or more integer positions"):
                loader(wrong)
        with pytest.raises(SettingsError, match=r"^index is empty; give one or more integer positions"):
            loader([])
        with pytest.raises(SettingsError, match=r"^index is no list of integers .*; give one or more positions"):
            loader([[1], [2, 3]])


@pytest.mark.parametrize("seeds", [None, torch.ones(200, dtype=torch.bool)])
@pytest.mark.parametrize("sampling", [{}, {"disjoint": True}])
def test_chosen_seeds_may_repeat(data: Data, seeds: Any, sampling: dict[str, Any]) -> None:
    with NeighborLoader(data, [4, 2], input_nodes=seeds, num_workers=0, **sampling) as loader:
        batch = loader([9, 8, 9])
        assert batch.n_id[:3].tolist() == batch.input_id.tolist() == [9, 8, 9]


def test_chosen_seeds_of_layers_may_repeat(data: Data) -> None:
    with HGTLoader(data, [9, 5], num_threads=0, collate="numpy") as loader:
        batch = loader([9, 8, 9])
        assert batch.node_keys["node"][:3].tolist() == batch.input_ids.tolist() == [9, 8, 9]


def test_calls_reuse_small_makers(data: Data) -> None:
    """Batches do not depend on earlier calls, or on an error in one; makers of large batches are not kept."""
    seeds = torch.arange(200).repeat(20)
    with NeighborLoader(data, [4, 2], seeds, num_workers=0, collate="numpy") as loader:
        wanted = [flat(loader([seed])) for seed in range(20)]
        assert len(loader._idle_makers) == 1
        (maker,) = loader._idle_makers
        kept = [loader([seed]) for seed in range(20)]
        assert [flat(batch) for batch in kept] == wanted
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyError):
            patch.setattr(type(maker._reader), "finish", lambda *_: {}["no such key"])
            loader([0])
        assert not loader._idle_makers
        assert flat(loader([3])) == wanted[3]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(setup, "MAX_IDLE_SIZE", 500)
            loader(np.arange(200))
            assert not loader._idle_makers
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda seed: flat(loader([seed])), range(20))) == wanted


def test_calls_do_not_move_the_epoch_and_run_in_parallel(data: Data) -> None:
    with NeighborLoader(data, [4, 2], batch_size=32, shuffle=True, collate="numpy") as loader:
        wanted = [flat(batch) for batch in loader]
        loader.set_epoch(0)
        batches = iter(loader)
        found = [flat(next(batches))]
        with ThreadPoolExecutor(4) as pool:
            called = list(pool.map(lambda i: flat(loader([i % 5, 7])), range(20)))
        found += [flat(batch) for batch in batches]
        assert found == wanted
        loader.set_epoch(0)
        assert called == [flat(loader([i % 5, 7])) for i in range(20)]


def test_a_call_makes_a_batch_of_links_and_applies_the_transform(data: Data) -> None:
    links = data.edge_index[:, :50]
    options = {"edge_label_index": links, "batch_size": 5, "neg_sampling": "binary"}
    with LinkNeighborLoader(data, [3], **options, transform=lambda batch: (1, batch)) as loader:
        one, batch = loader([7, 8])
        positives = batch.n_id[batch.edge_label_index[:, :2]]
        assert one == 1
        assert torch.equal(positives, links[:, [7, 8]])
        assert batch.edge_label.tolist() == [1, 1, 0, 0]


def test_other_samplers_are_refused_and_defaults_of_pyg_are_not(data: Data) -> None:
    with pytest.raises(SettingsError, match=r"^sampler is a RandomSampler; give a WeightedRandomSampler"):
        NeighborLoader(data, [2], sampler=RandomSampler(range(200)))
    nothing = dict.fromkeys(("sampler", "batch_sampler", "generator", "prefetch_factor", "collate_fn"))
    NeighborLoader(data, [2], **nothing).close()


def test_a_closed_loader_makes_no_batch(data: Data) -> None:
    loader = NeighborLoader(data, [2])
    loader.close()
    with pytest.raises(StateError, match="the loader is closed"):
        loader([0])


def test_anchors_of_a_graph_in_memory_have_labels(data: Data) -> None:
    typed = HeteroData()
    typed["node"].x = data.x
    typed["node", "to", "node"].edge_index = data.edge_index[:, :2000]
    typed["node", "likes", "node"].edge_index = data.edge_index[:, 2000:]
    with ABLPLoader(typed, {"default": [2]}, supervision=("node", "likes", "node"), batch_size=20) as loader:
        batch = next(iter(loader))
        assert batch["node", "likes", "node"].y_positive.shape[1] > 20


def test_empty_seeds_are_an_empty_epoch(data: Data) -> None:
    options = {"batch_size": 4, "shuffle": True, "collate": "numpy"}
    for world in ({}, {"rank": 1, "world_size": 2}):
        with (
            NeighborLoader(data, [2], torch.zeros(200, dtype=torch.bool), **options, **world) as nodes,
            LinkNeighborLoader(data, [2], torch.empty(2, 0, dtype=torch.long), **options, **world) as links,
            PPRLoader(data, [], **options, **world) as ppr,
        ):
            for loader in (nodes, links, ppr):
                assert (len(loader), len(loader.dataset)) == (0, 0)
                assert [list(loader), list(loader), loader.epoch] == [[], [], 2]
    with pytest.raises(SettingsError, match="random nodes need at least one"):
        RandomNodeLoader(data, [2], [], num_batches=2)


def test_trainers_read_sizes(data: Data) -> None:
    with NeighborLoader(data, [2], torch.arange(90), batch_size=4, num_workers=3) as loader:
        assert (loader.batch_size, loader.num_workers, len(loader.dataset), len(loader)) == (4, 3, 90, 23)


def test_seeds_are_drawn_by_weight(data: Data) -> None:
    weights = np.arange(200) % 4
    with NeighborLoader(data, [2], batch_size=50, seed_weights=weights, collate="numpy") as loader:
        drawn = np.concatenate([batch.input_ids for _ in range(40) for batch in loader])
    assert len(drawn) == 40 * 200
    counts = np.bincount(drawn % 4, minlength=4) / len(drawn)
    assert counts == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6], abs=0.02)
    assert len(np.unique(drawn)) == 150


def test_an_imbalanced_sampler_balances_classes(data: Data) -> None:
    sampler = ImbalancedSampler(data.y)
    share = float(data.y.float().mean())
    with NeighborLoader(data, [2], batch_size=50, sampler=sampler) as loader:
        drawn = torch.cat([batch.y[: batch.batch_size] for _ in range(20) for batch in loader])
    assert share < 0.2
    assert float(drawn.float().mean()) == pytest.approx(0.5, abs=0.04)
    for wrong in (
        WeightedRandomSampler(torch.ones(200), 100),
        WeightedRandomSampler(torch.ones(200), 200, replacement=False),
    ):
        with pytest.raises(SettingsError, match="wanted as many as there are, with replacement=True"):
            NeighborLoader(data, [2], sampler=wrong)


def test_weighted_orders_do_not_depend_on_ranks_and_resume(data: Data) -> None:
    def epochs(**options: object) -> list[list[int]]:
        with NeighborLoader(data, [2], batch_size=20, seed_weights=data.x[:, 0], collate="numpy", **options) as loader:
            return [batch.input_ids.tolist() for _ in range(2) for batch in loader]

    whole = epochs()
    by_rank = [epochs(rank=rank, world_size=2) for rank in range(2)]
    assert [batch for pair in zip(*by_rank, strict=True) for batch in pair] == whole
    assert whole[:10] != whole[10:]
    with NeighborLoader(data, [2], batch_size=20, seed_weights=data.x[:, 0], collate="numpy") as loader:
        loader.load_state_dict({**loader.state_dict(), "next_batch": 3})
        assert [batch.input_ids.tolist() for batch in loader] == whole[3:10]
        state = loader.state_dict()
    with (
        NeighborLoader(data, [2], batch_size=20, collate="numpy") as other,
        pytest.raises(Exception, match="seed_weights"),
    ):
        other.load_state_dict(state)


def test_links_are_drawn_by_weight(data: Data) -> None:
    weights = np.zeros(50)
    weights[[3, 40]] = 1
    with LinkNeighborLoader(data, [2], data.edge_index[:, :50], batch_size=25, seed_weights=weights) as loader:
        assert set(torch.cat([batch.input_id for batch in loader]).tolist()) == {3, 40}


def test_wrong_weights_are_refused() -> None:
    for weights, message in (
        ([1.0, 2.0], r"^w is float64\[2\]; give one number per seed: \[3\]"),
        ([1, -1, 2], r"^w\[1\] is -1\.0; weights are finite numbers"),
        ([1, np.nan, 2], r"^w\[1\] is nan"),
        ([0, 0, 0], r"^the sum of w is 0\.0; it must be positive"),
        (["a", "b", "c"], "^w is "),
    ):
        with pytest.raises(SettingsError, match=message):
            read_seed_weights("w", weights, 3)


def test_draws_never_reach_seeds_of_weight_zero() -> None:
    sums = read_seed_weights("w", [0, 1e-300, 0, 1e300, 0, 0], 6)
    order = WeightedOrder(num_seeds=6, settings=OrderSettings(batch_size=6), sums=sums)
    drawn = np.concatenate([order.positions(epoch, order.span(0)) for epoch in range(500)])
    assert set(drawn.tolist()) <= {1, 3}
