"""Verb ``chunk``: writes a graph as a chunked graph."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.source import SourceSettings, is_tables, read_and_show
from hopstream.cli.units import bytes_text, count_text, plural_text
from hopstream.cli.written import memory_lines, show_plan
from hopstream.dataset.copying.local_copy import source_path
from hopstream.engine.settings import WorkSettings
from hopstream.ingest.chunk_settings import ChunkSettings
from hopstream.places.paths import AnyPath, path_of, sorted_files
from hopstream.schema import type_label

if TYPE_CHECKING:
    from hopstream.ingest.chunking.plan import ChunkEstimate, ChunkSpec
    from hopstream.ingest.chunking.run import ChunkReport


@with_settings("work", WorkSettings)
@with_settings("tables", SourceSettings)
@with_settings("settings", ChunkSettings)
def run(  # noqa: PLR0913  one parameter for each flag that is no field of a record
    source: Annotated[
        str,
        typer.Argument(help="a source of ingest, or a dataset of any number of parts", show_default=False),
    ],
    out: Annotated[str, typer.Option("--out", help="the new folder or URI to write to", show_default=False)],
    name: Annotated[str, typer.Option("--name", help="name of the graph in the metadata")] = "",
    json: JsonFlag = False,
    *,
    settings: ChunkSettings,
    tables: SourceSettings,
    work: WorkSettings,
) -> None:
    """Write a graph as a chunked graph: many files of edges and features, and a metadata.json.

    Tables are read in bounded memory; --memory, --workers and --engine apply only to them. Graphs from other sources
    are loaded into memory.
    """
    from hopstream.ingest.chunked import write_chunked
    from hopstream.ingest.chunked.writing import check_out_folder
    from hopstream.ingest.source_paths import check_apart

    output, given, place = Output(is_json=json), source_path(source), path_of(out)
    check_apart(place, {"the source": given})
    if isinstance(place, Path):
        check_out_folder(place)
    clock = Clock()
    if is_tables(given):
        path = _chunk_tables(output, given, place, name, (settings, tables, work))
    else:
        found = read_and_show(output, given, tables)
        clock = Clock()
        with progress_bars() as progress:
            path = write_chunked(
                found.graph, place, name=name or place.resolve().name, settings=settings, progress=progress
            )
    sizes = [file.stat().st_size for file in sorted_files(place, "**/*")]
    text = f"{bytes_text(sum(sizes))} in {plural_text(len(sizes), 'file')}"
    facts = {"chunks": settings.num_chunks, "bytes": sum(sizes), "files": len(sizes)}
    output.stage("write", plural_text(settings.num_chunks, "chunk"), text, facts, clock.cost())
    output.stage("done", str(path), "", {"metadata": str(path)})


def _chunk_tables(
    output: Output,
    source: AnyPath,
    out: AnyPath,
    name: str,
    settings: tuple[ChunkSettings, SourceSettings, WorkSettings],
) -> AnyPath:
    """Convert tables to a chunked graph in bounded memory, and show what was dropped."""
    from hopstream.ingest.chunking.run import chunk_tables

    chunks, tables, work = settings
    tables.check_source(source)
    options = {**asdict(chunks), **tables.of_tables, **asdict(work)}

    def show_costs(costs: ChunkEstimate, spec: ChunkSpec) -> None:
        lines = [
            ("read", f"{bytes_text(costs.input_bytes)} of tables"),
            ("disk", f"about {bytes_text(costs.disk_bytes)} while it runs"),
            *memory_lines(costs.work, spec.budget_bytes),
        ]
        facts: Facts = {
            "input_bytes": costs.input_bytes, "disk_bytes": costs.disk_bytes,
            "memory_bytes": costs.work.memory_bytes if costs.work else None,
            "budget_bytes": spec.budget_bytes, "workers": spec.num_workers,
        }  # fmt: skip
        show_plan(output, lines, facts)
        output.resumed("chunk", costs.num_done)

    clock = Clock()
    with progress_bars() as progress:
        report = chunk_tables(
            source, out, name=name or out.resolve().name, progress=progress, on_estimate=show_costs, **options
        )
    show_chunked(output, report, clock)
    return report.metadata


def show_chunked(output: Output, report: ChunkReport, clock: Clock) -> None:
    """Show what was read from tables, and what was dropped."""
    num_nodes, num_edges = sum(report.num_nodes.values()), sum(report.num_edges.values())
    text = f"{plural_text(num_nodes, 'node')}, {plural_text(num_edges, 'edge')}"
    facts: Facts = {
        "source": "tables", "nodes": num_nodes, "edges": num_edges,
        "dropped_nodes": sum(report.num_repeated.values()),
        "dropped_edges": sum(ends["edges"] for ends in report.num_dangling.values()),
    }  # fmt: skip
    output.stage("key", "tables", text, facts, clock.cost())
    for node_type, count in report.num_repeated.items():
        text = f"{plural_text(count, 'row')} of {node_type} whose raw id an earlier row has"
        output.stage("drop", "repeated", text, {"type": node_type, "nodes": count})
    for edge_type, ends in report.num_dangling.items():
        label = type_label(edge_type)
        text = (
            f"{plural_text(ends['edges'], 'edge')} of {label}: {count_text(ends['src'])} sources and "
            f"{count_text(ends['dst'])} destinations are not nodes"
        )
        output.stage("drop", "dangling", text, {"type": label, **ends})
