"""Verb ``pull``: copies parts of a dataset from another machine or bucket to this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.options import JsonFlag, OverwriteFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.serve import parts_text
from hopstream.cli.units import bytes_text
from hopstream.dataset.chunks import parse_parts
from hopstream.engine.settings import WorkerSettings
from hopstream.errors import SettingsError


@with_settings("settings", WorkerSettings)
def run(
    source: Annotated[
        str, typer.Argument(help="a root of a dataset: a folder, or a URI such as s3://bucket/mag", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="the folder to write to", show_default=False)],
    parts: Annotated[str, typer.Option(help="the parts: here (all that the root has), or numbers and ranges")] = "here",
    overwrite: OverwriteFlag = False,
    json: JsonFlag = False,
    *,
    settings: WorkerSettings,
) -> None:
    """Copy parts of a dataset to this machine.

    The same command resumes interrupted work.
    """
    from hopstream.dataset.copying.pull import pull
    from hopstream.dataset.paths import is_here
    from hopstream.dataset.settings import MAX_PARTS

    output, clock = Output(is_json=json), Clock()
    if parts == "all":
        raise SettingsError(
            "--parts is 'all'; a root may have some of them: write here for those, or numbers and ranges"
        )
    wanted = None if parts == "here" else parse_parts(parts, MAX_PARTS)
    with progress_bars() as progress:
        manifest = pull(source, out, parts=wanted, overwrite=overwrite, settings=settings, progress=progress)
    num_parts = manifest.book.num_parts
    found = tuple(part for part in range(num_parts) if is_here(out, part))
    num_bytes = sum(manifest.report.bytes[part] for part in found)
    text = f" {parts_text(found, num_parts)}, {bytes_text(num_bytes)}"
    facts: Facts = {"out": str(out), "dataset_id": manifest.dataset_id, "parts": found, "bytes": num_bytes}
    output.stage("done", str(out), text, facts, clock.cost())
