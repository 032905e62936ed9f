"""Folder that the tasks of a dataset-writing job share, and the numbering of nodes.

Owners are read twice: to count nodes, and to number them. Keys ascend inside a part, so the nodes of one part in a
range of keys are a contiguous range of the part's rows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from hopstream.arrays import Array, IntArray, extend_checksum, open_array, write_text
from hopstream.assign.owners import owner_blocks, owners_path
from hopstream.dataset.balance import MAX_MATRIX_PARTS
from hopstream.dataset.book import number_dtype
from hopstream.dataset.chunks import overlaps, stretches_of
from hopstream.dataset.paths import node_folder, split_path
from hopstream.dataset.regions import RegionWriter, read_array
from hopstream.dataset.settings import PartitionSettings
from hopstream.dataset.stored_columns import integers
from hopstream.engine.folder_job import JobFolder
from hopstream.engine.settings import Allotment, Needs
from hopstream.kernels.spill import number_nodes as give_ids
from hopstream.schema import EdgeType

Places = Sequence[tuple[int, IntArray]]
"""``(part, places)`` for each part that occurs; places ascend."""
RANGES = "ranges.json"
IDS = "ids"
"""Name of the table with the new id of each node, by key."""
REST_BYTES = 180 << 20
"""Memory of a process with loaded libraries and compiled kernels that reads a file."""
DECODING_BYTES = 176 << 20
"""Memory that Arrow does not report while it decodes strings, independent of their number; some 160 MB measured."""
MIN_BUDGET_BYTES = 48 << 20
TASKS_PER_WORKER = 4
"""Least number of tasks per worker, if there is enough work, so that workers finish at about the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetJobSpec:
    """Everything that determines what the tasks of a job do.

    Attributes:
        source: Folder of the input.
        owners: Folder with the part of each node; empty if the job assigns nodes itself.
        settings: Settings of the partitioning and of the stored columns.
        budget_bytes: Memory of one worker for its work.
        num_workers: Number of concurrent workers.
        limits: Bounds of the sizes of tasks; part of the spec because all workers must agree on them.
    """

    limits_type: ClassVar[type[Any]]
    source: str
    owners: str
    settings: PartitionSettings
    budget_bytes: int
    num_workers: int
    limits: Any

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that ``from_json`` reads."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "settings": self.settings.to_json(), "limits": asdict(self.limits)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read what ``to_json`` wrote."""
        limits = {name: tuple(size) if isinstance(size, list) else size for name, size in value["limits"].items()}
        settings = PartitionSettings.from_json(value["settings"])
        return cls(**{**value, "settings": settings, "limits": cls.limits_type(**limits)})

    def share(self, amount: int) -> int:
        """Return one task's share of the work of a stage."""
        return -(-amount // (TASKS_PER_WORKER * max(1, self.num_workers)))


Spec = TypeVar("Spec", bound=DatasetJobSpec)


class DatasetJobFolder(JobFolder[Spec], ABC):
    """Folder of a job that writes a dataset: the dataset, and tables with a row per node in ``scratch``."""

    def __init__(self, root: Path) -> None:
        """Take a folder without reading it."""
        super().__init__(root)
        self.dataset = root / "dataset"

    @property
    @abstractmethod
    def node_types(self) -> Sequence[str]:
        """Node types; file names contain the position of a type in this list."""

    @abstractmethod
    def num_nodes(self, node_type: str) -> int:
        """Return the number of nodes of a type."""

    @abstractmethod
    def split_names(self, node_type: str) -> Sequence[str]:
        """Return the names of the splits of a node type."""

    @abstractmethod
    def split_keys(self, node_type: str, name: str) -> Iterator[IntArray]:
        """Yield the keys of a split of nodes, ascending, in blocks."""

    @abstractmethod
    def tables(self, node_type: str) -> Iterator[tuple[str, np.dtype[Any]]]:
        """Yield name and dtype of the tables of a node type; ``ids`` is one of them."""

    @abstractmethod
    def keep_ids(self, tables: RegionWriter, node_type: str, first_key: int, ids: Array, places: Places) -> None:
        """Store further values that later tasks look up.

        Args:
            tables: Writer to ``scratch``.
            node_type: Type of the nodes.
            first_key: The first key of a range; ranges come in order.
            ids: Ids of the keys of the range.
            places: The positions of each part's nodes in ``ids``.
        """

    @property
    @abstractmethod
    def block_rows(self) -> int:
        """Number of node rows that are processed together."""

    @property
    def owners_folder(self) -> Path:
        """Folder with the part of each node: the user's, or the job's own."""
        return Path(self.spec.owners) if self.spec.owners else self.root / "owners"

    @property
    def num_parts(self) -> int:
        """Number of parts of the new dataset."""
        return self.spec.settings.num_parts

    @cached_property
    def _ranges(self) -> dict[str, IntArray]:
        value = json.loads((self.scratch / RANGES).read_text(encoding="utf-8"))
        return {t: np.array(offsets, np.int64) for t, offsets in value.items()}

    def node_offsets(self, node_type: str) -> IntArray:
        """Return int64[num_parts + 1], the ranges of ids of the parts; known after the counting stage."""
        return self._ranges[node_type]

    def write_ranges(self, ranges: dict[str, IntArray]) -> None:
        """Write the ranges of ids of the parts for later tasks."""
        write_text(self.scratch / RANGES, json.dumps({t: offsets.tolist() for t, offsets in ranges.items()}))

    def slice_offsets(self, num_keys: int) -> IntArray:
        """Return int64[num_parts + 1], the ranges of keys whose bookkeeping each part keeps."""
        return np.arange(self.num_parts + 1, dtype=np.int64) * num_keys // self.num_parts

    def id_dtype(self, node_type: str) -> np.dtype[Any]:
        """Return the dtype of ids of a node type in tables."""
        return number_dtype(self.num_nodes(node_type))

    def table_name(self, what: str, node_type: str) -> PurePosixPath:
        """Return the path of a table with a row per node, relative to the scratch folder."""
        return PurePosixPath(what, f"{self.node_types.index(node_type)}.npy")

    def table_path(self, what: str, node_type: str) -> Path:
        """Return the file of a table."""
        return self.scratch / self.table_name(what, node_type)

    def table(self, what: str, node_type: str) -> Array:
        """Map a table."""
        return open_array(self.table_path(what, node_type))


def empty_matrix(num_parts: int) -> IntArray:
    """Return a zero matrix of edges between parts; without rows above ``MAX_MATRIX_PARTS`` parts."""
    num_rows = num_parts if num_parts <= MAX_MATRIX_PARTS else 0
    return np.zeros((num_rows, num_rows), np.int64)


def edge_type_of(args: dict[str, Any]) -> EdgeType:
    """Return the edge type of a task's arguments."""
    source, relation, destination = args["type"]
    return source, relation, destination


def work_needs(mapped_bytes: int, *, reads_ragged: bool = False) -> Needs:
    """Return the memory that work on pieces of a graph needs.

    Args:
        mapped_bytes: Bytes of the tables that each worker maps.
        reads_ragged: Whether Parquet files hold strings, or lists of varying length.
    """
    worker = REST_BYTES + reads_ragged * DECODING_BYTES + min(mapped_bytes + MIN_BUDGET_BYTES, 4 * MIN_BUDGET_BYTES)
    return Needs(alone_bytes=worker, parent_bytes=REST_BYTES, worker_bytes=worker)


def budget_of(work: Allotment, mapped_bytes: int, *, reads_ragged: bool = False) -> int:
    """Return one worker's memory for its work, given an allotment for the same ``work_needs``."""
    num_processes = work.num_workers + 1
    rest = num_processes * REST_BYTES + work.num_working * reads_ragged * DECODING_BYTES
    share = (work.memory_bytes - rest) // work.num_working
    # The kernel reclaims mapped pages, so tables that do not fit slow the work down but do not stop it.
    return max(share - mapped_bytes, share // 4)


def count_of_type(folder: DatasetJobFolder[Any], node_type: str) -> dict[str, Any]:
    """Count the nodes of each part, and the keys of each split in each part's slice of keys."""
    counts, slices = np.zeros(folder.num_parts, np.int64), folder.slice_offsets(folder.num_nodes(node_type))
    for _, owners in _owners(folder, node_type):
        counts += np.bincount(owners, minlength=folder.num_parts)
    splits = {}
    for name in folder.split_names(node_type):
        sizes, checksum = np.zeros(folder.num_parts, np.int64), 0
        for keys in folder.split_keys(node_type, name):
            checksum = extend_checksum(checksum, keys)
            for part, begin, end in stretches_of(keys, slices):
                sizes[part] += end - begin
        splits[name] = {"counts": sizes.tolist(), "checksum": checksum}
    return {"counts": counts.tolist(), "splits": splits}


def number_type(folder: DatasetJobFolder[Any], node_type: str) -> dict[str, Any]:
    """Write keys, ids of keys and splits of all parts, and the lookup tables of later tasks."""
    writer, tables = RegionWriter(folder.dataset), RegionWriter(folder.scratch)
    offsets, slices = folder.node_offsets(node_type), folder.slice_offsets(folder.num_nodes(node_type))
    next_ids, dtype = offsets[:-1].copy(), folder.id_dtype(node_type)
    for first, owners in _owners(folder, node_type):
        ids = np.empty(len(owners), dtype)
        give_ids(owners, next_ids, ids)
        tables.write_blocks(folder.table_name(IDS, node_type), dtype, first * dtype.itemsize, [ids])
        for part, begin, end in overlaps(first, first + len(ids), slices):
            rows = ids[begin - first : end - first]
            writer.write(integers(node_folder(part, node_type) / "id_of_key.npy", rows), begin - int(slices[part]))
        by_part = list(places_of_parts(owners, folder.num_parts))
        for part, places in by_part:
            first_row = int(ids[places[0]]) - int(offsets[part])
            writer.write(integers(node_folder(part, node_type) / "key.npy", first + places), first_row)
        folder.keep_ids(tables, node_type, first, ids, by_part)
    seeds = {name: _write_split(folder, writer, node_type, name) for name in folder.split_names(node_type)}
    return {"stretches": writer.stretches, "seeds": seeds}


def _owners(folder: DatasetJobFolder[Any], node_type: str) -> Iterator[tuple[int, Array]]:
    path = owners_path(folder.owners_folder, node_type)
    return owner_blocks(path, folder.num_nodes(node_type), folder.num_parts)


def _write_split(folder: DatasetJobFolder[Any], writer: RegionWriter, node_type: str, name: str) -> list[int]:
    """Write a split to the parts that keep its keys; return the number of its nodes that each part owns."""
    written, seeds = np.zeros(folder.num_parts, np.int64), np.zeros(folder.num_parts, np.int64)
    offsets, slices = folder.node_offsets(node_type), folder.slice_offsets(folder.num_nodes(node_type))
    for keys in folder.split_keys(node_type, name):
        seeds += np.bincount(parts_of(ids_of(folder, node_type, keys), offsets), minlength=folder.num_parts)
        for part, begin, end in stretches_of(keys, slices):
            path = split_path(node_folder(part, node_type), name)
            writer.write(integers(path, keys[begin:end]), int(written[part]))
            written[part] += end - begin
    found: list[int] = seeds.tolist()
    return found


def parts_of(ids: Array, offsets: IntArray) -> IntArray:
    """Return int64[n], the part of each id."""
    return np.searchsorted(offsets, ids, side="right") - 1


def places_of_parts(parts: Array, num_parts: int) -> Iterator[tuple[int, IntArray]]:
    """Yield ``(part, places)`` for each part that occurs: its positions in the array, ascending."""
    order = np.argsort(parts.astype(np.uint16) if num_parts <= 1 << 16 else parts, kind="stable")
    for part, begin, end in stretches_of(parts[order], np.arange(num_parts + 1)):
        yield part, order[begin:end]


def ids_of(folder: DatasetJobFolder[Any], node_type: str, keys: IntArray) -> Array:
    """Return the new ids of ascending keys, read in ranges."""
    path, step = folder.table_path(IDS, node_type), folder.block_rows
    ids = np.empty(len(keys), np.int64)
    done = 0
    while done < len(keys):
        first = int(keys[done])
        end = int(np.searchsorted(keys, first + step))
        ids[done:end] = read_array(path, first, int(keys[end - 1]) + 1)[keys[done:end] - first]
        done = end
    return ids
