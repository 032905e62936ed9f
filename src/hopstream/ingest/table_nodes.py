"""Reads the nodes of a table, or those that edges name, with the key and the split of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import IntArray
from hopstream.errors import SchemaError, quoted
from hopstream.graph.graph import NodeTable
from hopstream.ingest.ids import RawIds, collect_raw_ids, first_non_integer, sorted_raw_ids
from hopstream.ingest.table_columns import ColumnReader, raw_id_column, take_rows
from hopstream.ingest.table_files import Batch, Origin, read_batches
from hopstream.ingest.table_metadata import NodeTableSpec, TableFiles, TablesMetadata
from hopstream.ingest.table_splits import split_names, splits_of
from hopstream.schema import type_label

MERGED_BATCHES = 64
"""How many batches' distinct raw ids are kept before they are made one."""


def read_node_table(
    node_type: str, spec: NodeTableSpec, files: TableFiles, *, is_dropping: bool
) -> tuple[RawIds, NodeTable, dict[str, IntArray], int]:
    """Read one node type's raw ids, features and splits, and how many rows were left out.

    Args:
        node_type: Its name.
        spec: Its columns.
        files: Its files.
        is_dropping: Leave out rows whose raw id an earlier row has, instead of raising.

    Raises:
        FormatError: A file is missing or damaged.
        SchemaError: A raw id is empty, of the wrong dtype or there twice, or a feature is not what its spec says.
    """
    readers = {name: ColumnReader(f"{node_type}.{name}", feature) for name, feature in spec.features.items()}
    columns = [name for feature in spec.features.values() for name in feature.columns]
    columns += [name for name in (spec.id_column, spec.split_column) if name is not None]
    origins: list[Origin] = []
    raw: list[pa.Array] = []
    chunks: list[pa.Array] = []
    num_rows = 0
    for batch in read_batches(files, columns):
        for reader in readers.values():
            reader.add(batch)
        if spec.id_column is not None:
            origins.append(batch.origin)
            raw.append(node_raw_ids(node_type, spec, batch))
        if spec.split_column is not None:
            chunks.append(split_names(node_type, spec.split_column, batch))
        num_rows += batch.num_rows
    ids = RawIds(None, num_rows) if spec.id_column is None else collect_raw_ids(raw, spec.id_dtype)
    columns_read = {name: reader.finish() for name, reader in readers.items()}
    rows = ids.first_rows() if is_dropping else None
    if rows is None:
        _refuse_repeated(node_type, ids, origins, raw)
        return ids, NodeTable(num_nodes=num_rows, features=columns_read), splits_of(chunks), 0
    nodes = NodeTable(num_nodes=len(rows), features={name: take_rows(c, rows) for name, c in columns_read.items()})
    return ids.take(rows), nodes, splits_of(chunks, rows), num_rows - len(rows)


def raw_ids_of_edges(node_type: str, spec: NodeTableSpec, metadata: TablesMetadata) -> RawIds:
    """The distinct raw ids that edges name as nodes of a type, ascending; empty ends name none.

    Raises:
        FormatError: A file is missing or damaged.
        SchemaError: A raw id is of the wrong dtype.
    """
    seen: dict[str, list[pa.Array]] = {}
    for edge_type, edges in metadata.edges.items():
        columns = [c for t, c in ((edge_type[0], edges.src_column), (edge_type[2], edges.dst_column)) if t == node_type]
        for batch in read_batches(edges.files, columns) if columns else ():
            for column in columns:
                label = f"{type_label(edge_type)}.{column}"
                raw = raw_id_column(batch, column, label).drop_null()
                if spec.id_dtype == "int64" and first_non_integer(raw) is not None:
                    raise not_integers_error(label, node_type)
                chunks = seen.setdefault(str(raw.type), [])
                chunks.append(raw.unique())
                if len(chunks) == MERGED_BATCHES:
                    chunks[:] = [pc.unique(pa.chunked_array(chunks))]
    return sorted_raw_ids([chunk for chunks in seen.values() for chunk in chunks], spec.id_dtype)


def not_integers_error(label: str, node_type: str) -> SchemaError:
    """The error of ends of edges that are not what the raw ids of a node type without a table are declared to be."""
    return SchemaError(f"{label} holds raw ids that are no integers, as {node_type}.id.dtype has them")


def node_raw_ids(node_type: str, spec: NodeTableSpec, batch: Batch) -> pa.Array:
    """The raw ids of a batch of a node table, as its file has them.

    Raises:
        SchemaError: A raw id is empty, or none of the declared dtype.
    """
    label = f"{node_type}.{spec.id_column}"
    raw = raw_id_column(batch, str(spec.id_column), label)
    if raw.null_count:
        row = int(np.argmax(raw.is_null().to_numpy(zero_copy_only=False)))
        raise SchemaError(f"{label} is empty at {batch.origin.place(row)}; every node has a raw id")
    bad_row = first_non_integer(raw) if spec.id_dtype == "int64" else None
    if bad_row is not None:
        raise SchemaError(f"{label} is {quoted(raw[bad_row].as_py())} at {batch.origin.place(bad_row)}; wanted int64")
    return raw


def _refuse_repeated(node_type: str, ids: RawIds, origins: Sequence[Origin], raw: Sequence[pa.Array]) -> None:
    row = ids.first_repeated()
    if ids.values is None or row is None:
        return
    first = int(pc.index(ids.values, ids.values[row]).as_py())
    ends = np.cumsum([len(chunk) for chunk in raw])
    places = []
    for position in (first, row):
        batch = int(np.searchsorted(ends, position, side="right"))
        places.append(origins[batch].place(position - int(ends[batch] - len(raw[batch]))))
    raise repeated_error(node_type, ids.values[row].as_py(), places)


def repeated_error(node_type: str, raw: object, places: Sequence[str]) -> SchemaError:
    """The error of a raw id that is in two places."""
    return SchemaError(
        f"{node_type} has raw id {quoted(raw)} twice: {places[0]} and {places[1]}; "
        'read with on_duplicate="drop" to keep the first of such rows'
    )
