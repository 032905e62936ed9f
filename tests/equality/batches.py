"""Batches of a loader to compare, and the places and numbers of threads to compare them over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hopstream.load.setup import SubgraphLoader
from tests.load.graphs import flat
from tests.topologies import IN_MEMORY, TOPOLOGIES, YARDSTICK

PLACES = [
    (YARDSTICK, 4),
    ("3 local parts", 4),
    ("4 local parts", 0),
    ("4 local parts", 1),
    ("4 servers", 4),
    (IN_MEMORY, 2),
    ("1 part here, 3 asked", 1),
]
"""Where the parts are, and how many threads make batches; the yardstick's are made inline.

These are all topologies, and one and four threads both near and far, but not all combinations: batches do not depend on
the thread that makes them.
"""
assert {topology for topology, _ in PLACES} == {YARDSTICK, *TOPOLOGIES}
FARTHEST = PLACES[-1]
"""A local part, parts on servers, and threads: this place combines all that the others have."""
Batches = list[dict[str, object]]


def in_places(cases: Sequence[Any]) -> Iterator[Any]:
    """Parameters ``case, topology, num_threads``: each case in one place, every other in the farthest.

    Slow runs add two other places per case, in rotation, and soak tests the rest.
    """
    others = [place for place in PLACES if place != FARTHEST]
    for number, case in enumerate(cases):
        name = case if isinstance(case, str) else ", ".join(case)
        default = others[number // 2 % len(others)] if number % 2 else FARTHEST
        rest = [place for place in PLACES if place != default]
        slow = {rest[number % len(rest)], rest[(number + 2) % len(rest)]}
        for place in PLACES:
            marks = [] if place == default else [pytest.mark.slow] if place in slow else [pytest.mark.soak]
            yield pytest.param(case, *place, marks=marks, id=f"{name}-{place[0]}-{place[1]}")


def compared_batches(loader: SubgraphLoader) -> Batches:
    """The first epoch of a loader of numpy batches, and the last batch of the next epoch, as bytes."""
    batches = [flat(batch) for batch in loader]
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "next_batch": len(loader) - 1})
    return batches + [flat(batch) for batch in loader]


def assert_all_differ(found: dict[str, Batches]) -> None:
    """No two of some ways to sample the same graph give the same batches."""
    ways = list(found.items())
    for number, (way, batches) in enumerate(ways):
        for other, others in ways[:number]:
            assert batches != others, f"{way} samples as {other}"
