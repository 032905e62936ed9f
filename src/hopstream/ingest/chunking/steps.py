"""Surveys tables, and runs the steps that convert them to a chunked graph.

Node types without a table are partitioned by range. For them the survey also finds bounds of ranges of equal size.

The bounds come from a bottom-k sample: the distinct raw ids with the lowest hashes. Every raw id has the same chance to
be in the sample, however many edges name it. Samples of parts can be merged to the sample of the whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Array, column_schema, write_text
from hopstream.engine import Progress, Task, kind_of, task
from hopstream.engine.job import Job
from hopstream.errors import SchemaError
from hopstream.ingest.chunked.writing import (
    ChunkFile,
    TableShape,
    check_not_masks,
    check_writable,
    format_of,
    mask_of_split,
    plan_files,
    write_metadata,
)
from hopstream.ingest.chunking.buckets import hashes_of
from hopstream.ingest.chunking.chunks import chunk_args, write_chunk
from hopstream.ingest.chunking.join import find_repeated, join_ends, settle_edges, settle_nodes, sort_implicit
from hopstream.ingest.chunking.plan import TASKS_PER_WORKER, Part, part_of_json
from hopstream.ingest.chunking.read import raw_ids_feature, read_table_part
from hopstream.ingest.chunking.workplace import ChunkFolder, Ids, RawKind, Table, raise_first, returns_input_errors
from hopstream.ingest.raw_tables.columns import (
    LADDER,
    ColumnReader,
    other_schema_error,
    parsable_dtypes,
    raw_id_column,
    saved_feature,
)
from hopstream.ingest.raw_tables.files import Batch, Origin, read_part
from hopstream.ingest.raw_tables.metadata import TablesMetadata, check_num_rows
from hopstream.ingest.raw_tables.raw_ids import INTEGER, NAME, first_non_integer
from hopstream.ingest.tables import (
    SavedTransforms,
    dangling_error,
    node_raw_ids,
    not_integers_error,
    repeated_error,
    saved_transforms,
)
from hopstream.ingest.transforms.chain import Chain, ChainFit
from hopstream.ingest.transforms.saved import SavedFeature
from hopstream.schema import STRING, EdgeType, FeatureSchema


@task
@returns_input_errors
def look_at_part(args: dict[str, Any]) -> dict[str, Any]:
    """Survey columns of raw ids, and features with undeclared dtypes or unfitted transforms.

    Returns:
        ``batches``: Number of batches. ``integers``: column to whether all raw ids are integers. ``counts`` and
        ``bytes``: column to number of raw ids and their bytes. ``dtypes``: feature to the dtypes that can hold its
        cells.
    """
    workplace = ChunkFolder.of(args)
    table = workplace.declared[int(args["table"])]
    looked_at = [ids for ids in table.ids if ids.name in args["ids"]]
    looks = {ids.name: _Look(workplace, table, ids) for ids in looked_at}
    dtypes = {name: list(LADDER) for name in table.undeclared}
    columns = [ids.column for ids in looked_at]
    fitting = {name: ColumnReader(f"{table.label}.{name}", spec) for name, spec in table.unfitted.items()}
    surveyed = (*table.undeclared.values(), *table.unfitted.values())
    columns += [column for spec in surveyed for column in spec.columns]
    num_batches = 0
    if table.files is not None:
        for batch in read_part(
            table.files, part_of_json(args["part"]), columns, block_bytes=workplace.spec.csv_block_bytes
        ):
            num_batches += 1
            for look in looks.values():
                look.add(batch)
            for name, spec in table.undeclared.items():
                dtypes[name] = parsable_dtypes(batch, spec, dtypes[name])
            for reader in fitting.values():
                reader.add(batch)
                reader.forget()
    for name, reader in fitting.items():
        if reader.fit is not None:
            write_text(workplace.fit_path(table, int(args["number"]), name), json.dumps(reader.fit.to_json()))
    for ids in looked_at:
        if workplace.is_implicit(ids.node_type):
            write_text(workplace.sample_path(table, int(args["number"]), ids.name), looks[ids.name].sample.to_text())
    return {
        "batches": num_batches, "dtypes": dtypes,
        "integers": {name: look.are_integers for name, look in looks.items()},
        "counts": {name: look.count for name, look in looks.items()},
        "bytes": {name: look.num_bytes for name, look in looks.items()},
    }  # fmt: skip


class Sample:
    """Bottom-k sample: the ``size`` distinct raw ids with the lowest hashes."""

    def __init__(self, size: int) -> None:
        """Start with an empty sample."""
        self._size = size
        self.hashes: Array = np.empty(0, np.uint64)
        self.cells: pa.Array = pa.array([], NAME)

    def add(self, hashes: Array, cells: pa.Array) -> None:
        """Add raw ids as text, and their hashes."""
        if len(self.hashes) == self._size:
            is_low = hashes < self.hashes[-1]
            hashes, cells = hashes[is_low], cells.filter(pa.array(is_low))
        hashes = np.concatenate([self.hashes, hashes])
        cells = pa.concat_arrays([self.cells, cells])
        self.hashes, firsts = np.unique(hashes, return_index=True)
        self.hashes = self.hashes[: self._size]
        self.cells = cells.take(pa.array(firsts[: self._size]))

    def num_different(self) -> int:
        """Estimate the number of distinct raw ids from the density of the lowest hashes."""
        if len(self.hashes) < self._size:
            return len(self.hashes)
        return int((self._size - 1) / (float(self.hashes[-1]) + 1) * 2.0**64)

    def to_text(self) -> str:
        """Return the sample as JSON for ``from_text``."""
        return json.dumps([self.hashes.tolist(), self.cells.to_pylist()])

    @classmethod
    def from_text(cls, size: int, text: str) -> Sample:
        """Read what ``to_text`` wrote."""
        sample = cls(size)
        hashes, cells = json.loads(text)
        sample.hashes, sample.cells = np.array(hashes, np.uint64), pa.array(cells, NAME)
        return sample


class _Look:
    """Survey of one column of raw ids."""

    def __init__(self, workplace: ChunkFolder, table: Table, ids: Ids) -> None:
        self._spec = workplace.metadata.nodes[ids.node_type]
        self._table, self._ids = table, ids
        self._is_implicit = workplace.is_implicit(ids.node_type)
        self.sample = Sample(workplace.spec.limits.num_samples)
        self.are_integers, self.count, self.num_bytes = True, 0, 0

    def add(self, batch: Batch) -> None:
        if self._is_implicit:
            raw = raw_id_column(batch, self._ids.column, f"{self._table.label}.{self._ids.column}").drop_null()
            if self._spec.id_dtype == "int64" and first_non_integer(raw) is not None:
                raise not_integers_error(f"{self._table.label}.{self._ids.column}", self._ids.node_type)
        else:
            raw = node_raw_ids(str(self._table.entity), self._spec, batch)
        self.are_integers = self.are_integers and first_non_integer(raw) is None
        text = raw if raw.type == INTEGER and not self._is_implicit else raw.cast(NAME)
        self.count += len(raw)
        self.num_bytes += text.nbytes
        if self._is_implicit:
            self.sample.add(hashes_of(text), text)


SAMPLES_PER_BUCKET = 8
"""Sampled raw ids per range, at least; with fewer, the ranges would differ more in size."""


class TableFindings:
    """Results of the survey so far."""

    def __init__(self, workplace: ChunkFolder, parts: Mapping[int, Sequence[Part]]) -> None:
        """Start without results."""
        self._workplace, self._parts, self._plan = workplace, parts, workplace.spec
        self._specs = workplace.metadata.nodes
        self._are_integers = {t: spec.id_dtype != STRING for t, spec in self._specs.items()}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._samples: dict[str, Sample] = {}
        self._dtypes: dict[str, dict[str, str]] = {}
        self._transforms: dict[str, dict[str, Any]] = {}

    def must_look_at(self, table: Table, ids: Ids) -> bool:
        """Return whether a column of raw ids must be surveyed.

        That is the case for a node table's own raw ids, and for ends at a type without a table.
        """
        return isinstance(table.entity, str) or self._workplace.is_implicit(ids.node_type)

    def take(self, table: Table, results: Sequence[Mapping[str, Any]]) -> None:
        """Add what ``look_at_part`` returned for each part of a table."""
        if any(result["batches"] for result in results):
            self._dtypes[str(table.number)] = {
                name: next(dtype for dtype in LADDER if all(dtype in result["dtypes"][name] for result in results))
                for name in table.undeclared
            }
        for ids in table.ids:
            if self.must_look_at(table, ids):
                self._are_integers[ids.node_type] &= all(result["integers"][ids.name] for result in results)
                count, num_bytes = (sum(result[what][ids.name] for result in results) for what in ("counts", "bytes"))
                self._sizes[ids.node_type] = (count, num_bytes)
                if self._workplace.is_implicit(ids.node_type):
                    self._merge_samples(table, ids)

        self._transforms[str(table.number)] = {
            name: self._fitted(table, name, spec.transform).to_json()
            for name, spec in table.unfitted.items()
            if spec.transform is not None
        }

    def _fitted(self, table: Table, name: str, chain: Chain) -> Chain:
        fit = ChainFit(f"{table.label}.{name}", chain)
        for number in range(len(self._parts[table.number])):
            fit.merge(json.loads(self._workplace.fit_path(table, number, name).read_text(encoding="utf-8")))
        return chain.fitted_by(fit)

    def _merge_samples(self, table: Table, ids: Ids) -> None:
        size = self._plan.limits.num_samples
        merged = self._samples.setdefault(ids.node_type, Sample(size))
        for number in range(len(self._parts[table.number])):
            text = self._workplace.sample_path(table, number, ids.name).read_text(encoding="utf-8")
            sample = Sample.from_text(size, text)
            merged.add(sample.hashes, sample.cells)

    def decide(self) -> None:
        """Decide the kinds of raw ids, dtypes and buckets, and write them for later tasks."""
        kinds = {node_type: self._kind(node_type) for node_type in self._specs}
        num_buckets = {node_type: self._num_buckets(node_type, kind) for node_type, kind in kinds.items()}
        self._workplace.write_known(kinds, num_buckets, self._dtypes, self._transforms)

    def _kind(self, node_type: str) -> RawKind:
        spec = self._specs[node_type]
        if spec.files is not None and spec.id_column is None:
            return "row"
        return "int64" if self._are_integers[node_type] else "string"

    def _num_buckets(self, node_type: str, kind: RawKind) -> int:
        if kind == "row":
            return 1
        if self._workplace.is_implicit(node_type):
            return self._bound(node_type, kind)
        return self._plan.num_buckets(*self._sizes.get(node_type, (0, 0)))

    def _bound(self, node_type: str, kind: RawKind) -> int:
        """Write the bounds of the ranges of a node type without a table, and return the number of ranges."""
        sample = self._samples.get(node_type) or Sample(1)
        cells = sample.cells.cast(NAME if kind == STRING else INTEGER)
        cells = cells.take(pc.sort_indices(cells)) if len(cells) else cells
        num_ids = sample.num_different()
        num_bytes = int(cells.nbytes / max(1, len(cells)) * num_ids)
        wanted = 2 * self._plan.num_buckets(num_ids, num_bytes) - 1
        num_buckets = min(wanted, max(1, len(cells) // SAMPLES_PER_BUCKET))
        places = [len(cells) * i // num_buckets for i in range(1, num_buckets)]
        bounds = list(dict.fromkeys(cells[place].as_py() for place in places))
        write_text(self._workplace.bounds_path(node_type), json.dumps(bounds))
        return len(bounds) + 1


WORK = {"look": 1, "read": 4, "join": 2, "settle": 1, "write": 2}
"""Shares of the steps in the work on a table, for progress only."""


@dataclass(slots=True)
class ChunkCounts:
    """Counts of a conversion; see ``ChunkReport``."""

    num_nodes: dict[str, int] = field(default_factory=dict)
    num_edges: dict[EdgeType, int] = field(default_factory=dict)
    num_repeated: dict[str, int] = field(default_factory=dict)
    num_dangling: dict[EdgeType, dict[str, int]] = field(default_factory=dict)


class Steps:
    """Run of a job's steps in order, with their results."""

    def __init__(
        self, workplace: ChunkFolder, metadata: TablesMetadata, parts: Mapping[int, Sequence[Part]], progress: Progress
    ) -> None:
        """Prepare the run; nothing starts yet."""
        self.workplace, self._metadata, self._parts, self._progress = workplace, metadata, parts, progress
        self._counts = ChunkCounts()
        self._outputs: dict[int, dict[str, dict[str, Any]]] = {}
        self._read: dict[int, dict[str, Any]] = {}
        self._work_done = 0
        self._job: Job

    def run(self, job: Job) -> ChunkCounts:
        """Write everything, the metadata last."""
        self._job = job
        self._tell(0)
        self._look()
        nodes = [table for table in self.workplace.tables if isinstance(table.entity, str)]
        edges = [table for table in self.workplace.tables if not isinstance(table.entity, str)]
        for table in nodes:
            if table.files is not None:
                self._read_nodes(table)
        for table in edges:
            if any(self.workplace.is_implicit(ids.node_type) for ids in table.ids):
                self._read_table(table)
        for table in nodes:
            if table.files is None:
                self._sort_implicit(table)
        for table in nodes:
            self._write(table)
        for table in edges:
            if table.number not in self._read:
                self._read_table(table)
            self._join(table)
            self._settle_edges(table)
            self._write(table)
            shutil.rmtree(self.workplace.table_folder(table), ignore_errors=True)
        transforms = {table.label: saved for table in self.workplace.tables if (saved := self._saved(table))}
        write_metadata(self.workplace.chunked, self._plan_files()[0], transforms)
        self._progress("chunk", self._total_work(), self._total_work())
        return self._counts

    # Progress counts bytes of tables times the share of a step. The sizes of a step's tasks add up to that product.

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report a stage's progress as progress of the whole run."""
        self._tell(done)

    def _tell(self, done: int) -> None:
        total = self._total_work()
        self._progress("chunk", min(self._work_done + done, total), total)

    def _num_bytes(self, table: Table) -> int:
        return sum(part.num_bytes for part in self._parts.get(table.number, ()))

    def _total_work(self) -> int:
        return max(1, sum(WORK.values()) * sum(map(self._num_bytes, self.workplace.declared)))

    def _run(self, step: str, table: Table, tasks: list[Task]) -> dict[str, Any]:
        results = self._job.run(step, tasks)
        self._work_done += WORK[step] * self._num_bytes(table)
        self._tell(0)
        raise_first(results)
        return results

    def _args(self, table: Table, **args: Any) -> dict[str, Any]:
        return {"folder": str(self.workplace.root), "table": table.number, **args}

    def _part_tasks(self, step: str, function: Any, table: Table, **args: Any) -> list[Task]:
        return [
            Task(
                f"{step}-{table.number}-{i}", kind_of(function),
                self._args(table, number=i, part=part.to_json(), **args), part.num_bytes * WORK[step],
            )
            for i, part in enumerate(self._parts[table.number])
        ]  # fmt: skip

    def _bucket_tasks(self, step: str, function: Any, table: Table, ids: Ids) -> list[Task]:
        num_buckets = self.workplace.buckets(ids.node_type).num_buckets
        num_tasks = min(num_buckets, TASKS_PER_WORKER * self.workplace.spec.num_workers)
        size = WORK[step] * self._num_bytes(table) // len(table.ids) // num_tasks
        return [
            Task(
                f"{step}-{table.number}-{ids.name}-{i}", kind_of(function),
                self._args(table, ids=ids.name, buckets=[first, stop]), size,
            )
            for i, (first, stop) in enumerate(_runs(num_buckets, num_tasks))
        ]  # fmt: skip

    def _look(self) -> None:
        """Survey raw ids and undeclared features."""
        findings = TableFindings(self.workplace, self._parts)
        for table in self.workplace.declared:
            names = [ids.name for ids in table.ids if findings.must_look_at(table, ids)]
            if table.files is not None and (names or table.undeclared or table.unfitted):
                tasks = self._part_tasks("look", look_at_part, table, ids=names)
                findings.take(table, list(self._run("look", table, tasks).values()))
            else:
                self._work_done += WORK["look"] * self._num_bytes(table)
        findings.decide()

    # Reading

    def _read_table(self, table: Table) -> None:
        results = self._run("read", table, self._part_tasks("read", read_table_part, table))
        self.workplace.write_layout(table, [result["blocks"] for result in results.values()], None)
        self._read[table.number] = results
        self._outputs[table.number] = self._features_of(table, list(results.values()))
        entity = table.entity
        spec = self._metadata.nodes[entity] if isinstance(entity, str) else self._metadata.edges[entity]
        check_num_rows(table.label, spec, sum(sum(result["blocks"]) for result in results.values()))

    def _features_of(self, table: Table, results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the source of each feature that is written.

        Raises:
            SchemaError: Files contradict each other, or a chunked graph cannot hold a feature.
        """
        outputs: dict[str, dict[str, Any]] = {}
        if isinstance(table.entity, str):
            raw = raw_ids_feature(self._metadata.nodes[table.entity], self.workplace.spec.tables)
            if raw is not None and f"{table.label}.{raw}" not in self.workplace.spec.chunks.leave_out:
                schema = FeatureSchema(dtype=STRING if self.workplace.kind(table.entity) == STRING else "int64")
                what = "raw" if table.files is not None else "sorted"
                outputs[raw] = {"what": what, "schema": schema.to_json()}
        for name in table.features:
            schema = self._schema_of(table, name, results)
            check_writable(f"{table.label}.{name}", schema, self.workplace.spec.chunks)
            outputs[name] = {"what": "feature", "schema": schema.to_json()}
        if isinstance(table.entity, str):
            check_not_masks(table.entity, outputs)
        for split in dict.fromkeys(name for result in results for name in result["splits"]):
            mask = FeatureSchema(dtype="bool")
            outputs[mask_of_split(table.label, split)] = {"what": "mask", "split": split, "schema": mask.to_json()}
        return outputs

    def _schema_of(self, table: Table, name: str, results: Sequence[Mapping[str, Any]]) -> FeatureSchema:
        label, first = f"{table.label}.{name}", None
        for part, result in zip(self._parts[table.number], results, strict=True):
            if name in result["schemas"]:
                schema = FeatureSchema.from_json(result["schemas"][name])
                first = first or schema
                if schema != first and table.files is not None:
                    origin = Origin(table.files, table.files.paths[part.source.file], 0)
                    raise other_schema_error(label, origin, schema, first)
        return first or column_schema(ColumnReader(label, table.features[name]).finish())

    def _read_nodes(self, table: Table) -> None:
        """Read a node table, and drop or refuse repeated nodes."""
        self._read_table(table)
        blocks = [result["blocks"] for result in self._read[table.number].values()]
        kept, num_repeated = [row for of_part in blocks for row in of_part], 0
        if table.ids:
            found = self._run("join", table, self._bucket_tasks("join", find_repeated, table, table.ids[0]))
            num_repeated = sum(result["count"] for result in found.values())
            if num_repeated and self.workplace.spec.tables.on_duplicate == "error":
                row, earlier, raw = min(result["first"] for result in found.values() if result["first"])
                places = [self._origin(table, place)[0] for place in (earlier, row)]
                raise repeated_error(table.label, raw, places)
        else:
            self._work_done += WORK["join"] * self._num_bytes(table)
        if num_repeated:
            settled = self._run("settle", table, self._part_tasks("settle", settle_nodes, table))
            kept = [count for result in settled.values() for count in result["kept"]]
        else:
            self._work_done += WORK["settle"] * self._num_bytes(table)
        layout = self.workplace.write_layout(table, blocks, kept)
        self._counts.num_nodes[str(table.entity)] = layout.num_kept
        if num_repeated:
            self._counts.num_repeated[str(table.entity)] = num_repeated

    def _origin(self, table: Table, row: int) -> tuple[str, int, int]:
        """Return the file and line of a row of a table, the part that holds it, and the row in that part."""
        for number, result in enumerate(self._read[table.number].values()):
            num_rows = sum(result["blocks"])
            if row < num_rows and table.files is not None:
                part = self._parts[table.number][number].source
                return Origin(table.files, table.files.paths[part.file], part.first_row).place(row), number, row
            row -= num_rows
        raise SchemaError(
            f"{table.label} has no row {row} any more: its files changed during the conversion; start again"
        )

    def _sort_implicit(self, table: Table) -> None:
        """Number the nodes of a type without a table."""
        node_type = str(table.entity)
        tasks = [
            Task(
                f"sort-{table.number}-{bucket}",
                kind_of(sort_implicit),
                self._args(table, type=node_type, bucket=bucket),
                0,
            )
            for bucket in range(self.workplace.buckets(node_type).num_buckets)
        ]
        counts = [result["count"] for result in self._job.run("sort", tasks).values()]
        layout = self.workplace.write_layout(table, [counts], counts)
        self._outputs[table.number] = self._features_of(table, [])
        self._counts.num_nodes[node_type] = layout.num_kept
        check_num_rows(node_type, self._metadata.nodes[node_type], layout.num_kept)

    # Edges

    def _join(self, table: Table) -> None:
        tasks: list[Task] = []
        for ids in table.ids:
            if self.workplace.kind(ids.node_type) != "row":
                tasks += self._bucket_tasks("join", join_ends, table, ids)
        self._run("join", table, tasks)

    def _settle_edges(self, table: Table) -> None:
        settled = self._run("settle", table, self._part_tasks("settle", settle_edges, table))
        edge_type = self._edge_type(table)
        dangling = {end: sum(result["dangling"][end] for result in settled.values()) for end in ("edges", "src", "dst")}
        if dangling["edges"]:
            if self.workplace.spec.tables.on_dangling == "error":
                part, first = next((i, r["first"]) for i, r in enumerate(settled.values()) if r["first"])
                raise self._dangling_error(table, part, *first)
            self._counts.num_dangling[edge_type] = dangling
        blocks = [result["blocks"] for result in self._read[table.number].values()]
        kept = [count for result in settled.values() for count in result["kept"]]
        self._counts.num_edges[edge_type] = self.workplace.write_layout(table, blocks, kept).num_kept

    def _edge_type(self, table: Table) -> EdgeType:
        return cast(EdgeType, table.entity)

    def _dangling_error(self, table: Table, number: int, row: int, end: str) -> SchemaError:
        """Build the error for an end without a node; its raw id is read again."""
        ids = next(ids for ids in table.ids if ids.name == end)
        label = f"{table.label}.{ids.column}"
        if table.files is not None:
            for batch in read_part(
                table.files,
                self._parts[table.number][number].source,
                [ids.column],
                block_bytes=self.workplace.spec.csv_block_bytes,
            ):
                if row < batch.num_rows:
                    raw = raw_id_column(batch, ids.column, label)[row].as_py()
                    return dangling_error(label, raw, ids.node_type, batch.origin.place(row))
                row -= batch.num_rows
        return SchemaError(f"{label} has no row {row} any more: its files changed during the conversion; start again")

    # Writing

    def _plan_files(self) -> tuple[dict[str, Any], list[ChunkFile]]:
        """Plan the metadata and all files; edge types that are not yet read count as empty."""
        plan, counts = self.workplace.spec, self._counts
        nodes, edges = {}, {}
        for table in self.workplace.tables:
            features = {
                name: format_of(FeatureSchema.from_json(output["schema"]), plan.chunks)
                for name, output in self._outputs.get(table.number, {}).items()
            }
            if isinstance(table.entity, str):
                nodes[table.entity] = TableShape(num_rows=counts.num_nodes[table.entity], features=features)
            else:
                edge_type = self._edge_type(table)
                edges[edge_type] = TableShape(num_rows=counts.num_edges.get(edge_type, 0), features=features)
        return plan_files(plan.name, nodes, edges, plan.chunks)

    def _saved(self, table: Table) -> SavedTransforms:
        """Return how the features of a table are made; empty if none is transformed."""
        if table.number not in self._read:
            return {}
        found: dict[str, SavedFeature] = {}
        for name, spec in table.features.items():
            read_as = next(
                (r["read_as"][name] for r in self._read[table.number].values() if name in r["read_as"]), None
            )
            empty = ColumnReader(f"{table.label}.{name}", spec)
            schema = column_schema(empty.no_rows()) if read_as is None else FeatureSchema.from_json(read_as)
            found[name] = saved_feature(spec, schema)
        return saved_transforms(found)

    def _write(self, table: Table) -> None:
        """Write the files of the chunked graph that hold a table."""
        files = [file for file in self._plan_files()[1] if file.entity == table.entity]
        outputs = self._outputs[table.number]
        size = WORK["write"] * self._num_bytes(table) // max(1, len(files))
        tasks = []
        for i, file in enumerate(files):
            args = self._args(table, **chunk_args(file), **(outputs[file.feature] if file.feature is not None else {}))
            tasks.append(Task(f"write-{table.number}-{i}", kind_of(write_chunk), args, size))
        self._run("write", table, tasks)


def _runs(num_buckets: int, num_tasks: int) -> Iterator[tuple[int, int]]:
    """Yield a range of buckets for each task."""
    for number in range(num_tasks):
        yield num_buckets * number // num_tasks, num_buckets * (number + 1) // num_tasks
