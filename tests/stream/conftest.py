"""Dataset that the tests of graph-store mode share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stream.serving import write_timed_parts


@pytest.fixture(scope="session")
def timed_parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The small graph of times and weights in 1, 2 and 4 parts."""
    return write_timed_parts(tmp_path_factory.mktemp("timed-parts"), [1, 2, 4])
