"""Checks that each code block of PyG's page on distributed training runs, or has a known reason.

The page is not part of the project: the tests of its own text run where it lies beside the checkout. What its excerpts
name is compared with ours everywhere.
"""

from __future__ import annotations

import inspect
import queue
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.sampler import NodeSamplerInput

from hopstream.compat.pyg import DistContext, DistLoader, DistNeighborSampler
from tests.compat.pyg import test_dist_sampler, test_document_stores
from tests.compat.pyg.ranks import context, owners_of, partition
from tests.compat.pyg.test_dist_loaders import plain_graph
from tests.ports import free_port

PAGES = list((Path(__file__).parents[3].parent / "shared" / "seeds").glob("000_*.txt"))
needs_page = pytest.mark.skipif(not PAGES, reason="the page is not part of the project")
DDP_BLOCK, CHANNEL_BLOCK = "# Initialize DDP training process group.", "channel = torch.multiprocessing.Queue()"
STORES = test_document_stores.test_the_code_of_the_page_runs
RUN_BY = [
    ("# Load partition into graph:", test_document_stores.test_the_page_loads_partitions_of_the_partitioner),
    ("# Create a LocalGraphStore from homogeneous data:", STORES),
    ("# Create a LocalGraphStore from heterogeneous data:", STORES),
    ("# Create an instance of LocalGraphStore", STORES),
    ("async def get_node_features", STORES),
    (DDP_BLOCK, "test_the_training_group_of_the_page_is_made"),
    ("def worker_init_fn", test_dist_sampler.test_the_set_up_of_the_page_runs_with_the_import_changed),
    (CHANNEL_BLOCK, "test_the_channel_of_the_page_brings_outputs"),
]
"""Text that identifies a block, and the test that runs it."""
EXCERPTS: dict[str, tuple[str, list[str] | None]] = {
    "async def node_sample(": ("the loop alone: what it loops over is left out", ["inputs"]),
    "async def sample_one_hop(": (
        "the loop over partitions alone: its masks and replies are left out",
        ["srcs", "one_hop_num", "seed_time", "src_batch", "edge_type"],
    ),
    "def _sample_one_hop(": ("a private method around an operator of pyg-lib, with its inputs left out", None),
    "async def edge_sample(": (
        "the branches alone: what builds the seeds is left out",
        ["inputs", "sample_fn", "num_nodes", "disjoint", "node_time", "neg_sampling"],
    ),
}
"""Methods of PyG's sampler that the page shows in part, with ``# ...`` for the rest.

The values are the reason why an excerpt cannot run, and arguments that ours has too (None for private methods).
"""


def blocks() -> list[str]:
    """The page's code blocks, as they stand."""
    found = re.findall(r"code-block:: python\n\n((?:[ ].*\n|\n)+)", PAGES[0].read_text())
    return [textwrap.dedent(block) for block in found]


def block_with(text: str) -> str:
    (block,) = [block for block in blocks() if text in block]
    return block


@needs_page
def test_every_block_runs_in_a_test_or_is_an_excerpt() -> None:
    found = blocks()
    assert len(found) == 12
    marks = [mark for mark, _ in RUN_BY] + list(EXCERPTS)
    for block in found:
        held = [mark for mark in marks if mark in block]
        assert len(held) == 1, block
        marks.remove(held[0])
    assert marks == []
    for mark, test in RUN_BY:
        assert callable(globals()[test] if isinstance(test, str) else test), mark


@needs_page
@pytest.mark.parametrize("mark", EXCERPTS)
def test_excerpts_omit_code_and_match_the_documented_signature(mark: str) -> None:
    block = block_with(mark)
    assert "# ..." in block
    signature = block[block.index(mark) + len(mark) : block.index(") ->")]
    assert EXCERPTS[mark][1] in (None, re.findall(r"^ +(\w+):", signature, re.M))


@pytest.mark.parametrize("mark", [mark for mark, (_, names) in EXCERPTS.items() if names])
def test_methods_take_the_arguments_shown_in_excerpts(mark: str) -> None:
    method = getattr(DistNeighborSampler, mark.removeprefix("async def ").removesuffix("("))
    assert inspect.iscoroutinefunction(method)
    assert list(inspect.signature(method).parameters) == ["self", *(EXCERPTS[mark][1] or ())]


@needs_page
def test_the_training_group_of_the_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    current = DistContext(rank=0, global_rank=0, world_size=1, global_world_size=1, group_name="page")
    names = {"torch": torch, "current_ctx": current, "master_addr": "127.0.0.1", "ddp_port": free_port()}
    try:
        exec(block_with(DDP_BLOCK), names)
        assert torch.distributed.get_world_size() == 1
        rows = torch.arange(3)
        torch.distributed.all_reduce(rows)
        assert rows.tolist() == [0, 1, 2]
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def loader_with_sampler() -> Iterator[tuple[DistLoader, DistNeighborSampler]]:
    graph = plain_graph(np.random.default_rng(5))
    sampler = DistNeighborSampler(context(0, 1), partition(graph, owners_of(graph, 1), 0, 1), [-1], rng_seed=1)
    loader = DistLoader(context(0, 1), "127.0.0.1", 1, dist_sampler=sampler, rpc_timeout=10)
    try:
        yield loader, sampler
    finally:
        loader.close()


@needs_page
@pytest.mark.parametrize("async_sampling", [False, True])
def test_the_channel_of_the_page_brings_outputs(async_sampling: bool) -> None:
    seeds = NodeSamplerInput(input_id=None, node=torch.tensor([7]), time=None, input_type=None)
    with loader_with_sampler() as (loader, sampler):
        names: dict[str, Any] = {"torch": torch, "async_sampling": async_sampling, "self": loader}
        exec(block_with(CHANNEL_BLOCK), names)
        channel, take = names["channel"], names["transform_sampler_output"]
        assert [channel is None, take is None] == [not async_sampling] * 2
        wanted = sampler.sample_from_nodes(seeds)
        if channel is not None:
            loader.channel = sampler.channel = channel
            try:
                assert sampler.sample_from_nodes(seeds) is None
                assert torch.equal(take(None).node, wanted.node)
            finally:
                sampler.channel = loader.channel = None
                channel.close()
                channel.join_thread()
                resource_sharer.stop()  # the thread that hands tensors from process to process


def test_a_queue_of_the_process_is_a_channel_too() -> None:
    seeds = NodeSamplerInput(input_id=None, node=torch.tensor([7]), time=None, input_type=None)
    with loader_with_sampler() as (loader, sampler):
        wanted = sampler.sample_from_nodes(seeds)
        loader.channel = sampler.channel = queue.Queue()
        assert sampler.sample_from_nodes(seeds) is None
        assert torch.equal(loader.channel_get(None).node, wanted.node)
