"""Checks that a schema refuses what no dataset could hold, and survives JSON."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopstream.errors import SchemaError, UnknownNameError
from hopstream.schema import EDGE, NODE, NUMERIC_DTYPES, FeatureSchema, GraphSchema, reverse_by_name, type_label

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No deadline, as a busy machine is no failure."""
names = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=20).filter(
    lambda name: name.isprintable() and name not in (".", "..")
)
numeric = st.builds(
    FeatureSchema,
    dtype=st.sampled_from(NUMERIC_DTYPES),
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    is_ragged=st.booleans(),
)
features = st.dictionaries(names, st.one_of(numeric, st.just(FeatureSchema(dtype="string"))), max_size=3)


@st.composite
def schemas(draw):
    nodes = draw(st.dictionaries(names, features, min_size=1, max_size=4))
    end = st.sampled_from(sorted(nodes))
    edges = draw(st.dictionaries(st.tuples(end, names, end), features, max_size=4))
    splits = draw(st.dictionaries(end, st.lists(names, max_size=3, unique=True).map(tuple), max_size=2))
    edge_splits = {edge_type: tuple(draw(st.lists(names, max_size=2, unique=True))) for edge_type in list(edges)[:2]}
    pairs = [(a, b) for a in edges for b in edges if a != b and {a[0], a[2]} == {b[0], b[2]}]
    label_types = {a: (b,) for a, b in draw(st.lists(st.sampled_from(pairs), max_size=2) if pairs else st.just([]))}
    return GraphSchema(nodes=nodes, edges=edges, splits=splits, edge_splits=edge_splits, label_types=label_types)


@patient
@given(schemas())
def test_json_round_trip(schema):
    again = GraphSchema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert list(again.nodes) == list(schema.nodes)
    assert list(again.edges) == list(schema.edges)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "text",
        {},
        {"nodes": {}, "edges": []},
        {"nodes": {"a": {"x": {"dtype": "object", "shape": [], "ragged": False}}}, "edges": []},
        {"nodes": {"a": {"x": {"dtype": "float32"}}}, "edges": []},
        {"nodes": {"a": {"x": {"dtype": "float32", "shape": [-1], "ragged": False}}}, "edges": []},
        {"nodes": {"a": {"x": {"dtype": "float32", "shape": ["2"], "ragged": False}}}, "edges": []},
        {"nodes": {"a": {}}, "edges": [{"type": ["a", "to"], "features": {}}]},
        {"nodes": {"a": {}}, "edges": [{"type": ["a", "to", "b"], "features": {}}]},
        {"nodes": {"a": {}}, "edges": [{"type": ["a", "to", "a"], "features": {}}] * 2},
        {"nodes": {"a": {}}, "edges": [], "splits": {"b": ["train"]}},
        {"nodes": {"a": {}}, "edges": [], "edge_splits": [{"type": ["a", "to", "a"], "names": []}]},
        {"nodes": {"a": {}}, "edges": [], "edge_splits": {"a": ["train"]}},
    ],
)
def test_from_json_refuses(value):
    with pytest.raises(SchemaError):
        GraphSchema.from_json(value)


@pytest.mark.parametrize("name", ["", ".", "..", "tab\there", "nul\x00", "line\n", "x" * 201, "\ud800", 7, None])
def test_bad_names_are_refused_everywhere(name):
    feature = FeatureSchema(dtype="int8")
    with pytest.raises(SchemaError):
        GraphSchema(nodes={name: {}}, edges={})
    with pytest.raises(SchemaError):
        GraphSchema(nodes={"a": {name: feature}}, edges={})
    with pytest.raises(SchemaError):
        GraphSchema(nodes={"a": {}}, edges={("a", name, "a"): {}})
    with pytest.raises(SchemaError):
        GraphSchema(nodes={"a": {}}, edges={}, splits={"a": (name,)})


def test_feature_schema_refuses_shaped_or_ragged_strings_and_unknown_dtypes():
    for bad in ({"dtype": "float"}, {"dtype": "string", "shape": (2,)}, {"dtype": "string", "is_ragged": True}):
        with pytest.raises(SchemaError):
            FeatureSchema(**bad)
    with pytest.raises(SchemaError):
        FeatureSchema(dtype="int8", shape=(True,))


def test_row_bytes_and_text():
    assert FeatureSchema(dtype="float32", shape=(128,)).row_bytes == 512
    assert FeatureSchema(dtype="int64").row_bytes == 8
    assert FeatureSchema(dtype="string").numpy_dtype == np.uint8
    assert str(FeatureSchema(dtype="float32", shape=(128,))) == "float32[rows, 128]"
    assert str(FeatureSchema(dtype="int8", shape=(2,), is_ragged=True)) == "int8[rows, ragged, 2]"
    assert str(FeatureSchema(dtype="string")) == "string"


def test_lookup_errors_list_known_names():
    schema = GraphSchema(nodes={NODE: {"x": FeatureSchema(dtype="int8")}}, edges={EDGE: {}})
    assert schema.feature(NODE, "x").dtype == "int8"
    with pytest.raises(UnknownNameError, match=r"unknown node type 'paper'; known: \['node'\]"):
        schema.feature("paper", "x")
    with pytest.raises(UnknownNameError, match=r"node has no feature 'y'; known: \['x'\]"):
        schema.feature(NODE, "y")
    with pytest.raises(UnknownNameError, match=r"node__to__node has no feature 'w'"):
        schema.feature(EDGE, "w")
    with pytest.raises(KeyError):
        schema.check_edge_type(("a", "b", "c"))
    assert type_label(EDGE) == "node__to__node"


def test_homogeneous_schemas_have_default_names():
    assert GraphSchema(nodes={NODE: {}}, edges={EDGE: {}}).is_homogeneous
    assert GraphSchema(nodes={NODE: {}}, edges={}).is_homogeneous
    assert not GraphSchema(nodes={"paper": {}}, edges={("paper", "cites", "paper"): {}}).is_homogeneous
    assert not GraphSchema(nodes={NODE: {}}, edges={(NODE, "cites", NODE): {}}).is_homogeneous


def test_edge_types_that_are_written_alike_are_refused():
    nodes = {"a": {}, "a__x": {}, "b": {}}
    GraphSchema(nodes=nodes, edges={("a", "x__y", "b"): {}})
    with pytest.raises(SchemaError, match="are both written a__x__y__b"):
        GraphSchema(nodes=nodes, edges={("a", "x__y", "b"): {}, ("a__x", "y", "b"): {}})


RATES, RATED, WILL = ("user", "rates", "movie"), ("movie", "rated_by", "user"), ("user", "will_rate", "movie")
KNOWS = ("user", "knows", "user")


def labelled(label_types: dict) -> GraphSchema:
    return GraphSchema(
        nodes={"user": {}, "movie": {}}, edges={RATES: {}, RATED: {}, WILL: {}, KNOWS: {}}, label_types=label_types
    )


def test_label_types_are_not_message_types():
    schema = labelled({WILL: (RATES, RATED)})
    assert schema.message_types == (RATES, RATED, KNOWS)
    assert schema.holders_of(WILL) == ((RATES, False), (RATED, True))
    assert schema.holders_of(RATES) == ((WILL, False), (RATED, True))
    assert schema.holders_of(RATED) == ((WILL, True), (RATES, True))
    assert schema.holders_of(KNOWS) == ()


def test_within_one_type_order_separates_links_from_reverses():
    back, will, more = ("user", "known_by", "user"), ("user", "will_know", "user"), ("user", "more", "user")
    edges = {t: {} for t in (KNOWS, back, will, more)}
    schema = GraphSchema(nodes={"user": {}}, edges=edges, label_types={will: (KNOWS, back), more: (will,)})
    assert schema.holders_of(KNOWS) == ((will, False), (back, True), (more, False))
    assert schema.holders_of(more) == ((will, False), (KNOWS, False), (back, True))
    assert schema.holders_of(back) == ((will, True), (KNOWS, True), (more, True))


def test_without_label_types_json_has_the_old_form():
    value = labelled({}).to_json()
    assert "label_types" not in value
    assert GraphSchema.from_json(value).label_types == {}
    assert labelled({WILL: (RATES,)}).to_json() != value


@pytest.mark.parametrize("taken_from", [(), [RATES], (RATES, RATES), (WILL,), (KNOWS,), RATES])
def test_invalid_label_types_are_refused(taken_from):
    with pytest.raises((SchemaError, UnknownNameError)):
        labelled({WILL: taken_from})


def test_unknown_label_types_are_refused():
    with pytest.raises(UnknownNameError, match="unknown edge type"):
        labelled({("user", "likes", "movie"): (RATES,)})
    for wrong in (5, [{"type": list(WILL)}], [{"type": list(WILL), "taken_from": 5}], {"a": 1}):
        with pytest.raises(SchemaError, match="not a graph schema"):
            GraphSchema.from_json({**labelled({}).to_json(), "label_types": wrong})


def test_reverses_are_known_by_name():
    rev_rates, rev_knows = ("movie", "rev_rates", "user"), ("user", "rev_knows", "user")
    assert reverse_by_name(RATES, {RATED}) is None
    assert reverse_by_name(RATES, {RATED, rev_rates}) == rev_rates
    assert reverse_by_name(rev_rates, {RATES}) == RATES
    assert reverse_by_name(KNOWS, {KNOWS}) == KNOWS
    assert reverse_by_name(KNOWS, {KNOWS, rev_knows}) == rev_knows


def test_edge_types_are_read_from_words_and_labels():
    schema = GraphSchema(nodes={"user": {}, "movie": {}}, edges={RATES: {}})
    for words in (RATES, list(RATES), "user__rates__movie"):
        assert schema.edge_type_of(words) == schema.find_edge_type(words) == RATES
    for words in ("train", None, 3, ("user", "rates"), (1, 2, 3), [["user"], "rates", "movie"]):
        assert schema.find_edge_type(words) is None
        with pytest.raises(UnknownNameError, match="unknown edge type"):
            schema.edge_type_of(words)
    with pytest.raises(UnknownNameError, match=r"unknown edge type .*hates"):
        schema.find_edge_type(("user", "hates", "movie"))
