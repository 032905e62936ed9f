"""Reader, writer and checks of ``GraphSchema`` messages, and conversion to specs of graph tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import write_text
from hopstream.compat.tfgnn.examples import check_scalar
from hopstream.compat.tfgnn.graph_tensor import GraphTensor
from hopstream.compat.tfgnn.specs import CONTEXT, EDGES, NODES, GraphTensorSpec
from hopstream.errors import FormatError, SchemaError
from hopstream.tfgnn import graph_schema
from hopstream.tfgnn.messages import GRAPH_SCHEMA, message_class
from hopstream.tfgnn.spec import FieldSpec, GraphSpec, field_of
from hopstream.uris import local_path

GraphSchema = message_class(GRAPH_SCHEMA)
"""Class of ``GraphSchema`` messages."""
Feature = message_class("tensorflow_gnn.Feature")
"""Class of the message of one feature in a ``GraphSchema``."""


def parse_schema(schema_text: str | bytes) -> Any:
    """Parse a ``GraphSchema`` message from its text form.

    Raises:
        FormatError: The text is no ``GraphSchema``; the error names line and column.
    """
    try:
        text = schema_text if isinstance(schema_text, str) else schema_text.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"text: not a GraphSchema: not UTF-8 at byte {error.start}") from error
    return graph_schema.parse_schema(text)


def write_schema(schema: Any, filename: str | Path) -> None:
    """Write a ``GraphSchema`` message as text, with an atomic rename.

    Raises:
        OSError: The file cannot be written.
    """
    write_text(local_path(filename), graph_schema.message_text(schema))


def validate_schema(schema: Any) -> list[Exception]:
    """Refuse a schema that contradicts itself.

    Returns:
        Warnings about valid but unusual values, such as shape ``[1]``.

    Raises:
        SchemaError: The schema contradicts itself; the error lists all contradictions.
    """
    graph_schema.check_schema(schema)
    return [SchemaError(remark) for remark in graph_schema.schema_remarks(schema)]


def create_graph_spec_from_schema_pb(schema: Any, indices_dtype: Any = np.int32) -> GraphTensorSpec:
    """Return the spec of the graph tensors that a schema describes, of one component.

    Args:
        schema: A ``GraphSchema`` message.
        indices_dtype: dtype of sizes and indices, int32 or int64.

    Raises:
        SchemaError: A feature cannot be stored, or an edge set names a node set that does not exist.
    """
    return GraphTensorSpec.of_graph_spec(GraphSpec.of_schema(schema), indices_dtype)


def create_schema_pb_from_graph_spec(graph: GraphTensor | GraphTensorSpec) -> Any:
    """Make the ``GraphSchema`` of a graph tensor or spec: names, dtypes, shapes, ends of edge sets.

    Raises:
        SchemaError: ``graph`` is a batch, or a feature has a dtype that cannot be stored.
    """
    spec = graph.spec if isinstance(graph, GraphTensor) else graph
    check_scalar(spec, "create_schema_pb_from_graph_spec")
    return graph_schema.spec_message(spec.graph_spec())


def check_compatible_with_schema_pb(graph: GraphTensor | GraphTensorSpec, schema: Any) -> None:
    """Refuse a graph tensor or a spec that differs from a schema.

    Raises:
        SchemaError: Sets, features, dtypes or shapes differ; the error lists them.
    """
    spec = graph.spec if isinstance(graph, GraphTensor) else graph
    check_scalar(spec, "check_compatible_with_schema_pb")
    problems = create_graph_spec_from_schema_pb(schema, spec.indices_dtype).problems(spec)
    if problems:
        raise SchemaError(f"the graph does not match the schema: {'; '.join(problems)}")


def iter_sets(schema: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield type, name and value of the context and all sets of a schema or graph tensor."""
    if isinstance(schema, GraphTensor) or schema.HasField("context"):
        yield CONTEXT, "", schema.context
    for name in sorted(schema.node_sets):
        yield NODES, name, schema.node_sets[name]
    for name in sorted(schema.edge_sets):
        yield EDGES, name, schema.edge_sets[name]


def iter_features(schema: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Yield type and name of the set, and name and value, of all features of a schema or graph tensor."""
    for set_type, set_name, of in iter_sets(schema):
        for name in sorted(of.features):
            yield set_type, set_name, name, of.features[name]


def check_required_features(requirements: Any, actual: Any) -> None:
    """Refuse a schema that lacks the sets and features of another one.

    Args:
        requirements: A ``GraphSchema``. A feature without dtype or shape accepts any; a size of 0 accepts any size.
        actual: The schema to check.

    Raises:
        SchemaError: Sets or features are missing, or have another dtype or shape; the error lists all of them.
    """
    there = {key[:3]: key[3] for key in iter_features(actual)}
    sets = {key[:2] for key in iter_sets(actual)}
    problems = [f"{kind}/{name} is missing" for kind, name, _ in iter_sets(requirements) if (kind, name) not in sets]
    for *key, wanted in iter_features(requirements):
        where = f"{key[0]}/{key[1]}{'.' if key[1] else ''}{key[2]}"
        feature = there.get((key[0], key[1], key[2]))
        if feature is None:
            problems.append(f"{where} is missing")
        else:
            problems += _differences(where, wanted, feature)
    if problems:
        raise SchemaError(f"the schema lacks what is required: {'; '.join(sorted(problems))}")


def _differences(where: str, wanted: Any, feature: Any) -> Iterator[str]:
    got: FieldSpec = field_of(feature, where)
    if wanted.dtype and wanted.dtype != feature.dtype:
        yield f"{where} is {got.dtype}; wanted {field_of(wanted, where).dtype}"
    sizes, others = [dim.size for dim in wanted.shape.dim], [dim.size for dim in feature.shape.dim]
    fits = len(sizes) == len(others) and all(size in (0, other) for size, other in zip(sizes, others, strict=True))
    if wanted.HasField("shape") and not wanted.shape.unknown_rank and not fits:
        yield f"{where} has shape {others}; wanted {sizes}"
