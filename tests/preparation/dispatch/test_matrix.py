"""Checks that the commands preserve a graph exactly, for any number of chunks, parts and workers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.assign.owners import read_owners
from hopstream.cli import main
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import NUMERIC_DTYPES

CASES = [
    ((8, 4, 2), ("csv", "parquet")),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ((11, 4, 1), ("parquet", "numpy")), ((4, 4, 4), ("csv", "numpy")), ((2, 7, 2), ("parquet", "parquet")),
            ((9, 6, 3), ("csv", "numpy")),
        )
    ),
]  # fmt: skip
"""Chunks, parts and workers; formats of edges and of features."""
SHAPES = [(), (3,), (2, 2), (2, 1, 2)]
ODD_BITS = {
    2: [0x7E01, 0xFE02, 0x8000, 1],
    4: [0x7FC12345, 0xFFC00001, 1 << 31, 1],
    8: [0x7FF8000012345678, 0xFFF8000000000001, 1 << 63, 1],
}
"""Bytes of a float to two NaNs, to -0 and to the least number above 0."""
CITES, WRITES, NEVER = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("author", "meets", "nobody")


def features_of(rng: np.random.Generator, num_rows: int, dtypes: list[str], turn: int) -> dict[str, np.ndarray]:
    """One feature of each dtype, of one to four dimensions; over four turns, each dtype of each."""
    shapes = {dtype: SHAPES[(place + turn) % len(SHAPES)] for place, dtype in enumerate(dtypes)}
    return {f"f_{d}": random_values(rng, np.dtype(d), (num_rows, *shape)) for d, shape in shapes.items()}


def random_values(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Random bytes, with many NaNs and with integers above 2^53, so that any cast on the way shows."""
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    values = np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()
    if dtype.kind == "f":
        odd = np.array(ODD_BITS[dtype.itemsize], f"u{dtype.itemsize}").view(dtype)
        values.flat[: len(odd)] = odd[: values.size]
    return values


def wide_graph(rng: np.random.Generator, dtypes: list[str], turn: int) -> Graph:
    """A large type, a type smaller than most numbers of parts, one of one node, and one of none."""
    sizes = {"paper": 400, "author": 130, "venue": 3, "world": 1, "nobody": 0}
    counts = {CITES: 1500, WRITES: 700, ("venue", "in", "world"): 5, NEVER: 0}
    return Graph(
        nodes={
            t: NodeTable(num_nodes=n, features=features_of(rng, n, dtypes if t in ("paper", "venue") else [], turn))
            for t, n in sizes.items()
        },
        edges={
            t: EdgeTable(
                src_keys=rng.integers(0, max(1, sizes[t[0]]), m), dst_keys=rng.integers(0, max(1, sizes[t[2]]), m),
                features=features_of(rng, m, dtypes, turn) if t == CITES else {},
            )
            for t, m in counts.items()
        },
        splits={"paper": {"train": np.arange(0, 400, 3), "test": np.arange(1, 400, 3)}},
    ).check()  # fmt: skip


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def check_equals_source(root: Path, graph: Graph, owners: dict[str, np.ndarray]) -> None:
    """Check that each node, edge and feature value lies in its part once, as in the source."""
    dataset = hopstream.open_dataset(root)
    seen_nodes = {t: np.zeros(table.num_nodes, int) for t, table in graph.nodes.items()}
    seen_edges = {t: np.zeros(table.num_edges, int) for t, table in graph.edges.items()}
    for part in range(dataset.manifest.book.num_parts):
        loaded = dataset.open_part(part)
        for node_type, table in graph.nodes.items():
            keys = np.asarray(loaded.node_keys[node_type])
            seen_nodes[node_type][keys] += 1
            assert (owners[node_type][keys] == part).all()
            for name, column in table.features.items():
                found = np.asarray(loaded.node_features[node_type][name])
                assert found.dtype == column.dtype and found.tobytes() == column[keys].tobytes()
        for edge_type, edges in graph.edges.items():
            stored = loaded.edges[edge_type, "in"]
            keys = np.asarray(stored.keys)
            seen_edges[edge_type][keys] += 1
            rows = np.repeat(np.arange(len(stored.indptr) - 1), np.diff(stored.indptr))
            assert np.array_equal(loaded.node_keys[edge_type[2]][rows], edges.dst_keys[keys])
            for name, column in edges.features.items():
                found = np.asarray(stored.features[name])
                assert found.dtype == column.dtype and found.tobytes() == column[keys].tobytes()
    assert all((seen == 1).all() for seen in [*seen_nodes.values(), *seen_edges.values()])
    again = hopstream.read_dataset(root)
    for edge_type, edges in graph.edges.items():
        assert np.array_equal(again.edges[edge_type].src_keys, edges.src_keys)
        assert np.array_equal(again.edges[edge_type].dst_keys, edges.dst_keys)
    assert {t: {n: k.tolist() for n, k in named.items()} for t, named in again.splits.items() if named} == {
        t: {n: k.tolist() for n, k in named.items()} for t, named in graph.splits.items()
    }
    assert again.fingerprint() == graph.fingerprint()


@pytest.mark.parametrize(("triple", "formats"), CASES)
def test_chunks_parts_and_workers(tmp_path, rng, triple, formats):
    (num_chunks, num_parts, num_workers), (edges_format, data_format) = triple, formats
    turn = num_chunks
    dtypes = [d for d in NUMERIC_DTYPES if data_format == "numpy" or not d.startswith("complex")]
    graph = wide_graph(rng, dtypes, turn)
    hopstream.write_parts(graph, tmp_path / "source")
    chunks, owners, parts = tmp_path / "chunks", tmp_path / "owners", tmp_path / "parts"
    vectors = ["--vector-rows"] * (data_format == "parquet" and turn % 2)
    written = ("--edges-format", edges_format, "--data-format", data_format, *vectors)
    run("chunk", tmp_path / "source", "--out", chunks, "--num-chunks", num_chunks, *written)
    run("assign", chunks, "--out", owners, "--parts", num_parts, "--method", "random", "--rng-seed", turn)
    folders = ("--in-dir", chunks, "--partitions-dir", owners, "--out-dir", parts)
    run("dispatch", *folders, "--workers", num_workers, "--memory", "4GiB")
    sizes = {t: table.num_nodes for t, table in graph.nodes.items()}
    check_equals_source(parts, graph, read_owners(owners, sizes)[0])
    run("verify", parts, "--against", chunks)
