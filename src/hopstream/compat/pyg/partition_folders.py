"""Reader and writer of labels, splits and links to predict beside PyG's partition files.

PyG's scripts keep ``<name>-partitions``, ``<name>-label/label.pt`` with the labels of all nodes, and for each split
``<name>-<split>-partitions/partition<i>.pt`` with ids of nodes, or with links. If several types have labels or a split,
a file holds a dictionary by type; for a single type, it holds only the value. The names in PyG's documentation
(``<name>-labels``, ``partion<i>.pt``) are read too.

A file of links holds ``edge_label_index``, ``edge_label`` and, where edges have times, ``edge_label_time``. That time
is one less than the link's own, so that sampling never sees the link itself. ``edge_id`` holds the keys of the links'
edges. PyG's scripts ignore it. Without it, the ends of a link identify its edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from hopstream.arrays import IntArray
from hopstream.assign.run import OwnersSource
from hopstream.checks import known_names
from hopstream.compat.pyg.partition_files import ids_of
from hopstream.compat.pyg.partition_reading import Owners, read_partitions
from hopstream.compat.pyg.partition_writing import (
    CutGraph,
    cut_of,
    file_name,
    fixed_column,
    time_name,
    write_partitions,
)
from hopstream.dataset.dataset_folder import replaceable, replaced_folder
from hopstream.dataset.layout import Dataset
from hopstream.dataset.settings import PartitionOptions
from hopstream.errors import FormatError, SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.ingest.source_paths import pyg_partitions_of
from hopstream.load.files import read_torch_file
from hopstream.load.pyg import to_tensor
from hopstream.schema import EdgeType, type_label
from hopstream.uris import local_path

ENDS, EDGE_LABEL, TIME, EDGE_ID = "edge_label_index", "edge_label", "edge_label_time", "edge_id"


def links_of(cut: CutGraph, split: str, part: int) -> dict[EdgeType, dict[str, Tensor]]:
    """Return the links of a split that a part owns, by edge type, in the form of the part's file.

    Args:
        cut: The graph and its parts.
        split: Name of the split.
        part: The part.

    Returns:
        Edge type to ``edge_label_index`` int64[2, n]; ``edge_label``, the edges' feature of this name, else float32
        ones; ``edge_label_time`` int64[n], the time minus 1, if edges have times; ``edge_id`` int64[n], edge keys.
    """
    found: dict[EdgeType, dict[str, Tensor]] = {}
    for edge_type, splits in cut.graph.edge_splits.items():
        if split not in splits:
            continue
        table, keys = cut.graph.edges[edge_type], splits[split]
        keys = keys[cut.owners[edge_type[2]][table.dst_keys[keys]] == part]
        links = {ENDS: np.stack([table.src_keys[keys], table.dst_keys[keys]])}
        labels = table.features.get(EDGE_LABEL)
        where = f"{type_label(edge_type)}.{EDGE_LABEL}"
        links[EDGE_LABEL] = np.ones(len(keys), np.float32) if labels is None else fixed_column(labels, where)[keys]
        if (name := time_name(table)) is not None:
            times = fixed_column(table.features[name], f"{type_label(edge_type)}.{name}")[keys]
            links[TIME] = times.astype(np.int64 if times.dtype.kind in "iu" else times.dtype) - 1
        found[edge_type] = {what: to_tensor(of, False) for what, of in (links | {EDGE_ID: keys}).items()}
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
            f"{path}: link {link} from {src[link]} to {dst[link]} is not edge {found[link]}, its {EDGE_ID}; "
            f"write the file again with these partitions, or without {EDGE_ID}"
        )
    return found


def _is_ids(value: object, num_dims: int) -> bool:
    is_integers = isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
    return is_integers and value.dtype != torch.bool and value.ndim == num_dims  # type: ignore[attr-defined]


def _edges_between(path: Path, src: IntArray, dst: IntArray, table: EdgeTable) -> IntArray:
    """Return the key of the only edge between the ends of each link."""
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
            f"{path}: link {link} from {src[link]} to {dst[link]} matches {stop[link] - first[link]} edges of the "
            f"graph; wanted one: leave out links that are not edges, and give the edge of each other link as {EDGE_ID}"
        )
    return order[first]


LABEL = "y"
LABEL_FOLDERS = ("label", "labels")
SPLITS = ("train", "val", "test")
PARTITIONS = "-partitions"
PART_NAMES = ("partition", "partion")


def write_partition_folders(
    graph: Graph | Dataset | str | Path,
    root: str | Path,
    name: str,
    *,
    owners: OwnersSource | None = None,
    overwrite: bool = False,
    **options: Unpack[PartitionOptions],
) -> None:
    """Write partition files, with labels and splits beside them, as PyG's scripts read them.

    A part's file of a split has the nodes or links of the split that the part owns. Each folder is written completely
    and then renamed; the partitions come last.

    Args:
        graph: A graph, which is partitioned here; or a dataset or its folder, whose parts are kept.
        root: The folder of the folders.
        name: Prefix of their names.
        owners: The part of each node, as ``hopstream.write_parts`` takes it.
        overwrite: Replace existing folders.
        **options: Fields of ``PartitionSettings``; only for a graph.

    Raises:
        SettingsError: A folder holds other files, exists without ``overwrite``, or has labels or a split that the graph
            lacks and that a reader would take for the graph's.
        SchemaError: A feature is no tensor, a name cannot be a file name, or nodes and links have splits of the same
            name, and so the same folder.
        FormatError: The dataset is damaged.
    """
    file_name(name)
    cut = cut_of(graph, owners, options)
    place = local_path(root)
    of_nodes, of_links = (
        list(dict.fromkeys(split for splits in every.values() for split in splits))
        for every in (cut.graph.splits, cut.graph.edge_splits)
    )
    for split in of_nodes:
        if split in of_links:
            raise SchemaError(
                f"nodes and links both have a split {split!r}, but PyG's layout has one folder for it; rename one, or "
                "leave one out: dataclasses.replace(graph, edge_splits={})"
            )
    labels = {
        t: to_tensor(fixed_column(nodes.features[LABEL], f"{t}.{LABEL}"), False)
        for t, nodes in cut.graph.nodes.items()
        if LABEL in nodes.features
    }
    written = {f"{name}-{split}-partitions" for split in (*of_nodes, *of_links)} | (
        {f"{name}-label"} if labels else set()
    )
    there = [*(place / f"{name}-{folder}" for folder in LABEL_FOLDERS), *_split_folders(place, name).values()]
    strange = [str(folder) for folder in there if folder.exists() and folder.name not in written]
    if strange:
        raise SettingsError(
            f"{', '.join(strange)} would be read as labels or splits of this graph, which does not have them; move "
            "them away, or give another name"
        )
    if labels:
        _write_folder(place / f"{file_name(name)}-label", {"label.pt": labels}, overwrite)
    for split in (*of_nodes, *of_links):
        in_part = _split_of if split in of_nodes else links_of
        files = {f"partition{part}.pt": in_part(cut, split, part) for part in range(cut.num_parts)}
        _write_folder(place / f"{name}-{file_name(split)}-partitions", files, overwrite)
    write_partitions(
        cut.graph, place / f"{name}-partitions", owners=cut.owners, num_parts=cut.num_parts, overwrite=overwrite
    )


def read_partition_folders(
    root: str | Path, name: str, node_type: str | None = None, edge_type: EdgeType | None = None
) -> tuple[Graph, Owners]:
    """Read partition files, and the labels and splits beside them.

    Args:
        root: The folder of the folders.
        name: Prefix of their names.
        node_type: The type of the nodes in files without types; required if there are several.
        edge_type: The type of the links in files without types; required if there are several.

    Returns:
        The graph, with labels as feature ``y``, and node type to the part of each node, int32[num_nodes].

    Raises:
        FormatError: A file is missing, damaged, or contradicts the others; or a link is no edge, or several.
        SettingsError: ``node_type`` or ``edge_type`` is required.
        UnknownNameError: There is no such node or edge type.
        IdRangeError: A split names a node that does not exist.
    """
    place = local_path(root)
    graph, owners = read_partitions(place / f"{name}-partitions")
    nodes = dict(graph.nodes)
    for path in (place / f"{name}-{folder}" / "label.pt" for folder in LABEL_FOLDERS):
        if path.is_file():
            value = read_torch_file(path, tensors_only=True)
            for of_type, labels in _node_tensors(path, value, graph, node_type).items():
                features = {**nodes[of_type].features}
                features.setdefault(LABEL, labels.numpy())
                nodes[of_type] = replace(nodes[of_type], features=features)
    splits: dict[str, dict[str, IntArray]] = {t: dict(of) for t, of in graph.splits.items()}
    edge_splits: dict[EdgeType, dict[str, IntArray]] = {}
    found = _split_folders(place, name)
    for split in sorted(found, key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS)):
        for entity, keys in _read_split(found[split], graph, node_type, edge_type).items():
            if isinstance(entity, str):
                splits.setdefault(entity, {})[split] = keys
            else:
                edge_splits.setdefault(entity, {})[split] = keys
    return replace(graph, nodes=nodes, splits=splits, edge_splits=edge_splits).check(), owners


def _split_folders(place: Path, name: str) -> dict[str, Path]:
    """Map each split to its folder; leave out folders of graphs whose names only start with ``name``."""
    folders = sorted(place.iterdir()) if place.is_dir() else []
    graphs = [folder.name.removesuffix(PARTITIONS) for folder in folders if pyg_partitions_of(folder)]
    longer = tuple(f"{other}-" for other in graphs if other.startswith(f"{name}-"))
    found = {}
    for folder in folders:
        split = folder.name.removeprefix(f"{name}-").removesuffix(PARTITIONS)
        is_named = folder.name == f"{name}-{split}{PARTITIONS}" and not pyg_partitions_of(folder)
        if is_named and folder.is_dir() and not folder.name.startswith(longer):
            found[split] = folder
    return found


def _write_folder(out: Path, files: Mapping[str, Mapping[Any, Any]], overwrite: bool) -> None:
    with replaced_folder(out, overwrite=overwrite, check=_check_folder) as folder:
        for name, by_type in files.items():
            is_single = len(by_type) == 1
            torch.save(next(iter(by_type.values())) if is_single else dict(by_type), folder / name)


def _check_folder(out: Path, *, overwrite: bool) -> None:
    root = replaceable(out)
    if root is None:
        return
    names = sorted(entry.name for entry in root.iterdir())
    foreign = [name for name in names if not name.endswith(".pt")]
    if foreign:
        raise SettingsError(
            f"{out} holds {foreign[0]!r}, which is not a tensor file; move it away, or give another name"
        )
    if names and not overwrite:
        raise SettingsError(f"{out} holds tensor files; give overwrite=True or another name")


def _split_of(cut: CutGraph, split: str, part: int) -> dict[str, Tensor]:
    """Return the nodes of a split that a part owns, for every type with the split."""
    keys = {t: splits[split] for t, splits in cut.graph.splits.items() if split in splits}
    return {t: to_tensor(of[cut.owners[t][of] == part], False) for t, of in keys.items()}


def _read_split(
    folder: Path, graph: Graph, node_type: str | None, edge_type: EdgeType | None
) -> dict[str | EdgeType, IntArray]:
    """Read keys of nodes by node type, or of edges by edge type."""
    paths = [path for name in PART_NAMES for path in sorted(folder.glob(f"{name}*.pt"))]
    if not paths:
        raise FormatError(f"{folder} has no {PART_NAMES[0]}0.pt; copy it there, or move the folder away")
    found: dict[str | EdgeType, list[IntArray]] = {}
    for path in paths:
        value = read_torch_file(path, tensors_only=True)
        is_of_links = isinstance(value, dict) and (ENDS in value or any(isinstance(of, dict) for of in value.values()))
        if is_of_links:
            links = _by_type(path, {edge_type: value} if ENDS in value else value, graph.edges, "edge")
            of_path: dict[Any, IntArray] = {t: _keys_of(path, of, graph.edges[t]) for t, of in links.items()}
        else:
            of_nodes = _node_tensors(path, value, graph, node_type)
            of_path = {t: ids_of(path, of_nodes, t).numpy() for t in of_nodes}
        for entity, keys in of_path.items():
            found.setdefault(entity, []).append(keys)
    return {t: np.sort(np.concatenate(ids)).astype(np.int64, copy=False) for t, ids in found.items()}


def _node_tensors(path: Path, value: Any, graph: Graph, node_type: str | None) -> dict[str, Tensor]:
    """Return the tensors of a file by node type."""
    value = {node_type: value} if isinstance(value, Tensor) else value
    if not isinstance(value, dict) or not all(isinstance(of, Tensor) for of in value.values()):
        raise FormatError(f"{path} holds {type(value).__name__}; wanted a tensor, or tensors by node type")
    return _by_type(path, value, graph.nodes, "node")


def _by_type(path: Path, value: dict[Any, Any], known: Mapping[Any, Any], what: str) -> dict[Any, Any]:
    """Return the contents of a file by type; the key None is replaced by the only type.

    Raises:
        SettingsError: The graph has several types and the file names none.
        UnknownNameError: There is no such type.
    """
    if None in value:
        if len(known) > 1:
            raise SettingsError(f"{path} does not name the type of its {what}s; give {what}_type, one of {list(known)}")
        value = {next(iter(known), None): value[None]}
    for of_type in value:
        if of_type not in known:
            raise UnknownNameError(f"{path}: {what} type {of_type!r} does not exist; {known_names(of_type, known)}")
    return value
