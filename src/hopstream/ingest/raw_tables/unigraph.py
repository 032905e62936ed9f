"""Reads the schema of a unigraph and finds its tables; see ``docs/tfgnn-files.md``.

A unigraph is TF-GNN's format for whole graphs: a ``GraphSchema`` whose sets name files. It is read into the same
``TablesMetadata`` as a JSON description, so every reader of tables reads it. The id column is named ``#id``, and raw
ids are strings. The table of the context becomes a node type with one node and no edges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.errors import FormatError, SchemaError, SettingsError, quoted
from hopstream.ingest.raw_tables.files import first_cells
from hopstream.ingest.raw_tables.metadata import (
    EdgeTableSpec,
    FeatureSpec,
    NodeTableSpec,
    TableFiles,
    TableFormat,
    TablesMetadata,
)
from hopstream.places.paths import AnyPath, arrow_source, is_below
from hopstream.schema import STRING, EdgeType, FeatureSchema
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.graph_schema import AUXILIARY, check_schema, columns_of, read_schema
from hopstream.tfgnn.tfrecord import files_of, read_records
from hopstream.uris import is_uri

_FORMATS: tuple[tuple[str, TableFormat], ...] = (
    (r"[_.-]tfrecords?|\btfr\b", "tfrecord"),
    (r"[_.-]csv\b", "csv"),
    (r"[_.-](parquet|pq)\b", "parquet"),
)
ID_COLUMNS = {"#id": ("id",), "#source": ("source",), "#target": ("target",)}
"""Names of the columns of raw ids to alternative names in files."""


def table_files(
    root: AnyPath, where: str, filename: str, columns: Mapping[str, FeatureSchema],
    other_names: Mapping[str, tuple[str, ...]],
) -> TableFiles:  # fmt: skip
    """Find the files of one table.

    Args:
        root: The folder that file names are relative to and must lie in.
        where: The set's name in messages.
        filename: One file, ``name@15`` for 15 shards, or a pattern.
        columns: The columns to read, with their schemas.
        other_names: Column name to alternative names.

    Raises:
        FormatError: A file is missing, or a pattern matches none.
        SchemaError: The name leads out of the folder, or its format is unknown.
    """
    table_format = _format_of(where, filename)
    paths = _paths(root, where, filename)
    names, headless = None, None
    if table_format == "csv" and len(paths) > 1:
        marks = [name for name in columns if name in ID_COLUMNS] or list(columns)
        names, headless = _headers(paths, [{name, *other_names.get(name, ())} for name in marks])
    return TableFiles(
        root=root, paths=tuple(paths), format=table_format, column_names=names, headless=headless,
        other_names=other_names, columns=columns if table_format == "tfrecord" else {},
    )  # fmt: skip


def _format_of(where: str, filename: str) -> TableFormat:
    name = Path(filename).name
    found = [(match.end(), of) for pattern, of in _FORMATS for match in re.finditer(pattern, name)]
    if found:
        return max(found)[1]  # the last one: the name of a set may contain a format
    raise SchemaError(
        f"{where}: metadata.filename is {quoted(filename)}, whose format is unknown; a name must contain .tfrecord, "
        ".csv or .parquet"
    )


def _paths(root: AnyPath, where: str, filename: str) -> list[AnyPath]:
    shown = f"{where}: metadata.filename is {quoted(filename)}"
    if is_uri(filename) or ".." in Path(filename).parts:
        raise SchemaError(f"{shown}; files lie below {root}, without ..")
    if Path(filename).is_absolute():
        filename = _below(root, shown, filename)
    try:
        paths = files_of(filename, root)
    except SettingsError as error:
        raise SchemaError(f"{where}: metadata.filename: {error}") from error
    except FormatError as error:
        raise FormatError(f"{shown}: {error}") from error
    for path in paths:
        if not is_below(path, root):
            raise SchemaError(f"{shown}; {path} is a link that leads out of {root}")
    return paths


def _below(root: AnyPath, shown: str, filename: str) -> str:
    for folder in (root.absolute(), root.resolve()) if isinstance(root, Path) else ():
        if Path(filename).is_relative_to(folder):
            return str(Path(filename).relative_to(folder))
    raise SchemaError(f"{shown}, which is not below {root}; give data_path, a folder that contains all files")


def _headers(
    paths: Sequence[AnyPath], marks: Sequence[set[str]]
) -> tuple[tuple[str, ...] | None, tuple[AnyPath, ...]]:  # fmt: skip
    """Find the header of a table's shards, and the shards without a header.

    Shards without a header are empty or have only rows.

    The first row of a shard is a header if it has a name from each of ``marks``. One name would not be enough, because
    a cell of a row may equal the name of a column.
    """
    firsts = {path: first_cells(path) for path in paths}
    headers = {path for path, cells in firsts.items() if all(names & set(cells) for names in marks)}
    if not headers:
        return None, ()
    header = next(cells for path, cells in firsts.items() if path in headers)
    headless = tuple(
        path for path, cells in firsts.items()
        if not cells or (path not in headers and len(cells) == len(header))
    )  # fmt: skip
    return tuple(header), headless


def has_column(files: TableFiles, names: tuple[str, ...]) -> bool:
    """Return whether a table has a column with one of the names; only its first non-empty file is read.

    Raises:
        FormatError: The file is damaged.
    """
    for path in files.paths:
        if files.format == "csv":
            cells = files.names_in(path) or first_cells(path)
            if cells:
                return not set(names).isdisjoint(cells)
        elif files.format == "parquet":
            try:
                return not set(names).isdisjoint(pq.read_schema(arrow_source(path)).names)
            except (pa.ArrowException, OSError) as error:
                raise FormatError(f"{path} cannot be read as parquet: {error}") from error
        else:
            for record in read_records(path):
                try:
                    return not set(names).isdisjoint(decode_example(record))
                except FormatError as error:
                    raise FormatError(f"{path} record 0 is {error}") from error
    return False


ID, SOURCE, TARGET, WEIGHT = "#id", "#source", "#target", "#weight"
CONTEXT = "#context"
"""Node type that holds the features of the graph's context."""
RELATION_EXTRA, SPLIT_EXTRA, IDS_EXTRA = "hopstream_relation", "hopstream_split", "hopstream_ids"
"""Keys of ``metadata.extra`` that Hopstream writes: the relation of an edge type whose set has another name, the column
that names each row's split, and whether ids are mere keys (value ``KEYS``)."""
KEYS = "keys"
REVERSED = ("edge_type", "reversed")
"""Key and value in ``metadata.extra`` of an edge set whose table has source and target swapped."""
STRINGS = FeatureSchema(dtype=STRING)
_OTHER_NAMES = {**ID_COLUMNS, WEIGHT[1:]: (WEIGHT,)}


def read_unigraph(path: AnyPath, *, data_path: AnyPath | None = None) -> TablesMetadata:
    """Read and check the schema of a unigraph, and find its files.

    Auxiliary sets such as ``_readout`` are no part of a whole graph and are skipped.

    Args:
        path: The schema.
        data_path: The folder that file names are relative to, and that absolute names must lie in; by default the
            folder of the schema.

    Raises:
        FormatError: The schema is missing or not a ``GraphSchema``, or a table's file is missing.
        SchemaError: The schema contradicts itself, a set has features and no file, a feature cannot be represented,
            or a file name has an unknown format or leads out of the folder.
    """
    root = data_path or path.parent
    schema = read_schema(path)
    check_schema(schema, str(path))
    nodes: dict[str, NodeTableSpec] = {}
    if schema.context.metadata.filename:
        nodes[CONTEXT] = _Set(path, root, "context", schema.context).nodes(has_ids=False)
    for name, node_set in sorted(schema.node_sets.items()):
        if not AUXILIARY.match(name):
            nodes[name] = _Set(path, root, f"node set {name!r}", node_set).nodes()
    edges: dict[EdgeType, EdgeTableSpec] = {}
    for name, edge_set in sorted(schema.edge_sets.items()):
        if not AUXILIARY.match(name):
            of = _Set(path, root, f"edge set {name!r}", edge_set)
            edge_type = (edge_set.source, of.extra.get(RELATION_EXTRA, name), edge_set.target)
            if edge_type in edges:
                raise SchemaError(f"{of.where} is {edge_type!r}, like another edge set; change its {RELATION_EXTRA}")
            edges[edge_type] = of.edges()
    if not nodes:
        raise SchemaError(f"{path} has no node sets")
    return TablesMetadata(path=path, nodes=nodes, edges=edges)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The columns to read from a table: raw ids, features, and splits."""

    ids: tuple[str, ...]
    features: Mapping[str, FeatureSchema]
    split: str | None


class _Set:
    """A node set, an edge set or the context."""

    def __init__(self, path: AnyPath, root: AnyPath, what: str, message: Any) -> None:
        self.where = f"{path}: {what}"
        self._root, self._message, self._metadata = root, message, message.metadata
        self._columns = columns_of(message.features, self.where)
        self.extra = {entry.key: entry.value for entry in self._metadata.extra}
        if self._metadata.HasField("bigquery"):
            raise SchemaError(f"{self.where} is a table of BigQuery; export it to files, and name them")

    def nodes(self, *, has_ids: bool = True) -> NodeTableSpec:
        """Describe the table of a node set, or of the context, which has no ids."""
        num_rows = self._metadata.cardinality if self._metadata.HasField("cardinality") else None
        if not self._metadata.filename:
            if self._columns:
                raise SchemaError(
                    f"{self.where} has features {list(self._columns)} and no metadata.filename; name its table, or "
                    "leave the features out if only edges name the nodes"
                )
            return NodeTableSpec(files=None, id_column=ID, id_dtype="string", num_rows=num_rows)
        columns = self._read_columns((ID,) if has_ids else ())
        files = self._files(columns)
        return NodeTableSpec(
            files=files, id_column=ID if has_ids else None, id_dtype="string" if has_ids else None,
            features=self._features(columns, files.format), split_column=columns.split,
            keeps_ids=self.extra.get(IDS_EXTRA) != KEYS, declares_ids=ID in self._message.features, num_rows=num_rows,
        )  # fmt: skip

    def edges(self) -> EdgeTableSpec:
        """Describe the table of an edge set."""
        if not self._metadata.filename:
            raise SchemaError(f"{self.where} has no metadata.filename; every edge set has a table")
        columns = self._read_columns((SOURCE, TARGET))
        files = self._files(columns)
        if WEIGHT[1:] not in columns.features and has_column(files, (WEIGHT[1:], WEIGHT)):
            columns = _with_weight(columns, FeatureSchema(dtype="float32"))
            files = self._files(columns)
        is_reversed = self.extra.get(REVERSED[0]) == REVERSED[1]
        src, dst = (TARGET, SOURCE) if is_reversed else (SOURCE, TARGET)
        return EdgeTableSpec(
            files=files, src_column=src, dst_column=dst, features=self._features(columns, files.format),
            split_column=columns.split,
            num_rows=self._metadata.cardinality if self._metadata.HasField("cardinality") else None,
        )  # fmt: skip

    def _read_columns(self, ids: tuple[str, ...]) -> _Columns:
        split = self.extra.get(SPLIT_EXTRA)
        features = {name: schema for name, schema in self._columns.items() if name != split}
        columns = _Columns(ids=ids, features=features, split=split)
        if SOURCE in ids and WEIGHT in self._message.features and WEIGHT[1:] not in features:
            declared = {WEIGHT[1:]: self._message.features[WEIGHT]}
            columns = _with_weight(columns, columns_of(declared, self.where)[WEIGHT[1:]])
        return columns

    def _files(self, columns: _Columns) -> TableFiles:
        held = {**dict.fromkeys(columns.ids, STRINGS), **columns.features}
        if columns.split is not None:
            held[columns.split] = STRINGS
        other_names = {name: others for name, others in _OTHER_NAMES.items() if name in held}
        return table_files(self._root, self.where, self._metadata.filename, held, other_names)

    def _features(self, columns: _Columns, table_format: TableFormat) -> dict[str, FeatureSpec]:
        found = {}
        for name, schema in columns.features.items():
            if 0 in schema.shape:
                raise SchemaError(f"{self.where}: feature {name!r} is {schema}, which has no values; leave it out")
            is_value = not schema.is_ragged and schema.shape in ((), (1,))
            if table_format == "csv" and not is_value:
                raise SchemaError(
                    f"{self.where}: feature {name!r} is {schema}; a cell of a CSV file holds one value: keep the table "
                    "in TFRecord or Parquet files"
                )
            found[name] = FeatureSpec(
                columns=(name,), is_vector=table_format == "csv" and schema.shape == (1,), dtype=schema.dtype,
                is_cast=table_format == "parquet", schema=schema,
            )  # fmt: skip
        return found


def _with_weight(columns: _Columns, schema: FeatureSchema) -> _Columns:
    return _Columns(ids=columns.ids, features={**columns.features, WEIGHT[1:]: schema}, split=columns.split)
