"""Writes a dataset by the tasks of a job: numbers nodes, then writes columns, edges and links.

The job works in the work folder beside the dataset's place, so a later call finds the job of a killed process.
Subclasses define the input, and how its columns and edges are written.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hopstream.arrays import FileRecord, IntArray, offsets_of, with_blocks
from hopstream.dataset.balance import EdgeCut, StageCost
from hopstream.dataset.book import PartitionBook
from hopstream.dataset.dataset_folder import check_target
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import Expected, expected_files, expected_nodes, node_folder, split_path
from hopstream.dataset.regions import Stretches, file_record, make_file, merge_stretches
from hopstream.dataset.settings import PartitionSettings, Progress
from hopstream.engine import Task, kind_of
from hopstream.engine.atomic_folder import WorkFolder
from hopstream.engine.folder_job import FolderJob, write_spec
from hopstream.engine.job import Job
from hopstream.engine.machine import peak_bytes
from hopstream.engine.settings import Allotment, bytes_text, no_progress
from hopstream.engine.tasks import TaskFunction
from hopstream.graph.graph import GraphChecksums
from hopstream.preparation.dataset_job_folder import DatasetJobFolder, DatasetJobSpec, empty_matrix
from hopstream.preparation.halo.costs import HaloCosts
from hopstream.preparation.write import Written, manifest_of
from hopstream.schema import Direction, EdgeType, GraphSchema

NODE_WORK = 24
"""Bytes of work per node for counting and numbering; only for progress."""


@dataclass(slots=True, kw_only=True)
class DatasetContents:
    """Fields that decide which files a dataset has; ``book`` gets ranges of edges when they are known."""

    schema: GraphSchema
    directions: tuple[Direction, ...]
    book: PartitionBook
    has_edge_keys: bool
    time_attr: str | None
    weight_attr: str | None
    has_neighbor_keys: bool
    has_narrow_keys: ClassVar[bool] = True

    @classmethod
    def of(cls, schema: GraphSchema, settings: PartitionSettings, book: PartitionBook) -> DatasetContents:
        """Make the contents that settings ask for."""
        return cls(
            schema=schema, directions=settings.directions, book=book, has_edge_keys=settings.keep_edge_keys,
            time_attr=settings.time_attr, weight_attr=settings.weight_attr, has_neighbor_keys=settings.neighbor_keys,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEstimate:
    """Estimate of a job, from the sizes of its input.

    Attributes:
        dataset_bytes: Bytes of the dataset.
        scratch_bytes: Bytes of the tables of nodes.
        input_bytes: Bytes to read: rows and ends in their form in memory.
        spill_bytes: Bytes of the spilled edges of the largest edge type.
        halo: Costs of halos, which are made after spilled edges are removed.
        work: Memory and workers of the job; None if only the disk was estimated.
        num_done: Number of tasks that an earlier, killed call finished.
    """

    dataset_bytes: int
    scratch_bytes: int
    input_bytes: int
    spill_bytes: int = 0
    halo: HaloCosts = field(default_factory=HaloCosts)
    work: Allotment | None = None
    num_done: int = 0

    @property
    def disk_bytes(self) -> int:
        """Upper bound of the bytes on disk at any time."""
        of_halos = self.halo.copied_bytes + self.halo.table_bytes
        return self.dataset_bytes + self.scratch_bytes + max(self.spill_bytes, of_halos)

    @property
    def least_disk_bytes(self) -> int:
        """``disk_bytes`` without copies in halos whose number is unknown before the search for their nodes."""
        return self.dataset_bytes + self.scratch_bytes + max(self.spill_bytes, self.halo.budget_bytes)


OnEstimate = Callable[[DatasetEstimate, Any], None]
"""Called with the estimate and the spec of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTarget:
    """Place of a dataset that is to be written.

    Attributes:
        out: The place, as the caller named it.
        work: Work folder of the place, or a folder in it.
        overwrite: Replace an existing dataset.
        call: Digest of everything that determines the caller's result. If the process is killed after the dataset is in
            place and before everything else is removed, the same call finds that it is done.
    """

    out: Path
    work: WorkFolder
    overwrite: bool
    call: str

    def finished(self) -> Manifest | None:
        """Return the dataset if an earlier, killed process put it in place by the same call; else None."""
        return read_manifest(self.work.root) if self.work.finished_call == self.call else None

    def check(self, out: Path) -> None:
        """Refuse a place that must not be replaced; see ``check_target``."""
        check_target(out, overwrite=self.overwrite)


@dataclass(slots=True, kw_only=True)
class DatasetJob(ABC):
    """Job that writes a dataset, with the results of its stages.

    Attributes:
        spec: Everything that determines what the tasks do.
        allotted: Memory and workers of the job.
        digest: Digest of the spec and the state of the input.
        progress: Called with the work of all stages together.
        lengths: Path to length, for files whose length only the input determines.
        splits: Node type and split to the result of ``count_of_type``.
        seeds: See ``count_seeds``.
        cuts: Edge type to its cut.
        between: int64[num_parts, num_parts], edges between parts; without rows above ``MAX_MATRIX_PARTS`` parts.
        node_offsets: Node type to int64[num_parts + 1].
        edge_offsets: Edge type and direction to int64[num_parts + 1].
        stretches: Ranges of files that tasks have written.
    """

    name: ClassVar[str]
    node_tasks: ClassVar[tuple[TaskFunction, TaskFunction]]
    """Tasks that call ``count_of_type`` and ``number_type``."""
    spec: DatasetJobSpec
    allotted: Allotment
    digest: str
    progress: Progress = no_progress
    lengths: dict[str, int] = field(default_factory=dict)
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: dict[tuple[str | EdgeType, str], tuple[int, ...]] = field(default_factory=dict)
    cuts: dict[EdgeType, EdgeCut] = field(default_factory=dict)
    between: IntArray = field(init=False)
    node_offsets: dict[str, IntArray] = field(default_factory=dict)
    edge_offsets: dict[tuple[EdgeType, Direction], IntArray] = field(default_factory=dict)
    stretches: Stretches = field(default_factory=dict)
    _job: Job = field(init=False)
    _total_work: int = 1
    _work_done: int = 0
    _started: float = 0.0
    _seconds: dict[str, float] = field(default_factory=dict)

    @property
    @abstractmethod
    def folder(self) -> DatasetJobFolder[Any]:
        """The job's folder."""

    @property
    @abstractmethod
    def schema(self) -> GraphSchema:
        """The dataset's schema."""

    @property
    @abstractmethod
    def transforms(self) -> Mapping[str, Any]:
        """The fitted transforms of the source; see ``Graph``."""

    @abstractmethod
    def open_folder(self, root: Path) -> None:
        """Open the job's folder."""

    @abstractmethod
    def check(self) -> None:
        """Refuse settings that are wrong whatever the input holds."""

    @abstractmethod
    def estimate(self) -> DatasetEstimate:
        """Estimate the costs of the job."""

    @abstractmethod
    def total_work(self) -> int:
        """Return the approximate bytes that tasks read and write, the sum of the sizes of the tasks."""

    @abstractmethod
    def begin(self) -> None:
        """Run the stages before nodes are counted."""

    @abstractmethod
    def write_columns(self) -> None:
        """Write the features of nodes."""

    @abstractmethod
    def write_edges(self, edge_type: EdgeType) -> None:
        """Write the edges of a type in every direction."""

    @abstractmethod
    def write_links(self, edge_type: EdgeType) -> None:
        """Write the links of an edge type, and the splits of its edges."""

    @abstractmethod
    def identity(self) -> tuple[str, GraphChecksums]:
        """Return the graph id, and the checksums that it is built from."""

    def finish(self, manifest: Manifest) -> Manifest:
        """Run the steps after the manifest is written; return the final manifest."""
        return manifest

    def write(self, target: DatasetTarget, progress: Progress | None, on_estimate: OnEstimate | None) -> Manifest:
        """Write the dataset, or resume, in a locked place, which may be the place of the input."""
        self.progress, self._started = progress or no_progress, time.perf_counter()
        self.check()
        target.check(target.out)
        folder_job = FolderJob(
            out=target.out, work=target.work, digest=self.digest, product="dataset", allotted=self.allotted,
            call=target.call,
        )  # fmt: skip
        costs = replace(self.estimate(), num_done=folder_job.num_done, work=self.allotted)
        folder_job.check_disk(costs.least_disk_bytes, f"{bytes_text(costs.dataset_bytes)} for the dataset itself")
        if on_estimate is not None:
            on_estimate(costs, self.spec)
        self.open_folder(folder_job.root)
        self._total_work = max(1, self.total_work())
        return folder_job.run(self._write, self.tell, target.check)

    def _write(self, job: Job) -> Manifest:
        """Write everything, the manifest last."""
        self._job = job
        self.between = empty_matrix(self.num_parts)
        self.folder.dataset.mkdir(parents=True, exist_ok=True)
        write_spec(self.folder.root, self.spec)
        self.begin()
        self._count_nodes()
        self._number_nodes()
        self.write_columns()
        for edge_type in self.schema.edges:
            self.write_edges(edge_type)
        for edge_type in self.schema.edge_splits:
            self.write_links(edge_type)
        manifest = self.make_manifest()
        manifest.write(self.folder.dataset)
        self.progress(self.name, self._total_work, self._total_work)
        return self.finish(manifest)

    @property
    def num_parts(self) -> int:
        """Number of parts of the new dataset."""
        return self.spec.settings.num_parts

    def args(self, **args: Any) -> dict[str, Any]:
        """Build the arguments of a task."""
        return {"folder": str(self.folder.root), **args}

    def run(self, stage: str, tasks: list[Task]) -> list[Any]:
        """Run the tasks of a stage; return their results in the order of the tasks."""
        with self.timed(stage):
            results = self._job.run(stage, tasks)
            self._work_done += sum(task.size for task in tasks)
            self.tell(stage, 0, 0)
        return list(results.values())

    def run_writers(self, stage: str, tasks: list[Task]) -> list[Any]:
        """Run tasks that write to the dataset, and record what they wrote."""
        results = self.run(stage, tasks)
        add_stretches(self.stretches, (result["stretches"] for result in results))
        return results

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time inside the context to a stage."""
        started = time.perf_counter()
        yield
        self._seconds[stage] = self._seconds.get(stage, 0.0) + time.perf_counter() - started

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report the progress of a stage as progress of the whole job."""
        self.progress(self.name, min(self._work_done + done, self._total_work), self._total_work)

    def make_files(self, files: Iterable[tuple[str, Expected]]) -> None:
        """Create files for tasks to write, except files of unknown length."""
        for name, expected in files:
            if None not in expected.shape or name in self.lengths:
                make_file(self.folder.dataset / name, np.dtype(expected.dtype), self._shape(name, expected))

    def _shape(self, name: str, expected: Expected) -> tuple[int, ...]:
        return tuple(self.lengths[name] if n is None else n for n in expected.shape)

    def add_cut(self, edge_type: EdgeType, num_edges: int, results: Iterable[Mapping[str, Any]]) -> None:
        """Add up the tasks' counts of cut edges of a type (``cut``) and of edges between parts (``between``)."""
        num_cut = 0
        for result in results:
            num_cut += result["cut"]
            self.between += np.array(result["between"], np.int64).reshape(self.between.shape)
        self.cuts[edge_type] = EdgeCut(num_edges=num_edges, num_cut=num_cut)

    def contents(self) -> DatasetContents:
        """Return the contents of the dataset, as far as they are known."""
        book = PartitionBook(num_parts=self.num_parts, node_offsets=self.node_offsets, edge_offsets=self.edge_offsets)
        return DatasetContents.of(self.schema, self.spec.settings, book)

    def _node_tasks(self, stage: str, function: TaskFunction, node_work: int) -> list[Task]:
        folder = self.folder
        return [
            Task(f"{stage}-{number}", kind_of(function), self.args(type=t), folder.num_nodes(t) * node_work)
            for number, t in enumerate(folder.node_types)
        ]

    def _count_nodes(self) -> None:
        results = self.run("count", self._node_tasks("count", self.node_tasks[0], NODE_WORK // 4))
        for node_type, result in zip(self.folder.node_types, results, strict=True):
            self.node_offsets[node_type] = offsets_of(np.array(result["counts"], np.int64))
            self.splits[node_type] = result["splits"]
            for name, split in result["splits"].items():
                for part, count in enumerate(split["counts"]):
                    self.lengths[str(split_path(node_folder(part, node_type), name))] = count
        self.folder.write_ranges(self.node_offsets)

    def _number_nodes(self) -> None:
        contents, folder = self.contents(), self.folder
        for part in range(self.num_parts):
            self.make_files(expected_nodes(self.schema, contents.book, part))
        for node_type in folder.node_types:
            for what, dtype in folder.tables(node_type):
                make_file(folder.table_path(what, node_type), dtype, (folder.num_nodes(node_type),))
        results = self.run_writers("number", self._node_tasks("number", self.node_tasks[1], NODE_WORK * 3 // 4))
        seeds = {t: result["seeds"] for t, result in zip(folder.node_types, results, strict=True)}
        for node_type, names in self.schema.splits.items():
            self.seeds |= {(node_type, name): tuple(seeds[node_type][name]) for name in names}

    def make_manifest(self) -> Manifest:
        """Build the manifest of the written dataset.

        Raises:
            FormatError: A file was not written completely.
        """
        contents, (graph_id, checksums) = self.contents(), self.identity()
        written = Written(
            schema=self.schema, book=contents.book, graph_id=graph_id, checksums=checksums,
            files=self._file_records(contents), cuts=self.cuts, edges_between=self.between, seeds=self.seeds,
            stages=self._costs(), transforms=self.transforms,
        )  # fmt: skip
        return manifest_of(written, self.spec.settings)

    def _file_records(self, contents: DatasetContents) -> dict[str, FileRecord]:
        files: dict[str, FileRecord] = {}
        for part in range(self.num_parts):
            for name, expected in expected_files(contents, part):
                shape, stretches = self._shape(name, expected), self.stretches.get(name, [])
                record = file_record(name, np.dtype(expected.dtype), shape, stretches)
                files[name] = with_blocks(record, self.folder.dataset / name)
        return files

    def _costs(self) -> tuple[StageCost, ...]:
        """Return the cost of each stage, and of all stages together as ``write``."""
        seconds = {**self._seconds, "write": time.perf_counter() - self._started}
        return tuple(StageCost(name=n, seconds=s, peak_bytes=peak_bytes()) for n, s in seconds.items())


def add_stretches(known: Stretches, found: Iterable[Mapping[str, Any]]) -> None:
    """Merge the ranges that several tasks wrote, or read, into the known ranges."""
    for name, stretches in merge_stretches(found).items():
        known.setdefault(name, []).extend(stretches)
