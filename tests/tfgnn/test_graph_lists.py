"""Are many messages read at once as each is read alone?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.errors import FormatError
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.example_lists import decode_examples
from hopstream.tfgnn.graph_lists import decode_graphs
from hopstream.tfgnn.graph_schema import parse_schema, read_schema
from hopstream.tfgnn.graph_tensor import concatenate_graphs, decode_graph, encode_graphs
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.tfgnn.random_graphs import random_graphs
from hopstream.tfgnn.random_settings import RandomSettings
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.tfrecord import read_records
from tests.tfgnn.schemas import EVERYTHING, same_graphs

Example = message_class(EXAMPLE)
GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "tfgnn"
USUAL, NUMBERS, REPEATED, UNPACKED, EMPTY = range(5)


def example(**lists):
    message = Example()
    for name, values in lists.items():
        first = values[0] if values else 0
        kind = {bytes: "bytes_list", float: "float_list"}.get(type(first), "int64_list")
        getattr(message.features.feature[name], kind).value.extend(values)
    return message.SerializeToString()


def unpacked(name, values):
    """A list of integers as protobuf 2 would write it: a tag before each number."""
    inner = b"".join(b"\x08" + bytes([value]) for value in values)
    feature = b"\x1a" + bytes([len(inner)]) + inner
    entry = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    return b"\x0a" + bytes([len(features)]) + features


values = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    st.lists(st.integers(0, 127), max_size=40),
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "i": values,
            "f": st.lists(st.floats(width=32, allow_nan=False), max_size=5),
            "s": st.lists(st.binary(max_size=6), max_size=5),
            "longer name": values,
        },
    ),
    max_size=6,
)


@settings(max_examples=80, deadline=None)
@given(messages)
def test_lists_are_those_of_each_message(of):
    records = [example(**lists) for lists in of]
    found = decode_examples(records)
    assert sorted(found) == sorted({name for lists in of for name in lists})
    for name, lists in found.items():
        for m, record in enumerate(records):
            alone = decode_example(record)
            assert bool(lists.is_there[m]) == (name in alone)
            flat = lists.values.tolist()[lists.offsets[m] : lists.offsets[m + 1]] if name != "s" else None
            if flat is not None:
                assert flat == (alone[name].tolist() if name in alone else [])
            else:
                of_message = range(lists.offsets[m], lists.offsets[m + 1])
                bounds = getattr(lists.values, "offsets", None)
                got = [lists.values.values[bounds[i] : bounds[i + 1]].tobytes() for i in of_message]
                assert got == of[m].get("s", [])


def test_messages_that_are_written_otherwise_are_read_too():
    twice = example(a=[1]) + example(a=[2, 3])  # protobuf joins what is concatenated, and the last of a key counts
    records = [example(a=[7, 300]), unpacked(b"a", [1, 2, 3]), twice, b"", example(b=[1.5])]
    lists = decode_examples(records, ["a"])["a"]
    assert np.split(lists.values, lists.offsets[1:-1])[0].tolist() == [7, 300]
    assert np.diff(lists.offsets).tolist() == [2, 3, 2, 0, 0]
    assert lists.values.tolist() == [7, 300, 1, 2, 3, 2, 3]
    assert lists.is_there.tolist() == [True, True, True, False, False]


def test_many_names_are_found():
    records = [example(**{f"n{i}": [i] for i in range(m, 150)}) for m in range(3)]
    found = decode_examples(records)
    assert len(found) == 150
    assert found["n149"].values.tolist() == [149] * 3


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([example(a=[1]), b"\x0a\xff"], "message 1: not a tf.Example"),
        ([example(a=[1]), b"", example(a=[1.0])], "a is a list of int64 in message 0 and of float32 in message 2"),
    ],
)
def test_what_is_no_example_is_refused(records, message):
    with pytest.raises(FormatError, match=message):
        decode_examples(records)


@pytest.mark.parametrize("name", ["dense_types", "latent", "ragged", "readout"])
@pytest.mark.skipif(not GOLDEN.is_dir(), reason="golden files are not here")
def test_golden_files(name):
    spec = GraphSpec.of_schema(read_schema(GOLDEN / f"{name}.schema.pbtxt"))
    records = list(read_records(GOLDEN / f"{name}.tfrecord"))
    for num_components in (1, None):
        try:
            alone = [decode_graph(record, spec, num_components=num_components) for record in records]
        except FormatError:
            with pytest.raises(FormatError):
                decode_graphs(records, spec, num_components=num_components)
            continue
        together = decode_graphs(records, spec, num_components=num_components)
        same_graphs(together, concatenate_graphs(alone))


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
        ({"nodes/a.#size": [1, 1]}, r"message 1: nodes/a.#size has another number of components"),
        ({"nodes/a.#size": [-1]}, r"message 1: nodes/a.#size has a number outside 0\.\."),
        ({"nodes/a.#size": [1 << 40]}, r"message 1: nodes/a.#size has a number outside 0\.\."),
        ({"nodes/a.#size": [2.0]}, r"nodes/a.#size is a list of int64 in message 0 and of float32 in message 1"),
        ({"nodes/a.x": [1.0]}, r"message 1: nodes/a.x has another number of values than items of shape \[\]"),
        ({"nodes/a.r": [1]}, r"message 1: nodes/a.r.d1 has the lengths of another number of rows"),
        ({"nodes/a.r": [1], "nodes/a.r.d1": [2, -1]}, r"message 1: nodes/a.r.d1 has a number outside 0"),
        ({"nodes/a.r": [1], "nodes/a.r.d1": [1, 1]}, r"message 1: nodes/a.r has another number of values"),
        ({"edges/e.#source": [2]}, r"message 1: edges/e.#source has index 2; a has 2 nodes"),
        ({"edges/e.#target": []}, r"message 1: edges/e.#target has another number of indices"),
    ],
)
def test_contradictions_name_message_and_feature(changed, message):
    spec = GraphSpec.of_schema(parse_schema(SCHEMA))
    assert decode_graphs([example(**GOOD)] * 2, spec).num_graphs == 2
    with pytest.raises(FormatError, match=message):
        decode_graphs([example(**GOOD), example(**{**GOOD, **changed})], spec)
    with pytest.raises(FormatError):
        decode_graph(example(**{**GOOD, **changed}), spec)


def test_no_messages_make_no_graphs():
    assert decode_graphs([], GraphSpec.of_schema(parse_schema(SCHEMA))).num_graphs == 0
