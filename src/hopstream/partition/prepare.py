"""How do tables or a chunked graph become a dataset in one call, in bounded memory?

Three steps, each of which goes on where it was ended: tables become a chunked graph, its nodes are assigned to parts,
and it is dispatched. What lies between the steps is kept in a hidden folder beside the dataset's place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from hopstream.engine import Task, kind_of, open_engine, task
from hopstream.engine.job import digest_of
from hopstream.engine.resumed import remove_work, resumed_job
from hopstream.engine.settings import WorkSettings
from hopstream.errors import SettingsError
from hopstream.ingest.apart import check_apart
from hopstream.ingest.chunked import is_chunked, open_chunked
from hopstream.ingest.chunking.plan import Estimate, Plan
from hopstream.ingest.chunking.run import ChunkReport, chunk_tables, table_states
from hopstream.ingest.table_metadata import read_metadata
from hopstream.ingest.tables import TableSettings
from hopstream.partition.assign import assign_folder
from hopstream.partition.dispatch.run import dispatch_assigned, input_states
from hopstream.partition.dispatch.settings import DispatchSettings
from hopstream.partition.halo.settings import HaloSettings
from hopstream.partition.manifest import Manifest
from hopstream.partition.paths import MANIFEST
from hopstream.partition.prepare_plan import PhasePlan, PreparePlan, plan_phases
from hopstream.partition.replace import check_target
from hopstream.partition.settings import PartitionOptions, PartitionSettings, Progress
from hopstream.partition.staged import INPUT_ERRORS
from hopstream.partition.told import progress_from_file, progress_to_file

FORMAT = 1
METADATA = "metadata.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReport:
    """How nodes were assigned.

    Attributes:
        method: By which method.
        num_parts: To how many parts.
        cut: The share of pairs of joined nodes that are in two parts; None for methods that do not look at edges.
        largest: What was to be even, by name, to how many times its share the fullest part holds.
    """

    method: str
    num_parts: int
    cut: float | None
    largest: Mapping[str, float]


News = PreparePlan | ChunkReport | AssignReport
"""What is told of the work as it goes: what it will take, what became of tables, how nodes were assigned."""


def prepare(  # noqa: PLR0913  a source, a place, and one record for each step
    source: str | Path, out: str | Path, *, settings: PartitionSettings | None = None,
    tables: TableSettings | None = None, work: WorkSettings | None = None, halo: HaloSettings | None = None,
    overwrite: bool = False, progress: Progress | None = None,
    on_news: Callable[[News], None] | None = None, **options: Unpack[PartitionOptions],
) -> Manifest:  # fmt: skip
    """Cut tables or a chunked graph into parts and write them as a dataset, in bounded memory.

    The dataset is the one that ``write_parts`` writes of the same graph and settings, byte for byte. If the process is
    ended, the same call goes on where it was.

    Args:
        source: A folder of a chunked graph or of tables, or the JSON file that describes either.
        out: The folder to write; made if it is not there.
        settings: How to cut the graph, and what each part holds; the defaults if it is not given.
        tables: How tables are read.
        work: Memory for all processes together, number of processes, and engine.
        halo: What parts keep copies of; nothing if it is not given.
        overwrite: Replace a dataset that is in ``out``, when the new one is complete.
        progress: Called as ``progress(stage, done, total)``; stages are ``chunk``, ``assign`` (and ``assign edges`` and
            others of ``assign_folder``), ``dispatch`` and ``halo``. Of assignment it is told by another thread.
        on_news: Called with a ``PreparePlan`` before the work, and once more when tables are chunked and more is known;
            with a ``ChunkReport`` when they are, what was dropped foremost, and with an ``AssignReport``. What an
            earlier call did is not told again, but for its assignment.
        **options: Fields of ``PartitionSettings``; they go before ``settings``.

    Returns:
        The manifest that was written.

    Raises:
        SettingsError: A setting is outside its range, the memory is too small for the method, or ``out`` holds what is
            not to be replaced, or lies in the source, or the other way round.
        FormatError: A file is missing or cannot be read.
        SchemaError: Files contradict each other; a raw id is there twice or, of an edge, not at all.
        IdRangeError: An edge names a node that is not there.
        StateError: Another process writes to the same place.
        OSError: The system failed, for example because the disk is full; what was done is kept for the next call.
    """
    settings, work = replace(settings or PartitionSettings(), **options), work or WorkSettings()
    tables, out, tell = tables or TableSettings(), Path(out), on_news or _no_news
    if settings.method == "file":
        raise SettingsError("method is 'file'; dispatch takes a folder with the part of each node")
    check_apart(out, {"the source": source})
    check_target(out, overwrite=overwrite)
    metadata = _metadata_of(Path(source))
    is_streamed = is_chunked(metadata)
    root = Path(os.path.realpath(out))
    hidden = root.with_name(f".{root.name}.prepare.partial")
    states = input_states(metadata) if is_streamed else table_states(read_metadata(metadata))
    digest = digest_of([FORMAT, settings.to_json(), asdict(tables), work.memory, states])
    with (
        open_engine("local", num_workers=1) as engine,
        resumed_job(hidden, digest, engine, progress) as job,
    ):
        chunks, owners = (metadata if is_streamed else hidden / "chunks" / METADATA), hidden / "owners"
        try:
            if not is_streamed and not chunks.exists():
                on_estimate = partial(_tell_first, tell, work, halo)
                tell(
                    chunk_tables(
                        metadata, chunks.parent, progress=progress, on_estimate=on_estimate, **asdict(tables),
                        **asdict(work),
                    )
                )  # fmt: skip
            assign, dispatch = plan_phases(open_chunked(chunks), settings, work, has_owners=owners.exists())
            chunk = () if is_streamed else (PhasePlan(name="chunk", is_done=True),)
            tell(PreparePlan(work=work, phases=(*chunk, assign, dispatch, *_halo_phases(halo))))
            with progress_from_file(hidden / "told.json", progress or _no_progress, "assign"):
                done = job.run("assign", [_assign_task(chunks, owners, settings, assign)])
            tell(AssignReport(method=settings.method, num_parts=settings.num_parts, **done["assign"]))
            engine.close()  # its worker's memory is for the others
            manifest = dispatch_assigned(
                chunks.parent, owners, out, metadata_filename=chunks.name, settings=_dispatch_settings(settings, work),
                assigned=settings, halo=halo, overwrite=overwrite, progress=progress,
            )  # fmt: skip
        except INPUT_ERRORS:  # there is nothing to go on with; lost workers and full disks are another matter
            remove_work(hidden)
            raise
        remove_work(hidden)
    return manifest


def _no_news(news: News) -> None:
    """Tell nobody."""


def _no_progress(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


def _tell_first(
    tell: Callable[[News], None], work: WorkSettings, halo: HaloSettings | None, costs: Estimate, plan: Plan
) -> None:
    """Tell what is known before tables are chunked."""
    chunk = PhasePlan(
        name="chunk", input_bytes=costs.input_bytes, disk_bytes=costs.disk_bytes, budget_bytes=plan.budget_bytes
    )
    later = (PhasePlan(name="assign"), PhasePlan(name="dispatch"), *_halo_phases(halo))
    tell(PreparePlan(work=work, phases=(chunk, *later)))


def _halo_phases(halo: HaloSettings | None) -> tuple[PhasePlan, ...]:
    return () if halo is None else (PhasePlan(name="halo"),)


def _assign_task(chunks: Path, owners: Path, settings: PartitionSettings, planned: PhasePlan) -> Task:
    args = {
        "chunks": str(chunks), "out": str(owners), "settings": settings.to_json(), "memory": planned.budget_bytes,
        "told": str(owners.with_name("told.json")),
    }  # fmt: skip
    return Task("assign", kind_of(assign_chunks), args)


@task
def assign_chunks(args: dict[str, Any]) -> dict[str, Any]:
    """Assign the nodes of a chunked graph, in a process of its own, which gives back what libraries keep.

    Args:
        args: ``chunks``, the metadata; ``out``, the folder of owners; ``settings``; ``memory``, bytes for edges;
            ``told``, the file that says how far it is.
    """
    settings = PartitionSettings.from_json(args["settings"])
    found = assign_folder(
        open_chunked(args["chunks"]), args["out"], settings, memory_bytes=args["memory"], overwrite=True,
        progress=progress_to_file(Path(args["told"])),
    )  # fmt: skip
    return {"cut": found.cut, "largest": dict(found.largest)}


def _metadata_of(source: Path) -> Path:
    metadata = source / METADATA if source.is_dir() else source
    is_dataset = (source / MANIFEST).is_file()
    if metadata.suffix != ".json" or not metadata.is_file():
        raise SettingsError(
            f"{source} is neither tables nor a chunked graph, which alone are read piece by piece; "
            + ("reshard gives a dataset other parts" if is_dataset else "chunk makes a chunked graph of it")
        )
    return metadata.absolute()


def _dispatch_settings(settings: PartitionSettings, work: WorkSettings) -> DispatchSettings:
    shared: Mapping[str, Any] = {
        name: getattr(settings, name)
        for name in ("num_parts", "direction", "keep_edge_keys", "time_attr", "weight_attr", "neighbor_keys", "links")
    }
    return DispatchSettings(**shared, **asdict(work))
