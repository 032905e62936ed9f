"""Checks that a store over many stores fulfils the contract, and that replicas replace lost ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import numpy as np
import pytest

from hopstream.arrays import Column, IntArray
from hopstream.errors import RemoteError, ServerBusy, StoreTimeout, StoreUnavailable, VersionMismatch
from hopstream.schema import Direction, EdgeType
from hopstream.store import routed as routed_module
from hopstream.store.contract import KEY, Deferred, FetchRequest, Links, Pending, SampleReply, SampleRequest, Store
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits, StoreSettings
from tests.store.busy import make_busy
from tests.store.cases import Case, keys_of
from tests.store.contract import EveryCaseContract, StoreContract
from tests.store.processes import ServerProcess, wait_until
from tests.transport.stub import Stub

CITES: EdgeType = ("paper", "cites", "paper")
WRITES: EdgeType = ("author", "writes", "paper")


@contextmanager
def route(
    case: Case, here: Sequence[Sequence[int]], there: Sequence[Sequence[int]], limits: ServerLimits | None = None
) -> Iterator[RoutedStore]:
    """A routed store over local stores of some parts and servers of some parts."""
    with ExitStack() as stack:
        stores: list[Store] = [case.local(parts) for parts in here]
        for parts in there:
            server = stack.enter_context(StoreServer(case.shared(parts), limits=limits))
            stores.append(RemoteStore(server.location))
        yield stack.enter_context(RoutedStore(stores))


class TestRoutedStoreOfLocalStores(StoreContract):
    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return route(case, here=[[part] for part in range(case.num_parts)], there=[])


class TestRoutedStoreOfServers(StoreContract):
    """A server of the even parts, one of the odd parts, and one of all parts as second replica."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        halves = [range(0, case.num_parts, 2), range(1, case.num_parts, 2)]
        return route(case, here=[], there=[*filter(len, halves), range(case.num_parts)])


class TestRoutedStoreOfBoth(EveryCaseContract):
    """The even parts here, the odd ones on one server, in small pieces."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        odd = list(range(1, case.num_parts, 2))
        limits = ServerLimits(frame_bytes=300, max_ids=50)
        return route(case, here=[list(range(0, case.num_parts, 2))], there=[odd] if odd else [], limits=limits)


PAPERS = np.arange(60)


def requests_of(case: Case, count: int = 3) -> list[SampleRequest]:
    return [
        SampleRequest(edge_type=CITES, direction="in", ids=PAPERS, count=count, rng_seed=3, wants_edge_ids=True),
        SampleRequest(edge_type=WRITES, direction="out", ids=np.arange(25), count=-1, rng_seed=4),
    ]


def answers_of(store: Store, case: Case) -> list[object]:
    """Draws and columns as plain values, to be compared bit for bit."""
    replies = store.sample(requests_of(case))
    (columns,) = store.fetch([FetchRequest(entity="paper", names=("feat", "title", "tags", KEY), ids=PAPERS[::-1])])
    return [
        *(
            (r.counts.tolist(), r.neighbor_ids.tolist(), None if r.edge_ids is None else r.edge_ids.tolist())
            for r in replies
        ),
        np.asarray(columns["feat"]).tobytes(),
        list(columns["title"]),
        [row.tolist() for row in columns["tags"]],
        np.asarray(columns[KEY]).tolist(),
        store.lookup("paper", PAPERS).tolist(),
        store.split("paper", "train").tolist(),
        store.degrees(CITES, "in", PAPERS).tolist(),
    ]


def test_every_way_to_route_gives_the_same_answers(typed_case: Case) -> None:
    wanted = answers_of(typed_case.shared(), typed_case)
    for here, there in [
        ([[0], [1], [2]], []),
        ([], [[0], [1], [2]]),
        ([[1]], [[0, 2]]),
        ([], [[0, 1], [1, 2], [2, 0]]),
        ([[0, 1, 2]], [[0, 1, 2]]),
        ([], [[0, 1, 2]]),
    ]:
        with route(typed_case, here, there) as store:
            assert answers_of(store, typed_case) == wanted


def test_draws_in_keys_do_not_depend_on_the_number_of_parts(find_case: Callable[[str, int], Case]) -> None:
    drawn = []
    for num_parts in (1, 3, 4):
        case = find_case("typed", num_parts)
        with route(case, [], [[part] for part in range(num_parts)]) as store:
            ids = store.lookup("paper", PAPERS)
            (reply,) = store.sample([SampleRequest(edge_type=CITES, direction="in", ids=ids, count=4, rng_seed=9)])
            drawn.append((reply.counts.tolist(), keys_of(store, "paper", reply.neighbor_ids)))
    assert drawn[0] == drawn[1] == drawn[2]


class CountingStore(Store):
    """A store that remembers how often it was asked to sample, and can be told to fail."""

    def __init__(self, case: Case, parts: Sequence[int]) -> None:
        self._inner = case.shared(parts)
        self.take_facts(self._inner)
        self.parts = self._inner.parts
        self.num_asked = 0
        self.asked: list[SampleRequest] = []
        self.failure: Exception | None = None

    def submit_sample(self, requests: Sequence[SampleRequest]) -> Pending[list[SampleReply]]:
        self.num_asked += 1
        self.asked += requests
        return self._inner.submit_sample(requests) if self.failure is None else Deferred(self._fail)

    def _fail(self) -> list[SampleReply]:
        assert self.failure is not None
        raise self.failure

    def submit_fetch(self, requests: Sequence[FetchRequest]) -> Pending[list[dict[str, Column]]]:
        return self._inner.submit_fetch(requests)

    def lookup(self, node_type: str, keys: IntArray) -> IntArray:
        return self._inner.lookup(node_type, keys)

    def split(self, node_type: str, name: str) -> IntArray:
        return self._inner.split(node_type, name)

    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        return self._inner.degrees(edge_type, direction, ids)

    def find_edges(self, edge_type: EdgeType, direction: Direction, ids: IntArray, neighbor_ids: IntArray) -> IntArray:
        return self._inner.find_edges(edge_type, direction, ids, neighbor_ids)

    def links(self, edge_type: EdgeType, edge_keys: IntArray) -> Links:
        return self._inner.links(edge_type, edge_keys)

    def edge_split(self, edge_type: EdgeType, name: str) -> IntArray:
        return self._inner.edge_split(edge_type, name)

    def close(self) -> None:
        """The shared store stays open."""


def test_owners_without_work_get_no_request(typed_case: Case) -> None:
    stores = [CountingStore(typed_case, [part]) for part in range(3)]
    first, second, *_ = typed_case.dataset.manifest.book.offsets("paper").tolist()
    with RoutedStore(stores) as store:
        store.sample([SampleRequest(edge_type=CITES, direction="in", ids=np.arange(first, second), count=1)])
        store.sample([SampleRequest(edge_type=CITES, direction="in", ids=np.empty(0, np.int64), count=1)])
    assert [each.num_asked for each in stores] == [1, 0, 0]


def test_keys_of_local_nodes_are_looked_up_without_a_request(typed_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    here = typed_case.local()
    with RoutedStore([here]) as store:
        keys = np.array(keys_of(store, "paper", PAPERS))
        monkeypatch.setattr(here, "lookup", lambda node_type, keys: pytest.fail(f"was asked for {keys}"))
        assert store.lookup("paper", keys).tolist() == PAPERS.tolist()


def test_small_lookups_are_remembered_and_memory_is_bounded(typed_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_module, "MAX_KNOWN", 20)
    wanted = typed_case.shared().lookup("paper", PAPERS)
    with route(typed_case, here=[], there=[[0, 1], [2]]) as store:

        def num_asked(*keys: int) -> int:
            before = store.traffic()["other"].remote_requests
            assert store.lookup("paper", np.array(keys)).tolist() == wanted[list(keys)].tolist()
            return store.traffic()["other"].remote_requests - before

        assert num_asked(3, 5, 3) > 0
        assert num_asked(3, 5, 3) == num_asked(5) == 0
        assert num_asked(5, 7) > 0
        assert num_asked(*range(10, 40)) > 0
        assert num_asked(39, 20) == 0
        assert num_asked(5) > 0, "keys that were looked up longest ago are forgotten"
        assert len(store._known_ids["paper"]) == 20
        monkeypatch.setattr(routed_module, "FEW_KEYS", 2)
        assert num_asked(39, 38, 37) > 0


def test_bytes_of_answers_are_those_of_their_arrays(typed_case: Case) -> None:
    with route(typed_case, here=[], there=[[0, 1, 2]]) as store:
        (reply,) = store.sample([SampleRequest(edge_type=CITES, direction="in", ids=PAPERS, count=2)])
        assert reply.edge_ids is None
        assert store.traffic()["sample"].remote_bytes == reply.counts.nbytes + reply.neighbor_ids.nbytes


def test_owners_are_given_trees_times_and_pairs_of_their_own_nodes(typed_case: Case) -> None:
    stores = [CountingStore(typed_case, [part]) for part in range(3)]
    offsets = typed_case.dataset.manifest.book.offsets("paper")
    ids = np.random.default_rng(2).integers(0, 60, 40)
    pairs = np.random.default_rng(3).integers(0, 60, (2, 30))
    pairs[0] = np.where(pairs[0] < offsets[1], 59, pairs[0])  # none of part 0
    request = SampleRequest(
        edge_type=CITES, direction="in", ids=ids, count=2, trees=100 + ids, times=-ids, excluded=pairs,
        candidates=np.arange(50),
    )  # fmt: skip
    with RoutedStore(stores) as store:
        store.sample([request])
    for part, each in enumerate(stores):
        (asked,) = each.asked
        is_own = (ids >= offsets[part]) & (ids < offsets[part + 1])
        assert asked.ids.tolist() == ids[is_own].tolist()
        assert asked.trees is not None
        assert asked.times is not None
        assert (asked.trees - 100).tolist() == (-asked.times).tolist() == asked.ids.tolist()
        assert asked.candidates is request.candidates
        own_pairs = [pair for pair in pairs.T.tolist() if offsets[part] <= pair[0] < offsets[part + 1]]
        if part == 0:
            assert asked.excluded is None
        else:
            assert asked.excluded is not None
            assert asked.excluded.T.tolist() == own_pairs


def test_the_replica_that_answered_is_preferred(typed_case: Case) -> None:
    stores = [CountingStore(typed_case, [0, 1, 2]) for _ in range(3)]
    with RoutedStore(stores) as store:
        wanted = [reply.neighbor_ids.tolist() for reply in store.sample(requests_of(typed_case))]
        assert [each.num_asked for each in stores] == [1, 0, 0]
        stores[0].failure = StoreUnavailable("gone")
        for _ in range(3):
            assert [reply.neighbor_ids.tolist() for reply in store.sample(requests_of(typed_case))] == wanted
        assert [each.num_asked for each in stores] == [2, 3, 0]
        stores[1].failure = StoreTimeout("hangs")
        assert [reply.neighbor_ids.tolist() for reply in store.sample(requests_of(typed_case))] == wanted
        assert [each.num_asked for each in stores] == [3, 4, 1]


def test_errors_other_than_outages_are_not_retried(typed_case: Case) -> None:
    stores = [CountingStore(typed_case, [0, 1, 2]) for _ in range(2)]
    stores[0].failure = RemoteError("a bug")
    with RoutedStore(stores) as store, pytest.raises(RemoteError, match="a bug"):
        store.sample(requests_of(typed_case))
    assert [each.num_asked for each in stores] == [1, 0]


def test_every_replica_that_failed_is_named(typed_case: Case) -> None:
    stores = [CountingStore(typed_case, [0, 1, 2]) for _ in range(3)]
    for number, each in enumerate(stores):
        each.failure = (
            StoreTimeout(f"number {number} hangs") if number == 1 else StoreUnavailable(f"number {number} is gone")
        )
    with RoutedStore(stores) as store, pytest.raises(StoreTimeout) as caught:
        store.sample(requests_of(typed_case))
    assert str(caught.value) == (
        "no replica of parts 0, 1, 2 answered sample(paper__cites__paper/in, 60 ids; author__writes__paper/out, "
        "25 ids): number 0 is gone; number 1 hangs; number 2 is gone"
    )


def have_ended(servers: Sequence[StoreServer], num_requests: int) -> bool:
    return sum(server.stats.num_requests for server in servers) == num_requests


def test_the_first_replica_is_chosen_by_a_setting(typed_case: Case) -> None:
    with StoreServer(typed_case.shared()) as one, StoreServer(typed_case.shared()) as two:
        for first, wanted in [(0, (2, 1)), (1, (1, 2)), (2, (2, 1)), (5, (1, 2))]:
            before = [server.stats.num_requests for server in (one, two)]
            with RoutedStore(
                [RemoteStore(s.location) for s in (one, two)], StoreSettings(first_replica=first)
            ) as store:
                store.sample(requests_of(typed_case))
            wait_until(partial(have_ended, (one, two), sum(before) + 3), "all requests are counted")
            after = [server.stats.num_requests for server in (one, two)]
            assert tuple(b - a for a, b in zip(before, after, strict=True)) == wanted


@pytest.mark.slow
def test_a_frozen_replica_leaves_time_for_the_next(typed_case: Case) -> None:
    settings = StoreSettings(timeout_s=6)
    with ServerProcess(typed_case.root) as process, StoreServer(typed_case.shared()) as other:
        stores = [RemoteStore(process.location), RemoteStore(other.location)]
        with RoutedStore(stores, settings) as store:
            wanted = answers_of(store, typed_case)
            process.freeze()
            started = time.monotonic()
            assert answers_of(store, typed_case) == wanted
            assert 3 <= time.monotonic() - started < 6
            started = time.monotonic()
            assert answers_of(store, typed_case) == wanted
            assert time.monotonic() - started < 3
            process.thaw()


def test_hanging_servers_are_queried_together_with_time_for_replicas(typed_case: Case) -> None:
    settings = StoreSettings(timeout_s=1.0)
    with ExitStack() as stack:
        stores: list[Store] = []
        for part in range(3):
            facts = RemoteStore(stack.enter_context(StoreServer(typed_case.shared([part]))).location).facts
            stub = stack.enter_context(Stub())  # accepts connections and sends nothing
            stores.append(RemoteStore(str(stub.where), settings, facts=facts))
        stores.append(RemoteStore(stack.enter_context(StoreServer(typed_case.shared())).location, settings))
        store = stack.enter_context(RoutedStore(stores, settings))
        started = time.monotonic()
        pending = store.submit_fetch([FetchRequest(entity="paper", names=("feat",), ids=PAPERS)])
        assert time.monotonic() - started < 0.3
        (columns,) = pending.result()
        assert time.monotonic() - started < 0.8
        (wanted,) = typed_case.shared().fetch([FetchRequest(entity="paper", names=("feat",), ids=PAPERS)])
        assert np.array_equal(np.asarray(columns["feat"]), np.asarray(wanted["feat"]))


@pytest.mark.slow
def test_servers_killed_during_a_run_are_replaced_by_replicas(typed_case: Case) -> None:
    wanted = answers_of(typed_case.shared(), typed_case)
    with ExitStack() as stack:
        processes = [ServerProcess(typed_case.root, "--parts", parts) for parts in ("0,1", "1,2", "2,0")]
        for process in processes:
            stack.callback(process.end)
        stores = [RemoteStore(process.wait_ready().location) for process in processes]
        store = stack.enter_context(RoutedStore(stores))
        for turn in range(6):
            if turn == 3:
                processes[0].kill()
            assert answers_of(store, typed_case) == wanted
        processes[1].kill()
        with pytest.raises(StoreUnavailable) as caught:
            answers_of(store, typed_case)
        for process in processes[:2]:
            assert process.location in str(caught.value)
        assert "no replica of part 1 answered sample(" in str(caught.value)


def test_a_frozen_server_without_replica_times_out(typed_case: Case) -> None:
    with ServerProcess(typed_case.root, "--parts", "1") as process, RemoteStore(process.location) as remote:
        patient = RoutedStore([typed_case.shared([0, 2]), remote])
        store = RoutedStore([typed_case.shared([0, 2]), remote], StoreSettings(timeout_s=0.5))
        wanted = answers_of(patient, typed_case)
        process.freeze()
        started = time.monotonic()
        with pytest.raises(StoreTimeout, match=rf"part 1 at {process.location} gave no answer in 0\.5 s to sample"):
            store.sample(requests_of(typed_case))
        pending = store.submit_fetch([FetchRequest(entity="paper", names=("feat",), ids=PAPERS)])
        with pytest.raises(StoreTimeout, match=r"part 1 at .* gave no answer in 0\.[0-9]* s to fetch"):
            pending.result()
        assert time.monotonic() - started < 8
        process.thaw()
        assert answers_of(patient, typed_case) == wanted


def test_stores_of_different_datasets_are_refused(find_case: Callable[[str, int], Case]) -> None:
    with pytest.raises(VersionMismatch, match="serve the same dataset everywhere"):
        RoutedStore([find_case("typed", 3).shared(), find_case("typed", 4).shared()])


def test_a_part_without_store_is_refused(typed_case: Case) -> None:
    with pytest.raises(StoreUnavailable, match="no store holds part 1; start a server"):
        RoutedStore([typed_case.shared([0]), typed_case.shared([2])])
    with pytest.raises(StoreUnavailable, match="no store was given"):
        RoutedStore([])


class Asker(threading.Thread):
    """A thread that repeats the same requests and keeps every wrong answer."""

    def __init__(self, store: Store, case: Case) -> None:
        super().__init__()
        self._store, self._case = store, case
        self._wanted = answers_of(case.shared(), case)
        self.failures: list[str] = []
        self.num_answers = 0
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            try:
                if answers_of(self._store, self._case) != self._wanted:
                    self.failures.append("another answer")
            except Exception as error:
                self.failures.append(repr(error))
            self.num_answers += 1

    def end(self) -> None:
        self.is_over = True
        self.join(60)


@pytest.mark.soak
def test_answers_stay_the_same_while_servers_restart(typed_case: Case, rng: np.random.Generator) -> None:
    """Three servers, each part on two; one at a time is killed or frozen while four threads ask."""
    settings = StoreSettings(timeout_s=8)
    all_parts = ("0,1", "1,2", "2,0")
    with ExitStack() as stack:
        processes = [ServerProcess(typed_case.root, "--parts", parts) for parts in all_parts]
        stack.callback(lambda: [process.end() for process in processes])
        locations = [process.wait_ready().location for process in processes]
        store = stack.enter_context(RoutedStore([RemoteStore(location, settings) for location in locations], settings))
        askers = [Asker(store, typed_case) for _ in range(4)]
        for asker in askers:
            stack.callback(asker.end)
            asker.start()

        def wait_answers(num_more: int) -> None:
            wanted = sum(asker.num_answers for asker in askers) + num_more
            wait_until(lambda: sum(asker.num_answers for asker in askers) >= wanted, "answers go on", 60)

        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            victim = int(rng.integers(3))
            if rng.random() < 0.7:
                processes[victim].kill()
                wait_answers(20)
                processes[victim].end()
                arguments = ("--parts", all_parts[victim], "--location", locations[victim])
                processes[victim] = ServerProcess(typed_case.root, *arguments).wait_ready()
            else:
                processes[victim].freeze()
                wait_answers(8)
                processes[victim].thaw()
            wait_answers(20)
        for asker in askers:
            asker.end()
            assert asker.failures == []
            assert asker.num_answers > 20


NEVER, ALWAYS = 0, 1e9


@pytest.mark.parametrize(
    ("times", "is_gone", "num_calls"),
    [
        ((3,), [], (4,)),  # asked again until it answers
        ((ALWAYS, NEVER), [], (1, 1)),  # the other one is asked at once
        ((3, NEVER), [1], (4, 0)),  # the only one that answers
        ((1, 1), [], (2, 1)),  # once more, as the other one is too busy as well
        ((ALWAYS, 4), [], (2, 5)),  # the last one is retried until it answers
    ],
)
def test_a_busy_store_is_retried_after_its_replicas(
    typed_case: Case, times: tuple[float, ...], is_gone: list[int], num_calls: tuple[int, ...]
) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(StoreServer(typed_case.shared())) for _ in times]
        stores = [RemoteStore(server.location) for server in servers]
        attempts = [make_busy(store._connection, of_one) for store, of_one in zip(stores, times, strict=True)]
        for number in is_gone:
            servers[number].close()
            attempts[number] = []
        routed = stack.enter_context(RoutedStore(stores, StoreSettings(timeout_s=20)))
        assert len(routed.lookup("paper", PAPERS)) == len(PAPERS)
        assert tuple(map(len, attempts)) == num_calls


def test_stores_that_stay_busy_are_an_error_at_the_deadline(typed_case: Case) -> None:
    with StoreServer(typed_case.shared()) as server:
        store = RemoteStore(server.location)
        make_busy(store._connection, ALWAYS)
        with RoutedStore([store], StoreSettings(timeout_s=0.5)) as routed, pytest.raises(StoreUnavailable) as caught:
            routed.split("paper", "train")
    assert isinstance(caught.value, ServerBusy)
