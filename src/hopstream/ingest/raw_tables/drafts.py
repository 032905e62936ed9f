"""Drafts the description of tables from their files: types, ids, ends of edges, dtypes and transforms.

Names and the first rows of each table decide. A draft is meant to be read and corrected by its user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hopstream.checks import check_int
from hopstream.errors import FormatError
from hopstream.ingest.raw_tables.columns import LADDER, leaf_name, parsable_dtypes
from hopstream.ingest.raw_tables.files import first_cells, read_batches
from hopstream.ingest.raw_tables.metadata import FORMAT_OF_SUFFIX, FeatureSpec, TableFiles
from hopstream.schema import STRING
from hopstream.uris import local_path

SAMPLE_ROWS = 100_000
DELIMITERS = ",;\t|"
TIME, OTHER = "time", "other"
MAX_CATEGORIES = 1000
"""A column of strings with more different values is text."""
SPLITS = {"train", "val", "valid", "validation", "test"}
CLASSES = {"y", "label", "labels", "class", "target"}
"""Names of columns whose numbers are classes."""
ENDS = [{"src", "dst"}, {"source", "target"}, {"source", "destination"}, {"from", "to"}, {"head", "tail"}, {"u", "v"}]
"""Pairs of names of the ends of edges."""
BACKWARDS = ("dst", "target", "destination", "tail", "to")
"""First words of the names of ends that are destinations; they matter if such a column comes first."""
GENERIC = {"id", "key", "uuid", "name"}
_DATE = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?$"
_PART = re.compile(r"([-_.]?(part|chunk|shard)?[-_.]?\d+([-_.]of[-_.]\d+)?)$", re.IGNORECASE)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _stems(name: str) -> set[str]:
    """Return the forms of a table's name in names of columns: ``films`` is also ``film``."""
    plain = _plain(name)
    singular = plain[:-3] + "y" if plain.endswith("ies") else plain.removesuffix("s")
    return {plain, singular}


@dataclass(slots=True, kw_only=True)
class _Column:
    """A column of the first rows of a table.

    Attributes:
        dtype: One of ``LADDER``, ``TIME`` or ``OTHER``.
        is_list: The values are in lists.
        values: The distinct values without empty ones, as strings; none for lists.
        num_rows: Number of rows, without empty cells.
        has_empty: Some cells are empty.
    """

    name: str
    dtype: str
    is_list: bool
    values: pa.Array
    num_rows: int
    has_empty: bool

    @property
    def is_unique(self) -> bool:
        """Whether the column can hold raw ids."""
        are_ids = self.dtype in ("int64", STRING) and not self.is_list
        return are_ids and not self.has_empty and len(self.values) == self.num_rows > 0

    def is_all(self, pattern: str) -> bool:
        """Return whether all values match a regular expression."""
        return len(self.values) > 0 and bool(pc.all(pc.match_substring_regex(self.values, pattern)).as_py())


@dataclass(slots=True, kw_only=True)
class _Table:
    """A table: its files, its first rows, and what its columns refer to."""

    name: str
    patterns: list[str]
    files: TableFiles
    columns: dict[str, _Column]
    is_whole: bool
    id_column: str | None = None
    refers: dict[str, str] = field(default_factory=dict)


def describe_tables(folder: str | os.PathLike[str], *, sample_rows: int = SAMPLE_ROWS) -> dict[str, Any]:
    """Draft the ``metadata.json`` of a folder of CSV and Parquet tables.

    Files whose names differ in a number, and files in one subfolder, are one table. A table with two columns that refer
    to ids of other tables becomes an edge type. Every other table becomes a node type, and its columns that refer to
    ids become edge types from its rows. Other columns become features, with transforms that suit their values.

    Args:
        folder: The folder. Its subfolders are searched, too.
        sample_rows: Number of rows of each table that are read.

    Returns:
        The JSON value, to be read and corrected: only names and the first rows were looked at.

    Raises:
        FormatError: The folder is missing or has no tables, or a file is damaged.
        SchemaError: A file lacks a column of the first file of its table, or has it twice.
        SettingsError: ``sample_rows`` is out of range.
    """
    root = local_path(folder)
    check_int("sample_rows", sample_rows, 1, 1 << 30)
    tables = [_table(root, name, paths, sample_rows) for name, paths in sorted(_groups(root).items())]
    if not tables:
        raise FormatError(f"{root} has no tables; wanted files {', '.join(FORMAT_OF_SUFFIX)}")
    for table in tables:
        table.id_column = _named_id(table) or _first_id(table)
    for table in tables:
        own = table.id_column
        if own is not None and _named_id(table) is None:  # a table of edges may have one row per source
            table.id_column = None
            refers = [name for name in table.columns if _referred(table, name, tables) is not None]
            table.id_column = None if len(refers) == 2 and own in refers else own
    for table in tables:
        table.refers = {name: found for name in table.columns if (found := _referred(table, name, tables)) is not None}
    return _Draft(tables).value()


def _groups(root: Path) -> dict[str, list[Path]]:
    """Return the files of each table by its name."""
    if not root.is_dir():
        raise FormatError(f"{root} is no folder; give the folder of the tables")
    found: dict[str, list[Path]] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith((".", "_"))):
        suffix = next(
            (s for s in sorted(FORMAT_OF_SUFFIX, key=len, reverse=True) if path.name.lower().endswith(s)), None
        )
        if suffix is None:
            continue
        stem = path.name[: -len(suffix)]
        name = stem if path.parent == root else path.parent.name
        name = _PART.sub("", name) or stem
        if path.parent == root and name in ("part", "chunk", "shard"):
            name = root.name
        found.setdefault(name, []).append(path)
    return found


def _table(root: Path, name: str, paths: list[Path], sample_rows: int) -> _Table:
    suffixes = {
        kind for path in paths for suffix, kind in FORMAT_OF_SUFFIX.items() if path.name.lower().endswith(suffix)
    }
    if len(suffixes) > 1:
        raise FormatError(f"{root}: table {name!r} has CSV and Parquet files; keep one format, or rename them")
    kind = suffixes.pop()
    delimiter = _delimiter(paths[0]) if kind == "csv" else ","
    files = TableFiles(root=root, paths=tuple(paths), format=kind, delimiter=delimiter)
    names = first_cells(paths[0], delimiter) if kind == "csv" else _parquet_names(paths[0])
    columns, is_whole = _columns(files, names, sample_rows)
    return _Table(name=name, patterns=_patterns(root, paths), files=files, columns=columns, is_whole=is_whole)


def _parquet_names(path: Path) -> list[str]:
    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path} cannot be read as parquet: {error}") from error


def _delimiter(path: Path) -> str:
    """Return the delimiter that cuts the first row into the most cells."""
    if path.name.lower().endswith((".tsv", ".tsv.gz")):
        return "\t"
    return max(DELIMITERS, key=lambda mark: len(first_cells(path, mark)))


def _patterns(root: Path, paths: Sequence[Path]) -> list[str]:
    """Return one pattern that matches exactly these files, or their names."""
    names = [path.relative_to(root).as_posix() for path in paths]
    first = paths[0].relative_to(root)
    patterns = (re.sub(r"[0-9]+", "*", names[0]), (first.parent / f"*{first.suffix}").as_posix())
    found = (p for p in patterns if len(names) > 1 and sorted(root.glob(p)) == sorted(paths))
    pattern = next(found, None)
    return names if pattern is None else [pattern]


def _columns(files: TableFiles, names: list[str], sample_rows: int) -> tuple[dict[str, _Column], bool]:
    """Read the first rows; return the columns, and whether these are all rows."""
    chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
    dtypes = {name: list(LADDER) for name in names}
    num_rows = 0
    for batch in read_batches(files, names):
        for name in names:
            chunks[name].append(batch.columns[name].slice(0, sample_rows - num_rows))
            if files.format == "csv":
                dtypes[name] = parsable_dtypes(batch, FeatureSpec(columns=(name,)), dtypes[name])
        num_rows += batch.num_rows
        if num_rows >= sample_rows:
            break
    is_csv = files.format == "csv"
    found = {name: _column(name, chunks[name], dtypes[name][0] if is_csv else None) for name in names}
    return found, num_rows < sample_rows


def _column(name: str, chunks: Sequence[pa.Array], dtype: str | None) -> _Column:
    """Summarize a column; ``dtype`` is that of the cells of CSV files."""
    parts = [chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk for chunk in chunks]
    values = pa.chunked_array(parts, parts[0].type if parts else pa.string())
    is_list = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
    is_list = is_list or pa.types.is_fixed_size_list(values.type)
    if dtype is None:
        leaf = leaf_name(values.type) or ""
        is_time = pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)
        kinds = {"i": "int64", "u": "int64", "f": "float64", "b": "bool", "s": STRING}
        dtype = TIME if is_time else kinds.get(leaf[:1], OTHER)
    num_all = len(values)
    if is_list or dtype == OTHER:
        distinct = pa.array([], pa.large_string())
    else:
        text = values.cast(pa.large_string())
        text = text.filter(pc.and_(pc.is_valid(text), pc.not_equal(text, "")))
        num_all, values, distinct = num_all, text, pc.unique(text)
    num_rows = len(values) - values.null_count
    return _Column(
        name=name, dtype=dtype, is_list=is_list, values=distinct, num_rows=num_rows, has_empty=num_rows < num_all
    )


def _named_id(table: _Table) -> str | None:
    """Return the column with unique values and a name for raw ids of the table, or None."""
    own = {stem + end for stem in _stems(table.name) for end in ("id", "key", "uuid", "name", "")}
    unique = [name for name, column in table.columns.items() if column.is_unique]
    return next((name for fits in ({"id"}, own, GENERIC) for name in unique if _plain(name) in fits), None)


def _first_id(table: _Table) -> str | None:
    """Return the first column if it can hold raw ids, or None."""
    first = next(iter(table.columns), None)
    if first is None or not table.columns[first].is_unique or _plain(first) in set().union(*ENDS):
        return None
    return first if _plain(first).endswith("id") or table.columns[first].dtype == STRING else None


def _referred(table: _Table, name: str, tables: Iterable[_Table]) -> str | None:
    """Return the table whose ids a column holds, or None."""
    column = table.columns[name]
    if column.dtype not in ("int64", STRING) or column.is_list or not len(column.values):
        return None
    others = [t for t in tables if t.id_column is not None and not (t is table and t.id_column == name)]
    plain = re.sub(r"^(src|dst|source|target|from|to|head|tail)(?=.)", "", _plain(name))
    by_name = [t for t in others if _names(plain, t)]
    if by_name:
        return next((t.name for t in by_name if _share(column, t) >= 0.5), None)
    if name == table.id_column or not (column.dtype == STRING or _is_end(name)):
        return None
    by_value = [t.name for t in others if t.is_whole and len(column.values) > 1 and _share(column, t) > 0.95]
    return by_value[0] if len(by_value) == 1 else None


def _names(plain: str, table: _Table) -> bool:
    """Return whether a column's plain name says that it holds ids of a table."""
    own_id = _plain(str(table.id_column))
    if plain == own_id and own_id not in GENERIC:
        return True
    return any(plain == stem or plain.endswith((stem + "id", stem + "key")) for stem in _stems(table.name))


def _is_end(name: str) -> bool:
    plain = _plain(name)
    return plain.endswith("id") or plain in set().union(*ENDS)


def _share(column: _Column, table: _Table) -> float:
    """Return the share of values that are ids of a table; 1 if only a part of the table was read."""
    if not table.is_whole:
        return 1.0
    ids = table.columns[str(table.id_column)].values
    return float(pc.mean(pc.is_in(column.values, value_set=ids)).as_py())


class _Draft:
    """Draft of the description of tables."""

    def __init__(self, tables: Sequence[_Table]) -> None:
        self._tables = tables
        self._edge_tables = {table.name: ends for table in tables if (ends := self._ends(table)) is not None}
        self._nodes: dict[str, Any] = {}

    def value(self) -> dict[str, Any]:
        """Return the JSON value."""
        edges: list[dict[str, Any]] = []
        for table in self._tables:
            if table.name not in self._edge_tables:
                self._nodes[table.name] = self._node_table(table)
        for table in self._tables:
            if table.name in self._edge_tables:
                edges.append(self._edge_table(table, self._edge_tables[table.name]))
            elif table.id_column is not None:
                edges += [self._reference(table, column, other) for column, other in table.refers.items()]
        return {"nodes": self._nodes, "edges": edges}

    def _ends(self, table: _Table) -> tuple[str, str] | None:
        """Return the columns of the ends if a table is one of edges."""
        if any(table.name in other.refers.values() for other in self._tables):
            return None
        ends = list(table.refers)
        if len(ends) != 2:
            by_name = {_plain(name): name for name in table.columns}
            pair: set[str] = next((pair for pair in ENDS if pair <= by_name.keys()), set())
            ends = [name for name in table.columns if _plain(name) in pair]
        if len(ends) != 2:
            return None
        is_backwards = _plain(ends[0]).startswith(BACKWARDS)
        return (ends[1], ends[0]) if is_backwards else (ends[0], ends[1])

    def _files(self, table: _Table) -> dict[str, Any]:
        files: dict[str, Any] = {"files": table.patterns[0] if len(table.patterns) == 1 else table.patterns}
        is_usual = table.files.delimiter == (
            "\t" if table.files.paths[0].name.lower().endswith((".tsv", ".tsv.gz")) else ","
        )
        return files if is_usual else {**files, "delimiter": table.files.delimiter}

    def _node_table(self, table: _Table) -> dict[str, Any]:
        spec = self._files(table)
        if table.id_column is not None:
            spec["id"] = table.id_column
        left_out = {table.id_column, *(table.refers if table.id_column is not None else ())}
        return {**spec, **self._features(table, left_out)}

    def _edge_table(self, table: _Table, ends: tuple[str, str]) -> dict[str, Any]:
        types = [table.refers.get(end) or self._unknown() for end in ends]
        spec = {"type": [types[0], table.name, types[1]], **self._files(table), "src": ends[0], "dst": ends[1]}
        return {**spec, **self._features(table, {*ends, table.id_column})}

    def _unknown(self) -> str:
        """Return the node type of ends that no table has, and describe it."""
        self._nodes.setdefault("node", {"from_edges": True})
        return "node"

    def _reference(self, table: _Table, column: str, other: str) -> dict[str, Any]:
        relation = re.sub(r"[-_ ]?(id|key)$", "", column, flags=re.IGNORECASE) or column
        return {
            "type": [table.name, relation, other], **self._files(table), "src": str(table.id_column), "dst": column,
        }  # fmt: skip

    def _features(self, table: _Table, left_out: set[str | None]) -> dict[str, Any]:
        features: dict[str, Any] = {}
        found: dict[str, Any] = {}
        for name, column in table.columns.items():
            if name in left_out or column.dtype == OTHER:
                continue
            if (
                column.dtype == STRING
                and not column.is_list
                and set(column.values.to_pylist()) <= SPLITS
                and column.num_rows
            ):
                found["split"] = name
            else:
                features[name] = _feature(column, is_csv=table.files.format == "csv")
        return {"features": features, **found} if features else found


def _feature(column: _Column, *, is_csv: bool) -> dict[str, Any]:
    """Describe a feature, with the transform that suits its values."""
    value: dict[str, Any] = {"column": column.name}
    if column.is_list:
        return value | ({"fill": []} if column.has_empty else {})
    is_class = _plain(column.name) in CLASSES
    if column.dtype == TIME or (column.dtype == STRING and column.is_all(_DATE)):
        fill = {"fill": "1970-01-01" if column.dtype == STRING else 0} if column.has_empty else {}
        return value | fill | {"transform": {"name": "datetime", "parts": ["year", "month", "day", "weekday"]}}
    if column.dtype == STRING:
        is_text = len(column.values) > min(MAX_CATEGORIES, max(1, column.num_rows // 2))
        value |= {"fill": ""} if column.has_empty and not is_csv else {}
        return value | ({"dtype": STRING} if is_text else {"transform": "categories"})
    if column.dtype == "bool":
        return value | ({"dtype": "bool"} if is_csv else {}) | ({"fill": False} if column.has_empty else {})
    if column.dtype == "int64" and is_class:
        return value | ({"dtype": "int64"} if is_csv else {}) | ({"fill": -1} if column.has_empty else {})
    is_nan = is_csv or column.dtype == "float64"
    return value | ({"fill": "nan" if is_nan else 0} if column.has_empty else {}) | {"transform": "standard"}
