"""Checks of settings and names, and parts of their messages.

Python accepts ``batch_size=True`` and ``shuffle="no"`` silently, and the program fails later or gives wrong results. So
every public function checks its settings before it opens anything, and the message names the setting.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, NoReturn, Self

from hopstream.errors import SettingsError


class Settings:
    """Base class of settings records; the error for an unknown field suggests the closest one.

    The records are dataclasses.
    """

    __slots__ = ()

    def __new__(cls, *_: object, **given: object) -> Self:
        """Refuse unknown fields with a suggestion, which the error of a dataclass's ``__init__`` lacks."""
        known = cls.field_names()
        for name in given:
            if name not in known:
                meant = did_you_mean(name, known)
                raise TypeError(f"{cls.__name__} got an unexpected keyword argument {name!r}{meant}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check nothing; it ends the chain of ``super().__post_init__()`` calls of records with several bases."""

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of all fields."""
        known: Mapping[str, object] = cls.__dataclass_fields__  # type: ignore[attr-defined]
        return tuple(known)

    @classmethod
    def within(cls, record: Self) -> Self:
        """Return the settings of this class from a record of a subclass."""
        return cls(**{name: getattr(record, name) for name in cls.field_names()})

    def _keep(self, name: str, value: object) -> None:
        """Set a field of the frozen record to its converted value."""
        object.__setattr__(self, name, value)

    def _read_integer(self, name: str, low: int | None = None, high: int | None = None) -> None:
        """Check and convert a field with ``read_integer``."""
        self._keep(name, read_integer(name, getattr(self, name), low, high))

    def _read_flags(self, of: type[Settings]) -> None:
        """Check and convert with ``read_flag`` every field that ``of`` annotates as ``bool``."""
        for name in of.field_names():
            if of.__annotations__.get(name) == "bool":
                self._keep(name, read_flag(name, getattr(self, name)))


class OfOneProcess:
    """Base class of objects with threads, connections or maps: they cannot be pickled or copied."""

    _remedy: ClassVar[str]

    def __reduce__(self) -> NoReturn:
        """Refuse ``pickle``, ``copy.copy`` and ``copy.deepcopy``.

        Raises:
            TypeError: Always, with a remedy. Code that tests whether a value can be pickled expects this class.
        """
        raise TypeError(f"{type(self).__name__} can be neither pickled nor copied: {self._remedy}")


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Check that a setting is an ``int`` from ``low`` to ``high``; bools are refused.

    Raises:
        SettingsError: The setting is of another type or out of range.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SettingsError(f"{name} is {value!r}; it must be an integer from {low} to {high}")


def check_seconds(name: str, value: object) -> None:
    """Check that a setting is a finite number of seconds above 0.

    Raises:
        SettingsError: The setting is of another type or out of range.
    """
    if not is_number(value) or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
        raise SettingsError(f"{name} is {value!r}; it must be a number of seconds above 0")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Check that a setting is one of some words.

    Raises:
        SettingsError: The setting is no string, or another word.
    """
    if not isinstance(value, str) or value not in choices:
        meant = did_you_mean(value, choices)
        raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(choices)}{meant}")


def known_names(name: object, known: Iterable[object]) -> str:
    """Return the end of a message about an unknown name.

    For example ``known: ['train', 'val']; did you mean 'train'?``.
    """
    known = list(known)
    return f"known: {known}{did_you_mean(name, known)}"


def known_words(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name of TF-GNN's files; see ``known_names``.

    For example ``known: author, paper; did you mean 'paper'?``.
    """
    known = list(known)
    return f"known: {', '.join(known) or 'none'}{did_you_mean(name, known)}"


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a suggestion of the known name that is closest to ``name``; "" if none is close.

    For example ``; did you mean 'train'?``.

    Args:
        name: The unknown name: a string, or an edge type as three strings or ``src__rel__dst``.
        known: Valid names: strings, or edge types as three strings.
    """
    by_text = {_text_of(one): one for one in known}
    found = difflib.get_close_matches(_text_of(name), by_text, n=1)
    return f"; did you mean {by_text[found[0]]!r}?" if found else ""


def _text_of(name: object) -> str:
    return ("__".join(map(str, name)) if isinstance(name, list | tuple) else str(name)).casefold()


def read_integer(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Convert a setting to ``int``.

    The value may be an integer of Python or numpy, or a tensor of one integer without dimensions.

    Raises:
        SettingsError: The value is not an integer (True and 1.0 are not), or outside ``low`` to ``high``.
    """
    number = _plain(value)
    is_integer = isinstance(number, Integral) and not isinstance(number, bool)
    if not is_integer or (low is not None and number < low) or (high is not None and number > high):
        wanted = "" if low is None else f", {low} or above" if high is None else f", {low} to {high}"
        raise SettingsError(f"{name} is {number!r}; it must be an integer{wanted}")
    return int(number)


def is_number(value: object) -> bool:
    """Return whether a value is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def read_flag(name: str, value: object) -> bool:
    """Convert a setting to ``bool``: a bool of Python, numpy or a tensor without dimensions.

    Raises:
        SettingsError: The value is neither True nor False.
    """
    flag = _plain(value)
    if not isinstance(flag, bool):
        raise SettingsError(f"{name} is {value!r}; it must be True or False")
    return flag


def _plain(value: Any) -> Any:
    """Convert numpy scalars and tensors without dimensions to Python values.

    Neither numpy nor torch is imported.
    """
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
