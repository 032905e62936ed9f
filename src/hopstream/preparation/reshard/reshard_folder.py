"""Cuts a re-sharding job so that it fits the memory, and gives its tasks the old dataset and their files.

[Memory] As in ``dispatch_folder``: each process needs ``REST_BYTES`` before it does anything; the workers share what
    is left. No block of rows, and no piece of a column, is larger than a worker's share allows; the rows of a hub are
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
from hopstream.dataset.book import Entity, ends_of, neighbor_dtype
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
"""Numbers of items by block and part that are kept for the rows of one node or edge type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardLimits:
    """Between which sizes work is cut, where the memory allows.

    Attributes:
        block_rows: Rows that are looked at together, at most.
        piece_bytes: Of a column that are moved together, at most.
        run_bytes: Of a task, least and most.
    """

    block_rows: int = 1 << 18
    piece_bytes: int = 32 << 20
    run_bytes: tuple[int, int] = (4 << 20, 1 << 28)


LIMITS = ReshardLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardSpec(DatasetJobSpec):
    """All that decides over what the tasks of a job do that re-shards a dataset; ``source`` is its folder.

    Attributes:
        limits: Between which sizes the work is cut.
    """

    limits_type = ReshardLimits
    limits: ReshardLimits = field(default_factory=lambda: LIMITS)

    @property
    def block_rows(self) -> int:
        """How many rows are looked at together: some 200 bytes for each, and 16 for each ragged column of edges."""
        return max(1, min(self.limits.block_rows, self.budget_bytes // 1024))

    def piece_items(self, item_bytes: int) -> int:
        """How many items of a column are moved together: what was read, what is written, and where elements lie."""
        return max(1, min(self.limits.piece_bytes, self.budget_bytes // 8) // max(8, item_bytes))

    def run_bytes(self, num_bytes: int) -> int:
        """How many bytes of columns a task moves."""
        low, high = self.limits.run_bytes
        return min(max(self.share(num_bytes), low), high)

    def num_blocks(self, num_keys: int, num_bytes: int) -> int:
        """Into how many stretches the keys of a type are cut; tasks take runs of them; at least 1."""
        wanted = -(-4 * num_bytes // self.run_bytes(num_bytes))
        return max(1, min(wanted, num_keys, MAX_COUNTS // self.settings.num_parts))


def estimate(rows: DatasetRows, num_parts: int) -> DatasetEstimate:
    """What a job will take."""
    book, old_parts = rows.book, rows.book.num_parts
    files = rows.manifest.files
    total = sum(record.num_bytes for record in files.values())
    # Each part has its own headers, and one more offset than rows.
    heads = len(files) // old_parts * 136 * (num_parts - old_parts)
    tables = sum(2 * n * neighbor_dtype(n).itemsize for t in rows.contents.schema.nodes for n in (book.num_ids(t),))
    return DatasetEstimate(dataset_bytes=max(0, total + heads), scratch_bytes=tables, input_bytes=total)


def mapped_bytes(rows: DatasetRows) -> int:
    """The most bytes of tables of nodes that one task maps."""
    sizes = [rows.book.num_ids(_table_type(entity)) for entity in entities_of(rows.contents)]
    return max(n * neighbor_dtype(n).itemsize for n in sizes)


def _table_type(entity: Entity) -> str:
    return entity if isinstance(entity, str) else ends_of(*entity)[1]


def reshard_needs(rows: DatasetRows, settings: PartitionSettings) -> tuple[Needs, ...]:
    """What re-sharding needs; while the first process assigns nodes, workers are idle, but there."""
    work = work_needs(mapped_bytes(rows))
    if settings.method == "file":
        return (work,)
    return work, assign_costs.assign_needs(*_sizes(rows), settings, worker_bytes=REST_BYTES)


def memory_for_edges(rows: DatasetRows, settings: PartitionSettings, work: Allotment) -> int:
    """Bytes that edges may take while nodes are assigned."""
    return assign_costs.memory_for_edges(*_sizes(rows), settings, work.memory_bytes - work.num_workers * REST_BYTES)


def _sizes(rows: DatasetRows) -> tuple[int, int]:
    """The numbers of nodes and of edges of all types."""
    schema = rows.contents.schema
    return sum(map(rows.book.num_ids, schema.nodes)), sum(map(rows.book.num_edges, schema.edges))


NEW_IDS = "new_ids"
"""The table of the new id of each node, by its old one."""


class ReshardFolder(DatasetJobFolder[ReshardSpec]):
    """The folder of a job, seen by a task. Tables: the new id of each node, ``ids`` (by key) and ``new_ids``."""

    spec_type = ReshardSpec

    def __init__(self, root: Path) -> None:
        """Look at a folder; nothing is read yet."""
        super().__init__(root)
        self._blocks: dict[Entity, IntArray] = {}
        self._next_rows: IntArray = np.empty(0, np.int64)

    @classmethod
    def of(cls, args: dict[str, Any]) -> Self:
        """The folder of a task's arguments; what was read before does not count for the task."""
        folder = super().of(args)
        folder.rows.stretches = {}
        return folder

    @cached_property
    def rows(self) -> DatasetRows:
        """The old dataset."""
        return open_rows(self.spec.source)

    @cached_property
    def entities(self) -> list[Entity]:
        """Node types, and edge types in each direction; tasks and files are called by places in this list."""
        return entities_of(self.rows.contents)

    @cached_property
    def node_types(self) -> list[str]:
        """Node types, whose places stand for them in names of files."""
        return list(self.rows.contents.schema.nodes)

    def num_nodes(self, node_type: str) -> int:
        """Nodes of a type."""
        return self.rows.book.num_ids(node_type)

    def split_names(self, node_type: str) -> Sequence[str]:
        """Splits of the nodes of a type."""
        return self.rows.contents.schema.splits.get(node_type, ())

    def split_keys(self, node_type: str, name: str) -> Iterator[IntArray]:
        """The keys of a split of nodes, ascending, in blocks."""
        return self.rows.splits(node_type, name, self.block_rows)

    def tables(self, node_type: str) -> Iterator[tuple[str, np.dtype[Any]]]:
        """Name and dtype of the tables that are kept of a node type."""
        yield from ((what, self.id_dtype(node_type)) for what in (IDS, NEW_IDS))

    def keep_ids(self, tables: RegionWriter, node_type: str, first_key: int, ids: Array, places: Places) -> None:
        """Keep new ids by old ones, after a look whether old rows are the keys' own, each once.

        Raises:
            FormatError: They are not.
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
                    f"{rows.root / node_folder(part, node_type)}: keys of rows {first_row}..{stop_row - 1} are not "
                    "those whose ids lead there, ascending; write the dataset again"
                )
            self._next_rows[part] = stop_row
            name = self.table_name(NEW_IDS, node_type)
            tables.write_blocks(name, ids.dtype, first_id * ids.dtype.itemsize, [ids[of_part]])

    @property
    def block_rows(self) -> int:
        """How many rows of nodes are looked at together."""
        return self.spec.block_rows

    def blocks(self, entity: Entity) -> IntArray:
        """int64[num_blocks + 1], the stretches of keys by which items are counted."""
        if entity not in self._blocks:
            num_keys = self.rows.book.num_ids(own_type(entity))
            num_blocks = self.spec.num_blocks(num_keys, self.rows.num_bytes(entity))
            self._blocks[entity] = np.arange(num_blocks + 1, dtype=np.int64) * num_keys // num_blocks
        return self._blocks[entity]

    def counts_path(self, number: int, first_block: int) -> Path:
        """What one task counted."""
        return self.scratch / "counts" / f"{number}-{first_block}.npy"

    def firsts_path(self, number: int) -> Path:
        """int64[quantities, num_blocks + 1, num_parts], where items and elements of each block begin in each part."""
        return self.scratch / "firsts" / f"{number}.npy"
