"""Checks that the real numbers behind draws are right, and the same everywhere."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from hopstream.kernels.reals import (
    fraction,
    natural_log,
    normal_quantile,
    open_fraction,
    ordered_bits,
    quarter_turn,
)
from tests.kernels.draw_inputs import for_python


def test_logarithms_are_right_to_the_last_bit_but_one(rng: np.random.Generator) -> None:
    values = np.concatenate([rng.random(5000) + 1e-300, 10.0 ** rng.uniform(-300, 300, 5000), [1.0, 0.5, 2.0]])
    for value in values.tolist():
        wanted = math.log(value)
        assert abs(natural_log(value) - wanted) <= math.ulp(wanted), value


def test_normal_quantiles_are_right(rng: np.random.Generator) -> None:
    shares = np.concatenate([rng.random(5000), 10.0 ** rng.uniform(-16, -1, 2000), [0.5, 0.075, 0.925, 2.0**-54]])
    for u in shares.tolist():
        assert normal_quantile(u) == pytest.approx(NormalDist().inv_cdf(u), rel=2e-15, abs=1e-300), u


def test_quarter_turns_are_right(rng: np.random.Generator) -> None:
    for share in [0.0, 0.5, 1.0, *rng.random(1000).tolist()]:
        wanted = math.cos(math.pi / 2 * share), math.sin(math.pi / 2 * share)
        assert quarter_turn(share) == pytest.approx(wanted, abs=5e-16), share
    assert quarter_turn(0.0) == (1.0, 0.0)


def test_bits_are_ordered_as_numbers_are(rng: np.random.Generator) -> None:
    values = np.sort(np.concatenate([rng.standard_normal(1000), [0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324]]))
    bits = [int(for_python(ordered_bits)(value)) for value in values.tolist()]
    assert bits == sorted(bits)
    assert len(set(bits)) == len(set(values.tolist()))
    assert for_python(ordered_bits)(0.0) == for_python(ordered_bits)(-0.0)


def test_fractions_stay_inside_their_range() -> None:
    assert for_python(fraction)(np.uint64(0)) == 0.0
    assert for_python(fraction)(np.uint64(2**64 - 1)) == 1 - 2.0**-53
    assert for_python(open_fraction)(np.uint64(0)) == 2.0**-54
    assert for_python(open_fraction)(np.uint64(2**64 - 1)) == 1 - 2.0**-53


def test_values_are_pinned() -> None:
    """Draws depend on every bit of these."""
    assert natural_log(0.3).hex() == PINNED_LOG
    assert normal_quantile(0.4).hex() == PINNED_QUANTILES[0]
    assert normal_quantile(0.01).hex() == PINNED_QUANTILES[1]
    assert normal_quantile(2.0**-50).hex() == PINNED_QUANTILES[2]
    assert [part.hex() for part in quarter_turn(0.375)] == PINNED_TURN


PINNED_LOG = "-0x1.34378fcbda721p+0"
PINNED_QUANTILES = ["-0x1.036d6c4a04b5ap-2", "-0x1.29c5c4630ff0ep+1", "-0x1.fd2fba88ab075p+2"]
PINNED_TURN = ["0x1.a9b66290ea1a3p-1", "0x1.1c73b39ae68c8p-1"]
