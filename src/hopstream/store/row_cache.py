"""Cache of rows: keeps columns of other servers' nodes and edges in memory, those that are needed soonest first.

A loader samples some batches ahead and announces which rows each will fetch. The cache keeps rows by when they are
needed next, and rows that no announced batch needs by how often they were used. Rows are immutable: a dataset that was
appended to is another dataset, with a cache of its own.

A slot holds all columns of a row, one after the other. In a table with ragged columns, a row that is longer than a slot
continues in others; the lengths of the first rows decide how many bytes a slot has.

One cache serves all stores of a dataset in a process. Each set of columns of a type is a table with slots of its own.
Tables take room as they need it, until the bytes of all tables reach the bound; then each replaces its own rows. A
table that finds no room and has less than an equal share of the bound makes the largest one start anew.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import Entity
from hopstream.engine.machine import this_machine
from hopstream.kernels.memory import address_table
from hopstream.kernels.row_cache import (
    MAX_IDS,
    MAX_SLOTS,
    NUM_BITS,
    NUM_CONTINUED,
    NUM_COUNTED,
    NUM_ENTRIES,
    NUM_EVICTED,
    NUM_FREE,
    NUM_USED,
    RowIndex,
    admit_ids,
    announce_ids,
    chain_slots,
    copy_rows,
    forget_ids,
    halve_counts,
    move_entries,
    release_slots,
    settle_slots,
    take_slots,
)
from hopstream.schema import FeatureSchema
from hopstream.store.halo import NO_POSITIONS

SHARE_OF_FREE = 8
"""Without a bound of the user's, a cache takes one part in so many of the memory that is free."""
MIN_ROW_BYTES = 32
"""Rows of fixed width of fewer bytes cost more to find again than they are worth."""
SLOT_BYTES = 8 + 1 + 1 + 4 + 8 + 2
"""Bytes of a slot beside its row: owner, next use, uses, pins, free list, counts."""
FIRST_VALUE_BYTES = 64
"""Bytes of a slot for values of ragged columns, until lengths are known."""
NUM_FIRST_ROWS = 256
"""Rows whose lengths say how many bytes a slot has."""
MIN_SLOT_BYTES = 32
ENTRY_BYTES = 16
ENTRIES_PER_ID = 4
"""Most entries of the hash table per id that it holds; at least two."""
RAGGED_SLOT_BYTES = SLOT_BYTES + 2 * 4 + ENTRIES_PER_ID * ENTRY_BYTES
"""Bytes of a slot beside its part of a row, with its share of the index, where rows take several."""
FIRST_ENTRIES = 1 << 12
SHARE_OF_AHEAD = 2
"""Ids of batches sampled ahead take one part in so many of the bound at most."""
MAX_STARVED = 8
"""How often a table finds no room before another one starts anew for it."""
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
    """Bytes of one row of some columns of fixed width in a cache, with its share of the index."""
    return _row_bytes(columns) + SLOT_BYTES + ENTRIES_PER_ID * ENTRY_BYTES


def bytes_for(columns: Columns, num_rows: int, num_ahead: int) -> int:
    """Bytes in which a cache holds so many rows, while it knows so many ids of batches that are sampled ahead."""
    return num_rows * row_cost(columns) + ENTRIES_PER_ID * ENTRY_BYTES * num_ahead + (1 << 13)


def _row_bytes(columns: Columns) -> int:
    """Bytes of a row, of ragged columns those of their lengths."""
    return sum(feature.row_bytes if feature.is_fixed_width else 8 for feature in columns.values())


def _ragged_names(columns: Columns) -> list[str]:
    return [name for name, feature in columns.items() if not feature.is_fixed_width]


class _Spans(NamedTuple):
    """Where rows of some columns lie.

    Attributes:
        columns: The columns, which this keeps alive.
        addresses: int64[num_columns, 2], the address of each, and its bytes.
        starts: int64[num_columns, n], where each row begins, in bytes.
        sizes: int64[num_columns, n], its bytes.
    """

    columns: Sequence[Array]
    addresses: IntArray
    starts: IntArray
    sizes: IntArray

    @classmethod
    def of(cls, columns: Sequence[tuple[Column, IntArray]]) -> _Spans:
        """Take columns in C order, and of each int64[n] rows."""
        values = [column.values if isinstance(column, RaggedArray) else column for column, _ in columns]
        starts, sizes = np.empty((2, len(columns), len(columns[0][1])), np.int64)
        for number, (column, rows) in enumerate(columns):
            width = values[number].itemsize * math.prod(values[number].shape[1:])
            starts[number], sizes[number] = rows * width, width
            if isinstance(column, RaggedArray):
                starts[number] = column.offsets[rows] * width
                sizes[number] = column.offsets[rows + 1] * width - starts[number]
        return cls(values, address_table([one.reshape(-1).view(np.uint8) for one in values]), starts, sizes)

    def take(self, is_wanted: NDArray[np.bool_]) -> _Spans:
        """Some of the rows; bool[n]."""
        starts, sizes = (np.compress(is_wanted, one, axis=1) for one in (self.starts, self.sizes))
        return self._replace(starts=starts, sizes=sizes)


class _Rows:
    """Slots for rows of some columns, and their index; the index is used under the lock of the cache."""

    def __init__(self, columns: Columns, max_bytes: int, slot_bytes: int) -> None:
        """Take nothing yet, and all of a bound at most; columns are ragged where slots may hold less than a row."""
        self._columns, self.slot_bytes = columns, slot_bytes
        self._ragged = _ragged_names(columns)
        self.slot_cost = slot_bytes + RAGGED_SLOT_BYTES if self._ragged else row_cost(columns)
        num_slots = min(MAX_SLOTS, max(1, max_bytes // self.slot_cost))
        # Pages of these arrays take memory when they are first written, which is when slots are first used.
        self._arena = np.empty((num_slots, slot_bytes), np.uint8)
        self.index = RowIndex(
            entries=np.zeros((FIRST_ENTRIES, 2), np.uint64),
            shift=np.uint64(64 - (FIRST_ENTRIES.bit_length() - 1)),
            owners=np.empty(num_slots, np.int64),
            needed=np.empty(num_slots, np.uint8),
            uses=np.empty(num_slots, np.uint8),
            pins=np.empty(num_slots, np.int32),
            chain=np.empty((num_slots if self._ragged else 0, 2), np.int32),
            free=np.empty(num_slots, np.int64),
            counts=np.zeros(1 << max(12, num_slots.bit_length()), np.uint8),
            state=np.zeros(6, np.int64),
        )

    @property
    def num_used(self) -> int:
        """Slots that have ever been used: their memory is taken."""
        return int(self.index.state[NUM_USED])

    @property
    def num_rows(self) -> int:
        """Rows that are there."""
        return self.num_used - int(self.index.state[NUM_FREE] + self.index.state[NUM_CONTINUED])

    @property
    def num_bytes(self) -> int:
        """Bytes that the slots and their index take, but for the entries that every table begins with."""
        entries_bytes = max(
            self.index.entries.nbytes - FIRST_ENTRIES * ENTRY_BYTES, ENTRIES_PER_ID * ENTRY_BYTES * self.num_used
        )
        return self.num_used * (self.slot_cost - ENTRIES_PER_ID * ENTRY_BYTES) + entries_bytes

    def num_spare(self, max_bytes: int) -> int:
        """Bytes by which the entries may still grow for ids without a slot, which take a share of the bound at most."""
        entries_bytes = self.index.entries.nbytes - ENTRIES_PER_ID * ENTRY_BYTES * self.num_used
        return max(0, max_bytes // SHARE_OF_AHEAD - entries_bytes)

    def fit_index(self, num_more: int, max_more_bytes: int) -> bool:
        """Let the index hold some ids more, and no more entries than it needs; whether the bytes for that are left."""
        index, num_entries = self.index, int(self.index.state[NUM_ENTRIES]) + num_more
        capacity, bits = len(index.entries), max(FIRST_ENTRIES.bit_length() - 1, (2 * num_entries - 1).bit_length())
        if 1 << bits <= capacity <= 4 << bits:
            return True
        if 1 << bits > capacity and ENTRY_BYTES * ((1 << bits) - capacity) > max_more_bytes:
            return False
        self.index = index._replace(entries=np.zeros((1 << bits, 2), np.uint64), shift=np.uint64(64 - bits))
        move_entries(index.entries, self.index)
        return True

    @property
    def num_new(self) -> int:
        """Ids more that the index can hold as it is."""
        return len(self.index.entries) // 2 - int(self.index.state[NUM_ENTRIES])

    def read(self, slots: IntArray, out: Mapping[str, Array], targets: IntArray) -> dict[str, Column]:
        """Copy pinned rows: of fixed width to the rows ``targets`` of some columns, ragged ones to new columns."""
        lengths = np.empty((len(slots), len(self._ragged)), np.int64)
        found: dict[str, Column] = {}
        if self._ragged:
            self._copy(slots, True, _Spans.of([(lengths, np.arange(len(slots)))]))
        for number, name in enumerate(self._ragged):
            feature, offsets = self._columns[name], offsets_of(lengths[:, number])
            values = np.empty((offsets[-1], *feature.shape), feature.numpy_dtype)
            found[name] = RaggedArray(values, offsets, feature.is_string)
        self._copy(slots, True, self._spans(lengths, {**out, **found}, targets, np.arange(len(slots))))
        return found

    def spans(self, source: Mapping[str, Column], rows: IntArray) -> _Spans:
        """Where the rows ``rows`` of some columns lie, which are to be written to slots."""
        lengths = np.empty((len(rows), len(self._ragged)), np.int64)
        for number, name in enumerate(self._ragged):
            offsets = cast(RaggedArray, source[name]).offsets
            lengths[:, number] = offsets[rows + 1] - offsets[rows]
        return self._spans(lengths, source, rows, rows)

    def write(self, slots: IntArray, spans: _Spans) -> None:
        """Copy rows to slots that are being filled."""
        self._copy(slots, False, spans)

    def _spans(self, lengths: IntArray, columns: Mapping[str, Column], rows: IntArray, ragged_rows: IntArray) -> _Spans:
        """Where rows lie in columns, in the order in which slots hold them: lengths, fixed width, ragged."""
        ordered = [(columns[name], rows) for name in self._columns if name not in self._ragged]
        if self._ragged:
            ordered.insert(0, (lengths, np.arange(len(rows))))
        return _Spans.of(ordered + [(columns[name], ragged_rows) for name in self._ragged])

    def _copy(self, slots: IntArray, is_read: bool, spans: _Spans) -> None:
        copy_rows(slots, is_read, spans.addresses, spans.starts, spans.sizes, self._arena, self.index.chain)


class RowTable:
    """The cached rows of some columns of one type.

    Attributes:
        rows: The rows; other ones after the table started anew.
        row_bytes: Bytes of the columns of fixed width of one row.
    """

    def __init__(self, columns: Columns, max_bytes: int) -> None:
        """Make a table that takes nothing yet, and all of a bound at most."""
        self._columns, self._max_bytes = columns, max_bytes
        self.is_ragged = bool(_ragged_names(columns))
        self.row_bytes = sum(feature.row_bytes for feature in columns.values() if feature.is_fixed_width)
        self._slot_bytes = _row_bytes(columns) + (FIRST_VALUE_BYTES if self.is_ragged else 0)
        self._first_sizes: IntArray = NO_POSITIONS
        self.start_anew()

    def start_anew(self) -> None:
        """Forget all rows; threads that use some finish with those that they have."""
        self.rows = _Rows(self._columns, self._max_bytes, self._slot_bytes)

    def fit_slots(self, sizes: IntArray) -> None:
        """Start anew, once, with slots of as many bytes as make the first rows take the least memory.

        Args:
            sizes: int64[n], bytes of rows that came, with their lengths.
        """
        if len(self._first_sizes) >= NUM_FIRST_ROWS:
            return
        self._first_sizes = np.append(self._first_sizes, sizes)
        if len(self._first_sizes) < NUM_FIRST_ROWS:
            return
        sizes, self._first_sizes = self._first_sizes, self._first_sizes[:NUM_FIRST_ROWS].copy()
        likely = np.quantile(sizes, np.linspace(0, 1, 11))[:, None] / [1, 2, 4]
        choices = np.unique(likely.astype(np.int64).clip(MIN_SLOT_BYTES))
        costs = [int((-(-sizes // choice)).sum()) * (int(choice) + RAGGED_SLOT_BYTES) for choice in choices]
        self._slot_bytes = int(choices[np.argmin(costs)])
        self.start_anew()


@dataclass(slots=True, eq=False)
class _Ticket:
    """A batch that was announced.

    Attributes:
        number: Its number in the order of announcements.
        left: The tables and ids of its requests that were neither made nor dropped, by number.
    """

    number: int
    left: dict[int, tuple[RowTable, IntArray]]

    @property
    def bit(self) -> int:
        """The number of its bit in masks of the index."""
        return self.number % NUM_BITS


class Announcement:
    """Rows that a batch will need; taken back where it goes before they were asked for."""

    def __init__(self, cache: RowCache, ticket: _Ticket, number: int) -> None:
        """Remember what was announced: a request of a batch."""
        self._cache, self.ticket, self.number = cache, ticket, number

    def __del__(self) -> None:
        """Take the announcement back, unless ``RowCache.find`` used it."""
        if self.number in self.ticket.left:
            self._cache.drop(partial(RowCache.forget, ticket=self.ticket, number=self.number))


class Found:
    """Which of some rows a cache holds, and which of the others it will keep when they come.

    The rows stay where they are until ``end``, or until nobody refers to this object.

    Attributes:
        slots: int64[n], the slot of each row; -1 where it is not there.
        fresh_at: int64[m], which of the rows are to be kept when they come.
        num_evicted: Rows that were given up for them.
        row_bytes: Bytes of the columns of fixed width of one row.
    """

    def __init__(self, cache: RowCache, table: RowTable, slots: IntArray, fresh: IntArray, num_evicted: int) -> None:
        """Take over pinned slots, and slots to fill; int64[n], -1 where there is none."""
        self._cache, self._table, self._rows = cache, table, table.rows
        self.slots, self.num_evicted = slots, num_evicted
        (self.fresh_at,) = np.nonzero(fresh >= 0)
        self._fresh = fresh[self.fresh_at]
        self.row_bytes = table.row_bytes

    def read(self, slots: IntArray, out: Mapping[str, Array], targets: IntArray) -> dict[str, Column]:
        """Copy rows that were found: to the rows ``targets`` of columns of fixed width, and to new ragged columns."""
        return self._rows.read(slots, out, targets)

    def keep(self, columns: Mapping[str, Column], rows: IntArray) -> int:
        """Keep the rows of ``fresh_at``, which came: they are the rows ``rows`` of some columns.

        Returns:
            How many more rows were given up, because these take several slots.
        """
        num_evicted = 0
        if len(rows):
            spans = self._rows.spans(columns, rows)
            if self._table.is_ragged:
                is_held, num_evicted = self._cache.chain(self._table, self._rows, self._fresh, spans.sizes.sum(axis=0))
                self._fresh, spans = self._fresh[is_held], spans.take(is_held)
            self._rows.write(self._fresh, spans)
            self._cache.settle(self._rows, self._fresh)
            self._fresh = NO_POSITIONS
        return num_evicted

    def end(self) -> None:
        """Let go of the rows; those that were to be kept and did not come are forgotten."""
        self._cache.release(self._rows, self.slots, self._fresh)
        self.slots = self._fresh = NO_POSITIONS

    def __del__(self) -> None:
        """End where nobody did, because the request failed."""
        if len(self.slots):
            rows, slots, fresh = self._rows, self.slots, self._fresh
            self._cache.drop(lambda _: _release(rows, slots, fresh))


class RowCache:
    """Rows of one dataset that stores of this process have fetched from servers. Safe to use from many threads."""

    def __init__(self, max_bytes: int) -> None:
        """Keep rows whose bytes, with those of their index, stay within a bound, and within the memory that is free."""
        self.max_bytes = min(max_bytes, this_machine().free_bytes)
        self._lock = threading.Lock()
        self._tables: dict[tuple[Entity, tuple[str, ...]], RowTable] = {}
        self._tickets: dict[int, _Ticket] = {}
        self._num_announced = self._num_starved = self._num_evicted = 0
        self._dropped: deque[Callable[[RowCache], object]] = deque()

    def table(self, entity: Entity, columns: Columns, num_ids: int) -> RowTable | None:
        """The table of some columns of ``num_ids`` ids; None where their rows are not worth keeping."""
        if (_row_bytes(columns) < MIN_ROW_BYTES and not _ragged_names(columns)) or num_ids > MAX_IDS:
            return None
        with self._lock:
            key = (entity, tuple(columns))
            if key not in self._tables:
                self._tables[key] = RowTable(columns, self.max_bytes)
            return self._tables[key]

    def announce(self, requests: Sequence[tuple[RowTable, IntArray]]) -> list[Announcement | None]:
        """Note which rows a batch will need.

        Args:
            requests: Tables and int64[n] ids of its requests.

        Returns:
            What to give to ``find`` with each; None where there is no memory to remember the ids.
        """
        with self._lock:
            self._collect()
            ticket = _Ticket(self._num_announced, {})
            while self._tickets and ticket.number - next(iter(self._tickets)) >= NUM_BITS:
                self._expire(next(iter(self._tickets.values())))
            announced: list[Announcement | None] = []
            for number, (table, ids) in enumerate(requests):
                if not table.rows.fit_index(len(ids), min(self._num_left(), table.rows.num_spare(self.max_bytes))):
                    announced.append(None)
                    continue
                announce_ids(ids, ticket.bit, table.rows.index)
                ticket.left[number] = table, ids
                announced.append(Announcement(self, ticket, number))
            self._num_announced += 1  # also where nothing fits, so that announcements of others expire
            if ticket.left:
                self._tickets[ticket.number] = ticket
            return announced

    def drop(self, undo: Callable[[RowCache], object]) -> None:
        """Queue a clean-up. Called by the collector in any thread, also in one that has the lock."""
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
        with self._lock:
            self._collect()
            oldest, bit, rows = self._oldest(), NO_BIT, table.rows
            if announcement is not None and announcement.number in announcement.ticket.left:
                bit = announcement.ticket.bit
            num_missing = take_slots(ids, bit, oldest, slots, ranks, rows.index)
            if announcement is not None and bit != NO_BIT:
                self._end(announcement.ticket, announcement.number)
            state = rows.index.state
            if state[NUM_COUNTED] > USES_PER_COUNT * len(rows.index.counts):
                halve_counts(rows.index)
            num_evicted = int(state[NUM_EVICTED])
            if num_missing:
                self._share_out(table, num_missing)
                rows.fit_index(num_missing, self._num_left())
                admit_ids(ids, slots, ranks, self._num_slots(rows), rows.num_new, oldest, fresh, rows.index)
            num_evicted = int(state[NUM_EVICTED]) - num_evicted
            self._num_evicted += num_evicted
            return Found(self, table, slots, fresh, num_evicted)

    def chain(self, table: RowTable, rows: _Rows, fresh: IntArray, sizes: IntArray) -> tuple[NDArray[np.bool_], int]:
        """Give rows of a table with ragged columns as many slots as they need.

        Args:
            table: The table.
            rows: Its rows when ``fresh`` were given.
            fresh: int64[n], the first slot of each.
            sizes: int64[n], the bytes of each.

        Returns:
            bool[n], the rows that can be kept; and how many were given up for them.
        """
        is_held = np.zeros(len(fresh), np.bool_)
        with self._lock:
            if table.rows is rows:
                table.fit_slots(sizes)
            if table.rows is not rows:
                return is_held, 0
            num_evicted = int(rows.index.state[NUM_EVICTED])
            nums = -(-sizes // rows.slot_bytes)
            chain_slots(fresh, nums, self._num_slots(rows), self._oldest(), is_held, rows.index)
            num_evicted = int(rows.index.state[NUM_EVICTED]) - num_evicted
            self._num_evicted += num_evicted
            return is_held, num_evicted

    def settle(self, rows: _Rows, fresh: IntArray) -> None:
        """Let others read slots that were filled."""
        with self._lock:
            settle_slots(fresh, True, rows.index)

    def release(self, rows: _Rows, slots: IntArray, fresh: IntArray) -> None:
        """Unpin slots that were found, and give up those that were not filled."""
        with self._lock:
            _release(rows, slots, fresh)

    def forget(self, ticket: _Ticket, number: int) -> None:
        """Take one request of an announced batch back; called with the lock."""
        if number in ticket.left:
            table, ids = ticket.left[number]
            forget_ids(ids, ticket.bit, self._oldest(), table.rows.index)
            self._end(ticket, number)
            table.rows.fit_index(0, 0)

    def clear(self) -> None:
        """Forget all rows; threads that use some finish with them."""
        with self._lock:
            self._dropped.clear()
            for table in self._tables.values():
                table.start_anew()
            self._tables.clear()

    def counts(self) -> CacheCounts:
        """What the cache holds now."""
        with self._lock:
            tables = [table.rows for table in self._tables.values()]
            return CacheCounts(
                num_rows=sum(rows.num_rows for rows in tables),
                num_bytes=sum(rows.num_bytes for rows in tables),
                max_bytes=self.max_bytes,
                num_evicted=self._num_evicted,
            )

    def _num_left(self) -> int:
        """Bytes that are left of the bound."""
        return max(0, self.max_bytes - sum(table.rows.num_bytes for table in self._tables.values()))

    def _num_slots(self, rows: _Rows) -> int:
        """How many slots a table may use now."""
        return rows.num_used + self._num_left() // rows.slot_cost

    def _share_out(self, table: RowTable, num_wanted: int) -> None:
        """Let the largest table start anew where one found no room several times and has far less than its share."""
        if len(self._tables) < 2:
            return
        rows, share = table.rows, self.max_bytes // len(self._tables)
        if num_wanted <= self._num_left() // rows.slot_cost + int(rows.index.state[NUM_FREE]):
            return
        largest = max(self._tables.values(), key=lambda one: one.rows.num_bytes)
        if 2 * rows.num_bytes < share and 2 * largest.rows.num_bytes > 3 * share:
            self._num_starved += 1
            if self._num_starved == MAX_STARVED:
                largest.start_anew()
                self._num_starved = 0

    def _oldest(self) -> np.uint64:
        """The bit of the batch that was announced first and not fetched yet."""
        return np.uint64(next(iter(self._tickets), 0) % NUM_BITS)

    def _collect(self) -> None:
        """Do the clean-ups that were queued; called with the lock."""
        while self._dropped:
            self._dropped.popleft()(self)

    def _expire(self, ticket: _Ticket) -> None:
        """Forget that a batch was announced, because its loader stands still while others go on."""
        for number in list(ticket.left):
            self.forget(ticket, number)

    def _end(self, ticket: _Ticket, number: int) -> None:
        del ticket.left[number]
        if not ticket.left:
            self._tickets.pop(ticket.number, None)


def _release(rows: _Rows, slots: IntArray, fresh: IntArray) -> None:
    """Unpin slots, and give up those that were not filled; called with the lock of the cache."""
    release_slots(slots, rows.index)
    settle_slots(fresh, False, rows.index)


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
        cache, num_users = _CACHES.pop(dataset_id, (None, 0))
        if cache is not None and num_users > 1:
            _CACHES[dataset_id] = cache, num_users - 1
            return
    if cache is not None:
        cache.clear()


def _forget_after_fork() -> None:
    """Start without caches in a process that was forked: those of the parent may be locked, and count its batches."""
    global _CACHES_LOCK
    _CACHES_LOCK = threading.Lock()
    _CACHES.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
