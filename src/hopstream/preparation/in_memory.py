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

from hopstream.arrays import Array
from hopstream.dataset.layout import Dataset
from hopstream.dataset.manifest import graph_id_of
from hopstream.dataset.settings import PartitionSettings, Sides
from hopstream.dataset.stored_columns import StoredColumn
from hopstream.engine.settings import no_progress
from hopstream.graph.graph import Graph
from hopstream.preparation.part_columns import PartColumns
from hopstream.preparation.write import Written, check_graph, manifest_of

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
    schema = check_graph(graph, settings)
    arrays: dict[str, Array] = {}

    def keep(column: StoredColumn) -> None:
        arrays[str(column.path)] = _array_of(column)

    owners = {t: np.zeros(nodes.num_nodes, np.int32) for t, nodes in graph.nodes.items()}
    book = PartColumns(graph, schema, settings, keep, no_progress).store(owners)
    checksums = graph.checksums()
    written = Written(
        schema=schema, book=book, graph_id=graph_id_of(checksums.fingerprint(graph.schema), time_attr),
        checksums=checksums, files={}, cuts={}, edges_between=np.zeros((0, 0), np.int64), seeds={}, stages=(),
    )  # fmt: skip
    manifest = manifest_of(written, settings)
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
