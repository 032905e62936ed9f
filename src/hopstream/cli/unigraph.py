"""Verb ``unigraph``: writes a graph as a unigraph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Output, progress_bars
from hopstream.cli.source import SourceSettings, read_and_show
from hopstream.cli.units import bytes_text, plural_text
from hopstream.dataset.copying.local_copy import source_path
from hopstream.export.settings import UnigraphSettings
from hopstream.places.paths import path_of, sorted_files


@with_settings("tables", SourceSettings)
@with_settings("settings", UnigraphSettings)
def run(
    source: Annotated[
        str, typer.Argument(help="a dataset of any number of parts, or a source of ingest", show_default=False)
    ],
    out: Annotated[str, typer.Option("--out", help="the new folder or URI to write to", show_default=False)],
    json: JsonFlag = False,
    *,
    settings: UnigraphSettings,
    tables: SourceSettings,
) -> None:
    """Write a graph as a unigraph: a graph_schema.pbtxt and a table for every set.

    Unigraphs are TF-GNN's format for whole graphs. Datasets and chunked graphs are read in pieces; graphs from other
    sources are loaded into memory.
    """
    from hopstream.export.unigraph import is_read_in_pieces, write_unigraph
    from hopstream.ingest.chunked.writing import check_out_folder
    from hopstream.ingest.source_paths import check_apart

    output = Output(is_json=json)
    path, place = source_path(source), path_of(out)
    check_apart(place, {"the source": path})
    if isinstance(place, Path):
        check_out_folder(place)
    given = path if is_read_in_pieces(path) else read_and_show(output, path, tables).graph
    clock = Clock()
    with progress_bars() as progress:
        path = write_unigraph(given, place, settings=settings, progress=progress)
    sizes = [file.stat().st_size for file in sorted_files(place, "**/*")]
    text = f"{bytes_text(sum(sizes))} in {plural_text(len(sizes), 'file')}"
    facts = {"format": settings.format, "shards": settings.num_shards, "bytes": sum(sizes), "files": len(sizes)}
    output.stage("write", settings.format, text, facts, clock.cost())
    output.stage("done", str(path), "", {"schema": str(path)})
