"""Writes a chunked graph as a dataset in bounded memory, in resumable tasks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np

from hopstream.arrays import IntArray, offsets_of, write_array
from hopstream.assign.owners import find_num_parts, owners_path
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.dataset_folder import place_to_write, remove_halos
from hopstream.dataset.manifest import Manifest, graph_id_of
from hopstream.dataset.paths import edge_folder, expected_edges, expected_links
from hopstream.dataset.settings import PartitionSettings, Progress
from hopstream.dataset.stored_columns import MAX_SUM, check_weight_total
from hopstream.engine import Task, kind_of, task
from hopstream.engine.atomic_folder import choice_before, errors_named
from hopstream.engine.job import digest_of, file_states
from hopstream.engine.settings import Choice, allot
from hopstream.graph.graph import ColumnSums, GraphChecksums, join_sums
from hopstream.ingest.chunked import ChunkedGraph, ragged_features
from hopstream.ingest.source_paths import check_apart
from hopstream.preparation.dataset_job import NODE_WORK, DatasetEstimate, DatasetJob, DatasetTarget, OnEstimate
from hopstream.preparation.dataset_job_folder import budget_of, count_of_type, number_type
from hopstream.preparation.dispatch import dispatch_folder
from hopstream.preparation.dispatch.columns import ColumnStages, column_sums, row_bytes
from hopstream.preparation.dispatch.dispatch_folder import (
    DispatchFolder,
    DispatchSpec,
    dispatch_needs,
    estimate,
    mapped_bytes,
    memory_for_halos,
    reads_ragged,
)
from hopstream.preparation.dispatch.settings import DispatchOptions, DispatchSettings
from hopstream.preparation.dispatch.spill import finish_run, open_spill, spill_piece
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.write import checked_schema, with_halo
from hopstream.schema import Direction, EdgeType, GraphSchema, type_label

FORMAT = 3
"""Format of the hidden folder; a folder of another format is not resumed."""
KEY_BYTES = 8
EDGE_WORK = 16
"""Bytes of work per edge and stage, without features; only for progress."""


def dispatch(  # noqa: PLR0913  three folders, and what write_parts takes
    in_dir: str | Path, partitions_dir: str | Path, out_dir: str | Path, *, metadata_filename: str = "metadata.json",
    settings: DispatchSettings | None = None, halo: HaloSettings | None = None, overwrite: bool = False,
    progress: Progress | None = None, on_estimate: OnEstimate | None = None,
    **options: Unpack[DispatchOptions],
) -> Manifest:  # fmt: skip
    """Write a chunked graph as a dataset, given the part of each node, in bounded memory.

    The dataset is byte for byte the one that ``write_parts`` writes of the same graph, owners and settings. After a
    kill the same call resumes.

    Args:
        in_dir: Folder of the chunked graph.
        partitions_dir: Folder with ``<node type>.npy`` or ``<node type>.txt``, the part of each node.
        out_dir: The folder to write, created if it is missing.
        metadata_filename: Name of the graph's metadata file in ``in_dir``.
        settings: Settings of the dataset and of the work; None for the defaults.
        halo: Copies that parts keep, made as by ``add_halo`` in this process; None for no halo.
        overwrite: Replace a dataset in ``out_dir`` when the new one is complete.
        progress: Called as ``progress("dispatch", done, total)`` in bytes of work.
        on_estimate: Called once with the estimate, before the work starts.
        **options: Fields of ``DispatchSettings``; they override ``settings``.

    Returns:
        The new manifest.

    Raises:
        SettingsError: A setting is out of range, the memory is too small, or the disk has no room. Or ``out_dir`` holds
            what must not be replaced, or one of ``out_dir`` and the inputs lies in the other.
        FormatError: A file of the graph, or of owners, is missing or cannot be read.
        SchemaError: Files contradict each other, or hold invalid times or weights.
        IdRangeError: An edge names a node, or a node a part, that does not exist.
        UnknownNameError: A setting names something that does not exist.
        StateError: Another process writes to the same place.
        OSError: A system call failed, for example because the disk is full; finished tasks are kept for the next call.
    """
    settings = replace(settings or DispatchSettings(), **options)
    source, owners, out = Path(in_dir), Path(partitions_dir), Path(out_dir)
    check_apart(out, {"the chunked graph": in_dir, "the folder of owners": partitions_dir}, "out_dir")
    job_with = partial(dispatch_job, source, owners, metadata_filename, settings, halo)
    job = job_with(before=choice_before(out, lambda choice: job_with(before=choice).digest))
    call = digest_of([job.digest, None if halo is None else asdict(halo)])
    with errors_named(out), place_to_write(out) as work:
        target = DatasetTarget(out=out, work=work, overwrite=overwrite, call=call)
        return target.finished() or job.write(target, progress, on_estimate)


def dispatch_job(  # noqa: PLR0913  two folders, and what is decided elsewhere
    source: Path, owners: Path, metadata_filename: str, settings: DispatchSettings, halo: HaloSettings | None,
    *, before: Choice | None = None, assigned: PartitionSettings | None = None,
) -> DispatchJob:  # fmt: skip
    """Make the job that dispatches a chunked graph; ``assigned`` tells the manifest how owners were made."""
    draft = DispatchSpec(
        source=str(source.absolute()), metadata_filename=metadata_filename, owners=str(owners.absolute()),
        settings=assigned or settings.partition_settings(settings.num_parts or 1), budget_bytes=0, num_workers=1,
    )  # fmt: skip
    graph = dispatch_folder.open_source(draft)
    num_parts = find_num_parts(owners, {t: n.num_nodes for t, n in graph.nodes.items()}, settings.num_parts)
    cut = replace(draft.settings, num_parts=num_parts)
    work = allot(settings.memory, settings, dispatch_needs(graph, cut, halo), before=before)
    budget = budget_of(work, mapped_bytes(graph, cut), reads_ragged=reads_ragged(graph))
    spec = replace(draft, settings=cut, budget_bytes=budget, num_workers=work.num_working)
    return DispatchJob(spec=spec, graph=graph, allotted=work, halo=halo, digest=_digest(spec, graph))


def _digest(spec: DispatchSpec, graph: ChunkedGraph) -> str:
    """Return the digest of the work: the spec, and the state of every file of the input."""
    owners = file_states(owners_path(Path(spec.owners), node_type) for node_type in graph.nodes)
    return digest_of([FORMAT, spec.to_json(), owners, input_states(Path(spec.source) / spec.metadata_filename)])


def input_states(metadata: Path) -> list[tuple[str, int, int]]:
    """Return the states of a chunked graph's files, which show whether a file has changed."""
    if not metadata.is_file():
        return []
    return file_states([metadata, *(metadata.parent / n for n in _data_paths(json.loads(metadata.read_bytes())))])


def _data_paths(value: object) -> Iterator[str]:
    """Yield every string in a list named ``data``, at any depth."""
    if isinstance(value, dict):
        for name, entry in value.items():
            if name == "data" and isinstance(entry, list):
                yield from (item for item in entry if isinstance(item, str))
            else:
                yield from _data_paths(entry)


@task
def count_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Count the nodes of each part."""
    return count_of_type(DispatchFolder.of(args), str(args["type"]))


@task
def number_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Number the nodes."""
    return number_type(DispatchFolder.of(args), str(args["type"]))


@dataclass(slots=True, kw_only=True)
class DispatchJob(DatasetJob):
    """Job that writes a chunked graph as a dataset: features first, then edges, type by type.

    Attributes:
        spec: Everything that determines what the tasks do.
        graph: The source.
        halo: Copies that parts keep.
        folder: The job's folder.
        checksums: Type label to the checksums of the type's columns.
    """

    name = "dispatch"
    node_tasks = (count_nodes, number_nodes)
    spec: DispatchSpec
    graph: ChunkedGraph
    halo: HaloSettings | None
    schema: GraphSchema = field(init=False)
    folder: DispatchFolder = field(init=False)
    checksums: dict[str, list[ColumnSums]] = field(default_factory=dict)

    @property
    def transforms(self) -> Mapping[str, Any]:
        """The fitted transforms of the source."""
        return self.graph.transforms

    def check(self) -> None:
        """Refuse settings that are wrong whatever the input holds."""
        self.schema = checked_schema(self.graph.schema, self.spec.settings, self.halo)

    def open_folder(self, root: Path) -> None:
        """Open the job's folder."""
        self.folder = DispatchFolder(root)

    def estimate(self) -> DatasetEstimate:
        """Estimate the costs of the job."""
        return estimate(self.graph, self.schema, self.spec.settings, self.halo)

    def total_work(self) -> int:
        """Return the approximate bytes that tasks read and write, the sum of the sizes of the tasks."""
        times = 1 + len(self.spec.settings.directions)
        total = 0
        for nodes in self.graph.nodes.values():
            measured = row_bytes(ragged_features(nodes.features))
            total += nodes.num_nodes * (NODE_WORK + row_bytes(nodes.features) + measured)
        for edges in self.graph.edges.values():
            total += edges.num_edges * times * (EDGE_WORK + row_bytes(edges.features))
            total += edges.num_edges * row_bytes(ragged_features(edges.features))
        return total

    def begin(self) -> None:
        """Report the start of the work."""
        self.tell("count", 0, 0)

    def write_columns(self) -> None:
        """Write the features of nodes."""
        self.checksums |= self._columns().write_nodes()

    def _columns(self) -> ColumnStages:
        return ColumnStages(folder=self.folder, graph=self.graph, spec=self.spec, job=self)

    def write_edges(self, edge_type: EdgeType) -> None:
        """Spill the edges of a type in pieces, then write them in every direction."""
        num_pieces, total = self._spill(edge_type)
        for direction in self.spec.settings.directions:
            self._finish(edge_type, direction, num_pieces, total > MAX_SUM)
        shutil.rmtree(self.folder.spill_folder(edge_type), ignore_errors=True)

    def write_links(self, edge_type: EdgeType) -> None:
        """Do nothing: links are written while edges are spilled."""

    def _spill(self, edge_type: EdgeType) -> tuple[int, float]:
        """Spill an edge type; return the number of pieces and the sum of the weights."""
        edges, number = self.graph.edges[edge_type], self.folder.number_of(edge_type)
        settings = self.spec.settings
        if edge_type in self.schema.edge_splits:
            contents, slices = self.contents(), self.folder.slice_offsets(edges.num_edges)
            for part, num_links in enumerate(np.diff(slices).tolist()):
                self.make_files(expected_links(contents, part, edge_type, num_links))
        pieces = edges.ends.pieces(self.spec.piece_edges(edges))
        measured = self._columns().measure_edges(edge_type, pieces)
        ragged = ragged_features(edges.features)
        elements = {name: offsets_of(np.array([m[name]["elements"] for m in measured], np.int64)) for name in ragged}
        unit = EDGE_WORK + row_bytes(edges.features)
        tasks = [
            Task(
                f"spill-{number}-{i}", kind_of(spill_piece),
                self.args(
                    type=list(edge_type), piece=piece.to_json(), number=i,
                    elements={name: int(firsts[i]) for name, firsts in elements.items()},
                ),
                piece.num_edges * unit,
            )
            for i, piece in enumerate(pieces)
        ]  # fmt: skip
        found = self.run_writers("spill", tasks)
        ends = [ColumnSums((join_sums(*(result[end] for result in found)),)) for end in ("src", "dst")]
        for result, of_piece in zip(found, measured, strict=True):
            result["ragged"] = {n: [m["values"], result["offsets"][n], m["elements"]] for n, m in of_piece.items()}
        sums = [
            column_sums(column, [r["ragged" if name in ragged else "features"][name] for r in found])
            for name, column in edges.features.items()
        ]
        self.checksums[type_label(edge_type)] = [*ends, *sums]
        self.add_cut(edge_type, edges.num_edges, found)
        total = float(sum(result["weights"] for result in found))
        if settings.weight_attr in edges.features:
            check_weight_total(f"{type_label(edge_type)}.{settings.weight_attr}", edges.num_edges, total)
        return len(tasks), total

    def _finish(self, edge_type: EdgeType, direction: Direction, num_pieces: int, check_sums: bool) -> None:
        """Write the files of an edge type in one direction."""
        edges, number = self.graph.edges[edge_type], self.folder.number_of(edge_type)
        buckets = self.folder.buckets(edge_type, direction)
        totals = self._totals(edge_type, direction, num_pieces, len(buckets))
        self.edge_offsets[edge_type, direction] = totals[buckets.part_firsts()]
        for name, column in ragged_features(edges.features).items():
            elements = self._totals(edge_type, direction, num_pieces, len(buckets), name)[buckets.part_firsts()]
            for part, num_elements in enumerate(np.diff(elements).tolist()):
                self._columns().make_values(edge_folder(part, edge_type, direction), name, column, num_elements)
        contents = self.contents()
        for part in range(self.num_parts):
            self.make_files(expected_edges(contents, part, edge_type, direction))
        unit = EDGE_WORK + row_bytes(edges.features)
        tasks = [
            Task(
                f"finish-{number}-{direction}-{first}", kind_of(finish_run),
                self.args(
                    type=list(edge_type), direction=direction, first=first, stop=stop, num_pieces=num_pieces,
                    check_sums=check_sums,
                ),
                (end - begin) * unit,
            )
            for first, stop, begin, end in row_chunks(totals, self.spec.run_edges(edges))
        ]  # fmt: skip
        self.run_writers("finish", tasks)

    def _totals(
        self, edge_type: EdgeType, direction: Direction, num_pieces: int, num_buckets: int, feature: str | None = None
    ) -> IntArray:
        """Return int64[num_buckets + 1], running totals of edges, or of the elements of a ragged feature.

        The totals are stored on disk, because spilled pieces are removed at the end.
        """
        path = self.folder.totals_path(edge_type, direction, feature)
        if path.exists():
            return cast(IntArray, np.load(path))
        counts = np.zeros(num_buckets, np.int64)
        for number in range(num_pieces):
            spilled = open_spill(self.folder, edge_type, direction, number)
            counts += np.diff(spilled.starts if feature is None else spilled.ragged[feature].starts)
        totals = offsets_of(counts)
        write_array(path, totals)
        return totals

    def identity(self) -> tuple[str, GraphChecksums]:
        """Return the graph id, and the checksums that it is built from."""
        num_rows = {t: nodes.num_nodes for t, nodes in self.graph.nodes.items()}
        checksums = GraphChecksums(
            num_rows=num_rows | {type_label(t): edges.num_edges for t, edges in self.graph.edges.items()},
            columns={label: tuple(columns) for label, columns in self.checksums.items()},
            splits={
                t: {name: (KEY_BYTES * sum(split["counts"]), split["checksum"]) for name, split in of.items()}
                for t, of in self.splits.items()
                if of
            },
        )
        return graph_id_of(checksums.fingerprint(self.graph.schema), self.spec.settings.time_attr), checksums

    def finish(self, manifest: Manifest) -> Manifest:
        """Make the halo, if there is to be one; return the final manifest."""
        root = self.folder.dataset
        if self.halo is None:
            remove_halos(root, manifest, None)  # removes the halo of a killed run
            return manifest
        return with_halo(root, self.halo, self.progress, memory_for_halos(self.allotted))
