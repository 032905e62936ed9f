"""Tests that the row cache returns correct rows, keeps its bound, and keeps rows needed soonest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.optimum import best_hits
from hopstream.arrays import Column, RaggedArray, offsets_of
from hopstream.dataset.layout import open_dataset
from hopstream.errors import StoreUnavailable
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.kernels.row_cache import (
    CONTINUES,
    MAX_IDS,
    NEXT,
    NOT_NEEDED,
    NUM_CONTINUED,
    NUM_ENTRIES,
    NUM_FREE,
    NUM_OF_ROW,
    NUM_USED,
    SHARE_OF_ROW,
    copy_rows,
)
from hopstream.load.loader import NeighborLoader
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, FeatureSchema
from hopstream.store import row_cache
from hopstream.store.contract import FetchRequest
from hopstream.store.local import LocalStore
from hopstream.store.located import LocatedRows, Target
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.row_cache import (
    MIN_ROW_BYTES,
    NUM_FIRST_ROWS,
    RAGGED_SLOT_BYTES,
    Announcement,
    Columns,
    Found,
    RowCache,
    RowTable,
    bytes_for,
    close_row_cache,
    open_row_cache,
    row_cost,
)
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from tests.processes import ServerPool

X = {"x": FeatureSchema(dtype="float32", shape=(10,)), "y": FeatureSchema(dtype="int8", shape=(3,))}
TEXTS = {"text": FeatureSchema(dtype="string")}
MIXED = {
    "pairs": FeatureSchema(dtype="float64", shape=(2,), is_ragged=True), **X, **TEXTS,
    "empty": FeatureSchema(dtype="int16", is_ragged=True),
}  # fmt: skip
ALL_COLUMNS = {"fixed": X, "strings": TEXTS, "mixed": MIXED}
NUM_IDS = 500
LONGEST = 3000
"""Items of the longest row."""


def ragged_truth(ids: np.ndarray, name: str, feature: FeatureSchema) -> RaggedArray:
    """Short rows, some of them empty and some long."""
    lengths = np.where(ids % 3 == 0, 0, ids % 40) if name != "empty" else np.zeros(len(ids), np.int64)
    lengths = np.where((ids % 100 == 7) & (name == "text"), LONGEST, lengths)
    values = np.repeat(ids, lengths) + np.arange(lengths.sum()) - np.repeat(offsets_of(lengths)[:-1], lengths)
    values = np.multiply.outer(values, np.ones(feature.shape, np.int64)) % 100
    return RaggedArray(values.astype(feature.numpy_dtype), offsets_of(lengths), feature.is_string)


def truth(ids: np.ndarray, columns: Columns = X) -> dict[str, Column]:
    """The rows of some ids."""
    x = (ids[:, None] * 10 + np.arange(10)).astype(np.float32)
    fixed = {"x": x, "y": (ids[:, None] + np.arange(3)).astype(np.int8)}
    return {name: fixed[name] if name in fixed else ragged_truth(ids, name, of) for name, of in columns.items()}


def check_are_equal(columns: Mapping[str, Column], ids: np.ndarray, of: Columns) -> None:
    for name, wanted in truth(ids, of).items():
        found = columns[name]
        if isinstance(wanted, RaggedArray):
            assert isinstance(found, RaggedArray) and found.is_string == wanted.is_string
            np.testing.assert_array_equal(found.offsets, wanted.offsets)
            found, wanted = found.values, wanted.values
        np.testing.assert_array_equal(found, wanted)
        assert isinstance(found, np.ndarray) and found.dtype == wanted.dtype


def table_of(cache: RowCache, columns: Columns = X) -> RowTable:
    table = cache.table("node", columns, NUM_IDS)
    assert table is not None
    return table


def fetch(
    cache: RowCache, ids: np.ndarray, announcement: Announcement | None = None, fails: bool = False,
    columns: Columns = X,
) -> int:  # fmt: skip
    """Fetch rows as a store does; return how many were cached."""
    found = cache.find(table_of(cache, columns), ids, announcement)
    whole = truth(ids, columns)
    out = {name: np.full_like(column, 99) for name, column in whole.items() if isinstance(column, np.ndarray)}
    (hits,) = np.nonzero(found.slots >= 0)
    located, ragged = LocatedRows.none(columns, len(ids)), {}
    if found.is_ragged:
        ragged = found.read(found.slots[hits], out, hits)
    else:
        found.locate(found.slots[hits], hits, located)
        located.copy(located.addresses, np.empty(0, np.int64), [Target.of(out[name]) for name in located.names])
    check_are_equal({**{name: column[hits] for name, column in out.items()}, **ragged}, ids[hits], columns)
    if fails:
        return len(hits)  # found is lost, as where a server did not answer
    keep(found, whole, columns)
    found.end()
    return len(hits)


def keep(found: Found, whole: Mapping[str, Any], columns: Columns) -> int:
    """Keep fetched rows as a store does: all rows of ``whole`` are in the order of the request."""
    if found.is_ragged:
        return found.keep(whole, found.fresh_at)
    num_rows = len(next(iter(whole.values())))
    located = LocatedRows.none(columns, num_rows)
    located.take(np.arange(num_rows), whole)
    found.keep_located(found.fresh_at, located)
    return 0


def announce(cache: RowCache, ids: np.ndarray, columns: Columns = X) -> Announcement | None:
    return cache.announce([(table_of(cache, columns), ids)])[0]


def check_is_sound(cache: RowCache, columns: Columns = X) -> None:
    """Check that no row is pinned or awaited, and that each slot belongs to one entry or continues one."""
    cache.find(table_of(cache, columns), np.empty(0, np.int64), None).end()  # takes back dropped rows
    index, state = table_of(cache, columns).rows.index, table_of(cache, columns).rows.index.state
    used = np.setdiff1d(np.arange(state[NUM_USED]), index.free[: state[NUM_FREE]])
    if len(index.chain):
        firsts, chained = used[index.pins[used] != CONTINUES], []
        for slot in firsts:
            behind = [slot]
            while index.chain[behind[-1], NEXT] >= 0:
                behind.append(index.chain[behind[-1], NEXT])
            assert len(behind) == index.chain[slot, NUM_OF_ROW]
            chained += behind
        np.testing.assert_array_equal(np.sort(chained), used)
        assert state[NUM_CONTINUED] == len(used) - len(firsts)
        used = firsts
    assert not index.pins[used].any() and (index.needed[used] == NOT_NEEDED).all()
    entries = index.entries[index.entries[:, 0] != 0].astype(np.int64)
    assert state[NUM_ENTRIES] == len(entries) == len(used) and not entries[:, 1].any()
    slots = (entries[:, 0] & 0xFFFFFF) - 1
    np.testing.assert_array_equal(np.sort(slots), used)
    np.testing.assert_array_equal(index.owners[slots], (entries[:, 0] >> 24) - 1)
    assert cache.counts().num_bytes <= cache.max_bytes


@pytest.mark.parametrize("num_rows", [0, 1, 30, 200, 10_000])
@pytest.mark.parametrize("look_ahead", [0, 1, 5, 80])
@pytest.mark.parametrize("of", ALL_COLUMNS)
def test_rows_are_correct_for_any_announcements_and_losses(num_rows: int, look_ahead: int, of: str) -> None:
    rng, columns = np.random.default_rng(num_rows * 100 + look_ahead), ALL_COLUMNS[of]
    cache = RowCache(num_rows * row_cost(X))
    ahead: list[tuple[np.ndarray, Announcement | None]] = []
    announcement: Announcement | None = None
    num_hits = 0
    for _ in range(300):
        while len(ahead) < max(1, look_ahead):
            ids = rng.zipf(1.3, rng.integers(0, 60)) % NUM_IDS
            ahead.append((ids, announce(cache, ids, columns) if look_ahead and rng.random() < 0.9 else None))
        ids, announcement = ahead.pop(0)
        if rng.random() < 0.1:
            announcement = None  # the batch is never fetched
            continue
        num_hits += fetch(cache, ids, announcement, fails=rng.random() < 0.1, columns=columns)
        counts = cache.counts()
        assert counts.num_rows <= num_rows and counts.num_bytes <= cache.max_bytes
    del ahead, announcement
    check_is_sound(cache, columns)
    assert num_rows < 30 or num_hits > 100
    assert cache.counts().num_evicted > 0 or num_rows in (0, 1, 10_000)


@pytest.mark.parametrize("of", ALL_COLUMNS)
def test_threads_share_a_cache(of: str) -> None:
    cache, columns = RowCache(60 * row_cost(X)), ALL_COLUMNS[of]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        try:
            for _ in range(150):
                batches = [rng.zipf(1.3, 50) % NUM_IDS for _ in range(4)]
                announced = [announce(cache, ids, columns) for ids in batches]
                for ids, announcement in zip(batches, announced, strict=True):
                    fetch(cache, ids, announcement, fails=rng.random() < 0.05, columns=columns)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures
    check_is_sound(cache, columns)


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_hit_rate_is_within_three_points_of_the_optimum(share: float) -> None:
    rng, num_ids, num_batches, look_ahead = np.random.default_rng(7), 20_000, 60, 16
    batches = [np.unique(rng.zipf(1.2, 2500) % num_ids) for _ in range(num_batches)]
    wide = {"x": FeatureSchema(dtype="float32", shape=(400,))}
    cache = RowCache(bytes_for(wide, int(share * num_ids), 6000))
    table = cache.table("node", wide, num_ids)
    assert table is not None
    announced: list[Any] = []
    hits = num_rows = 0
    for step, ids in enumerate(batches):
        announced += [cache.announce([(table, later)])[0] for later in batches[len(announced) : step + look_ahead + 1]]
        found = cache.find(table, ids, announced[step])
        hits += int((found.slots >= 0).sum())
        keep(found, {"x": np.empty((len(ids), 400), np.float32)}, wide)
        found.end()
        if step == num_batches // 2:  # later on less is announced, and there is room for more
            num_rows = cache.counts().num_rows
    assert None not in announced
    total = sum(map(len, batches))
    assert 0.9 * share * num_ids < num_rows < 1.5 * share * num_ids
    assert 0 <= (best_hits(batches, num_rows).sum() - hits) / total < 0.03
    assert cache.counts().num_evicted > 0


def test_announcements_are_bounded_and_those_of_idle_loaders_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "STALLED_S", 0.0)
    cache = RowCache(1 << 20)
    table = table_of(cache)
    still = [announce(cache, np.arange(100)) for _ in range(40)]
    large = [announce(cache, np.arange(i * 10_000, (i + 1) * 10_000)) for i in range(10)]
    assert large[0] is not None and large[-1] is None, "there is no memory for all of their ids"
    assert 0 < cache.counts().num_bytes <= cache.max_bytes
    assert table.rows.index.entries.nbytes <= 2 * cache.max_bytes
    del large
    for _ in range(100):
        announcement = announce(cache, np.arange(50))
        assert announcement is not None
        fetch(cache, np.arange(50), announcement)
    assert not any(one is not None and one.ticket.left for one in still)
    fetch(cache, np.arange(100), still[0])
    del still, announcement
    check_is_sound(cache)
    assert len(table.rows.index.entries) <= 512, "memory for ids that are not needed is released"


def test_a_full_window_refuses_later_batches_and_keeps_those_needed_soonest() -> None:
    cache = RowCache(1 << 20)
    ahead = [announce(cache, np.arange(100)) for _ in range(80)]
    assert [one is None for one in ahead] == [False] * 64 + [True] * 16
    assert all(one is not None and one.ticket.left for one in ahead[:64])
    fetch(cache, np.arange(100), ahead[0])
    assert announce(cache, np.arange(100)) is not None


@pytest.mark.parametrize("num_full", [1, 4, 9])
def test_a_late_table_gets_room_among_full_tables(num_full: int) -> None:
    cache = RowCache(1 << 20)
    columns = [{f"x{i}": FeatureSchema(dtype="float32", shape=(100,))} for i in range(num_full + 1)]
    tables = [cache.table("node", one, 1 << 20) for one in columns]

    def hits(number: int, ids: np.ndarray) -> int:
        found = cache.find(tables[number], ids, None)
        num_hits = int((found.slots >= 0).sum())
        keep(found, {f"x{number}": np.zeros((len(ids), 100), np.float32)}, columns[number])
        found.end()
        return num_hits

    for step in range(40):
        for number in range(num_full):
            hits(number, np.arange(step * 100, step * 100 + 100))
    before = cache.counts()
    assert before.num_bytes > 0.9 * before.max_bytes
    assert sum(hits(num_full, np.arange(100)) for _ in range(20)) > 1000
    assert cache.counts().num_evicted > before.num_evicted


def test_columns_in_any_order_share_a_table() -> None:
    cache = RowCache(1 << 20)
    columns = {name: FeatureSchema(dtype="float32", shape=(100,)) for name in "xh"}
    assert cache.table("node", columns, 99) is cache.table("node", dict(reversed(columns.items())), 99)


def test_rows_that_another_thread_fetches_are_awaited() -> None:
    cache = RowCache(1 << 20)
    first = cache.find(table_of(cache), np.arange(10), None)
    second = cache.find(table_of(cache), np.arange(5, 15), None)
    assert (second.slots[:5] < -1).all()
    assert (second.slots[5:] == -1).all()
    waiting = threading.Thread(target=second.wait, args=(-2 - second.slots[:5],))
    waiting.start()
    first.end()  # without rows, as after an error
    waiting.join(10)
    assert not waiting.is_alive()
    second.end()
    check_is_sound(cache)


def test_several_threads_request_each_row_once(tmp_path: Path, server_pool: ServerPool) -> None:
    rng = np.random.default_rng(0)
    graph = Graph(
        nodes={"node": NodeTable(num_nodes=2000, features={"x": rng.random((2000, 16))})},
        edges={EDGE: EdgeTable(src_keys=rng.integers(0, 2000, 8000), dst_keys=rng.integers(0, 2000, 8000))},
    )
    write_parts(graph, tmp_path / "g", num_parts=2, method="hash")
    with server_pool.serve([tmp_path / "g"], [[0], [1]]) as ((*locations,),):
        settings = StoreSettings(prefer_local=False, cache_bytes=1 << 24)
        with NeighborLoader(
            ",".join(locations),
            [10, 10],
            batch_size=50,
            num_threads=4,
            collate="numpy",
            edge_keys=False,
            store_settings=settings,
        ) as loader:
            nodes = [batch.node_keys["node"] for batch in loader]
            counts = loader.store.traffic()["fetch"]
    assert counts.remote_ids == len(np.unique(np.concatenate(nodes))) < counts.cache_ids


def test_rows_of_a_fetch_that_failed_are_fetched_by_others(tmp_path: Path) -> None:
    write_parts(
        Graph(nodes={"node": NodeTable(num_nodes=40, features={"x": np.ones((40, 16))})}), tmp_path / "g", num_parts=2
    )
    near, far = (LocalStore(open_dataset(tmp_path / "g"), [part]) for part in range(2))
    server = StoreServer(far)
    settings = StoreSettings(prefer_local=False, cache_bytes=1 << 20, timeout_s=5.0)
    request = FetchRequest(entity="node", names=("x",), ids=np.arange(40))
    with RoutedStore([near, RemoteStore(server.location, settings)], settings) as store:
        location = server.location
        server.close()
        failures = []
        for _ in range(2):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable) as failure:
                store.fetch([request])
            failures.append(failure)  # keeps the frames of the failed fetch alive
            assert time.monotonic() - started < 0.9, "no thread fetches these rows, so none is awaited"
        with StoreServer(far, location):
            for _ in range(2):
                started = time.monotonic()
                assert store.fetch([request])[0]["x"].sum() == 40 * 16
            assert store.traffic()["fetch"].cache_ids == 20


def test_a_fork_with_a_locked_cache_does_not_hang() -> None:
    cache = open_row_cache("some dataset", 1 << 20)
    assert cache is not None
    fetch(cache, np.arange(1), None)
    with cache._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            again = open_row_cache("some dataset", 2000)
            is_new = again is not None and again is not cache
            os._exit(0 if is_new and cache.counts().num_rows == again.counts().num_rows == 0 else 1)
    close_row_cache("some dataset")
    assert os.waitpid(child, 0)[1] == 0


MEMORY = """
import sys
import numpy as np, psutil
from hopstream.arrays import RaggedArray, offsets_of
from hopstream.schema import FeatureSchema
from hopstream.store.located import LocatedRows
from hopstream.store.row_cache import RowCache

def run(cache):
    is_ragged, rng = bool(sys.argv[1:]), np.random.default_rng(0)
    feature = FeatureSchema(dtype="float32", shape=() if is_ragged else (100,), is_ragged=is_ragged)
    table, x = cache.table("node", {"x": feature}, 1 << 20), np.zeros((2000, 100), np.float32)
    lengths = rng.multinomial(x.size, rng.dirichlet(np.ones(2000)))
    out = {"x": RaggedArray(x.reshape(-1), offsets_of(lengths)) if is_ragged else x}
    batches = [rng.integers(0, 400_000, 2000) for _ in range(400)]
    ahead = [cache.announce([(table, ids)])[0] for ids in batches[:16]]
    for step, ids in enumerate(batches):
        ahead += [cache.announce([(table, later)])[0] for later in batches[len(ahead) : step + 17]]
        found = cache.find(table, ids, ahead[step])
        if is_ragged:
            found.keep(out, found.fresh_at)
        else:
            located = LocatedRows.none({"x": feature}, len(ids))
            located.take(np.arange(len(ids)), out)
            found.keep_located(found.fresh_at, located)
        found.end()
        ahead[step] = None

run(RowCache(1 << 20))  # what is compiled and allocated once
before = psutil.Process().memory_info().rss
cache = RowCache(64 << 20)
run(cache)
print(psutil.Process().memory_info().rss - before, cache.counts().num_bytes, cache.counts().num_evicted)
"""


@pytest.mark.parametrize("words", [[], ["ragged"]], ids=["fixed", "ragged"])
def test_the_memory_of_a_process_grows_by_no_more_than_the_bound(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *words], capture_output=True, text=True, check=True, timeout=100
    )
    grown, num_bytes, num_evicted = map(int, done.stdout.split())
    assert num_evicted > 100_000 and 60 << 20 < num_bytes <= 64 << 20
    assert 40 << 20 < grown < 72 << 20, "and what batches of this program take"


def test_a_table_added_later_gets_a_share() -> None:
    cache, edges = RowCache(1000 * row_cost(X)), {"weights": FeatureSchema(dtype="float32", shape=(20,))}
    for _ in range(3):
        fetch(cache, np.arange(2000))
    late = cache.table(("node", "to", "node"), edges, 5000)
    assert late is not None
    ids, hits = np.arange(400), 0
    for _ in range(12):
        found = cache.find(late, ids, None)
        hits = int((found.slots >= 0).sum())
        keep(found, {"weights": np.zeros((400, 20), np.float32)}, edges)
        found.end()
        fetch(cache, np.arange(2000))
    assert hits == 400
    assert cache.counts().num_bytes <= cache.max_bytes


def test_without_announcements_rows_that_are_used_often_stay() -> None:
    rng = np.random.default_rng(3)
    often, cache = np.arange(40), RowCache(60 * row_cost(X))
    for _ in range(50):
        fetch(cache, np.concatenate([often, 40 + rng.integers(0, 400, 40)]))
    assert fetch(cache, often) >= 35


@pytest.mark.parametrize("num_rows", [300, 1000, 5000])
def test_batches_larger_than_the_cache_fill_it(num_rows: int) -> None:
    cache = RowCache(bytes_for(X, num_rows, 0))
    for first in range(0, 10 * num_rows, num_rows):
        fetch(cache, np.arange(first, first + 4 * num_rows))
        counts = cache.counts()
        assert counts.num_bytes <= counts.max_bytes
    assert counts.num_rows >= num_rows


def test_a_dataset_has_one_cache_while_it_is_open() -> None:
    cache = open_row_cache("one dataset", 1000)
    assert cache is not None
    assert open_row_cache("one dataset", 2000) is cache and cache.max_bytes == 1000
    other = open_row_cache("another", None)
    assert other is not cache
    assert open_row_cache("one dataset", 0) is None
    fetch(cache, np.arange(5))
    for name in ("one dataset", "another"):
        close_row_cache(name)
    assert open_row_cache("one dataset", 2000) is cache and cache.counts().num_rows == 5
    for _ in range(2):
        close_row_cache("one dataset")
    assert cache.counts().num_rows == 0
    again = open_row_cache("one dataset", 2000)
    assert again is not cache and again is not None and again.max_bytes == 2000
    close_row_cache("one dataset")


@pytest.mark.parametrize(
    ("row_bytes", "num_ids", "is_kept"),
    [(MIN_ROW_BYTES - 1, 10, False), (MIN_ROW_BYTES, 10, True), (100, MAX_IDS, True), (100, MAX_IDS + 1, False)],
)
def test_rows_that_are_too_short_or_of_too_many_are_not_kept(row_bytes: int, num_ids: int, is_kept: bool) -> None:
    columns = {"x": FeatureSchema(dtype="uint8", shape=(row_bytes,))}
    assert (RowCache(1000).table("node", columns, num_ids) is not None) is is_kept


def lists(lengths: np.ndarray) -> dict[str, Column]:
    return {"list": RaggedArray(np.zeros((lengths.sum(), 1), np.uint8), offsets_of(lengths))}


LISTS = {"list": FeatureSchema(dtype="uint8", shape=(1,), is_ragged=True)}


def keep_lists(cache: RowCache, ids: np.ndarray, lengths: np.ndarray) -> int:
    """Fetch rows of some lengths; return how many rows were evicted."""
    found = cache.find(table_of(cache, LISTS), ids, None)
    num_evicted = found.num_evicted + found.keep(lists(lengths), found.fresh_at)
    found.end()
    return num_evicted


@pytest.mark.parametrize(
    "lengths",
    [
        np.full(300, 92), np.zeros(300, np.int64), np.tile([0, 12, 12, 12, 12, 12, 12, 12, 12, 4000], 30),
        np.tile([492, 992], 150), np.random.default_rng(2).exponential(300, 300).astype(np.int64),
    ],
    ids=["equal", "empty", "some long", "two lengths", "exponential"],
)  # fmt: skip
def test_slots_fit_the_first_rows(lengths: np.ndarray) -> None:
    """The slot size is near the best: another size would save little memory for these rows."""
    cache, few = RowCache(1 << 22), NUM_FIRST_ROWS - 1
    keep_lists(cache, np.arange(few), lengths[:few])
    assert cache.counts().num_rows == few
    keep_lists(cache, np.arange(few, 300), lengths[few:])
    keep_lists(cache, np.arange(300), lengths)
    assert cache.counts().num_rows == 300

    def num_bytes(slot_bytes: int) -> int:
        return int((-(-(lengths + 8) // slot_bytes)).sum()) * (slot_bytes + RAGGED_SLOT_BYTES)

    assert cache.counts().num_bytes == num_bytes(table_of(cache, LISTS).rows.slot_bytes)
    assert cache.counts().num_bytes <= 1.05 * min(map(num_bytes, range(32, 5000)))


def test_a_row_that_is_too_long_is_not_kept_and_pushes_no_other_out() -> None:
    cache = RowCache(1 << 20)
    for _ in range(2):
        keep_lists(cache, np.arange(NUM_FIRST_ROWS), np.full(NUM_FIRST_ROWS, 92))
    num_slots = cache.max_bytes // (100 + RAGGED_SLOT_BYTES)
    longest = num_slots // SHARE_OF_ROW * 100 - 8
    assert keep_lists(cache, np.array([300, 301]), np.array([longest, longest + 1])) == 0
    assert cache.counts().num_rows == NUM_FIRST_ROWS + 1
    held = cache.find(table_of(cache, LISTS), np.array([300, 301]), None)
    assert (held.slots >= 0).tolist() == [True, False]
    held.end()
    check_is_sound(cache, LISTS)


def test_an_error_while_rows_are_kept_frees_no_slot_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = RowCache(1 << 18)
    for _ in range(2):
        keep_lists(cache, np.arange(NUM_FIRST_ROWS), np.full(NUM_FIRST_ROWS, 92))
    found = cache.find(table_of(cache, LISTS), np.arange(1000, 1010), None)
    lengths = np.full(10, 92)
    lengths[3] = 200_000  # too long to be kept

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(row_cache._Spans, "take", fail)
        found.keep(lists(lengths), found.fresh_at)
    del found
    check_is_sound(cache, LISTS)
    index = table_of(cache, LISTS).rows.index
    free = index.free[: index.state[NUM_FREE]]
    assert len(np.unique(free)) == len(free)


def test_rows_of_many_slots_are_evicted_for_rows_needed_sooner() -> None:
    cache = RowCache(1 << 18)
    for _ in range(2):
        keep_lists(cache, np.arange(NUM_FIRST_ROWS), np.full(NUM_FIRST_ROWS, 92))
    table = table_of(cache, LISTS)
    num_rows = cache.max_bytes // table.rows.slot_cost // 4 - 10  # of four slots each
    soon, often, lengths = np.arange(1000, 1000 + num_rows), np.arange(2000, 2000 + num_rows), np.full(num_rows, 392)
    assert sum(keep_lists(cache, often, lengths) for _ in range(3)) > NUM_FIRST_ROWS // 2, "they are used more often"
    waiting = cache.announce([(table, soon), (table, soon)])
    again = cache.announce([(table, soon)])
    found = cache.find(table, soon, waiting[0])
    assert found.num_evicted + found.keep(lists(lengths), found.fresh_at) > 0.7 * num_rows
    found.end()
    keep_lists(cache, often, lengths)
    found = cache.find(table, soon, again[0])
    assert (found.slots >= 0).all(), "they stay until they are needed"
    found.end()
    del waiting, again
    check_is_sound(cache, LISTS)


def test_copies_outside_slots_and_columns_are_refused() -> None:
    arena, out = np.zeros((4, 8), np.uint8), np.zeros(64, np.uint8)
    chain = np.array([[1, 2], [-1, 0], [7, 2], [-1, 1]], np.int32)

    def copy(slot: int, start: int, size: int, chain: np.ndarray = chain) -> None:
        columns = np.array([[out.ctypes.data, out.nbytes]])
        copy_rows(np.array([slot]), True, columns, np.array([[start]]), np.array([[size]]), arena, chain)

    copy(0, 48, 16)
    for slot, start, size in ((0, 0, 17), (2, 0, 9), (3, 0, 9), (4, 0, 1), (-1, 0, 1)):
        with pytest.raises(IndexError, match="continues outside the slots"):
            copy(slot, start, size)
    with pytest.raises(IndexError, match="continues outside the slots"):
        copy(0, 0, 9, chain[:0])
    for start, size in ((-1, 1), (0, -1), (60, 5)):
        with pytest.raises(IndexError, match="outside its column"):
            copy(0, start, size)
