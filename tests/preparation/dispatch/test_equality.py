"""Checks that piecewise dispatch writes what ``write_parts`` writes at once, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hopstream.dataset.layout import open_dataset
from hopstream.errors import IdRangeError, SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.schema import EDGE, NODE, NUMERIC_DTYPES
from tests.dataset.graphs import community_graph, typed_graphs
from tests.dataset.timed_graphs import KNOWS, LIKES, RATES, timed_graph
from tests.preparation.dispatch.sources import check_equal, cut_small, use_graph, without_edge_splits, write_owners


@given(
    graph=typed_graphs(), num_parts=st.integers(1, 5), direction=st.sampled_from(["in", "out", "both"]),
    keep_edge_keys=st.booleans(), neighbor_keys=st.booleans(), size=st.integers(2, 40), seed=st.integers(0, 99),
    are_linked=st.booleans(),
)  # fmt: skip
@settings(
    max_examples=8, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
def test_any_dispatched_graph_has_the_bytes_of_write_parts(
    tmp_path, graph: Graph, num_parts, direction, keep_edge_keys, neighbor_keys, size, seed, are_linked
):
    graph = without_edge_splits(graph)
    write_owners(tmp_path / "owners", graph, num_parts, np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        use_graph(patch, graph)
        cut_small(patch, size)
        check_equal(
            graph, tmp_path, num_parts, direction=direction, keep_edge_keys=keep_edge_keys,
            neighbor_keys=neighbor_keys, links=tuple(graph.edges) if are_linked else (),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("timed", "direction", "size", "keys"),
    [
        (("user", RATES, KNOWS), "in", 30, {"neighbor_keys": True}),
        (("movie",), "both", 1000, {"keep_edge_keys": False}),
        ((LIKES,), "both", 30, {"neighbor_keys": True, "keep_edge_keys": False}),
        (("user", "movie", RATES, KNOWS, LIKES), "in", 1000, {"neighbor_keys": True}),
    ],
)
def test_times_weights_and_links(tmp_path, monkeypatch, rng, timed, direction, size, keys):
    graph = without_edge_splits(timed_graph(rng, timed=timed))
    write_owners(tmp_path / "owners", graph, 3, rng)
    use_graph(monkeypatch, graph)
    cut_small(monkeypatch, size)
    options = {"time_attr": "time", "weight_attr": "rating", "links": (RATES, "movie__like__movie")}
    check_equal(graph, tmp_path, 3, direction=direction, **keys, **options)
    open_dataset(tmp_path / "got", verify=True)


def test_every_dtype_and_rank(tmp_path, monkeypatch, rng):
    shapes = [(), (2,), (2, 3), (1, 2, 2), (0,)]
    features = {
        dtype: rng.integers(0, 2, (23, *shapes[i % len(shapes)])).astype(dtype)
        for i, dtype in enumerate(NUMERIC_DTYPES)
    }
    ends = rng.integers(0, 23, (2, 23))
    edges = {EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1], features=features)}
    graph = Graph(nodes={NODE: NodeTable(num_nodes=23, features=features)}, edges=edges).check()
    write_owners(tmp_path / "owners", graph, 3, rng)
    use_graph(monkeypatch, graph)
    cut_small(monkeypatch, 12)
    check_equal(graph, tmp_path, 3)


@pytest.mark.slow
def test_hubs_and_many_parts(tmp_path, monkeypatch, rng):
    """One node with most edges, whose bucket is far larger than a run; more parts than nodes of a type."""
    ends = rng.integers(0, 60, 1000), np.where(rng.random(1000) < 0.7, 17, rng.integers(0, 60, 1000))
    edges = {EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1], features={"w": rng.random(1000)})}
    graph = Graph(nodes={NODE: NodeTable(num_nodes=60), "few": NodeTable(num_nodes=2)}, edges=edges).check()
    use_graph(monkeypatch, graph)
    cut_small(monkeypatch, 100)
    for num_parts in (1, 30):
        write_owners(tmp_path / "owners", graph, num_parts, rng)
        check_equal(graph, tmp_path, num_parts, direction="both", weight_attr="w")


def test_bad_values_are_named(tmp_path, monkeypatch, rng):
    good = rng.random(40)
    ends = rng.integers(0, 9, (2, 40))

    def check(error: type[Exception], match: str, weights: np.ndarray, **options: object) -> None:
        edges = {EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1], features={"w": weights})}
        graph = Graph(nodes={NODE: NodeTable(num_nodes=9)}, edges=edges).check()
        write_owners(tmp_path / "owners", graph, 2, rng)
        use_graph(monkeypatch, graph)
        with pytest.raises(error, match=match):
            check_equal(graph, tmp_path, 2, **options)
        assert not (tmp_path / "got").exists()
        assert list(tmp_path.glob(".*")) == []

    cut_small(monkeypatch, 6)
    check(SchemaError, r"w\[33\] is -1", np.where(np.arange(40) == 33, -1.0, good), weight_attr="w")
    check(SchemaError, "is 0 for all 40 edges", np.zeros(40), weight_attr="w")
    check(SchemaError, "add up to", np.full(40, 8e307), weight_attr="w")
    check(SchemaError, "times are one integer|times are integers", good, time_attr="w")
    check(SchemaError, r"w\[5\] is \d+; times must fit int64", np.full(40, 2**63, np.uint64) * (np.arange(40) == 5
        ).astype(np.uint64), time_attr="w")  # fmt: skip
    check(UnknownNameError, "weight_attr is 'v'", good, weight_attr="v")
    check(UnknownNameError, "links name", good, links=("a__b__c",))


def test_bad_owners_are_named(tmp_path, monkeypatch, rng):
    graph = community_graph(rng, 50, 100)
    use_graph(monkeypatch, graph)
    cut_small(monkeypatch, 6)
    owners = tmp_path / "owners"
    write_owners(owners, graph, 2, rng)
    path = owners / "node.npy"
    cases = [
        (np.full(50, 2), IdRangeError, r"node.npy\[0\] is 2; parts are numbered 0..1"),
        (np.zeros(49, np.int8), SchemaError, "one integer for each of 50"),
        (np.zeros(50), SchemaError, "is float64"),
        (np.zeros((50, 1), np.int64), SchemaError, "one integer"),
    ]
    for values, error, match in cases:
        np.save(path, values)
        with pytest.raises(error, match=match):
            check_equal(graph, tmp_path, 2)
    path.unlink()
    text = owners / "node.txt"
    for content, error, match in [
        ("0\n" * 49, SchemaError, "has 49 parts"),
        ("0\n" * 51, SchemaError, "more than 50|has 51"),
        ("0\n" * 49 + "x\n", ValueError, "one part number per line"),
        ("0 1\n" * 25, ValueError, "line 1 is .0 1.; wanted one part number per line"),
        ("0\n" * 49 + "7", IdRangeError, r"\[49\] is 7"),
    ]:
        text.write_text(content)
        with pytest.raises(error, match=match):
            check_equal(graph, tmp_path, 2)
    text.unlink()
    with pytest.raises(ValueError, match=r"neither node\.npy nor node\.txt"):
        check_equal(graph, tmp_path, 2)
    assert not (tmp_path / "got").exists()


def test_parts_are_counted(tmp_path, monkeypatch, rng):
    graph = community_graph(rng, 50, 100)
    use_graph(monkeypatch, graph)
    (tmp_path / "owners").mkdir()
    np.save(tmp_path / "owners" / "node.npy", np.arange(50) % 3)
    check_equal(graph, tmp_path, 3)
    meta = tmp_path / "owners" / "partition_meta.json"
    places = (tmp_path / "in", tmp_path / "owners", tmp_path / "got")
    assert dispatch(*places, num_workers=0, overwrite=True).book.num_parts == 3
    meta.write_text('{"version": "1.0", "num_parts": 5, "algo_name": "random"}')
    assert dispatch(*places, num_workers=0, overwrite=True).book.num_parts == 5
    with pytest.raises(SettingsError, match="is for 5 parts, but num_parts is 3"):
        dispatch(*places, num_workers=0, num_parts=3, overwrite=True)
    meta.write_text("{}")
    with pytest.raises(ValueError, match="has num_parts None"):
        dispatch(*places, num_workers=0, overwrite=True)
