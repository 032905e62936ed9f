"""Writes a dataset with other parts in bounded memory, in resumable tasks.

Parts keep links by edge key, in even slices, so the slices of new parts are copied from those of old parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from hopstream.arrays import IntArray, offsets_of, write_array
from hopstream.assign.owners import OwnerArray, OwnerBlocks, find_num_parts, owners_path, write_owners
from hopstream.assign.run import assign_nodes
from hopstream.assign.source import source_of_rows
from hopstream.dataset.book import Entity, ends_of
from hopstream.dataset.chunks import overlaps, row_chunks, stretches_of
from hopstream.dataset.copying.local_copy import folder_of
from hopstream.dataset.copying.remote_target import write_at
from hopstream.dataset.dataset_folder import place_to_write
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import Expected, expected_edges, expected_links, expected_nodes, link_folder, split_path
from hopstream.dataset.regions import RegionWriter, Stretches
from hopstream.dataset.rows import DatasetRows, entities_of, entity_folder, open_rows, own_type
from hopstream.dataset.settings import PartitionSettings, Progress
from hopstream.dataset.stored_columns import integers
from hopstream.engine import Task, kind_of, task
from hopstream.engine.atomic_folder import choice_before, hold
from hopstream.engine.job import digest_of, file_states
from hopstream.engine.settings import Choice, allot
from hopstream.errors import SettingsError
from hopstream.graph.graph import GraphChecksums
from hopstream.ingest.source_paths import check_apart
from hopstream.places.paths import AnyPath, path_of
from hopstream.preparation.dataset_job import (
    NODE_WORK,
    DatasetEstimate,
    DatasetJob,
    DatasetTarget,
    OnEstimate,
    add_stretches,
)
from hopstream.preparation.dataset_job_folder import (
    budget_of,
    count_of_type,
    edge_type_of,
    ids_of,
    number_type,
    parts_of,
)
from hopstream.preparation.reshard.move import first_places, measure_blocks, move_blocks
from hopstream.preparation.reshard.reshard_folder import (
    ReshardFolder,
    ReshardSpec,
    estimate,
    mapped_bytes,
    memory_for_edges,
    reshard_needs,
)
from hopstream.preparation.reshard.settings import ReshardOptions, ReshardSettings
from hopstream.schema import EdgeType, GraphSchema


@task
def count_links(args: dict[str, Any]) -> dict[str, Any]:
    """Count each split's edge keys in each new part's slice, and its edges that each new part holds."""
    folder, edge_type = ReshardFolder.of(args), edge_type_of(args)
    num_parts, slices = folder.num_parts, link_slices(folder, edge_type)
    splits, seeds = {}, {}
    for name in folder.rows.contents.schema.edge_splits[edge_type]:
        sizes, held = np.zeros(num_parts, np.int64), np.zeros(num_parts, np.int64)
        for keys in folder.rows.splits(edge_type, name, folder.spec.block_rows):
            held += np.bincount(_parts_of_edges(folder, edge_type, keys), minlength=num_parts)
            for part, begin, end in stretches_of(keys, slices):
                sizes[part] += end - begin
        splits[name], seeds[name] = sizes.tolist(), held.tolist()
    return {"splits": splits, "seeds": seeds}


@task
def write_links(args: dict[str, Any]) -> dict[str, Any]:
    """Write the link columns of a range of edge keys."""
    folder, edge_type = ReshardFolder.of(args), edge_type_of(args)
    writer, slices = RegionWriter(folder.dataset), link_slices(folder, edge_type)
    contents, step = folder.rows.contents, folder.spec.block_rows
    times = ["time"] * (contents.time_attr in contents.schema.edges[edge_type])
    for first in range(int(args["first"]), int(args["stop"]), step):
        stop = min(first + step, int(args["stop"]))
        for name in ("src_key", "dst_key", *times):
            values = folder.rows.links(edge_type, name, first, stop)
            for part, begin, end in overlaps(first, stop, slices):
                path = link_folder(part, edge_type) / f"{name}.npy"
                writer.write(integers(path, values[begin - first : end - first]), begin - int(slices[part]))
    return {"stretches": writer.stretches}


@task
def write_splits(args: dict[str, Any]) -> dict[str, Any]:
    """Write the splits of an edge type."""
    folder, edge_type = ReshardFolder.of(args), edge_type_of(args)
    writer, slices = RegionWriter(folder.dataset), link_slices(folder, edge_type)
    for name in folder.rows.contents.schema.edge_splits[edge_type]:
        written = np.zeros(len(slices) - 1, np.int64)
        for keys in folder.rows.splits(edge_type, name, folder.spec.block_rows):
            for part, begin, end in stretches_of(keys, slices):
                path = split_path(link_folder(part, edge_type), name)
                writer.write(integers(path, keys[begin:end]), int(written[part]))
                written[part] += end - begin
    return {"stretches": writer.stretches}


def link_slices(folder: ReshardFolder, edge_type: EdgeType) -> IntArray:
    """Return int64[num_parts + 1], the range of edge keys whose links each new part keeps."""
    return folder.slice_offsets(folder.rows.book.num_edges(edge_type))


def _parts_of_edges(folder: ReshardFolder, edge_type: EdgeType, keys: IntArray) -> IntArray:
    """Return int64[n], the new part that holds each edge in the first direction; keys must ascend."""
    direction = folder.rows.contents.directions[0]
    own_type, _ = ends_of(edge_type, direction)
    name, step = "dst_key" if direction == "in" else "src_key", folder.spec.block_rows
    own_keys = np.empty(len(keys), np.int64)
    done = 0
    while done < len(keys):
        first = int(keys[done])
        end = int(np.searchsorted(keys, first + step))
        ends = folder.rows.links(edge_type, name, first, int(keys[end - 1]) + 1)
        own_keys[done:end] = ends[keys[done:end] - first]
        done = end
    distinct, places = np.unique(own_keys, return_inverse=True)
    ids = ids_of(folder, own_type, distinct)
    return parts_of(ids, folder.node_offsets(own_type))[places]


FORMAT = 3
"""Format of the hidden folder; a folder of another format is not resumed."""
ROW_WORK, LINK_WORK = 16, 16
"""Bytes of work per row that is measured, and per link; only for progress."""
OwnersOf = Callable[[DatasetRows], Mapping[str, OwnerArray | OwnerBlocks]]


def reshard(  # noqa: PLR0913  two folders, owners, and what ``dispatch`` takes
    root: str | Path, out: str | AnyPath, *, partitions_dir: str | Path | None = None,
    settings: ReshardSettings | None = None, overwrite: bool = False, progress: Progress | None = None,
    on_estimate: OnEstimate | None = None, **options: Unpack[ReshardOptions],
) -> Manifest:  # fmt: skip
    """Rewrite a dataset with other parts, in bounded memory, without its source.

    The new dataset is byte for byte the one that ``write_parts`` writes of the same graph, owners and settings. After a
    kill the same call resumes.

    Args:
        root: Folder of the dataset, or its URI.
        out: The folder to write, beside the dataset, created if it is missing; or a URI, as of ``prepare``.
        partitions_dir: Folder with ``<node type>.npy`` or ``<node type>.txt``, the part of each node in the order of
            keys; None assigns nodes by ``settings.method``.
        settings: How to partition the dataset, and how to work; None for the defaults.
        overwrite: Replace a dataset in ``out`` when the new one is complete.
        progress: Called as ``progress(stage, done, total)``; the stage ``reshard`` counts bytes of work.
        on_estimate: Called once with the estimate, before the work starts.
        **options: Fields of ``ReshardSettings``; they override ``settings``.

    Returns:
        The new manifest.

    Raises:
        SettingsError: A setting is out of range, the memory is too small, or the disk has no room. Or ``out`` holds
            what must not be replaced, or one of ``out`` and the inputs lies in the other.
        FormatError: ``root`` is no dataset, one of its files is missing or contradicts the others, or a file of owners
            cannot be read.
        ChecksumError: A file of the dataset does not match its checksum.
        SchemaError: A file of owners does not have one integer for each node.
        IdRangeError: A file of owners names a part that does not exist.
        StateError: Another process writes to the same place, or changes the dataset.
        OSError: A system call failed, for example because the disk is full; finished tasks are kept for the next call.
    """
    settings = replace(settings or ReshardSettings(), **options)
    root, out = folder_of(root), path_of(out)
    if not isinstance(out, Path):
        states = [str(partitions_dir), read_manifest(root).dataset_id, asdict(settings)]
        return write_at(
            out,
            lambda here: reshard(
                root, here, partitions_dir=partitions_dir, settings=settings, overwrite=True, progress=progress,
                on_estimate=on_estimate,
            ),
            overwrite=overwrite, call=digest_of(states) if partitions_dir is None else None, progress=progress,
        )  # fmt: skip
    owners = {} if partitions_dir is None else {"the folder of owners": partitions_dir}
    check_apart(out, {"the dataset": root, **owners})
    with ExitStack() as locks:
        hold(locks, root, is_reader=True)
        work = locks.enter_context(place_to_write(out))
        given = None if partitions_dir is None else Path(partitions_dir)
        job_with = partial(reshard_job, root, given, settings)
        job = job_with(before=choice_before(out, lambda choice: job_with(before=choice).digest))
        target = DatasetTarget(out=out, work=work, overwrite=overwrite, call=job.digest)
        return target.finished() or job.write(target, progress, on_estimate)


def reshard_job(
    root: Path, partitions_dir: Path | None, settings: ReshardSettings, owners: OwnersOf | None = None,
    *, before: Choice | None = None,
) -> ReshardJob:  # fmt: skip
    """Make the job that re-shards a dataset; with ``owners``, ``settings`` must give the number of parts."""
    rows = open_rows(root)
    cut = _cut(rows, partitions_dir, settings, has_owners=owners is not None)
    work = allot(settings.memory, settings, reshard_needs(rows, cut), before=before)
    spec = ReshardSpec(
        source=str(rows.root.absolute()), owners="" if partitions_dir is None else str(partitions_dir.absolute()),
        settings=cut, budget_bytes=budget_of(work, mapped_bytes(rows)), num_workers=work.num_working,
    )  # fmt: skip
    return ReshardJob(spec=spec, rows=rows, owners_of=owners, allotted=work, digest=_digest(spec, rows))


def _cut(
    rows: DatasetRows, partitions_dir: Path | None, settings: ReshardSettings, *, has_owners: bool
) -> PartitionSettings:
    """Return the settings of the new partitioning."""
    num_parts, method = settings.num_parts, settings.method
    if partitions_dir is not None:
        if method not in ("file", ReshardSettings().method):
            raise SettingsError(f"method is {method!r} and partitions_dir is given; leave one of them out")
        sizes = {t: rows.book.num_ids(t) for t in rows.contents.schema.nodes}
        num_parts = find_num_parts(partitions_dir, sizes, num_parts)
        settings = replace(settings, num_parts=num_parts, method="file")
    elif method == "file" and not has_owners:
        raise SettingsError("method is 'file', but partitions_dir is missing; give partitions_dir")
    elif num_parts is None:
        raise SettingsError("neither num_parts nor partitions_dir is given; give one of them")
    return settings.partition_settings(num_parts, rows.manifest)


def _digest(spec: ReshardSpec, rows: DatasetRows) -> str:
    """Return the digest of the work: the spec, the old dataset, and the state of every file of owners."""
    node_types = rows.contents.schema.nodes if spec.owners else ()
    states = file_states(owners_path(Path(spec.owners), node_type) for node_type in node_types)
    return digest_of(["reshard", FORMAT, spec.to_json(), rows.manifest.dataset_id, states])


@task
def check_leading(args: dict[str, Any]) -> dict[str, Any]:
    """Check some of the files that must be valid before columns are read."""
    rows = ReshardFolder.of(args).rows
    rows.check_files(rows.leading_files[int(args["first"]) : int(args["stop"])])
    return {}


@task
def count_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Count the nodes of each new part."""
    return count_of_type(ReshardFolder.of(args), str(args["type"]))


@task
def number_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Renumber the nodes."""
    return number_type(ReshardFolder.of(args), str(args["type"]))


@dataclass(slots=True, kw_only=True)
class ReshardJob(DatasetJob):
    """Job that writes a dataset with other parts.

    Attributes:
        spec: Everything that determines what the tasks do.
        rows: The old dataset.
        owners_of: Returns the parts of nodes if no folder does; None assigns nodes by the method of the settings.
        folder: The job's folder.
        read: Ranges of files that tasks have read.
    """

    name = "reshard"
    node_tasks = (count_nodes, number_nodes)
    spec: ReshardSpec
    rows: DatasetRows
    owners_of: OwnersOf | None = None
    folder: ReshardFolder = field(init=False)
    read: Stretches = field(default_factory=dict)

    @property
    def schema(self) -> GraphSchema:
        """The dataset's schema."""
        return self.rows.contents.schema

    @property
    def transforms(self) -> Mapping[str, Any]:
        """The fitted transforms of the old dataset."""
        return self.rows.manifest.transforms

    def check(self) -> None:
        """Do nothing: the old dataset's schema needs no checks."""

    def open_folder(self, root: Path) -> None:
        """Open the job's folder."""
        self.folder = ReshardFolder(root)

    def estimate(self) -> DatasetEstimate:
        """Estimate the costs of the job."""
        return estimate(self.rows, self.num_parts)

    def total_work(self) -> int:
        """Return the approximate bytes that tasks read and write, the sum of the sizes of the tasks."""
        rows, book = self.rows, self.rows.book
        leading = sum(rows.manifest.files[name].num_bytes for name in rows.leading_files)
        nodes = sum(book.num_ids(t) * NODE_WORK for t in self.schema.nodes)
        links = sum(book.num_edges(t) * LINK_WORK for t in self.schema.edge_splits)
        entities = entities_of(rows.contents)
        moved = sum(book.num_ids(own_type(e)) * 2 * ROW_WORK + 2 * rows.num_bytes(e) for e in entities)
        return leading + nodes + links + moved

    def begin(self) -> None:
        """Check the files that locate columns, and assign nodes if no folder of owners is given."""
        self.tell("check", 0, 0)
        self._check_leading()
        if not self.spec.owners and not self.folder.owners_folder.exists():
            self._assign()

    def _check_leading(self) -> None:
        names = self.rows.leading_files
        sizes = offsets_of(np.array([self.rows.manifest.files[name].num_bytes for name in names], np.int64))
        share = self.spec.share(int(sizes[-1]))
        tasks = [
            Task(f"check-{first}", kind_of(check_leading), self.args(first=first, stop=stop), end - begin)
            for first, stop, begin, end in row_chunks(sizes, max(1, share))
        ]
        self.run("check", tasks)

    def _assign(self) -> None:
        """Assign nodes to parts, by ``owners_of`` or else by the method of the settings."""
        settings = self.spec.settings
        out = self.folder.owners_folder
        with self.timed("assign"), write_owners(out, self.num_parts, settings.method) as (folder, write):
            if self.owners_of is not None:
                write(self.owners_of(self.rows))
                return
            found = assign_nodes(
                source_of_rows(self.rows), settings, scratch=folder, progress=self.progress,
                memory_bytes=memory_for_edges(self.rows, settings, self.allotted),
            )  # fmt: skip
            write(found.owners)

    def write_columns(self) -> None:
        """Move the rows of nodes."""
        for node_type in self.schema.nodes:
            columns = self.rows.columns(node_type)
            if columns.fixed or columns.ragged:
                self._move(node_type)

    def write_edges(self, edge_type: EdgeType) -> None:
        """Move the edges of a type in every direction."""
        for direction in self.spec.settings.directions:
            self._move((edge_type, direction))

    def _move(self, entity: Entity) -> None:
        """Move all rows of a node type, or of an edge type in one direction."""
        number = self.folder.entities.index(entity)
        work, run_bytes = self._measure(entity), 2 * self.spec.run_bytes(self.rows.num_bytes(entity))
        tasks = [
            Task(
                f"move-{number}-{first}", kind_of(move_blocks), self.args(entity=number, first=first, stop=stop),
                end - begin,
            )
            for first, stop, begin, end in row_chunks(work, run_bytes)
        ]  # fmt: skip
        results = self.run_writers("move", tasks)
        add_stretches(self.read, (result["read"] for result in results))
        if not isinstance(entity, str) and entity[1] == self.spec.settings.directions[0]:
            self.add_cut(entity[0], self.rows.book.num_edges(entity[0]), results)

    def _measure(self, entity: Entity) -> IntArray:
        """Return int64[num_blocks + 1], the work before each block; write first positions for tasks."""
        blocks, columns = self.folder.blocks(entity), self.rows.columns(entity)
        num_blocks, number = len(blocks) - 1, self.folder.entities.index(entity)
        step = self.spec.share(num_blocks)
        ranges = [(first, min(first + step, num_blocks)) for first in range(0, num_blocks, step)]
        tasks = [
            Task(
                f"measure-{number}-{first}", kind_of(measure_blocks),
                self.args(entity=number, first=first, stop=stop), int(blocks[stop] - blocks[first]) * ROW_WORK,
            )
            for first, stop in ranges
        ]  # fmt: skip
        self.run("measure", tasks)
        firsts = first_places(self.folder, number, ranges)
        write_array(self.folder.firsts_path(number), firsts)
        if not isinstance(entity, str):
            self.edge_offsets[entity] = offsets_of(firsts[0, -1])
        contents = self.contents()
        for part in range(self.num_parts):
            for column, totals in zip(columns.ragged, firsts[1:, -1], strict=True):
                self.lengths[str(entity_folder(part, entity) / column.values.name)] = int(totals[part])
            if isinstance(entity, str):
                self.make_files(expected_nodes(self.schema, contents.book, part))
            else:
                self.make_files(expected_edges(contents, part, *entity))
        items = firsts[0].sum(axis=1)
        per_item = 2 * self.rows.num_bytes(entity) / max(1, int(items[-1]))
        work: IntArray = (items * per_item).astype(np.int64) + blocks * ROW_WORK
        return work

    def write_links(self, edge_type: EdgeType) -> None:
        """Write the links of an edge type, and the splits of its edges."""
        num_edges, contents = self.rows.book.num_edges(edge_type), self.contents()
        number, args = list(self.schema.edges).index(edge_type), self.args(type=list(edge_type))
        (counted,) = self.run("links", [Task(f"count-links-{number}", kind_of(count_links), args, 0)])
        slices = self.folder.slice_offsets(num_edges)
        for part, num_links in enumerate(np.diff(slices).tolist()):
            for name, counts in counted["splits"].items():
                path = str(split_path(link_folder(part, edge_type), name))
                self.lengths[path] = counts[part]
                self.make_files([(path, Expected("int64", (None,)))])
            self.make_files(expected_links(contents, part, edge_type, num_links))
        self.seeds |= {(edge_type, name): tuple(counts) for name, counts in counted["seeds"].items()}
        step = max(1 << 16, self.spec.share(num_edges))
        tasks = [
            Task(
                f"links-{number}-{first}", kind_of(write_links),
                {**args, "first": first, "stop": min(first + step, num_edges)},
                (min(first + step, num_edges) - first) * LINK_WORK,
            )
            for first in range(0, num_edges, step)
        ]  # fmt: skip
        tasks.append(Task(f"splits-{number}", kind_of(write_splits), args, 0))
        self.run_writers("links", tasks)

    def identity(self) -> tuple[str, GraphChecksums]:
        """Check everything that was read; return the graph id and the checksums that it is built from."""
        self.rows.check_read(self.read)
        return self.rows.manifest.graph_id, self.rows.manifest.checksums
