"""Checks that each room keeps to its own libraries where the import linter cannot see it.

The import linter sees ``pyarrow`` as a whole. Only our own transport asks servers, and no other library.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.circles import circles

SOURCE = Path(__file__).parents[1] / "src" / "hopstream"
FOREIGN_TRANSPORTS = {"pyarrow.flight", "grpc"}
FORBIDDEN_CALLS = {"eval", "exec"}
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def imported_modules(tree: ast.AST) -> set[str]:
    """Every module, and every name of a module, that a file imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def source_files(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Every source file that has one of some words in it, relative to the package, and its syntax tree."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if any(word in text for word in words):
            yield path.relative_to(SOURCE), ast.parse(text)


def test_no_module_imports_flight_or_grpc():
    offenders = [
        f"{path} imports {module}"
        for path, tree in source_files("flight", "grpc")
        for module in imported_modules(tree)
        if any(f"{module}.".startswith(f"{foreign}.") for foreign in FOREIGN_TRANSPORTS)
    ]
    assert offenders == []


def test_nothing_executable_is_read_or_written():
    offenders = []
    for path, tree in source_files(*FORBIDDEN_CALLS, *FORBIDDEN_MODULES, "allow_pickle"):
        offenders += [f"{path} imports {m}" for m in imported_modules(tree) if m.split(".")[0] in FORBIDDEN_MODULES]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                offenders.append(f"{path}:{node.lineno} calls {node.func.id}")
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                offenders.append(f"{path}:{node.lineno} allows pickle")
    assert offenders == []


def test_every_module_has_a_one_line_summary():
    offenders = []
    for path in sorted(SOURCE.rglob("*.py")):
        first = path.read_text().partition("\n")[0]
        is_empty_init = path.name == "__init__.py" and not first
        if not is_empty_init and not re.fullmatch(r'"""[^"]+[.?](""")?', first):
            offenders.append(f"{path.relative_to(SOURCE)}: {first}")
    assert offenders == []


def test_modules_have_no_import_cycles():
    assert circles("hopstream") == []


def test_import_cycles_are_found_through_functions_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "planted"
    (package / "room").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "room/__init__": "def late():\n    import planted.room.one\n",
        "room/one": "from planted import two\n",
        "two": "def late():\n    from planted.room import late\n",
        "three": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planted.four import x\n",
        "four": "import planted.three\n",
    }.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert circles("planted") == [["planted.room", "planted.room.one", "planted.two"]]
