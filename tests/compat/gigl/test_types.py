"""Tests of types, edge types of labels, and facts of features."""

from __future__ import annotations

import pytest
import torch

from hopstream.compat.gigl.src.common.types.graph_data import EdgeType, NodeType, Relation
from hopstream.compat.gigl.types import graph
from hopstream.compat.gigl.types.graph import FeatureInfo, FeatureQuantizationMetadata

RATES = EdgeType(NodeType("user"), Relation("rates"), NodeType("movie"))
POSITIVE = ("user", "rates_gigl_positive", "movie")
NEGATIVE = ("user", "rates_gigl_negative", "movie")


def test_an_edge_type_is_a_tuple_with_names():
    plain = ("user", "rates", "movie")
    assert plain == RATES
    assert hash(plain) == hash(RATES)
    assert (RATES.src_node_type, RATES.relation, RATES.dst_node_type) == plain
    assert {RATES: 1}[plain] == 1
    assert repr(RATES) == "user-rates-movie"
    assert f"{RATES}" == "user-rates-movie"
    assert type(RATES.tuple_repr()) is tuple
    assert RATES.tuple_repr() == plain


def test_default_types_have_gigls_names():
    assert graph.DEFAULT_HOMOGENEOUS_NODE_TYPE == "default_homogeneous_node_type"
    name = graph.DEFAULT_HOMOGENEOUS_NODE_TYPE
    assert (name, "to", name) == graph.DEFAULT_HOMOGENEOUS_EDGE_TYPE


@pytest.mark.parametrize("edge_type", [RATES, tuple(RATES)])
def test_labels_have_edge_types_of_the_class_given(edge_type):
    positive = graph.message_passing_to_positive_label(edge_type)
    negative = graph.message_passing_to_negative_label(edge_type)
    assert (positive, negative) == (POSITIVE, NEGATIVE)
    assert type(positive) is type(negative) is type(edge_type)
    assert [graph.is_label_edge_type(one) for one in (edge_type, positive, negative)] == [False, True, True]
    for label in (positive, negative):
        back = graph.label_edge_type_to_message_passing_edge_type(label)
        assert (back, type(back)) == (edge_type, type(edge_type))
    reverse = graph.reverse_edge_type(edge_type)
    assert (reverse, type(reverse)) == (("movie", "rates", "user"), type(edge_type))
    with pytest.raises(ValueError, match="holds no labels"):
        graph.label_edge_type_to_message_passing_edge_type(edge_type)


def test_edge_types_of_labels_are_found_among_all():
    assert graph.select_label_edge_types(RATES, [RATES, NEGATIVE, POSITIVE]) == (POSITIVE, NEGATIVE)
    assert graph.select_label_edge_types(RATES, {RATES: 1, POSITIVE: 2}) == (POSITIVE, None)
    with pytest.raises(ValueError, match="has no positive labels: there is no"):
        graph.select_label_edge_types(RATES, [RATES, NEGATIVE])


def test_values_by_type_and_back():
    for to_types, default in (
        (graph.to_heterogeneous_node, graph.DEFAULT_HOMOGENEOUS_NODE_TYPE),
        (graph.to_heterogeneous_edge, graph.DEFAULT_HOMOGENEOUS_EDGE_TYPE),
    ):
        assert to_types(None) is None
        assert to_types(3) == {default: 3}
        given = {"user": 3, "movie": 4}
        assert to_types(given) is given
    assert graph.to_homogeneous(None) is None
    assert graph.to_homogeneous(3) == graph.to_homogeneous({RATES: 3}) == 3
    for several in ({}, {"user": 1, "movie": 2}):
        with pytest.raises(ValueError, match="wanted the value of one type"):
            graph.to_homogeneous(several)


@pytest.mark.parametrize(("bits", "num_bytes"), [(1, 1), (2, 2), (4, 3), (8, 5)])
def test_packed_columns_take_whole_bytes(bits, num_bytes):
    packed = FeatureQuantizationMetadata(bits, 7, (0, 5, 2, 3, 6), clip_min=-1.0, clip_max=1.0)
    assert (packed.quantized_feature_dim, packed.packed_feature_dim) == (5, num_bytes)
    assert (packed.raw_feature_indices, packed.raw_feature_dim) == ((1, 4), 2)


def test_facts_of_features_are_records():
    assert FeatureInfo(3, torch.float16) == FeatureInfo(dim=3, dtype=torch.float16)
    none = FeatureQuantizationMetadata(bits=8, feature_dim=2)
    assert (none.packed_feature_dim, none.raw_feature_indices) == (0, (0, 1))
    assert (none.clip_min, none.clip_max, none.neg_mean, none.pos_mean) == (None,) * 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((3, 4), "bits is 3; it must be one of 1, 2, 4, 8"),
        ((8, 4, (0, 4)), r"quantized_feature_indices\[1\] is 4; the feature has columns 0..3"),
        ((8, 4, (-1,)), r"quantized_feature_indices\[0\] is -1"),
        ((8, 4, (1, 1)), "give each column once"),
        ((8, -1), "feature_dim is -1"),
    ],
)
def test_wrong_facts_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        FeatureQuantizationMetadata(*fields)
