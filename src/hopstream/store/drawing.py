"""Draws the edges of a request where the edges of its nodes are mapped in this process.

Drawing has two ways. The plain one, of ``uniform`` and ``last`` without exclusion, only needs to know where a node's
eligible edges lie, because they are one range; kernels then draw and read in one pass. Every other request is drawn by
``draw_chosen``, which writes positions that are read in a pass of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.dataset.book import EdgeOwner, Owner, PartitionBook, ends_of, owner_label
from hopstream.dataset.layout import OverlayArrays, PartArrays
from hopstream.dataset.overlays import edge_pieces, overlay_pieces
from hopstream.errors import FormatError, SettingsError
from hopstream.kernels.chosen import (
    LABOR,
    LAST,
    TOP_K,
    UNIFORM,
    WEIGHTED,
    Rules,
    Scratch,
    Sources,
    count_chosen,
    draw_chosen,
)
from hopstream.kernels.eligible import add_ids, add_pairs, add_to_sieve, empty_set, empty_sieve, set_capacity
from hopstream.kernels.memory import address_table
from hopstream.kernels.neighbors import TOO_MANY, draw_neighbors, edge_ranges
from hopstream.kernels.newest import WORD_BITS, find_newest, mark_nodes
from hopstream.kernels.stored_weights import weight_kind
from hopstream.kernels.temporal import count_draws, trim_by_time
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import MAX_COUNT, TREE_SHIFT, LaborSeeds, SampleReply, SampleRequest, Strategy

NOTHING: IntArray = np.empty(0, np.int64)
NO_WORDS = np.empty(0, np.uint64)
FIRST_POSITIONS = 1 << 16
POSITIONS_PER_ID = 64
FIRST_SCRATCH = 1 << 12
KERNEL_STRATEGIES: Mapping[Strategy, int] = {
    "uniform": UNIFORM,
    "weighted": WEIGHTED,
    "top_k": TOP_K,
    "last": LAST,
    "labor": LABOR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayTables:
    """Which nodes have newer rows, and where.

    Attributes:
        marks: uint64[num_words, 2] of ``mark_nodes``.
        newest: int64[number of such nodes], the id under which kernels know the newest row of each.
    """

    marks: NDArray[np.uint64]
    newest: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingTables:
    """What the sampling kernels need of one edge type and direction; rows are pieces, zeros where one is not here.

    Pieces are the parts and, after them, the overlays, whose rows have ids behind those of all nodes; a request's ids
    are brought to the pieces that hold their newest rows by ``newest``.

    Attributes:
        owner: The edge type and direction.
        node_type: Node type of the nodes that are expanded.
        offsets: int64[num_parts + 1], id ranges of that type, and of the rows of overlays.
        keys: int64[num_parts, 2], address table of its keys; zeros where id equals key.
        indptrs: int64[num_parts, 2], address table of ``indptr``.
        indices: int64[num_parts, 2], address table of ``indices``.
        item: uint32[0] or int64[0], of the dtype of ``indices``.
        edge_offsets: int64[num_parts + 1], id ranges of the edges.
        times: int64[num_parts, 2], address table of the edges' times, or None where they have none.
        weight_sums: int64[num_parts, 2], address table of the running sums of weights, or None.
        weight_orders: int64[num_parts, 2], address table of positions by weight, or None.
        weight_aliases: int64[num_parts, 2], address table of alias tables, or None.
        weights: int64[num_parts, 2], address table of weights, or None.
        weight_kind: ``stored_weights.weight_kind`` of their dtype.
        neighbor_keys: int64[num_parts, 2], address table of the neighbours' keys, or None.
        key_item: uint32[0] or int64[0], of the dtype of ``neighbor_keys``.
        overlays: Which rows have newer ones, or None where none have.
    """

    owner: Owner
    node_type: str
    offsets: IntArray
    keys: IntArray
    indptrs: IntArray
    indices: IntArray
    item: Array
    edge_offsets: IntArray
    times: IntArray | None
    weight_sums: IntArray | None
    weight_orders: IntArray | None
    weight_aliases: IntArray | None
    weights: IntArray | None
    weight_kind: int
    neighbor_keys: IntArray | None
    key_item: Array
    overlays: OverlayTables | None = None

    def newest(self, ids: IntArray) -> IntArray:
        """int64[n], what kernels are to be given for ids of nodes: where their newest rows are."""
        if self.overlays is None:
            return ids
        found = np.empty(len(ids), np.int64)
        find_newest(np.ascontiguousarray(ids, np.int64), self.overlays.marks, self.overlays.newest, found)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRanges:
    """Where the eligible edges of a request's nodes lie, and how many neighbours each will draw at most.

    Attributes:
        parts: int32[n], the part of each node.
        starts: int64[n], position of its first eligible edge in the part's ``indices``.
        degrees: int64[n], its number of eligible edges, as far as times decide.
        row_degrees: int64[n], its number of edges; only where edges are chosen.
        counts: int32[n], neighbours it draws; until edges are chosen, at most so many.
        total: The sum of ``counts``.
    """

    parts: NDArray[np.int32]
    starts: IntArray
    degrees: IntArray
    row_degrees: IntArray
    counts: NDArray[np.int32]
    total: int


def sampling_tables(
    book: PartitionBook, maps: Sequence[PartArrays | None], edge_type: EdgeType, direction: Direction
) -> SamplingTables:
    """The address tables of one edge type and direction, valid while the maps are referred to; None is no map."""
    node_type = ends_of(edge_type, direction)[0]
    edges = edge_pieces(book, maps, (edge_type, direction))
    # Where the format says that id equals key, keys are left out, which saves a cache miss per expanded node.
    has_keys = not book.ids_are_keys
    neighbor_keys = [(e.neighbor_keys if has_keys else e.indices) if e else None for e in edges]
    overlays = overlay_pieces(book, maps, (edge_type, direction))
    num_rows = [overlay.num_rows for overlay in book.overlays((edge_type, direction))]
    offsets = book.offsets(node_type)
    node_keys = [m.node_keys[node_type] if m and has_keys else None for m in maps]
    return SamplingTables(
        owner=(edge_type, direction),
        node_type=node_type,
        offsets=np.append(offsets, offsets[-1] + np.cumsum(num_rows, dtype=np.int64)),
        keys=address_table(node_keys + [o.node_keys if o else None for o in overlays]),
        indptrs=address_table([e.indptr if e else None for e in edges]),
        indices=address_table([e.indices if e else None for e in edges]),
        item=np.empty(0, next(e.indices.dtype for e in edges if e)),
        edge_offsets=book.offsets((edge_type, direction)),
        times=_table_if_any([e.times if e else None for e in edges]),
        weight_sums=_table_if_any([e.weight_sums if e else None for e in edges]),
        weight_orders=_table_if_any([e.weight_order if e else None for e in edges]),
        weight_aliases=_table_if_any([e.weight_alias if e else None for e in edges]),
        weights=_table_if_any([e.weights if e else None for e in edges]),
        weight_kind=weight_kind(next((e.weights.dtype for e in edges if e and e.weights is not None), None)),
        neighbor_keys=_table_if_any(neighbor_keys),
        key_item=np.empty(0, next((k.dtype for k in neighbor_keys if k is not None), np.dtype(np.uint32))),
        overlays=_overlay_tables(book, (edge_type, direction), overlays) if overlays else None,
    )


def _overlay_tables(book: PartitionBook, owner: EdgeOwner, overlays: Sequence[OverlayArrays | None]) -> OverlayTables:
    offsets = book.offsets(ends_of(*owner)[0])
    first_row, ids, row_ids = int(offsets[-1]), [NOTHING], [NOTHING]
    for overlay, arrays in zip(book.overlays(owner), overlays, strict=True):
        if arrays is not None:
            ids.append(offsets[overlay.part] + arrays.rows)
            row_ids.append(first_row + np.arange(overlay.num_rows, dtype=np.int64))
        first_row += overlay.num_rows
    all_ids = np.concatenate(ids)
    order = np.argsort(all_ids, kind="stable")  # the newest of a node's rows comes last
    nodes = all_ids[order]
    is_newest = np.append(nodes[1:] != nodes[:-1], np.ones(min(1, len(nodes)), np.bool_))
    touched = nodes[is_newest]
    marks = np.zeros((int(offsets[-1]) // WORD_BITS + 1, 2), np.uint64)
    mark_nodes(touched, marks)
    return OverlayTables(marks=marks, newest=np.concatenate(row_ids)[order][is_newest])


def _table_if_any(arrays: Sequence[Array | None]) -> IntArray | None:
    return None if all(array is None for array in arrays) else address_table(arrays)


class DrawBuffers:
    """Memory that a request's draws are written to; reused from request to request by whoever keeps it."""

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
        where = owner_label(tables.owner)
        times = None if request.times is None else tables.times
        is_range = is_plain(request)
        takes_last = request.strategy == "last" and is_range
        is_trimmed = times is not None or takes_last
        # Counts follow from what is eligible, so where that is less than the row they are found afterwards.
        total = edge_ranges(
            ids, tables.offsets, tables.indptrs, tables.indices, 0 if is_trimmed else request.count,
            request.is_replacing, parts, starts, degrees, counts,
        )  # fmt: skip
        check_range(total, ids, where)
        if not is_range:
            row_degrees[:] = degrees
        if times is not None:
            limits = np.ascontiguousarray(request.times, np.int64)
            trim_by_time(limits, request.is_inclusive, times, parts, starts, degrees)
        if is_trimmed:
            total = count_draws(request.count, request.is_replacing, takes_last, starts, degrees, counts)
            check_range(total, ids, where)
        return EdgeRanges(
            parts=parts, starts=starts, degrees=degrees, row_degrees=row_degrees, counts=counts, total=total
        )

    def choose(
        self, tables: SamplingTables, request: SampleRequest, ids: IntArray, ranges: EdgeRanges
    ) -> tuple[EdgeRanges, IntArray]:
        """Draw the edges of a request whose draws need more than a range.

        Returns:
            ranges: The same with the counts that were drawn.
            positions: int64[total], positions drawn in the ``indices`` of each node's part; valid until the next call.
        """
        sources, rules, trees = _sources(tables), _rules(tables, request), trees_of(request)
        # All that could be drawn is too much where many neighbours are wanted and few are eligible.
        self._grow_positions(min(ranges.total, FIRST_POSITIONS + POSITIONS_PER_ID * len(ids)))
        self._grow_scratch(request, FIRST_SCRATCH)
        done = written = 0
        while True:
            done, written, num_positions, num_scratch = draw_chosen(
                sources, rules, ids, trees, ranges.parts, ranges.starts, ranges.row_degrees, ranges.degrees, done,
                self._scratch, self._positions, written, ranges.counts,
            )  # fmt: skip
            if done == len(ids):
                return replace(ranges, total=written), self._positions[:written]
            self._grow_positions(num_positions)
            self._grow_scratch(request, num_scratch)

    def _grow_positions(self, capacity: int) -> None:
        if capacity > len(self._positions):
            positions = np.empty(max(capacity, 2 * len(self._positions)), np.int64)
            positions[: len(self._positions)] = self._positions
            self._positions = positions

    def _grow_scratch(self, request: SampleRequest, capacity: int) -> None:
        """Make room for so many edges of one node in the arrays that the strategy uses."""
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
    """Draw the neighbours of a checked request, whose ids are in ``tables``.

    Raises:
        FormatError: A row lies outside its file.
        SettingsError: A node would draw more than ``MAX_COUNT`` neighbours.
    """
    buffers, edge_ids = DrawBuffers(), NOTHING
    ranges = buffers.find_ranges(tables, request, ids)
    is_drawn = not is_plain(request)
    if is_drawn:
        ranges, edge_ids = buffers.choose(tables, request, ids, ranges)
    else:
        edge_ids = np.empty(ranges.total, np.int64)
    neighbor_ids = np.empty(ranges.total, tables.item.dtype)
    draw_neighbors(
        ids, trees_of(request), tables.offsets, tables.keys, tables.indices, np.uint64(request.rng_seed),
        replaces(request), is_drawn, ranges.parts, ranges.starts, ranges.degrees, ranges.counts,
        tables.edge_offsets, neighbor_ids, edge_ids,
    )  # fmt: skip
    return SampleReply(
        counts=ranges.counts, neighbor_ids=neighbor_ids, edge_ids=edge_ids if request.wants_edge_ids else None
    )


def count_eligible(tables: SamplingTables, request: SampleRequest, ids: IntArray, ranges: EdgeRanges) -> IntArray:
    """int64[n], each node's eligible edges, excluded neighbours and candidates considered."""
    num_eligible = np.empty(len(ids), np.int64)
    count_chosen(
        _sources(tables), _rules(tables, request), ids, trees_of(request), ranges.parts, ranges.starts, ranges.degrees,
        num_eligible,
    )  # fmt: skip
    return num_eligible


def is_plain(request: SampleRequest) -> bool:
    """A node's eligible edges are one range, and any of them, or the last, are drawn."""
    return request.strategy in ("uniform", "last") and not _excludes(request) and request.candidates is None


def trees_of(request: SampleRequest) -> IntArray:
    """int64[n], or int64[0] where there is one tree."""
    return NOTHING if request.trees is None else np.ascontiguousarray(request.trees, np.int64)


def replaces(request: SampleRequest) -> bool:
    """Draw with replacement."""
    return request.is_replacing and request.count >= 0


def _excludes(request: SampleRequest) -> bool:
    return request.excluded is not None and request.excluded.shape[1] > 0


def _sources(tables: SamplingTables) -> Sources:
    none = np.zeros_like(tables.indices)
    return Sources(
        offsets=tables.offsets,
        keys=tables.keys,
        indices=tables.indices,
        item=tables.item,
        sums=none if tables.weight_sums is None else tables.weight_sums,
        aliases=none if tables.weight_aliases is None else tables.weight_aliases,
        orders=none if tables.weight_orders is None else tables.weight_orders,
        weights=none if tables.weights is None else tables.weights,
        weight_kind=tables.weight_kind,
        neighbor_keys=none if tables.neighbor_keys is None else tables.neighbor_keys,
        key_item=tables.key_item,
    )


def _rules(tables: SamplingTables, request: SampleRequest) -> Rules:
    labor = request.labor or LaborSeeds(first=0)
    nodes, pairs, candidates, sieve = NOTHING, NOTHING, NOTHING, NO_WORDS
    if request.excluded is not None and _excludes(request):
        excluded = np.ascontiguousarray(request.excluded, np.int64)
        num_entries = set_capacity(excluded.shape[1])
        nodes, pairs = empty_set(num_entries), empty_set(2 * num_entries)
        own = tables.newest(excluded[0])
        add_ids(own, nodes)
        add_pairs(own, excluded[1], pairs)
    if request.candidates is not None:
        members = np.ascontiguousarray(request.candidates, np.int64)
        candidates = empty_set(set_capacity(len(members)))
        sieve = empty_sieve(len(candidates))
        add_ids(members, candidates)
        add_to_sieve(members, sieve)
    return Rules(
        strategy=KERNEL_STRATEGIES[request.strategy],
        count=request.count,
        replaces=replaces(request),
        rng_seed=np.uint64(request.rng_seed),
        labor_first=np.uint64(labor.first),
        labor_second=np.uint64(labor.second),
        labor_share=float(labor.share),
        excluded_nodes=nodes,
        excluded_pairs=pairs,
        candidates=candidates,
        candidate_sieve=sieve,
        tree_shift=TREE_SHIFT,
    )


def check_range(total: int, ids: IntArray, where: str) -> None:
    """Raise ``FormatError`` where a kernel found a row's range outside its file.

    Raises:
        SettingsError: A node has more edges than can be counted in one answer.
    """
    if total == TOO_MANY:
        raise SettingsError(f"{where}: a node has more than {MAX_COUNT} edges; give a count instead of -1")
    if total < 0:
        raise FormatError(f"{where}: the row of id {int(ids[-1 - total])} lies outside its file; verify the dataset")
