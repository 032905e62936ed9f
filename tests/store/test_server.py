"""Checks that a server refuses wrong messages, survives faults, and closes in order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hopstream.arrays import IntArray
from hopstream.dataset.layout import open_dataset
from hopstream.errors import (
    AccessDenied,
    RemoteError,
    StoreUnavailable,
)
from hopstream.graph.graph import Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.store.contract import SampleReply, SampleRequest
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits, StoreSettings
from hopstream.transport.messages import ANSWER, GOODBYE, PONG, Frame
from hopstream.transport.security import ServerSecurity
from tests.store.cases import Case
from tests.store.processes import ServerProcess, wait_until
from tests.transport.peer import Peer, message_bytes

CITES = ("paper", "cites", "paper")
IDS = np.arange(3, dtype=np.uint32)


@pytest.fixture
def server(typed_case: Case) -> Iterator[StoreServer]:
    with StoreServer(typed_case.shared(), limits=ServerLimits(max_ids=50, max_reply_bytes=100_000)) as server:
        yield server


@pytest.fixture
def client(server: StoreServer) -> Iterator[Peer]:
    with Peer(server.location) as client:
        yield client


def request_of(case: Case, header: dict[str, object], *arrays: np.ndarray) -> Frame:
    return Frame({"dataset": case.dataset.manifest.dataset_id, **header}, arrays)


@pytest.mark.parametrize("kind", [ANSWER, PONG, GOODBYE])
def test_messages_that_a_client_does_not_send_end_its_connection(client: Peer, server: StoreServer, kind: int) -> None:
    client.send(message_bytes(kind, 1))
    assert client.is_closed_within(5)
    with Peer(server.location) as other:
        assert len(other.ask(Frame({"op": "describe"}))) == 1


class BrokenStore(LocalStore):
    """A store that fails after the first frames."""

    def draw(self, request: SampleRequest) -> SampleReply:
        if request.ids.max(initial=0) > 5:
            raise ZeroDivisionError("a bug in the store")
        return super().draw(request)


def test_a_bug_in_the_store_is_returned_with_the_servers_traceback(typed_case: Case) -> None:
    broken = BrokenStore(typed_case.dataset)
    limits = ServerLimits(frame_bytes=40)
    with broken, StoreServer(broken, limits=limits) as server, RemoteStore(server.location) as store:
        request = SampleRequest(edge_type=CITES, direction="in", ids=np.arange(60), count=3)
        with pytest.raises(RemoteError) as caught:
            store.sample([request])
        lines = str(caught.value).splitlines()
        assert lines[0] == (
            f"parts 0, 1, 2 at {server.location} failed in sample(paper__cites__paper/in, 60 ids): "
            "ZeroDivisionError: a bug in the store"
        )
        assert lines[1:3] == ["--- server traceback ---", "Traceback (most recent call last):"]
        assert "in draw" in caught.value.remote_traceback
        assert len(store.sample([SampleRequest(edge_type=CITES, direction="in", ids=np.arange(5), count=3)])) == 1
        assert (server.stats.num_failures, server.stats.num_refusals) == (1, 0)


def test_statistics_count_requests_and_bytes(typed_case: Case, server: StoreServer, client: Peer) -> None:
    frame = request_of(typed_case, {"op": "split", "node_type": "paper", "name": "train"})
    client.ask(frame)
    client.ask(Frame({"op": "nonsense"}))
    wait_until(lambda: server.stats.num_requests == 2, "both are counted")
    stats = server.stats
    assert (stats.num_requests, stats.num_refusals, stats.num_failures) == (2, 1, 0)
    assert stats.num_bytes >= 30 * 8
    header = client.ask(request_of(typed_case, {"op": "stats"}))[0].header
    assert (header["num_requests"], header["num_refusals"], header["num_failures"]) == (2, 1, 0)  # itself not yet


def test_more_operations_are_answered_beside_the_stores(typed_case: Case) -> None:
    def double(frame: Frame) -> Iterator[Frame]:
        yield Frame({}, [2 * frame.array(0, ("uint32",))])

    with (
        StoreServer(typed_case.shared(), operations={"double": double}) as server,
        Peer(server.location) as client,
    ):
        (answer,) = client.ask(request_of(typed_case, {"op": "double"}, IDS))
        assert answer.arrays[0].tolist() == [0, 2, 4]


def test_a_port_in_use_is_an_error(typed_case: Case, server: StoreServer) -> None:
    port = server.location.rsplit(":", 1)[1]
    with pytest.raises(StoreUnavailable, match=f"cannot listen at .*port {port} is in use"):
        StoreServer(typed_case.shared(), server.location)


def test_an_address_of_another_machine_is_an_error(typed_case: Case) -> None:
    for host in ("[::1%nowhere]", "192.0.2.1"):
        with pytest.raises(StoreUnavailable, match=r"cannot listen at .*; give a name or address of this machine$"):
            StoreServer(typed_case.shared(), f"tcp://{host}:1", security=ServerSecurity(is_insecure=True))


@pytest.mark.parametrize("location", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://10.1.2.3:0", "tcp://host.example:0"])
def test_an_open_address_needs_tls_and_a_token(typed_case: Case, location: str) -> None:
    with pytest.raises(AccessDenied, match="can be reached from other machines"):
        StoreServer(typed_case.shared(), location)


def test_insecure_servers_log_a_warning(typed_case: Case, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        StoreServer(typed_case.shared(), "tcp://0.0.0.0:0", security=ServerSecurity(is_insecure=True)) as server,
    ):
        assert not server.location.endswith(":0")
    assert "INSECURE: tcp://0.0.0.0:0 can be reached from other machines without a token" in caplog.text


def test_closing_refuses_new_calls_and_is_idempotent(typed_case: Case) -> None:
    server = StoreServer(typed_case.shared())
    assert server.close()
    assert server.close()
    with pytest.raises(StoreUnavailable, match="start the server"):
        RemoteStore(server.location, StoreSettings(timeout_s=5))


class GatedStore(LocalStore):
    """A store whose draws wait for an event."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.dataset)
        self.is_entered = threading.Event()
        self.may_go_on = threading.Event()

    def num_drawn_bound(self, request: SampleRequest) -> IntArray:
        if len(request.ids):  # a starting server samples without ids
            self.is_entered.set()
            assert self.may_go_on.wait(30)
        return super().num_drawn_bound(request)


def test_closing_lets_calls_under_way_finish(typed_case: Case) -> None:
    gated = GatedStore(typed_case)
    server = StoreServer(gated)
    store = RemoteStore(server.location)
    request = SampleRequest(edge_type=CITES, direction="in", ids=np.arange(9), count=-1)
    pending = store.submit_sample([request])
    assert gated.is_entered.wait(20)
    outcome: list[bool] = []
    closing = threading.Thread(target=lambda: outcome.append(server.close(30)))
    closing.start()
    gated.may_go_on.set()
    assert pending.result()[0].counts.tolist() == typed_case.shared().sample([request])[0].counts.tolist()
    closing.join(30)
    assert outcome == [True]
    store.close()


def test_closing_abandons_calls_that_take_too_long(typed_case: Case) -> None:
    gated = GatedStore(typed_case)
    server = StoreServer(gated)
    store = RemoteStore(server.location).with_timeout(20, is_patient=False)
    pending = store.submit_sample([SampleRequest(edge_type=CITES, direction="in", ids=np.arange(9), count=-1)])
    assert gated.is_entered.wait(20)
    assert not server.close(0.05)
    gated.may_go_on.set()
    with pytest.raises(StoreUnavailable, match="cannot be reached for sample"):
        pending.result()
    server.close(20)
    store.close()


BIG_ROWS = 1 << 15
BIG_WIDTH = 1000


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of one column of 131 MB."""
    root = tmp_path_factory.mktemp("big") / "parts"
    column = np.zeros((BIG_ROWS, BIG_WIDTH), np.float32)
    column[:, 0] = np.arange(BIG_ROWS)
    write_parts(
        Graph(nodes={"node": NodeTable(num_nodes=BIG_ROWS, features={"x": column})}).check(), root, method="hash"
    )
    return root


def big_request(root: Path, num_rows: int) -> Frame:
    header = {
        "op": "fetch",
        "dataset": open_dataset(root).manifest.dataset_id,
        "requests": [{"owner": "node", "names": ["x"], "ids": 0}],
    }
    return Frame(header, [np.arange(num_rows, dtype=np.uint32)])


def is_refusing(location: str) -> bool:
    try:
        with RemoteStore(location, StoreSettings(timeout_s=1)):  # the server gives the test 10 s to read a message
            return False
    except StoreUnavailable:
        return True


def test_sigterm_finishes_calls_under_way_and_exits_with_0(big: Path) -> None:
    with ServerProcess(big, "--grace", 60) as process, Peer(process.location) as client:
        number = client.start(big_request(big, BIG_ROWS), 60_000)
        first = client.next()[1].arrays[0].shape[0]
        process.terminate()
        wait_until(lambda: is_refusing(process.location), "the server refuses new calls")
        num_rows, kinds = first, set()
        while num_rows < BIG_ROWS:
            prefix, frame = client.next()
            kinds.add((prefix.kind, prefix.number))
            if prefix.kind == ANSWER:
                (rows,) = frame.arrays
                assert rows[:, 0].tolist() == list(range(num_rows, num_rows + len(rows)))
                num_rows += len(rows)
        assert frame.is_last
        assert kinds == {(ANSWER, number), (GOODBYE, 0)}
        assert client.is_closed_within(5)
        assert process.wait() == 0


@pytest.mark.slow
def test_sigterm_exits_with_1_where_a_client_has_stopped_reading(big: Path) -> None:
    with ServerProcess(big, "--grace", 0.2) as process, Peer(process.location) as client:
        client.start(big_request(big, BIG_ROWS), 60_000)
        client.next()
        process.terminate()
        assert process.wait() == 1
