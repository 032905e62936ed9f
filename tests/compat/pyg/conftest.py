"""Graphs that several modules of tests share."""

from collections.abc import Iterator

import pytest

from tests.compat.pyg.worlds import World, worlds
from tests.processes import ServerPool


@pytest.fixture(scope="session")
def found_worlds(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[dict[str, World]]:
    """A graph without types, and one with types and times, in a folder and served."""
    with worlds(tmp_path_factory.mktemp("worlds"), server_pool) as found:
        yield found
