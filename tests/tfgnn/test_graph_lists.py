"""Are many messages read at once as each is read alone?"""

from __future__ import annotations

from pathlib import Path

import pytest

from hopstream.errors import FormatError
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


def example(**lists):
    message = Example()
    for name, values in lists.items():
        first = values[0] if values else 0
        kind = {bytes: "bytes_list", float: "float_list"}.get(type(first), "int64_list")
        getattr(message.features.feature[name], kind).value.extend(values)
    return message.SerializeToString()


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
        ({"nodes/a.x": [1.0]}, r"message 1: nodes/a.x has 1 values; 2 items of shape \[\] have 2"),
        ({"nodes/a.r": [1]}, r"message 1: nodes/a.r.d1 has the lengths of another number of rows"),
        ({"nodes/a.r": [1], "nodes/a.r.d1": [2, -1]}, r"message 1: nodes/a.r.d1 has a number outside 0"),
        ({"nodes/a.r": [1], "nodes/a.r.d1": [1, 1]}, r"message 1: nodes/a.r has 1 values; 2 items"),
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
