"""Does a server refuse what it must, survive what it is sent, and end as it is told?"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from pyarrow import flight

from hopstream.arrays import IntArray, RaggedArray
from hopstream.errors import (
    AccessDenied,
    FormatError,
    HopstreamError,
    IdRangeError,
    RemoteError,
    SettingsError,
    StoreUnavailable,
    UnknownNameError,
    VersionMismatch,
)
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.partition.layout import open_dataset
from hopstream.partition.write import write_parts
from hopstream.store.contract import KEY, SampleReply, SampleRequest
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits, StoreSettings
from hopstream.store.wire import MAGIC, PREFIX, VERSION, Frame, decode_frame, encode_frame, from_batch, raise_error
from tests.store.cases import Case
from tests.store.processes import ServerProcess, wait_until

CITES = ("paper", "cites", "paper")


def ask(client: flight.FlightClient, request: bytes) -> list[Frame]:
    """The frames of an answer to raw bytes."""
    return list(frames_of(client.do_get(flight.Ticket(request), flight.FlightCallOptions(timeout=20))))


def frames_of(stream: flight.FlightStreamReader) -> Iterator[Frame]:
    """The frames of an answer, one after the other."""
    while True:
        try:
            chunk = stream.read_chunk()
        except StopIteration:
            return
        yield decode_frame(from_batch(chunk.data))


@pytest.fixture
def server(typed_case: Case) -> Iterator[StoreServer]:
    with StoreServer(typed_case.shared(), limits=ServerLimits(max_ids=50, max_reply_bytes=100_000)) as server:
        yield server


@pytest.fixture
def client(server: StoreServer) -> Iterator[flight.FlightClient]:
    with flight.FlightClient(server.location) as client:
        yield client


def request_of(case: Case, header: dict[str, object], *arrays: np.ndarray) -> bytes:
    return encode_frame({"dataset": case.dataset.manifest.dataset_id, **header}, arrays).tobytes()


IDS = np.arange(3, dtype=np.uint32)
SAMPLE: dict[str, object] = {"owner": [*CITES, "in"], "ids": 0, "count": 2, "is_replacing": False, "rng_seed": 1}


@pytest.mark.parametrize(
    ("header", "arrays", "error", "message"),
    [
        ({}, [], FormatError, "'op' is None"),
        ({"op": 3}, [], FormatError, "'op' is 3"),
        ({"op": "exec"}, [], FormatError, "unknown operation 'exec'; known: .'hello', 'sample'"),
        ({"op": "sample", "dataset": "other"}, [], VersionMismatch, "serves dataset .*open the store again"),
        ({"op": "sample", "dataset": None}, [], FormatError, "'dataset'"),
        ({"op": "sample"}, [], FormatError, "'requests'"),
        ({"op": "sample", "requests": [3]}, [], FormatError, "'requests'"),
        ({"op": "sample", "requests": [{}]}, [], FormatError, "array None"),
        ({"op": "sample", "requests": [{**SAMPLE, "ids": 1}]}, [IDS], FormatError, "array 1 was named"),
        ({"op": "sample", "requests": [{**SAMPLE, "ids": -1}]}, [IDS], FormatError, "array -1 was named"),
        ({"op": "sample", "requests": [{**SAMPLE, "ids": True}]}, [IDS], FormatError, "array True was named"),
        ({"op": "sample", "requests": [SAMPLE]}, [IDS.astype(np.float32)], FormatError, "must be uint32|int64"),
        ({"op": "sample", "requests": [SAMPLE]}, [IDS.reshape(1, 3)], FormatError, "must be uint32|int64"),
        ({"op": "sample", "requests": [{**SAMPLE, "count": -2}]}, [IDS], FormatError, "'count' is -2"),
        ({"op": "sample", "requests": [{**SAMPLE, "count": 1 << 40}]}, [IDS], FormatError, "'count'"),
        ({"op": "sample", "requests": [{**SAMPLE, "count": "3"}]}, [IDS], FormatError, "'count' is 3"),
        ({"op": "sample", "requests": [{**SAMPLE, "rng_seed": -1}]}, [IDS], FormatError, "'rng_seed'"),
        ({"op": "sample", "requests": [{**SAMPLE, "owner": "paper"}]}, [IDS], FormatError, "an edge type with"),
        ({"op": "sample", "requests": [{**SAMPLE, "owner": ["a", "b", "c", "in"]}]}, [IDS], UnknownNameError, "'b'"),
        ({"op": "sample", "requests": [SAMPLE]}, [IDS + 58], IdRangeError, "60"),
        ({"op": "sample", "requests": [SAMPLE]}, [-IDS.astype(np.int64)], IdRangeError, "-1"),
        ({"op": "sample", "requests": [SAMPLE]}, [np.zeros(51, np.uint32)], SettingsError, "51 ids .* takes 50"),
        ({"op": "sample", "requests": [SAMPLE] * 17}, [IDS], SettingsError, "51 ids .* takes 50"),
        ({"op": "sample", "requests": [SAMPLE] * 20_000}, [IDS[:0]], SettingsError, "20000 requests"),
        ({"op": "sample", "requests": [{**SAMPLE, "count": 1 << 30, "is_replacing": True}]}, [IDS], SettingsError,
         "the answer has .* bytes or more; this server sends 100000"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": "feat", "ids": 0}]}, [IDS], FormatError, "'names'"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": [3], "ids": 0}]}, [IDS], FormatError, "'names'"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": ["feat"] * 2, "ids": 0}]}, [IDS], FormatError,
         "a name twice"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": ["ghost"], "ids": 0}]}, [IDS], UnknownNameError,
         "ghost"),
        ({"op": "fetch", "requests": [{"owner": 3, "names": ["feat"], "ids": 0}]}, [IDS], FormatError, "3 is not"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": ["feat"], "ids": 0}]}, [IDS + 58], IdRangeError,
         "60"),
        ({"op": "lookup", "node_type": "paper"}, [], FormatError, "array 0 was named"),
        ({"op": "lookup", "node_type": "paper"}, [IDS + 58], IdRangeError, "60"),
        ({"op": "lookup", "node_type": "ghost"}, [IDS], UnknownNameError, "ghost"),
        ({"op": "lookup", "node_type": "paper"}, [np.zeros(51, np.int64)], SettingsError, "takes 50"),
        ({"op": "degrees", "owner": "paper"}, [IDS], FormatError, "an edge type with"),
        ({"op": "degrees", "owner": [*CITES, "in"]}, [IDS + 58], IdRangeError, "60"),
        ({"op": "split", "node_type": "paper", "name": "ghost"}, [], UnknownNameError, "ghost"),
        ({"op": "split", "node_type": "paper"}, [], FormatError, "'name'"),
    ],
)  # fmt: skip
def test_requests_that_make_no_sense_are_refused(
    typed_case: Case, client: flight.FlightClient, header: dict[str, object], arrays: Sequence[np.ndarray],
    error: type[HopstreamError], message: str,
) -> None:  # fmt: skip
    frames = ask(client, request_of(typed_case, header, *arrays))
    assert len(frames) == 1
    with pytest.raises(error, match=message):
        raise_error(frames[0], "the server", "a test")


def test_a_request_of_another_version_is_refused_in_a_frame_that_it_can_read(client: flight.FlightClient) -> None:
    request = PREFIX.pack(MAGIC, VERSION + 1, 0, 0)
    with pytest.raises(VersionMismatch, match=f"version {VERSION + 1} .* speaks {VERSION}"):
        raise_error(ask(client, request)[0], "the server", "a test")


def test_mutated_requests_never_bring_the_server_down(
    typed_case: Case, client: flight.FlightClient, rng: np.random.Generator
) -> None:
    fetch = {"owner": "paper", "names": ["feat", "title", KEY], "ids": 0}
    good = [
        request_of(
            typed_case, {"op": "sample", "requests": [SAMPLE, {**SAMPLE, "count": -1, "wants_edge_ids": True}]}, IDS
        ),
        request_of(typed_case, {"op": "fetch", "requests": [fetch]}, IDS),
        request_of(typed_case, {"op": "degrees", "owner": [*CITES, "out"]}, IDS),
        request_of(typed_case, {"op": "split", "node_type": "paper", "name": "train"}),
        encode_frame({"op": "hello"}).tobytes(),
    ]
    num_refused = 0
    for turn in range(2000):
        request = bytearray(good[turn % len(good)])
        for _ in range(rng.integers(1, 4)):
            request[rng.integers(0, len(request))] = rng.integers(0, 256)
        if turn % 7 == 0:
            del request[rng.integers(0, len(request)) :]
        frames = ask(client, bytes(request))
        num_refused += "error" in frames[-1].header
        if "error" in frames[-1].header:
            assert frames[-1].header["error"]["kind"] in (
                "FormatError", "VersionMismatch", "UnknownNameError", "IdRangeError", "SettingsError",
            ), frames[-1].header["error"]  # fmt: skip
    assert num_refused > 1000
    for request in good:
        assert "error" not in ask(client, request)[-1].header


def test_calls_of_other_kinds_are_refused(client: flight.FlightClient) -> None:
    with pytest.raises((NotImplementedError, flight.FlightError)):
        list(client.list_flights())
    with pytest.raises((NotImplementedError, flight.FlightError)):
        list(client.do_action(flight.Action("x", b"")))


class BrokenStore(LocalStore):
    """A store with a bug that shows after the first frames."""

    def _sample(self, request: SampleRequest) -> SampleReply:
        if request.ids.max(initial=0) > 5:
            raise ZeroDivisionError("a bug in the store")
        return super()._sample(request)


def test_a_bug_in_the_store_comes_back_with_the_servers_traceback(typed_case: Case) -> None:
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
        assert "in _sample" in caught.value.remote_traceback
        assert len(store.sample([SampleRequest(edge_type=CITES, direction="in", ids=np.arange(5), count=3)])) == 1
        assert server.stats.num_failures == 1


def test_statistics_count_requests_and_bytes(
    typed_case: Case, server: StoreServer, client: flight.FlightClient
) -> None:
    frame = request_of(typed_case, {"op": "split", "node_type": "paper", "name": "train"})
    ask(client, frame)
    ask(client, b"nonsense")
    stats = server.stats
    assert (stats.num_requests, stats.num_failures) == (2, 1)
    assert stats.num_bytes > 30 * 8
    header = ask(client, request_of(typed_case, {"op": "stats"}))[0].header
    assert (header["num_requests"], header["num_failures"]) == (3, 1)


def test_more_operations_are_answered_beside_the_stores(typed_case: Case) -> None:
    def double(frame: Frame) -> Iterator[np.ndarray]:
        yield encode_frame({}, [2 * frame.array(0, ("uint32",))])

    with (
        StoreServer(typed_case.shared(), operations={"double": double}) as server,
        flight.FlightClient(server.location) as client,
    ):
        (answer,) = ask(client, request_of(typed_case, {"op": "double"}, IDS))
        assert answer.arrays[0].tolist() == [0, 2, 4]


def test_a_port_in_use_is_told(typed_case: Case, server: StoreServer) -> None:
    port = server.location.rsplit(":", 1)[1]
    with pytest.raises(StoreUnavailable, match=f"cannot listen at .*port {port} is in use"):
        StoreServer(typed_case.shared(), server.location)


def test_an_address_of_another_machine_is_told(typed_case: Case) -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot listen at grpc://127\.255\.255\.255:1|cannot listen"):
        StoreServer(typed_case.shared(), "grpc://[::1%nowhere]:1")


@pytest.mark.parametrize(
    "location", ["grpc://0.0.0.0:0", "grpc://[::]:0", "grpc://10.1.2.3:0", "grpc://host.example:0"]
)
def test_an_open_address_needs_tls_and_a_token(typed_case: Case, location: str) -> None:
    with pytest.raises(AccessDenied, match="can be reached from other machines"):
        StoreServer(typed_case.shared(), location)


def test_insecure_is_said_loudly(typed_case: Case, caplog: pytest.LogCaptureFixture) -> None:
    from hopstream.store.security import ServerSecurity

    with (
        caplog.at_level(logging.WARNING),
        StoreServer(typed_case.shared(), "grpc://0.0.0.0:0", security=ServerSecurity(is_insecure=True)) as server,
    ):
        assert not server.location.endswith(":0")
    assert "INSECURE: grpc://0.0.0.0:0 can be reached from other machines without a token" in caplog.text


def test_closing_refuses_new_calls_and_twice_is_once(typed_case: Case) -> None:
    server = StoreServer(typed_case.shared())
    assert server.close()
    assert server.close()
    with pytest.raises(StoreUnavailable, match="start the server"):
        RemoteStore(server.location, StoreSettings(timeout_s=5))


class GatedStore(LocalStore):
    """A store whose draws wait until they are let through."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.dataset)
        self.is_entered = threading.Event()
        self.may_go_on = threading.Event()

    def degrees(self, edge_type: tuple[str, str, str], direction: str, ids: IntArray) -> IntArray:
        self.is_entered.set()
        assert self.may_go_on.wait(30)
        return super().degrees(edge_type, direction, ids)  # type: ignore[arg-type]


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


def test_closing_gives_up_calls_that_take_too_long(typed_case: Case) -> None:
    gated = GatedStore(typed_case)
    server = StoreServer(gated)
    store = RemoteStore(server.location)
    pending = store.submit_sample([SampleRequest(edge_type=CITES, direction="in", ids=np.arange(9), count=-1)])
    assert gated.is_entered.wait(20)
    assert not server.close(0.05)
    gated.may_go_on.set()
    with pytest.raises(StoreUnavailable, match="shutting down"):
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


def big_request(root: Path, num_rows: int) -> bytes:
    header = {
        "op": "fetch",
        "dataset": open_dataset(root).manifest.dataset_id,
        "requests": [{"owner": "node", "names": ["x"], "ids": 0}],
    }
    return encode_frame(header, [np.arange(num_rows, dtype=np.uint32)]).tobytes()


def is_refusing(location: str) -> bool:
    try:
        with RemoteStore(location, StoreSettings(timeout_s=5)):
            return False
    except StoreUnavailable:
        return True


def test_sigterm_finishes_calls_under_way_and_exits_with_0(big: Path) -> None:
    with ServerProcess(big) as process, flight.FlightClient(process.location) as client:
        stream = client.do_get(flight.Ticket(big_request(big, BIG_ROWS)), flight.FlightCallOptions(timeout=60))
        num_rows = decode_frame(from_batch(stream.read_chunk().data)).arrays[0].shape[0]
        process.terminate()
        wait_until(lambda: is_refusing(process.location), "the server refuses new calls")
        while num_rows < BIG_ROWS:
            (rows,) = decode_frame(from_batch(stream.read_chunk().data)).arrays
            assert rows[:, 0].tolist() == list(range(num_rows, num_rows + len(rows)))
            num_rows += len(rows)
        with pytest.raises(StopIteration):
            stream.read_chunk()
        assert process.wait() == 0


def test_sigterm_exits_with_1_where_a_client_has_stopped_reading(big: Path) -> None:
    with ServerProcess(big, "--grace", 0.2) as process, flight.FlightClient(process.location) as client:
        stream = client.do_get(flight.Ticket(big_request(big, BIG_ROWS)), flight.FlightCallOptions(timeout=60))
        stream.read_chunk()
        process.terminate()
        assert process.wait() == 1
        stream.cancel()


def private_bytes(pid: int) -> int:
    """Memory of the process that no file stands behind; pages of mapped files are the page cache's."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


class PeakMemory:
    """The most private memory that a process has while a block runs, looked at without a pause."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.num_bytes = 0
        self.num_looks = 0

    def _watch(self) -> None:
        while not self._is_done.is_set():
            self.num_bytes = max(self.num_bytes, private_bytes(self._pid))
            self.num_looks += 1
            self._is_done.wait(0.001)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join(20)


HUB_EDGES = 12_000_000
LONG_ROWS, LONG_BYTES = 500, 200_000
MANY = 300_000
LINKS = ("node", "to", "node")


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node of 12 million edges of 300 000 nodes, 500 strings of 200 kB, and a column of 1.2 kB rows."""
    root = tmp_path_factory.mktemp("heavy") / "parts"
    src = np.arange(HUB_EDGES, dtype=np.int64) % MANY
    texts = RaggedArray(
        np.full(LONG_ROWS * LONG_BYTES, 65, np.uint8), np.arange(0, LONG_ROWS * LONG_BYTES + 1, LONG_BYTES), True
    )
    nodes = {
        "node": NodeTable(num_nodes=MANY, features={"x": np.ones((MANY, 300), np.float32)}),
        "text": NodeTable(num_nodes=LONG_ROWS, features={"body": texts}),
    }
    edges = {LINKS: EdgeTable(src_keys=src, dst_keys=np.zeros(HUB_EDGES, np.int64))}
    write_parts(Graph(nodes=nodes, edges=edges).check(), root, method="hash")
    return root


def heavy_sample(ids: IntArray, count: int, *, is_replacing: bool = False) -> tuple[dict[str, object], IntArray]:
    request = {"owner": [*LINKS, "in"], "ids": 0, "count": count, "rng_seed": 1}
    return {"op": "sample", "requests": [{**request, "is_replacing": is_replacing, "wants_edge_ids": True}]}, ids


def heavy_fetch(owner: str, name: str, ids: IntArray) -> tuple[dict[str, object], IntArray]:
    return {"op": "fetch", "requests": [{"owner": owner, "names": [name], "ids": 0}]}, ids


HUB = np.zeros(1, np.uint32)
MANY_IDS = (1 + np.arange(1 << 20) % (LONG_ROWS - 1)).astype(np.int64)


@pytest.mark.parametrize(
    ("what", "ends_with"),
    [
        (heavy_fetch("node", "x", np.arange(MANY, dtype=np.uint32)), None),
        (heavy_fetch("text", "body", np.arange(3000, dtype=np.uint32) % LONG_ROWS), None),
        (heavy_sample(HUB, -1), None),
        (heavy_sample(HUB, HUB_EDGES), None),
        (heavy_sample(np.zeros(1 << 18, np.uint32), 64), None),
        (heavy_sample(HUB, 2_000_000), None),
        (heavy_sample(HUB, 2_000_000, is_replacing=True), None),
        (heavy_sample(MANY_IDS, -1), None),
        (heavy_fetch("text", "body", MANY_IDS), "the answer has 2097.* bytes or more; this server sends 17179869184"),
        (heavy_sample(HUB, HUB_EDGES - 1), "one row of the answer has up to 191.* bytes; this server sends 33554432"),
        (heavy_sample(HUB, 150_000_000, is_replacing=True), "draw fewer neighbours per node"),
    ],
    ids=[
        "fixed width",
        "strings",
        "hub",
        "hub by count",
        "frontier",
        "draws",
        "draws again",
        "ids",
        "ids of strings",
        "too many",
        "very many",
    ],
)
def test_a_servers_memory_does_not_grow_with_its_answers(
    heavy: Path, what: tuple[dict[str, object], IntArray], ends_with: str | None
) -> None:
    request = encode_frame({"dataset": open_dataset(heavy).manifest.dataset_id, **what[0]}, [what[1]])
    with ServerProcess(heavy) as process, flight.FlightClient(process.location) as client:
        with PeakMemory(process.pid) as peak:
            stream = client.do_get(flight.Ticket(request.tobytes()), flight.FlightCallOptions(timeout=120))
            num_frames, num_bytes, last = 0, 0, Frame({}, [])
            for last in frames_of(stream):
                num_frames, num_bytes = num_frames + 1, num_bytes + sum(array.nbytes for array in last.arrays)
        assert peak.num_bytes < 300 << 20
    if ends_with is None:
        raise_error(last, "the server", "a test")
        assert num_bytes >= 4 << 20
    else:
        assert num_frames == 1
        with pytest.raises(SettingsError, match=ends_with):
            raise_error(last, "the server", "a test")


def test_all_edges_of_a_hub_come_in_stored_order(heavy: Path) -> None:
    request = SampleRequest(edge_type=LINKS, direction="in", ids=HUB.astype(np.int64), count=-1, wants_edge_ids=True)
    with LocalStore(open_dataset(heavy)) as local, StoreServer(local) as server, RemoteStore(server.location) as store:
        (far,), (near,) = store.sample([request]), local.sample([request])
        assert far.counts.tolist() == near.counts.tolist() == [HUB_EDGES]
        assert np.array_equal(far.neighbor_ids, near.neighbor_ids)
        assert far.edge_ids is not None
        assert np.array_equal(far.edge_ids, np.asarray(near.edge_ids))
