"""Checks what a client hears of servers that do not answer, and that it finds those that do again."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import pyarrow as pa
import pytest
from hopstream.store.connection import _reason
from pyarrow import flight

from hopstream.errors import FormatError, RemoteError, ServerBusy, StoreUnavailable
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.store.wire import BATCH_SCHEMA, to_batch
from hopstream.transport.connection import Connection
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from tests.store.busy import make_busy
from tests.store.cases import Case
from tests.store.processes import ServerProcess, wait_until

SOON = StoreSettings(timeout_s=10)


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen at a port, do something with every connection, and close it."""
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
            "it again, check the port, or write grpc[+]tls://",
        ),
        (answer_as_a_web_server, "what listens there is no hopstream server; check the port"),
    ],
)
def test_a_peer_of_another_kind_is_told(answer: Callable[[socket.socket], None], message: str) -> None:
    with listening(answer) as location, pytest.raises(StoreUnavailable) as caught:
        RemoteStore(location, SOON)
    assert str(caught.value) == f"{location} cannot be reached for hello(): {message.replace('[+]', '+')}"


def test_nobody_there_is_told() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        RemoteStore("tcp://127.0.0.1:1", SOON)
    assert str(caught.value) == (
        "tcp://127.0.0.1:1 cannot be reached for hello(): nothing listens there; start the server, or check host and "
        "port"
    )


def test_a_host_without_address_is_told() -> None:
    with pytest.raises(StoreUnavailable, match=r"the host's name is not known; check the address, or write the"):
        RemoteStore("tcp://nowhere.invalid:7001", SOON)


def test_a_server_without_tls_is_told(typed_case: Case) -> None:
    with (
        StoreServer(typed_case.shared()) as server,
        pytest.raises(StoreUnavailable, match=r"it speaks no TLS; write tcp:// instead of grpc\+tls://"),
    ):
        RemoteStore(server.location.replace("grpc:", "tls:"), SOON)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Stream removed (Socket closed)", "the connection was lost; see what ended the server"),
        ("recvmsg:Connection reset by peer", "the connection was lost"),
        ("failed to connect; last error: UNKNOWN: ipv4:1.2.3.4:5: No route to host", "no network leads there"),
        ("Network is unreachable", "no network leads there"),
        ("Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed",
         "no TLS connection could be made (certificate verify failed); check the roots, the certificates"),
        ("something else", "something else; start the server, or check the address"),
    ],
)  # fmt: skip
def test_words_of_the_transport_are_replaced(text: str, told: str) -> None:
    assert _reason(text).startswith(told)


def test_a_server_that_came_back_is_found_at_once(typed_case: Case) -> None:
    with ServerProcess(typed_case.root) as process:
        store = RemoteStore(process.location, SOON)
        wanted = store.split("paper", "train").tolist()
        process.kill()
        for _ in range(3):  # the transport would refuse by itself for a while now
            with pytest.raises(StoreUnavailable, match="nothing listens there"):
                store.split("paper", "train")
        with ServerProcess(typed_case.root, "--location", process.location):
            assert store.split("paper", "train").tolist() == wanted
        store.close()


def test_an_answer_of_one_frame_has_no_more_and_no_less(typed_case: Case) -> None:
    def several(frame: Frame) -> Iterator[Frame]:
        return (Frame({"number": number}) for number in range(frame.header["count"]))

    with LocalStore(typed_case.dataset) as store, StoreServer(store, operations={"several": several}) as server:
        connection = Connection(Location.parse(server.location), SOON)

        def ask(count: int) -> dict[str, object]:
            request = Frame({"op": "several", "count": count, "dataset": store.dataset_id})
            return connection.ask(request, 10, "several").header

        assert ask(1) == {"number": 0}
        with pytest.raises(FormatError, match=r"tcp://.* gave an empty answer to several"):
            ask(0)
        with pytest.raises(FormatError, match="more than one frame"):
            ask(2)
        connection.close()


CLOSED = flight.FlightUnavailableError("Socket closed")


class FlakyServer(flight.FlightServerBase):
    """Answers each call with as many frames as it is told, and then fails or ends."""

    def __init__(self) -> None:
        super().__init__("tcp://127.0.0.1:0")
        self.plan: list[tuple[int, bool]] = []
        self.num_calls = 0
        self.failure: Exception = CLOSED

    def do_get(self, context: object, ticket: flight.Ticket) -> flight.GeneratorStream:
        self.num_calls += 1
        num_frames, fails = self.plan.pop(0)
        return flight.GeneratorStream(BATCH_SCHEMA, self.frames(num_frames, fails))

    def frames(self, num_frames: int, fails: bool) -> Iterator[pa.RecordBatch]:
        for number in range(num_frames):
            yield to_batch(Frame({"number": number}))
        if fails:
            raise self.failure


class Numbers:
    """Keeps the numbers of frames."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def take(self, frame: Frame) -> None:
        self.taken.append(frame.header["number"])


@pytest.mark.parametrize(
    ("plan", "taken", "failure"),
    [
        ([(2, False)], [0, 1], CLOSED),
        ([(0, True), (2, False)], [0, 1], CLOSED),
        ([(0, True), (0, True)], None, CLOSED),
        ([(1, True)], None, CLOSED),
        ([(0, True), (2, False)], [0, 1], flight.FlightInternalError("Received RST_STREAM with error code 2")),
        ([(0, True), (2, False)], [0, 1], flight.FlightInternalError("Stream removed")),
    ],
    ids=["well", "lost before an answer", "lost again", "lost in an answer", "reset", "removed"],
)
def test_a_lost_call_is_repeated_once_where_nothing_was_answered(
    plan: list[tuple[int, bool]], taken: list[int] | None, failure: Exception
) -> None:
    with FlakyServer() as server:
        server.failure = failure
        connection = Connection(Location.parse(f"tcp://127.0.0.1:{server.port}"), SOON)
        server.plan = [(0, False), *plan]
        connection.call(Frame({}), 10, "greet()", Numbers())
        numbers = Numbers()
        if taken is None:
            with pytest.raises(StoreUnavailable, match=r"cannot be reached for ask\(\): the connection was lost"):
                connection.call(Frame({}), 10, "ask()", numbers)
        else:
            connection.call(Frame({}), 10, "ask()", numbers)
            assert numbers.taken == taken
        assert server.num_calls == 1 + len(plan)
        assert connection.close()
        server.shutdown()


class Began:
    """Tells when an answer begins."""

    def __init__(self) -> None:
        self.future: Future[None] = Future()

    def take(self, frame: Frame) -> None:
        if not self.future.done():
            self.future.set_result(None)


def test_a_server_that_can_start_no_thread_is_asked_again_until_it_can(typed_case: Case) -> None:
    """As it is where a server with ``--memory-bytes`` has many calls under way."""
    with ServerProcess(typed_case.root) as process, ThreadPoolExecutor() as pool:
        connection = Connection(Location.parse(process.location), SOON)
        dataset_id = typed_case.dataset.manifest.dataset_id
        hold, ask = (Frame({"op": op, "dataset": dataset_id}) for op in ("hold", "stats"))
        for _ in range(8):
            held, began = pool.submit(connection.call, hold, 60, "hold", read := Began(), is_patient=False), read.future
            wait([held, began], 20, "FIRST_COMPLETED")
            if not began.done():
                break
        with pytest.raises(ServerBusy, match=r"tcp://.* is too busy for hold: it can start no thread for"):
            held.result()
        attempts = make_busy(connection, 0)
        waiting = pool.submit(connection.call, ask, 20, "stats", Began())
        wait_until(lambda: len(attempts) > 2, "asked again")
        assert not waiting.done()
        process.release()
        waiting.result(20)
        assert connection.close()


def test_a_busy_server_is_told_at_the_deadline_or_when_the_store_is_closed() -> None:
    connection = Connection(Location.parse("tcp://127.0.0.1:1"), SOON)
    attempts = make_busy(connection, 1e9)
    with pytest.raises(ServerBusy):
        connection.call(Frame({}), 0.2, "ask()", Numbers())
    assert 2 <= len(attempts) <= 3  # after 0, 50 and 150 ms
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(connection.call, Frame({}), 60, "ask()", Numbers())
        wait_until(lambda: len(attempts) > 4, "asked")
        connection.close()
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            waiting.result(5)


def test_a_message_that_is_too_large_is_not_sent_again() -> None:
    connection = Connection(Location.parse("tcp://127.0.0.1:1"), SOON)
    text = "gRPC returned resource exhausted error, with message: CLIENT: Received message larger than max (9 vs. 4)"
    connection._try = lambda *_: pa.ArrowInvalid(text)  # type: ignore[method-assign]
    with pytest.raises(RemoteError, match="larger than max"):
        connection.call(Frame({}), 60, "ask()", Numbers())
    assert connection.close()


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


def test_a_fork_is_told_so_at_once_and_ends_well(typed_case: Case) -> None:
    with ServerProcess(typed_case.root) as process:
        done = subprocess.run(
            [sys.executable, "-c", FORKED, process.location], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    said, numbers = done.stdout.splitlines()
    parent, child, status = numbers.split()
    assert status == "7", done.stderr
    assert re.search(rf"was made in process {parent} and used in its fork {child}; .* workers with spawn$", said)


@pytest.mark.parametrize(("given", "is_quiet"), [(None, True), ("ERROR", False)], ids=["as it is", "asked for"])
def test_the_transport_writes_nothing_of_its_own_unless_it_is_asked_to(given: str | None, is_quiet: bool) -> None:
    code = """
import hopstream, socket, sys
from hopstream.transport.location import Location
from hopstream.transport.security import ServerSecurity
from hopstream.store.server import _listen
with socket.create_server(("127.0.0.1", 0)) as taken:
    try:
        _listen(None, Location("127.0.0.1", taken.getsockname()[1]), ServerSecurity())
    except hopstream.errors.StoreUnavailable as error:
        print(error)
"""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    if given is not None:
        environment["GRPC_VERBOSITY"] = given
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment
    )  # fmt: skip
    assert done.returncode == 0 and "is in use; choose another" in done.stdout
    assert (done.stderr == "") is is_quiet, done.stderr
