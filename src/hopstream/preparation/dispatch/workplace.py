"""What do the tasks of one job share: the plan, the source, and tables on disk?

Everything lies in one folder that all workers see. A task gets the folder and a few numbers; the rest it finds here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.dataset.balance import MAX_MATRIX_PARTS
from hopstream.dataset.book import ends_of, neighbor_dtype
from hopstream.dataset.paths import node_folder, split_path
from hopstream.dataset.settings import PartitionSettings
from hopstream.ingest.chunked import ChunkedEdges, ChunkedGraph, open_chunked
from hopstream.preparation.dispatch.plan import Buckets, Plan, make_buckets
from hopstream.preparation.job_folder import PLAN, JobFolder
from hopstream.preparation.write import schema_with_links
from hopstream.schema import Direction, EdgeType, GraphSchema


class Workplace(JobFolder):
    """The folder of a job, seen by a task. Tables: ``ids`` (by key), ``keys`` and ``times`` (by id)."""

    @cached_property
    def plan(self) -> Plan:
        """How the work is cut."""
        return Plan.from_json(json.loads((self.scratch / PLAN).read_text(encoding="utf-8")))

    @cached_property
    def graph(self) -> ChunkedGraph:
        """The source."""
        return open_source(self.plan)

    @cached_property
    def schema(self) -> GraphSchema:
        """The dataset's schema."""
        return schema_with_links(self.graph.schema, self.plan.settings)

    @property
    def num_parts(self) -> int:
        """Parts of the new dataset."""
        return self.plan.settings.num_parts

    @cached_property
    def node_types(self) -> list[str]:
        """Node types, whose places stand for them in names of files."""
        return list(self.graph.nodes)

    def edges(self, edge_type: EdgeType) -> ChunkedEdges:
        """Edges of the source."""
        return self.graph.edges[edge_type]

    def number_of(self, edge_type: EdgeType) -> int:
        """The place of an edge type in the schema, which stands for it in names of files."""
        return list(self.graph.edges).index(edge_type)

    def buckets(self, edge_type: EdgeType, direction: Direction) -> Buckets:
        """Stretches of ids by which edges of a type and direction are spilled."""
        edges = self.edges(edge_type)
        num_buckets = -(-edges.num_edges // self.plan.bucket_edges(edges))
        return make_buckets(self.node_offsets(ends_of(edge_type, direction)[0]), num_buckets)

    def spill_path(self, edge_type: EdgeType, direction: Direction, number: int) -> Path:
        """The file of one piece's edges."""
        return self.spill_folder(edge_type) / f"{direction}-{number:06d}.spill"

    def spill_folder(self, edge_type: EdgeType) -> Path:
        """The folder of an edge type's spilled edges."""
        return self.scratch / "spill" / str(self.number_of(edge_type))

    def totals_path(self, edge_type: EdgeType, direction: Direction, feature: str | None = None) -> Path:
        """The running number of edges by bucket, over all pieces; or of the elements of a ragged feature."""
        suffix = "" if feature is None else f"-{list(self.edges(edge_type).features).index(feature)}"
        return self.scratch / "totals" / f"{self.number_of(edge_type)}-{direction}{suffix}.npy"

    def lengths_name(self, edge_type: EdgeType, feature: str) -> PurePosixPath:
        """The elements of each edge's row of a ragged feature: int64[num_edges], in the scratch folder."""
        number = list(self.edges(edge_type).features).index(feature)
        return PurePosixPath("spill", str(self.number_of(edge_type)), f"lengths-{number}.npy")

    def firsts_path(self, node_type: str, feature: str) -> Path:
        """Where tasks' elements of a ragged feature begin: int64[num_tasks, num_parts]."""
        number = list(self.graph.nodes[node_type].features).index(feature)
        return self.scratch / "firsts" / f"{self.node_types.index(node_type)}-{number}.npy"


def open_source(plan: Plan) -> ChunkedGraph:
    """The chunked graph of a plan."""
    return open_chunked(plan.source, plan.metadata_filename)


@lru_cache(maxsize=1)
def _opened(root: str) -> Workplace:
    return Workplace(Path(root))


def forget() -> None:
    """Look at folders anew, where they may hold other work than before."""
    _opened.cache_clear()


def workplace_of(args: dict[str, Any]) -> Workplace:
    """The workplace of a task's arguments."""
    return _opened(args["folder"])


def split_file(part: int, node_type: str, name: str) -> PurePosixPath:
    """The file of a split of nodes."""
    return split_path(node_folder(part, node_type), name)


def tables_of(
    schema: GraphSchema, node_type: str, num_nodes: int, settings: PartitionSettings
) -> Iterator[tuple[str, np.dtype[Any]]]:
    """Name and dtype of the tables that are kept of a node type; see ``Workplace.table_name``."""
    yield "ids", neighbor_dtype(num_nodes)
    if settings.neighbor_keys:
        yield "keys", neighbor_dtype(num_nodes)
    if settings.time_attr in schema.nodes[node_type]:
        yield "times", np.dtype(np.int64)


def empty_matrix(num_parts: int) -> IntArray:
    """Edges between parts, none yet; of no rows where there are too many parts."""
    num_rows = num_parts if num_parts <= MAX_MATRIX_PARTS else 0
    return np.zeros((num_rows, num_rows), np.int64)
