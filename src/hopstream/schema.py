"""Schema of a graph: node types, edge types and their features.

Every graph is typed; a graph without types has one node type and one edge type. A schema holds no sizes and no paths,
so one schema describes a graph in memory, a partitioned dataset and a served one.
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
"""The node type of a graph without types."""
EDGE: EdgeType = ("node", "to", "node")
"""The edge type of a graph without types."""
NODE_ATTRIBUTES = frozenset(
    {"n_id", "input_id", "batch_size", "num_sampled_nodes", "num_nodes", "batch", "ptr", "seed_time"}
)
EDGE_ATTRIBUTES = frozenset({"edge_index", "e_id", "num_sampled_edges", "input_id", "batch_size"})
"""Attributes that every PyG batch has for nodes and for edges. Batches of arrays keep features apart from these."""
ATTACHED_ATTRIBUTES = frozenset(
    {
        "edge_label", "edge_label_index", "edge_label_time", "src_index", "dst_pos_index", "dst_neg_index",
        "y_positive", "y_negative",
    }
)  # fmt: skip
"""Attributes that link loaders add to batches beside ``input_id``, ``batch_size``, ``batch`` and ``seed_time``."""
PPR_ATTRIBUTES = frozenset({"ppr_edge_index", "ppr_edge_attr"})
"""Attributes that loaders of PageRank neighbourhoods add to batches."""
STRING = "string"
NUMERIC_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
DTYPES = {**{name: np.dtype(name) for name in NUMERIC_DTYPES}, STRING: np.dtype("uint8")}
"""Dtype of the stored values, by the dtype's name in a schema."""
MAX_NAME_LENGTH = 200
REVERSE_PREFIX = "rev_"
"""PyG's ``ToUndirected`` names the reverse of ``("a", "r", "b")`` ``("b", "rev_r", "a")``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSchema:
    """Schema of a column: a value of fixed shape, a ragged list, or a string per row.

    Attributes:
        dtype: One of ``NUMERIC_DTYPES``, or ``"string"`` (UTF-8).
        shape: Shape of one row's value; for ragged columns, of one element; ``()`` for strings.
        is_ragged: Rows hold any number of elements; False for strings.
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
        """Whether rows are strings."""
        return self.dtype == STRING

    @property
    def is_fixed_width(self) -> bool:
        """Whether every row takes the same number of bytes."""
        return not (self.is_ragged or self.is_string)

    @property
    def can_be_times(self) -> bool:
        """Whether rows hold one integer each."""
        return self.is_fixed_width and not self.shape and self.numpy_dtype.kind in "iu"

    @property
    def can_be_weights(self) -> bool:
        """Whether rows hold one real number each, as a scalar or as an array of shape [1]."""
        return self.is_fixed_width and self.shape in ((), (1,)) and self.numpy_dtype.kind in "iuf"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the stored values; strings are stored as UTF-8 bytes."""
        return DTYPES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of fixed width; for ragged columns and strings, of one element."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value for ``from_json``."""
        return {"dtype": self.dtype, "shape": list(self.shape), "ragged": self.is_ragged}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FeatureSchema:
        """Read what ``to_json`` wrote.

        Raises:
            KeyError: A key is missing.
            TypeError: A value is of the wrong type.
            SchemaError: No column can have this dtype and shape.
        """
        return cls(dtype=value["dtype"], shape=tuple(value["shape"]), is_ragged=bool(value["ragged"]))

    def __str__(self) -> str:
        """Return the column's type for messages, for example ``float32[rows, 128]``."""
        if self.is_string:
            return STRING
        dims = ", ".join(("rows", *(("ragged",) if self.is_ragged else ()), *map(str, self.shape)))
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSchema:
    """Node types, edge types and the features of each.

    Attributes:
        nodes: Node type to feature name to feature schema, in order of declaration.
        edges: Edge type to feature name to feature schema.
        splits: Node type to the names of its splits, for example ``{"paper": ("train", "val", "test")}``.
        edge_splits: Edge type to the names of its splits. For every edge type in this mapping, even with ``()``, the
            dataset keeps its links, so that the ends of an edge can be looked up by its key.
        label_types: Label type (an edge type of links to predict) to the edge types that its links were taken from:
            first the type that messages follow, then the type of its reverses. Sampling follows a label type only if
            it is named explicitly.
    """

    nodes: Mapping[str, Mapping[str, FeatureSchema]]
    edges: Mapping[EdgeType, Mapping[str, FeatureSchema]]
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    edge_splits: Mapping[EdgeType, tuple[str, ...]] = field(default_factory=dict)
    label_types: Mapping[EdgeType, tuple[EdgeType, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check names, types and splits.

        Raises:
            SchemaError: A name cannot be a file name, an edge type joins an unknown node type, two edge types have the
                same label, or a label type is inconsistent.
            UnknownNameError: Splits or label types name an unknown type.
        """
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
            where = f"label_types: {label_type!r} is taken from"
            if not isinstance(taken_from, tuple) or not taken_from or len(set(taken_from)) < len(taken_from):
                raise SchemaError(f"{where} {taken_from!r}; give a tuple of edge types, each once")
            for edge_type in taken_from:
                self.check_edge_type(edge_type)
                ends = (edge_type[0], edge_type[2])
                if edge_type == label_type or (label_type[0], label_type[2]) not in (ends, ends[::-1]):
                    raise SchemaError(f"{where} {edge_type!r}, which is not another edge type between the same nodes")

    @property
    def message_types(self) -> tuple[EdgeType, ...]:
        """The edge types that sampling follows by default: all but label types."""
        return tuple(edge_type for edge_type in self.edges if edge_type not in self.label_types)

    def holders_of(self, edge_type: EdgeType) -> tuple[tuple[EdgeType, bool], ...]:
        """List the other edge types that hold links of an edge type or, with True, their reverses.

        The relation follows ``label_types``: the links of a label type are in the types that they were taken from.
        Between two node types, the ends of these types tell links from reverses. Between nodes of one type, the first
        type holds the links and the others the reverses.
        """
        found = [(edge_type, False)]
        for here, is_back in found:
            for one, other, is_reverse in self._links_taken():
                for start, end in ((one, other), (other, one)):
                    if start == here and (end, is_back != is_reverse) not in found:
                        found.append((end, is_back != is_reverse))
        return tuple(found[1:])

    def _links_taken(self) -> list[tuple[EdgeType, EdgeType, bool]]:
        """List each label type with each edge type that its links were taken from.

        The third value tells whether that edge type holds the reverses.
        """
        return [
            (label, t, number > 0 if t[0] == t[2] else label[0] != t[0])
            for label, taken_from in self.label_types.items()
            for number, t in enumerate(taken_from)
        ]

    @property
    def is_homogeneous(self) -> bool:
        """Whether the types are ``node`` and ``(node, to, node)``, as in a graph without types."""
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
        """Return the edge type given as a tuple or list, or as ``src__rel__dst``.

        The message also lists ``others``, valid names that are not edge types.

        Raises:
            UnknownNameError: The schema has no such edge type.
        """
        edge_type = self.find_edge_type(given)
        if edge_type is None:
            raise UnknownNameError(f"unknown edge type {given!r}; {known_names(given, [*self.edges, *others])}")
        return edge_type

    def find_edge_type(self, given: object) -> EdgeType | None:
        """Return the given edge type, a tuple or list of three strings or ``src__rel__dst``.

        None if the value is something else, or an unknown string.

        Raises:
            UnknownNameError: The value is three strings, and no edge type of the schema.
        """
        if isinstance(given, str):
            return next((edge_type for edge_type in self.edges if type_label(edge_type) == given), None)
        if not isinstance(given, list | tuple) or len(given) != 3 or not all(isinstance(word, str) for word in given):
            return None
        edge_type = cast(EdgeType, tuple(given))
        self.check_edge_type(edge_type)
        return edge_type

    def feature(self, entity: str | EdgeType, name: str) -> FeatureSchema:
        """Return the schema of one feature of a node type (a string) or an edge type (a tuple).

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
        """Return a JSON value for ``from_json``; the key ``label_types`` is omitted if there are none."""
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
    """List the edge types whose edges have a time.

    The time of an edge is its own, the time of the neighbour that the edge leads to, or the later of both.
    """
    if time_attr is None:
        return ()
    return tuple(
        edge_type
        for edge_type, features in schema.edges.items()
        if time_attr in features or time_attr in schema.nodes[edge_type[0] if direction == "in" else edge_type[2]]
    )


def reverse_by_name(edge_type: EdgeType, among: Container[EdgeType]) -> EdgeType | None:
    """Find by name the edge type in ``among`` that holds the reverses of an edge type, or None.

    ``("a", "r", "b")`` and ``("b", "rev_r", "a")`` are reverses of each other. An edge type between nodes of one type
    that has no such partner is its own reverse.
    """
    src, relation, dst = edge_type
    names = [REVERSE_PREFIX + relation]
    if relation.startswith(REVERSE_PREFIX):
        names.append(relation.removeprefix(REVERSE_PREFIX))
    partners = [(dst, name, src) for name in names if (dst, name, src) in among]
    return partners[0] if partners else edge_type if src == dst else None


def is_edge_type(value: object) -> TypeGuard[EdgeType]:
    """Return whether a value is a tuple of three names: source type, relation, destination type."""
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(name, str) for name in value)


def type_label(entity: str | EdgeType) -> str:
    """Return a type's name for messages and file names: ``paper`` or ``author__writes__paper``."""
    return entity if isinstance(entity, str) else "__".join(entity)


def _check_names(where: str, names: tuple[str, ...]) -> None:
    for name in names:
        if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise SchemaError(f"{where}: name {quoted(name)} must be 1 to {MAX_NAME_LENGTH} printable characters")
        if name in (".", ".."):
            raise SchemaError(f"{where}: name {name!r} means the folder itself or its parent")
