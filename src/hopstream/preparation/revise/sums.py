"""Computes the checksums of a dataset's tables in the order of keys, block by block.

[Cost] Each column is read once. For edges, 24 bytes of disk per edge, for the place and the ends of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from hopstream.arrays import Column, IntArray, empty_column
from hopstream.dataset.book import EdgeEntity, ends_of, entity_label
from hopstream.dataset.chunks import positions_of
from hopstream.dataset.key_book import KeyBook
from hopstream.dataset.layout import Dataset
from hopstream.dataset.read_back import edge_keys, neighbors_of
from hopstream.dataset.rows import DatasetRows, KeyMarks, rows_of_ids
from hopstream.graph.graph import ColumnSums, appended_sums, column_sums
from hopstream.preparation.audit.reference import block_rows
from hopstream.schema import EdgeType, FeatureSchema

BLOCK_ROWS = 1 << 18


def sums_of_nodes(dataset: Dataset, node_type: str, names: Sequence[str]) -> dict[str, ColumnSums]:
    """Return the checksums of features of nodes."""
    manifest, book = dataset.manifest, KeyBook(dataset)
    parts = [dataset.open_part(part).node_features[node_type] for part in range(manifest.book.num_parts)]

    def ids_of(first: int, stop: int) -> IntArray:
        return book.ids_of(node_type, np.arange(first, stop))

    num_nodes, offsets = manifest.book.num_ids(node_type), manifest.book.node_offsets[node_type]
    return {
        name: _sums(manifest.schema.nodes[node_type][name], [of[name] for of in parts], offsets, num_nodes, ids_of)
        for name in names
    }


def sums_of_edges(dataset: Dataset, edge_type: EdgeType, scratch: Path) -> list[ColumnSums]:
    """Return the checksums of the source keys, the destination keys and the features of edges.

    Args:
        dataset: The dataset, without deltas.
        edge_type: The edge type.
        scratch: A folder for temporary files.
    """
    manifest = dataset.manifest
    entity = (edge_type, manifest.directions[0])
    num_edges = manifest.book.num_edges(edge_type)
    places = np.lib.format.open_memmap(scratch / "places.npy", "w+", np.dtype(np.int64), (3, num_edges))
    _find_places(dataset, entity, places)
    found = [
        _sum_up(np.empty(0, np.int64), (end[first : first + BLOCK_ROWS] for first in range(0, num_edges, BLOCK_ROWS)))
        for end in places[1:]
    ]
    parts = [dataset.open_part(part).edges[entity].features for part in range(manifest.book.num_parts)]
    for name, feature in manifest.schema.edges[edge_type].items():
        columns, offsets = [of[name] for of in parts], manifest.book.edge_offsets[entity]
        found.append(_sums(feature, columns, offsets, num_edges, lambda first, stop: places[0, first:stop]))
    return found


def _find_places(dataset: Dataset, entity: EdgeEntity, places: IntArray) -> None:
    """Fill in, by edge key, the id of each edge and the keys of its source and destination."""
    rows, book = DatasetRows(dataset.root, dataset.manifest, takes_sums=False), KeyBook(dataset)
    edge_type, direction = entity
    own_type, other_type = ends_of(edge_type, direction)
    own_row, other_row = (2, 1) if direction == "in" else (1, 2)
    offsets = rows.book.offsets(entity)
    keys_of, marks = edge_keys(rows, edge_type), KeyMarks(f"{dataset.root}: {entity_label(entity)}", places.shape[1])
    for block in rows.blocks(entity, BLOCK_ROWS):
        keys = keys_of(block)
        marks.add(keys)
        places[0, keys] = offsets[block.piece] + positions_of(block.starts, block.counts)
        places[own_row, keys] = np.repeat(book.keys_of(own_type, block.row_ids), block.counts)
        places[other_row, keys] = book.keys_of(other_type, neighbors_of(rows, entity, block))
    marks.check()


def _sums(
    feature: FeatureSchema, columns: Sequence[Column], offsets: IntArray, num_rows: int,
    ids_of: Callable[[int, int], IntArray],
) -> ColumnSums:  # fmt: skip
    step = block_rows(feature)
    blocks = (
        rows_of_ids(columns, offsets, ids_of(first, min(first + step, num_rows))) for first in range(0, num_rows, step)
    )
    return _sum_up(empty_column(feature), blocks)


def _sum_up(nothing: Column, blocks: Iterable[Column]) -> ColumnSums:
    total = column_sums(nothing)
    for block in blocks:
        total = appended_sums(total, block)
    return total
