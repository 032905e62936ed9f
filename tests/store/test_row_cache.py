"""Does the cache of rows answer only right rows, stay within its bound, and keep what is needed soonest?"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from hopstream.kernels.row_cache import MAX_IDS, NOT_NEEDED, NUM_ENTRIES, NUM_FREE, NUM_USED
from hopstream.schema import FeatureSchema
from hopstream.store.row_cache import (
    MIN_ROW_BYTES,
    Announcement,
    RowCache,
    RowTable,
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
    ticket = cache.ticket(1)
    return None if ticket is None else cache.announce(table_of(cache), ids, ticket)


def check_is_sound(cache: RowCache) -> None:
    """Nothing is pinned or waiting once nothing is under way, and every slot belongs to one entry."""
    cache.find(table_of(cache), np.empty(0, np.int64), None).end()  # takes back what was dropped
    index, state = table_of(cache).index, table_of(cache).index.state
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
    assert not failures
    check_is_sound(cache)


def best_hits(batches: list[np.ndarray], num_rows: int) -> int:
    """Hits of a cache that knows all batches: what is needed latest is given up first (Belady)."""
    uses: dict[int, list[int]] = {}
    for step in range(len(batches) - 1, -1, -1):
        for one in batches[step].tolist():
            uses.setdefault(one, []).append(step)
    kept: set[int] = set()
    hits = 0
    for ids in batches:
        hits += len(kept.intersection(ids.tolist()))
        for one in ids.tolist():
            uses[one].pop()
        wanted = sorted(kept.union(ids.tolist()), key=lambda one: uses[one][-1] if uses[one] else len(batches))
        kept = set(wanted[:num_rows])
    return hits


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_hits_are_within_three_points_of_the_best_that_is_possible(share: float) -> None:
    rng, num_ids, num_batches, look_ahead = np.random.default_rng(7), 20_000, 60, 16
    batches = [np.unique(rng.zipf(1.2, 2500) % num_ids) for _ in range(num_batches)]
    num_rows = int(share * num_ids)
    cache = RowCache(num_rows * row_cost(X))
    announced: list[Any] = [announce(cache, ids) for ids in batches[:look_ahead]]
    hits = 0
    for step, ids in enumerate(batches):
        if step + look_ahead < num_batches:
            announced.append(announce(cache, batches[step + look_ahead]))
        hits += fetch(cache, ids, announced[step])
    total = sum(map(len, batches))
    assert (best_hits(batches, num_rows) - hits) / total < 0.03
    assert cache.counts().num_evicted > 0


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
