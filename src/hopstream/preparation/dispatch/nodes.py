"""How do nodes get their ids, and their features into the files of their parts, without being in memory at once?

Owners are read twice: once to count, once to number. Keys ascend inside a part, so the nodes of one part in a stretch
of keys are a stretch of the part's rows, and each block of a feature is written where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, extend_checksum
from hopstream.assign.owners import BLOCK_ROWS, owner_blocks, owners_path
from hopstream.dataset.book import neighbor_dtype
from hopstream.dataset.chunks import overlaps, stretches_of
from hopstream.dataset.paths import node_folder, split_path
from hopstream.dataset.regions import RegionWriter, bytes_checksum, read_array
from hopstream.dataset.stored_columns import feature_columns, integers
from hopstream.dataset.times import check_time_values
from hopstream.engine import task
from hopstream.ingest.chunked import ColumnSource, fixed_features
from hopstream.kernels.spill import number_nodes as give_ids
from hopstream.preparation.dispatch.workplace import Workplace, workplace_of


@task
def count_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Count the nodes of each part, and the keys of each split that each part keeps account of."""
    workplace, node_type = workplace_of(args), str(args["type"])
    nodes, num_parts = workplace.graph.nodes[node_type], workplace.plan.settings.num_parts
    counts = np.zeros(num_parts, np.int64)
    path = owners_path(Path(workplace.plan.owners), node_type)
    for _, owners in owner_blocks(path, nodes.num_nodes, num_parts):
        counts += np.bincount(owners, minlength=num_parts)
    slices = workplace.slice_offsets(nodes.num_nodes)
    splits = {name: _count_split(mask, slices) for name, mask in nodes.masks.items()}
    return {"counts": counts.tolist(), "splits": splits}


def _count_split(mask: ColumnSource, slices: IntArray) -> dict[str, Any]:
    counts, checksum = np.zeros(len(slices) - 1, np.int64), 0
    for first in range(0, mask.num_rows, BLOCK_ROWS):
        keys = _keys(mask, first, min(first + BLOCK_ROWS, mask.num_rows))
        checksum = extend_checksum(checksum, keys)
        for part, begin, end in stretches_of(keys, slices):
            counts[part] += end - begin
    return {"counts": counts.tolist(), "checksum": checksum}


def _keys(mask: ColumnSource, first: int, stop: int) -> IntArray:
    """The keys of a split in a block of nodes."""
    return first + np.flatnonzero(mask.read(first, stop))


@task
def number_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Write keys, ids of keys and splits of all parts, and tables that later tasks look nodes up in."""
    workplace, node_type = workplace_of(args), str(args["type"])
    nodes, settings = workplace.graph.nodes[node_type], workplace.plan.settings
    writer, tables = RegionWriter(workplace.dataset), RegionWriter(workplace.scratch)
    offsets, slices = workplace.node_offsets(node_type), workplace.slice_offsets(nodes.num_nodes)
    next_ids, dtype = offsets[:-1].copy(), neighbor_dtype(nodes.num_nodes)
    split_rows = {name: np.zeros(settings.num_parts, np.int64) for name in nodes.masks}
    seeds = {name: np.zeros(settings.num_parts, np.int64) for name in nodes.masks}
    ids_name, keys_name = (workplace.table_name(what, node_type) for what in ("ids", "keys"))
    for first, owners in owner_blocks(
        owners_path(Path(workplace.plan.owners), node_type), nodes.num_nodes, settings.num_parts
    ):
        ids = np.empty(len(owners), dtype)
        give_ids(owners, next_ids, ids)
        tables.write_blocks(ids_name, dtype, first * dtype.itemsize, [ids])
        for part, begin, end in overlaps(first, first + len(ids), slices):
            rows = ids[begin - first : end - first]
            writer.write(integers(node_folder(part, node_type) / "id_of_key.npy", rows), begin - int(slices[part]))
        for part, rows in rows_of_parts(ids, offsets):
            keys, first_id = first + rows, int(ids[rows[0]])
            path = node_folder(part, node_type) / "key.npy"
            writer.write(integers(path, keys), first_id - int(offsets[part]))
            if settings.neighbor_keys:
                tables.write_blocks(keys_name, dtype, first_id * dtype.itemsize, [keys])
        for name, mask in nodes.masks.items():
            keys = _keys(mask, first, first + len(owners))
            seeds[name] += np.bincount(owners[keys - first], minlength=settings.num_parts)
            for part, begin, end in stretches_of(keys, slices):
                path = split_path(node_folder(part, node_type), name)
                writer.write(integers(path, keys[begin:end]), int(split_rows[name][part]))
                split_rows[name][part] += end - begin
    return {"stretches": writer.stretches, "seeds": {name: counts.tolist() for name, counts in seeds.items()}}


def rows_of_parts(ids: Array, offsets: IntArray) -> Iterator[tuple[int, IntArray]]:
    """``(part, rows)`` for each part that owns some of the ids: which of them, in order."""
    parts = np.searchsorted(offsets, ids, side="right") - 1
    order = np.argsort(parts.astype(np.uint16) if len(offsets) <= 1 << 16 else parts, kind="stable")
    for part, begin, end in stretches_of(parts[order], np.arange(len(offsets))):
        yield part, order[begin:end]


@task
def write_column(args: dict[str, Any]) -> dict[str, Any]:
    """Write some rows of a feature of fixed width to the files of their parts."""
    workplace, node_type, name = workplace_of(args), str(args["type"]), str(args["feature"])
    start, stop = int(args["start"]), int(args["stop"])
    values = fixed_features(workplace.graph.nodes[node_type].features)[name].read(start, stop)
    ids, offsets = read_array(workplace.table_path("ids", node_type), start, stop), workplace.node_offsets(node_type)
    writer = RegionWriter(workplace.dataset)
    is_time = name == workplace.plan.settings.time_attr
    if is_time:
        check_time_values(f"{node_type}.{name}", start, values)
    for part, rows in rows_of_parts(ids, offsets):
        first_id = int(ids[rows[0]])
        for column in feature_columns(node_folder(part, node_type), {name: values}, rows):
            writer.write(column, first_id - int(offsets[part]))
        if is_time:
            _write_times(workplace, node_type, first_id, values[rows])
    return {"stretches": writer.stretches, "sum": bytes_checksum(values)}


def _write_times(workplace: Workplace, node_type: str, first_id: int, times: Array) -> None:
    """Keep times by id, where tasks that put edges in order find them."""
    dtype = np.dtype(np.int64)
    name = workplace.table_name("times", node_type)
    RegionWriter(workplace.scratch).write_blocks(name, dtype, first_id * dtype.itemsize, [times])


def sizes_of(counts: Mapping[str, Any]) -> IntArray:
    """int64[num_parts], what ``count_nodes`` counted."""
    return np.array(counts["counts"], np.int64)
