"""Checks that commands read partitions of PyG and DGL and keep their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopstream import open_dataset, read_dataset, read_graph
from hopstream.errors import FormatError
from hopstream.graph.graph import Graph

NUM_PARTS = 4


@pytest.fixture
def graph(typed_graph: Graph) -> Graph:
    """A graph without features that one of the formats cannot hold."""
    nodes = {
        t: replace(table, features={n: c for n, c in table.features.items() if isinstance(c, np.ndarray)})
        for t, table in typed_graph.nodes.items()
    }
    edges = {
        t: replace(table, features={n: c for n, c in table.features.items() if isinstance(c, np.ndarray)})
        for t, table in typed_graph.edges.items()
    }
    return Graph(nodes=nodes, edges=edges)


@pytest.fixture
def owners(graph: Graph) -> dict[str, np.ndarray]:
    """Parts of nodes; the last part owns none."""
    rng = np.random.default_rng(2)
    return {t: rng.integers(0, 3, table.num_nodes).astype(np.int32) for t, table in graph.nodes.items()}


@pytest.fixture(params=["pyg", "pyg file", "dgl", "dgl folder"])
def source(request: pytest.FixtureRequest, graph: Graph, owners: dict[str, np.ndarray], tmp_path: Path) -> Path:
    """A graph in four parts, in the files of others."""
    folder = tmp_path / "theirs"
    if request.param.startswith("pyg"):
        from hopstream.compat.pyg import write_partitions

        write_partitions(graph, folder, num_parts=NUM_PARTS, owners=owners)
        return folder / "META.json" if request.param == "pyg file" else folder
    from hopstream.compat.dgl.distributed import partition_graph

    partition_graph(graph, "g", NUM_PARTS, str(folder), part_method="file", owners=owners)
    if request.param == "dgl":
        return folder / "g.json"
    (folder / "g.json").rename(folder / "metadata.json")  # as DGL's pipeline leaves them
    (folder / "cluster.json").write_text("{}")
    return folder


def test_ingest_keeps_the_parts(run_command, owners: dict[str, np.ndarray], source: Path, tmp_path: Path):
    result = run_command("ingest", source, "--out", tmp_path / "ours")
    assert result.status == 0, result.err
    assert f"write   {NUM_PARTS} parts" in result.out
    dataset = open_dataset(tmp_path / "ours").manifest
    assert dataset.book.num_parts == NUM_PARTS
    for node_type, parts in owners.items():
        wanted = np.bincount(parts, minlength=NUM_PARTS)
        assert np.diff(dataset.book.offsets(node_type)).tolist() == wanted.tolist()
    assert run_command("verify", tmp_path / "ours", "--against", source).status == 0
    assert run_command("ingest", source, "--out", tmp_path / "again").status == 0
    again = read_dataset(tmp_path / "again").fingerprint()
    assert read_dataset(tmp_path / "ours").fingerprint() == again


FEWER = pytest.mark.parametrize("source", ["pyg file", "dgl folder"], indirect=True)


@FEWER
def test_partitions_are_read_as_the_original_graph(run_command, graph: Graph, source: Path, tmp_path: Path):
    assert run_command("ingest", source, "--out", tmp_path / "ours").status == 0
    ours = read_dataset(tmp_path / "ours")
    for edge_type, table in graph.edges.items():
        assert ours.edges[edge_type].src_keys.tolist() == table.src_keys.tolist()
        assert ours.edges[edge_type].dst_keys.tolist() == table.dst_keys.tolist()
    for node_type, table in graph.nodes.items():
        for name, column in table.features.items():
            np.testing.assert_array_equal(ours.nodes[node_type].features[name], column)


@FEWER
def test_partitions_can_be_partitioned_again(run_command, source: Path, tmp_path: Path):
    result = run_command("partition", source, "--parts", "2", "--method", "hash", "--out", tmp_path / "two")
    assert result.status == 0, result.err
    assert open_dataset(tmp_path / "two").manifest.book.num_parts == 2
    assert run_command("chunk", source, "--out", tmp_path / "chunks").status == 0
    assert run_command("assign", source, "--parts", "2", "--method", "hash", "--out", tmp_path / "owners").status == 0


@FEWER
def test_partitions_cannot_be_read_in_chunks(run_command, source: Path, tmp_path: Path):
    result = run_command("partition", source, "--parts", "2", "--memory", "1G", "--out", tmp_path / "two")
    assert result.status == 2
    assert "is neither tables nor a chunked graph, the only inputs of prepare" in result.err


@FEWER
def test_table_options_are_refused_for_partitions(run_command, source: Path, tmp_path: Path):
    for flags in (("--on-dangling", "drop"), ("--on-duplicate", "drop"), ("--no-keep-raw-ids",)):
        result = run_command("ingest", source, "--out", tmp_path / "ours", *flags)
        assert result.status == 2
        assert result.err == f"error: {flags[0]} is only for tables; {source} is not one: leave it out\n"


@FEWER
def test_outputs_inside_partitions_are_refused(run_command, source: Path, tmp_path: Path):
    result = run_command("ingest", source, "--out", tmp_path / "theirs" / "ours")
    assert result.status == 2 and "which lies in" in result.err


@FEWER
def test_read_graph_error_names_the_reader_of_partitions(source: Path, tmp_path: Path):
    door = "pyg" if (tmp_path / "theirs" / "META.json").exists() else "dgl.distributed"
    with pytest.raises(FormatError, match=rf"hopstream\.compat\.{door}\.read_partitions reads"):
        read_graph(source)


def _drop_graph(folder: Path) -> None:
    for path in [*folder.glob("part_1/graph.pt"), *folder.glob("part1/graph.dgl")]:
        path.unlink()


def _cut_json(folder: Path) -> None:
    for path in folder.glob("*.json"):
        path.write_text(path.read_text()[:-20])


@FEWER
@pytest.mark.parametrize("spoil", [_drop_graph, _cut_json])
def test_damage_is_named(run_command, source: Path, tmp_path: Path, spoil: Callable[[Path], None]):
    spoil(tmp_path / "theirs")
    result = run_command("ingest", source, "--out", tmp_path / "ours")
    assert result.status == 2 and result.err.startswith("error: ") and str(tmp_path / "theirs") in result.err
    assert not (tmp_path / "ours").exists()
