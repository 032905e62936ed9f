"""Reads PyG's partition files as a graph and its owners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopstream.arrays import Array, IntArray
from hopstream.compat.pyg.partition_files import (
    PartitionMeta,
    ids_of,
    ids_of_type,
    offsets_of_types,
    read_maps,
    read_meta,
    read_part_file,
    size_of,
    tensor_of,
)
from hopstream.errors import FormatError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.objects.attributes import MASKS
from hopstream.schema import EDGE, NODE, EdgeType, type_label
from hopstream.uris import local_path

Owners = dict[str, NDArray[np.int32]]


def read_partitions(root: str | Path) -> tuple[Graph, Owners]:
    """Read PyG's partition files, whoever wrote them, into one graph and the part of each node.

    ``hopstream.write_parts(graph, out, owners=owners)`` makes a dataset of the same parts of the result; edges that a
    file keeps with another part than that of their destination go to the latter. Nodes and edges are in the order of
    their ids. A graph without types gets the types ``node`` and ``(node, to, node)``. Masks of nodes become splits.

    Args:
        root: The folder of ``META.json``.

    Returns:
        The graph, and node type to int32[num_nodes].

    Raises:
        FormatError: A file is missing, damaged, or not what the others say; or parts have different features.
        IdRangeError: An edge names a node that is not there.
    """
    folder = local_path(root)
    meta = read_meta(folder)
    node_parts, edge_parts = read_maps(folder, meta)
    if isinstance(node_parts, Tensor):
        node_parts = {NODE: node_parts}
    if isinstance(edge_parts, Tensor):
        edge_parts = {EDGE: edge_parts}
    reader = _Reader(folder, meta, node_parts, edge_parts)
    for part in range(meta.num_parts):
        reader.read(part)
    owners = {t: parts.numpy().astype(np.int32) for t, parts in node_parts.items()}
    return reader.graph(), owners


@dataclass(slots=True)
class PartRows:
    """The rows of one type, gathered from the parts.

    Attributes:
        where: What it is, for messages.
        parts: int64[num_rows], the part of each row.
        columns: What was found so far, by name, each of num_rows rows.
    """

    where: str
    parts: Tensor
    columns: dict[str, Array] = field(default_factory=dict)
    num_found: dict[str, int] = field(default_factory=dict)

    def put(self, part: int, ids: Tensor, name: str, values: Tensor) -> None:
        """Put the values of the rows of one part into their places."""
        try:
            array = values.detach().numpy()
        except TypeError as error:  # bfloat16, for example
            raise FormatError(
                f"{self.where}: {name} is {values.dtype}, which numpy has not; write it as float32"
            ) from error
        if len(array) != len(ids):
            raise FormatError(f"{self.where}: part {part} has {len(ids)} ids and {len(array)} rows of {name}")
        if name not in self.columns:
            self.columns[name] = np.empty((len(self.parts), *array.shape[1:]), array.dtype)
        column = self.columns[name]
        if (column.dtype, column.shape[1:]) != (array.dtype, array.shape[1:]):
            raise FormatError(
                f"{self.where}: {name} is {array.dtype}{list(array.shape)} in part {part} and "
                f"{column.dtype}[…, {list(column.shape[1:])}] in others"
            )
        column[ids.numpy()] = array
        self.num_found[name] = self.num_found.get(name, 0) + len(ids)

    def check_ids(self, part: int, ids: Tensor) -> Tensor:
        """Raise ``FormatError`` unless the ids are those that the map says of the part, each once."""
        is_in_range = bool(((ids >= 0) & (ids < len(self.parts))).all())
        num_wanted = int((self.parts == part).sum())
        is_right = is_in_range and len(torch.unique(ids)) == len(ids) and bool((self.parts[ids] == part).all())
        if not is_right or len(ids) != num_wanted:
            raise FormatError(
                f"{self.where}: the ids of part {part} are not the {num_wanted} that the map of parts says"
            )
        return ids

    def complete(self) -> dict[str, Array]:
        """The columns; raises ``FormatError`` for one that a part lacks."""
        for name, num_found in self.num_found.items():
            if num_found != len(self.parts):
                raise FormatError(f"{self.where}: parts have {name} of {num_found} of {len(self.parts)} rows")
        return self.columns


class _Reader:
    """Gathers the graph from its parts."""

    def __init__(
        self, root: Path, meta: PartitionMeta, node_parts: Mapping[str, Tensor], edge_parts: Mapping[EdgeType, Tensor]
    ) -> None:
        self.root, self.meta = root, meta
        self.nodes = {t: PartRows(f"{root}: nodes {t!r}", parts) for t, parts in node_parts.items()}
        self.edges = {t: PartRows(f"{root}: edges {type_label(t)}", parts) for t, parts in edge_parts.items()}
        self.times: dict[str, Array] = {}
        self.edge_starts = offsets_of_types({t: len(parts) for t, parts in edge_parts.items()})

    def read(self, part: int) -> None:
        """Take over one part."""
        ids_of_edges = {}
        for edge_type, values in self._file(part, "graph.pt", EDGE):
            rows = self._known(self.edges, edge_type, "graph.pt")
            ids = ids_of(rows.where, values, "edge_id")
            if self.meta.is_hetero:
                ids = ids_of_type(f"{rows.where}: part {part}", ids, self.edge_starts[edge_type], len(rows.parts))
            ids_of_edges[edge_type] = rows.check_ids(part, ids)
            self._check_size(part, edge_type, values)
            rows.put(part, ids, "src", ids_of(rows.where, values, "row"))
            rows.put(part, ids, "dst", ids_of(rows.where, values, "col"))
        for node_type, values in self._file(part, "node_feats.pt", NODE):
            rows = self._known(self.nodes, node_type, "node_feats.pt")
            ids = rows.check_ids(part, ids_of(rows.where, values, "id" if self.meta.is_hetero else "global_id"))
            for name, tensor in self._feats(rows, values):
                rows.put(part, ids, name, tensor)
            if "time" in values:
                self._take_time(node_type, rows, tensor_of(rows.where, values, "time"))
        for edge_type, values in self._file(part, "edge_feats.pt", EDGE):
            self._read_edge_feats(part, edge_type, values, ids_of_edges)

    def graph(self) -> Graph:
        """The graph of all parts, checked."""
        nodes, all_splits = {}, {}
        for node_type, rows in self.nodes.items():
            features = rows.complete()
            masks = [name for name in MASKS if name in features and features[name].dtype == np.bool_]
            splits = {MASKS[name]: np.flatnonzero(features.pop(name)) for name in masks if features[name].ndim == 1}
            if splits:
                all_splits[node_type] = splits
            if node_type in self.times:
                features["time"] = self.times[node_type]
            nodes[node_type] = NodeTable(num_nodes=len(rows.parts), features=features)
        edges = {}
        for edge_type, rows in self.edges.items():
            columns = rows.complete()
            src, dst = (keys_of(columns.pop(name, None)) for name in ("src", "dst"))
            if len(src) != len(rows.parts):
                raise FormatError(f"{rows.where}: no graph.pt has them, and the map of parts says {len(rows.parts)}")
            edges[edge_type] = EdgeTable(
                src_keys=src, dst_keys=dst, features={name.removeprefix("feats/"): c for name, c in columns.items()}
            )
        return Graph(nodes=nodes, edges=edges, splits=all_splits).check()

    def _read_edge_feats(
        self, part: int, edge_type: EdgeType, values: Mapping[str, Any], ids_of_edges: Mapping[EdgeType, Tensor]
    ) -> None:
        rows = self._known(self.edges, edge_type, "edge_feats.pt")
        feats = dict(self._feats(rows, values))
        # Times without features come without ids, in the order of graph.pt.
        ids = ids_of(rows.where, values, "global_id") if "global_id" in values else ids_of_edges[edge_type]
        rows.check_ids(part, ids)
        if "edge_time" in values and "time" not in feats:
            feats["edge_time"] = tensor_of(rows.where, values, "edge_time")
        for name, tensor in feats.items():
            rows.put(part, ids, f"feats/{name}", tensor)

    def _check_size(self, part: int, edge_type: EdgeType, values: Mapping[str, Any]) -> None:
        where = f"{self.edges[edge_type].where}: part {part}"
        wanted = tuple(len(self.nodes[t].parts) if t in self.nodes else 0 for t in (edge_type[0], edge_type[2]))
        if size_of(where, values) != wanted:
            raise FormatError(f"{where}: size is {values['size']!r}; the maps of parts have {wanted} nodes")

    def _take_time(self, node_type: str, rows: PartRows, time: Tensor) -> None:
        if len(time) != len(rows.parts):
            raise FormatError(f"{rows.where}: time has {len(time)} rows; all parts have {len(rows.parts)} nodes")
        if node_type in self.times and not np.array_equal(self.times[node_type], time.numpy()):
            raise FormatError(f"{rows.where}: parts differ in time, of which each has all")
        self.times[node_type] = time.numpy()

    def _file(self, part: int, name: str, single: str | EdgeType) -> Iterator[tuple[Any, dict[str, Any]]]:
        """What a file says of each type; types of which it says nothing are left out."""
        rows: Mapping[Any, PartRows] = self.nodes if name == "node_feats.pt" else self.edges
        owned = {of_type: of.parts for of_type, of in rows.items()}
        values = read_part_file(self.root, part, name, owned) or {}
        for of_type, of in (values if self.meta.is_hetero else {single: values}).items():
            if not isinstance(of, dict):
                raise FormatError(f"{self.root}: {name} of part {part} has {type(of).__name__} for {of_type!r}")
            if of:
                yield of_type, of

    def _known(self, tables: Mapping[Any, PartRows], of_type: Any, name: str) -> PartRows:
        if of_type not in tables:
            raise FormatError(f"{self.root}: {name} has a type {of_type!r}; META.json has {list(tables)}")
        return tables[of_type]

    def _feats(self, rows: PartRows, values: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
        """Features by name; PyG writes None for those that are not there."""
        feats = values.get("feats", {})
        if not isinstance(feats, dict):
            raise FormatError(f"{rows.where}: feats is {type(feats).__name__}; wanted a dictionary of tensors")
        for name, value in feats.items():
            if value is not None:
                yield name, tensor_of(rows.where, feats, name)


def keys_of(column: Array | None) -> IntArray:
    """A column of ids as keys; none where no part has it."""
    return np.empty(0, np.int64) if column is None else column.astype(np.int64, copy=False)
