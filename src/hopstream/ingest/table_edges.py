"""Reads the edges of a table, and finds those that lead to a node that is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hopstream.arrays import IntArray
from hopstream.errors import SchemaError, quoted
from hopstream.graph.graph import EdgeTable
from hopstream.ingest.ids import RawIds
from hopstream.ingest.table_columns import ColumnReader, raw_id_column, take_rows
from hopstream.ingest.table_files import Origin, read_batches
from hopstream.ingest.table_metadata import EdgeTableSpec
from hopstream.ingest.table_splits import split_names, splits_of
from hopstream.schema import EdgeType, type_label

LOOKUP_ROWS = 1 << 22
"""Edges whose ends are looked up at once; a lookup hashes all raw ids of the node type again."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """The raw ids at both ends of a batch of edges."""

    origin: Origin
    src: pa.Array
    dst: pa.Array


def read_edge_table(
    edge_type: EdgeType, spec: EdgeTableSpec, raw_ids: Mapping[str, RawIds], *, is_dropping: bool
) -> tuple[EdgeTable, dict[str, IntArray], int]:
    """Read one edge type.

    Args:
        edge_type: Its name.
        spec: Its files and columns.
        raw_ids: The raw ids of every node type.
        is_dropping: Leave out edges with an end that is no node, instead of raising.

    Returns:
        The edges in table order, their splits, and how many were left out.

    Raises:
        FormatError: A file is missing or damaged.
        SchemaError: An end is empty or no node, or a feature is not what its spec says.
    """
    label = type_label(edge_type)
    readers = {name: ColumnReader(f"{label}.{name}", feature) for name, feature in spec.features.items()}
    columns = [spec.src_column, spec.dst_column, *(name for f in spec.features.values() for name in f.columns)]
    columns += [spec.split_column] if spec.split_column is not None else []
    waiting: list[_Ends] = []
    chunks: list[pa.Array] = []
    src_keys, dst_keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]

    def look_up() -> None:
        src = raw_ids[edge_type[0]].keys_of([ends.src for ends in waiting])
        dst = raw_ids[edge_type[2]].keys_of([ends.dst for ends in waiting])
        if not is_dropping:
            _refuse_dangling(edge_type, spec, waiting, (src, dst))
        src_keys.append(src)
        dst_keys.append(dst)
        waiting.clear()

    for batch in read_batches(spec.files, columns):
        for reader in readers.values():
            reader.add(batch)
        src, dst = (raw_id_column(batch, c, f"{label}.{c}") for c in (spec.src_column, spec.dst_column))
        waiting.append(_Ends(batch.origin, src, dst))
        if spec.split_column is not None:
            chunks.append(split_names(label, spec.split_column, batch))
        if sum(len(ends.src) for ends in waiting) >= LOOKUP_ROWS:
            look_up()
    look_up()
    edges = EdgeTable(
        src_keys=np.concatenate(src_keys),
        dst_keys=np.concatenate(dst_keys),
        features={name: reader.finish() for name, reader in readers.items()},
    )
    rows = np.flatnonzero((edges.src_keys >= 0) & (edges.dst_keys >= 0))
    num_dropped = edges.num_edges - len(rows)
    if not num_dropped:
        return edges, splits_of(chunks), 0
    return _without_dangling(edges, rows), splits_of(chunks, rows), num_dropped


def _without_dangling(edges: EdgeTable, rows: IntArray) -> EdgeTable:
    return EdgeTable(
        src_keys=edges.src_keys[rows],
        dst_keys=edges.dst_keys[rows],
        features={name: take_rows(column, rows) for name, column in edges.features.items()},
    )


def _refuse_dangling(
    edge_type: EdgeType, spec: EdgeTableSpec, batches: Sequence[_Ends], keys: tuple[IntArray, IntArray]
) -> None:
    is_dangling = (keys[0] < 0) | (keys[1] < 0)
    if not is_dangling.any():
        return
    row = int(np.argmax(is_dangling))
    node_type, column = (edge_type[0], spec.src_column) if keys[0][row] < 0 else (edge_type[2], spec.dst_column)
    is_src = keys[0][row] < 0
    for ends in batches:
        if row < len(ends.src):
            raw = (ends.src if is_src else ends.dst)[row].as_py()
            raise dangling_error(f"{type_label(edge_type)}.{column}", raw, node_type, ends.origin.place(row))
        row -= len(ends.src)


def dangling_error(label: str, raw: object, node_type: str, place: str) -> SchemaError:
    """The error of an end that is empty (``raw`` is None) or no node."""
    got = "is empty" if raw is None else f"is {quoted(raw)}, which no {node_type} node has"
    return SchemaError(f'{label} {got}, at {place}; read with on_dangling="drop" to leave such edges out')
