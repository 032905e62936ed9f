"""Do ranks find each other, and say why when they do not?"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hopstream.errors import SettingsError, StoreTimeout, StoreUnavailable
from hopstream.store.rendezvous import Group, Membership, is_listening


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    assert not is_listening(f"grpc://127.0.0.1:{port}")


def test_rank_zero_may_come_last(port: int) -> None:
    def work(rank: int) -> Any:
        if rank == 0:
            time.sleep(0.4)  # rank 1 finds nobody there and tries again
        group = Group(member(port, rank))
        try:
            return group.gather(rank, "for values")
        finally:
            group.leave([])

    assert on_ranks(2, work) == [[0, 1]] * 2


def test_two_processes_of_one_rank_are_refused_on_every_rank(port: int) -> None:
    ranks = [0, 1, 1]

    def work(number: int) -> Any:
        group = Group(member(port, ranks[number], 3))
        try:
            return group.gather(number, "for values")
        finally:
            if ranks[number]:  # rank 0 listens until the others have heard
                group.close()

    errors = on_ranks(3, work)
    assert all("two processes say that they are rank 1 of 3" in str(error) for error in errors), errors
    assert any(isinstance(error, SettingsError) for error in errors)
    assert isinstance(errors[0], StoreUnavailable)


def test_a_rank_that_gives_up_is_heard_at_once(port: int) -> None:
    def work(rank: int) -> Any:
        group = Group(member(port, rank))
        try:
            if rank == 1:
                group.gather(None, "to begin")
                group.fail("the disk is full")
                return None
            group.gather(None, "to begin")
            return group.gather(None, "for values")
        finally:
            group.close()

    start = time.monotonic()
    error = on_ranks(2, work)[0]
    assert time.monotonic() - start < 5
    assert isinstance(error, StoreUnavailable)
    assert "rank 0 waited for values: rank 1 gave up: the disk is full" in str(error)


def test_who_waits_in_vain_is_told_who_is_missing(port: int) -> None:
    group = Group(member(port, 0, 2, timeout_s=0.3))
    with pytest.raises(StoreTimeout, match=r"rank 0 of 2 waited 0.3 s for values; rank 1 did not come to grpc://127"):
        group.gather(None, "for values")
    group.close()


def test_a_rank_that_is_gone_is_not_waited_for(port: int) -> None:
    def work(rank: int) -> Any:
        group = Group(member(port, rank))
        group.gather(None, "to begin")
        if rank == 1:
            group.close()
            return []
        return group.leave(["grpc://127.0.0.1:1", "grpc://127.0.0.1:1"])

    start = time.monotonic()
    assert on_ranks(2, work) == [[1], []]
    assert time.monotonic() - start < 6


@pytest.mark.parametrize("change", [{"rank": 2}, {"rank": -1}, {"world_size": 0}, {"master_port": 0}, {"timeout_s": 0}])
def test_numbers_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    given = {
        "group": "g",
        "rank": 0,
        "world_size": 2,
        "master_addr": "127.0.0.1",
        "master_port": 1234,
        "timeout_s": 1.0,
    }
    with pytest.raises(SettingsError):
        Membership(**{**given, **change})


def test_who_comes_too_late_is_refused_and_harms_nobody(port: int) -> None:
    groups: list[Group] = [Group(member(port, rank)) for rank in range(2)]
    try:
        assert on_ranks(2, lambda rank: groups[rank].gather(rank, "for values")) == [[0, 1]] * 2
        for late, message in ((member(port, 1), "two processes say"), (member(port, 1, 3), "world_size is 3")):
            stray = Group(late)
            with pytest.raises(SettingsError, match=message):
                stray.gather(None, "for values")
            stray.fail("nobody asked")
            stray.close()
        assert on_ranks(2, lambda rank: groups[rank].gather(rank + 5, "for more")) == [[5, 6]] * 2
        assert on_ranks(2, lambda rank: groups[rank].leave([])) == [[], []]
    finally:
        for group in groups:
            group.close()
