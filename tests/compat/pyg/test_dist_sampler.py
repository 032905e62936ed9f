"""Tests of one rank's sampler against one of the whole graph, and of PyG's ways to set it up."""

from __future__ import annotations

import asyncio
import atexit
import logging
import queue
import re
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

import hopstream.compat.pyg as pyg_dist
from hopstream.compat.pyg import DatasetSampler, DistLoader, DistNeighborLoader, DistNeighborSampler, rpc
from hopstream.compat.pyg.channels import take_from
from hopstream.errors import IdRangeError, SchemaError, SettingsError, StateError, StoreTimeout, StoreUnavailable
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from tests.compat.pyg.ranks import all_well, context, on_ranks, owners_of, partition
from tests.compat.pyg.test_dist_loaders import plain_graph
from tests.ports import free_port
from tests.timed_graphs import make_timed_graph

PAGES = list((Path(__file__).parents[3].parent / "shared" / "seeds").glob("000_*.txt"))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return plain_graph(np.random.default_rng(5))


def sampled(graph: Graph, work: Any, num_parts: int = 3, **options: Any) -> list[Any]:
    """Return the result of ``work`` for the sampler of each rank."""
    port, owners = free_port(), owners_of(graph, num_parts)

    def on_rank(rank: int) -> Any:
        data = partition(graph, owners, rank, num_parts, options.get("time_attr"))
        sampler = DistNeighborSampler(context(rank, num_parts), data, **{"num_neighbors": [-1, -1], **options})
        member = pyg_dist.init_rpc(context(rank, num_parts), "127.0.0.1", port, rpc_timeout=20)
        try:
            sampler.init_sampler_instance()
            sampler.register_sampler_rpc()
            pyg_dist.global_barrier(timeout=10)
            found = work(sampler)
        except BaseException:
            member.close(False)
            raise
        member.close(True)
        return found

    return all_well(on_ranks(num_parts, on_rank))


def test_samples_are_those_of_one_machine(graph: Graph, tmp_path: Any) -> None:
    write_parts(graph, tmp_path / "whole", num_parts=1)
    nodes = NodeSamplerInput(input_id=None, node=torch.tensor([3, 17, 39]), time=None, input_type=None)
    row, col = (torch.from_numpy(keys[:5]) for keys in (graph.edges[EDGE].src_keys, graph.edges[EDGE].dst_keys))
    edges = EdgeSamplerInput(input_id=None, row=row, col=col, label=None, time=None, input_type=None)
    negatives = NegativeSampling("binary", 2.0)

    def work(sampler: Any) -> list[Any]:
        async def both() -> list[Any]:
            return [await sampler.node_sample(nodes), await sampler.edge_sample(edges, neg_sampling=negatives)]

        return asyncio.run(both())

    with DatasetSampler(tmp_path / "whole", [-1, -1], rng_seed=4) as whole:
        truth = [whole.sample_from_nodes(nodes), whole.sample_from_edges(edges, negatives)]
    for found in sampled(graph, work, rng_seed=4):
        for one, other in zip(found, truth, strict=True):
            for name in ("node", "row", "col", "edge"):
                assert torch.equal(getattr(one, name), getattr(other, name)), name
            assert one.num_sampled_nodes == other.num_sampled_nodes
        assert torch.equal(found[1].metadata[1], truth[1].metadata[1])


def test_one_hop_brings_all_neighbours_in_the_order_of_sources(graph: Graph) -> None:
    sources = torch.tensor([5, 0, 5, 33, 12])
    table = graph.edges[EDGE]
    edges_of = {key: np.flatnonzero(table.dst_keys == key).tolist() for key in sources.tolist()}

    def work(sampler: Any) -> Any:
        return asyncio.run(sampler.sample_one_hop(sources, -1, src_batch=torch.arange(5)))

    for out in sampled(graph, work):
        wanted = [edge for key in sources.tolist() for edge in edges_of[key]]
        assert out.edge.tolist() == wanted
        assert out.node.tolist() == table.src_keys[wanted].tolist()
        counts = [len(edges_of[key]) for key in sources.tolist()]
        assert out.metadata == (counts,)
        assert out.batch.tolist() == np.repeat(np.arange(5), counts).tolist()


def test_one_hop_keeps_to_times_and_counts(graph: Graph) -> None:
    sources, times = torch.arange(40), torch.full((40,), 25)
    table = graph.edges[EDGE]
    is_seen = graph.nodes[NODE].features["time"][table.src_keys] <= 25

    def work(sampler: Any) -> Any:
        return asyncio.run(sampler.sample_one_hop(sources, 2, seed_time=times))

    for out in sampled(graph, work, num_parts=2, time_attr="time"):
        assert is_seen[out.edge.numpy()].all()
        eligible = Counter(table.dst_keys[is_seen].tolist())
        assert out.metadata == ([min(2, eligible[key]) for key in range(40)],)


def test_a_channel_takes_outputs_and_errors(graph: Graph) -> None:
    nodes = NodeSamplerInput(input_id=None, node=torch.tensor([1]), time=None, input_type=None)
    beyond = NodeSamplerInput(input_id=None, node=torch.tensor([99]), time=None, input_type=None)

    def work(sampler: Any) -> Any:
        sampler.channel = queue.Queue()
        assert sampler.sample_from_nodes(nodes) is None
        assert sampler.channel.get(timeout=20).node[0] == 1
        assert sampler.sample_from_nodes(beyond) is None
        return type(sampler.channel.get(timeout=20)).__name__

    assert sampled(graph, work, num_parts=2) == ["IdRangeError"] * 2


@pytest.mark.parametrize("room", [0, 2], ids=["room for all", "little room"])
def test_closing_the_sampler_wakes_waiters_for_a_channel(graph: Graph, room: int) -> None:
    channel: queue.Queue[Any] = queue.Queue(room)
    sampler, called, is_closed = alone(graph, channel=channel), [], threading.Event()
    is_held = threading.Event()

    def hold(found: Any) -> None:
        """The first output holds the only thread until waiting outputs are abandoned."""
        called.append(found)
        if len(called) == 1 + (room or 29):
            is_closed.set()
        if len(called) == 1:
            is_held.set()
            is_closed.wait(10)

    for key in range(30):
        sampler.sample_from_nodes(seeds_at(key), callback=hold)
    assert is_held.wait(10)
    first = channel.get(timeout=10)
    sampler.close()
    found = [channel.get(timeout=5) for _ in range(room or 29)]
    assert first.node[0] == 0
    assert channel.empty()
    assert called == [first, *found]
    for error in found:
        assert isinstance(error, StateError)
        assert "closed before this sample was made" in str(error)
    pyg_dist.shutdown_rpc()


def test_waiting_for_a_channel_has_a_deadline(graph: Graph) -> None:
    loader = DistLoader(context(0, 1), "127.0.0.1", 1, channel=queue.Queue(), rpc_timeout=0.05)
    with pytest.raises(StoreTimeout, match=r"nothing came into the channel in 0.05 s; .*rpc_timeout"):
        loader.channel_get(None)
    loader.channel.put(StateError("closed"))
    with pytest.raises(StateError, match="closed"):
        loader.channel_get(None)
    loader.close()


def drawn(graph: Graph, concurrency: int, rng_seed: int | None) -> list[Any]:
    """Edges of samples by the number of their request, and of two calls of one hop."""
    channel: queue.Queue[Any] = queue.Queue()
    sampler = alone(graph, channel=channel, concurrency=concurrency, rng_seed=rng_seed)
    for key in range(30):
        sampler.sample_from_nodes(seeds_at(key))
    outputs = [take_from(channel, 20) for _ in range(30)]
    found = [out.edge.tolist() for out in sorted(outputs, key=lambda out: int(out.metadata[0][0]))]
    found += [asyncio.run(sampler.sample_one_hop(torch.arange(40), 1)).edge.tolist() for _ in range(2)]
    pyg_dist.shutdown_rpc()
    return found


def test_draws_do_not_depend_on_thread_order(graph: Graph) -> None:
    wanted = drawn(graph, 1, rng_seed=1)
    assert wanted[-1] != wanted[-2]
    assert drawn(graph, 8, rng_seed=1) == wanted
    assert drawn(graph, 8, rng_seed=2) != wanted


def test_without_a_seed_draws_follow_the_generator_of_torch(graph: Graph) -> None:
    found = []
    for seed, concurrency in ((3, 1), (3, 8), (4, 8)):
        torch.manual_seed(seed)
        found.append(drawn(graph, concurrency, rng_seed=None))
    assert found[0] == found[1] != found[2]
    assert found[0][-1] != found[0][-2]


def alone(graph: Graph, **options: Any) -> DistNeighborSampler:
    """A sampler of the only rank, which ``shutdown_rpc`` ends."""
    sampler = DistNeighborSampler(context(0, 1), partition(graph, owners_of(graph, 1), 0, 1), [2, 2], **options)
    pyg_dist.init_rpc(context(0, 1), "127.0.0.1", 1)
    sampler.init_sampler_instance()
    sampler.register_sampler_rpc()
    return sampler


def seeds_at(key: int) -> NodeSamplerInput:
    return NodeSamplerInput(input_id=torch.tensor([key]), node=torch.tensor([key]), time=None, input_type=None)


@pytest.mark.parametrize("kind", ["plain", "typed"])
def test_rows_of_other_partitions_are_looked_up_once_the_ranks_have_met(kind: str, tmp_path: Any) -> None:
    graph = plain_graph(np.random.default_rng(5)) if kind == "plain" else make_timed_graph(np.random.default_rng(3))
    node_type, edge_type = next(iter(graph.nodes)), list(graph.edges)[-1]
    nodes, edges = graph.nodes[node_type], graph.edges[edge_type]
    nodes.features["x"] = np.random.default_rng(4).random((nodes.num_nodes, 3))
    edges.features["edge_attr"] = np.random.default_rng(4).random((edges.num_edges, 2))
    tables = {True: nodes.features["x"], False: edges.features["edge_attr"]}
    types = {True: None, False: None} if kind == "plain" else {True: node_type, False: edge_type}
    index = {of: np.random.default_rng(6).integers(0, len(rows), 3 * len(rows)) for of, rows in tables.items()}
    port = free_port()
    pyg_dist.write_partitions(graph, tmp_path / "files", num_parts=2, method="hash")

    def work(rank: int) -> list[torch.Tensor]:
        features = pyg_dist.LocalFeatureStore.from_partition(tmp_path / "files", rank)
        data = features, pyg_dist.LocalGraphStore.from_partition(tmp_path / "files", rank)
        start = (node_type, torch.arange(3))
        loader = DistNeighborLoader(data, [1], "127.0.0.1", port, context(rank, 2), input_nodes=start, rpc_timeout=20)
        found = [
            features.lookup_features(torch.from_numpy(ids[part]), is_node_feat=of, input_type=types[of]).wait()
            for of, ids in index.items()
            for part in (slice(None), slice(5))
        ]
        loader.close()
        return found

    for found in all_well(on_ranks(2, work)):
        for of, (whole, some) in zip((True, False), (found[:2], found[2:]), strict=True):
            assert torch.equal(whole, torch.from_numpy(tables[of][index[of]]))
            assert torch.equal(some, whole[:5])


def test_a_wrong_edge_book_fails_the_future(graph: Graph) -> None:
    def work(sampler: Any) -> str:
        store = sampler.feature_store
        store.edge_feat_pb = (sampler.graph_store.edge_pb + 1) % 2
        with pytest.raises(IdRangeError, match="although edge_pb assigns it there") as caught:
            sampler._lookup_elsewhere(torch.tensor([0]), False, None).value()
        return str(caught.value)

    assert len(sampled(graph, work, num_parts=2)) == 2


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"time_attr": "time"}], ids=["joint", "trees", "times"])
def test_seeds_of_several_types_are_sampled_together(options: dict[str, Any], tmp_path: Any) -> None:
    """With all neighbours, the tree of each seed equals that of the seed alone."""
    graph = make_timed_graph(np.random.default_rng(3))
    seeds = {t: torch.tensor([3, 0, 5]) for t in list(graph.nodes)[:2]}
    times = {t: torch.tensor([9, 30, 4]) for t in seeds} if "time_attr" in options else None
    inputs = pyg_dist.DistEdgeHeteroSamplerInput(torch.arange(3), seeds, times, next(iter(graph.edges)))
    write_parts(graph, tmp_path / "whole", num_parts=1, time_attr=options.get("time_attr"))
    with DatasetSampler(tmp_path / "whole", [-1, -1], **options) as whole:
        alone = [
            whole.sample_from_nodes(NodeSamplerInput(None, keys[i : i + 1], times and times[t][i : i + 1], t))
            for t, keys in seeds.items()
            for i in range(len(keys))
        ]

    def nodes_of(out: Any, tree: int | None = None) -> set[tuple[str, int]]:
        return {
            (t, int(key))
            for t, keys in out.node.items()
            for row, key in enumerate(keys)
            if tree is None or int(out.batch[t][row]) == tree
        }

    for out in sampled(graph, lambda sampler: asyncio.run(sampler.node_sample(inputs)), num_parts=2, **options):
        assert all(torch.equal(out.node[t][:3], keys) for t, keys in seeds.items())
        assert out.metadata[0].tolist() == [0, 1, 2]
        if not options:
            assert nodes_of(out) == set().union(*map(nodes_of, alone))
        else:
            assert [nodes_of(out, tree) for tree in range(6)] == list(map(nodes_of, alone))


def test_error_names_the_required_set_up_call(graph: Graph) -> None:
    sampler = DistNeighborSampler(context(0, 1), partition(graph, owners_of(graph, 1), 0, 1), [2])
    with pytest.raises(StateError, match="call init_rpc, init_sampler_instance and register_sampler_rpc"):
        _ = sampler.store
    with pytest.raises(StateError, match="call init_sampler_instance before"):
        sampler.register_sampler_rpc()
    sampler.init_sampler_instance()
    pyg_dist.shutdown_rpc()
    with pytest.raises(StateError, match="call init_rpc first"):
        sampler.register_sampler_rpc()
    with pytest.raises(StateError, match="call init_rpc first"):
        pyg_dist.global_barrier()
    pyg_dist.init_rpc(context(0, 1), "127.0.0.1", 1)
    sampler.register_sampler_rpc()
    with pytest.raises(SettingsError, match="links go to edge_sample"):
        asyncio.run(sampler.node_sample(3))  # type: ignore[arg-type]
    pyg_dist.shutdown_rpc("dist-test-0")


class OwnSetUp(DistNeighborLoader):
    """A sampler whose ``worker_init_fn`` is overridden, as in users' scripts."""

    def worker_init_fn(self, worker_id: int) -> None:
        num_processes = self.num_workers if self.num_workers > 0 else 1
        current = pyg_dist.DistContext(
            world_size=self.current_ctx.world_size * num_processes,
            rank=self.current_ctx.rank * num_processes + worker_id,
            global_world_size=self.current_ctx.world_size * num_processes,
            global_rank=self.current_ctx.rank * num_processes + worker_id,
            group_name="mp_sampling_worker",
        )
        pyg_dist.init_rpc(
            current_ctx=current, master_addr=self.master_addr, master_port=self.master_port,
            num_rpc_threads=self.num_rpc_threads, rpc_timeout=self.rpc_timeout,
        )  # fmt: skip
        assert self.dist_sampler is not None
        self.dist_sampler.init_sampler_instance()
        self.dist_sampler.register_sampler_rpc()
        pyg_dist.global_barrier(timeout=10)


def test_a_custom_worker_init_fn_runs(graph: Graph) -> None:
    port, owners = free_port(), owners_of(graph, 2)

    def work(rank: int) -> int:
        data = partition(graph, owners, rank, 2)
        loader = OwnSetUp(data, [2], "127.0.0.1", port, context(rank, 2), num_workers=2, rpc_timeout=20)
        num_batches = len(list(loader))
        loader.close()
        return num_batches

    assert sum(all_well(on_ranks(2, work))) == 40


class FailsLate(OwnSetUp):
    """A sampler that fails after its set-up."""

    def worker_init_fn(self, worker_id: int) -> None:
        super().worker_init_fn(worker_id)
        if self.current_ctx.rank == 1:
            raise OSError("no room for logs")
        pyg_dist.global_barrier()


@pytest.mark.parametrize(("loader_class", "error"), [(OwnSetUp, SchemaError), (FailsLate, OSError)])
def test_an_error_in_a_custom_worker_init_fn_reaches_all_ranks(
    graph: Graph, loader_class: Any, error: type[Exception]
) -> None:
    port, owners, members = free_port(), owners_of(graph, 2), list(rpc._MEMBERS)

    def work(rank: int) -> Any:
        data = partition(graph, owners, rank, 2)
        if rank == 1 and loader_class is OwnSetUp:
            data[0].put_tensor(torch.zeros(3), group_name=None, attr_name="x")
        return loader_class(data, [2], "127.0.0.1", port, context(rank, 2), rpc_timeout=20)

    start = time.monotonic()
    told, own = on_ranks(2, work)
    assert time.monotonic() - start < 10
    assert isinstance(own, error)
    assert isinstance(told, StoreUnavailable)
    assert f"{error.__name__}: {own}" in str(told)
    assert members == rpc._MEMBERS, "who failed has left"


@pytest.mark.skipif(not PAGES, reason="the page of PyG's distributed training is not here")
def test_the_set_up_of_the_page_runs_with_the_import_changed(graph: Graph) -> None:
    text = PAGES[0].read_text()
    blocks = [textwrap.dedent(block) for block in re.findall(r"code-block:: python\n\n((?:[ ].*\n|\n)+)", text)]
    (block,) = [block for block in blocks if block.startswith("def worker_init_fn")]
    names: dict[str, Any] = {name: getattr(pyg_dist, name) for name in pyg_dist.__all__}
    names |= {"atexit": atexit, "logging": logging}
    exec(block, names)
    loader_class = type("PageLoader", (DistNeighborLoader,), {"worker_init_fn": names["worker_init_fn"]})
    port, owners = free_port(), owners_of(graph, 2)

    def work(rank: int) -> int:
        data = partition(graph, owners, rank, 2)
        loader = loader_class(data, [2], "127.0.0.1", port, context(rank, 2), rpc_timeout=20)
        num_batches = len(list(loader))
        pyg_dist.shutdown_rpc(loader.current_ctx_worker.worker_name)
        return num_batches

    try:
        assert sum(all_well(on_ranks(2, work))) == 40
    finally:
        atexit.unregister(pyg_dist.shutdown_rpc)
