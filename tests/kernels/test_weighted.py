"""Checks that weighted draws follow the exact law, and never take edges without weight."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from hopstream.kernels.weighted import FLOAT64, UNREADABLE, add_weight, draw_weighted, take_weighted
from tests import naive, naive_weighted
from tests.kernels.draw_inputs import for_python

HEAVY = 1 - 1e-9


class Row:
    """One row of weighted edges between other edges, in the form that kernels take."""

    START = 3

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = [float(weight) for weight in weights]
        self.stored = np.full(len(weights) + 6, np.nan)
        self.stored[self.START : self.START + len(weights)] = weights
        self.sums = np.full(len(weights) + 6, np.nan)
        self.sums[self.START : self.START + len(weights)] = naive_weighted.running_sums(self.weights)

    def draw(self, stream: int, count: int, is_replacing: bool = False, num: int | None = None) -> list[int]:
        num = len(self.weights) if num is None else num
        room = count if is_replacing and count > 0 else num
        positions, variates = np.full(room + 4, -1, np.int64), np.empty(room, np.uint64)
        drawn = draw_weighted(
            np.uint64(stream), self.sums, self.stored.ctypes.data, FLOAT64, self.START, num, count, is_replacing,
            variates, positions, 2,
        )  # fmt: skip
        assert positions[:2].tolist() == [-1, -1] and positions[2 + room :].tolist() == [-1, -1]
        return (positions[2 : 2 + drawn] - self.START).tolist()


def streams(rng_seed: int, num: int) -> list[int]:
    return [naive.node_stream(rng_seed, key) for key in range(num)]


def random_weights(rng: np.random.Generator, degree: int, kind: str) -> list[float]:
    if kind == "zeros":
        return np.where(rng.random(degree) < 0.6, 0.0, rng.random(degree)).tolist()
    if kind == "ties":
        return rng.integers(0, 3, degree).astype(float).tolist()
    if kind == "extreme":
        return (10.0 ** rng.uniform(-12, 12, degree)).tolist()
    return rng.random(degree).tolist()


def check_law(chances: dict, drawn: Counter, where: str) -> None:
    """Check that each outcome is within 5 sigma of its chance, and that impossible ones do not occur.

    Sigma is at least that of one draw.
    """
    num_draws = sum(drawn.values())
    assert set(drawn) <= {outcome for outcome, chance in chances.items() if chance > 0}, where
    for outcome, chance in chances.items():
        sigma = math.sqrt(max(num_draws * chance * (1 - chance), 1.0))
        assert abs(drawn[outcome] - num_draws * chance) < 5 * sigma, (where, outcome, drawn[outcome], chance)


@pytest.mark.parametrize("kind", ["plain", "zeros", "ties", "extreme"])
@pytest.mark.parametrize("is_replacing", [False, True])
@pytest.mark.parametrize("count", [-1, 0, 1, 10, 70])
@pytest.mark.parametrize("degree", [0, 1, 5, 60, 400])
def test_draws_equal_the_naive_reference(
    rng: np.random.Generator, kind: str, is_replacing: bool, count: int, degree: int
) -> None:
    row = Row(random_weights(rng, degree, kind))
    for stream in streams(int(rng.integers(1 << 40)), 2):
        wanted = naive_weighted.draw_weighted(stream, row.weights, count, is_replacing)
        assert row.draw(stream, count, is_replacing) == wanted, (row.weights, stream)


def test_draws_of_a_prefix_are_those_of_a_shorter_row(rng: np.random.Generator) -> None:
    row = Row(rng.random(50).tolist())
    for num in (0, 1, 7, 50):
        for stream in streams(5, 5):
            for is_replacing in (False, True):
                wanted = naive_weighted.draw_weighted(stream, row.weights[:num], 5, is_replacing)
                assert row.draw(stream, 5, is_replacing, num) == wanted


WEIGHTS = {
    "plain": [1.0, 2.0, 3.0, 4.0],
    "zeros": [0.0, 1.0, 0.0, 5.0, 2.0, 0.0],
    "ties": [1.0, 1.0, 1.0, 2.0, 2.0],
    "one of nearly all": [1e-9 / 6, HEAVY, 2e-9 / 6, 3e-9 / 6],
    "two of nearly all": [HEAVY, 1e-9 / 3, HEAVY, 2e-9 / 3],
    "heavy first": [1.0, 1e-20, 3e-20, 1e-20, 3e-20],
    "heavy last": [1e-20, 3e-20, 1e-20, 3e-20, 1.0],
    "heavy inside": [1e-30, 1e18, 3e-30, 1e-30, 1e17],
    "next to nothing": [1.0, 5e-324, 1.5e-323, 5e-324],
    "steps": [1.0, 1e-4, 1e-8, 1e-2, 1e-6],
}


@pytest.mark.parametrize("name", list(WEIGHTS))
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 20])
def test_without_replacement_sets_have_the_chances_of_successive_draws(name: str, count: int, padding: int) -> None:
    """Short rows are drawn in one pass, longer ones draw by draw; edges without weight change no chance."""
    row, num_draws, rng_seed = Row(WEIGHTS[name] + [0.0] * padding), 4000, 21
    drawn = Counter(tuple(row.draw(stream, count)) for stream in streams(rng_seed, num_draws))
    if count >= sum(weight > 0 for weight in row.weights):
        assert drawn == {tuple(i for i, weight in enumerate(row.weights) if weight > 0): num_draws}
        return
    check_law(naive_weighted.chances_of_sets(WEIGHTS[name], count), drawn, f"{name}, rng_seed = {rng_seed}")


@pytest.mark.parametrize("name", list(WEIGHTS))
def test_with_replacement_every_turn_draws_in_proportion_to_weight(name: str) -> None:
    row, num_draws, rng_seed = Row(WEIGHTS[name]), 4000, 22
    drawn = [row.draw(stream, 3, True) for stream in streams(rng_seed, num_draws)]
    chances = {i: weight / math.fsum(row.weights) for i, weight in enumerate(row.weights)}
    for turn in range(3):
        check_law(chances, Counter(each[turn] for each in drawn), f"turn {turn}, rng_seed = {rng_seed}")


@pytest.mark.parametrize("degree,count", [(30, 12), (150, 10), (150, 120)])
def test_larger_counts_include_edges_as_successive_draws_do(degree: int, count: int) -> None:
    """Against numpy's ``choice``, which draws successively; a few edges have most of the weight."""
    rng_seed, num_draws = 23, 1500
    rng = np.random.default_rng(rng_seed)
    weights = rng.random(degree) ** 6
    row = Row(weights.tolist())
    ours = np.bincount(np.concatenate([row.draw(s, count) for s in streams(rng_seed, num_draws)]), minlength=degree)
    law = [rng.choice(degree, count, replace=False, p=weights / weights.sum()) for _ in range(num_draws)]
    theirs = np.bincount(np.concatenate(law), minlength=degree)
    chance = (ours + theirs) / (2 * num_draws)
    sigma = np.sqrt(np.maximum(2 * num_draws * chance * (1 - chance), 1.0))
    assert (np.abs(ours - theirs) / sigma).max() < 5, f"rng_seed = {rng_seed}"


def test_a_long_row_of_equal_weights_is_drawn_evenly() -> None:
    rng_seed, degree, count = 24, 20_000, 20
    row = Row([0.1] * degree)
    tenths = np.zeros(10)
    for stream in streams(rng_seed, 2000):
        drawn = row.draw(stream, count)
        assert sorted(set(drawn)) == drawn and len(drawn) == count
        tenths += np.bincount(np.array(drawn) * 10 // degree, minlength=10)
    sigma = math.sqrt(2000 * count * 0.1 * 0.9)
    assert np.abs(tenths - 2000 * count / 10).max() < 5 * sigma, f"rng_seed = {rng_seed}: {tenths}"


@pytest.mark.parametrize("places", [[0], [999_999], [0, 1, 2], [17, 500_000, 999_999]])
def test_a_hub_with_few_weighted_edges_gives_exactly_those(places: list[int]) -> None:
    weights = np.zeros(1_000_000)
    weights[places] = [10.0**-i for i in range(len(places))]
    sums = np.cumsum(weights)
    positions, variates = np.empty(100, np.int64), np.empty(100, np.uint64)
    for count in (3, 10, 100):
        assert len(places) == draw_weighted(
            np.uint64(1), sums, weights.ctypes.data, FLOAT64, 0, len(sums), count, False, variates, positions, 0
        )
        assert positions[: len(places)].tolist() == places
    assert take_weighted(sums, 0, len(sums), len(places) - 1, positions, 0) == len(places)


def test_a_huge_weight_does_not_change_its_neighbours() -> None:
    row = Row([1e20, 1.0, 0.0, 1.0, 1e-300])
    assert row.draw(1, 4) == [0, 1, 3, 4]
    assert {i for stream in streams(3, 200) for i in row.draw(stream, 2)} == {0, 1, 3}


@pytest.mark.parametrize("weights", [[5e-324, 0.0], [0.0, 5e-324, 0.0], [5e-324, 5e-324, 0.0]])
def test_rounding_never_draws_an_edge_without_weight(weights: list[float]) -> None:
    row = Row(weights)
    for stream in streams(4, 50):
        assert all(weights[i] > 0 for i in row.draw(stream, 4, True) + row.draw(stream, 1))


def test_draws_from_damaged_sums_terminate() -> None:
    """Sums that fall, or are no numbers, give some positions of the row, in bounded time."""
    for sums in ([3.0, 1.0, 2.0, 1.0, 5.0, 1.0], [np.nan, 1.0, np.nan, 2.0], [2.0, 2.0, 1.0, np.inf, np.inf]):
        for count in (1, 2, 3):
            for is_replacing in (False, True):
                positions, variates = np.full(9, -1, np.int64), np.empty(9, np.uint64)
                drawn = draw_weighted(
                    np.uint64(9), np.array(sums), 0, UNREADABLE, 0, len(sums), count, is_replacing, variates,
                    positions, 0,
                )  # fmt: skip
                assert all(0 <= position < len(sums) for position in positions[:drawn])


def test_running_sums_rise_at_positive_weights() -> None:
    total, sums = 0.0, []
    for weight in (0.0, 1.0, 0.0, 1e-30, 2.0):
        total = for_python(add_weight)(total, weight)
        sums.append(total)
    assert sums == [0.0, 1.0, 1.0, 1.0 + 2.0**-52, 3.0]


def test_draws_are_pinned() -> None:
    """Batches of a given seed must not change between versions."""
    row = Row([1.0, 2.0, 3.0, 0.0, 4.0, 5.0])
    stream = naive.node_stream(7, 1)
    assert row.draw(stream, 3) == PINNED_SUCCESSIVE
    assert row.draw(stream, 4, True) == PINNED_REPLACING
    assert Row([1.0 + i % 7 for i in range(100)]).draw(stream, 96) == [
        i for i in range(100) if i not in PINNED_LEFT_OUT
    ]


PINNED_SUCCESSIVE = [0, 1, 4]
PINNED_REPLACING = [2, 5, 4, 2]
PINNED_LEFT_OUT = [22, 35, 42, 84]
