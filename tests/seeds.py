"""Give every test its seed: the same in every run, or a new one if a run asks for it.

By default a test's seed follows from its name alone, so a test that fails says something about the change. With
``--new-seeds`` seeds also follow from a base, which is drawn anew and printed; ``--seed-base N`` repeats that run.
"""

from __future__ import annotations

import random
import secrets
import sys
import zlib
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# Without a database no example is taken over from an earlier run, and without a deadline a busy machine fails no test.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("drawn", derandomize=False, database=None, deadline=None, print_blob=False)
# Hypothesis also draws the constants of all local modules that are loaded, so draws would depend on the tests before.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants  # which stays empty


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that ask for other seeds."""
    group = parser.getgroup("seeds")
    group.addoption("--new-seeds", action="store_true", help="draw and print a base from which all seeds follow")
    group.addoption("--seed-base", type=int, metavar="N", help="repeat the run that printed this base")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the base, which a worker is given, and hypothesis's seed before its own plugin reads that."""
    option = config.option
    if (workerinput := getattr(config, "workerinput", None)) is not None:
        option.seed_base = workerinput["seed_base"]
    elif option.new_seeds and option.seed_base is None:
        option.seed_base = secrets.randbits(32)
    if option.seed_base is not None and option.hypothesis_seed is None:
        option.hypothesis_seed = str(option.seed_base)
    settings.load_profile("fixed" if option.hypothesis_seed is None else "drawn")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the base to a worker of xdist, which would draw another."""
    node.workerinput["seed_base"] = node.config.option.seed_base


def pytest_sessionstart(session: pytest.Session) -> None:
    """Print the base, with ``-q`` too; workers have no reporter."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.config.option.seed_base is not None:
        reporter.write_line(f"seeds: {_told(session.config)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print the base with each failure."""
    report = yield
    if report.failed and item.config.option.seed_base is not None:
        report.sections.append(("seeds", _told(item.config)))
    return report


def _told(config: pytest.Config) -> str:
    return f"--seed-base {config.option.seed_base} repeats these"


def _seed_of(request: pytest.FixtureRequest) -> int:
    """32 bits that follow from the test's name and the base."""
    base = request.config.option.seed_base
    return zlib.crc32(f"{'' if base is None else base}{request.node.nodeid}".encode())


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator of the test's own; its seed is printed, so that a failure shows it."""
    seed = _seed_of(request)
    print(f"rng_seed = {seed}")  # noqa: T201
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def seeded_libraries(request: pytest.FixtureRequest) -> None:
    """Seed generators of libraries and tests, which other tests would have advanced."""
    seed = _seed_of(request)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
