"""Gives tasks of a job that re-shards the old dataset, and names of the files that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.dataset.book import Owner
from hopstream.dataset.paths import node_folder
from hopstream.dataset.regions import RegionWriter
from hopstream.dataset.rows import DatasetRows, open_rows, own_type, owners_of
from hopstream.errors import FormatError
from hopstream.preparation.dataset_job_folder import IDS, DatasetJobFolder, Places
from hopstream.preparation.number_nodes import parts_of, places_of_parts
from hopstream.preparation.reshard.reshard_spec import ReshardSpec

NEW_IDS = "new_ids"
"""The table of the new id of each node, by its old one."""


class ReshardFolder(DatasetJobFolder[ReshardSpec]):
    """The folder of a job, seen by a task. Tables: the new id of each node, ``ids`` (by key) and ``new_ids``."""

    spec_type = ReshardSpec

    def __init__(self, root: Path) -> None:
        """Look at a folder; nothing is read yet."""
        super().__init__(root)
        self._blocks: dict[Owner, IntArray] = {}
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
    def entities(self) -> list[Owner]:
        """Node types, and edge types in each direction; tasks and files are called by places in this list."""
        return owners_of(self.rows.contents)

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

    def blocks(self, entity: Owner) -> IntArray:
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
