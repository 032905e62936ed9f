"""Tests of messages to servers, and of inputs of anchors."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch

from hopstream.compat.gigl.distributed.graph_store import messages
from hopstream.compat.gigl.distributed.graph_store.sharding import ServerSlice
from hopstream.compat.gigl.distributed.sampler import ABLPNodeSamplerInput
from hopstream.compat.gigl.types.graph import DEFAULT_HOMOGENEOUS_EDGE_TYPE as LINKS

WANTED = inspect.Parameter.empty
FIELDS = {
    "InitSamplingBackendRequest": {
        "backend_key": WANTED, "worker_options": WANTED, "sampler_options": WANTED, "sampling_config": WANTED,
    },
    "RegisterBackendRequest": {
        "backend_id": WANTED, "worker_key": WANTED, "sampler_input": WANTED, "sampling_config": WANTED,
        "buffer_capacity": WANTED, "buffer_size": WANTED,
    },
    "FetchNodesRequest": {"split": None, "node_type": None, "server_slice": None},
    "FetchABLPInputRequest": {
        "split": WANTED, "node_type": WANTED, "supervision_edge_type": WANTED, "server_slice": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_fields_have_their_order_and_defaults(name):
    parameters = inspect.signature(getattr(messages, name)).parameters
    assert list(parameters) == list(FIELDS[name])
    assert {field: each.default for field, each in parameters.items()} == FIELDS[name]


def test_messages_are_frozen_and_equal_by_their_fields():
    request = messages.FetchNodesRequest("train", server_slice=ServerSlice(0, 0, 1, 2))
    assert request == messages.FetchNodesRequest("train", None, ServerSlice(0, 0, 1, 2))
    assert request != messages.FetchNodesRequest("train")
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.split = "val"


def test_anchors_are_taken_with_their_labels():
    positives, negatives = torch.tensor([[1, 2], [3, -1], [4, 5]]), torch.tensor([[7], [8], [9]])
    given = ABLPNodeSamplerInput(torch.tensor([10, 20, 30]), "user", {LINKS: positives}, {LINKS: negatives})
    taken = given[[2, 0]]
    assert (len(given), len(taken), taken.input_type) == (3, 2, "user")
    assert taken.node.tolist() == [30, 10]
    assert taken.positive_label_by_edge_types[LINKS].tolist() == [[4, 5], [1, 2]]
    assert taken.negative_label_by_edge_types[LINKS].tolist() == [[9], [7]]
    assert given.share_memory() is given
    assert positives.is_shared()


def test_labels_need_a_row_for_each_anchor():
    with pytest.raises(ValueError, match=r"wanted int64\[2, m\]"):
        ABLPNodeSamplerInput([1, 2], None, {LINKS: torch.zeros(1, 1)}, {})
