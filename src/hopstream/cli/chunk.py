"""How does a graph become a chunked graph from the command line?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Output, progress_bars
from hopstream.cli.source import SourceSettings, read_and_show
from hopstream.cli.units import bytes_text, plural_text
from hopstream.errors import SettingsError
from hopstream.ingest.chunk_settings import ChunkSettings


@with_settings("tables", SourceSettings)
@with_settings("settings", ChunkSettings)
def run(
    source: Annotated[
        Path,
        typer.Argument(help="what ingest reads, or a dataset of any number of parts", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", help="the new folder to write to", show_default=False)],
    name: Annotated[str, typer.Option("--name", help="what the metadata calls the graph")] = "",
    json: JsonFlag = False,
    *,
    settings: ChunkSettings,
    tables: SourceSettings,
) -> None:
    """Write a graph as a chunked graph: many files of edges and features, and a metadata.json."""
    from hopstream.ingest.chunked import write_chunked
    from hopstream.ingest.chunked.writing import check_out_folder

    output = Output(is_json=json)
    check_out_folder(out)
    if out.resolve() == source.resolve() or source.resolve() in out.resolve().parents:
        raise SettingsError(f"--out {out} lies in the source {source}; give a folder beside it")
    found = read_and_show(output, source, tables)
    clock = Clock()
    with progress_bars() as progress:
        path = write_chunked(found.graph, out, name=name or out.resolve().name, settings=settings, progress=progress)
    sizes = [file.stat().st_size for file in out.rglob("*") if file.is_file()]
    text = f"{bytes_text(sum(sizes))} in {plural_text(len(sizes), 'file')}"
    facts = {"chunks": settings.num_chunks, "bytes": sum(sizes), "files": len(sizes)}
    output.stage("write", plural_text(settings.num_chunks, "chunk"), text, facts, clock.cost())
    output.stage("done", str(path), "", {"metadata": str(path)})
