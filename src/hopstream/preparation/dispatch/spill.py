"""Spills edges grouped by range of ids, sorts them, and writes them to their parts.

The edges of a piece are renumbered, grouped by bucket for each direction, and spilled to a file that appears
atomically. Ends are read once, for all directions and links.

A task takes a run of buckets that fits its memory. It counts the edges of each row. Then it places the shares of all
pieces in their order, which is the original order of the edges, and writes all stored columns to the parts. The rows of
a bucket that is too large are processed a few at a time, reading its shares again for each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, extend_checksum, offsets_of, open_array, written_whole
from hopstream.dataset.book import ends_of, number_dtype
from hopstream.dataset.chunks import overlaps, row_chunks
from hopstream.dataset.paths import edge_folder, feature_paths, link_folder, node_folder
from hopstream.dataset.regions import RegionWriter, read_into
from hopstream.dataset.stored_columns import (
    MAX_SUM,
    EdgeRun,
    EdgeTimes,
    check_time_values,
    check_weight_values,
    edge_columns,
    integers,
    large_sum,
    sort_edges,
    weights_of,
)
from hopstream.engine import task
from hopstream.errors import StateError
from hopstream.graph.graph import ByteSum, array_sum
from hopstream.ingest.chunked import EdgeRange, RaggedSource, fixed_features, ragged_features
from hopstream.ingest.chunked.sources import cut_rows
from hopstream.kernels.spill import count_between, count_ids, find_buckets, group_buckets, place_edges, take_ids
from hopstream.preparation.dataset_job_folder import IDS, edge_type_of, empty_matrix
from hopstream.preparation.dispatch.columns import gathered, offsets_sum, read_lengths
from hopstream.preparation.dispatch.dispatch_folder import DispatchFolder, IdStretches
from hopstream.schema import Direction, EdgeType, type_label

BLOCK_EDGES = 1 << 20
INT64_BYTES = 8
MAX_TOTAL = float(np.finfo(np.float64).max)


@task
def spill_piece(args: dict[str, Any]) -> dict[str, Any]:
    """Spill a piece's edges in every direction, and write its links."""
    folder, piece = DispatchFolder.of(args), EdgeRange.from_json(args["piece"])
    return _Spill(folder, edge_type_of(args), piece, int(args["number"]), args["elements"]).run()


@dataclass(frozen=True, slots=True, eq=False)
class _Grouped:
    """File of edges of one direction, with the offsets of its buckets and each edge's index in the piece."""

    file: IO[bytes]
    starts: IntArray
    offsets: Array


@dataclass(slots=True)
class _Spill:
    """Spilling of one piece; ``elements`` are the elements of each ragged feature in earlier pieces."""

    folder: DispatchFolder
    edge_type: EdgeType
    piece: EdgeRange
    number: int
    elements: Mapping[str, int]

    def run(self) -> dict[str, Any]:
        writer = RegionWriter(self.folder.dataset)
        src_ids, dst_ids, checksums = self._read_ends(writer)
        tables: dict[Direction, IdStretches] = {
            "in": self.folder.buckets(self.edge_type, "in"), "out": self.folder.buckets(self.edge_type, "out"),
        }  # fmt: skip
        own_ids: dict[Direction, Array] = {"in": dst_ids, "out": src_ids}
        buckets: dict[Direction, Array] = {}
        counts: dict[Direction, IntArray] = {}
        for direction in ("in", "out"):
            table = tables[direction]
            buckets[direction] = np.empty(len(src_ids), np.uint32)
            counts[direction] = np.zeros(len(table), np.int64)
            find_buckets(
                own_ids[direction], table.starts, table.guesses, table.shift, counts[direction], buckets[direction]
            )
        num_cut, between = self._count_cut(tables, buckets)
        with ExitStack() as stack:
            files: list[_Grouped] = []
            for direction in self.folder.spec.settings.directions:
                path = self.folder.spill_path(self.edge_type, direction, self.number)
                file = stack.enter_context(_new_file(path))
                other_ids = src_ids if direction == "in" else dst_ids
                files.append(
                    self._write_edges(file, own_ids[direction], other_ids, buckets[direction], counts[direction])
                )
            del src_ids, dst_ids, own_ids, buckets, other_ids
            features, total = self._write_features(files, writer)
            offsets = {
                name: self._write_ragged(name, column, files)
                for name, column in ragged_features(self.folder.edges(self.edge_type).features).items()
            }
        return {
            **checksums, "features": features, "offsets": offsets, "weights": min(total, MAX_TOTAL), "cut": num_cut,
            "between": between.tolist(), "stretches": writer.stretches,
        }  # fmt: skip

    def _read_ends(self, writer: RegionWriter) -> tuple[Array, Array, dict[str, Any]]:
        """Return ids of both ends, and checksums of their keys; write links on the way."""
        src_type, dst_type = self.edge_type[0], self.edge_type[2]
        src_table, dst_table = (self.folder.table(IDS, t) for t in (src_type, dst_type))
        src_ids, dst_ids = (np.empty(self.piece.num_edges, t.dtype) for t in (src_table, dst_table))
        has_links = self.edge_type in self.folder.schema.edge_splits
        src_sum = dst_sum = end = 0
        for first, src_keys, dst_keys in self.folder.edges(self.edge_type).ends.read(self.piece):
            stop = end + len(src_keys)
            take_ids(src_keys, src_table, src_ids[end:stop])
            take_ids(dst_keys, dst_table, dst_ids[end:stop])
            src_sum, dst_sum = extend_checksum(src_sum, src_keys), extend_checksum(dst_sum, dst_keys)
            if has_links:
                self._write_links(writer, "src_key.npy", first, src_keys)
                self._write_links(writer, "dst_key.npy", first, dst_keys)
            end = stop
        num_bytes = end * INT64_BYTES
        return src_ids, dst_ids, {"src": [num_bytes, src_sum], "dst": [num_bytes, dst_sum]}

    def _write_links(self, writer: RegionWriter, name: str, first_key: int, values: Array) -> None:
        """Write link columns to the parts that keep the edges' keys."""
        slices = self.folder.slice_offsets(self.folder.edges(self.edge_type).num_edges)
        for part, begin, end in overlaps(first_key, first_key + len(values), slices):
            rows = values[begin - first_key : end - first_key]
            writer.write(integers(link_folder(part, self.edge_type) / name, rows), begin - int(slices[part]))

    def _count_cut(self, tables: dict[Direction, IdStretches], buckets: dict[Direction, Array]) -> tuple[int, IntArray]:
        between = empty_matrix(self.folder.spec.settings.num_parts)
        num_cut = count_between(buckets["out"], tables["out"].parts, buckets["in"], tables["in"].parts, between)
        return int(num_cut), between

    def _write_edges(
        self, file: IO[bytes], own_ids: Array, other_ids: Array, buckets: Array, counts: IntArray
    ) -> _Grouped:
        """Write the grouped columns."""
        rows, others = np.empty_like(own_ids), np.empty_like(other_ids)
        offsets = np.empty(len(own_ids), np.uint32)
        starts = offsets_of(counts)
        group_buckets(own_ids, other_ids, buckets, starts[:-1].copy(), rows, others, offsets)
        for column in (np.array([self.piece.first], np.int64), starts, rows, others, offsets):
            _write_values(file, column)
        return _Grouped(file, starts, offsets)

    def _write_ragged(self, name: str, column: RaggedSource, files: list[_Grouped]) -> ByteSum:
        """Write the rows of a ragged feature in the order of each file; return the checksum of their offsets."""
        first, stop, max_bytes = self.piece.first, self.piece.stop, self.folder.spec.ragged_bytes
        lengths = read_lengths(self.folder, self.edge_type, name, self.piece)
        is_held = int(lengths.sum()) * column.element_bytes <= max_bytes
        held = [column.read(first, stop)] if is_held else []

        def blocks() -> Iterator[RaggedArray]:
            return iter(held) if is_held else column.blocks(first, stop)

        for grouped in files:
            offsets = offsets_of(lengths[grouped.offsets])
            _write_values(grouped.file, offsets[grouped.starts])
            _write_values(grouped.file, offsets)
            del offsets
            for _, values in gathered(blocks, lengths, grouped.offsets, column, max_bytes):
                _write_values(grouped.file, values)
        return offsets_sum(lengths, self.elements[name], is_first=first == 0)

    def _write_features(self, files: list[_Grouped], writer: RegionWriter) -> tuple[dict[str, ByteSum], float]:
        """Write the rows of each fixed-width feature in the order of each file.

        Returns:
            The checksums of the features, and the sum of the weights.
        """
        settings, total = self.folder.spec.settings, 0.0
        checksums: dict[str, ByteSum] = {}
        for name, column in fixed_features(self.folder.edges(self.edge_type).features).items():
            values = column.read(self.piece.first, self.piece.stop)
            checksums[name] = array_sum(values)
            where = f"{type_label(self.edge_type)}.{name}"
            if name == settings.time_attr:
                check_time_values(where, self.piece.first, values)
                if self.edge_type in self.folder.schema.edge_splits:
                    self._write_links(writer, "time.npy", self.piece.first, values)
            if name == settings.weight_attr:
                total = check_weight_values(where, self.piece.first, values.reshape(-1))
            for grouped in files:
                for start in range(0, len(grouped.offsets), BLOCK_EDGES):
                    _write_values(grouped.file, values[grouped.offsets[start : start + BLOCK_EDGES]])
        return checksums, total


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that appears under its name when it is complete."""
    try:
        with written_whole(path) as partial, partial.open("wb", buffering=0) as file:
            yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_values(file: IO[bytes], values: Array) -> None:
    left = memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    while len(left):
        left = left[file.write(left) :]


@dataclass(frozen=True, slots=True, eq=False)
class SpilledRagged:
    """Ragged feature in a spilled piece.

    Attributes:
        source: Source of the feature.
        starts: int64[num_buckets + 1], the offsets of the buckets' elements.
        first_offset: Byte at which the offsets, int64[num_edges + 1], begin.
        first_value: Byte at which the elements begin.
    """

    source: RaggedSource
    starts: IntArray
    first_offset: int
    first_value: int


@dataclass(frozen=True, slots=True, eq=False)
class SpillFile:
    """Spilled piece.

    Attributes:
        path: File of the piece.
        first_key: Edge key of the first edge of the piece.
        starts: int64[num_buckets + 1], the offsets of the buckets' edges.
        columns: Name of a column to the byte at which it begins, and dtype and shape of a row. ``rows``, ``others`` and
            ``offsets`` come first, then fixed-width features as ``feature <name>``.
        ragged: Ragged features, which come last: offsets of elements by bucket and by edge, then the elements.
    """

    path: Path
    first_key: int
    starts: IntArray
    columns: dict[str, tuple[int, np.dtype[Any], tuple[int, ...]]]
    ragged: dict[str, SpilledRagged]

    def ragged_offsets(self, name: str, begin: int, end: int) -> IntArray:
        """Return int64[end - begin + 1], the element offsets of rows ``[begin, end)`` of a ragged feature."""
        offsets = np.empty(end - begin + 1, np.int64)
        read_into(self.path, self.ragged[name].first_offset + begin * INT64_BYTES, offsets)
        return offsets

    def ragged_blocks(self, name: str, begin: int, end: int) -> Iterator[RaggedArray]:
        """Yield rows ``[begin, end)`` of a ragged feature, in blocks."""
        source, offsets = self.ragged[name].source, self.ragged_offsets(name, begin, end)
        for first, last in cut_rows(offsets, source.element_bytes):
            rows = offsets[first : last + 1]
            values = np.empty((int(rows[-1] - rows[0]), *source.shape), source.dtype)
            if values.nbytes:
                read_into(self.path, self.ragged[name].first_value + int(rows[0]) * source.element_bytes, values)
            yield RaggedArray(values, rows - rows[0], source.is_string)

    def read(self, column: str, begin: int, end: int) -> Array:
        """Return rows ``[begin, end)`` of a column."""
        first_byte, dtype, shape = self.columns[column]
        values = np.empty((end - begin, *shape), dtype)
        if len(values):
            read_into(self.path, first_byte + begin * (values.nbytes // len(values)), values)
        return values


def open_spill(folder: DispatchFolder, edge_type: EdgeType, direction: Direction, number: int) -> SpillFile:
    """Open a spilled piece: read the offsets of its buckets.

    Raises:
        StateError: The file has the wrong size, as after a power cut.
    """
    path = folder.spill_path(edge_type, direction, number)
    head = np.empty(2 + len(folder.buckets(edge_type, direction)), np.int64)
    read_into(path, 0, head)
    num_edges, first_byte = int(head[-1]), head.nbytes
    own, other = (number_dtype(folder.graph.nodes[t].num_nodes) for t in ends_of(edge_type, direction))
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "rows": (own, ()), "others": (other, ()), "offsets": (np.dtype(np.uint32), ()),
    }  # fmt: skip
    for name, column in fixed_features(folder.edges(edge_type).features).items():
        kinds[f"feature {name}"] = (column.dtype, column.shape)
    columns = {}
    for name, (dtype, shape) in kinds.items():
        columns[name] = (first_byte, dtype, shape)
        first_byte += num_edges * dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    ragged = {}
    for name, source in ragged_features(folder.edges(edge_type).features).items():
        starts = np.empty(len(head) - 1, np.int64)
        read_into(path, first_byte, starts)
        first_offset = first_byte + starts.nbytes
        first_value = first_offset + (num_edges + 1) * INT64_BYTES
        ragged[name] = SpilledRagged(source, starts, first_offset, first_value)
        first_byte = first_value + int(starts[-1]) * source.element_bytes
    if path.stat().st_size != first_byte:
        raise StateError(f"{path} is {path.stat().st_size} bytes, not {first_byte}; remove its folder and start again")
    return SpillFile(path, int(head[0]), head[1:], columns, ragged)


@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """Edges ``[begin, end)`` of one spilled piece, which belong to a run."""

    file: SpillFile
    begin: int
    end: int

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of the share."""
        for first in range(self.begin, self.end, BLOCK_EDGES):
            yield first, min(first + BLOCK_EDGES, self.end)


@task
def finish_run(args: dict[str, Any]) -> dict[str, Any]:
    """Write the edges of a run of buckets."""
    finish = _Finish(DispatchFolder.of(args), edge_type_of(args), args["direction"], bool(args["check_sums"]))
    return {"stretches": finish.run(int(args["first"]), int(args["stop"]), int(args["num_pieces"]))}


class _Finish:
    """Writing of one run of one edge type and direction."""

    def __init__(self, folder: DispatchFolder, edge_type: EdgeType, direction: Direction, check_sums: bool) -> None:
        self.folder, self.edge_type, self.direction = folder, edge_type, direction
        self.settings = folder.spec.settings
        self.edges = folder.edges(edge_type)
        self.own_type, self.other_type = ends_of(edge_type, direction)
        self.check_sums = check_sums
        self.buckets: IdStretches = folder.buckets(edge_type, direction)
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
            for name in self.ragged:  # each file of offsets begins with 0; then each edge adds its end
                self.writer.write(integers(self._ragged_paths(part, name)[1], np.zeros(1, np.int64)), 0)

    def _write_rows(self, part: int, row_id: int, values: Array) -> None:
        path = edge_folder(part, self.edge_type, self.direction) / "indptr.npy"
        self.writer.write(integers(path, values), row_id - int(self.row_offsets[part]))

    def _read(self, shares: list[_Share], indptr: IntArray, first_id: int) -> EdgeRun:
        """Return the edges of some rows, in stored order."""
        num_edges, features = int(indptr[-1]), self.fixed
        other_dtype = number_dtype(self.folder.graph.nodes[self.other_type].num_nodes)
        has_keys, has_places = self.settings.keep_edge_keys, bool(self.edges.features) or self.has_times
        indices = np.empty(num_edges, other_dtype)
        keys = np.empty(num_edges if has_keys else 0, number_dtype(self.edges.num_edges))
        places = np.empty(num_edges if has_places else 0, number_dtype(num_edges))
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
        return EdgeRun(
            indptr=indptr, indices=indices, keys=keys, places=places, neighbor_keys=self.neighbor_keys, times=times,
            weights=weights_of(columns, self.settings.weight_attr), features=columns,
        )  # fmt: skip

    def _times(self, columns: dict[str, Array]) -> EdgeTimes | None:
        if not self.has_times:
            return None
        own = columns.get(self.settings.time_attr) if self.settings.time_attr is not None else None
        return EdgeTimes(own=own, neighbor=self.neighbor_times, neighbor_keys=None)

    def _write(self, run: EdgeRun, first_id: int, first_edge: int) -> None:
        """Write all stored columns of some rows' edges to the parts that own the rows."""
        if run.weights is not None and self.check_sums:
            self._check_sums(run, run.weights, first_id)
        for part, begin, end in overlaps(first_id, first_id + len(run.indptr) - 1, self.row_offsets):
            rows = run.rows(begin - first_id, end - first_id)
            first_row = first_edge + int(run.indptr[begin - first_id]) - int(self.edge_offsets[part])
            for column in edge_columns(edge_folder(part, self.edge_type, self.direction), rows, self.settings):
                self.writer.write(column, first_row)

    def _write_ragged(self, name: str, shares: list[_Share], run: EdgeRun, first_id: int, first_edge: int) -> None:
        """Write a ragged feature of some rows' edges."""
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
    """Return int64[num_edges], lengths of a ragged feature of some rows' edges, in the order of shares."""
    lengths, num_read = np.empty(num_edges, np.int64), 0
    for share in shares:
        for begin, end in share.blocks():
            rows = share.file.read("rows", begin, end)
            found = np.diff(share.file.ragged_offsets(name, begin, end))[(rows >= first_id) & (rows < last_id)]
            lengths[num_read : num_read + len(found)] = found
            num_read += len(found)
    return lengths


def _read_ragged(name: str, shares: list[_Share], first_id: int, last_id: int) -> Iterator[RaggedArray]:
    """Yield the rows of a ragged feature of the same edges, in the same order."""
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
