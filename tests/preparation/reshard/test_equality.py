"""Checks that re-sharding gives, byte for byte, what writing the graph into the new parts gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hopstream.arrays import RaggedArray
from hopstream.dataset import balance
from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation import dataset_job_folder
from hopstream.preparation.reshard import move
from hopstream.preparation.reshard.reshard_job import reshard
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE, NUMERIC_DTYPES
from tests.dataset.graphs import typed_graphs
from tests.dataset.timed_graphs import KNOWS, LIKES, RATES, timed_graph
from tests.preparation.reshard.sources import check_again, check_reshard, cut_small

PARTS = st.sampled_from([(1, 3), (4, 2), (3, 5), (2, 13)])


@given(
    graph=typed_graphs(), parts=PARTS, direction=st.sampled_from(["in", "out", "both"]), keep_edge_keys=st.booleans(),
    neighbor_keys=st.booleans(), size=st.integers(5, 60), seed=st.integers(0, 99), are_linked=st.booleans(),
)  # fmt: skip
@settings(
    max_examples=5, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
def test_any_resharded_graph_has_the_bytes_of_write_parts(
    tmp_path, graph: Graph, parts, direction, keep_edge_keys, neighbor_keys, size, seed, are_linked
):
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch, size)
        check_reshard(
            graph, tmp_path, *parts, np.random.default_rng(seed), direction=direction, keep_edge_keys=keep_edge_keys,
            neighbor_keys=neighbor_keys, links=tuple(graph.edges) if are_linked else (),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("timed", "direction", "size", "parts", "keys"),
    [
        (("user", RATES, KNOWS), "in", 40, (3, 5), {"neighbor_keys": True}),
        (("movie", LIKES), "both", 20, (4, 2), {"keep_edge_keys": False}),
        (("user", RATES, KNOWS), "out", 1000, (1, 3), {"neighbor_keys": True, "keep_edge_keys": False}),
    ],
)
def test_times_weights_and_links(tmp_path, monkeypatch, rng, timed, direction, size, parts, keys):
    graph = timed_graph(rng, timed=timed)
    cut_small(monkeypatch, size)
    options = {"time_attr": "time", "weight_attr": "rating", "links": (RATES, "movie__like__movie")}
    check_reshard(graph, tmp_path, *parts, rng, direction=direction, **keys, **options)
    open_dataset(tmp_path / "got", verify=True)


def test_every_dtype_and_rank(tmp_path, monkeypatch, rng):
    shapes = [(), (2,), (2, 3), (1, 2, 2), (0,)]
    fixed = {
        dtype: rng.integers(0, 2, (23, *shapes[i % len(shapes)])).astype(dtype)
        for i, dtype in enumerate(NUMERIC_DTYPES)
    }
    ragged = {
        dtype: RaggedArray.from_rows([rng.integers(0, 2, (n, 3)).astype(dtype) for n in rng.integers(0, 9, 23)])
        for dtype in NUMERIC_DTYPES
    }
    text = RaggedArray.from_strings(["é" * (i % 7) for i in range(23)])
    ends = rng.integers(0, 23, (2, 23))
    edges = {EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1], features={**ragged, "text": text})}
    graph = Graph(nodes={NODE: NodeTable(num_nodes=23, features={**fixed, "text": text})}, edges=edges).check()
    cut_small(monkeypatch, 12)
    check_reshard(graph, tmp_path, 3, 4, rng)


@pytest.mark.parametrize("keep_edge_keys", [True, False])
def test_features_with_the_names_of_files(tmp_path, monkeypatch, rng, keep_edge_keys):
    ends, names = rng.integers(0, 23, (2, 90)), ("indices", "key", "indptr", "neighbor_key", "id_of_key")
    features = {name: rng.integers(0, 1 << 40, 90) for name in names}
    edges = {EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1], features=features)}
    nodes = {NODE: NodeTable(num_nodes=23, features={name: column[:23] for name, column in features.items()})}
    cut_small(monkeypatch, 12)
    check_reshard(Graph(nodes=nodes, edges=edges).check(), tmp_path, 3, 4, rng, keep_edge_keys=keep_edge_keys)


@pytest.mark.slow
def test_hubs_and_many_parts(tmp_path, monkeypatch, rng):
    """One node with most edges, which are moved in pieces; more parts than nodes of a type."""
    ends = rng.integers(0, 60, 1000), np.where(rng.random(1000) < 0.7, 17, rng.integers(0, 60, 1000))
    texts = RaggedArray.from_strings(["x" * int(n) for n in rng.integers(0, 300, 1000)])
    edges = {EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1], features={"w": rng.random(1000), "text": texts})}
    graph = Graph(nodes={NODE: NodeTable(num_nodes=60), "few": NodeTable(num_nodes=2)}, edges=edges).check()
    cut_small(monkeypatch, 60)
    check_reshard(graph, tmp_path, 2, 9, rng, direction="both", weight_attr="w")
    check_reshard(graph, tmp_path, 9, 1, rng, weight_attr="w")


def test_more_parts_than_the_report_matrix_holds(tmp_path, monkeypatch, rng):
    ends = rng.integers(0, 9, (2, 40))
    edges = {EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1])}
    graph = Graph(nodes={NODE: NodeTable(num_nodes=9)}, edges=edges).check()
    for module in (balance, move, dataset_job_folder):
        monkeypatch.setattr(module, "MAX_MATRIX_PARTS", 3)
    got, _ = check_reshard(graph, tmp_path, 2, 4, rng)
    assert got.report.edges_between == () and got.report.cut.num_cut > 0


def test_resharding_back_restores_the_dataset(tmp_path, monkeypatch, rng):
    graph = timed_graph(rng)
    cut_small(monkeypatch, 10)
    check_reshard(graph, tmp_path, 2, 5, rng, direction="both", time_attr="time")
    (tmp_path / "old").rename(tmp_path / "first")
    (tmp_path / "got").rename(tmp_path / "old")
    check_again(graph, tmp_path, 2, tmp_path / "old-owners", direction="both", time_attr="time")
    assert open_dataset(tmp_path / "got").manifest.dataset_id == open_dataset(tmp_path / "first").manifest.dataset_id


@pytest.mark.parametrize("method", ["ldg", "kaminpar"])
def test_methods_give_the_same_as_for_the_graph(tmp_path, monkeypatch, rng, method):
    graph = timed_graph(rng)
    graph = replace(graph, nodes={
        "user": replace(graph.nodes["user"], features={
            **graph.nodes["user"].features, "name": RaggedArray.from_strings(["u" * (i % 9) for i in range(30)])}),
        "movie": graph.nodes["movie"],
    })  # fmt: skip
    cut_small(monkeypatch, 7)
    write_parts(graph, tmp_path / "old", num_parts=3, method="random", rng_seed=5, time_attr="time", direction="both")
    got = reshard(tmp_path / "old", tmp_path / "got", num_parts=4, method=method, num_workers=0)
    wanted = write_parts(graph, tmp_path / "wanted", num_parts=4, method=method, time_attr="time", direction="both")
    assert got.dataset_id == wanted.dataset_id
    assert {**got.made_by, "links": []} == {**wanted.made_by, "links": []}
    assert list(tmp_path.glob(".*")) == []
