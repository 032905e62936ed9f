"""Makes a graph of what users of DGL, NetworkX and SciPy have in hand, and translates names of types and splits."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from hopstream.arrays import Array, Column
from hopstream.compat.dgl.graphs import DEFAULT_ETYPE, DEFAULT_NTYPE, DGLGraph, graph
from hopstream.compat.dgl.tensors import to_array
from hopstream.dataset.paths import MANIFEST
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import MissingDependencyError, SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest import graph_from_arrays, read_graph
from hopstream.ingest.objects.attributes import MASKS
from hopstream.ingest.objects.networkx_graphs import NetworkXLike
from hopstream.ingest.objects.sparse_matrices import SparseLike, graph_from_scipy
from hopstream.ingest.user_columns import as_column
from hopstream.schema import EDGE, NODE, EdgeType, GraphSchema
from hopstream.uris import local_path


def from_scipy(
    sp_mat: SparseLike, eweight_name: str | None = None, idtype: Any = None, device: Any = None
) -> DGLGraph:  # fmt: skip
    """A graph of a square sparse matrix: a stored value at row ``u`` and column ``v`` is an edge from ``u`` to ``v``.

    Args:
        sp_mat: The matrix; edges are in the order of ``tocoo()``.
        eweight_name: What the data of edges are called that hold the values; None leaves them out.
        idtype: None or ``torch.int64``.
        device: None or the main memory's, ``cpu``.

    Raises:
        SettingsError: Another ``idtype`` or ``device`` is asked for.
        SchemaError: It is no square sparse matrix.
    """
    found = graph_from_scipy(sp_mat, weight=eweight_name)
    edges = found.edges[EDGE]
    made = graph((edges.src_keys, edges.dst_keys), num_nodes=found.nodes[NODE].num_nodes, idtype=idtype,
                 device=device)  # fmt: skip
    made.edata.update(edges.features)
    return made


def from_networkx(
    nx_graph: NetworkXLike, node_attrs: Sequence[str] | None = None, edge_attrs: Sequence[str] | None = None,
    edge_id_attr_name: str | None = None, idtype: Any = None, device: Any = None,
) -> DGLGraph:  # fmt: skip
    """A graph of a NetworkX graph. Nodes are numbered in the sorted order of their names, as DGL does.

    Args:
        nx_graph: The graph; where edges have no direction, each of them is given in both.
        node_attrs: Attributes of nodes that become data: numbers, or arrays or tensors of one shape.
        edge_attrs: Attributes of edges likewise.
        edge_id_attr_name: The attribute of edges that says their numbers, 0..n-1; None: in the order of NetworkX.
        idtype: None or ``torch.int64``.
        device: None or the main memory's, ``cpu``.

    Raises:
        SettingsError: Another ``idtype`` or ``device`` is asked for.
        SchemaError: It is no such graph, names of nodes cannot be sorted, a node or an edge lacks an attribute, values
            do not fit each other, or the numbers of edges are not 0..n-1.
        MissingDependencyError: NetworkX is not installed.
    """
    names, source = _numbered(nx_graph)
    edges = [(u, v, (names[u], names[v]), of) for u, v, of in source.edges(data=True)]
    if edge_id_attr_name is not None and edges:
        numbers = _values("edge", edge_id_attr_name, [edge[2:] for edge in edges]).reshape(-1)
        order = np.argsort(numbers, kind="stable")
        if numbers[order].tolist() != list(range(len(edges))):
            raise SchemaError(f"{edge_id_attr_name!r} of edges are not 0..{len(edges) - 1}, each once")
        edges = [edges[place] for place in order.tolist()]
    ends = [np.array([edge[side] for edge in edges], np.int64) for side in (0, 1)]
    made = graph(ends, num_nodes=len(names), idtype=idtype, device=device)
    for attribute in node_attrs or ():
        made.ndata[attribute] = _values(
            "node", attribute, [(name, source.nodes[number]) for number, name in enumerate(names)]
        )
    for attribute in edge_attrs or ():
        made.edata[attribute] = _values("edge", attribute, [edge[2:] for edge in edges])
    return made


def _numbered(nx_graph: Any) -> tuple[list[Any], Any]:
    """The names of nodes, and a directed graph of their numbers, by DGL's own calls for its order of edges."""
    if not isinstance(nx_graph, NetworkXLike):
        raise SchemaError(f"nx_graph is {type(nx_graph).__name__}; wanted a NetworkX graph")
    try:
        import networkx
    except ImportError as error:
        raise MissingDependencyError(f"from_networkx needs networkx ({error}); pip install networkx") from error
    try:
        names = sorted(nx_graph.nodes)
        numbered = networkx.convert_node_labels_to_integers(nx_graph, ordering="sorted")
    except TypeError as error:
        raise SchemaError(
            f"names of nodes cannot be sorted ({error}), and DGL numbers nodes in their order; use "
            "networkx.convert_node_labels_to_integers"
        ) from error
    return names, numbered if nx_graph.is_directed() else numbered.to_directed()


def _values(what: str, attribute: str, items: Sequence[tuple[Hashable, Mapping[str, Any]]]) -> Array:
    """An attribute with a row for each node or edge; of numbers of Python in torch's dtypes."""
    missing = [called for called, attributes in items if attributes.get(attribute) is None]
    if missing:
        raise SchemaError(f"{what} {missing[0]!r} has no {attribute!r}, which all must have")
    values = [attributes[attribute] for _, attributes in items]
    column = as_column(values, attribute) if values else np.empty(0, np.float32)
    if not isinstance(column, np.ndarray):
        raise SchemaError(f"{attribute!r} of {what}s are texts, or of several shapes; wanted numbers of one shape")
    is_plain = column.dtype == np.float64 and not any(hasattr(value, "dtype") for value in values)
    return column.astype(np.float32) if is_plain else column


OF_DGL = frozenset({"_ID", "_TYPE", "inner_node", "inner_edge"})
"""Data that DGL keeps for itself."""


MEMBERS = ("ntypes", "canonical_etypes", "nodes", "edges", "num_nodes")
"""What a ``DGLGraph`` has, of DGL or of this package."""


def as_graph(g: Any) -> Graph:
    """A ``Graph`` of a ``DGLGraph``, a PyG ``Data`` or ``HeteroData``, a ``Graph``, a dataset's folder, or a file.

    ``train_mask``, ``val_mask`` and ``test_mask`` become splits, of nodes and of edges.

    Raises:
        SchemaError: It is none of these, or holds what no graph has.
        FormatError: A file or folder is not read.
    """
    if isinstance(g, Graph):
        return g.check()
    if isinstance(g, str | Path):
        return read_dataset(g) if (local_path(g) / MANIFEST).is_file() else read_graph(g)
    if not all(hasattr(g, name) for name in MEMBERS):
        return read_graph(g)
    node_names, edge_names = our_names(g.ntypes, g.canonical_etypes)
    data = {node_names[t]: _arrays(g.nodes[t].data) for t in g.ntypes}
    edge_data = {edge_names[t]: _arrays(g.edges[t].data) for t in g.canonical_etypes}
    ends = {
        edge_names[t]: tuple(to_array(end, f"edges of {t!r}") for end in g.edges(etype=t, order="eid"))
        for t in g.canonical_etypes
    }
    return graph_from_arrays(
        cast(Any, ends),
        num_nodes={node_names[t]: g.num_nodes(t) for t in g.ntypes},
        node_features={t: _features(of) for t, of in data.items()},
        edge_features={t: _features(of) for t, of in edge_data.items()},
        splits={t: _splits(of) for t, of in data.items()},
        edge_splits={t: _splits(of) for t, of in edge_data.items()},
    )


def _arrays(data: Mapping[str, Any]) -> dict[str, Array]:
    return {name: to_array(value, name) for name, value in data.items() if name not in OF_DGL}


def _features(data: Mapping[str, Array]) -> dict[str, Any]:
    return {name: column for name, column in data.items() if not is_mask(name, column)}


def _splits(data: Mapping[str, Array]) -> dict[str, Any]:
    return {MASKS[name]: column.astype(bool) for name, column in data.items() if is_mask(name, column)}


def is_mask(name: str, column: Column) -> bool:
    """Whether data say which nodes or edges are in a split: booleans, or integers 0 and 1, as in DGL's files."""
    if name not in MASKS or not isinstance(column, np.ndarray) or column.ndim != 1:
        return False
    return column.dtype == np.bool_ or (column.dtype.kind in "iu" and bool(((column == 0) | (column == 1)).all()))


def our_names(ntypes: Iterable[str], etypes: Iterable[EdgeType]) -> tuple[dict[str, str], dict[EdgeType, EdgeType]]:
    """What the node and edge types of a graph of DGL are called here: ``node`` and ``to`` in a graph without types.

    The other way round: ``dgl_names``.
    """
    node_types, edge_types = list(ntypes), list(etypes)
    if node_types == [DEFAULT_NTYPE] and set(edge_types) <= {DEFAULT_ETYPE}:
        return {DEFAULT_NTYPE: NODE}, {DEFAULT_ETYPE: EDGE}
    return {t: t for t in node_types}, {t: t for t in edge_types}


def dgl_names(schema: GraphSchema) -> tuple[dict[str, str], dict[EdgeType, EdgeType]]:
    """What the node and edge types of a graph are called in DGL: ``_N`` and ``_E`` in a graph without types."""
    if list(schema.nodes) == [NODE] and set(schema.edges) <= {EDGE}:
        return {NODE: DEFAULT_NTYPE}, {EDGE: DEFAULT_ETYPE}
    return {t: t for t in schema.nodes}, {t: t for t in schema.edges}


def check_names(schema: GraphSchema) -> None:
    """Refuse names with a character that DGL's files take for the end of a name.

    Raises:
        SchemaError: There is such a name.
    """

    def check(what: str, names: Iterable[str], taken: str) -> None:
        for name in names:
            if any(letter in name for letter in taken):
                raise SchemaError(f"{what} {name!r} has one of {taken!r}, where DGL's files end a name; rename it")

    check("node type", schema.nodes, ":/")
    check("relation", (t[1] for t in schema.edges), ":/")
    for features in (*schema.nodes.values(), *schema.edges.values()):
        check("feature", features, "/")
