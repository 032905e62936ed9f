"""Verb ``export``: samples subgraphs to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Output, progress_bars
from hopstream.cli.units import bytes_text, percent_text, plural_text
from hopstream.export.settings import ExportSettings

if TYPE_CHECKING:
    from hopstream.export.export_folder import ExportPlan
    from hopstream.export.settings import ExportReport


@with_settings("settings", ExportSettings)
def run(  # noqa: PLR0913  one parameter for each flag that is no field of a record
    source: Annotated[
        str,
        typer.Argument(
            help="the folder of a dataset, a cluster.json, addresses of servers, or a unigraph", show_default=False
        ),
    ],
    spec: Annotated[Path, typer.Option("--spec", help="a TF-GNN SamplingSpec in text form", show_default=False)],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            help="start of the file names; name@16 and name-?????-of-00016 mean 16 files",
            show_default=False,
        ),
    ],
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", help="a table of raw ids to start from; if not given, every node", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an export of this name")] = False,
    json: JsonFlag = False,
    *,
    settings: ExportSettings,
) -> None:
    """Sample a subgraph per seed to TFRecord or Parquet files.

    The same command resumes interrupted work.
    """
    export_and_show(source, spec, out, seeds, settings, overwrite=overwrite, output=Output(is_json=json))


def export_and_show(  # noqa: PLR0913  what the verbs that export share
    source: str, spec: Path, out: str, seeds: str | None, settings: ExportSettings, *, overwrite: bool, output: Output
) -> None:
    """Export subgraphs, and write the plan and the report."""
    from hopstream.export.run import export_subgraphs

    clock = Clock()

    def tell(plan: ExportPlan, num_before: int) -> None:
        shards = plural_text(plan.num_shards, "shard")
        text = f"{plural_text(plan.num_seeds, 'seed')} in {shards} of {plan.file_format}"
        output.stage("plan", "export", text, {"seeds": plan.num_seeds, "shards": plan.num_shards})
        output.resumed("export", num_before)

    with progress_bars() as progress:
        report = export_subgraphs(
            source, spec, out, seeds=seeds, settings=settings, overwrite=overwrite, progress=progress, on_plan=tell
        )
    _show(output, report, clock)


def _show(output: Output, report: ExportReport, clock: Clock) -> None:
    text = f"{plural_text(report.num_seeds, 'subgraph')}, {bytes_text(report.num_bytes)}"
    facts = {"subgraphs": report.num_seeds, "shards": len(report.paths), "bytes": report.num_bytes}
    output.stage("write", "shards", text, facts, clock.cost())
    total = sum(report.seconds.values())
    if total:
        shares = ", ".join(f"{name} {percent_text(seconds / total)}" for name, seconds in report.seconds.items())
        output.text(f"{'':<7} {'speed':<8} {report.num_seeds / total:.0f} subgraphs/s of a core: {shares}")
        wall = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.wall_seconds.items())
        output.text(f"{'':<7} {'clock':<8} {wall}, of all threads together")
    seconds = {"core_seconds": report.seconds, "wall_seconds": report.wall_seconds}
    output.facts({"stage": "speed"} | {kind: {n: round(s, 3) for n, s in of.items()} for kind, of in seconds.items()})
    output.stage("done", str(report.schema_path), "", {"schema": str(report.schema_path)})
