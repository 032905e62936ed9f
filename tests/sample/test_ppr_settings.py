"""Tests of settings of personalised PageRank: refusals, and their meaning on a graph."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hopstream.errors import SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.sample.ppr_settings import PPRSettings, plan_ppr
from tests.conftest import make_typed_graph
from tests.load.graphs import local_store

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
WORKS_AT = ("author", "works_at", "institute")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return local_store(make_typed_graph(np.random.default_rng(0)), tmp_path_factory.mktemp("ppr"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0}, "alpha is 0; it must be a number between 0 and 1, ends excluded"),
        ({"alpha": 1.0}, "alpha is 1.0"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"alpha": True}, "alpha is True"),
        ({"alpha": "0.5"}, "alpha is '0.5'"),
        ({"eps": 0.0}, "eps is 0.0; it must be a number above 0"),
        ({"eps": math.inf}, "eps is inf"),
        ({"max_ppr_nodes": 0}, "max_ppr_nodes is 0"),
        ({"max_ppr_nodes": 2.0}, "max_ppr_nodes is 2.0"),
        ({"num_neighbors_per_hop": 0}, "num_neighbors_per_hop is 0; give 1 or above, or -1 for all neighbours"),
        ({"num_neighbors_per_hop": -2}, "num_neighbors_per_hop is -2"),
        ({"max_fetch_iterations": 0}, "max_fetch_iterations is 0"),
        ({"max_rounds": 0}, "max_rounds is 0"),
        ({"max_nodes_touched": 0}, "max_nodes_touched is 0"),
        ({"enable_residual_topup": 1}, "enable_residual_topup is 1; it must be True or False"),
        ({"limit_per_type": None}, "limit_per_type is None"),
        ({"include_sampled_edges": "no"}, "include_sampled_edges is 'no'"),
        ({"direction": "both"}, "direction is 'both'; it must be one of in, out"),
        ({"edge_types": "paper__cites__paper"}, "edge_types is 'paper__cites__paper'; give a list of edge types"),
        ({"edge_types": 3}, "edge_types is 3; give a list"),
        ({"edge_types": []}, "edge_types is empty, so no edge would be followed"),
        ({"typed_channel_ratios": {}}, "typed_channel_ratios is {}; give a dict of edge types to ratios"),
        ({"typed_channel_ratios": [CITES]}, "give a dict of edge types to ratios"),
        ({"typed_channel_ratios": {CITES: 0.5, WRITES: 0.4}}, "typed_channel_ratios add up to 0.9; they must add up"),
        ({"typed_channel_ratios": {CITES: 1.5, WRITES: -0.5}}, r"typed_channel_ratios\[.*\] is -0.5; ratios must be"),
        ({"typed_channel_ratios": {CITES: True}}, "is True; ratios must be numbers above 0"),
        ({"typed_channel_ratios": {"cites": 1.0}}, "channel 'cites' must be a .source, relation, destination. or a"),
        ({"typed_channel_ratios": {(CITES, "writes"): 1.0}}, "must be a .source, relation, destination. or a tuple"),
        ({"typed_channel_ratios": {(): 1.0}}, r"channel \(\) must be"),
        ({"typed_channel_ratios": {(CITES, CITES): 1.0}}, "names an edge type twice"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        PPRSettings(**options)


@pytest.mark.parametrize(
    ("seed_type", "options", "error", "message"),
    [
        ("person", {}, UnknownNameError, "unknown node type 'person'"),
        (
            "paper",
            {"direction": "out"},
            SettingsError,
            "the dataset holds in; write the parts again with direction 'out'",
        ),
        ("paper", {"edge_types": [("paper", "likes", "paper")]}, UnknownNameError, "unknown edge type"),
        ("paper", {"edge_types": [CITES, "paper__cites__paper"]}, SettingsError, "edge_types names .* twice"),
        ("paper", {"typed_channel_ratios": {("a", "b", "c"): 1.0}}, UnknownNameError, r"edge type \('a', 'b', 'c'\)"),
        (
            "paper",
            {"typed_channel_ratios": {CITES: 0.5, WRITES: 0.5}, "edge_types": [CITES]},
            SettingsError,
            r"typed_channel_ratios uses \[\('author', 'writes', 'paper'\)\], which edge_types lacks",
        ),
    ],
    ids=str,
)
def test_settings_unfit_for_the_graph_are_refused(store, seed_type, options, error, message):
    with pytest.raises(error, match=message):
        plan_ppr(store, PPRSettings(**options), seed_type)


def test_edge_types_named_like_batch_edges_are_refused(tmp_path):
    empty = EdgeTable(src_keys=np.zeros(1, np.int64), dst_keys=np.zeros(1, np.int64))
    graph = Graph(nodes={"a": NodeTable(num_nodes=1)}, edges={("a", "ppr", "a"): empty}).check()
    with local_store(graph, tmp_path) as store, pytest.raises(SettingsError, match="rename this relation"):
        plan_ppr(store, PPRSettings(), "a")


def test_edge_types_are_followed_from_their_node_types(store):
    plan = plan_ppr(store, PPRSettings(), "paper")
    assert dict(zip(plan.node_types, plan.followed, strict=True)) == {
        "paper": (CITES, WRITES),
        "author": (),
        "institute": (WORKS_AT,),
    }
    assert plan.found_types == {"paper": ("paper", "author")}
    assert plan_ppr(store, PPRSettings(edge_types=["paper__cites__paper"]), "paper").edge_types == (CITES,)
    channels = PPRSettings(typed_channel_ratios={WRITES: 0.25, (CITES, WRITES): 0.75})
    plan = plan_ppr(store, channels, "paper")
    assert plan.edge_types == (CITES, WRITES)
    assert plan.follows[:, 0].tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize(
    ("ratios", "limit", "targets"),
    [
        ([0.6, 0.4], 200, [120, 80]),
        ([0.5, 0.5], 3, [2, 1]),  # equal remainders: the earlier channel
        ([0.34, 0.66], 4, [1, 3]),
        ([0.29, 0.71], 100, [29, 71]),  # 0.29 * 100 is 28.999999999999996
        ([0.01, 0.99], 2, [0, 2]),
        ([1.0], 7, [7]),
    ],
)
def test_shares_are_by_largest_remainder(store, ratios, limit, targets):
    channels = dict(zip([CITES, WRITES], ratios, strict=False))
    plan = plan_ppr(store, PPRSettings(typed_channel_ratios=channels, max_ppr_nodes=limit), "paper")
    assert plan.targets.tolist() == targets


def test_numbers_of_numpy_are_kept_as_plain_ones():
    given = PPRSettings(alpha=np.float32(0.5), eps=np.float64(1e-3), max_ppr_nodes=np.int64(7), max_rounds=np.array(9))
    plain = PPRSettings(alpha=0.5, eps=1e-3, max_ppr_nodes=7, max_rounds=9)
    assert given == plain
    assert json.dumps(given.facts()) == json.dumps(plain.facts())
