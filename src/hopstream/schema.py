"""What types of nodes, edges and features does a graph have?

A graph is always typed: one node type and one edge type is just a small schema. The schema holds no sizes and no paths,
so the same schema describes a raw graph, a partitioned dataset and a served one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from hopstream.errors import SchemaError, UnknownNameError

EdgeType = tuple[str, str, str]
"""``(source node type, relation, destination node type)``."""

Direction = Literal["in", "out"]
"""``in`` groups edges by destination and follows them backwards; ``out`` groups by source and follows them forwards."""

NODE: str = "node"
EDGE: EdgeType = ("node", "to", "node")
STRING = "string"
NUMERIC_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
MAX_NAME_LENGTH = 200


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
        return int(np.prod(self.shape, dtype=np.int64)) * self.numpy_dtype.itemsize

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
    """

    nodes: Mapping[str, Mapping[str, FeatureSchema]]
    edges: Mapping[EdgeType, Mapping[str, FeatureSchema]]
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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
                    raise SchemaError(f"edge type {edge_type!r} joins node type {end!r}; known: {list(self.nodes)}")
        by_label: dict[str, EdgeType] = {}
        for edge_type in self.edges:
            other = by_label.setdefault(type_label(edge_type), edge_type)
            if other != edge_type:
                raise SchemaError(f"edge types {other!r} and {edge_type!r} are both written {type_label(edge_type)}")
        for node_type, names in self.splits.items():
            self.check_node_type(node_type)
            _check_names(f"splits of {node_type!r}", names)

    @property
    def is_homogeneous(self) -> bool:
        """The types are ``node`` and ``(node, to, node)``, the names a graph without types is given."""
        return list(self.nodes) == [NODE] and list(self.edges) in ([EDGE], [])

    def check_node_type(self, node_type: str) -> None:
        """Raise ``UnknownNameError`` unless the schema has this node type."""
        if node_type not in self.nodes:
            raise UnknownNameError(f"unknown node type {node_type!r}; known: {list(self.nodes)}")

    def check_edge_type(self, edge_type: EdgeType) -> None:
        """Raise ``UnknownNameError`` unless the schema has this edge type."""
        if edge_type not in self.edges:
            raise UnknownNameError(f"unknown edge type {edge_type!r}; known: {list(self.edges)}")

    def feature(self, owner: str | EdgeType, name: str) -> FeatureSchema:
        """The schema of one feature of a node type (a string) or an edge type (a tuple).

        Raises:
            UnknownNameError: The schema has no such type or feature.
        """
        if isinstance(owner, str):
            self.check_node_type(owner)
            features = self.nodes[owner]
        else:
            self.check_edge_type(owner)
            features = self.edges[owner]
        if name not in features:
            raise UnknownNameError(f"{type_label(owner)} has no feature {name!r}; known: {list(features)}")
        return features[name]

    def to_json(self) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back to an equal schema."""
        return {
            "nodes": {t: {n: _feature_to_json(f) for n, f in fs.items()} for t, fs in self.nodes.items()},
            "edges": [
                {"type": list(t), "features": {n: _feature_to_json(f) for n, f in fs.items()}}
                for t, fs in self.edges.items()
            ],
            "splits": {t: list(names) for t, names in self.splits.items()},
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
                nodes={t: {n: _feature_from_json(f) for n, f in fs.items()} for t, fs in record["nodes"].items()},
                edges={
                    cast(EdgeType, tuple(e["type"])): {n: _feature_from_json(f) for n, f in e["features"].items()}
                    for e in record["edges"]
                },
                splits={t: tuple(names) for t, names in record.get("splits", {}).items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            shown = json.dumps(value, default=str)[:200]
            raise SchemaError(f"not a graph schema ({error!r}): {shown}") from error


def type_label(owner: str | EdgeType) -> str:
    """A type as messages and file names show it: ``paper`` or ``author__writes__paper``."""
    return owner if isinstance(owner, str) else "__".join(owner)


def _feature_to_json(feature: FeatureSchema) -> dict[str, Any]:
    return {"dtype": feature.dtype, "shape": list(feature.shape), "ragged": feature.is_ragged}


def _feature_from_json(value: dict[str, Any]) -> FeatureSchema:
    return FeatureSchema(dtype=value["dtype"], shape=tuple(value["shape"]), is_ragged=bool(value["ragged"]))


def _check_names(where: str, names: tuple[str, ...]) -> None:
    for name in names:
        if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise SchemaError(f"{where}: name {name!r} must be 1 to {MAX_NAME_LENGTH} printable characters")
        if name in (".", ".."):
            raise SchemaError(f"{where}: name {name!r} would be a folder's own name or its parent's")
