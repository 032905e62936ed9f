"""Checks that keys that are kept as runs are those that they were made of, in every way to read them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopstream.stream.runs import AscendingKeys, blocks_of

keys_drawn = st.one_of(
    st.sets(st.integers(0, 60), max_size=50),
    st.lists(st.tuples(st.integers(0, 1 << 62), st.integers(1, 20)), max_size=6).map(
        lambda runs: {first + place for first, length in runs for place in range(length)}
    ),
).map(lambda keys: np.array(sorted(keys), np.int64))


@given(keys=keys_drawn, cuts=st.lists(st.integers(0, 120), max_size=4), size=st.integers(2, 9))
def test_keys_are_those_that_they_were_made_of(keys: np.ndarray, cuts: list[int], size: int) -> None:
    kept = AscendingKeys.of(np.split(keys, sorted(min(cut, len(keys)) for cut in cuts)), size)
    assert len(kept) == len(keys)
    assert kept.nbytes <= keys.nbytes + 8 * len(kept.pieces)
    for start in range(0, len(keys) + 1, 7):
        for stop in range(start, len(keys) + 1, 5):
            pieces = list(kept.cut(start, stop))
            assert [key for piece in pieces for key in piece.expand().tolist()] == keys[start:stop].tolist()
            blocks = list(blocks_of(pieces, size))
            assert [key for block in blocks for key in block.tolist()] == keys[start:stop].tolist()
            assert max(map(len, blocks), default=0) <= size


def test_what_is_contiguous_over_many_blocks_is_one_run() -> None:
    kept = AscendingKeys.of(np.split(np.arange(5, 100), [10, 20, 70]), 6)
    assert [piece.numbers.tolist() for piece in kept.pieces] == [[5, 100]]
    assert [piece.numbers.tolist() for piece in kept.cut(3, 20)] == [[8, 25]]
    apart = np.concatenate([np.arange(start, start + 8) for start in range(0, 50, 10)])
    kept = AscendingKeys.of(np.split(apart, [12, 24]), 6)  # pieces of six numbers at most
    assert [piece.numbers.tolist() for piece in kept.pieces] == [[0, 8, 10, 14], [14, 18, 20, 28], [30, 38, 40, 48]]
