"""Cuts links, and splits of edges, for other parts.

They are kept by edge key, in even slices, so the slices of new parts are copied from those of old ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.dataset.book import ends_of
from hopstream.dataset.chunks import overlaps, stretches_of
from hopstream.dataset.paths import link_folder, split_path
from hopstream.dataset.regions import RegionWriter
from hopstream.dataset.stored_columns import integers
from hopstream.engine import task
from hopstream.preparation.dataset_job_folder import edge_type_of
from hopstream.preparation.number_nodes import ids_of, parts_of
from hopstream.preparation.reshard.reshard_folder import ReshardFolder
from hopstream.schema import EdgeType


@task
def count_links(args: dict[str, Any]) -> dict[str, Any]:
    """Count the keys of each split that each new part keeps account of, and the edges of it that each holds."""
    folder, edge_type = ReshardFolder.of(args), edge_type_of(args)
    num_parts, slices = folder.num_parts, link_slices(folder, edge_type)
    splits, seeds = {}, {}
    for name in folder.rows.contents.schema.edge_splits[edge_type]:
        sizes, held = np.zeros(num_parts, np.int64), np.zeros(num_parts, np.int64)
        for keys in folder.rows.splits(edge_type, name, folder.spec.block_rows):
            held += np.bincount(_parts_of_edges(folder, edge_type, keys), minlength=num_parts)
            for part, begin, end in stretches_of(keys, slices):
                sizes[part] += end - begin
        splits[name], seeds[name] = sizes.tolist(), held.tolist()
    return {"splits": splits, "seeds": seeds}


@task
def write_links(args: dict[str, Any]) -> dict[str, Any]:
    """Write what is kept of links in a stretch of edge keys."""
    folder, edge_type = ReshardFolder.of(args), edge_type_of(args)
    writer, slices = RegionWriter(folder.dataset), link_slices(folder, edge_type)
    contents, step = folder.rows.contents, folder.spec.block_rows
    times = ["time"] * (contents.time_attr in contents.schema.edges[edge_type])
    for first in range(int(args["first"]), int(args["stop"]), step):
        stop = min(first + step, int(args["stop"]))
        for name in ("src_key", "dst_key", *times):
            values = folder.rows.links(edge_type, name, first, stop)
            for part, begin, end in overlaps(first, stop, slices):
                path = link_folder(part, edge_type) / f"{name}.npy"
                writer.write(integers(path, values[begin - first : end - first]), begin - int(slices[part]))
    return {"stretches": writer.stretches}


@task
def write_splits(args: dict[str, Any]) -> dict[str, Any]:
    """Write the splits of an edge type."""
    folder, edge_type = ReshardFolder.of(args), edge_type_of(args)
    writer, slices = RegionWriter(folder.dataset), link_slices(folder, edge_type)
    for name in folder.rows.contents.schema.edge_splits[edge_type]:
        written = np.zeros(len(slices) - 1, np.int64)
        for keys in folder.rows.splits(edge_type, name, folder.spec.block_rows):
            for part, begin, end in stretches_of(keys, slices):
                path = split_path(link_folder(part, edge_type), name)
                writer.write(integers(path, keys[begin:end]), int(written[part]))
                written[part] += end - begin
    return {"stretches": writer.stretches}


def link_slices(folder: ReshardFolder, edge_type: EdgeType) -> IntArray:
    """int64[num_parts + 1], the edge keys of which each new part keeps account."""
    return folder.slice_offsets(folder.rows.book.num_edges(edge_type))


def _parts_of_edges(folder: ReshardFolder, edge_type: EdgeType, keys: IntArray) -> IntArray:
    """int64[n], the new part that holds each edge in the first direction; keys ascend."""
    direction = folder.rows.contents.directions[0]
    own_type, _ = ends_of(edge_type, direction)
    name, step = "dst_key" if direction == "in" else "src_key", folder.spec.block_rows
    own_keys = np.empty(len(keys), np.int64)
    done = 0
    while done < len(keys):
        first = int(keys[done])
        end = int(np.searchsorted(keys, first + step))
        ends = folder.rows.links(edge_type, name, first, int(keys[end - 1]) + 1)
        own_keys[done:end] = ends[keys[done:end] - first]
        done = end
    distinct, places = np.unique(own_keys, return_inverse=True)
    ids = ids_of(folder, own_type, distinct)
    return parts_of(ids, folder.node_offsets(own_type))[places]
