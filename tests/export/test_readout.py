"""Checks that each graph is read out at its seed, has labels only there, and carries one id."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.errors import SchemaError
from hopstream.export.plan import add_seed_readout, declare_seed_readout
from hopstream.export.samples import SAMPLE_ID, SEED_ID, declare_ids, sample_id_of, with_seed_ids
from hopstream.tfgnn.graph_schema import check_schema, parse_schema
from hopstream.tfgnn.graph_tensor import GraphPieces, NodePieces, decode_graph, encode_graphs
from hopstream.tfgnn.readout import check_readout, structured_readout
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.values import FeatureValues

SCHEMA = """
node_sets { key: "paper" value {
  features { key: "labels" value { dtype: DT_INT64 shape { dim { size: 1 } } } }
  features { key: "venue" value { dtype: DT_STRING } }
  features { key: "year" value { dtype: DT_INT64 } } } }
"""


def three_graphs():
    features = {
        "labels": FeatureValues.of(np.arange(6).reshape(6, 1)),
        "venue": FeatureValues.of(["a", "b", "c", "d", "e", "f"]),
        "year": FeatureValues.of(np.arange(2000, 2006)),
    }
    papers = NodePieces(sizes=np.array([2, 1, 3]), features=features)
    return GraphPieces(component_offsets=np.arange(4), node_sets={"paper": papers})


def test_labels_move_to_the_readout_of_the_seed():
    pieces = add_seed_readout(three_graphs(), "paper", ["labels", "venue"])
    check_readout(pieces)
    assert pieces.node_sets["_readout"].features["labels"].tolist() == [[0], [2], [3]]
    assert pieces.node_sets["_readout"].features["venue"].tolist() == [b"a", b"c", b"d"]
    assert list(pieces.node_sets["paper"].features) == ["year"]
    assert structured_readout(pieces, "seed", "year").tolist() == [2000, 2002, 2003]


def test_the_schema_declares_the_added_readout():
    schema = parse_schema(SCHEMA)
    declare_seed_readout(schema, "paper", ["labels", "venue"])
    declare_ids(schema, SEED_ID, SAMPLE_ID)
    check_schema(schema)
    read_out = add_seed_readout(three_graphs(), "paper", ["labels", "venue"])
    pieces = with_seed_ids(read_out, [b"x", b"y", b"x"], sample_ids=[b"x", b"y", b"x:1"])
    read = decode_graph(encode_graphs(pieces)[2], GraphSpec.of_schema(schema))
    assert {name: of.tolist() for name, of in read.context.items()} == {"seed_id": [b"x"], "sample_id": [b"x:1"]}
    assert read.node_sets["_readout"].features["labels"].tolist() == [[3]]
    assert read.edge_sets["_readout/seed"].source.tolist() == [0]
    assert sorted(read.node_sets["paper"].features) == ["year"]


def test_error_names_missing_features_and_node_sets():
    with pytest.raises(SchemaError, match="paper has no feature 'x'; known: labels, venue, year"):
        add_seed_readout(three_graphs(), "paper", ["x"])
    with pytest.raises(SchemaError, match="node set 'author' does not exist; known: paper"):
        add_seed_readout(three_graphs(), "author")
    with pytest.raises(SchemaError, match="paper has no feature 'x'; known: labels, venue, year"):
        declare_seed_readout(parse_schema(SCHEMA), "paper", ["x"])
    with pytest.raises(SchemaError, match="node set 'author' does not exist; known: paper"):
        declare_seed_readout(parse_schema(SCHEMA), "author")


def test_ids_are_one_per_graph():
    assert with_seed_ids(three_graphs(), None).context == {}
    with pytest.raises(SchemaError, match=r"context/seed_id: 2 ids for 3 graphs of 3 components; give"):
        with_seed_ids(three_graphs(), [b"x", b"y"])
    once = with_seed_ids(three_graphs(), [b"x", b"y", b""])
    assert once.context["seed_id"].tolist() == [b"x", b"y", b""]
    with pytest.raises(SchemaError, match="context already has a feature 'seed_id'"):
        with_seed_ids(once, [b"x", b"y", b"z"])
    assert [sample_id_of(b"a", number) for number in range(3)] == [b"a", b"a:1", b"a:2"]
