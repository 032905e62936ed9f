"""Writes a chunked graph as a dataset in bounded memory, and goes on where it was ended.

The work is cut into tasks, which an engine runs; see the modules of the stages, and ``partition.staged`` for where it
happens.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np

from hopstream.arrays import IntArray, offsets_of, write_array, write_text
from hopstream.assign.owners import find_num_parts, owners_path
from hopstream.dataset.balance import EdgeCut
from hopstream.dataset.book import PartitionBook
from hopstream.dataset.edge_weights import MAX_SUM, check_weight_schema, check_weight_total
from hopstream.dataset.leftovers import remove_halos
from hopstream.dataset.lock import place_to_write
from hopstream.dataset.manifest import Manifest, graph_id_of
from hopstream.dataset.paths import edge_folder, expected_edges, expected_links, expected_nodes
from hopstream.dataset.regions import join_checksums, make_file
from hopstream.dataset.replace import check_target, errors_named
from hopstream.dataset.settings import PartitionSettings, Progress
from hopstream.dataset.times import check_time_schema
from hopstream.engine import Task, kind_of
from hopstream.engine.allotment import Allotment, Choice, allot
from hopstream.engine.job import Job, digest_of
from hopstream.engine.resumed import choice_before
from hopstream.engine.settings import no_progress
from hopstream.graph.checksums import ColumnSums, GraphChecksums
from hopstream.ingest.chunked import ChunkedGraph, ragged_features
from hopstream.ingest.source_paths import check_apart
from hopstream.preparation.dispatch import workplace as workplaces
from hopstream.preparation.dispatch.columns import ColumnStages, column_sums, row_bytes
from hopstream.preparation.dispatch.finish import finish_run
from hopstream.preparation.dispatch.nodes import count_nodes, number_nodes
from hopstream.preparation.dispatch.plan import (
    Estimate,
    Plan,
    budget_of,
    dispatch_needs,
    estimate,
    mapped_bytes,
    memory_for_halos,
    reads_ragged,
)
from hopstream.preparation.dispatch.settings import DispatchOptions, DispatchSettings
from hopstream.preparation.dispatch.spill import open_spill, spill_piece
from hopstream.preparation.dispatch.workplace import Workplace
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.job_folder import PLAN
from hopstream.preparation.staged import PlannedContents, Stages, Staging, check_disk, write_staged
from hopstream.preparation.write import Written, manifest_of, schema_with_links, with_halo
from hopstream.schema import Direction, EdgeType, GraphSchema, type_label

FORMAT = 1
"""Of the hidden folder; a folder of another one is not gone on with."""


def dispatch(  # noqa: PLR0913  three folders, and what write_parts takes
    in_dir: str | Path, partitions_dir: str | Path, out_dir: str | Path, *, metadata_filename: str = "metadata.json",
    settings: DispatchSettings | None = None, halo: HaloSettings | None = None, overwrite: bool = False,
    progress: Progress | None = None, on_estimate: Callable[[Estimate, Plan], None] | None = None,
    **options: Unpack[DispatchOptions],
) -> Manifest:  # fmt: skip
    """Write a chunked graph as a dataset, given the part of each node, in bounded memory.

    The dataset is, byte for byte, what ``write_parts`` writes of the same graph, owners and settings. If the process is
    ended, the same call goes on where it was.

    Args:
        in_dir: Folder of the chunked graph.
        partitions_dir: Folder with ``<node type>.npy`` or ``<node type>.txt``, the part of each node.
        out_dir: The folder to write; made if it is not there.
        metadata_filename: The graph's metadata, in ``in_dir``.
        settings: How to write it; the defaults if it is not given.
        halo: What parts keep copies of, as ``add_halo`` does it, in this process; nothing if it is not given.
        overwrite: Replace a dataset that is in ``out_dir``, when the new one is complete.
        progress: Called as ``progress("dispatch", done, total)`` in bytes of work.
        on_estimate: Called once with what the work will take, before it starts.
        **options: Fields of ``DispatchSettings``; they go before ``settings``.

    Returns:
        The manifest that was written.

    Raises:
        SettingsError: A setting is outside its range, the memory is too small, the disk has no room, or ``out_dir``
            holds what is not to be replaced, or lies in what is read, or the other way round.
        FormatError: A file of the graph, or of owners, is missing or cannot be read.
        SchemaError: Files contradict each other, or hold no times or weights where they should.
        IdRangeError: An edge names a node that is not there, or a node a part that is not there.
        UnknownNameError: A setting names what is not there.
        StateError: Another process writes to the same place.
        OSError: The system failed, for example because the disk is full; what was done is kept for the next call.
    """
    settings = replace(settings or DispatchSettings(), **options)
    source, owners, out = Path(in_dir), Path(partitions_dir), Path(out_dir)
    check_apart(out, {"the chunked graph": in_dir, "the folder of owners": partitions_dir}, "out_dir")
    plan = partial(plan_dispatch, source, owners, metadata_filename, settings, halo)
    planned = plan(before=choice_before(out, lambda choice: plan(before=choice).digest))
    call = digest_of([planned.digest, None if halo is None else asdict(halo)])
    with errors_named(out), place_to_write(out) as work:
        staging = Staging(out=out, work=work, overwrite=overwrite, call=call)
        return staging.placed() or dispatch_staged(planned, staging, halo, progress, on_estimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What is to be done, and a digest of all that decides over it."""

    plan: Plan
    graph: ChunkedGraph
    work: Allotment
    digest: str


def plan_dispatch(  # noqa: PLR0913  two folders, and what is decided elsewhere
    source: Path, owners: Path, metadata_filename: str, settings: DispatchSettings, halo: HaloSettings | None,
    *, before: Choice | None = None, assigned: PartitionSettings | None = None,
) -> Planned:  # fmt: skip
    """What is to be done; ``assigned`` says how the owners came to be, for the manifest."""
    workplaces.forget()
    draft = Plan(
        source=str(source.absolute()), metadata_filename=metadata_filename, owners=str(owners.absolute()),
        settings=assigned or settings.partition_settings(settings.num_parts or 1), budget_bytes=0, num_workers=1,
    )  # fmt: skip
    graph = workplaces.open_source(draft)
    num_parts = find_num_parts(owners, {t: n.num_nodes for t, n in graph.nodes.items()}, settings.num_parts)
    cut = replace(draft.settings, num_parts=num_parts)
    work = allot(settings.memory, settings, dispatch_needs(graph, cut, halo), before=before)
    budget = budget_of(work, mapped_bytes(graph, cut), reads_ragged=reads_ragged(graph))
    plan = replace(draft, settings=cut, budget_bytes=budget, num_workers=work.num_working)
    return Planned(plan=plan, graph=graph, work=work, digest=_digest(plan, graph))


def dispatch_staged(
    planned: Planned, staging: Staging, halo: HaloSettings | None, progress: Progress | None,
    on_estimate: Callable[[Estimate, Plan], None] | None,
) -> Manifest:  # fmt: skip
    """Do it, in a place that is held."""
    started = time.perf_counter()
    plan, graph, work, digest = planned.plan, planned.graph, planned.work, planned.digest
    schema = _checked_schema(graph, plan.settings)
    if halo is not None:
        halo.choose(schema)
    check_target(staging.out, overwrite=staging.overwrite)
    costs = replace(estimate(graph, schema, plan.settings, halo), num_done=staging.num_done(digest), work=work)
    check_disk(staging, costs.least_disk_bytes, costs.dataset_bytes)
    if on_estimate is not None:
        on_estimate(costs, plan)
    workplace = Workplace(staging.root(digest))
    stages = Stages(
        name="dispatch", dataset=workplace.dataset, total_work=_total_work(graph, plan), started=started,
        progress=progress or no_progress,
    )  # fmt: skip

    def write(job: Job) -> Manifest:
        stages.job = job
        manifest = _Run(workplace, graph, schema, plan, stages).run()
        if halo is None:
            remove_halos(workplace.dataset, manifest, None)  # of a run with one that was ended
            return manifest
        return with_halo(workplace.dataset, halo, progress, memory_for_halos(work))

    return write_staged(staging, digest, write, work, stages.tell)


def _checked_schema(graph: ChunkedGraph, settings: PartitionSettings) -> GraphSchema:
    """The dataset's schema, after what can be checked without reading."""
    schema = schema_with_links(graph.schema, settings)
    if settings.time_attr is not None:
        check_time_schema(schema, settings.time_attr)
    if settings.weight_attr is not None:
        check_weight_schema(schema, settings.weight_attr)
    return schema


def _digest(plan: Plan, graph: ChunkedGraph) -> str:
    """What decides over the work: the plan, and the state of every file of the input."""
    owners = Path(plan.owners)
    paths = [owners_path(owners, node_type) for node_type in graph.nodes]
    states = [(str(p), s.st_size, s.st_mtime_ns) for p in paths if p.exists() for s in (p.stat(),)]
    return digest_of([FORMAT, plan.to_json(), states, input_states(Path(plan.source) / plan.metadata_filename)])


def input_states(metadata: Path) -> list[tuple[str, int, int]]:
    """What tells that a file of a chunked graph is another one than before."""
    if not metadata.is_file():
        return []
    paths = [metadata, *(metadata.parent / name for name in _data_paths(json.loads(metadata.read_bytes())))]
    return [(str(p), s.st_size, s.st_mtime_ns) for p in paths if p.exists() for s in (p.stat(),)]


def _data_paths(value: object) -> Iterator[str]:
    """Every string in a list that is called ``data``, in whatever depth."""
    if isinstance(value, dict):
        for name, entry in value.items():
            if name == "data" and isinstance(entry, list):
                yield from (item for item in entry if isinstance(item, str))
            else:
                yield from _data_paths(entry)


@dataclass(slots=True)
class _Run:
    """One run of a job: the stages one after the other, and what came of them.

    ``lengths`` are those of files that only their own contents tell.
    """

    workplace: Workplace
    graph: ChunkedGraph
    schema: GraphSchema
    plan: Plan
    stages: Stages
    checksums: dict[str, list[ColumnSums]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: dict[tuple[str | EdgeType, str], tuple[int, ...]] = field(default_factory=dict)
    cuts: dict[EdgeType, EdgeCut] = field(default_factory=dict)
    between: IntArray | None = None
    edge_offsets: dict[tuple[EdgeType, Direction], IntArray] = field(default_factory=dict)
    node_offsets: dict[str, IntArray] = field(default_factory=dict)

    def run(self) -> Manifest:
        """Write everything, the manifest last."""
        self.workplace.dataset.mkdir(parents=True, exist_ok=True)
        write_text(self.workplace.scratch / PLAN, json.dumps(self.plan.to_json()))
        self.stages.tell("count", 0, 0)
        self._count_nodes()
        self._number_nodes()
        self.checksums |= self._columns().write_nodes()
        for edge_type in self.graph.edges:
            num_pieces, total = self._spill(edge_type)
            for direction in self.plan.settings.directions:
                self._finish(edge_type, direction, num_pieces, total > MAX_SUM)
            shutil.rmtree(self.workplace.spill_folder(edge_type), ignore_errors=True)
        manifest = self._manifest()
        manifest.write(self.workplace.dataset)
        self.stages.end()
        return manifest

    def _args(self, **args: Any) -> dict[str, Any]:
        return {"folder": str(self.workplace.root), **args}

    def _columns(self) -> ColumnStages:
        return ColumnStages(
            workplace=self.workplace, graph=self.graph, plan=self.plan, stages=self.stages, lengths=self.lengths
        )

    def _count_nodes(self) -> None:
        tasks = [
            Task(f"count-{i}", kind_of(count_nodes), self._args(type=t), nodes.num_nodes * NODE_WORK // 4)
            for i, (t, nodes) in enumerate(self.graph.nodes.items())
        ]
        results = self.stages.run("count", tasks)
        for node_type, result in zip(self.graph.nodes, results.values(), strict=True):
            self.node_offsets[node_type] = offsets_of(np.array(result["counts"], np.int64))
            self.splits[node_type] = result["splits"]
        self.workplace.write_ranges(self.node_offsets)

    def _contents(self) -> PlannedContents:
        settings = self.plan.settings
        book = PartitionBook(
            num_parts=settings.num_parts, node_offsets=self.node_offsets, edge_offsets=self.edge_offsets
        )
        return PlannedContents.of(self.schema, settings, book)

    def _split_counts(self) -> dict[str, int]:
        """Path of a split's file to the number of its keys."""
        return {
            str(workplaces.split_file(part, node_type, name)): count
            for node_type, splits in self.splits.items()
            for name, split in splits.items()
            for part, count in enumerate(split["counts"])
        }

    def _number_nodes(self) -> None:
        contents = self._contents()
        self.lengths |= self._split_counts()
        for part in range(self.plan.settings.num_parts):
            files = expected_nodes(self.schema, contents.book, part)
            known = ((name, f) for name, f in files if None not in f.shape or name in self.lengths)
            self.stages.make_files(known, self.lengths)
        for node_type, nodes in self.graph.nodes.items():
            for what, dtype in workplaces.tables_of(self.schema, node_type, nodes.num_nodes, self.plan.settings):
                make_file(self.workplace.table_path(what, node_type), dtype, (nodes.num_nodes,))
        tasks = [
            Task(f"number-{i}", kind_of(number_nodes), self._args(type=t), nodes.num_nodes * (NODE_WORK * 3 // 4))
            for i, (t, nodes) in enumerate(self.graph.nodes.items())
        ]
        results = self.stages.run("number", tasks)
        self.stages.keep(results.values())
        for node_type, result in zip(self.graph.nodes, results.values(), strict=True):
            for split, counts in result["seeds"].items():
                self.seeds[node_type, split] = tuple(counts)

    def _spill(self, edge_type: EdgeType) -> tuple[int, float]:
        """Spill an edge type; how many pieces, and what the weights add up to."""
        edges, number = self.graph.edges[edge_type], self.workplace.number_of(edge_type)
        settings = self.plan.settings
        if edge_type in self.schema.edge_splits:
            contents, slices = self._contents(), self.workplace.slice_offsets(edges.num_edges)
            for part, num_links in enumerate(np.diff(slices).tolist()):
                self.stages.make_files(expected_links(contents, part, edge_type, num_links), {})
        pieces = edges.ends.pieces(self.plan.piece_edges(edges))
        measured = self._columns().measure_edges(edge_type, pieces)
        ragged = ragged_features(edges.features)
        elements = {name: offsets_of(np.array([m[name]["elements"] for m in measured], np.int64)) for name in ragged}
        unit = EDGE_WORK + row_bytes(edges.features)
        tasks = [
            Task(
                f"spill-{number}-{i}", kind_of(spill_piece),
                self._args(
                    type=list(edge_type), piece=piece.to_json(), number=i,
                    elements={name: int(firsts[i]) for name, firsts in elements.items()},
                ),
                piece.num_edges * unit,
            )
            for i, piece in enumerate(pieces)
        ]  # fmt: skip
        results = self.stages.run("spill", tasks)
        self.stages.keep(results.values())
        found = list(results.values())
        ends = [ColumnSums((join_checksums(result[end] for result in found),)) for end in ("src", "dst")]
        for result, of_piece in zip(found, measured, strict=True):
            result["ragged"] = {n: [m["values"], result["offsets"][n], m["elements"]] for n, m in of_piece.items()}
        sums = [
            column_sums(column, [r["ragged" if name in ragged else "features"][name] for r in found])
            for name, column in edges.features.items()
        ]
        self.checksums[type_label(edge_type)] = [*ends, *sums]
        num_cut = sum(result["cut"] for result in found)
        self.cuts[edge_type] = EdgeCut(num_edges=edges.num_edges, num_cut=num_cut)
        self._count_between(result["between"] for result in found)
        total = float(sum(result["weights"] for result in found))
        if settings.weight_attr in edges.features:
            check_weight_total(f"{type_label(edge_type)}.{settings.weight_attr}", edges.num_edges, total)
        return len(tasks), total

    def _count_between(self, matrices: Iterable[list[list[int]]]) -> None:
        num_parts = self.plan.settings.num_parts
        if self.between is None:
            self.between = workplaces.empty_matrix(num_parts)
        for matrix in matrices:
            self.between += np.array(matrix, np.int64).reshape(self.between.shape)

    def _finish(self, edge_type: EdgeType, direction: Direction, num_pieces: int, check_sums: bool) -> None:
        """Write the files of an edge type in one direction."""
        edges, number = self.graph.edges[edge_type], self.workplace.number_of(edge_type)
        buckets = self.workplace.buckets(edge_type, direction)
        totals = self._totals(edge_type, direction, num_pieces, len(buckets))
        self.edge_offsets[edge_type, direction] = totals[buckets.part_firsts()]
        for name, column in ragged_features(edges.features).items():
            elements = self._totals(edge_type, direction, num_pieces, len(buckets), name)[buckets.part_firsts()]
            for part, num_elements in enumerate(np.diff(elements).tolist()):
                self._columns().make_values(edge_folder(part, edge_type, direction), name, column, num_elements)
        contents = self._contents()
        for part in range(self.plan.settings.num_parts):
            self.stages.make_files(expected_edges(contents, part, edge_type, direction), self.lengths)
        unit = EDGE_WORK + row_bytes(edges.features)
        tasks = [
            Task(
                f"finish-{number}-{direction}-{first}", kind_of(finish_run),
                self._args(
                    type=list(edge_type), direction=direction, first=first, stop=stop, num_pieces=num_pieces,
                    check_sums=check_sums,
                ),
                int(totals[stop] - totals[first]) * unit,
            )
            for first, stop in _runs(totals, self.plan.run_edges(edges))
        ]  # fmt: skip
        self.stages.keep(self.stages.run("finish", tasks).values())

    def _totals(
        self, edge_type: EdgeType, direction: Direction, num_pieces: int, num_buckets: int, feature: str | None = None
    ) -> IntArray:
        """int64[num_buckets + 1], the running number of edges, or of the elements of a ragged feature of theirs.

        They are kept on disk, for spilled pieces go when done.
        """
        path = self.workplace.totals_path(edge_type, direction, feature)
        if path.exists():
            return cast(IntArray, np.load(path))
        counts = np.zeros(num_buckets, np.int64)
        for number in range(num_pieces):
            spilled = open_spill(self.workplace, edge_type, direction, number)
            counts += np.diff(spilled.starts if feature is None else spilled.ragged[feature].starts)
        totals = offsets_of(counts)
        write_array(path, totals)
        return totals

    def _manifest(self) -> Manifest:
        contents = self._contents()
        files = self.stages.file_records(contents, self.lengths)
        checksums = self._checksums()
        fingerprint = checksums.fingerprint(self.graph.schema)
        between = self.between if self.between is not None else workplaces.empty_matrix(self.plan.settings.num_parts)
        written = Written(
            schema=self.schema, book=contents.book, graph_id=graph_id_of(fingerprint, self.plan.settings.time_attr),
            checksums=checksums, files=files, cuts=self.cuts, edges_between=between, seeds=self.seeds,
            stages=self.stages.costs(),
        )  # fmt: skip
        return manifest_of(written, self.plan.settings)

    def _checksums(self) -> GraphChecksums:
        """What the graph's fingerprint is made of."""
        num_rows = {t: nodes.num_nodes for t, nodes in self.graph.nodes.items()}
        return GraphChecksums(
            num_rows=num_rows | {type_label(t): edges.num_edges for t, edges in self.graph.edges.items()},
            columns={label: tuple(columns) for label, columns in self.checksums.items()},
            splits={
                t: {name: (KEY_BYTES * sum(split["counts"]), split["checksum"]) for name, split in of.items()}
                for t, of in self.splits.items()
                if of
            },
        )


KEY_BYTES = 8
NODE_WORK, EDGE_WORK = 24, 16
"""Bytes of work per node and per edge and stage, beside features; for progress only."""


def _total_work(graph: ChunkedGraph, plan: Plan) -> int:
    """Bytes that tasks read and write, roughly; sizes of tasks add up to it."""
    directions = len(plan.settings.directions)
    nodes = sum(n.num_nodes * (NODE_WORK + row_bytes(n.features)) for n in graph.nodes.values())
    edges = sum(e.num_edges * (1 + directions) * (EDGE_WORK + row_bytes(e.features)) for e in graph.edges.values())
    nodes += sum(n.num_nodes * row_bytes(ragged_features(n.features)) for n in graph.nodes.values())
    edges += sum(e.num_edges * row_bytes(ragged_features(e.features)) for e in graph.edges.values())
    return max(1, nodes + edges)


def _runs(totals: IntArray, run_edges: int) -> Iterator[tuple[int, int]]:
    """Runs of buckets of about so many edges, or of one bucket; all buckets are covered."""
    first, num_buckets = 0, len(totals) - 1
    while first < num_buckets:
        stop = int(np.searchsorted(totals, totals[first] + run_edges, side="right")) - 1
        stop = min(max(stop, first + 1), num_buckets)
        yield first, stop
        first = stop
