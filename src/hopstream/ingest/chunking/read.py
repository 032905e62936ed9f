"""Reads a part of a table once, groups its raw ids by bucket, and spills its other columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from hopstream.arrays import Array, Column, RaggedArray
from hopstream.engine import task
from hopstream.errors import SchemaError
from hopstream.ingest.chunked.writing import MASK_OF_SPLIT, check_not_masks, mask_of_split
from hopstream.ingest.chunking.buckets import GroupedWriter, append_values, new_folder
from hopstream.ingest.chunking.plan import ChunkSpec, part_of_json
from hopstream.ingest.chunking.workplace import ChunkFolder, Ids, Table, returns_input_errors
from hopstream.ingest.raw_tables.columns import ColumnReader, raw_id_column
from hopstream.ingest.raw_tables.files import Batch, read_part
from hopstream.ingest.raw_tables.metadata import FeatureSpec, NodeTableSpec, TablesMetadata
from hopstream.ingest.raw_tables.raw_ids import INTEGER, raw_as, strings_column
from hopstream.ingest.tables import TableSettings, clashing_raw_ids_error, node_raw_ids, split_names
from hopstream.ingest.transforms.chain import Chain
from hopstream.schema import STRING, FeatureSchema, GraphSchema, type_label


def raw_ids_feature(spec: NodeTableSpec, tables: TableSettings) -> str | None:
    """Return the name of the feature that stores a type's raw ids, or None.

    None: the raw ids are not stored, or the table declares a feature of the same name.
    """
    if not (tables.keep_raw_ids and spec.keeps_ids) or spec.id_column is None or spec.id_column in spec.features:
        return None
    return spec.id_column


def optional_names(metadata: TablesMetadata, tables: TableSettings) -> list[str]:
    """List the valid names for ``leave_out``.

    These are features, raw ids that are stored as a feature, and split columns.
    """

    def names() -> Iterator[str]:
        for node_type, spec in metadata.nodes.items():
            raw = raw_ids_feature(spec, tables)
            yield from (f"{node_type}.{name}" for name in (raw, *spec.features, spec.split_column) if name is not None)
        for edge_type, edges in metadata.edges.items():
            label = type_label(edge_type)
            yield from (f"{label}.{name}" for name in (*edges.features, edges.split_column) if name is not None)

    return list(dict.fromkeys(names()))


def declared_schema(metadata: TablesMetadata, tables: TableSettings) -> GraphSchema:
    """Return the schema of a graph from the description of its tables; undeclared dtypes become int64."""
    nodes: dict[str, dict[str, FeatureSchema]] = {}
    for node_type, spec in metadata.nodes.items():
        raw = raw_ids_feature(spec, tables)
        ids = {} if raw is None else {raw: FeatureSchema(dtype=spec.id_dtype or "int64")}
        nodes[node_type] = {**ids, **_declared(spec.features)}
    return GraphSchema(nodes=nodes, edges={t: _declared(spec.features) for t, spec in metadata.edges.items()})


def _declared(features: Mapping[str, FeatureSpec]) -> dict[str, FeatureSchema]:
    found: dict[str, FeatureSchema] = {}
    for name, spec in features.items():
        dtype = spec.dtype or "int64"
        shape = (len(spec.columns),) if spec.is_vector else spec.shape or ()
        schema = spec.schema or FeatureSchema(dtype=dtype, shape=() if dtype == STRING else shape)
        found[name] = schema if spec.transform is None else _transformed(name, spec.transform, schema)
    return found


def _transformed(name: str, chain: Chain, schema: FeatureSchema) -> FeatureSchema:
    """Return the schema of transformed rows.

    Without a dtype, the rows of Parquet files may be numbers, text or lists.
    """
    guesses = (schema, FeatureSchema(dtype=STRING), FeatureSchema(dtype=schema.dtype, is_ragged=schema.dtype != STRING))
    for guess in guesses:
        with suppress(SchemaError):
            return chain.output(name, guess)
    return schema


def check_declared(tables: list[Table], metadata: TablesMetadata, plan: ChunkSpec) -> None:
    """Refuse declared names that a chunked graph cannot hold.

    Raises:
        SchemaError: Raw ids and a feature of other columns have the same name, or a feature has the name of a mask.
    """
    for node_type, spec in metadata.nodes.items():
        name = spec.id_column
        if name is None or not plan.tables.keep_raw_ids or name not in spec.features:
            continue
        if spec.features[name].columns != (name,):
            raise clashing_raw_ids_error(node_type, name)
    for table in tables:
        if isinstance(table.entity, str):
            raw = raw_ids_feature(metadata.nodes[table.entity], plan.tables)
            is_kept = raw is not None and f"{table.label}.{raw}" not in plan.chunks.leave_out
            check_not_masks(table.entity, [*([raw] if is_kept and raw is not None else []), *table.features])


SPLITS = tuple(MASK_OF_SPLIT)
NO_SPLIT = len(SPLITS)
RAW = "raw"
"""Name of the spilled column of raw ids in row order, which becomes a feature."""
ENDS = ".ends"
"""Suffix of the file with the end offsets of a ragged column's rows: int64[num_rows]."""


@task
@returns_input_errors
def read_table_part(args: dict[str, Any]) -> dict[str, Any]:
    """Read a part of a table.

    Returns:
        ``blocks``: Number of rows of each block. ``schemas``: feature to its schema, and ``read_as`` to that before
        transforms. ``splits``: names of the splits in order of appearance.
    """
    workplace = ChunkFolder.of(args)
    table, number = workplace.tables[int(args["table"])], int(args["number"])
    with new_folder(workplace.part_folder(table, number)) as folder, ExitStack() as stack:
        reading = _Reading(workplace, table, folder, stack)
        if table.files is not None:
            for batch in read_part(
                table.files, part_of_json(args["part"]), reading.columns(), block_bytes=workplace.spec.csv_block_bytes
            ):
                reading.add(batch)
        return reading.finish()


class _Kept:
    """Spill files of a feature in row order: its values, and end offsets if rows are ragged."""

    def __init__(self, open_file: Callable[[str], IO[bytes]], name: str) -> None:
        self._open_file, self._name, self._num_elements = open_file, name, 0
        self._values = open_file(name)
        self._ends: IO[bytes] | None = None

    def append(self, column: Column) -> None:
        if not isinstance(column, RaggedArray):
            append_values(self._values, column)
            return
        self._ends = self._ends or self._open_file(self._name + ENDS)
        append_values(self._values, column.values)
        append_values(self._ends, column.offsets[1:] + self._num_elements)
        self._num_elements += len(column.values)


class _Reading:
    """State of reading one part of a table."""

    def __init__(self, workplace: ChunkFolder, table: Table, folder: Path, stack: ExitStack) -> None:
        self._workplace, self._table, self._folder, self._stack = workplace, table, folder, stack
        self._plan = workplace.spec
        self._features = {name: ColumnReader(f"{table.label}.{name}", spec) for name, spec in table.features.items()}
        self._feature_files = {name: _Kept(self._open, f"feature-{i}") for i, name in enumerate(table.features)}
        self._split_file = self._open("splits") if table.split_column is not None else None
        self._raw_file = _Kept(self._open, RAW) if self._keeps_raw() else None
        self._rows_ids = [ids for ids in table.ids if workplace.kind(ids.node_type) == "row"]
        self._row_files = {ids.name: self._open(f"{ids.name}.keys") for ids in self._rows_ids}
        self._grouped_ids = [ids for ids in table.ids if ids not in self._rows_ids]
        self._writers = {
            ids.name: GroupedWriter(folder, ids.name, workplace.buckets(ids.node_type), stack)
            for ids in self._grouped_ids
        }
        self._waiting: dict[str, list[pa.Array]] = {ids.name: [] for ids in self._grouped_ids}
        self._num_waiting = self._waiting_bytes = 0
        self._blocks: list[int] = []
        self._splits: list[str] = []

    def _open(self, name: str) -> IO[bytes]:
        return self._stack.enter_context((self._folder / name).open("wb"))

    def _keeps_raw(self) -> bool:
        entity = self._table.entity
        if not isinstance(entity, str) or self._workplace.kind(entity) == "row":
            return False
        name = raw_ids_feature(self._workplace.metadata.nodes[entity], self._plan.tables)
        return name is not None and f"{entity}.{name}" not in self._plan.chunks.leave_out

    def columns(self) -> list[str]:
        """Return the columns to read."""
        columns = [column for spec in self._table.features.values() for column in spec.columns]
        columns += [ids.column for ids in self._table.ids]
        return columns + ([self._table.split_column] if self._table.split_column is not None else [])

    def add(self, batch: Batch) -> None:
        """Spill a batch."""
        for name, reader in self._features.items():
            reader.add(batch)
            for column in reader.drain():
                self._feature_files[name].append(column)
        for ids in self._table.ids:
            self._add_ids(ids, batch)
        if self._split_file is not None:
            append_values(self._split_file, self._split_codes(batch))
        self._num_waiting += batch.num_rows
        is_full = self._waiting_bytes + 16 * self._num_waiting >= self._plan.block_bytes
        if is_full or self._num_waiting >= self._plan.limits.block_rows:
            self._end_block()

    def _add_ids(self, ids: Ids, batch: Batch) -> None:
        spec, raw_type = self._workplace.metadata.nodes[ids.node_type], self._workplace.raw_type(ids.node_type)
        if isinstance(self._table.entity, str):
            raw = node_raw_ids(ids.node_type, spec, batch).cast(raw_type)
            if self._raw_file is not None:
                self._raw_file.append(raw.to_numpy() if raw_type == INTEGER else strings_column([raw]))
        else:
            raw = raw_as(raw_id_column(batch, ids.column, f"{self._table.label}.{ids.column}"), raw_type)
        if ids.name in self._row_files:
            append_values(self._row_files[ids.name], self._keys_of_rows(ids, raw))
        else:
            self._waiting[ids.name].append(raw)
            self._waiting_bytes += raw.nbytes

    def _keys_of_rows(self, ids: Ids, raw: pa.Array) -> Array:
        """Return int64[n], key + 1 of raw ids that are row numbers, and 0 for numbers that no row has."""
        layout = self._workplace.layout(self._workplace.table_of(ids.node_type), is_settled=True)
        keys = raw.fill_null(-1).to_numpy()
        answers: Array = np.where((keys >= 0) & (keys < layout.num_kept), keys + 1, 0)
        return answers

    def _split_codes(self, batch: Batch) -> Array:
        """Return uint8[n], the index of each row's split in ``SPLITS``; ``NO_SPLIT`` for nulls."""
        table, column = self._table, str(self._table.split_column)
        names = split_names(table.label, column, batch).dictionary_encode()
        found = names.dictionary.to_pylist()
        if found and not isinstance(table.entity, str):
            raise splits_of_edges_error(table)
        for name in found:
            mask_of_split(table.label, name)
            if name not in self._splits:
                self._splits.append(name)
        codes: Array = np.array([*(SPLITS.index(name) for name in found), NO_SPLIT], np.uint8)
        rows: Array = codes[names.indices.fill_null(len(found)).to_numpy()]
        return rows

    def _end_block(self) -> None:
        for ids in self._grouped_ids:
            chunks, self._waiting[ids.name] = self._waiting[ids.name], []
            self._writers[ids.name].write(chunks, self._workplace.raw_type(ids.node_type))
        self._blocks.append(self._num_waiting)
        self._num_waiting = self._waiting_bytes = 0

    def finish(self) -> dict[str, Any]:
        """Write the last block, and return the result of ``read_table_part``."""
        if self._num_waiting:
            self._end_block()
        is_node = isinstance(self._table.entity, str)
        for writer in self._writers.values():
            writer.finish(*(("repeats", 1) if is_node else ("keys", 8)))
        return {
            "blocks": self._blocks, "splits": self._splits,
            "schemas": {
                name: reader.schema.to_json()
                for name, reader in self._features.items() if reader.schema is not None
            },
            "read_as": {
                name: reader.read_as.to_json()
                for name, reader in self._features.items() if reader.read_as is not None
            },
        }  # fmt: skip


def splits_of_edges_error(table: Table) -> SchemaError:
    """Build the error for a column of edge splits."""
    shown = f"{table.label}.{table.split_column}"
    return SchemaError(f"{shown} holds splits of edges, which a chunked graph cannot hold; add {shown!r} to leave_out")
