"""Checks a client's errors for servers that do not answer, and that it finds them again."""

from __future__ import annotations

import errno
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from hopstream.arrays import Array
from hopstream.errors import FormatError, ServerBusy, StoreUnavailable
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits, StoreSettings
from hopstream.transport.calls import Call
from hopstream.transport.connection import Connection
from hopstream.transport.link import _told
from hopstream.transport.listener import Listener
from hopstream.transport.location import Location
from hopstream.transport.messages import ArraySpec, Frame, empty_arrays
from hopstream.transport.security import ClientSecurity
from tests.store.busy import make_busy
from tests.store.cases import Case
from tests.store.processes import ServerProcess, wait_until

SOON = StoreSettings(timeout_s=10)


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen at a port, call a function with every connection, and close it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while not is_over.is_set():
                connection, _ = listener.accept()
                with connection:
                    answer(connection)

        is_over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield f"tcp://127.0.0.1:{port}"
        finally:
            is_over.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join(20)


def hang_up(connection: socket.socket) -> None:
    """Say nothing."""


def answer_as_a_web_server(connection: socket.socket) -> None:
    connection.settimeout(5)
    if connection.recv(1000):
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            hang_up,
            "the connection was closed before an answer: the server has ended, is another program, or has TLS; start "
            "it again, check the port, or write tls://",
        ),
        (
            answer_as_a_web_server,
            "the program at this address is not a hopstream server of this version; check the port",
        ),
    ],
)
def test_a_peer_with_another_protocol_is_reported(answer: Callable[[socket.socket], None], message: str) -> None:
    with listening(answer) as location, pytest.raises(StoreUnavailable) as caught:
        RemoteStore(location, SOON)
    assert str(caught.value) == f"{location} cannot be reached for describe(): {message}"


def test_a_port_without_listener_is_reported() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        RemoteStore("tcp://127.0.0.1:1", SOON)
    assert str(caught.value) == (
        "tcp://127.0.0.1:1 cannot be reached for describe(): nothing listens there; start the server, or check the "
        "address"
    )


def test_an_unknown_host_is_reported() -> None:
    with pytest.raises(StoreUnavailable, match=r"the host's name is not known; check the address, or write the"):
        RemoteStore("tcp://nowhere.invalid:7001", SOON)


def test_a_server_without_tls_is_reported(typed_case: Case) -> None:
    with (
        StoreServer(typed_case.shared()) as server,
        pytest.raises(StoreUnavailable, match=r"no TLS.* write tcp://"),
    ):
        RemoteStore(server.location.replace("tcp:", "tls:"), SOON)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "the connection was closed before an"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "no network route leads to the address; check the address"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "no network route leads to the address"),
        (ssl.SSLError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get (_ssl.c:1006)"),
         "no TLS connection could be made ([SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get); "
         "check the roots, the certificates"),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)"),
         "no TLS connection could be made ([SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca): the server refuses "
         "the certificate of this client; give one that leads to the server's --client-ca"),
        (ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate (_ssl.c:2580)"),
         "no TLS connection could be made ([SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate): "
         "the server refuses the certificate of this client"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"),
         "the server has no TLS; write tcp:// instead of tls://"),
        (socket.gaierror(-2, "Name or service not known"), "the host's name is not known"),
        (OSError("something else"), "something else; start the server, or check the address"),
    ],
)  # fmt: skip
def test_system_error_messages_are_replaced(error: Exception, told: str) -> None:
    assert _told(error, Location.parse("tcp://there:1")).startswith(told)


def test_a_restarted_server_is_found_at_once(typed_case: Case) -> None:
    with ServerProcess(typed_case.root) as process:
        store = RemoteStore(process.location, SOON)
        wanted = store.split("paper", "train").tolist()
        process.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="nothing listens there"):
                store.split("paper", "train")
        with ServerProcess(typed_case.root, "--location", process.location):
            assert store.split("paper", "train").tolist() == wanted
        store.close()


def test_an_answer_of_one_frame_has_exactly_one(typed_case: Case) -> None:
    def several(frame: Frame) -> Iterator[Frame]:
        return (Frame({"number": number}) for number in range(frame.header["count"]))

    with LocalStore(typed_case.dataset) as store, StoreServer(store, operations={"several": several}) as server:
        connection = Connection(Location.parse(server.location), ClientSecurity())

        def ask(count: int) -> dict[str, object]:
            request = Frame({"op": "several", "count": count, "dataset": store.dataset_id})
            return connection.ask(request, 10, "several").header

        assert ask(1) == {"number": 0}
        with pytest.raises(FormatError, match=r"tcp://.* gave an empty answer to several"):
            ask(0)
        with pytest.raises(FormatError, match="more than one frame"):
            ask(2)
        connection.close()


class FlakyServer:
    """Server that answers each call with a planned number of frames, and then fails or ends the answer."""

    def __init__(self, plan: list[tuple[int, bool]]) -> None:
        self._plan = list(plan)
        self.num_calls = 0
        self._listener = Listener(Location.parse("tcp://127.0.0.1:0"), self._answer)

    def _answer(self, call: Call) -> Iterator[Frame]:
        self.num_calls += 1
        num_frames, fails = self._plan.pop(0)
        for number in range(num_frames):
            yield Frame({"number": number})
        if fails:
            call._peer.stream.shut_down()

    def connect(self) -> Connection:
        return Connection(self._listener.location, ClientSecurity())

    def __enter__(self) -> FlakyServer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._listener.close(5)


class Numbers:
    """Keeps the numbers of frames."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        return empty_arrays(specs)

    def take(self, frame: Frame) -> None:
        self.taken.append(frame.header["number"])


@pytest.mark.parametrize(
    ("plan", "taken"),
    [
        ([(2, False)], [0, 1]),
        ([(0, True), (2, False)], [0, 1]),
        ([(0, True), (0, True)], None),
        ([(1, True)], None),
    ],
    ids=["well", "lost before an answer", "lost again", "lost in an answer"],
)
def test_a_lost_call_without_answer_is_repeated_once(plan: list[tuple[int, bool]], taken: list[int] | None) -> None:
    with FlakyServer([(0, False), *plan]) as server:
        connection = server.connect()
        connection.call(Frame({}), 10, "greet()", Numbers())
        numbers = Numbers()
        if taken is None:
            with pytest.raises(StoreUnavailable, match=r"cannot be reached for ask\(\): the server closed the conn"):
                connection.call(Frame({}), 10, "ask()", numbers)
        else:
            connection.call(Frame({}), 10, "ask()", numbers)
            assert numbers.taken == taken
        assert server.num_calls == 1 + len(plan)
        connection.close()


def test_a_call_over_a_new_connection_is_not_repeated() -> None:
    with FlakyServer([(0, True)]) as server:
        connection = server.connect()
        with pytest.raises(StoreUnavailable, match=r"cannot be reached for ask\(\)"):
            connection.call(Frame({}), 10, "ask()", Numbers())
        assert server.num_calls == 1
        connection.close()


def test_calls_to_a_full_server_are_repeated_until_accepted(typed_case: Case) -> None:
    may_end = threading.Event()

    def hold(frame: Frame) -> Iterator[Frame]:
        yield Frame({"number": 1})
        assert may_end.wait(20)

    limits = ServerLimits(max_calls=2)
    with (
        LocalStore(typed_case.dataset) as store,
        StoreServer(store, limits=limits, operations={"hold": hold}) as server,
        ThreadPoolExecutor() as pool,
    ):
        connection = Connection(Location.parse(server.location), ClientSecurity())
        ask = Frame({"op": "hold", "dataset": store.dataset_id})
        held = [Numbers(), Numbers()]
        holding = [pool.submit(connection.call, ask, 20, "hold", numbers) for numbers in held]
        wait_until(lambda: [numbers.taken for numbers in held] == [[1], [1]], "both calls are held")
        with pytest.raises(
            ServerBusy, match=r"tcp://.* is too busy for hold: the server answers 2 requests, the maximum"
        ):
            connection.call(ask, 20, "hold", Numbers(), is_patient=False)
        attempts = make_busy(connection, 0)
        waiting = pool.submit(connection.call, ask, 20, "hold", last := Numbers())
        wait_until(lambda: len(attempts) > 2, "asked again")
        assert not waiting.done()
        may_end.set()
        for future in (*holding, waiting):
            future.result(20)
        assert last.taken == [1]
        connection.close()


def test_a_busy_server_is_an_error_at_the_deadline_or_close() -> None:
    connection = Connection(Location.parse("tcp://127.0.0.1:1"), ClientSecurity())
    attempts = make_busy(connection, 1e9)
    with pytest.raises(ServerBusy):
        connection.call(Frame({}), 0.2, "ask()", Numbers())
    assert 2 <= len(attempts) <= 3  # after 0, 50 and 150 ms
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(connection.call, Frame({}), 60, "ask()", Numbers())
        wait_until(lambda: len(attempts) > 4, "asked")
        connection.close()
        with pytest.raises(StoreUnavailable, match=r"the store (is|was) closed"):
            waiting.result(5)


FORKED = """
import os, sys, warnings
from hopstream.errors import StateError
from hopstream.store import open_store
from hopstream.store.settings import StoreSettings

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads, which is the point
store = open_store(sys.argv[1], StoreSettings(timeout_s=10, prefer_local=False))
wanted = store.split("paper", "train").tolist()
child = os.fork()
if child == 0:
    try:
        store.split("paper", "train")
    except StateError as error:
        print(error, flush=True)
        store.close()
        sys.exit(7)
    sys.exit(1)
print(os.getpid(), child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert store.split("paper", "train").tolist() == wanted
store.close()
"""


def test_a_forked_process_gets_an_error_and_exits_cleanly(typed_case: Case) -> None:
    with ServerProcess(typed_case.root) as process:
        done = subprocess.run(
            [sys.executable, "-c", FORKED, process.location], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    said, numbers = done.stdout.splitlines()
    parent, child, status = numbers.split()
    assert status == "7", done.stderr
    assert re.search(rf"was made in process {parent} and used in its fork {child}; .* workers with spawn$", said)
