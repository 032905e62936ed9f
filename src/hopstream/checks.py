"""Is a setting what it may be?"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
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
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def to_index(name: str, value: Any) -> int:
    """An integer of Python, numpy or torch as one of Python.

    Raises:
        SettingsError: It is none.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise SettingsError(f"{name} is {value!r}; it must be an integer")
