"""Functions whose arguments are the fields of a record.

The record declares each option once: name, type, default, meaning and check. The function gets its signature, for type
checkers and at run time, and its documentation from the record.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from hopstream.checks import did_you_mean
from hopstream.errors import SettingsError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
FIELD = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def called_with(
    record: Callable[P, R], other: Mapping[str, str] = MappingProxyType({}),
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[[R], T]], Callable[P, T]]:  # fmt: skip
    """Decorate a function that takes a record, so that it takes the fields of the record as arguments.

    Args:
        record: The dataclass of the arguments.
        other: Name of a refused option, for example one of another function, to a remedy for the message.
        aliases: See ``Arguments``.
    """
    arguments = Arguments(record, other, aliases)

    def decorate(function: Callable[[R], T]) -> Callable[P, T]:
        @wraps(function)
        def called(*args: P.args, **options: P.kwargs) -> T:
            return function(arguments.record(**arguments.bind(function.__name__, args, options)))

        arguments.describe(called, [])
        return called

    return decorate


class Arguments:
    """Reader of the arguments of a call into a record."""

    def __init__(
        self, record: Callable[..., Any], other: Mapping[str, str], aliases: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Read into a record.

        Args:
            record: The dataclass of the arguments.
            other: Name of a refused option to a remedy.
            aliases: Another library's name of an option to its name here, or to "" if it has no effect here.
        """
        self.record = record
        self._other = other
        self._aliases = {name: own for name, own in aliases.items() if name not in other}
        signature = inspect.signature(record)
        known = [parameter for name, parameter in signature.parameters.items() if name not in other]
        self._signature = signature.replace(parameters=known, return_annotation=inspect.Signature.empty)

    def bind(self, door: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name.

        Args:
            door: Name of the called class or function, for messages.
            args: Positional arguments.
            options: Keyword arguments.

        Raises:
            SettingsError: See ``refuse_unknown``.
            TypeError: See ``refuse_unknown``; or an argument is missing or given twice, or there are too many.
        """
        options = self._renamed(door, options)
        refuse_unknown(door, options, self._signature.parameters, self._other)
        try:
            return dict(self._signature.bind(*args, **options).arguments)
        except TypeError as error:
            raise TypeError(f"{door}: {error}") from None

    def _renamed(self, door: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with aliases replaced.

        Raises:
            TypeError: An option and its alias are both given.
        """
        found: dict[str, Any] = {}
        names: dict[str, str] = {}
        known = {"", *self._signature.parameters}
        for given, value in options.items():
            if given in self._other and value is None:
                continue  # another library's default
            name = given if given in known or self._aliases.get(given) not in known else self._aliases[given]
            if name in found:
                raise TypeError(f"{door}: {names[name]}= and {given}= are the same option; give one of them")
            if name:
                found[name], names[name] = value, given
        return found

    def describe(self, function: Any, first: list[inspect.Parameter]) -> None:
        """Set a function's signature to the record's, and document the fields in its docstring."""
        function.__signature__ = self._signature.replace(parameters=[*first, *self._signature.parameters.values()])
        described: dict[str, str] = {}
        for one in reversed(inspect.getmro(self.record)):  # type: ignore[arg-type]  # a dataclass
            _, _, fields = inspect.cleandoc(one.__dict__.get("__doc__") or "").partition("\nAttributes:\n")
            described.update(FIELD.findall(fields.partition("\n\n")[0]))
        args = [f"    {name}: {described[name]}" for name in self._signature.parameters if name in described]
        head, raises, rest = inspect.cleandoc(function.__doc__ or "").partition("\nRaises:")
        function.__doc__ = "\n".join([head.rstrip(), "", "Args:", *args, raises + rest])


def refuse_unknown(door: str, given: Iterable[str], known: Iterable[str], other: Mapping[str, str]) -> None:
    """Refuse options that a class or function does not have.

    Args:
        door: Name of the class or function.
        given: Names of the given options.
        known: Names of the options of the class or function.
        other: Name of a refused option, for example one of another loader, to a remedy for the message.

    Raises:
        SettingsError: An option is in ``other``; the message has the remedy.
        TypeError: An option is unknown; the message suggests the closest known one.
    """
    known = set(known)
    for name in given:
        if name in known:
            continue
        if name in other:
            raise SettingsError(f"{name}= is no option of {door}: {other[name]}")
        raise TypeError(f"{door} got an unexpected keyword argument {name!r}{did_you_mean(name, known)}")
