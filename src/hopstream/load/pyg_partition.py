"""Converts a part of a dataset to ``Data`` or ``HeteroData`` of PyG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from hopstream.arrays import take_column
from hopstream.load.batch import ColumnChoice
from hopstream.load.pyg import check_names, set_columns
from hopstream.schema import EDGE, NODE

if TYPE_CHECKING:
    from hopstream.load.partitions import PartEdges, Partition, PartNodes


def partition_to_data(partition: Partition) -> Data:
    """Convert the inner nodes of a part without types, and the edges between them, to ``Data``."""
    _check(partition)
    data = Data()
    _set_nodes(data, partition.nodes[NODE])
    data["edge_index"] = torch.empty((2, 0), dtype=torch.int64)
    if EDGE in partition.edges:
        _set_part_edges(data, partition, partition.edges[EDGE], (NODE, NODE))
    return data


def partition_to_hetero_data(partition: Partition) -> HeteroData:
    """Convert the inner nodes of a part, and the edges between them, to ``HeteroData``."""
    _check(partition)
    data = HeteroData()
    for node_type, nodes in partition.nodes.items():
        _set_nodes(data[node_type], nodes)
    for edge_type, edges in partition.edges.items():
        _set_part_edges(data[edge_type], partition, edges, (edge_type[0], edge_type[2]))
    return data


def _check(partition: Partition) -> None:
    schema = partition.schema
    columns = ColumnChoice(
        nodes={t: tuple(features) for t, features in schema.nodes.items()},
        edges={t: tuple(features) for t, features in schema.edges.items()},
    )
    masks = {f"{name}_mask" for nodes in partition.nodes.values() for name in nodes.masks}
    check_names(schema, columns, frozenset(masks))


def _set_nodes(store: Any, nodes: PartNodes) -> None:
    store["num_nodes"] = nodes.num_inner
    store["n_id"] = torch.from_numpy(np.array(nodes.inner_keys))
    set_columns(store, nodes.features, is_pinned=False)
    for name, mask in nodes.masks.items():
        store[f"{name}_mask"] = torch.from_numpy(mask)


def _set_part_edges(store: Any, partition: Partition, edges: PartEdges, ends: tuple[str, str]) -> None:
    inner = np.flatnonzero(edges.is_inner)
    rows = [
        ids[inner] - (int(partition.nodes[end].inner_ids[0]) if partition.nodes[end].num_inner else 0)
        for ids, end in zip((edges.src_ids, edges.dst_ids), ends, strict=True)
    ]
    store["edge_index"] = torch.from_numpy(np.stack(rows))
    if edges.keys is not None:
        store["e_id"] = torch.from_numpy(edges.keys[inner])
    set_columns(store, {name: take_column(column, inner) for name, column in edges.features.items()}, is_pinned=False)
