"""Reader of GLT's partition files as a graph, with the part of each node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopstream.checks import known_names
from hopstream.compat.glt.distributed.graph_facts import EDGE_FEATURE, LABEL, NODE_FEATURE, WEIGHT
from hopstream.compat.glt.partition_books import table_of
from hopstream.compat.glt.partition_files import (
    FeaturePartitionData,
    GraphPartitionData,
    PartTables,
    as_str,
    read_edges,
    read_meta,
    read_tables,
)
from hopstream.compat.pyg.partition_files import PartitionMeta, ids_of, tensor_of
from hopstream.compat.pyg.partition_reading import Owners, PartRows, keys_of
from hopstream.errors import FormatError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.files import read_torch_file
from hopstream.schema import EDGE, EdgeType, type_label
from hopstream.uris import local_path

LABELS, SPLITS = "node_label", "node_split"
"""Files, or folders with a file per type, that Hopstream writes beside GLT's."""


def read_partitions(
    root_dir: str | Path, *, whole_node_label_file: str | Path | Mapping[str, str | Path] | None = None
) -> tuple[Graph, Owners]:
    """Read GLT's partition files into one graph and the part of each node.

    ``hopstream.write_parts(graph, out, owners=owners)`` makes a dataset with the same parts of the result. Nodes and
    edges are in the order of their ids. Features of nodes have the name ``x`` and labels ``y``. Features of edges have
    the name ``edge_attr`` and their weights ``weight``. A graph without types gets the types ``node`` and ``(node, to,
    node)``. Copies of hot rows are left out. Labels and splits are read if ``write_partitions`` wrote them.

    Args:
        root_dir: The folder of ``META``.
        whole_node_label_file: A file with a label per node, or node type to file; as in ``DistDataset.load``.

    Returns:
        The graph, and node type to int32[num_nodes].

    Raises:
        FormatError: A file is missing, damaged, or contradicts the others; or parts have different features.
        SettingsError: A file of labels is given without its type and there are several.
        UnknownNameError: Labels are given for a node type that does not exist.
        IdRangeError: An edge names a node that does not exist.
    """
    root = local_path(root_dir)
    meta = read_meta(root)
    reader = None
    for part in range(meta.num_parts):
        is_whole = not (root / f"part{part}" / "graph").is_dir() and (root / "graph").is_dir()
        tables = read_tables(root, meta, part, graph_caching=is_whole)
        if reader is None:
            reader = _Reader(root, meta, tables)
        reader.read(part, tables._replace(edges={}) if is_whole else tables)
    if reader is None:  # a graph has a part
        raise FormatError(f"{root} has no parts")
    return reader.graph(whole_node_label_file), reader.owners


class _Reader:
    """Collector of the graph from its parts."""

    def __init__(self, root: Path, meta: PartitionMeta, first: PartTables) -> None:
        self.root, self.meta = root, meta
        self.nodes = {t: PartRows(f"{root}: nodes {t!r}", table_of(book)) for t, book in first.node_pb.items()}
        self.edges: dict[EdgeType, PartRows] = {}
        for edge_type in meta.edge_types or (EDGE,):
            where = f"{root}: edges {type_label(edge_type)}"
            folder = root / "graph" / as_str(edge_type) if meta.is_hetero else root / "graph"
            whole = read_edges(folder)
            if edge_type in first.edge_pb:
                parts = table_of(first.edge_pb[edge_type])
            elif whole is not None:
                parts = torch.zeros(len(whole.edge_index[0]), dtype=torch.int64)
            else:
                raise FormatError(f"{where}: neither edge_pb, the part of each edge, nor {folder} exists")
            self.edges[edge_type] = PartRows(where, parts)
            if whole is not None:
                ids = torch.arange(len(parts)) if whole.eids is None else whole.eids
                if not torch.equal(ids.sort().values, torch.arange(len(parts))):
                    raise FormatError(f"{folder}/eids.pt does not have each of the edge ids 0..{len(parts) - 1} once")
                self._put_edges(0, edge_type, ids, whole)

    @property
    def owners(self) -> Owners:
        """Node type to the part of each node."""
        return {t: rows.parts.numpy().astype(np.int32) for t, rows in self.nodes.items()}

    def read(self, part: int, tables: PartTables) -> None:
        """Add one part."""
        for edge_type, data in tables.edges.items():
            if data is None:
                continue
            rows = self.edges[edge_type]
            if data.eids is None:
                raise FormatError(f"{rows.where}: part {part} has no eids.pt; copy it there")
            self._put_edges(part, edge_type, rows.check_ids(part, data.eids), data)
        kinds: list[tuple[Mapping[Any, FeaturePartitionData], Mapping[Any, PartRows], str]] = [
            (tables.node_feat, self.nodes, NODE_FEATURE), (tables.edge_feat, self.edges, EDGE_FEATURE),
        ]  # fmt: skip
        for features, all_rows, name in kinds:
            for of_type, feature in features.items():
                rows = all_rows[of_type]
                if feature.ids is not None and feature.feats is not None:
                    rows.put(part, rows.check_ids(part, feature.ids), name, feature.feats)

    def graph(self, label_files: str | Path | Mapping[str, str | Path] | None) -> Graph:
        """Return the graph of all parts, checked."""
        labels, splits = self._labels(label_files), {}
        nodes, edges = {}, {}
        for node_type, rows in self.nodes.items():
            features = rows.complete()
            if node_type in labels:
                rows.put(0, torch.arange(len(rows.parts)), LABEL, labels[node_type])
            nodes[node_type] = NodeTable(num_nodes=len(rows.parts), features=features)
            path = self._beside(SPLITS, node_type)
            if path.is_file():
                splits[node_type] = _splits_of(path)
        for edge_type, rows in self.edges.items():
            columns = rows.complete()
            src, dst = (keys_of(columns.pop(name, None)) for name in ("src", "dst"))
            if len(src) != len(rows.parts):
                raise FormatError(f"{rows.where}: no folder has them, but edge_pb has {len(rows.parts)}")
            features = {name: columns[name] for name in (EDGE_FEATURE, WEIGHT) if name in columns}
            edges[edge_type] = EdgeTable(src_keys=src, dst_keys=dst, features=features)
        if not self.meta.is_hetero and not edges[EDGE].num_edges and not edges[EDGE].features:
            edges = {}
        return Graph(nodes=nodes, edges=edges, splits=splits).check()

    def _put_edges(self, part: int, edge_type: EdgeType, ids: Tensor, data: GraphPartitionData) -> None:
        rows = self.edges[edge_type]
        rows.put(part, ids, "src", data.edge_index[0])
        rows.put(part, ids, "dst", data.edge_index[1])
        if data.weights is not None:
            rows.put(part, ids, WEIGHT, data.weights)

    def _labels(self, files: str | Path | Mapping[str, str | Path] | None) -> dict[str, Tensor]:
        if files is None:
            found = {t: self._beside(LABELS, t) for t in self.nodes}
            found = {t: path for t, path in found.items() if path.is_file()}
        elif isinstance(files, Mapping):
            found = {t: local_path(path) for t, path in files.items()}
        elif len(self.nodes) == 1:
            found = {next(iter(self.nodes)): local_path(files)}
        else:
            raise SettingsError(f"whole_node_label_file is {str(files)!r}; give a dictionary, by {list(self.nodes)}")
        for node_type in found:
            if node_type not in self.nodes:
                raise UnknownNameError(f"labels are of node type {node_type!r}; {known_names(node_type, self.nodes)}")
        labels = {}
        for node_type, path in found.items():
            labels[node_type] = tensor_of(path, {LABEL: read_torch_file(path, tensors_only=True)}, LABEL)
            if len(labels[node_type]) != len(self.nodes[node_type].parts):
                raise FormatError(
                    f"{path} has {len(labels[node_type])} labels; there are {len(self.nodes[node_type].parts)} nodes"
                )
        return labels

    def _beside(self, name: str, node_type: str) -> Path:
        return self.root / name / f"{node_type}.pt" if self.meta.is_hetero else self.root / f"{name}.pt"


def _splits_of(path: Path) -> dict[str, Any]:
    value = read_torch_file(path, tensors_only=True)
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise FormatError(f"{path} holds {type(value).__name__}; wanted ids by the name of the split")
    return {name: ids_of(path, value, name).numpy() for name in value}
