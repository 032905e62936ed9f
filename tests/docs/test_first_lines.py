"""Checks the first line of every docstring: a statement of at most 100 characters, not a question."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_LENGTH = 100
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples"])
def test_first_lines_are_short_statements(folder: str):
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, DEFINITIONS) else None
            first = (text or "").partition("\n")[0]
            if "?" in first or len(first) > MAX_LENGTH:
                wrong.append(f"{path.relative_to(ROOT)}: {first}")
    assert wrong == []
