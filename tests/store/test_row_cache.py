"""Tests that the cache of rows returns correct rows, stays within its bound and keeps the rows needed soonest."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from benchmarks.optimum import best_hits
from hopstream.kernels.row_cache import MAX_IDS, NOT_NEEDED, NUM_ENTRIES, NUM_FREE, NUM_USED
from hopstream.schema import FeatureSchema
from hopstream.store.row_cache import (
    MIN_ROW_BYTES,
    Announcement,
    RowCache,
    RowTable,
    bytes_for,
    close_row_cache,
    open_row_cache,
    row_cost,
)

X = {"x": FeatureSchema(dtype="float32", shape=(10,)), "y": FeatureSchema(dtype="int8", shape=(3,))}
NUM_IDS = 500


def truth(ids: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of some ids."""
    x = (ids[:, None] * 10 + np.arange(10)).astype(np.float32)
    return {"x": x, "y": (ids[:, None] + np.arange(3)).astype(np.int8)}


def table_of(cache: RowCache) -> RowTable:
    table = cache.table("node", X, NUM_IDS)
    assert table is not None
    return table


def fetch(cache: RowCache, ids: np.ndarray, announcement: Announcement | None = None, fails: bool = False) -> int:
    """Fetch rows as a store does; how many the cache held."""
    table = table_of(cache)
    found = cache.find(table, ids, announcement)
    out = {name: np.full_like(column, 99) for name, column in truth(ids).items()}
    (hits,) = np.nonzero(found.slots >= 0)
    found.read(found.slots[hits], out, hits)
    if fails:
        return len(hits)  # found is lost, as where a server did not answer
    (misses,) = np.nonzero(found.slots < 0)
    for name, column in truth(ids[misses]).items():
        out[name][misses] = column
    found.keep(out, found.fresh_at)
    found.end()
    for name, column in truth(ids).items():
        np.testing.assert_array_equal(out[name], column)
    return len(hits)


def announce(cache: RowCache, ids: np.ndarray) -> Announcement | None:
    return cache.announce([(table_of(cache), ids)])[0]


def check_is_sound(cache: RowCache) -> None:
    """Nothing is pinned or waiting once nothing is under way, and every slot belongs to one entry."""
    cache.find(table_of(cache), np.empty(0, np.int64), None).end()  # takes back what was dropped
    index, state = table_of(cache).rows.index, table_of(cache).rows.index.state
    used = np.setdiff1d(np.arange(state[NUM_USED]), index.free[: state[NUM_FREE]])
    assert not index.pins[used].any() and (index.needed[used] == NOT_NEEDED).all()
    entries = index.entries[index.entries[:, 0] != 0].astype(np.int64)
    assert state[NUM_ENTRIES] == len(entries) == len(used) and not entries[:, 1].any()
    slots = (entries[:, 0] & 0xFFFFFF) - 1
    np.testing.assert_array_equal(np.sort(slots), used)
    np.testing.assert_array_equal(index.owners[slots], (entries[:, 0] >> 24) - 1)
    assert cache.counts().num_bytes <= cache.max_bytes


@pytest.mark.parametrize("num_rows", [0, 1, 30, 200, 10_000])
@pytest.mark.parametrize("look_ahead", [0, 1, 5, 80])
def test_rows_are_right_whatever_is_announced_dropped_or_lost(num_rows: int, look_ahead: int) -> None:
    rng = np.random.default_rng(num_rows * 100 + look_ahead)
    cache = RowCache(num_rows * row_cost(X))
    ahead: list[tuple[np.ndarray, Announcement | None]] = []
    announcement: Announcement | None = None
    for _ in range(300):
        while len(ahead) < max(1, look_ahead):
            ids = rng.zipf(1.3, rng.integers(0, 60)) % NUM_IDS
            ahead.append((ids, announce(cache, ids) if look_ahead and rng.random() < 0.9 else None))
        ids, announcement = ahead.pop(0)
        if rng.random() < 0.1:
            announcement = None  # the batch is never fetched
            continue
        fetch(cache, ids, announcement, fails=rng.random() < 0.1)
        assert cache.counts().num_rows <= num_rows
    del ahead, announcement
    check_is_sound(cache)


def test_threads_share_a_cache() -> None:
    cache = RowCache(60 * row_cost(X))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        try:
            for _ in range(150):
                batches = [rng.zipf(1.3, 50) % NUM_IDS for _ in range(4)]
                announced = [announce(cache, ids) for ids in batches]
                for ids, announcement in zip(batches, announced, strict=True):
                    fetch(cache, ids, announcement, fails=rng.random() < 0.05)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures
    check_is_sound(cache)


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_hits_are_within_three_points_of_the_best_that_is_possible(share: float) -> None:
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
        found.keep({"x": np.empty((len(ids), 400), np.float32)}, found.fresh_at)
        found.end()
        if step == num_batches // 2:  # later on less is announced, and there is room for more
            num_rows = cache.counts().num_rows
    assert None not in announced
    total = sum(map(len, batches))
    assert 0.9 * share * num_ids < num_rows < 1.5 * share * num_ids
    assert 0 <= (best_hits(batches, num_rows).sum() - hits) / total < 0.03
    assert cache.counts().num_evicted > 0


def test_announcements_stay_within_the_bound_and_those_of_a_loader_that_stands_still_expire() -> None:
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
    assert len(table.rows.index.entries) == 1 << 12, "what is not needed any more is given back"


MEMORY = """
import numpy as np, psutil
from hopstream.schema import FeatureSchema
from hopstream.store.row_cache import RowCache

def run(cache):
    table = cache.table("node", {"x": FeatureSchema(dtype="float32", shape=(100,))}, 1 << 20)
    out, rng = {"x": np.zeros((2000, 100), np.float32)}, np.random.default_rng(0)
    batches = [rng.integers(0, 400_000, 2000) for _ in range(400)]
    ahead = [cache.announce([(table, ids)])[0] for ids in batches[:16]]
    for step, ids in enumerate(batches):
        ahead += [cache.announce([(table, later)])[0] for later in batches[len(ahead) : step + 17]]
        found = cache.find(table, ids, ahead[step])
        found.keep(out, found.fresh_at)
        found.end()
        ahead[step] = None

run(RowCache(1 << 20))  # what is compiled and allocated once
before = psutil.Process().memory_info().rss
cache = RowCache(64 << 20)
run(cache)
print(psutil.Process().memory_info().rss - before, cache.counts().num_bytes, cache.counts().num_evicted)
"""


def test_the_memory_of_a_process_grows_by_no_more_than_the_bound() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, timeout=100)
    grown, num_bytes, num_evicted = map(int, done.stdout.split())
    assert num_evicted > 100_000 and 60 << 20 < num_bytes <= 64 << 20
    assert 40 << 20 < grown < 72 << 20, "and what batches of this program take"


def test_a_table_that_comes_later_gets_a_share() -> None:
    cache, edges = RowCache(1000 * row_cost(X)), {"weights": FeatureSchema(dtype="float32", shape=(20,))}
    for _ in range(3):
        fetch(cache, np.arange(2000))
    late = cache.table(("node", "to", "node"), edges, 5000)
    assert late is not None
    ids, hits = np.arange(400), 0
    for _ in range(12):
        found = cache.find(late, ids, None)
        hits = int((found.slots >= 0).sum())
        found.keep({"weights": np.zeros((400, 20), np.float32)}, found.fresh_at)
        found.end()
        fetch(cache, np.arange(2000))
    assert hits == 400
    assert cache.counts().num_bytes <= cache.max_bytes


def test_a_forked_process_begins_without_caches() -> None:
    cache = open_row_cache("one dataset", 1000)
    assert cache is not None
    with cache._lock:
        child = os.fork()
        if child == 0:
            again = open_row_cache("one dataset", 2000)
            os._exit(0 if again is not None and again is not cache and again.counts().num_rows == 0 else 1)
    close_row_cache("one dataset")
    assert os.waitpid(child, 0)[1] == 0


def test_without_announcements_rows_that_are_used_often_stay() -> None:
    rng = np.random.default_rng(3)
    often, cache = np.arange(40), RowCache(60 * row_cost(X))
    for _ in range(50):
        fetch(cache, np.concatenate([often, 40 + rng.integers(0, 400, 40)]))
    assert fetch(cache, often) >= 35


def test_a_dataset_has_one_cache_while_somebody_has_it_open() -> None:
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
