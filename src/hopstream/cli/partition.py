"""How is a graph cut into parts from the command line?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.halo import NewHaloFlags, show_halo
from hopstream.cli.options import JsonFlag, OutFolder, OverwriteFlag, with_settings
from hopstream.cli.progress import Output, progress_bars
from hopstream.cli.source import SourceSettings, check_out, read_and_show
from hopstream.cli.written import show_cut, show_written
from hopstream.errors import SettingsError
from hopstream.partition.settings import PartitionSettings


@with_settings("tables", SourceSettings)
@with_settings("halo", NewHaloFlags)
@with_settings("settings", PartitionSettings)
def run(  # noqa: PLR0913  one parameter for each flag that is no field of a record
    source: Annotated[
        Path,
        typer.Argument(help="what ingest reads, or a dataset of any number of parts", show_default=False),
    ],
    out: OutFolder,
    owners: Annotated[
        Path | None,
        typer.Option(help="for --method file: folder with <node type>.npy or .txt, the part of each node by key"),
    ] = None,
    overwrite: OverwriteFlag = False,
    json: JsonFlag = False,
    *,
    settings: PartitionSettings,
    halo: NewHaloFlags,
    tables: SourceSettings,
) -> None:
    """Cut a graph into parts and write them as a dataset."""
    from hopstream.partition.layout import write_parts

    output = Output(is_json=json)
    if settings.method == "file" and owners is None:
        raise SettingsError("--method file needs --owners, the folder with the part of each node")
    if settings.method != "file" and owners is not None:
        raise SettingsError(f"--owners is for --method file, and --method is {settings.method}; leave one of them out")
    check_out(out, source, overwrite=overwrite)
    found = read_and_show(output, source, tables)
    with progress_bars() as progress:
        manifest = write_parts(
            found.graph, out, settings=settings, owners=owners, halo=halo.settings, overwrite=overwrite,
            progress=progress,
        )  # fmt: skip
    show_cut(output, manifest, settings)
    if manifest.halo is not None:
        show_halo(output, manifest.halo)
    show_written(output, out, manifest)
