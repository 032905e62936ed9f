"""Dataset of one part in memory, made from a graph without writing a folder.

It holds what ``write_parts`` with one part would write, so loaders make the same batches from it, bit for bit. Features
of nodes, and the ends and times of links, are the graph's own arrays. Edges are grouped by the node that owns them, so
their features are copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

import hopstream
from hopstream.arrays import Array
from hopstream.dataset.balance import PartitionReport
from hopstream.dataset.layout import Dataset
from hopstream.dataset.manifest import Manifest, graph_id_of
from hopstream.dataset.settings import PartitionSettings, Sides
from hopstream.dataset.stored_columns import StoredColumn, check_times, check_weights
from hopstream.engine.settings import no_progress
from hopstream.graph.graph import Graph
from hopstream.preparation.part_columns import PartColumns
from hopstream.preparation.write import schema_with_links

ROOT = Path("<a graph in memory>")
"""Stands for the folder in messages."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryDataset(Dataset):
    """Dataset whose arrays are in memory.

    Attributes:
        arrays: Path relative to the dataset to the array that the file would hold.
    """

    arrays: Mapping[str, Array]

    def _check_here(self, part: int) -> None:
        """Accept every part: all are in memory."""

    def _open(self, path: PurePosixPath) -> Array:
        return self.arrays[str(path)]


def dataset_in_memory(
    graph: Graph, *, direction: Sides = "in", time_attr: str | None = None, weight_attr: str | None = None
) -> MemoryDataset:
    """Make a dataset of one part from a graph. Do not change the graph's arrays afterwards.

    Args:
        graph: The graph; it is checked first.
        direction: The direction in which edges are stored: ``in``, ``out`` or ``both``.
        time_attr: The feature with times, or None.
        weight_attr: The edge feature with weights, or None.

    Raises:
        SchemaError: The graph's columns contradict each other, or hold invalid times or weights.
        IdRangeError: An edge names a node that does not exist.
        UnknownNameError: No type has the feature ``time_attr`` or ``weight_attr``.
    """
    settings = PartitionSettings(
        method="hash", direction=direction, time_attr=time_attr, weight_attr=weight_attr,
        links=tuple(graph.edges),  # views of the graph's arrays
    )  # fmt: skip
    graph.check()
    if time_attr is not None:
        check_times(graph, time_attr)
    if weight_attr is not None:
        check_weights(graph, weight_attr, settings.directions)
    schema = schema_with_links(graph.schema, settings)
    arrays: dict[str, Array] = {}

    def keep(column: StoredColumn) -> None:
        arrays[str(column.path)] = _array_of(column)

    owners = {t: np.zeros(nodes.num_nodes, np.int32) for t, nodes in graph.nodes.items()}
    book = PartColumns(graph, schema, settings, keep, no_progress).store(owners)
    checksums = graph.checksums()
    num_nodes, num_edges = (sum(int(o[-1]) for o in of.values()) for of in (book.node_offsets, book.edge_offsets))
    manifest = Manifest(
        schema=schema,
        directions=settings.directions,
        book=book,
        has_edge_keys=True,
        files={},
        made_by={"version": hopstream.__version__, **settings.to_json()},
        report=PartitionReport(
            cuts={}, nodes=(num_nodes,), edges=(num_edges,), bytes=(sum(a.nbytes for a in arrays.values()),), seeds={}
        ),
        graph_id=graph_id_of(checksums.fingerprint(graph.schema), time_attr),
        checksums=checksums,
        time_attr=time_attr,
        weight_attr=weight_attr,
    )
    return MemoryDataset(ROOT, manifest, arrays)


def _array_of(column: StoredColumn) -> Array:
    """Return the column's values as one array, without a copy if the source has them in this order."""
    if column.source is not None:
        return np.ascontiguousarray(column.source, column.dtype)
    values, start = np.empty(math.prod(column.shape), column.dtype), 0
    for block in column.blocks:
        values[start : start + block.size] = block.reshape(-1)
        start += block.size
    return values.reshape(column.shape)
