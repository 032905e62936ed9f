"""Which tasks write the features of nodes, and measure the ragged ones of nodes and edges?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import offsets_of, write_array
from hopstream.dataset.paths import feature_paths, node_folder
from hopstream.dataset.regions import join_checksums, make_file
from hopstream.engine import Task, kind_of
from hopstream.engine.tasks import TaskFunction
from hopstream.graph.checksums import ColumnSums, array_sum
from hopstream.ingest.chunked import ChunkedGraph, FeatureSource, Piece, RaggedSource, ragged_features
from hopstream.preparation.dispatch.nodes import write_column
from hopstream.preparation.dispatch.plan import Plan
from hopstream.preparation.dispatch.ragged import check_longest, measure_nodes, measure_piece, write_ragged
from hopstream.preparation.dispatch.workplace import Workplace
from hopstream.preparation.staged import Stages
from hopstream.schema import EdgeType, type_label


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStages:
    """The stages of a job that have to do with features alone.

    Attributes:
        workplace: The job.
        graph: The source.
        plan: How the work is cut.
        stages: What runs tasks.
        lengths: Path to length, of files of which nothing else tells it; those of elements are added.
    """

    workplace: Workplace
    graph: ChunkedGraph
    plan: Plan
    stages: Stages
    lengths: dict[str, int]

    def _args(self, **args: Any) -> dict[str, Any]:
        return {"folder": str(self.workplace.root), **args}

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
        results = self.stages.run("columns", tasks)
        self.stages.keep(results.values())
        pieces: dict[tuple[str, str], list[Any]] = {}
        for column_name, result in zip(columns, results.values(), strict=True):
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
        step = self.plan.column_rows(num_rows, column.row_bytes)
        if isinstance(column, RaggedSource):
            stretches = list(column.stretches(step))
        else:
            stretches = [(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
        tasks = []
        for start, stop in stretches:
            args = self._args(type=node_type, feature=name, start=start, stop=stop)
            tasks.append(Task(f"{label}-{start}", kind_of(function), args, (stop - start) * column.row_bytes))
        return tasks

    def _ragged_tasks(self, node_type: str, name: str, column: RaggedSource, label: str) -> list[Task]:
        """Measure a ragged feature of nodes, and make its files; the tasks that write it."""
        measures = self._row_tasks(measure_nodes, node_type, name, column, f"measure-{label}")
        found = list(self.stages.run("measure", measures).values())
        for result in found:
            self._check_longest(node_type, name, column, result["longest"])
        counts = np.array([result["counts"] for result in found], np.int64)
        sums = np.cumsum(counts, axis=0)
        write_array(self.workplace.firsts_path(node_type, name), sums - counts)
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
        self.lengths[path] = num_elements
        make_file(self.stages.dataset / path, column.dtype, (num_elements, *column.shape))

    def _check_longest(self, label: str, name: str, column: RaggedSource, longest: tuple[int, int]) -> None:
        check_longest(f"{label}.{name}", longest, column.element_bytes, self.plan.longest_row_bytes)

    def measure_edges(self, edge_type: EdgeType, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """What each piece has of the ragged features of an edge type."""
        edges, number = self.graph.edges[edge_type], self.workplace.number_of(edge_type)
        ragged = ragged_features(edges.features)
        if not ragged:
            return [{} for _ in pieces]
        for name in ragged:
            path = self.workplace.scratch / self.workplace.lengths_name(edge_type, name)
            make_file(path, np.dtype(np.int64), (edges.num_edges,))
        tasks = [
            Task(
                f"measure-{number}-{i}", kind_of(measure_piece),
                self._args(type=list(edge_type), piece=piece.to_json()), piece.num_edges * row_bytes(ragged),
            )
            for i, piece in enumerate(pieces)
        ]  # fmt: skip
        found = list(self.stages.run("measure", tasks).values())
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
