"""Does a dataset of any number of chunks, parts and workers give back exactly what went in?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import write_chunked
from hopstream.partition.dispatch.run import dispatch
from hopstream.schema import NUMERIC_DTYPES
from tests.partition.dispatch.sources import write_owners

MATRIX = [(4, 4, 4), (2, 7, 2), *(
    pytest.param(*more, marks=pytest.mark.slow) for more in [(8, 4, 2), (8, 4, 4), (9, 6, 3), (11, 11, 1), (11, 4, 1)]
)]  # fmt: skip
"""Chunks, parts, workers; one case of more parts than chunks and one of as many by default."""
SHAPES = [(), (3,), (2, 2), (2, 1, 2)]
BOTH = [("csv", "numpy", False), ("parquet", "parquet", False), ("csv", "parquet", True), ("parquet", "numpy", False)]
CITES, WRITES, NEVER = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("author", "meets", "nobody")


def features_of(rng: np.random.Generator, num_rows: int, dtypes: list[str]) -> dict[str, np.ndarray]:
    """One feature of each dtype; of one to four dimensions, in turn."""
    shapes = {dtype: SHAPES[place % len(SHAPES)] for place, dtype in enumerate(dtypes)}
    return {f"f_{d}": rng.integers(0, 2, (num_rows, *shape)).astype(d) for d, shape in shapes.items()}


def wide_graph(rng: np.random.Generator, dtypes: list[str]) -> Graph:
    """A large type, a type smaller than most numbers of parts, one of one node, and one of none."""
    sizes = {"paper": 400, "author": 130, "venue": 3, "world": 1, "nobody": 0}
    counts = {CITES: 1500, WRITES: 700, ("venue", "in", "world"): 5, NEVER: 0}
    return Graph(
        nodes={
            t: NodeTable(num_nodes=n, features=features_of(rng, n, dtypes if t in ("paper", "venue") else []))
            for t, n in sizes.items()
        },
        edges={
            t: EdgeTable(
                src_keys=rng.integers(0, max(1, sizes[t[0]]), m), dst_keys=rng.integers(0, max(1, sizes[t[2]]), m),
                features=features_of(rng, m, dtypes) if t == CITES else {},
            )
            for t, m in counts.items()
        },
        splits={"paper": {"train": np.arange(0, 400, 3), "test": np.arange(1, 400, 3)}},
    ).check()  # fmt: skip


def check_equals_source(root: Path, graph: Graph, owners: dict[str, np.ndarray]) -> None:
    """Every node, edge and feature value is in the part that it belongs to, once, as the source has it."""
    num_parts = hopstream.open_dataset(root).manifest.book.num_parts
    seen_nodes = {t: np.zeros(table.num_nodes, int) for t, table in graph.nodes.items()}
    seen_edges = {t: np.zeros(table.num_edges, int) for t, table in graph.edges.items()}
    for part in range(num_parts):
        loaded = hopstream.open_dataset(root).open_part(part)
        for node_type, table in graph.nodes.items():
            keys = np.asarray(loaded.node_keys[node_type])
            seen_nodes[node_type][keys] += 1
            assert (owners[node_type][keys] == part).all()
            for name, column in table.features.items():
                found = np.asarray(loaded.node_features[node_type][name])
                assert found.dtype == column.dtype and np.array_equal(found, column[keys])
        for edge_type, edges in graph.edges.items():
            stored = loaded.edges[edge_type, "in"]
            keys = np.asarray(stored.keys)
            seen_edges[edge_type][keys] += 1
            rows = np.repeat(np.arange(len(stored.indptr) - 1), np.diff(stored.indptr))
            assert np.array_equal(loaded.node_keys[edge_type[2]][rows], edges.dst_keys[keys])
            for name, column in edges.features.items():
                assert np.array_equal(np.asarray(stored.features[name]), column[keys])
    assert all((seen == 1).all() for seen in [*seen_nodes.values(), *seen_edges.values()])
    again = hopstream.read_dataset(root)
    for edge_type, edges in graph.edges.items():
        assert np.array_equal(again.edges[edge_type].src_keys, edges.src_keys)
        assert np.array_equal(again.edges[edge_type].dst_keys, edges.dst_keys)
    assert {t: {n: k.tolist() for n, k in named.items()} for t, named in again.splits.items() if named} == {
        t: {n: k.tolist() for n, k in named.items()} for t, named in graph.splits.items()
    }


@pytest.mark.parametrize(("num_chunks", "num_parts", "num_workers"), MATRIX)
def test_chunks_parts_and_workers(tmp_path, rng, num_chunks, num_parts, num_workers):
    edges_format, data_format, vector_rows = BOTH[num_chunks % len(BOTH)]
    dtypes = [d for d in NUMERIC_DTYPES if data_format == "numpy" or not d.startswith("complex")]
    graph = wide_graph(rng, dtypes)
    write_chunked(
        graph, tmp_path / "in", num_chunks=num_chunks, edges_format=edges_format, data_format=data_format,
        vector_rows=vector_rows,
    )  # fmt: skip
    write_owners(tmp_path / "owners", graph, num_parts, rng)
    settings = {"num_parts": num_parts, "num_workers": num_workers}
    dispatch(tmp_path / "in", tmp_path / "owners", tmp_path / "got", **settings)
    owners = {}
    for node_type in graph.nodes:
        path = tmp_path / f"owners/{node_type}.npy"
        is_text = not path.exists()
        lines = path.with_suffix(".txt").read_text().split() if is_text else np.load(path)
        owners[node_type] = np.array(lines, np.int64)
    check_equals_source(tmp_path / "got", graph, owners)
    assert hopstream.verify_dataset(tmp_path / "got", against=tmp_path / "in").is_ok
