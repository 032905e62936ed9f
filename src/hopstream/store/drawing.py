"""Drawing: answers requests for neighbours from edges that are mapped in this process.

There are two ways to draw. The plain one serves ``uniform`` and ``last`` without exclusion, where a node's eligible
edges are one range: one kernel draws and reads in one pass. Every other request is drawn by the kernel of its strategy,
which writes positions; a second pass reads the edges at these positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import Lock, local

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.dataset.book import EdgeEntity, Entity, PartitionBook, ends_of, entity_label
from hopstream.dataset.layout import EdgeArrays, OverlayArrays, PartArrays
from hopstream.dataset.overlays import edge_pieces, overlay_pieces
from hopstream.errors import FormatError, SettingsError
from hopstream.kernels.by_weight import draw_edges
from hopstream.kernels.eligible import AddressTables, Draws, FilterSets, Nodes, Scratch, Variates, Weights, filter_sets
from hopstream.kernels.eligible import count_eligible as count_filtered
from hopstream.kernels.heaviest import draw_heaviest
from hopstream.kernels.labor import draw_by_variates
from hopstream.kernels.lookups import NO_INDEX, WORD_BITS, RowIndex, find_edges, find_newest, index_rows, mark_nodes
from hopstream.kernels.memory import address_table
from hopstream.kernels.neighbors import TOO_MANY, draw_neighbors, edge_ranges
from hopstream.kernels.temporal import count_draws, draw_latest, trim_by_time
from hopstream.kernels.weighted import weight_kind
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import BY_WEIGHT, MAX_COUNT, TREE_SHIFT, SampleReply, SampleRequest, Strategy

NOTHING: IntArray = np.empty(0, np.int64)
NO_SETS = filter_sets(None, None)
NO_FILTER = NO_SETS.to_filter(TREE_SHIFT)
FIRST_POSITIONS = 1 << 16
POSITIONS_PER_ID = 64
FIRST_SCRATCH = 1 << 12
MIN_INDEXED = 1 << 10
"""Least number of edges of an indexed row."""
MAX_INDEXED = 1 << 26
"""Most edges of all indexed rows of an edge type; the index takes 6 bytes per edge."""
ROWS_AT_ONCE = 1 << 20
SCANS_PER_EDGE = 4
"""Long rows are indexed once the scans of an edge type have read this many times all of its edges."""
DRAWS: Mapping[Strategy, Callable[..., tuple[int, int, int, int]]] = {
    "uniform": draw_edges,
    "weighted": draw_edges,
    "top_k": draw_heaviest,
    "last": draw_latest,
    "labor": draw_by_variates,
}
"""The kernel of each strategy; all take the same arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayTables:
    """Nodes with newer rows in overlays, and the newest row of each.

    Attributes:
        marks: uint64[num_words, 2] of ``mark_nodes``.
        newest: int64[num_such_nodes], id of each node's newest row, as kernels number rows.
    """

    marks: NDArray[np.uint64]
    newest: IntArray


NO_OVERLAYS = OverlayTables(marks=np.empty((0, 2), np.uint64), newest=NOTHING)


class LongRows:
    """Index of long rows, made once scans of the rows have cost more than the index.

    Only walks count scanned edges. So a server never makes an index, which its memory bound does not include.

    Attributes:
        index: The index for kernels that look up edges; empty until ``count`` makes it, in any thread.
    """

    def __init__(self) -> None:
        """Start without an index."""
        self.index = NO_INDEX
        self._lock = Lock()
        self._num_scanned = 0
        self._memory: list[Array] = []

    def count(self, tables: SamplingTables, num_scanned: int) -> None:
        """Count scanned edges of the tables, and make the index once they are enough."""
        self._num_scanned += num_scanned
        if self._num_scanned < SCANS_PER_EDGE * int(tables.addresses.edge_offsets[-1]) or not self._lock.acquire(False):
            return
        # The lock is never released, so that the index is made only once. After a failure, rows are still scanned.
        with suppress(MemoryError, FormatError):
            self.index, self._memory = _index_long_rows(tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingTables:
    """Address tables that sampling kernels read, for one edge type and direction; one row per piece.

    Pieces are the parts, followed by the overlays. A piece that is not mapped has a row of zeros. Rows of overlays have
    ids behind those of all nodes. ``newest`` maps a node's id to the id of its newest row.

    Attributes:
        entity: The edge type and direction.
        node_type: Node type of the nodes that are expanded.
        addresses: Tables for every drawing kernel; rows of overlays are nodes behind those of all parts.
        times: int64[num_pieces, 2], address table of the edges' times, or None if they have none.
        weights: Tables for draws by weight, or None.
        neighbor_keys: int64[num_pieces, 2], address table of the neighbours' keys, or None.
        key_item: uint32[0] or int64[0], with the dtype of ``neighbor_keys``.
        overlays: Nodes with newer rows, or None if there are none.
        long_rows: The index of long rows.
    """

    entity: Entity
    node_type: str
    addresses: AddressTables
    times: IntArray | None
    weights: Weights | None
    neighbor_keys: IntArray | None
    key_item: Array
    overlays: OverlayTables | None = None
    long_rows: LongRows = field(default_factory=LongRows)

    def newest(self, ids: IntArray) -> IntArray:
        """Return the ids of the newest rows of nodes, int64[n], as kernels number them."""
        if self.overlays is None:
            return ids
        found = np.empty(len(ids), np.int64)
        find_newest(np.ascontiguousarray(ids, np.int64), self.overlays.marks, self.overlays.newest, found)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRanges:
    """Ranges of the eligible edges of a request's nodes, and upper bounds of their draws.

    Attributes:
        nodes: The nodes and their rows; ``row_degrees`` only for draws by ``choose``. Until ``choose`` has drawn,
            ``counts`` are upper bounds.
        total: Sum of the counts.
    """

    nodes: Nodes
    total: int


def sampling_tables(
    book: PartitionBook, maps: Sequence[PartArrays | None], edge_type: EdgeType, direction: Direction
) -> SamplingTables:
    """Make the address tables of one edge type and direction; the caller keeps the maps alive."""
    node_type = ends_of(edge_type, direction)[0]
    edges = edge_pieces(book, maps, (edge_type, direction))
    # If the format says that ids equal keys, keys are left out; that saves a cache miss per expanded node.
    has_keys = not book.ids_are_keys
    neighbor_keys = [(e.neighbor_keys if has_keys else e.indices) if e else None for e in edges]
    overlays = overlay_pieces(book, maps, (edge_type, direction))
    num_rows = [overlay.num_rows for overlay in book.overlays((edge_type, direction))]
    offsets = book.offsets(node_type)
    node_keys = [m.node_keys[node_type] if m and has_keys else None for m in maps]
    return SamplingTables(
        entity=(edge_type, direction),
        node_type=node_type,
        addresses=AddressTables(
            offsets=np.append(offsets, offsets[-1] + np.cumsum(num_rows, dtype=np.int64)),
            keys=address_table(node_keys + [o.node_keys if o else None for o in overlays]),
            indptrs=address_table([e.indptr if e else None for e in edges]),
            indices=address_table([e.indices if e else None for e in edges]),
            item=np.empty(0, next(e.indices.dtype for e in edges if e)),
            edge_offsets=book.offsets((edge_type, direction)),
        ),
        times=_table_if_any([e.times if e else None for e in edges]),
        weights=_weights(edges),
        neighbor_keys=_table_if_any(neighbor_keys),
        key_item=np.empty(0, next((k.dtype for k in neighbor_keys if k is not None), np.dtype(np.uint32))),
        overlays=_overlay_tables(book, (edge_type, direction), overlays) if overlays else None,
    )


def _overlay_tables(book: PartitionBook, entity: EdgeEntity, overlays: Sequence[OverlayArrays | None]) -> OverlayTables:
    offsets = book.offsets(ends_of(*entity)[0])
    first_row, ids, row_ids = int(offsets[-1]), [NOTHING], [NOTHING]
    for overlay, arrays in zip(book.overlays(entity), overlays, strict=True):
        if arrays is not None:
            ids.append(offsets[overlay.part] + arrays.rows)
            row_ids.append(first_row + np.arange(overlay.num_rows, dtype=np.int64))
        first_row += overlay.num_rows
    all_ids = np.concatenate(ids)
    order = np.argsort(all_ids, kind="stable")  # the newest row of a node comes last
    nodes = all_ids[order]
    is_newest = np.append(nodes[1:] != nodes[:-1], np.ones(min(1, len(nodes)), np.bool_))
    touched = nodes[is_newest]
    marks = np.zeros((int(offsets[-1]) // WORD_BITS + 1, 2), np.uint64)
    mark_nodes(touched, marks)
    return OverlayTables(marks=marks, newest=np.concatenate(row_ids)[order][is_newest])


def _weights(edges: Sequence[EdgeArrays | None]) -> Weights | None:
    dtype = next((e.weights.dtype for e in edges if e and e.weights is not None), None)
    if dtype is None and all(e is None or e.weight_sums is None for e in edges):
        return None
    return Weights(
        sums=address_table([e.weight_sums if e else None for e in edges]),
        aliases=address_table([e.weight_alias if e else None for e in edges]),
        orders=address_table([e.weight_order if e else None for e in edges]),
        weights=address_table([e.weights if e else None for e in edges]),
        kind=weight_kind(dtype),
    )


def _table_if_any(arrays: Sequence[Array | None]) -> IntArray | None:
    return None if all(array is None for array in arrays) else address_table(arrays)


def find_row_edges(tables: SamplingTables, ids: IntArray) -> Nodes:
    """Find the part, edge range and degree of each checked id.

    Raises:
        FormatError: A row lies outside its file.
    """
    num_ids = len(ids)
    parts, counts = np.empty(num_ids, np.int32), np.empty(num_ids, np.int32)
    starts, degrees = np.empty(num_ids, np.int64), np.empty(num_ids, np.int64)
    nodes = Nodes(ids, NOTHING, parts, starts, degrees, degrees, counts)
    check_range(edge_ranges(tables.addresses, nodes, 0, False), ids, entity_label(tables.entity))
    return nodes


def find_edge_ids(tables: SamplingTables, ids: IntArray, neighbor_ids: IntArray) -> IntArray:
    """Return int64[n], the id of the first edge between each checked id and its neighbour; -1 for none.

    Raises:
        FormatError: A row lies outside its file.
    """
    edge_ids = np.empty(len(ids), np.int64)
    nodes, neighbor_ids = find_row_edges(tables, ids), np.ascontiguousarray(neighbor_ids, np.int64)
    find_edges(tables.addresses, tables.long_rows.index, nodes, neighbor_ids, edge_ids)
    return edge_ids


def _index_long_rows(tables: SamplingTables) -> tuple[RowIndex, list[Array]]:
    """Index the longest rows, up to ``MAX_INDEXED`` edges; also return the arrays behind the index."""
    addresses, found, lengths = tables.addresses, [NOTHING], [NOTHING]
    for piece, (first, stop) in enumerate(pairwise(addresses.offsets.tolist())):
        for begin in range(first, stop if addresses.indptrs[piece, 1] else first, ROWS_AT_ONCE):
            ids = np.arange(begin, min(begin + ROWS_AT_ONCE, stop))
            degrees = find_row_edges(tables, ids).degrees
            is_long = (degrees >= MIN_INDEXED) & (degrees <= MAX_INDEXED)
            found.append(ids[is_long])
            lengths.append(degrees[is_long])
    long_ids, degrees, min_degree = np.concatenate(found), np.concatenate(lengths), MIN_INDEXED
    while degrees[degrees >= min_degree].sum() > MAX_INDEXED:
        min_degree *= 2
    long_ids, degrees = long_ids[degrees >= min_degree], degrees[degrees >= min_degree]
    places = np.full((1 << (2 * len(long_ids)).bit_length(), 2), -1, np.int64)
    entries = np.zeros(int((degrees + (degrees >> 1) + 1).sum()), np.uint32)
    index_rows(addresses, find_row_edges(tables, long_ids), places, entries)
    return RowIndex(min_degree, places.ctypes.data, len(places), entries.ctypes.data), [places, entries]


class DrawBuffers:
    """Memory for a request's draws, reused by later requests. For one thread at a time."""

    def __init__(self) -> None:
        """Start empty."""
        self._int32: NDArray[np.int32] = np.empty((2, 0), np.int32)
        self._int64: IntArray = np.empty((3, 0), np.int64)
        self._positions: IntArray = NOTHING
        self._scratch = Scratch(NOTHING, np.empty(0), np.empty(0), np.empty(0, np.uint64))

    def find_ranges(self, tables: SamplingTables, request: SampleRequest, ids: IntArray) -> EdgeRanges:
        """Find the eligible edges of a checked request; the result is valid until the next call.

        Raises:
            FormatError: A row lies outside its file.
            SettingsError: A node would draw more than ``MAX_COUNT`` neighbours.
        """
        num_ids = len(ids)
        if num_ids > self._int32.shape[1]:
            capacity = max(num_ids, 2 * self._int32.shape[1])
            self._int32, self._int64 = np.empty((2, capacity), np.int32), np.empty((3, capacity), np.int64)
        parts, counts = self._int32[:, :num_ids]
        starts, degrees, row_degrees = self._int64[:, :num_ids]
        trees = NOTHING if request.trees is None else np.ascontiguousarray(request.trees, np.int64)
        nodes = Nodes(ids, trees, parts, starts, degrees, row_degrees, counts)
        where = entity_label(tables.entity)
        times = None if request.times is None else tables.times
        is_range = is_plain(request)
        takes_last = request.strategy == "last" and is_range
        is_trimmed = times is not None or takes_last
        # Counts depend on the eligible edges; if these are fewer than the row, the counts are computed afterwards.
        count = 0 if is_trimmed else request.count
        total = edge_ranges(tables.addresses, nodes, count, request.is_replacing)
        check_range(total, ids, where)
        if not is_range:
            row_degrees[:] = degrees
        if times is not None:
            limits = np.ascontiguousarray(request.times, np.int64)
            trim_by_time(limits, request.is_inclusive, times, parts, starts, degrees)
        if is_trimmed:
            total = count_draws(request.count, request.is_replacing, takes_last, starts, degrees, counts)
            check_range(total, ids, where)
        return EdgeRanges(nodes=nodes, total=total)

    def choose(self, tables: SamplingTables, request: SampleRequest, ranges: EdgeRanges) -> tuple[EdgeRanges, IntArray]:
        """Draw the edges of a request that needs more than a range.

        Returns:
            ranges: The same ranges, with the numbers of drawn edges as counts.
            positions: int64[total], positions drawn in the ``indices`` of each node's part; valid until the next call.
        """
        strategy = "uniform" if request.count < 0 and request.strategy in ("last", "labor") else request.strategy
        draw, source, draws, nodes = DRAWS[strategy], _source(tables, request), draws_of(request), ranges.nodes
        sets = _filter_sets(tables, request) if is_limited(request) else None
        # These kernels lose no time to an empty filter, so one compiled kernel serves requests with and without one.
        without = NO_FILTER if strategy in ("top_k", "labor") else None
        rule = without if sets is None else sets.to_filter(TREE_SHIFT)
        # Room for all possible draws would be too much: many neighbours may be wanted and few eligible.
        self._grow_positions(min(ranges.total, FIRST_POSITIONS + POSITIONS_PER_ID * len(nodes.ids)))
        self._grow_scratch(request, FIRST_SCRATCH)
        done = written = 0
        while True:
            done, written, num_positions, num_scratch = draw(
                tables.addresses, source, rule, draws, nodes, self._scratch, done, self._positions, written
            )
            if done == len(nodes.ids):
                return replace(ranges, total=written), self._positions[:written]
            self._grow_positions(num_positions)
            self._grow_scratch(request, num_scratch)

    def _grow_positions(self, capacity: int) -> None:
        if capacity > len(self._positions):
            positions = np.empty(max(capacity, 2 * len(self._positions)), np.int64)
            positions[: len(self._positions)] = self._positions
            self._positions = positions

    def _grow_scratch(self, request: SampleRequest, capacity: int) -> None:
        """Make room for ``capacity`` edges of one node in the arrays that the strategy uses."""
        listed, sums, weights, variates = self._scratch
        weighs, varies = request.strategy == "weighted", request.strategy in ("weighted", "labor", "top_k")
        if capacity > len(listed):
            listed = np.empty(capacity, np.int64)
        if weighs and len(listed) > len(sums):
            sums, weights = np.empty((2, len(listed)))
        if varies and len(listed) > len(variates):
            variates = np.empty(len(listed), np.uint64)
        self._scratch = Scratch(listed, sums, weights, variates)


def draw_reply(tables: SamplingTables, request: SampleRequest, ids: IntArray) -> SampleReply:
    """Draw the neighbours of a checked request; ``ids`` are numbered as in ``tables``.

    If the request wants edge keys, the reply has edge ids instead; without ``wants_edge_ids`` they are valid until the
    next call of this thread.

    Raises:
        FormatError: A row lies outside its file.
        SettingsError: A node would draw more than ``MAX_COUNT`` neighbours.
    """
    buffers = DrawBuffers()
    ranges = buffers.find_ranges(tables, request, ids)
    draws = draws_of(request) if is_plain(request) else None
    if draws is None:
        ranges, edge_ids = buffers.choose(tables, request, ranges)
    elif request.wants_edge_ids:
        edge_ids = np.empty(ranges.total, np.int64)
    else:
        edge_ids = _positions_of_thread(ranges.total)
    neighbor_ids = np.empty(ranges.total, tables.addresses.item.dtype)
    draw_neighbors(tables.addresses, draws, ranges.nodes, None, neighbor_ids, edge_ids)
    return SampleReply(
        counts=ranges.nodes.counts, neighbor_ids=neighbor_ids,
        edge_ids=edge_ids[: ranges.total] if request.wants_edge_ids or request.wants_edge_keys else None,
    )  # fmt: skip


_OF_THREAD = local()
KEPT_POSITIONS = 1 << 20
"""Most positions whose memory a thread keeps for its next draw; 8 MiB."""


def _positions_of_thread(num_edges: int) -> IntArray:
    """Return memory for at least ``num_edges`` positions, valid until the next call of this thread."""
    positions: IntArray = getattr(_OF_THREAD, "positions", NOTHING)
    if len(positions) < num_edges:
        positions = np.empty(num_edges + num_edges // 8, np.int64)
        if len(positions) <= KEPT_POSITIONS:
            _OF_THREAD.positions = positions
    return positions


def count_eligible(tables: SamplingTables, request: SampleRequest, ranges: EdgeRanges) -> IntArray:
    """Count each node's eligible edges, int64[n], with excluded neighbours and candidates considered."""
    if not is_limited(request):
        return ranges.nodes.degrees
    sets = _filter_sets(tables, request)
    num_eligible = np.empty(len(ranges.nodes.ids), np.int64)
    count_filtered(tables.addresses, sets.to_filter(TREE_SHIFT), ranges.nodes, num_eligible)
    return num_eligible


def is_plain(request: SampleRequest) -> bool:
    """Return whether each node's eligible edges are one range, and any of them or the last are drawn."""
    return request.strategy in ("uniform", "last") and not is_limited(request)


def is_limited(request: SampleRequest) -> bool:
    """Return whether neighbours are excluded, or only candidates are eligible."""
    return _excludes(request) or request.candidates is not None


def replaces(request: SampleRequest) -> bool:
    """Return whether the request draws with replacement."""
    return request.is_replacing and request.count >= 0


def _excludes(request: SampleRequest) -> bool:
    return request.excluded is not None and request.excluded.shape[1] > 0


def draws_of(request: SampleRequest) -> Draws:
    """Convert a request to the settings of drawing kernels."""
    return Draws(request.count, replaces(request), np.uint64(request.rng_seed))


def _source(tables: SamplingTables, request: SampleRequest) -> Weights | Variates | None:
    """Return the further data that the kernel of the request's strategy reads."""
    if request.strategy in BY_WEIGHT:
        return tables.weights
    if request.labor is None or tables.neighbor_keys is None or request.count < 0:
        return None
    seeds = request.labor
    first, second = np.uint64(seeds.first), np.uint64(seeds.second)
    return Variates(tables.neighbor_keys, tables.key_item, first, second, float(seeds.share))


def _filter_sets(tables: SamplingTables, request: SampleRequest) -> FilterSets:
    excluded = candidates = None
    if request.excluded is not None and _excludes(request):
        nodes, neighbors = np.ascontiguousarray(request.excluded, np.int64)
        excluded = tables.newest(nodes), neighbors
    if request.candidates is not None:
        candidates = np.ascontiguousarray(request.candidates, np.int64)
    return filter_sets(excluded, candidates)


def check_range(total: int, ids: IntArray, where: str) -> None:
    """Raise ``FormatError`` if a kernel found a row's range outside its file.

    Raises:
        SettingsError: A node has more edges than one answer can hold.
    """
    if total == TOO_MANY:
        raise SettingsError(f"{where}: a node has more than {MAX_COUNT} edges; give a count instead of -1")
    if total < 0:
        raise FormatError(f"{where}: the row of id {int(ids[-1 - total])} lies outside its file; verify the dataset")
