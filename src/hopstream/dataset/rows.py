"""Reads the rows of a dataset from its files in ranges, and checks that the files are unchanged.

Re-sharding, assignment, reading back and export use this. A *row* is a node in its part. An *item* is one value of a
column: an edge of a row, or the node itself. The items of a part or overlay (a *piece*) are numbered in the order of
its rows; ``spans`` locates the newest items of a row. Files are read, not mapped, so memory holds only the requested
rows. Only the row numbers of overlays are mapped.

Checksums are computed while columns are read. The ranges of a file that the tasks read are combined into the checksum
of the file. Offsets and keys, which locate the columns, are checked completely before use.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np

from hopstream.arrays import (
    Array,
    Column,
    FileRecord,
    IntArray,
    array_header,
    check_file,
    join_columns,
    offsets_of,
    open_array,
    take_column,
)
from hopstream.dataset.book import EdgeEntity, Entity, PartitionBook, ends_of, number_dtype
from hopstream.dataset.chunks import cut_counts, overlaps, positions_of
from hopstream.dataset.copying.local_copy import folder_of
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.overlays import RowSpans, newest_spans
from hopstream.dataset.paths import (
    Contents,
    check_is_here,
    edge_folder,
    expected_edges,
    expected_files,
    feature_paths,
    link_folder,
    node_folder,
    piece_folders,
    split_path,
)
from hopstream.dataset.regions import Stretch, Stretches, add_stretch, file_record, read_into
from hopstream.errors import FormatError
from hopstream.kernels.gather import move_rows, word_dtype
from hopstream.schema import EdgeType

INT64 = np.dtype(np.int64)
INDICES, EDGE_KEYS = "indices.npy", "key.npy"
"""The columns of edges that hold the ids of their neighbours, and the edges' keys."""
GAP_BYTES = 1 << 14
"""Ranges of a file that are closer together than this are read as one."""
BLOCK_ROWS = 1 << 18
"""Rows that are located together."""


@dataclass(frozen=True, slots=True)
class ColumnFile:
    """A file with one value for each item of a part.

    Attributes:
        name: The file, in the folder of its entity in the part: ``indices.npy``, ``features/x.npy``.
        dtype: dtype of the values.
        shape: Shape of one value.
    """

    name: PurePosixPath
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def item_bytes(self) -> int:
        """Bytes of one value; 0 for an empty shape."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class RaggedFiles:
    """The two files of a ragged feature.

    Attributes:
        values: The elements of all items, one item after the other.
        offsets: int64[items + 1], the offset of each item's elements.
    """

    values: ColumnFile
    offsets: ColumnFile


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a node type, or of an edge type in one direction, without node keys and row offsets.

    Attributes:
        fixed: Files with one value for each item: features, ids of neighbours, and further columns of edges.
        features: Feature name to its file or files.
    """

    fixed: tuple[ColumnFile, ...]
    features: Mapping[str, ColumnFile | RaggedFiles]

    @property
    def ragged(self) -> tuple[RaggedFiles, ...]:
        """The ragged features, with any number of elements per item."""
        return tuple(files for files in self.features.values() if isinstance(files, RaggedFiles))

    def named(self, name: str) -> ColumnFile:
        """Return the column with a file name, which must exist."""
        return next(column for column in self.fixed if str(column.name) == name)


def columns_of(contents: Contents, entity: Entity) -> Columns:
    """Return the columns of an entity, the same in each part of a dataset."""
    schemas = contents.schema.nodes[entity] if isinstance(entity, str) else contents.schema.edges[entity[0]]
    folder = entity_folder(0, entity)
    features: dict[str, ColumnFile | RaggedFiles] = {}
    for name, feature in schemas.items():
        paths = [path.relative_to(folder) for path in feature_paths(folder, name, feature)]
        values = ColumnFile(paths[0], feature.numpy_dtype, feature.shape)
        features[name] = values if feature.is_fixed_width else RaggedFiles(values, ColumnFile(paths[1], INT64))
    fixed = [files for files in features.values() if isinstance(files, ColumnFile)]
    if not isinstance(entity, str):
        beside = [(PurePosixPath(name).relative_to(folder), of) for name, of in expected_edges(contents, 0, *entity)]
        fixed[:0] = [
            ColumnFile(name, np.dtype(of.dtype))
            for name, of in beside
            if name.name != "indptr.npy" and name.parent.name != "features"
        ]
    return Columns(tuple(fixed), features)


@lru_cache(maxsize=1 << 14)
def entity_folder(part: int, entity: Entity) -> PurePosixPath:
    """Return the folder of a part's nodes of a type, or of its edges of a type and direction."""
    return node_folder(part, entity) if isinstance(entity, str) else edge_folder(part, *entity)


def entities_of(contents: Contents) -> list[Entity]:
    """Return every node type, then every edge type in each direction."""
    return [*contents.schema.nodes, *((t, d) for t in contents.schema.edges for d in contents.directions)]


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """Newest items of some rows, all in one piece.

    Attributes:
        piece: The part or overlay that holds the items.
        row_ids: int64[n], the id of the node of each row.
        starts: int64[n], the position of the row's first item in the piece, ascending.
        counts: int64[n], the number of the row's items in the block.
        places: int64[n], the position of the row's first item among the newest items of all rows, in the order of node
            ids.
    """

    piece: int
    row_ids: IntArray
    starts: IntArray
    counts: IntArray
    places: IntArray

    @property
    def item_places(self) -> IntArray:
        """int64[items], the position of each item among the newest items of all rows."""
        return positions_of(self.places, self.counts)


class DatasetRows:
    """Rows of a dataset, each in its newest version. Inside a part rows ascend by key.

    Attributes:
        root: Folder of the dataset.
        manifest: Manifest of the dataset.
        stretches: The ranges of each file that ``read`` has read.
    """

    def __init__(self, root: Path, manifest: Manifest, *, takes_sums: bool = True) -> None:
        """Take a dataset without reading it.

        Args:
            root: Folder of the dataset.
            manifest: Manifest of the dataset.
            takes_sums: Whether to compute checksums of the ranges read; False if the files were checked before.
        """
        self.root, self.manifest, self._takes_sums = root, manifest, takes_sums
        self.stretches: Stretches = {}
        self._heads: dict[str, int] = {}
        self._columns: dict[Entity, Columns] = {}
        self._piece_folders: dict[Entity, list[PurePosixPath]] = {}
        self._overlay_rows: dict[tuple[EdgeEntity, int], list[IntArray]] = {}

    @property
    def contents(self) -> Contents:
        """The manifest's fields that decide which columns the dataset has."""
        return self.manifest

    @property
    def book(self) -> PartitionBook:
        """Ranges of ids by part, and the number of edges in each part."""
        return self.manifest.book

    def columns(self, entity: Entity) -> Columns:
        """Return the columns that each part has of an entity."""
        if entity not in self._columns:
            self._columns[entity] = columns_of(self.contents, entity)
        return self._columns[entity]

    def folders(self, entity: Entity) -> list[PurePosixPath]:
        """Return the folder of each piece of an entity: parts, then overlays."""
        if entity not in self._piece_folders:
            if isinstance(entity, str):
                folders = [node_folder(part, entity) for part in range(self.book.num_parts)]
            else:
                folders = piece_folders(self.book, *entity)
            self._piece_folders[entity] = folders
        return self._piece_folders[entity]

    def ids_of_keys(self, node_type: str, first: int, stop: int) -> IntArray:
        """Return int64[stop - first], the id of each key, checked to be in range.

        Raises:
            FormatError: The file is damaged.
        """
        ids = np.empty(stop - first, np.int64)
        for part, begin, end, done in _pieces(first, stop, self.book.key_offsets(node_type)):
            name = str(node_folder(part, node_type) / "id_of_key.npy")
            ids[done : done + end - begin] = values = self._read(name, begin, end)
            self._check_range(name, values, self.book.num_ids(node_type))
        return ids

    def keys(self, node_type: str, part: int, first_row: int, stop_row: int) -> IntArray:
        """Return int64[n], the keys of some rows of a part."""
        return self._read(str(node_folder(part, node_type) / "key.npy"), first_row, stop_row)

    def keys_of_ids(self, node_type: str) -> Array:
        """Return integer[num_nodes], the key of each id, in the dtype of neighbours' ids.

        Raises:
            FormatError: Keys are not 0..n-1, each once.
        """
        num_nodes, offsets = self.book.num_ids(node_type), self.book.node_offsets[node_type]
        found, marks = np.empty(num_nodes, number_dtype(num_nodes)), KeyMarks(f"{self.root}: {node_type}", num_nodes)
        for first_id, part, begin, end in _steps(offsets):
            keys = self.keys(node_type, part, begin, end)
            marks.add(keys)
            found[first_id : first_id + len(keys)] = keys
        marks.check()
        return found

    def spans(self, entity: Entity, part: int, first_row: int, stop_row: int) -> RowSpans:
        """Locate the newest items of some rows of a part.

        Raises:
            FormatError: A file is damaged.
        """
        if isinstance(entity, str):
            rows = np.arange(first_row, stop_row, dtype=np.int64)
            return RowSpans(np.full(len(rows), part, np.int64), rows, np.ones(len(rows), np.int64))
        pieces = self.book.pieces_of(entity, part)
        if len(pieces) == 1:
            bounds = self._indptr(entity, part, first_row, stop_row)
            return RowSpans(np.full(stop_row - first_row, part, np.int64), bounds[:-1], np.diff(bounds))
        found = newest_spans(
            np.arange(first_row, stop_row, dtype=np.int64),
            self._rows_of_overlays(entity, part),
            lambda piece, first, stop: self._indptr(entity, int(pieces[piece]), first, stop),
        )
        return RowSpans(pieces[found.pieces], found.starts, found.counts)

    def blocks(self, entity: Entity, max_items: int) -> Iterator[RowBlock]:
        """Yield the newest items of all rows in blocks of at most ``max_items``; a hub spans several blocks."""
        place = 0
        for first_id, part, begin, end in _steps(self.book.node_offsets[own_type(entity)]):
            spans = self.spans(entity, part, begin, end)
            places = offsets_of(spans.counts) + place
            for piece in np.flatnonzero(np.bincount(spans.pieces)).tolist():
                here = np.flatnonzero(spans.pieces == piece)
                for rows, skipped, counts in cut_counts(spans.counts[here], max_items):
                    which = here[rows]
                    yield RowBlock(
                        piece, first_id + which, spans.starts[which] + skipped, counts, places[which] + skipped
                    )
            place = int(places[-1])

    def num_bytes(self, entity: Entity) -> int:
        """Return the bytes of the columns of all pieces, only to decide how to divide work."""
        columns = self.columns(entity)
        names = [c.name for c in columns.fixed] + [f.name for c in columns.ragged for f in (c.values, c.offsets)]
        return sum(
            self.manifest.files[str(folder / name)].num_bytes for folder in self.folders(entity) for name in names
        )

    def read(self, entity: Entity, column: ColumnFile, piece: int, begin: int, end: int) -> Array:
        """Return some values of a piece, ``dtype[end - begin, *shape]``, and update the checksum.

        Raises:
            FormatError: The file is missing or has the wrong size, or a neighbour's id is out of range.
            ChecksumError: A neighbour's id is out of range because the file does not match its checksum.
        """
        name = f"{self.folders(entity)[piece]}/{column.name}"
        values = self._read(name, begin, end, is_summed=self._takes_sums)
        if not isinstance(entity, str) and str(column.name) == INDICES:
            self._check_range(name, values, self.book.num_ids(ends_of(*entity)[1]))
        return values

    def read_spans(self, entity: Entity, column: ColumnFile, piece: int, starts: IntArray, counts: IntArray) -> Array:
        """Return the values of ascending spans of a piece, in order, as ``dtype[sum(counts), *shape]``."""
        found = [
            take_rows(self.read(entity, column, piece, begin, end), starts[few] - begin, counts[few])
            for few, begin, end in _near(starts, counts, GAP_BYTES // max(1, column.item_bytes))
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def element_spans(
        self, entity: Entity, column: RaggedFiles, piece: int, starts: IntArray, counts: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Locate the elements of the items in ascending spans of a piece.

        Returns:
            starts: int64[sum(counts)], the position of the first element of each item in the piece.
            counts: int64[sum(counts)], the number of elements of each item.

        Raises:
            FormatError: The file is damaged.
        """
        found, lengths = [], []
        folder = self.folders(entity)[piece]
        num_elements = self.manifest.files[str(folder / column.values.name)].shape[0]
        for few, begin, end in _near(starts, counts, GAP_BYTES // INT64.itemsize):
            offsets = self._offsets(f"{folder}/{column.offsets.name}", begin, end, num_elements)
            found.append(take_rows(offsets[:-1], starts[few] - begin, counts[few]))
            lengths.append(take_rows(np.diff(offsets), starts[few] - begin, counts[few]))
        return np.concatenate(found), np.concatenate(lengths)

    def splits(self, entity: str | EdgeType, name: str, max_keys: int) -> Iterator[IntArray]:
        """Yield the keys of a split of nodes or edges, ascending, in blocks.

        Raises:
            FormatError: The keys do not ascend, or are out of range.
        """
        num_keys = self.book.num_ids(entity) if isinstance(entity, str) else self.book.num_edges(entity)
        last = -1
        for part in range(self.book.num_parts):
            folder = node_folder(part, entity) if isinstance(entity, str) else link_folder(part, entity)
            path = str(split_path(folder, name))
            num_here = self.manifest.files[path].shape[0]
            for begin in range(0, num_here, max_keys):
                keys = self._read(path, begin, min(begin + max_keys, num_here))
                if int(keys[0]) <= last or int(keys[-1]) >= num_keys or bool(np.any(keys[1:] <= keys[:-1])):
                    self._fail(path, f"keys must ascend, in all parts together, below {num_keys}")
                last = int(keys[-1])
                yield keys

    def links(self, edge_type: EdgeType, name: str, first: int, stop: int) -> IntArray:
        """Return int64[stop - first] by edge key: ``src_key`` or ``dst_key`` (range checked), or ``time``."""
        values = np.empty(stop - first, np.int64)
        for part, begin, end, done in _pieces(first, stop, self.book.link_offsets(edge_type)):
            path = str(link_folder(part, edge_type) / f"{name}.npy")
            values[done : done + end - begin] = here = self._read(path, begin, end)
            if name != "time":
                self._check_range(path, here, self.book.num_ids(edge_type[0 if name == "src_key" else 2]))
        return values

    @cached_property
    def leading_files(self) -> tuple[str, ...]:
        """The files to check completely before use: all files that ``read`` does not sum."""
        summed: set[str] = set()
        for entity in entities_of(self.manifest):
            columns = self.columns(entity)
            names = [c.name for c in columns.fixed] + [c.values.name for c in columns.ragged]
            summed |= {str(folder / name) for folder in self.folders(entity) for name in names}
        return tuple(name for name in self.manifest.files if name not in summed)

    def check_files(self, names: Iterable[str]) -> None:
        """Read whole files and compare their checksums.

        Raises:
            FormatError: A file is missing.
            ChecksumError: A file does not match its checksum.
        """
        for name in names:
            check_file(self.root / name, self.manifest.files[name])

    def check_read(self, stretches: Stretches) -> None:
        """Compare the checksums of all ranges read, by any number of readers, with the manifest.

        A file with a range that was read twice or never is read again completely.

        Raises:
            ChecksumError: A file does not match its checksum.
            FormatError: A file is missing, or the dataset was replaced while it was read.
        """
        if read_manifest(self.root).dataset_id != self.manifest.dataset_id:
            raise FormatError(f"{self.root} was replaced by another dataset while it was read; start again")
        leading = frozenset(self.leading_files)
        for part in range(self.book.num_parts):
            for name, _ in expected_files(self.manifest, part):
                record = self.manifest.files[name]
                if name not in leading and not _is_summed_up(record, stretches.get(name, [])):
                    check_file(self.root / name, record)

    def _read(self, name: str, begin: int, end: int, *, is_summed: bool = False) -> Array:
        """Return rows ``[begin, end)`` of a file, unchecked."""
        record = self.manifest.files[name]
        dtype, shape = np.dtype(record.dtype), record.shape
        values = np.empty((end - begin, *shape[1:]), dtype)
        item_bytes = math.prod(shape[1:]) * dtype.itemsize
        if not values.nbytes:
            return values
        first_byte = begin * item_bytes
        read_into(self.root / name, self._head_bytes(name, record) + first_byte, values)
        if is_summed:
            add_stretch(self.stretches.setdefault(name, []), first_byte, values)
        return values

    def _indptr(self, entity: EdgeEntity, piece: int, first: int, stop: int) -> IntArray:
        """Return int64[stop - first + 1], the offsets of the edges of some rows of a piece."""
        num_items = int(np.diff(self.book.offsets(entity))[piece])
        return self._offsets(f"{self.folders(entity)[piece]}/indptr.npy", first, stop, num_items)

    def _offsets(self, name: str, begin: int, end: int, num_items: int) -> IntArray:
        """Return int64[end - begin + 1], checked offsets of a file."""
        offsets = self._read(name, begin, end + 1)
        if int(offsets[0]) < 0 or int(offsets[-1]) > num_items or bool(np.any(offsets[1:] < offsets[:-1])):
            self._fail(name, f"offsets must ascend from 0 to {num_items}")
        return offsets

    def _rows_of_overlays(self, entity: EdgeEntity, part: int) -> list[IntArray]:
        """Return the rows that each overlay of a part replaces, memory-mapped and checked once.

        Raises:
            FormatError: The rows do not ascend, or are not rows of the part.
        """
        key = (entity, part)
        if key not in self._overlay_rows:
            first, stop = self.book.node_offsets[own_type(entity)][part : part + 2]
            found = []
            for piece in self.book.pieces_of(entity, part)[1:]:
                name, last = str(self.folders(entity)[piece] / "row.npy"), -1
                rows = open_array(self.root / name, self.manifest.files[name])
                for begin in range(0, len(rows), BLOCK_ROWS):
                    block = rows[begin : begin + BLOCK_ROWS]
                    self._check_range(name, block, int(stop - first))
                    if int(block[0]) <= last or bool(np.any(block[1:] <= block[:-1])):
                        self._fail(name, "rows must ascend, each once")
                    last = int(block[-1])
                found.append(rows)
            self._overlay_rows[key] = found
        return self._overlay_rows[key]

    def _head_bytes(self, name: str, record: FileRecord) -> int:
        """Return the offset of a file's values; check its header and size once."""
        if name not in self._heads:
            path, header = self.root / name, array_header(np.dtype(record.dtype), record.shape)
            try:
                with path.open("rb") as file:
                    found, num_bytes = file.read(len(header)), path.stat().st_size
            except FileNotFoundError as error:
                raise FormatError(f"{path} is missing; write the dataset again or copy the file") from error
            if num_bytes != record.num_bytes:
                raise FormatError(f"{path} is {num_bytes} bytes; the manifest says {record.num_bytes}; copy it again")
            if found != header:
                self._fail(name, f"the header is not that of {record.dtype}{list(record.shape)}")
            self._heads[name] = len(header)
        return self._heads[name]

    def _check_range(self, name: str, values: Array, num_ids: int) -> None:
        if len(values) and (int(values.min()) < 0 or int(values.max()) >= num_ids):
            self._fail(name, f"it holds {int(values.min())}..{int(values.max())}; wanted 0..{num_ids - 1}")

    def _fail(self, name: str, problem: str) -> None:
        """Raise the error for a file with wrong content.

        Raises:
            ChecksumError: The file was damaged after it was written.
            FormatError: The file was written with the wrong content.
        """
        check_file(self.root / name, self.manifest.files[name])
        raise FormatError(f"{self.root / name}: {problem}; write the dataset again")


def _is_summed_up(record: FileRecord, stretches: Sequence[Stretch]) -> bool:
    """Return whether the ranges cover the whole file and combine to its checksum."""
    try:
        return file_record("", np.dtype(record.dtype), record.shape, stretches) == record
    except FormatError:
        return False


def _pieces(first: int, stop: int, bounds: IntArray) -> Iterator[tuple[int, int, int, int]]:
    """Split ``[first, stop)`` by the parts' slices; yield ``(part, begin, end, rows before)``."""
    for part, begin, end in overlaps(first, stop, bounds):
        yield part, begin - int(bounds[part]), end - int(bounds[part]), begin - first


def _steps(node_offsets: IntArray) -> Iterator[tuple[int, int, int, int]]:
    """Yield ranges of ``BLOCK_ROWS`` rows of all parts: ``(first id, part, first row, end row)``."""
    for part in range(len(node_offsets) - 1):
        first_id, num_rows = int(node_offsets[part]), int(node_offsets[part + 1] - node_offsets[part])
        for begin in range(0, num_rows, BLOCK_ROWS):
            yield first_id + begin, part, begin, min(begin + BLOCK_ROWS, num_rows)


def _near(starts: IntArray, counts: IntArray, max_gap: int) -> Iterator[tuple[slice, int, int]]:
    """Group ascending spans into runs that are read at once: ``(spans, first position, end position)``.

    A read is at most as long as all spans together plus one span, even with many short gaps.
    """
    if not len(starts):
        yield slice(0), 0, 0
        return
    ends = starts + counts
    num_items, cuts = int(counts.sum()), [0, len(starts)]
    if num_items < ends[-1] - starts[0]:
        reaches = (starts - starts[0]) // max(1, num_items)
        is_cut = (starts[1:] - ends[:-1] > max_gap) | (reaches[1:] != reaches[:-1])
        cuts[1:1] = (np.flatnonzero(is_cut) + 1).tolist()
    for low, high in itertools.pairwise(cuts):
        yield slice(low, high), int(starts[low]), int(ends[high - 1])


def take_rows(values: Array, starts: IntArray, counts: IntArray, order: IntArray | None = None) -> Array:
    """Copy the items of some rows, one row after the other.

    Args:
        values: The source, in C order.
        starts: int64[n], the offset of each row's items in ``values``.
        counts: int64[n], the number of each row's items.
        order: int64[n], the order of the rows in the result; None for the given order. Then ``values`` itself may be
            the result.
    """
    num_items = int(counts.sum())
    if order is None:
        if num_items == len(values):
            return values
        order = np.arange(len(counts))
    out = np.empty((num_items, *values.shape[1:]), values.dtype)
    if out.nbytes:
        item_bytes = out.nbytes // num_items
        word = word_dtype(item_bytes)
        words, target = (array.reshape(-1).view(word) for array in (values, out))
        move_rows(order, starts, counts, item_bytes // word.itemsize, words, target)
    return out


def own_type(entity: Entity) -> str:
    """Return the node type whose nodes are the rows of an entity."""
    return entity if isinstance(entity, str) else ends_of(*entity)[0]


class KeyMarks:
    """Marks of seen keys, to check that keys are ``0..num_keys - 1``, each once."""

    def __init__(self, where: str, num_keys: int) -> None:
        """Start without keys; ``where`` names the source of the keys in errors."""
        self._where, self._is_seen = where, np.zeros(num_keys, np.bool_)

    def add(self, keys: Array) -> None:
        """Mark keys.

        Raises:
            FormatError: A key is out of range.
        """
        if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= len(self._is_seen)):
            self._refuse()
        self._is_seen[keys] = True

    def check(self) -> None:
        """Raise ``FormatError`` unless every key was marked."""
        if not self._is_seen.all():
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise FormatError(f"{self._where}: keys must be 0..{len(self._is_seen) - 1}, each once")


def open_rows(root: str | Path) -> DatasetRows:
    """Open the rows of the dataset in a folder.

    Raises:
        FormatError: The folder is no finished dataset of a format that this version reads, or a part is missing.
        ChecksumError: The manifest does not match its checksum.
    """
    folder = folder_of(root)
    manifest = read_manifest(folder)
    for part in range(manifest.book.num_parts):
        check_is_here(folder, part, manifest.dataset_id)
    return DatasetRows(folder, manifest)


def rows_of_ids(columns: Sequence[Column], offsets: IntArray, ids: IntArray) -> Column:
    """Return the rows of some ids, in the order of the ids.

    Args:
        columns: The column of each part.
        offsets: int64[num_parts + 1], the ranges of ids of the parts.
        ids: int64[n], inside the offsets.
    """
    parts, first = np.searchsorted(offsets, ids, side="right") - 1, columns[0]
    places = [np.flatnonzero(parts == part) for part in range(len(columns))]
    rows = [ids[found] - start for found, start in zip(places, offsets, strict=False)]
    if isinstance(first, np.ndarray):
        out = np.empty((len(ids), *first.shape[1:]), first.dtype)
        for column, found, of_part in zip(columns, places, rows, strict=True):
            if len(found):
                out[found] = column[of_part]
        return out
    back = np.empty(len(ids), np.int64)
    back[np.concatenate(places)] = np.arange(len(ids))
    return take_column(join_columns([take_column(of, at) for of, at in zip(columns, rows, strict=True)]), back)
