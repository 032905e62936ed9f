"""Loaders of parts in DGL's files: ``load_partition`` and its relatives."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.checks import read_integer
from hopstream.compat.dgl.binary import read_tensor_file
from hopstream.compat.dgl.book import RangePartitionBook, Ranges
from hopstream.compat.dgl.graph_files import PlainGraph, read_graph_file
from hopstream.compat.dgl.graphs import DEFAULT_ETYPE, DEFAULT_NTYPE, EID, NID, DGLGraph
from hopstream.compat.dgl.part_config import PartConfig, check_integers, label_of, read_config, refuse_graphbolt
from hopstream.compat.dgl.tensors import to_tensor, to_tensors
from hopstream.errors import FormatError
from hopstream.schema import EdgeType

if TYPE_CHECKING:
    from torch import Tensor

Feats = dict[str, "Tensor"]
Loaded = tuple[Any, Feats, Feats, RangePartitionBook, str, list[str], list[EdgeType]]


def load_partition(
    part_config: str | Path, part_id: int, load_feats: bool = True, use_graphbolt: bool = False
) -> Loaded:  # fmt: skip
    """Load one part, by default with its features.

    Args:
        part_config: The JSON file.
        part_id: The part.
        load_feats: Load features; otherwise both dicts are empty.
        use_graphbolt: False; this package does not read GraphBolt's files.

    Returns:
        The part's graph, features of its nodes, features of its edges, the book, the graph's name, node types and edge
        types. The graph is a ``dgl.DGLGraph`` if DGL can be imported, else one of this package, and has no types.
        ``inner_node`` and ``inner_edge`` mark the part's own nodes and edges. ``_ID`` has the numbers over all parts
        and types. ``_TYPE`` has the ids of types if there are several. In parts that this package wrote, ``part_id``
        has the owners of nodes, and ``orig_id`` the numbers in the type before partitioning. Features of nodes are
        keyed by ``type/name``, features of edges by ``source:relation:destination/name``.

    Raises:
        FormatError: A file is missing, damaged, or has contents that do not fit the JSON file.
        SettingsError: ``part_id`` is no integer, or ``use_graphbolt`` is set.
        UnknownNameError: There is no such part.
        MissingDependencyError: torch is not installed.
    """
    refuse_graphbolt("read", use_graphbolt=use_graphbolt)
    config, part_id = read_config(part_config), read_integer("part_id", part_id)
    graph = read_part_graph(config, part_id)
    check_own_edges(config, part_id, graph, may_lack=True)
    given = ("node_feats", "edge_feats")
    nodes, edges = (to_tensors(read_feats(config, part_id, what)) if load_feats else {} for what in given)
    book = _book(config, part_id)
    return _as_dgl(graph), nodes, edges, book, config.graph_name, list(config.nodes.ids), list(config.edges.ids)


def load_partition_feats(
    part_config: str | Path, part_id: int, load_nodes: bool = True, load_edges: bool = True
) -> tuple[Feats | None, Feats | None]:  # fmt: skip
    """Load the features of one part's own nodes and edges.

    Args:
        part_config: The JSON file.
        part_id: The part.
        load_nodes: Load features of nodes; otherwise the first result is None.
        load_edges: Load features of edges; otherwise the second result is None.

    Returns:
        ``type/name`` to tensor, with rows in the order of the part's numbers; one dict for nodes and one for edges.

    Raises:
        FormatError: A file is missing, damaged, or has contents that do not fit the JSON file.
        UnknownNameError: There is no such part.
        MissingDependencyError: torch is not installed.
    """
    config, part_id = read_config(part_config), read_integer("part_id", part_id)
    nodes = to_tensors(read_feats(config, part_id, "node_feats")) if load_nodes else None
    return nodes, to_tensors(read_feats(config, part_id, "edge_feats")) if load_edges else None


def load_partition_book(
    part_config: str | Path, part_id: int
) -> tuple[RangePartitionBook, str, dict[str, int], dict[EdgeType, int]]:
    """Load the book of one part, the graph's name, and the ids of node types and edge types.

    Raises:
        FormatError: The file is missing or damaged, or describes no partitioned graph.
        UnknownNameError: There is no such part.
    """
    config = read_config(part_config)
    return _book(config, part_id), config.graph_name, dict(config.nodes.ids), dict(config.edges.ids)


def _book(config: PartConfig, part: int) -> RangePartitionBook:
    nodes, edges = config.nodes, config.edges
    return RangePartitionBook(part, config.num_parts, nodes.ranges, edges.ranges, nodes.ids, edges.ids)


def read_part_graph(config: PartConfig, part: int) -> PlainGraph:
    """Read the graph of a part.

    Raises:
        FormatError: The file is missing or damaged, or lacks the numbers over all parts.
    """
    path = config.file(part, "part_graph")
    graph = read_graph_file(path)
    for what, data, name in (
        ("nodes", graph.ndata, NID), ("nodes", graph.ndata, "inner_node"),
        ("edges", graph.edata, EID), ("edges", graph.edata, "inner_edge"),
    ):  # fmt: skip
        if name not in data:
            raise FormatError(
                f"{path} has no {name!r} of {what}; it has {list(data)}, so it is not the graph of a part"
            )
    for data, names in ((graph.ndata, (NID, "inner_node", "orig_id")), (graph.edata, (EID, "inner_edge", "orig_id"))):
        for name in names:
            if name in data:
                check_integers(path, name, data[name])
    own = graph.ndata[NID][graph.ndata["inner_node"].astype(bool)]
    _check_own(path, config, part, config.nodes, own)
    return graph


def check_own_edges(config: PartConfig, part: int, graph: PlainGraph, *, may_lack: bool = False) -> None:
    """Refuse a graph whose own edges differ from the part's range in the JSON file.

    Args:
        config: Contents of the JSON file.
        part: The part.
        graph: The part's graph.
        may_lack: Accept parts written with ``num_hops=0``, which lack the edges from other parts' nodes.

    Raises:
        FormatError: The edges differ.
    """
    path = config.file(part, "part_graph")
    own = graph.edata[EID][graph.edata["inner_edge"].astype(bool)]
    if config.halo_hops == 0:
        number = int(np.diff(config.edges.all_types)[part])
        if may_lack and len(own) <= number:
            return
        if len(own) < number:
            raise FormatError(
                f"{path} has {len(own)} of the {number} edges of part {part}: with num_hops=0 no file holds the "
                "edges between parts, so the graph cannot be rebuilt; call partition_graph with num_hops=1, or give "
                "the graph itself to hopstream.write_parts"
            )
    _check_own(path, config, part, config.edges, own)


def _check_own(path: Path, config: PartConfig, part: int, ranges: Ranges, numbers: Array) -> None:
    first, stop = ranges.all_types[part : part + 2].tolist()
    own = np.sort(numbers)
    if not np.array_equal(own, np.arange(first, stop)):
        found = f"{len(own)} {ranges.what}s, numbers {own[0]}..{own[-1]}," if len(own) else f"no {ranges.what}s"
        raise FormatError(
            f"{path} has {found} of its own, but part {part} has {stop - first} from {first} on according to "
            f"{config.path}; check that the folders of parts were not swapped"
        )


def keys_beside(config: PartConfig, part: int, of: str | EdgeType) -> IntArray | None:
    """Return the keys of a part's own nodes or edges from a file beside its graph; None without it.

    Raises:
        FormatError: ``orig_nids.dgl`` or ``orig_eids.dgl`` is damaged, or does not have one key per node or edge.
    """
    ranges, name = (config.nodes, "orig_nids.dgl") if isinstance(of, str) else (config.edges, "orig_eids.dgl")
    path, label = config.beside(part, name), label_of(of)
    if not path.is_file():
        return None
    found = read_tensor_file(path)
    keys = found.get(label, found.get(of[1]) if not isinstance(of, str) else None)
    if keys is None:
        raise FormatError(f"{path} has no {label!r}; it has {list(found)}")
    check_integers(path, label, keys)
    num_rows = int(np.diff(ranges.typed[of])[part])
    if len(keys) != num_rows:
        raise FormatError(f"{path} has {len(keys)} keys of {label}; the part has {num_rows}")
    return keys.astype(np.int64)


def read_feats(config: PartConfig, part: int, what: str, *, is_mapped: bool = False) -> dict[str, Array]:
    """Read the features of a part's own nodes or edges, keyed by ``type/name``.

    Files of older versions of DGL have names without a type, or with the relation alone; the result has the whole
    label.

    Args:
        config: Contents of the JSON file.
        part: The part.
        what: ``node_feats``, or ``edge_feats``, whose types are ``source:relation:destination``.
        is_mapped: Return memory maps of the file.

    Raises:
        FormatError: The file is missing or damaged.
    """
    alone, labels = DEFAULT_NTYPE, dict[str, str]()
    if what == "edge_feats":
        alone, labels = label_of(DEFAULT_ETYPE), {t[1]: label_of(t) for t in config.edges.ids}
    found = {}
    for name, array in read_tensor_file(config.file(part, what), is_mapped=is_mapped).items():
        entity, slash, feature = name.partition("/")
        found[f"{labels.get(entity, entity)}/{feature}" if slash else f"{alone}/{name}"] = array
    return found


def _as_dgl(graph: PlainGraph) -> Any:
    """Make a graph of DGL if DGL can be imported, else one of this package."""
    try:
        dgl = import_module("dgl") if find_spec("dgl") else None
    except (ImportError, OSError):  # DGL built for another torch: its libraries are missing or fail to load
        dgl = None
    if dgl is None:
        made: Any = DGLGraph({DEFAULT_NTYPE: graph.num_nodes}, {DEFAULT_ETYPE: (graph.src, graph.dst)})
    else:
        made = dgl.graph((to_tensor(graph.src), to_tensor(graph.dst)), num_nodes=graph.num_nodes)
    for data, arrays in ((made.ndata, graph.ndata), (made.edata, graph.edata)):
        data.update(to_tensors(dict(arrays)))
    return made
