"""Graphs that are hard to cut: hypothesis strategies, and graphs with known communities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopstream.arrays import Column, RaggedArray
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EDGE, NODE, NUMERIC_DTYPES

DTYPES = st.sampled_from(NUMERIC_DTYPES).map(np.dtype)


@st.composite
def columns(draw: st.DrawFn, num_rows: int) -> Column:
    """A column of any dtype, of rank 1 to 4, ragged or of strings."""
    kind = draw(st.sampled_from(["fixed", "ragged", "string"]))
    if kind == "string":
        return RaggedArray.from_strings(draw(st.lists(st.text(max_size=4), min_size=num_rows, max_size=num_rows)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    if kind == "fixed":
        return draw(hnp.arrays(draw(DTYPES), (num_rows, *shape)))
    lengths = np.array(draw(st.lists(st.integers(0, 3), min_size=num_rows, max_size=num_rows)), np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return RaggedArray(draw(hnp.arrays(draw(DTYPES), (int(offsets[-1]), *shape[:2]))), offsets)


@st.composite
def typed_graphs(draw: st.DrawFn) -> Graph:
    """Directed graphs of one to three node types, with self loops, duplicates and isolated nodes.

    Types are small, and some are empty.
    """
    names = draw(st.lists(st.sampled_from(["a", "b_", "c__d", "é/..", "node"]), min_size=1, max_size=3, unique=True))
    features = st.lists(st.sampled_from(["x", "x.values", "y z", "_"]), max_size=2, unique=True)
    nodes = {}
    for name in names:
        num_nodes = draw(st.integers(0, 12))
        nodes[name] = NodeTable(num_nodes=num_nodes, features={f: draw(columns(num_nodes)) for f in draw(features)})
    inhabited = [name for name in names if nodes[name].num_nodes]
    edges = {}
    for relation in draw(st.lists(st.sampled_from(["to", "_to", "rev to"]), max_size=2, unique=True)):
        src_type, dst_type = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        can_have_edges = src_type in inhabited and dst_type in inhabited
        num_edges = draw(st.integers(0, 30)) if can_have_edges else 0
        ends = [
            draw(hnp.arrays(np.int64, num_edges, elements=st.integers(0, max(0, nodes[t].num_nodes - 1))))
            for t in (src_type, dst_type)
        ]
        edges[src_type, relation, dst_type] = EdgeTable(
            src_keys=ends[0], dst_keys=ends[1], features={f: draw(columns(num_edges)) for f in draw(features)}
        )
    splits = {
        t: {"train": np.flatnonzero(draw(hnp.arrays(np.bool_, nodes[t].num_nodes)))}
        for t in draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    }
    return Graph(nodes=nodes, edges=edges, splits=splits).check()


def community_graph(
    rng: np.random.Generator, num_nodes: int = 4000, num_edges: int = 60_000, num_communities: int = 8
) -> Graph:
    """Directed graph with about 80 % of edges inside a community and 10 % of nodes without edges."""
    community = rng.integers(0, num_communities, num_nodes)
    is_isolated = rng.random(num_nodes) < 0.1
    members = [np.flatnonzero((community == c) & ~is_isolated) for c in range(num_communities)]
    connected = np.flatnonzero(~is_isolated)
    src_keys = rng.choice(connected, num_edges)
    inside = np.array([rng.choice(members[c]) for c in community[src_keys]])
    dst_keys = np.where(rng.random(num_edges) < 0.8, inside, rng.choice(connected, num_edges))
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes, features={"x": rng.random((num_nodes, 4))})},
        edges={EDGE: EdgeTable(src_keys=src_keys, dst_keys=dst_keys)},
        splits={NODE: {"train": np.arange(0, num_nodes, 3)}},
    ).check()


def path_graph(num_nodes: int, num_isolated: int = 0) -> Graph:
    """Nodes in a row, each joined to the next, and isolated ones after them."""
    src_keys = np.arange(max(0, num_nodes - 1), dtype=np.int64)
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes + num_isolated)},
        edges={EDGE: EdgeTable(src_keys=src_keys, dst_keys=src_keys + 1)},
    ).check()


def same_column(left: Column, right: Column) -> bool:
    """Two columns are equal bit for bit."""
    if isinstance(left, RaggedArray) or isinstance(right, RaggedArray):
        return (
            isinstance(left, RaggedArray)
            and isinstance(right, RaggedArray)
            and left.is_string == right.is_string
            and same_column(left.offsets, right.offsets)
            and same_column(left.values, right.values)
        )
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def take_rows(column: Column, rows: np.ndarray) -> Column:
    """Rows of a column."""
    return column.take(rows) if isinstance(column, RaggedArray) else column[rows]


def tree_of(root: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
