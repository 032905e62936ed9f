"""Checks that graph tensors are written and read as TF-GNN writes and reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hopstream.errors import FormatError, SchemaError
from hopstream.tfgnn.graph_schema import parse_schema
from hopstream.tfgnn.graph_tensor import (
    EdgePieces,
    GraphPieces,
    NodePieces,
    concatenate_graphs,
    decode_graph,
    encode_graphs,
)
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.values import FeatureValues

Example = message_class(EXAMPLE)
STUDENTS = """
  node_sets { key: "students" value { features { key: "scores" value {
    shape { dim { size: -1 } } dtype: DT_INT64 } } } }
"""


def spec_of(text):
    return GraphSpec.of_schema(parse_schema(text))


def example(**lists):
    message = Example()
    for name, values in lists.items():
        kind = "bytes_list" if values and isinstance(values[0], bytes) else "int64_list"
        getattr(message.features.feature[name], kind).value.extend(values)
    return message.SerializeToString()


def test_empty_features_and_sets_are_left_out_or_empty():
    spec = spec_of(STUDENTS.replace("DT_INT64", "DT_STRING"))
    size, scores = "nodes/students.#size", "nodes/students.scores"
    for data in (example(**{size: [3]}), example(**{size: [3], scores: [], f"{scores}.d1": []})):
        assert decode_graph(data, spec).node_sets["students"].features["scores"].tolist() == [[], [], []]
    for data in (b"", example(**{size: [0]})):
        nodes = decode_graph(data, spec).node_sets["students"]
        assert nodes.features["scores"].tolist() == [] and nodes.sizes.tolist() == [0]


dims = st.lists(st.integers(0, 3) | st.none(), max_size=5)


def nested(draw, shape):
    if not shape:
        return draw(st.integers(0, 9))
    size = draw(st.integers(0, 2)) if shape[0] is None else shape[0]
    return [nested(draw, shape[1:]) for _ in range(size)]


@settings(deadline=None, max_examples=30)
@given(shape=dims, data=st.data())
def test_values_of_any_shape_survive_a_round_trip(shape, data):
    """Several graphs of one or two components, with node, edge and context features of one shape."""
    text = "".join(f"dim {{ size: {-1 if size is None else size} }}" for size in shape)
    feature = f'features {{ key: "f" value {{ dtype: DT_INT32 shape {{ {text} }} }} }}'
    spec = spec_of(
        f'context {{ {feature} }} node_sets {{ key: "n" value {{ {feature} }} }} '
        f'edge_sets {{ key: "e" value {{ source: "n" target: "n" {feature} }} }}'
    )
    graphs = []
    for _ in range(data.draw(st.integers(1, 3))):
        num_components = data.draw(st.integers(1, 2))
        sizes = np.array([data.draw(st.integers(1, 2)) for _ in range(num_components)], np.int64)
        num_items = int(sizes.sum())

        def values(number):
            rows = [nested(data.draw, shape) for _ in range(number)]
            given_values = FeatureValues.of(rows)
            return (rows, given_values.matching(spec.context["f"], "f")) if _is_deep(rows, shape) else None

        made = [values(num_components), values(num_items), values(num_items)]
        assume(None not in made)
        ends = np.array([data.draw(st.integers(0, num_items - 1)) for _ in range(num_items)], np.int64)
        graphs.append((made, sizes, ends, num_components))
    pieces = [
        GraphPieces(
            component_offsets=np.array([0, num_components]),
            context={"f": made[0][1]},
            node_sets={"n": NodePieces(sizes=sizes, features={"f": made[1][1]})},
            edge_sets={
                "e": EdgePieces(
                    sizes=sizes,
                    source=ends,
                    target=ends[::-1].copy(),
                    source_set="n",
                    target_set="n",
                    features={"f": made[2][1]},
                )
            },
        )
        for made, sizes, ends, num_components in graphs
    ]
    encoded = encode_graphs(concatenate_graphs(pieces))
    for number, (made, sizes, ends, num_components) in enumerate(graphs):
        assert encoded[number] == encode_graphs(pieces[number])[0]
        for known in (num_components, None):
            got = decode_graph(encoded[number], spec, num_components=known)
            assert got.context["f"].tolist() == made[0][0]
            assert got.node_sets["n"].features["f"].tolist() == made[1][0]
            assert got.edge_sets["e"].features["f"].tolist() == made[2][0]
            assert got.edge_sets["e"].source.tolist() == ends.tolist()
            assert got.node_sets["n"].sizes.tolist() == sizes.tolist()


def _is_deep(rows, shape):
    """Whether lists are as deep as their shape; levels below an empty list cannot be seen."""
    level = rows
    for _ in shape:
        level = [value for row in level for value in row]
    return bool(level) or not shape


ALL_DTYPES = {
    "DT_BOOL": [True, False], "DT_INT8": [-128, 127], "DT_INT16": [-(2**15), 2**15 - 1],
    "DT_INT32": [-(2**31), 2**31 - 1],
    "DT_INT64": [-(2**63), 2**63 - 1], "DT_UINT8": [0, 255], "DT_UINT16": [0, 2**16 - 1], "DT_UINT32": [0, 2**32 - 1],
    "DT_UINT64": [0, 2**64 - 1], "DT_FLOAT": [-1.5, 3.25], "DT_HALF": [-1.5, 3.25], "DT_DOUBLE": [-1.5, 3.25],
    "DT_BFLOAT16": [-1.5, 3.25], "DT_STRING": [b"", b"\xff\x00"],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ALL_DTYPES))
def test_every_dtype_survives_a_round_trip(name):
    spec = spec_of(f'context {{ features {{ key: "x" value {{ dtype: {name} shape {{ dim {{ size: 2 }} }} }} }} }}')
    field = spec.context["x"]
    given_values = ALL_DTYPES[name]
    values = FeatureValues.of([given_values] if field.is_string else np.array([given_values], field.numpy_dtype))
    pieces = GraphPieces(component_offsets=np.array([0, 1]), context={"x": values})
    got = decode_graph(encode_graphs(pieces)[0], spec).context["x"]
    assert got.tolist() == [given_values]
    assert field.is_string or got.flat.dtype == field.numpy_dtype


def test_any_number_but_zero_is_true():
    spec = spec_of('context { features { key: "x" value { dtype: DT_BOOL shape { dim { size: 4 } } } } }')
    data = example(**{"context/x": [0, 1, 42, -1]})
    assert decode_graph(data, spec).context["x"].tolist() == [[False, True, True, True]]


EDGES = """
  node_sets { key: "a" value { features { key: "f" value { dtype: DT_FLOAT shape { dim { size: 2 } } } } } }
  node_sets { key: "b" value { } }
  edge_sets { key: "e" value { source: "a" target: "b" } }
"""


@pytest.mark.parametrize(
    ("lists", "match"),
    [
        ({"nodes/b.#size": [-1]}, r"^nodes/b.#size has the number -1, outside 0\.\."),
        ({"nodes/a.#size": [1]}, r"nodes/a.f is missing; 1 items of shape \[2\] have 2"),
        ({"nodes/a.#size": [1], "nodes/a.f": [1, 2]}, r"nodes/a.f is a list of int64; float32 is stored as float32"),
        ({"nodes/a.#size": [1], "nodes/a.f": [b"x", b"y"]}, r"nodes/a.f is a list of strings"),
        ({"nodes/b.#size": [b"1"]}, r"nodes/b.#size is a list of strings; wanted int64"),
    ],
)
def test_lists_that_contradict_the_schema_are_named(lists, match):
    with pytest.raises(FormatError, match=match):
        decode_graph(example(**lists), spec_of(EDGES))


def test_the_number_of_components_is_found_in_sizes_or_refused():
    spec = spec_of(EDGES)
    sizes = {"nodes/a.#size": [0, 0], "nodes/b.#size": [1, 2], "edges/e.#size": [0, 0]}
    assert decode_graph(example(**sizes), spec, num_components=None).node_sets["b"].sizes.tolist() == [1, 2]
    with pytest.raises(FormatError, match=r"b.#size and nodes/a.#size are of different numbers of components: 1 and 2"):
        decode_graph(example(**{**sizes, "nodes/b.#size": [1]}), spec, num_components=None)
    with pytest.raises(FormatError, match=r"nodes/a.#size is missing"):
        decode_graph(b"", spec, num_components=None)


def test_pieces_that_contradict_each_other_are_named():
    one = np.array([1])
    nodes = {"a": NodePieces(sizes=np.array([1, 1]))}
    with pytest.raises(SchemaError, match=r"nodes/a.#size has 2 components; the graphs have 1"):
        encode_graphs(GraphPieces(component_offsets=np.array([0, 1]), node_sets=nodes))
    nodes = {"a": NodePieces(sizes=one, features={"f": FeatureValues.of([1, 2])})}
    with pytest.raises(SchemaError, match=r"nodes/a.f has values of 2 items; there are 1"):
        encode_graphs(GraphPieces(component_offsets=np.array([0, 1]), node_sets=nodes))
