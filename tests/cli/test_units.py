"""Checks that numbers are shown with units, short and without odd rounding."""

from __future__ import annotations

import pytest

from hopstream.cli.units import bytes_text, count_text, percent_text, plural_text, seconds_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"), (999, "999"), (1000, "1.0 k"), (999_949, "999.9 k"), (999_950, "1.0 M"), (21_100_000, "21.1 M"),
        (10**9, "1.0 G"), (2**63, "9223.4 P"), (-1500, "-1.5 k"),
    ],
)  # fmt: skip
def test_counts_are_shortened_to_units(count: int, text: str):
    assert count_text(count) == text


def test_sizes_times_and_shares():
    assert [bytes_text(n) for n in (0, 12, 5_300_000_000)] == ["0 B", "12 B", "5.3 GB"]
    assert [seconds_text(s) for s in (0.004, 0.5, 8.71, 212.4)] == ["0.00 s", "0.50 s", "8.7 s", "212 s"]
    assert percent_text(0.31449) == "31.4 %"
    assert [plural_text(n, "part") for n in (0, 1, 1000)] == ["0 parts", "1 part", "1.0 k parts"]
