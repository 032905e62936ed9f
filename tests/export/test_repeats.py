"""Checks against a loop how often each seed occurred before."""

from __future__ import annotations

import pytest

from hopstream.export.seeds import repeats_of


@pytest.mark.parametrize("num_columns", [1, 2])
@pytest.mark.parametrize("num_seeds", [0, 1, 50])
def test_repeats_are_those_of_a_loop(rng, num_columns: int, num_seeds: int):
    seeds = rng.integers(0, 4, (num_seeds, num_columns))
    seen: dict[tuple[int, ...], int] = {}
    wanted = []
    for seed in map(tuple, seeds.tolist()):
        wanted.append(seen.get(seed, 0))
        seen[seed] = wanted[-1] + 1
    assert repeats_of(seeds[:, 0] if num_columns == 1 else seeds).tolist() == wanted
