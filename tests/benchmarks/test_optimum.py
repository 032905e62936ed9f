"""Compares the hits of the best possible cache with those of an exhaustive search."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from benchmarks.optimum import best_hits


def most_hits(batches: list[np.ndarray], num_rows: int) -> int:
    """The most hits of any way to keep rows, by exhaustive search."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for batch in batches:
        ids, found = set(batch.tolist()), {}
        for kept, hits in best.items():
            known, hits = kept | ids, hits + len(kept & ids)
            for after in map(frozenset, combinations(sorted(known), min(num_rows, len(known)))):
                found[after] = max(hits, found.get(after, 0))
        best = found
    return max(best.values())


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 8])
def test_no_choice_of_rows_has_more_hits(rng: np.random.Generator, num_rows: int) -> None:
    for _ in range(30):
        batches = [rng.choice(8, rng.integers(0, 5), replace=False) for _ in range(rng.integers(1, 9))]
        hits = best_hits(batches, num_rows)
        assert len(hits) == len(batches) and hits.sum() == most_hits(batches, num_rows)


def test_hits_are_counted_per_batch() -> None:
    batches = [np.array(ids) for ids in ([1, 2, 3], [3, 1], [4], [2, 1, 4])]
    assert best_hits(batches, 9).tolist() == [0, 2, 0, 3]
    assert best_hits(batches, 2).tolist() == [0, 2, 0, 2]
