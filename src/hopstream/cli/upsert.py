"""Verb ``upsert``: updates nodes by raw id, and appends the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.options import IdsFlag, JsonFlag, by_type
from hopstream.cli.progress import Clock, Output, progress_bars
from hopstream.cli.written import manifest_to_change, show_changed


def run(
    path: Annotated[Path, typer.Argument(help="a dataset's folder", metavar="PATH", show_default=False)],
    delta: Annotated[
        Path,
        typer.Argument(
            help="folder of a chunked graph, or of described tables: rows of old and new nodes, and new edges",
            metavar="DELTA", show_default=False,
        ),
    ],
    ids: IdsFlag = [],  # noqa: B006  typer copies it
    metadata_filename: Annotated[
        str, typer.Option(help="the chunked graph's metadata, or the description of the tables")
    ] = "metadata.json",
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Replace features of nodes that have given raw ids, and append nodes with other raw ids."""
    from hopstream.preparation.revise.run import upsert_folder

    output, clock = Output(is_json=json), Clock()
    root = path.parent if path.name == "manifest.json" else path
    before = manifest_to_change(root)
    with progress_bars() as progress:
        manifest = upsert_folder(
            root, delta, ids=by_type("--ids", ids), metadata_filename=metadata_filename, progress=progress
        )
    show_changed(output, clock, "upsert", root, before, manifest)
