"""Writer of graphs as parts in DGL's files: ``partition_graph``."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.assign.balance import NodeClasses
from hopstream.assign.run import OwnersSource, assign_nodes, assign_owners
from hopstream.checks import check_int, known_names, known_words
from hopstream.compat.dgl.binary import write_tensor_file
from hopstream.compat.dgl.book import Ranges
from hopstream.compat.dgl.convert import as_graph, dgl_names
from hopstream.compat.dgl.graph_files import write_graph_file
from hopstream.compat.dgl.in_memory import Partitioned
from hopstream.compat.dgl.part_config import PartConfig, refuse_graphbolt
from hopstream.compat.dgl.part_files import PartSource, check_schema, data_of, part_graph, unsaid
from hopstream.compat.dgl.tensors import to_array, to_tensors
from hopstream.dataset.settings import MAX_PARTS, Method, PartitionSettings
from hopstream.errors import SchemaError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.source_paths import is_dgl_config
from hopstream.schema import EdgeType
from hopstream.uris import local_path

if TYPE_CHECKING:
    from torch import Tensor


NODE_FEATS, EDGE_FEATS, GRAPH = "node_feat.dgl", "edge_feat.dgl", "graph.dgl"
FILES = {"node_feats": NODE_FEATS, "edge_feats": EDGE_FEATS, "part_graph": GRAPH}


def write_part_files(
    source: PartSource, out: Path, stem: str, *, part_method: str, graph_name: str | None = None
) -> None:  # fmt: skip
    """Write ``<stem>.json`` and ``part<i>/`` with the files of each part; the JSON file comes last.

    Args:
        source: The graph and its parts.
        out: The folder to write; it is made if missing. Older parts of the same graph are replaced.
        stem: Name of the JSON file, without ``.json``.
        part_method: The method in the JSON file that assigned nodes to parts.
        graph_name: The graph's name in the JSON file; None for ``stem``.

    Raises:
        SettingsError: The folder has parts of another graph.
        SchemaError: DGL's files cannot hold the graph.
    """
    check_schema(source.schema, has_trainers=source.has_trainers)
    old_parts = _old_parts(out, stem)
    out.mkdir(parents=True, exist_ok=True)
    config = _config_of(source, out / f"{stem}.json", part_method, graph_name or stem)
    with tempfile.TemporaryDirectory(prefix=f".{stem}.", suffix=".partial", dir=out) as new:
        for part in range(source.num_parts):
            folder = Path(new) / f"part{part}"
            folder.mkdir()
            for file, data in zip((NODE_FEATS, EDGE_FEATS), data_of(source, part), strict=True):
                write_tensor_file(folder / file, data)
            write_graph_file(folder / GRAPH, part_graph(source, part))
        config.path.unlink(missing_ok=True)  # without this file, no reader takes a mix of old and new parts for a graph
        for folder in old_parts:
            shutil.rmtree(folder)
        for part in range(source.num_parts):
            (Path(new) / f"part{part}").rename(out / f"part{part}")
    config.write()


def _config_of(source: PartSource, path: Path, part_method: str, graph_name: str) -> PartConfig:
    node_names, edge_names = dgl_names(source.schema)
    nodes = {node_names[t]: source.node_ranges[t] for t in source.schema.nodes}
    edges = {edge_names[t]: source.edge_ranges[t] for t in source.schema.edges}
    num_parts = source.num_parts
    return PartConfig(
        path=path, graph_name=graph_name, part_method=part_method, num_parts=num_parts, halo_hops=source.num_hops,
        nodes=Ranges("node", nodes, {t: number for number, t in enumerate(nodes)}, num_parts),
        edges=Ranges("edge", edges, {t: number for number, t in enumerate(edges)}, num_parts),
        parts=tuple({what: f"part{p}/{file}" for what, file in FILES.items()} for p in range(num_parts)),
        ours=unsaid(source),
    )  # fmt: skip


def _old_parts(out: Path, stem: str) -> list[Path]:
    """Return the folders of parts to replace.

    Raises:
        SettingsError: The folders belong to another graph, or have files of another program.
    """
    folders = [folder for folder in out.glob("part*") if folder.name[4:].isdecimal()] if out.is_dir() else []
    others = [path.name for path in out.glob("*.json") if path.stem != stem and is_dgl_config(path)]
    if folders and others:
        raise SettingsError(f"{out} holds the parts of {others[0]}; give another folder")
    for folder in folders:
        foreign = [e.name for e in folder.iterdir() if e.suffix != ".dgl"] if folder.is_dir() else ["no folder"]
        if foreign:
            raise SettingsError(f"{folder} holds {foreign[0]!r}, which is not a file of DGL; give another out_path")
    return folders


Mapped = tuple["Tensor", "Tensor"] | tuple[dict[str, "Tensor"], dict[EdgeType, "Tensor"]]
FORMATS = ("coo", "csr", "csc")
MAX_HOPS = 2**31 - 1


def partition_graph(  # noqa: PLR0913, PLR0917  DGL's
    g: Any, graph_name: str, num_parts: int, out_path: str | Path, num_hops: int = 1, part_method: Method = "metis",
    balance_ntypes: Any = None, balance_edges: bool = False,
    return_mapping: bool = False, num_trainers_per_machine: int = 1,
    objtype: str = "cut", graph_formats: Sequence[str] | str | None = None,
    use_graphbolt: bool = False,
    *, store_eids: bool = False, store_inner_node: bool = False, store_inner_edge: bool = False,
    reshuffle: bool = True, rng_seed: int = 0, owners: OwnersSource | None = None,
) -> Mapped | None:  # fmt: skip
    """Cut a graph into parts and write them in DGL's files, which ``load_partition`` and DGL itself read.

    ``out_path`` gets ``<graph_name>.json`` and ``part<i>/graph.dgl``, ``node_feat.dgl`` and ``edge_feat.dgl``. Nodes
    get new numbers by part, then by type, then by their old order. Edges belong to the part of their destination, and
    get numbers in the same way. Older parts of the same graph are replaced; the JSON file comes last.

    Args:
        g: A ``DGLGraph``, of DGL or of this package, a PyG ``Data`` or ``HeteroData``, a ``hopstream.Graph``, or the
            path of a dataset or of a source of ``hopstream.read_graph``.
        graph_name: The graph's name, and the name of the JSON file.
        num_parts: Number of parts.
        out_path: The folder to write; it is made if missing.
        num_hops: Number of hops in the parts' halos; with 0, no part has the edges between parts.
        part_method: ``metis`` or ``random``, as in DGL, or another method of ``hopstream.write_parts``. ``random``
            gives each part equally many nodes; in DGL that holds only on average.
        balance_ntypes: Integers or booleans, one per node: each part gets its share of the nodes of each value. In a
            graph of several types, a dict of these by node type; each type that is left out counts as one value.
        balance_edges: Balance edges too, for each value of ``balance_ntypes``.
        return_mapping: Return the old number of each new one.
        num_trainers_per_machine: Number of trainers per part; each part is cut into as many. The data of nodes and
            edges get ``trainer_id``, 0..``num_parts * num_trainers_per_machine - 1``.
        objtype: ``cut``.
        graph_formats: Only checked: DGL builds its sparse formats from the list of edges in the file.
        use_graphbolt: False; this package does not write GraphBolt's files.
        store_eids: False, as are ``store_inner_node`` and ``store_inner_edge``, which concern GraphBolt's files.
        store_inner_node: False.
        store_inner_edge: False.
        reshuffle: True, the default of older versions of DGL: nodes always get new numbers.
        rng_seed: Seed of every random choice; equal seeds give equal parts.
        owners: For ``part_method="file"``: node type to the part of each node, a folder of such files, or an array for
            a graph of one node type.

    Returns:
        With ``return_mapping`` int64[num_nodes] and int64[num_edges] for a graph of one node type and one edge type,
        or two dicts of these by type for other graphs. Otherwise None.

    Raises:
        SettingsError: An argument is outside what it accepts, or the folder has parts of another graph.
        SchemaError: ``g`` is no graph, or holds text, rows of different lengths, or names with ``/`` or ``:``.
        IdRangeError: An edge names a node that does not exist.
    """
    out_path = local_path(out_path)
    if isinstance(owners, str | os.PathLike):
        local_path(owners)
    _check_reshuffle(reshuffle, balance_ntypes)
    _check(graph_name, num_parts, num_hops, num_trainers_per_machine)
    refuse_graphbolt(
        "written", use_graphbolt=use_graphbolt, store_eids=store_eids, store_inner_node=store_inner_node,
        store_inner_edge=store_inner_edge,
    )  # fmt: skip
    _check_others(objtype, graph_formats)
    graph = as_graph(g)
    check_schema(graph.schema)
    settings = PartitionSettings(
        num_parts=num_parts * num_trainers_per_machine, method=part_method, balance="nodes", rng_seed=rng_seed,
        balance_edges=balance_edges,
    )  # fmt: skip
    found = _assign(graph, settings, balance_ntypes, owners, num_parts)
    trainers: dict[str, IntArray] = {}
    if num_trainers_per_machine > 1:
        trainers = {t: owner.astype(np.int64) for t, owner in found.items()}
        found = {t: owner // np.int32(num_trainers_per_machine) for t, owner in found.items()}
    cut = Partitioned(graph, found, trainers, num_parts=num_parts, num_hops=num_hops)
    write_part_files(cut, out_path, graph_name, part_method=part_method)
    return _mapping(cut) if return_mapping else None


def _check_reshuffle(reshuffle: object, balance_ntypes: object) -> None:
    if isinstance(balance_ntypes, bool):
        raise SettingsError(
            f"balance_ntypes is {balance_ntypes}; older versions of DGL had reshuffle in this place: leave it out, and "
            "give the arguments after it by name"
        )
    if reshuffle is not True:
        raise SettingsError(
            f"reshuffle is {reshuffle!r}; nodes are always renumbered, as in present versions of DGL: leave it "
            "out, and take old numbers from orig_id or return_mapping=True"
        )


def _check(graph_name: str, num_parts: int, num_hops: int, num_trainers: int) -> None:
    if not isinstance(graph_name, str) or not graph_name or set("/\0") & set(graph_name) or graph_name.startswith("."):
        raise SettingsError(f"graph_name is {graph_name!r}; it must be a name for a file")
    check_int("num_parts", num_parts, 1, MAX_PARTS)
    check_int("num_hops", num_hops, 0, MAX_HOPS)
    check_int("num_trainers_per_machine", num_trainers, 1, MAX_PARTS)


def _check_others(objtype: object, graph_formats: object) -> None:
    if objtype != "cut":
        raise SettingsError(f"objtype is {objtype!r}; only 'cut' is supported")
    formats = [graph_formats] if isinstance(graph_formats, str) else graph_formats
    if formats is not None and (not isinstance(formats, Sequence) or not all(one in FORMATS for one in formats)):
        raise SettingsError(f"graph_formats is {graph_formats!r}; {known_words(graph_formats, FORMATS)}")


def _assign(
    graph: Graph, settings: PartitionSettings, balance_ntypes: Any, owners: OwnersSource | None, num_parts: int
) -> dict[str, Any]:
    if settings.method == "file" or owners is not None:
        if settings.num_parts != num_parts:
            raise SettingsError(
                "owners and num_trainers_per_machine are both given, and both decide the parts; leave one of them out"
            )
        if isinstance(owners, Mapping):
            owners = _by_our_type(graph, owners)
        return dict(assign_owners(graph, settings, owners))
    classes = None
    if balance_ntypes is not None or settings.method != "hash":  # method hash places nodes by their keys alone
        classes = _classes(graph, balance_ntypes)
    return dict(assign_nodes(graph, settings, classes=classes).owners)


def _classes(graph: Graph, balance_ntypes: Any) -> NodeClasses | None:
    """Map each node type to the classes by which it is balanced.

    In a graph of several types, each type without given classes is one class.
    """
    if isinstance(balance_ntypes, Mapping):
        given = {t: to_array(of, f"balance_ntypes[{t!r}]") for t, of in _by_our_type(graph, balance_ntypes).items()}
        unknown = [t for t in given if t not in graph.nodes]
        if unknown:
            known = list(dgl_names(graph.schema)[0].values())
            raise SchemaError(f"balance_ntypes name node type {unknown[0]!r}; {known_names(unknown[0], known)}")
        return {t: given.get(t) for t in graph.nodes}
    if len(graph.nodes) > 1:
        if balance_ntypes is not None:
            raise SchemaError("balance_ntypes is one array and the graph has several node types; give a dict by type")
        return dict.fromkeys(graph.nodes)
    if balance_ntypes is None:
        return None
    return {t: to_array(balance_ntypes, "balance_ntypes") for t in graph.nodes}


def _by_our_type(graph: Graph, given: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the keys of a dict from DGL's node types to Hopstream's."""
    ours = {theirs: t for t, theirs in dgl_names(graph.schema)[0].items()}
    return {ours.get(t, t): of for t, of in given.items()}


def _mapping(cut: Partitioned) -> Mapped:
    nodes, edges = to_tensors(dict(cut.nodes.keys)), to_tensors(dict(cut.edges.keys))
    if len(nodes) > 1 or len(edges) != 1:
        return nodes, edges
    return next(iter(nodes.values())), next(iter(edges.values()))
