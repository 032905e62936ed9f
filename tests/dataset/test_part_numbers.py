"""Checks that numbers and ranges are read as parts, and that other text is refused."""

from __future__ import annotations

import pytest

from hopstream.dataset.chunks import parse_parts
from hopstream.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "parts"),
    [("all", (0, 1, 2, 3, 4)), ("0", (0,)), ("3,1", (1, 3)), ("1-3", (1, 2, 3)), (" 0 , 2 - 3,2", (0, 2, 3))],
)
def test_parts_are_numbers_and_ranges(text: str, parts: tuple[int, ...]):
    assert parse_parts(text, 5) == parts


@pytest.mark.parametrize("text", ["", "5", "1,", "-1", "3-1", "1-5", "x", "1.0", "٣", "0-99999999999999999999"])
def test_other_parts_are_refused(text: str):
    with pytest.raises(SettingsError, match="--parts has"):
        parse_parts(text, 5)
    with pytest.raises(SettingsError, match=r"^line 3 has"):
        parse_parts(text, 5, "line 3")
