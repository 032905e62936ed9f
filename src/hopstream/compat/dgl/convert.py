"""Converter of graphs of DGL, NetworkX and SciPy, with their names of types and splits."""

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
    """Make a graph of a square sparse matrix; a value at row ``u``, column ``v`` is an edge ``u -> v``.

    Args:
        sp_mat: The matrix; edges are in the order of ``tocoo()``.
        eweight_name: Name of the edge data that hold the values; None leaves them out.
        idtype: None or ``torch.int64``.
        device: None or ``cpu``.

    Raises:
        SettingsError: ``idtype`` or ``device`` has another value.
        SchemaError: ``sp_mat`` is no square sparse matrix.
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
    """Make a graph of a NetworkX graph. Nodes are numbered in the sorted order of their names, as in DGL.

    Args:
        nx_graph: The graph; an undirected edge becomes one edge in each direction.
        node_attrs: Attributes of nodes that become data: numbers, or arrays or tensors of one shape.
        edge_attrs: Attributes of edges that become data, likewise.
        edge_id_attr_name: Attribute with the numbers of edges, 0..n-1; None numbers edges in the order of NetworkX.
        idtype: None or ``torch.int64``.
        device: None or ``cpu``.

    Raises:
        SettingsError: ``idtype`` or ``device`` has another value.
        SchemaError: ``nx_graph`` is no NetworkX graph, names of nodes cannot be sorted, a node or an edge lacks an
            attribute, values differ in shape or dtype, or the numbers of edges are not 0..n-1.
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
    """Return the names of nodes and a directed graph of their numbers.

    DGL makes the same calls, so edges have DGL's order.
    """
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
    """Return an attribute as an array of one row per item; Python floats become float32, as in torch."""
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
"""Data that DGL uses internally."""


MEMBERS = ("ntypes", "canonical_etypes", "nodes", "edges", "num_nodes")
"""Members that identify a ``DGLGraph``, of DGL or of this package."""


def as_graph(g: Any) -> Graph:
    """Convert a ``DGLGraph``, a PyG object, a ``Graph``, a dataset's folder or a file to a ``Graph``.

    PyG objects are ``Data`` and ``HeteroData``. ``train_mask``, ``val_mask`` and ``test_mask`` become splits of nodes
    and of edges.

    Raises:
        SchemaError: ``g`` is none of these, or holds data that a graph cannot have.
        FormatError: A file or folder cannot be read.
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
    """Return whether data are the mask of a split: booleans, or integers 0 and 1, as in DGL's files."""
    if name not in MASKS or not isinstance(column, np.ndarray) or column.ndim != 1:
        return False
    return column.dtype == np.bool_ or (column.dtype.kind in "iu" and bool(((column == 0) | (column == 1)).all()))


def our_names(ntypes: Iterable[str], etypes: Iterable[EdgeType]) -> tuple[dict[str, str], dict[EdgeType, EdgeType]]:
    """Map DGL's node and edge types to Hopstream's; a graph without types gets ``node`` and ``to``.

    ``dgl_names`` is the inverse.
    """
    node_types, edge_types = list(ntypes), list(etypes)
    if node_types == [DEFAULT_NTYPE] and set(edge_types) <= {DEFAULT_ETYPE}:
        return {DEFAULT_NTYPE: NODE}, {DEFAULT_ETYPE: EDGE}
    return {t: t for t in node_types}, {t: t for t in edge_types}


def dgl_names(schema: GraphSchema) -> tuple[dict[str, str], dict[EdgeType, EdgeType]]:
    """Map Hopstream's node and edge types to DGL's; a graph without types gets ``_N`` and ``_E``."""
    if list(schema.nodes) == [NODE] and set(schema.edges) <= {EDGE}:
        return {NODE: DEFAULT_NTYPE}, {EDGE: DEFAULT_ETYPE}
    return {t: t for t in schema.nodes}, {t: t for t in schema.edges}


def check_names(schema: GraphSchema) -> None:
    """Refuse names with a character that ends a name in DGL's files.

    Raises:
        SchemaError: A name has such a character.
    """

    def check(what: str, names: Iterable[str], taken: str) -> None:
        for name in names:
            if any(letter in name for letter in taken):
                raise SchemaError(
                    f"{what} {name!r} contains one of {taken!r}, which end a name in DGL's files; rename it"
                )

    check("node type", schema.nodes, ":/")
    check("relation", (t[1] for t in schema.edges), ":/")
    for features in (*schema.nodes.values(), *schema.edges.values()):
        check("feature", features, "/")
