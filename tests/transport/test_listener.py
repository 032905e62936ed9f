"""Tests that a listener answers in parallel, keeps its limits, and isolates clients from each other."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hopstream.errors import ServerBusy, SettingsError, StoreUnavailable
from hopstream.transport import listener as listener_module
from hopstream.transport import receiver as receiver_module
from hopstream.transport.calls import Call
from hopstream.transport.failures import error_frame
from hopstream.transport.limits import TransportLimits
from hopstream.transport.listener import Listener
from hopstream.transport.location import Location
from hopstream.transport.messages import (
    CANCEL,
    GOODBYE,
    HELLO,
    MAGIC,
    PING,
    PONG,
    REQUEST,
    Frame,
    Status,
    encode_hello,
)
from hopstream.transport.security import ServerSecurity
from tests.store.authority import Authority
from tests.transport.desk import WAYS, Desk, Served, serve, wait_until
from tests.transport.peer import Peer, message_bytes

ECHO, HOLD = Frame({"op": "echo"}), Frame({"op": "hold"})
Serve = Callable[..., AbstractContextManager[Served]]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("our root")


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check deadlines more often than elsewhere."""
    monkeypatch.setattr(listener_module, "TICK_S", 0.05)


@pytest.fixture
def serve_as(authority: Authority, tmp_path: Path) -> Serve:
    """Serve in a given way."""
    return partial(serve, authority=authority, folder=tmp_path)


@pytest.fixture(params=WAYS)
def served(request: pytest.FixtureRequest, serve_as: Serve) -> Iterator[Served]:
    """A server for each way."""
    with serve_as(request.param) as served:
        yield served


def error_of(frames: list[Frame]) -> tuple[str, str]:
    (frame,) = frames
    assert frame.is_last
    return frame.header["error"]["kind"], frame.header["error"]["message"]


def test_requests_are_answered(served: Served) -> None:
    arrays = [np.arange(200_000), np.arange(3, dtype=np.uint8)]
    with served.connect() as peer:
        (frame,) = peer.ask(Frame({"op": "echo", "text": "é"}, arrays))
        assert frame.header == {"op": "echo", "text": "é"}
        assert all(np.array_equal(got, wanted) for got, wanted in zip(frame.arrays, arrays, strict=True))
        assert peer.ask(Frame({"op": "nothing"})) == []
        numbers = [(f.header["number"], int(f.arrays[0][-1])) for f in peer.ask(Frame({"op": "count", "num": 5}))]
        assert numbers == [(n, n) for n in range(5)]


def test_an_error_in_a_handler_ends_only_its_answer(served: Served) -> None:
    with served.connect() as peer:
        assert error_of(peer.ask(Frame({"op": "fail"})))[0] == "RemoteError"
        assert len(peer.ask(ECHO)) == 1


def test_several_requests_of_one_connection_are_answered_at_once(served: Served) -> None:
    with served.connect() as peer:
        peer.send(b"".join(message_bytes(REQUEST, n, Frame({"op": "hold", "n": n})) for n in (1, 2, 3, 4, 5)))
        begun = [peer.next() for _ in range(5)]
        assert sorted(prefix.number for prefix, frame in begun if frame.header == {"begun": True}) == [1, 2, 3, 4, 5]
        peer.send(message_bytes(REQUEST, 6, ECHO))
        assert peer.next()[0].number == 6
        served.desk.may_go_on.set()
        assert sorted(peer.next()[1].header["done"] for _ in range(5)) == [1, 2, 3, 4, 5]


def test_a_ping_is_answered_while_a_request_is(served: Served) -> None:
    with served.connect() as peer:
        number = peer.start(HOLD)
        assert peer.next()[0].number == number
        peer.send(message_bytes(PING, 77))
        assert peer.next()[0][:4] == (PONG, 0, 0, 77)


def test_a_cancelled_request_is_over(served: Served) -> None:
    with served.connect() as peer:
        number = peer.start(HOLD)
        peer.next()
        peer.send(message_bytes(CANCEL, number) + message_bytes(CANCEL, 99))
        wait_until(lambda: served.desk.num_ended == 1, "the answer has ended", 1)
        echoed = peer.start(ECHO)
        numbers = [peer.next()[0].number]
        if numbers == [number]:  # the frame in progress when it was cancelled
            numbers = [peer.next()[0].number]
        assert numbers == [echoed]


def test_a_request_that_is_cancelled_while_its_client_does_not_read_is_over(served: Served) -> None:
    with served.connect() as peer:
        number = peer.start(Frame({"op": "count", "num": 1000}))
        wait_until(lambda: is_steady(lambda: served.desk.num_frames), "the answer waits")
        peer.send(message_bytes(CANCEL, number))
        wait_until(lambda: served.desk.num_ended == 1, "the answer has ended", 1)
        echoed = peer.start(ECHO)
        num_frames = 0
        while peer.next()[0].number != echoed:
            num_frames += 1
        assert num_frames == served.desk.num_frames < 100


def is_steady(value: Callable[[], int]) -> bool:
    """Whether a number is above 0 and unchanged for a tenth of a second."""
    before = value()
    time.sleep(0.1)
    return before == value() > 0


def test_closing_says_goodbye_and_lets_requests_under_way_be_answered(served: Served) -> None:
    with served.connect() as peer, served.connect(says_hello=False) as stranger, ThreadPoolExecutor() as pool:
        number = peer.start(HOLD)
        peer.next()
        closing = pool.submit(served.listener.close, 10)
        assert peer.next()[0][0] == GOODBYE
        assert stranger.is_closed_within(2)
        with pytest.raises((ConnectionError, FileNotFoundError)):
            served.connect()
        late = peer.start(ECHO)
        prefix, frame = peer.next()
        assert (prefix.number, frame.header["error"]["kind"]) == (late, "StoreUnavailable")
        served.desk.may_go_on.set()
        prefix, frame = peer.next()
        assert (prefix.number, frame.is_last) == (number, True)
        assert closing.result(5)
        assert peer.is_closed_within(2)


def test_closing_abandons_slow_calls_and_frees_them_when_they_end() -> None:
    before = descriptors()
    may_end = threading.Event()

    def answer(call: object) -> Iterator[Frame]:
        may_end.wait(20)
        yield Frame({})

    listener = Listener(Location.parse("tcp://127.0.0.1:0"), answer)
    with served_by(listener).connect() as peer:
        peer.start(ECHO)
        wait_until(lambda: listener.num_calls == 1, "the call is there")
        listener_module.ABORT_S, kept = 0.05, listener_module.ABORT_S
        try:
            assert not listener.close(0.05)
        finally:
            listener_module.ABORT_S = kept
            may_end.set()
        assert peer.next()[0].kind == GOODBYE
        assert peer.is_closed_within(2)
    wait_until(lambda: descriptors() == before, "descriptors are back", 2)
    assert listener.close(1)


def served_by(listener: Listener) -> Served:
    return Served(listener, None)  # type: ignore[arg-type]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# Strangers.


@pytest.mark.parametrize("way", WAYS)
def test_a_silent_stranger_is_disconnected(serve_as: Serve, way: str) -> None:
    with serve_as(way, hello_s=0.2) as served:
        context, served.context = served.context, None
        started = time.monotonic()
        with served.connect(says_hello=False) as silent, served.connect(says_hello=False) as partial_one:
            partial_one.send(b"HOPS\x02" if context is None else b"\x16\x03\x01")
            assert silent.is_closed_within(2) and partial_one.is_closed_within(2)
            assert 0.2 < time.monotonic() - started < 1.5
        served.context = context
        with served.connect() as peer:
            assert len(peer.ask(ECHO)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_too_many_strangers_drop_the_oldest_and_admit_honest_clients(serve_as: Serve, way: str) -> None:
    with serve_as(way, max_strangers=3) as served:
        context, served.context = served.context, None
        strangers = [served.connect(says_hello=False) for _ in range(5)]
        assert [strangers[i].is_closed_within(2) for i in (0, 1)] == [True, True]
        assert [one.is_closed_within(0.05) for one in strangers[2:]] == [False] * 3
        served.context = context
        with served.connect() as peer:
            assert len(peer.ask(ECHO)) == 1  # its hello may have come before another connection had to make room
        for one in strangers:
            one.close()


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"H", MAGIC[:3] + b"X", bytes(400)],
)  # fmt: skip
def test_an_invalid_hello_is_not_answered(serve_as: Serve, first: bytes) -> None:
    with serve_as(hello_s=0.3) as served:
        for _ in range(20 if len(first) > 4 else 1):
            with served.connect(says_hello=False) as peer:
                peer.send(first)
                assert peer.is_closed_within(2)


def test_a_hello_that_arrives_byte_by_byte(served: Served) -> None:
    with served.connect(says_hello=False) as peer:
        hello = encode_hello("anything")
        for at in range(len(hello)):
            peer.send(hello[at : at + 1])
        assert peer.read_welcome()[0] == Status.OK
        assert len(peer.ask(ECHO)) == 1


def test_a_hello_and_a_request_that_come_together(served: Served) -> None:
    with served.connect(says_hello=False) as peer:
        peer.send(encode_hello(None) + message_bytes(REQUEST, 1, ECHO) + message_bytes(REQUEST, 2, ECHO))
        assert peer.read_welcome()[0] == Status.OK
        assert {peer.next()[0].number, peer.next()[0].number} == {1, 2}


def test_another_version_is_refused_with_a_message(served: Served) -> None:
    with served.connect(says_hello=False) as peer:
        peer.send(HELLO.pack(MAGIC, 3, 5, 0) + b"other")
        status, text = peer.read_welcome()
        assert status == Status.OTHER_VERSION
        assert "speaks version 2 of the protocol, and the client 3" in text
        assert peer.is_closed_within(2)


@pytest.mark.parametrize("way", ["tcp-epoll", "tcp-selector", "unix-epoll", "tls-epoll"])
def test_data_after_a_wrong_token_is_not_parsed(
    serve_as: Serve, way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parsed: list[object] = []
    for name in ("read_header", "read_prefix"):
        monkeypatch.setattr(receiver_module, name, lambda *given: parsed.append(given))
    with serve_as(way, token="secret") as served:
        for token in (None, "Secret"):
            with served.connect(says_hello=False) as peer:
                peer.send(encode_hello(token) + message_bytes(REQUEST, 1, ECHO))
                assert peer.read_welcome() == (Status.REFUSED, "the token is missing or wrong")
                assert peer.is_closed_within(2)
        where = "a Unix socket" if way.startswith("unix") else "127.0.0.1"
        told = f"{served.location} refused a connection of {where}: its token is missing or wrong"
        assert [message for message in caplog.messages if "refused" in message] == [told] * 2
        assert (parsed, served.desk.num_begun, served.listener.num_refused_tokens) == ([], 0, 2)
        monkeypatch.undo()
        with served.connect("secret") as peer:
            assert len(peer.ask(ECHO)) == 1


@pytest.mark.parametrize("way", ["tcp-epoll", "tcp-selector", "tls-epoll"])
def test_wrong_tokens_are_answered_with_growing_delay(serve_as: Serve, way: str) -> None:
    with serve_as(way, token="secret") as served:
        took = []
        for _ in range(4):
            with served.connect(says_hello=False) as peer:
                started = time.monotonic()
                peer.send(encode_hello("wrong") + b"and more")  # the extra bytes are not read
                assert peer.read_welcome()[0] == Status.REFUSED
                took.append(time.monotonic() - started)
        assert max(took[:3]) < 0.2
        assert 0.25 <= took[3] < 1.5
        for _ in range(3):
            with served.connect(says_hello=False) as peer:
                peer.send(encode_hello("wrong"))  # and leaves
        wait_until(lambda: served.listener.num_refused_tokens >= 7, "all are looked at")
        time.sleep(0.1)
        assert served.listener.num_refused_tokens == 7
        with served.connect("secret") as peer:
            assert len(peer.ask(ECHO)) == 1


def test_very_many_wrong_tokens_are_refused_like_the_first(serve_as: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with serve_as(token="secret") as served:
        served.listener._refused.add("127.0.0.1", 5000)
        with served.connect(says_hello=False) as peer:
            peer.send(encode_hello("wrong"))
            wait_until(lambda: served.listener.num_refused_tokens == 1, "it is looked at")
            assert not peer.is_closed_within(0.1)
        assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("way", ["tcp-epoll", "tcp-selector", "unix-epoll", "tls-epoll"])
def test_clients_that_abandon_many_calls_are_admitted_late(
    serve_as: Serve, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answered or cancelled calls do not count, and existing connections see no delay."""
    monkeypatch.setattr(listener_module, "FREE_ABANDONED", 4)
    with serve_as(way, token="secret") as served, served.connect("secret") as old:

        def entered_in_s() -> float:
            with served.connect("secret", says_hello=False) as peer:
                started = time.monotonic()  # without the handshake of TLS
                peer.send(encode_hello("secret") + message_bytes(REQUEST, 1, ECHO))  # it is read with the hello
                assert peer.read_welcome() == (Status.OK, "")
                took_s = time.monotonic() - started
                assert len(list(peer.frames(1))) == 1
            return took_s

        def holding(num: int) -> Peer:
            peer = served.connect("secret")
            for _ in range(num):
                peer.start(HOLD)
            for _ in range(num):
                peer.next()
            return peer

        for _ in range(10):
            assert entered_in_s() < 0.2
        for _ in range(10):
            with holding(1) as peer:
                peer.send(message_bytes(CANCEL, 1))
                wait_until(lambda: served.listener.num_calls == 0, "what was cancelled has ended")
        assert entered_in_s() < 0.2
        for num in (1, 1, 2):
            holding(num).close()
            wait_until(lambda: served.listener.num_calls == 0, "it is seen that the client has left")
            assert entered_in_s() < 0.2
        holding(3).close()
        wait_until(lambda: served.listener.num_calls == 0, "it is seen that the client has left")
        with ThreadPoolExecutor() as pool:
            entering = pool.submit(entered_in_s)
            while not entering.done():
                started = time.monotonic()
                assert len(old.ask(ECHO)) == 1
                assert time.monotonic() - started < 0.2
        assert 0.25 <= entering.result() < 2.0


def test_a_token_removed_while_its_client_waits_is_refused(serve_as: Serve) -> None:
    with serve_as(token="secret") as served:
        served.listener._abandoned.add("127.0.0.1", listener_module.FREE_ABANDONED + 2)
        with served.connect(says_hello=False) as peer:
            peer.send(encode_hello("secret"))
            wait_until(lambda: any(one.answered_at for one in served.listener._peers.values()), "it waits")
            served.listener._security = ServerSecurity(token="another")
            assert peer.read_welcome() == (Status.REFUSED, "the token is missing or wrong")
            assert peer.is_closed_within(2)


# Limits.


def test_connections_beyond_the_limit_are_refused_until_one_closes(serve_as: Serve) -> None:
    with serve_as(max_connections=2) as served, served.connect() as one:
        two = served.connect()
        with served.connect(says_hello=False) as peer:
            status, text = peer.say_hello()
            assert (status, text) == (Status.BUSY, "the server has 2 connections, the maximum (max_connections)")
            assert peer.is_closed_within(2)
        two.close()
        wait_until(lambda: served.listener.num_connections == 1, "the place is free")
        with served.connect() as peer:
            assert len(peer.ask(ECHO)) == len(one.ask(ECHO)) == 1


def test_requests_beyond_the_limit_are_refused_on_a_kept_connection(served: Served) -> None:
    served.listener._limits = TransportLimits(max_calls=2)
    with served.connect() as peer, served.connect() as other:
        first = [peer.start(HOLD), peer.start(HOLD)]
        peer.next(), peer.next()
        kind, text = error_of(other.ask(Frame({"op": "echo"}, [np.zeros(100_000)])))
        assert (kind, text) == ("ServerBusy", "the server answers 2 requests, the maximum (max_calls)")
        served.desk.may_go_on.set()
        assert sorted(peer.next()[0].number for _ in first) == first
        wait_until(lambda: served.listener.num_calls == 0, "there is room")
        assert len(other.ask(ECHO)) == 1
        assert served.listener.num_refused_calls == 1


def test_a_server_without_new_threads_is_busy_until_one_is_free(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = ("ServerBusy", "the server cannot start a thread for the call")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with served.connect() as peer, served.connect() as other:
        wait_until(lambda: served.listener._num_threads == served.listener._num_idle == 2, "spare threads have left")
        monkeypatch.setattr(threading.Thread, "start", refuse)
        number = peer.start(HOLD)
        peer.next()
        wait_until(lambda: served.listener._num_idle == 1, "one thread is left")
        for num_refused in range(1, 4):
            assert error_of(other.ask(Frame({"op": "echo"}, [np.zeros(100_000)]))) == refusal
            assert served.listener.num_refused_calls == num_refused
        served.desk.may_go_on.set()
        assert peer.next()[0].number == number
        wait_until(lambda: "error" not in other.ask(ECHO)[0].header, "the thread that was busy is free")


def test_oversized_requests_are_refused_on_a_kept_connection(serve_as: Serve) -> None:
    with serve_as(max_request_bytes=1000) as served, served.connect() as peer:
        kind, text = error_of(peer.ask(Frame({"op": "echo"}, [np.zeros(1 << 20)])))
        assert kind == "SettingsError"
        assert "bytes; the server takes 1000 (--max-request-bytes)" in text
        assert len(peer.ask(ECHO)) == 1


def test_bytes_beyond_the_limit_are_refused_on_a_kept_connection(serve_as: Serve) -> None:
    limit = 2 * listener_module.CALL_BYTES + 4000
    with serve_as(max_bytes=limit) as served, served.connect() as peer, served.connect() as other:
        peer.start(HOLD)
        peer.next()
        kind, text = error_of(other.ask(Frame({"op": "echo"}, [np.zeros(4000, np.uint8)])))
        assert kind == "ServerBusy"
        assert f"bytes of at most {limit}" in text
        assert len(other.ask(Frame({"op": "echo"}, [np.zeros(3000, np.uint8)]))) == 1


def test_a_request_number_that_is_under_way_ends_the_connection(served: Served) -> None:
    with served.connect() as peer:
        peer.send(message_bytes(REQUEST, 1, HOLD))
        peer.next()
        peer.send(message_bytes(REQUEST, 1, HOLD))
        assert peer.is_closed_within(2)
        wait_until(lambda: served.desk.num_ended == 1, "the answer has ended", 1)


def test_requests_followed_by_invalid_data_release_their_memory(served: Served) -> None:
    for _ in range(5):
        with served.connect() as peer:
            peer.send(message_bytes(REQUEST, 1, HOLD) + message_bytes(REQUEST, 2, ECHO) + bytes(32))
            with suppress(EOFError, ConnectionError):
                while True:
                    peer.next()
    wait_until(lambda: served.listener.num_calls == 0, "nothing is under way", 2)


# Slow clients, and clients that leave.


def test_a_slow_sender_does_not_block_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    message = message_bytes(REQUEST, 1, Frame({"op": "echo"}, [np.zeros(1_000_000)]))
    with served.connect() as slow, served.connect() as other:
        slow.send(message[:5000])
        assert len(other.ask(ECHO)) == 1
        assert served.desk.num_begun == 1
        slow.send(message[5000:])
        assert len(list(slow.frames(1))) == 1
        monkeypatch.setattr(listener_module, "MESSAGE_S", 0.1)
        monkeypatch.setattr(listener_module, "SLOWEST_BYTES_PER_S", 1e9)
        number = message_bytes(REQUEST, 2, Frame({"op": "echo"}, [np.zeros(1_000_000)]))
        slow.send(number[:5000])
        assert slow.is_closed_within(2)
        assert len(other.ask(ECHO)) == 1


def test_slow_readers_hold_one_frame_each(served: Served) -> None:
    slow = [served.connect() for _ in range(3)]
    numbers = [one.start(Frame({"op": "count", "num": 25})) for one in slow]
    wait_until(lambda: is_steady(lambda: served.desk.num_frames), "answers wait")
    assert served.desk.num_frames < 3 * 20
    with served.connect() as other:
        assert len(other.ask(ECHO)) == 1
    assert served.listener._num_threads <= 6
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda one, number: list(one.frames(number)), slow, numbers))
    assert [[frame.header["number"] for frame in answer] for answer in answers] == [list(range(25))] * 3
    for one in slow:
        one.close()


def test_a_reader_that_is_slower_than_its_deadline_loses_the_connection(served: Served) -> None:
    with served.connect() as peer:
        peer.start(Frame({"op": "count", "num": 1000}), timeout_ms=200)
        wait_until(lambda: served.desk.num_ended == 1, "the answer has ended", 2)
        with pytest.raises((EOFError, ConnectionError)):
            for _ in range(1000):
                peer.next()


def test_a_client_that_does_not_read_answers_is_disconnected(serve_as: Serve) -> None:
    with serve_as("unix-epoll") as served, served.connect() as peer, pytest.raises(ConnectionError):
        for _ in range(10):
            peer.send(message_bytes(PING, 1) * 1000)


def test_calls_of_lost_clients_end_within_a_second(served: Served) -> None:
    with served.connect() as peer:
        peer.ask(ECHO)
        before, num_threads = descriptors(), threading.active_count()
    peers = [served.connect() for _ in range(6)]
    for peer, op in zip(peers, ("hold", "count", "drip") * 2, strict=True):
        peer.start(Frame({"op": op, "num": 1000}))
    wait_until(lambda: served.desk.num_begun == 7, "all have begun")
    started = time.monotonic()
    for peer in peers:
        peer.close()
    wait_until(lambda: served.desk.num_ended == 7, "all answers have ended", 1)
    wait_until(lambda: served.listener.num_connections == 0, "no connection is left", 1)
    wait_until(lambda: descriptors() <= before, "descriptors are back", 2)
    wait_until(lambda: threading.active_count() <= num_threads + 2, "threads are back", 3)
    assert time.monotonic() - started < 4


def test_a_connection_half_closed_by_the_client_is_closed(served: Served) -> None:
    if served.context is not None:
        return
    with served.connect() as peer:
        peer.start(HOLD)
        peer.next()
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.is_closed_within(1)
        wait_until(lambda: served.desk.num_ended == 1, "the answer has ended", 1)


def test_a_connection_that_ends_while_it_is_read_keeps_its_descriptor_until_then(serve_as: Serve) -> None:
    """Else another connection could get the descriptor, and be read in its place."""
    with serve_as() as served, served.connect() as peer:
        (known,) = served.listener._peers.values()
        stream, is_inside, may_leave = known.stream, threading.Event(), threading.Event()
        real = stream.recv_into

        def recv_into(target: memoryview) -> int | None:
            is_inside.set()
            assert may_leave.wait(10)
            return real(target)

        stream.recv_into = recv_into  # type: ignore[method-assign]
        peer.start(ECHO)
        assert is_inside.wait(5)
        served.listener._drop(known)
        assert stream.fileno() >= 0
        assert peer.is_closed_within(1)
        may_leave.set()
        wait_until(lambda: stream.fileno() < 0, "it is closed")


@pytest.mark.parametrize("way", ["tcp-epoll", "tcp-selector", "tls-epoll"])
def test_mutated_streams_do_not_disturb_other_clients(
    serve_as: Serve, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(31)
    good = message_bytes(REQUEST, 1, Frame({"op": "echo"}, [np.arange(40)])) + message_bytes(PING, 2)
    good += message_bytes(REQUEST, 3, Frame({"op": "count", "num": 1})) + message_bytes(CANCEL, 3)
    with serve_as(way, max_request_bytes=1 << 20) as served:
        honest = served.connect()
        for turn in range(20 if way.startswith("tls") else 60):
            stream = bytearray(good)
            for _ in range(rng.randrange(1, 6)):
                stream[rng.randrange(len(stream))] = rng.randrange(256)
            with served.connect() as peer, suppress(ConnectionError):
                peer.send(bytes(stream))
            if turn % 10 == 0:
                assert len(honest.ask(ECHO)) == 1
        honest.close()
    assert [record for record in caplog.records if record.levelname == "ERROR" and "thread" in record.message] == []


def test_callbacks_for_the_end_of_a_call_run_once(serve_as: Serve) -> None:
    told: list[str] = []

    def answer(call: listener_module.Call) -> Iterator[Frame]:
        call.on_over(lambda: told.append("first"))
        yield Frame({"begun": True})
        wait_until(lambda: call.is_over, "it is over")
        call.on_over(lambda: told.append("late"))

    listener = Listener(Location.parse("tcp://127.0.0.1:0"), answer)
    with served_by(listener).connect() as peer:
        number = peer.start(ECHO)
        peer.next()
        peer.send(message_bytes(CANCEL, number))
    wait_until(lambda: listener.num_calls == 0 and listener.num_connections == 0, "it has ended")
    assert told == ["first", "late"]
    assert listener.close(2)


def test_addresses_that_cannot_be_listened_at(tmp_path: Path, serve_as: Serve) -> None:
    with serve_as("unix-epoll") as served, pytest.raises(StoreUnavailable, match="another server listens there"):
        Listener(served.listener.location, lambda call: iter(()))
    assert not Path(served.listener.location.path).exists()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    listener = Listener(Location.parse(f"unix://{tmp_path}/dead"), lambda call: iter(()))
    assert (tmp_path / "dead").stat().st_mode & 0o777 == 0o600
    assert listener.close(1)
    with pytest.raises(SettingsError):
        TransportLimits(max_calls=0)


def test_a_request_ends_at_its_deadline(serve_as: Serve) -> None:
    with serve_as() as served, served.connect() as peer:
        peer.start(HOLD, timeout_ms=100)
        wait_until(lambda: served.desk.num_ended == 1, "the answer has ended", 2)
        echoed = peer.start(ECHO)
        numbers = [peer.next()[0].number for _ in range(2)]
        if echoed not in numbers:  # the frame in progress at the deadline has come, too
            numbers.append(peer.next()[0].number)
        assert numbers[-1] == echoed


# Clients that do not read.


def a_peer_that_does_not_read(served: Served, num_calls: int, timeout_ms: int = 20_000) -> tuple[Peer, list[int]]:
    """A client with the given number of answers that wait until it reads, and their numbers."""
    peer = served.connect()
    numbers = [peer.start(Frame({"op": "count", "num": 50}), timeout_ms=timeout_ms) for _ in range(num_calls)]
    wait_until(lambda: sum(len(one.parked) for one in served.listener._peers.values()) == num_calls, "all wait")
    return peer, numbers


def test_waiting_answers_end_in_turn_without_ending_threads() -> None:
    with serve() as served:
        peer = served.connect()
        for number in range(4):
            peer.start(Frame({"op": "count", "num": 50}), timeout_ms=400 + 300 * number)
        with peer:
            wait_until(lambda: served.listener.num_calls == 0, "the client is given up")
            assert served.listener._num_threads >= 2
        with served.connect() as other:
            assert len(other.ask(ECHO)) == 1


def test_one_of_several_answers_that_wait_is_cancelled() -> None:
    with serve() as served:
        peer, numbers = a_peer_that_does_not_read(served, 3)
        with peer:
            peer.send(message_bytes(CANCEL, numbers[1]))
            wait_until(lambda: served.listener.num_calls == 2, "it is given up")
            (known,) = served.listener._peers.values()
            assert sorted(known.parked) == [numbers[0], numbers[2]]


def test_frames_of_cancelled_answers_stay_accounted_until_read() -> None:
    with serve() as served:
        peer, numbers = a_peer_that_does_not_read(served, 1)
        with peer:
            peer.send(message_bytes(CANCEL, numbers[0]))
            wait_until(lambda: served.listener.num_calls == 0, "it is given up")
            assert served.listener.account.taken > 0
            for _ in range(20):  # one after another, until the client is
                with suppress(OSError):
                    peer.send(message_bytes(CANCEL, peer.start(Frame({"op": "count", "num": 50}))))
            wait_until(lambda: served.listener.num_connections == 0, "the client is ended")
            wait_until(lambda: served.listener.account.taken == 0, "all is given back")


def test_an_answer_past_its_deadline_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: Desk, call: Call) -> Iterator[Frame]:
        time.sleep(0.6)
        yield Frame({}, [np.zeros(50_000_000, np.uint8)])

    monkeypatch.setattr(Desk, "_late", late, raising=False)
    with serve() as served, served.connect() as peer:
        peer.start(Frame({"op": "late"}), timeout_ms=200)
        wait_until(lambda: served.desk.num_ended == 1, "it has been made")
        wait_until(lambda: served.listener.num_calls == 0, "it is given up", 3)


def test_idle_readers_are_dropped_for_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "IDLE_READER_S", 0.2)
    with serve() as served:
        served.listener._limits = TransportLimits(max_calls=3)
        peer, _ = a_peer_that_does_not_read(served, 3, timeout_ms=(1 << 32) - 1)
        with peer, served.connect() as other:
            time.sleep(0.3)
            assert len(other.ask(ECHO)) == 1
            assert served.listener.num_connections == 1


def test_an_answer_takes_room_for_large_frames_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(self: Desk, call: Call) -> Iterator[Frame]:
        try:
            call.reserve(call.header["num_bytes"])
        except (ServerBusy, SettingsError) as error:
            yield error_frame(type(error).__name__, str(error))
        else:
            yield from self._hold(call)

    monkeypatch.setattr(Desk, "_reserve", reserve, raising=False)
    with serve(max_bytes=64 << 20) as served, served.connect() as peer, served.connect() as other:
        peer.start(Frame({"op": "reserve", "num_bytes": 40 << 20}))
        peer.next()
        assert served.listener.account.taken >= 40 << 20
        assert error_of(other.ask(Frame({"op": "reserve", "num_bytes": 40 << 20})))[0] == "ServerBusy"
        assert error_of(other.ask(Frame({"op": "reserve", "num_bytes": 80 << 20})))[0] == "SettingsError"


def test_a_request_with_a_large_header_is_refused() -> None:
    with serve() as served, served.connect() as peer:
        peer.send(message_bytes(REQUEST, 1, Frame({"op": "echo", "text": "x" * (5 << 20)}))[:64])
        assert peer.is_closed_within(5)


def test_a_file_other_than_a_socket_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreUnavailable, match="the path exists and is not a socket; choose another path"):
        Listener(Location.parse(f"unix://{tmp_path}/file"), Desk().answer)
    assert (tmp_path / "file").read_text() == "mine"
