"""Public names of a package: loads each from its module on first use, by the stub ``__init__.pyi``.

Type checkers read the same stub, so each public name is written once. The ``lazy_loader`` package works alike, but
refuses names from outside the package.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from hopstream.checks import did_you_mean


def public_names(package: str, init_path: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        package: Name of the package, ``__name__``.
        init_path: Its ``__file__``; the stub lies beside it and holds lines ``from module import name as name``.
    """
    tree = ast.parse(Path(init_path).with_suffix(".pyi").read_text(encoding="utf-8"))
    module_of = {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.asname
    }
    names = sorted(module_of)

    def get(name: str) -> object:
        """Load a public name, or a module of the package, on first use."""
        module = import_module(package)
        if name not in module_of:
            meant = did_you_mean(name, names) or f"; it has {', '.join(names)}"
            raise AttributeError(f"module {package!r} has no attribute {name!r}{meant}")
        if module_of[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(module_of[name]), name)
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*names, *(name for name in vars(import_module(package)) if name[:2] == "__")}), names
