"""Tests of how meetings begin and end: at exit, after errors, and with unequal numbers of meetings."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from hopstream.compat.pyg import rank_group, rpc
from hopstream.compat.pyg.rank_group import Group, Membership
from hopstream.compat.pyg.rpc import RpcMember, _cause_of, init_rpc, shutdown_rpc
from hopstream.errors import StoreTimeout, StoreUnavailable
from tests.compat.pyg.ranks import context
from tests.ports import free_port

SOON_S = 0.5


def begin(num: int) -> tuple[list[RpcMember], list[Group], list[Any]]:
    """Begin ``num`` meetings; return rank 0's members, rank 1's groups and the log of leaves.

    The log has a pair per meeting that rank 0 left: its number and whether rank 0 was to wait for rank 1.
    """
    port, left = free_port(), list[Any]()
    members, groups = [], []
    for number in range(num):
        other = Group(
            Membership(
                group="dist-test", rank=1, world_size=2, master_addr="127.0.0.1", master_port=port,
                timeout_s=10,
            )
        )  # fmt: skip
        with ThreadPoolExecutor(1) as pool:
            begun = pool.submit(other.gather, None, "to begin")
            one = init_rpc(context(0, 2), "127.0.0.1", port, rpc_timeout=10)
            begun.result()
        group = one.group
        assert group is not None
        group.membership = replace(group.membership, timeout_s=SOON_S)  # for leaving only: meetings begin more slowly

        def leave(waits: bool, group: Group = group, number: int = number) -> None:
            left.append((number, waits))
            if waits:
                group.leave([])

        one.closers.append(leave)
        members.append(one)
        groups.append(other)
    return members, groups, left


def test_all_members_leave_where_one_cannot() -> None:
    _, groups, left = begin(2)
    with pytest.raises(StoreTimeout, match="rank 1 did not come"):
        shutdown_rpc()
    assert left == [(1, True), (0, True)]
    for group in groups:
        group.close()


def test_members_wait_together_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_group, "LAST_S", 0.05)
    _, groups, left = begin(4)
    start = time.monotonic()
    rpc._close_all()
    assert time.monotonic() - start < 3.6 * SOON_S  # one after the other: 4 * SOON_S
    assert [number for number, _ in left] == [3, 2, 1, 0]
    for group in groups:
        group.close()


def meet(rank: int, port: int, rpc_timeout: float = 10.0, world_size: int = 2) -> None:
    init_rpc(context(rank, world_size), "127.0.0.1", port, rpc_timeout=rpc_timeout).close()


@pytest.mark.parametrize("alone", [0, 1])
def test_a_rank_that_timed_out_alone_joins_later_ranks(alone: int) -> None:
    port = free_port()
    for _ in range(2):
        with pytest.raises((StoreTimeout, StoreUnavailable), match=r"waited|cannot reach"):
            meet(alone, port, rpc_timeout=0.2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(meet, range(2), [port] * 2))


def test_restarted_processes_join_a_running_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All meetings use one port, at which another group stays; a thread counts as a process."""
    here, port = threading.local(), free_port()
    monkeypatch.setattr(rank_group, "own_process", lambda: getattr(here, "name", "stays"))
    kept = Group(Membership(group="kept", rank=0, world_size=2, master_addr="127.0.0.1", master_port=port))

    def come_and_go(number: int) -> None:
        here.name = f"comes {number}"
        meet(1, port, rpc_timeout=30)

    for number in range(3):
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(come_and_go, number)
            meet(0, port, rpc_timeout=30)
            other.result()
        with pytest.raises(StoreTimeout, match="rank 1 did not come"):
            meet(0, port, rpc_timeout=0.2)
    kept.close()


def test_groups_of_different_sizes_use_one_port_in_turn() -> None:
    port = free_port()
    for world_size in (1, 2, 3, 2, 1):
        with ThreadPoolExecutor(world_size) as pool:
            list(pool.map(lambda rank, size=world_size: meet(rank, port, world_size=size), range(world_size)))


def cause_of(end: Any) -> BaseException | None:
    """The error that is taken for the cause of a block's end, after an error in it."""
    try:
        try:
            raise KeyError("no such column")
        except KeyError:
            end()
    except BaseException as error:
        return _cause_of(error)
    return None


def fail() -> None:
    raise OSError("the disk is full")


@pytest.mark.parametrize(("code", "is_error"), [(1, True), ("in vain", True), (0, False), (None, False)])
def test_a_nonzero_exit_status_is_an_error(code: Any, is_error: bool) -> None:
    end = cause_of(lambda: sys.exit(code))
    assert isinstance(end, KeyError) if is_error else end is None


def test_the_cause_of_a_block_is_its_last_error() -> None:
    assert isinstance(cause_of(fail), OSError)
    assert isinstance(_cause_of(SystemExit(2)), SystemExit)
    assert _cause_of(GeneratorExit()) is None


@pytest.mark.parametrize("graceful", [True, False])
def test_shutdown_after_an_error_reports_it_without_waiting(graceful: bool) -> None:
    _, (group,), left = begin(1)
    with ThreadPoolExecutor(1) as pool:
        try:
            raise KeyError("no such column")
        except KeyError:
            ending = pool.submit(group.gather, None, "at the barrier")
            shutdown_rpc(graceful=graceful)
        with pytest.raises(StoreUnavailable, match="rank 0 gave up: KeyError: 'no such column'"):
            ending.result()
    assert left == [(0, False)]
    group.close()
