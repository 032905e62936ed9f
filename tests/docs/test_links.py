"""Checks that every link of the documents has a target.

Links to other places on the web are not followed. A link to a heading is checked against the names that GitHub gives to
headings.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT, ROOT / "docs", ROOT / "docs" / "reference", ROOT / "docs" / "contributing", ROOT / "examples" / "data")
DOCUMENTS = [path for folder in FOLDERS for path in sorted(folder.glob("*.md"))]
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")


def without_blocks(text: str) -> str:
    """The text without fenced blocks."""
    return re.sub(r"^```.*?^```\s*$", "", text, flags=re.MULTILINE | re.DOTALL)


def heading_names(text: str) -> set[str]:
    """The anchors of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    """The links of a document that lead to no file, or to no heading of it."""
    broken = []
    for link in LINK.findall(without_blocks(path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, heading = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (heading and heading not in heading_names(target.read_text(encoding="utf-8"))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path):
    assert broken_links(path) == []


def test_broken_links_are_found(tmp_path: Path):
    (tmp_path / "b.md").write_text("# One `two`: three's\n```\n# not this\n```\n")
    (tmp_path / "a.md").write_text("[1](b.md) [2](b.md#one-two-threes) ![3](c.svg)\n[4](#none) [5](https://x.y/z)")
    assert broken_links(tmp_path / "a.md") == ["c.svg", "#none"]
