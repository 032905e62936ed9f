"""Checks that an example is shown as it is, whatever its bytes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.tfgnn.graph_generator import random_graphs
from hopstream.tfgnn.graph_schema import parse_schema
from hopstream.tfgnn.graph_tensor import encode_graphs
from hopstream.tfgnn.random_settings import RandomSettings
from hopstream.tfgnn.readable import json_value, plain_values, shown_graph, shown_lists, value_text
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.values import FeatureValues
from tests.tfgnn.schemas import EVERYTHING


def test_a_graph_is_shown_in_its_shapes():
    spec = GraphSpec.of_schema(parse_schema(EVERYTHING))
    graphs = random_graphs(spec, [4], settings=RandomSettings(num_components=2))
    shown = {(one.key, one.name): one for one in shown_graph(encode_graphs(graphs, prefix="p/")[0], spec, "p/")}
    authors = graphs.node_sets["author"]
    one = shown["nodes/author", "deep"]
    assert one.kind == f"int32[{authors.sizes.sum()}, 2, ragged, 3, ragged]"
    assert one.values == authors.features["deep"].tolist()
    assert shown["nodes/author", "#size"].values == authors.sizes.tolist()
    assert shown["edges/cites", "#target"].values == graphs.edge_sets["cites"].target.tolist()
    assert one.section == f"node set author, {authors.sizes.sum()} nodes"
    assert json.loads(json.dumps(json_value(shown["context", "words"].values))) == [
        [word.decode() for word in row] for row in graphs.context["words"].tolist()
    ]


def test_lists_are_shown_as_they_are_stored():
    spec = GraphSpec.of_schema(parse_schema(EVERYTHING))
    shown = shown_lists(encode_graphs(random_graphs(spec, [1]))[0])
    names = [one.name for one in shown]
    assert names == sorted(names) and "nodes/author.deep.d2" in names


def test_floats_have_the_digits_that_they_need():
    for dtype in (np.float32, np.float16, np.float64):
        flat = np.array([0.1, 1 / 3, 1e-30, -2.5, math.inf, math.nan], dtype)
        values = plain_values(FeatureValues(flat, len(flat)))
        assert values[0] == 0.1 and values[3] == -2.5
        assert np.array_equal(np.array(values, dtype), flat, equal_nan=True)


@pytest.mark.parametrize(
    ("value", "as_json", "as_text"),
    [
        (b"t\xc3\xa4", "tä", "'tä'"),
        (b"\xff\n", {"base64": "/wo="}, r"b'\xff\n'"),
        (b"\x1b[31m", "\x1b[31m", r"'\x1b[31m'"),
        (math.nan, "NaN", "nan"),
        (-math.inf, "-Infinity", "-inf"),
        ([[1, 2, 3], [True]], [[1, 2, 3], [True]], "[[1, 2, … 1 more], [True]]"),
        (b"x" * 100, "x" * 100, "'" + "x" * 58 + "…"),
    ],
)
def test_values_are_shown_as_json_and_as_text(value, as_json, as_text):
    assert json_value(value) == as_json
    assert value_text(value, 2) == as_text


def test_strings_keep_their_bytes():
    strings = RaggedArray(np.frombuffer(b"\xffab", np.uint8), np.array([0, 1, 1, 3]), is_string=True)
    assert plain_values(FeatureValues(strings, 3)) == [b"\xff", b"", b"ab"]
