"""Converts tables to a chunked graph in bounded memory, and resumes an interrupted conversion.

An engine runs the work as tasks; the modules of the steps describe them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hopstream.checks import known_names
from hopstream.engine import Progress
from hopstream.engine.atomic_folder import choice_before, open_work
from hopstream.engine.folder_job import FolderJob, write_spec
from hopstream.engine.job import Job, digest_of, file_states
from hopstream.engine.settings import Allotment, Choice, WorkSettings, allot, bytes_text, no_progress
from hopstream.errors import FormatError, SettingsError
from hopstream.ingest.chunk_settings import ChunkSettings
from hopstream.ingest.chunked.opening import METADATA
from hopstream.ingest.chunked.writing import check_names, check_out_folder
from hopstream.ingest.chunking.plan import NEEDS, ChunkEstimate, ChunkSpec, Part, budget_of, cut_table, estimate
from hopstream.ingest.chunking.read import check_declared, optional_names
from hopstream.ingest.chunking.steps import ChunkCounts, Steps
from hopstream.ingest.chunking.workplace import ChunkFolder, Table, tables_of
from hopstream.ingest.raw_tables.metadata import Description, TablesMetadata
from hopstream.ingest.raw_tables.spool import tables_on_disk
from hopstream.ingest.source_paths import check_apart, description_of, is_unigraph
from hopstream.ingest.tables import TableSettings, read_description
from hopstream.ingest.user_columns import check_tables
from hopstream.places.paths import AnyPath, path_of, uri_of
from hopstream.places.remote_path import RemotePath
from hopstream.places.staging import staging_of
from hopstream.schema import EdgeType

FORMAT = 3
"""Version of the hidden work folder; a folder of another version is not resumed."""
Settings = TypeVar("Settings", ChunkSettings, TableSettings, WorkSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReport:
    """Report of a conversion of tables to a chunked graph.

    Attributes:
        metadata: The metadata file of the chunked graph.
        num_nodes: Node type to number of nodes.
        num_edges: Edge type to number of edges.
        num_repeated: Node type to number of rows dropped because an earlier row has the same raw id.
        num_dangling: Edge type to counts of what was dropped because an end is empty or names no node: ``edges``,
            and the faulty ends among them by side, ``src`` and ``dst``.
    """

    metadata: AnyPath
    num_nodes: Mapping[str, int]
    num_edges: Mapping[EdgeType, int]
    num_repeated: Mapping[str, int]
    num_dangling: Mapping[EdgeType, Mapping[str, int]]


def chunk_tables(
    source: str | os.PathLike[str] | AnyPath | Description, out: str | os.PathLike[str] | AnyPath, *,
    name: str | None = None, progress: Progress | None = None,
    on_estimate: Callable[[ChunkEstimate, ChunkSpec], None] | None = None, **options: Any,
) -> ChunkReport:  # fmt: skip
    """Write CSV, Parquet and TFRecord tables as a chunked graph, in bounded memory.

    The chunked graph equals the graph that ``read_graph`` reads from the same tables: same keys, same order of edges,
    same features and splits. Tables, raw ids and edges are never in memory as a whole. If the process is ended, the
    same call resumes the work.

    Args:
        source: The JSON file that describes the tables, or a folder with a ``metadata.json``; or the ``.pbtxt`` of a
            unigraph, or a folder with one. Each may be a URI. Or a description of tables in memory, as for ``prepare``.
        out: The folder to write, or its URI, to which it is copied when it is complete; it must not exist, or must be
            empty.
        name: ``graph_name`` of the metadata; by default the name of ``out``.
        progress: Called as ``progress("chunk", done, total)`` in bytes of work.
        on_estimate: Called once before the work starts, with the memory, workers and disk space that it will take.
        **options: Fields of ``ChunkSettings``, of ``TableSettings`` and of ``WorkSettings``.

    Returns:
        Counts of what was written and what was dropped.

    Raises:
        SettingsError: An option is unknown or out of range, the memory is too small, the disk has no room, ``out`` is
            not empty, or ``out`` and the folder of the tables overlap.
        FormatError: A file is missing or cannot be read.
        SchemaError: A table contradicts the JSON, a raw id is repeated, an edge names a raw id that no node has, or a
            chunked graph cannot represent the graph. The message names the file and the line or row of the first flaw
            of its kind in the table.
        StateError: Another process writes to the same folder.
        OSError: The system failed, for example because the disk is full; the next call resumes the work.
    """
    there = path_of(out)
    if not isinstance(there, Path):
        shared = {"name": name or there.name, "progress": progress, "on_estimate": on_estimate}
        return _chunk_at(there, source, shared, options)
    if isinstance(source, Mapping):
        with tables_on_disk(source, out) as described:
            return chunk_tables(described, out, name=name, progress=progress, on_estimate=on_estimate, **options)
    chunks, tables, work = _taken(ChunkSettings, options), _taken(TableSettings, options), _taken(WorkSettings, options)
    if options:
        known = sorted(f.name for record in (ChunkSettings, TableSettings, WorkSettings) for f in fields(record))
        raise SettingsError(f"unknown option {sorted(options)[0]!r}; {known_names(sorted(options)[0], known)}")
    given = path_of(source)
    check_apart(out, {"the tables": given})
    place = Path(os.path.realpath(there))
    path = _source_path(given)
    metadata = read_description(path, tables)

    def allotted_spec(before: Choice | None) -> tuple[Allotment, ChunkSpec, str]:
        allotted = allot(work.memory, work, NEEDS, before=before)
        spec = ChunkSpec(
            source=uri_of(path), name=name or place.name, chunks=chunks, tables=tables,
            budget_bytes=budget_of(allotted), num_workers=allotted.num_working,
        )  # fmt: skip
        return allotted, spec, digest_of([FORMAT, spec.to_json(), table_states(metadata)])

    allotted, spec, digest = allotted_spec(choice_before(place, lambda choice: allotted_spec(choice)[2]))
    check_names(list(metadata.nodes), list(metadata.edges), optional_names(metadata, tables), chunks)
    check_tables(
        metadata,
        keep_raw_ids=tables.keep_raw_ids,
        leave_out=chunks.leave_out,
        is_exempt=is_unigraph(path),
    )
    checked = tables_of(metadata, chunks.leave_out)
    check_declared(checked, metadata, spec)
    parts = {
        table.number: cut_table(table.files, spec.limits.part_bytes) for table in checked if table.files is not None
    }
    with open_work(place) as held:
        check_out_folder(there)
        job = FolderJob(out=place, work=held, digest=digest, product="chunked", allotted=allotted, call=digest)
        costs = replace(_estimate(metadata, checked, parts), num_done=job.num_done, work=allotted)
        job.check_disk(costs.disk_bytes, f"at most {bytes_text(costs.chunked_bytes)} for the chunked graph itself")
        if on_estimate is not None:
            on_estimate(costs, spec)
        steps = Steps(ChunkFolder(job.root), metadata, parts, progress or no_progress)
        counts = job.run(partial(_write, steps, spec), steps.tell, check_out_folder)
    return ChunkReport(
        metadata=there / METADATA, num_nodes=counts.num_nodes, num_edges=counts.num_edges,
        num_repeated=counts.num_repeated, num_dangling=counts.num_dangling,
    )  # fmt: skip


def _chunk_at(
    out: RemotePath, source: str | os.PathLike[str] | AnyPath | Description, shared: dict[str, Any],
    options: dict[str, Any],
) -> ChunkReport:  # fmt: skip
    """Write a chunked graph to a URI; a killed call resumes."""
    call = None
    if not isinstance(source, Mapping):
        check_apart(out, {"the tables": source})
        tables = _taken(TableSettings, dict(options))
        states = table_states(read_description(_source_path(path_of(source)), tables))
        call = digest_of([FORMAT, shared["name"], repr(sorted(options.items())), states])
    with staging_of(out) as staging:
        staging.check_free()
        counts = staging.make(lambda here: _counts_to_json(chunk_tables(source, here, **shared, **options)), call)
        staging.copy(METADATA, shared["progress"])
    by_edge = {name: {tuple(t): n for t, n in counts[name]} for name in ("num_edges", "num_dangling")}
    return ChunkReport(
        metadata=out / METADATA, num_nodes=counts["num_nodes"], num_repeated=counts["num_repeated"], **by_edge
    )


def _counts_to_json(report: ChunkReport) -> dict[str, Any]:
    by_edge = {name: list(getattr(report, name).items()) for name in ("num_edges", "num_dangling")}
    return {"num_nodes": dict(report.num_nodes), "num_repeated": dict(report.num_repeated), **by_edge}


def _write(steps: Steps, spec: ChunkSpec, job: Job) -> ChunkCounts:
    steps.workplace.chunked.mkdir(parents=True, exist_ok=True)
    write_spec(steps.workplace.root, spec)
    return steps.run(job)


def _taken(record: type[Settings], options: dict[str, Any]) -> Settings:
    return record(**{f.name: options.pop(f.name) for f in fields(record) if f.name in options})


def _source_path(source: AnyPath) -> AnyPath:
    path = description_of(source)
    if path.suffix != ".json" and not is_unigraph(path):
        raise FormatError(f"{path} does not describe tables; give their .json, or the .pbtxt of a unigraph")
    return path.absolute()


def table_states(metadata: TablesMetadata) -> list[tuple[str, int, int]]:
    """Return the path, size and time of each input file, to notice changed files."""
    tables = [spec.files for spec in metadata.nodes.values()] + [spec.files for spec in metadata.edges.values()]
    return file_states([metadata.path, *(path for files in tables if files is not None for path in files.paths)])


def _estimate(metadata: TablesMetadata, tables: list[Table], parts: Mapping[int, list[Part]]) -> ChunkEstimate:
    sizes = {number: sum(part.num_bytes for part in of_table) for number, of_table in parts.items()}
    return estimate(
        [sizes.get(table.number, 0) for table in tables if isinstance(table.entity, str)],
        [sizes[table.number] for table in tables if not isinstance(table.entity, str)],
        spills_all_edges=any(spec.files is None for spec in metadata.nodes.values()),
    )
