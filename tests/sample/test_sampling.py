"""Checks that every option of sampling reaches the plan, and that impossible ones are refused by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from torch_geometric.sampler.base import SubgraphType

from hopstream.errors import SettingsError, UnknownNameError
from hopstream.sample.sampling import Sampling, find_reverse_types
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import EDGE, FeatureSchema, GraphSchema
from hopstream.store.contract import LaborSeeds

NUMBER = FeatureSchema(dtype="int64")
RATES, RATED_BY = ("user", "rates", "film"), ("film", "rev_rates", "user")
KNOWS, MADE_BY = ("user", "knows", "user"), ("film", "made_by", "studio")
SCHEMA = GraphSchema(
    nodes={"user": {"time": NUMBER}, "film": {}, "studio": {}},
    edges={RATES: {"stars": NUMBER}, RATED_BY: {"time": NUMBER}, KNOWS: {}, MADE_BY: {}},
)
FILMS = ("film",)


@dataclass
class Written:
    """The facts of a store that ``Sampling`` reads."""

    schema: GraphSchema = SCHEMA
    time_attr: str | None = "time"
    weight_attr: str | None = "stars"
    has_neighbor_keys: bool = True


def sampling(**options) -> Sampling:
    return Sampling.of(Written(), SamplingSettings(**options))


def strategies(num_neighbors=(2,), seed_types=FILMS, **options):
    plan = sampling(**options).plan(list(num_neighbors), seed_types, wants_edge_ids=False)
    return {op.edge_type: op.strategy for op in plan.ops}


def test_default_is_a_uniform_draw_along_incoming_edges():
    plan = sampling().plan([3, 2], FILMS, wants_edge_ids=True)
    assert plan.settings == SamplingSettings()
    assert (plan.reverse_types, plan.wants_edge_ids) == ({}, True)
    assert {(op.strategy, op.direction) for op in plan.ops} == {("uniform", "in")}
    assert sampling().labor_seeds(0, 0, 0) is None


def test_time_forces_trees():
    settings = SamplingSettings(time_attr="time", time_inclusive=False)
    assert Sampling.of(Written(), settings).plan([3], FILMS, wants_edge_ids=False).settings == settings
    assert (settings.is_disjoint, settings.is_temporal) == (True, True)
    assert (SamplingSettings(disjoint=True).is_disjoint, SamplingSettings(disjoint=True).is_temporal) == (True, False)


def test_last_applies_to_edge_types_with_times():
    """``rates`` and ``knows`` have the times of their users, ``rev_rates`` its own, ``made_by`` none."""
    every = ("film", "user", "studio")
    assert strategies(seed_types=every, time_attr="time", temporal_strategy="last") == {
        RATES: "last", RATED_BY: "last", KNOWS: "last", MADE_BY: "uniform",
    }  # fmt: skip
    assert set(strategies(seed_types=every, time_attr="time").values()) == {"uniform"}


def test_time_of_the_other_end_depends_on_the_direction():
    given = {"time_attr": "time", "temporal_strategy": "last", "direction": "out"}
    assert strategies(seed_types=("film", "user"), **given) == {
        RATES: "uniform", RATED_BY: "last", KNOWS: "last", MADE_BY: "uniform",
    }  # fmt: skip


@pytest.mark.parametrize("drawing", [None, "weighted", "top_k"])
def test_weights_apply_to_edge_types_with_weights(drawing):
    found = strategies([2, 2], weight_attr="stars", sampling=drawing)
    assert found == {RATES: drawing or "weighted", RATED_BY: "uniform", KNOWS: "uniform"}


def test_labor_is_for_all_edge_types():
    assert set(strategies([2, 2], sampling="labor").values()) == {"labor"}


def test_variates_of_labor_move_from_batch_to_batch():
    alone, moving = sampling(sampling="labor"), sampling(sampling="labor", batch_dependency=4)
    seeds = [moving.labor_seeds(7, 0, index) for index in range(9)]
    assert [found.share for found in seeds] == [0, 0.25, 0.5, 0.75, 0, 0.25, 0.5, 0.75, 0]
    assert {found.first for found in seeds[:4]} == {seeds[0].first}
    assert seeds[0].second == seeds[4].first != seeds[0].first
    assert seeds[4].second == seeds[8].first
    assert all(alone.labor_seeds(7, 0, index).share == 0 for index in range(5))
    every = {alone.labor_seeds(s, e, i).first for s in range(3) for e in range(3) for i in range(3)}
    assert len(every) == 27
    assert isinstance(seeds[0], LaborSeeds)


def test_reverses_are_found_by_name():
    assert find_reverse_types(SCHEMA, None) == {RATES: RATED_BY, RATED_BY: RATES, KNOWS: KNOWS}
    both = GraphSchema(nodes={"user": {}}, edges={KNOWS: {}, ("user", "rev_knows", "user"): {}})
    assert find_reverse_types(both, None)[KNOWS] == ("user", "rev_knows", "user")
    assert find_reverse_types(GraphSchema(nodes={"node": {}}, edges={EDGE: {}}), {}) == {EDGE: EDGE}


def test_reverse_types_apply_in_both_directions():
    made = ("studio", "made", "film")
    schema = GraphSchema(nodes=SCHEMA.nodes, edges={**SCHEMA.edges, made: {}})
    for given in ({MADE_BY: made}, {made: MADE_BY, MADE_BY: made}, {"film__made_by__studio": "studio__made__film"}):
        found = find_reverse_types(schema, given)
        assert (found[MADE_BY], found[made], found[RATES]) == (made, MADE_BY, RATED_BY)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({MADE_BY: RATES}, SettingsError, "pairs .* which does not lead back"),
        ({RATES: RATED_BY, RATED_BY: KNOWS}, SettingsError, "gives .*rev_rates.* two reverses"),
        ({MADE_BY: ("studio", "made", "film")}, UnknownNameError, "unknown edge type"),
        ({"made_by": MADE_BY}, UnknownNameError, "unknown edge type 'made_by'"),
        ({MADE_BY: None}, UnknownNameError, "unknown edge type None"),
        ([MADE_BY], SettingsError, "give edge type to reverse edge type"),
    ],
)
def test_invalid_reverse_types_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        sampling(subgraph_type="bidirectional", reverse_types=given)


def test_a_bidirectional_plan_knows_the_reverses():
    plan = sampling(subgraph_type="bidirectional").plan([1], FILMS, wants_edge_ids=False)
    assert plan.reverse_types[RATES] == RATED_BY
    with pytest.raises(
        SettingsError, match=r"none of the followed edge types \(film__made_by__studio\) has a known rev"
    ):
        sampling(subgraph_type="bidirectional").plan([1], ("studio",), wants_edge_ids=False)
    assert SamplingSettings(subgraph_type=SubgraphType.induced).subgraph_type == "induced"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replace": 1}, "^replace is 1; it must be True or False"),
        ({"disjoint": "yes"}, "^disjoint is 'yes'; it must be True or False"),
        ({"time_inclusive": None}, "^time_inclusive is None"),
        ({"layer_dependency": 2}, "^layer_dependency is 2"),
        ({"batch_dependency": 0}, "^batch_dependency is 0; it must be an integer, 1 to"),
        ({"direction": "up"}, "^direction is 'up'; it must be one of in, out"),
        ({"temporal_strategy": "first"}, "^temporal_strategy is 'first'; it must be one of uniform, last"),
        ({"sampling": "best"}, "^sampling is 'best'; it must be one of uniform, weighted, top_k, labor"),
        ({"sampling": ["labor"]}, "^sampling is .*; it must be one of"),
        ({"subgraph_type": "all"}, "^subgraph_type is 'all'; it must be one of directional, bidirectional, induced"),
        ({"time_attr": 3}, "^time_attr is 3; it must be the name of a feature"),
        ({"weight_attr": ["w"]}, "^weight_attr is .*; it must be the name of a feature"),
        ({"temporal_strategy": "last"}, "^temporal_strategy='last' needs time_attr="),
        ({"time_inclusive": False}, "^time_inclusive=False needs time_attr="),
        ({"sampling": "weighted"}, "^sampling='weighted' needs weight_attr="),
        ({"sampling": "top_k"}, "^sampling='top_k' needs weight_attr="),
        ({"sampling": "uniform", "weight_attr": "stars"}, "^weight_attr='stars' has no effect with sampling='uniform'"),
        ({"sampling": "labor", "weight_attr": "stars"}, "^weight_attr='stars' has no effect with sampling='labor'"),
        (
            {"time_attr": "time", "temporal_strategy": "last", "weight_attr": "stars"},
            "and weight_attr='stars' contradict",
        ),
        ({"time_attr": "time", "temporal_strategy": "last", "sampling": "labor"}, "and sampling='labor' contradict"),
        ({"time_attr": "time", "temporal_strategy": "last", "replace": True}, "takes each neighbour once; leave repl"),
        ({"weight_attr": "stars", "sampling": "top_k", "replace": True}, "^sampling='top_k' takes each neighbour once"),
        ({"sampling": "labor", "replace": True}, "^sampling='labor' takes each neighbour once"),
        ({"layer_dependency": True}, "^layer_dependency is an option of sampling='labor'"),
        ({"batch_dependency": 2, "weight_attr": "stars"}, "^batch_dependency is an option of sampling='labor'"),
    ],
)
def test_invalid_options_are_refused_by_name(options, message):
    with pytest.raises(SettingsError, match=message):
        SamplingSettings(**options)


@pytest.mark.parametrize(
    ("written", "options", "error", "message"),
    [
        (
            Written(time_attr=None), {"time_attr": "time"}, SettingsError,
            "^time_attr is 'time'; the dataset was written without time_attr; write the parts again with time_attr='ti",
        ),
        (
            Written(), {"time_attr": "stars"}, SettingsError,
            "^time_attr is 'stars'; the dataset was written with time_attr='time'; write the parts again with time_att",
        ),
        (
            Written(), {"time_attr": "year"}, UnknownNameError,
            "no node type and no edge type has such a feature; the dataset was written with time_attr='time'; known: ",
        ),
        (
            Written(weight_attr=None), {"weight_attr": "stars"}, SettingsError,
            "the dataset was written without weight_attr; write the parts again with weight_attr='stars'",
        ),
        (
            Written(weight_attr=None), {"weight_attr": "star"}, UnknownNameError,
            r"no edge type has such a feature; known: \['stars'.*; did you mean 'stars'",
        ),
        (
            Written(has_neighbor_keys=False), {"sampling": "labor"}, SettingsError,
            "needs the keys of neighbours, which .*; write the parts again with neighbor_keys=True",
        ),
    ],
)  # fmt: skip
def test_options_unsupported_by_the_dataset_are_refused_with_a_remedy(written, options, error, message):
    with pytest.raises(error, match=message):
        Sampling.of(written, SamplingSettings(**options))


def test_options_without_effect_on_followed_types_are_refused():
    with pytest.raises(SettingsError, match=r"none of the followed edge types \(film__made_by__studio\) and none"):
        sampling(time_attr="time").plan([1], ("studio",), wants_edge_ids=False)
    with pytest.raises(SettingsError, match=r"weight_attr is 'stars'; none of the followed edge types \(.*\) has this"):
        sampling(weight_attr="stars").plan([1], ("user",), wants_edge_ids=False)


def test_facts_name_every_option_but_the_direction():
    assert {*sampling().facts(), "direction"} == set(SamplingSettings.field_names())
    changes = [
        {"replace": True}, {"disjoint": True}, {"time_attr": "time"}, {"weight_attr": "stars"}, {"sampling": "labor"},
        {"time_attr": "time", "temporal_strategy": "last"}, {"time_attr": "time", "time_inclusive": False},
        {"sampling": "labor", "layer_dependency": True}, {"sampling": "labor", "batch_dependency": 2},
        {"subgraph_type": "induced"}, {"subgraph_type": "bidirectional"},
        {"subgraph_type": "bidirectional", "reverse_types": {RATES: ("film", "rev_rates", "user"), RATED_BY: RATES}},
    ]  # fmt: skip
    found = [sampling(**change).facts() for change in ({}, *changes)]
    assert all(one != other for number, one in enumerate(found[:-1]) for other in found[:number])
    assert found[-1] == found[-2]
