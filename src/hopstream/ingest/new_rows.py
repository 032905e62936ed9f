"""Reads tables with new rows of a dataset: features and raw ids, as the arguments of ``append``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from hopstream.arrays import Array, Column, IntArray
from hopstream.errors import SchemaError, SettingsError, quoted
from hopstream.ingest.raw_tables.columns import raw_id_column
from hopstream.ingest.raw_tables.files import Batch
from hopstream.ingest.raw_tables.metadata import EdgeTableSpec, FeatureSpec, NodeTableSpec, TableFiles
from hopstream.ingest.raw_tables.raw_ids import INTEGER, NAME, raw_as, strings_column
from hopstream.ingest.tables import TableRows, TableSettings, read_description, read_node_table
from hopstream.places.paths import AnyPath
from hopstream.schema import STRING, EdgeType, FeatureSchema, GraphSchema, type_label


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """New rows of a dataset, by type.

    Attributes:
        nodes: Node type to columns by feature, raw ids included.
        edges: Edge type to the raw ids of sources and of destinations, and columns by feature.
        splits: Node type to split to bool[num_nodes].
        edge_splits: Edge type to split to bool[num_edges].
        ids: Node type to the feature with its raw ids.
    """

    nodes: Mapping[str, Mapping[str, Column]]
    edges: Mapping[EdgeType, tuple[Column, Column, Mapping[str, Column]]]
    splits: Mapping[str, Mapping[str, Array]]
    edge_splits: Mapping[EdgeType, Mapping[str, Array]]
    ids: Mapping[str, str]


def read_new_rows(
    path: AnyPath, schema: GraphSchema, transforms: Mapping[str, Any], ids: Mapping[str, str]
) -> NewRows:  # fmt: skip
    """Read new rows from described tables. Edges may name nodes that have no row.

    Args:
        path: The description of the tables, for a dataset made of tables like these.
        schema: The schema of the dataset, which decides the dtypes of cells of CSV files.
        transforms: The JSON value of the dataset's fitted transforms.
        ids: Node type to the feature with its raw ids, where it is not named as their column.

    Raises:
        FormatError: A file is missing or damaged.
        UnknownNameError: The dataset has no such type.
        SchemaError: The description is invalid or has other transforms than the dataset. Or a table contradicts the
            description, a raw id is empty or repeated, or is no integer where the dataset's are.
        SettingsError: Raw ids of a type are no column.
    """
    metadata = read_description(path, TableSettings(fitted=transforms))
    named: dict[str, str] = {}
    nodes, splits = {}, {}
    for node_type, spec in metadata.nodes.items():
        schema.check_node_type(node_type)
        feature = ids.get(node_type, spec.id_column)
        if feature is None:
            raise SettingsError(f"{path}: {node_type} has no column of raw ids; name it as its id")
        named[node_type] = feature
        if spec.files is not None:
            features = schema.nodes[node_type]
            rows = _nodes(node_type, spec, spec.files, features, features.get(feature))
            raw, columns, splits[node_type] = rows
            nodes[node_type] = {feature: raw, **columns} if feature not in columns else columns
    edges, edge_splits = {}, {}
    for edge_type, of_edges in metadata.edges.items():
        features = schema.edges[schema.edge_type_of(edge_type)]
        are_text = [
            (of := schema.nodes[t].get(named[t])) is not None and of.is_string for t in (edge_type[0], edge_type[2])
        ]
        edges[edge_type], edge_splits[edge_type] = _edges(edge_type, of_edges, features, are_text)
    return NewRows(
        nodes=nodes, edges=edges, splits={t: of for t, of in splits.items() if of},
        edge_splits={t: of for t, of in edge_splits.items() if of}, ids=named,
    )  # fmt: skip


def _nodes(
    node_type: str, spec: NodeTableSpec, files: TableFiles, features: Mapping[str, FeatureSchema],
    held: FeatureSchema | None,
) -> tuple[Column, Mapping[str, Column], dict[str, Array]]:  # fmt: skip
    id_dtype = spec.id_dtype if held is None else "string" if held.is_string else "int64"
    spec = replace(spec, id_dtype=id_dtype, features=_as_stored(spec.features, features, files))
    raw, table, splits, _, _ = read_node_table(node_type, spec, files, is_dropping=False)
    return raw.as_column(), table.features, _masks(splits, table.num_nodes)


def _edges(
    edge_type: EdgeType, spec: EdgeTableSpec, features: Mapping[str, FeatureSchema], are_text: Sequence[bool]
) -> tuple[tuple[Column, Column, Mapping[str, Column]], dict[str, Array]]:
    label = type_label(edge_type)
    table = TableRows(label, replace(spec, features=_as_stored(spec.features, features, spec.files)))
    chunks: tuple[list[pa.Array], list[pa.Array]] = ([], [])
    names = (spec.src_column, spec.dst_column)
    for batch in table.batches(spec.files, names):
        for end, name, is_text in zip(chunks, names, are_text, strict=True):
            end.append(_ends(batch, name, f"{label}.{name}", is_text=is_text))
    src, dst = (
        strings_column(end) if is_text else np.concatenate([np.empty(0, np.int64), *(c.to_numpy() for c in end)])
        for end, is_text in zip(chunks, are_text, strict=True)
    )
    return (src, dst, table.features()), _masks(table.splits(), len(src))


def _ends(batch: Batch, name: str, label: str, *, is_text: bool) -> pa.Array:
    given = raw_id_column(batch, name, label)
    found = raw_as(given, NAME if is_text else INTEGER)
    if found.null_count:
        row = int(np.argmax(found.is_null().to_numpy(zero_copy_only=False)))
        got, wanted = given[row].as_py(), "a raw id" if is_text else "an integer"
        raise SchemaError(
            f"{label} is {'empty' if got is None else quoted(got)} at {batch.origin.place(row)}; wanted {wanted}"
        )
    return found


def _as_stored(
    specs: Mapping[str, FeatureSpec], features: Mapping[str, FeatureSchema], files: TableFiles
) -> dict[str, FeatureSpec]:
    """Return the features, with the dataset's dtypes for cells whose dtype is not declared."""

    def typed(name: str, spec: FeatureSpec) -> FeatureSpec:
        is_open = files.format == "csv" and spec.dtype is None and spec.transform is None and name in features
        return replace(spec, dtype=STRING if features[name].is_string else features[name].dtype) if is_open else spec

    return {name: typed(name, spec) for name, spec in specs.items()}


def _masks(splits: Mapping[str, IntArray], num_rows: int) -> dict[str, Array]:
    masks = {name: np.zeros(num_rows, np.bool_) for name in splits}
    for name, rows in splits.items():
        masks[name][rows] = True
    return masks
