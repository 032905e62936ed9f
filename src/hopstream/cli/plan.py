"""Writes what the work of a verb will take, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hopstream.cli.progress import STAGE_WIDTH, SUBJECT_WIDTH, Facts, Output
from hopstream.cli.units import bytes_text, plural_text

if TYPE_CHECKING:
    from hopstream.engine.allotment import Allotment
    from hopstream.preparation.dataset_job import DatasetEstimate
    from hopstream.preparation.dataset_job_folder import DatasetJobSpec
    from hopstream.preparation.plan import PhasePlan, PreparePlan

PlanLine = tuple[str, str]
"""A word, and what is planned of it."""


def show_plan(output: Output, lines: Sequence[PlanLine], facts: Facts) -> None:
    """Write a plan: a line for each word, aligned, under one ``plan``; as JSON, one object."""
    (word, value), *rest = lines
    output.stage("plan", word, value, facts)
    for word, value in rest:
        output.text(f"{'':<{STAGE_WIDTH}} {word:<{SUBJECT_WIDTH}} {value}")


def memory_lines(work: Allotment | None, budget_bytes: int) -> list[PlanLine]:
    """What all processes may take, and what each may take for its work; nothing where that is not known."""
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
    """Write what it will take to write a dataset, and how much of it an earlier command has done."""
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
    """Write what each phase will take, as far as it is known."""
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
        return f"{phase.name}: was done before"
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
