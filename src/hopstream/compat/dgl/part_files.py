"""What is in the files of one part: the graph around it, and the data of what it owns?

Nodes and edges of the part come first, in the order of their new numbers; then those of others: nodes hop by hop, edges
by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.compat.dgl.graph_files import PlainGraph
from hopstream.compat.dgl.graphs import EID, ETYPE, NID, NTYPE
from hopstream.compat.dgl.numbering import Numbering
from hopstream.compat.dgl.part_config import etype_label
from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.partition.balance import Owners
from hopstream.partition.halo.around import Around, around_part
from hopstream.schema import EdgeType

TRAINER_ID = "trainer_id"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partitioned:
    """A graph, and where each node and edge went.

    Attributes:
        graph: The graph.
        owners: Node type to int32[num_nodes], the part of each node.
        nodes: The new numbers of nodes.
        edges: The new numbers of edges.
        node_names: Node type to what it is called in DGL.
        edge_names: Edge type likewise.
        trainers: Node type to int64[num_nodes], the trainer of each node; empty where trainers are parts.
    """

    graph: Graph
    owners: Owners
    nodes: Numbering[str]
    edges: Numbering[EdgeType]
    node_names: Mapping[str, str]
    edge_names: Mapping[EdgeType, EdgeType]
    trainers: Mapping[str, IntArray] = field(default_factory=dict)

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one node type and one edge type."""
        return len(self.graph.nodes) == 1 and len(self.graph.edges) <= 1


def part_graph(cut: Partitioned, part: int, num_hops: int) -> PlainGraph:
    """The graph of a part with its halo, without types.

    Args:
        cut: The graph and its parts.
        part: The part.
        num_hops: How far the halo reaches; see ``around_part``.
    """
    around = around_part(cut.graph, cut.owners, part, num_hops)
    nodes = _local_nodes(cut, around)
    order = np.lexsort((nodes["number"], nodes["hop"]))
    nodes = {name: values[order] for name, values in nodes.items()}
    slots = _slots(cut, nodes)
    edges = _local_edges(cut, around, part, slots)
    order = np.lexsort((edges["number"], ~edges["is_inner"]))
    edges = {name: values[order] for name, values in edges.items()}
    ndata: dict[str, Array] = {
        NID: nodes["number"], "inner_node": (nodes["hop"] == 0).astype(np.uint8), "part_id": nodes["part"],
        "orig_id": nodes["key"],
    }  # fmt: skip
    edata: dict[str, Array] = {
        EID: edges["number"], "inner_edge": edges["is_inner"].astype(np.uint8), "orig_id": edges["key"],
    }  # fmt: skip
    if not cut.is_homogeneous:
        ndata[NTYPE], edata[ETYPE] = nodes["type"].astype(np.int16), edges["type"].astype(np.int32)
    return PlainGraph(num_nodes=len(nodes["key"]), src=edges["src"], dst=edges["dst"], ndata=ndata, edata=edata)


def _local_nodes(cut: Partitioned, around: Around) -> dict[str, Array]:
    found: dict[str, list[Array]] = {name: [] for name in ("key", "number", "hop", "part", "type")}
    for row, (node_type, hops) in enumerate(around.hops.items()):
        keys = np.flatnonzero(hops >= 0)
        values = (keys, cut.nodes.numbers[node_type][keys], hops[keys], cut.owners[node_type][keys])
        for name, array in zip(found, (*values, np.full(len(keys), row)), strict=True):
            found[name].append(np.asarray(array, np.int64))
    return {name: np.concatenate(arrays) for name, arrays in found.items()}


def _slots(cut: Partitioned, nodes: Mapping[str, Array]) -> dict[str, IntArray]:
    """Node type to int64[num_nodes], the place of each node in the part's graph."""
    slots = {t: np.full(table.num_nodes, -1, np.int64) for t, table in cut.graph.nodes.items()}
    for row, of_type in enumerate(slots.values()):
        places = np.flatnonzero(nodes["type"] == row)
        of_type[nodes["key"][places]] = places
    return slots


def _local_edges(cut: Partitioned, around: Around, part: int, slots: Mapping[str, IntArray]) -> dict[str, Array]:
    none = np.empty(0, np.int64)
    found: dict[str, list[Array]] = {name: [none] for name in ("key", "number", "src", "dst", "type")}
    is_inner: list[NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    for row, (edge_type, keys) in enumerate(around.edge_keys.items()):
        table = cut.graph.edges[edge_type]
        dst_keys = table.dst_keys[keys]
        ends = (slots[edge_type[0]][table.src_keys[keys]], slots[edge_type[2]][dst_keys])
        values = (keys, cut.edges.numbers[edge_type][keys], *ends, np.full(len(keys), row))
        for name, array in zip(found, values, strict=True):
            found[name].append(array)
        is_inner.append(cut.owners[edge_type[2]][dst_keys] == part)
    return {**{name: np.concatenate(arrays) for name, arrays in found.items()}, "is_inner": np.concatenate(is_inner)}


def node_data(cut: Partitioned, part: int) -> dict[str, Array]:
    """``type/name`` to the data of a part's nodes; splits are masks."""
    data: dict[str, Array] = {}
    for node_type, table in cut.graph.nodes.items():
        keys = cut.nodes.keys_of_part(node_type, part)
        trainers = {TRAINER_ID: cut.trainers[node_type]} if cut.trainers else {}
        columns = (table.features, trainers, masks_of(cut.graph.splits.get(node_type, {}), table.num_nodes))
        data |= _data_of(cut.node_names[node_type], columns, keys)
    return data


def edge_data(cut: Partitioned, part: int) -> dict[str, Array]:
    """``source:relation:destination/name`` to the data of a part's edges; an edge's trainer is its destination's."""
    data: dict[str, Array] = {}
    for edge_type, table in cut.graph.edges.items():
        keys = cut.edges.keys_of_part(edge_type, part)
        trainers = {TRAINER_ID: cut.trainers[edge_type[2]][table.dst_keys]} if cut.trainers else {}
        columns = (table.features, trainers, masks_of(cut.graph.edge_splits.get(edge_type, {}), table.num_edges))
        data |= _data_of(etype_label(cut.edge_names[edge_type]), columns, keys)
    return data


def mask_name(split: str) -> str:
    """What the data are called that say who is in a split."""
    return f"{split}_mask"


def masks_of(splits: Mapping[str, IntArray], num_rows: int) -> dict[str, Array]:
    """Name to bool[num_rows], who is in a split."""
    masks: dict[str, Array] = {}
    for split, keys in splits.items():
        mask = masks.setdefault(mask_name(split), np.zeros(num_rows, np.bool_))
        mask[keys] = True
    return masks


def _data_of(owner: str, columns: Iterable[Mapping[str, Column]], keys: IntArray) -> dict[str, Array]:
    data: dict[str, Array] = {}
    for of in columns:
        for name, column in of.items():
            label = f"{owner}/{name}"
            if label in data:
                raise SchemaError(
                    f"{label} is a feature, and what splits or trainers are called in DGL's files; rename it"
                )
            if isinstance(column, RaggedArray):
                raise SchemaError(f"{label} is text or ragged, and DGL's files hold neither; leave it out")
            data[label] = column[keys]
    return data


def unsaid(cut: Partitioned) -> dict[str, Any]:
    """What the files do not say: which data are splits and booleans, and which edge types hold links to predict."""
    graph, label = cut.graph, {t: etype_label(name) for t, name in cut.edge_names.items()}
    booleans = [
        f"{cut.node_names[t]}/{n}" for t, of in graph.nodes.items() for n, c in of.features.items() if _is_bool(c)
    ]
    booleans += [f"{label[t]}/{n}" for t, of in graph.edges.items() for n, c in of.features.items() if _is_bool(c)]
    return {
        "splits": {cut.node_names[t]: list(of) for t, of in graph.splits.items()},
        "edge_splits": {label[t]: list(of) for t, of in graph.edge_splits.items()},
        "label_types": {label[t]: [label[other] for other in of] for t, of in graph.label_types.items()},
        "booleans": booleans,
        "has_trainers": bool(cut.trainers),
    }


def _is_bool(column: Column) -> bool:
    return isinstance(column, np.ndarray) and column.dtype == np.bool_
