"""Divides a re-sharding job so that it fits the memory, and opens dataset and files for tasks.

[Memory] As in ``dispatch_folder``: each process needs ``REST_BYTES`` before it does anything, and the workers share the
    rest. No block of rows, and no piece of a column, is larger than a worker's share allows. The rows of a hub are
    moved in pieces. Tables of ids are mapped, not read.
[Disk] The dataset itself, and 8 bytes per node for two tables of ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.assign import libraries as assign_costs
from hopstream.dataset.book import Entity, ends_of, number_dtype
from hopstream.dataset.paths import node_folder
from hopstream.dataset.regions import RegionWriter
from hopstream.dataset.rows import DatasetRows, entities_of, open_rows, own_type
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.settings import Allotment, Needs
from hopstream.errors import FormatError
from hopstream.preparation.dataset_job import DatasetEstimate
from hopstream.preparation.dataset_job_folder import (
    IDS,
    REST_BYTES,
    DatasetJobFolder,
    DatasetJobSpec,
    Places,
    parts_of,
    places_of_parts,
    work_needs,
)

MAX_COUNTS = 1 << 20
"""Most counts (blocks times parts) that are kept for the rows of one node or edge type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardLimits:
    """Bounds of task sizes, if the memory allows.

    Attributes:
        block_rows: Most rows that are processed together.
        piece_bytes: Most bytes of a column that are moved together.
        run_bytes: Bytes of a task, least and most.
    """

    block_rows: int = 1 << 18
    piece_bytes: int = 32 << 20
    run_bytes: tuple[int, int] = (4 << 20, 1 << 28)


LIMITS = ReshardLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardSpec(DatasetJobSpec):
    """Everything that determines a re-sharding job's tasks; ``source`` is the dataset's folder.

    Attributes:
        limits: Bounds of task sizes.
    """

    limits_type = ReshardLimits
    limits: ReshardLimits = field(default_factory=lambda: LIMITS)

    @property
    def block_rows(self) -> int:
        """Rows that are processed together: some 200 bytes each, and 16 for each ragged column of edges."""
        return max(1, min(self.limits.block_rows, self.budget_bytes // 1024))

    def piece_items(self, item_bytes: int) -> int:
        """Return the items of a column to move together: read values, written values, and element locations."""
        return max(1, min(self.limits.piece_bytes, self.budget_bytes // 8) // max(8, item_bytes))

    def run_bytes(self, num_bytes: int) -> int:
        """Return the bytes of columns that a task moves."""
        low, high = self.limits.run_bytes
        return min(max(self.share(num_bytes), low), high)

    def num_blocks(self, num_keys: int, num_bytes: int) -> int:
        """Return the number of ranges that a type's keys are cut into, at least 1; tasks take runs of them."""
        wanted = -(-4 * num_bytes // self.run_bytes(num_bytes))
        return max(1, min(wanted, num_keys, MAX_COUNTS // self.settings.num_parts))


def estimate(rows: DatasetRows, num_parts: int) -> DatasetEstimate:
    """Estimate the costs of a job."""
    book, old_parts = rows.book, rows.book.num_parts
    files = rows.manifest.files
    total = sum(record.num_bytes for record in files.values())
    # Each part has its own headers, and one more offset than rows.
    heads = len(files) // old_parts * 136 * (num_parts - old_parts)
    tables = sum(2 * n * number_dtype(n).itemsize for t in rows.contents.schema.nodes for n in (book.num_ids(t),))
    return DatasetEstimate(dataset_bytes=max(0, total + heads), scratch_bytes=tables, input_bytes=total)


def mapped_bytes(rows: DatasetRows) -> int:
    """Return the most bytes of tables of nodes that one task maps."""
    sizes = [rows.book.num_ids(_table_type(entity)) for entity in entities_of(rows.contents)]
    return max(n * number_dtype(n).itemsize for n in sizes)


def _table_type(entity: Entity) -> str:
    return entity if isinstance(entity, str) else ends_of(*entity)[1]


def reshard_needs(rows: DatasetRows, settings: PartitionSettings) -> tuple[Needs, ...]:
    """Return the memory that re-sharding needs; workers are idle, but alive, while nodes are assigned."""
    work = work_needs(mapped_bytes(rows))
    if settings.method == "file":
        return (work,)
    return work, assign_costs.assign_needs(*_sizes(rows), settings, worker_bytes=REST_BYTES)


def memory_for_edges(rows: DatasetRows, settings: PartitionSettings, work: Allotment) -> int:
    """Return the memory for edges while nodes are assigned."""
    return assign_costs.memory_for_edges(*_sizes(rows), settings, work.memory_bytes - work.num_workers * REST_BYTES)


def _sizes(rows: DatasetRows) -> tuple[int, int]:
    """Return the numbers of nodes and of edges of all types."""
    schema = rows.contents.schema
    return sum(map(rows.book.num_ids, schema.nodes)), sum(map(rows.book.num_edges, schema.edges))


NEW_IDS = "new_ids"
"""Name of the table with the new id of each node, by old id."""


class ReshardFolder(DatasetJobFolder[ReshardSpec]):
    """Folder of a job, seen by a task. Tables of new ids: ``ids`` (by key) and ``new_ids`` (by old id)."""

    spec_type = ReshardSpec

    def __init__(self, root: Path) -> None:
        """Take a folder without reading it."""
        super().__init__(root)
        self._blocks: dict[Entity, IntArray] = {}
        self._next_rows: IntArray = np.empty(0, np.int64)

    @classmethod
    def of(cls, args: dict[str, Any]) -> Self:
        """Return the folder of a task's arguments, with the record of read ranges reset for the task."""
        folder = super().of(args)
        folder.rows.stretches = {}
        return folder

    @cached_property
    def rows(self) -> DatasetRows:
        """The old dataset."""
        return open_rows(self.spec.source)

    @cached_property
    def entities(self) -> list[Entity]:
        """Node types, and edge types in each direction; task and file names contain positions in this list."""
        return entities_of(self.rows.contents)

    @cached_property
    def node_types(self) -> list[str]:
        """Node types; file names contain the position of a type in this list."""
        return list(self.rows.contents.schema.nodes)

    def num_nodes(self, node_type: str) -> int:
        """Return the number of nodes of a type."""
        return self.rows.book.num_ids(node_type)

    def split_names(self, node_type: str) -> Sequence[str]:
        """Return the names of the splits of a node type."""
        return self.rows.contents.schema.splits.get(node_type, ())

    def split_keys(self, node_type: str, name: str) -> Iterator[IntArray]:
        """Yield the keys of a split of nodes, ascending, in blocks."""
        return self.rows.splits(node_type, name, self.block_rows)

    def tables(self, node_type: str) -> Iterator[tuple[str, np.dtype[Any]]]:
        """Yield name and dtype of the tables of a node type."""
        yield from ((what, self.id_dtype(node_type)) for what in (IDS, NEW_IDS))

    def keep_ids(self, tables: RegionWriter, node_type: str, first_key: int, ids: Array, places: Places) -> None:
        """Store new ids by old ids, after a check that old rows and keys match one to one.

        Raises:
            FormatError: Old rows and keys do not match.
        """
        rows, old_offsets = self.rows, self.rows.book.node_offsets[node_type]
        if first_key == 0:
            self._next_rows = np.zeros(rows.book.num_parts, np.int64)
        old_ids = rows.ids_of_keys(node_type, first_key, first_key + len(ids))
        for part, of_part in places_of_parts(parts_of(old_ids, old_offsets), len(old_offsets) - 1):
            first_row, stop_row = int(self._next_rows[part]), int(self._next_rows[part]) + len(of_part)
            first_id = int(old_offsets[part]) + first_row
            is_whole = stop_row <= old_offsets[part + 1] - old_offsets[part] and np.array_equal(
                old_ids[of_part], np.arange(first_id, first_id + len(of_part))
            )
            if not is_whole or not np.array_equal(rows.keys(node_type, part, first_row, stop_row), first_key + of_part):
                raise FormatError(
                    f"{rows.root / node_folder(part, node_type)}: the keys of rows {first_row}..{stop_row - 1} do not "
                    "ascend, or their ids point to other rows; write the dataset again"
                )
            self._next_rows[part] = stop_row
            name = self.table_name(NEW_IDS, node_type)
            tables.write_blocks(name, ids.dtype, first_id * ids.dtype.itemsize, [ids[of_part]])

    @property
    def block_rows(self) -> int:
        """Number of node rows that are processed together."""
        return self.spec.block_rows

    def blocks(self, entity: Entity) -> IntArray:
        """Return int64[num_blocks + 1], the ranges of keys by which items are counted."""
        if entity not in self._blocks:
            num_keys = self.rows.book.num_ids(own_type(entity))
            num_blocks = self.spec.num_blocks(num_keys, self.rows.num_bytes(entity))
            self._blocks[entity] = np.arange(num_blocks + 1, dtype=np.int64) * num_keys // num_blocks
        return self._blocks[entity]

    def counts_path(self, number: int, first_block: int) -> Path:
        """Return the file of one task's counts."""
        return self.scratch / "counts" / f"{number}-{first_block}.npy"

    def firsts_path(self, number: int) -> Path:
        """Return the file of first positions by block and part, int64[quantities, num_blocks + 1, num_parts]."""
        return self.scratch / "firsts" / f"{number}.npy"
