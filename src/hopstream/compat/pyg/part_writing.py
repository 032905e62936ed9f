"""Writer of one rank's part as an ordinary part of a dataset, after a comparison of all ranks' parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hopstream.arrays import Array, Column, FileRecord, IntArray, column_schema, offsets_of, write_blocks
from hopstream.compat.pyg.own_part import OwnEdges, OwnPart
from hopstream.dataset.book import EdgeEntity, PartitionBook, number_dtype
from hopstream.dataset.paths import edge_folder, node_folder
from hopstream.dataset.settings import PartitionSettings
from hopstream.dataset.split import NodeSplit, split_edges, split_nodes
from hopstream.dataset.stored_columns import (
    EdgeRun,
    EdgeTimes,
    StoredColumn,
    check_time_schema,
    check_time_values,
    edge_columns,
    feature_columns,
    integers,
    sort_by_time,
)
from hopstream.errors import FormatError, VersionMismatch
from hopstream.graph.graph import EdgeTable, GraphChecksums, array_sum, hex_digest
from hopstream.preparation.write import Written, manifest_of
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema, type_label

_MASK = (1 << 64) - 1
_BLOCK = 1 << 16
"""Keys per block when powers are summed."""


class KeyFacts(NamedTuple):
    """Summary of one part's keys; all summaries together show whether the keys are 0..n-1, each once.

    Attributes:
        first: The lowest key.
        last: The highest key.
        sum1: Sum of the keys, modulo 2^64.
        sum2: Sum of their squares, modulo 2^64.
        sum3: Sum of their cubes, modulo 2^64.
    """

    first: int
    last: int
    sum1: int
    sum2: int
    sum3: int

    @classmethod
    def of(cls, keys: IntArray) -> KeyFacts:
        """Summarize int64[n], n above 0."""
        sums = [0, 0, 0]
        for start in range(0, len(keys), _BLOCK):
            block = keys[start : start + _BLOCK].astype(np.uint64)
            power = block
            for place in range(3):
                sums[place] = (sums[place] + int(power.sum(dtype=np.uint64))) & _MASK
                power = power * block
        return cls(int(keys.min()), int(keys.max()), *sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """Facts of a part that the other ranks need before they can build their parts.

    Attributes:
        part: Number of the part.
        num_parts: Number of parts.
        owners: Node type to the number of nodes and the CRC-32C of their owners.
        schema: Types and columns of the part; columns of types without rows may be missing.
        rows: Label of a node or edge type to the number of rows that the part owns.
        time_attr: The feature that holds times, or None.
        edge_keys: Label of an edge type to the summary of the keys of the part's edges. Types without edges or without
            keys are missing.
    """

    part: int
    num_parts: int
    owners: Mapping[str, tuple[int, int]]
    schema: GraphSchema
    rows: Mapping[str, int]
    time_attr: str | None
    edge_keys: Mapping[str, KeyFacts]

    @classmethod
    def of(cls, own: OwnPart) -> PartFacts:
        """Collect the facts of a rank's part."""

        def columns(features: Mapping[str, Array]) -> dict[str, FeatureSchema]:
            return {name: column_schema(column) for name, column in features.items()}

        schema = GraphSchema(
            nodes={t: columns(own.node_features.get(t, {})) for t in own.owners},
            edges={t: columns(edges.features) for t, edges in own.edges.items()},
        )
        rows = {t: int(np.count_nonzero(owners == own.part)) for t, owners in own.owners.items()}
        rows |= {type_label(t): len(edges.src_keys) for t, edges in own.edges.items()}
        return cls(
            part=own.part, num_parts=own.num_parts, schema=schema, rows=rows, time_attr=own.time_attr,
            owners={t: (len(of), array_sum(np.ascontiguousarray(of))[1]) for t, of in own.owners.items()},
            edge_keys={
                type_label(t): KeyFacts.of(edges.edge_keys)
                for t, edges in own.edges.items() if edges.edge_keys is not None and len(edges.edge_keys)
            },
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that ``from_json`` reads back."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"schema": self.schema.to_json()}

    @classmethod
    def from_json(cls, value: Any) -> PartFacts:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: The value is something else.
        """
        try:
            schema = GraphSchema.from_json(value["schema"])
            owners = {t: (int(num_nodes), int(crc32c)) for t, (num_nodes, crc32c) in value["owners"].items()}
            edge_keys = {label: KeyFacts(*of) for label, of in value["edge_keys"].items()}
            return cls(**{**value, "schema": schema, "owners": owners, "edge_keys": edge_keys})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"not the facts of a part ({error!r}): {str(value)[:200]}") from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeFacts:
    """Facts of the whole graph, equal on all ranks.

    Attributes:
        schema: Types and columns of the whole graph.
        edge_offsets: (edge type, direction) to int64[num_parts + 1], the offsets of each part's edge ids.
        has_edge_keys: Whether edges have keys.
    """

    schema: GraphSchema
    edge_offsets: Mapping[EdgeEntity, IntArray]
    has_edge_keys: bool


def agree(facts: Sequence[PartFacts]) -> WholeFacts:
    """Derive the facts of the whole graph from the facts of all ranks, in the order of ranks.

    Equal facts give the same result, or the same error, on every rank.

    Raises:
        VersionMismatch: Ranks hold parts of different graphs or cuts, or no rank holds a part; the message names the
            ranks and the difference.
        UnknownNameError: No type has the feature ``time_attr``.
        SchemaError: The feature ``time_attr`` cannot hold times.
    """
    first = facts[0]
    for rank, other in enumerate(facts[1:], 1):
        _compare(first, rank, other)
    held = {rank: one.part for rank, one in enumerate(facts)}
    missing = sorted({*range(first.num_parts)} - {*held.values()})
    if missing:
        raise VersionMismatch(
            f"no rank holds part {missing[0]} of {first.num_parts}; parts by rank are {held}; give each to a rank"
        )
    edge_types = dict.fromkeys(edge_type for one in facts for edge_type in one.schema.edges)
    schema = GraphSchema(
        nodes={t: _merged_columns(facts, t) for t in first.owners},
        edges={t: _merged_columns(facts, t) for t in edge_types},
    )
    if first.time_attr is not None:
        check_time_schema(schema, first.time_attr)
    by_part = {one.part: one for one in facts}
    parts = [by_part[part] for part in range(first.num_parts)]
    edge_offsets: dict[EdgeEntity, IntArray] = {}
    for edge_type in schema.edges:
        edge_offsets[edge_type, "in"] = offsets_of(np.array([one.rows.get(type_label(edge_type), 0) for one in parts]))
    labels = [type_label(edge_type) for edge_type in schema.edges]
    has_edge_keys = _agree_on_edge_keys(facts, labels)
    for label in labels if has_edge_keys else ():
        _check_coverage(parts, label)
    return WholeFacts(schema=schema, edge_offsets=edge_offsets, has_edge_keys=has_edge_keys)


def _compare(first: PartFacts, rank: int, other: PartFacts) -> None:
    """Refuse a rank that holds a part of another cut than rank 0."""
    told = {
        "the number of parts": (first.num_parts, other.num_parts),
        "node types": (sorted(first.owners), sorted(other.owners)),
        "time_attr": (first.time_attr, other.time_attr),
    }
    for what, (wanted, got) in told.items():
        if wanted != got:
            raise VersionMismatch(
                f"{what}: rank 0 has {wanted!r}, rank {rank} has {got!r}; give all ranks parts of one cut"
            )
    for node_type, (num_nodes, crc32c) in first.owners.items():
        others = other.owners[node_type]
        if others != (num_nodes, crc32c):
            got = f"{others[0]} nodes" if others[0] != num_nodes else "other owners"
            raise VersionMismatch(
                f"node_pb of {node_type!r} has {num_nodes} nodes on rank 0 and {got} on rank {rank}; "
                "give all ranks parts of one cut"
            )


def _agree_on_edge_keys(facts: Sequence[PartFacts], labels: Sequence[str]) -> bool:
    """Return whether edges have keys. For each type, all ranks with such edges must have them, or none."""
    for label in labels:
        told = {label in one.edge_keys: rank for rank, one in enumerate(facts) if one.rows.get(label)}
        if len(told) == 2:
            raise VersionMismatch(
                f"rank {told[True]} has ids of its edges {label}, and rank {told[False]} has none; give all ranks ids"
            )
    return all(one.edge_keys.keys() >= {t for t in labels if one.rows.get(t)} for one in facts)


def _check_coverage(parts: Sequence[PartFacts], label: str) -> None:
    """Refuse keys of edges that are not ``0..n-1``, each once."""
    num_edges = sum(one.rows.get(label, 0) for one in parts)
    told = {one.part: one.edge_keys[label] for one in parts if label in one.edge_keys}
    n = num_edges
    wanted = (n * (n - 1) // 2, n * (n - 1) * (2 * n - 1) // 6, (n * (n - 1) // 2) ** 2)
    found = [sum(sums) for sums in zip(*(of[2:] for of in told.values()), strict=True)] or [0, 0, 0]
    if any((got - want) & _MASK for got, want in zip(found, wanted, strict=True)):
        held = {part: f"{of.first}..{of.last}" for part, of in told.items()}
        raise VersionMismatch(
            f"keys of the {num_edges} edges of {label} are not 0..{num_edges - 1}, each once; by part they lie in "
            f"{held}; give all ranks parts of one cut, with the ids that it gave the edges"
        )


def _merged_columns(facts: Sequence[PartFacts], entity: str | EdgeType) -> Mapping[str, FeatureSchema]:
    """Return the columns of a type in all parts; parts without rows of the type may lack them."""
    found: Mapping[str, FeatureSchema] = {}
    who: int | None = None
    for rank, one in enumerate(facts):
        columns = one.schema.nodes.get(entity, {}) if isinstance(entity, str) else one.schema.edges.get(entity, {})
        if not one.rows.get(type_label(entity), 0):
            continue
        if who is not None and dict(columns) != dict(found):
            shown = [{name: str(schema) for name, schema in sorted(of.items())} for of in (found, columns)]
            raise VersionMismatch(
                f"columns of {type_label(entity)}: rank {who} has {shown[0]}, rank {rank} has {shown[1]}"
            )
        if who is None:
            found, who = columns, rank
    return found


class PartWriter:
    """Writer of one rank's part below a folder; a server of the part needs no other part there."""

    def __init__(self, own: OwnPart, whole: WholeFacts, root: Path) -> None:
        """Renumber the nodes; write nothing yet.

        Args:
            own: The part of this rank.
            whole: The facts of the whole graph.
            root: The folder of the dataset.
        """
        self._own, self._whole, self._root = own, whole, root
        self._nodes = {node_type: split_nodes(own.owners[node_type], own.num_parts) for node_type in whole.schema.nodes}
        self._settings = PartitionSettings(
            num_parts=own.num_parts, method="file", time_attr=own.time_attr, keep_edge_keys=whole.has_edge_keys
        )
        self._book = PartitionBook(
            num_parts=own.num_parts,
            node_offsets={node_type: split.offsets for node_type, split in self._nodes.items()},
            edge_offsets=whole.edge_offsets,
        )

    def write(self) -> dict[str, FileRecord]:
        """Write all files of the part; return path to record.

        Raises:
            SchemaError: A time does not fit int64.
        """
        return {
            str(one.path): write_blocks(self._root / one.path, one.dtype, one.shape, one.blocks)
            for one in self._columns()
        }

    def write_manifest(self, files: Mapping[str, FileRecord]) -> None:
        """Write the manifest of all parts from the records of all their files; it is the same on all ranks.

        The graph's id is a hash of the parts' contents, because no rank has the graph's columns in their original
        order.
        """
        contents = {name: files[name].content_to_json() for name in sorted(files)}
        written = Written(
            schema=self._whole.schema, book=self._book,
            graph_id=hex_digest(json.dumps([self._whole.schema.to_json(), contents]).encode()),
            checksums=GraphChecksums(num_rows={}, columns={}), files=files, cuts={},
            edges_between=np.empty((0, 0), np.int64), seeds={}, stages=(),
        )  # fmt: skip
        manifest_of(written, self._settings).write(self._root)

    def _columns(self) -> Iterator[StoredColumn]:
        for node_type, schemas in self._whole.schema.nodes.items():
            yield from self._node_columns(node_type, schemas)
        for edge_type, schemas in self._whole.schema.edges.items():
            yield from self._edge_columns(edge_type, schemas)

    def _node_columns(self, node_type: str, schemas: Mapping[str, FeatureSchema]) -> Iterator[StoredColumn]:
        part, split = self._own.part, self._nodes[node_type]
        folder = node_folder(part, node_type)
        first, stop = self._book.key_offsets(node_type)[part : part + 2]
        keys = split.keys[split.offsets[part] : split.offsets[part + 1]]
        yield integers(folder / "key.npy", keys)
        yield integers(folder / "id_of_key.npy", split.ids_of_keys[first:stop])
        features = _all_columns(self._own.node_features.get(node_type, {}), schemas)
        yield from feature_columns(folder, features, np.arange(len(keys)))

    def _edge_columns(self, edge_type: EdgeType, schemas: Mapping[str, FeatureSchema]) -> Iterator[StoredColumn]:
        """Yield the edges of one type, grouped by destination, and in a group by time, then by key."""
        part, none = self._own.part, np.empty(0, np.int64)
        edges = self._own.edges.get(edge_type) or OwnEdges(src_keys=none, dst_keys=none, edge_keys=none)
        src, dst = self._nodes[edge_type[0]], self._nodes[edge_type[2]]
        split = split_edges(EdgeTable(src_keys=edges.src_keys, dst_keys=edges.dst_keys), edge_type, "in", self._nodes)
        keys = edges.edge_keys if self._whole.has_edge_keys else None
        if keys is not None:  # the sort by times also sorts by keys
            sort_by_time(split, EdgeTimes(own=keys, neighbor=None, neighbor_keys=None))
        times = self._times(edge_type, edges, src)
        if times is not None:
            sort_by_time(split, times)
        stored_keys = split.keys if keys is None else keys[split.keys]
        key_dtype = number_dtype(self._book.num_edges(edge_type))
        run = EdgeRun(
            indptr=split.indptr, indices=split.indices, keys=stored_keys.astype(key_dtype),
            places=split.keys, neighbor_keys=src.keys, times=times, weights=None,
            features=_all_columns(edges.features, schemas),
        ).rows(int(dst.offsets[part]), int(dst.offsets[part + 1]))  # fmt: skip
        folder = edge_folder(part, edge_type, "in")
        yield integers(folder / "indptr.npy", run.indptr)
        yield from edge_columns(folder, run, self._settings)

    def _times(self, edge_type: EdgeType, edges: OwnEdges, src: NodeSplit) -> EdgeTimes | None:
        own, neighbor = edges.features.get(self._own.time_attr or ""), self._own.node_times.get(edge_type[0])
        for where, values in ((type_label(edge_type), own), (edge_type[0], neighbor)):
            if values is not None:
                check_time_values(f"{where}.{self._own.time_attr}", 0, values)
        if own is None and neighbor is None:
            return None
        return EdgeTimes(own=own, neighbor=neighbor, neighbor_keys=src.keys)


def records_of(told: Sequence[Mapping[str, Any]]) -> dict[str, FileRecord]:
    """Merge the records of the files of all parts from JSON: path to record."""
    return {name: FileRecord.from_json(record) for files in told for name, record in files.items()}


def _all_columns(features: Mapping[str, Column], schemas: Mapping[str, FeatureSchema]) -> dict[str, Column]:
    """Return every column of a schema; a missing column is empty, because its type has no rows here."""
    return {
        name: features[name] if name in features else np.empty((0, *schema.shape), schema.numpy_dtype)
        for name, schema in schemas.items()
    }
