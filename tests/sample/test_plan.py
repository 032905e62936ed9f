"""Checks that a plan is what its author meant, and that a wrong one is refused."""

from __future__ import annotations

import pytest

from hopstream.errors import SettingsError, UnknownNameError
from hopstream.sample.plan import SEEDS, SampleOp, SamplePlan, plan_from_num_neighbors
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import EDGE, GraphSchema
from tests.plan_modes import plan_with

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
SCHEMA = GraphSchema(nodes={"author": {}, "paper": {}}, edges={WRITES: {}, CITES: {}})
PLAIN = GraphSchema(nodes={"node": {}}, edges={EDGE: {}})


def test_a_list_gives_one_op_per_hop() -> None:
    plan = plan_from_num_neighbors(PLAIN, [15, -1], ("node",))
    assert [(op.name, op.inputs, op.count) for op in plan.ops] == [
        ("hop1/node__to__node", (SEEDS,), 15),
        ("hop2/node__to__node", ("hop1/node__to__node",), -1),
    ]
    assert plan.num_hops == 2


def test_only_edge_types_that_the_frontier_has_are_followed() -> None:
    """Authors have no incoming edges, so a hop that only reaches authors ends there."""
    plan = plan_from_num_neighbors(SCHEMA, {WRITES: [3, 2], "paper__cites__paper": [0, 2]}, ("paper",))
    assert [op.name for op in plan.ops] == ["hop1/author__writes__paper"]
    assert plan.num_hops == 2
    assert [len(level) for level in plan.levels()] == [1]


def test_out_follows_edges_forwards() -> None:
    plan = plan_from_num_neighbors(SCHEMA, [1, 1], ("author",), SamplingSettings(direction="out"))
    assert [op.name for op in plan.ops] == ["hop1/author__writes__paper", "hop2/paper__cites__paper"]
    assert (plan.ops[0].expanded_type, plan.ops[0].found_type) == ("author", "paper")


def test_default_applies_to_the_remaining_types() -> None:
    plan = plan_from_num_neighbors(SCHEMA, {WRITES: [3], "default": [1]}, ("paper",))
    assert {op.edge_type: op.count for op in plan.ops} == {WRITES: 3, CITES: 1}


@pytest.mark.parametrize(
    "num_neighbors,message",
    [
        ([], "0 hops"),
        ([1] * 65, "65 hops"),
        ([-2], "-1 for all"),
        ([1.5], "give integers"),
        (3, "one number per hop"),
        (None, "one number per hop"),
        ([10, None], "give integers"),
        ([True], "give integers"),
        ([1 << 31], "0 to 2147483647"),
        ("15,10", "one number per hop"),
        ({WRITES: [1], CITES: [1, 2]}, r"\[1, 2\] hops"),
        ({WRITES: [1]}, r"misses edge types \['paper__cites__paper'\]"),
        ({}, "misses edge types"),
    ],
)
def test_wrong_counts_are_refused(num_neighbors: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_from_num_neighbors(SCHEMA, num_neighbors, ("paper",))


@pytest.mark.parametrize("name", ["paper__likes__paper", ("paper", "likes", "paper")])
def test_unknown_types_are_refused(name: object) -> None:
    with pytest.raises(UnknownNameError, match="unknown edge type"):
        plan_from_num_neighbors(SCHEMA, {name: [1]}, ("paper",))
    with pytest.raises(UnknownNameError, match="unknown node type 'person'"):
        plan_from_num_neighbors(SCHEMA, [1], ("person",))


def _op(name: str, *inputs: str, edge_type: tuple[str, str, str] = CITES, count: int = 1) -> SampleOp:
    return SampleOp(name=name, inputs=inputs, edge_type=edge_type, direction="in", count=count)


@pytest.mark.parametrize(
    "ops,message",
    [
        ([_op("a", "b"), _op("b", SEEDS)], "input 'b' is not defined before it"),
        ([_op("a", "a")], "input 'a' is not defined"),
        ([_op("a", SEEDS), _op("a", SEEDS)], "defined twice"),
        ([_op("a", SEEDS, edge_type=WRITES), _op("b", "a")], "expands 'paper'; its input 'a' finds 'author'"),
        ([_op("a", SEEDS, count=-3)], "count is -3"),
        ([_op("a", SEEDS), _op("b", "a"), _op("c", "b")], "3 hops deep; num_hops is 2"),
    ],
)
def test_invalid_op_graphs_are_refused(ops: list[SampleOp], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SamplePlan(seed_types=("paper",), ops=tuple(ops), num_hops=2)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"reverse_types": {WRITES: CITES}}, "paper__cites__paper cannot hold the reverses of author__writes__paper; "),
        ({"reverse_types": {WRITES: WRITES}}, "they lead from 'paper' to 'author'"),
        ({"strategies": {CITES: "nearest"}}, "strategy is 'nearest'; give uniform|weighted|top_k|last|labor"),
        ({"strategies": {CITES: "last"}, "replace": True}, "strategy 'last' never draws with replacement"),
        ({"strategies": {CITES: "top_k"}, "replace": True}, "strategy 'top_k' never draws with replacement"),
        ({"strategies": {CITES: "labor"}, "replace": True}, "strategy 'labor' never draws with replacement"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(options: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_with(SCHEMA, [1], ("paper",), **options)


def test_weights_and_replacement_go_together() -> None:
    plan = plan_with(SCHEMA, [1], ("paper",), strategies={CITES: "weighted"}, replace=True)
    assert [(op.edge_type, op.strategy) for op in plan.ops] == [(WRITES, "uniform"), (CITES, "weighted")]


def test_a_reverse_type_is_declared_once_for_both_directions() -> None:
    plan = plan_with(SCHEMA, [1], ("paper",), reverse_types={WRITES: ("paper", "by", "author")})
    assert plan.reverse_of(WRITES) == ("paper", "by", "author")
    assert plan.reverse_of(("paper", "by", "author")) == WRITES
    assert plan.reverse_of(CITES) == CITES
    assert plan.reverse_of(("author", "wrote", "paper")) is None


def test_a_declared_reverse_between_nodes_of_one_type_is_not_its_own() -> None:
    plan = plan_with(SCHEMA, [1], ("paper",), reverse_types={CITES: ("paper", "cited_by", "paper")})
    assert plan.reverse_of(CITES) == ("paper", "cited_by", "paper")
    assert plan.reverse_of(("paper", "cited_by", "paper")) == CITES
