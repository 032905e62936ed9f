"""Estimates what each phase of preparing a graph takes, as far as it is known before the start."""

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
"""Bytes per edge: memory to group edges, disk to sort them, and the two keys that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """Estimate of a phase; None for values that only the phases before it determine.

    Attributes:
        name: ``chunk``, ``assign``, ``dispatch`` or ``halo``.
        is_done: An earlier, killed call finished the phase.
        input_bytes: Bytes to read.
        disk_bytes: Peak of the bytes on disk during the phase.
        most_disk_bytes: Upper bound of the bytes of copies; the real number is known when they are made.
        budget_bytes: Memory of each process for its work.
        num_tasks: Approximate number of tasks.
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
    """Phases to do, and their estimates.

    Attributes:
        work: Memory and number of all processes.
        phases: The phases in order.
    """

    work: Allotment
    phases: tuple[PhasePlan, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Number of each phase among all: ``1/3``."""
        return tuple(f"{number}/{len(self.phases)}" for number in range(1, len(self.phases) + 1))


def assign_step_needs(num_nodes: int, num_edges: int, settings: PartitionSettings) -> Needs:
    """Return the needs of assigning a number of nodes in a separate process."""
    assign = assign_needs(num_nodes, num_edges, settings)
    # ``assign_folder`` checks the remaining memory of that process again.
    return Needs.of_one(REST_BYTES + rounded_up(assign.alone_bytes), assign.what, assign.remedy)


def least_table_needs(settings: PartitionSettings) -> tuple[Needs, ...]:
    """Return the least needs of chunking tables and assigning their nodes, before nodes are counted."""
    assign = replace(assign_step_needs(0, 0, settings), what=f"method {settings.method!r} needs")
    remedy = "; this is the least, and the nodes and edges of the tables add to it"
    return tuple(replace(step, remedy=step.remedy + remedy) for step in (*NEEDS, assign))


def prepare_needs(graph: ChunkedGraph, settings: PartitionSettings, halo: HaloSettings | None) -> tuple[Needs, ...]:
    """Return the needs of assigning the nodes of a chunked graph, of dispatching it, and of making halos."""
    return assign_step_needs(*_sizes(graph), settings), *dispatching.dispatch_needs(graph, settings, halo)


def allot_phases(
    graph: ChunkedGraph, settings: PartitionSettings, work: WorkSettings, halo: HaloSettings | None,
    machine: Machine | None = None, before: Choice | None = None,
) -> Allotment:  # fmt: skip
    """Allot memory and workers to the phases.

    Raises:
        NoRoomError: The memory is too small for a phase.
    """
    return allot(work.memory, work, prepare_needs(graph, settings, halo), machine, before)


def plan_phases(
    graph: ChunkedGraph, settings: PartitionSettings, work: Allotment, halo: HaloSettings | None, *, has_owners: bool
) -> tuple[PhasePlan, ...]:
    """Estimate each phase, within the allotment for all of them."""
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
    """Return the approximate number of dispatch tasks; ends of files and parts may add some."""
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
    """Return the memory of the process that assigns nodes, without its parent process."""
    return work.memory_bytes - REST_BYTES


def _sizes(graph: ChunkedGraph) -> tuple[int, int]:
    """Return the numbers of nodes and of edges of all types."""
    return sum(n.num_nodes for n in graph.nodes.values()), sum(e.num_edges for e in graph.edges.values())
