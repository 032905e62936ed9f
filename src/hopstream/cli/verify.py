"""How does a user find out whether a dataset is whole, true, and the graph that it was written from?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.source import SourceSettings, read_source
from hopstream.cli.units import count_text, plural_text

if TYPE_CHECKING:
    from hopstream.partition.audit.reference import Against
    from hopstream.partition.audit.report import VerifyReport

WRONG = 1
"""Exit status where something is wrong; 2 is for what cannot be checked at all."""


@with_settings("settings", SourceSettings)
def run(
    path: Annotated[Path, typer.Argument(help="a dataset's folder", metavar="PATH", show_default=False)],
    against: Annotated[
        Path | None,
        typer.Option(help="what it was written from: a chunked graph, tables, an .npz file or a dataset"),
    ] = None,
    memory: Annotated[
        str, typer.Option(help="memory for edges while they are compared, for example 500MB or 4GiB")
    ] = "1GiB",
    max_findings: Annotated[int, typer.Option(help="how many findings to list", min=1)] = 100,
    json: JsonFlag = False,
    *,
    settings: SourceSettings,
) -> None:
    """Check all that a dataset says, alone or against its source; the exit status is 1 where something is wrong."""
    from hopstream.partition.audit.run import verify_dataset

    output, clock = Output(is_json=json), Clock()
    with progress_bars() as progress:
        report = verify_dataset(
            path.parent if path.name == "manifest.json" else path,
            against=None if against is None else _source(against, settings),
            memory=memory,
            max_findings=max_findings,
            progress=progress,
        )
    _show(output, path, against, report, clock)
    if not report.is_ok:
        raise typer.Exit(WRONG)


def _source(path: Path, settings: SourceSettings) -> Against:
    """What the dataset is compared with; a chunked graph is not loaded."""
    from hopstream.ingest.chunked import is_chunked, open_chunked

    settings.check_source(path)
    metadata = path / "metadata.json" if path.is_dir() else path
    is_json = metadata.suffix == ".json" and metadata.exists() and not (path / "manifest.json").exists()
    if is_json and is_chunked(metadata):
        return open_chunked(metadata)
    return read_source(path, settings).graph


def _show(output: Output, path: Path, against: Path | None, report: VerifyReport, clock: Clock) -> None:
    rows = [
        (kind, count_text(check.num_checked), count_text(check.num_wrong) if check.num_wrong else "ok")
        for kind, check in report.checks.items()
    ]
    facts: list[Facts] = [
        {"check": kind, "checked": check.num_checked, "wrong": check.num_wrong} for kind, check in report.checks.items()
    ]
    output.table(("check", ">checked", ">wrong"), rows, facts)
    for finding in report.findings:
        output.stage("wrong", finding.kind, str(finding), finding.to_json())
    for text in report.skipped:
        output.stage("skipped", "", text, {"skipped": text})
    num_findings = len(report.findings) + report.num_left_out
    text = "nothing is wrong" if report.is_ok else plural_text(num_findings, "finding")
    if report.num_left_out:
        text += f", {report.num_left_out} of them not listed"
    told: Facts = {
        "dataset": str(path), "against": None if against is None else str(against), "is_ok": report.is_ok,
        "findings": num_findings, "left_out": report.num_left_out,
    }  # fmt: skip
    output.stage("done", "verify", text, told, clock.cost())
