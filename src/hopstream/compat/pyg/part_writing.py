"""Writes one rank's part as an ordinary part of a dataset, and the manifest of the parts of all ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import Column, FileRecord, write_blocks
from hopstream.compat.pyg.own_part import OwnEdges, OwnPart
from hopstream.compat.pyg.part_facts import WholeFacts
from hopstream.dataset.book import PartitionBook
from hopstream.dataset.paths import edge_folder, node_folder
from hopstream.dataset.settings import PartitionSettings
from hopstream.dataset.split import NodeSplit, split_edges, split_nodes
from hopstream.dataset.stored_columns import EdgeRun, StoredColumn, edge_columns, feature_columns, integers
from hopstream.dataset.times import EdgeTimes, check_time_values, sort_by_time
from hopstream.graph.checksums import GraphChecksums, hex_digest
from hopstream.graph.graph import EdgeTable
from hopstream.preparation.write import Written, manifest_of
from hopstream.schema import EdgeType, FeatureSchema, type_label


class PartWriter:
    """Writes the part of one rank below a folder; no other part need be there to serve it."""

    def __init__(self, own: OwnPart, whole: WholeFacts, root: Path) -> None:
        """Renumber the nodes; nothing is written yet.

        Args:
            own: What this rank holds.
            whole: What all ranks agree on.
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
        """Write all files of the part; returns path to record.

        Raises:
            SchemaError: A time does not fit int64.
        """
        files = {}
        for column in self._columns():
            blocks = column.blocks
            files[str(column.path)] = write_blocks(self._root / column.path, column.dtype, column.shape, blocks)
        return files

    def write_manifest(self, files: Mapping[str, FileRecord]) -> None:
        """Write the manifest of all parts, given the records of all their files; it is the same on all ranks.

        The graph is named by what its parts hold: no rank has the graph's own columns in their order.
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
        keys = _own_keys(split, part)
        yield integers(folder / "key.npy", keys)
        yield integers(folder / "id_of_key.npy", split.ids_of_keys[first:stop])
        features = _all_columns(self._own.node_features.get(node_type, {}), schemas)
        yield from feature_columns(folder, features, np.arange(len(keys)))

    def _edge_columns(self, edge_type: EdgeType, schemas: Mapping[str, FeatureSchema]) -> Iterator[StoredColumn]:
        """The edges of one type, grouped by the node that they lead to, and in a group by time, then by key."""
        part, none = self._own.part, np.empty(0, np.int64)
        edges = self._own.edges.get(edge_type) or OwnEdges(src_keys=none, dst_keys=none, edge_keys=none)
        src, dst = self._nodes[edge_type[0]], self._nodes[edge_type[2]]
        split = split_edges(EdgeTable(src_keys=edges.src_keys, dst_keys=edges.dst_keys), edge_type, "in", self._nodes)
        keys = edges.edge_keys if self._whole.has_edge_keys else None
        if keys is not None:  # what brings edges into the order of times does it for keys as well
            sort_by_time(split, EdgeTimes(own=keys, neighbor=None, neighbor_keys=None))
        times = self._times(edge_type, edges, src)
        if times is not None:
            sort_by_time(split, times)
        run = EdgeRun(
            indptr=split.indptr, indices=split.indices, keys=split.keys if keys is None else keys[split.keys],
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
    """Path to record of the files of all parts, from what the ranks say of their own in JSON."""
    return {name: FileRecord.from_json(record) for files in told for name, record in files.items()}


def _own_keys(split: NodeSplit, part: int) -> np.ndarray:
    return split.keys[split.offsets[part] : split.offsets[part + 1]]


def _all_columns(features: Mapping[str, Column], schemas: Mapping[str, FeatureSchema]) -> dict[str, Column]:
    """Every column of a schema; one that is not there is empty, as its type has no rows here."""
    return {
        name: features[name] if name in features else np.empty((0, *schema.shape), schema.numpy_dtype)
        for name, schema in schemas.items()
    }
