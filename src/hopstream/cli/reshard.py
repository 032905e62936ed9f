"""How is a dataset written anew with other parts from the command line, without what it was written from?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, OutFolder, OverwriteFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.units import bytes_text, plural_text
from hopstream.cli.written import show_measured, show_written
from hopstream.partition.reshard.settings import ReshardSettings

if TYPE_CHECKING:
    from hopstream.partition.reshard.plan import Estimate, Plan


@with_settings("settings", ReshardSettings)
def run(
    source: Annotated[Path, typer.Argument(help="the dataset, of any number of parts", show_default=False)],
    out: OutFolder,
    partitions_dir: Annotated[
        Path | None,
        typer.Option(
            "--partitions-dir", help="folder with <node type>.npy or .txt, the part of each node; in place of a method"
        ),
    ] = None,
    overwrite: OverwriteFlag = False,
    json: JsonFlag = False,
    *,
    settings: ReshardSettings,
) -> None:
    """Write a dataset anew with other parts, in bounded memory; what was ended goes on."""
    from hopstream.partition.reshard.run import reshard

    output, clock = Output(is_json=json), Clock()

    def show_plan(costs: Estimate, plan: Plan) -> None:
        text = (
            f"{bytes_text(costs.input_bytes)} to read, {bytes_text(costs.disk_bytes)} of disk while it runs, "
            f"{bytes_text(costs.dataset_bytes)} after; {settings.memory} of memory, "
            f"{bytes_text(plan.budget_bytes)} for the work of each of {plural_text(plan.num_workers, 'worker')}"
        )
        facts: Facts = {
            "input_bytes": costs.input_bytes, "disk_bytes": costs.disk_bytes, "dataset_bytes": costs.dataset_bytes,
            "budget_bytes": plan.budget_bytes, "workers": plan.num_workers, "parts": plan.settings.num_parts,
        }  # fmt: skip
        output.stage("plan", plural_text(plan.settings.num_parts, "part"), text, facts)
        output.resumed("reshard", costs.num_done)

    with progress_bars() as progress:
        manifest = reshard(
            source, out, partitions_dir=partitions_dir, settings=settings, overwrite=overwrite, progress=progress,
            on_estimate=show_plan,
        )  # fmt: skip
    show_measured(output, manifest)
    show_written(output, out, manifest)
    num_bytes = sum(manifest.report.bytes)
    output.text(f"{'':<7} {'speed':<8} {bytes_text(int(num_bytes / max(clock.cost().seconds, 1e-9)))}/s")
