"""Tests of memory for larger frames, and of the delays for addresses that break rules often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from hopstream.transport import limits
from hopstream.transport.calls import CALL_BYTES, Call, Peer
from hopstream.transport.limits import DELAY_S, MAX_ADDRESSES, MAX_DELAY_S, Account, Misdeeds
from hopstream.transport.messages import Frame


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that tests set."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.mark.usefixtures("clock")
def test_a_delay_begins_after_the_free_misdeeds_and_doubles_up_to_a_bound() -> None:
    misdeeds = Misdeeds(3, 60.0)
    delays = []
    for _ in range(10):
        misdeeds.add("here", 1)
        delays.append(misdeeds.delay_s("here"))
    assert delays[:3] == [0.0] * 3
    assert delays[3:8] == [DELAY_S * 2**n for n in range(5)]
    assert set(delays[7:]) == {MAX_DELAY_S}
    assert misdeeds.delay_s("elsewhere") == 0.0


def test_misdeeds_are_forgiven_one_by_one_within_a_bounded_time(clock: SimpleNamespace) -> None:
    misdeeds = Misdeeds(100, 10.0)
    misdeeds.add("here", 102)
    assert misdeeds.delay_s("here") == 2 * DELAY_S
    clock.now += 0.1
    assert misdeeds.delay_s("here") == DELAY_S
    clock.now += 0.1
    assert misdeeds.delay_s("here") == 0.0
    misdeeds.add("here", 1_000_000)
    clock.now += 19.0
    assert misdeeds.delay_s("here") == MAX_DELAY_S
    clock.now += 1.0
    assert misdeeds.delay_s("here") == 0.0


def test_a_steady_few_are_never_delayed(clock: SimpleNamespace) -> None:
    misdeeds = Misdeeds(100, 10.0)
    for _ in range(1000):
        misdeeds.add("here", 1)
        clock.now += 0.1
        assert misdeeds.delay_s("here") == 0.0


@pytest.mark.usefixtures("clock")
def test_the_number_of_remembered_addresses_is_limited() -> None:
    misdeeds = Misdeeds(1, 60.0)
    misdeeds.add("first", 3)
    for number in range(MAX_ADDRESSES - 1):
        misdeeds.add(str(number), 3)
    assert misdeeds.delay_s("first") > 0
    misdeeds.add("0", 1)
    misdeeds.add("one more", 3)
    assert misdeeds.delay_s("first") == 0.0
    assert misdeeds.delay_s("0") > 0


def test_room_for_larger_frames_is_an_eighth_of_the_memory() -> None:
    account = Account(64 << 20)
    assert account.begin(100 + CALL_BYTES)
    call = Call(cast(Peer, SimpleNamespace(identity=None)), 1, Frame({}), 0.0, 100 + CALL_BYTES, account)
    assert not call.reserve_spare(8 << 20)  # with the request, 100 bytes too many
    assert account.taken == 100 + CALL_BYTES
    assert call.reserve_spare(7 << 20)
    assert account.taken == call._num_bytes == 100 + (7 << 20)
    call.reserve(6 << 20)
    assert account.taken == call._num_bytes == 100 + (7 << 20)
    account.add(1 << 20)
    assert not call.reserve_spare(1)  # others take the rest
