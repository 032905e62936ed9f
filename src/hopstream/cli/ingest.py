"""Verb ``ingest``: converts a raw graph, or partitions of PyG or DGL, to a dataset.

A raw graph becomes a dataset of one part; partitions keep their parts.

A dataset of one part is the form for storing a raw graph. It keeps the order of nodes and edges, all features and
splits, and the keys of edges; ``hopstream partition`` reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hopstream.cli.options import JsonFlag, OutFolder, OverwriteFlag, with_settings
from hopstream.cli.progress import Output, progress_bars
from hopstream.cli.source import SourceSettings, check_out, read_and_show
from hopstream.cli.units import write_types
from hopstream.cli.written import show_written
from hopstream.dataset.copying.local_copy import source_path
from hopstream.places.paths import path_of


@with_settings("settings", SourceSettings)
def run(
    source: Annotated[
        str,
        typer.Argument(
            help="an .npz file, a tables' metadata.json, a unigraph's .pbtxt, or the folder of either; an edge list, "
            "an OGB folder, PyG's processed .pt, or PyG's or DGL's partitions",
            show_default=False,
        ),
    ],
    out: OutFolder,
    overwrite: OverwriteFlag = False,
    json: JsonFlag = False,
    *,
    settings: SourceSettings,
) -> None:
    """Read a raw graph and write it as a dataset of one part; partitions of PyG or DGL keep their parts."""
    from hopstream.cli.census import census_of_dataset
    from hopstream.dataset.layout import Dataset
    from hopstream.preparation.write import write_parts

    output, path, place = Output(is_json=json), source_path(source), path_of(out)
    check_out(place, path, overwrite=overwrite)
    found = read_and_show(output, path, settings)
    with progress_bars() as progress:
        cut: dict[str, Any] = {"num_parts": 1}
        if found.partitions is not None:
            cut = {"owners": found.partitions.owners, "num_parts": found.partitions.num_parts}
        manifest = write_parts(found.graph, place, overwrite=overwrite, progress=progress, **cut)
    show_written(output, place, manifest)
    write_types(output, census_of_dataset(Dataset(Path(place.name), manifest)), found.num_dropped)
