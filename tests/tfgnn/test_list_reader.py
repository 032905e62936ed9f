"""Checks that many messages are read at once as each one alone, and contradictions are refused."""

from __future__ import annotations

import pytest

from hopstream.errors import FormatError
from hopstream.tfgnn import list_reader
from hopstream.tfgnn.graph_generator import random_graphs
from hopstream.tfgnn.graph_schema import parse_schema
from hopstream.tfgnn.graph_tensor import concatenate_graphs, decode_graph, decode_graphs, encode_graphs
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.tfgnn.random_settings import RandomSettings
from hopstream.tfgnn.spec import GraphSpec
from tests.tfgnn.schemas import EVERYTHING, same_graphs

Example = message_class(EXAMPLE)


def example(**lists):
    message = Example()
    for name, values in lists.items():
        first = values[0] if values else 0
        kind = {bytes: "bytes_list", float: "float_list"}.get(type(first), "int64_list")
        getattr(message.features.feature[name], kind).value.extend(values)
    return message.SerializeToString()


def test_random_graphs_of_every_kind_of_feature():
    schema = parse_schema(EVERYTHING)
    spec = GraphSpec.of_schema(schema)
    graphs = random_graphs(spec, range(20), rng_seed=3, settings=RandomSettings(num_components=2))
    encoded = encode_graphs(graphs, prefix="p/")
    records = [encoded[i] for i in range(20)]
    for num_components in (2, None):
        same_graphs(decode_graphs(records, spec, num_components=num_components, prefix="p/"), graphs)
    alone = [decode_graph(record, spec, num_components=2, prefix="p/") for record in records]
    same_graphs(concatenate_graphs(alone), graphs)


SCHEMA = """
  node_sets { key: "a" value { features { key: "r" value { dtype: DT_INT64 shape { dim { size: -1 } } } }
    features { key: "x" value { dtype: DT_FLOAT } } } }
  edge_sets { key: "e" value { source: "a" target: "a" } }
"""
GOOD = {
    "nodes/a.#size": [2],
    "nodes/a.x": [1.0, 2.0],
    "edges/e.#size": [1],
    "edges/e.#source": [1],
    "edges/e.#target": [0],
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes/a.#size": [1, 1]}, r"message 1: nodes/a.#size has 2 components; wanted 1"),
        ({"nodes/a.#size": [-1]}, r"message 1: nodes/a.#size has the number -1, outside 0\.\."),
        ({"nodes/a.#size": [1 << 40]}, r"message 1: nodes/a.#size has the number 1099511627776, outside 0\.\."),
        ({"nodes/a.#size": [2.0]}, r"nodes/a.#size is a list of int64 in message 0 and of float32 in message 1"),
        ({"nodes/a.x": [1.0]}, r"message 1: nodes/a.x has 1 values; 2 items of shape \[\] have 2"),
        ({"nodes/a.r": [1]}, r"message 1: nodes/a.r.d1 has lengths of 0 rows; there are 2"),
        ({"nodes/a.r": [1], "nodes/a.r.d1": [2, -1]}, r"message 1: nodes/a.r.d1 has the number -1, outside 0"),
        ({"nodes/a.r": [1], "nodes/a.r.d1": [1 << 50, 0]}, r"nodes/a.r.d1 has the number 1125899906842624, outside 0"),
        ({"nodes/a.r": [1], "nodes/a.r.d1": [1, 1]}, r"message 1: nodes/a.r has 1 values; 2 items"),
        ({"edges/e.#source": [2]}, r"message 1: edges/e.#source has index 2; a has 2 nodes"),
        ({"edges/e.#target": []}, r"message 1: edges/e.#target has 0 indices; there are 1 edges"),
    ],
)
def test_contradictions_name_message_and_feature(changed, message):
    spec = GraphSpec.of_schema(parse_schema(SCHEMA))
    assert decode_graphs([example(**GOOD)] * 2, spec).num_graphs == 2
    with pytest.raises(FormatError, match=message):
        decode_graphs([example(**GOOD), example(**{**GOOD, **changed})], spec)
    with pytest.raises(FormatError):
        decode_graph(example(**{**GOOD, **changed}), spec)


def test_zero_messages_give_zero_graphs():
    assert decode_graphs([], GraphSpec.of_schema(parse_schema(SCHEMA))).num_graphs == 0


RAGGED = """
  node_sets { key: "a" value { features { key: "r" value { dtype: DT_INT64 shape { dim { size: -1 } } } }
    features { key: "s" value { dtype: DT_INT64 shape { dim { size: -1 } dim { size: -1 } } } } } }
  node_sets { key: "b" value { } }
"""


def test_rows_without_bytes_take_little_memory():
    spec = GraphSpec.of_schema(parse_schema(RAGGED))
    small, bomb = example(**{"nodes/a.#size": [3]}), example(**{"nodes/a.#size": [1 << 24]})
    inner = example(**{"nodes/a.#size": [1], "nodes/a.s.d1": [1 << 24]})
    assert decode_graphs([small], spec).node_sets["a"].features["r"].tolist() == [[], [], []]
    for bad, name in ((bomb, "r.d1"), (inner, "s.d2")):
        with pytest.raises(FormatError, match=rf"message 2: nodes/a.{name} is left out; a message with more"):
            decode_graphs([small, small, bad, small], spec)
        with pytest.raises(FormatError, match=rf"^nodes/a.{name} is left out; a message with more"):
            decode_graph(bad, spec)
    both = example(**{"nodes/a.#size": [40_000]})  # two features of 40,000 rows each
    with pytest.raises(FormatError, match=r"message 0: nodes/a.s.d1 is left out"):
        decode_graphs([both], spec)


def test_omitted_rows_may_be_as_many_as_present_values():
    size = (1 << 16) + 1
    lists = {"nodes/a.#size": [size], "nodes/a.r": [1], "nodes/a.r.d1": [1] + [0] * (size - 1)}
    spec = GraphSpec.of_schema(parse_schema(RAGGED))
    read = decode_graphs([example(**lists)], spec).node_sets["a"].features["s"]
    assert read.num_items == size and len(read.flat) == 0


def test_omitted_rows_of_a_batch_are_bounded(monkeypatch):
    spec = GraphSpec.of_schema(parse_schema(RAGGED))
    message = example(**{"nodes/a.#size": [10], "nodes/b.#size": [100]})
    monkeypatch.setattr(list_reader, "MAX_BATCH_LEFT_OUT", 60)
    assert decode_graphs([message] * 3, spec).num_graphs == 3
    with pytest.raises(FormatError, match=r"message 3: nodes/a.s.d1 is left out by too many messages; read fewer"):
        decode_graphs([message] * 4, spec)
    monkeypatch.setattr(list_reader, "MAX_BATCH_NODES", 200)
    with pytest.raises(FormatError, match=r"message 2: nodes/b.#size makes more than 200 nodes of a batch"):
        decode_graphs([message] * 3, spec)
