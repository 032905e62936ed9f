"""What do the rows of a dataset hold, a stretch at a time, and are they the bytes that were written?

This is all that re-sharding, and assignment from a dataset, see of it. A *row* is a node in its part. An *item* is what
a column has one of: an edge of a row, or the node itself; the items of a part are numbered in the order of rows. Files
are read and not mapped, so memory holds what was asked for and nothing else.

Checksums are taken while columns are read: stretches of a file that were read one after the other, by whichever tasks,
are added up to the checksum of the file. What leads to columns (offsets, keys) is checked as a whole before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, FileRecord, IntArray, array_header, check_file
from hopstream.dataset.book import Owner, PartitionBook, ends_of
from hopstream.dataset.chunks import overlaps
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import (
    Contents,
    edge_folder,
    expected_edges,
    expected_files,
    feature_paths,
    link_folder,
    node_folder,
    split_path,
)
from hopstream.dataset.regions import Stretch, Stretches, add_stretch, file_record, read_into
from hopstream.errors import FormatError
from hopstream.schema import EdgeType

INT64 = np.dtype(np.int64)
INDICES = PurePosixPath("indices.npy")
"""The column that holds ids."""


@dataclass(frozen=True, slots=True)
class ColumnFile:
    """A file with one value for each item of a part.

    Attributes:
        name: The file, in the folder of its owner in the part: ``indices.npy``, ``features/x.npy``.
        dtype: Of its values.
        shape: Of one value.
    """

    name: PurePosixPath
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def item_bytes(self) -> int:
        """Bytes of one value; 0 where its shape holds nothing."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class RaggedFiles:
    """The two files of a feature whose items hold different numbers of elements.

    Attributes:
        values: The elements of all items, one after the other.
        offsets: int64[items + 1], where the elements of each item begin.
    """

    values: ColumnFile
    offsets: ColumnFile


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a node type, or of an edge type in one direction; keys and offsets of nodes' rows are not in it.

    Attributes:
        fixed: One value for each item.
        ragged: Any number of elements for each item.
    """

    fixed: tuple[ColumnFile, ...]
    ragged: tuple[RaggedFiles, ...]


def columns_of(contents: Contents, owner: Owner) -> Columns:
    """The columns that each part of a dataset has of an owner."""
    features = contents.schema.nodes[owner] if isinstance(owner, str) else contents.schema.edges[owner[0]]
    folder = owner_folder(0, owner)
    ragged: list[RaggedFiles] = []
    fixed: list[ColumnFile] = []
    if not isinstance(owner, str):
        names = {str(path) for name, f in features.items() for path in feature_paths(folder, name, f)}
        names.add(str(folder / "indptr.npy"))
        fixed = [
            ColumnFile(PurePosixPath(name).relative_to(folder), np.dtype(expected.dtype))
            for name, expected in expected_edges(contents, 0, *owner)
            if name not in names
        ]
    for name, feature in features.items():
        paths = [path.relative_to(folder) for path in feature_paths(folder, name, feature)]
        values = ColumnFile(paths[0], feature.numpy_dtype, feature.shape)
        if feature.is_fixed_width:
            fixed.append(values)
        else:
            ragged.append(RaggedFiles(values, ColumnFile(paths[1], INT64)))
    return Columns(tuple(fixed), tuple(ragged))


@lru_cache(maxsize=1 << 14)
def owner_folder(part: int, owner: Owner) -> PurePosixPath:
    """The folder of a part's nodes of a type, or of its edges of a type and direction."""
    return node_folder(part, owner) if isinstance(owner, str) else edge_folder(part, *owner)


def owners_of(contents: Contents) -> list[Owner]:
    """Every node type, then every edge type in each direction."""
    return [*contents.schema.nodes, *((t, d) for t in contents.schema.edges for d in contents.directions)]


class DatasetRows:
    """The rows of a dataset.

    Whoever keeps changes beside the parts of a dataset answers the same questions about it as changed (``book``,
    ``ids_of_keys``, ``keys``, ``starts``, ``read``, ``value_starts``, ``read_values``, ``splits``, ``links``), says how
    much there is (``num_items``, ``num_bytes``), and checks its files (``leading_files``, ``check_files``,
    ``check_read``). Inside a part rows ascend by key. Positions of items and elements are the reader's own, as long as
    those of rows that follow each other do so, too. ``stretches`` says what ``read`` and ``read_values`` have read.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        """Look at a dataset; nothing is read yet."""
        self.root, self.manifest = root, manifest
        self.stretches: Stretches = {}
        self._heads: dict[str, int] = {}
        self._columns: dict[Owner, Columns] = {}

    @property
    def contents(self) -> Contents:
        """Types, directions, ranges, and what else decides which columns there are."""
        return self.manifest

    @property
    def book(self) -> PartitionBook:
        """Ranges of ids of nodes by part, and how many edges each part has."""
        return self.manifest.book

    def columns(self, owner: Owner) -> Columns:
        """The columns that each part has of an owner."""
        if owner not in self._columns:
            self._columns[owner] = columns_of(self.contents, owner)
        return self._columns[owner]

    def ids_of_keys(self, node_type: str, first: int, stop: int) -> IntArray:
        """int64[stop - first], the id of each key, in the range of ids.

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
        """int64[n], the keys of some rows of a part."""
        return self._read(str(node_folder(part, node_type) / "key.npy"), first_row, stop_row)

    def starts(self, owner: Owner, part: int, first_row: int, stop_row: int) -> IntArray:
        """int64[n + 1], where the items of some rows of a part begin, and where the last row ends.

        Raises:
            FormatError: The file is damaged.
        """
        if isinstance(owner, str):
            return np.arange(first_row, stop_row + 1, dtype=np.int64)
        name = str(edge_folder(part, *owner) / "indptr.npy")
        starts = self._read(name, first_row, stop_row + 1)
        self._check_ascending(name, starts, self.num_items(owner, part))
        return starts

    def num_items(self, owner: Owner, part: int) -> int:
        """How many items a part has."""
        offsets = self.book.offsets(owner)
        return int(offsets[part + 1] - offsets[part])

    def num_bytes(self, owner: Owner) -> int:
        """Bytes of the columns of all parts; it decides over how work is cut, and no more."""
        columns = self.columns(owner)
        names = [c.name for c in columns.fixed] + [f.name for c in columns.ragged for f in (c.values, c.offsets)]
        files = (str(owner_folder(p, owner) / name) for p in range(self.book.num_parts) for name in names)
        return sum(self.manifest.files[name].num_bytes for name in files)

    def read(self, owner: Owner, part: int, column: ColumnFile, begin: int, end: int) -> Array:
        """``dtype[end - begin, *shape]``, the values of some items of a part; checksums are taken on the way.

        Raises:
            FormatError: The file is missing or not as long as it must be; or a neighbour's id is out of range.
            ChecksumError: The same, where the file's checksum is another.
        """
        name = str(owner_folder(part, owner) / column.name)
        values = self._read(name, begin, end, is_summed=True)
        if not isinstance(owner, str) and column.name == INDICES:
            self._check_range(name, values, self.book.num_ids(ends_of(*owner)[1]))
        return values

    def value_starts(self, owner: Owner, part: int, column: RaggedFiles, begin: int, end: int) -> IntArray:
        """int64[end - begin + 1], where the elements of some items of a part begin, and where the last one's end.

        Raises:
            FormatError: The file is damaged.
        """
        folder = owner_folder(part, owner)
        name = str(folder / column.offsets.name)
        starts = self._read(name, begin, end + 1)
        self._check_ascending(name, starts, self.manifest.files[str(folder / column.values.name)].shape[0])
        return starts

    def read_values(self, owner: Owner, part: int, column: RaggedFiles, begin: int, end: int) -> Array:
        """``dtype[end - begin, *shape]``, some elements of a part; checksums are taken on the way."""
        return self._read(str(owner_folder(part, owner) / column.values.name), begin, end, is_summed=True)

    def splits(self, owner: str | EdgeType, name: str, max_keys: int) -> Iterator[IntArray]:
        """The keys of a split of nodes or edges, ascending, in blocks.

        Raises:
            FormatError: They do not ascend, or are out of range.
        """
        num_keys = self.book.num_ids(owner) if isinstance(owner, str) else self.book.num_edges(owner)
        last = -1
        for part in range(self.book.num_parts):
            folder = node_folder(part, owner) if isinstance(owner, str) else link_folder(part, owner)
            path = str(split_path(folder, name))
            num_here = self.manifest.files[path].shape[0]
            for begin in range(0, num_here, max_keys):
                keys = self._read(path, begin, min(begin + max_keys, num_here))
                if int(keys[0]) <= last or int(keys[-1]) >= num_keys or bool(np.any(keys[1:] <= keys[:-1])):
                    self._fail(path, f"keys must ascend, in all parts together, below {num_keys}")
                last = int(keys[-1])
                yield keys

    def links(self, edge_type: EdgeType, name: str, first: int, stop: int) -> IntArray:
        """int64[stop - first] of edge keys: ``src_key`` and ``dst_key`` (in the range of keys), or ``time``."""
        values = np.empty(stop - first, np.int64)
        for part, begin, end, done in _pieces(first, stop, self.book.link_offsets(edge_type)):
            path = str(link_folder(part, edge_type) / f"{name}.npy")
            values[done : done + end - begin] = here = self._read(path, begin, end)
            if name != "time":
                self._check_range(path, here, self.book.num_ids(edge_type[0 if name == "src_key" else 2]))
        return values

    @cached_property
    def leading_files(self) -> tuple[str, ...]:
        """The files that are checked as a whole before they are used: all but those that ``read`` sums."""
        summed: set[str] = set()
        for owner in owners_of(self.manifest):
            columns = self.columns(owner)
            names = [c.name for c in columns.fixed] + [c.values.name for c in columns.ragged]
            summed |= {str(owner_folder(p, owner) / name) for p in range(self.book.num_parts) for name in names}
        return tuple(name for name in self.manifest.files if name not in summed)

    def check_files(self, names: Iterable[str]) -> None:
        """Read whole files and compare their checksums.

        Raises:
            FormatError: One is missing.
            ChecksumError: One is not the one that was written.
        """
        for name in names:
            check_file(self.root / name, self.manifest.files[name])

    def check_read(self, stretches: Stretches) -> None:
        """Compare the checksums of what was read, by any number of readers, with the manifest.

        A file of which something was read twice or never is read again as a whole.

        Raises:
            ChecksumError: A file is not the one that was written.
            FormatError: A file is missing, or the dataset is not the one that it was when reading began.
        """
        if read_manifest(self.root).dataset_id != self.manifest.dataset_id:
            raise FormatError(f"{self.root} was replaced by another dataset while it was read; start again")
        for part in range(self.book.num_parts):
            for name, _ in expected_files(self.manifest, part):
                record = self.manifest.files[name]
                if name not in self._leading and not _is_summed_up(record, stretches.get(name, [])):
                    check_file(self.root / name, record)

    @cached_property
    def _leading(self) -> frozenset[str]:
        return frozenset(self.leading_files)

    def _read(self, name: str, begin: int, end: int, *, is_summed: bool = False) -> Array:
        """Rows of a file as they are."""
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

    def _head_bytes(self, name: str, record: FileRecord) -> int:
        """Where the values of a file begin, after a look at its header and size."""
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

    def _check_ascending(self, name: str, starts: IntArray, num_items: int) -> None:
        if int(starts[0]) < 0 or int(starts[-1]) > num_items or bool(np.any(starts[1:] < starts[:-1])):
            self._fail(name, f"offsets must ascend from 0 to {num_items}")

    def _fail(self, name: str, problem: str) -> None:
        """Say what is wrong with a file: that it was damaged on the way, or that it was written so.

        Raises:
            ChecksumError: It was damaged.
            FormatError: It was written so.
        """
        check_file(self.root / name, self.manifest.files[name])
        raise FormatError(f"{self.root / name}: {problem}; write the dataset again")


def _is_summed_up(record: FileRecord, stretches: Sequence[Stretch]) -> bool:
    """The stretches are the whole file, and add up to its checksum."""
    try:
        return file_record("", np.dtype(record.dtype), record.shape, stretches) == record
    except FormatError:
        return False


def _pieces(first: int, stop: int, bounds: IntArray) -> Iterator[tuple[int, int, int, int]]:
    """Rows ``[begin, end)`` of each part's slice of ``[first, stop)``, as ``(part, begin, end, rows before)``."""
    for part, begin, end in overlaps(first, stop, bounds):
        yield part, begin - int(bounds[part]), end - int(bounds[part]), begin - first
