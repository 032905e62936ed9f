"""Estimates what each phase of preparing a graph will take, where that is known before it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hopstream.assign.libraries import assign_needs, looks_at_edges, memory_for_edges
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.machine import Machine
from hopstream.engine.settings import Allotment, Choice, Needs, WorkSettings, allot, rounded_up
from hopstream.ingest.chunked import ChunkedGraph
from hopstream.ingest.chunking.plan import NEEDS
from hopstream.preparation.dataset_job_folder import REST_BYTES, budget_of
from hopstream.preparation.dispatch import dispatch_folder as dispatching
from hopstream.preparation.halo.costs import HaloCosts
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.write import schema_with_links

GROUPED_BYTES, SORTED_BYTES, END_BYTES = 24, 24, 16
"""Per edge: of memory where edges are grouped in it, of disk where they are not, and of the two keys that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """What a phase will take; None where only the phases before it will tell.

    Attributes:
        name: ``chunk``, ``assign``, ``dispatch`` or ``halo``.
        is_done: An earlier call that was ended did it.
        input_bytes: What is read.
        disk_bytes: The most that is on the disk at any time while it runs.
        most_disk_bytes: What copies take at most; how much less is known when they are made.
        budget_bytes: What each process may take for its work.
        num_tasks: About how many tasks.
    """

    name: str
    is_done: bool = False
    input_bytes: int | None = None
    disk_bytes: int | None = None
    most_disk_bytes: int | None = None
    budget_bytes: int | None = None
    num_tasks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan:
    """What will be done, and what it will take.

    Attributes:
        work: What all processes may take, and how many there are.
        phases: One after the other.
    """

    work: Allotment
    phases: tuple[PhasePlan, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The number of each phase among all: ``1/3``."""
        return tuple(f"{number}/{len(self.phases)}" for number in range(1, len(self.phases) + 1))


def assign_step_needs(num_nodes: int, num_edges: int, settings: PartitionSettings) -> Needs:
    """What it takes to assign so many nodes in a process of its own."""
    assign = assign_needs(num_nodes, num_edges, settings)
    # What is left for that process is compared with its needs once more.
    return Needs.of_one(REST_BYTES + rounded_up(assign.alone_bytes), assign.what, assign.remedy)


def least_table_needs(settings: PartitionSettings) -> tuple[Needs, ...]:
    """What it takes to chunk tables and to assign their nodes, before their nodes are counted."""
    assign = replace(assign_step_needs(0, 0, settings), what=f"method {settings.method!r} needs")
    remedy = "; this is the least, and the nodes and edges of the tables add to it"
    return tuple(replace(step, remedy=step.remedy + remedy) for step in (*NEEDS, assign))


def prepare_needs(graph: ChunkedGraph, settings: PartitionSettings, halo: HaloSettings | None) -> tuple[Needs, ...]:
    """What it takes to assign the nodes of a chunked graph, to dispatch it, and to make halos where there are any."""
    return assign_step_needs(*_sizes(graph), settings), *dispatching.dispatch_needs(graph, settings, halo)


def allot_phases(
    graph: ChunkedGraph, settings: PartitionSettings, work: WorkSettings, halo: HaloSettings | None,
    machine: Machine | None = None, before: Choice | None = None,
) -> Allotment:  # fmt: skip
    """What memory and workers the phases get.

    Raises:
        NoRoomError: The memory is too small for one of them.
    """
    return allot(work.memory, work, prepare_needs(graph, settings, halo), machine, before)


def plan_phases(
    graph: ChunkedGraph, settings: PartitionSettings, work: Allotment, halo: HaloSettings | None, *, has_owners: bool
) -> tuple[PhasePlan, ...]:
    """What each phase takes, of what was allotted to all of them."""
    _, num_edges = _sizes(graph)
    left = memory_for_edges(*_sizes(graph), settings, assign_memory(work))
    is_sorted = (
        settings.num_parts > 1 and settings.method not in ("random", "hash") and GROUPED_BYTES * num_edges > left
    )
    assign = PhasePlan(
        name="assign", is_done=has_owners, input_bytes=END_BYTES * num_edges * looks_at_edges(settings),
        disk_bytes=SORTED_BYTES * num_edges * is_sorted, budget_bytes=left, num_tasks=1,
    )  # fmt: skip
    budget = budget_of(work, dispatching.mapped_bytes(graph, settings), reads_ragged=dispatching.reads_ragged(graph))
    costs = dispatching.estimate(graph, schema_with_links(graph.schema, settings), settings, halo)
    dispatch = PhasePlan(
        name="dispatch", input_bytes=costs.input_bytes, disk_bytes=replace(costs, halo=HaloCosts()).disk_bytes,
        budget_bytes=budget,
        num_tasks=_num_tasks(graph, settings, work, budget),
    )  # fmt: skip
    if halo is None:
        return assign, dispatch
    return assign, dispatch, PhasePlan(name="halo", most_disk_bytes=costs.halo.copied_bytes + costs.halo.table_bytes)


def _num_tasks(graph: ChunkedGraph, settings: PartitionSettings, work: Allotment, budget_bytes: int) -> int:
    """About how many tasks dispatching has; where files and parts end, there may be some more."""
    spec = dispatching.DispatchSpec(
        source=str(Path(graph.root)), metadata_filename=graph.metadata_filename, owners="", settings=settings,
        budget_bytes=budget_bytes, num_workers=work.num_working,
    )  # fmt: skip
    count = 2 * len(graph.nodes)
    for nodes in graph.nodes.values():
        count += sum(
            -(-nodes.num_nodes // spec.column_rows(nodes.num_nodes, c.row_bytes)) for c in nodes.features.values()
        )
    for edges in graph.edges.values():
        count += -(-edges.num_edges // spec.piece_edges(edges))
        count += -(-edges.num_edges // spec.run_edges(edges)) * len(settings.directions)
    return count


def assign_memory(work: Allotment) -> int:
    """Bytes for the process that assigns nodes, beside the one that began."""
    return work.memory_bytes - REST_BYTES


def _sizes(graph: ChunkedGraph) -> tuple[int, int]:
    """The numbers of nodes and of edges of all types."""
    return sum(n.num_nodes for n in graph.nodes.values()), sum(e.num_edges for e in graph.edges.values())
