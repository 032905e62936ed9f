"""How does ``partition_graph`` write a graph as parts in DGL's files?"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.compat.dgl.convert import as_graph, dgl_names, our_node_type
from hopstream.compat.dgl.graph_files import write_graph_file
from hopstream.compat.dgl.numbering import number_by_owner
from hopstream.compat.dgl.part_config import PartConfig
from hopstream.compat.dgl.part_files import Partitioned, edge_data, node_data, part_graph, unsaid
from hopstream.compat.dgl.tensor_files import write_tensor_file
from hopstream.compat.dgl.tensors import to_array, to_tensors
from hopstream.errors import SchemaError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.partition.assign import OwnersSource, assign_nodes, assign_owners
from hopstream.partition.assign_balance import NodeClasses
from hopstream.partition.settings import Method, PartitionSettings
from hopstream.schema import EdgeType

if TYPE_CHECKING:
    from torch import Tensor

Mapped = tuple["Tensor", "Tensor"] | tuple[dict[str, "Tensor"], dict[EdgeType, "Tensor"]]
FORMATS = ("coo", "csr", "csc")
NODE_FEATS, EDGE_FEATS, GRAPH = "node_feat.dgl", "edge_feat.dgl", "graph.dgl"
FILES = {"node_feats": NODE_FEATS, "edge_feats": EDGE_FEATS, "part_graph": GRAPH}


def partition_graph(  # noqa: PLR0913, PLR0917  DGL's
    g: Any, graph_name: str, num_parts: int, out_path: str | Path, num_hops: int = 1, part_method: Method = "metis",
    balance_ntypes: Any = None, balance_edges: bool = False,
    return_mapping: bool = False, num_trainers_per_machine: int = 1,
    objtype: str = "cut", graph_formats: Sequence[str] | str | None = None,
    use_graphbolt: bool = False,
    *, reshuffle: bool = True, rng_seed: int = 0, owners: OwnersSource | None = None,
) -> Mapped | None:  # fmt: skip
    """Cut a graph into parts and write them in DGL's files, which ``load_partition`` and DGL itself read.

    ``out_path`` gets ``<graph_name>.json`` and ``part<i>/graph.dgl``, ``node_feat.dgl`` and ``edge_feat.dgl``. Nodes
    are numbered anew part by part, in a part type by type, and there in their old order; so are edges, which belong to
    the part of their destination. Parts of the same graph that were there are replaced; the JSON file comes last.

    Args:
        g: A ``DGLGraph``, of DGL or of this package, a PyG ``Data`` or ``HeteroData``, a ``hopstream.Graph``, or the
            path of a dataset or of what ``hopstream.read_graph`` reads.
        graph_name: The graph's name, which is that of the JSON file.
        num_parts: Number of parts.
        out_path: The folder to write; made if it is not there.
        num_hops: How far the parts' graphs reach beyond their own nodes; with 0, edges between parts are in none.
        part_method: ``metis`` or ``random``, as in DGL, or another method of ``hopstream.write_parts``. ``random``
            gives each part as many nodes as any other, which DGL does on average only.
        balance_ntypes: Integers or booleans, one for each node: each part gets its share of the nodes of each value. In
            a graph of several types a dict of these by node type; types that are left out count as one value each.
        balance_edges: Give each part its share of edges too, for each value of ``balance_ntypes``.
        return_mapping: Return the old number of each new one.
        num_trainers_per_machine: Parts are cut again into so many; nodes and edges get ``trainer_id`` among their data,
            from 0 to ``num_parts * num_trainers_per_machine - 1``.
        objtype: ``cut``.
        graph_formats: Checked only: DGL makes the formats that it wants of the list of edges that is written.
        use_graphbolt: False.
        reshuffle: True, as older versions of DGL had it by default: nodes are always numbered anew.
        rng_seed: Seed of every random choice; equal seeds give equal parts.
        owners: For ``part_method="file"``: node type to the part of each node, or a folder of such files.

    Returns:
        With ``return_mapping`` int64[num_nodes] and int64[num_edges] for a graph of one node type and one edge type,
        two dicts of these by type for others; else None.

    Raises:
        SettingsError: An argument is outside what it accepts, or the folder has parts of another graph.
        SchemaError: ``g`` is no graph, or holds text, rows of different lengths, or names with ``/`` or ``:``.
        IdRangeError: An edge names a node that is not there.
    """
    _check_reshuffle(reshuffle, balance_ntypes)
    _check(graph_name, num_hops, num_trainers_per_machine, (objtype, graph_formats, use_graphbolt))
    graph = as_graph(g)
    node_names, edge_names = dgl_names(graph)
    settings = PartitionSettings(
        num_parts=num_parts * num_trainers_per_machine, method=part_method, balance="nodes", rng_seed=rng_seed,
        balance_edges=balance_edges,
    )  # fmt: skip
    found = _assign(graph, settings, balance_ntypes, owners, num_parts)
    trainers: dict[str, IntArray] = {}
    if num_trainers_per_machine > 1:
        trainers = {t: owner.astype(np.int64) for t, owner in found.items()}
        found = {t: owner // np.int32(num_trainers_per_machine) for t, owner in found.items()}
    edge_owners = {t: found[t[2]][edges.dst_keys] for t, edges in graph.edges.items()}
    cut = Partitioned(
        graph=graph, owners=found, nodes=number_by_owner(found, num_parts), node_names=node_names,
        edges=number_by_owner(edge_owners, num_parts), edge_names=edge_names, trainers=trainers,
    )  # fmt: skip
    _write(cut, Path(out_path), graph_name, (num_parts, part_method, num_hops))
    return _mapping(cut) if return_mapping else None


def _check_reshuffle(reshuffle: object, balance_ntypes: object) -> None:
    if isinstance(balance_ntypes, bool):
        raise SettingsError(
            f"balance_ntypes is {balance_ntypes}; older versions of DGL had reshuffle in this place: leave it out, and "
            "give what comes behind it by name"
        )
    if reshuffle is not True:
        raise SettingsError(
            f"reshuffle is {reshuffle!r}; nodes are always numbered anew, as in present versions of DGL: leave it "
            "out, and take old numbers from orig_id or return_mapping=True"
        )


def _check(graph_name: str, num_hops: int, num_trainers: int, others: tuple[object, object, object]) -> None:
    objtype, graph_formats, use_graphbolt = others
    if not graph_name or "/" in graph_name or graph_name.startswith("."):
        raise SettingsError(f"graph_name is {graph_name!r}; it must be a name for a file")
    for name, value, low in (("num_hops", num_hops, 0), ("num_trainers_per_machine", num_trainers, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise SettingsError(f"{name} is {value!r}; it must be an integer of {low} at least")
    if objtype != "cut":
        raise SettingsError(f"objtype is {objtype!r}; only 'cut' is there")
    if use_graphbolt:
        raise SettingsError("use_graphbolt is given; GraphBolt's files are not written: leave it out")
    formats = [graph_formats] if isinstance(graph_formats, str) else graph_formats
    if formats is not None and (not isinstance(formats, Sequence) or not set(formats) <= set(FORMATS)):
        raise SettingsError(f"graph_formats is {graph_formats!r}; known: {', '.join(FORMATS)}")


def _assign(
    graph: Graph, settings: PartitionSettings, balance_ntypes: Any, owners: OwnersSource | None, num_parts: int
) -> dict[str, Any]:
    if settings.method == "file" or owners is not None:
        if settings.num_parts != num_parts:
            raise SettingsError(
                "owners say the parts, and num_trainers_per_machine more than that; leave one of them out"
            )
        return dict(assign_owners(graph, replace(settings, method="file"), owners))
    classes = _classes(graph, balance_ntypes)
    return dict(assign_nodes(graph, settings, classes=classes).owners)


def _classes(graph: Graph, balance_ntypes: Any) -> NodeClasses | None:
    """Node type to what it is balanced by: in a graph of several types each type is one class unless more is said."""
    if isinstance(balance_ntypes, Mapping):
        given = {our_node_type(t): to_array(of, f"balance_ntypes[{t!r}]") for t, of in balance_ntypes.items()}
        unknown = [t for t in given if t not in graph.nodes]
        if unknown:
            raise SchemaError(f"balance_ntypes name node type {unknown[0]!r}; known: {list(graph.nodes)}")
        return {t: given.get(t) for t in graph.nodes}
    if len(graph.nodes) > 1:
        if balance_ntypes is not None:
            raise SchemaError("balance_ntypes is one array and the graph has several node types; give a dict by type")
        return dict.fromkeys(graph.nodes)
    if balance_ntypes is None:
        return None
    return {t: to_array(balance_ntypes, "balance_ntypes") for t in graph.nodes}


def _write(cut: Partitioned, out: Path, graph_name: str, said: tuple[int, str, int]) -> None:
    num_parts, part_method, num_hops = said
    old_parts = _old_parts(out, graph_name)
    out.mkdir(parents=True, exist_ok=True)
    config = PartConfig(
        path=out / f"{graph_name}.json", graph_name=graph_name, part_method=part_method, num_parts=num_parts,
        num_nodes=sum(table.num_nodes for table in cut.graph.nodes.values()), halo_hops=num_hops,
        num_edges=sum(table.num_edges for table in cut.graph.edges.values()),
        node_map={name: cut.nodes.ranges[t] for t, name in cut.node_names.items()},
        edge_map={name: cut.edges.ranges[t] for t, name in cut.edge_names.items() if t in cut.edges.ranges},
        ntypes={name: number for number, name in enumerate(cut.node_names.values())},
        etypes={cut.edge_names[t]: number for number, t in enumerate(cut.graph.edges)},
        parts=tuple({what: f"part{p}/{file}" for what, file in FILES.items()} for p in range(num_parts)),
        ours=unsaid(cut),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix=f".{graph_name}.", suffix=".partial", dir=out) as new:
        for part in range(num_parts):
            folder = Path(new) / f"part{part}"
            folder.mkdir()
            write_tensor_file(folder / NODE_FEATS, node_data(cut, part))
            write_tensor_file(folder / EDGE_FEATS, edge_data(cut, part))
            write_graph_file(folder / GRAPH, part_graph(cut, part, num_hops))
        config.path.unlink(missing_ok=True)  # from here on there is no graph, until the new one is whole
        for folder in old_parts:
            shutil.rmtree(folder)
        for part in range(num_parts):
            (Path(new) / f"part{part}").rename(out / f"part{part}")
    config.write()


def _old_parts(out: Path, graph_name: str) -> list[Path]:
    """Folders of parts to replace.

    Raises:
        SettingsError: They are another graph's, or nobody's.
    """
    folders = [folder for folder in out.glob("part*") if folder.name[4:].isdecimal()] if out.is_dir() else []
    others = [path.name for path in out.glob("*.json") if path.stem != graph_name and _has_parts(path)]
    if folders and others:
        raise SettingsError(f"{out} holds the parts of {others[0]}; give another folder")
    for folder in folders:
        foreign = [e.name for e in folder.iterdir() if e.suffix != ".dgl"] if folder.is_dir() else ["no folder"]
        if foreign:
            raise SettingsError(f"{folder} holds {foreign[0]!r}, which is no file of DGL; give another out_path")
    return folders


def _has_parts(path: Path) -> bool:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and "part-0" in value


def _mapping(cut: Partitioned) -> Mapped:
    nodes, edges = to_tensors(dict(cut.nodes.keys)), to_tensors(dict(cut.edges.keys))
    if not cut.is_homogeneous or not edges:
        return nodes, edges
    return next(iter(nodes.values())), next(iter(edges.values()))
