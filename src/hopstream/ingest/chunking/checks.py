"""Checks names before anything is read, and lists what may be left out."""

from __future__ import annotations

from collections.abc import Iterator

from hopstream.ingest.chunked.writing import check_not_masks
from hopstream.ingest.chunking.plan import ChunkSpec
from hopstream.ingest.chunking.workplace import Table
from hopstream.ingest.raw_tables.metadata import NodeTableSpec, TablesMetadata
from hopstream.ingest.tables import TableSettings, clashing_raw_ids_error
from hopstream.schema import type_label


def raw_ids_feature(spec: NodeTableSpec, tables: TableSettings) -> str | None:
    """The feature that raw ids of a node type become, or None where they become none, or are a feature already."""
    if not (tables.keep_raw_ids and spec.keeps_ids) or spec.id_column is None or spec.id_column in spec.features:
        return None
    return spec.id_column


def optional_names(metadata: TablesMetadata, tables: TableSettings) -> list[str]:
    """What may be left out: features, raw ids that become one, and columns of splits."""

    def names() -> Iterator[str]:
        for node_type, spec in metadata.nodes.items():
            raw = raw_ids_feature(spec, tables)
            yield from (f"{node_type}.{name}" for name in (raw, *spec.features, spec.split_column) if name is not None)
        for edge_type, edges in metadata.edges.items():
            label = type_label(edge_type)
            yield from (f"{label}.{name}" for name in (*edges.features, edges.split_column) if name is not None)

    return list(dict.fromkeys(names()))


def check_declared(tables: list[Table], metadata: TablesMetadata, plan: ChunkSpec) -> None:
    """Refuse names that the JSON gives and a chunked graph cannot hold.

    Raises:
        SchemaError: As said.
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
