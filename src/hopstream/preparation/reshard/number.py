"""How do nodes get their new ids?

Owners are read twice: once to count, once to number. Keys ascend inside a part, old or new, so the nodes of one part in
a stretch of keys are a stretch of the part's rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.assign.owners import owner_blocks, owners_path
from hopstream.dataset.book import neighbor_dtype
from hopstream.dataset.chunks import overlaps, stretches_of
from hopstream.dataset.paths import node_folder, split_path
from hopstream.dataset.regions import RegionWriter, read_array
from hopstream.dataset.stored_columns import integers
from hopstream.engine import task
from hopstream.errors import FormatError
from hopstream.kernels.spill import number_nodes as give_ids
from hopstream.preparation.reshard.workplace import Workplace, workplace_of


@task
def check_leading(args: dict[str, Any]) -> dict[str, Any]:
    """Check some of the files that lead to others."""
    rows = workplace_of(args).rows
    rows.check_files(rows.leading_files[int(args["first"]) : int(args["stop"])])
    return {}


@task
def count_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Count the nodes of each new part, and the keys of each split that each new part keeps account of."""
    workplace, node_type = workplace_of(args), str(args["type"])
    rows, num_parts = workplace.rows, workplace.plan.settings.num_parts
    num_nodes = rows.book.num_ids(node_type)
    counts = np.zeros(num_parts, np.int64)
    for _, owners in owner_blocks(owners_path(workplace.owners_folder, node_type), num_nodes, num_parts):
        counts += np.bincount(owners, minlength=num_parts)
    slices = workplace.slice_offsets(num_nodes)
    splits = {}
    for name in rows.contents.schema.splits.get(node_type, ()):
        sizes = np.zeros(num_parts, np.int64)
        for keys in rows.splits(node_type, name, workplace.plan.block_rows):
            for part, begin, end in stretches_of(keys, slices):
                sizes[part] += end - begin
        splits[name] = sizes.tolist()
    return {"counts": counts.tolist(), "splits": splits}


@task
def number_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Write keys, ids of keys and splits of all parts, and the tables that later tasks look new ids up in."""
    workplace, node_type = workplace_of(args), str(args["type"])
    numbering = _Numbering(workplace, node_type)
    numbering.number()
    seeds = {name: numbering.split(name) for name in workplace.rows.contents.schema.splits.get(node_type, ())}
    return {"stretches": numbering.writer.stretches, "seeds": seeds}


class _Numbering:
    """The nodes of one type."""

    def __init__(self, workplace: Workplace, node_type: str) -> None:
        self.workplace, self.node_type, self.rows = workplace, node_type, workplace.rows
        self.writer, self.tables = RegionWriter(workplace.dataset), RegionWriter(workplace.scratch)
        self.num_nodes = self.rows.book.num_ids(node_type)
        self.offsets, self.slices = workplace.node_offsets(node_type), workplace.slice_offsets(self.num_nodes)
        self.next_rows = np.zeros(self.rows.book.num_parts, np.int64)

    def number(self) -> None:
        """Give ids in the order of keys."""
        next_ids, dtype = self.offsets[:-1].copy(), neighbor_dtype(self.num_nodes)
        by_key = self.workplace.table_name("by_key", self.node_type)
        path = owners_path(self.workplace.owners_folder, self.node_type)
        for first, owners in owner_blocks(path, self.num_nodes, self.workplace.plan.settings.num_parts):
            new_ids = np.empty(len(owners), dtype)
            give_ids(owners, next_ids, new_ids)
            self.tables.write_blocks(by_key, dtype, first * dtype.itemsize, [new_ids])
            for part, begin, end in overlaps(first, first + len(new_ids), self.slices):
                name = node_folder(part, self.node_type) / "id_of_key.npy"
                self.writer.write(integers(name, new_ids[begin - first : end - first]), begin - int(self.slices[part]))
            for part, places in places_of_parts(owners, len(self.offsets) - 1):
                first_row = int(new_ids[places[0]]) - int(self.offsets[part])
                self.writer.write(integers(node_folder(part, self.node_type) / "key.npy", first + places), first_row)
            self._write_by_id(first, new_ids)

    def _write_by_id(self, first_key: int, new_ids: Array) -> None:
        """Keep new ids by old ones, after a look whether old rows are the keys' own, each once.

        Raises:
            FormatError: They are not.
        """
        old_offsets = self.rows.book.node_offsets[self.node_type]
        old_ids = self.rows.ids_of_keys(self.node_type, first_key, first_key + len(new_ids))
        by_id, dtype = self.workplace.table_name("by_id", self.node_type), new_ids.dtype
        old_parts = parts_of(old_ids, old_offsets)
        for part, places in places_of_parts(old_parts, len(old_offsets) - 1):
            first_row, stop_row = int(self.next_rows[part]), int(self.next_rows[part]) + len(places)
            first_id = int(old_offsets[part]) + first_row
            is_whole = stop_row <= old_offsets[part + 1] - old_offsets[part] and np.array_equal(
                old_ids[places], np.arange(first_id, first_id + len(places))
            )
            if not is_whole or not np.array_equal(
                self.rows.keys(self.node_type, part, first_row, stop_row), first_key + places
            ):
                raise FormatError(
                    f"{self.rows.root / node_folder(part, self.node_type)}: keys of rows {first_row}..{stop_row - 1} "
                    "are not those whose ids lead there, ascending; write the dataset again"
                )
            self.next_rows[part] = stop_row
            self.tables.write_blocks(by_id, dtype, first_id * dtype.itemsize, [new_ids[places]])

    def split(self, name: str) -> list[int]:
        """Write a split to the parts that keep account of its keys; how many of its nodes each part owns."""
        num_parts = self.workplace.plan.settings.num_parts
        written, seeds = np.zeros(num_parts, np.int64), np.zeros(num_parts, np.int64)
        for keys in self.rows.splits(self.node_type, name, self.workplace.plan.block_rows):
            ids = ids_of(self.workplace, self.node_type, keys)
            seeds += np.bincount(parts_of(ids, self.offsets), minlength=num_parts)
            for part, begin, end in stretches_of(keys, self.slices):
                path = split_path(node_folder(part, self.node_type), name)
                self.writer.write(integers(path, keys[begin:end]), int(written[part]))
                written[part] += end - begin
        return [int(count) for count in seeds]


def parts_of(ids: Array, offsets: IntArray) -> IntArray:
    """int64[n], the part of each id."""
    return np.searchsorted(offsets, ids, side="right") - 1


def places_of_parts(parts: Array, num_parts: int) -> Iterator[tuple[int, IntArray]]:
    """``(part, places)`` for each part that is there: where it stands in the array, ascending."""
    order = np.argsort(parts.astype(np.uint16) if num_parts <= 1 << 16 else parts, kind="stable")
    for part, begin, end in stretches_of(parts[order], np.arange(num_parts + 1)):
        yield part, order[begin:end]


def ids_of(workplace: Workplace, node_type: str, keys: IntArray) -> Array:
    """The new ids of ascending keys, read a stretch at a time."""
    path, step = workplace.table_path("by_key", node_type), workplace.plan.block_rows
    ids = np.empty(len(keys), np.int64)
    done = 0
    while done < len(keys):
        first = int(keys[done])
        end = int(np.searchsorted(keys, first + step))
        ids[done:end] = read_array(path, first, int(keys[end - 1]) + 1)[keys[done:end] - first]
        done = end
    return ids
