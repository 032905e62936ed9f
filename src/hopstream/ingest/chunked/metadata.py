"""Reads the metadata of chunked graphs; ``docs/large-graphs.md`` describes it for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from hopstream.checks import known_names
from hopstream.errors import FormatError, SchemaError, quoted
from hopstream.ingest.chunk_settings import DELIMITER, EDGE_FORMATS, FEATURE_FORMATS, FileFormat, check_delimiter
from hopstream.ingest.json_files import read_json
from hopstream.schema import EdgeType
from hopstream.uris import is_uri

OWN_FIELDS = frozenset({"graph_name", "node_type", "edge_type"})
TABLES_FIELD = "nodes"
"""A field that only the metadata of tables has."""
PARTITIONS_FIELD = "part-0"
"""A field that only the JSON file of DGL's partitions has."""
SHAPE = b"shape"
"""Key in a Parquet file's schema metadata: the shape of the file's whole array."""
RAGGED = b"ragged"
"""Key in a Parquet file's schema metadata: ``true`` declares that lists have any length."""
TRANSFORMS = "transforms"
"""Field of fitted transforms of tables; other readers of the format ignore it."""
MAX_COUNT = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpec:
    """The files of one table, in the order of its rows.

    Attributes:
        label: The table's name in messages: ``paper.feat``, or the name of an edge type.
        root: Folder of the metadata.
        names: File names as in the metadata.
        format: Format of the files.
        delimiter: One character; CSV only.
    """

    label: str
    root: Path
    names: tuple[str, ...] = ()
    format: FileFormat = "numpy"
    delimiter: str = DELIMITER

    def path(self, file: int) -> Path:
        """Return the path of a file."""
        return self.root / self.names[file]

    def shown(self, file: int) -> str:
        """Return the table and the file name, for the start of a message."""
        return f"{self.label}: {self.names[file]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSpec:
    """Metadata of one node type or edge type.

    Attributes:
        num_rows: Number of nodes or edges.
        chunk_rows: Number of rows of each chunk; None if the metadata does not give it.
        features: Feature name to files.
        ends: Edge files; None for nodes.
    """

    num_rows: int
    chunk_rows: tuple[int, ...] | None
    features: Mapping[str, FileSpec] = field(default_factory=dict)
    ends: FileSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedMetadata:
    """The metadata of a chunked graph."""

    name: str
    nodes: Mapping[str, TypeSpec]
    edges: Mapping[EdgeType, TypeSpec]
    transforms: Mapping[str, object] = field(default_factory=dict)


def describes_chunks(value: object) -> bool:
    """Return whether a JSON value has fields of a chunked graph's metadata, none of tables or partitions."""
    others = {TABLES_FIELD, PARTITIONS_FIELD}
    return isinstance(value, dict) and others.isdisjoint(value) and bool(OWN_FIELDS & value.keys())


def read_chunked_metadata(path: Path) -> ChunkedMetadata:
    """Read and check the metadata, and check that the files exist; the files are not opened.

    Raises:
        FormatError: The metadata is missing or not JSON, a file that it names is missing, or a format is unknown.
        SchemaError: A field is missing or of the wrong kind, counts contradict each other, a name is repeated or
            unknown, or a relative path leads out of the folder.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise SchemaError(f"{path} is {type(value).__name__}; wanted a JSON object")
    fields = _Fields(str(path), value)
    node_types = fields.names("node_type")
    edge_names = fields.names("edge_type")
    edge_types = [_edge_type(f"{path}: edge_type", name, node_types) for name in edge_names]
    node_counts = fields.counts("num_nodes", node_types)
    edge_counts = fields.counts("num_edges", edge_names)
    edges, node_data, edge_data = (fields.mapping(name) for name in ("edges", "node_data", "edge_data"))
    for name, given, known in (
        ("edges", edges, edge_names), ("node_data", node_data, node_types), ("edge_data", edge_data, edge_names),
    ):  # fmt: skip
        unknown = [key for key in given if key not in known]
        if unknown:
            types = "node_type" if name == "node_data" else "edge_type"
            raise SchemaError(f"{path}: {name} has {quoted(unknown[0])}; {types} has {list(known)}")
    nodes = {
        t: TypeSpec(
            num_rows=node_counts[t][0],
            chunk_rows=node_counts[t][1],
            features=_features(path, "node_data", t, node_data),
        )
        for t in node_types
    }
    found = {
        edge_type: _edge_spec(path, name, edge_counts[name], (edges, edge_data))
        for edge_type, name in zip(edge_types, edge_names, strict=True)
    }
    transforms = fields.mapping(TRANSFORMS) if TRANSFORMS in value else {}
    return ChunkedMetadata(name=fields.text("graph_name"), nodes=nodes, edges=found, transforms=transforms)


def _edge_type(where: str, name: str, node_types: Sequence[str]) -> EdgeType:
    words = tuple(name.split(":"))
    if len(words) != 3:
        raise SchemaError(f"{where} has {name!r}; wanted source:relation:destination")
    for end in (words[0], words[2]):
        if end not in node_types:
            raise SchemaError(f"{where} has {name!r}, which joins node type {end!r}; node_type has {list(node_types)}")
    return words


def _edge_spec(
    path: Path,
    name: str,
    counts: tuple[int, tuple[int, ...] | None],
    data: tuple[Mapping[str, object], Mapping[str, object]],
) -> TypeSpec:
    edges, edge_data = data
    num_edges, chunk_rows = counts
    where = f"{path}: edges[{name!r}]"
    ends = FileSpec(label=name, root=path.parent, format="csv")
    if name in edges:
        ends = _file_spec(path.parent, where, name, edges[name], EDGE_FORMATS)
    if num_edges and not ends.names:
        raise SchemaError(f"{where} lists no file; {num_edges} edges are declared")
    if chunk_rows is not None and len(chunk_rows) != len(ends.names) and (num_edges or ends.names):
        raise SchemaError(
            f"{where} lists {len(ends.names)} files; num_edges_per_chunk counts {len(chunk_rows)} chunks of {name}"
        )
    if chunk_rows is None and len(ends.names) == 1:
        chunk_rows = (num_edges,)
    features = _features(path, "edge_data", name, edge_data)
    return TypeSpec(num_rows=num_edges, chunk_rows=chunk_rows, features=features, ends=ends)


def _features(path: Path, name: str, entity: str, data: Mapping[str, object]) -> dict[str, FileSpec]:
    where = f"{path}: {name}[{entity!r}]"
    given = data.get(entity, {})
    if not isinstance(given, dict):
        raise SchemaError(f"{where} is {type(given).__name__}; wanted an object of features")
    return {
        feature: _file_spec(path.parent, f"{where}[{feature!r}]", f"{entity}.{feature}", value, FEATURE_FORMATS)
        for feature, value in given.items()
    }


def _file_spec(root: Path, where: str, label: str, value: object, formats: Sequence[FileFormat]) -> FileSpec:
    if not isinstance(value, dict) or not {"format", "data"} >= value.keys() or len(value) < 2:
        got = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise SchemaError(f"{where} is {got}; wanted an object with format and data")
    file_format, delimiter = _format(f"{where}.format", value["format"], formats)
    names = value["data"]
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise SchemaError(f"{where}.data is {names!r}; wanted a list of paths")
    spec = FileSpec(label=label, root=root, names=tuple(names), format=file_format, delimiter=delimiter)
    resolved_root = root.resolve()
    for file, name in enumerate(names):
        _check_path(f"{where}.data", name, spec.path(file), resolved_root)
    return spec


def _format(where: str, value: object, formats: Sequence[FileFormat]) -> tuple[FileFormat, str]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise SchemaError(f'{where} is {quoted(value)}; wanted {{"name": one of {", ".join(formats)}}}')
    name = value["name"]
    if name not in formats:
        raise FormatError(f"{where}.name is {name!r}; wanted one of {', '.join(formats)}")
    known = {"name", "delimiter"} if name == "csv" else {"name"}
    unknown = sorted(value.keys() - known)
    if unknown:
        raise SchemaError(f"{where} has unknown key {quoted(unknown[0])}; {known_names(unknown[0], sorted(known))}")
    delimiter = value.get("delimiter", DELIMITER)
    check_delimiter(f"{where}.delimiter", delimiter)
    return cast(FileFormat, name), delimiter


def _check_path(where: str, name: str, path: Path, resolved_root: Path) -> None:
    """Check that a file exists, and that a relative path stays in the folder of the metadata.

    Links are resolved for this check.
    """
    if is_uri(name) or ".." in Path(name).parts:
        raise SchemaError(
            f"{where} has {name!r}; wanted a local path, absolute or below the folder of the metadata, without .."
        )
    if "\0" in name or not path.is_file():
        raise FormatError(f"{where} has {name!r}, which does not exist in {resolved_root}")
    if not Path(name).is_absolute() and not path.resolve().is_relative_to(resolved_root):
        raise SchemaError(f"{where} has {name!r}, a link that leads out of {resolved_root}; give its absolute path")


class _Fields:
    """The top-level fields of the metadata.

    Unknown fields are ignored, because other writers add their own.
    """

    def __init__(self, where: str, value: Mapping[str, object]) -> None:
        self._where = where
        self._value = value

    def _take(self, name: str) -> object:
        if name not in self._value:
            told = "; it describes tables: convert them with hopstream chunk" if "nodes" in self._value else ""
            raise SchemaError(f"{self._where} lacks {name!r}; it has {sorted(self._value)}{told}")
        return self._value[name]

    def text(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str) or not value:
            raise SchemaError(f"{self._where}: {name} is {quoted(value)}; wanted a string")
        return value

    def names(self, name: str) -> list[str]:
        """Return a field that is a list of distinct strings."""
        value = self._take(name)
        if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
            raise SchemaError(f"{self._where}: {name} is {quoted(value)}; wanted a list of strings")
        repeated = [text for text in value if value.count(text) > 1]
        if repeated:
            raise SchemaError(f"{self._where}: {name} has {repeated[0]!r} twice")
        return cast(list[str], value)

    def mapping(self, name: str) -> Mapping[str, object]:
        value = self._take(name)
        if not isinstance(value, dict):
            raise SchemaError(f"{self._where}: {name} is {type(value).__name__}; wanted an object by type")
        return value

    def counts(self, name: str, types: Sequence[str]) -> dict[str, tuple[int, tuple[int, ...] | None]]:
        """Return for each type its total rows and its rows per chunk, or None for the latter if not given.

        The metadata gives the totals, the rows per chunk, or both.
        """
        per_type, per_chunk = f"{name}_per_type", f"{name}_per_chunk"
        if per_type not in self._value and per_chunk not in self._value:
            raise SchemaError(f"{self._where} has neither {per_type!r} nor {per_chunk!r}; it has {sorted(self._value)}")
        totals = self._list(per_type, types)
        chunks = self._list(per_chunk, types)
        found: dict[str, tuple[int, tuple[int, ...] | None]] = {}
        for position, entity in enumerate(types):
            total = None if totals is None else _count(f"{self._where}: {per_type}[{position}]", totals[position])
            rows = None if chunks is None else self._chunk_rows(per_chunk, position, chunks[position])
            if total is not None and rows is not None and total != sum(rows):
                raise SchemaError(
                    f"{self._where}: {entity} has {total} in {per_type}, but {per_chunk} adds up to {sum(rows)}"
                )
            found[entity] = (sum(rows or ()) if total is None else total, rows)
        return found

    def _list(self, name: str, types: Sequence[str]) -> list[object] | None:
        if name not in self._value:
            return None
        value = self._value[name]
        if not isinstance(value, list) or len(value) != len(types):
            got = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
            raise SchemaError(
                f"{self._where}: {name} has {got}; wanted a list with one entry for each of {list(types)}"
            )
        return value

    def _chunk_rows(self, name: str, position: int, value: object) -> tuple[int, ...]:
        where = f"{self._where}: {name}[{position}]"
        if not isinstance(value, list):
            raise SchemaError(f"{where} is {quoted(value)}; wanted a list of counts, one per chunk")
        return tuple(_count(f"{where}[{chunk}]", count) for chunk, count in enumerate(value))


def _count(where: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise SchemaError(f"{where} is {quoted(value)}; wanted an integer from 0 to {MAX_COUNT}")
    return value
