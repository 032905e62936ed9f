"""Tests of batches that threads sample ahead: order, an error per batch, and servers without room."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import StateError, StoreTimeout
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.ahead import GROUP, SamplingAhead
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.transport.calls import CALL_BYTES
from tests.load.graphs import flat


class Sampler:
    """Samples a batch as its number, and fails at some."""

    def __init__(self, *failing: int) -> None:
        self.groups: list[range] = []
        self._failing = failing

    def __call__(self, steps: range) -> list[int | BaseException]:
        self.groups.append(steps)
        return [KeyError(step) if step in self._failing else step for step in steps]


def ahead(num_ahead: int = 16, stop: int = 50, first: int = 0, timeout_s: float = 20.0) -> SamplingAhead[int]:
    return SamplingAhead(next_step=first, stop=stop, num_ahead=num_ahead, timeout_s=timeout_s)


@pytest.mark.parametrize("num_ahead", [0, 1, 3, 16, 100])
@pytest.mark.parametrize("first", [0, 47])
def test_batches_are_sampled_once_in_order_within_the_look_ahead(num_ahead: int, first: int) -> None:
    desk, sampler = ahead(num_ahead, first=first), Sampler()
    for step in range(first, 50):
        assert desk.take(step, sampler) == step
        assert sampler.groups[-1].stop <= min(50, step + 1 + num_ahead)
    assert [step for group in sampler.groups for step in group] == list(range(first, 50))


def test_the_first_batch_waits_for_no_other_and_later_ones_come_in_groups() -> None:
    desk, sampler = ahead(), Sampler()
    desk.take(0, sampler)
    assert sampler.groups == [range(1)]
    for step in range(1, 30):
        desk.take(step, sampler)
    assert {len(group) for group in sampler.groups[-4:]} == {GROUP}
    assert sampler.groups[-1].stop > 29 + 16 - GROUP


def test_an_error_is_raised_when_its_batch_is_taken() -> None:
    desk, sampler = ahead(), Sampler(9)
    assert [desk.take(step, sampler) for step in range(9)] == list(range(9))
    with pytest.raises(KeyError, match="9"):
        desk.take(9, sampler)
    assert desk.take(10, sampler) == 10


def test_a_late_batch_does_not_delay_earlier_ones() -> None:
    """The late batch is left out; the thread that takes it samples it."""
    desk = SamplingAhead[int](next_step=0, stop=20, num_ahead=5, timeout_s=20.0, group=1)
    asked: list[tuple[int, int]] = []

    def take(own: int) -> int:
        def sample(steps: range) -> list[int | BaseException]:
            asked.append((own, steps[0]))
            return [] if steps[0] == 9 != own else list(steps)

        return desk.take(own, sample)

    assert [take(step) for step in range(20)] == list(range(20))
    assert [step for step, (_, one) in enumerate(asked) if one == 9] and [own for own, one in asked if one == 9][
        -1
    ] == 9
    assert sorted(one for _, one in asked) == sorted([*range(20), 9])


def test_a_waiting_thread_samples_a_batch_abandoned_by_another() -> None:
    desk, is_asked, may_leave = SamplingAhead[int](next_step=0, stop=2, num_ahead=1, timeout_s=20.0, group=1), *events()

    def leave(steps: range) -> list[int | BaseException]:
        if steps[0] == 1:
            is_asked.set()
            assert may_leave.wait(20)
            return []
        return [0]

    desk._num_taken = 1  # one batch ahead from the first on
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(desk.take, 0, leave)
        assert is_asked.wait(20)
        second = pool.submit(desk.take, 1, list)
        may_leave.set()
        assert (first.result(20), second.result(20)) == (0, 1)


def events() -> tuple[threading.Event, threading.Event]:
    return threading.Event(), threading.Event()


def test_threads_take_all_batches_between_them() -> None:
    desk, sampler = ahead(), Sampler()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda step: desk.take(step, sampler), range(50))) == list(range(50))
    assert sorted(step for group in sampler.groups for step in group) == list(range(50))


def test_waiters_wake_at_the_end_or_at_the_deadline() -> None:
    for ends, error in ((True, StateError), (False, StoreTimeout)):
        desk, may_go = ahead(num_ahead=0, timeout_s=20 if ends else 0.1), threading.Event()

        def hang(steps: range, may_go: threading.Event = may_go) -> list[int | BaseException]:
            may_go.wait(20)
            return list(steps)

        with ThreadPoolExecutor(2) as pool:
            working = pool.submit(desk.take, 0, hang)
            while desk.next_step == 0:
                time.sleep(0.001)
            waiting = pool.submit(desk.take, 0, hang)  # the batch of the other thread
            if ends:
                desk.end()
            with pytest.raises(error):
                waiting.result(10)
            may_go.set()
            if ends:
                with pytest.raises(StateError):
                    working.result(10)


def test_a_thread_that_is_interrupted_leaves_an_error_for_each_of_its_batches() -> None:
    desk = ahead()

    def interrupted(steps: range) -> list[int | BaseException]:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            desk.take(0, interrupted)


NUM_HUBS, PER_BATCH, NUM_BATCHES = 100, 1000, 8
ROOM_BYTES = 10_000
"""Bytes for requests: room for one batch (4 bytes for each of 1100 nodes), but not for three."""


def make_hubs_graph(rng: np.random.Generator) -> Graph:
    """Graph in which all nodes but the hubs have three edges from hubs: a batch finds few nodes more."""
    others = np.arange(NUM_HUBS, NUM_HUBS + PER_BATCH * NUM_BATCHES)
    num_nodes, num_edges = NUM_HUBS + len(others), 3 * len(others)
    x = rng.standard_normal((num_nodes, 10)).astype(np.float32)
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes, features={"x": x})},
        edges={EDGE: EdgeTable(src_keys=rng.integers(0, NUM_HUBS, num_edges), dst_keys=np.tile(others, 3))},
        splits={NODE: {"train": others}},
        edge_splits={EDGE: {"train": np.arange(len(others))}},
    ).check()


LOADERS: dict[str, tuple[Callable[..., Any], Any]] = {
    "seeds that are looked up": (NeighborLoader, "train"),
    "a hop": (LinkNeighborLoader, (EDGE, "train")),
}


@pytest.mark.parametrize("refused", LOADERS)
def test_batches_are_sampled_singly_if_a_server_is_busy(
    rng: np.random.Generator, tmp_path: Path, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    """A busy server has memory for the requests of one batch, but not for those of several."""
    folder = tmp_path / "parts"
    write_parts(make_hubs_graph(rng), folder, num_parts=2, method="hash", links=[EDGE])
    make_loader, starts = LOADERS[refused]
    options = {"batch_size": PER_BATCH, "shuffle": True, "collate": "numpy", "edge_keys": False}
    with make_loader(folder, [3, 2], starts, **options) as near:
        wanted = [flat(batch) for batch in near]
    settings = StoreSettings(prefer_local=False, timeout_s=2.0, cache_bytes=1 << 20)
    with (
        LocalStore(open_dataset(folder)) as store, StoreServer(store) as server,
        make_loader(server.location, [3, 2], starts, store_settings=settings, num_threads=1, **options) as loader,
        caplog.at_level(logging.DEBUG, logger="hopstream.load.batch"),
    ):  # fmt: skip
        account = server.listener.account
        taken_bytes = account.limit - CALL_BYTES - ROOM_BYTES
        account.add(taken_bytes)
        found = [flat(batch) for batch in loader]
        account.add(-taken_bytes)
    assert found == wanted and len(found) == NUM_BATCHES
    told = [record for record in caplog.records if "a server has no room for all" in record.message]
    assert [record.args for record in told] == [(range(1, 4),), (range(4, 8),)], "the groups of these batches"
    assert all(record.exc_info is not None and "ServerBusy" in str(record.exc_info[0]) for record in told)
