"""Checks that negative nodes are drawn, each with its exact chance."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hopstream.kernels.negatives import draw_uniform_nodes, draw_weighted_nodes
from tests import naive_negatives as naive


def uniform(rng_seed: int, positions: NDArray[np.int64], turns: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    keys = np.empty(len(positions), np.int64)
    draw_uniform_nodes(np.uint64(rng_seed), positions, turns, num_nodes, keys)
    return keys


def weighted(
    rng_seed: int, positions: NDArray[np.int64], turns: NDArray[np.int64], weights: list[float] | NDArray[np.float64]
) -> NDArray[np.int64]:
    keys = np.empty(len(positions), np.int64)
    draw_weighted_nodes(np.uint64(rng_seed), positions, turns, np.cumsum(np.asarray(weights, np.float64)), keys)
    return keys


def test_draws_are_pinned() -> None:
    """Batches of a given seed must not change between versions."""
    positions, turns = np.array([0, 1, 2, 2]), np.array([0, 0, 0, 1 << 33])
    assert uniform(7, positions, turns, 100).tolist() == [73, 23, 54, 65]
    assert weighted(7, positions, turns, [0, 1, 1, 2]).tolist() == [3, 1, 3, 3]


def test_draws_equal_the_naive_reference(rng: np.random.Generator) -> None:
    positions, turns = rng.integers(0, 1 << 40, 200), rng.integers(0, 1 << 50, 200)
    rng_seed = int(rng.integers(0, 1 << 63)) * 2 + 1
    weights = np.where(rng.random(50) < 0.4, 0.0, rng.random(50) ** 4)
    pairs = list(zip(positions.tolist(), turns.tolist(), strict=True))
    assert uniform(rng_seed, positions, turns, 999).tolist() == [
        naive.uniform_node(rng_seed, position, turn, 999) for position, turn in pairs
    ]
    assert weighted(rng_seed, positions, turns, weights).tolist() == [
        naive.weighted_node(rng_seed, position, turn, weights.tolist()) for position, turn in pairs
    ]


@pytest.mark.parametrize("rng_seed", [3, 1 << 63])
@pytest.mark.parametrize("vary", ["positions", "turns", "seeds"])
def test_uniform_draws_pass_chi_square(rng_seed: int, vary: str) -> None:
    num_draws, num_nodes = 60_000, 30
    counter, still = np.arange(num_draws), np.zeros(num_draws, np.int64)
    if vary == "seeds":
        drawn = np.concatenate([uniform(rng_seed + i, counter[:60], still[:60], num_nodes) for i in range(1000)])
    else:
        drawn = uniform(rng_seed, *((counter, still) if vary == "positions" else (still, counter)), num_nodes)
    wanted = num_draws / num_nodes
    statistic = float(((np.bincount(drawn, minlength=num_nodes) - wanted) ** 2 / wanted).sum())
    assert statistic < naive.chi_square_bound(num_nodes), f"{rng_seed=} {vary=}"


@pytest.mark.parametrize("rng_seed", [5, 6])
def test_weighted_draws_pass_chi_square_and_never_draw_weight_zero(rng_seed: int) -> None:
    weights = np.array([0.0, 1.0, 0.0, 2.5, 1e-9, 7.0, 0.5, 0.0, 4.0, 0.0])
    num_draws = 60_000
    drawn = weighted(rng_seed, np.arange(num_draws), np.zeros(num_draws, np.int64), weights)
    counts = np.bincount(drawn, minlength=len(weights))
    assert not counts[weights == 0].any(), f"{rng_seed=}"
    is_likely = weights > 0.1
    wanted = num_draws * weights[is_likely] / weights.sum()
    statistic = float(((counts[is_likely] - wanted) ** 2 / wanted).sum())
    assert statistic < naive.chi_square_bound(int(is_likely.sum())), f"{rng_seed=}"


def test_one_node_of_weight_is_always_drawn() -> None:
    """Also if sums are so large that a draw rounds up to them."""
    for weights in ([0, 0, 1e-300, 0], [0, 0, 1e300, 0], [1e-320, 0, 1e300, 0]):
        assert set(weighted(1, np.arange(500), np.arange(500), weights).tolist()) == {2}
    assert set(uniform(1, np.arange(50), np.arange(50), 1).tolist()) == {0}
