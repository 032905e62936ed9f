"""Gives tasks of a dispatch job the chunked graph, and names of the files that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.assign.owners import BLOCK_ROWS
from hopstream.dataset.book import ends_of
from hopstream.dataset.regions import RegionWriter
from hopstream.ingest.chunked import ChunkedEdges, ChunkedGraph, open_chunked
from hopstream.preparation.dataset_job_folder import IDS, DatasetJobFolder, Places
from hopstream.preparation.dispatch.dispatch_spec import Buckets, DispatchSpec, make_buckets
from hopstream.preparation.write import schema_with_links
from hopstream.schema import Direction, EdgeType, GraphSchema


class DispatchFolder(DatasetJobFolder[DispatchSpec]):
    """The folder of a job, seen by a task. Tables: ``ids`` (by key), ``keys`` and ``times`` (by id)."""

    spec_type = DispatchSpec

    @cached_property
    def graph(self) -> ChunkedGraph:
        """The source."""
        return open_source(self.spec)

    @cached_property
    def schema(self) -> GraphSchema:
        """The dataset's schema."""
        return schema_with_links(self.graph.schema, self.spec.settings)

    @cached_property
    def node_types(self) -> list[str]:
        """Node types, whose places stand for them in names of files."""
        return list(self.graph.nodes)

    def num_nodes(self, node_type: str) -> int:
        """Nodes of a type."""
        return self.graph.nodes[node_type].num_nodes

    def split_names(self, node_type: str) -> Sequence[str]:
        """Splits of the nodes of a type."""
        return list(self.graph.nodes[node_type].masks)

    def split_keys(self, node_type: str, name: str) -> Iterator[IntArray]:
        """The keys of a split of nodes, ascending, in blocks."""
        mask = self.graph.nodes[node_type].masks[name]
        for first in range(0, mask.num_rows, BLOCK_ROWS):
            yield first + np.flatnonzero(mask.read(first, min(first + BLOCK_ROWS, mask.num_rows)))

    def tables(self, node_type: str) -> Iterator[tuple[str, np.dtype[Any]]]:
        """Name and dtype of the tables that are kept of a node type."""
        yield IDS, self.id_dtype(node_type)
        if self.spec.settings.neighbor_keys:
            yield "keys", self.id_dtype(node_type)
        if self.spec.settings.time_attr in self.schema.nodes[node_type]:
            yield "times", np.dtype(np.int64)

    def keep_ids(self, tables: RegionWriter, node_type: str, first_key: int, ids: Array, places: Places) -> None:
        """Keep keys by id, where they are stored with edges."""
        name, dtype = self.table_name("keys", node_type), self.id_dtype(node_type)
        for _, of_part in places if self.spec.settings.neighbor_keys else ():
            tables.write_blocks(name, dtype, int(ids[of_part[0]]) * dtype.itemsize, [first_key + of_part])

    @property
    def block_rows(self) -> int:
        """How many rows of nodes are looked at together."""
        return BLOCK_ROWS

    def edges(self, edge_type: EdgeType) -> ChunkedEdges:
        """Edges of the source."""
        return self.graph.edges[edge_type]

    def number_of(self, edge_type: EdgeType) -> int:
        """The place of an edge type in the schema, which stands for it in names of files."""
        return list(self.graph.edges).index(edge_type)

    def buckets(self, edge_type: EdgeType, direction: Direction) -> Buckets:
        """Stretches of ids by which edges of a type and direction are spilled."""
        edges = self.edges(edge_type)
        num_buckets = -(-edges.num_edges // self.spec.bucket_edges(edges))
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


def open_source(spec: DispatchSpec) -> ChunkedGraph:
    """The chunked graph that a job reads."""
    return open_chunked(spec.source, spec.metadata_filename)
