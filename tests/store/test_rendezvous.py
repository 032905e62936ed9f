"""Do ranks find each other, and say why when they do not?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hopstream.errors import SettingsError, StoreTimeout, StoreUnavailable
from hopstream.store import rendezvous, rendezvous_server
from hopstream.store.rendezvous import Group, Membership, is_silent
from hopstream.store.rendezvous_server import _HOSTED, MAX_LEFT, _standing
from hopstream.store.security import ServerSecurity
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
    assert is_silent(f"grpc://127.0.0.1:{port}", time.monotonic() + 10)


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


@pytest.fixture
def threads_are_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "own_process", lambda: f"{threading.get_ident()}")


@pytest.mark.usefixtures("threads_are_processes")
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


@pytest.mark.parametrize(
    ("name", "address", "of_rank_0", "of_rank_1"),
    [
        ("node0", "127.0.1.1", "rank 0 master_addr 'node0' is 127.0.1.1, a loopback", "rank 1 master_addr 'node0' is"),
        ("node0.lan", "192.0.2.1", "", "rank 0 knows its name 'node0.lan' as a loopback address such as 127.0.1.1"),
        ("localhost", "127.0.0.1", "", ""),
        ("127.0.0.1", "127.0.0.1", "", ""),
        ("::1", "::1", "", ""),
    ],
)
def test_a_name_that_leads_to_the_own_machine_alone_is_said(
    port: int, monkeypatch: pytest.MonkeyPatch, name: str, address: str, of_rank_0: str, of_rank_1: str
) -> None:
    """Debian's /etc/hosts has the machine's own name as 127.0.1.1, and other machines have it as what it is."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0))]
    monkeypatch.setattr(rendezvous.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(rendezvous, "host_rendezvous", lambda *_: None)
    monkeypatch.setattr(rendezvous, "leave_rendezvous", lambda *_: None)
    answers: list[Any] = [{"missing": [1]}, StoreUnavailable("nobody is there")]
    for rank, (error, words) in enumerate(((StoreTimeout, of_rank_0), (StoreUnavailable, of_rank_1))):
        group = Group(
            Membership(
                group="g", rank=rank, world_size=2, master_addr=name, master_port=port, timeout_s=0.05,
            ),
            security=ServerSecurity(is_insecure=True),
        )  # fmt: skip

        def ask(*_: Any, answer: Any = answers[rank]) -> Any:
            time.sleep(0.01)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(group, "_ask", ask)
        with pytest.raises(error) as caught:
            group.gather(None, "to begin")
        group.close()
        assert words in str(caught.value)
        assert ("loopback" in str(caught.value)) == bool(words), caught.value


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


def met(port: int, world_size: int = 2) -> list[Group]:
    """Groups of all ranks, which have met."""
    groups = [Group(member(port, rank, world_size)) for rank in range(world_size)]
    on_ranks(world_size, lambda rank: groups[rank].gather(None, "to begin"))
    return groups


@pytest.mark.parametrize(("world_size", "words"), [(3, "world_size is 3; rank 0 said 2"), (2, "restart all")])
def test_a_stranger_is_refused_and_ranks_that_have_met_go_on(
    port: int, monkeypatch: pytest.MonkeyPatch, world_size: int, words: str
) -> None:
    groups = met(port)
    monkeypatch.setattr(rendezvous, "own_process", lambda: "another")
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


def test_who_waits_to_leave_hears_that_a_rank_gave_up(port: int) -> None:
    groups = met(port)
    groups[1].fail("the disk is full")
    with pytest.raises(StoreUnavailable, match="rank 0 waited to leave: rank 1 gave up: the disk is full"):
        groups[0].leave([])
    for group in groups:
        group.close()


def test_rank_zero_stays_until_those_who_are_there_know_who_gave_up(port: int) -> None:
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
    """Nor for those who know."""
    stays_s = 5.0 if knows else 0.5
    monkeypatch.setattr(rendezvous_server, "LINGER_S", stays_s)
    groups = met(port)
    start = time.monotonic()  # rank 0 counts from when it knows, which is before its own call to fail returns
    groups[1 if knows else 0].fail("the disk is full")
    groups[0].close()
    took = time.monotonic() - start
    assert took < stays_s if knows else stays_s <= took < 3
    assert groups[1].failure() == ""
    groups[1].close()


def test_rank_zero_stays_no_longer_than_some_seconds_from_when_it_knew(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_server, "LINGER_S", 1.0)
    groups = met(port)
    groups[0].fail("the disk is full")
    time.sleep(1.0)
    start = time.monotonic()
    groups[0].close()
    assert time.monotonic() - start < 1
    groups[1].close()


def test_rank_zero_stays_for_the_group_that_failed_alone(port: int) -> None:
    """Another one leaves at once, and the one that failed is stayed for though it is not the last at the address."""
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


def test_a_group_may_meet_where_another_one_failed(port: int) -> None:
    """Rank 0 still stays for the one that failed."""
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
    assert is_silent(f"grpc://127.0.0.1:{port}", time.monotonic() + 10)


def test_a_round_that_is_complete_is_answered_though_a_rank_gives_up_after_it(port: int) -> None:
    groups = met(port)
    groups[1].fail("the disk is full")
    (hosted,) = [one for where, one in _HOSTED.items() if where.endswith(f":{port}")]
    (room,) = hosted.server._rooms.values()
    call = SimpleNamespace(excused=frozenset())
    assert _standing(room, room.rounds["1"], call)["values"] == [None, None]
    assert "the disk is full" in _standing(room, {0: None}, call)["failure"]
    for group in groups:
        group.close()


def test_who_finds_that_rank_zero_has_left_leaves_too_and_at_once(port: int) -> None:
    groups = met(port)
    groups[0].close()
    start = time.monotonic()
    assert groups[1].leave([]) == []
    assert time.monotonic() - start < 5


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """A listener whose queue is full: what asks for a connection is dropped, as where packets get lost."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        time.sleep(0.05)
        yield listener


def test_a_rank_that_missed_one_probe_is_not_gone(full: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, found = rendezvous._probe, list[Any]()

    def then_drain(locations: Mapping[int, str], wait_s: float) -> tuple[set[int], set[int]]:
        found.append(probe(locations, wait_s))
        if len(found) == 1:
            full.accept()[0].close()
        return found[-1]

    monkeypatch.setattr(rendezvous, "_probe", then_drain)
    monkeypatch.setattr(rendezvous, "PROBE_S", 0.3)
    assert not is_silent(f"grpc://127.0.0.1:{full.getsockname()[1]}", time.monotonic() + 60)
    assert found == [(set(), set()), ({0}, set())]


def test_hosts_that_drop_packets_are_probed_at_once_and_until_the_deadline(
    full: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    locations = [f"grpc://127.0.0.1:{full.getsockname()[1]}"] * 20
    start = time.monotonic()
    assert rendezvous._silent(range(20), locations, start + 0.3) == frozenset()
    assert time.monotonic() - start < 2
    monkeypatch.setattr(rendezvous, "PROBE_S", 0.1)
    start = time.monotonic()
    assert rendezvous._silent(range(20), locations, start + 30) == frozenset(range(20))
    assert time.monotonic() - start < 2


def test_who_is_gone_is_found_also_when_the_process_ends() -> None:
    code = """
import atexit, time
from hopstream.store.rendezvous import is_silent
atexit.register(lambda: print(is_silent("grpc://127.0.0.1:1", time.monotonic() + 20)))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "True", told.stderr


def test_a_rank_that_seemed_gone_and_answers_again_is_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, probed = met(port, 3), list[list[int]]()

    def seem(ranks: list[int], locations: list[str], ends: float) -> frozenset[int]:
        probed.append(ranks)
        return frozenset({1}) if len(probed) == 1 else frozenset()

    def work(rank: int) -> Any:
        if rank == 0:
            return groups[0].leave(["grpc://127.0.0.1:1"] * 3)
        while len(probed) < rank:  # rank 1 leaves when it seemed gone once, rank 2 when all were asked again
            time.sleep(0.01)
        return groups[rank].leave([])

    monkeypatch.setattr(rendezvous, "TURN_S", 0.1)
    monkeypatch.setattr(rendezvous, "_silent", seem)
    assert on_ranks(3, work) == [[], [], []]
    assert probed[0] == [1, 2]


def test_who_comes_to_the_next_group_before_the_last_one_ends_meets_there(port: int) -> None:
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
    """Who is ahead waits for rank 0 to open the next one, and answers go to the group that is meant."""

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


def test_a_rank_of_more_ranks_takes_its_place_among_as_many(port: int) -> None:
    """Groups of two and of three ranks have one name; the one of two is not left yet when the others come."""
    groups = met(port)

    def work(rank: int) -> Any:
        time.sleep(0.3 * (rank == 0))
        group = Group(member(port, rank, 3))
        found = group.gather(rank, "for values")
        group.leave([])
        return found

    def come_late(rank: int) -> Any:
        time.sleep(0.6 * (rank == 2))  # before rank 0 opened the next group it would be refused by the last one
        return work(rank)

    assert on_ranks(3, come_late) == [[0, 1, 2]] * 3
    on_ranks(2, lambda rank: groups[rank].leave([]))


@pytest.mark.parametrize("is_kept", [True, False])
def test_who_is_left_behind_takes_no_place_in_the_next_group(port: int, is_kept: bool) -> None:
    """Its calls reach the next group's server, or the same one, when the last group is forgotten there."""
    others = [Group(replace(member(port, 0), group="kept"))] if is_kept else []
    groups = met(port)
    groups[0].close()
    for _ in range(MAX_LEFT if is_kept else 0):
        Group(member(port, 0)).close()
    first = Group(member(port, 0))
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"cannot reach rank 0 .* for more .*rank 0 has left the group 'g'"):
        groups[1].gather(None, "for more")
    assert groups[1].failure() == ""
    assert groups[1].leave([]) == []
    assert time.monotonic() - start < 5
    second = Group(member(port, 1))
    assert on_ranks(2, lambda rank: (first, second)[rank].gather(rank, "to begin")) == [[0, 1]] * 2
    for group in (first, second, *others):
        group.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_who_waited_in_vain_meets_those_who_come_later(port: int, rank: int) -> None:
    kept = Group(replace(member(port, 0), group="kept"))  # the address stays in use
    for _ in range(2):
        alone = Group(member(port, rank, timeout_s=0.2))
        with pytest.raises(StoreTimeout, match=f"rank {1 - rank} did not come"):
            alone.gather(rank, "for values")
        alone.close()
    for group in met(port):
        group.close()
    kept.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_is_another_one() -> None:
    code = """
import os
from hopstream.store.rendezvous import own_process
assert own_process() == own_process()
print(own_process(), flush=True)
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    print(own_process(), flush=True)
    os._exit(0)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    own, forked = told.stdout.split()
    assert own != forked


def test_values_of_rounds_that_all_have_left_behind_are_dropped(port: int) -> None:
    groups = met(port)

    def work(rank: int) -> None:
        for number in range(20):
            assert groups[rank].gather(number, "at the barrier") == [number] * 2

    on_ranks(2, work)
    (hosted,) = [one for where, one in _HOSTED.items() if where.endswith(f":{port}")]
    (room,) = hosted.server._rooms.values()
    assert list(room.rounds) == ["21"]
    on_ranks(2, lambda rank: groups[rank].leave([]))


def test_groups_that_rank_zero_did_not_open_take_no_memory(port: int) -> None:
    with_zero = Group(member(port, 0))
    other = Membership(
        group="of nobody", rank=1, world_size=2, master_addr="127.0.0.1", master_port=port, timeout_s=0.3
    )
    group = Group(other)
    with pytest.raises(StoreTimeout, match="rank 0 did not come"):
        group.gather(None, "to begin")
    (hosted,) = [one for where, one in _HOSTED.items() if where.endswith(f":{port}")]
    assert [room.group for room in hosted.server._rooms.values()] == ["g"]
    for one in (group, with_zero):
        one.close()


def test_groups_that_were_left_are_forgotten_though_another_is_open(port: int) -> None:
    kept = met(port)
    for number in range(2 * MAX_LEFT):

        def leave(rank: int, number: int = number) -> None:
            group = Group(replace(member(port, rank), group=f"g{number % (MAX_LEFT + 2)}"))  # names come again
            assert group.gather(rank, "to begin") == [0, 1]
            group.leave([])

        assert on_ranks(2, leave) == [None] * 2
    (hosted,) = [one for where, one in _HOSTED.items() if where.endswith(f":{port}")]
    assert len(hosted.server._rooms) == 1 + MAX_LEFT
    assert on_ranks(2, lambda rank: kept[rank].gather(rank, "for values")) == [[0, 1]] * 2
    on_ranks(2, lambda rank: kept[rank].leave([]))


def test_who_wants_a_token_is_not_served_without(port: int) -> None:
    """The groups of one port have one server."""
    group = Group(member(port, 0))
    with pytest.raises(SettingsError, match=r"listens at .* already, with another token, certificate"):
        Group(replace(member(port, 0), group="guarded"), security=ServerSecurity(token="a-token-of-its-own"))
    Group(replace(member(port, 0), group="as it is"), security=ServerSecurity()).close()
    group.close()


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


def test_who_comes_too_late_is_refused_and_harms_nobody(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[Group] = [Group(member(port, rank)) for rank in range(2)]
    try:
        assert on_ranks(2, lambda rank: groups[rank].gather(rank, "for values")) == [[0, 1]] * 2
        monkeypatch.setattr(rendezvous, "own_process", lambda: "another")
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
