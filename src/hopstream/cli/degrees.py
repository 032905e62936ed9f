"""How are the degrees of a graph distributed?

Degrees are read in stretches, so the memory taken does not depend on the size of the graph: below ``MAX_COUNTED`` each
degree has a counter; the few nodes above it are kept one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import IntArray
from hopstream.dataset.book import EdgeOwner, ends_of, owner_label
from hopstream.dataset.layout import Dataset, PartArrays
from hopstream.dataset.overlays import RowReader
from hopstream.errors import FormatError
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import Store

CHUNK_NODES = 1 << 20
MAX_COUNTED = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeSummary:
    """Edges per node of one edge type and direction.

    Attributes:
        edge_type: The edge type.
        direction: ``in``: edges that end in a node of the destination type; ``out``: that start in one of the source.
        num_nodes: Nodes of that type.
        num_edges: Edges of the edge type.
        smallest: The lowest degree; like the next three 0 where there are no nodes.
        median: The lowest degree that at least half of the nodes do not exceed.
        p99: The lowest degree that at least 99 % of the nodes do not exceed.
        largest: The highest degree.
        histogram: ``histogram[0]`` nodes have no edge; ``histogram[i]`` have ``2**(i-1)`` to ``2**i - 1`` of them.
    """

    edge_type: EdgeType
    direction: Direction
    num_nodes: int
    num_edges: int
    smallest: int
    median: int
    p99: int
    largest: int
    histogram: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Edges per node; 0 where there are no nodes."""
        return self.num_edges / self.num_nodes if self.num_nodes else 0.0

    @property
    def num_isolated(self) -> int:
        """Nodes without an edge of this type in this direction."""
        return self.histogram[0]

    @property
    def node_type(self) -> str:
        """The type of the nodes whose edges are counted."""
        return ends_of(self.edge_type, self.direction)[0]


def degrees_of_dataset(dataset: Dataset, progress: Callable[[str, int, int], None]) -> list[DegreeSummary]:
    """Summarize every edge type and direction that a dataset holds.

    Raises:
        FormatError: A file is missing or truncated, or offsets descend.
    """
    book = dataset.manifest.book
    parts = [dataset.open_part(part) for part in range(book.num_parts)]
    owners = list(book.edge_offsets)
    summaries = []
    for done, (edge_type, direction) in enumerate(owners):
        progress("degrees", done, len(owners))
        where = f"{dataset.root}: {owner_label((edge_type, direction))}"
        chunks = (chunk for part in parts for chunk in _newest_degrees(part, (edge_type, direction), where))
        summaries.append(summarize(edge_type, direction, chunks))
    progress("degrees", len(owners), len(owners))
    return summaries


def _newest_degrees(part: PartArrays, owner: EdgeOwner, where: str) -> Iterator[IntArray]:
    """Degrees of the rows of a part, of each where it is newest."""
    reader = RowReader.of(part, owner)
    if not reader.overlay_rows:
        yield from _stretches(reader.pieces[0].indptr, where)
        return
    for edges in reader.pieces:
        for _ in _stretches(edges.indptr, where):  # refuses offsets that descend
            pass
    for first in range(0, reader.num_rows, CHUNK_NODES):
        yield reader.degrees(np.arange(first, min(first + CHUNK_NODES, reader.num_rows)))


def degrees_of_store(store: Store, progress: Callable[[str, int, int], None]) -> list[DegreeSummary]:
    """Summarize every edge type and direction by asking a store that answers for all parts."""
    owners = list(store.book.edge_offsets)
    summaries = []
    for done, (edge_type, direction) in enumerate(owners):
        progress("degrees", done, len(owners))
        num_nodes = store.book.num_ids(ends_of(edge_type, direction)[0])
        chunks = (
            store.degrees(edge_type, direction, np.arange(i, min(i + CHUNK_NODES, num_nodes), dtype=np.int64))
            for i in range(0, num_nodes, CHUNK_NODES)
        )
        summaries.append(summarize(edge_type, direction, chunks))
    progress("degrees", len(owners), len(owners))
    return summaries


def summarize(edge_type: EdgeType, direction: Direction, chunks: Iterable[IntArray]) -> DegreeSummary:
    """Summarize degrees that come as int64[n] arrays, in any order."""
    counts = np.zeros(MAX_COUNTED, np.int64)
    above: list[IntArray] = []
    num_edges = 0
    for degrees in chunks:
        num_edges += int(degrees.sum())
        is_counted = degrees < MAX_COUNTED
        counts += np.bincount(degrees[is_counted], minlength=MAX_COUNTED)
        above.append(degrees[~is_counted])
    large = np.sort(np.concatenate([np.empty(0, np.int64), *above]))
    running = np.cumsum(counts)
    num_nodes = int(running[-1]) + len(large)

    def at_rank(rank: int) -> int:
        """The degree of the node with ``rank`` nodes before it, in ascending order of degree."""
        if rank < running[-1]:
            return int(np.searchsorted(running, rank, side="right"))
        return int(large[rank - running[-1]]) if num_nodes else 0

    return DegreeSummary(
        edge_type=edge_type,
        direction=direction,
        num_nodes=num_nodes,
        num_edges=num_edges,
        smallest=at_rank(0),
        median=at_rank(_rank(num_nodes, 50)),
        p99=at_rank(_rank(num_nodes, 99)),
        largest=at_rank(max(num_nodes - 1, 0)),
        histogram=_histogram(counts, large),
    )


def _rank(num_nodes: int, percent: int) -> int:
    """How many nodes come before the first one that ``percent`` % of the nodes do not exceed."""
    return max(-(-num_nodes * percent // 100) - 1, 0)


def _histogram(counts: IntArray, large: IntArray) -> tuple[int, ...]:
    """Nodes per power of two; no empty bins at the end but the first, which is always there."""
    bins = [int(counts[0])]
    bins += [int(counts[1 << i : 2 << i].sum()) for i in range(MAX_COUNTED.bit_length() - 1)]
    exponents = np.bincount(np.frexp(large.astype(np.float64))[1], minlength=len(bins))
    bins = [a + int(b) for a, b in zip(bins + [0] * (len(exponents) - len(bins)), exponents, strict=True)]
    while len(bins) > 1 and not bins[-1]:
        bins.pop()
    return tuple(bins)


def _stretches(indptr: IntArray, where: str) -> Iterator[IntArray]:
    for start in range(0, len(indptr) - 1, CHUNK_NODES):
        degrees = np.diff(indptr[start : start + CHUNK_NODES + 1])
        if int(degrees.min()) < 0:
            raise FormatError(f"{where}: indptr descends; copy the dataset again, or verify it")
        yield degrees
