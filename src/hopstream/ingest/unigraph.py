"""Finds the tables that the schema of a unigraph describes. ``docs/unigraph.md`` describes unigraphs for users.

A unigraph is TF-GNN's format of whole graphs: a ``GraphSchema`` whose sets name files. It becomes what a JSON file
beside tables becomes, so whatever reads tables reads it. The id column is called ``#id`` here, whatever files call it,
and raw ids are strings. A table of context is the one node of a type that no edge joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopstream.errors import SchemaError
from hopstream.ingest.table_metadata import (
    EdgeTableSpec,
    FeatureSpec,
    NodeTableSpec,
    TableFiles,
    TableFormat,
    TablesMetadata,
)
from hopstream.ingest.unigraph_files import ID_COLUMNS, has_column, table_files
from hopstream.schema import STRING, EdgeType, FeatureSchema
from hopstream.tfgnn.graph_schema import AUXILIARY, check_schema, columns_of, read_schema

ID, SOURCE, TARGET, WEIGHT = "#id", "#source", "#target", "#weight"
CONTEXT = "#context"
"""The node type that has the features of the graph's context."""
RELATION_EXTRA, SPLIT_EXTRA, IDS_EXTRA = "hopstream_relation", "hopstream_split", "hopstream_ids"
"""Keys of ``metadata.extra`` that Hopstream writes: the relation of an edge type that shares it with others, the column
that names each row's split, and that ids are no more than keys."""
KEYS = "keys"
REVERSED = ("edge_type", "reversed")
"""Key and value in ``metadata.extra`` of an edge set whose table has source and target the other way round."""
STRINGS = FeatureSchema(dtype=STRING)
_OTHER_NAMES = {**ID_COLUMNS, WEIGHT[1:]: (WEIGHT,)}


def read_unigraph(path: Path, *, data_path: Path | None = None) -> TablesMetadata:
    """Read and check the schema of a unigraph, and find its files.

    Sets whose names begin as auxiliary ones do, such as ``_readout``, are no part of a whole graph and are left out.

    Args:
        path: The schema.
        data_path: The folder that file names are relative to, and below which absolute ones lie; the schema's own by
            default.

    Raises:
        FormatError: The schema is missing or no ``GraphSchema``, or a table's file is missing.
        SchemaError: It contradicts itself, a set has features and no file, a feature cannot be held, or a file name is
            of no format that is read or leads out of the folder.
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
                raise SchemaError(f"{of.where} is {edge_type!r}, as another edge set is; change its {RELATION_EXTRA}")
            edges[edge_type] = of.edges()
    if not nodes:
        raise SchemaError(f"{path} has no node sets")
    return TablesMetadata(path=path, nodes=nodes, edges=edges)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What is read of a table: its columns of ids, its features, and its column of splits."""

    ids: tuple[str, ...]
    features: Mapping[str, FeatureSchema]
    split: str | None


class _Set:
    """A node set, an edge set or the context."""

    def __init__(self, path: Path, root: Path, what: str, message: Any) -> None:
        self.where = f"{path}: {what}"
        self._root, self._message, self._metadata = root, message, message.metadata
        self._columns = columns_of(message.features, self.where)
        self.extra = {entry.key: entry.value for entry in self._metadata.extra}
        if self._metadata.HasField("bigquery"):
            raise SchemaError(f"{self.where} is a table of BigQuery; export it to files, and name them")

    def nodes(self, *, has_ids: bool = True) -> NodeTableSpec:
        """The table of a node set, or of the context, which has no ids."""
        num_rows = self._metadata.cardinality if self._metadata.HasField("cardinality") else None
        if not self._metadata.filename:
            if self._columns:
                raise SchemaError(
                    f"{self.where} has features {list(self._columns)} and no metadata.filename; name its table, or "
                    "leave the features out for nodes that edges alone name"
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
        """The table of an edge set."""
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
