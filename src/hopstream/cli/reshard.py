"""Verb ``reshard``: rewrites a dataset with another partitioning, without its source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.options import JsonFlag, OutFolder, OverwriteFlag, with_settings
from hopstream.cli.progress import Clock, Output, progress_bars
from hopstream.cli.units import bytes_text
from hopstream.cli.written import show_dataset_plan, show_measured, show_written
from hopstream.places.paths import path_of
from hopstream.preparation.reshard.settings import ReshardSettings


@with_settings("settings", ReshardSettings)
def run(
    source: Annotated[str, typer.Argument(help="the dataset, of any number of parts", show_default=False)],
    out: OutFolder,
    partitions_dir: Annotated[
        Path | None,
        typer.Option(
            "--partitions-dir", help="folder with <node type>.npy or .txt, the part of each node; instead of a method"
        ),
    ] = None,
    overwrite: OverwriteFlag = False,
    json: JsonFlag = False,
    *,
    settings: ReshardSettings,
) -> None:
    """Rewrite a dataset with other parts, in bounded memory.

    The same command resumes interrupted work.
    """
    from hopstream.preparation.reshard.reshard_job import reshard

    output, clock = Output(is_json=json), Clock()
    with progress_bars() as progress:
        manifest = reshard(
            source, out, partitions_dir=partitions_dir, settings=settings, overwrite=overwrite, progress=progress,
            on_estimate=lambda costs, spec: show_dataset_plan(output, "reshard", costs, spec),
        )  # fmt: skip
    show_measured(output, manifest)
    show_written(output, path_of(out), manifest)
    num_bytes = sum(manifest.report.bytes)
    output.text(f"{'':<7} {'speed':<8} {bytes_text(int(num_bytes / max(clock.cost().seconds, 1e-9)))}/s")
