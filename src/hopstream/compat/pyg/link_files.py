"""The files of links to predict that PyG's scripts keep, one per part and split.

A file holds ``edge_label_index``, ``edge_label`` and, where edges have times, ``edge_label_time``, the moment before
each link, so that a link is not seen from itself. Where several edge types have a split, it holds that by edge type.
Which edges the links are is beside it as ``edge_id``; scripts do not look at it, and files without it are read by the
ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopstream.arrays import IntArray
from hopstream.checks import known_names
from hopstream.compat.pyg.partition_writing import CutGraph, fixed_column, time_name
from hopstream.errors import FormatError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.load.pyg import to_tensor
from hopstream.schema import EdgeType, type_label

ENDS, LABEL, TIME, EDGE_ID = "edge_label_index", "edge_label", "edge_label_time", "edge_id"


def links_of(cut: CutGraph, split: str, part: int) -> dict[EdgeType, dict[str, Tensor]]:
    """The links of a split that a part owns, as its file holds them, for every edge type that has the split.

    Args:
        cut: The graph and its parts.
        split: Name of the split.
        part: The part.

    Returns:
        Edge type to ``edge_label_index`` int64[2, n]; ``edge_label``: the edges' feature of this name, else float32
        ones; ``edge_label_time`` int64[n] where edges have times, one less than them; ``edge_id`` int64[n], edge keys.
    """
    found: dict[EdgeType, dict[str, Tensor]] = {}
    for edge_type, splits in cut.graph.edge_splits.items():
        if split not in splits:
            continue
        table, keys = cut.graph.edges[edge_type], splits[split]
        keys = keys[cut.owners[edge_type[2]][table.dst_keys[keys]] == part]
        links = {ENDS: np.stack([table.src_keys[keys], table.dst_keys[keys]])}
        labels = table.features.get(LABEL)
        where = f"{type_label(edge_type)}.{LABEL}"
        links[LABEL] = np.ones(len(keys), np.float32) if labels is None else fixed_column(labels, where)[keys]
        if (name := time_name(table)) is not None:
            times = fixed_column(table.features[name], f"{type_label(edge_type)}.{name}")[keys]
            links[TIME] = times.astype(np.int64 if times.dtype.kind in "iu" else times.dtype) - 1
        found[edge_type] = {what: to_tensor(of, False) for what, of in (links | {EDGE_ID: keys}).items()}
    return found


def is_of_links(value: object) -> bool:
    """Whether a file holds links, and not nodes."""
    return isinstance(value, dict) and (ENDS in value or any(isinstance(of, dict) for of in value.values()))


def read_links(path: Path, value: Any, graph: Graph, edge_type: EdgeType | None) -> dict[EdgeType, IntArray]:
    """Edge type to the keys of the edges that a file has as links.

    Args:
        path: Where the file is, for errors.
        value: What it holds.
        graph: The graph.
        edge_type: The type of links in files that do not say it; needed where there are several.

    Raises:
        FormatError: It is not what such a file holds, or a link is no edge or one of several.
        SettingsError: ``edge_type`` is needed.
        UnknownNameError: There is no such edge type.
    """
    if ENDS in value:
        if edge_type is None and len(graph.edges) > 1:
            raise SettingsError(
                f"{path} does not say of which edges its links are; give edge_type, one of {list(graph.edges)}"
            )
        value = {edge_type or next(iter(graph.edges), None): value}
    found = {}
    for of_type, links in value.items():
        if of_type not in graph.edges:
            raise UnknownNameError(f"{path}: there is no edge type {of_type!r}; {known_names(of_type, graph.edges)}")
        found[of_type] = _keys_of(path, links, graph.edges[of_type])
    return found


def _keys_of(path: Path, links: Any, table: EdgeTable) -> IntArray:
    ends: Any = links.get(ENDS) if isinstance(links, Mapping) else None
    if not _is_ids(ends, 2) or ends.shape[0] != 2:
        raise FormatError(f"{path} has no {ENDS} of integers, [2, number of links]; write the file again")
    src, dst = ends.numpy().astype(np.int64, copy=False)
    keys = links.get(EDGE_ID)
    if keys is None:
        return _edges_between(path, src, dst, table)
    if not _is_ids(keys, 1) or len(keys) != len(src):
        raise FormatError(f"{path}: {EDGE_ID} must be an integer for each of {len(src)} links; write the file again")
    found: IntArray = keys.numpy().astype(np.int64, copy=False)
    is_edge = (found >= 0) & (found < table.num_edges)
    is_edge[is_edge] = (table.src_keys[found[is_edge]] == src[is_edge]) & (
        table.dst_keys[found[is_edge]] == dst[is_edge]
    )
    if not is_edge.all():
        link = int(np.flatnonzero(~is_edge)[0])
        raise FormatError(
            f"{path}: link {link} from {src[link]} to {dst[link]} is said to be edge {found[link]}, which it is not; "
            f"write the file again with these partitions, or without {EDGE_ID}"
        )
    return found


def _is_ids(value: object, num_dims: int) -> bool:
    is_integers = isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
    return is_integers and value.dtype != torch.bool and value.ndim == num_dims  # type: ignore[attr-defined]


def _edges_between(path: Path, src: IntArray, dst: IntArray, table: EdgeTable) -> IntArray:
    """The key of the one edge between the ends of each link."""
    order = np.lexsort((table.dst_keys, table.src_keys))
    ends = np.empty(table.num_edges, [("src", np.int64), ("dst", np.int64)])
    ends["src"], ends["dst"] = table.src_keys[order], table.dst_keys[order]
    wanted = np.empty(len(src), ends.dtype)
    wanted["src"], wanted["dst"] = src, dst
    first, stop = np.searchsorted(ends, wanted, "left"), np.searchsorted(ends, wanted, "right")
    wrong = np.flatnonzero(stop - first != 1)
    if len(wrong):
        link = int(wrong[0])
        raise FormatError(
            f"{path}: link {link} from {src[link]} to {dst[link]} is {stop[link] - first[link]} edges of the graph; "
            f"wanted is one: leave out links that are no edges, and say which edges the others are as {EDGE_ID}"
        )
    return order[first]
