"""Row cache: keeps rows of columns that servers have sent, by the batch that needs them next.

A loader samples some batches ahead and announces the rows that each batch will fetch. The cache prefers rows that an
announced batch needs soon. It ranks rows that no announced batch needs by their number of uses. Rows are immutable: an
append makes another dataset, with a cache of its own.

A slot holds all columns of a row, one after the other. In a table with ragged columns, a row that is longer than a slot
continues in other slots; the lengths of the first rows determine the size of slots.

All stores of a dataset in a process share one cache. Each set of columns of a type is a table with its own slots.
Tables grow until the bytes of all tables reach the bound; then each table evicts its own rows. If a table with far less
than an equal share of the bound finds no room several times, the largest table is emptied.
"""

from __future__ import annotations

import math
import os
import threading
import time
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
from hopstream.kernels.gather import locate_rows
from hopstream.kernels.memory import address_of, address_table
from hopstream.kernels.row_cache import (
    BEING_FILLED,
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
from hopstream.store.located import LocatedRows, Target

SHARE_OF_FREE = 8
"""Default bound: free memory divided by this number."""
MIN_ROW_BYTES = 32
"""Rows of fixed width with fewer bytes are not cached: looking them up costs more than it saves."""
SLOT_BYTES = 8 + 1 + 1 + 4 + 8 + 2
"""Bytes of a slot besides its row: owner, next use, uses, pins, free list, counts."""
COUNT_BYTES = 128
"""Bytes of the bound per count of uses, or half as many; a count takes one byte."""
FIRST_VALUE_BYTES = 64
"""Bytes of a slot for values of ragged columns, until the lengths of rows are known."""
NUM_FIRST_ROWS = 256
"""Number of rows whose lengths determine the bytes of a slot."""
MIN_SLOT_BYTES = 32
ENTRY_BYTES = 16
ENTRIES_PER_ID = 4
"""Largest number of hash table entries per id in the table; the smallest is two."""
RAGGED_SLOT_BYTES = SLOT_BYTES + 2 * 4 + ENTRIES_PER_ID * ENTRY_BYTES
"""Bytes of a slot besides its share of a row, with its share of the index, in tables with ragged columns."""
FIRST_ENTRIES = 1 << 8
SHARE_OF_AHEAD = 2
"""Ids of batches sampled ahead take at most the bound divided by this number."""
MAX_STARVED = 8
"""Number of times that a small table finds no room before the largest table is emptied."""
USES_PER_COUNT = 8
"""Uses per entry of the table of counts, after which all counts are halved."""
NO_BIT = -1
STALLED_S = 30.0
"""Seconds after which the oldest announced batch gives its place to another, if the cache can know no more of them."""
COLLECT_S = 0.05
AWAIT_S = 1.0
"""Seconds to wait for rows that another thread fetches, before they are requested again."""
Columns = Mapping[str, FeatureSchema]


class CacheCounts(NamedTuple):
    """Size and use of a cache.

    Attributes:
        num_rows: Rows in the cache.
        num_bytes: Bytes of the rows and their index.
        max_bytes: Bound on ``num_bytes``.
        num_evicted: Rows evicted since the cache was made.
    """

    num_rows: int = 0
    num_bytes: int = 0
    max_bytes: int = 0
    num_evicted: int = 0


def row_cost(columns: Columns) -> int:
    """Return the bytes of one row of fixed-width columns in a cache, with its share of the index."""
    return _row_bytes(columns) + SLOT_BYTES + ENTRIES_PER_ID * ENTRY_BYTES


def bytes_for(columns: Columns, num_rows: int, num_ahead: int) -> int:
    """Return the bytes of a cache for ``num_rows`` rows and ``num_ahead`` ids of batches sampled ahead."""
    return num_rows * row_cost(columns) + ENTRIES_PER_ID * ENTRY_BYTES * num_ahead + (1 << 13)


def _row_bytes(columns: Columns) -> int:
    """Return the bytes of a row; for a ragged column those of its length only."""
    return sum(feature.row_bytes if feature.is_fixed_width else 8 for feature in columns.values())


def _ragged_names(columns: Columns) -> list[str]:
    return [name for name, feature in columns.items() if not feature.is_fixed_width]


class _Spans(NamedTuple):
    """Location of rows in some columns.

    Attributes:
        columns: The columns; this reference keeps their memory alive.
        addresses: int64[num_columns, 2], address and bytes of each column.
        starts: int64[num_columns, n], start of each row in its column, in bytes.
        sizes: int64[num_columns, n], bytes of each row.
    """

    columns: Sequence[Array]
    addresses: IntArray
    starts: IntArray
    sizes: IntArray

    @classmethod
    def of(cls, columns: Sequence[tuple[Column, IntArray]]) -> _Spans:
        """Locate rows: each column is C-contiguous and comes with its rows, int64[n]."""
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
        """Keep the rows selected by ``is_wanted``, bool[n]."""
        starts, sizes = (np.compress(is_wanted, one, axis=1) for one in (self.starts, self.sizes))
        return self._replace(starts=starts, sizes=sizes)


class _Rows:
    """Slots for rows of some columns, and their index; using the index needs the lock of the cache."""

    def __init__(self, columns: Columns, max_bytes: int, slot_bytes: int, counts: NDArray[np.uint8]) -> None:
        """Reserve address space for ``max_bytes``; with ragged columns, a row may take several slots.

        Args:
            columns: The columns.
            max_bytes: Bound of the cache.
            slot_bytes: Bytes of a slot.
            counts: uint8[2**k], numbers of uses by hash of id, which all tables of a cache share.
        """
        self._columns, self.slot_bytes = columns, slot_bytes
        self._ragged = _ragged_names(columns)
        self.slot_cost = slot_bytes + RAGGED_SLOT_BYTES if self._ragged else row_cost(columns)
        sizes = [0 if name in self._ragged else feature.row_bytes for name, feature in columns.items()]
        self._places = dict(zip(columns, np.cumsum([0, *sizes]).tolist(), strict=False))
        num_slots = min(MAX_SLOTS, max(1, max_bytes // self.slot_cost))
        # The system commits a page of these arrays when it is first written, so unused slots take no memory.
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
            counts=counts,
            state=np.zeros(6, np.int64),
        )

    @property
    def num_used(self) -> int:
        """Number of slots that have ever been used, and so take memory."""
        return int(self.index.state[NUM_USED])

    @property
    def num_rows(self) -> int:
        """Number of rows in the slots."""
        return self.num_used - int(self.index.state[NUM_FREE] + self.index.state[NUM_CONTINUED])

    @property
    def num_bytes(self) -> int:
        """Bytes of the used slots and their index, without the entries that every table starts with."""
        entries_bytes = max(
            self.index.entries.nbytes - FIRST_ENTRIES * ENTRY_BYTES, ENTRIES_PER_ID * ENTRY_BYTES * self.num_used
        )
        return self.num_used * (self.slot_cost - ENTRIES_PER_ID * ENTRY_BYTES) + entries_bytes

    def num_slots(self, max_bytes: int) -> int:
        """Return the number of slots that may be used within a bound on ``num_bytes``."""
        bytes_of_entries = ENTRIES_PER_ID * ENTRY_BYTES
        entries_bytes = self.index.entries.nbytes - FIRST_ENTRIES * ENTRY_BYTES
        beside = (max_bytes - entries_bytes) // (self.slot_cost - bytes_of_entries)
        has_entries = bytes_of_entries * beside <= entries_bytes
        return max(self.num_used, beside if has_entries else max_bytes // self.slot_cost)

    def num_spare(self, max_bytes: int) -> int:
        """Return the bytes left for index entries without a slot, which have a share of the bound."""
        entries_bytes = self.index.entries.nbytes - ENTRIES_PER_ID * ENTRY_BYTES * self.num_used
        return max(0, max_bytes // SHARE_OF_AHEAD - entries_bytes)

    def fit_index(self, num_more: int, max_more_bytes: int, *, is_partial: bool = False) -> bool:
        """Resize the index for ``num_more`` ids; return False if that takes more than ``max_more_bytes``.

        With ``is_partial`` it is resized for fewer ids then.
        """
        index, num_entries = self.index, int(self.index.state[NUM_ENTRIES]) + num_more
        capacity, bits = len(index.entries), max(FIRST_ENTRIES.bit_length() - 1, (2 * num_entries - 1).bit_length())
        while is_partial and 1 << bits > capacity and ENTRY_BYTES * ((1 << bits) - capacity) > max_more_bytes:
            bits -= 1
        if 1 << bits <= capacity <= 4 << bits:
            return True
        if 1 << bits > capacity and ENTRY_BYTES * ((1 << bits) - capacity) > max_more_bytes:
            return False
        self.index = index._replace(entries=np.zeros((1 << bits, 2), np.uint64), shift=np.uint64(64 - bits))
        move_entries(index.entries, self.index)
        return True

    @property
    def num_new(self) -> int:
        """Number of ids that fit into the index before it must grow."""
        return len(self.index.entries) // 2 - int(self.index.state[NUM_ENTRIES])

    def read(self, slots: IntArray, out: Mapping[str, Array], targets: IntArray) -> dict[str, Column]:
        """Copy pinned rows: fixed width to rows ``targets`` of ``out``, ragged columns to new arrays."""
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

    def locate(self, slots: IntArray, positions: IntArray, located: LocatedRows) -> None:
        """Locate pinned rows, of a table without ragged columns; see ``LocalStore.locate``."""
        offsets, base = np.array([0, len(self._arena)]), address_of(self._arena)
        for name, addresses in located.columns():
            table = np.array([[base + self._places[name], self._arena.size]])
            locate_rows(slots, offsets, table, self.slot_bytes, 1, positions, addresses)

    def write_located(self, slots: IntArray, positions: IntArray, located: LocatedRows) -> None:
        """Copy rows to slots that are being filled, of a table without ragged columns."""
        base, (num_slots, slot_bytes) = address_of(self._arena), self._arena.shape
        out = [Target(base + self._places[name], slot_bytes, num_slots) for name in located.names]
        located.copy(located.addresses.take(positions, axis=1), slots, out)

    def spans(self, source: Mapping[str, Column], rows: IntArray) -> _Spans:
        """Locate rows ``rows`` of columns that will be written to slots."""
        lengths = np.empty((len(rows), len(self._ragged)), np.int64)
        for number, name in enumerate(self._ragged):
            offsets = cast(RaggedArray, source[name]).offsets
            lengths[:, number] = offsets[rows + 1] - offsets[rows]
        return self._spans(lengths, source, rows, rows)

    def write(self, slots: IntArray, spans: _Spans) -> None:
        """Copy rows to slots that are being filled."""
        self._copy(slots, False, spans)

    def _spans(self, lengths: IntArray, columns: Mapping[str, Column], rows: IntArray, ragged_rows: IntArray) -> _Spans:
        """Locate rows in the order of columns in slots: lengths, fixed width, ragged."""
        ordered = [(columns[name], rows) for name in self._columns if name not in self._ragged]
        if self._ragged:
            ordered.insert(0, (lengths, np.arange(len(rows))))
        return _Spans.of(ordered + [(columns[name], ragged_rows) for name in self._ragged])

    def _copy(self, slots: IntArray, is_read: bool, spans: _Spans) -> None:
        copy_rows(slots, is_read, spans.addresses, spans.starts, spans.sizes, self._arena, self.index.chain)


class RowTable:
    """Cached rows of some columns of one type.

    Attributes:
        rows: The rows; a new object each time the table is emptied.
        row_bytes: Bytes of one row's fixed-width columns.
    """

    def __init__(self, columns: Columns, max_bytes: int, counts: NDArray[np.uint8]) -> None:
        """Make an empty table that may grow to ``max_bytes``, with the counts that all tables share."""
        self._columns, self._max_bytes, self._counts = columns, max_bytes, counts
        self.is_ragged = bool(_ragged_names(columns))
        self.row_bytes = sum(feature.row_bytes for feature in columns.values() if feature.is_fixed_width)
        self._slot_bytes = _row_bytes(columns) + (FIRST_VALUE_BYTES if self.is_ragged else 0)
        self._first_sizes: IntArray = NO_POSITIONS
        self.start_anew()

    def start_anew(self) -> None:
        """Empty the table; threads that read rows go on with the old object."""
        self.rows = _Rows(self._columns, self._max_bytes, self._slot_bytes, self._counts)

    def fit_slots(self, sizes: IntArray) -> None:
        """Empty the table once, with slots of the size that needs the least memory for the first rows.

        Args:
            sizes: int64[n], bytes of fetched rows, with their lengths.
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
    """Announced batch.

    Attributes:
        number: Number in the order of announcements.
        left: Tables and ids of requests that are still announced, by the number of the request.
        made_s: Time of the announcement, by the monotonic clock.
    """

    number: int
    left: dict[int, tuple[RowTable, IntArray]]
    made_s: float

    @property
    def bit(self) -> int:
        """Number of the batch's bit in masks of the index."""
        return self.number % NUM_BITS


class Announcement:
    """Announcement of one request's rows; withdrawn if garbage-collected before ``RowCache.find``."""

    def __init__(self, cache: RowCache, ticket: _Ticket, number: int) -> None:
        """Announce request ``number`` of a batch."""
        self._cache, self.ticket, self.number = cache, ticket, number

    def __del__(self) -> None:
        """Withdraw the announcement unless ``RowCache.find`` has used it."""
        if self.number in self.ticket.left:
            self._cache.drop(partial(RowCache.forget, ticket=self.ticket, number=self.number))


class Found:
    """Result of a lookup: rows in the cache, and missing rows to keep once they are fetched.

    Found rows stay pinned until ``end``, or until this object is garbage-collected.

    Attributes:
        slots: int64[n], slot of each row; -1 if the row is missing, ``-2 - slot`` if another thread is fetching it.
        fresh_at: int64[m], positions of missing rows to keep.
        num_evicted: Rows evicted for the missing rows.
        row_bytes: Bytes of one row's fixed-width columns.
    """

    def __init__(self, cache: RowCache, table: RowTable, slots: IntArray, fresh: IntArray, num_evicted: int) -> None:
        """Take over pinned slots and slots to fill; int64[n], -1 for none."""
        self._cache, self._table, self._rows = cache, table, table.rows
        self.slots, self.num_evicted = slots, num_evicted
        (self.fresh_at,) = np.nonzero(fresh >= 0)
        self._fresh = fresh[self.fresh_at]
        self.row_bytes, self.is_ragged = table.row_bytes, table.is_ragged

    def read(self, slots: IntArray, out: Mapping[str, Array], targets: IntArray) -> dict[str, Column]:
        """Copy found rows: fixed width to rows ``targets`` of ``out``, ragged columns to new arrays."""
        return self._rows.read(slots, out, targets)

    def locate(self, slots: IntArray, positions: IntArray, located: LocatedRows) -> None:
        """Locate found rows; see ``LocalStore.locate``."""
        self._rows.locate(slots, positions, located)

    def keep_located(self, positions: IntArray, located: LocatedRows) -> None:
        """Keep the fetched rows of ``fresh_at``, at ``positions`` of ``located``; without ragged columns."""
        if len(positions):
            self._rows.write_located(self._fresh, positions, located)
            held, self._fresh = self._fresh, NO_POSITIONS
            self._cache.settle(self._rows, held)

    def keep(self, columns: Mapping[str, Column], rows: IntArray) -> int:
        """Keep the fetched rows of ``fresh_at``, which are ``rows`` of ``columns``; with ragged columns.

        Returns:
            Number of further evicted rows, because long rows take several slots.
        """
        num_evicted = 0
        if len(rows):
            spans = self._rows.spans(columns, rows)
            is_held, num_evicted = self._cache.chain(self._table, self._rows, self._fresh, spans.sizes.sum(axis=0))
            held, rest = self._fresh[is_held], self._fresh[~is_held]
            self._rows.write(held, spans.take(is_held))
            self._fresh = rest  # from here on an error leaves slots unused instead of freeing them twice
            self._cache.settle(self._rows, held)
        return num_evicted

    def wait(self, slots: IntArray) -> None:
        """Wait until other threads have fetched the rows of some slots, or have failed; ``AWAIT_S`` at most."""
        self._cache.wait(self._rows, slots)

    def end(self) -> None:
        """Unpin the rows, and free the slots of rows that were not fetched."""
        self._cache.release(self._rows, self.slots, self._fresh)
        self.slots = self._fresh = NO_POSITIONS

    def __del__(self) -> None:
        """Queue ``end`` if it was not called because the request failed."""
        if len(self.slots):
            rows, slots, fresh = self._rows, self.slots, self._fresh
            self._cache.drop(lambda _: _release(rows, slots, fresh))


class RowCache:
    """Rows of one dataset that stores of this process have fetched from servers. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        """Keep rows up to ``max_bytes`` with their index, and at most up to the free memory."""
        self.max_bytes = min(max_bytes, this_machine().free_bytes)
        self._lock = threading.Lock()
        self._tables: dict[tuple[Entity, tuple[str, ...]], RowTable] = {}
        self._tickets: dict[int, _Ticket] = {}
        self._num_announced = self._num_starved = self._num_evicted = 0
        self._dropped: deque[Callable[[RowCache], object]] = deque()
        self._settled = threading.Condition(self._lock)
        self._counts = np.zeros(1 << (self.max_bytes // COUNT_BYTES).bit_length(), np.uint8)

    def table(self, entity: Entity, columns: Columns, num_ids: int) -> RowTable | None:
        """Return the table of some columns of ``num_ids`` ids; None if their rows are not worth caching."""
        if (_row_bytes(columns) < MIN_ROW_BYTES and not _ragged_names(columns)) or num_ids > MAX_IDS:
            return None
        columns = dict(sorted(columns.items()))
        with self._lock:
            key = (entity, tuple(columns))
            if key not in self._tables:
                self._tables[key] = RowTable(columns, self.max_bytes, self._counts)
            return self._tables[key]

    def announce(self, requests: Sequence[tuple[RowTable, IntArray]]) -> list[Announcement | None]:
        """Note the rows that a batch will need.

        Args:
            requests: Table and ids, int64[n], of each request.

        Returns:
            One announcement per request, to be passed to ``find``; None if there is no memory for its ids, or if too
            many batches are announced.
        """
        with self._lock:
            self._collect()
            ticket = _Ticket(self._num_announced, {}, time.monotonic())
            while self._tickets and ticket.number - next(iter(self._tickets)) >= NUM_BITS:
                oldest = next(iter(self._tickets.values()))
                if ticket.made_s - oldest.made_s < STALLED_S:
                    return [None] * len(requests)
                self._expire(oldest)
            announced: list[Announcement | None] = []
            for number, (table, ids) in enumerate(requests):
                if not table.rows.fit_index(len(ids), min(self._num_left(), table.rows.num_spare(self.max_bytes))):
                    announced.append(None)
                    continue
                announce_ids(ids, ticket.bit, table.rows.index)
                ticket.left[number] = table, ids
                announced.append(Announcement(self, ticket, number))
            self._num_announced += 1
            if ticket.left:
                self._tickets[ticket.number] = ticket
            return announced

    def drop(self, undo: Callable[[RowCache], object]) -> None:
        """Queue a clean-up. The garbage collector calls this in any thread, even in one that holds the lock."""
        self._dropped.append(undo)

    def find(self, table: RowTable, ids: IntArray, announcement: Announcement | None) -> Found:
        """Look up rows, and choose missing rows to keep once they are fetched.

        Args:
            table: Table of the rows.
            ids: int64[n], repetitions allowed; with an announcement, the announced ids.
            announcement: Announcement of the rows, or None.
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
            num_evicted = self._num_evicted
            if num_missing:
                self._share_out(table, num_missing)
                num_slots = self._num_slots(rows)
                num_entries = ENTRIES_PER_ID * num_slots - len(rows.index.entries)
                rows.fit_index(num_missing, max(0, num_entries) * ENTRY_BYTES, is_partial=True)
                num_before = int(state[NUM_EVICTED])
                admit_ids(ids, slots, ranks, bit != NO_BIT, num_slots, rows.num_new, oldest, fresh, rows.index)
                self._num_evicted += int(state[NUM_EVICTED]) - num_before
            return Found(self, table, slots, fresh, self._num_evicted - num_evicted)

    def chain(self, table: RowTable, rows: _Rows, fresh: IntArray, sizes: IntArray) -> tuple[NDArray[np.bool_], int]:
        """Give long rows of a table with ragged columns the further slots that they need.

        Args:
            table: The table.
            rows: ``table.rows`` at the time of the lookup.
            fresh: int64[n], first slot of each row.
            sizes: int64[n], bytes of each row.

        Returns:
            bool[n], rows that can be kept; and the number of rows evicted for them.
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
        """Let other threads read filled slots."""
        with self._lock:
            settle_slots(fresh, True, rows.index)
            self._settled.notify_all()

    def wait(self, rows: _Rows, slots: IntArray) -> None:
        """Wait until no slot is being filled; see ``Found.wait``."""
        ends = time.monotonic() + AWAIT_S
        with self._lock:
            while (rows.index.pins[slots] == BEING_FILLED).any() and (left_s := ends - time.monotonic()) > 0:
                self._settled.wait(min(left_s, COLLECT_S))
                self._collect()  # a thread that failed may have left its slots to the garbage collector

    def release(self, rows: _Rows, slots: IntArray, fresh: IntArray) -> None:
        """Unpin found slots, and free slots that were not filled."""
        with self._lock:
            _release(rows, slots, fresh)
            if len(fresh):
                self._settled.notify_all()

    def forget(self, ticket: _Ticket, number: int) -> None:
        """Withdraw one request of an announced batch; called with the lock."""
        if number in ticket.left:
            table, ids = ticket.left[number]
            forget_ids(ids, ticket.bit, self._oldest(), table.rows.index)
            self._end(ticket, number)
            table.rows.fit_index(0, 0)

    def begin_anew(self) -> None:
        """Forget all rows and announcements in a forked process, whose other threads are gone."""
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._tickets.clear()
        self.clear()

    def clear(self) -> None:
        """Forget all rows; threads that read rows go on with the old objects."""
        with self._lock:
            self._dropped.clear()
            for table in self._tables.values():
                table.start_anew()
            self._tables.clear()

    def counts(self) -> CacheCounts:
        """Return the current size of the cache."""
        with self._lock:
            return CacheCounts(
                num_rows=sum(table.rows.num_rows for table in self._tables.values()),
                num_bytes=self._num_bytes(),
                max_bytes=self.max_bytes,
                num_evicted=self._num_evicted,
            )

    def _num_bytes(self) -> int:
        """Return the bytes of all tables."""
        return sum(table.rows.num_bytes for table in self._tables.values())

    def _num_left(self) -> int:
        """Return the bytes left below the bound."""
        return max(0, self.max_bytes - self._num_bytes())

    def _num_slots(self, rows: _Rows) -> int:
        """Return the number of slots that a table may use now."""
        return rows.num_slots(self._num_left() + rows.num_bytes)

    def _share_out(self, table: RowTable, num_wanted: int) -> None:
        """Empty the largest table if a table with far less than its share finds no room, several times."""
        if len(self._tables) < 2:
            return
        rows, share = table.rows, self.max_bytes // len(self._tables)
        if num_wanted <= self._num_slots(rows) - rows.num_used + int(rows.index.state[NUM_FREE]):
            return
        largest = max(self._tables.values(), key=lambda one: one.rows.num_bytes)
        if 2 * rows.num_bytes < share < largest.rows.num_bytes:
            self._num_starved += 1
            if self._num_starved == MAX_STARVED:
                self._num_evicted += largest.rows.num_rows
                largest.start_anew()
                self._num_starved = 0

    def _oldest(self) -> np.uint64:
        """Return the bit of the oldest announced batch that is not fetched yet."""
        return np.uint64(next(iter(self._tickets), 0) % NUM_BITS)

    def _collect(self) -> None:
        """Run the queued clean-ups; called with the lock."""
        while self._dropped:
            self._dropped.popleft()(self)

    def _expire(self, ticket: _Ticket) -> None:
        """Withdraw the announcement of a batch whose loader has stalled while others go on."""
        for number in list(ticket.left):
            self.forget(ticket, number)

    def _end(self, ticket: _Ticket, number: int) -> None:
        del ticket.left[number]
        if not ticket.left:
            self._tickets.pop(ticket.number, None)


def _release(rows: _Rows, slots: IntArray, fresh: IntArray) -> None:
    """Unpin slots, and free those that were not filled; called with the cache's lock."""
    release_slots(slots, rows.index)
    settle_slots(fresh, False, rows.index)


_CACHES: dict[str, tuple[RowCache, int]] = {}
"""Cache of each dataset, and the number of stores that use it."""
_CACHES_LOCK = threading.Lock()


def open_row_cache(dataset_id: str, max_bytes: int | None) -> RowCache | None:
    """Return the cache of a dataset, shared by this process; the first store sets its bound.

    Args:
        dataset_id: Fingerprint of the dataset.
        max_bytes: Bound in bytes; 0 for no cache, None for a share of the free memory.

    Returns:
        The cache, to be closed by ``close_row_cache``; None if ``max_bytes`` is 0.
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
    """Release a cache; the last release frees its rows."""
    with _CACHES_LOCK:
        cache, num_users = _CACHES.pop(dataset_id, (None, 0))
        if cache is not None and num_users > 1:
            _CACHES[dataset_id] = cache, num_users - 1
            return
    if cache is not None:
        cache.clear()


def _forget_after_fork() -> None:
    """Empty caches in a forked process, because another thread may have been changing them."""
    global _CACHES_LOCK
    _CACHES_LOCK = threading.Lock()
    for cache, _ in _CACHES.values():
        cache.begin_anew()
    _CACHES.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
