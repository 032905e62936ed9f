"""Is any way to sample far slower, beside plain uniform sampling, than it may be?

Ratios of one run are compared, so the machine's own speed does not matter; what a limit is exceeded by must still be
much more than what a disturbed machine makes of a ratio.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.harness import Options, run_case
from benchmarks.limits import LIMITS

SLACK = 1.5


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    options = Options(
        data=tmp_path_factory.mktemp("benchmarks"), scale=17, num_batches=5, num_repeats=11, num_threads=1
    )
    run_case(["-m", "benchmarks.prepare", *options.to_arguments()], timeout_s=300)
    cases = [
        run_case(["-m", f"benchmarks.{name}", *options.to_arguments()], timeout_s=300) for name in ("modes", "links")
    ]
    return {name: value for case in cases for name, value in case["figures"].items()}


@pytest.mark.bench
@pytest.mark.parametrize("name", sorted(LIMITS))
def test_no_way_to_sample_takes_much_longer_than_it_may(figures: dict[str, Any], name: str):
    ratio = figures[f"{name}_ratio"]
    assert ratio <= SLACK * LIMITS[name], f"{name} took {ratio:.2f} times as long; at most {LIMITS[name]} are wanted"
