"""Tests of inputs of samplers and their configuration: places, lengths, equality, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hopstream.compat.glt.sampler import (
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplingConfig,
    SamplingType,
)

CONFIG = SamplingConfig(SamplingType.NODE, [5, 3], 16, True, False, True, True, False, False, "in")


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        (torch.tensor([2, 0]), [30, 10]),
        (torch.tensor([False, True, True]), [20, 30]),
        ([1], [20]),
        (np.array([1, 1]), [20, 20]),
        (2, [30]),
        ([], []),
    ],
)
def test_indexing_selects_inputs_by_position(index, wanted):
    nodes = NodeSamplerInput(torch.tensor([10, 20, 30]), "paper")
    links = EdgeSamplerInput(nodes.node, nodes.node + 1, torch.tensor([0.5, 1.5, 2.5]), ("a", "to", "b"), "triplet")
    assert len(nodes) == len(links) == 3
    assert nodes[index].node.tolist() == wanted
    assert nodes[index].input_type == "paper"
    assert len(nodes[index]) == len(wanted)
    taken = links[index]
    assert (taken.row.tolist(), taken.col.tolist()) == (wanted, [key + 1 for key in wanted])
    assert taken.label.tolist() == [key / 10 - 0.5 for key in wanted]
    assert (taken.input_type, taken.neg_sampling) == (("a", "to", "b"), links.neg_sampling)


def test_links_may_have_no_labels_and_no_negatives():
    links = EdgeSamplerInput([1, 2], [3, 4])
    assert (links.label, links.input_type, links.neg_sampling) == (None, None, None)
    assert links[[1]].label is None
    assert links.row.dtype == torch.int64


def test_negatives_are_given_in_any_form():
    assert EdgeSamplerInput([1], [2], neg_sampling="triplet").neg_sampling.mode == "triplet"
    wanted = NegativeSampling("binary", 2)
    assert EdgeSamplerInput([1], [2], neg_sampling=wanted).neg_sampling is wanted
    with pytest.raises(ValueError, match="mode is 'pair'"):
        EdgeSamplerInput([1], [2], neg_sampling="pair")


def test_inputs_move_to_shared_memory():
    nodes, links = NodeSamplerInput([1, 2]), EdgeSamplerInput([1], [2], torch.tensor([1.0]))
    assert nodes.share_memory() is nodes
    assert links.share_memory() is links
    assert all(column.is_shared() for column in (nodes.node, links.row, links.col, links.label))


def test_invalid_ids_are_refused():
    with pytest.raises(ValueError, match=r"node is torch.float32\[2\]; wanted ids"):
        NodeSamplerInput(torch.zeros(2))
    with pytest.raises(ValueError, match=r"row is torch.int64\[1, 1\]"):
        EdgeSamplerInput([[1]], [2])
    with pytest.raises(ValueError, match="col has 1 rows and row has 2"):
        EdgeSamplerInput([1, 2], [2])
    with pytest.raises(ValueError, match="label has 1 rows"):
        EdgeSamplerInput([1, 2], [2, 3], torch.tensor([1]))
    with pytest.raises(IndexError):
        NodeSamplerInput([1, 2])[[2]]


def test_types_have_the_numbers_of_glt():
    assert {one.name: one.value for one in SamplingType} == {"NODE": 0, "LINK": 1, "SUBGRAPH": 2, "RANDOM_WALK": 3}


def test_configurations_are_equal_if_all_fields_are():
    assert CONFIG.seed is None
    assert replace(CONFIG) == CONFIG
    others = {"num_neighbors": [5, 4], "batch_size": 8, "shuffle": False, "edge_dir": "out", "seed": 3}
    assert all(replace(CONFIG, **{name: value}) != CONFIG for name, value in others.items())
    typed = replace(CONFIG, num_neighbors={("a", "to", "b"): [2]})
    assert typed == replace(CONFIG, num_neighbors={("a", "to", "b"): [2]})


@pytest.mark.parametrize(
    ("name", "value"),
    [("sampling_type", 0), ("batch_size", 0), ("shuffle", "no"), ("edge_dir", "both"), ("seed", 1.5)],
)
def test_wrong_fields_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        replace(CONFIG, **{name: value})
