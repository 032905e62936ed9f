"""Writes a dataset with other parts in bounded memory, and goes on where it was ended.

The work is cut into tasks, which an engine runs; see the modules of the stages, and ``partition.staged`` for where it
happens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from hopstream.arrays import IntArray, offsets_of, write_array, write_text
from hopstream.assign.dataset_source import source_of_rows
from hopstream.assign.folder import OwnerArray, OwnerBlocks, write_owners
from hopstream.assign.owners import find_num_parts, owners_path
from hopstream.assign.run import assign_nodes
from hopstream.dataset.balance import MAX_MATRIX_PARTS, EdgeCut
from hopstream.dataset.book import Owner, PartitionBook, neighbor_dtype
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.lock import hold, place_to_write
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import (
    Expected,
    expected_edges,
    expected_links,
    expected_nodes,
    link_folder,
    node_folder,
    split_path,
)
from hopstream.dataset.regions import Stretches, make_file, merge_stretches
from hopstream.dataset.replace import check_target
from hopstream.dataset.rows import DatasetRows, open_rows, owner_folder, owners_of
from hopstream.dataset.settings import PartitionSettings, Progress
from hopstream.engine import Task, kind_of
from hopstream.engine.allotment import Allotment, Choice, allot
from hopstream.engine.job import Job, digest_of
from hopstream.engine.resumed import choice_before
from hopstream.engine.settings import no_progress
from hopstream.errors import SettingsError
from hopstream.ingest.source_paths import check_apart
from hopstream.preparation.dispatch.plan import TASKS_PER_WORKER, budget_of
from hopstream.preparation.job_folder import PLAN
from hopstream.preparation.reshard import workplace as workplaces
from hopstream.preparation.reshard.links import count_links, write_links, write_splits
from hopstream.preparation.reshard.measure import first_places, measure_blocks
from hopstream.preparation.reshard.move import move_blocks
from hopstream.preparation.reshard.number import check_leading, count_nodes, number_nodes
from hopstream.preparation.reshard.plan import Estimate, Plan, estimate, mapped_bytes, memory_for_edges, reshard_needs
from hopstream.preparation.reshard.settings import ReshardOptions, ReshardSettings
from hopstream.preparation.reshard.workplace import Workplace, own_type
from hopstream.preparation.staged import PlannedContents, Stages, Staging, check_disk, write_staged
from hopstream.preparation.write import Written, manifest_of
from hopstream.schema import EdgeType

FORMAT = 1
"""Of the hidden folder; a folder of another one is not gone on with."""
ROW_WORK, NODE_WORK, LINK_WORK = 16, 32, 16
"""Bytes of work per row that is measured, per node that is numbered, and per link; for progress only."""


def reshard(  # noqa: PLR0913  two folders, owners, and what ``dispatch`` takes
    root: str | Path, out: str | Path, *, partitions_dir: str | Path | None = None,
    settings: ReshardSettings | None = None, overwrite: bool = False, progress: Progress | None = None,
    on_estimate: Callable[[Estimate, Plan], None] | None = None, **options: Unpack[ReshardOptions],
) -> Manifest:  # fmt: skip
    """Write a dataset anew with other parts, in bounded memory, without what it was written from.

    The new dataset is, byte for byte, what ``write_parts`` writes of the same graph, owners and settings. If the
    process is ended, the same call goes on where it was.

    Args:
        root: Folder of the dataset.
        out: The folder to write, beside the dataset; made if it is not there.
        partitions_dir: Folder with ``<node type>.npy`` or ``<node type>.txt``, the part of each node in the order of
            keys; None assigns nodes by ``settings.method``.
        settings: How to cut it and how to work; the defaults if it is not given.
        overwrite: Replace a dataset that is in ``out``, when the new one is complete.
        progress: Called as ``progress(stage, done, total)``; the stage ``reshard`` is told in bytes of work.
        on_estimate: Called once with what the work will take, before it starts.
        **options: Fields of ``ReshardSettings``; they go before ``settings``.

    Returns:
        The manifest that was written.

    Raises:
        SettingsError: A setting is outside its range, the memory is too small, the disk has no room, or ``out``
            holds what is not to be replaced, or lies in what is read, or the other way round.
        FormatError: ``root`` is no dataset, a file of it is missing or contradicts the others, or a file of owners
            cannot be read.
        ChecksumError: A file of the dataset is not the one that was written.
        SchemaError: A file of owners does not have one integer for each node.
        IdRangeError: It names a part that is not there.
        StateError: Another process writes to the same place, or changes the dataset.
        OSError: The system failed, for example because the disk is full; what was done is kept for the next call.
    """
    settings = replace(settings or ReshardSettings(), **options)
    root, out = Path(root), Path(out)
    owners = {} if partitions_dir is None else {"the folder of owners": partitions_dir}
    check_apart(out, {"the dataset": root, **owners})
    with ExitStack() as locks:
        hold(locks, root, is_reader=True)
        work = locks.enter_context(place_to_write(out))
        given = None if partitions_dir is None else Path(partitions_dir)
        plan = partial(plan_reshard, root, given, settings)
        planned = plan(before=choice_before(out, lambda choice: plan(before=choice).digest))
        staging = Staging(out=out, work=work, overwrite=overwrite, call=planned.digest)
        return staging.placed() or rewrite(planned, staging, progress, on_estimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What is to be done, and a digest of all that decides over it.

    Attributes:
        rows: The dataset as it is.
        plan: How the work is cut.
        work: What memory and workers it gets.
        digest: Of the dataset and the plan.
        owners: Gives the parts of nodes where no folder does; None assigns nodes by the method of the plan.
    """

    rows: DatasetRows
    plan: Plan
    work: Allotment
    digest: str
    owners: Callable[[DatasetRows], Mapping[str, OwnerArray | OwnerBlocks]] | None = None


def plan_reshard(
    root: Path, partitions_dir: Path | None, settings: ReshardSettings,
    owners: Callable[[DatasetRows], Mapping[str, OwnerArray | OwnerBlocks]] | None = None,
    *, before: Choice | None = None,
) -> Planned:  # fmt: skip
    """What is to be done; with ``owners`` the settings say how many parts there are."""
    workplaces.forget()
    rows = open_rows(root)
    cut = _cut(rows, partitions_dir, settings, has_owners=owners is not None)
    work = allot(settings.memory, settings, reshard_needs(rows, cut), before=before)
    plan = Plan(
        source=str(rows.root.absolute()), owners="" if partitions_dir is None else str(partitions_dir.absolute()),
        settings=cut, budget_bytes=budget_of(work, mapped_bytes(rows)), num_workers=work.num_working,
    )  # fmt: skip
    return Planned(rows=rows, plan=plan, work=work, digest=_digest(plan, rows), owners=owners)


def rewrite(
    planned: Planned, staging: Staging, progress: Progress | None,
    on_estimate: Callable[[Estimate, Plan], None] | None,
) -> Manifest:  # fmt: skip
    """Do it, in a place that is held; it may be the dataset's own."""
    started = time.perf_counter()
    rows, plan, work, digest = planned.rows, planned.plan, planned.work, planned.digest
    check_target(staging.out, overwrite=staging.overwrite)
    costs = replace(estimate(rows, plan.settings.num_parts), num_done=staging.num_done(digest), work=work)
    check_disk(staging, costs.disk_bytes, costs.dataset_bytes)
    if on_estimate is not None:
        on_estimate(costs, plan)
    workplace = Workplace(staging.root(digest))
    stages = Stages(
        name="reshard", dataset=workplace.dataset, total_work=_total_work(rows), started=started,
        progress=progress or no_progress,
    )  # fmt: skip

    def write(job: Job) -> Manifest:
        stages.job = job
        return _Run(workplace, rows, plan, stages, planned.owners).run(memory_for_edges(rows, plan.settings, work))

    return write_staged(staging, digest, write, work, stages.tell)


def _cut(
    rows: DatasetRows, partitions_dir: Path | None, settings: ReshardSettings, *, has_owners: bool
) -> PartitionSettings:
    """How the dataset is cut anew."""
    num_parts, method = settings.num_parts, settings.method
    if partitions_dir is not None:
        if method not in ("file", ReshardSettings().method):
            raise SettingsError(f"method is {method!r} and a folder of owners is given; leave one of them out")
        sizes = {t: rows.book.num_ids(t) for t in rows.contents.schema.nodes}
        num_parts = find_num_parts(partitions_dir, sizes, num_parts)
        settings = replace(settings, num_parts=num_parts, method="file")
    elif method == "file" and not has_owners:
        raise SettingsError("method is 'file' and no folder of owners is given; give partitions_dir")
    elif num_parts is None:
        raise SettingsError("neither num_parts nor a folder of owners is given; give one of them")
    return settings.partition_settings(num_parts, rows.manifest)


def _digest(plan: Plan, rows: DatasetRows) -> str:
    """What decides over the work: the plan, the old dataset, and the state of every file of owners."""
    states = []
    if plan.owners:
        paths = [owners_path(Path(plan.owners), node_type) for node_type in rows.contents.schema.nodes]
        states = [(str(path), state.st_size, state.st_mtime_ns) for path in paths for state in (path.stat(),)]
    return digest_of(["reshard", FORMAT, plan.to_json(), rows.manifest.dataset_id, states])


def _total_work(rows: DatasetRows) -> int:
    """Bytes that tasks read and write, roughly; sizes of tasks add up to it."""
    contents, book = rows.contents, rows.book
    leading = sum(rows.manifest.files[name].num_bytes for name in rows.leading_files)
    nodes = sum(book.num_ids(t) * NODE_WORK for t in contents.schema.nodes)
    links = sum(book.num_edges(t) * LINK_WORK for t in contents.schema.edge_splits)
    moved = sum(_owner_work(rows, owner) for owner in owners_of(contents))
    return max(1, leading + nodes + links + moved)


def _owner_work(rows: DatasetRows, owner: Owner) -> int:
    return rows.book.num_ids(own_type(owner)) * 2 * ROW_WORK + 2 * rows.num_bytes(owner)


@dataclass(slots=True)
class _Run:
    """One run of a job: the stages one after the other, and what came of them."""

    workplace: Workplace
    rows: DatasetRows
    plan: Plan
    stages: Stages
    owners: Callable[[DatasetRows], Mapping[str, OwnerArray | OwnerBlocks]] | None
    lengths: dict[str, int] = field(default_factory=dict)
    seeds: dict[tuple[str | EdgeType, str], tuple[int, ...]] = field(default_factory=dict)
    cuts: dict[EdgeType, EdgeCut] = field(default_factory=dict)
    between: IntArray = field(init=False)
    node_offsets: dict[str, IntArray] = field(default_factory=dict)
    edge_offsets: dict[Any, IntArray] = field(default_factory=dict)
    read: Stretches = field(default_factory=dict)

    def run(self, assign_bytes: int) -> Manifest:
        """Write everything, the manifest last."""
        num_rows = self.num_parts if self.num_parts <= MAX_MATRIX_PARTS else 0
        self.between = np.zeros((num_rows, num_rows), np.int64)
        self.workplace.dataset.mkdir(parents=True, exist_ok=True)
        write_text(self.workplace.scratch / PLAN, json.dumps(self.plan.to_json()))
        self.stages.tell("check", 0, 0)
        self._check_leading()
        if not self.plan.owners and not self.workplace.owners_folder.exists():
            self._assign(assign_bytes)
        self._count_nodes()
        self._number_nodes()
        for number, owner in enumerate(self.workplace.owners):
            columns = self.rows.columns(owner)
            if not isinstance(owner, str) or columns.fixed or columns.ragged:
                self._move(number, owner, self._measure(number, owner))
        for edge_type in self.rows.contents.schema.edge_splits:
            self._write_links(edge_type)
        self.rows.check_read(self.read)
        manifest = self._manifest()
        manifest.write(self.workplace.dataset)
        self.stages.end()
        return manifest

    @property
    def num_parts(self) -> int:
        """Of the new dataset."""
        return self.plan.settings.num_parts

    def _args(self, **args: Any) -> dict[str, Any]:
        return {"folder": str(self.workplace.root), **args}

    def _check_leading(self) -> None:
        names = self.rows.leading_files
        sizes = offsets_of(np.array([self.rows.manifest.files[name].num_bytes for name in names], np.int64))
        share = -(-int(sizes[-1]) // (TASKS_PER_WORKER * self.plan.num_workers))
        tasks = [
            Task(f"check-{first}", kind_of(check_leading), self._args(first=first, stop=stop), end - begin)
            for first, stop, begin, end in row_chunks(sizes, max(1, share))
        ]
        self.stages.run("check", tasks)

    def _assign(self, assign_bytes: int) -> None:
        """Give nodes to parts, by the method that was asked for where nothing else says it."""
        settings = self.plan.settings
        out = self.workplace.owners_folder
        with self.stages.timed("assign"), write_owners(out, self.num_parts, settings.method) as (folder, write):
            if self.owners is not None:
                write(self.owners(self.rows))
                return
            found = assign_nodes(
                source_of_rows(self.rows), settings, scratch=folder, memory_bytes=assign_bytes,
                progress=self.stages.progress,
            )  # fmt: skip
            write(found.owners)

    def _count_nodes(self) -> None:
        schema, book = self.rows.contents.schema, self.rows.book
        tasks = [
            Task(f"count-{i}", kind_of(count_nodes), self._args(type=t), book.num_ids(t) * NODE_WORK // 4)
            for i, t in enumerate(schema.nodes)
        ]
        results = self.stages.run("count", tasks)
        for node_type, result in zip(schema.nodes, results.values(), strict=True):
            self.node_offsets[node_type] = offsets_of(np.array(result["counts"], np.int64))
            for name, counts in result["splits"].items():
                for part, count in enumerate(counts):
                    self.lengths[str(split_path(node_folder(part, node_type), name))] = count
        self.workplace.write_ranges(self.node_offsets)

    def _number_nodes(self) -> None:
        schema, book = self.rows.contents.schema, self.rows.book
        for part in range(self.num_parts):
            self._make_files(expected_nodes(schema, self._contents().book, part))
        for node_type in schema.nodes:
            num_nodes = book.num_ids(node_type)
            for by in ("by_key", "by_id"):
                dtype = neighbor_dtype(num_nodes)
                make_file(self.workplace.table_path(by, node_type), dtype, (num_nodes,))
        tasks = [
            Task(f"number-{i}", kind_of(number_nodes), self._args(type=t), book.num_ids(t) * (NODE_WORK * 3 // 4))
            for i, t in enumerate(schema.nodes)
        ]
        results = self.stages.run("number", tasks)
        self.stages.keep(results.values())
        seeds = {t: result["seeds"] for t, result in zip(schema.nodes, results.values(), strict=True)}
        for node_type, names in schema.splits.items():
            self.seeds |= {(node_type, name): tuple(seeds[node_type][name]) for name in names}

    def _make_files(self, files: Iterator[tuple[str, Expected]]) -> None:
        """Make the files whose lengths are known by now."""
        known = ((name, wanted) for name, wanted in files if None not in wanted.shape or name in self.lengths)
        self.stages.make_files(known, self.lengths)

    def _measure(self, number: int, owner: Owner) -> IntArray:
        """int64[num_blocks + 1], the work before each block; where items go is written for tasks to see."""
        blocks, columns = self.workplace.blocks(owner), self.rows.columns(owner)
        num_blocks = len(blocks) - 1
        step = -(-num_blocks // (TASKS_PER_WORKER * self.plan.num_workers))
        ranges = [(first, min(first + step, num_blocks)) for first in range(0, num_blocks, step)]
        tasks = [
            Task(
                f"measure-{number}-{first}", kind_of(measure_blocks), self._args(owner=number, first=first, stop=stop),
                int(blocks[stop] - blocks[first]) * ROW_WORK,
            )
            for first, stop in ranges
        ]  # fmt: skip
        self.stages.run("measure", tasks)
        firsts = first_places(self.workplace, number, ranges)
        write_array(self.workplace.firsts_path(number), firsts)
        if not isinstance(owner, str):
            self.edge_offsets[owner] = offsets_of(firsts[0, -1])
        for part in range(self.num_parts):
            for column, totals in zip(columns.ragged, firsts[1:, -1], strict=True):
                self.lengths[str(owner_folder(part, owner) / column.values.name)] = int(totals[part])
            book = self._contents().book
            is_node = isinstance(owner, str)
            self._make_files(
                expected_nodes(self.rows.contents.schema, book, part)
                if is_node
                else expected_edges(self._contents(), part, *owner)
            )
        items = firsts[0].sum(axis=1)
        per_item = 2 * self.rows.num_bytes(owner) / max(1, int(items[-1]))
        work: IntArray = (items * per_item).astype(np.int64) + blocks * ROW_WORK
        return work

    def _move(self, number: int, owner: Owner, work: IntArray) -> None:
        run_bytes = 2 * self.plan.run_bytes(self.rows.num_bytes(owner))
        tasks = [
            Task(
                f"move-{number}-{first}", kind_of(move_blocks), self._args(owner=number, first=first, stop=stop),
                end - begin,
            )
            for first, stop, begin, end in row_chunks(work, run_bytes)
        ]  # fmt: skip
        results = list(self.stages.run("move", tasks).values())
        self.stages.keep(results)
        for name, stretches in merge_stretches(result["read"] for result in results).items():
            self.read.setdefault(name, []).extend(stretches)
        if not isinstance(owner, str) and owner[1] == self.plan.settings.directions[0]:
            num_cut = sum(result["cut"] for result in results)
            self.cuts[owner[0]] = EdgeCut(num_edges=self.rows.book.num_edges(owner[0]), num_cut=num_cut)
            for result in results:
                self.between += np.array(result["between"], np.int64).reshape(self.between.shape)

    def _write_links(self, edge_type: EdgeType) -> None:
        schema, num_edges = self.rows.contents.schema, self.rows.book.num_edges(edge_type)
        number, args = list(schema.edges).index(edge_type), self._args(type=list(edge_type))
        (counted,) = self.stages.run("links", [Task(f"count-links-{number}", kind_of(count_links), args, 0)]).values()
        slices = self.workplace.slice_offsets(num_edges)
        for part in range(self.num_parts):
            for name, counts in counted["splits"].items():
                path = str(split_path(link_folder(part, edge_type), name))
                self.lengths[path] = counts[part]
                self._make_files(iter([(path, Expected("int64", (None,)))]))
            self._make_files(expected_links(self._contents(), part, edge_type, int(slices[part + 1] - slices[part])))
        self.seeds |= {(edge_type, name): tuple(counts) for name, counts in counted["seeds"].items()}
        step = max(1 << 16, -(-num_edges // (TASKS_PER_WORKER * self.plan.num_workers)))
        tasks = [
            Task(
                f"links-{number}-{first}", kind_of(write_links),
                {**args, "first": first, "stop": min(first + step, num_edges)},
                (min(first + step, num_edges) - first) * LINK_WORK,
            )
            for first in range(0, num_edges, step)
        ]  # fmt: skip
        tasks.append(Task(f"splits-{number}", kind_of(write_splits), args, 0))
        self.stages.keep(self.stages.run("links", tasks).values())

    def _contents(self) -> PlannedContents:
        book = PartitionBook(num_parts=self.num_parts, node_offsets=self.node_offsets, edge_offsets=self.edge_offsets)
        return PlannedContents.of(self.rows.contents.schema, self.plan.settings, book)

    def _manifest(self) -> Manifest:
        contents, manifest = self._contents(), self.rows.manifest
        written = Written(
            schema=contents.schema, book=contents.book, graph_id=manifest.graph_id,
            checksums=manifest.checksums, files=self.stages.file_records(contents, self.lengths), cuts=self.cuts,
            edges_between=self.between, seeds=self.seeds, stages=self.stages.costs(),
        )  # fmt: skip
        return manifest_of(written, self.plan.settings)
