"""Tests of fan-outs as text, endless loaders, and inputs of anchors."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from hopstream.compat.gigl.src.common.types.graph_data import EdgeType
from hopstream.compat.gigl.utils.iterator import InfiniteIterator
from hopstream.compat.gigl.utils.sampling import MAX_TEXT, ABLPInputNodes, parse_fanout

BUYS = ("user", "buys", "item")


def test_fan_outs_are_read_from_literals():
    assert parse_fanout("[10, 5]") == [10, 5]
    found = parse_fanout('{("user", "buys", "item"): [3, 2], ("item", "of", "user"): [1, 1]}')
    assert found == {BUYS: [3, 2], ("item", "of", "user"): [1, 1]}
    assert all(type(edge_type) is EdgeType for edge_type in found)


@pytest.mark.parametrize(
    "text",
    [
        "", "10", "(10, 5)", "[10, 5.0]", "[True]", "['10']", "{('user', 'buys'): [1]}", "{('a', 'b', 3): [1]}",
        "{('a', 'b', 'c'): 1}", "{'a': [1]}", "[len('ab')]", "__import__('os')", "[1", "[" * 5000, "-" * 9000 + "1",
        "{[1]: [1]}", "[1," * MAX_TEXT, None, [10, 5], "\0",
    ],
)  # fmt: skip
def test_invalid_fan_outs_are_refused(text):
    with pytest.raises(ValueError, match="the fan-out is"):
        parse_fanout(text)


class Epochs:
    """A loader whose batches say their epoch."""

    def __init__(self) -> None:
        self.num_epochs = 0

    def __iter__(self):
        self.num_epochs += 1
        return iter([(self.num_epochs, batch) for batch in range(2)])


def test_an_endless_loader_begins_a_new_epoch_after_the_last_batch():
    loader = Epochs()
    batches = InfiniteIterator(loader)
    assert iter(batches) is batches
    assert list(islice(batches, 5)) == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert list(zip(range(2), batches, strict=False)) == [(0, (3, 1)), (1, (4, 0))]
    assert list(InfiniteIterator([])) == []


def test_inputs_of_anchors_are_records():
    given = ABLPInputNodes(torch.tensor([1]), "user", {EdgeType(*BUYS): (torch.tensor([[2, -1]]), None)})
    assert given.labels[BUYS][1] is None
    assert (given.anchor_node_type, given.anchor_nodes.tolist()) == ("user", [1])
