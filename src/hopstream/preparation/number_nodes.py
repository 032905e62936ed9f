"""Gives nodes their ids: counts the nodes of each part, then numbers them, without holding all at once.

Owners are read twice: once to count, once to number. Keys ascend inside a part, so the nodes of one part in a stretch
of keys are a stretch of the part's rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, extend_checksum
from hopstream.assign.owners import owner_blocks, owners_path
from hopstream.dataset.chunks import overlaps, stretches_of
from hopstream.dataset.paths import node_folder, split_path
from hopstream.dataset.regions import RegionWriter, read_array
from hopstream.dataset.stored_columns import integers
from hopstream.kernels.spill import number_nodes as give_ids
from hopstream.preparation.dataset_job_folder import IDS, DatasetJobFolder


def count_of_type(folder: DatasetJobFolder[Any], node_type: str) -> dict[str, Any]:
    """Count the nodes of each part, and the keys of each split that each part keeps account of."""
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
    """Write keys, ids of keys and splits of all parts, and tables that later tasks look nodes up in."""
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
    """Write a split to the parts that keep account of its keys; how many of its nodes each part owns."""
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
    """int64[n], the part of each id."""
    return np.searchsorted(offsets, ids, side="right") - 1


def places_of_parts(parts: Array, num_parts: int) -> Iterator[tuple[int, IntArray]]:
    """``(part, places)`` for each part that is there: where it stands in the array, ascending."""
    order = np.argsort(parts.astype(np.uint16) if num_parts <= 1 << 16 else parts, kind="stable")
    for part, begin, end in stretches_of(parts[order], np.arange(num_parts + 1)):
        yield part, order[begin:end]


def ids_of(folder: DatasetJobFolder[Any], node_type: str, keys: IntArray) -> Array:
    """The new ids of ascending keys, read a stretch at a time."""
    path, step = folder.table_path(IDS, node_type), folder.block_rows
    ids = np.empty(len(keys), np.int64)
    done = 0
    while done < len(keys):
        first = int(keys[done])
        end = int(np.searchsorted(keys, first + step))
        ids[done:end] = read_array(path, first, int(keys[end - 1]) + 1)[keys[done:end] - first]
        done = end
    return ids
