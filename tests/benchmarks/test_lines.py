"""Checks that lines of code are counted without words."""

from __future__ import annotations

from benchmarks.lines import count, num_code_lines

TEXT = '''"""A module.

Two lines."""

# A comment.
X = """one
two"""  # both are code


def f(a,
      b):
    """A docstring."""

    return a  # one
'''


def test_comments_docstrings_and_blanks_do_not_count() -> None:
    assert num_code_lines(TEXT) == 5
    lines, files = count([("src/hopstream/load/a.py", TEXT), ("src/hopstream/uris.py", "x = 1\n"), ("tests/a.py", "")])
    assert lines == {"src/load": 5, "src/uris": 1, "tests": 0}
    assert files == {"src/load": 1, "src/uris": 1, "tests": 1}
