"""What will it take to prepare a graph, phase by phase, as far as it is known before?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hopstream.engine.settings import WorkSettings, bytes_text, size_text
from hopstream.errors import SettingsError
from hopstream.ingest.chunked import ChunkedGraph
from hopstream.partition.dispatch import plan as dispatching
from hopstream.partition.halo.costs import HaloCosts
from hopstream.partition.halo.settings import HaloSettings
from hopstream.partition.libraries import BIG_ENDS
from hopstream.partition.settings import PartitionSettings
from hopstream.partition.write import schema_with_links

LEAST_EDGE_BYTES = 64 << 20
"""What edges get at least while nodes are assigned; more of them go through files."""
NODE_BYTES = 64
"""What assignment takes per node, by any method."""
EDGE_BYTES = {"kaminpar": 30, "metis": 200}
COMPRESSED_EDGE_BYTES = 12
"""What the libraries take per edge, which is not for us to bound; KaMinPar's for graphs that it holds compressed."""
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

    work: WorkSettings
    phases: tuple[PhasePlan, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The number of each phase among all: ``1/3``."""
        return tuple(f"{number}/{len(self.phases)}" for number in range(1, len(self.phases) + 1))


def plan_phases(
    graph: ChunkedGraph, settings: PartitionSettings, work: WorkSettings, halo: HaloSettings | None, *, has_owners: bool
) -> tuple[PhasePlan, ...]:
    """What it takes to assign the nodes of a chunked graph, to dispatch it, and to make halos where there are any.

    Raises:
        SettingsError: The memory is too small for one of them.
    """
    if halo is not None:
        dispatching.check_halo_memory(graph, settings, work, halo)
    num_edges = sum(edges.num_edges for edges in graph.edges.values())
    looks_at_edges = settings.num_parts > 1 and (settings.method not in ("random", "hash") or settings.balance_edges)
    left = memory_for_edges(graph, settings, work)
    is_sorted = looks_at_edges and settings.method not in ("random", "hash") and GROUPED_BYTES * num_edges > left
    assign = PhasePlan(
        name="assign", is_done=has_owners, input_bytes=END_BYTES * num_edges * looks_at_edges,
        disk_bytes=SORTED_BYTES * num_edges * is_sorted, budget_bytes=left, num_tasks=1,
    )  # fmt: skip
    budget = dispatching.budget_of(
        work, dispatching.mapped_bytes(graph, settings), reads_ragged=dispatching.reads_ragged(graph)
    )
    costs = dispatching.estimate(graph, schema_with_links(graph.schema, settings), settings, halo)
    dispatch = PhasePlan(
        name="dispatch", input_bytes=costs.input_bytes, disk_bytes=replace(costs, halo=HaloCosts()).disk_bytes,
        budget_bytes=budget,
        num_tasks=_num_tasks(graph, settings, work, budget),
    )  # fmt: skip
    if halo is None:
        return assign, dispatch
    return assign, dispatch, PhasePlan(name="halo", most_disk_bytes=costs.halo.copied_bytes + costs.halo.table_bytes)


def _num_tasks(graph: ChunkedGraph, settings: PartitionSettings, work: WorkSettings, budget_bytes: int) -> int:
    """About how many tasks dispatching has; where files and parts end, there may be some more."""
    plan = dispatching.Plan(
        source=str(Path(graph.root)), metadata_filename=graph.metadata_filename, owners="", settings=settings,
        budget_bytes=budget_bytes, num_workers=max(1, work.worker_count),
    )  # fmt: skip
    count = 2 * len(graph.nodes)
    for nodes in graph.nodes.values():
        count += sum(
            -(-nodes.num_nodes // plan.column_rows(nodes.num_nodes, c.row_bytes)) for c in nodes.features.values()
        )
    for edges in graph.edges.values():
        count += -(-edges.num_edges // plan.piece_edges(edges))
        count += -(-edges.num_edges // plan.run_edges(edges)) * len(settings.directions)
    return count


def memory_for_edges(graph: ChunkedGraph, settings: PartitionSettings, work: WorkSettings) -> int:
    """Bytes that edges may take while nodes are assigned, beside what nodes and the method's library take.

    Raises:
        SettingsError: The memory is too small for the method.
    """
    num_nodes = sum(nodes.num_nodes for nodes in graph.nodes.values())
    num_edges = sum(edges.num_edges for edges in graph.edges.values())
    is_compressed = settings.method == "kaminpar" and 2 * num_edges > BIG_ENDS
    per_edge = COMPRESSED_EDGE_BYTES if is_compressed else EDGE_BYTES.get(settings.method, 0)
    taken = 2 * dispatching.REST_BYTES + num_nodes * NODE_BYTES + num_edges * per_edge
    left = work.memory_bytes - taken
    if left < LEAST_EDGE_BYTES:
        need = taken + LEAST_EDGE_BYTES
        remedy = "give more memory" if settings.method not in EDGE_BYTES else "give more memory, or use ldg or fennel"
        raise SettingsError(
            f"memory is {size_text(work.memory)}; method {settings.method!r} needs about {bytes_text(need)} for "
            f"{num_nodes} nodes and {num_edges} edges: {remedy}"
        )
    return left
