"""Makes a dataset of tables or of a chunked graph in one call, in bounded memory.

It has three resumable steps: tables become a chunked graph, its nodes are assigned to parts, and the graph is
dispatched. Intermediate results lie in a hidden folder beside the dataset's place. The assigning process reports its
progress through a small file.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from hopstream.arrays import write_text
from hopstream.assign.run import assign_folder
from hopstream.dataset.copying.remote_target import write_at
from hopstream.dataset.dataset_folder import check_target, place_to_write
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import MANIFEST
from hopstream.dataset.settings import PartitionOptions, PartitionSettings, Progress
from hopstream.engine import Task, kind_of, open_engine, task
from hopstream.engine.atomic_folder import WorkFolder, choice_before, errors_named
from hopstream.engine.folder_job import INPUT_ERRORS
from hopstream.engine.job import digest_of
from hopstream.engine.machine import Machine, this_machine, watched
from hopstream.engine.settings import Allotment, Choice, WorkSettings, allot, no_progress, settled
from hopstream.errors import FormatError, NoRoomError, SettingsError
from hopstream.ingest.chunked import is_chunked, open_chunked
from hopstream.ingest.chunking.plan import ChunkEstimate, ChunkSpec
from hopstream.ingest.chunking.read import declared_schema
from hopstream.ingest.chunking.run import ChunkReport, chunk_tables, table_states
from hopstream.ingest.raw_tables.metadata import Description
from hopstream.ingest.raw_tables.spool import tables_on_disk
from hopstream.ingest.source_paths import (
    are_partitions,
    check_apart,
    check_data_path,
    description_of,
    is_unigraph,
    read_metadata,
)
from hopstream.ingest.tables import TableSettings, read_description
from hopstream.places.cache import folder_copied_here
from hopstream.places.paths import AnyPath, path_of
from hopstream.preparation.dataset_job import DatasetTarget
from hopstream.preparation.dispatch.dispatch_job import dispatch_job, input_states
from hopstream.preparation.dispatch.settings import SHARED, DispatchSettings
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.plan import (
    PhasePlan,
    PreparePlan,
    allot_phases,
    assign_memory,
    least_table_needs,
    plan_phases,
)
from hopstream.preparation.write import checked_schema
from hopstream.schema import GraphSchema

INTERVAL_S = 0.3


def progress_to_file(path: Path) -> Progress:
    """Make a progress function that writes to a file: at each new stage, and at most every ``INTERVAL_S``."""
    stage_told, told_s = "", 0.0

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal stage_told, told_s
        if stage == stage_told and time.monotonic() - told_s < INTERVAL_S:
            return
        stage_told, told_s = stage, time.monotonic()
        write_text(path, json.dumps([stage, int(done), int(total)]))

    return tell


@contextmanager
def progress_from_file(path: Path, progress: Progress, prefix: str) -> Iterator[None]:
    """Report, from a thread, the progress that another process writes to a file.

    The name of each stage gets a ``prefix``. An error of ``progress`` is raised at the end of the context.
    """
    stop, raised = threading.Event(), list[BaseException]()

    def watch() -> None:
        before: list[str | int] = []
        while not stop.wait(INTERVAL_S):
            told = _read(path)
            if told and told != before:
                before = told
                try:
                    progress(f"{prefix} {told[0]}", int(told[1]), int(told[2]))
                except BaseException as error:
                    raised.append(error)
                    return

    thread = threading.Thread(target=watch, name="progress from a file", daemon=True)
    path.unlink(missing_ok=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        path.unlink(missing_ok=True)
    if raised:
        raise raised[0]


def _read(path: Path) -> list[str | int]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    return told if isinstance(told, list) and len(told) == 3 else []


FORMAT = 1
METADATA = "metadata.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReport:
    """Result of assigning the nodes.

    Attributes:
        method: Method of assignment.
        num_parts: Number of parts.
        cut: Share of connected pairs of nodes whose ends are in two parts; None for methods that do not read edges.
        largest: Name of each balanced load to the largest load of a part, as a multiple of the part's share.
    """

    method: str
    num_parts: int
    cut: float | None
    largest: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Work that an earlier, killed call finished.

    Attributes:
        phase: Name of the phase.
        num_tasks: Number of finished tasks.
    """

    phase: str
    num_tasks: int


News = PreparePlan | Resumed | ChunkReport | AssignReport
"""Reports during the work: the plan, resumed work, the result of chunking, and the assignment."""


def prepare(  # noqa: PLR0913  a source, a place, and one record for each step
    source: str | AnyPath | Description, out: str | AnyPath, *, settings: PartitionSettings | None = None,
    tables: TableSettings | None = None, work: WorkSettings | None = None, halo: HaloSettings | None = None,
    overwrite: bool = False, progress: Progress | None = None,
    on_news: Callable[[News], None] | None = None, **options: Unpack[PartitionOptions],
) -> Manifest:  # fmt: skip
    """Cut tables or a chunked graph into parts and write them as a dataset, in bounded memory.

    The dataset is byte for byte the one that ``write_parts`` writes of the same graph and settings. After a kill the
    same call resumes.

    Args:
        source: A folder of a chunked graph or of tables, the JSON file that describes either, or the ``.pbtxt`` of a
            unigraph; tables may be at a URI. Or a description of tables in memory, see ``read_tables``. They are first
            written as Parquet files to a hidden folder beside ``out``; so that a killed call resumes, give the folder
            of ``write_tables``.
        out: The folder to write, created if it is missing; or a URI. Then all work is done in the cache folder, which
            all workers must see, and the dataset is copied to the URI when it is complete.
        settings: How to partition the graph, and what each part stores; None for the defaults.
        tables: How tables are read.
        work: Memory of all processes together, number of processes, and engine.
        halo: Copies that parts keep; None for no halo.
        overwrite: Replace a dataset in ``out`` when the new one is complete.
        progress: Called as ``progress(stage, done, total)``. The stages are ``chunk``, ``assign`` (with ``assign
            edges`` and the other stages of ``assign_folder``), ``dispatch`` and ``halo``. Another thread reports those
            of assignment.
        on_news: Called with a ``PreparePlan`` before the work, and again when tables are chunked; with a
            ``ChunkReport`` after chunking; and with an ``AssignReport``. Of an earlier call only the assignment is
            reported again. ``Resumed`` reports the finished tasks of a phase.
        **options: Fields of ``PartitionSettings``; they override ``settings``.

    Returns:
        The new manifest.

    Raises:
        SettingsError: A setting is out of range, or the memory is too small for the method. Or ``out`` holds what must
            not be replaced, or one of ``out`` and the source lies in the other.
        FormatError: A file is missing or cannot be read.
        SchemaError: Files contradict each other; a raw id occurs twice, or an edge names an unknown raw id.
        UnknownNameError: A setting names an edge type or a feature that does not exist.
        IdRangeError: An edge names a node that does not exist.
        StateError: Another process writes to the same place.
        NoRoomError: The disk or the memory has no room for a phase; finished tasks are kept for the next call.
        OSError: A system call failed, for example because the disk is full; finished tasks are kept for the next call.
    """
    settings, work = replace(settings or PartitionSettings(), **options), work or WorkSettings()
    out = path_of(out)
    if not isinstance(out, Path):
        check_apart(out, {} if isinstance(source, Mapping) else {"the source": path_of(source)})
        return write_at(
            out,
            lambda here: prepare(
                source, here, settings=settings, tables=tables, work=work, halo=halo, overwrite=True,
                progress=progress, on_news=on_news,
            ),
            overwrite=overwrite, progress=progress,
            call=None if isinstance(source, Mapping) else _call_of(digest_of_input(source, settings, tables), halo),
        )  # fmt: skip
    if isinstance(source, Mapping):
        with tables_on_disk(source, out) as path:
            return prepare(
                path, out, settings=settings, tables=tables, work=work, halo=halo, overwrite=overwrite,
                progress=progress, on_news=on_news,
            )  # fmt: skip
    tables = tables or TableSettings()
    if settings.method == "file":
        raise SettingsError(
            "method is 'file', but prepare assigns nodes itself; to use parts of your own, chunk the tables and give "
            "dispatch the folder with the part of each node, as partitions_dir"
        )
    given = path_of(source)
    check_apart(out, {"the source": given})
    metadata = _metadata_of(given)
    digest = digest_of_input(source, settings, tables)
    chunked = _chunked(metadata)
    found = _declared(metadata, tables) if chunked is None else open_chunked(chunked).schema
    checked_schema(found, settings, halo)  # before anything is written, chunked or assigned
    call = _call_of(digest, halo)
    steps = _Steps(
        metadata=metadata, chunked=chunked, digest=digest, settings=settings, tables=tables,
        work=work, machine=this_machine(), before=choice_before(out, lambda _: digest), halo=halo,
        progress=progress or no_progress, tell=on_news or _no_news,
    )  # fmt: skip
    with errors_named(out), place_to_write(out) as held:
        target = DatasetTarget(out=out, work=held, overwrite=overwrite, call=call)
        done = target.finished()
        if done is not None:
            return done
        check_target(out, overwrite=overwrite)
        try:
            return steps.run(target)
        except NoRoomError:
            raise
        except INPUT_ERRORS:  # a retry fails again, so the work is of no use; lost workers and full disks are resumed
            held.clear()
            raise


def digest_of_input(source: str | AnyPath, settings: PartitionSettings, tables: TableSettings | None = None) -> str:
    """Return the digest of everything that determines the parts of ``prepare``: inputs and settings.

    Raises:
        SettingsError: ``data_path`` is given without a unigraph, or the source is something else.
        FormatError: A file is missing or cannot be read.
        SchemaError: The description contradicts itself.
    """
    tables, metadata = tables or TableSettings(), _metadata_of(path_of(source))
    check_data_path(metadata, tables.data_path)
    chunked = _chunked(metadata)
    states = table_states(read_metadata(metadata, tables.data_path)) if chunked is None else input_states(chunked)
    return digest_of([FORMAT, settings.to_json(), asdict(tables), states])


def _call_of(digest: str, halo: HaloSettings | None) -> str:
    return digest_of([digest, None if halo is None else asdict(halo)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps of one call, in a locked place."""

    metadata: AnyPath
    chunked: Path | None
    digest: str
    settings: PartitionSettings
    tables: TableSettings
    work: WorkSettings
    machine: Machine
    before: Choice | None
    halo: HaloSettings | None
    progress: Progress
    tell: Callable[[News], None]

    def run(self, target: DatasetTarget) -> Manifest:
        """Run the steps that an earlier call has not finished."""
        held = target.work
        folder = held.job_root(self.digest)
        owners = folder / "owners"
        chunks = self.chunked or folder / "chunks" / METADATA
        # Closing the engine frees the memory of its worker for the later steps.
        with watched(), open_engine("local", num_workers=1) as engine:
            job = held.resume(self.digest, engine, self.progress)
            if not chunks.exists():
                self._chunk(held, chunks.parent)
            graph = open_chunked(chunks)
            checked_schema(graph.schema, self.settings, self.halo)  # some dtypes are known only after tables are read
            work = allot_phases(graph, self.settings, self.work, self.halo, self.machine, self.before)
            held.keep_choice(work)
            assign, *others = plan_phases(graph, self.settings, work, self.halo, has_owners=owners.exists())
            chunk = () if self.chunked is not None else (PhasePlan(name="chunk", is_done=True),)
            self.tell(PreparePlan(work=work, phases=(*chunk, assign, *others)))
            with progress_from_file(folder / "told.json", self.progress, "assign"):
                done = job.run("assign", [_assign_task(chunks, owners, self.settings, work)])
            method, num_parts = self.settings.method, self.settings.num_parts
            self.tell(AssignReport(method=method, num_parts=num_parts, **done["assign"]))
        inner = replace(target, work=held.inside(f"{self.digest[:16]}/dispatch"))
        settings = _dispatch_settings(self.settings, settled(self.work, work))
        dispatching = dispatch_job(chunks.parent, owners, chunks.name, settings, self.halo, assigned=self.settings)
        return dispatching.write(inner, self.progress, lambda costs, _: self._resumes("dispatch", costs.num_done))

    def _chunk(self, held: WorkFolder, out: Path) -> None:
        needs = least_table_needs(self.settings)
        work = allot(self.work.memory, self.work, needs, self.machine, self.before)
        held.keep_choice(work)
        report = chunk_tables(
            self.metadata, out, progress=self.progress,
            on_estimate=lambda costs, spec: self._tell_first(costs, spec, work), **asdict(self.tables),
            **asdict(settled(self.work, work)),
        )  # fmt: skip
        self.tell(report)

    def _tell_first(self, costs: ChunkEstimate, spec: ChunkSpec, work: Allotment) -> None:
        """Report the plan that is known before tables are chunked."""
        chunk = PhasePlan(
            name="chunk", input_bytes=costs.input_bytes, disk_bytes=costs.disk_bytes, budget_bytes=spec.budget_bytes
        )
        later = ("assign", "dispatch", *(() if self.halo is None else ("halo",)))
        self.tell(PreparePlan(work=work, phases=(chunk, *(PhasePlan(name=name) for name in later))))
        self._resumes("chunk", costs.num_done)

    def _resumes(self, phase: str, num_tasks: int) -> None:
        if num_tasks:
            self.tell(Resumed(phase=phase, num_tasks=num_tasks))


def _no_news(news: News) -> None:
    """Ignore the news."""


def _assign_task(chunks: Path, owners: Path, settings: PartitionSettings, work: Allotment) -> Task:
    args = {
        "chunks": str(chunks), "out": str(owners), "settings": settings.to_json(),
        "memory": assign_memory(work), "told": str(owners.with_name("told.json")),
    }  # fmt: skip
    return Task("assign", kind_of(assign_chunks), args)


@task
def assign_chunks(args: dict[str, Any]) -> dict[str, Any]:
    """Assign the nodes of a chunked graph, in a separate process, whose end frees the memory of libraries.

    Args:
        args: ``chunks``, the metadata; ``out``, the folder of owners; ``settings``; ``memory``, bytes for this process;
            ``told``, the file for its progress.
    """
    settings = PartitionSettings.from_json(args["settings"])
    found = assign_folder(
        open_chunked(args["chunks"]), args["out"], settings, memory=str(args["memory"]), overwrite=True,
        progress=progress_to_file(Path(args["told"])),
    )  # fmt: skip
    return {"cut": found.cut, "largest": dict(found.largest)}


def _metadata_of(source: AnyPath) -> AnyPath:
    if not source.exists():
        raise FormatError(f"{source} is missing; give tables or a chunked graph, or the file that describes either")
    metadata = description_of(source)
    is_dataset = (source / MANIFEST).is_file()
    is_described = (metadata.suffix == ".json" or is_unigraph(metadata)) and metadata.is_file()
    if not is_described or are_partitions(source):
        raise SettingsError(
            f"{source} is neither tables nor a chunked graph, the only inputs of prepare; "
            + (
                "change the parts of a dataset with reshard"
                if is_dataset
                else "convert it to a chunked graph with chunk"
            )
        )
    return metadata.absolute()


def _chunked(metadata: AnyPath) -> Path | None:
    """Return the metadata file if it is that of a chunked graph, else None."""
    if is_unigraph(metadata) or not is_chunked(metadata):
        return None
    return folder_copied_here(metadata)


def _declared(metadata: AnyPath, tables: TableSettings) -> GraphSchema:
    return declared_schema(read_description(metadata, tables), tables)


def _dispatch_settings(settings: PartitionSettings, work: WorkSettings) -> DispatchSettings:
    shared: Mapping[str, Any] = {name: getattr(settings, name) for name in ("num_parts", *SHARED)}
    return DispatchSettings(**shared, **asdict(work))
