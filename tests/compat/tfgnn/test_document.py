"""Checks that TF-GNN's page on data preparation runs with our import, and arrays for tensors.

The first tests follow its examples in our words. The last ones take the page's own blocks, where the page is there.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import hopstream.compat.tfgnn as tfgnn
from hopstream.errors import FormatError
from hopstream.tfgnn.graph_schema import parse_message
from hopstream.tfgnn.messages import EXAMPLE
from tests.compat.tfgnn.graphs import SCORES, students

PAGES = list((Path(__file__).parents[3].parent / "shared" / "seeds").glob("004_*.txt"))
RAGGED = """
  node_sets { key: "students" value {
    features { key: "scores" value { dtype: DT_INT64 shape { dim { size: -1 } } } } } }
"""


def spec_of(text):
    return tfgnn.create_graph_spec_from_schema_pb(tfgnn.parse_schema(text))


def lists_of(example):
    """The lists of an Example message by name."""
    kinds = {name: feature.WhichOneof("kind") for name, feature in example.features.feature.items()}
    return {name: list(getattr(example.features.feature[name], kind).value) for name, kind in kinds.items()}


def test_random_graphs_are_written_to_a_file_and_read_again(tmp_path):
    tfgnn.write_schema(tfgnn.parse_schema(RAGGED), tmp_path / "schema.pbtxt")
    spec = tfgnn.create_graph_spec_from_schema_pb(tfgnn.read_schema(str(tmp_path / "schema.pbtxt")))
    graphs = [tfgnn.random_graph_tensor(spec, rng_seed=number) for number in range(20)]
    with tfgnn.RecordWriter(str(tmp_path / "graphs.tfrecord")) as writer:
        for graph in graphs:
            writer.write(tfgnn.write_example(graph).SerializeToString())
    read = [tfgnn.parse_single_example(spec, one) for one in tfgnn.read_records(tmp_path / "graphs.tfrecord")]
    assert [g.node_sets["students"]["scores"].tolist() for g in read] == [
        g.node_sets["students"]["scores"].tolist() for g in graphs
    ]
    assert len({str(g.node_sets["students"].sizes) for g in read}) > 1


def test_shards_are_read_one_after_the_other(tmp_path):
    for shard in range(2):
        with tfgnn.RecordWriter(tmp_path / f"x-{shard:05}-of-00002", is_compressed=bool(shard)) as writer:
            writer.write(bytes([shard]))
    assert list(tfgnn.read_records(str(tmp_path / "x@2"))) == [b"\0", b"\1"]
    assert list(tfgnn.read_records(tmp_path / "x-*")) == [b"\0", b"\1"]
    with pytest.raises(FormatError, match=r"x-00000-of-00003 is missing"):
        list(tfgnn.read_records(tmp_path / "x@3"))


@pytest.mark.parametrize("scores", [SCORES, tfgnn.ragged_constant(SCORES)], ids=["lists", "ragged"])
def test_the_scores_of_three_students(scores):
    nodes = tfgnn.NodeSet.from_fields(sizes=[3], features={"scores": scores})
    example = tfgnn.write_example(tfgnn.GraphTensor.from_pieces(node_sets={"students": nodes}))
    assert lists_of(example) == {
        "nodes/students.#size": [3], "nodes/students.scores": [10, 15, 23, 89, 64, 53, 25, 29],
        "nodes/students.scores.d1": [3, 1, 4],
    }  # fmt: skip
    read = tfgnn.parse_single_example(spec_of(RAGGED), example.SerializeToString())
    assert read.node_sets["students"]["scores"].tolist() == SCORES


@pytest.mark.parametrize(("dtype", "size", "kind"), [("DT_INT32", 3, "int64_list"), ("DT_STRING", -1, "bytes_list")])
def test_random_values_follow_the_schema(dtype, size, kind):
    text = RAGGED.replace("DT_INT64", dtype).replace("-1", str(size))
    example = tfgnn.write_example(tfgnn.random_graph_tensor(spec_of(text), rng_seed=1))
    feature = example.features.feature["nodes/students.scores"]
    found = getattr(feature, kind).value
    (num_students,) = example.features.feature["nodes/students.#size"].int64_list.value
    assert len(set(found)) > 2 and {type(value) for value in found} == {int if size > 0 else bytes}
    if size > 0:
        assert len(found) == num_students * size and str(example).count("scores") == 1
    else:
        lengths = example.features.feature["nodes/students.scores.d1"].int64_list.value
        assert len(lengths) == num_students and sum(lengths) == len(found)


def test_students_1_and_3_have_labels():
    """The page's first readout: a prediction each for two of four students."""
    adjacency = tfgnn.Adjacency.from_indices(("students", [1, 3]), ("_readout", [0, 1]))
    graph = tfgnn.GraphTensor.from_pieces(
        node_sets={
            "students": tfgnn.NodeSet.from_fields(sizes=[4], features={"h": np.arange(4.0)}),
            "_readout": tfgnn.NodeSet.from_fields(sizes=[2], features={"label": [1, 0]}),
        },
        edge_sets={"_readout/seed": tfgnn.EdgeSet.from_fields(sizes=[2], adjacency=adjacency)},
    )
    assert tfgnn.validate_graph_tensor_for_readout(graph, ["seed"]) is graph
    assert tfgnn.structured_readout(graph, "seed", feature_name="h").tolist() == [1.0, 3.0]
    assert tfgnn.readout_named(graph, "seed", feature_name="h").tolist() == [1.0, 3.0]


def test_users_are_linked_to_users_and_items():
    """The page's second readout: a source and a target per prediction, and targets in two node sets."""

    def edges(source_set, sources, targets):
        adjacency = tfgnn.Adjacency.from_indices((source_set, sources), ("_readout", targets))
        return tfgnn.EdgeSet.from_fields(sizes=[len(sources)], adjacency=adjacency)

    graph = tfgnn.GraphTensor.from_pieces(
        node_sets={
            "users": tfgnn.NodeSet.from_fields(sizes=[4], features={"h": np.arange(4)}),
            "items": tfgnn.NodeSet.from_fields(sizes=[2], features={"h": np.array([10, 11])}),
            "_readout": tfgnn.NodeSet.from_fields(sizes=[3]),
        },
        edge_sets={
            "_readout/source": edges("users", [0, 1, 3], [0, 1, 2]),
            "_readout/target/1": edges("users", [2, 1], [0, 2]),
            "_readout/target/2": edges("items", [1], [1]),
        },
    )
    assert tfgnn.structured_readout(graph, "source", feature_name="h").tolist() == [0, 1, 3]
    assert tfgnn.structured_readout(graph, "target", feature_name="h").tolist() == [2, 11, 1]
    example = tfgnn.write_example(graph)
    spec = graph.spec.relax(num_nodes=True, num_edges=True)
    read = tfgnn.parse_single_example(spec, example)
    assert tfgnn.structured_readout(read, "target", feature_name="h").tolist() == [2, 11, 1]


def blocks_of(page):
    return re.findall(r"^```\n(.*?)^```$", page.read_text(), re.M | re.S)


def changed(block):
    """Convert a block of the page to arrays: other import, no tensors, and no printed output."""
    lines = [line for line in block.splitlines() if not line.startswith(("<tf.", "tf.Tensor"))]
    text = "\n".join(lines).replace("import tensorflow_gnn as", "import hopstream.compat.tfgnn as")
    text = text.replace("tf.train.Example", "tfgnn.Example").replace("tf.io.TFRecordWriter", "tfgnn.RecordWriter")
    return text.replace("tf.constant(", "(").replace("tf.ragged.constant(", "tfgnn.ragged_constant(")


needs_page = pytest.mark.skipif(not PAGES, reason="the page is not part of the project")


@needs_page
def test_the_code_of_the_page_runs(tmp_path, capsys):
    blocks = [block for block in blocks_of(PAGES[0]) if "tfgnn." in block]
    assert len(blocks) == 6
    (tmp_path / "schema.pbtxt").write_text(RAGGED)
    names = {
        "tfgnn": tfgnn, "spec": spec_of(RAGGED), "schema_filename": str(tmp_path / "schema.pbtxt"),
        "record_file": str(tmp_path / "graphs.tfrecord"),
    }  # fmt: skip
    for block in blocks[1:]:
        exec(changed(block), names)
        names["spec"] = spec_of(RAGGED)
    exec(changed(blocks[0]).replace("range(1000)", "range(10)"), names)
    assert len(list(tfgnn.read_records(tmp_path / "graphs.tfrecord"))) == 10
    assert names["gt"].node_sets["students"]["scores"].tolist() == SCORES
    assert "nodes/students.scores.d1" in capsys.readouterr().out


@needs_page
def test_the_encodings_of_the_page_are_read():
    texts = [
        "features {" + block.partition("features {")[2]
        for block in blocks_of(PAGES[0])
        if "\nfeatures {" in f"\n{block}"
    ]
    examples = [parse_message(text, EXAMPLE) for text in texts]
    assert len(examples) == 5
    texts_of = RAGGED.replace("DT_INT64", "DT_STRING")
    specs = [RAGGED, RAGGED, texts_of, RAGGED.replace("-1", "3"), texts_of]
    scores = [
        tfgnn.parse_single_example(spec_of(text), example).node_sets["students"]["scores"].tolist()
        for text, example in zip(specs, examples, strict=True)
    ]
    assert scores[0] == SCORES
    assert scores[1] == scores[2] == [[], [], []]
    assert scores[3] == [[36, 34, 65], [67, 51, 71], [83, 19, 91], [84, 79, 79]]
    assert [len(row) for row in scores[4]] == [6, 5, 2, 3] and scores[4][3] == [b"K", b"Z", b"M"]
    assert tfgnn.write_example(students()) == examples[0]


@needs_page
def test_the_schema_of_the_page_makes_graphs():
    text = next(block for block in blocks_of(PAGES[0]) if "affiliated_with" in block and "cardinality" in block)
    schema = tfgnn.parse_schema(text)
    assert len(tfgnn.validate_schema(schema)) == 2  # labels and years have shape [1]
    spec = tfgnn.create_graph_spec_from_schema_pb(schema)
    graph = tfgnn.random_graph_tensor(spec, rng_seed=2)
    assert graph.node_sets["paper"]["feat"].shape[1:] == (128,)
    tfgnn.check_compatible_with_schema_pb(tfgnn.parse_single_example(spec, tfgnn.write_example(graph)), schema)


@needs_page
def test_every_name_of_the_page_is_available():
    names = set(re.findall(r"\b(?:tfgnn|tensorflow_gnn)\.(\w+)", PAGES[0].read_text())) - {"sampler"}
    assert {"parse_example", "get_io_spec", "GraphTensor"} < names
    assert [name for name in sorted(names) if name not in tfgnn.__all__] == []
