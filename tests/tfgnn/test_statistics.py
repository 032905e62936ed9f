"""Checks that statistics agree with their graphs, whatever the blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hopstream.tfgnn import statistics as statistics_module
from hopstream.tfgnn.example import ValueLists, decode_examples, encode_examples
from hopstream.tfgnn.graph_generator import random_graphs
from hopstream.tfgnn.graph_schema import parse_schema
from hopstream.tfgnn.graph_tensor import encode_graphs
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.tfgnn.random_settings import RandomSettings
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.statistics import ExampleStatistics, Numbers, SizeStatistics
from tests.tfgnn.schemas import EVERYTHING

NUM = 50


@pytest.fixture(scope="module")
def spec():
    return GraphSpec.of_schema(parse_schema(EVERYTHING))


@pytest.fixture(scope="module")
def graphs(spec):
    return random_graphs(spec, range(NUM), rng_seed=2, settings=RandomSettings(min_nodes=0))


def statistics_of(records, block, **options):
    statistics = ExampleStatistics(**options)
    for start in range(0, len(records), block):
        of_block = records[start : start + block]
        statistics.add(decode_examples(of_block), of_block)
    return statistics


@pytest.mark.parametrize("block", [7, NUM])
def test_statistics_are_those_of_the_graphs(graphs, spec, block):
    encoded = encode_graphs(graphs)
    records = [encoded[i] for i in range(NUM)]
    statistics = statistics_of(records, block, spec=spec)
    assert statistics.num_examples == NUM and not statistics.unknown and not statistics.never_seen()
    lengths = [len(record) for record in records]
    size = statistics.example_bytes.numbers
    assert (size.least, size.most, size.mean) == (min(lengths), max(lengths), pytest.approx(np.mean(lengths)))
    for kind, sets in (("nodes", graphs.node_sets), ("edges", graphs.edge_sets)):
        for name, pieces in sets.items():
            got = statistics.sets[f"{kind}/{name}"]
            assert (got.numbers.least, got.numbers.most) == (pieces.sizes.min(), pieces.sizes.max())
            assert got.numbers.mean == pytest.approx(pieces.sizes.mean())
            assert sum(got.histogram) == NUM and got.histogram[0] == np.sum(pieces.sizes == 0)
    values = graphs.node_sets["paper"].features["DT_FLOAT"].flat
    got = statistics.features["nodes/paper.DT_FLOAT"]
    assert (got.values.count, got.kind) == (len(values), "float32")
    assert (got.values.least, got.values.most) == (values.min(), values.max())
    assert got.values.mean == pytest.approx(values.astype(float).mean())
    strings = graphs.node_sets["paper"].features["DT_STRING"].tolist()
    text = statistics.features["nodes/paper.DT_STRING"]
    assert (text.kind, text.values.most) == ("strings", max(map(len, strings)))
    rows = statistics.features["nodes/author.ragged.d1"]
    assert rows.values.count == int(graphs.node_sets["author"].sizes.sum())
    assert all(statistics.num_missing(name) == 0 for name in statistics.features)


def example(**lists):
    message = message_class(EXAMPLE)()
    for name, values in lists.items():
        kind = "float_list" if values and isinstance(values[0], float) else "int64_list"
        getattr(message.features.feature[name], kind).value.extend(values)
    return message.SerializeToString()


@pytest.mark.parametrize("block", [2, 10])
def test_missing_values_and_nans_are_counted(block):
    records = [
        example(**{"p/nodes/a.b.#size": [2], "p/nodes/a.b.x": [1.0, math.nan]}),
        example(**{"p/nodes/a.b.#size": [1], "p/context/c": [5]}),
        example(**{"p/nodes/a.b.#size": [0]}),
        example(**{"p/nodes/a.b.#size": [1], "p/nodes/a.b.x": [-math.inf], "p/nodes/late.y": [3]}),
    ]
    schema = 'node_sets { key: "a.b" value { features { key: "z" value { dtype: DT_INT64 } } } }'
    spec = GraphSpec.of_schema(parse_schema(schema))
    statistics = statistics_of(records, block, prefix="p/", spec=spec)
    x = statistics.features["nodes/a.b.x"]
    assert (x.num_examples, statistics.num_missing("nodes/a.b.x")) == (2, 1)
    assert (x.values.num_nan, x.values.num_infinite, x.values.to_json()) == (
        1,
        1,
        {"min": 1.0, "mean": 1.0, "max": 1.0},
    )
    assert statistics.num_missing("context/c") == 3
    assert statistics.never_seen() == ["nodes/a.b.z"]
    assert statistics.unknown == {"p/nodes/a.b.x", "p/context/c", "p/nodes/late.y"}
    assert statistics.sets["nodes/a.b"].numbers.mean == 1.0
    assert Numbers().to_json() == {"min": None, "mean": None, "max": None}


def test_histograms_count_by_powers_of_two():
    sizes = SizeStatistics()
    sizes.add(np.array([0, 1, 2, 3, 4, 7, 8]))
    sizes.add(np.array([0]))
    assert sizes.histogram == [2, 1, 2, 2, 1]


def test_large_integers_without_a_sign_are_counted_as_such():
    schema = 'node_sets { key: "a" value { features { key: "x" value { dtype: DT_UINT64 } } } }'
    records = [example(**{"nodes/a.#size": [2], "nodes/a.x": [-1, 3]})]
    x = statistics_of(records, 1, spec=GraphSpec.of_schema(parse_schema(schema))).features["nodes/a.x"]
    assert (x.kind, x.values.least, x.values.most) == ("uint64", 3, 2**64 - 1)
    assert statistics_of(records, 1).features["nodes/a.x"].values.least == -1


def test_names_of_foreign_files_are_kept_up_to_a_bound(spec, graphs, monkeypatch):
    monkeypatch.setattr(statistics_module, "MAX_NAMES", 5)
    values = ValueLists(np.array([1, 2]), np.arange(3))
    encoded = [encode_examples({f"context/n{number}.{number}": values, "y" * 2000: values}, 2) for number in range(9)]
    records = [of[number] for of in encoded for number in range(2)]
    statistics = statistics_of(records, 4)
    assert sorted(statistics.features) == [f"context/n{number}.{number}" for number in range(5)]
    assert statistics.num_left_out == 2 * 9 + 2 * 4 and statistics.num_examples == 18
    assert statistics.left_out_text().startswith("26 lists are left out: at most 5 names that are not in the schema")
    known = encode_graphs(graphs)[0]
    statistics = statistics_of([*records, known], 4, spec=spec)  # features of the schema are always there
    assert len(statistics.unknown) == 5 and "nodes/paper.DT_FLOAT" in statistics.features
    assert not statistics_of([known], 4, spec=spec).left_out_text()


def test_kinds_without_values_are_those_of_the_schema(spec):
    nothing = RandomSettings(min_nodes=0, max_nodes=0, max_edges=0)
    something = RandomSettings(min_nodes=3, max_edges=30, min_row=1)
    kinds = []
    for settings in (nothing, something):
        encoded = encode_graphs(random_graphs(spec, range(20), settings=settings))
        statistics = statistics_of([encoded[i] for i in range(20)], 20, spec=spec)
        kinds.append({name: of.kind for name, of in statistics.features.items() if not name.startswith("context/")})
    assert {"float32", "uint64", "strings", "int64"} <= set(kinds[0].values())
    assert kinds[0] == {name: kind for name, kind in kinds[1].items() if name in kinds[0]}
