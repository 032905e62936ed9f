"""Reader and writer of the JSON file of a partitioned graph, in DGL's current form and in older ones.

Older files have ends of ranges in place of ranges, relations in place of edge types, or one list for a graph without
types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from hopstream.arrays import Array, IntArray, write_text
from hopstream.compat.dgl.book import Ranges
from hopstream.compat.dgl.graph_files import PlainGraph, read_graph_file
from hopstream.compat.dgl.graphs import DEFAULT_ETYPE, DEFAULT_NTYPE, ETYPE, NTYPE
from hopstream.dataset.settings import MAX_PARTS
from hopstream.errors import FormatError, SchemaError, SettingsError, UnknownNameError, quoted
from hopstream.schema import EdgeType
from hopstream.uris import local_path

OPTIONS = ("use_graphbolt", "store_eids", "store_inner_node", "store_inner_edge")


def refuse_graphbolt(verb: str, **given: object) -> None:
    """Refuse options that are set.

    Args:
        verb: The action, for the message: ``written`` or ``read``.
        **given: The options by name.

    Raises:
        SettingsError: An option is set.
    """
    for name, value in given.items():
        if value:
            raise SettingsError(f"{name} is given; GraphBolt's files are not {verb}: leave it out")


def dgl_partition_to_graphbolt(
    part_config: str | Path, *, store_eids: bool = False, store_inner_node: bool = False, store_inner_edge: bool = False
) -> NoReturn:  # fmt: skip
    """Raise an error that names the alternative.

    Raises:
        SettingsError: Always.
    """
    del store_eids, store_inner_node, store_inner_edge
    raise SettingsError(
        f"dgl_partition_to_graphbolt is called for {local_path(part_config)}; GraphBolt's files are not written: "
        "load_partition reads DGL's own, and read_partitions makes a graph of them for write_parts"
    )


OURS = "hopstream"
"""Key of facts that DGL does not store: which data are splits or booleans, and types of links to predict."""
REQUIRED = ("graph_name", "num_nodes", "num_edges", "num_parts", "node_map", "edge_map")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartConfig:
    """Contents of the JSON file of a partitioned graph.

    Attributes:
        path: The JSON file; its paths are relative to its folder.
        graph_name: The graph's name.
        part_method: The method that assigned nodes to parts.
        num_parts: Number of parts.
        halo_hops: Number of hops in halos.
        nodes: Node types, their ids, and each part's ranges of numbers.
        edges: The same for edge types.
        parts: For each part a dict of paths by contents: ``node_feats``, ``edge_feats``, ``part_graph``.
        ours: The value of the key ``OURS``.
    """

    path: Path
    graph_name: str
    part_method: str
    num_parts: int
    halo_hops: int
    nodes: Ranges
    edges: Ranges
    parts: tuple[Mapping[str, str], ...]
    ours: Mapping[str, Any] = field(default_factory=dict)

    def file(self, part: int, what: str) -> Path:
        """Return the path of a part's file.

        Raises:
            UnknownNameError: There is no such part.
            FormatError: The part has no such file, or its path leads out of the folder of the JSON file.
        """
        if not 0 <= part < self.num_parts:
            raise UnknownNameError(f"{self.path} has no part {part}; parts are numbered 0..{self.num_parts - 1}")
        return _file(self.path, self.parts[part], part, what)

    def beside(self, part: int, name: str) -> Path:
        """Return the path of a file in the folder of the part's graph; the file need not exist.

        Raises:
            FormatError: The path leads out of the folder of the JSON file.
        """
        return _inside(self.path, part, str(Path(self.parts[part]["part_graph"]).parent / name))

    def write(self) -> None:
        """Write the file atomically."""
        value = {
            "graph_name": self.graph_name,
            "num_nodes": int(self.nodes.all_types[-1]), "num_edges": int(self.edges.all_types[-1]),
            "part_method": self.part_method, "num_parts": self.num_parts, "halo_hops": self.halo_hops,
            "node_map": {t: ranges.tolist() for t, ranges in self.nodes.ranges.items()},
            "edge_map": {label_of(t): ranges.tolist() for t, ranges in self.edges.ranges.items()},
            "ntypes": self.nodes.ids, "etypes": {label_of(t): number for t, number in self.edges.ids.items()},
            OURS: dict(self.ours),
            **{f"part-{part}": dict(files) for part, files in enumerate(self.parts)},
        }  # fmt: skip
        write_text(self.path, json.dumps(value, indent=4) + "\n")


def label_of(of: str | EdgeType) -> str:
    """Return a node type or an edge type in DGL's notation."""
    return of if isinstance(of, str) else ":".join(of)


def read_config(part_config: str | Path) -> PartConfig:
    """Read the JSON file of a partitioned graph.

    Raises:
        FormatError: The file is missing or damaged, or describes no partitioned graph.
    """
    path = local_path(part_config)
    value = _read_json(path)
    missing = [name for name in REQUIRED if not isinstance(value, dict) or name not in value]
    if missing:
        raise FormatError(
            f"{path} has no {', '.join(map(repr, missing))}, so it does not describe a partitioned graph of DGL; give "
            "the JSON file that partition_graph wrote, <graph_name>.json"
        )
    return _config(path, value)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        what = path if path.parent.is_dir() else f"the folder {path.parent}"
        raise FormatError(
            f"{what} is missing; give the JSON file that partition_graph wrote, <out_path>/<graph_name>.json"
        ) from error
    except IsADirectoryError as error:
        there = sorted(file.name for file in path.glob("*.json"))
        remedy = (
            f"one of {there}"
            if there
            else "partition_graph writes <out_path>/<graph_name>.json, and this folder has none"
        )
        raise FormatError(f"{path} is a folder; give the JSON file in it: {remedy}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(
            f"{str(path)!r} is not a JSON file ({error}); give the file that partition_graph wrote"
        ) from error


def _config(path: Path, value: dict[str, Any]) -> PartConfig:
    num_parts = value["num_parts"]
    if type(num_parts) is not int or not 1 <= num_parts <= MAX_PARTS:
        raise FormatError(f"{path} has num_parts {num_parts!r}; wanted 1..{MAX_PARTS}")
    parts = tuple(_part(path, value, part) for part in range(num_parts))
    node_map, edge_map = value["node_map"], value["edge_map"]
    if isinstance(node_map, str) or isinstance(edge_map, str):
        raise FormatError(f"{path} names files with the part of each node; only ranges of numbers are read")
    node_map = node_map if isinstance(node_map, dict) else {DEFAULT_NTYPE: node_map}
    edge_map = edge_map if isinstance(edge_map, dict) else {label_of(DEFAULT_ETYPE): edge_map}
    ntypes = _ids(path, "ntypes", value.get("ntypes", {DEFAULT_NTYPE: 0}))
    labels = _ids(path, "etypes", value.get("etypes", {label_of(DEFAULT_ETYPE): 0}))
    if edge_map.keys() != labels.keys() and len(edge_map) == len(labels) == 1:
        edge_map = {next(iter(labels)): next(iter(edge_map.values()))}
    if not ntypes:
        raise FormatError(f"{path} has no node types; wanted one at least")
    named = _edge_types(path, labels, ntypes, parts)
    for label, etype in named.items():
        if not {etype[0], etype[2]} <= ntypes.keys() or list(named.values()).count(etype) > 1:
            raise FormatError(f"{path} has the edge type {label!r}, twice or of unknown nodes; known: {list(ntypes)}")
    edge_ids = {named[t]: number for t, number in labels.items()}
    edge_ranges = {named.get(t, t): ranges for t, ranges in edge_map.items()}
    return PartConfig(
        path=path, graph_name=_text(path, value, "graph_name"),
        part_method=_text(path, {"part_method": "", **value}, "part_method"),
        num_parts=num_parts, halo_hops=_number(path, {"halo_hops": 1, **value}, "halo_hops"),
        nodes=_ranges(path, "node", node_map, ntypes, num_parts, _number(path, value, "num_nodes")),
        edges=_ranges(path, "edge", edge_ranges, edge_ids, num_parts, _number(path, value, "num_edges")),
        parts=parts, ours=_ours(path, value.get(OURS, {})),
    )  # fmt: skip


def _number(path: Path, value: Mapping[str, Any], name: str) -> int:
    number = value[name]
    if type(number) is not int or number < 0:
        raise FormatError(f"{path} has {name} {number!r}; wanted a whole number")
    return number


def _text(path: Path, value: Mapping[str, Any], name: str) -> str:
    text = value[name]
    if not isinstance(text, str):
        raise FormatError(f"{path} has {name} {quoted(text)}; wanted a text")
    return text


def _ids(path: Path, name: str, value: Any) -> dict[str, int]:
    """Check and return the ids of types, in the order of ids."""
    if not isinstance(value, dict) or not all(type(number) is int for number in value.values()):
        raise FormatError(f"{path} has {name} {quoted(value)}; wanted whole numbers by type")
    return dict(sorted(value.items(), key=lambda of: of[1]))


def _part(path: Path, said: Mapping[str, Any], part: int) -> dict[str, str]:
    """Return a part's files by contents."""
    name = f"part-{part}"
    if name not in said:
        raise FormatError(f"{path} has num_parts {said['num_parts']} and no {name!r}")
    value = said[name]
    if not isinstance(value, dict) or not all(isinstance(of, str) for of in value.values()):
        raise FormatError(f"{path} has {name} {quoted(value)}; wanted names of files by what they hold")
    return dict(value)


def _ours(path: Path, value: Any) -> dict[str, Any]:
    """Check and return the value of ``OURS``: lists of strings by label, a list of strings, and a boolean."""
    if not isinstance(value, dict):
        raise FormatError(f"{path} has {OURS} {quoted(value)}; wanted an object")
    for name in ("splits", "edge_splits", "label_types"):
        of = value.get(name, {})
        if not isinstance(of, dict) or not all(_are_texts(texts) for texts in of.values()):
            raise FormatError(f"{path} has {name} {of!r} of {OURS}; wanted lists of names by type")
    if not _are_texts(value.get("booleans", [])):
        raise FormatError(f"{path} has booleans {value['booleans']!r} of {OURS}; wanted a list of names")
    return dict(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _pairs(path: Path, of: str, value: Any, num_parts: int) -> IntArray:
    """Return int64[num_parts, 2], the ranges of one type; older files have only the ends of ranges."""
    try:
        array = np.array(value)
    except ValueError:  # lists of several lengths
        raise FormatError(f"{path} has no array as ranges of {of!r}; wanted {num_parts} pairs") from None
    if array.shape == (num_parts,) and array.dtype.kind == "i":
        array = np.stack([np.concatenate([[0], array[:-1]]), array], axis=1)
    if array.shape != (num_parts, 2) or array.dtype.kind != "i":
        raise FormatError(f"{path} has {array.dtype}{list(array.shape)} as ranges of {of!r}; wanted {num_parts} pairs")
    return array.astype(np.int64)


def _ranges(
    path: Path, what: str, given: Mapping[Any, Any], ids: Mapping[Any, int], num_parts: int, total: int
) -> Ranges:  # fmt: skip
    """Return the ranges of nodes or edges by type."""
    ranges = {of: _pairs(path, of, value, num_parts) for of, value in given.items()}
    try:
        found = Ranges(what, ranges, ids, num_parts)
    except SchemaError as error:
        raise FormatError(f"{path}: {error}") from error
    if found.all_types[-1] != total:
        raise FormatError(f"{path} has num_{what}s {total}, and ranges of {what}s that end with {found.all_types[-1]}")
    return found


def _edge_types(
    path: Path, labels: Mapping[str, int], ntypes: Mapping[str, int], parts: tuple[Mapping[str, str], ...]
) -> dict[str, EdgeType]:
    """Map each label to its edge type.

    If a label is only a relation, the parts' graphs give its node types.
    """
    named: dict[str, EdgeType] = {}
    for label in labels:
        names = label.split(":")
        if len(names) == 3:
            named[label] = (names[0], names[1], names[2])
        elif len(ntypes) == 1:
            (ntype,) = ntypes
            named[label] = (ntype, label, ntype)
    relations = {number: label for label, number in labels.items() if label not in named}
    for part, files in enumerate(parts):
        if relations:
            file = _file(path, files, part, "part_graph")
            _find_ends(file, read_graph_file(file), list(ntypes), relations, named)
    if relations:
        raise FormatError(
            f"{path} names the relation {next(iter(relations.values()))!r} without its node types, and no part has an "
            "edge of it; write it as source:relation:destination"
        )
    return named


def _find_ends(
    path: Path, graph: PlainGraph, ntypes: list[str], relations: dict[int, str], named: dict[str, EdgeType]
) -> None:
    """Take the node types of each relation from its first edge, and remove it from ``relations``."""
    if ETYPE not in graph.edata or NTYPE not in graph.ndata:
        return
    node_types, edge_types = graph.ndata[NTYPE], graph.edata[ETYPE]
    check_integers(path, NTYPE, node_types)
    check_integers(path, ETYPE, edge_types)
    if len(node_types) and not 0 <= int(node_types.min()) <= int(node_types.max()) < len(ntypes):
        raise FormatError(
            f"{path} has node types {node_types.min()}..{node_types.max()}; the JSON file has {len(ntypes)} of them, "
            "from 0"
        )
    for number, label in list(relations.items()):
        found = np.flatnonzero(edge_types == number)
        if len(found):
            src_type, dst_type = (int(node_types[end[found[0]]]) for end in (graph.src, graph.dst))
            named[label] = (ntypes[src_type], label, ntypes[dst_type])
            del relations[number]


def check_integers(path: Path, name: str, array: Array) -> None:
    """Check that data of a file are integers in one dimension.

    Raises:
        FormatError: The data are not integers, or have several dimensions.
    """
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise FormatError(f"{path} has {name!r} as {array.dtype}{list(array.shape)}; wanted integers in one dimension")


def _file(path: Path, files: Mapping[str, str], part: int, what: str) -> Path:
    if what not in files:
        other = "; GraphBolt's files are not read: write it without use_graphbolt" * ("part_graph_graphbolt" in files)
        raise FormatError(f"{path} has no {what!r} of part {part}; it has {list(files)}{other}")
    return _inside(path, part, files[what])


def _inside(path: Path, part: int, name: str) -> Path:
    """Return a path from the JSON file; refuse one outside its folder, which DGL reads but never writes."""
    file = path.parent / name
    try:
        is_inside = file.resolve().is_relative_to(path.parent.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # a name that no file can have, links in a ring
        raise FormatError(f"{path} names {name!r} of part {part}, which cannot be read ({error})") from error
    if not is_inside:
        raise FormatError(
            f"{path} names {name!r} of part {part}, which leads out of the folder {path.parent}; put the part's files "
            "into it, and name them by paths from it"
        )
    return file
