"""Verb ``verify``: checks that a dataset is complete, consistent, and equal to its source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, MemoryFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.source import SourceSettings, read_source
from hopstream.cli.units import count_text, plural_text
from hopstream.dataset.copying.local_copy import folder_of, source_path
from hopstream.errors import SettingsError
from hopstream.places.paths import AnyPath

if TYPE_CHECKING:
    from hopstream.preparation.audit.reference import Against
    from hopstream.preparation.audit.report import Check, Finding, VerifyReport

WRONG = 1
"""Exit status if the check finds something wrong; 2 means that the check was not possible."""


@with_settings("settings", SourceSettings)
def run(  # noqa: PLR0913, PLR0917  one parameter for each flag that is no field of a record
    dataset: Annotated[str, typer.Argument(help="a dataset's folder or URI", metavar="PATH", show_default=False)],
    against: Annotated[
        str | None,
        typer.Option(help="its source: a chunked graph, tables, an .npz file or a dataset"),
    ] = None,
    owners: Annotated[
        Path | None,
        typer.Option(help="check that nodes are in the parts of this folder of owners, as assign writes it"),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(help="check only some parts: here (those in the folder), or numbers and ranges: 0,2 or 4-7"),
    ] = None,
    memory: MemoryFlag = None,
    max_findings: Annotated[int, typer.Option(help="number of findings to list, shared among the parts", min=1)] = 100,
    json: JsonFlag = False,
    *,
    settings: SourceSettings,
) -> None:
    """Check a dataset, alone or against its source; the exit status is 1 if something is wrong."""
    from hopstream.preparation.audit.run import verify_dataset

    output, clock = Output(is_json=json), Clock()
    path = folder_of(dataset)
    root = path.parent if path.name == "manifest.json" else path
    with progress_bars() as progress:
        report = verify_dataset(
            root,
            against=None if against is None else _source(source_path(against), settings),
            owners=owners,
            parts=None if parts is None else _parts(root, parts),
            memory=memory,
            max_findings=max_findings,
            progress=progress,
        )
    _show(output, path, against, report, clock)
    if not report.is_ok:
        raise typer.Exit(WRONG)


def _parts(root: Path, text: str) -> Sequence[int]:
    """Parse a list of parts; ``here`` means the parts whose folders exist."""
    from hopstream.dataset.chunks import parse_parts
    from hopstream.dataset.manifest import read_manifest
    from hopstream.dataset.paths import is_here

    num_parts = read_manifest(root).book.num_parts
    if text != "here":
        return parse_parts(text, num_parts)
    found = [part for part in range(num_parts) if is_here(root, part)]
    if not found:
        raise SettingsError(f"--parts is here, but {root} has no folder of a part; give the folder of a root")
    return found


def _source(path: AnyPath, settings: SourceSettings) -> Against:
    """Read the source to compare with; a chunked graph is opened, not loaded."""
    from hopstream.ingest.chunked import is_chunked, open_chunked

    settings.check_source(path)
    metadata = path / "metadata.json" if path.is_dir() else path
    is_json = metadata.suffix == ".json" and metadata.exists() and not (path / "manifest.json").exists()
    if is_json and is_chunked(metadata):
        return open_chunked(metadata)
    return read_source(path, settings).graph


def _show(output: Output, path: Path, against: str | None, report: VerifyReport, clock: Clock) -> None:
    rows = [
        (kind, count_text(check.num_checked), count_text(check.num_wrong), _result_text(check))
        for kind, check in report.checks.items()
    ]
    facts: list[Facts] = [{"check": kind, **check.to_json()} for kind, check in report.checks.items()]
    output.table(("check", ">checked", ">wrong", "result"), rows, facts)
    _show_findings(output, report)
    for kind, reasons in report.skipped.items():
        for why in reasons[1:]:  # the table shows the first reason
            output.text(f"skipped {kind:<9} {why}")
    num_findings = len(report.findings) + report.num_left_out
    text = "nothing is wrong" if report.is_ok else plural_text(num_findings, "finding")
    if report.num_left_out:
        text += f", {report.num_left_out} of them not listed"
    not_checked = [kind for kind, check in report.checks.items() if check.status == "skipped"]
    if not_checked:
        text += f"; not checked: {', '.join(not_checked)}"
    told: Facts = {
        "dataset": str(path), "against": None if against is None else str(against), "is_ok": report.is_ok,
        "findings": num_findings, "left_out": report.num_left_out, "not_checked": not_checked,
    }  # fmt: skip
    output.stage("done", "verify", text, told, clock.cost())


def _result_text(check: Check) -> str:
    if not check.skipped:
        return check.status
    num_more = len(check.skipped) - 1
    why = check.skipped[0] + (f", and {plural_text(num_more, 'more reason')}" if num_more else "")
    return f"skipped ({why})" if check.status == "skipped" else f"{check.status}; in part skipped ({why})"


def _show_findings(output: Output, report: VerifyReport) -> None:
    """Write the findings by part; those about the whole dataset come first."""
    groups: dict[str, list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault(finding.group, []).append(finding)
    for group in sorted({*groups, *report.left_out}):
        listed, num_left_out = groups.get(group, []), report.left_out.get(group, 0)
        output.text(f"wrong   {group or 'dataset'}: {plural_text(len(listed) + num_left_out, 'finding')}")
        for finding in listed:
            text = str(finding).removeprefix(f"{group}/" if group else "")
            output.text(f"        {finding.kind:<9} {text}")
            output.facts({"stage": "wrong", "group": group, **finding.to_json()})
        if num_left_out:
            output.text(f"        … and {num_left_out} more; --max-findings lists them")
            output.facts({"stage": "wrong", "group": group, "left_out": num_left_out})
