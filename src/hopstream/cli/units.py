"""Texts of counts, sizes and times."""

from __future__ import annotations

from hopstream.engine.settings import bytes_text as bytes_text
from hopstream.engine.settings import scaled_text

COUNT_UNITS = ("", " k", " M", " G", " T", " P")


def count_text(count: int) -> str:
    """A count with three or four digits: ``987``, ``21.1 M``."""
    return scaled_text(count, COUNT_UNITS)


def seconds_text(seconds: float) -> str:
    """A time: ``0.04 s``, ``8.7 s``, ``212 s``."""
    digits = 2 if seconds < 1 else 1 if seconds < 100 else 0
    return f"{seconds:.{digits}f} s"


def percent_text(fraction: float) -> str:
    """A share: ``31.4 %``."""
    return f"{100 * fraction:.1f} %"


def printable_text(text: str, max_length: int = 200) -> str:
    """What somebody else wrote, without what would move the cursor or colour the terminal, and not too long."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: max_length + 1])
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def plural_text(count: int, noun: str) -> str:
    """A count with its noun: ``1 part``, ``4 parts``."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def full_plural_text(count: int, noun: str) -> str:
    """The same with every digit: ``1 node``, ``9,742 nodes``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
