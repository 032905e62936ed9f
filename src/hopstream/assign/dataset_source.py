"""Reads a dataset of any number of parts for assignment.

Edges come part by part and in the order in which they are stored, which a dataset always has; keys of edges are not
needed. Methods that look at edges group them by node first, so the parts that they give are the same.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, Column, IntArray
from hopstream.assign.source import BLOCK_EDGES, OFFSET_BYTES, AssignSource, EdgeBlocks, EdgeRows
from hopstream.dataset.book import EdgeOwner, Owner, ends_of
from hopstream.dataset.read_back import neighbors_of, node_column
from hopstream.dataset.rows import INDICES, DatasetRows, RowBlock, open_rows
from hopstream.schema import EdgeType


def open_dataset_source(root: str | Path) -> AssignSource:
    """The dataset in a folder, of any number of parts, as assignment sees it.

    Raises:
        FormatError: The folder is no dataset of a format that this version reads, or a file is missing.
        ChecksumError: A file that leads to nodes or edges is not the one that was written.
    """
    rows = open_rows(root)
    rows.check_files(rows.leading_files)
    first = rows.contents.directions[0]
    for edge_type in rows.contents.schema.edges:
        rows.check_files(str(folder / INDICES) for folder in rows.folders((edge_type, first)))
    return source_of_rows(rows)


def source_of_rows(rows: DatasetRows) -> AssignSource:
    """A dataset as assignment sees it.

    [Cost] Memory for the keys of all ids, 4 bytes each, and for sizes of nodes' rows where they differ.
    """
    source, schema = _Source(rows), rows.contents.schema
    return AssignSource(
        num_nodes={t: rows.book.num_ids(t) for t in schema.nodes},
        node_bytes=source.node_bytes,
        edges={t: source.edge_rows(t) for t in schema.edges},
        split=lambda node_type, name: rows.splits(node_type, name, BLOCK_EDGES),
        schema=schema,
        feature=source.feature,
        folder=rows.root,
    )


class _Source:
    """The rows of a dataset, and the keys of its ids, which are read when they are first asked for."""

    def __init__(self, rows: DatasetRows) -> None:
        self._rows = rows
        self._keys: dict[str, Array] = {}

    def _keys_of(self, node_type: str) -> Array:
        if node_type not in self._keys:
            self._keys[node_type] = self._rows.keys_of_ids(node_type)
        return self._keys[node_type]

    def node_bytes(self, node_type: str) -> int | IntArray:
        columns = self._rows.columns(node_type)
        num_bytes = sum(column.item_bytes for column in columns.fixed)
        if not columns.ragged:
            return num_bytes
        by_key = np.full(self._rows.book.num_ids(node_type), num_bytes, np.int64)
        for block in self._rows.blocks(node_type, BLOCK_EDGES):
            by_key[self._keys_of(node_type)[block.row_ids]] += self._ragged_bytes(node_type, block)
        return by_key

    def feature(self, node_type: str, name: str) -> Column:
        return node_column(self._rows, node_type, name, self._keys_of(node_type))

    def edge_rows(self, edge_type: EdgeType) -> EdgeRows:
        owner = (edge_type, self._rows.contents.directions[0])
        fixed = (f for f in self._rows.contents.schema.edges[edge_type].values() if f.is_fixed_width)
        has_ragged = bool(self._rows.columns(owner).ragged)
        return EdgeRows(
            num_edges=self._rows.book.num_edges(edge_type),
            row_bytes=sum(feature.row_bytes for feature in fixed),
            ragged_bytes=(lambda block, _: self._ragged_bytes(owner, block)) if has_ragged else None,
            # One thread reads the files of a dataset.
            pieces=lambda: (partial(iter, (block,)) for block in self._blocks(owner)),
        )

    def _blocks(self, owner: EdgeOwner) -> EdgeBlocks:
        own_type, other_type = ends_of(*owner)
        for block in self._rows.blocks(owner, BLOCK_EDGES):
            own = np.repeat(self._keys_of(own_type)[block.row_ids], block.counts).astype(np.int64)
            other = self._keys_of(other_type)[neighbors_of(self._rows, owner, block)].astype(np.int64)
            yield (block, other, own) if owner[1] == "in" else (block, own, other)

    def _ragged_bytes(self, owner: Owner, block: RowBlock) -> IntArray:
        """int64[items], bytes of the ragged features of a block's items."""
        found = np.zeros(int(block.counts.sum()), np.int64)
        for column in self._rows.columns(owner).ragged:
            _, lengths = self._rows.element_spans(owner, column, block.piece, block.starts, block.counts)
            found += lengths * column.values.item_bytes + OFFSET_BYTES
        return found
