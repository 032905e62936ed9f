"""Checks that ranks find each other, exchange values, and name the cause if they do not."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from hopstream.compat.pyg import rank_group
from hopstream.compat.pyg.rank_group import Group, Membership, _is_silent
from hopstream.errors import SettingsError, StoreUnavailable
from hopstream.transport.location import Location
from tests.ports import free_port


@pytest.fixture
def port() -> int:
    return free_port()


def member(port: int, rank: int, world_size: int = 2, timeout_s: float = 10.0) -> Membership:
    return Membership(
        group="g", rank=rank, world_size=world_size, master_addr="127.0.0.1", master_port=port, timeout_s=timeout_s
    )


def on_ranks(num: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(num) as pool:
        futures = [pool.submit(work, rank) for rank in range(num)]
    return [future.exception() or future.result() for future in futures]


def test_all_ranks_get_the_values_of_all_in_their_order(port: int) -> None:
    def work(rank: int) -> list[Any]:
        group = Group(member(port, rank, 3))
        found = [group.gather({"rank": rank, "round": number}, "for values") for number in range(3)]
        assert group.leave([]) == []
        return found

    wanted = [[{"rank": rank, "round": number} for rank in range(3)] for number in range(3)]
    assert on_ranks(3, work) == [wanted] * 3
    assert _is_silent(Location("127.0.0.1", port), time.monotonic() + 10)


def test_rank_zero_may_come_last(port: int) -> None:
    def work(rank: int) -> Any:
        if rank == 0:
            time.sleep(0.4)  # rank 1 finds no listener and tries again
        group = Group(member(port, rank))
        try:
            return group.gather(rank, "for values")
        finally:
            group.leave([])

    assert on_ranks(2, work) == [[0, 1]] * 2


def test_lost_ranks_are_not_waited_for(port: int) -> None:
    def work(rank: int) -> Any:
        group = Group(member(port, rank))
        group.gather(None, "to begin")
        if rank == 1:
            group.close()
            return []
        return group.leave(["tcp://127.0.0.1:1", "tcp://127.0.0.1:1"])

    start = time.monotonic()
    assert on_ranks(2, work) == [[1], []]
    assert time.monotonic() - start < 6


def met(port: int, world_size: int = 2) -> list[Group]:
    """Groups of all ranks, which have met."""
    groups = [Group(member(port, rank, world_size)) for rank in range(world_size)]
    on_ranks(world_size, lambda rank: groups[rank].gather(None, "to begin"))
    return groups


@pytest.mark.parametrize(("world_size", "words"), [(3, "world_size 3, but rank 0 has 2"), (2, "restart all")])
def test_a_stranger_is_refused_without_disturbing_the_group(
    port: int, monkeypatch: pytest.MonkeyPatch, world_size: int, words: str
) -> None:
    groups = met(port)
    monkeypatch.setattr(rank_group, "own_process", lambda: "another")
    stranger = Group(member(port, 1, world_size))
    with pytest.raises(SettingsError, match=words):
        stranger.gather(None, "to begin")
    stranger.fail("I was refused")
    stranger.close()
    left = []

    def work(rank: int) -> Any:
        found = groups[rank].gather(rank, "for values")
        if rank == 1:
            time.sleep(0.2)
            assert not left, "rank 0 left while rank 1 was there"
        assert groups[rank].leave([]) == []
        left.append(rank)
        return found

    assert on_ranks(2, work) == [[0, 1]] * 2


def test_leaving_ranks_get_the_error_of_a_failed_rank(port: int) -> None:
    groups = met(port)
    groups[1].fail("the disk is full")
    with pytest.raises(StoreUnavailable, match="rank 0 waited to leave: rank 1 gave up: the disk is full"):
        groups[0].leave([])
    for group in groups:
        group.close()


def test_rank_zero_stays_until_present_ranks_know_the_failure(port: int) -> None:
    groups = met(port, 3)
    groups[0].fail("the disk is full")

    def work(rank: int) -> str:
        if rank:
            time.sleep(0.3 * rank)
            assert not closed
            return groups[rank].failure()
        groups[0].close()
        closed.append(time.monotonic())
        return ""

    closed, start = list[float](), time.monotonic()
    assert on_ranks(3, work) == ["", *["rank 0 gave up: the disk is full"] * 2]
    assert closed[0] - start < 2
    for group in groups:
        group.close()


@pytest.mark.parametrize("knows", [True, False])
def test_rank_zero_does_not_stay_for_long(port: int, monkeypatch: pytest.MonkeyPatch, *, knows: bool) -> None:
    """Rank 0 does not wait for ranks that know of the failure."""
    stays_s = 5.0 if knows else 0.5
    monkeypatch.setattr(rank_group, "LINGER_S", stays_s)
    groups = met(port)
    start = time.monotonic()  # rank 0 counts from when it learns of the failure, before its own call to fail returns
    groups[1 if knows else 0].fail("the disk is full")
    groups[0].close()
    took = time.monotonic() - start
    assert took < stays_s if knows else stays_s <= took < 3
    assert groups[1].failure() == ("rank 1 gave up: the disk is full" if knows else "")
    groups[1].close()


def test_all_threads_of_a_rank_know_the_failure_after_rank_zero_has_left(port: int) -> None:
    groups = met(port)
    groups[0].fail("the disk is full")
    with ThreadPoolExecutor(8) as threads:
        closing = threads.submit(groups[0].close)
        known = list(threads.map(lambda _: groups[1].failure(), range(200)))
        closing.result()
    assert {*known, groups[1].failure()} == {"rank 0 gave up: the disk is full"}
    groups[1].close()


def test_rank_zero_stays_for_the_failed_group_only(port: int) -> None:
    """Rank 0 waits for the group that failed, while another group uses its address and leaves at once."""
    groups = met(port)
    others = [Group(replace(member(port, rank), group="h")) for rank in range(2)]
    assert on_ranks(2, lambda rank: others[rank].gather(rank, "for values")) == [[0, 1]] * 2
    groups[0].fail("the disk is full")
    start = time.monotonic()
    others[0].close()
    assert time.monotonic() - start < 2
    others[0] = Group(replace(member(port, 0), group="h"))  # the address stays in use
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(groups[0].close)
        time.sleep(0.3)
        assert not closing.done()
        assert groups[1].failure() == "rank 0 gave up: the disk is full"
        closing.result(timeout=2)
    for group in (groups[1], *others):
        group.close()


def test_a_new_group_can_form_after_a_failed_one(port: int) -> None:
    """Rank 0 still waits for the group that failed."""
    groups = met(port)
    groups[0].fail("the disk is full")
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(groups[0].close)
        time.sleep(0.1)
        others = [Group(replace(member(port, rank), group="h")) for rank in range(2)]
        assert groups[1].failure() == "rank 0 gave up: the disk is full"
        closing.result()
    assert on_ranks(2, lambda rank: others[rank].gather(rank, "for values")) == [[0, 1]] * 2
    for group in (groups[1], *others):
        group.close()
    assert _is_silent(Location("127.0.0.1", port), time.monotonic() + 10)


def test_ranks_leave_immediately_after_rank_zero_left(port: int) -> None:
    groups = met(port)
    groups[0].close()
    start = time.monotonic()
    assert groups[1].leave([]) == []
    assert time.monotonic() - start < 5


def test_a_rank_that_answers_again_is_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, probed = met(port, 3), list[list[int]]()

    def seem(ranks: list[int], locations: list[str], ends: float) -> frozenset[int]:
        probed.append(ranks)
        return frozenset({1}) if len(probed) == 1 else frozenset()

    def work(rank: int) -> Any:
        if rank == 0:
            return groups[0].leave(["tcp://127.0.0.1:1"] * 3)
        while len(probed) < rank:  # rank 1 leaves when it seemed gone once, rank 2 when all were asked again
            time.sleep(0.01)
        return groups[rank].leave([])

    monkeypatch.setattr(rank_group, "PROBE_EVERY_S", 0.1)
    monkeypatch.setattr(rank_group, "_silent", seem)
    assert on_ranks(3, work) == [[], [], []]
    assert probed[0] == [1, 2]


def test_early_ranks_join_the_next_group(port: int) -> None:
    def next_member(rank: int) -> Membership:
        return Membership(
            group="next", rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port, timeout_s=10
        )

    def work(rank: int) -> Any:
        if rank == 0:
            time.sleep(0.3)  # rank 1 asks for the next group at the server of the last one
            last[0].close()
            time.sleep(0.2)
        group = Group(next_member(rank))
        found = group.gather(rank, "for values")
        group.leave([])
        return found

    last = met(port)
    last[1].close()
    assert on_ranks(2, work) == [[0, 1]] * 2


def test_groups_of_one_name_follow_each_other_and_may_be_open_at_once(port: int) -> None:
    """A rank that is ahead waits for rank 0 to open the next group; answers reach the right group."""

    def begin(rank: int) -> list[Group]:
        time.sleep(0.3 * (rank == 0))
        groups = []
        for number in range(3):
            groups.append(Group(member(port, rank)))
            assert groups[-1].gather([rank, number], "to begin") == [[0, number], [1, number]]
        return groups

    begun = on_ranks(2, begin)
    for number in (1, 2, 0):
        found = on_ranks(2, lambda rank, number=number: begun[rank][number].gather(rank + number, "for values"))
        assert found == [[number, number + 1]] * 2
        assert on_ranks(2, lambda rank, number=number: begun[rank][number].leave([])) == [[], []]


def test_groups_of_different_sizes_do_not_mix(port: int) -> None:
    """Groups of two and of three ranks share a name; the first one is still open when the others come."""
    groups = met(port)

    def work(rank: int) -> Any:
        time.sleep(0.3 * (rank == 0))
        group = Group(member(port, rank, 3))
        found = group.gather(rank, "for values")
        group.leave([])
        return found

    def come_late(rank: int) -> Any:
        time.sleep(0.6 * (rank == 2))  # before rank 0 opens the next group, the last group would refuse it
        return work(rank)

    assert on_ranks(3, come_late) == [[0, 1, 2]] * 3
    on_ranks(2, lambda rank: groups[rank].leave([]))


def test_a_forked_process_has_its_own_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    own = rank_group.own_process()
    assert own == rank_group.own_process()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert own != rank_group.own_process()


def stored_keys(group: Group) -> set[str]:
    """The keys of a group's values that rank 0 holds, of 30 rounds."""
    names = [f"{number}/{kind}" for number in range(1, 31) for kind in ("values", "num", "heard")]
    return {name for name in names if group._calls.call("check", [f"{group._prefix}/{name}"])}


def test_values_of_finished_rounds_are_dropped(port: int) -> None:
    groups = met(port)

    def work(rank: int) -> None:
        for number in range(20):
            assert groups[rank].gather(number, "at the barrier") == [number] * 2

    on_ranks(2, work)
    assert stored_keys(groups[0]) == {"21/values", "21/num", "21/heard"}
    on_ranks(2, lambda rank: groups[rank].leave([]))


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_stale_rank_takes_no_place_in_the_next_group(port: int, is_kept: bool) -> None:
    """Rank 0 may go on to host for another group, or start again at the same port."""
    others = [Group(replace(member(port, 0), group="kept"))] if is_kept else []
    groups = met(port)
    groups[0].close()
    first = Group(member(port, 0))
    start = time.monotonic()
    words = "rank 1 waited for more: rank 0 has left the group 'g'" if is_kept else None
    with pytest.raises(StoreUnavailable, match=words):
        groups[1].gather(None, "for more")
    assert groups[1].failure() == ""
    assert groups[1].leave([]) == []
    assert time.monotonic() - start < 5
    second = Group(member(port, 1))
    assert on_ranks(2, lambda rank: (first, second)[rank].gather(rank, "to begin")) == [[0, 1]] * 2
    for group in (first, second, *others):
        group.close()


@pytest.fixture
def full() -> Iterator[Location]:
    """A listener with a full queue: it drops requests for connections, like a lossy network."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        time.sleep(0.05)
        yield Location(*listener.getsockname())


def test_a_host_that_drops_packets_times_out(full: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.monotonic()
    assert not _is_silent(full, start + 0.3)
    assert time.monotonic() - start < 2
    monkeypatch.setattr(rank_group, "PROBE_S", 0.1)
    assert _is_silent(full, time.monotonic() + 30)


def test_a_silent_rank_zero_does_not_block_ranks_for_long(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is cut off: the store's own calls would wait for ever."""
    monkeypatch.setattr(rank_group, "CALL_S", 0.2)
    monkeypatch.setattr(rank_group, "TELL_S", 0.2)
    groups = met(port)
    held = threading.Event()
    groups[1]._calls._asked.put(("open", (), SimpleNamespace(set_exception=lambda _: held.wait(10))))
    start = time.monotonic()
    assert groups[1].failure() == ""
    with pytest.raises(StoreUnavailable, match="rank 0 is gone"):
        groups[1].gather(None, "for more")
    groups[1].close()
    assert time.monotonic() - start < 2
    held.set()
    groups[0].close()


def test_groups_share_the_port_of_the_process_group_that_rank_zero_hosts(port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, multi_tenant=True)
    for group in met(port):
        group.close()
    store.set("still", "there")
    assert store.get("still") == b"there"
