"""Finds nodes of other parts within some hops of a part, and nodes that are likely to be sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.dataset.book import PartitionBook, ends_of
from hopstream.dataset.halo_record import edge_row_bytes
from hopstream.kernels.halo import clear_range, mark_above, mark_ids, spread_chances, weigh_chances
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.halo.sources import CHUNK_ROWS, Chances, NodeBitmap, NumberTables, Parts, Values, chunks_of

MAX_BUDGET = 1 << 62


def nodes_within(parts: Parts, part: int, hops: int) -> dict[str, NodeBitmap]:
    """Return the nodes of other parts at a distance of 1 to ``hops`` from a part's nodes, by type.

    Takes three bits per node of the graph.

    Raises:
        FormatError: A part is damaged.
    """
    book, schema = parts.book, parts.manifest.schema
    found = {t: NodeBitmap.empty(book.num_ids(t)) for t in schema.nodes}
    frontier = {t: NodeBitmap.of_range(book.num_ids(t), *_range(parts, t, part)) for t in schema.nodes}
    for _ in range(hops):
        reached = {t: NodeBitmap.empty(book.num_ids(t)) for t in schema.nodes}
        for entity in book.edge_offsets:
            near, far = ends_of(*entity)
            for ids in frontier[near].chunks():
                parts.mark(entity, ids, reached[far].marks)
        for node_type, nodes in reached.items():
            clear_range(nodes.marks, *_range(parts, node_type, part))
            nodes.marks[:] |= found[node_type].marks
            nodes.marks[:] ^= found[node_type].marks  # keeps only new nodes, in place
            found[node_type].marks[:] |= nodes.marks
        frontier = reached
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Inclusion:
    """Chances of nodes to be in a batch whose seeds a part owns.

    Attributes:
        sampled: Node type to float64[num_nodes], the chance that a node is in a batch.
        expanded: Node type to float64[num_nodes], the mean number of times per batch that a node's neighbours are
            requested, for the types whose nodes keep edges; empty if not computed.
    """

    sampled: Mapping[str, Chances]
    expanded: Mapping[str, Chances]


def near_types(book: PartitionBook) -> list[str]:
    """Return the node types whose nodes keep edges in some stored direction."""
    near = {ends_of(*entity)[0] for entity in book.edge_offsets}
    return [node_type for node_type in book.node_offsets if node_type in near]


class InclusionModel:
    """Vertex inclusion probabilities (VIP) of parts, in tables that are refilled for each part.

    Takes three 64-bit numbers per node of the graph, and one more to count expansions.

    Source: Kaler et al., "Communication-Efficient Graph Neural Networks with Probabilistic Neighborhood Expansion
    Analysis and Caching", MLSys 2023, section 3. Here a node may have several edge types, each with the fan-out.
    """

    def __init__(self, parts: Parts, settings: HaloSettings, tables: NumberTables, *, is_expanding: bool) -> None:
        """Allocate the tables.

        Raises:
            OSError: The disk has no room for tables that do not fit the memory.
        """
        self._parts, self._settings = parts, settings
        sizes = {t: parts.book.num_ids(t) for t in parts.book.node_offsets}
        self._chances, self._misses, self._missed = ({t: tables.new(n) for t, n in sizes.items()} for _ in range(3))
        self._expanded = {t: tables.new(sizes[t]) for t in near_types(parts.book)} if is_expanding else {}

    def of(self, part: int) -> Inclusion:
        """Compute the chances for a part; this overwrites the result of the previous part.

        Raises:
            FormatError: A part is damaged.
        """
        chances, misses, missed = self._chances, self._misses, self._missed
        self._set_seeds(part, chances)
        for node_type, of_type in chances.items():
            np.subtract(1, of_type, out=missed[node_type])
        for table in self._expanded.values():
            table[:] = 0
        for fanout in self._settings.fanouts:
            for node_type, expanded in self._expanded.items():
                expanded += chances[node_type]
            self._spread(chances, fanout, misses)
            for node_type, of_type in misses.items():
                for rows in _chunks(len(of_type)):
                    missed[node_type][rows] *= 1 - of_type[rows]
            chances, misses = misses, chances
        for of_type in missed.values():
            np.subtract(1, of_type, out=of_type)
        return Inclusion(sampled=missed, expanded=self._expanded)

    def _spread(self, chances: Mapping[str, Chances], fanout: int, drawn: Mapping[str, Chances]) -> None:
        """Write the chance of each node to be drawn by nodes that are expanded with the given chances."""
        parts = self._parts
        for of_type in drawn.values():
            of_type[:] = 1
        for entity in parts.book.edge_offsets:
            near, far = ends_of(*entity)
            offsets = parts.book.offsets(near)
            for part, edges in enumerate(parts.edges(entity)):
                own = chances[near][offsets[part] : offsets[part + 1]]
                wrong = spread_chances(edges.indptr, edges.indices, own, fanout, drawn[far])
                if wrong:
                    parts.refuse(entity, int(offsets[part]) - 1 - wrong)
        for of_type in drawn.values():
            np.subtract(1, of_type, out=of_type)

    def _set_seeds(self, part: int, chances: Mapping[str, Chances]) -> None:
        """Set the chances of seeds: the part's nodes in ``train`` splits, or all if there are no such splits."""
        parts, batch_size = self._parts, self._settings.batch_size
        splits = parts.manifest.schema.splits
        is_split = any("train" in names for names in splits.values())
        for node_type, of_type in chances.items():
            of_type[:] = 0
            first, stop = _range(parts, node_type, part)
            if not is_split and stop > first:
                of_type[first:stop] = min(1.0, batch_size / (stop - first))
            if "train" not in splits.get(node_type, ()):
                continue
            num_seeds = sum(len(ids) for ids in _train_ids(parts, node_type, first, stop))
            for ids in _train_ids(parts, node_type, first, stop):
                of_type[ids] = min(1.0, batch_size / max(1, num_seeds))


def _train_ids(parts: Parts, node_type: str, first: int, stop: int) -> Iterator[IntArray]:
    """Yield ids of the training nodes in ``[first, stop)``, in blocks."""
    starts = parts.book.key_offsets(node_type)
    for arrays, start in zip(parts.arrays, starts, strict=False):
        for keys in chunks_of(arrays.splits[node_type]["train"]):
            ids = arrays.ids_of_keys[node_type][keys - start]
            yield ids[(ids >= first) & (ids < stop)]


RowBytes = Callable[[IntArray], IntArray]
"""Returns int64[n], the bytes of a copy of each of n nodes, given by id."""


def hottest(
    parts: Parts, part: int, chances: Mapping[str, Chances], sizes: Mapping[str, RowBytes], budget: int,
    *, per_byte: bool = False,
) -> dict[str, NodeBitmap]:  # fmt: skip
    """Return the nodes of other parts with the largest chances (VIP) that fit a budget of bytes, by type.

    Nodes are taken by descending rank, ties by type and id, until the next one does not fit. Takes one bit per node of
    the graph.

    Args:
        parts: All parts.
        part: The part that copies.
        chances: Node type to float64[num_nodes], at least 0.
        sizes: Node type to the sizes of copies; nodes of other types are not taken.
        budget: Most bytes.
        per_byte: Rank nodes by chance per byte of their copies, instead of by chance.
    """
    others = [_Others(parts, t, part, chances[t], row_bytes, per_byte) for t, row_bytes in sizes.items()]
    threshold, left = _threshold(others, min(budget, MAX_BUDGET))
    taken = {of.node_type: of.above(threshold) for of in others}
    for of in others if threshold else ():
        for ids in of.equal_to(threshold):
            num_fitting = int(np.searchsorted(np.cumsum(of.row_bytes(ids)), left, side="right"))
            mark_ids(ids[:num_fitting], taken[of.node_type].marks)
            left -= int(of.row_bytes(ids[:num_fitting]).sum())
            if num_fitting < len(ids):
                return taken
    return taken


def _threshold(others: list[_Others], budget: int) -> tuple[int, int]:
    """Return a threshold, as bits of a rank, and the bytes left after all rows above it.

    All rows above the threshold fit, but not all rows at the threshold. It is 0 if everything fits.
    """
    prefix = 0
    for shift in (48, 32, 16, 0):
        totals = np.zeros(1 << 16, np.int64)
        for of in others:
            of.weigh(prefix, shift, totals)
        sums = np.cumsum(totals[::-1])
        num_fitting = int(np.searchsorted(sums, budget, side="right"))
        if num_fitting == len(sums):  # only in the first round: later rounds split a bin that did not fit
            return 0, budget - int(sums[-1])
        budget -= int(sums[num_fitting - 1]) if num_fitting else 0
        prefix = prefix << 16 | len(sums) - 1 - num_fitting
    return prefix, budget


@dataclass(frozen=True, slots=True, eq=False)
class _Others:
    """Nodes of one type that a part does not own, with their ranks.

    Ranks are compared as bits, because floats of 0 and above are in the order of their bits.
    """

    parts: Parts
    node_type: str
    part: int
    chances: Chances
    row_bytes: RowBytes
    per_byte: bool

    def weigh(self, prefix: int, shift: int, totals: IntArray) -> None:
        """Add the bytes of rows by rank; see ``weigh_chances``."""
        for first, stop in self._stretches():
            sizes = self.row_bytes(np.arange(first, stop))
            weigh_chances(self._bits(first, stop, sizes), prefix, shift, sizes, totals)

    def above(self, threshold: int) -> NodeBitmap:
        """Return the nodes with a larger rank."""
        found = NodeBitmap.empty(len(self.chances))
        for first, stop in self._stretches():
            mark_above(self._bits(first, stop), first, threshold, found.marks)
        return found

    def equal_to(self, threshold: int) -> Iterator[IntArray]:
        """Yield the nodes with exactly this rank, ascending, in blocks."""
        for first, stop in self._stretches():
            yield first + np.flatnonzero(self._bits(first, stop) == np.uint64(threshold))

    def _bits(self, first: int, stop: int, sizes: IntArray | None = None) -> NDArray[np.uint64]:
        """Return the ranks of a range of nodes as bits, uint64[stop - first]."""
        ranks = self.chances[first:stop]
        if self.per_byte:
            ranks = ranks / (self.row_bytes(np.arange(first, stop)) if sizes is None else sizes)
        return ranks.view(np.uint64)

    def _stretches(self) -> Iterator[tuple[int, int]]:
        own_first, own_stop = _range(self.parts, self.node_type, self.part)
        for begin, end in ((0, own_first), (own_stop, len(self.chances))):
            for first in range(begin, end, CHUNK_ROWS):
                yield first, min(first + CHUNK_ROWS, end)


def edge_bytes(parts: Parts, node_type: str, ids: IntArray) -> IntArray:
    """Return int64[n], the bytes of a copy of each node's edges, with its id, key and offsets."""
    total = np.full(len(ids), 16, np.int64)
    for entity, ranges in parts.edge_ranges.items():
        if ends_of(*entity)[0] == node_type:
            indices = Values([edges.indices for edges in parts.edges(entity)])
            total += 16 + ranges.of(ids, indices)[2] * edge_row_bytes(parts.manifest, entity)
    return total


def feature_bytes(parts: Parts, node_type: str, names: tuple[str, ...], ids: IntArray) -> IntArray:
    """Return int64[n], the bytes of a copy of each node's features: with id, key, and ragged offsets."""
    schema = parts.manifest.schema.nodes[node_type]
    total = np.full(len(ids), 16, np.int64)
    for name in names:
        ragged = parts.ragged(node_type, name)
        if ragged is None:
            total += schema[name].row_bytes
            continue
        ranges, values = ragged
        for start in range(0, len(ids), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            total[chunk] += 8 + ranges.of(ids[chunk], values)[2] * values.item_bytes
    return total


def _chunks(num_rows: int) -> Iterator[slice]:
    for start in range(0, num_rows, CHUNK_ROWS):
        yield slice(start, start + CHUNK_ROWS)


def _range(parts: Parts, node_type: str, part: int) -> tuple[int, int]:
    offsets = parts.book.offsets(node_type)
    return int(offsets[part]), int(offsets[part + 1])
