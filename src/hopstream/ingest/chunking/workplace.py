"""Work folder of a chunking job: gives tasks the tables and the results of earlier steps."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hopstream import errors
from hopstream.arrays import Array, IntArray, offsets_of, open_array, write_array, write_text
from hopstream.engine.folder_job import JobFolder
from hopstream.errors import FormatError, IdRangeError, SchemaError
from hopstream.ingest.chunking.buckets import Buckets, GroupedColumn
from hopstream.ingest.chunking.plan import ChunkSpec
from hopstream.ingest.raw_tables.metadata import (
    EdgeTableSpec,
    FeatureSpec,
    NodeTableSpec,
    TableFiles,
    TablesMetadata,
)
from hopstream.ingest.raw_tables.raw_ids import INTEGER, NAME
from hopstream.ingest.tables import read_description
from hopstream.ingest.transforms.chain import chain_of
from hopstream.places.paths import path_of
from hopstream.schema import STRING, EdgeType, type_label

RawKind = Literal["row", "int64", "string"]
"""Kind of a node type's raw ids: row numbers, integers, or strings."""
KNOWN = "known.json"
INPUT_ERRORS = (FormatError, IdRangeError, SchemaError)
"""Errors that mean that the input is at fault."""

TaskFunction = Callable[[dict[str, Any]], dict[str, Any]]


def returns_input_errors(function: TaskFunction) -> TaskFunction:
    """Make a task return errors of its input instead of raising them.

    The job can then raise the first error in table order instead of the first in time.
    """

    @functools.wraps(function)
    def run(args: dict[str, Any]) -> dict[str, Any]:
        try:
            return function(args)
        except INPUT_ERRORS as error:
            return {"error": [type(error).__name__, str(error)]}

    return run


def raise_first(results: Mapping[str, Any]) -> None:
    """Raise the first error that tasks returned, in the order of the tasks."""
    for result in results.values():
        if "error" in result:
            name, message = result["error"]
            raise getattr(errors, name)(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """A column of raw ids.

    Attributes:
        name: Prefix of its files' names: ``id``, ``src`` or ``dst``.
        column: Column of the table.
        node_type: The node type that the raw ids belong to.
    """

    name: str
    column: str
    node_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a chunking job.

    Attributes:
        number: Index among all types, nodes first; names of files use it in place of the type.
        entity: Its node type or edge type.
        files: Its files; None for a node type without a table.
        ids: Its columns of raw ids.
        features: Features that are written. In ``ChunkFolder.tables``, features of CSV files have dtypes, and
            transforms are fitted.
        split_column: Column of splits, or None.
    """

    number: int
    entity: str | EdgeType
    files: TableFiles | None
    ids: tuple[Ids, ...]
    features: Mapping[str, FeatureSpec]
    split_column: str | None

    @property
    def label(self) -> str:
        """The table's name in messages."""
        return type_label(self.entity)

    @property
    def undeclared(self) -> dict[str, FeatureSpec]:
        """Features of CSV files without a declared dtype; their cells decide it."""
        is_csv = self.files is not None and self.files.format == "csv"
        return {name: spec for name, spec in self.features.items() if is_csv and spec.dtype is None}

    @property
    def unfitted(self) -> dict[str, FeatureSpec]:
        """Features whose transforms must be fitted to the table."""
        return {
            name: spec
            for name, spec in self.features.items()
            if spec.transform is not None and not spec.transform.is_fitted and self.files is not None
        }


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The blocks of a table, in the order of its rows.

    Attributes:
        parts: int64[num_blocks], the part that holds each block.
        numbers: int64[num_blocks], number of the block in the part.
        firsts: int64[num_blocks], first row of the block in the part.
        rows: int64[num_blocks], number of rows of the block.
        kept: int64[num_blocks], number of kept rows of the block.
        kept_offsets: int64[num_blocks + 1], the running sum of ``kept``: the first key of each block.
    """

    parts: IntArray
    numbers: IntArray
    firsts: IntArray
    rows: IntArray
    kept: IntArray
    kept_offsets: IntArray

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.parts)

    @property
    def num_kept(self) -> int:
        """Number of kept rows of the table."""
        return int(self.kept_offsets[-1])


def layout_of(block_rows: Sequence[Sequence[int]], kept: Sequence[int] | None) -> Layout:
    """Build the layout of a table.

    Args:
        block_rows: For each part, the number of rows of each block.
        kept: Number of kept rows of each block, over all parts; None if all rows are kept.
    """
    counts = [len(rows) for rows in block_rows]
    parts = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    numbers = [np.arange(count) for count in counts]
    firsts = [offsets_of(np.array(rows, np.int64))[:-1] for rows in block_rows]
    rows = np.array([row for of_part in block_rows for row in of_part], np.int64)
    kept_rows = rows if kept is None else np.array(kept, np.int64)
    empty = [np.empty(0, np.int64)]
    return Layout(
        parts=parts, numbers=np.concatenate(empty + numbers), firsts=np.concatenate(empty + firsts), rows=rows,
        kept=kept_rows, kept_offsets=offsets_of(kept_rows),
    )  # fmt: skip


class ChunkFolder(JobFolder[ChunkSpec]):
    """The work folder of a job; its properties read files once and keep the result."""

    spec_type = ChunkSpec

    def __init__(self, root: Path) -> None:
        """Refer to a folder; nothing is read yet."""
        super().__init__(root)
        self.chunked = root / "chunked"
        self._layouts: dict[tuple[int, bool], Layout] = {}
        self._grouped: dict[tuple[int, str, int], GroupedColumn] = {}

    @cached_property
    def metadata(self) -> TablesMetadata:
        """The description of the tables."""
        return read_description(path_of(self.spec.source), self.spec.tables)

    @cached_property
    def declared(self) -> list[Table]:
        """The tables as declared, nodes first."""
        return tables_of(self.metadata, self.spec.chunks.leave_out)

    @cached_property
    def _known(self) -> dict[str, Any]:
        return dict(json.loads((self.scratch / KNOWN).read_text(encoding="utf-8")))

    def write_known(
        self, kinds: Mapping[str, RawKind], num_buckets: Mapping[str, int], dtypes: Any, transforms: Any
    ) -> None:
        """Write kinds of raw ids, numbers of buckets, undeclared dtypes and fitted transforms for later tasks."""
        known = {"kinds": dict(kinds), "num_buckets": dict(num_buckets), "dtypes": dtypes, "transforms": transforms}
        write_text(self.scratch / KNOWN, json.dumps(known))

    @cached_property
    def tables(self) -> list[Table]:
        """The tables with all dtypes; available after the survey of the tables."""
        return [self._resolved(table) for table in self.declared]

    def _resolved(self, table: Table) -> Table:
        features = dict(table.features)
        for name, dtype in self._known["dtypes"].get(str(table.number), {}).items():
            features[name] = replace(features[name], dtype=dtype)
        for name, fitted in self._known["transforms"].get(str(table.number), {}).items():
            chain = chain_of(f"{table.label}.{name}", fitted, with_fitted=True)
            features[name] = replace(features[name], transform=chain)
        return replace(table, features=features)

    def table_of(self, node_type: str) -> Table:
        """Return the table of a node type."""
        return next(table for table in self.tables if table.entity == node_type)

    def is_implicit(self, node_type: str) -> bool:
        """Return whether a node type has no table: only edges name its nodes."""
        return self.metadata.nodes[node_type].files is None

    def kind(self, node_type: str) -> RawKind:
        """Return the kind of a node type's raw ids."""
        found: RawKind = self._known["kinds"][node_type]
        return found

    def raw_type(self, node_type: str) -> pa.DataType:
        """Return the Arrow type of a node type's raw ids; row numbers are integers."""
        return NAME if self.kind(node_type) == STRING else INTEGER

    def buckets(self, node_type: str) -> Buckets:
        """Return the partitioning of a node type's raw ids."""
        num_buckets = int(self._known["num_buckets"][node_type])
        if not self.is_implicit(node_type):
            return Buckets(num_buckets)
        cells = json.loads(self.bounds_path(node_type).read_text(encoding="utf-8"))
        return Buckets(num_buckets, pa.array(cells, self.raw_type(node_type)))

    def bounds_path(self, node_type: str) -> Path:
        """Return the file with the bounds of a node type's buckets."""
        return self.scratch / "bounds" / f"{list(self.metadata.nodes).index(node_type)}.json"

    def sample_path(self, table: Table, part: int, name: str) -> Path:
        """Return the file with a sample of the raw ids of a part's column."""
        return self.scratch / "samples" / f"{table.number}-{part}-{name}.json"

    def fit_path(self, table: Table, part: int, name: str) -> Path:
        """Return the file with what the transforms of a feature are fitted to in a part."""
        return self.scratch / "fits" / f"{table.number}-{part}-{list(table.features).index(name)}.json"

    def table_folder(self, table: Table) -> Path:
        """Return the folder of a table's columns."""
        return self.scratch / "tables" / str(table.number)

    def part_folder(self, table: Table, part: int) -> Path:
        """Return the folder of the columns of a part of a table."""
        return self.table_folder(table) / f"{part:06d}"

    def sorted_path(self, node_type: str, bucket: int, what: str) -> Path:
        """Return a file of a bucket of nodes without a table: ``values`` or ``lengths``."""
        return self.scratch / "sorted" / str(list(self.metadata.nodes).index(node_type)) / f"{bucket:06d}.{what}"

    def grouped(self, table: Table, ids: Ids, part: int) -> GroupedColumn:
        """Return the reader of a part's column of raw ids."""
        key = (table.number, ids.name, part)
        if key not in self._grouped:
            self._grouped[key] = GroupedColumn(self.part_folder(table, part), ids.name, self.raw_type(ids.node_type))
        return self._grouped[key]

    def write_layout(self, table: Table, block_rows: Sequence[Sequence[int]], kept: Sequence[int] | None) -> Layout:
        """Write the blocks of a table for later tasks.

        The blocks are written after reading, and again when the rows are settled.
        """
        layout = layout_of(block_rows, kept)
        columns = np.stack([layout.parts, layout.numbers, layout.firsts, layout.rows, layout.kept])
        write_array(self._layout_path(table, is_settled=kept is not None), columns)
        return layout

    def layout(self, table: Table, *, is_settled: bool) -> Layout:
        """Read the blocks of a table."""
        key = (table.number, is_settled)
        if key not in self._layouts:
            columns: Array = np.array(open_array(self._layout_path(table, is_settled=is_settled)))
            parts, numbers, firsts, rows, kept = columns
            self._layouts[key] = Layout(parts, numbers, firsts, rows, kept, offsets_of(kept))
        return self._layouts[key]

    def _layout_path(self, table: Table, *, is_settled: bool) -> Path:
        return self.scratch / "layouts" / f"{table.number}-{'settled' if is_settled else 'read'}.npy"


def tables_of(metadata: TablesMetadata, leave_out: Sequence[str]) -> list[Table]:
    """List the tables of a graph, nodes first, without the features and splits in ``leave_out``."""
    nodes = [_node_table(i, t, spec, leave_out) for i, (t, spec) in enumerate(metadata.nodes.items())]
    edges = [_edge_table(i, t, spec, leave_out) for i, (t, spec) in enumerate(metadata.edges.items(), len(nodes))]
    return [*nodes, *edges]


def _node_table(number: int, node_type: str, spec: NodeTableSpec, leave_out: Sequence[str]) -> Table:
    has_ids = spec.files is not None and spec.id_column is not None
    ids = (Ids(name="id", column=str(spec.id_column), node_type=node_type),) if has_ids else ()
    features, split = _without(node_type, spec.features, spec.split_column, leave_out)
    return Table(number=number, entity=node_type, files=spec.files, ids=ids, features=features, split_column=split)


def _edge_table(number: int, edge_type: EdgeType, spec: EdgeTableSpec, leave_out: Sequence[str]) -> Table:
    ids = (
        Ids(name="src", column=spec.src_column, node_type=edge_type[0]),
        Ids(name="dst", column=spec.dst_column, node_type=edge_type[2]),
    )
    features, split = _without(type_label(edge_type), spec.features, spec.split_column, leave_out)
    return Table(number=number, entity=edge_type, files=spec.files, ids=ids, features=features, split_column=split)


def _without(
    label: str, features: Mapping[str, FeatureSpec], split: str | None, leave_out: Sequence[str]
) -> tuple[dict[str, FeatureSpec], str | None]:
    kept = {name: spec for name, spec in features.items() if f"{label}.{name}" not in leave_out}
    return kept, None if split is not None and f"{label}.{split}" in leave_out else split
