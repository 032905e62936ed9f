"""Tests that a link gives each thread its own answer, and never writes to abandoned arrays."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.arrays import Array
from hopstream.errors import FormatError, StoreTimeout
from hopstream.transport.link import Answer, Link, LinkGivenUp, LinkLost, Opening
from hopstream.transport.location import Location
from hopstream.transport.messages import (
    ANSWER,
    CANCEL,
    GOODBYE,
    PING,
    PONG,
    REQUEST,
    ArraySpec,
    Frame,
    Status,
    empty_arrays,
    encode_hello,
    encode_welcome,
)
from hopstream.transport.security import ClientSecurity
from tests.transport.desk import wait_until
from tests.transport.peer import Peer, message_bytes
from tests.transport.stub import Stub

LAST = Frame({"a": 1}, is_last=True)


class Kept:
    """Collect the frames of an answer, in given arrays or in new ones."""

    def __init__(self, *arrays: Array) -> None:
        self.frames: list[Frame] = []
        self._arrays = arrays
        self.is_placed = threading.Event()

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        self.is_placed.set()
        return self._arrays or empty_arrays(specs)

    def take(self, frame: Frame) -> None:
        self.frames.append(frame)


class Refusing(Kept):
    """A sink that refuses all frames."""

    def take(self, frame: Frame) -> None:
        raise FormatError("not this")


@contextmanager
def linked() -> Iterator[tuple[Link, Peer]]:
    """A link, and the server's end of it."""
    with Stub() as stub:
        with ThreadPoolExecutor(1) as pool:
            making = pool.submit(Link, stub.where, ClientSecurity(), time.monotonic() + 10)
            server = stub.accept()
            assert server.read(len(encode_hello(None))) == encode_hello(None)
            server.send(encode_welcome(Status.OK, "", 1 << 20, 64))
            link = making.result(10)
        with server:
            yield link, server
            link.close()
        assert link._stream.fileno() == -1


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def test_answers_out_of_order_reach_their_requests() -> None:
    with linked() as (link, server), ThreadPoolExecutor(8) as pool:
        sinks = [Kept() for _ in range(8)]
        answers = [link.start(Frame({"n": n}), sink, soon()) for n, sink in enumerate(sinks)]
        asked = [server.next() for _ in sinks]
        assert [(prefix.kind, frame.header) for prefix, frame in asked] == [(REQUEST, {"n": n}) for n in range(8)]
        waiting = [pool.submit(link.wait, answer, soon()) for answer in answers]
        for prefix, frame in asked[::-1]:
            server.send(message_bytes(ANSWER, prefix.number, Frame({"first": frame.header["n"]})))
        for prefix, _ in asked[::-1]:
            server.send(message_bytes(ANSWER, prefix.number, LAST))
        assert [one.result(10) for one in waiting] == [True] * 8
        assert [[frame.header for frame in sink.frames] for sink in sinks] == [
            [{"first": n}, {"a": 1}] for n in range(8)
        ]
        assert link.num_under_way == 0


def test_a_ping_is_answered() -> None:
    with linked() as (link, server), ThreadPoolExecutor(1) as pool:
        pinging = pool.submit(link.ping, soon())
        prefix, _ = server.next()
        assert prefix.kind == PING
        server.send(message_bytes(PONG, prefix.number))
        pinging.result(5)
        with pytest.raises(StoreTimeout):
            link.ping(soon(0.05))


def test_an_invalid_frame_fails_its_answer_and_cancels_the_rest() -> None:
    with linked() as (link, server):
        answer, other = link.start(Frame({}), Refusing(), soon()), link.start(Frame({}), sink := Kept(), soon())
        server.next(), server.next()
        server.send(message_bytes(ANSWER, answer.number, Frame({})))
        assert link.wait(answer, soon())
        assert isinstance(answer.error, FormatError)
        assert server.next()[0][:4] == (CANCEL, 0, 0, answer.number)
        server.send(message_bytes(ANSWER, answer.number, LAST) + message_bytes(ANSWER, other.number, LAST))
        assert link.wait(other, soon()) and other.error is None and len(sink.frames) == 1
        assert link.is_usable


@pytest.mark.parametrize(
    "data", [bytes(32), message_bytes(REQUEST, 1, LAST), message_bytes(CANCEL, 1), b"\x02\0\0\0" + b"\xff" * 28]
)
def test_invalid_data_ends_the_link(data: bytes) -> None:
    with linked() as (link, server):
        answer = link.start(Frame({}), Kept(), soon())
        server.send(data)
        assert link.wait(answer, soon())
        assert isinstance(answer.error, FormatError)
        assert not link.is_usable
        with pytest.raises(LinkLost):
            link.start(Frame({}), Kept(), soon())


def test_after_a_goodbye_answers_arrive_and_requests_are_refused() -> None:
    with linked() as (link, server):
        answer = link.start(Frame({}), Kept(), soon())
        server.send(message_bytes(GOODBYE, 0) + message_bytes(ANSWER, answer.number, LAST))
        assert link.wait(answer, soon()) and answer.error is None
        assert link.is_leaving and not link.is_usable


def test_an_idle_link_notices_that_its_server_left() -> None:
    for leave in (lambda server: server.send(message_bytes(GOODBYE, 0)), lambda server: server.close()):
        with linked() as (link, server):
            assert link.is_fresh(time.monotonic())
            leave(server)
            wait_until(lambda link=link: not link.is_fresh(time.monotonic() + 1), "it is told")


def test_a_complete_answer_survives_a_lost_link() -> None:
    with linked() as (link, server):
        answer = link.start(Frame({}), sink := Kept(), soon())
        server.send(message_bytes(ANSWER, answer.number, LAST) + message_bytes(PONG, 99)[:20])
        server.close()
        assert link.wait(answer, soon())
        assert answer.error is None and len(sink.frames) == 1


def test_a_lost_link_fails_all_open_requests() -> None:
    with linked() as (link, server), ThreadPoolExecutor(3) as pool:
        answers = [link.start(Frame({}), Kept(), soon()) for _ in range(3)]
        waiting = [pool.submit(link.wait, answer, soon()) for answer in answers]
        server.close()
        assert [one.result(5) for one in waiting] == [True] * 3
        assert all(isinstance(answer.error, LinkLost) for answer in answers)


def test_closing_wakes_waiters() -> None:
    with linked() as (link, _), ThreadPoolExecutor(3) as pool:
        answers = [link.start(Frame({}), Kept(), soon(60)) for _ in range(3)]
        waiting = [pool.submit(link.wait, answer, soon(60)) for answer in answers]
        wait_until(link._reading.locked, "a thread reads")
        started = time.monotonic()
        link.close()
        assert [one.result(5) for one in waiting] == [True] * 3
        assert time.monotonic() - started < 1


def begin_frame(server: Peer, answer: Answer, size: int) -> bytes:
    """Send the first half of a frame of zeros; return the other half."""
    data = message_bytes(ANSWER, answer.number, Frame({}, [np.zeros(size, np.uint8)], is_last=True))
    server.send(data[: len(data) // 2])
    return data[len(data) // 2 :]


def test_cancelling_mid_frame_ends_an_otherwise_unused_link() -> None:
    out = np.full(200_000, 7, np.uint8)
    with linked() as (link, server):
        answer = link.start(Frame({}), Kept(out), soon())
        rest = begin_frame(server, answer, len(out))
        assert not link.wait(answer, soon(0.2))
        link.cancel(answer)
        kept = out.copy()
        with pytest.raises((ConnectionError, BrokenPipeError)):
            for _ in range(50):
                server.send(rest)
                time.sleep(0.002)
        assert np.array_equal(out, kept)
        assert isinstance(link.lost, LinkGivenUp)


@pytest.mark.parametrize("size", [5_000, 200_000])
def test_cancelling_mid_frame_stops_writing_and_keeps_a_shared_link(
    size: int,
) -> None:
    out = np.full(size, 7, np.uint8)
    with linked() as (link, server), ThreadPoolExecutor(1) as pool:
        answer = link.start(Frame({}), sink := Kept(out), soon())
        other = link.start(Frame({}), kept := Kept(), soon())
        waiting = pool.submit(link.wait, other, soon())
        rest = begin_frame(server, answer, len(out))
        assert sink.is_placed.wait(5)
        started = time.monotonic()
        assert not link.wait(answer, soon(0.05))
        link.cancel(answer)
        assert time.monotonic() - started < 1
        out[:] = 7
        server.send(rest + message_bytes(ANSWER, other.number, Frame({"a": 1}, [np.arange(size)], is_last=True)))
        assert waiting.result(5) and other.error is None and link.is_usable
        assert kept.frames[0].arrays[0].tolist() == list(range(size))
        assert np.all(out == 7) and not sink.frames


class Slow(Kept):
    """A sink that writes slowly into the caller's array."""

    def __init__(self, out: Array) -> None:
        super().__init__()
        self._out = out
        self.is_taking = threading.Event()

    def take(self, frame: Frame) -> None:
        self.is_taking.set()
        time.sleep(0.1)
        self._out[:] = 7


def test_cancelling_waits_for_the_thread_that_takes_the_answer() -> None:
    out = np.zeros(8, np.uint8)
    with linked() as (link, server), ThreadPoolExecutor(1) as pool:
        other = link.start(Frame({}), Kept(), soon())
        waiting = pool.submit(link.wait, other, soon())
        wait_until(link._reading.locked, "a thread reads")
        answer = link.start(Frame({}), sink := Slow(out), soon())
        server.send(message_bytes(ANSWER, answer.number, LAST))
        assert sink.is_taking.wait(5)
        link.cancel(answer)
        out[:] = 1  # the caller uses its array for something else
        server.send(message_bytes(ANSWER, other.number, LAST))
        assert waiting.result(5) and link.is_usable
        assert np.all(out == 1)


def test_cancelling_in_the_taking_thread_does_not_wait() -> None:
    """As if the garbage collector ran in a sink."""
    with linked() as (link, server):
        sink = Kept()
        answer, other = link.start(Frame({}), sink, soon()), link.start(Frame({}), Kept(), soon())
        sink.take = lambda frame: link.cancel(answer)  # type: ignore[method-assign]
        server.send(message_bytes(ANSWER, answer.number, LAST) + message_bytes(ANSWER, other.number, LAST))
        started = time.monotonic()
        assert link.wait(other, soon()) and other.error is None
        assert time.monotonic() - started < 2


def test_cancelling_between_frames_keeps_the_link() -> None:
    with linked() as (link, server):
        answer, other = (link.start(Frame({}), Kept(), soon()) for _ in range(2))
        server.next(), server.next()
        assert not link.wait(answer, soon(0.02))
        link.cancel(answer)
        assert server.next()[0][:4] == (CANCEL, 0, 0, answer.number)
        server.send(message_bytes(ANSWER, answer.number, Frame({}, [np.zeros(100_000)])))
        server.send(message_bytes(ANSWER, other.number, LAST))
        assert link.wait(other, soon()) and other.error is None and link.is_usable


def test_waiting_to_send_respects_the_deadline() -> None:
    large = Frame({}, [np.zeros(4_000_000)])
    with linked() as (link, _), ThreadPoolExecutor(1) as pool:
        sending = pool.submit(link.start, large, Kept(), soon(1.0))
        wait_until(link._sending.locked, "the large request is being sent")
        started = time.monotonic()
        with pytest.raises(StoreTimeout):
            link.start(Frame({}), Kept(), soon(0.1))
        assert time.monotonic() - started < 0.8
        assert link.is_usable
        with pytest.raises(StoreTimeout):
            sending.result(5)
        assert not link.is_usable  # a message was sent in part


def test_a_full_queue_at_a_unix_socket_is_waited_for(tmp_path: Path) -> None:
    """A server that accepts no connection for a while, as under a flood, is not taken for gone."""
    path = str(tmp_path / "socket")
    where = Location.parse(f"unix://{path}")
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(path)
        server.listen(0)
        with suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(path)
        began = time.monotonic()
        with pytest.raises(StoreTimeout):
            Link(where, ClientSecurity(), time.monotonic() + 0.3)
        assert time.monotonic() - began > 0.25
        with ThreadPoolExecutor(1) as pool:
            making = pool.submit(Link, where, ClientSecurity(), time.monotonic() + 10)
            time.sleep(0.1)
            accepted, said = server, b""
            while not said:  # of the waiting connections only the link's sends bytes
                accepted = stack.enter_context(server.accept()[0])
                accepted.settimeout(0.2)
                with suppress(TimeoutError):
                    said = accepted.recv(1000)
            assert said == encode_hello(None)
            accepted.sendall(encode_welcome(Status.OK))
            making.result(10).close()
        opening = Opening()
        opening.give_up()
        with pytest.raises(LinkLost):
            Link(where, ClientSecurity(), time.monotonic() + 10, opening)
