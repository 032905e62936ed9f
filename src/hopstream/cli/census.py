"""Census of a dataset, on disk or served: types, sizes, degrees, and loads of the parts.

Degrees are read in chunks. Each degree below ``MAX_COUNTED`` has a counter, and only the few higher degrees are stored
one by one, so memory hardly grows with the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import IntArray
from hopstream.cli.progress import Facts
from hopstream.dataset.balance import PartitionReport
from hopstream.dataset.book import EdgeEntity, Entity, PartitionBook, ends_of
from hopstream.dataset.halo_record import Halo
from hopstream.dataset.layout import Dataset
from hopstream.dataset.rows import DatasetRows
from hopstream.schema import Direction, EdgeType, GraphSchema, timed_edge_types, type_label
from hopstream.store.contract import Store

CHUNK_NODES = 1 << 20
MAX_COUNTED = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeSummary:
    """Degree statistics of one edge type and direction.

    Attributes:
        edge_type: The edge type.
        direction: ``in`` for in-degrees of the destination type, ``out`` for out-degrees of the source type.
        num_nodes: Number of nodes of that type.
        num_edges: Number of edges of the edge type.
        smallest: Lowest degree; 0 without nodes, as the next three.
        median: Lowest degree that at least half of the nodes do not exceed.
        p99: Lowest degree that at least 99 % of the nodes do not exceed.
        largest: Highest degree.
        histogram: ``histogram[0]`` nodes have no edge; ``histogram[i]`` nodes have ``2**(i-1)`` to ``2**i - 1`` edges.
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
        """Mean degree; 0 without nodes."""
        return self.num_edges / self.num_nodes if self.num_nodes else 0.0

    @property
    def num_isolated(self) -> int:
        """Number of nodes without an edge of this type in this direction."""
        return self.histogram[0]

    @property
    def node_type(self) -> str:
        """Node type whose degrees are counted."""
        return ends_of(self.edge_type, self.direction)[0]


Report = Callable[[str, int, int], None]


def degrees_of_dataset(dataset: Dataset, progress: Report) -> list[DegreeSummary]:
    """Summarize every edge type and direction of a dataset.

    Raises:
        FormatError: A file is missing or truncated, or offsets descend.
    """
    book = dataset.manifest.book
    for part in range(book.num_parts):
        dataset.open_part(part)  # checks that all files exist
    rows = DatasetRows(dataset.root, dataset.manifest)

    def read(entity: EdgeEntity) -> Iterator[IntArray]:
        for part, num_rows in enumerate(np.diff(book.node_offsets[ends_of(*entity)[0]]).tolist()):
            for first, stop in _stretches(num_rows):
                yield rows.spans(entity, part, first, stop).counts

    return _summaries(book, read, progress)


def degrees_of_store(store: Store, progress: Report) -> list[DegreeSummary]:
    """Summarize every edge type and direction of a store that serves all parts."""

    def read(entity: EdgeEntity) -> Iterator[IntArray]:
        for first, stop in _stretches(store.book.num_ids(ends_of(*entity)[0])):
            yield store.degrees(*entity, np.arange(first, stop, dtype=np.int64))

    return _summaries(store.book, read, progress)


def _stretches(num_rows: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + CHUNK_NODES, num_rows)) for first in range(0, num_rows, CHUNK_NODES))


def _summaries(
    book: PartitionBook, read: Callable[[EdgeEntity], Iterator[IntArray]], progress: Report
) -> list[DegreeSummary]:
    entities, summaries = list(book.edge_offsets), []
    for done, entity in enumerate(entities):
        progress("degrees", done, len(entities))
        summaries.append(summarize(*entity, read(entity)))
    progress("degrees", len(entities), len(entities))
    return summaries


def summarize(edge_type: EdgeType, direction: Direction, chunks: Iterable[IntArray]) -> DegreeSummary:
    """Summarize degrees given in chunks, int64[n] each, in any order."""
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
        """Return the degree at index ``rank`` of the ascending degrees."""
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
    """Return the index of the lowest degree that ``percent`` % of the nodes do not exceed."""
    return max(-(-num_nodes * percent // 100) - 1, 0)


def _histogram(counts: IntArray, large: IntArray) -> tuple[int, ...]:
    """Count nodes per power of two of their degree.

    Empty bins at the end are dropped, except the first bin.
    """
    bins = [int(counts[0])]
    bins += [int(counts[1 << i : 2 << i].sum()) for i in range(MAX_COUNTED.bit_length() - 1)]
    exponents = np.bincount(np.frexp(large.astype(np.float64))[1], minlength=len(bins))
    bins = [a + int(b) for a, b in zip(bins + [0] * (len(exponents) - len(bins)), exponents, strict=True)]
    while len(bins) > 1 and not bins[-1]:
        bins.pop()
    return tuple(bins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Everything that ``inspect`` shows.

    Attributes:
        name: The dataset's folder, or the cluster file.
        dataset_id: Fingerprint of the dataset.
        graph_id: Fingerprint of the graph; the same for every partitioning of it.
        schema: Types, features and splits.
        book: Ranges of ids, which give the numbers of nodes and edges.
        splits: (node type, split) to number of nodes, and (edge type, split) to number of edges.
        degrees: One summary per edge type and stored direction.
        made_by: Options that made the dataset, from its manifest; empty for a served dataset.
        num_files: Number of files of the dataset; 0 for a served dataset.
        report: Cut and balance from the manifest; None for a served dataset.
        servers: Address to the parts that it serves; empty for a dataset on disk.
        halo: Record of the halo, or None.
        time_attr: The feature that edges are sorted by, or None.
        weight_attr: The feature for weighted sampling, or None.
        has_neighbor_keys: Keys of neighbours are stored.
    """

    name: str
    dataset_id: str
    graph_id: str
    schema: GraphSchema
    book: PartitionBook
    splits: Mapping[tuple[str | EdgeType, str], int]
    degrees: tuple[DegreeSummary, ...]
    made_by: Facts
    num_files: int
    report: PartitionReport | None
    servers: Mapping[str, tuple[int, ...]]
    halo: Halo | None = None
    time_attr: str | None = None
    weight_attr: str | None = None
    has_neighbor_keys: bool = False

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.book.num_parts

    @property
    def directions(self) -> tuple[str, ...]:
        """The stored directions, ``in`` first."""
        return tuple(sorted({direction for _, direction in self.book.edge_offsets}))

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(map(self.book.num_ids, self.schema.nodes))

    @property
    def num_edges(self) -> int:
        """Number of edges of all types; an edge stored in two directions counts once."""
        return sum(map(self.num_edges_of, self.schema.edges))

    @property
    def num_bytes(self) -> int:
        """Bytes of all files; 0 for a served dataset."""
        return sum(self.report.bytes) if self.report else 0

    def num_edges_of(self, edge_type: EdgeType) -> int:
        """Return the number of edges of one type."""
        return self.book.num_edges(edge_type)

    def stored_text(self) -> str:
        """Format the data stored for sampling beside edges: ``times "year", weights "rating"``."""
        found = [f'times "{self.time_attr}"'] if self.time_attr is not None else []
        found += [f'weights "{self.weight_attr}"'] if self.weight_attr is not None else []
        return ", ".join([*found, *["keys of neighbours"] * self.has_neighbor_keys])

    def made_by_text(self) -> str:
        """Format the options that made the dataset in one line, without unset options."""
        return ", ".join(f"{name} {value}" for name, value in self.made_by.items() if value not in (None, []))

    def timed_directions(self, edge_type: EdgeType) -> tuple[Direction, ...]:
        """Return the stored directions in which edges of a type have times."""
        held = [d for t, d in self.book.edge_offsets if t == edge_type]
        return tuple(d for d in held if edge_type in timed_edge_types(self.schema, self.time_attr, d))

    def splits_of(self, entity: str | EdgeType) -> dict[str, int]:
        """Return split name to number of nodes or edges, of one type."""
        return {name: count for (t, name), count in self.splits.items() if t == entity}

    def part_loads(self) -> dict[str, tuple[int, ...]]:
        """Return each part's loads: ``nodes`` and ``edges``.

        For a dataset on disk, also ``bytes`` and the seeds of each split.
        """
        if self.report is None:
            entities: dict[str, list[Entity]] = {"nodes": [*self.book.node_offsets], "edges": [*self.book.edge_offsets]}
            return {what: self._part_sizes(of) for what, of in entities.items()}
        loads = {"nodes": self.report.nodes, "edges": self.report.edges, "bytes": self.report.bytes}
        return loads | {f"seeds {type_label(t)}/{split}": counts for (t, split), counts in self.report.seeds.items()}

    def _part_sizes(self, entities: list[Entity]) -> tuple[int, ...]:
        sizes = [np.diff(self.book.offsets(o)) if isinstance(o, str) else self.book.edges_of_parts(o) for o in entities]
        return tuple(sum(int(of_parts[part]) for of_parts in sizes) for part in range(self.num_parts))


def census_of_dataset(dataset: Dataset, degrees: Sequence[DegreeSummary] = ()) -> Census:
    """Build the census of a dataset from its manifest, and from its degrees if they were read."""
    manifest = dataset.manifest
    return Census(
        name=str(dataset.root),
        dataset_id=manifest.dataset_id,
        graph_id=manifest.graph_id,
        schema=manifest.schema,
        book=manifest.book,
        splits={split: sum(counts) for split, counts in manifest.report.seeds.items()},
        degrees=tuple(degrees),
        made_by=manifest.made_by,
        num_files=len(manifest.files),
        report=manifest.report,
        servers={},
        halo=manifest.halo,
        time_attr=manifest.time_attr,
        weight_attr=manifest.weight_attr,
        has_neighbor_keys=manifest.has_neighbor_keys,
    )
