"""The schema of a graph: types of nodes and edges, and their features.

A graph is always typed: one node type and one edge type is just a small schema. The schema holds no sizes and no paths,
so the same schema describes a raw graph, a partitioned dataset and a served one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, cast

import numpy as np

from hopstream.checks import known_names
from hopstream.errors import SchemaError, UnknownNameError, quoted

EdgeType = tuple[str, str, str]
"""``(source node type, relation, destination node type)``."""

Direction = Literal["in", "out"]
"""``in`` groups edges by destination and follows them backwards; ``out`` groups by source and follows them forwards."""

NODE: str = "node"
EDGE: EdgeType = ("node", "to", "node")
NODE_ATTRIBUTES = frozenset(
    {"n_id", "input_id", "batch_size", "num_sampled_nodes", "num_nodes", "batch", "ptr", "seed_time"}
)
EDGE_ATTRIBUTES = frozenset({"edge_index", "e_id", "num_sampled_edges", "input_id", "batch_size"})
"""Names that PyG batches have for themselves, of nodes and of edges; batches of arrays keep features apart."""
ATTACHED_ATTRIBUTES = frozenset(
    {
        "edge_label", "edge_label_index", "edge_label_time", "src_index", "dst_pos_index", "dst_neg_index",
        "y_positive", "y_negative",
    }
)  # fmt: skip
"""Names of what loaders of links attach to batches beside ``input_id``, ``batch_size``, ``batch`` and ``seed_time``."""
PPR_ATTRIBUTES = frozenset({"ppr_edge_index", "ppr_edge_attr"})
"""Names of what loaders of PageRank neighbourhoods attach to batches."""
STRING = "string"
NUMERIC_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
MAX_NAME_LENGTH = 200
REVERSE_PREFIX = "rev_"
"""PyG's ``ToUndirected`` names the reverse of ``("a", "r", "b")`` ``("b", "rev_r", "a")``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSchema:
    """One column: a value of fixed shape per row, a ragged list per row, or a string per row.

    Attributes:
        dtype: A name out of ``NUMERIC_DTYPES``, or ``"string"`` (UTF-8).
        shape: Shape of one row's value; of one element where the column is ragged; ``()`` for strings.
        is_ragged: Rows hold different numbers of elements. A string column is not called ragged.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    is_ragged: bool = False

    def __post_init__(self) -> None:
        """Refuse dtypes and shapes that no column can have."""
        if self.dtype != STRING and self.dtype not in NUMERIC_DTYPES:
            raise SchemaError(f"dtype {self.dtype!r} is not one of {', '.join((*NUMERIC_DTYPES, STRING))}")
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in self.shape):
            raise SchemaError(f"shape {self.shape!r} must be non-negative integers")
        if self.dtype == STRING and (self.shape or self.is_ragged):
            raise SchemaError(f"a string column holds one string per row, got {self.shape=} {self.is_ragged=}")

    @property
    def is_string(self) -> bool:
        """Rows are strings."""
        return self.dtype == STRING

    @property
    def is_fixed_width(self) -> bool:
        """Every row takes the same number of bytes."""
        return not (self.is_ragged or self.is_string)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the stored values; strings are stored as UTF-8 bytes."""
        return np.dtype("uint8" if self.is_string else self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row where rows are of fixed width, of one element where they are ragged."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back."""
        return {"dtype": self.dtype, "shape": list(self.shape), "ragged": self.is_ragged}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FeatureSchema:
        """Read what ``to_json`` wrote; ``KeyError`` and ``TypeError`` where it is something else."""
        return cls(dtype=value["dtype"], shape=tuple(value["shape"]), is_ragged=bool(value["ragged"]))

    def __str__(self) -> str:
        """Name the column's type as error messages do, for example ``float32[rows, 128]``."""
        if self.is_string:
            return STRING
        dims = ", ".join(("rows", *(("ragged",) if self.is_ragged else ()), *map(str, self.shape)))
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSchema:
    """Node types, edge types and the features of each.

    Attributes:
        nodes: Node type to feature name to feature schema, in the order in which the types were declared.
        edges: Edge type to feature name to feature schema.
        splits: Node type to the names of its splits, for example ``{"paper": ("train", "val", "test")}``.
        edge_splits: Edge type to the names of its splits. An edge type that is named here, if only with ``()``, has its
            links kept: the ends of an edge can be found by its key.
        label_types: Edge type that holds links to predict to the edge types that its links were taken from: the one
            that messages follow first, then the one that holds the reverses. What holds labels is followed only where
            it is named.
    """

    nodes: Mapping[str, Mapping[str, FeatureSchema]]
    edges: Mapping[EdgeType, Mapping[str, FeatureSchema]]
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    edge_splits: Mapping[EdgeType, tuple[str, ...]] = field(default_factory=dict)
    label_types: Mapping[EdgeType, tuple[EdgeType, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names that no file could carry and edges between types that are not there."""
        if not self.nodes:
            raise SchemaError("a graph has at least one node type, got none")
        for node_type, features in self.nodes.items():
            _check_names(f"node type {node_type!r}", (node_type, *features))
        for edge_type, features in self.edges.items():
            if not isinstance(edge_type, tuple) or len(edge_type) != 3:
                raise SchemaError(f"edge type {edge_type!r} must be a (source, relation, destination) tuple")
            _check_names(f"edge type {edge_type!r}", (*edge_type, *features))
            for end in (edge_type[0], edge_type[2]):
                if end not in self.nodes:
                    raise SchemaError(
                        f"edge type {edge_type!r} joins node type {end!r}; {known_names(end, self.nodes)}"
                    )
        by_label: dict[str, EdgeType] = {}
        for edge_type in self.edges:
            other = by_label.setdefault(type_label(edge_type), edge_type)
            if other != edge_type:
                raise SchemaError(f"edge types {other!r} and {edge_type!r} are both written {type_label(edge_type)}")
        self._check_splits()
        self._check_label_types()

    def _check_splits(self) -> None:
        for node_type, names in self.splits.items():
            self.check_node_type(node_type)
            _check_names(f"splits of {node_type!r}", names)
        for edge_type, names in self.edge_splits.items():
            self.check_edge_type(edge_type)
            _check_names(f"splits of {type_label(edge_type)}", names)

    def _check_label_types(self) -> None:
        for label_type, taken_from in self.label_types.items():
            self.check_edge_type(label_type)
            where = f"label_types: {label_type!r} is said to be taken from"
            if not isinstance(taken_from, tuple) or not taken_from or len(set(taken_from)) < len(taken_from):
                raise SchemaError(f"{where} {taken_from!r}; give a tuple of edge types, each once")
            for edge_type in taken_from:
                self.check_edge_type(edge_type)
                ends = (edge_type[0], edge_type[2])
                if edge_type == label_type or (label_type[0], label_type[2]) not in (ends, ends[::-1]):
                    raise SchemaError(f"{where} {edge_type!r}, which is not another edge type between the same nodes")

    @property
    def message_types(self) -> tuple[EdgeType, ...]:
        """Edge types that are followed by default, which are all that hold no links to predict."""
        return tuple(edge_type for edge_type in self.edges if edge_type not in self.label_types)

    def holders_of(self, edge_type: EdgeType) -> tuple[tuple[EdgeType, bool], ...]:
        """Where else links of an edge type are, or (True) their reverses, as far as ``label_types`` says.

        The links of a label type are in the types that they were taken from. Between two node types the ends of these
        tell links from reverses; between nodes of one type the first holds the links and the others the reverses.
        """
        found = [(edge_type, False)]
        for here, is_back in found:
            for one, other, is_reverse in self._links_taken():
                for start, end in ((one, other), (other, one)):
                    if start == here and (end, is_back != is_reverse) not in found:
                        found.append((end, is_back != is_reverse))
        return tuple(found[1:])

    def _links_taken(self) -> list[tuple[EdgeType, EdgeType, bool]]:
        """Label type, an edge type that its links were taken from, and whether that holds their reverses."""
        return [
            (label, t, number > 0 if t[0] == t[2] else label[0] != t[0])
            for label, taken_from in self.label_types.items()
            for number, t in enumerate(taken_from)
        ]

    @property
    def is_homogeneous(self) -> bool:
        """The types are ``node`` and ``(node, to, node)``, the names a graph without types is given."""
        return list(self.nodes) == [NODE] and list(self.edges) in ([EDGE], [])

    def check_node_type(self, node_type: str) -> None:
        """Raise ``UnknownNameError`` unless the schema has this node type."""
        if node_type not in self.nodes:
            raise UnknownNameError(f"unknown node type {node_type!r}; {known_names(node_type, self.nodes)}")

    def check_edge_type(self, edge_type: EdgeType) -> None:
        """Raise ``UnknownNameError`` unless the schema has this edge type."""
        if edge_type not in self.edges:
            raise UnknownNameError(f"unknown edge type {edge_type!r}; {known_names(edge_type, self.edges)}")

    def edge_type_of(self, given: object, others: Iterable[str] = ()) -> EdgeType:
        """The edge type that is meant by a tuple or list, or by ``src__rel__dst``.

        ``others`` are names beside edge types that would do, for the message.

        Raises:
            UnknownNameError: The schema has no such edge type.
        """
        edge_type = self.find_edge_type(given)
        if edge_type is None:
            raise UnknownNameError(f"unknown edge type {given!r}; {known_names(given, [*self.edges, *others])}")
        return edge_type

    def find_edge_type(self, given: object) -> EdgeType | None:
        """The edge type that is meant, or None where the value is neither three strings nor a known ``src__rel__dst``.

        Raises:
            UnknownNameError: Three strings that are no edge type of the schema.
        """
        if isinstance(given, str):
            return next((edge_type for edge_type in self.edges if type_label(edge_type) == given), None)
        if not isinstance(given, list | tuple) or len(given) != 3 or not all(isinstance(word, str) for word in given):
            return None
        edge_type = cast(EdgeType, tuple(given))
        self.check_edge_type(edge_type)
        return edge_type

    def feature(self, entity: str | EdgeType, name: str) -> FeatureSchema:
        """The schema of one feature of a node type (a string) or an edge type (a tuple).

        Raises:
            UnknownNameError: The schema has no such type or feature.
        """
        if isinstance(entity, str):
            self.check_node_type(entity)
            features = self.nodes[entity]
        else:
            self.check_edge_type(entity)
            features = self.edges[entity]
        if name not in features:
            raise UnknownNameError(f"{type_label(entity)} has no feature {name!r}; {known_names(name, features)}")
        return features[name]

    def to_json(self) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back to an equal schema; without label types it does not name them."""
        label_types = [
            {"type": list(t), "taken_from": [list(other) for other in of]} for t, of in self.label_types.items()
        ]
        return {
            "nodes": {t: {n: f.to_json() for n, f in fs.items()} for t, fs in self.nodes.items()},
            "edges": [
                {"type": list(t), "features": {n: f.to_json() for n, f in fs.items()}} for t, fs in self.edges.items()
            ],
            "splits": {t: list(names) for t, names in self.splits.items()},
            "edge_splits": [{"type": list(t), "names": list(names)} for t, names in self.edge_splits.items()],
            **({"label_types": label_types} if label_types else {}),
        }

    @classmethod
    def from_json(cls, value: object) -> GraphSchema:
        """Read what ``to_json`` wrote.

        Raises:
            SchemaError: The value is not a schema.
        """
        try:
            record = cast(dict[str, Any], value)
            edge_types = [tuple(e["type"]) for e in record["edges"]]
            if len(set(edge_types)) < len(edge_types):
                raise SchemaError(f"edge types are listed twice: {edge_types}")
            return cls(
                nodes={t: {n: FeatureSchema.from_json(f) for n, f in fs.items()} for t, fs in record["nodes"].items()},
                edges={
                    cast(EdgeType, tuple(e["type"])): {n: FeatureSchema.from_json(f) for n, f in e["features"].items()}
                    for e in record["edges"]
                },
                splits={t: tuple(names) for t, names in record.get("splits", {}).items()},
                edge_splits={
                    cast(EdgeType, tuple(e["type"])): tuple(e["names"]) for e in record.get("edge_splits", [])
                },
                label_types={
                    cast(EdgeType, tuple(e["type"])): tuple(cast(EdgeType, tuple(t)) for t in e["taken_from"])
                    for e in record.get("label_types", [])
                },
            )
        except (KeyError, TypeError, AttributeError) as error:
            shown = json.dumps(value, default=str)[:200]
            raise SchemaError(f"not a graph schema ({error!r}): {shown}") from error


def timed_edge_types(schema: GraphSchema, time_attr: str | None, direction: Direction) -> tuple[EdgeType, ...]:
    """Edge types whose edges have a time: their own, that of the neighbour they lead to, or the later of the two."""
    if time_attr is None:
        return ()
    return tuple(
        edge_type
        for edge_type, features in schema.edges.items()
        if time_attr in features or time_attr in schema.nodes[edge_type[0] if direction == "in" else edge_type[2]]
    )


def reverse_by_name(edge_type: EdgeType, among: Container[EdgeType]) -> EdgeType | None:
    """The edge type out of some that holds an edge type's reverses, as names have it, or None.

    ``("a", "r", "b")`` and ``("b", "rev_r", "a")`` are each other's reverses; an edge type between nodes of one type
    without such a partner is its own.
    """
    src, relation, dst = edge_type
    names = [REVERSE_PREFIX + relation]
    if relation.startswith(REVERSE_PREFIX):
        names.append(relation.removeprefix(REVERSE_PREFIX))
    partners = [(dst, name, src) for name in names if (dst, name, src) in among]
    return partners[0] if partners else edge_type if src == dst else None


def is_edge_type(value: object) -> TypeGuard[EdgeType]:
    """Whether a value is a tuple of three names: source type, relation, destination type."""
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(name, str) for name in value)


def type_label(entity: str | EdgeType) -> str:
    """A type as messages and file names show it: ``paper`` or ``author__writes__paper``."""
    return entity if isinstance(entity, str) else "__".join(entity)


def _check_names(where: str, names: tuple[str, ...]) -> None:
    for name in names:
        if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise SchemaError(f"{where}: name {quoted(name)} must be 1 to {MAX_NAME_LENGTH} printable characters")
        if name in (".", ".."):
            raise SchemaError(f"{where}: name {name!r} would be a folder's own name or its parent's")
