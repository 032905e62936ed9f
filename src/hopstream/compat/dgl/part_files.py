"""Contents of the files of one part: its graph with the halo, and the data of its own nodes and edges.

The part's own nodes and edges come first, in the order of their new numbers. The halo follows: nodes by hop, then by
number; edges by number. A ``PartSource`` holds a partitioned graph and returns one part at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.compat.dgl.binary import OrderedRows
from hopstream.compat.dgl.convert import check_names, dgl_names
from hopstream.compat.dgl.graph_files import PlainGraph
from hopstream.compat.dgl.graphs import EID, ETYPE, NID, NTYPE
from hopstream.compat.dgl.part_config import label_of
from hopstream.errors import SchemaError
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema

TRAINER_ID = "trainer_id"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalNodes:
    """Nodes of a part and its halo, in any order.

    Attributes:
        keys: int64[n], key of each node.
        numbers: int64[n], number over all parts and types.
        hops: int64[n], 0 for the part's own nodes, else the hop that reaches the node.
        parts: int64[n], part that owns the node.
        types: int64[n], index of the node type.
    """

    keys: IntArray
    numbers: IntArray
    hops: IntArray
    parts: IntArray
    types: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalEdges:
    """Edges of a part and its halo, in any order.

    Attributes:
        keys: int64[n], key of each edge.
        numbers: int64[n], number over all parts and types.
        src_numbers: int64[n], number of the source, which is one of the ``LocalNodes``.
        dst_numbers: int64[n], number of the destination.
        types: int64[n], index of the edge type.
        is_inner: bool[n], whether the part owns the edge.
    """

    keys: IntArray
    numbers: IntArray
    src_numbers: IntArray
    dst_numbers: IntArray
    types: IntArray
    is_inner: NDArray[np.bool_]


class PartSource(ABC):
    """A partitioned graph, in memory or on disk.

    Attributes:
        schema: Types, features and splits.
        num_parts: Number of parts.
        num_hops: Number of hops in a part's halo; see ``around_part``.
        has_trainers: Whether data of nodes and edges include a trainer.
        node_ranges: Node type to int64[num_parts, 2], each part's range of numbers.
        edge_ranges: The same by edge type.
    """

    schema: GraphSchema
    num_parts: int
    num_hops: int
    has_trainers: bool = False
    node_ranges: Mapping[str, IntArray]
    edge_ranges: Mapping[EdgeType, IntArray]

    @abstractmethod
    def around(self, part: int) -> tuple[LocalNodes, LocalEdges]:
        """Return the nodes and edges in the graph of a part."""

    @abstractmethod
    def node_columns(self, part: int, node_type: str) -> Iterable[tuple[str, OrderedRows]]:
        """Return features, trainers and masks of a part's nodes of a type, by name, in the order of numbers."""

    @abstractmethod
    def edge_columns(self, part: int, edge_type: EdgeType) -> Iterable[tuple[str, OrderedRows]]:
        """Return features, trainers and masks of a part's edges of a type, by name, in the order of numbers."""


def part_graph(source: PartSource, part: int) -> PlainGraph:
    """Return the graph of a part with its halo, without types."""
    nodes, edges = source.around(part)
    nodes = _sorted(nodes, np.lexsort((nodes.numbers, nodes.hops)))
    edges = _sorted(edges, np.lexsort((edges.numbers, ~edges.is_inner)))
    by_number = np.argsort(nodes.numbers)
    src, dst = (
        by_number[np.searchsorted(nodes.numbers, ends, sorter=by_number)]
        for ends in (edges.src_numbers, edges.dst_numbers)
    )
    ndata: dict[str, Array] = {
        NID: nodes.numbers, "inner_node": (nodes.hops == 0).astype(np.uint8), "part_id": nodes.parts,
        "orig_id": nodes.keys,
    }  # fmt: skip
    edata: dict[str, Array] = {
        EID: edges.numbers, "inner_edge": edges.is_inner.astype(np.uint8), "orig_id": edges.keys,
    }  # fmt: skip
    if len(source.schema.nodes) > 1 or len(source.schema.edges) > 1:
        ndata[NTYPE], edata[ETYPE] = nodes.types.astype(np.int16), edges.types.astype(np.int32)
    return PlainGraph(num_nodes=len(nodes.keys), src=src, dst=dst, ndata=ndata, edata=edata)


Local = TypeVar("Local", LocalNodes, LocalEdges)


def _sorted(local: Local, order: IntArray) -> Local:
    return type(local)(**{of.name: getattr(local, of.name)[order] for of in fields(local)})


def data_of(source: PartSource, part: int) -> tuple[dict[str, OrderedRows], dict[str, OrderedRows]]:
    """Return the data of a part's nodes and of its edges.

    Keys are ``type/name`` and ``source:relation:destination/name``. Splits are masks. An edge's trainer is its
    destination's.
    """
    node_names, edge_names = dgl_names(source.schema)
    nodes = {f"{of}/{name}": rows for t, of in node_names.items() for name, rows in source.node_columns(part, t)}
    edges = {
        f"{label_of(of)}/{name}": rows for t, of in edge_names.items() for name, rows in source.edge_columns(part, t)
    }
    return nodes, edges


def mask_name(split: str) -> str:
    """Return the name of the data that hold a split's mask."""
    return f"{split}_mask"


def mask_of(keys: IntArray, pieces: Iterable[IntArray]) -> NDArray[np.bool_]:
    """Return bool[n], whether each key is in a split.

    Args:
        keys: int64[n], ascending.
        pieces: The keys of the split, in any number of arrays.
    """
    mask = np.zeros(len(keys), np.bool_)
    for members in pieces:
        places = np.searchsorted(keys, members)
        is_within = places < len(keys)
        places, members = places[is_within], members[is_within]
        mask[places[keys[places] == members]] = True
    return mask


def check_schema(schema: GraphSchema, *, has_trainers: bool = False) -> None:
    """Refuse a graph that DGL's files cannot hold.

    Raises:
        SchemaError: The graph has text or rows of different lengths, a feature has the name of a split's data, or a
            name has a character that ends names.
    """
    check_names(schema)
    node_names, edge_names = dgl_names(schema)
    entities: list[tuple[str, Mapping[str, FeatureSchema], Iterable[str]]] = [
        (node_names[t], features, schema.splits.get(t, ())) for t, features in schema.nodes.items()
    ]
    entities += [
        (label_of(edge_names[t]), features, schema.edge_splits.get(t, ())) for t, features in schema.edges.items()
    ]
    for entity, features, splits in entities:
        taken = {*map(mask_name, splits), *([TRAINER_ID] if has_trainers else [])}
        for name, feature in features.items():
            if not feature.is_fixed_width:
                raise SchemaError(f"{entity}/{name} is text or ragged, which DGL's files cannot hold; leave it out")
            if name in taken:
                raise SchemaError(
                    f"{entity}/{name}: DGL's files use this name for a split or for trainers; rename the feature"
                )


def unsaid(source: PartSource) -> dict[str, Any]:
    """Return the facts that DGL's files do not store.

    These are splits, booleans, edge types of links to predict, and whether the data include trainers.
    """
    schema = source.schema
    node_names, edge_names = dgl_names(schema)
    label = {t: label_of(name) for t, name in edge_names.items()}
    return {
        "splits": {node_names[t]: list(of) for t, of in schema.splits.items()},
        "edge_splits": {label[t]: list(of) for t, of in schema.edge_splits.items() if of},
        "label_types": {label[t]: [label[other] for other in of] for t, of in schema.label_types.items()},
        "booleans": [
            *(f"{node_names[t]}/{n}" for t, of in schema.nodes.items() for n, f in of.items() if f.dtype == "bool"),
            *(f"{label[t]}/{n}" for t, of in schema.edges.items() for n, f in of.items() if f.dtype == "bool"),
        ],
        "has_trainers": source.has_trainers,
    }
