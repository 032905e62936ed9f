"""Checks that each part gets its share of every balanced quantity, with every method."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.assign.run import assign_nodes, assign_owners, even_shares
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EDGE, NODE
from tests.dataset.graphs import community_graph

EDGE_METHODS = ["kaminpar", "metis", "ldg", "fennel"]


@pytest.fixture(scope="module")
def lopsided() -> Graph:
    """Classes and train nodes that lie in few communities, so that a good cut is uneven in them."""
    rng = np.random.default_rng(3)
    graph = community_graph(rng, 4000, 60_000, 8)
    src, dst = graph.edges[EDGE].src_keys, graph.edges[EDGE].dst_keys
    community = assign_owners(graph, PartitionSettings(num_parts=8, method="metis"))[NODE]
    features = {"kind": (community < 2).astype(np.int8), "far": np.arange(4000)}
    nodes = {NODE: NodeTable(num_nodes=4000, features=features)}
    splits = {NODE: {"train": np.flatnonzero(community == 3), "test": np.flatnonzero(community > 5)}}
    return Graph(nodes=nodes, edges={EDGE: EdgeTable(src_keys=src, dst_keys=dst)}, splits=splits).check()


def shares_of(owner, is_member, num_parts=4) -> np.ndarray:
    return np.bincount(owner[is_member], minlength=num_parts) / is_member.sum()


@pytest.mark.parametrize("method", [*EDGE_METHODS, "random"])
def test_all_requested_quantities_are_balanced(lopsided: Graph, method):
    plain = assign_nodes(lopsided, PartitionSettings(num_parts=4, method=method))
    chosen = PartitionSettings(
        num_parts=4, method=method, balance_ntypes=("node=kind",), balance_edges=True, balance_splits=True
    )
    found = assign_nodes(lopsided, chosen)
    owner, kind = found.owners[NODE], lopsided.nodes[NODE].features["kind"]
    splits, degrees = lopsided.splits[NODE], np.bincount(lopsided.edges[EDGE].dst_keys, minlength=4000)
    for members in (kind == 0, kind == 1, *(np.isin(np.arange(4000), keys) for keys in splits.values())):
        assert shares_of(owner, members).max() <= 0.25 * 1.03 + 1 / members.sum()
    for value in (0, 1):
        held = np.bincount(owner[kind == value], weights=degrees[kind == value], minlength=4)
        assert held.max() <= 1.04 * held.mean()
    rows = ["edges node 0", "edges node 1", "node 0", "node 1", "train node", "test node"]
    assert list(found.largest) == ["bytes"] * (method != "random") + rows
    assert max(found.largest.values()) < 1.04
    if method != "random":
        assert shares_of(plain.owners[NODE], kind == 1).max() > 0.4  # uneven without a constraint
        assert found.cut < 0.7  # 0.75 at random


@pytest.mark.parametrize("method", [*EDGE_METHODS, "random", "hash"])
def test_unequal_machines_get_their_shares(lopsided: Graph, method):
    weights = (4, 2, 1, 1)
    chosen = PartitionSettings(num_parts=4, method=method, part_weights=weights, balance="nodes")
    found = assign_nodes(lopsided, chosen)
    counts = np.bincount(found.owners[NODE], minlength=4)
    assert counts.sum() == 4000
    slack = 1.15 if method == "hash" else 1.035
    assert (counts <= slack * 4000 * np.array(weights) / 8 + 1).all()
    if method in EDGE_METHODS:
        assert found.cut < 0.4
    if method == "random":
        assert abs(counts - [2000, 1000, 500, 500]).max() <= 1


def test_node_types_and_classes_from_files_and_arrays(tmp_path, lopsided: Graph, typed_graph: Graph):
    np.save(tmp_path / "kind.npy", lopsided.nodes[NODE].features["kind"])
    (tmp_path / "kind.txt").write_text("".join(f"{k}\n" for k in lopsided.nodes[NODE].features["kind"]))

    def parts(*names: str, **classes) -> list[int]:
        chosen = PartitionSettings(num_parts=4, method="ldg", balance_ntypes=names)
        return assign_nodes(lopsided, chosen, classes=classes).owners[NODE].tolist()

    wanted = parts("node=kind")
    for suffix in (".npy", ".txt"):
        path = tmp_path / f"kind{suffix}"
        assert parts(f"node={path}") == wanted == parts(node=path)
    assert parts(node=lopsided.nodes[NODE].features["kind"]) == wanted == parts(node="kind")
    for num_parts in (2, 5):
        chosen = PartitionSettings(num_parts=num_parts, method="metis", balance_ntypes=tuple(typed_graph.nodes))
        owners = assign_owners(typed_graph, chosen)
        for owner in owners.values():
            counts = np.bincount(owner, minlength=num_parts)
            # Single moves may leave one node too many, where every move would break another constraint.
            assert counts.max() <= np.ceil(1.03 * len(owner) / num_parts) + 1


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(2, 6), st.sampled_from([*EDGE_METHODS, "random"]))
def test_few_nodes_and_many_constraints(seed, num_nodes, num_parts, method):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, num_nodes, (2, rng.integers(0, 80)))
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes), "none": NodeTable(num_nodes=0)},
        edges={EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1])},
        splits={NODE: {"train": np.flatnonzero(rng.random(num_nodes) < 0.5)}},
    ).check()
    chosen = PartitionSettings(
        num_parts=num_parts, method=method, balance_ntypes=("none",), balance_edges=True, balance_splits=True
    )
    found = assign_nodes(graph, chosen, classes={NODE: rng.integers(0, 3, num_nodes)})
    owner = found.owners[NODE]
    assert owner.dtype == np.int32 and len(owner) == num_nodes and owner.min() >= 0 and owner.max() < num_parts
    again = assign_nodes(graph, chosen, classes={NODE: rng.integers(0, 1, num_nodes)})
    assert np.isfinite(list(again.largest.values())).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"balance_ntypes": ("user",)},
            UnknownNameError,
            r"is 'user', neither a node type \(known: \['node'.* nor a feature \(known: .*'far'.* nor a file",
        ),
        (
            {"balance_ntypes": ("node=age",)},
            UnknownNameError,
            r"of 'node' is 'age', neither a feature \(known: .* nor a file",
        ),
        ({"balance_ntypes": ("node=x",)}, SchemaError, r"node.x is float64\[4000, 4\]; it must be one integer"),
        (
            {"balance_ntypes": ("node=far",)},
            SchemaError,
            "node.far has 4000 distinct values; at most 2 classes can be balanced",
        ),
    ],
)
def test_impossible_balance_is_refused(lopsided: Graph, monkeypatch, rng, options, error, message):
    monkeypatch.setattr("hopstream.assign.balance.MAX_CLASSES", 2)
    features = {"x": rng.random((4000, 4)), "far": np.arange(4000)}
    graph = Graph(nodes={NODE: NodeTable(num_nodes=4000, features=features)})
    with pytest.raises(error, match=message):
        assign_nodes(graph, PartitionSettings(num_parts=2, method="random", **options))


def test_methods_without_balancing_refuse_balance_options(lopsided: Graph):
    for method in ("hash", "file"):
        with pytest.raises(SettingsError, match=f"method '{method}' .*; choose another method"):
            PartitionSettings(num_parts=2, method=method, balance_edges=True)
    with pytest.raises(SettingsError, match="part_weights are given, but method 'file'"):
        PartitionSettings(num_parts=2, method="file", part_weights=(1, 2))
    with pytest.raises(SettingsError, match="part_weights is 2 numbers; it must be one for each of 3 parts"):
        PartitionSettings(num_parts=3, part_weights=(1, 2))
    with pytest.raises(SettingsError, match="method 'hash'"):
        assign_nodes(lopsided, PartitionSettings(num_parts=2, method="hash"), classes={NODE: "kind"})


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 9)), min_size=1, max_size=8), st.floats(0, 1))
def test_shares_follow_weights_until_parts_are_full(parts: list[tuple[int, int]], fraction: float):
    room, weights = np.array(parts, np.float64).T
    shares = even_shares(room, fraction * room.sum(), weights)
    assert shares.sum() == pytest.approx(fraction * room.sum(), abs=1e-6)
    assert (shares <= room + 1e-9).all() and (shares >= -1e-9).all()
    levels = (shares / weights)[shares < room - 1e-6]
    assert not len(levels) or levels.min() == pytest.approx((shares / weights).max(), abs=1e-6)
