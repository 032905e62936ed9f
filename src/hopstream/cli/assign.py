"""Verb ``assign``: assigns the nodes of a graph to parts, without writing the parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, MemoryFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.source import SourceSettings, read_and_show
from hopstream.cli.units import percent_text, plural_text
from hopstream.dataset.copying.local_copy import source_path
from hopstream.dataset.settings import PartitionSettings
from hopstream.places.paths import AnyPath

if TYPE_CHECKING:
    from hopstream.assign.source import AssignSource
    from hopstream.ingest.chunked import ChunkedGraph


@with_settings("tables", SourceSettings)
@with_settings("settings", PartitionSettings, required=("num_parts",))
def run(  # noqa: PLR0913  one parameter for each flag that is no field of a record
    source: Annotated[
        str,
        typer.Argument(
            help="a chunked graph or a dataset, which are not loaded into memory, or another source of partition",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="the folder to write the parts of nodes to", show_default=False)],
    memory: MemoryFlag = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an existing folder of parts")] = False,
    json: JsonFlag = False,
    *,
    settings: PartitionSettings,
    tables: SourceSettings,
) -> None:
    """Assign every node to a part; partition and dispatch read the result."""
    from hopstream.assign.owners import META, check_owners_target
    from hopstream.assign.run import assign_folder
    from hopstream.ingest.source_paths import check_apart

    output = Output(is_json=json)
    path = source_path(source)
    check_apart(out, {"the source": path})
    check_owners_target(out, overwrite=overwrite)
    graph = _open(path) or read_and_show(output, path, tables).graph
    clock = Clock()
    with progress_bars() as progress:
        found = assign_folder(graph, out, settings, memory=memory, overwrite=overwrite, progress=progress)
    num_nodes = sum(map(len, found.owners.values()))
    text = f"{plural_text(num_nodes, 'node')} to {plural_text(settings.num_parts, 'part')}"
    if found.cut is not None:
        text += f", {percent_text(found.cut)} of adjacent pairs cut"
    facts: Facts = {
        "method": settings.method,
        "parts": settings.num_parts,
        "nodes": num_nodes,
        "pairs_cut": found.cut,
        "largest_over_share": dict(found.largest),
    }
    output.stage("assign", settings.method, text, facts, clock.cost())
    if found.largest:
        loads = ", ".join(f"{name} {value:.2f}x" for name, value in found.largest.items())
        output.text(f"{'':<7} {'balance':<8} fullest part over its share: {loads}")
    output.stage("done", str(out / META), "", {"meta": str(out / META)})


def _open(source: AnyPath) -> ChunkedGraph | AssignSource | None:
    """Open a dataset or chunked graph, which is read in blocks; None for sources that must be loaded."""
    from hopstream.assign.source import open_dataset_source
    from hopstream.ingest.chunked import is_chunked, open_chunked

    if not isinstance(source, Path):
        return None
    if (source / "manifest.json").is_file():
        return open_dataset_source(source)
    metadata = source / "metadata.json" if source.is_dir() else source
    is_streamed = metadata.suffix == ".json" and metadata.exists() and is_chunked(metadata)
    return open_chunked(metadata) if is_streamed else None
