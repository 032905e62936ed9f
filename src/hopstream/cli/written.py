"""Shows the plan of a verb, and facts about the dataset that it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.cli.progress import STAGE_WIDTH, SUBJECT_WIDTH, Clock, Cost, Facts, Output
from hopstream.cli.units import bytes_text, percent_text, plural_text
from hopstream.engine.machine import peak_bytes
from hopstream.places.paths import AnyPath

if TYPE_CHECKING:
    from hopstream.dataset.manifest import Manifest
    from hopstream.dataset.settings import PartitionSettings
    from hopstream.engine.settings import Allotment
    from hopstream.preparation.dataset_job import DatasetEstimate
    from hopstream.preparation.dataset_job_folder import DatasetJobSpec
    from hopstream.preparation.plan import PhasePlan, PreparePlan


PlanLine = tuple[str, str]
"""A keyword such as ``memory``, and the planned value."""


def show_plan(output: Output, lines: Sequence[PlanLine], facts: Facts) -> None:
    """Write a plan: aligned lines, one per keyword, after the word ``plan``; as JSON, one object."""
    (word, value), *rest = lines
    output.stage("plan", word, value, facts)
    for word, value in rest:
        output.text(f"{'':<{STAGE_WIDTH}} {word:<{SUBJECT_WIDTH}} {value}")


def memory_lines(work: Allotment | None, budget_bytes: int) -> list[PlanLine]:
    """Return the line about the memory of all processes and of each worker; none if that is unknown."""
    if work is None:
        return []
    num_workers = work.num_workers
    each = f"the work of each of {plural_text(num_workers, 'worker')}" if num_workers > 1 else "the work itself"
    return [("memory", _memory_text(work, f" for all processes, {bytes_text(budget_bytes)} for {each}"))]


def _memory_text(work: Allotment, what_for: str) -> str:
    return work.memory_text + what_for + (f"; {work.workers_text}" if work.workers_text else "")


def show_dataset_plan(
    output: Output, verb: str, costs: DatasetEstimate, spec: DatasetJobSpec, *, halo_bytes: int = 0
) -> None:
    """Write the estimated resources for writing a dataset, and how much an earlier command has done."""
    while_it_runs = f"{'up to ' * bool(halo_bytes)}{bytes_text(costs.disk_bytes)} while it runs"
    lines = [
        ("parts", str(spec.settings.num_parts)),
        ("read", bytes_text(costs.input_bytes)),
        ("disk", f"{while_it_runs}, {bytes_text(costs.dataset_bytes)} after"),
        *([("halo", f"up to {bytes_text(halo_bytes)} of copies")] if halo_bytes else []),
        *memory_lines(costs.work, spec.budget_bytes),
    ]
    facts: Facts = {
        "input_bytes": costs.input_bytes, "disk_bytes": costs.disk_bytes, "dataset_bytes": costs.dataset_bytes,
        "halo_bytes": halo_bytes, "memory_bytes": costs.work.memory_bytes if costs.work else None,
        "budget_bytes": spec.budget_bytes, "workers": spec.num_workers, "parts": spec.settings.num_parts,
    }  # fmt: skip
    show_plan(output, lines, facts)
    output.resumed(verb, costs.num_done)


def show_prepare_plan(output: Output, plan: PreparePlan) -> None:
    """Write the estimated resources of each phase, as far as they are known."""
    work = plan.work
    lines = [("memory", _memory_text(work, f" for all processes, {plural_text(work.num_working, 'worker')}"))]
    lines += [(numbered, _phase_text(phase)) for numbered, phase in zip(plan.numbers, plan.phases, strict=True)]
    facts: Facts = {
        "memory_bytes": work.memory_bytes, "workers": work.num_workers,
        "phases": [
            {
                "phase": phase.name, "is_done": phase.is_done, "input_bytes": phase.input_bytes,
                "disk_bytes": phase.disk_bytes, "most_disk_bytes": phase.most_disk_bytes,
                "budget_bytes": phase.budget_bytes, "tasks": phase.num_tasks,
            }
            for phase in plan.phases
        ],
    }  # fmt: skip
    show_plan(output, lines, facts)


def _phase_text(phase: PhasePlan) -> str:
    if phase.is_done:
        return f"{phase.name}: already done"
    said = []
    if phase.input_bytes is not None:
        said.append(f"{bytes_text(phase.input_bytes)} to read")
    if phase.disk_bytes:
        said.append(f"about {bytes_text(phase.disk_bytes)} of disk while it runs")
    if phase.most_disk_bytes is not None:
        said.append(f"up to {bytes_text(phase.most_disk_bytes)} of disk for copies")
    if phase.budget_bytes is not None:
        what = "edges" if phase.name == "assign" else "the work of each process"
        said.append(f"{bytes_text(phase.budget_bytes)} of memory for {what}")
    if phase.num_tasks is not None:
        said.append(f"about {plural_text(phase.num_tasks, 'task')}" if phase.num_tasks > 1 else "1 task")
    return f"{phase.name}: {', '.join(said) or 'not known yet'}"


def show_cut(output: Output, manifest: Manifest, settings: PartitionSettings) -> None:
    """Write how nodes were assigned, which share of edges is cut, and how balanced the parts are."""
    report, num_parts = manifest.report, manifest.book.num_parts
    costs = {stage.name: Cost(stage.seconds, stage.peak_bytes) for stage in report.stages}
    is_balanced = settings.method in ("kaminpar", "metis") and num_parts > 1
    text = plural_text(num_parts, "part") + (f", balanced by {settings.balance}" if is_balanced else "")
    output.stage("assign", settings.method, text, {"method": settings.method, "parts": num_parts}, costs["assign"])
    show_measured(output, manifest, costs["measure"])


def show_measured(output: Output, manifest: Manifest, cost: Cost | None = None) -> None:
    """Write which share of edges is cut, and how balanced the parts are."""
    report = manifest.report
    cut = report.cut
    text = f"{percent_text(cut.fraction)} of {plural_text(cut.num_edges, 'edge')} cut"
    facts: Facts = {"cut": cut.fraction, "cut_edges": cut.num_cut, "edges": cut.num_edges, "balance": report.balance}
    output.stage("measure", "cut", text, facts, cost)
    if manifest.book.num_parts > 1:
        loads = ", ".join(f"{name} {value:.2f}x" for name, value in report.balance.items())
        output.text(f"{'':<7} {'balance':<8} largest part over mean: {loads}")


def show_written(output: Output, root: AnyPath, manifest: Manifest) -> None:
    """Write the size of a dataset and the path of its manifest."""
    from hopstream.dataset.manifest import FORMAT

    report = manifest.report
    # The peak may have grown after this stage, for example while a halo was made.
    cost = next(Cost(s.seconds, max(s.peak_bytes, peak_bytes())) for s in report.stages if s.name == "write")
    num_parts, num_bytes, num_files = manifest.book.num_parts, sum(report.bytes), len(manifest.files)
    text = f"{bytes_text(num_bytes)} in {plural_text(num_files, 'file')}"
    facts: Facts = {"parts": num_parts, "bytes": num_bytes, "files": num_files}
    output.stage("write", plural_text(num_parts, "part"), text, facts, cost)
    path = str(root / "manifest.json")
    facts = {"manifest": path, "format": FORMAT, "dataset_id": manifest.dataset_id}
    output.stage("done", path, f" format {FORMAT}", facts)


def manifest_to_change(root: Path) -> Manifest:
    """Read the manifest of a dataset, which a killed process may have moved aside."""
    from hopstream.dataset.dataset_folder import dataset_to_change
    from hopstream.dataset.manifest import read_manifest

    with dataset_to_change(root):
        return read_manifest(root)


def show_changed(output: Output, clock: Clock, verb: str, root: Path, before: Manifest, after: Manifest) -> None:
    """Write the numbers of nodes and edges before and after a change of a dataset."""
    old, new = (
        {
            "nodes": sum(map(manifest.book.num_ids, manifest.schema.nodes)),
            "edges": sum(map(manifest.book.num_edges, manifest.schema.edges)),
        }
        for manifest in (before, after)
    )
    texts = [f"{plural_text(of['nodes'], 'node')}, {plural_text(of['edges'], 'edge')}" for of in (old, new)]
    facts: Facts = {**new, "nodes_before": old["nodes"], "edges_before": old["edges"]}
    output.stage(verb, str(root), f"{texts[1]}; before: {texts[0]}", facts, clock.cost())
    told: Facts = {
        "manifest": str(root / "manifest.json"), "dataset_id": after.dataset_id, "graph_id": after.graph_id,
    }  # fmt: skip
    output.stage("done", str(root / "manifest.json"), "", told)
