"""Verb ``compact``: merges appended deltas into a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Output, progress_bars
from hopstream.cli.written import show_dataset_plan, show_measured, show_written
from hopstream.engine.settings import WorkSettings

if TYPE_CHECKING:
    from hopstream.preparation.dataset_job import DatasetEstimate
    from hopstream.preparation.dataset_job_folder import DatasetJobSpec


@with_settings("settings", WorkSettings)
def run(
    path: Annotated[Path, typer.Argument(help="a dataset's folder", metavar="PATH", show_default=False)],
    partitions_dir: Annotated[
        Path | None,
        typer.Option(
            "--partitions-dir",
            help="folder with <node type>.npy or .txt, the part of each node; without it old nodes keep their parts",
        ),
    ] = None,
    json: JsonFlag = False,
    *,
    settings: WorkSettings,
) -> None:
    """Rewrite a dataset in place with all appended rows.

    The same command resumes interrupted work.
    """
    from hopstream.preparation.compact import compact

    output = Output(is_json=json)
    root = path.parent if path.name == "manifest.json" else path
    planned: list[DatasetEstimate] = []

    def show_plan(costs: DatasetEstimate, spec: DatasetJobSpec) -> None:
        planned.append(costs)
        show_dataset_plan(output, "compact", costs, spec)

    with progress_bars() as progress:
        manifest = compact(
            root, partitions_dir=partitions_dir, settings=settings, progress=progress, on_estimate=show_plan
        )
    if not planned:
        output.stage(
            "done", str(root), "there are no deltas left to compact", {"dataset": str(root), "is_changed": False}
        )
        return
    show_measured(output, manifest)
    show_written(output, root, manifest)
