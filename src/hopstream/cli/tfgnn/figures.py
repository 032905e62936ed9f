"""Figures of examples as text: the rows and numbers that the table and the page of statistics show."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hopstream.cli.units import count_text

if TYPE_CHECKING:
    from hopstream.tfgnn.statistics import FeatureStatistics, Numbers

FEATURE_HEADERS = (
    "feature", "kind", ">examples", ">missing", ">values", ">per example", ">min", ">mean", ">max", ">NaN", ">infinite",
)  # fmt: skip


def feature_row(name: str, of: FeatureStatistics, num_missing: int) -> tuple[str, ...]:
    """A feature's line under ``FEATURE_HEADERS``."""
    mean_length = numbers_text(of.lengths, number_text)[1]
    counts = (of.num_examples, num_missing, of.values.count)
    odd = (of.values.num_nan, of.values.num_infinite)
    values = numbers_text(of.values, number_text)
    return name, of.kind, *map(count_text, counts), mean_length, *values, *map(count_text, odd)


def number_text(number: float) -> str:
    """A number in at most five digits, or all of its digits where it is whole and small."""
    return str(int(number)) if number == int(number) and abs(number) < 1e9 else f"{number:.5g}"


def numbers_text(numbers: Numbers, show: Callable[[float], str]) -> tuple[str, str, str]:
    """The least, the mean and the highest; dashes where there are none."""
    if numbers.mean is None:
        return ("-", "-", "-")
    return show(numbers.least), show(numbers.mean), show(numbers.most)
