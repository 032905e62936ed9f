"""Writer of a graph, or of a PyG data object that it partitions, as PyG's partition files.

An edge belongs to the part of its destination. Edges of a part are sorted by destination, then by time if there are
times. The layout is that of ``hopstream.compat.pyg.partition_files``, with the names that PyG's code uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np
import torch

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.assign.run import OwnersSource, assign_owners, count_parts
from hopstream.checks import known_names, read_integer
from hopstream.compat.pyg.partition_files import offsets_of_types
from hopstream.dataset.dataset_folder import replaceable, replaced_folder
from hopstream.dataset.layout import Dataset, open_dataset
from hopstream.dataset.read_back import graph_of_dataset
from hopstream.dataset.settings import PartitionOptions, PartitionSettings
from hopstream.dataset.split import split_by_owner
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.objects.attributes import MASKS
from hopstream.ingest.objects.pyg_data import graph_from_data
from hopstream.ingest.source_paths import PYG_META
from hopstream.load.pyg import to_tensor
from hopstream.schema import EDGE, NODE, EdgeType, type_label
from hopstream.uris import local_path

NODE_TIME = "time"
EDGE_TIMES = ("edge_time", "time")
"""Names of the times of edges; the first existing one is used."""
MAP_NAMES = ("node_map", "edge_map", "node-map", "edge-map")


def write_partitions(
    graph: Graph | Dataset | str | Path,
    root: str | Path,
    *,
    owners: OwnersSource | None = None,
    features: Collection[str] | None = None,
    overwrite: bool = False,
    **options: Unpack[PartitionOptions],
) -> None:
    """Write PyG's partition files, which ``torch_geometric.distributed`` and ``read_partitions`` read.

    Splits ``train``, ``val`` and ``test`` of nodes become PyG's masks ``train_mask``, ``val_mask`` and ``test_mask``.
    Other splits are not written.

    Args:
        graph: A graph, which is partitioned here; or a dataset or its folder, whose parts are kept.
        root: The folder to write.
        owners: The part of each node, as ``hopstream.write_parts`` takes it.
        features: Names of the features to write, of any type; None for all. Times are always written.
        overwrite: Replace existing partition files once the new ones are complete.
        **options: Fields of ``PartitionSettings`` for a graph: ``num_parts``, ``method`` and others.

    Raises:
        SettingsError: ``root`` holds other files, or partition files without ``overwrite``; or a dataset, which has its
            parts already, comes with options of partitioning.
        SchemaError: A feature is no tensor, or a type's name cannot be a file name.
        UnknownNameError: No type has one of ``features``.
        FormatError: The dataset is damaged.
    """
    root = local_path(root)
    cut = _with_masks(cut_of(graph, owners, options))
    chosen = _Contents(cut, _chosen(cut.graph, features))
    with replaced_folder(root, overwrite=overwrite, check=check_root) as folder:
        chosen.write(folder)


def _with_masks(cut: CutGraph) -> CutGraph:
    """Add the splits that PyG has masks for as features."""
    nodes = dict(cut.graph.nodes)
    for node_type, splits in cut.graph.splits.items():
        table, masks = nodes[node_type], {}
        for name, split in MASKS.items():
            if split in splits and name not in table.features:
                masks[name] = np.zeros(table.num_nodes, np.bool_)
                masks[name][splits[split]] = True
        nodes[node_type] = replace(table, features={**table.features, **masks})
    return replace(cut, graph=replace(cut.graph, nodes=nodes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutGraph:
    """A graph with the part of each node.

    Attributes:
        graph: The graph, checked.
        owners: Node type to int32[num_nodes].
        num_parts: Number of parts. A part may own nothing.
    """

    graph: Graph
    owners: Mapping[str, Any]
    num_parts: int

    def edge_owners(self, edge_type: EdgeType) -> Any:
        """Return int32[num_edges], the part of each edge: that of its destination."""
        return self.owners[edge_type[2]][self.graph.edges[edge_type].dst_keys]


def cut_of(graph: Graph | Dataset | str | Path, owners: OwnersSource | None, options: PartitionOptions) -> CutGraph:
    """Partition a graph, or take the parts of a dataset.

    Raises:
        SettingsError: A dataset comes with options of partitioning, or a setting is outside its range.
    """
    if isinstance(graph, Graph):
        if owners is not None:
            options = {"method": "file", **options}
            if "num_parts" not in options:
                num_nodes = {t: table.num_nodes for t, table in graph.nodes.items()}
                options = {"num_parts": count_parts(owners, num_nodes), **options}
        settings = PartitionSettings(**options)
        assigned = assign_owners(graph.check(), settings, owners)
        return CutGraph(graph=graph, owners=assigned, num_parts=settings.num_parts)
    if owners is not None or options:
        asked = "owners" if owners is not None else next(iter(options))
        raise SettingsError(f"{asked} is given, but a dataset already has parts; leave it out, or give a Graph")
    dataset = graph if isinstance(graph, Dataset) else open_dataset(graph)
    found = graph_of_dataset(dataset)
    num_parts = dataset.manifest.book.num_parts
    parts = {t: np.empty(nodes.num_nodes, np.int32) for t, nodes in found.nodes.items()}
    for part in range(num_parts):
        for node_type, keys in dataset.open_part(part).node_keys.items():
            parts[node_type][keys] = part
    return CutGraph(graph=found, owners=parts, num_parts=num_parts)


def check_root(out: Path, *, overwrite: bool) -> None:
    """Refuse a path with other files, or with partition files that must not be overwritten.

    Raises:
        SettingsError: The path is a file or the current folder, or has other files, or has files without ``overwrite``.
    """
    check_layout(out, overwrite=overwrite, whose="PyG", meta=PYG_META, is_of_layout=_is_of_layout)


def check_layout(out: Path, *, overwrite: bool, whose: str, meta: str, is_of_layout: Callable[[str], bool]) -> None:
    """Refuse a path as ``check_root`` does, for the layout of any library.

    Args:
        out: The path.
        overwrite: Whether its files may be overwritten.
        whose: The library.
        meta: The file that every folder of the layout has.
        is_of_layout: Whether the layout has files or folders of a name.

    Raises:
        SettingsError: The path is a file or the current folder, or has other files, or has files without ``overwrite``.
    """
    root = replaceable(out)
    if root is None:
        return
    names = sorted(entry.name for entry in root.iterdir())
    foreign = [name for name in names if not is_of_layout(name)]
    if foreign or (names and meta not in names):
        raise SettingsError(
            f"{out} holds {(foreign or names)[0]!r} and is not a folder of {whose}'s partitions; move it away, or give "
            "a new or empty folder"
        )
    if names and not overwrite:
        raise SettingsError(f"{out} holds {whose}'s partitions; give overwrite=True or another folder")


def _is_of_layout(name: str) -> bool:
    part = name.removeprefix("part").removeprefix("_")
    return name == PYG_META or name.removesuffix(".pt") in MAP_NAMES or (name.startswith("part") and part.isdigit())


@dataclass(frozen=True, slots=True, eq=False)
class _Contents:
    """Contents of the files of a partitioned graph."""

    cut: CutGraph
    features: frozenset[str] | None

    def write(self, folder: Path) -> None:
        """Write every file, ``META.json`` last."""
        graph, num_parts = self.cut.graph, self.cut.num_parts
        is_hetero = not graph.schema.is_homogeneous
        edges = {t: _grouped_edges(self.cut, t) for t in graph.edges}
        nodes = {t: split_by_owner(np.asarray(owner, np.int32), num_parts) for t, owner in self.cut.owners.items()}
        node_starts = offsets_of_types({t: table.num_nodes for t, table in graph.nodes.items()})
        edge_starts = offsets_of_types({t: table.num_edges for t, table in graph.edges.items()})
        for part in range(num_parts):
            place = folder / f"part_{part}"
            place.mkdir()
            topology, edge_feats, node_feats = {}, {}, {}
            for edge_type, (offsets, order) in edges.items():
                keys = order[offsets[part] : offsets[part + 1]]
                topology[edge_type] = self._topology(edge_type, keys, edge_starts[edge_type] if is_hetero else 0)
                if len(keys) or not graph.edges[edge_type].num_edges:
                    edge_feats[edge_type] = self._edge_feats(edge_type, keys)
            for node_type, (offsets, order) in nodes.items():
                keys = np.asarray(order[offsets[part] : offsets[part + 1]], np.int64)
                start = node_starts[node_type] if is_hetero else None
                # PyG cannot load a type without rows in a part, and sampling needs the times of all nodes in every
                # part.
                table = graph.nodes[node_type]
                if len(keys) or not table.num_nodes or NODE_TIME in table.features:
                    node_feats[node_type] = self._node_feats(node_type, keys, start)
            torch.save(topology if is_hetero else topology.get(EDGE, self._no_edges()), place / "graph.pt")
            if is_hetero or node_feats:
                torch.save(node_feats if is_hetero else node_feats[NODE], place / "node_feats.pt")
            torch.save(edge_feats if is_hetero else edge_feats.get(EDGE, {}), place / "edge_feats.pt")
        self._write_maps(folder, is_hetero)
        meta = {
            "num_parts": num_parts,
            "node_types": list(graph.nodes) if is_hetero else None,
            "edge_types": [list(t) for t in graph.edges] if is_hetero else None,
            "node_offset": list(node_starts.values()) if is_hetero else None,
            "is_hetero": is_hetero,
            "is_sorted": True,
        }
        (folder / PYG_META).write_text(json.dumps(meta) + "\n", encoding="utf-8")

    def _write_maps(self, folder: Path, is_hetero: bool) -> None:
        edge_owners = {t: self.cut.edge_owners(t) for t in self.cut.graph.edges}
        if not is_hetero:
            edge_owners.setdefault(EDGE, np.empty(0))
        for name, of_types in (("node_map", self.cut.owners), ("edge_map", edge_owners)):
            if is_hetero:
                (folder / name).mkdir()
            for of_type, owners in of_types.items():
                place = folder / name / f"{file_name(of_type)}.pt" if is_hetero else folder / f"{name}.pt"
                torch.save(_tensor(np.asarray(owners, np.int64)), place)

    def _topology(self, edge_type: EdgeType, keys: IntArray, start: int) -> dict[str, Any]:
        table, nodes = self.cut.graph.edges[edge_type], self.cut.graph.nodes
        return {
            "edge_id": _tensor(keys + start),
            "row": _tensor(table.src_keys[keys]),
            "col": _tensor(table.dst_keys[keys]),
            "size": (nodes[edge_type[0]].num_nodes, nodes[edge_type[2]].num_nodes),
        }

    def _no_edges(self) -> dict[str, Any]:
        num_nodes = self.cut.graph.nodes[NODE].num_nodes
        none = {name: torch.empty(0, dtype=torch.int64) for name in ("edge_id", "row", "col")}
        return {**none, "size": (num_nodes, num_nodes)}

    def _node_feats(self, node_type: str, keys: IntArray, start: int | None) -> dict[str, Any]:
        """Return the data of a part's nodes; ``start`` is the first number of the type, or None without types."""
        table = self.cut.graph.nodes[node_type]
        feats: dict[str, Any] = {"global_id": _tensor(keys if start is None else keys + start)}
        if start is not None:
            feats["id"] = _tensor(keys)
        feats["feats"] = self._feats(table, keys, type_label(node_type), {NODE_TIME})
        if NODE_TIME in table.features:
            feats["time"] = _tensor(fixed_column(table.features[NODE_TIME], f"{node_type}.{NODE_TIME}"))
        return feats

    def _edge_feats(self, edge_type: EdgeType, keys: IntArray) -> dict[str, Any]:
        """Return the data of a part's edges; empty if they have no features, as in PyG."""
        table = self.cut.graph.edges[edge_type]
        label = type_label(edge_type)
        feats = self._feats(table, keys, label, {EDGE_TIMES[0]})
        time = time_name(table)
        if time is not None and time != EDGE_TIMES[0]:  # keeps the feature's own name
            feats[time] = _tensor(fixed_column(table.features[time], f"{label}.{time}")[keys])
        values: dict[str, Any] = {}
        if feats or time is not None:
            values = {"global_id": _tensor(keys), "feats": feats}
        if time is not None:
            values["edge_time"] = _tensor(fixed_column(table.features[time], f"{label}.{time}")[keys])
        return values

    def _feats(
        self, table: NodeTable | EdgeTable, keys: IntArray, label: str, times: Collection[str]
    ) -> dict[str, Any]:
        chosen = self.features
        names = [n for n in table.features if n not in times and (chosen is None or n in chosen)]
        return {name: _tensor(fixed_column(table.features[name], f"{label}.{name}")[keys]) for name in names}


def _grouped_edges(cut: CutGraph, edge_type: EdgeType) -> tuple[IntArray, IntArray]:
    """Sort the keys of a type's edges by part, then destination, then time, then key.

    Returns:
        int64[num_parts + 1], the offset of each part, and int64[num_edges], the keys.
    """
    owners = cut.edge_owners(edge_type)
    keys = np.lexsort((*_sort_times(cut.graph, edge_type), cut.graph.edges[edge_type].dst_keys, owners))
    return offsets_of(np.bincount(owners, minlength=cut.num_parts)), keys.astype(np.int64, copy=False)


def _sort_times(graph: Graph, edge_type: EdgeType) -> Iterator[Array]:
    """Yield the times that sort the edges of one destination: their own, else their sources'."""
    table, src_type = graph.edges[edge_type], edge_type[0]
    name = time_name(table)
    if name is not None:
        yield fixed_column(table.features[name], f"{type_label(edge_type)}.{name}")
    elif NODE_TIME in graph.nodes[src_type].features:
        yield fixed_column(graph.nodes[src_type].features[NODE_TIME], f"{src_type}.{NODE_TIME}")[table.src_keys]


def time_name(table: EdgeTable) -> str | None:
    """Return the name of the feature that holds the times of edges, or None."""
    return next((name for name in EDGE_TIMES if name in table.features), None)


def _chosen(graph: Graph, features: Collection[str] | None) -> frozenset[str] | None:
    if features is None:
        return None
    if isinstance(features, str):
        raise SettingsError(f"features is {features!r}; wanted a list of names")
    known = {name for of in (graph.schema.nodes, graph.schema.edges) for names in of.values() for name in names}
    for name in features:
        if name not in known:
            raise UnknownNameError(f"no node or edge type has a feature {name!r}; {known_names(name, sorted(known))}")
    return frozenset(features)


def fixed_column(column: Any, where: str) -> Array:
    """Return a column as one array; raise ``SchemaError`` for strings and rows of different lengths."""
    if isinstance(column, RaggedArray):
        raise SchemaError(
            f"{where} holds strings or rows of different lengths, which PyG's files cannot hold; name the features to "
            "write with features="
        )
    array: Array = column
    return array


def _tensor(array: Any) -> torch.Tensor:
    return to_tensor(np.ascontiguousarray(array), False)


def file_name(of_type: str | EdgeType) -> str:
    """Return the name of a type's file in PyG's and GLT's layouts; raise ``SchemaError`` if invalid."""
    name = of_type if isinstance(of_type, str) else "__".join(of_type)
    if "/" in name or name in ("", ".", ".."):
        raise SchemaError(f"{of_type!r} cannot be the name of a file, and each type has a file of its name; rename it")
    return name


class Partitioner:
    """Partitioner that writes one folder per part, in the layout of ``torch_geometric.distributed``.

    METIS, or another method of Hopstream, assigns the nodes; the same settings give the same parts. Every feature that
    is a tensor is written, including labels, and masks of nodes.
    """

    def __init__(self, data: Any, num_parts: int, root: str | Path, recursive: bool = False, **options: Any) -> None:
        """Set the graph, the folder and the options.

        Args:
            data: A PyG ``Data`` or ``HeteroData``, or a ``Graph``.
            num_parts: Number of parts.
            root: The folder to write. Existing partition files are replaced once the new ones are complete.
            recursive: Let METIS bisect recursively, instead of partitioning k-way.
            **options: Fields of ``PartitionSettings``, such as ``method="kaminpar"``, ``rng_seed`` or ``balance``.

        Raises:
            SettingsError: A setting is outside its range, or ``root`` holds other files.
        """
        if not isinstance(root, str | Path):
            raise SettingsError(f"root is {root!r}; give the folder to write")
        self.data, self.num_parts, self.root = data, read_integer("num_parts", num_parts), local_path(root)
        unknown = options.keys() - PartitionOptions.__annotations__.keys()
        if unknown:
            raise SettingsError(
                f"option {min(unknown)!r} does not exist; {known_names(min(unknown), PartitionOptions.__annotations__)}"
            )
        chosen = {"method": "metis", "balance": "nodes", **options, "num_parts": self.num_parts, "recursive": recursive}
        self.options = cast(PartitionOptions, chosen)
        PartitionSettings(**self.options)
        check_root(self.root, overwrite=True)

    def generate_partition(self) -> None:
        """Partition and write.

        Raises:
            SchemaError: ``data`` is no graph, or a feature is no tensor.
            IdRangeError: An edge names a node that does not exist.
        """
        graph = self.data if isinstance(self.data, Graph) else graph_from_data(self.data)
        write_partitions(graph, self.root, overwrite=True, **self.options)
