"""Checks that files made of a dataset's parts equal those of its graph, without holding the graph."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.compat.dgl import binary
from hopstream.compat.dgl.dataset_parts import DatasetParts
from hopstream.compat.dgl.distributed import partition_graph, read_partitions
from hopstream.compat.dgl.partition import write_part_files
from hopstream.dataset.layout import open_dataset
from hopstream.errors import SchemaError, SettingsError
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write(root: Path, graph, num_parts: int, **options) -> dict[str, bytes]:
    """Write DGL's files of a dataset and, under the same name, of its graph; return the dataset's files."""
    owners = some_owners(graph, num_parts)
    hopstream.write_parts(graph, root / "dataset", owners=owners, num_parts=num_parts, **options)
    (root / "scratch").mkdir()
    source = DatasetParts(open_dataset(root / "dataset"), root / "scratch")
    write_part_files(source, root / "of-dataset", "g", part_method="file")
    partition_graph(graph, "g", num_parts, root / "of-graph", part_method="file", owners=owners)
    return files_of(root / "of-dataset")


@pytest.mark.parametrize(
    ("graph", "options", "num_parts"),
    [
        (plain_graph(), {"time_attr": "weight"}, 1),  # stored by time, which is not the order of keys below
        (plain_graph(), {"time_attr": "weight"}, 5),
        (typed_graph(), {"direction": "both"}, 2),
        (hopstream.Graph(nodes=typed_graph().nodes), {}, 2),
    ],
    ids=["one part", "plain", "typed", "without edges"],
)
def test_files_of_a_dataset_are_those_of_its_graph(tmp_path, monkeypatch, graph, options, num_parts):
    monkeypatch.setattr(binary, "BLOCK_BYTES", 50)
    if "time_attr" in options:
        (edge_type,), (table,) = graph.edges, graph.edges.values()
        features = {"weight": table.features["weight"][::-1].copy()}
        graph = replace(graph, edges={edge_type: replace(table, features=features)}, edge_splits={
            edge_type: {"train": np.arange(0, 120, 7), "val": np.arange(1)}
        })  # fmt: skip
    found = write(tmp_path, graph, num_parts, **options)
    assert found == files_of(tmp_path / "of-graph") and len(found) == 1 + 3 * num_parts
    assert read_partitions(tmp_path / "of-dataset/g.json")[0].fingerprint() == graph.fingerprint()


def test_a_part_that_owns_nothing_of_a_type(tmp_path):
    graph = typed_graph()
    owners = some_owners(graph, 4)
    owners["b"][:] = 3
    owners["a"][owners["a"] == 2] = 0
    hopstream.write_parts(graph, tmp_path / "dataset", owners=owners, num_parts=4)
    (tmp_path / "scratch").mkdir()
    source = DatasetParts(open_dataset(tmp_path / "dataset"), tmp_path / "scratch")
    write_part_files(source, tmp_path / "of-dataset", "g", part_method="file")
    partition_graph(graph, "g", 4, tmp_path / "of-graph", part_method="file", owners=owners)
    assert files_of(tmp_path / "of-dataset") == files_of(tmp_path / "of-graph")


def test_datasets_without_required_columns_are_refused(tmp_path):
    graph = plain_graph()
    for number, options in enumerate(({"direction": "out"}, {"keep_edge_keys": False})):
        hopstream.write_parts(graph, tmp_path / str(number), num_parts=2, method="random", **options)
        with pytest.raises(SettingsError, match="must have edges by destination"):
            DatasetParts(open_dataset(tmp_path / str(number)), tmp_path)
    named = hopstream.graph_from_arrays(
        np.array([[0], [1]]), num_nodes=2, node_features={"name": np.array(["a", "b"])}
    )  # fmt: skip
    hopstream.write_parts(named, tmp_path / "named", num_parts=1)
    with pytest.raises(SchemaError, match="_N/name is text or ragged"):
        write_part_files(DatasetParts(open_dataset(tmp_path / "named"), tmp_path), tmp_path / "o", "g", part_method="")
    assert not (tmp_path / "o").exists()


def test_one_part_is_held_at_a_time(tmp_path, monkeypatch):
    """With 24 parts, memory holds some arrays of one part's edges, and blocks of features."""
    num_nodes, num_edges, num_parts = 6_000, 60_000, 24
    rng = np.random.default_rng(0)
    src = rng.integers(0, num_nodes, num_edges)
    owner = (np.arange(num_nodes) * num_parts // num_nodes).astype(np.int32)
    graph = hopstream.graph_from_arrays(
        np.stack([src, (src + rng.integers(1, 500, num_edges)) % num_nodes]),
        num_nodes=num_nodes,
        node_features={"x": rng.random((num_nodes, 256), np.float32)},
        edge_features={"w": rng.random((num_edges, 32), np.float32)},
    )
    hopstream.write_parts(graph, tmp_path / "dataset", owners={"node": owner}, num_parts=num_parts)
    del graph
    monkeypatch.setattr(binary, "BLOCK_BYTES", 1 << 16)
    (tmp_path / "scratch").mkdir()
    dataset = open_dataset(tmp_path / "dataset")
    tracemalloc.start()
    try:
        write_part_files(DatasetParts(dataset, tmp_path / "scratch"), tmp_path / "out", "g", part_method="file")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    num_bytes = sum(len(data) for data in files_of(tmp_path / "out").values())
    assert num_bytes > 14 << 20 and peak < num_bytes / 20, peak
