"""Is what the user gave for an option of the option's kind?

Python takes ``batch_size=True`` and ``shuffle="no"`` without a word, and much later something else breaks, or nothing
does. So every option is checked at the door, before anything is opened, and the message says its name.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from hopstream.arrays import Array
from hopstream.errors import SettingsError


def read_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """The value as an ``int``; it may be an integer of numpy, or a tensor of one integer that has no dimensions.

    Raises:
        SettingsError: It is no integer (True and 1.0 are none), or outside ``low`` to ``high``.
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or int(value) < low or (high is not None and int(value) > high):  # type: ignore[call-overload]
        wanted = f"{low} or above" if high is None else f"{low} to {high}"
        raise SettingsError(f"{name} is {value!r}; it must be an integer, {wanted}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def is_number(value: object) -> bool:
    """The value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def read_flag(name: str, value: object) -> bool:
    """The value as a ``bool``.

    Raises:
        SettingsError: It is neither True nor False.
    """
    if not isinstance(value, bool | np.bool_):
        raise SettingsError(f"{name} is {value!r}; it must be True or False")
    return bool(value)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ``SettingsError`` unless a value is one of some words."""
    if not isinstance(value, str) or value not in choices:
        raise SettingsError(f"{name} is {value!r}; choose one of {', '.join(choices)}")


def to_array(values: Any) -> Array:
    """An array of what may be a tensor on any device, which numpy alone would refuse."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
