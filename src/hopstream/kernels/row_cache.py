"""Index of a cache of rows: maps ids to slots, tracks next uses, and evicts rows.

[Algorithm] A hash table (a power of two of entries, linear probing, deletion by moving entries back) maps an id to its
    slot, if it has one, and to a mask of 64 bits, one per batch sampled ahead that needs it. The distance from the
    oldest such batch to the first set bit is the next use. When slots run out, a histogram of these distances gives the
    distance from which on rows are evicted (Belady, "A study of replacement algorithms for a virtual-storage computer",
    IBM Systems Journal 1966). Ids that no batch needs are ranked by a count of past uses, in a table of one byte per
    hash value that is halved from time to time (Einziger et al., "TinyLFU", ACM Transactions on Storage 2017). A row
    that is longer than a slot continues in other slots, as a linked list, so that any free slot serves any row.
[Cost] One cache miss per id, prefetched ``IDS_AHEAD`` ids ahead; when slots run out, a pass over 6 bytes
    per slot and two over one byte per slot.
[Not chosen] A priority queue by next use: every use moves an entry, 40,000 per batch; the passes cost 0.2 ms for
    100,000 slots. An array over all ids of the graph: one access, but its size grows with the graph. Masks beside the
    slots instead of in the entries: a second cache miss per id. Blocks of several sizes for rows of several lengths:
    they fragment, and compaction would have to wait for all readers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.hashing import GOLDEN
from hopstream.kernels.memory import copy_bytes, prefetch_address

IDS_AHEAD = 16
ROWS_AHEAD = 8
LINE_BYTES = 64
ENTRY_BYTES = 16
SLOT_BITS = np.uint64(24)
SLOT_MASK = np.uint64((1 << 24) - 1)
MAX_SLOTS = (1 << 24) - 1
MAX_IDS = (1 << 40) - 1
"""Limits, because an entry holds an id and a slot in 64 bits."""
NUM_BITS = 64
"""Most batches sampled ahead that a mask distinguishes."""
NOT_NEEDED = np.uint8(255)
MOST_USES = 15
NO_RANK = 255
"""Rank of an id that must not get a slot, because another batch is filling one for it."""
NUM_RANKS = NUM_BITS + MOST_USES + 1
BEING_FILLED = -1
UNUSED = -2
CONTINUES = -3
NEXT, NUM_OF_ROW = range(2)
SHARE_OF_ROW = 8
"""A row takes at most ``1 / SHARE_OF_ROW`` of the slots."""
NUM_ENTRIES, NUM_USED, NUM_FREE, NUM_COUNTED, NUM_EVICTED, NUM_CONTINUED = range(6)
NO_MASK = np.uint64(0)
NUM_SUMS = 4
"""Sums beside each other in which slots are counted by rank; additions to one sum would wait for each other."""


class RowIndex(NamedTuple):
    """Index of the slots of one table of cached rows.

    Attributes:
        entries: uint64[capacity, 2]: ``(id + 1) << SLOT_BITS | (slot + 1)`` with 0 for no slot, or 0 for no entry; and
            the bits of the batches that need the id.
        shift: 64 minus log2 of the capacity.
        owners: int64[num_slots], the id of each slot.
        needed: uint8[num_slots], the bit of the first batch that needs the slot, or ``NOT_NEEDED``.
        uses: uint8[num_slots], past uses, up to ``MOST_USES``.
        pins: int32[num_slots], number of batches that read the slot now; ``BEING_FILLED`` while its row is fetched,
            ``UNUSED`` for a free slot, ``CONTINUES`` for a slot that continues another slot's row.
        chain: int32[num_slots, 2], the slot that continues the row, or -1, and in a row's first slot the number of its
            slots; int32[0, 2] if every row takes one slot.
        free: int64[num_slots], freed slots; the first ``state[NUM_FREE]`` are valid.
        counts: uint8[power of two], past uses by hash value.
        state: int64[6], counters by the names above: entries in use, slots ever used, freed slots, uses counted since
            the last halving, evicted rows, slots that continue rows.
    """

    entries: np.ndarray
    shift: np.uint64
    owners: np.ndarray
    needed: np.ndarray
    uses: np.ndarray
    pins: np.ndarray
    chain: np.ndarray
    free: np.ndarray
    counts: np.ndarray
    state: np.ndarray


@inlined
def _home(identifier: np.int64, shift: np.uint64) -> np.uint64:
    return (np.uint64(identifier) * GOLDEN) >> shift


@inlined
def _find(identifier: np.int64, index: RowIndex) -> np.uint64:
    """Find the entry of an id, or the empty entry where it would be."""
    mask = np.uint64(len(index.entries) - 1)
    tag = np.uint64(identifier + 1)
    probe = _home(identifier, index.shift)
    while True:
        found = index.entries[probe, 0]
        if found == NO_MASK or (found >> SLOT_BITS) == tag:
            return probe
        probe = (probe + np.uint64(1)) & mask


@inlined
def _slot(entry: np.uint64) -> np.int64:
    """Return the slot of an entry; -1 for none."""
    return np.int64(entry & SLOT_MASK) - 1


@inlined
def _entry(identifier: np.int64, slot: np.int64) -> np.uint64:
    return (np.uint64(identifier + 1) << SLOT_BITS) | np.uint64(slot + 1)


@inlined
def _remove(probe: np.uint64, index: RowIndex) -> None:
    """Remove an entry, and move displaced entries behind it back."""
    entries, mask = index.entries, np.uint64(len(index.entries) - 1)
    hole, place = probe, probe
    while True:
        place = (place + np.uint64(1)) & mask
        if entries[place, 0] == NO_MASK:
            break
        home = _home(np.int64(entries[place, 0] >> SLOT_BITS) - 1, index.shift)
        if ((place - home) & mask) >= ((place - hole) & mask):
            entries[hole, 0], entries[hole, 1] = entries[place, 0], entries[place, 1]
            hole = place
    entries[hole, 0] = NO_MASK
    index.state[NUM_ENTRIES] -= 1


@inlined
def _place_of_count(identifier: np.int64, index: RowIndex) -> np.uint64:
    return ((np.uint64(identifier) * GOLDEN) >> np.uint64(20)) & np.uint64(len(index.counts) - 1)


@inlined
def _first_bit(mask: np.uint64, oldest: np.uint64) -> np.uint8:
    """Return the number of a mask's first set bit, in cyclic order from the oldest, or ``NOT_NEEDED``."""
    if mask == NO_MASK:
        return NOT_NEEDED
    if oldest != NO_MASK:
        mask = (mask >> oldest) | (mask << (np.uint64(NUM_BITS) - oldest))
    return np.uint8((np.uint64(trailing_zeros(mask)) + oldest) & np.uint64(NUM_BITS - 1))


@inlined
def _rank(needed: np.uint8, uses: np.uint8, oldest: np.uint64) -> np.int64:
    """Return a row's eviction rank: batches to its next use; without one, higher for fewer past uses."""
    if needed == NOT_NEEDED:
        return np.int64(NUM_BITS + MOST_USES) - np.int64(uses)
    return np.int64((np.uint64(needed) - oldest) & np.uint64(NUM_BITS - 1))


@inlined
def _prefetch_entry(identifier: np.int64, index: RowIndex) -> None:
    base = np.int64(index.entries.ctypes.data)
    prefetch_address(base + np.int64(_home(identifier, index.shift)) * ENTRY_BYTES)


@inlined
def _ask_ahead(ids: np.ndarray, i: np.int64, index: RowIndex) -> None:
    if i < len(ids):
        _prefetch_entry(ids[np.uint64(i)], index)


@kernel
def move_entries(old: np.ndarray, index: RowIndex) -> None:
    """Insert all entries of another table.

    Args:
        old: uint64[n, 2], as ``RowIndex.entries``.
        index: The index; its entries are empty.
    """
    for i in range(len(old)):
        if old[i, 0] != NO_MASK:
            probe = _find(np.int64(old[i, 0] >> SLOT_BITS) - 1, index)
            index.entries[probe, 0], index.entries[probe, 1] = old[i, 0], old[i, 1]


@kernel
def announce_ids(ids: np.ndarray, bit: int, index: RowIndex) -> None:
    """Record that a batch will need some ids.

    Args:
        ids: int64[n].
        bit: Number of the batch's bit.
        index: The index, with room for n more entries.
    """
    mask = np.uint64(1) << np.uint64(bit)
    entries = index.entries
    num_new = 0
    for i in range(min(IDS_AHEAD, len(ids))):
        _ask_ahead(ids, i, index)
    for i in range(len(ids)):
        _ask_ahead(ids, i + IDS_AHEAD, index)
        probe = _find(ids[i], index)
        entry = entries[probe, 0]
        if entry == NO_MASK:
            entries[probe, 0], entries[probe, 1] = _entry(ids[i], np.int64(-1)), mask
            num_new += 1
            continue
        if entries[probe, 1] == NO_MASK and _slot(entry) >= 0:
            index.needed[_slot(entry)] = np.uint8(bit)
        entries[probe, 1] |= mask
    index.state[NUM_ENTRIES] += num_new


@kernel
def forget_ids(ids: np.ndarray, bit: int, oldest: np.uint64, index: RowIndex) -> None:
    """Undo ``announce_ids``.

    Args:
        ids: int64[n].
        bit: Number of the batch's bit.
        oldest: uint64 below 64, number of the oldest bit in use.
        index: The index.
    """
    mask = np.uint64(1) << np.uint64(bit)
    for i in range(len(ids)):
        probe = _find(ids[i], index)
        if index.entries[probe, 0] == NO_MASK:
            continue
        index.entries[probe, 1] &= ~mask
        slot = _slot(index.entries[probe, 0])
        if slot >= 0:
            index.needed[slot] = _first_bit(index.entries[probe, 1], oldest)
        elif index.entries[probe, 1] == NO_MASK:
            _remove(probe, index)


@kernel
def take_slots(
    ids: np.ndarray, bit: int, oldest: np.uint64, slots: np.ndarray, ranks: np.ndarray, index: RowIndex
) -> int:
    """Find the slots of some ids and pin them; each must be released by ``release_slots``.

    Args:
        ids: int64[n], may repeat.
        bit: Number of the batch's bit, which is cleared; -1 if the batch was not announced.
        oldest: uint64 below 64, number of the oldest bit in use.
        slots: int64[n], out: the slot of each id; -1 if its row is not cached; ``-2 - slot`` if another batch is
            fetching the row, in a table without ragged columns.
        ranks: uint8[n], out: eviction rank of each id without a slot.
        index: The index.

    Returns:
        Number of ids without a slot that can be read.
    """
    kept = ~NO_MASK if bit < 0 else ~(np.uint64(1) << np.uint64(bit))
    entries, num_missing = index.entries, 0
    for i in range(min(IDS_AHEAD, len(ids))):
        _ask_ahead(ids, i, index)
    for i in range(len(ids)):
        _ask_ahead(ids, i + IDS_AHEAD, index)
        place = _place_of_count(ids[i], index)
        uses = index.counts[place]
        if uses < MOST_USES:
            uses += np.uint8(1)
            index.counts[place] = uses
        probe = _find(ids[i], index)
        slot, needed = np.int64(-1), NOT_NEEDED
        if entries[probe, 0] != NO_MASK:
            entries[probe, 1] &= kept
            needed = _first_bit(entries[probe, 1], oldest)
            slot = _slot(entries[probe, 0])
        slots[i] = slot
        if slot < 0:
            ranks[i] = _rank(needed, uses, oldest)
            num_missing += 1
            continue
        index.needed[slot], index.uses[slot] = needed, uses
        if index.pins[slot] == BEING_FILLED:
            slots[i], ranks[i] = -1 if len(index.chain) else -2 - slot, NO_RANK
            num_missing += 1
        else:
            index.pins[slot] += 1
    index.state[NUM_COUNTED] += len(ids)
    return num_missing


@inlined
def _give_up(slot: np.int64, index: RowIndex) -> None:
    """Free a slot; its id keeps its entry if batches need it."""
    identifier = index.owners[slot]
    probe = _find(identifier, index)
    if index.entries[probe, 1] != NO_MASK:
        index.entries[probe, 0] = _entry(identifier, np.int64(-1))
    else:
        _remove(probe, index)
    index.pins[slot] = UNUSED
    index.free[index.state[NUM_FREE]] = slot
    index.state[NUM_FREE] += 1


@inlined
def _num_of_row(slot: np.int64, index: RowIndex) -> np.int64:
    """Return the number of slots of the row that begins in a slot."""
    return np.int64(index.chain[slot, NUM_OF_ROW]) if len(index.chain) else np.int64(1)


@inlined
def _free_rest(slot: np.int64, index: RowIndex) -> None:
    """Free the slots that continue the row of a freed slot."""
    if len(index.chain) == 0:
        return
    behind = np.int64(index.chain[slot, NEXT])
    while behind >= 0:
        index.pins[behind] = UNUSED
        index.free[index.state[NUM_FREE]] = behind
        index.state[NUM_FREE] += 1
        index.state[NUM_CONTINUED] -= 1
        behind = np.int64(index.chain[behind, NEXT])
    index.chain[slot, NEXT] = -1


@inlined
def _num_open(num_slots: np.int64, index: RowIndex) -> np.int64:
    """Return the number of slots without a row."""
    return max(np.int64(0), num_slots - index.state[NUM_USED]) + index.state[NUM_FREE]


@inlined
def _take_open(num_slots: np.int64, index: RowIndex) -> np.int64:
    """Take a slot without a row; -1 if there is none."""
    state = index.state
    if state[NUM_FREE] > 0:
        state[NUM_FREE] -= 1
        return index.free[state[NUM_FREE]]
    if state[NUM_USED] < num_slots:
        state[NUM_USED] += 1
        return state[NUM_USED] - 1
    return np.int64(-1)


@inlined
def _make_room(
    num_slots: np.int64, num_wanted: np.int64, wanted: np.ndarray, oldest: np.uint64, index: RowIndex
) -> tuple[np.int64, np.int64]:
    """Evict the rows that are needed latest.

    Returns:
        The rank below which all new rows get slots, and how many new rows of that rank get slots too.
    """
    state, num_used, num_free = index.state, index.state[NUM_USED], index.state[NUM_FREE]
    ranks = np.empty(num_used, np.uint8)
    for slot in range(num_used):  # a loop of its own, which LLVM vectorises
        rank = np.uint8(_rank(index.needed[slot], index.uses[slot], oldest))
        ranks[slot] = rank if index.pins[slot] == 0 else np.uint8(NO_RANK)
    sums = np.zeros((NUM_SUMS, NO_RANK + 1), np.int64)
    for slot in range(num_used):
        sums[slot & (NUM_SUMS - 1), ranks[slot]] += _num_of_row(slot, index)
    held = sums.sum(axis=0)
    num_held = held[:NUM_RANKS].sum()
    room = num_slots - num_used + num_free + num_held
    # Passes over many slots must free many: rows that no batch needs are evicted for later calls too.
    spare = max(np.int64(0), (num_used >> 6) - num_wanted)
    for rank in range(NUM_RANKS - 1, NUM_BITS - 1, -1):
        given = min(spare, held[rank])
        spare -= given
        room -= given
    last, num_last = np.int64(NUM_RANKS), np.int64(0)
    num_kept = np.int64(0)  # slots of cached rows with the last rank that stay
    for rank in range(NUM_RANKS):
        if held[rank] + wanted[rank] > room:
            last = rank
            num_kept = min(room, held[rank])
            num_last = room - num_kept
            break
        room -= held[rank] + wanted[rank]
    evicted, num_evicted = np.empty(num_used, np.int64), np.int64(0)
    for slot in range(num_used):
        num = _num_of_row(slot, index)
        is_kept = np.int64(ranks[slot] == last) & np.int64(num_kept >= num)
        num_kept -= is_kept * num
        evicted[num_evicted] = slot
        num_evicted += np.int64(ranks[slot] >= last) & np.int64(ranks[slot] != NO_RANK) & (1 - is_kept)
    for i in range(num_evicted + IDS_AHEAD):
        if i < num_evicted:
            _prefetch_entry(index.owners[evicted[i]], index)
        if i >= IDS_AHEAD:
            _give_up(evicted[i - IDS_AHEAD], index)
            _free_rest(evicted[i - IDS_AHEAD], index)
    state[NUM_EVICTED] += num_evicted
    return last, num_last


@kernel
def admit_ids(
    ids: np.ndarray, slots: np.ndarray, ranks: np.ndarray, was_announced: bool, num_slots: int, num_new: int,
    oldest: np.uint64, fresh: np.ndarray, index: RowIndex,
) -> None:  # fmt: skip
    """Give slots to the missing ids that are needed soonest; the caller must fill in their rows.

    Args:
        ids: int64[n].
        slots: int64[n], from ``take_slots``.
        ranks: uint8[n], from ``take_slots``.
        was_announced: Whether the batch was announced.
        num_slots: Most slots in use.
        num_new: Most ids without an entry that may get one.
        oldest: As for ``take_slots``.
        fresh: int64[n], out: the slot to fill with the row of each id; -1 for none.
        index: The index.
    """
    state, entries = index.state, index.entries
    num_slots = min(num_slots, len(index.owners))
    wanted = np.zeros(NO_RANK + 1, np.int64)
    missing = np.empty(len(ids), np.int64)
    num_wanted = np.int64(0)
    for i in range(len(ids)):  # without branches, which would be mispredicted
        fresh[i] = -1
        is_missing = np.int64(slots[i] < 0) & np.int64(ranks[i] != NO_RANK)
        wanted[ranks[i]] += is_missing
        missing[num_wanted] = i
        num_wanted += is_missing
    last, num_last = np.int64(NUM_RANKS), np.int64(0)
    if num_wanted > _num_open(num_slots, index):
        last, num_last = _make_room(np.int64(num_slots), num_wanted, wanted, oldest, index)
    if not was_announced:  # the others have no entry to remove
        num_missing, num_wanted = num_wanted, np.int64(0)
        for number in range(num_missing):
            i = missing[number]
            if ranks[i] < last or (ranks[i] == last and num_last > 0):
                missing[num_wanted] = i
                num_wanted += 1
    for number in range(num_wanted + IDS_AHEAD):
        if number < num_wanted:
            _ask_ahead(ids, missing[number], index)
        if number < IDS_AHEAD:
            continue
        i = missing[number - IDS_AHEAD]
        probe = _find(ids[i], index)
        entry = entries[probe, 0]
        if _slot(entry) >= 0:  # a repeated id
            continue
        if entry == NO_MASK and num_new <= 0:
            continue
        is_wanted = ranks[i] < last
        if ranks[i] == last and num_last > 0:
            num_last -= 1
            is_wanted = True
        slot = _take_open(np.int64(num_slots), index) if is_wanted else np.int64(-1)
        if slot < 0:
            if entry != NO_MASK and entries[probe, 1] == NO_MASK:
                _remove(probe, index)
            continue
        if entry == NO_MASK:
            entries[probe, 1] = NO_MASK
            state[NUM_ENTRIES] += 1
            num_new -= 1
        entries[probe, 0] = _entry(ids[i], slot)
        index.owners[slot], index.pins[slot] = ids[i], BEING_FILLED
        index.needed[slot] = _first_bit(entries[probe, 1], oldest)
        index.uses[slot] = index.counts[_place_of_count(ids[i], index)]
        if len(index.chain):
            index.chain[slot, NEXT], index.chain[slot, NUM_OF_ROW] = -1, 1
        fresh[i] = slot


@kernel
def chain_slots(
    fresh: np.ndarray, nums: np.ndarray, num_slots: int, oldest: np.uint64, is_held: np.ndarray, index: RowIndex
) -> None:
    """Give further slots to the new rows that are needed soonest and are longer than one slot.

    Args:
        fresh: int64[n], slots from ``admit_ids``.
        nums: int64[n], number of slots of each row, from 1.
        num_slots: Most slots in use.
        oldest: As for ``take_slots``.
        is_held: bool[n], out: whether the row has all its slots.
        index: The index, with a chain.
    """
    num_slots = min(num_slots, len(index.owners))
    most = max(1, num_slots // SHARE_OF_ROW)
    wanted = np.zeros(NUM_RANKS, np.int64)
    num_wanted = np.int64(0)
    for i in range(len(fresh)):
        if nums[i] <= most:
            wanted[_rank(index.needed[fresh[i]], index.uses[fresh[i]], oldest)] += nums[i] - 1
            num_wanted += nums[i] - 1
    last, num_last = np.int64(NUM_RANKS), np.int64(0)
    if num_wanted > _num_open(num_slots, index):
        last, num_last = _make_room(np.int64(num_slots), num_wanted, wanted, oldest, index)
    for i in range(len(fresh)):
        slot, num_more = fresh[i], nums[i] - 1
        rank = _rank(index.needed[slot], index.uses[slot], oldest)
        is_held[i] = nums[i] <= most and num_more <= _num_open(num_slots, index)
        if rank == last and num_last >= num_more:
            num_last -= num_more
        elif rank >= last and num_more > 0:
            is_held[i] = False
        if not is_held[i]:
            continue
        index.chain[slot, NUM_OF_ROW] = nums[i]
        for _ in range(num_more):
            behind = _take_open(np.int64(num_slots), index)
            index.chain[slot, NEXT], index.chain[behind, NEXT] = behind, -1
            index.pins[behind] = CONTINUES
            slot = behind
        index.state[NUM_CONTINUED] += num_more


@kernel
def release_slots(slots: np.ndarray, index: RowIndex) -> None:
    """Unpin the slots of ``take_slots``; negative numbers are skipped."""
    for i in range(len(slots)):
        if slots[i] >= 0:
            index.pins[slots[i]] -= 1


@kernel
def settle_slots(fresh: np.ndarray, is_filled: bool, index: RowIndex) -> None:
    """Release the new slots of ``admit_ids`` for reading, or free them if they were not filled.

    Args:
        fresh: int64[n], slots.
        is_filled: Whether their rows are filled in.
        index: The index.
    """
    for i in range(len(fresh)):
        index.pins[fresh[i]] = 0
        if not is_filled:
            _give_up(fresh[i], index)
            _free_rest(fresh[i], index)


@kernel
def copy_rows(
    slots: np.ndarray, is_read: bool, columns: np.ndarray, starts: np.ndarray, sizes: np.ndarray, arena: np.ndarray,
    chain: np.ndarray,
) -> None:  # fmt: skip
    """Copy rows from slots to columns, or back; a slot holds a row's columns one after the other.

    Args:
        slots: int64[n], the first slot of each row.
        is_read: Copy from slots to columns.
        columns: int64[num_columns, 2], address and bytes of each column.
        starts: int64[num_columns, n], offset of each row in the column, in bytes.
        sizes: int64[num_columns, n], bytes of each row.
        arena: uint8[num_slots, slot bytes].
        chain: As ``RowIndex.chain``; copied rows must have all their slots.

    Raises:
        IndexError: A row lies outside its column or has too few slots; earlier rows may be copied.
    """
    base, slot_bytes = np.int64(arena.ctypes.data), np.int64(arena.shape[1])
    for i in range(len(slots)):
        if i + ROWS_AHEAD < len(slots):
            ahead = base + slots[i + ROWS_AHEAD] * slot_bytes
            prefetch_address(ahead)
            prefetch_address(ahead + LINE_BYTES)
        slot, place = slots[i], np.int64(0)
        for column in range(len(columns)):
            start, left = starts[column, i], sizes[column, i]
            if start < 0 or left < 0 or start + left > columns[column, 1]:
                raise IndexError("a row lies outside its column")
            address = columns[column, 0] + start
            while left > 0:
                if place == slot_bytes:
                    slot, place = np.int64(chain[slot, NEXT]) if slot < len(chain) else np.int64(-1), np.int64(0)
                if slot < 0 or slot >= len(arena):
                    raise IndexError("a row continues outside the slots")
                num_bytes = min(left, slot_bytes - place)
                here = base + slot * slot_bytes + place
                if is_read:
                    copy_bytes(address, here, num_bytes)
                else:
                    copy_bytes(here, address, num_bytes)
                address += num_bytes
                place += num_bytes
                left -= num_bytes


@kernel
def halve_counts(index: RowIndex) -> None:
    """Halve all counts of uses, so that old uses weigh less."""
    for i in range(len(index.counts)):
        index.counts[i] >>= np.uint8(1)
    for slot in range(index.state[NUM_USED]):
        index.uses[slot] >>= np.uint8(1)
    index.state[NUM_COUNTED] = 0


@kernel
def split_found(
    piece_starts: np.ndarray, is_far: np.ndarray, slots: np.ndarray, positions: np.ndarray, ids: np.ndarray,
    found_positions: np.ndarray, found_slots: np.ndarray,
) -> int:  # fmt: skip
    """Remove the ids with slots from ids that are sorted by piece, in place.

    Args:
        piece_starts: int64[num_pieces + 1], in and out: offsets of the pieces.
        is_far: bool[num_pieces], pieces whose rows may be cached.
        slots: int64[num_far], from ``take_slots``, for the ids of far pieces, one piece after the other.
        positions: int64[n], in and out: original position of each id.
        ids: int64[n], in and out.
        found_positions: int64[num_far], out: original position of each id with a slot.
        found_slots: int64[num_far], out: their slots.

    Returns:
        Number of ids with a slot.
    """
    written = num_found = far = 0
    for piece in range(len(is_far)):
        start, stop = piece_starts[piece], piece_starts[piece + 1]
        piece_starts[piece] = written
        for i in range(start, stop):
            if is_far[piece]:
                far += 1
                if slots[far - 1] != -1:
                    found_positions[num_found] = positions[i]
                    found_slots[num_found] = slots[far - 1]
                    num_found += 1
                    continue
            positions[written], ids[written] = positions[i], ids[i]
            written += 1
    piece_starts[len(is_far)] = written
    return num_found
