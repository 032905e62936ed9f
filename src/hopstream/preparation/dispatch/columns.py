"""Writes the features of nodes, and ragged rows of nodes and edges, in bounded memory.

Lengths are measured first. So every task knows the offset of its elements in each part, and files get their final size.
Rows of nodes are written in the order in which they are read, because keys ascend inside a part. Rows of edges are
reordered when edges are spilled, and again when they are written. Each pass over the source reorders as many rows as
fit the memory, so more rows need more passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of, write_array
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.paths import feature_paths, node_folder
from hopstream.dataset.regions import RegionWriter, make_file, read_array
from hopstream.dataset.stored_columns import check_time_values, feature_columns, integers
from hopstream.engine import Task, kind_of, task
from hopstream.engine.tasks import TaskFunction
from hopstream.errors import SettingsError
from hopstream.graph.graph import ByteSum, ColumnSums, appended_sums, array_sum, join_sums
from hopstream.ingest.chunked import (
    ChunkedGraph,
    EdgeRange,
    FeatureSource,
    RaggedSource,
    fixed_features,
    ragged_features,
)
from hopstream.kernels.gather import scatter_rows, word_dtype
from hopstream.kernels.placement import add_amounts
from hopstream.preparation.dataset_job import DatasetJob
from hopstream.preparation.dataset_job_folder import IDS, edge_type_of, parts_of, places_of_parts
from hopstream.preparation.dispatch.dispatch_folder import DispatchFolder, DispatchSpec
from hopstream.schema import EdgeType, type_label

INT64 = np.dtype(np.int64)
ZERO = np.zeros(1, np.int64)


@task
def measure_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Count the elements of some rows of a node feature by part, and find the longest row."""
    folder, node_type = DispatchFolder.of(args), str(args["type"])
    row, stop = int(args["start"]), int(args["stop"])
    source = _source_of_nodes(folder, node_type, args["feature"])
    counts, longest, offsets = np.zeros(folder.num_parts, np.int64), (0, 0), folder.node_offsets(node_type)
    for block in source.blocks(row, stop):
        lengths, last = np.diff(block.offsets), row + len(block)
        ids = read_array(folder.table_path(IDS, node_type), row, last)
        add_amounts(parts_of(ids, offsets), lengths, counts)
        longest, row = _longer(longest, row, lengths), last
    return {"counts": counts.tolist(), "longest": longest}


@task
def write_ragged(args: dict[str, Any]) -> dict[str, Any]:
    """Write some rows of a ragged feature of nodes to the files of their parts."""
    folder, node_type, name = DispatchFolder.of(args), str(args["type"]), str(args["feature"])
    row, stop, first_element = int(args["start"]), int(args["stop"]), int(args["first_element"])
    source, offsets = _source_of_nodes(folder, node_type, name), folder.node_offsets(node_type)
    next_elements = read_array(folder.firsts_path(node_type, name), int(args["number"]), int(args["number"]) + 1)[0]
    writer = RegionWriter(folder.dataset)
    paths = [feature_paths(node_folder(part, node_type), name, source.schema) for part in range(folder.num_parts)]
    sums = ColumnSums(((0, 0), array_sum(ZERO) if row == 0 else (0, 0)), first_element)
    if row == 0:  # each file of offsets begins with 0; then each row adds its end
        for _, offsets_path in paths:
            writer.write(integers(offsets_path, ZERO), 0)
    for block in source.blocks(row, stop):
        ids = read_array(folder.table_path(IDS, node_type), row, row + len(block))
        for part, rows in places_of_parts(parts_of(ids, offsets), folder.num_parts):
            taken, first_row = block.take(rows), int(ids[rows[0]] - offsets[part])
            first_byte = int(next_elements[part]) * source.element_bytes
            writer.write_blocks(paths[part][0], source.dtype, first_byte, [taken.values])
            writer.write(integers(paths[part][1], taken.offsets[1:] + next_elements[part]), first_row + 1)
            next_elements[part] += len(taken.values)
        sums, row = appended_sums(sums, block), row + len(block)
    return {"stretches": writer.stretches, "sum": [*sums.sums, sums.num_elements - first_element]}


@task
def measure_piece(args: dict[str, Any]) -> dict[str, Any]:
    """Write the lengths of a piece's ragged edge features; return count, checksum, longest row of each."""
    edge_type, folder, piece = edge_type_of(args), DispatchFolder.of(args), EdgeRange.from_json(args["piece"])
    tables = RegionWriter(folder.scratch)
    found: dict[str, Any] = {}
    for name, column in ragged_features(folder.edges(edge_type).features).items():
        row, longest, values = piece.first, (0, 0), (0, 0)
        path = folder.lengths_name(edge_type, name)
        num_elements = 0
        for block in column.blocks(piece.first, piece.stop):
            lengths = np.diff(block.offsets)
            tables.write_blocks(path, INT64, row * INT64.itemsize, [lengths])
            longest = _longer(longest, row, lengths)
            row, num_elements = row + len(block), num_elements + len(block.values)
            values = join_sums(values, array_sum(block.values))
        found[name] = {"elements": num_elements, "values": values, "longest": longest}
    return found


def read_lengths(folder: DispatchFolder, edge_type: EdgeType, name: str, piece: EdgeRange) -> IntArray:
    """Return int64[num_edges], the lengths that ``measure_piece`` wrote."""
    return read_array(folder.scratch / folder.lengths_name(edge_type, name), piece.first, piece.stop)


def offsets_sum(lengths: IntArray, first_element: int, *, is_first: bool) -> ByteSum:
    """Return the checksum of the ends of rows; for the first rows of all, with the leading 0."""
    ends = array_sum(np.cumsum(lengths) + first_element)
    return join_sums(array_sum(ZERO), ends) if is_first else ends


def gathered(
    blocks: Callable[[], Iterator[RaggedArray]], lengths: IntArray, order: Array, source: RaggedSource, max_bytes: int
) -> Iterator[tuple[int, Array]]:
    """Yield the elements of ragged rows in another order, in blocks that fit the memory, or of one row.

    Args:
        blocks: Reads all rows, in blocks; called once for each block of the result.
        lengths: int64[num_rows], the elements of each row, in the order of reading.
        order: integer[num_rows], the rows in the new order.
        source: Source of the rows, for dtype and shape of an element.
        max_bytes: Most bytes of elements that are reordered at a time.

    Yields:
        The number of the first element in the new order, and ``dtype[n, *shape]``.
    """
    offsets = offsets_of(lengths[order])
    starts = np.empty(len(order), np.int64)
    starts[order] = offsets[:-1]
    element_bytes = source.element_bytes
    word = word_dtype(element_bytes)
    width = element_bytes // word.itemsize
    for _, _, begin, end in row_chunks(offsets, max(1, max_bytes // max(1, element_bytes))):
        out = np.empty((end - begin, *source.shape), source.dtype)
        row = 0
        for block in blocks() if out.nbytes else ():
            values = np.ascontiguousarray(block.values).reshape(-1).view(word)
            places = starts[row : row + len(block)]
            scatter_rows(block.offsets, places, begin, end, width, values, out.reshape(-1).view(word))
            row += len(block)
        yield begin, out


def check_longest(label: str, longest: tuple[int, int], element_bytes: int, max_bytes: int) -> None:
    """Refuse a row that does not fit the memory of a worker.

    Raises:
        SettingsError: The row does not fit.
    """
    row, num_elements = longest
    if num_elements * element_bytes > max_bytes:
        raise SettingsError(
            f"{label} has {num_elements * element_bytes >> 20} MiB in row {row}; the memory limit leaves "
            f"{max_bytes >> 20} MiB for one row: give more memory or fewer workers"
        )


def _source_of_nodes(folder: DispatchFolder, node_type: str, name: str) -> RaggedSource:
    return ragged_features(folder.graph.nodes[node_type].features)[name]


def _longer(longest: tuple[int, int], first_row: int, lengths: IntArray) -> tuple[int, int]:
    """Return the longest row so far and its number of elements."""
    place = int(np.argmax(lengths)) if len(lengths) else 0
    return (first_row + place, int(lengths[place])) if len(lengths) and lengths[place] > longest[1] else longest


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
    return {"stretches": writer.stretches, "sum": array_sum(values)}


def _write_times(folder: DispatchFolder, node_type: str, first_id: int, times: Array) -> None:
    """Write times by id to the table that sorting tasks read."""
    dtype = np.dtype(np.int64)
    name = folder.table_name("times", node_type)
    RegionWriter(folder.scratch).write_blocks(name, dtype, first_id * dtype.itemsize, [times])


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStages:
    """Stages of a job that only write features.

    Attributes:
        folder: The job's folder.
        graph: The source.
        spec: Sizes of the tasks.
        job: Runs the tasks, and records the number of elements of each file.
    """

    folder: DispatchFolder
    graph: ChunkedGraph
    spec: DispatchSpec
    job: DatasetJob

    def write_nodes(self) -> dict[str, list[ColumnSums]]:
        """Write all features of nodes; return their checksums by type."""
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
        """Make tasks for all rows of a node feature; a ragged feature gets at least one task."""
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
        """Measure a ragged node feature, and create its files; return the tasks that write it."""
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
        """Create the file of a ragged feature's elements in the folder of its part."""
        path = str(feature_paths(folder, name, column.schema)[0])
        self.job.lengths[path] = num_elements
        make_file(self.folder.dataset / path, column.dtype, (num_elements, *column.shape))

    def _check_longest(self, label: str, name: str, column: RaggedSource, longest: tuple[int, int]) -> None:
        check_longest(f"{label}.{name}", longest, column.element_bytes, self.spec.longest_row_bytes)

    def measure_edges(self, edge_type: EdgeType, pieces: Sequence[EdgeRange]) -> list[dict[str, Any]]:
        """Measure the ragged features of an edge type; return the result of each piece."""
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
    """Combine the checksums of a feature's pieces; for a ragged feature those of values and of offsets."""
    if not isinstance(column, RaggedSource):
        return ColumnSums((join_sums(*sums),))
    values, offsets = (join_sums(*(of_piece[which] for of_piece in sums)) for which in (0, 1))
    if not sums:
        offsets = array_sum(np.zeros(1, np.int64))
    return ColumnSums((values, offsets), sum(of_piece[2] for of_piece in sums))


def row_bytes(features: Mapping[str, Any]) -> int:
    """Return the bytes of one row of all features, estimated for ragged ones."""
    return sum(int(column.row_bytes) for column in features.values())
