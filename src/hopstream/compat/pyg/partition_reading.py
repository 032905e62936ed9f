"""Reader of PyG's partition files as a graph, with the part of each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopstream.arrays import Array, IntArray
from hopstream.compat.pyg.local_feature_store import EDGES, LocalFeatureStore
from hopstream.compat.pyg.local_graph_store import LocalGraphStore
from hopstream.compat.pyg.partition_files import read_maps, read_meta
from hopstream.errors import FormatError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.objects.attributes import MASKS
from hopstream.schema import EDGE, NODE, EdgeType, type_label
from hopstream.uris import local_path

Owners = dict[str, NDArray[np.int32]]


def read_partitions(root: str | Path) -> tuple[Graph, Owners]:
    """Read PyG's partition files into one graph and the part of each node.

    ``hopstream.write_parts(graph, out, owners=owners)`` makes a dataset with the same parts of the result. An edge that
    a file keeps in another part than its destination then moves to the part of its destination. Nodes and edges are in
    the order of their ids. A graph without types gets the types ``node`` and ``(node, to, node)``. Masks of nodes
    become splits.

    Args:
        root: The folder of ``META.json``.

    Returns:
        The graph, and node type to int32[num_nodes].

    Raises:
        FormatError: A file is missing, damaged, or contradicts the others; or parts have different features.
        IdRangeError: An edge names a node that does not exist.
    """
    folder = local_path(root)
    meta = read_meta(folder)
    node_map, edge_map = read_maps(folder, meta)
    node_parts = {NODE: node_map} if isinstance(node_map, Tensor) else node_map
    edge_parts = {EDGE: edge_map} if isinstance(edge_map, Tensor) else edge_map
    reader = _Reader(folder, node_parts, edge_parts)
    for part in range(meta.num_parts):
        # Rows are stored by id, so edges need no sort, and times without ids keep the order of the file.
        info = ({**meta.values, "is_sorted": True}, meta.num_parts, part, node_map, edge_map)
        reader.read(part, LocalGraphStore._of_part(folder, info), LocalFeatureStore._of_part(folder, info))
    owners = {t: parts.numpy().astype(np.int32) for t, parts in node_parts.items()}
    return reader.graph(), owners


@dataclass(slots=True)
class PartRows:
    """Rows of one type, collected from the parts.

    Attributes:
        where: The type, for messages.
        parts: int64[num_rows], the part of each row.
        columns: The columns found so far, by name, each of num_rows rows.
        num_found: Column to the number of rows found so far.
    """

    where: str
    parts: Tensor
    columns: dict[str, Array] = field(default_factory=dict)
    num_found: dict[str, int] = field(default_factory=dict)

    def put(self, part: int, ids: Tensor, name: str, values: Tensor) -> None:
        """Store the values of one part's rows."""
        try:
            array = values.detach().numpy()
        except TypeError as error:  # bfloat16, for example
            raise FormatError(
                f"{self.where}: {name} is {values.dtype}, which numpy does not have; write it as float32"
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

    def check_ids(self, part: int, ids: Tensor | None) -> Tensor:
        """Return the ids; raise ``FormatError`` unless they are exactly the part's ids in the map."""
        ids = torch.empty(0, dtype=torch.int64) if ids is None else ids
        wanted = self.parts == part
        found, num_wanted = torch.zeros_like(wanted), int(wanted.sum())
        is_in_range = bool(((ids >= 0) & (ids < len(wanted))).all())
        found[ids if is_in_range else []] = True
        if not is_in_range or len(ids) != num_wanted or not torch.equal(found, wanted):
            raise FormatError(f"{self.where}: the ids of part {part} are not the {num_wanted} of the map of parts")
        return ids

    def complete(self) -> dict[str, Array]:
        """Return the columns; raise ``FormatError`` for one that a part lacks."""
        for name, num_found in self.num_found.items():
            if num_found != len(self.parts):
                raise FormatError(f"{self.where}: parts have {name} of {num_found} of {len(self.parts)} rows")
        return self.columns


class _Reader:
    """Collector of the graph from its parts."""

    def __init__(self, root: Path, node_parts: Mapping[str, Tensor], edge_parts: Mapping[EdgeType, Tensor]) -> None:
        self.nodes = {t: PartRows(f"{root}: nodes {t!r}", parts) for t, parts in node_parts.items()}
        self.edges = {t: PartRows(f"{root}: edges {type_label(t)}", parts) for t, parts in edge_parts.items()}
        self.times: dict[str, Array] = {}

    def read(self, part: int, graph: LocalGraphStore, features: LocalFeatureStore) -> None:
        """Add one part."""
        ids_of_edges = {}
        for attr in graph.get_all_edge_attrs():
            edge_type = attr.edge_type or EDGE
            rows = self.edges[edge_type]
            ids = ids_of_edges[edge_type] = rows.check_ids(part, graph.get_edge_id(attr))
            wanted = tuple(len(self.nodes[t].parts) if t in self.nodes else 0 for t in (edge_type[0], edge_type[2]))
            if attr.size != wanted:
                where = f"{rows.where}: part {part}"
                raise FormatError(f"{where}: size is {attr.size!r}; the maps of parts have {wanted} nodes")
            for name, ends in zip(("src", "dst"), graph.get_edge_index(attr), strict=True):
                rows.put(part, ids, name, ends)
        for group in features.groups():
            if group is None or isinstance(group, str):
                self._read_nodes(part, features, group)
                continue
            edge_type = EDGE if group == EDGES else group
            given = features.get_global_id(group)
            # Times without features come without ids, in the order of graph.pt.
            ids = ids_of_edges[edge_type] if given is None else self.edges[edge_type].check_ids(part, given)
            for name, tensor in features.tensors_of(group).items():
                self.edges[edge_type].put(part, ids, f"feats/{name}", tensor)

    def _read_nodes(self, part: int, features: LocalFeatureStore, group: str | None) -> None:
        node_type = NODE if group is None else group
        rows = self.nodes[node_type]
        ids = rows.check_ids(part, features.get_global_id(group))
        for name, tensor in features.tensors_of(group).items():
            if not features.is_of_all_nodes(group, name):
                rows.put(part, ids, name, tensor)
                continue
            if len(tensor) != len(rows.parts):
                raise FormatError(
                    f"{rows.where}: {name} has {len(tensor)} rows; all parts have {len(rows.parts)} nodes"
                )
            if not np.array_equal(self.times.setdefault(node_type, tensor.numpy()), tensor.numpy()):
                raise FormatError(f"{rows.where}: parts differ in {name}; each part has the values of all nodes")

    def graph(self) -> Graph:
        """Return the graph of all parts, checked."""
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
                raise FormatError(f"{rows.where}: no graph.pt has them, but the map of parts has {len(rows.parts)}")
            edges[edge_type] = EdgeTable(
                src_keys=src, dst_keys=dst, features={name.removeprefix("feats/"): c for name, c in columns.items()}
            )
        return Graph(nodes=nodes, edges=edges, splits=all_splits).check()


def keys_of(column: Array | None) -> IntArray:
    """Return a column of ids as keys; None gives no keys."""
    return np.empty(0, np.int64) if column is None else column.astype(np.int64, copy=False)
