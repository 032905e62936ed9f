"""Puts spilled edges in order, and writes them to the files of their parts.

A task takes a run of buckets that fits its memory. It counts the edges of each row, then places the shares of all
pieces in their order, which is the original order of the edges, and writes what is stored of them where it belongs.
Rows of a bucket that is too large are taken a few at a time, by reading its shares again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of, open_array
from hopstream.dataset.book import ends_of, neighbor_dtype
from hopstream.dataset.chunks import overlaps, row_chunks
from hopstream.dataset.edge_weights import MAX_SUM, large_sum
from hopstream.dataset.paths import edge_folder, feature_paths, node_folder
from hopstream.dataset.regions import RegionWriter
from hopstream.dataset.stored_columns import EdgeRun, edge_columns, integers
from hopstream.dataset.times import EdgeTimes, sort_edges
from hopstream.engine import task
from hopstream.ingest.chunked import fixed_features, ragged_features
from hopstream.kernels.spill import count_ids, place_edges
from hopstream.preparation.dataset_job_folder import edge_type_of
from hopstream.preparation.dispatch.dispatch_folder import DispatchFolder
from hopstream.preparation.dispatch.dispatch_spec import Buckets
from hopstream.preparation.dispatch.ragged import gathered
from hopstream.preparation.dispatch.spill import BLOCK_EDGES, SpillFile, open_spill
from hopstream.schema import Direction, EdgeType, type_label


@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """What a run takes from one spilled piece: its edges ``[begin, end)``."""

    file: SpillFile
    begin: int
    end: int

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Stretches of the share."""
        for first in range(self.begin, self.end, BLOCK_EDGES):
            yield first, min(first + BLOCK_EDGES, self.end)


@task
def finish_run(args: dict[str, Any]) -> dict[str, Any]:
    """Write the edges of a run of buckets."""
    finish = _Finish(DispatchFolder.of(args), edge_type_of(args), args["direction"], bool(args["check_sums"]))
    return {"stretches": finish.run(int(args["first"]), int(args["stop"]), int(args["num_pieces"]))}


class _Finish:
    """One run of one edge type and direction."""

    def __init__(self, folder: DispatchFolder, edge_type: EdgeType, direction: Direction, check_sums: bool) -> None:
        self.folder, self.edge_type, self.direction = folder, edge_type, direction
        self.settings = folder.spec.settings
        self.edges = folder.edges(edge_type)
        self.own_type, self.other_type = ends_of(edge_type, direction)
        self.check_sums = check_sums
        self.buckets: Buckets = folder.buckets(edge_type, direction)
        self.row_offsets = folder.node_offsets(self.own_type)
        self.totals: IntArray = open_array(folder.totals_path(edge_type, direction))
        self.edge_offsets: IntArray = self.totals[self.buckets.part_firsts()]
        self.writer = RegionWriter(folder.dataset)
        time_attr = self.settings.time_attr
        other_has_times = time_attr is not None and time_attr in folder.schema.nodes[self.other_type]
        self.neighbor_times = folder.table("times", self.other_type) if other_has_times else None
        self.fixed, self.ragged = fixed_features(self.edges.features), ragged_features(self.edges.features)
        self.element_totals = {name: open_array(folder.totals_path(edge_type, direction, name)) for name in self.ragged}
        self.next_elements: dict[str, int] = {}
        self.has_times = other_has_times or (time_attr is not None and time_attr in self.edges.features)
        self.neighbor_keys = (
            folder.table("keys", self.other_type) if self.settings.neighbor_keys else np.empty(0, np.uint32)
        )

    def run(self, first: int, stop: int, num_pieces: int) -> dict[str, list[tuple[int, int, int]]]:
        """Write the edges of the buckets ``[first, stop)``."""
        first_id, stop_id = int(self.buckets.starts[first]), int(self.buckets.starts[stop])
        shares = []
        for number in range(num_pieces):
            file = open_spill(self.folder, self.edge_type, self.direction, number)
            begin, end = int(file.starts[first]), int(file.starts[stop])
            if begin < end:
                shares.append(_Share(file, begin, end))
        counts = np.zeros(stop_id - first_id, np.int64)
        for share in shares:
            for begin, end in share.blocks():
                count_ids(share.file.read("rows", begin, end), first_id, counts)
        indptr = offsets_of(counts)
        del counts
        first_edge = int(self.totals[first])
        self._write_indptr(indptr, first, stop, first_edge)
        self.next_elements = {name: int(totals[first]) for name, totals in self.element_totals.items()}
        for row, last_row, start, _ in row_chunks(indptr, self.folder.spec.run_edges(self.edges)):
            run = self._read(shares, indptr[row : last_row + 1] - start, first_id + row)
            self._write(run, first_id + row, first_edge + start)
            for name in self.ragged:
                self._write_ragged(name, shares, run, first_id + row, first_edge + start)
        return self.writer.stretches

    def _write_indptr(self, indptr: IntArray, first: int, stop: int, first_edge: int) -> None:
        first_id = int(self.buckets.starts[first])
        for part, begin, end in overlaps(first_id, int(self.buckets.starts[stop]), self.row_offsets):
            shift = first_edge - int(self.edge_offsets[part])
            self._write_rows(part, begin, indptr[begin - first_id : end - first_id] + shift)
        firsts = self.buckets.part_firsts()
        for part in np.flatnonzero((firsts[1:] > first) & (firsts[1:] <= stop)).tolist():
            num_edges = self.edge_offsets[part + 1] - self.edge_offsets[part]
            self._write_rows(part, int(self.row_offsets[part + 1]), np.array([num_edges]))
            for name in self.ragged:  # each file of offsets begins with 0; edges say where they end
                self.writer.write(integers(self._ragged_paths(part, name)[1], np.zeros(1, np.int64)), 0)

    def _write_rows(self, part: int, row_id: int, values: Array) -> None:
        path = edge_folder(part, self.edge_type, self.direction) / "indptr.npy"
        self.writer.write(integers(path, values), row_id - int(self.row_offsets[part]))

    def _read(self, shares: list[_Share], indptr: IntArray, first_id: int) -> EdgeRun:
        """The edges of some rows, in stored order."""
        num_edges, features = int(indptr[-1]), self.fixed
        other_dtype = neighbor_dtype(self.folder.graph.nodes[self.other_type].num_nodes)
        has_keys, has_places = self.settings.keep_edge_keys, bool(self.edges.features) or self.has_times
        indices = np.empty(num_edges, other_dtype)
        keys = np.empty(num_edges if has_keys else 0, neighbor_dtype(self.edges.num_edges))
        places = np.empty(num_edges if has_places else 0, neighbor_dtype(num_edges))
        columns = {name: np.empty((num_edges, *c.shape), c.dtype) for name, c in features.items()}
        next_places, num_placed = indptr[:-1].copy(), 0
        last_id = first_id + len(next_places)
        for share in shares:
            for begin, end in share.blocks():
                rows, others = share.file.read("rows", begin, end), share.file.read("others", begin, end)
                offsets = share.file.read("offsets", begin, end) if has_keys else np.empty(0, np.uint32)
                count = place_edges(
                    rows, others, offsets, first_id, share.file.first_key, num_placed, next_places, indices, keys,
                    places,
                )  # fmt: skip
                for name, column in columns.items() if count else ():
                    values = share.file.read(f"feature {name}", begin, end)
                    is_here = slice(None) if count == end - begin else (rows >= first_id) & (rows < last_id)
                    column[num_placed : num_placed + count] = values[is_here]
                num_placed += count
        times = self._times(columns)
        if times is not None:
            sort_edges(indptr, places, indices, times, *([keys] if has_keys else []))
        weights = columns.get(self.settings.weight_attr) if self.settings.weight_attr is not None else None
        return EdgeRun(
            indptr=indptr, indices=indices, keys=keys, places=places, neighbor_keys=self.neighbor_keys, times=times,
            weights=weights, features=columns,
        )  # fmt: skip

    def _times(self, columns: dict[str, Array]) -> EdgeTimes | None:
        if not self.has_times:
            return None
        own = columns.get(self.settings.time_attr) if self.settings.time_attr is not None else None
        return EdgeTimes(own=own, neighbor=self.neighbor_times, neighbor_keys=None)

    def _write(self, run: EdgeRun, first_id: int, first_edge: int) -> None:
        """Write what is stored of the edges of some rows to each part that owns any of the rows."""
        if run.weights is not None and self.check_sums:
            self._check_sums(run, run.weights, first_id)
        for part, begin, end in overlaps(first_id, first_id + len(run.indptr) - 1, self.row_offsets):
            rows = run.rows(begin - first_id, end - first_id)
            first_row = first_edge + int(run.indptr[begin - first_id]) - int(self.edge_offsets[part])
            for column in edge_columns(edge_folder(part, self.edge_type, self.direction), rows, self.settings):
                self.writer.write(column, first_row)

    def _write_ragged(self, name: str, shares: list[_Share], run: EdgeRun, first_id: int, first_edge: int) -> None:
        """Write the rows of a ragged feature of the edges of some rows."""
        source, last_id = self.ragged[name], first_id + len(run.indptr) - 1
        lengths = _read_lengths(name, shares, first_id, last_id, len(run.places))
        offsets = offsets_of(lengths[run.places]) + self.next_elements[name]
        self.next_elements[name] = int(offsets[-1])
        part_elements = self.element_totals[name][self.buckets.part_firsts()]
        for part, begin, end in overlaps(first_id, last_id, self.row_offsets):
            start, stop = int(run.indptr[begin - first_id]), int(run.indptr[end - first_id])
            ends, row = offsets[start + 1 : stop + 1] - part_elements[part], first_edge + start
            self.writer.write(integers(self._ragged_paths(part, name)[1], ends), row - int(self.edge_offsets[part]) + 1)

        def blocks() -> Iterator[RaggedArray]:
            return _read_ragged(name, shares, first_id, last_id)

        for first, values in gathered(blocks, lengths, run.places, source, self.folder.spec.ragged_bytes):
            element = int(offsets[0]) + first
            for part, begin, end in overlaps(element, element + len(values), part_elements):
                first_byte = (begin - int(part_elements[part])) * source.element_bytes
                path = self._ragged_paths(part, name)[0]
                self.writer.write_blocks(path, source.dtype, first_byte, [values[begin - element : end - element]])

    def _ragged_paths(self, part: int, name: str) -> tuple[PurePosixPath, ...]:
        return feature_paths(edge_folder(part, self.edge_type, self.direction), name, self.ragged[name].schema)

    def _check_sums(self, run: EdgeRun, weights: Array, first_id: int) -> None:
        rows = np.repeat(np.arange(len(run.indptr) - 1), np.diff(run.indptr))
        with np.errstate(over="ignore"):
            sums = np.bincount(rows, weights=weights[run.places], minlength=1)
        row = int(np.argmax(sums))
        if sums[row] > MAX_SUM:
            part = int(np.searchsorted(self.row_offsets, first_id + row, side="right")) - 1
            keys = open_array(self.folder.dataset / node_folder(part, self.own_type) / "key.npy")
            key = int(keys[first_id + row - int(self.row_offsets[part])])
            where = f"{type_label(self.edge_type)}.{self.settings.weight_attr}"
            raise large_sum(where, self.direction, key, float(sums[row]))


def _read_lengths(name: str, shares: list[_Share], first_id: int, last_id: int, num_edges: int) -> IntArray:
    """int64[num_edges], the elements of a ragged feature of the edges of some rows, in the order of shares."""
    lengths, num_read = np.empty(num_edges, np.int64), 0
    for share in shares:
        for begin, end in share.blocks():
            rows = share.file.read("rows", begin, end)
            found = np.diff(share.file.ragged_offsets(name, begin, end))[(rows >= first_id) & (rows < last_id)]
            lengths[num_read : num_read + len(found)] = found
            num_read += len(found)
    return lengths


def _read_ragged(name: str, shares: list[_Share], first_id: int, last_id: int) -> Iterator[RaggedArray]:
    """The rows of a ragged feature of the same edges, in the same order."""
    for share in shares:
        for begin, end in share.blocks():
            rows, row = share.file.read("rows", begin, end), 0
            is_here = (rows >= first_id) & (rows < last_id)
            if not is_here.any():
                continue
            for block in share.file.ragged_blocks(name, begin, end):
                here = np.flatnonzero(is_here[row : row + len(block)])
                row += len(block)
                yield block if len(here) == len(block) else block.take(here)
