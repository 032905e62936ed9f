"""Checks that a choice of features is understood, and a wrong one refused."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.errors import SettingsError, UnknownNameError
from hopstream.load.batch import choose_columns
from tests.conftest import make_typed_graph

SCHEMA = make_typed_graph(np.random.default_rng(0)).schema
WRITES = ("author", "writes", "paper")


def test_none_selects_all_columns():
    columns = choose_columns(SCHEMA, None, None)
    assert columns.nodes == {"paper": ("feat", "year", "title", "tags"), "author": ("feat",), "institute": ()}
    assert columns.edges[WRITES] == ("weight",)
    assert columns.has_edge_features


def test_names_select_columns_of_every_type_with_that_name():
    columns = choose_columns(SCHEMA, ["feat", "year"], [])
    assert columns.nodes == {"paper": ("feat", "year"), "author": ("feat",), "institute": ()}
    assert not columns.has_edge_features


@pytest.mark.parametrize("edge_type", [WRITES, "author__writes__paper"])
def test_a_mapping_leaves_other_types_without_features(edge_type):
    columns = choose_columns(SCHEMA, {"paper": ("title",)}, {edge_type: ["weight"]})
    assert columns.nodes == {"paper": ("title",), "author": (), "institute": ()}
    assert columns.edges[WRITES] == ("weight",)
    assert columns.edges["paper", "cites", "paper"] == ()


@pytest.mark.parametrize(
    ("nodes", "edges", "error", "message"),
    [
        ("feat", None, SettingsError, r"the name 'feat'; give a list of names: \['feat'\]"),
        (["feet"], None, UnknownNameError, "feature 'feet' does not exist; known: .*'feat'"),
        ({"papers": ["feat"]}, None, UnknownNameError, "unknown type 'papers'"),
        ({"paper": ["weight"]}, None, UnknownNameError, "feature 'weight' does not exist"),
        ({"paper": "feat"}, None, SettingsError, "give a list"),
        (["feat", "feat"], None, SettingsError, "twice"),
        (None, ["feat"], UnknownNameError, "edge_features: feature 'feat' does not exist"),
        (None, {"writes": ["weight"]}, UnknownNameError, "unknown edge type 'writes'"),
        (None, {WRITES: ["weight"], "author__writes__paper": ["weight"]}, SettingsError, "twice"),
    ],
)
def test_wrong_choices_are_refused(nodes, edges, error, message):
    with pytest.raises(error, match=message):
        choose_columns(SCHEMA, nodes, edges)
