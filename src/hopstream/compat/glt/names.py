"""Finder of a package's names in their modules, on first use."""

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
    """Return the value of a public name.

    Args:
        package: The package.
        name: The name, which may be a module of the package.
        module_of: Name to its module; the name of a module to that module.
        refused: Names that are missing here, to the reason or the alternative.
        error: Error of refused names; ``from … import name`` hides the message of an AttributeError.

    Raises:
        AttributeError: There is no such name.
        Exception: ``error``, for a refused name.
    """
    if name in module_of:
        module = import_module(module_of[name])
        return module if module_of[name] == f"{package}.{name}" else getattr(module, name)
    if name in refused:
        raise error(f"{package}.{name} is not available: {refused[name]}")
    known = f"; it has {', '.join(sorted(module_of))}" if module_of else ""
    raise AttributeError(f"module {package!r} has no attribute {name!r}{known}")
