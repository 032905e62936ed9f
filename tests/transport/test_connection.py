"""Tests that a connection finds its server again, keeps deadlines, and names problem and remedy."""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from hopstream.errors import (
    AccessDenied,
    FormatError,
    HopstreamError,
    ServerBusy,
    SettingsError,
    StateError,
    StoreTimeout,
    StoreUnavailable,
    VersionMismatch,
)
from hopstream.transport.connection import MAX_LINKS, Connection, OneFrame
from hopstream.transport.listener import Listener
from hopstream.transport.location import Location
from hopstream.transport.messages import (
    ANSWER,
    HELLO,
    MAGIC,
    WELCOME,
    Frame,
    Status,
    encode_hello,
    encode_welcome,
)
from hopstream.transport.security import ClientSecurity
from tests.store.authority import Authority
from tests.transport.desk import WAYS, Desk, Served, serve, wait_until
from tests.transport.peer import message_bytes
from tests.transport.stub import Stub

ECHO, HOLD = Frame({"op": "echo"}), Frame({"op": "hold"})


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("our root")


@pytest.fixture(params=WAYS)
def served(request: pytest.FixtureRequest, authority: Authority, tmp_path: Path) -> Iterator[Served]:
    with serve(request.param, authority=authority, folder=tmp_path, token="secret") as served:
        yield served


def connection_of(served: Served) -> Connection:
    assert served.security is not None
    return Connection(served.listener.location, served.security)


def to(location: Location) -> Connection:
    return Connection(location, ClientSecurity())


class Frames:
    """Collect the headers of frames."""

    def __init__(self) -> None:
        self.headers: list[dict[str, object]] = []

    place = OneFrame().place

    def take(self, frame: Frame) -> None:
        self.headers.append(frame.header)


def test_requests_are_answered_over_one_link(served: Served) -> None:
    connection = connection_of(served)
    for n in range(20):
        assert connection.ask(Frame({"op": "echo", "n": n}), 10, "echo").header == {"op": "echo", "n": n}
    connection.ping(10)
    assert served.listener.num_connections == 1
    connection.close()
    wait_until(lambda: served.listener.num_connections == 0, "the server is left")


def test_more_requests_than_links_share_them(served: Served) -> None:
    connection = connection_of(served)
    num = 5 * MAX_LINKS
    sinks = [Frames() for _ in range(num)]
    under_way = [connection.start(Frame({"op": "hold", "n": n}), 20, "hold", sink) for n, sink in enumerate(sinks)]
    with ThreadPoolExecutor(num) as pool:
        waiting = [pool.submit(one.result) for one in under_way]
        wait_until(lambda: all(sink.headers for sink in sinks), "all have begun")
        assert served.listener.num_connections == MAX_LINKS
        served.desk.may_go_on.set()
        for one in waiting:
            one.result(10)
    assert [sink.headers for sink in sinks] == [[{"begun": True}, {"done": n}] for n in range(num)]
    assert connection.ask(ECHO, 10, "echo").header == {"op": "echo"}
    connection.close()


def test_a_restarted_server_is_found_again() -> None:
    listener = Listener(Location.parse("tcp://127.0.0.1:0"), Desk().answer)
    connection = to(listener.location)
    connection.ask(ECHO, 10, "echo")
    assert listener.close(5)
    with pytest.raises(StoreUnavailable, match="cannot be reached for echo: nothing listens there"):
        connection.ask(ECHO, 0.3, "echo", is_patient=False)
    again = Listener(listener.location, Desk().answer)
    connection.ask(ECHO, 10, "echo")
    connection.ping(10)
    connection.close()
    assert again.close(5)


def test_a_server_that_says_goodbye_is_waited_for() -> None:
    listener = Listener(Location.parse("tcp://127.0.0.1:0"), Desk().answer)
    connection = to(listener.location)
    connection.ask(ECHO, 10, "echo")
    assert listener.close(5, is_final=False)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(connection.ask, ECHO, 10, "echo")
        time.sleep(0.1)
        again = Listener(listener.location, Desk().answer)
        assert asking.result(10).header == {"op": "echo"}
    connection.close()
    assert again.close(5)


def test_a_server_that_says_goodbye_for_good_is_not_waited_for() -> None:
    listener = Listener(Location.parse("tcp://127.0.0.1:0"), Desk().answer)
    connection = to(listener.location)
    connection.ask(ECHO, 10, "echo")
    assert listener.close(5)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="nothing listens there"):
        connection.ask(ECHO, 10, "echo")
    assert within(5, started)
    connection.close()


def test_patient_clients_wait_for_a_server_that_is_leaving() -> None:
    with Stub() as stub, ThreadPoolExecutor(1) as pool:
        for is_patient in (False, True):
            connection = to(stub.where)
            asking = pool.submit(connection.ask, ECHO, 10, "echo", is_patient=is_patient)
            with stub.accept() as server:
                server.read(HELLO.size)
                server.send(encode_welcome(Status.LEAVING, "the server is shutting down"))
            if is_patient:
                with stub.accept() as server:
                    server.read(HELLO.size)
                    server.send(encode_welcome(Status.OK))
                    prefix, _ = server.next()
                    server.send(message_bytes(ANSWER, prefix.number, Frame({"a": 1}, is_last=True)))
                    assert asking.result(5).header == {"a": 1}
            else:
                with pytest.raises(StoreUnavailable, match="shutting down"):
                    asking.result(5)
            connection.close()


# Deadlines.


def within(seconds: float, started: float) -> bool:
    return time.monotonic() - started < seconds


def test_a_server_without_welcome_times_out(authority: Authority) -> None:
    with Stub() as stub:
        tls = Location(stub.where.host, stub.where.port, has_tls=True)
        for connection in (to(stub.where), Connection(tls, ClientSecurity(roots=authority.root))):
            for ask in (connection.ping, lambda s, c=connection: c.ask(ECHO, s, "echo")):
                started = time.monotonic()
                with pytest.raises(StoreTimeout, match=r"gave no answer in 0\.1 s to (ping|echo)"):
                    ask(0.1)
                assert within(1.0, started)
            connection.close()


def test_a_missing_answer_times_out(served: Served) -> None:
    connection = connection_of(served)
    connection.ask(ECHO, 10, "echo")
    started = time.monotonic()
    late = r"gave no answer in 0\.2 s to hold|nobody waits"  # the server's error, if this thread is late itself
    with pytest.raises(StoreTimeout, match=late):
        connection.call(HOLD, 0.2, "hold", Frames())
    assert within(3.0, started)
    wait_until(lambda: served.desk.num_ended == served.desk.num_begun, "the server has given it up", 5)
    assert len(connection.ask(ECHO, 10, "echo").header) == 1
    connection.close()


def test_a_request_that_is_not_read_times_out() -> None:
    with Stub() as stub, ThreadPoolExecutor(1) as pool:
        connection = to(stub.where)
        asking = pool.submit(connection.ask, Frame({}, [np.zeros(4_000_000)]), 0.4, "much")
        with stub.accept() as server:
            server.send(encode_welcome(Status.OK))
            with pytest.raises(StoreTimeout, match=r"gave no answer in 0\.4 s to much"):
                asking.result(5)
        connection.close()


def test_a_busy_server_is_an_error_at_the_deadline_or_immediately(authority: Authority) -> None:
    with serve(max_connections=1) as served, served.connect():
        connection = to(served.listener.location)
        for is_patient, least_s in ((True, 0.15), (False, 0.0)):
            started = time.monotonic()
            with pytest.raises(ServerBusy, match="too busy for echo: the server has 1 connections"):
                connection.ask(ECHO, 0.3, "echo", is_patient=is_patient)
            assert least_s <= time.monotonic() - started < 1.0
        connection.close()


def test_starting_a_request_does_not_wait_for_a_hanging_server() -> None:
    with Stub() as stub, serve() as served:
        started = time.monotonic()
        connections = [to(stub.where), to(served.listener.location)]
        silent, asked = [connection.start(HOLD, 0.3, "hold", Frames()) for connection in connections]
        assert within(0.2, started)
        wait_until(lambda: served.desk.num_begun == 1, "the server is asked")
        with pytest.raises(StoreTimeout, match=r"gave no answer in 0\.3 s to hold"):
            silent.result()
        assert within(2.0, started)
        with pytest.raises(StoreTimeout):
            asked.result()
        for connection in connections:
            connection.close()


def test_an_unread_request_over_a_new_link_is_cancelled() -> None:
    with serve() as served:
        connection = to(served.listener.location)
        gc.disable()
        try:
            connection.start(HOLD, 60, "hold", Frames())
            wait_until(lambda: "hopstream-connect" not in {t.name for t in threading.enumerate()}, "it has begun")
            assert not connection._users and not connection._opening
        finally:
            gc.enable()
        wait_until(lambda: served.desk.num_begun == served.desk.num_ended, "the server has given it up")
        connection.close()


def test_a_slow_name_lookup_respects_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    may_find = threading.Event()

    def look_up(*_: object, **__: object) -> list[object]:
        may_find.wait(20)
        raise socket.gaierror("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    connection = to(Location("store.example", 1))
    try:
        for ask in (connection.ping, lambda s: connection.ask(ECHO, s, "echo")):
            started = time.monotonic()
            with pytest.raises(StoreTimeout, match=r"gave no answer in 0\.1 s to (ping|echo)"):
                ask(0.1)
            assert within(1.0, started)
        with ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(connection.ask, ECHO, 60, "echo"), pool.submit(connection.ping, 60)]
            wait_until(lambda: len(connection._opening) == 4, "all look the name up")
            started = time.monotonic()
            connection.close()
            for one in asking:
                with pytest.raises(StoreUnavailable, match="closed"):
                    one.result(5)
            assert within(1.0, started)
    finally:
        may_find.set()
    wait_until(lambda: not connection._opening, "the threads have left")


def test_every_address_of_a_host_gets_a_share_of_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as served, ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # its queue is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        addresses = [silent.getsockname(), ("127.0.0.1", served.listener.location.port)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        connection = to(Location("store.example", 1))
        started = time.monotonic()
        connection.ping(1.0)
        assert 0.3 < time.monotonic() - started < 0.9
        connection.close()
        del found[1]
        with pytest.raises(StoreTimeout):
            connection = to(Location("store.example", 1))
            connection.ping(0.1)
        connection.close()


# Closing.


@pytest.mark.parametrize("what", ["hello", "tls", "answer", "busy"])
def test_closing_wakes_waiters(authority: Authority, what: str) -> None:
    with Stub() as stub, ThreadPoolExecutor(1) as pool:
        tls = Location(stub.where.host, stub.where.port, has_tls=True)
        where = tls if what == "tls" else stub.where
        connection = Connection(where, ClientSecurity(roots=authority.root))
        asking = pool.submit(connection.ask, ECHO, 60, "echo")
        with stub.accept() as server:
            if what != "tls":
                server.read(HELLO.size)
            if what in ("answer", "busy"):
                server.send(encode_welcome(Status.OK if what == "answer" else Status.BUSY, ""))
            if what == "answer":
                server.next()
            started = time.monotonic()
            connection.close()
            with pytest.raises(StoreUnavailable, match=r"cannot echo at .*: the store (is|was) closed"):
                asking.result(5)
            assert within(1.0, started)


def test_a_closed_connection_refuses_requests_and_frees_unread_answers(served: Served) -> None:
    connection = connection_of(served)
    under_way = [connection.start(HOLD, 60, "hold", Frames()) for _ in range(3)]
    started = time.monotonic()
    connection.close()
    connection.close()
    assert within(1.0, started)
    for one in under_way:
        with pytest.raises(StoreUnavailable, match="closed"):
            one.result()
    with pytest.raises(StoreUnavailable, match=r"cannot echo at .*: the store (is|was) closed"):
        connection.ask(ECHO, 10, "echo")
    wait_until(lambda: served.listener.num_connections == 0, "the server is left")


def test_an_unread_answer_is_cancelled(served: Served) -> None:
    connection = connection_of(served)
    connection.ping(10)
    connection.start(HOLD, 60, "hold", Frames())
    gc.collect()
    wait_until(lambda: served.desk.num_begun == served.desk.num_ended == 1 or not connection._users, "it is given up")
    assert len(connection.ask(ECHO, 10, "echo").header) == 1
    assert len(connection._idle) == 1 and not connection._users
    connection.close()


def test_an_answer_is_cancelled_while_the_lock_is_held() -> None:
    """As if the garbage collector ran in a thread that holds the lock."""
    with serve() as served:
        connection = to(served.listener.location)
        connection.ping(10)
        under_way = connection.start(HOLD, 60, "hold", Frames())
        done = threading.Event()

        def drop() -> None:
            nonlocal under_way
            with connection._lock:
                under_way = None  # type: ignore[assignment]
            done.set()

        thread = threading.Thread(target=drop, daemon=True)
        thread.start()
        assert done.wait(5)
        thread.join()
        assert len(connection.ask(ECHO, 10, "echo").header) == 1
        assert not connection._users
        connection.close()


def test_use_in_a_fork_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as served:
        connection = to(served.listener.location)
        connection.ask(ECHO, 10, "echo")
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            for ask in (lambda: connection.ask(ECHO, 10, "echo"), lambda: connection.ping(10)):
                with pytest.raises(StateError, match=r"used in its fork 1; .*start workers with spawn"):
                    ask()
            connection.close()
        connection.ask(ECHO, 10, "echo")
        connection.close()


# Errors and their remedies.


def test_tls_mismatches_are_errors_with_a_remedy(authority: Authority) -> None:
    with serve() as plain, serve("tls-epoll", authority=authority) as secure:
        for served, scheme, remedy in ((plain, "tls", "write tcp://"), (secure, "tcp", "write tls://")):
            kept = Location.parse(served.location)
            other = Location(kept.host, kept.port, has_tls=scheme == "tls")
            connection = Connection(other, ClientSecurity(roots=authority.root))
            for _ in range(10):
                with pytest.raises(StoreUnavailable, match=f"{scheme}://.* cannot be reached for echo: .*{remedy}"):
                    connection.ask(ECHO, 10, "echo")
            connection.close()


def test_an_untrusted_certificate_is_an_error(authority: Authority) -> None:
    with serve("tls-epoll", authority=authority) as served:
        security = ClientSecurity(roots=Authority("their root").root)
        connection = Connection(served.listener.location, security)
        with pytest.raises(StoreUnavailable, match=r"no TLS connection could be made .* check the roots"):
            connection.ask(ECHO, 10, "echo")
        connection.close()


def test_a_wrong_token_is_an_error(served: Served) -> None:
    assert served.security is not None
    security = ClientSecurity(token="wrong", roots=served.security.roots)
    connection = Connection(served.listener.location, security)
    with pytest.raises(AccessDenied, match=r"refused echo: the token is missing or wrong; give a token that is in"):
        connection.ask(ECHO, 10, "echo")
    connection.close()


def test_a_request_that_is_too_large_is_refused_once() -> None:
    with serve(max_request_bytes=1000) as served:
        connection = to(served.listener.location)
        with pytest.raises(SettingsError, match="max-request-bytes"):
            connection.ask(Frame({"op": "echo"}, [np.zeros(100_000)]), 10, "echo")
        assert served.listener.num_refused_calls == 1
        assert len(connection.ask(ECHO, 10, "echo").header) == 1
        assert served.listener.num_connections == 1
        connection.close()


WELCOMES: list[tuple[bytes, type[HopstreamError], str]] = [
    (encode_welcome(Status.OTHER_VERSION, "no"), StoreUnavailable, "no"),
    (WELCOME.pack(MAGIC, 3, 1, 0, 0, 0), VersionMismatch, "speaks version 3 of the protocol; this one speaks 2"),
    (encode_welcome(Status.GONE, "the server is shutting down"), StoreUnavailable, "shutting down"),
    (encode_welcome(Status.REFUSED, "the token is missing or wrong"), AccessDenied, "missing or wrong"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", StoreUnavailable, "not a hopstream server of this version; check the port"),
    (WELCOME.pack(MAGIC, 2, 0, 0, 0, 5000), StoreUnavailable, "not a hopstream server of this version"),
    (b"", StoreUnavailable, "the connection was closed before an answer"),
    (encode_welcome(Status.OK)[:10], StoreUnavailable, "the connection was closed before an answer"),
]


@pytest.mark.parametrize(("said", "error", "message"), WELCOMES)
@pytest.mark.parametrize("is_reset", [False, True])
def test_other_welcomes_are_errors(said: bytes, error: type[HopstreamError], message: str, is_reset: bool) -> None:
    with Stub() as stub, ThreadPoolExecutor(1) as pool:
        connection = to(stub.where)
        asking = pool.submit(connection.ask, ECHO, 10, "echo")
        with stub.accept() as server:
            server.read(len(encode_hello(None)))
            server.send(said)
            if is_reset and not said:
                server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with pytest.raises(error, match=message):
            asking.result(5)
        connection.close()


def test_answers_without_exactly_one_frame_are_refused(served: Served) -> None:
    connection = connection_of(served)
    with pytest.raises(FormatError, match="gave an empty answer to ask; it must be one frame"):
        connection.ask(Frame({"op": "nothing"}), 10, "ask")
    with pytest.raises(FormatError, match="more than one frame"):
        connection.ask(Frame({"op": "count", "num": 3}), 10, "ask")
    assert len(connection.ask(ECHO, 10, "echo").header) == 1
    connection.close()
