"""Writes what there is to say of a dataset that was just written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.cli.progress import Cost, Facts, Output
from hopstream.cli.units import bytes_text, percent_text, plural_text
from hopstream.engine.peak import peak_bytes

if TYPE_CHECKING:
    from hopstream.dataset.manifest import Manifest
    from hopstream.dataset.settings import PartitionSettings


def show_cut(output: Output, manifest: Manifest, settings: PartitionSettings) -> None:
    """Write how nodes were assigned, what was cut, and how even the parts are."""
    report, num_parts = manifest.report, manifest.book.num_parts
    costs = {stage.name: Cost(stage.seconds, stage.peak_bytes) for stage in report.stages}
    is_balanced = settings.method in ("kaminpar", "metis") and num_parts > 1
    text = plural_text(num_parts, "part") + (f", balanced by {settings.balance}" if is_balanced else "")
    output.stage("assign", settings.method, text, {"method": settings.method, "parts": num_parts}, costs["assign"])
    show_measured(output, manifest, costs["measure"])


def show_measured(output: Output, manifest: Manifest, cost: Cost | None = None) -> None:
    """Write what was cut, and how even the parts are."""
    report = manifest.report
    cut = report.cut
    text = f"{percent_text(cut.fraction)} of {plural_text(cut.num_edges, 'edge')} cut"
    facts: Facts = {"cut": cut.fraction, "cut_edges": cut.num_cut, "edges": cut.num_edges, "balance": report.balance}
    output.stage("measure", "cut", text, facts, cost)
    if manifest.book.num_parts > 1:
        loads = ", ".join(f"{name} {value:.2f}x" for name, value in report.balance.items())
        output.text(f"{'':<7} {'balance':<8} largest part over mean: {loads}")


def show_written(output: Output, root: Path, manifest: Manifest) -> None:
    """Write what was written, and where it is."""
    from hopstream.dataset.manifest import FORMAT

    report = manifest.report
    # Halos may have been made since.
    cost = next(Cost(s.seconds, max(s.peak_bytes, peak_bytes())) for s in report.stages if s.name == "write")
    num_parts, num_bytes, num_files = manifest.book.num_parts, sum(report.bytes), len(manifest.files)
    text = f"{bytes_text(num_bytes)} in {plural_text(num_files, 'file')}"
    facts: Facts = {"parts": num_parts, "bytes": num_bytes, "files": num_files}
    output.stage("write", plural_text(num_parts, "part"), text, facts, cost)
    path = str(root / "manifest.json")
    facts = {"manifest": path, "format": FORMAT, "dataset_id": manifest.dataset_id}
    output.stage("done", path, f" format {FORMAT}", facts)
