"""Datasets that the store tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.store.cases import Case, make_case


@pytest.fixture(scope="session")
def find_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Case]:
    """Give a dataset of a kind and number of parts, written once per session."""
    made: dict[tuple[str, int], Case] = {}

    def find(kind: str, num_parts: int) -> Case:
        if (kind, num_parts) not in made:
            made[kind, num_parts] = make_case(kind, num_parts, tmp_path_factory.mktemp(f"{kind}-{num_parts}"))
        return made[kind, num_parts]

    return find


@pytest.fixture
def typed_case(find_case: Callable[[str, int], Case]) -> Case:
    """A typed graph in three parts."""
    return find_case("typed", 3)


@pytest.fixture
def timed_case(find_case: Callable[[str, int], Case]) -> Case:
    """A graph with times, weights and links in three parts."""
    return find_case("timed", 3)
