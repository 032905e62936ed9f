"""Spec of a graph tensor: its node sets, edge sets and features.

A spec is the part of a ``GraphSchema`` that encoding and decoding need: names, dtypes and shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopstream.errors import SchemaError
from hopstream.schema import STRING
from hopstream.tfgnn.messages import enum_names

DTYPES = {
    "DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_HALF": "float16", "DT_BFLOAT16": "bfloat16",
    "DT_INT8": "int8", "DT_INT16": "int16", "DT_INT32": "int32", "DT_INT64": "int64",
    "DT_UINT8": "uint8", "DT_UINT16": "uint16", "DT_UINT32": "uint32", "DT_UINT64": "uint64",
    "DT_BOOL": "bool", "DT_STRING": STRING,
}  # fmt: skip
"""TensorFlow's names of the dtypes that a feature can have to the names used here."""
_MEMORY_DTYPES = {"bfloat16": "float32", STRING: "uint8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """Dtype and shape of one feature.

    Attributes:
        dtype: A numpy name, ``bfloat16`` (float32 in memory), or ``string``.
        shape: Shape of one item's value; None for a dimension of varying size.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Dtype of the values in memory; strings are bytes."""
        return np.dtype(_MEMORY_DTYPES.get(self.dtype, self.dtype))

    @property
    def is_string(self) -> bool:
        """Whether values are strings."""
        return self.dtype == STRING

    @property
    def ragged_dims(self) -> tuple[int, ...]:
        """Numbers of the dimensions that vary, as in the names of row lengths.

        Dimension 0 is that of the items.
        """
        return tuple(number for number, size in enumerate(self.shape, 1) if size is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetSpec:
    """A node set: its features by name."""

    features: Mapping[str, FieldSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSetSpec:
    """An edge set: the node sets of its ends, and its features by name."""

    source: str
    target: str
    features: Mapping[str, FieldSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSpec:
    """A graph tensor: the features of its context, its node sets and its edge sets."""

    context: Mapping[str, FieldSpec] = field(default_factory=dict)
    node_sets: Mapping[str, NodeSetSpec] = field(default_factory=dict)
    edge_sets: Mapping[str, EdgeSetSpec] = field(default_factory=dict)

    @classmethod
    def of_schema(cls, schema: Any) -> GraphSpec:
        """Return the spec of a ``GraphSchema`` message.

        Raises:
            SchemaError: A feature has a dtype that cannot be stored, or no known rank.
        """
        return cls(
            context=_fields(schema.context.features, "context"),
            node_sets={
                name: NodeSetSpec(features=_fields(nodes.features, f"nodes/{name}"))
                for name, nodes in sorted(schema.node_sets.items())
            },
            edge_sets={
                name: EdgeSetSpec(
                    source=edges.source, target=edges.target, features=_fields(edges.features, f"edges/{name}")
                )
                for name, edges in sorted(schema.edge_sets.items())
            },
        )


def _fields(features: Any, where: str) -> dict[str, FieldSpec]:
    return {name: field_of(features[name], f"{where}.{name}") for name in sorted(features)}


def field_of(feature: Any, where: str) -> FieldSpec:
    """Return the spec of a ``Feature`` message.

    Raises:
        SchemaError: The dtype cannot be stored, or the rank is unknown.
    """
    tf_name = enum_names("tensorflow.DataType").get(feature.dtype, str(feature.dtype))
    if tf_name not in DTYPES:
        raise SchemaError(f"{where} has dtype {tf_name}; use one of {', '.join(DTYPES)}")
    if feature.shape.unknown_rank:
        raise SchemaError(f"{where} has a shape of unknown rank; list its dimensions, with -1 for one that varies")
    return FieldSpec(dtype=DTYPES[tf_name], shape=tuple(None if d.size < 0 else d.size for d in feature.shape.dim))
