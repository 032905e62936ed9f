"""Reads the nodes or edges of a dataset as Arrow record batches, in the order of their keys."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import empty_column
from hopstream.checks import known_names
from hopstream.dataset.book import Entity
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.raw_ids import id_feature_of
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.export.dataset_source import DatasetSource
from hopstream.export.unigraph import TableRows, arrow_of_column
from hopstream.ingest.chunked.memory import MemoryColumn
from hopstream.ingest.chunked.sources import FeatureSource
from hopstream.schema import STRING, EdgeType, FeatureSchema, type_label
from hopstream.store.contract import KEY_SCHEMA
from hopstream.uris import local_path


def read_arrow(  # noqa: PLR0913  a dataset, a type, and what to read of it
    dataset: str | os.PathLike[str], of: str | EdgeType, *, columns: Sequence[str] | None = None,
    ends: tuple[str, str] = ("src", "dst"), ids: Mapping[str, str | None] | None = None,
    split: str | None = None, scratch: str | os.PathLike[str] | None = None,
) -> pa.RecordBatchReader:  # fmt: skip
    """Read the nodes or edges of a type as Arrow record batches, in key order and bounded memory.

    Row n is the node or edge with key n. A column is a feature with the values that the graph was made of: numbers,
    ``large_string``, lists of fixed size, or ``large_list``. The batches go to any library that takes Arrow, for
    example ``reader.read_pandas()`` or ``polars.from_arrow(reader)``.

    Args:
        dataset: The folder of a dataset with all parts.
        of: A node type, an edge type, or the label of one such as ``user__rates__film``.
        columns: The columns to read, in this order; None for the ends of edges, all features, and the split.
        ends: Names of the columns with the sources and the destinations of edges.
        ids: Node type to the feature with the raw ids of edge ends; None for a type means keys. Types that are missing
            have the first of ``#id`` and ``id`` that can hold raw ids, and without both keys, int64.
        split: Name of a column with the split of each row, null for rows in none; None leaves it out.
        scratch: Folder for temporary files, 32 bytes per edge, removed when the reader is; None for the system's.

    Raises:
        FormatError: The folder is no dataset of a format that this version reads, or it is damaged.
        ChecksumError: The checksum of a file differs.
        UnknownNameError: There is no such type, column or feature.
        SettingsError: Two columns have the same name, or a feature cannot hold raw ids.
        SchemaError: Arrow cannot hold a column; or, while batches are read, a row is in two splits.
    """
    scratch = None if scratch is None else local_path(scratch)
    source = DatasetSource(open_dataset(dataset))
    schema = source.store.schema
    own = of if isinstance(of, str) and of in schema.nodes else schema.edge_type_of(of, schema.nodes)
    chosen_ids = {t: id_feature_of(schema, t, None) for t in schema.nodes} | dict(ids or {})
    of_ends = () if isinstance(own, str) else tuple(zip(ends, (own[0], own[2]), strict=True))
    reading = _Reading(source, own, tuple((name, t, chosen_ids[t]) for name, t in of_ends), split)
    held = reading.schemas()
    chosen = list(held) if columns is None else list(columns)
    for name in chosen:
        if name not in held:
            raise UnknownNameError(f"{type_label(own)} has no column {name!r}; {known_names(name, list(held))}")
    types = pa.schema([(name, _arrow_type(f"{type_label(own)}.{name}", held[name])) for name in chosen])
    reading.check_files()
    return pa.RecordBatchReader.from_batches(types, reading.batches(types, scratch))


@dataclass(frozen=True, slots=True)
class _Reading:
    """State of reading one table.

    Attributes:
        source: The tables of the dataset.
        of: The node type or edge type.
        ends: For sources and destinations of edges: name of the column, node type, feature with raw ids or None.
        split: Name of the column of splits, or None.
    """

    source: DatasetSource
    of: str | EdgeType
    ends: tuple[tuple[str, str, str | None], ...]
    split: str | None

    def schemas(self) -> dict[str, FeatureSchema]:
        """Return the schema of each column.

        Raises:
            SettingsError: Two columns have the same name, or a feature cannot hold raw ids.
            UnknownNameError: There is no such feature of raw ids.
        """
        schema = self.source.store.schema
        features = schema.nodes[self.of] if isinstance(self.of, str) else schema.edges[self.of]
        found = {
            name: KEY_SCHEMA if feature is None else schema.nodes[t][id_feature_of(schema, t, feature) or feature]
            for name, t, feature in self.ends
        }
        others = [*(name for name, _, _ in self.ends), *([] if self.split is None else [self.split])]
        clash = next((name for name in others if name in features or others.count(name) > 1), None)
        if clash is not None:
            raise SettingsError(f"{type_label(self.of)} has two columns {clash!r}; give other names in ends or split")
        found |= features
        return found if self.split is None else {**found, self.split: FeatureSchema(dtype=STRING)}

    def check_files(self) -> None:
        """Check the files of the table, and those that locate its rows.

        Raises:
            FormatError: A file is missing.
            ChecksumError: A file does not match its checksum.
        """
        rows = self.source.rows
        folders = [f"{folder}/" for folder in rows.folders(self._entity)]
        own = [name for name in rows.manifest.files if name.startswith(tuple(folders))]
        rows.check_files(dict.fromkeys([*rows.leading_files, *own]))

    @property
    def _entity(self) -> Entity:
        return self.of if isinstance(self.of, str) else (self.of, self.source.store.directions[0])

    def batches(self, types: pa.Schema, scratch: str | os.PathLike[str] | None) -> Iterator[pa.RecordBatch]:
        """Read the table in batches of about ``BLOCK_BYTES`` of ``hopstream.export.unigraph``."""
        with tempfile.TemporaryDirectory(prefix="hopstream-", dir=scratch) as folder:
            table = self._table(Path(folder), types.names)
            for start in range(0, table.num_rows, table.block_rows):
                columns = table.read(start, min(start + table.block_rows, table.num_rows))
                arrays = {name: arrow_of_column(column) for name, column in columns.items()}
                if table.split_column is not None:
                    names = arrays[table.split_column]
                    arrays[table.split_column] = pc.if_else(pc.equal(names, ""), None, names)
                yield pa.RecordBatch.from_arrays([arrays[name] for name in types.names], schema=types)

    def _table(self, folder: Path, names: Sequence[str]) -> TableRows:
        features: dict[str, FeatureSource] = {}
        if isinstance(self.of, str):
            nodes = self.source.nodes(self.of)
            num_rows, masks = nodes.num_nodes, nodes.masks
            features |= nodes.features
        else:
            places = self.source.places(self.of, folder / "edges")
            num_rows, masks = len(places), self.source.edge_masks(self.of)
            for (name, t, feature), keys in zip(self.ends, (places["src"], places["dst"]), strict=True):
                features[name] = MemoryColumn(keys) if feature is None else self.source.of_keys(t, feature, keys)
            features |= self.source.edges(self.of, places).features
        return TableRows(
            label=type_label(self.of), stem="", num_rows=num_rows, masks=masks, ids={},
            features={name: of for name, of in features.items() if name in names},
            split_column=self.split if self.split in names else None,
        )  # fmt: skip


def _arrow_type(label: str, schema: FeatureSchema) -> pa.DataType:
    """Return the Arrow type of a column.

    Raises:
        SchemaError: Arrow has no such type.
    """
    if schema.dtype.startswith("complex") or 0 in schema.shape:
        raise SchemaError(f"{label} is {schema}, which Arrow cannot hold; leave it out with columns")
    return arrow_of_column(empty_column(schema)).type
