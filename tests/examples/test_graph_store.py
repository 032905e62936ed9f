"""Checks that the example with sampling servers trains on two ranks, reports, and ends its processes."""

from __future__ import annotations

import pytest

from tests.examples.real_data import run_script


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        pytest.param("0", 0, id="as wanted", marks=pytest.mark.slow),
        pytest.param("1.01", 1, id="not as wanted", marks=pytest.mark.soak),
    ],
)
def test_two_ranks_train_on_sampling_servers(wanted: str, status: int):
    found, said = run_script("graph_store.py", "--epochs", "1", "--wanted", wanted)
    assert found == status, said
    assert said.count("rng_seed 0: test accuracy 0.") == 1, said
    assert "left in the middle of" not in said and "did not end" not in said, said
