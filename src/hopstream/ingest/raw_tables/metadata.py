"""Reads the description of tables, a JSON file or a dict; ``docs/graphs.md`` describes it for users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from hopstream.checks import known_names
from hopstream.errors import FormatError, SchemaError, quoted
from hopstream.ingest.json_files import read_json
from hopstream.places.paths import AnyPath, is_below, sorted_files
from hopstream.schema import NUMERIC_DTYPES, STRING, EdgeType, FeatureSchema, type_label
from hopstream.uris import is_uri

if TYPE_CHECKING:
    from hopstream.ingest.transforms.chain import Chain

TableFormat = Literal["csv", "parquet", "tfrecord", "arrow"]
IdDtype = Literal["int64", "string"]

FORMAT_OF_SUFFIX: dict[str, TableFormat] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".csv.gz": "csv",
    ".tsv.gz": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
Description = Mapping[str, object]
"""Description of tables: a dict with the keys of the JSON file, in which tables may be in memory."""
DESCRIPTION = Path("description")
"""Name of a description in memory in messages."""
DTYPES = (*(name for name in NUMERIC_DTYPES if not name.startswith("complex")), STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The files of one table, in the order of its rows, and their format.

    Attributes:
        root: Folder of the file that describes the tables; messages show paths relative to it.
        paths: At least one file; for a table in memory, its name.
        format: ``csv``, ``parquet`` or ``tfrecord``; ``arrow`` for a table in memory.
        delimiter: One character; CSV only.
        column_names: Names of the columns in files without a header; CSV only.
        headless: Files without a header; None if ``column_names`` apply to all files.
        null_values: Cells that mean "no value"; CSV only. An empty cell of a string column is an empty string.
        other_names: Column name to alternative names, for files that do not have that column.
        columns: Schema of each column; TFRecord only, because these files do not contain it.
        columns_said_by: First words of a message about the expected schema of a column; TFRecord only.
        table: A table in memory, see ``hopstream.ingest.raw_tables.frames``; None for files.
    """

    root: AnyPath
    paths: tuple[AnyPath, ...]
    format: TableFormat
    delimiter: str = ","
    column_names: tuple[str, ...] | None = None
    headless: tuple[AnyPath, ...] | None = None
    null_values: tuple[str, ...] = ("",)
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    columns: Mapping[str, FeatureSchema] = field(default_factory=dict)
    columns_said_by: str = "the schema says"
    table: object = field(default=None, compare=False)

    def names_in(self, path: AnyPath) -> tuple[str, ...] | None:
        """Return the names of the columns of a file without a header; None if it has one."""
        return self.column_names if self.headless is None or path in self.headless else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """The columns of a table that form one feature.

    Attributes:
        columns: One column, or several that form a vector.
        is_vector: The feature was given as a list of columns, possibly of length 1.
        dtype: Dtype that the values must have; None for the dtype of the file.
        shape: Shape of one row, to read a Parquet column of lists as one of fixed width; else None.
        is_cast: Convert other dtypes to ``dtype`` if no value is lost.
        fill: JSON value for empty cells; None if empty cells are errors.
        schema: The complete schema of the feature, if the description gives it (unigraphs); else None.
        transform: Transforms of its rows, or None.
    """

    columns: tuple[str, ...]
    is_vector: bool = False
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    is_cast: bool = False
    fill: object = None
    schema: FeatureSchema | None = None
    transform: Chain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTableSpec:
    """Node type, with or without a table.

    Attributes:
        files: The table; None for a node type whose nodes only edges name.
        id_column: Column of raw ids; None if the raw id is the row number. Without a table, the name of the feature
            for the raw ids.
        id_dtype: Dtype of raw ids. None: in CSV files, integers if all raw ids are integers, else strings.
        features: Feature name to its columns.
        split_column: Column that names each row's split, or None.
        keeps_ids: Raw ids become a feature if the reader's settings ask for it.
        declares_ids: The schema of a unigraph declares the feature ``#id``.
        num_rows: Number of rows that the description declares, or None.
    """

    files: TableFiles | None
    id_column: str | None
    id_dtype: IdDtype | None = None
    features: Mapping[str, FeatureSpec] = field(default_factory=dict)
    split_column: str | None = None
    keeps_ids: bool = True
    declares_ids: bool = False
    num_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTableSpec:
    """Edge type: a table with columns for the raw ids of both ends.

    The other fields are as in ``NodeTableSpec``.
    """

    files: TableFiles
    src_column: str
    dst_column: str
    features: Mapping[str, FeatureSpec] = field(default_factory=dict)
    split_column: str | None = None
    num_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesMetadata:
    """Description of all tables; ``path`` is the file that contains it, or names a description in memory."""

    path: AnyPath
    nodes: Mapping[str, NodeTableSpec]
    edges: Mapping[EdgeType, EdgeTableSpec]


def check_num_rows(label: str, spec: NodeTableSpec | EdgeTableSpec, num_rows: int) -> None:
    """Compare a table's number of rows with the declared one; a node type without a table may have fewer.

    Raises:
        SchemaError: The numbers differ.
    """
    is_latent = spec.files is None
    if spec.num_rows is None or num_rows == spec.num_rows or (is_latent and num_rows < spec.num_rows):
        return
    got = f"edges name {num_rows}" if is_latent else f"its table has {num_rows} rows"
    raise SchemaError(f"{label} has cardinality {spec.num_rows} in the schema, and {got}")


def read_json_metadata(path: AnyPath) -> TablesMetadata:
    """Read and check the JSON file that describes tables, and find their files.

    Raises:
        FormatError: The file is missing or not JSON, or a table's file is missing.
        SchemaError: A key is unknown, missing or of the wrong kind, a type is described twice, or a path leads out of
            the folder.
    """
    value = read_json(path)
    if isinstance(value, dict) and {"node_type", "edge_type"} <= value.keys():
        raise FormatError(f"{path} describes a chunked graph, not tables; use hopstream.read_graph, which reads both")
    return described_tables(value, path)


def described_tables(value: object, path: AnyPath = DESCRIPTION) -> TablesMetadata:
    """Check a description of tables, and find their files.

    Args:
        value: The description: the value of the JSON file. In place of ``files``, a table may have ``table``, a table
            in memory.
        path: The file that contains it; files are relative to its folder. By default files are relative to the current
            folder.

    Raises:
        FormatError: A table's file is missing.
        SchemaError: As of ``read_json_metadata``; or a ``table`` is no table.
    """
    top = _Fields(str(path), value)
    node_values, edge_values = top.mapping("nodes"), top.list("edges", [])
    top.finish()
    nodes = {t: _node_table(path.parent, f"{path}: nodes.{t}", v) for t, v in node_values.items()}
    edges: dict[EdgeType, EdgeTableSpec] = {}
    for position, edge_value in enumerate(edge_values):
        where = f"{path}: edges[{position}]"
        edge_type, spec = _edge_table(path.parent, where, edge_value)
        if edge_type in edges:
            raise SchemaError(f"{where} describes {type_label(edge_type)} again; list all its files in one table")
        for end in (edge_type[0], edge_type[2]):
            if end not in nodes:
                raise SchemaError(f"{where} joins node type {end!r}; nodes describe {list(nodes)}")
        edges[edge_type] = spec
    return TablesMetadata(path=path, nodes=nodes, edges=edges)


def _node_table(root: AnyPath, where: str, value: object) -> NodeTableSpec:
    fields = _Fields(where, value)
    if fields.flag("from_edges"):
        id_column, id_dtype = _id_column(fields, default="id")
        fields.finish()
        return NodeTableSpec(files=None, id_column=id_column, id_dtype=id_dtype)
    id_column, id_dtype = _id_column(fields, default=None)
    files = _table_files(root, fields)
    spec = NodeTableSpec(
        files=files,
        id_column=id_column,
        id_dtype=id_dtype,
        features=_features(fields, files.format),
        split_column=fields.text("split", None),
    )
    fields.finish()
    return spec


def _edge_table(root: AnyPath, where: str, value: object) -> tuple[EdgeType, EdgeTableSpec]:
    fields = _Fields(where, value)
    names = fields.texts("type")
    if len(names) != 3:
        raise SchemaError(f"{where}.type is {list(names)}; wanted [source type, relation, destination type]")
    files = _table_files(root, fields)
    spec = EdgeTableSpec(
        files=files,
        src_column=cast(str, fields.text("src")),
        dst_column=cast(str, fields.text("dst")),
        features=_features(fields, files.format),
        split_column=fields.text("split", None),
    )
    fields.finish()
    return names, spec


def _id_column(fields: _Fields, default: str | None) -> tuple[str | None, IdDtype | None]:
    value = fields.take("id", default)
    if value is None or isinstance(value, str):
        return value, None
    inner = _Fields(f"{fields.where}.id", value)
    column, dtype = inner.text("column"), inner.text("dtype", None)
    inner.finish()
    if dtype not in (None, "int64", STRING):
        raise SchemaError(f"{inner.where}.dtype is {quoted(dtype)}; raw ids are int64 or string")
    return column, cast(IdDtype | None, dtype)


def _table_files(root: AnyPath, fields: _Fields) -> TableFiles:
    table = fields.take("table", None)
    if table is not None:
        where = f"{fields.where}.table"
        _check_table(where, table)
        return TableFiles(root=root, paths=(root / where,), format="arrow", table=table)
    patterns = fields.texts("files")
    paths = tuple(path for pattern in patterns for path in _found(root, f"{fields.where}.files", pattern))
    repeated = sorted({str(path) for path in paths if paths.count(path) > 1}) if len(set(paths)) < len(paths) else []
    if repeated:
        raise SchemaError(f"{fields.where}.files name {repeated[0]} twice")
    table_format = _table_format(fields, paths)
    is_tab_separated = paths[0].name.lower().endswith((".tsv", ".tsv.gz"))
    names = fields.texts("columns", None)
    delimiter = cast(str, fields.text("delimiter", "\t" if is_tab_separated else ","))
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise SchemaError(f"{fields.where}.delimiter is {delimiter!r}; wanted one character")
    return TableFiles(
        root=root,
        paths=paths,
        format=table_format,
        delimiter=delimiter,
        column_names=names or None,
        null_values=fields.texts("null_values", ("",)),
    )


def _check_table(where: str, table: object) -> None:
    """Check that a table in memory can be read.

    Args:
        where: Name of the table in messages.
        table: The table.

    Raises:
        SchemaError: The value is no such table, or is a stream, which can be read only once.
    """
    if hasattr(table, "read_next_batch"):
        raise SchemaError(f"{where} is a {type(table).__name__}, which can be read once; give read_all() of it")
    if not (hasattr(table, "__arrow_c_stream__") or is_ray_dataset(table)):
        raise SchemaError(
            f"{where} is {type(table).__name__}; wanted a DataFrame of pandas or Polars, an Arrow table, another "
            'object with __arrow_c_stream__, or a Ray Dataset; paths of files are "files"'
        )


def is_ray_dataset(table: object) -> bool:
    """Return whether a table in memory is a Ray Dataset."""
    return all(hasattr(table, name) for name in ("iter_batches", "select_columns", "context"))


def _found(root: AnyPath, where: str, pattern: str) -> list[AnyPath]:
    """Find the files that a path or glob names, in order of names.

    Raises:
        FormatError: There is no such file.
        SchemaError: A path or link leads out of the folder.
    """
    if is_uri(pattern) or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise SchemaError(f"{where} has {quoted(pattern)}; files lie below the folder of the JSON file, without ..")
    is_glob = any(mark in pattern for mark in "*?[")
    paths = sorted_files(root, pattern) if is_glob else [root / pattern]
    if not paths or not paths[0].is_file():
        raise FormatError(f"{where} has {quoted(pattern)}, which does not exist in {root}")
    for path in paths:
        if not is_below(path, root):
            raise SchemaError(f"{where} has {quoted(pattern)}; {path} is a link that leads out of {root}")
    return paths


def _table_format(fields: _Fields, paths: tuple[AnyPath, ...]) -> TableFormat:
    declared = fields.text("format", None)
    if declared in ("csv", "parquet"):
        return cast(TableFormat, declared)
    if declared is not None:
        raise SchemaError(f"{fields.where}.format is {quoted(declared)}; tables are csv or parquet")
    formats = {f for path in paths for suffix, f in FORMAT_OF_SUFFIX.items() if path.name.lower().endswith(suffix)}
    if len(formats) != 1:
        known = ", ".join(FORMAT_OF_SUFFIX)
        raise SchemaError(f"{fields.where}: the format of {paths[0].name} is unknown (known: {known}); give format")
    return formats.pop()


def _features(fields: _Fields, table_format: TableFormat) -> dict[str, FeatureSpec]:
    value = fields.take("features", {})
    if isinstance(value, list):
        value = {name: name for name in fields.texts("features")}
    if not isinstance(value, dict):
        raise SchemaError(f"{fields.where}.features is {quoted(value)}; wanted a list of columns or {{name: column}}")
    return {name: _feature(f"{fields.where}.features.{name}", given, table_format) for name, given in value.items()}


def _feature(where: str, value: object, table_format: TableFormat) -> FeatureSpec:
    if isinstance(value, str | list):
        value = {"columns": value}
    fields = _Fields(where, value)
    columns = fields.take("columns", None)
    if columns is None:
        columns = fields.text("column")
    names = (columns,) if isinstance(columns, str) else _Fields(where, {"columns": columns}).texts("columns")
    given = fields.take("transform", None)
    transform = None if given is None else _chain(f"{where}.transform", given)
    of_cells = transform.csv_dtype if transform is not None and table_format == "csv" else None
    dtype, shape = fields.text("dtype", of_cells), fields.take("shape", None)
    dims = tuple(shape) if isinstance(shape, list) else ()
    spec = FeatureSpec(
        columns=names,
        is_vector=isinstance(columns, list),
        dtype=dtype,
        shape=None if shape is None else dims,
        is_cast=fields.flag("cast"),
        fill=fields.take("fill", None),
        transform=transform,
    )
    fields.finish()
    if dtype is not None and dtype not in DTYPES:
        raise SchemaError(f"{where}.dtype is {quoted(dtype)}; wanted one of {', '.join(DTYPES)}")
    if not names or (spec.is_vector and dtype == STRING):
        raise SchemaError(f"{where}: a vector needs at least one column of numbers")
    if shape is not None and (spec.is_vector or not dims or any(type(n) is not int or n < 1 for n in dims)):
        raise SchemaError(f"{where}.shape is {quoted(shape)}; wanted positive integers, for one column of lists")
    if spec.is_cast and dtype is None:
        raise SchemaError(f"{where}.cast needs a dtype to cast to")
    return spec


def _chain(where: str, value: object) -> Chain:
    from hopstream.ingest.transforms.chain import chain_of  # loads Arrow

    return chain_of(where, value)


_REQUIRED: Any = object()


class _Fields:
    """Reader of the keys of a JSON object; ``finish`` refuses keys that were not read."""

    def __init__(self, where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise SchemaError(f"{where} is {type(value).__name__}; wanted a JSON object")
        self.where = where
        self._value = value
        self._taken: set[str] = set()

    def take(self, name: str, default: object = _REQUIRED) -> object:
        self._taken.add(name)
        if name not in self._value and default is _REQUIRED:
            raise SchemaError(f"{self.where} lacks {name!r}; it has {sorted(self._value)}")
        return self._value.get(name, default)

    def text(self, name: str, default: str | None = _REQUIRED) -> str | None:
        value = self.take(name, default)
        if value is not None and not (isinstance(value, str) and value):
            raise SchemaError(f"{self.where}.{name} is {quoted(value)}; wanted a string")
        return value

    def texts(self, name: str, default: tuple[str, ...] | None = _REQUIRED) -> tuple[str, ...]:
        """Return a list of strings; a single string is a list of one."""
        value = self.take(name, default)
        found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
        is_missing = value is not None and not isinstance(value, str | list | tuple)
        if is_missing or not all(isinstance(text, str) for text in found) or (not found and default is _REQUIRED):
            raise SchemaError(f"{self.where}.{name} is {quoted(value)}; wanted a string or a list of strings")
        return cast(tuple[str, ...], found)

    def flag(self, name: str) -> bool:
        value = self.take(name, False)
        if not isinstance(value, bool):
            raise SchemaError(f"{self.where}.{name} is {quoted(value)}; wanted true or false")
        return value

    def mapping(self, name: str) -> dict[str, object]:
        value = self.take(name)
        if not isinstance(value, dict) or not value:
            raise SchemaError(f"{self.where}.{name} is {quoted(value)}; wanted an object with at least one entry")
        return value

    def list(self, name: str, default: list[object]) -> list[object]:
        value = self.take(name, default)
        if not isinstance(value, list):
            raise SchemaError(f"{self.where}.{name} is {quoted(value)}; wanted a list")
        return value

    def finish(self) -> None:
        unknown = sorted(set(self._value) - self._taken)
        if unknown:
            known = known_names(unknown[0], sorted(self._taken))
            raise SchemaError(f"{self.where} has unknown key {quoted(unknown[0])}; {known}")
