"""What is in a dataset, on disk or served: types, sizes, degrees, and what each part holds?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hopstream.cli.degrees import DegreeSummary
from hopstream.cli.progress import Facts
from hopstream.dataset.balance import PartitionReport
from hopstream.dataset.book import Owner, PartitionBook
from hopstream.dataset.halo_record import Halo
from hopstream.dataset.layout import Dataset
from hopstream.schema import Direction, EdgeType, GraphSchema, timed_edge_types, type_label


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Everything that ``inspect`` shows.

    Attributes:
        name: The dataset's folder, or the cluster's file.
        dataset_id: Fingerprint of the dataset.
        graph_id: Fingerprint of the graph that was cut; the same for every cut of it.
        schema: Types, features and splits.
        book: Ranges of ids, which say how many nodes and edges there are.
        splits: (node type, split) to its number of nodes, and (edge type, split) to its number of edges.
        degrees: One summary per edge type and direction held.
        made_by: How the dataset was made, as its manifest says; empty where it is served.
        num_files: Files of the dataset; 0 where it is served.
        report: Cut and balance, as the manifest says; None where it is served.
        servers: Address to the parts that it answers for, where it is served.
        halo: What parts keep copies of, or None.
        time_attr: The feature that edges are sorted by, or None.
        weight_attr: The feature that edges can be drawn by, or None.
        has_neighbor_keys: Keys of neighbours are there.
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
        """The directions that are held, ``in`` first."""
        return tuple(sorted({direction for _, direction in self.book.edge_offsets}))

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(map(self.book.num_ids, self.schema.nodes))

    @property
    def num_edges(self) -> int:
        """Edges of all types, each once, however many directions hold it."""
        return sum(map(self.num_edges_of, self.schema.edges))

    @property
    def num_bytes(self) -> int:
        """Bytes of all files; 0 where the dataset is served."""
        return sum(self.report.bytes) if self.report else 0

    def num_edges_of(self, edge_type: EdgeType) -> int:
        """Edges of one type."""
        return self.book.num_edges(edge_type)

    def stored_text(self) -> str:
        """What is stored beside edges so that they can be drawn by it: ``times "year", weights "rating"``."""
        found = [f'times "{self.time_attr}"'] if self.time_attr is not None else []
        found += [f'weights "{self.weight_attr}"'] if self.weight_attr is not None else []
        return ", ".join([*found, *["keys of neighbours"] * self.has_neighbor_keys])

    def made_by_text(self) -> str:
        """How the dataset was made, in a line, without options that were left out."""
        return ", ".join(f"{name} {value}" for name, value in self.made_by.items() if value not in (None, []))

    def timed_directions(self, edge_type: EdgeType) -> tuple[Direction, ...]:
        """The directions held in which edges of a type have times."""
        held = [d for t, d in self.book.edge_offsets if t == edge_type]
        return tuple(d for d in held if edge_type in timed_edge_types(self.schema, self.time_attr, d))

    def splits_of(self, owner: str | EdgeType) -> dict[str, int]:
        """Split name to its number of nodes or edges, of one type."""
        return {name: count for (t, name), count in self.splits.items() if t == owner}

    def part_loads(self) -> dict[str, tuple[int, ...]]:
        """What each part holds: ``nodes``, ``edges``, and where a manifest says so ``bytes`` and each split's seeds."""
        if self.report is None:
            owners: dict[str, list[Owner]] = {"nodes": [*self.book.node_offsets], "edges": [*self.book.edge_offsets]}
            return {what: self._part_sizes(of) for what, of in owners.items()}
        loads = {"nodes": self.report.nodes, "edges": self.report.edges, "bytes": self.report.bytes}
        return loads | {f"seeds {type_label(t)}/{split}": counts for (t, split), counts in self.report.seeds.items()}

    def _part_sizes(self, owners: list[Owner]) -> tuple[int, ...]:
        sizes = [np.diff(self.book.offsets(o)) if isinstance(o, str) else self.book.edges_of_parts(o) for o in owners]
        return tuple(sum(int(of_parts[part]) for of_parts in sizes) for part in range(self.num_parts))


def census_of_dataset(dataset: Dataset, degrees: Sequence[DegreeSummary] = ()) -> Census:
    """What a dataset's manifest says, and its degrees where they were read."""
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
