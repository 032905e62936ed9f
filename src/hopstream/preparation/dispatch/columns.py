"""Writes the features of nodes, and measures the ragged ones of nodes and edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, offsets_of, write_array
from hopstream.dataset.paths import feature_paths, node_folder
from hopstream.dataset.regions import RegionWriter, bytes_checksum, join_checksums, make_file, read_array
from hopstream.dataset.stored_columns import feature_columns
from hopstream.dataset.times import check_time_values
from hopstream.engine import Task, kind_of, task
from hopstream.engine.tasks import TaskFunction
from hopstream.graph.checksums import ColumnSums, array_sum
from hopstream.ingest.chunked import (
    ChunkedGraph,
    FeatureSource,
    Piece,
    RaggedSource,
    fixed_features,
    ragged_features,
)
from hopstream.preparation.dataset_job import DatasetJob
from hopstream.preparation.dataset_job_folder import IDS
from hopstream.preparation.dispatch.dispatch_folder import DispatchFolder
from hopstream.preparation.dispatch.dispatch_spec import DispatchSpec
from hopstream.preparation.dispatch.ragged import check_longest, measure_nodes, measure_piece, write_ragged
from hopstream.preparation.number_nodes import parts_of, places_of_parts
from hopstream.schema import EdgeType, type_label


@task
def write_column(args: dict[str, Any]) -> dict[str, Any]:
    """Write some rows of a feature of fixed width to the files of their parts."""
    folder, node_type, name = DispatchFolder.of(args), str(args["type"]), str(args["feature"])
    start, stop = int(args["start"]), int(args["stop"])
    values = fixed_features(folder.graph.nodes[node_type].features)[name].read(start, stop)
    ids, offsets = read_array(folder.table_path(IDS, node_type), start, stop), folder.node_offsets(node_type)
    writer = RegionWriter(folder.dataset)
    is_time = name == folder.spec.settings.time_attr
    if is_time:
        check_time_values(f"{node_type}.{name}", start, values)
    for part, rows in places_of_parts(parts_of(ids, offsets), folder.num_parts):
        first_id = int(ids[rows[0]])
        for column in feature_columns(node_folder(part, node_type), {name: values}, rows):
            writer.write(column, first_id - int(offsets[part]))
        if is_time:
            _write_times(folder, node_type, first_id, values[rows])
    return {"stretches": writer.stretches, "sum": bytes_checksum(values)}


def _write_times(folder: DispatchFolder, node_type: str, first_id: int, times: Array) -> None:
    """Keep times by id, where tasks that put edges in order find them."""
    dtype = np.dtype(np.int64)
    name = folder.table_name("times", node_type)
    RegionWriter(folder.scratch).write_blocks(name, dtype, first_id * dtype.itemsize, [times])


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStages:
    """The stages of a job that have to do with features alone.

    Attributes:
        folder: The job's folder.
        graph: The source.
        spec: How the work is cut.
        job: Runs tasks, and keeps how many elements each file has.
    """

    folder: DispatchFolder
    graph: ChunkedGraph
    spec: DispatchSpec
    job: DatasetJob

    def write_nodes(self) -> dict[str, list[ColumnSums]]:
        """Write all features of nodes; the sums of those of each type."""
        tasks: list[Task] = []
        columns: list[tuple[str, str]] = []
        for i, (node_type, nodes) in enumerate(self.graph.nodes.items()):
            for k, (name, column) in enumerate(nodes.features.items()):
                if isinstance(column, RaggedSource):
                    found = self._ragged_tasks(node_type, name, column, f"{i}-{k}")
                else:
                    found = self._row_tasks(write_column, node_type, name, column, f"column-{i}-{k}")
                tasks += found
                columns += [(node_type, name)] * len(found)
        results = self.job.run_writers("columns", tasks)
        pieces: dict[tuple[str, str], list[Any]] = {}
        for column_name, result in zip(columns, results, strict=True):
            pieces.setdefault(column_name, []).append(result["sum"])
        return {
            t: [column_sums(column, pieces.get((t, name), [])) for name, column in nodes.features.items()]
            for t, nodes in self.graph.nodes.items()
        }

    def _row_tasks(
        self, function: TaskFunction, node_type: str, name: str, column: FeatureSource, label: str
    ) -> list[Task]:
        """Tasks for all rows of a feature of nodes; of a ragged one at least one."""
        num_rows = column.num_rows
        step = self.spec.column_rows(num_rows, column.row_bytes)
        if isinstance(column, RaggedSource):
            stretches = list(column.stretches(step))
        else:
            stretches = [(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
        tasks = []
        for start, stop in stretches:
            args = self.job.args(type=node_type, feature=name, start=start, stop=stop)
            tasks.append(Task(f"{label}-{start}", kind_of(function), args, (stop - start) * column.row_bytes))
        return tasks

    def _ragged_tasks(self, node_type: str, name: str, column: RaggedSource, label: str) -> list[Task]:
        """Measure a ragged feature of nodes, and make its files; the tasks that write it."""
        measures = self._row_tasks(measure_nodes, node_type, name, column, f"measure-{label}")
        found = self.job.run("measure", measures)
        for result in found:
            self._check_longest(node_type, name, column, result["longest"])
        counts = np.array([result["counts"] for result in found], np.int64)
        sums = np.cumsum(counts, axis=0)
        write_array(self.folder.firsts_path(node_type, name), sums - counts)
        first_elements = offsets_of(counts.sum(axis=1)).tolist()
        for part, num_elements in enumerate(sums[-1].tolist()):
            self.make_values(node_folder(part, node_type), name, column, num_elements)
        tasks = self._row_tasks(write_ragged, node_type, name, column, f"ragged-{label}")
        return [
            replace(task, args=task.args | {"number": number, "first_element": first_elements[number]})
            for number, task in enumerate(tasks)
        ]

    def make_values(self, folder: PurePosixPath, name: str, column: RaggedSource, num_elements: int) -> None:
        """Make the file of the elements of a ragged feature in the folder of its part."""
        path = str(feature_paths(folder, name, column.schema)[0])
        self.job.lengths[path] = num_elements
        make_file(self.folder.dataset / path, column.dtype, (num_elements, *column.shape))

    def _check_longest(self, label: str, name: str, column: RaggedSource, longest: tuple[int, int]) -> None:
        check_longest(f"{label}.{name}", longest, column.element_bytes, self.spec.longest_row_bytes)

    def measure_edges(self, edge_type: EdgeType, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """What each piece has of the ragged features of an edge type."""
        edges, number = self.graph.edges[edge_type], self.folder.number_of(edge_type)
        ragged = ragged_features(edges.features)
        if not ragged:
            return [{} for _ in pieces]
        for name in ragged:
            path = self.folder.scratch / self.folder.lengths_name(edge_type, name)
            make_file(path, np.dtype(np.int64), (edges.num_edges,))
        tasks = [
            Task(
                f"measure-{number}-{i}", kind_of(measure_piece),
                self.job.args(type=list(edge_type), piece=piece.to_json()), piece.num_edges * row_bytes(ragged),
            )
            for i, piece in enumerate(pieces)
        ]  # fmt: skip
        found = self.job.run("measure", tasks)
        for result in found:
            for name, column in ragged.items():
                self._check_longest(type_label(edge_type), name, column, result[name]["longest"])
        return found


def column_sums(column: FeatureSource, sums: Sequence[Any]) -> ColumnSums:
    """The sums of a feature, from that of each piece; of a ragged one those of values and offsets, and its elements."""
    if not isinstance(column, RaggedSource):
        return ColumnSums((join_checksums(sums),))
    values, offsets = (join_checksums(of_piece[which] for of_piece in sums) for which in (0, 1))
    if not sums:
        offsets = array_sum(np.zeros(1, np.int64))
    return ColumnSums((values, offsets), sum(of_piece[2] for of_piece in sums))


def row_bytes(features: Mapping[str, Any]) -> int:
    """Bytes of one row of all features, about where they are ragged."""
    return sum(int(column.row_bytes) for column in features.values())
