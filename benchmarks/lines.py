"""Counts lines of code per package, without comments, docstrings and blank lines.

    python -m benchmarks.lines [REVISION]

With a git revision, the table also shows each package's difference to that revision.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable

from benchmarks.harness import ROOT

WORDS = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
"""Tokens that do not count as code."""


def num_code_lines(text: str) -> int:
    """Count the lines that hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in WORDS:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def room_of(path: str) -> str:
    """Package of a source file, or the first folder of another file."""
    words = path.split("/")
    if words[:2] == ["src", "hopstream"]:
        return f"src/{words[2].removesuffix('.py')}"
    return words[0]


def count(files: Iterable[tuple[str, str]]) -> tuple[Counter[str], Counter[str]]:
    """Count lines and files per package, from paths with their texts."""
    lines: Counter[str] = Counter()
    num_files: Counter[str] = Counter()
    for path, text in files:
        lines[room_of(path)] += num_code_lines(text)
        num_files[room_of(path)] += 1
    return lines, num_files


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print a table."""
    paths = [path for path in _git("ls-files", "*.py").splitlines() if (ROOT / path).is_file()]
    lines, num_files = count((path, (ROOT / path).read_text()) for path in paths)
    before: Counter[str] = Counter()
    if sys.argv[1:]:
        old = [path for path in _git("ls-tree", "-r", "--name-only", sys.argv[1]).splitlines() if path.endswith(".py")]
        before, _ = count((path, _git("show", f"{sys.argv[1]}:{path}")) for path in old)
    for room in sorted({*lines, *before}):
        change = f" {lines[room] - before[room]:+7,}" if before else ""
        print(f"{room:<20} {lines[room]:>7,} lines {num_files[room]:>4} files{change}")
    src = [room for room in {*lines, *before} if room.startswith("src/")]
    total, old_total = sum(lines[room] for room in src), sum(before[room] for room in src)
    change = f" {total - old_total:+7,}" if before else ""
    print(f"{'src':<20} {total:>7,} lines {sum(num_files[room] for room in src):>4} files{change}")


if __name__ == "__main__":
    main()
