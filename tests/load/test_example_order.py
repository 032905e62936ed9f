"""Does each epoch visit every example once, in an order of files and windows that any stretch of it knows?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.load.example_order import ExampleOrder
from hopstream.load.order import BatchSpan


def order_of(sizes, window, **options):
    return ExampleOrder(
        num_seeds=sum(sizes), batch_size=1, is_shuffled=True, file_sizes=tuple(sizes), window=window, **options
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(sum), st.integers(1, 40), st.integers(0, 3), st.data()
)
def test_any_stretch_is_a_part_of_the_whole(sizes, window, epoch, data):
    order = order_of(sizes, window)
    whole = order.positions(epoch, BatchSpan(start=0, stop=sum(sizes), index=0))
    assert sorted(whole.tolist()) == list(range(sum(sizes)))
    start = data.draw(st.integers(0, sum(sizes)))
    stop = data.draw(st.integers(start, sum(sizes)))
    assert np.array_equal(order.positions(epoch, BatchSpan(start=start, stop=stop, index=0)), whole[start:stop])


def test_a_window_reads_as_many_files_as_it_is_long():
    sizes, window = [100] * 8, 50
    whole = order_of(sizes, window).positions(3, BatchSpan(start=0, stop=800, index=0))
    for piece in np.split(whole, 16):
        assert len(set((piece // 100).tolist())) == 1  # windows that divide the files stay in one
        assert np.ptp(piece) == 49 and not np.array_equal(np.sort(piece), piece)
    files = [int(piece[0] // 100) for piece in np.split(whole, 8)]
    assert sorted(files) == list(range(8)) and files != list(range(8))


@pytest.mark.parametrize("window", [1, 6])
def test_all_orders_of_files_are_as_likely(window):
    counts = np.zeros((3, 3))
    for epoch in range(3000):
        whole = order_of([2, 2, 2], window).positions(epoch, BatchSpan(start=0, stop=6, index=0))
        for place, number in enumerate(whole.tolist()):
            counts[number // 2, place // 2] += 1
    assert np.all(np.abs(counts - 2000) < 5 * np.sqrt(6000 * (1 / 3) * (2 / 3) * 2))
