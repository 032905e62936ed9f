"""Finds the names of a package in the modules that have them, when they are first used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def find_name(
    package: str,
    name: str,
    module_of: Mapping[str, str],
    refused: Mapping[str, str],
    error: type[Exception] = AttributeError,
) -> Any:
    """The value of a public name.

    Args:
        package: The package.
        name: The name; that of a module of the package, too.
        module_of: Name to the module that has it; to itself where it is a module.
        refused: Names that are not here, to the reason or to what to use instead.
        error: What is raised for these; ``from … import name`` hides the message of an AttributeError.

    Raises:
        AttributeError: There is no such name.
        Exception: The ``error`` of a name that is refused.
    """
    if name in module_of:
        module = import_module(module_of[name])
        return module if module_of[name] == f"{package}.{name}" else getattr(module, name)
    if name in refused:
        raise error(f"{package}.{name} is not here: {refused[name]}")
    known = f"; it has {', '.join(sorted(module_of))}" if module_of else ""
    raise AttributeError(f"module {package!r} has no attribute {name!r}{known}")
