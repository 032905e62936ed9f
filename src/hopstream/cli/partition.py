"""Verb ``partition``: cuts a graph into parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.halo import NewHaloFlags, show_halo
from hopstream.cli.options import JsonFlag, OutFolder, OverwriteFlag, with_settings
from hopstream.cli.prepare import prepare_and_show
from hopstream.cli.progress import Output, progress_bars
from hopstream.cli.source import SourceSettings, check_out, read_and_show
from hopstream.cli.written import show_cut, show_written
from hopstream.dataset.copying.local_copy import source_path
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine import EngineName
from hopstream.engine.settings import WORKERS_HELP, WorkSettings
from hopstream.errors import SettingsError
from hopstream.places.paths import path_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedFlags:
    """Flags for work in bounded memory: those of ``prepare``, all optional."""

    memory: str | None = field(
        default=None,
        metadata={"help": "like prepare: read tables or a chunked graph piece by piece, within this memory for all "
            "processes, such as 4GiB; interrupted work resumes"},
    )  # fmt: skip
    num_workers: int | None = field(default=None, metadata={"help": f"with --memory: {WORKERS_HELP}"})
    engine: EngineName = field(default="local", metadata={"help": "with --memory: processes here, Ray or Beam"})

    def __post_init__(self) -> None:
        """Refuse flags that have no effect without ``memory``."""
        if self.memory is None and (self.num_workers is not None or self.engine != "local"):
            raise SettingsError("--workers and --engine need --memory; give it, or leave them out")

    @property
    def settings(self) -> WorkSettings | None:
        """Settings for ``prepare``; None if the graph is loaded into memory."""
        if self.memory is None:
            return None
        return WorkSettings(memory=self.memory, num_workers=self.num_workers, engine=self.engine)


@with_settings("tables", SourceSettings)
@with_settings("bounded", BoundedFlags)
@with_settings("halo", NewHaloFlags)
@with_settings("settings", PartitionSettings)
def run(  # noqa: PLR0913  one parameter for each flag that is no field of a record
    source: Annotated[
        str,
        typer.Argument(help="a source of ingest, or a dataset of any number of parts", show_default=False),
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
    bounded: BoundedFlags,
    tables: SourceSettings,
) -> None:
    """Cut a graph into parts and write them as a dataset."""
    from hopstream.preparation.write import write_parts

    output, path, place = Output(is_json=json), source_path(source), path_of(out)
    if settings.method == "file" and owners is None:
        raise SettingsError("--method file needs --owners, the folder with the part of each node")
    if settings.method != "file" and owners is not None:
        raise SettingsError(
            f"--owners is only for --method file, and --method is {settings.method}; leave one of them out"
        )
    if bounded.settings is not None:
        prepare_and_show(output, path, place, bounded.settings, settings, halo, tables, overwrite=overwrite)
        return
    check_out(place, path, overwrite=overwrite)
    found = read_and_show(output, path, tables)
    with progress_bars() as progress:
        manifest = write_parts(
            found.graph, place, settings=settings, owners=owners, halo=halo.settings, overwrite=overwrite,
            progress=progress,
        )  # fmt: skip
    show_cut(output, manifest, settings)
    if manifest.halo is not None:
        show_halo(output, manifest.halo)
    show_written(output, place, manifest)
