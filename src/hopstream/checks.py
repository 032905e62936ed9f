"""Is a setting what it may be?

Python takes ``batch_size=True`` and ``shuffle="no"`` without a word, and much later something else breaks, or nothing
does. So every setting is checked at the door, before anything is opened, and the message says its name.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from hopstream.errors import SettingsError


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Check that a setting is an integer of Python from ``low`` to ``high``.

    Raises:
        SettingsError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SettingsError(f"{name} is {value!r}; it must be an integer from {low} to {high}")


def check_seconds(name: str, value: object) -> None:
    """Check that a setting is a finite number of seconds above 0.

    Raises:
        SettingsError: It is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        raise SettingsError(f"{name} is {value!r}; it must be a number of seconds above 0")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Check that a setting is one of some words.

    Raises:
        SettingsError: It is not.
    """
    if not isinstance(value, str) or value not in choices:
        raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def read_integer(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """The value as an ``int``; it may be an integer of numpy, or a tensor of one integer that has no dimensions.

    Raises:
        SettingsError: It is no integer (True and 1.0 are none), or outside ``low`` to ``high``.
    """
    number = _plain(value)
    is_integer = isinstance(number, Integral) and not isinstance(number, bool)
    if not is_integer or (low is not None and number < low) or (high is not None and number > high):
        wanted = "" if low is None else f", {low} or above" if high is None else f", {low} to {high}"
        raise SettingsError(f"{name} is {number!r}; it must be an integer{wanted}")
    return int(number)


def is_number(value: object) -> bool:
    """The value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def read_flag(name: str, value: object) -> bool:
    """The value as a ``bool``.

    Raises:
        SettingsError: It is neither True nor False.
    """
    flag = _plain(value)
    if not isinstance(flag, bool):
        raise SettingsError(f"{name} is {value!r}; it must be True or False")
    return flag


def _plain(value: Any) -> Any:
    """Of numpy's and torch's values without dimensions the one of Python; neither is imported here."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
