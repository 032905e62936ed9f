"""Reads, checks and writes TF-GNN's ``GraphSchema``, and converts Hopstream's schema to one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from hopstream.errors import FormatError, SchemaError, quoted
from hopstream.places.paths import AnyPath, path_of, sorted_files
from hopstream.schema import STRING, EdgeType, FeatureSchema, GraphSchema, type_label
from hopstream.tfgnn.graph_tensor import SIZE, SOURCE, TARGET
from hopstream.tfgnn.list_reader import MAX_ITEMS
from hopstream.tfgnn.messages import GRAPH_SCHEMA, enum_names, message_class, pool
from hopstream.tfgnn.readout import readout_problems
from hopstream.tfgnn.spec import DTYPES, EdgeSetSpec, FieldSpec, GraphSpec, NodeSetSpec, field_of

MAX_SHOWN = 160
"""Most characters of protobuf's text about a syntax error."""
MAX_SCHEMA_BYTES = 64 << 20
AUXILIARY = re.compile(r"[_#!%.^~]")
"""First character of the names of auxiliary sets such as ``_readout``, which are not part of the data."""


def parse_message(text: str, name: str, where: str = "text") -> Any:
    """Parse a message from its text form.

    Args:
        text: The text.
        name: The full name of the message type, see ``messages``.
        where: Name of the text in errors.

    Raises:
        FormatError: The text is not such a message; the error names line and column.
    """
    message = message_class(name)()
    try:
        text_format.Parse(text, message, allow_unknown_extension=True, descriptor_pool=pool())
    except (text_format.ParseError, UnicodeError, RecursionError) as error:
        shown = str(error).splitlines()[0] if str(error) else type(error).__name__
        if len(shown) > MAX_SHOWN:  # protobuf repeats the line, of any length
            shown = f"{shown[:MAX_SHOWN]}…"
        raise FormatError(f"{where}: not a {name.rpartition('.')[2]}: {shown}") from error
    return message


def read_message(path: AnyPath, name: str) -> Any:
    """Read a message from a file.

    The file is in binary form if its suffix is ``.pb`` or ``.binarypb``, else in text form.

    Raises:
        FormatError: The file is not such a message.
        OSError: The file cannot be read.
    """
    if path.stat().st_size > MAX_SCHEMA_BYTES:
        raise FormatError(f"{path} has {path.stat().st_size} bytes; a {name.rpartition('.')[2]} has far fewer")
    data = path.read_bytes()
    if path.suffix in (".pb", ".binarypb"):
        try:
            return message_class(name).FromString(data)
        except DecodeError as error:
            raise FormatError(f"{path}: not a {name.rpartition('.')[2]}: {error}") from error
    try:
        return parse_message(data.decode(), name, str(path))
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a {name.rpartition('.')[2]}: not UTF-8 at byte {error.start}") from error


def message_text(message: Any) -> str:
    """Return the text form of a message, with sorted keys of maps."""
    return str(text_format.MessageToString(message, descriptor_pool=pool()))


def parse_schema(text: str) -> Any:
    """Parse a ``GraphSchema`` message from its text form.

    Raises:
        FormatError: The text is not a ``GraphSchema``; the error names line and column.
    """
    return parse_message(text, GRAPH_SCHEMA)


def names_tables(path: AnyPath) -> bool:
    """Return whether a file is a ``GraphSchema`` that names files of tables, like that of a unigraph."""
    try:
        schema = read_message(path, GRAPH_SCHEMA)
    except FormatError:
        return False
    sets = (schema.context, *schema.node_sets.values(), *schema.edge_sets.values())
    return any(one.metadata.filename for one in sets)


def schema_path(given: str | AnyPath) -> AnyPath:
    """Return the file of a schema: the given file, or the only ``.pbtxt`` of a folder.

    Raises:
        FormatError: The file does not exist, or the folder has no ``.pbtxt`` or several.
    """
    path = path_of(given)
    if path.is_dir():
        found = sorted_files(path, "*.pbtxt")
        if len(found) != 1:
            names = f": {', '.join(p.name for p in found)}" if found else ""
            raise FormatError(f"{path} has {len(found)} files *.pbtxt{names}; give the one that is the schema")
        return found[0]
    if not path.is_file():
        raise FormatError(f"{path} does not exist; give a GraphSchema in text form, or the folder that holds it")
    return path


def read_schema(path: str | AnyPath) -> Any:
    """Read a ``GraphSchema`` message from its file, or from the folder that contains it.

    Raises:
        FormatError: The file is missing or not a ``GraphSchema``; see ``schema_path``.
        OSError: The file cannot be read.
    """
    return read_message(schema_path(path), GRAPH_SCHEMA)


def check_schema(schema: Any, where: str = "schema") -> None:
    """Refuse a schema that contradicts itself.

    Raises:
        SchemaError: The schema contradicts itself; the message lists all problems.
    """
    problems = list(schema_problems(schema))
    if problems:
        more = "".join(f"\n  {problem}" for problem in problems)
        raise SchemaError(f"{where}: {problems[0]}" if len(problems) == 1 else f"{where}:{more}")


def schema_problems(schema: Any) -> Iterator[str]:
    """Yield the problems of a schema, one line each."""
    yield from _feature_problems("context", schema.context.features, ())
    for name, nodes in sorted(schema.node_sets.items()):
        where = f"node set {name!r}"
        if not name:
            yield "a node set has no name"
        yield from _feature_problems(where, nodes.features, (SIZE,))
        yield from _context_problems(where, nodes.context, schema)
    for name, edges in sorted(schema.edge_sets.items()):
        where = f"edge set {name!r}"
        if not name:
            yield "an edge set has no name"
        yield from _feature_problems(where, edges.features, (SIZE, SOURCE, TARGET))
        yield from _context_problems(where, edges.context, schema)
        for end in ("source", "target"):
            node_set = getattr(edges, end)
            if not node_set:
                yield f"{where} has no {end}"
            elif node_set not in schema.node_sets:
                known = ", ".join(sorted(schema.node_sets)) or "none"
                yield f"{where} has {end} {node_set!r}, which is not a node set; known: {known}"
    for node_set in schema.info.root_set:
        if node_set not in schema.node_sets:
            yield f"info.root_set names {node_set!r}, which is not a node set"
    yield from readout_problems(schema)


def schema_remarks(schema: Any) -> Iterator[str]:
    """Yield warnings about valid but suspicious features of a schema, one line each."""
    for where, features in _all_features(schema):
        for name, feature in sorted(features.items()):
            if [dim.size for dim in feature.shape.dim] == [1]:
                yield f"{where}: feature {name!r} has shape [1]; leave the shape out for one value per item"
            sizes = [max(1, dim.size) for dim in feature.shape.dim]
            if math.prod(sizes) > MAX_ITEMS:
                got = f"{where}: feature {name!r} has shape {[dim.size for dim in feature.shape.dim]}"
                yield f"{got}, which is {math.prod(sizes):,} values for each item"
            if feature.dtype and field_dtype(feature) == "float64":
                yield f"{where}: feature {name!r} is DT_DOUBLE, which is stored as DT_FLOAT"


def _all_features(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "context", schema.context.features
    yield from ((f"node set {name!r}", nodes.features) for name, nodes in sorted(schema.node_sets.items()))
    yield from ((f"edge set {name!r}", edges.features) for name, edges in sorted(schema.edge_sets.items()))


def field_dtype(feature: Any) -> str | None:
    """Return Hopstream's name of a feature's dtype; None if it cannot be stored."""
    try:
        return field_of(feature, "").dtype
    except SchemaError:
        return None


def _feature_problems(where: str, features: Mapping[str, Any], reserved: tuple[str, ...]) -> Iterator[str]:
    for name, feature in sorted(features.items()):
        what = f"{where}: feature {name!r}"
        if not name:
            yield f"{where}: a feature has no name"
        if name in reserved:
            yield f"{what} has a reserved name; rename it"
        if not feature.HasField("dtype") or not feature.dtype:
            yield f"{what} has no dtype"
        if any(dim.name for dim in feature.shape.dim):
            named = next(dim.name for dim in feature.shape.dim if dim.name)
            yield f"{what} has a dimension with the name {quoted(named)}; a description belongs to the feature"
        sizes = [dim.size for dim in feature.shape.dim]
        if min(sizes, default=0) < -1:
            yield f"{what} has shape {sizes}; sizes are 0 or more, or -1 for one that varies"
        try:
            spec = field_of(feature, what) if feature.dtype else FieldSpec(dtype=STRING)
        except SchemaError as error:
            yield str(error)
            continue
        for number in spec.ragged_dims:
            if f"{name}.d{number}" in features:
                yield f"{what} varies in size, so its row lengths are called {name}.d{number}, like another feature"


def _context_problems(where: str, names: Any, schema: Any) -> Iterator[str]:
    for name in names:
        if name not in schema.context.features:
            yield f"{where} names context feature {name!r}, which does not exist"


def columns_of(features: Mapping[str, Any], where: str) -> dict[str, FeatureSchema]:
    """Convert the features of a set to schemas of columns, in order of names.

    Names that begin with ``#`` are ids and weights, and are skipped.

    Raises:
        SchemaError: A feature has a dtype that cannot be stored, or a shape that no column has.
    """
    columns = {}
    for name, feature in sorted(features.items()):
        if name.startswith("#"):  # ids and weights, which are not features
            continue
        spec = field_of(feature, f"{where}: feature {name!r}")
        inner = spec.shape[1:] if spec.ragged_dims[:1] == (1,) else spec.shape
        if None in inner or (spec.is_string and spec.shape):
            raise SchemaError(
                f"{where}: feature {name!r} is {spec.dtype}{list(spec.shape)}; a column holds arrays of one shape, "
                "lists whose first dimension alone varies, or single strings"
            )
        fixed = tuple(size for size in inner if size is not None)
        columns[name] = FeatureSchema(
            dtype=STRING if spec.is_string else spec.numpy_dtype.name, shape=fixed, is_ragged=bool(spec.ragged_dims)
        )
    return columns


def schema_message(schema: GraphSchema) -> Any:
    """Convert Hopstream's schema to a ``GraphSchema`` message.

    The name of an edge set is its relation; if several edge types share the relation, it is ``src__rel__dst``.

    Raises:
        SchemaError: A column holds complex numbers, which TF-GNN does not store.
    """
    return spec_message(
        GraphSpec(
            node_sets={t: NodeSetSpec(features=_fields_of(columns)) for t, columns in schema.nodes.items()},
            edge_sets={
                name: EdgeSetSpec(source=t[0], target=t[2], features=_fields_of(schema.edges[t]))
                for name, t in edge_set_names(schema).items()
            },
        )
    )


def _fields_of(columns: Mapping[str, FeatureSchema]) -> dict[str, FieldSpec]:
    return {
        name: FieldSpec(dtype=column.dtype, shape=((None,) if column.is_ragged else ()) + column.shape)
        for name, column in columns.items()
    }


def edge_set_names(schema: GraphSchema) -> dict[str, EdgeType]:
    """Return the name of each edge type's edge set to the edge type."""
    relations = [edge_type[1] for edge_type in schema.edges]
    return {(t[1] if relations.count(t[1]) == 1 else type_label(t)): t for t in schema.edges}


def spec_message(spec: GraphSpec) -> Any:
    """Convert a spec to a ``GraphSchema`` message: names, dtypes, shapes, and the ends of edge sets.

    Raises:
        SchemaError: A feature is of a dtype that TF-GNN does not store.
    """
    message = message_class(GRAPH_SCHEMA)()
    _set_features(message.context, spec.context, "context")
    for name, nodes in spec.node_sets.items():
        message.node_sets[name].SetInParent()
        _set_features(message.node_sets[name], nodes.features, f"nodes/{name}")
    for name, edges in spec.edge_sets.items():
        message.edge_sets[name].source, message.edge_sets[name].target = edges.source, edges.target
        _set_features(message.edge_sets[name], edges.features, f"edges/{name}")
    return message


def _set_features(holder: Any, features: Mapping[str, FieldSpec], where: str) -> None:
    numbers = {DTYPES[name]: number for number, name in enum_names("tensorflow.DataType").items() if name in DTYPES}
    for name, spec in features.items():
        if spec.dtype not in numbers:
            raise SchemaError(f"{where}.{name} is {spec.dtype}; use one of {', '.join(numbers)}")
        feature = holder.features[name]
        feature.dtype = numbers[spec.dtype]
        for size in spec.shape:
            feature.shape.dim.add().size = -1 if size is None else size
