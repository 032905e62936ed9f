"""Cache of rows: keeps columns of other servers' nodes and edges in memory, those that are needed soonest first.

A loader samples some batches ahead and announces which rows each will fetch. The cache keeps rows by when they are
needed next, and rows that no announced batch needs by how often they were used. Rows are immutable: a dataset that was
appended to is another dataset, with a cache of its own.

One cache serves all stores of a dataset in a process. Each set of columns of a type is a table with slots of its own;
tables take room as they need it, until the bytes of all tables reach the bound. Then each replaces its own rows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.dataset.book import Entity
from hopstream.engine.machine import this_machine
from hopstream.kernels.row_cache import (
    MAX_IDS,
    MAX_SLOTS,
    NUM_BITS,
    NUM_COUNTED,
    NUM_ENTRIES,
    NUM_EVICTED,
    NUM_USED,
    RowIndex,
    admit_ids,
    announce_ids,
    forget_ids,
    halve_counts,
    move_entries,
    release_slots,
    settle_slots,
    take_slots,
)
from hopstream.schema import FeatureSchema
from hopstream.store.halo import NO_POSITIONS, ColumnTable, gather_fixed

SHARE_OF_FREE = 8
"""Without a bound of the user's, a cache takes one part in so many of the memory that is free."""
MIN_ROW_BYTES = 32
"""Rows of fewer bytes cost more to find again than they are worth."""
SLOT_BYTES = 8 + 1 + 1 + 4 + 8 + 2 + 4 * 16
"""Bytes of a slot beside its row: owner, next use, uses, pins, free list, counts, and up to four entries."""
FIRST_ENTRIES = 1 << 12
USES_PER_COUNT = 8
"""Uses per entry of the table of counts after which all counts are halved."""
NO_BIT = -1
Columns = Mapping[str, FeatureSchema]


class CacheCounts(NamedTuple):
    """What a cache holds.

    Attributes:
        num_rows: Rows.
        num_bytes: Bytes that its rows and their index take.
        max_bytes: The bound on them.
        num_evicted: Rows that were given up for others since the cache was made.
    """

    num_rows: int = 0
    num_bytes: int = 0
    max_bytes: int = 0
    num_evicted: int = 0


def row_cost(columns: Columns) -> int:
    """Bytes of one row of some columns in a cache, with its share of the index."""
    return sum(feature.row_bytes for feature in columns.values()) + SLOT_BYTES


class RowTable:
    """The cached rows of some columns of one type; used under the lock of its cache, but for copies of rows."""

    def __init__(self, columns: Columns, max_bytes: int) -> None:
        """Make a table that may take all of a bound, and takes nothing yet."""
        self.row_cost = row_cost(columns)
        num_slots = min(MAX_SLOTS, max(1, max_bytes // self.row_cost))
        # Pages of these arrays take memory when they are first written, which is when slots are first used.
        self._columns = {
            name: np.empty((num_slots, *feature.shape), feature.numpy_dtype) for name, feature in columns.items()
        }
        self._readers = {name: ColumnTable(columns[name], [column]) for name, column in self._columns.items()}
        self._writers = columns
        self._offsets = np.array([0, num_slots], np.int64)
        self.index = RowIndex(
            entries=np.zeros((FIRST_ENTRIES, 2), np.uint64),
            shift=np.uint64(64 - (FIRST_ENTRIES.bit_length() - 1)),
            owners=np.empty(num_slots, np.int64),
            needed=np.empty(num_slots, np.uint8),
            uses=np.empty(num_slots, np.uint8),
            pins=np.empty(num_slots, np.int32),
            free=np.empty(num_slots, np.int64),
            counts=np.zeros(1 << max(12, num_slots.bit_length()), np.uint8),
            state=np.zeros(5, np.int64),
        )

    @property
    def num_used(self) -> int:
        """Slots that have ever been used, which is what the table takes of the bound."""
        return int(self.index.state[NUM_USED])

    def make_room(self, num_more: int) -> None:
        """Let the index hold some ids more."""
        index, num_entries = self.index, int(self.index.state[NUM_ENTRIES]) + num_more
        if 2 * num_entries > len(index.entries):
            bits = (2 * num_entries).bit_length()
            entries = np.zeros((1 << bits, 2), np.uint64)
            self.index = index._replace(entries=entries, shift=np.uint64(64 - bits))
            move_entries(index.entries, self.index)

    def read(self, slots: IntArray, out: Mapping[str, Array], targets: IntArray) -> None:
        """Copy pinned rows to the rows ``targets`` of some columns."""
        for name, reader in self._readers.items():
            gather_fixed(reader, slots, self._offsets, out[name], targets)

    def write(self, slots: IntArray, source: Mapping[str, Array], rows: IntArray) -> None:
        """Copy the rows ``rows`` of some columns to slots that are being filled."""
        for name, feature in self._writers.items():
            column = source[name]
            table, offsets = ColumnTable(feature, [column]), np.array([0, len(column)], np.int64)
            gather_fixed(table, rows, offsets, self._columns[name], slots)


@dataclass(slots=True, eq=False)
class _Ticket:
    """A batch that was announced.

    Attributes:
        number: Its number in the order of announcements.
        num_left: Its requests that were neither made nor dropped.
    """

    number: int
    num_left: int

    @property
    def bit(self) -> int:
        """The number of its bit in masks of the index."""
        return self.number % NUM_BITS


class Announcement:
    """Rows that a batch will need; taken back where it goes before they were asked for."""

    def __init__(self, cache: RowCache, table: RowTable, ids: IntArray, ticket: _Ticket) -> None:
        """Remember what was announced; int64[n] ids."""
        self._cache, self._table, self._ids = cache, table, ids
        self.ticket: _Ticket | None = ticket

    def __del__(self) -> None:
        """Take the announcement back, unless ``RowCache.find`` used it."""
        if self.ticket is not None:
            self._cache.drop(partial(self._cache._forget, self._table, self._ids, self.ticket))


class Found:
    """Which of some rows a cache holds, and which of the others it will keep when they come.

    The rows stay where they are until ``end``, or until nobody refers to this object.

    Attributes:
        slots: int64[n], the slot of each row; -1 where it is not there.
        fresh_at: int64[m], which of the rows are to be kept when they come.
        num_evicted: Rows that were given up for them.
        row_bytes: Bytes of one row.
    """

    def __init__(self, cache: RowCache, table: RowTable, slots: IntArray, fresh: IntArray, num_evicted: int) -> None:
        """Take over pinned slots, and slots to fill; int64[n], -1 where there is none."""
        self._cache, self._table, self.slots, self.num_evicted = cache, table, slots, num_evicted
        (self.fresh_at,) = np.nonzero(fresh >= 0)
        self._fresh = fresh[self.fresh_at]
        self.row_bytes = table.row_cost - SLOT_BYTES

    def read(self, slots: IntArray, out: Mapping[str, Array], targets: IntArray) -> None:
        """Copy rows that were found to the rows ``targets`` of some columns."""
        self._table.read(slots, out, targets)

    def keep(self, columns: Mapping[str, Array], rows: IntArray) -> None:
        """Keep the rows of ``fresh_at``, which came: they are the rows ``rows`` of some columns."""
        if len(rows):
            self._table.write(self._fresh, columns, rows)
            self._cache.settle(self._table, self._fresh)
            self._fresh = NO_POSITIONS

    def end(self) -> None:
        """Let go of the rows; those that were to be kept and did not come are forgotten."""
        self._cache.let_go(self._table, self.slots, self._fresh)
        self.slots = self._fresh = NO_POSITIONS

    def __del__(self) -> None:
        """End where nobody did, because the request failed."""
        if len(self.slots):
            self._cache.drop(partial(self._cache._let_go, self._table, self.slots, self._fresh))


class RowCache:
    """Rows of one dataset that stores of this process have fetched from servers. Safe to use from many threads."""

    def __init__(self, max_bytes: int) -> None:
        """Keep rows whose bytes, with those of their index, stay within a bound."""
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._tables: dict[tuple[Entity, tuple[str, ...]], RowTable] = {}
        self._tickets: dict[int, _Ticket] = {}
        self._num_announced = 0
        self._dropped: deque[Callable[[], None]] = deque()

    def table(self, entity: Entity, columns: Columns, num_ids: int) -> RowTable | None:
        """The table of some columns of fixed width of ``num_ids`` ids; None where their rows are not worth keeping."""
        if row_cost(columns) - SLOT_BYTES < MIN_ROW_BYTES or num_ids > MAX_IDS:
            return None
        with self._lock:
            key = (entity, tuple(columns))
            if key not in self._tables:
                self._tables[key] = RowTable(columns, self.max_bytes)
            return self._tables[key]

    def ticket(self, num_requests: int) -> _Ticket | None:
        """Announce a batch of some requests; None where as many are announced as can be told apart."""
        with self._lock:
            self._collect()
            number = self._num_announced
            if self._tickets and number - next(iter(self._tickets)) >= NUM_BITS:
                return None
            self._num_announced += 1
            ticket = self._tickets[number] = _Ticket(number, num_requests)
            return ticket

    def announce(self, table: RowTable, ids: IntArray, ticket: _Ticket) -> Announcement:
        """Note that a batch will need rows; int64[n] ids."""
        with self._lock:
            table.make_room(len(ids))
            announce_ids(ids, ticket.bit, table.index)
        return Announcement(self, table, ids, ticket)

    def drop(self, undo: Callable[[], None]) -> None:
        """Undo something soon. Called by the collector in any thread, also in one that has the lock."""
        self._dropped.append(undo)

    def find(self, table: RowTable, ids: IntArray, announcement: Announcement | None) -> Found:
        """Find rows, and choose which of the others to keep when they come.

        Args:
            table: Their table.
            ids: int64[n], repetitions allowed; those that were announced, where they were.
            announcement: Their announcement.
        """
        slots, ranks = np.empty(len(ids), np.int64), np.empty(len(ids), np.uint8)
        fresh = np.full(len(ids), -1, np.int64)
        ticket = None if announcement is None else announcement.ticket
        with self._lock:
            self._collect()
            oldest = self._oldest()
            bit = NO_BIT if ticket is None else ticket.bit
            num_missing = take_slots(ids, bit, oldest, slots, ranks, table.index)
            if announcement is not None and ticket is not None:
                announcement.ticket = None
                self._end_request(ticket)
            state = table.index.state
            if state[NUM_COUNTED] > USES_PER_COUNT * len(table.index.counts):
                halve_counts(table.index)
            num_evicted = int(state[NUM_EVICTED])
            if num_missing:
                table.make_room(num_missing)
                num_slots = table.num_used + max(0, self.max_bytes - self._num_bytes()) // table.row_cost
                admit_ids(ids, slots, ranks, num_slots, oldest, fresh, table.index)
            num_evicted = int(state[NUM_EVICTED]) - num_evicted
        return Found(self, table, slots, fresh, num_evicted)

    def settle(self, table: RowTable, fresh: IntArray) -> None:
        """Let others read slots that were filled."""
        with self._lock:
            settle_slots(fresh, True, table.index)

    def let_go(self, table: RowTable, slots: IntArray, fresh: IntArray) -> None:
        """Unpin slots that were found, and give up those that were not filled."""
        with self._lock:
            self._let_go(table, slots, fresh)

    def clear(self) -> None:
        """Forget all rows; threads that use some finish with them."""
        with self._lock:
            self._tables.clear()

    def counts(self) -> CacheCounts:
        """What the cache holds now."""
        with self._lock:
            states = [table.index.state for table in self._tables.values()]
            return CacheCounts(
                num_rows=sum(table.num_used for table in self._tables.values()),
                num_bytes=self._num_bytes(),
                max_bytes=self.max_bytes,
                num_evicted=int(sum(state[NUM_EVICTED] for state in states)),
            )

    def _num_bytes(self) -> int:
        return sum(table.num_used * table.row_cost for table in self._tables.values())

    def _let_go(self, table: RowTable, slots: IntArray, fresh: IntArray) -> None:
        release_slots(slots, table.index)
        settle_slots(fresh, False, table.index)

    def _forget(self, table: RowTable, ids: IntArray, ticket: _Ticket) -> None:
        forget_ids(ids, ticket.bit, self._oldest(), table.index)
        self._end_request(ticket)

    def _oldest(self) -> np.uint64:
        """The bit of the batch that was announced first and not fetched yet."""
        return np.uint64(next(iter(self._tickets), 0) % NUM_BITS)

    def _collect(self) -> None:
        """Undo what was dropped; called with the lock."""
        while self._dropped:
            self._dropped.popleft()()

    def _end_request(self, ticket: _Ticket) -> None:
        ticket.num_left -= 1
        if ticket.num_left == 0:
            del self._tickets[ticket.number]


_CACHES: dict[str, tuple[RowCache, int]] = {}
"""Dataset to its cache, and how many stores have it open."""
_CACHES_LOCK = threading.Lock()


def open_row_cache(dataset_id: str, max_bytes: int | None) -> RowCache | None:
    """The cache of a dataset that this process shares; the first store that opens it sets its bound.

    Args:
        dataset_id: Fingerprint of the dataset.
        max_bytes: Bound on its bytes; 0 for no cache, None for a share of the memory that is free.

    Returns:
        The cache, to be closed by ``close_row_cache``; None where ``max_bytes`` is 0.
    """
    if max_bytes == 0:
        return None
    with _CACHES_LOCK:
        cache, num_users = _CACHES.get(dataset_id, (None, 0))
        if cache is None:
            cache = RowCache(this_machine().free_bytes // SHARE_OF_FREE if max_bytes is None else max_bytes)
        _CACHES[dataset_id] = cache, num_users + 1
        return cache


def close_row_cache(dataset_id: str) -> None:
    """Let go of a cache that was opened; the last that does so frees its rows."""
    with _CACHES_LOCK:
        cache, num_users = _CACHES.pop(dataset_id)
        if num_users > 1:
            _CACHES[dataset_id] = cache, num_users - 1
            return
    cache.clear()
