"""Writes ragged rows to their places in bounded memory: measures them first, then puts them in order.

Lengths are measured first, so that every task knows where its elements begin in each part, and files are as long as
they will be. Rows of nodes are then written as they are read, for keys ascend inside a part; those of edges are put in
order when edges are spilled, and again when they are written, as many at a time as fit the memory: if they do not fit
at once, what they come from is read more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, extend_checksum, offsets_of
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.paths import feature_paths, node_folder
from hopstream.dataset.regions import RegionWriter, read_array
from hopstream.dataset.stored_columns import integers
from hopstream.engine import task
from hopstream.errors import SettingsError
from hopstream.ingest.chunked import Piece, RaggedSource, ragged_features
from hopstream.kernels.gather import word_dtype
from hopstream.kernels.placement import add_amounts
from hopstream.kernels.ragged import scatter_rows
from hopstream.preparation.dataset_job_folder import IDS, edge_type_of
from hopstream.preparation.dispatch.dispatch_folder import DispatchFolder
from hopstream.preparation.number_nodes import parts_of, places_of_parts
from hopstream.schema import EdgeType

INT64 = np.dtype(np.int64)
ZERO = np.zeros(1, np.int64)


@task
def measure_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Count the elements that each part gets of some rows of a feature of nodes; which row is the longest?"""
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
    row, stop, element = int(args["start"]), int(args["stop"]), int(args["first_element"])
    source, offsets = _source_of_nodes(folder, node_type, name), folder.node_offsets(node_type)
    next_elements = read_array(folder.firsts_path(node_type, name), int(args["number"]), int(args["number"]) + 1)[0]
    writer = RegionWriter(folder.dataset)
    paths = [feature_paths(node_folder(part, node_type), name, source.schema) for part in range(folder.num_parts)]
    sums, first_element = [[0, 0], [0, 0]], element
    if row == 0:  # each file of offsets begins with 0; rows say where they end
        _add(sums[1], ZERO)
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
        _add(sums[0], block.values)
        _add(sums[1], block.offsets[1:] + element)
        row, element = row + len(block), element + len(block.values)
    return {"stretches": writer.stretches, "sum": [*sums, element - first_element]}


@task
def measure_piece(args: dict[str, Any]) -> dict[str, Any]:
    """Write the lengths of all ragged features of a piece's edges; elements, sum of values, and longest row of each."""
    edge_type, folder, piece = edge_type_of(args), DispatchFolder.of(args), Piece.from_json(args["piece"])
    tables = RegionWriter(folder.scratch)
    found: dict[str, Any] = {}
    for name, column in ragged_features(folder.edges(edge_type).features).items():
        row, longest, values = piece.first, (0, 0), [0, 0]
        path = folder.lengths_name(edge_type, name)
        num_elements = 0
        for block in column.blocks(piece.first, piece.stop):
            lengths = np.diff(block.offsets)
            tables.write_blocks(path, INT64, row * INT64.itemsize, [lengths])
            longest = _longer(longest, row, lengths)
            row, num_elements = row + len(block), num_elements + len(block.values)
            _add(values, block.values)
        found[name] = {"elements": num_elements, "values": values, "longest": longest}
    return found


def read_lengths(folder: DispatchFolder, edge_type: EdgeType, name: str, piece: Piece) -> IntArray:
    """int64[num_edges], what ``measure_piece`` wrote."""
    return read_array(folder.scratch / folder.lengths_name(edge_type, name), piece.first, piece.stop)


def offsets_sum(lengths: IntArray, first_element: int, *, is_first: bool) -> list[int]:
    """``[number of bytes, CRC-32C]`` of where rows end, and before the first row of all of where it begins."""
    found = [0, 0]
    if is_first:
        _add(found, ZERO)
    _add(found, np.cumsum(lengths) + first_element)
    return found


def gathered(
    blocks: Callable[[], Iterator[RaggedArray]], lengths: IntArray, order: Array, source: RaggedSource, max_bytes: int
) -> Iterator[tuple[int, Array]]:
    """The elements of ragged rows in another order, as many at a time as fit, or those of one row.

    Args:
        blocks: Reads all rows, in blocks; called once for each time.
        lengths: int64[num_rows], the elements of each row as they are read.
        order: integer[num_rows], which row comes when.
        source: What a row's elements are.
        max_bytes: Of the elements that are put in order at a time.

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
        SettingsError: As said.
    """
    row, num_elements = longest
    if num_elements * element_bytes > max_bytes:
        raise SettingsError(
            f"{label} has {num_elements * element_bytes >> 20} MiB in row {row}; of the memory, {max_bytes >> 20} MiB "
            "are there for one row: give more memory or fewer workers"
        )


def _source_of_nodes(folder: DispatchFolder, node_type: str, name: str) -> RaggedSource:
    return ragged_features(folder.graph.nodes[node_type].features)[name]


def _longer(longest: tuple[int, int], first_row: int, lengths: IntArray) -> tuple[int, int]:
    """The longest row so far and its elements."""
    place = int(np.argmax(lengths)) if len(lengths) else 0
    return (first_row + place, int(lengths[place])) if len(lengths) and lengths[place] > longest[1] else longest


def _add(total: list[int], values: Array) -> None:
    """Extend a number of bytes and CRC-32C."""
    total[0] += values.nbytes
    total[1] = extend_checksum(total[1], values) if values.nbytes else total[1]
