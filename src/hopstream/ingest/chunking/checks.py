"""What is refused before anything is read, or when tables have been looked at?"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.errors import FormatError, SchemaError
from hopstream.ingest.chunked.writing import check_not_masks, check_writable
from hopstream.ingest.chunking.plan import Plan
from hopstream.ingest.chunking.workplace import Table
from hopstream.ingest.table_columns import leaf_name
from hopstream.ingest.table_files import shown_path
from hopstream.ingest.table_metadata import FeatureSpec, NodeTableSpec, TableFiles, TablesMetadata
from hopstream.ingest.tables import TableSettings, clashing_raw_ids_error
from hopstream.schema import STRING, FeatureSchema, type_label


def raw_ids_feature(spec: NodeTableSpec, tables: TableSettings) -> str | None:
    """The feature that raw ids of a node type become, or None where they become none, or are a feature already."""
    if not tables.keep_raw_ids or spec.id_column is None or spec.id_column in spec.features:
        return None
    return spec.id_column


def known_names(metadata: TablesMetadata, tables: TableSettings) -> list[str]:
    """What may be left out: features, raw ids that become one, and columns of splits."""

    def names() -> Iterator[str]:
        for node_type, spec in metadata.nodes.items():
            raw = raw_ids_feature(spec, tables)
            yield from (f"{node_type}.{name}" for name in (raw, *spec.features, spec.split_column) if name is not None)
        for edge_type, edges in metadata.edges.items():
            label = type_label(edge_type)
            yield from (f"{label}.{name}" for name in (*edges.features, edges.split_column) if name is not None)

    return list(dict.fromkeys(names()))


def check_declared(tables: list[Table], metadata: TablesMetadata, plan: Plan) -> None:
    """Refuse what the JSON and the files' own schemas tell that a chunked graph cannot hold.

    Raises:
        FormatError: A file is damaged.
        SchemaError: As said.
    """
    for node_type, spec in metadata.nodes.items():
        name = spec.id_column
        if name is None or not plan.tables.keep_raw_ids or name not in spec.features:
            continue
        if spec.features[name].columns != (name,):
            raise clashing_raw_ids_error(node_type, name)
    for table in tables:
        if isinstance(table.owner, str):
            raw = raw_ids_feature(metadata.nodes[table.owner], plan.tables)
            is_kept = raw is not None and f"{table.label}.{raw}" not in plan.chunks.leave_out
            check_not_masks(table.owner, [*([raw] if is_kept and raw is not None else []), *table.features])
        for name, feature in table.features.items():
            schema = _told_schema(table.files, feature) if table.files is not None else None
            if schema is not None:
                check_writable(f"{table.label}.{name}", schema, plan.chunks)


def _told_schema(files: TableFiles, feature: FeatureSpec) -> FeatureSchema | None:
    """That of a feature of strings or lists, where it is told without reading it; None for others."""
    if feature.dtype == STRING:
        return FeatureSchema(dtype=STRING)
    if files.format == "csv":
        return None
    try:
        schema = pq.read_schema(files.paths[0])
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{shown_path(files, files.paths[0])} cannot be read as parquet: {error}") from error
    if feature.columns[0] not in schema.names:
        return None  # told when it is read
    found = schema.field(feature.columns[0]).type
    if leaf_name(found) == STRING and feature.dtype is None:
        return FeatureSchema(dtype=STRING)
    is_ragged = (pa.types.is_list(found) or pa.types.is_large_list(found)) and feature.shape is None
    dtype = feature.dtype or leaf_name(found) or "float32"
    return FeatureSchema(dtype=dtype, is_ragged=True) if is_ragged else None


def check_raw_ids(table: Table, spec: NodeTableSpec, kind: str, plan: Plan) -> None:
    """Refuse raw ids that are strings and are to become a feature.

    Raises:
        SchemaError: As said.
    """
    name = raw_ids_feature(spec, plan.tables)
    shown = f"{table.label}.{name}"
    if name is not None and kind == STRING and shown not in plan.chunks.leave_out:
        raise SchemaError(
            f"{shown} holds raw ids that are strings; features of chunked graphs are numbers of one shape: "
            f"add {shown!r} to leave_out, or give keep_raw_ids=False"
        )
