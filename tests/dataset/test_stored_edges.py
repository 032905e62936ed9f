"""Checks that times, weights, neighbour keys and links lie in their places, whatever the cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopstream.arrays import RaggedArray
from hopstream.dataset import chunks, stored_columns
from hopstream.dataset.book import ends_of
from hopstream.dataset.layout import PartArrays, open_dataset
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from tests import naive_rows, naive_weighted
from tests.dataset.graphs import same_column, tree_of
from tests.dataset.test_read_back import assert_same_graph
from tests.dataset.timed_graphs import KNOWS, LIKES, RATES, timed_graph

EVERYTHING = {"time_attr": "time", "weight_attr": "rating", "neighbor_keys": True, "links": (KNOWS,)}
TIMED = [("user",), ("movie", "user"), (RATES,), ("user", RATES, KNOWS), ("movie", "user", RATES, LIKES)]


def check_rows(part: PartArrays, graph: Graph, owner, time_attr: str | None, keys_of_ids: dict[str, np.ndarray]):
    """Check each row of a part against the naive reference."""
    (edge_type, direction), edges, table = owner, part.edges[owner], graph.edges[owner[0]]
    own_type, other_type = ends_of(edge_type, direction)
    other = table.src_keys if direction == "in" else table.dst_keys
    for node_key, start, stop in zip(part.node_keys[own_type], edges.indptr[:-1], edges.indptr[1:], strict=True):
        keys = naive_rows.stored_row(graph, edge_type, direction, int(node_key), time_attr)
        assert edges.keys[start:stop].tolist() == keys
        assert edges.neighbor_keys[start:stop].tolist() == [other[key] for key in keys]
        assert keys_of_ids[other_type][edges.indices[start:stop]].tolist() == [other[key] for key in keys]
        wanted = [naive_rows.edge_time(graph, edge_type, direction, key, time_attr) for key in keys]
        assert (edges.times is None) or edges.times[start:stop].tolist() == wanted
        assert edges.times is not None or set(wanted) <= {None}
        assert (edges.weight_sums is None) == (edges.weight_order is None) == ("rating" not in table.features)
        if edges.weight_sums is not None:
            weights = [float(table.features["rating"][key]) for key in keys]
            assert edges.weight_sums[start:stop].tolist() == naive_rows.sum_rows([0, len(keys)], weights)
            order = naive_rows.sort_rows([0, len(keys)], weights, True)
            assert edges.weight_order[start:stop].tolist() == order
            assert edges.weight_alias[start:stop].tolist() == naive_weighted.alias_entries(weights)


def check_links(parts: list[PartArrays], graph: Graph, edge_type, has_times: bool):
    table = graph.edges[edge_type]
    links = [part.links[edge_type] for part in parts]
    assert [key for link in links for key in link.src_keys] == table.src_keys.tolist()
    assert [key for link in links for key in link.dst_keys] == table.dst_keys.tolist()
    assert all((link.times is not None) == has_times for link in links)
    if has_times:
        assert [time for link in links for time in link.times] == table.features["time"].tolist()
    slices = [table.num_edges * p // len(parts) for p in range(len(parts) + 1)]
    assert [len(link.src_keys) for link in links] == np.diff(slices).tolist()
    for name, keys in graph.edge_splits.get(edge_type, {}).items():
        want = [keys[(keys >= a) & (keys < b)].tolist() for a, b in pairwise(slices)]
        assert [link.splits[name].tolist() for link in links] == want


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rng_seed=st.integers(0, 1 << 32),
    timed=st.sampled_from(TIMED),
    num_parts=st.sampled_from([1, 3, 9]),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 15), st.integers(1, 200)),
)
def test_every_row_equals_the_reference(tmp_path, rng_seed, timed, num_parts, sizes):
    num_users, num_movies, num_edges = sizes
    graph = timed_graph(
        np.random.default_rng(rng_seed), num_users=num_users, num_movies=num_movies, num_edges=num_edges, timed=timed
    )
    graph.edges[RATES].features["rating"][0] = graph.edges[KNOWS].features["rating"][0] = 1  # not all are 0
    options = {"num_parts": num_parts, "method": "random", "direction": "both"}
    write_parts(graph, tmp_path / "d", **options, **EVERYTHING, overwrite=True)
    dataset = open_dataset(tmp_path / "d", verify=True)
    parts = [dataset.open_part(part) for part in range(num_parts)]
    keys_of_ids = {t: np.concatenate([part.node_keys[t] for part in parts]) for t in graph.nodes}
    for part in parts:
        for owner in part.edges:
            check_rows(part, graph, owner, "time", keys_of_ids)
    assert set(parts[0].links) == {RATES, KNOWS, LIKES}
    for edge_type in (RATES, KNOWS, LIKES):
        check_links(parts, graph, edge_type, edge_type in timed)
    assert_same_graph(read_dataset(tmp_path / "d"), graph)


def test_optional_columns_are_absent_by_default(tmp_path, rng):
    graph = replace(timed_graph(rng), edge_splits={})
    write_parts(graph, tmp_path, num_parts=2, method="random")
    part = open_dataset(tmp_path).open_part(0)
    assert not part.links
    for edges in part.edges.values():
        found = (edges.times, edges.weight_sums, edges.weight_order, edges.neighbor_keys)
        assert found == (None, None, None, None)
    assert not [path for path in tree_of(tmp_path) if "time.npy" in path and "features" not in path]


def test_each_optional_column_can_be_written_alone(tmp_path, rng):
    graph = replace(timed_graph(rng), edge_splits={})
    plain = {path: data for path, data in tree_of_parts(graph, tmp_path).items() if path != "manifest.json"}
    for options, files in [
        ({"neighbor_keys": True}, {"neighbor_key.npy"}),
        ({"weight_attr": "rating"}, {"weight_sums.npy", "weight_order.npy", "weight_alias.npy"}),
        ({"links": ["user__rates__movie"]}, {"src_key.npy", "dst_key.npy"}),
    ]:
        tree = tree_of_parts(graph, tmp_path, **options)
        assert {path.rpartition("/")[2] for path in tree.keys() - plain.keys()} == files | {"manifest.json"}
        assert plain.items() <= tree.items()


def tree_of_parts(graph: Graph, folder, **options) -> dict[str, bytes]:
    write_parts(graph, folder / "d", num_parts=2, method="random", overwrite=True, **options)
    return tree_of(folder / "d")


def test_chunk_size_does_not_change_files(tmp_path, rng, monkeypatch):
    graph = timed_graph(rng)
    options = {"num_parts": 3, "method": "random", "direction": "both", **EVERYTHING}
    whole = write_parts(graph, tmp_path / "a", **options)
    monkeypatch.setattr(chunks, "CHUNK_ITEMS", 7)
    monkeypatch.setattr(stored_columns, "CHUNK_ROWS", 5)
    monkeypatch.setattr(stored_columns, "CHUNK_ROWS", 5)
    assert write_parts(graph, tmp_path / "b", **options).dataset_id == whole.dataset_id
    open_dataset(tmp_path / "a", verify=True)
    assert_same_graph(read_dataset(tmp_path / "a"), graph)


def test_a_graph_has_one_id_for_each_order_of_its_edges(tmp_path, rng):
    graph = timed_graph(rng)
    plain = write_parts(graph, tmp_path / "plain").graph_id
    assert plain == graph.fingerprint()
    by_time = write_parts(graph, tmp_path / "time", time_attr="time")
    assert by_time.graph_id != plain
    others = {"weight_attr": "rating", "neighbor_keys": True, "links": [KNOWS]}
    assert write_parts(graph, tmp_path / "others", num_parts=3, method="hash", **others).graph_id == plain
    all_of_it = write_parts(graph, tmp_path / "all", num_parts=3, method="hash", time_attr="time", **others)
    assert all_of_it.graph_id == by_time.graph_id
    again = write_parts(read_dataset(tmp_path / "all"), tmp_path / "again", time_attr="time")
    assert (again.graph_id, again.dataset_id) == (by_time.graph_id, by_time.dataset_id)


def test_without_edge_keys_and_links_edges_are_in_stored_order(tmp_path, rng):
    graph = replace(timed_graph(rng, timed=(RATES,)), edge_splits={})
    write_parts(graph, tmp_path, keep_edge_keys=False, time_attr="time")
    got, want = read_dataset(tmp_path).edges[RATES], graph.edges[RATES]
    order = [key for movie in range(12) for key in naive_rows.stored_row(graph, RATES, "in", movie, "time")]
    assert got.src_keys.tolist() == want.src_keys[order].tolist()
    assert got.dst_keys.tolist() == want.dst_keys[order].tolist()
    for name, column in want.features.items():
        assert same_column(got.features[name], column[order])


def test_seeds_of_edge_splits_are_counted_where_their_edges_are(tmp_path, rng):
    graph = timed_graph(rng)
    for direction, end in (("in", "dst_keys"), ("out", "src_keys"), ("both", "dst_keys")):
        owners = {t: np.arange(n.num_nodes) % 2 for t, n in graph.nodes.items()}
        manifest = write_parts(
            graph, tmp_path, num_parts=2, owners=owners, direction=direction, overwrite=True, links=[KNOWS]
        )
        val = getattr(graph.edges[RATES], end)[graph.edge_splits[RATES]["val"]]
        assert manifest.report.seeds[RATES, "val"] == (np.count_nonzero(val % 2 == 0), np.count_nonzero(val % 2))
        assert open_dataset(tmp_path).manifest.report == manifest.report
        assert manifest.report.balance["seeds user__rates__movie/val"] >= 1
        assert set(manifest.report.seeds) == {(RATES, "train"), (RATES, "val"), (RATES, "all"), (LIKES, "none")}


def two_nodes(num_edges: int = 3, node_time=None, **features) -> Graph:
    keys = np.arange(num_edges) % 2
    return Graph(
        nodes={NODE: NodeTable(num_nodes=2, features={} if node_time is None else {"t": np.array(node_time)})},
        edges={EDGE: EdgeTable(src_keys=keys, dst_keys=keys, features=features)},
    )


def ragged() -> RaggedArray:
    return RaggedArray(np.arange(3), np.arange(4))


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (two_nodes(x=np.zeros(3)), UnknownNameError, r"time_attr is 't'; no node or edge type .*__node': \['x'\]"),
        (two_nodes(t=np.zeros(3)), SchemaError, r"to__node\.t is float64\[rows\]; times are integers: choose a unit"),
        (two_nodes(t=np.zeros((3, 1), np.int64)), SchemaError, r"t is int64\[rows, 1\]; times are one int"),
        (two_nodes(t=np.zeros(3, np.bool_)), SchemaError, r"bool\[rows\]; times are one integer per row, or rename"),
        (two_nodes(t=ragged()), SchemaError, r"int64\[rows, ragged\]; times are one integer"),
        (two_nodes(t=RaggedArray.from_strings(["1", "2", "3"])), SchemaError, "is string; times are one integer"),
        (two_nodes(t=np.array([1, 2, 1 << 63], np.uint64)), SchemaError,
         r"t\[2\] is 9223372036854775808; times must fit"),
        (two_nodes(node_time=[0.5, 1], t=np.arange(3)), SchemaError, r"^node\.t is float64\[rows\]"),
    ],
)  # fmt: skip
def test_invalid_times_are_refused(tmp_path, graph, error, message):
    with pytest.raises(error, match=message):
        write_parts(graph, tmp_path / "d", time_attr="t")
    assert list(tmp_path.iterdir()) == []


def test_times_may_be_negative_and_as_large_as_int64(tmp_path):
    bounds = np.iinfo(np.int64)
    graph = two_nodes(4, t=np.array([bounds.max, 5, bounds.min, -5]))
    write_parts(graph, tmp_path, time_attr="t")
    edges = open_dataset(tmp_path, verify=True).open_part(0).edges[EDGE, "in"]
    assert edges.times.tolist() == [bounds.min, bounds.max, -5, 5]
    assert edges.keys.tolist() == [2, 0, 3, 1]
    large = two_nodes(2, t=np.array([(1 << 63) - 1, 0], np.uint64))
    write_parts(large, tmp_path, time_attr="t", overwrite=True)
    assert open_dataset(tmp_path, verify=True).open_part(0).edges[EDGE, "in"].times.tolist() == [bounds.max, 0]


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (two_nodes(x=np.zeros(3), node_time=[1, 2]), UnknownNameError, r"weight_attr is 'w'; no edge type .*\['x'\]"),
        (two_nodes(w=np.array([1, -0.5, 1])), SchemaError, r"to__node\.w\[1\] is -0\.5; weights are finite numbers"),
        (two_nodes(w=np.array([1, 1, -3])), SchemaError, r"w\[2\] is -3; "),
        (two_nodes(w=np.array([np.nan, 1, 1], np.float16)), SchemaError, r"w\[0\] is nan"),
        (two_nodes(w=np.array([1, 1, np.inf], np.float32)), SchemaError, r"w\[2\] is inf"),
        (two_nodes(w=np.array([1, -np.inf, 1])), SchemaError, r"w\[1\] is -inf"),
        (
            two_nodes(w=np.array([1, 2**53 + 1, 1])),
            SchemaError,
            r"w\[1\] is 9007199254740993; integer weights go up to",
        ),
        (two_nodes(w=np.array([1, 2**53, 1], np.uint64)), None, None),
        (two_nodes(w=np.zeros(3, np.int8)), SchemaError, "is 0 for all 3 edges, so none can be sampled"),
        (two_nodes(w=-np.zeros(3)), SchemaError, "is 0 for all 3 edges"),
        (two_nodes(w=np.ones((3, 2))), SchemaError, r"is float64\[rows, 2\]; weights are one integer or float"),
        (two_nodes(w=np.ones(3, np.bool_)), SchemaError, r"bool\[rows\]; weights are"),
        (two_nodes(w=np.ones(3, np.complex64)), SchemaError, r"complex64\[rows\]; weights are"),
        (two_nodes(w=ragged()), SchemaError, r"ragged\]; weights are"),
        (two_nodes(w=np.array([1e308, 1, 1e308])), SchemaError, r"weights of the edges of destination 0 add up to inf"),
        (two_nodes(w=np.array([1, 6e307, 1, 6e307])[:3]), None, None),
        (two_nodes(4, w=np.array([1, 6e307, 1, 6e307])), SchemaError, r"destination 1 add up to 1\.2e\+308; a sum"),
        (two_nodes(2, w=np.array([8e307, 8e307])), None, None),
        (two_nodes(0, w=np.empty(0)), None, None),
    ],
)
def test_invalid_weights_are_refused(tmp_path, graph, error, message):
    if error is None:
        write_parts(graph, tmp_path / "d", weight_attr="w")
        open_dataset(tmp_path / "d", verify=True)
        return
    with pytest.raises(error, match=message):
        write_parts(graph, tmp_path / "d", weight_attr="w")
    assert list(tmp_path.iterdir()) == []


def test_links_of_an_unknown_edge_type(tmp_path, rng):
    for link, shown in (("user__rate__movie", "'user__rate__movie'"), (("a", "b", "c"), r"\('a', 'b', 'c'\)")):
        with pytest.raises(UnknownNameError, match=rf"links name edge type {shown}; known: \['user__rates__movie'"):
            write_parts(timed_graph(rng), tmp_path / "d", links=[link])


def test_two_ways_of_naming_the_same_links(tmp_path, rng):
    graph = timed_graph(rng)
    one = write_parts(graph, tmp_path / "a", links=["user__rates__movie", KNOWS])
    two = write_parts(graph, tmp_path / "b", links=[KNOWS])
    assert one.dataset_id == two.dataset_id
    assert one.schema.edge_splits == {RATES: ("train", "val", "all"), KNOWS: (), LIKES: ("none",)}
