"""Checks that messages are read by their spec, in batches too, and that wrong ones are named."""

from __future__ import annotations

import numpy as np
import pytest

import hopstream.compat.tfgnn as tfgnn
from hopstream.errors import FormatError, SchemaError
from tests.compat.tfgnn.graphs import as_lists, links_spec, row_of, students

SPEC = links_spec()


@pytest.fixture(scope="module")
def graphs():
    return [tfgnn.random_graph_tensor(SPEC, rng_seed=number) for number in range(5)]


def test_complete_graphs_survive_a_round_trip_alone_and_batched(graphs):
    examples = [tfgnn.write_example(graph).SerializeToString() for graph in graphs]
    batch = tfgnn.parse_example(SPEC, examples)
    for number, graph in enumerate(graphs):
        assert as_lists(tfgnn.parse_single_example(SPEC, examples[number])) == as_lists(graph)
        assert row_of(batch, number) == as_lists(graph)
    merged = batch.merge_batch_to_components()
    tfgnn.validate_graph_tensor_for_readout(merged, ["source", "target", "edge"])
    for key in ("source", "target", "edge"):
        alone = [tfgnn.structured_readout(graph, key, feature_name="h") for graph in graphs]
        assert np.array_equal(tfgnn.structured_readout(merged, key, feature_name="h"), np.concatenate(alone))


def test_messages_are_taken_in_every_form(graphs):
    message = tfgnn.write_example(graphs[0])
    data = message.SerializeToString()
    wanted = as_lists(graphs[0])
    one = np.empty((), object)
    one[()] = data
    for form in (data, bytearray(data), memoryview(data), message, one):
        assert as_lists(tfgnn.parse_single_example(SPEC, form)) == wanted
    many = np.empty(2, object)
    many[:] = [data, data]
    for forms in ([data, data], (message, message), many):
        assert row_of(tfgnn.parse_example(SPEC, forms), 1) == wanted
    for wrong, match in ((["a"], r"a message is str; wanted bytes"), (data, r"use parse_single_example for one")):
        with pytest.raises(SchemaError, match=match):
            tfgnn.parse_example(SPEC, wrong)
    with pytest.raises(SchemaError, match=r"arrays of dtype S cut zeros off, use dtype object"):
        tfgnn.parse_single_example(SPEC, np.array(data))
    assert tfgnn.parse_example(SPEC, []).shape == (0,)


def test_wrong_messages_are_named_with_their_number(graphs):
    message = tfgnn.write_example(graphs[0])
    message.features.feature["nodes/users.#size"].int64_list.value.append(1)
    with pytest.raises(FormatError, match=r"nodes/users.#size has 2 components; wanted 1"):
        tfgnn.parse_single_example(SPEC, message)
    with pytest.raises(FormatError, match=r"message 1: nodes/users.#size has"):
        tfgnn.parse_example(SPEC, [tfgnn.write_example(graphs[0]), message])
    with pytest.raises(FormatError, match=r"not a tf.Example"):
        tfgnn.parse_single_example(SPEC, b"\xff")


def test_prefixes_and_dtypes_of_indices(graphs):
    message = tfgnn.write_example(graphs[0], prefix="g/")
    assert all(name.startswith("g/") for name in message.features.feature)
    wide = links_spec(indices_dtype=np.int64)
    read = tfgnn.parse_single_example(wide, message, prefix="g/")
    assert as_lists(read) == as_lists(graphs[0])
    assert {read.indices_dtype, read.edge_sets["buys"].adjacency.source.dtype} == {np.dtype(np.int64)}
    assert graphs[0].edge_sets["buys"].adjacency.source.dtype == np.int32


def test_where_values_lie_in_a_message():
    found = tfgnn.get_io_spec(SPEC, prefix="g/", validate=False)
    ragged = {"row_splits_dtype": "int32", "validate": False}
    assert found["g/context/label"] == tfgnn.FixedLenFeature(shape=(1, 2), dtype="string")
    assert found["g/nodes/users.#size"] == tfgnn.FixedLenFeature(shape=(1,), dtype="int64", default_value=(0,))
    assert found["g/nodes/users.h"] == tfgnn.RaggedFeature(
        dtype="float32", value_key="g/nodes/users.h", partitions=(tfgnn.UniformRowLength(2),), **ragged
    )
    assert found["g/edges/buys.when"].partitions == (
        tfgnn.RowLengths("g/edges/buys.when.d1"), tfgnn.UniformRowLength(2),
    )  # fmt: skip
    assert found["g/edges/in.w"].dtype == found["g/edges/in.#source"].dtype == "int64"
    names = {f"{n}{tail}" for n in tfgnn.get_io_spec(SPEC) for tail in ("", ".d1", ".d2")}
    written = tfgnn.write_example(tfgnn.random_graph_tensor(SPEC, rng_seed=1)).features.feature
    assert set(written) <= names


def test_equal_lists_are_ragged_only_if_declared():
    even = [[1, 2], [3, 4]]
    spec = students(tfgnn.ragged_constant(even)).spec.relax(num_nodes=True)
    message = tfgnn.write_example(students(tfgnn.ragged_constant(even)))
    assert tfgnn.parse_single_example(spec, message).node_sets["students"]["scores"].tolist() == even
    assert "nodes/students.scores.d1" not in tfgnn.write_example(students(even)).features.feature
