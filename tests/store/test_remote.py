"""Checks that a store on a server fulfils the contract, and reports failures in time and in words."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import numpy as np
import pytest

from hopstream.arrays import IntArray
from hopstream.buffers import SMALL_BYTES
from hopstream.errors import FormatError, RemoteError, SettingsError, StoreTimeout, StoreUnavailable, VersionMismatch
from hopstream.schema import EdgeType
from hopstream.store.contract import KEY, FetchRequest, SampleRequest, Store
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.replies import SplitReader
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits, StoreSettings
from hopstream.transport.calls import Call
from hopstream.transport.listener import Listener
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from tests.store.cases import Case
from tests.store.contract import StoreContract
from tests.store.processes import ServerProcess, environment, wait_until

CITES: EdgeType = ("paper", "cites", "paper")


@contextmanager
def serve(case: Case, limits: ServerLimits | None = None) -> Iterator[RemoteStore]:
    with StoreServer(case.shared(), limits=limits) as server, RemoteStore(server.location) as store:
        yield store


class TestRemoteStore(StoreContract):
    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return serve(case)


class TestRemoteStoreInManyPieces(StoreContract):
    """Frames of a few rows, and calls of a few ids."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return serve(case, ServerLimits(frame_bytes=400, max_ids=29))


class TestRemoteStoreInRunsOfOneRow(StoreContract):
    """Frames so small that all edges of one node take several."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return serve(case, ServerLimits(frame_bytes=40))


def one_sample(num_ids: int = 9, count: int = 2) -> list[SampleRequest]:
    return [SampleRequest(edge_type=CITES, direction="in", ids=np.arange(num_ids), count=count)]


def test_memory_of_an_answer_returns_when_the_answer_is_dropped(typed_case: Case) -> None:
    with serve(typed_case) as store:
        ids = np.zeros(8000, np.int64)
        for _ in range(3):
            (columns,) = store.fetch([FetchRequest(entity="paper", names=("feat",), ids=ids)])
            assert columns["feat"].nbytes > SMALL_BYTES
            del columns
            assert store._buffers.idle_bytes > 0
            assert not store._buffers._lent


def test_a_missing_server_is_an_immediate_error() -> None:
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"tcp://127\.0\.0\.1:1 cannot be reached .*start the server"):
        RemoteStore("tcp://127.0.0.1:1")
    assert time.monotonic() - started < 10


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        RemoteStore("tcp://nowhere.invalid:7001", StoreSettings(timeout_s=10))


@pytest.mark.parametrize("location", ["", "http://host:7001", "tcp://host", "tcp://host:x", "tcp://a@b:1"])
def test_a_location_that_cannot_be_read_is_refused(location: str) -> None:
    with pytest.raises(SettingsError, match="write tcp://host:port"):
        RemoteStore(location)


def test_a_server_of_another_kind_is_an_error() -> None:
    def answer(call: Call) -> Iterator[Frame]:
        yield Frame({"surprise": 1}, is_last=True)

    other = Listener(Location.parse("tcp://127.0.0.1:0"), answer)
    with pytest.raises(FormatError, match="the answer to describe is invalid"):
        RemoteStore(str(other.location), StoreSettings(timeout_s=10))
    assert other.close(5)


@pytest.mark.slow
def test_a_frozen_server_is_an_error_within_the_deadline(typed_case: Case) -> None:
    with ServerProcess(typed_case.root) as process, RemoteStore(process.location) as patient:
        store = patient.with_timeout(0.5)
        process.freeze()
        started = time.monotonic()
        where = f"parts 0, 1, 2 at {process.location}"
        with pytest.raises(
            StoreTimeout, match=rf"{where} gave no answer in 0\.5 s to sample\(paper__cites__paper/in, 9"
        ):
            store.sample(one_sample())
        pending = store.submit_fetch([FetchRequest(entity="paper", names=("feat", KEY), ids=np.arange(5))])
        with pytest.raises(StoreTimeout, match=r"in 0\.5 s to fetch\(paper 'feat', key, 5 rows\)"):
            pending.result()
        with pytest.raises(StoreTimeout, match=r"in 0\.5 s to lookup\(paper, 5 keys\); .*raise timeout_s"):
            store.lookup("paper", np.arange(5))
        with pytest.raises(StoreTimeout, match=r"gave no answer in 0\.5 s to describe\(\); .*check the port"):
            RemoteStore(process.location, StoreSettings(timeout_s=0.5))
        assert time.monotonic() - started < 10
        process.thaw()
        wanted = typed_case.shared().sample(one_sample())[0].neighbor_ids.tolist()
        assert patient.sample(one_sample())[0].neighbor_ids.tolist() == wanted


def test_killed_servers_are_errors_and_restarted_ones_are_found(typed_case: Case) -> None:
    with ServerProcess(typed_case.root) as process:
        store = RemoteStore(process.location, StoreSettings(timeout_s=20))
        wanted = store.sample(one_sample())[0].neighbor_ids.tolist()
        process.kill()
        with pytest.raises(StoreUnavailable, match=f"parts 0, 1, 2 at {process.location} cannot be reached for sample"):
            store.sample(one_sample())
        with ServerProcess(typed_case.root, "--location", process.location):
            assert store.sample(one_sample())[0].neighbor_ids.tolist() == wanted
        store.close()


def test_a_server_killed_during_an_answer_is_an_error(typed_case: Case) -> None:
    with ServerProcess(typed_case.root) as process, RemoteStore(process.location, StoreSettings(timeout_s=60)) as store:
        many = np.zeros(3_000_000, np.int64)
        pending = store.submit_fetch([FetchRequest(entity="author", names=("feat",), ids=many)])
        process.kill()
        with pytest.raises(StoreUnavailable, match="cannot be reached for fetch"):
            pending.result()


def test_a_server_of_another_dataset_at_the_same_address_is_refused(
    find_case: Callable[[str, int], Case], typed_case: Case
) -> None:
    server = StoreServer(typed_case.shared())
    store = RemoteStore(server.location, StoreSettings(timeout_s=20))
    server.close()
    with (
        StoreServer(find_case("typed", 4).shared(), server.location),
        pytest.raises(VersionMismatch, match="restart the server with that dataset, or open the store again"),
    ):
        store.split("paper", "train")
    store.close()


def test_a_bug_in_a_server_operation_is_a_remote_error(typed_case: Case) -> None:
    with ServerProcess(typed_case.root) as process, RemoteStore(process.location) as store:
        request = Frame({"op": "fail", "dataset": store.dataset_id})
        with pytest.raises(RemoteError, match="ZeroDivisionError: a bug in the server") as caught:
            store._connection.call(request, 20, "fail()", SplitReader(1))
        assert 'raise ZeroDivisionError("a bug in the server")' in caught.value.remote_traceback


def test_closing_ends_calls_under_way(typed_case: Case) -> None:
    class WaitingStore(LocalStore):
        def num_drawn_bound(self, request: SampleRequest) -> IntArray:
            if len(request.ids):  # a starting server samples without ids
                is_entered.set()
                assert may_go_on.wait(30)
            return super().num_drawn_bound(request)

    is_entered, may_go_on = threading.Event(), threading.Event()
    waiting = WaitingStore(typed_case.dataset)
    server = StoreServer(waiting)
    store = RemoteStore(server.location, StoreSettings(timeout_s=60))
    pending = store.submit_sample(one_sample(count=-1))
    assert is_entered.wait(20)
    started = time.monotonic()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        pending.result()
    assert time.monotonic() - started < 5
    may_go_on.set()
    server.close()
    waiting.close()


def test_closing_wakes_waiters_for_a_frozen_server(typed_case: Case) -> None:
    with ServerProcess(typed_case.root) as process:
        store = RemoteStore(process.location, StoreSettings(timeout_s=12))
        with RoutedStore([store]) as routed:
            process.freeze()
            feature = typed_case.dataset.manifest.schema.nodes["paper"]["feat"]
            out = np.full((5, *feature.shape), 7, feature.numpy_dtype)
            fetch = FetchRequest(entity="paper", names=("feat",), ids=np.arange(5), out={"feat": out})
            asked: list[Callable[[], object]] = [
                lambda: store.sample(one_sample()),
                lambda: store.fetch([fetch]),
                lambda: store.lookup("paper", np.arange(5)),
                lambda: routed.sample(one_sample()),
                lambda: routed.fetch([fetch]),
                lambda: store.submit_sample(one_sample()).result(),
                lambda: routed.submit_fetch([fetch]).result(),
            ]
            errors: list[StoreUnavailable] = []
            threads = [threading.Thread(target=record, args=(ask, errors)) for ask in asked]
            for thread in threads:
                thread.start()
            wait_until(lambda: num_under_way(store) == len(asked), "all calls are under way")
            started = time.monotonic()
            routed.close()
            for thread in threads:
                thread.join(20)
            assert time.monotonic() - started < 5
            assert ["closed" in str(error) for error in errors] == [True] * len(asked)
            process.thaw()
            assert not store._connection._users
            assert (out == 7).all()
        with pytest.raises(StoreUnavailable, match="closed"):
            store.sample(one_sample())


def record(ask: Callable[[], object], errors: list[StoreUnavailable]) -> None:
    try:
        ask()
    except StoreUnavailable as error:
        errors.append(error)


def num_under_way(store: RemoteStore) -> int:
    """Requests that were sent, or wait for a new link."""
    connection = store._connection
    return sum(link.num_under_way for link in list(connection._users)) + len(connection._opening)


def test_no_array_is_written_after_closing(typed_case: Case) -> None:
    """Many threads use the store while it is closed; some of them read an answer."""
    feature = typed_case.dataset.manifest.schema.nodes["author"]["feat"]
    ids = np.zeros(200_000, np.int64)
    outs = [np.empty((len(ids), *feature.shape), feature.numpy_dtype) for _ in range(4)]
    requests = [FetchRequest(entity="author", names=("feat",), ids=ids, out={"feat": out}) for out in outs]
    with StoreServer(typed_case.shared()) as server:
        for _ in range(10):
            store = RemoteStore(server.location, StoreSettings(timeout_s=20))
            errors: list[StoreUnavailable] = []
            threads = [
                threading.Thread(target=record, args=(partial(ask_on, store, request), errors)) for request in requests
            ]
            for thread in threads:
                thread.start()
            wait_until(lambda store=store: num_under_way(store) > 0, "an answer is being read")
            store.close()
            for out in outs:
                out.fill(7)
            for thread in threads:
                thread.join(20)
            assert all((out == 7).all() for out in outs)
            assert ["closed" in str(error) for error in errors] == [True] * 4


def ask_on(store: RemoteStore, request: FetchRequest) -> None:
    while True:
        store.fetch([request])


def test_many_requests_can_be_under_way_at_once(typed_case: Case) -> None:
    with serve(typed_case) as store:
        pending = [store.submit_sample(one_sample(num_ids=n)) for n in range(1, 61)]
        assert [len(each.result()[0].counts) for each in pending] == list(range(1, 61))


@pytest.mark.parametrize(
    "settings", [{"timeout_s": 0}, {"timeout_s": float("inf")}, {"timeout_s": "3"}, {"first_replica": -1}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(settings))):
        StoreSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [{"max_ids": 0}, {"max_reply_bytes": 0}, {"frame_bytes": 0}, {"frame_bytes": True}])
def test_limits_out_of_range_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=next(iter(limits))):
        ServerLimits(**limits)


LEAVES_WITHOUT_CLOSING = """
import sys
import numpy as np
from hopstream.store import open_store
from hopstream.store.contract import SampleRequest
from hopstream.store.settings import StoreSettings

store = open_store(sys.argv[1], StoreSettings(prefer_local=False))
request = SampleRequest(edge_type=("paper", "cites", "paper"), direction="in", ids=np.arange(9), count=2)
pending = [store.submit_sample([request]) for _ in range(20)]
pending[0].result()
"""


def test_a_process_may_leave_without_closing_its_store(typed_case: Case) -> None:
    with StoreServer(typed_case.shared()) as server:
        command = [sys.executable, "-c", LEAVES_WITHOUT_CLOSING, server.location]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
