"""Makes a ``Graph`` of what DGL's users have in hand, and translates the names of types and splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from hopstream.arrays import Array, Column
from hopstream.compat.dgl.graphs import DEFAULT_ETYPE, DEFAULT_NTYPE
from hopstream.compat.dgl.tensors import to_array
from hopstream.dataset.paths import MANIFEST
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest import graph_from_arrays, read_graph
from hopstream.ingest.objects.attributes import MASKS
from hopstream.schema import EDGE, NODE, EdgeType, GraphSchema
from hopstream.uris import local_path

OF_DGL = frozenset({"_ID", "_TYPE", "inner_node", "inner_edge"})
"""Data that DGL keeps for itself."""


@runtime_checkable
class DGLGraphLike(Protocol):
    """A ``DGLGraph``, of DGL or of this package."""

    @property
    def ntypes(self) -> Sequence[str]:
        """Node types."""
        ...

    @property
    def canonical_etypes(self) -> Sequence[EdgeType]:
        """Edge types."""
        ...

    @property
    def nodes(self) -> Any:
        """Data by node type."""
        ...

    @property
    def edges(self) -> Any:
        """Data by edge type, or ends."""
        ...

    def num_nodes(self, ntype: str | None = None) -> int:
        """Nodes of a type."""
        ...


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
    if not isinstance(g, DGLGraphLike):
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
    """What the node and edge types of a graph are called in DGL: ``_N`` and ``_E`` in a graph without types.

    Raises:
        SchemaError: A name has a character that DGL's files take for the end of a name.
    """
    _check_names(schema)
    if list(schema.nodes) == [NODE] and set(schema.edges) <= {EDGE}:
        return {NODE: DEFAULT_NTYPE}, {EDGE: DEFAULT_ETYPE}
    return {t: t for t in schema.nodes}, {t: t for t in schema.edges}


def _check_names(schema: GraphSchema) -> None:
    def check(what: str, names: Iterable[str], taken: str) -> None:
        for name in names:
            if any(letter in name for letter in taken):
                raise SchemaError(f"{what} {name!r} has one of {taken!r}, where DGL's files end a name; rename it")

    check("node type", schema.nodes, ":/")
    check("relation", (t[1] for t in schema.edges), ":/")
    for features in (*schema.nodes.values(), *schema.edges.values()):
        check("feature", features, "/")
