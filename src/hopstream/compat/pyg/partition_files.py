"""Names and reader of PyG's partition files.

A folder has ``META.json``, the part of every node and edge (``node_map.pt`` and ``edge_map.pt``, or a folder
``node_map`` and ``edge_map`` with a file per type), and per part ``graph.pt``, ``node_feats.pt`` and ``edge_feats.pt``.
The names in PyG's documentation (``part0``, ``node-map``, ``edge-map``) are read too.

Ids in these files are of two kinds. In a graph with types, ``edge_id`` of ``graph.pt`` and ``global_id`` of
``node_feats.pt`` number the edges and nodes of all types together, in the order of ``META.json``. All other ids number
each type separately.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from hopstream.dataset.settings import MAX_PARTS
from hopstream.errors import FormatError, IdRangeError, quoted
from hopstream.ingest.source_paths import PYG_META
from hopstream.load.files import read_torch_file
from hopstream.schema import EdgeType
from hopstream.uris import local_path

NodeParts = Tensor | dict[str, Tensor]
"""int64[num_nodes], the part of each node; in a graph with types, a dict of these by node type."""
EdgeParts = Tensor | dict[EdgeType, Tensor]
"""int64[num_edges], the part of each edge; in a graph with types, a dict of these by edge type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMeta:
    """Contents of ``META.json``.

    Attributes:
        values: The JSON object.
        num_parts: Number of parts.
        node_types: Node types in order; None in a graph without types.
        edge_types: Edge types in order; None in a graph without types.
        is_sorted: Whether edges are sorted by destination.
    """

    values: dict[str, Any]
    num_parts: int
    node_types: tuple[str, ...] | None
    edge_types: tuple[EdgeType, ...] | None
    is_sorted: bool

    @property
    def is_hetero(self) -> bool:
        """Whether the graph has types."""
        return self.node_types is not None


PartitionInfo = tuple[dict[str, Any], int, int, Any, Any]
"""Result of ``load_partition_info``."""


def load_partition_info(root_dir: str | Path, partition_idx: int) -> PartitionInfo:
    """Read the facts of a partitioned graph that every rank needs.

    Args:
        root_dir: The folder of ``META.json``.
        partition_idx: The part of this rank.

    Returns:
        The content of ``META.json``, the number of parts, ``partition_idx``, the part of every node, and the part of
        every edge. Parts are int64 tensors; in a graph with types, dicts of these.

    Raises:
        FormatError: A file is missing, damaged, or contradicts the others.
        IdRangeError: There is no such part.
    """
    root = local_path(root_dir)
    meta = read_meta(root)
    check_part(root, meta, partition_idx)
    return meta.values, meta.num_parts, partition_idx, *read_maps(root, meta)


def read_meta(root: Path) -> PartitionMeta:
    """Read ``META.json``.

    Raises:
        FormatError: The file is missing, no JSON object, or lacks a field.
    """
    path = root / PYG_META
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error.strerror}); wanted the folder of PyG's partitions") from error
    except ValueError as error:
        raise FormatError(f"{path} is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise FormatError(f"{path} is {type(values).__name__}; it must be an object with num_parts and is_hetero")
    num_parts, is_hetero = values.get("num_parts"), values.get("is_hetero")
    if not isinstance(num_parts, int) or isinstance(num_parts, bool) or not 1 <= num_parts <= MAX_PARTS:
        raise FormatError(f"{path} has num_parts {num_parts!r}; it must be an integer from 1 to {MAX_PARTS}")
    if not isinstance(is_hetero, bool):
        raise FormatError(f"{path} has is_hetero {is_hetero!r}; it must be true or false")
    is_sorted = values.get("is_sorted", False)
    if not isinstance(is_sorted, bool):
        raise FormatError(f"{path} has is_sorted {is_sorted!r}; it must be true or false")
    return PartitionMeta(
        values=values,
        num_parts=num_parts,
        node_types=_node_types(path, values.get("node_types")) if is_hetero else None,
        edge_types=_edge_types(path, values.get("edge_types")) if is_hetero else None,
        is_sorted=is_sorted,
    )


def check_part(root: Path, meta: PartitionMeta, part: int) -> None:
    """Raise ``IdRangeError`` unless there is such a part."""
    if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part < meta.num_parts:
        raise IdRangeError(f"part is {part!r}; {root} has the parts 0..{meta.num_parts - 1}")


def read_maps(root: Path, meta: PartitionMeta) -> tuple[NodeParts, EdgeParts]:
    """Read the part of every node and edge.

    Raises:
        FormatError: A file is missing, or does not hold one part per node or edge.
    """
    if meta.node_types is None or meta.edge_types is None:
        return _read_map(root, "node_map", None, meta), _read_map(root, "edge_map", None, meta)
    nodes = {t: _read_map(root, "node_map", t, meta) for t in meta.node_types}
    return nodes, {t: _read_map(root, "edge_map", "__".join(t), meta) for t in meta.edge_types}


def read_part_file(
    root: Path, part: int, name: str, owned: Tensor | Mapping[Any, Tensor] | None = None
) -> dict[Any, Any] | None:
    """Read one of the files of a part; return None if it does not exist.

    Args:
        root: The folder of ``META.json``.
        part: The part.
        name: ``graph.pt``, ``node_feats.pt`` or ``edge_feats.pt``.
        owned: The map of parts of the file's items. If it gives the part any item, and other parts have such a file,
            then this part must have it too.

    Raises:
        FormatError: The part's folder or the file is missing, or the file is damaged or holds no dictionary.
    """
    folders = [root / f"part_{part}", root / f"part{part}"]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise FormatError(f"{root} has no folder {folders[0].name} and no {folders[1].name}; copy the part there")
    path = folder / name
    if not path.is_file():
        maps = list(owned.values()) if isinstance(owned, Mapping) else [] if owned is None else [owned]
        others = sorted(other.parent.name for other in root.glob(f"part*/{name}"))
        if others and any(bool((parts == part).any()) for parts in maps):
            raise FormatError(f"{path} is missing, and {others[0]} has such a file; copy it there")
        return None
    value = read_torch_file(path, tensors_only=True)
    if not isinstance(value, dict):
        raise FormatError(f"{path} holds {type(value).__name__}; wanted a dictionary")
    return value


def tensor_of(where: Path | str, values: Mapping[Any, Any], name: str) -> Tensor:
    """Return a tensor of a dictionary, with one row or value per node or edge.

    Raises:
        FormatError: The name is missing, or has no tensor of rows.
    """
    value = values.get(name)
    if not isinstance(value, Tensor) or value.dim() == 0:
        got = type(value).__name__ if not isinstance(value, Tensor) else "a single number"
        raise FormatError(f"{where}: {name} is {got}; wanted a tensor of rows")
    return value


def ids_of(where: Path | str, values: Mapping[Any, Any], name: str) -> Tensor:
    """Return int64[n], the ids in a dictionary.

    Raises:
        FormatError: The ids are missing, or are no integers.
    """
    value = tensor_of(where, values, name)
    if value.dim() != 1 or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise FormatError(f"{where}: {name} is {value.dtype}{list(value.shape)}; wanted int64[n]")
    return value.long()


def size_of(where: Path | str, edges: Mapping[Any, Any]) -> tuple[int, int]:
    """Return the numbers of source and destination nodes in a graph file.

    Raises:
        FormatError: The numbers are missing or invalid.
    """
    size: Any = edges.get("size")
    is_pair = isinstance(size, list | tuple) and len(size) == 2
    if not is_pair or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in size):
        raise FormatError(f"{where}: size is {size!r}; wanted numbers of source and destination nodes")
    return size[0], size[1]


def check_owned(where: str, ids: Tensor, parts: Tensor, part: int) -> None:
    """Refuse ids that the map assigns to other parts.

    Raises:
        FormatError: An id belongs to another part, or is outside the map.
    """
    is_known = (ids >= 0) & (ids < len(parts))
    is_owned = is_known.clone()
    is_owned[is_known] = parts[ids[is_known]] == part
    if not bool(is_owned.all()):
        found = int(ids[~is_owned][0])
        of = f"part {int(parts[found])}" if 0 <= found < len(parts) else f"none: ids are 0..{len(parts) - 1}"
        raise FormatError(
            f"{where}: id {found} belongs to {of}, by the map of parts; is the folder that of part {part}, and are the "
            "files of one run?"
        )


def parts_of(path: Path, value: object, num_parts: int) -> Tensor:
    """Check and return int64[n], the part of each node or edge in a file.

    Raises:
        FormatError: The file holds other values.
    """
    parts = ids_of(path, {"the map of parts": value}, "the map of parts")
    if len(parts) and (int(parts.min()) < 0 or int(parts.max()) >= num_parts):
        row = int(torch.nonzero((parts < 0) | (parts >= num_parts))[0])
        raise FormatError(f"{path}[{row}] is {int(parts[row])}; parts are 0..{num_parts - 1}")
    return parts


def offsets_of_types(counts: Mapping[Any, int]) -> dict[Any, int]:
    """Return the first number of each type, where the types are numbered in sequence."""
    offsets, start = {}, 0
    for of_type, count in counts.items():
        offsets[of_type] = start
        start += count
    return offsets


def ids_of_type(where: str, ids: Tensor, start: int, count: int) -> Tensor:
    """Convert ids that number all types together to ids of one type.

    Raises:
        FormatError: An id belongs to another type.
    """
    if len(ids) and (int(ids.min()) < start or int(ids.max()) >= start + count):
        raise FormatError(
            f"{where}: ids lie in {int(ids.min())}..{int(ids.max())}; ids of this type are {start}..{start + count - 1}"
        )
    return ids - start


def _read_map(root: Path, name: str, of_type: str | None, meta: PartitionMeta) -> Tensor:
    places = [root / name, root / name.replace("_", "-")]
    paths = [place.with_name(f"{place.name}.pt") if of_type is None else place / f"{of_type}.pt" for place in places]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise FormatError(f"{root} has no {paths[0].relative_to(root)}, which holds the parts of {name[:4]}s")
    return parts_of(path, read_torch_file(path, tensors_only=True), meta.num_parts)


def _node_types(path: Path, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise FormatError(f"{path} has node_types {quoted(value)}; it must be a list of names")
    return tuple(value)


def _edge_types(path: Path, value: Any) -> tuple[EdgeType, ...]:
    is_list = isinstance(value, list) and all(isinstance(t, list) and len(t) == 3 for t in value)
    if not is_list or not all(isinstance(name, str) for t in value for name in t):
        raise FormatError(
            f"{path} has edge_types {quoted(value)}; it must be a list of [source, relation, destination]"
        )
    return tuple(cast(EdgeType, tuple(t)) for t in value)
