"""Checks that shared work returns in order, is bounded, and ends at the first error."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hopstream.assign.flatten import in_threads


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_results_come_in_order_and_few_items_are_held(num_threads: int):
    num_taken, most_held = 0, 0

    def items() -> Iterator[int]:
        nonlocal num_taken
        for item in range(50):
            num_taken += 1
            yield item

    for number, result in enumerate(in_threads(num_threads, lambda item: item * item, items())):
        assert result == number * number
        most_held = max(most_held, num_taken - number)
    assert num_taken == 50 and most_held <= num_threads + 1


@pytest.mark.parametrize("num_threads", [1, 3])
def test_first_error_is_raised_and_work_stops(num_threads: int):
    done: list[int] = []

    def work(item: int) -> None:
        if item in (4, 5, 6):
            raise ValueError(f"item {item}")
        done.append(item)

    num_before = threading.active_count()
    with pytest.raises(ValueError, match="item 4"):
        list(in_threads(num_threads, work, range(1000)))
    assert len(done) < 20 and threading.active_count() == num_before
