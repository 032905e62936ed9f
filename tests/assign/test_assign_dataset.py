"""Checks that the nodes of a dataset are assigned as those of its source graph."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopstream.assign import run as assign
from hopstream.assign import source as assign_dataset
from hopstream.assign.owners import read_owners
from hopstream.assign.run import assign_folder, assign_nodes
from hopstream.assign.source import open_dataset_source
from hopstream.assign.weights import node_weights
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import ChecksumError, FormatError, SchemaError
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import community_graph, typed_graphs
from tests.dataset.timed_graphs import timed_graph


@given(graph=typed_graphs(), direction=st.sampled_from(["in", "out", "both"]), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None, suppress_health_check=[*HealthCheck])
def test_any_dataset_is_assigned_like_its_graph(tmp_path, graph: Graph, direction, seed):
    write_parts(
        graph, tmp_path / "set", num_parts=3, method="hash", rng_seed=seed, direction=direction, keep_edge_keys=False,
        overwrite=True,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assign_dataset, "BLOCK_EDGES", 7)
        source = open_dataset_source(tmp_path / "set")
        for sides in ("in", "both"):
            asked = PartitionSettings(num_parts=4, method="ldg", direction=sides, balance_splits=True)
            wanted, found = node_weights(graph, asked), node_weights(source, asked)
            assert {t: w.tolist() for t, w in found.items()} == {t: w.tolist() for t, w in wanted.items()}
            owners = [assign_nodes(of, asked, scratch=tmp_path).owners for of in (graph, source)]
            assert all(owners[0][t].tolist() == owners[1][t].tolist() for t in graph.nodes)


@pytest.mark.parametrize("method", ["kaminpar", "ldg", "random"])
def test_every_method_assigns_a_dataset_like_its_graph(tmp_path, monkeypatch, rng, method):
    graph = community_graph(rng, 300, 2000)
    write_parts(graph, tmp_path / "set", num_parts=5, method="random")
    asked = PartitionSettings(num_parts=3, method=method)
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(assign_dataset, "BLOCK_EDGES", 100)
    monkeypatch.setattr(assign, "_memory_for_edges", lambda *_: 1000)
    found = assign_folder(
        open_dataset_source(tmp_path / "set"), tmp_path / "owners", asked, progress=lambda *words: told.append(words)
    )
    assert found.owners["node"].tolist() == assign_nodes(graph, asked).owners["node"].tolist()
    assert read_owners(tmp_path / "owners", {"node": 300})[0]["node"].tolist() == found.owners["node"].tolist()
    if method not in ("random", "hash"):
        assert list(dict.fromkeys(stage for stage, _, _ in told)) == ["edges", "group", method]
        ends = {stage: (done, total) for stage, done, total in told}
        assert all(done == total for done, total in ends.values()) and ends["edges"] == (2000, 2000)


def test_features_can_be_classes(tmp_path, rng):
    graph = timed_graph(rng)
    write_parts(graph, tmp_path / "set", num_parts=3, method="random")
    asked = PartitionSettings(num_parts=2, method="ldg", balance_ntypes=("user=time",))
    owners = [assign_nodes(of, asked).owners for of in (graph, open_dataset_source(tmp_path / "set"))]
    assert owners[0]["user"].tolist() == owners[1]["user"].tolist()


def test_damage_is_found(tmp_path, rng):
    write_parts(timed_graph(rng), tmp_path / "set", num_parts=2, method="random")
    path = tmp_path / "set" / "part-00001" / "edge" / "user__knows__user" / "in" / "indices.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match=r"indices\.npy"):
        open_dataset_source(tmp_path / "set")
    path.unlink()
    with pytest.raises(FormatError, match=r"indices\.npy is missing"):
        open_dataset_source(tmp_path / "set")


def test_ragged_classes_are_refused(tmp_path, rng, typed_graph: Graph):
    write_parts(typed_graph, tmp_path / "set", num_parts=2, method="random")
    ragged = next(
        (t, name) for t, fs in typed_graph.schema.nodes.items() for name, f in fs.items() if not f.is_fixed_width
    )
    asked = PartitionSettings(num_parts=2, method="ldg", balance_ntypes=(f"{ragged[0]}={ragged[1]}",))
    with pytest.raises(SchemaError, match="rows of different lengths"):
        assign_nodes(open_dataset_source(tmp_path / "set"), asked)
