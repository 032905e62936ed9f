"""Checks that the kernels of second-order walks accept and draw as the biases say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hopstream.kernels.walks import (
    ACCEPTED,
    NO_NODE,
    OPEN,
    REJECTED,
    draw_second_order,
    hash_fractions,
    judge_candidates,
)
from tests import naive, naive_walks

RNG_SEED = 31


def test_fractions_equal_those_of_each_number_stream() -> None:
    numbers = np.array([0, 1, 5, 1 << 40])
    out = np.empty(4)
    hash_fractions(np.uint64(7), numbers, out)
    assert out.tolist() == [(naive.node_stream(7, int(number)) >> 11) * 2.0**-53 for number in numbers]


@pytest.mark.parametrize("return_bias,far_bias", [(1.0, 1.0), (4.0, 0.25), (0.25, 4.0), (0.5, 0.1), (2.0, 8.0)])
def test_candidates_are_accepted_in_proportion_to_their_bias(return_bias: float, far_bias: float) -> None:
    """Over all decided candidates, acceptance lies within 5 sigma of bias / largest bias."""
    num_walks = 20_000
    # Candidate 0 is where the walk came from, 1 is reached from there, 2 is not.
    candidates = np.tile(np.arange(3), (num_walks, 1))
    verdicts = np.empty(candidates.shape, np.uint8)
    judge_candidates(
        np.uint64(RNG_SEED), np.arange(num_walks), candidates, np.zeros(num_walks, np.int64), return_bias, far_bias,
        verdicts,
    )  # fmt: skip
    assert not (verdicts[:, 0] == OPEN).any()
    for column, (is_near, bias) in enumerate([(None, return_bias), (True, 1.0), (False, far_bias)]):
        is_accepted = verdicts[:, column] == ACCEPTED
        if is_near is not None and is_near == (far_bias < 1):
            is_accepted |= verdicts[:, column] == OPEN
        chance = bias / max(return_bias, 1.0, far_bias)
        sigma = math.sqrt(num_walks * chance * (1 - chance))
        assert abs(is_accepted.sum() - num_walks * chance) <= 5 * sigma, f"rng_seed = {RNG_SEED}, column {column}"


def test_candidates_are_all_decided_if_q_is_1() -> None:
    verdicts = np.empty((500, 2), np.uint8)
    candidates = np.tile(np.array([3, 4]), (500, 1))
    judge_candidates(np.uint64(1), np.arange(500), candidates, np.full(500, 3), 0.2, 1.0, verdicts)
    assert set(verdicts[:, 1]) == {ACCEPTED} and set(verdicts[:, 0]) == {ACCEPTED, REJECTED}


def test_without_a_previous_node_every_candidate_is_accepted() -> None:
    verdicts = np.empty((9, 4), np.uint8)
    judge_candidates(np.uint64(1), np.arange(9), np.full((9, 4), 5), np.full(9, NO_NODE), 0.1, 9.0, verdicts)
    assert (verdicts == ACCEPTED).all()


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("p,q", [(1.0, 1.0), (0.25, 4.0), (4.0, 0.25), (1e-6, 1.0)])
def test_exact_draws_follow_the_law(p: float, q: float, is_weighted: bool) -> None:
    """From t = 0 at v = 1, with parallel edges, one edge back, one self loop and an edge of weight 0."""
    weights = [1.0, 3.0, 0.0, 2.0, 0.5, 1.5, 1.0]
    edges = {
        1: list(zip([0, 2, 2, 3, 1, 4, 2], weights if is_weighted else [1.0] * 7, strict=True)),
        0: [(2, 1.0), (4, 1.0)],
    }
    num_walks = 20_000
    neighbors, edge_weights = (np.array(each) for each in zip(*edges[1], strict=True))
    found, rows = np.empty(num_walks, np.int64), np.zeros(num_walks, np.int64)
    draw_second_order(
        np.uint64(RNG_SEED), np.arange(num_walks), rows, np.array([0, 7]), neighbors,
        edge_weights if is_weighted else np.empty(0), rows, rows, np.array([0, 2]), np.array([2, 4]), 1 / p, 1 / q,
        np.empty(7), found,
    )  # fmt: skip
    wanted = naive_walks.second_order_chances(edges, 0, 1, p, q)
    assert set(found.tolist()) <= set(wanted)
    for neighbor, chance in wanted.items():
        sigma = math.sqrt(max(num_walks * chance * (1 - chance), 1.0))
        assert abs((found == neighbor).sum() - num_walks * chance) < 5 * sigma, f"rng_seed = {RNG_SEED}, {neighbor}"


def test_a_node_without_weighted_edges_ends_the_walk() -> None:
    found = np.empty(2, np.int64)
    rows = np.arange(2)
    draw_second_order(
        np.uint64(1), rows, rows, np.array([0, 2, 2]), np.array([4, 5]), np.zeros(2), np.array([4, 4]), rows,
        np.array([0, 0, 0]), np.empty(0, np.int64), 2.0, 2.0, np.empty(2), found,
    )  # fmt: skip
    assert found.tolist() == [NO_NODE, NO_NODE]
