"""Checks that the code of the documents still works.

Every ``python`` block of README.md and docs/*.md is executed, the blocks of one document in order and in one namespace,
in a folder that holds nothing but ``examples``. Of ``bash`` blocks, each ``hopstream`` command must have its verb and
its options. A comment right before a block leaves it out: ``<!-- skip: reason -->``, with the reason.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from hopstream import ExampleLoader
from hopstream.cli import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    p
    for p in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/reference").glob("*.md")),
    )
    if p.exists()
]
FENCE = re.compile(r"^```([\w{}-]*)\s*$")
SKIP = re.compile(r"^<!--\s*skip:(.*?)-->$")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, its first line (from 1), and why it is skipped, if it is."""

    language: str
    text: str
    line: int
    skip_reason: str | None


def read_blocks(text: str) -> list[Block]:
    """All fenced blocks of a document.

    A block that never ends, or a skip without a reason, raises ``ValueError``.
    """
    blocks: list[Block] = []
    lines = text.splitlines()
    at, last_text = 0, ""
    while at < len(lines):
        opening = FENCE.match(lines[at])
        if not opening:
            last_text = lines[at].strip() or last_text
            at += 1
            continue
        end = next((i for i in range(at + 1, len(lines)) if lines[i].rstrip() == "```"), None)
        if end is None:
            raise ValueError(f"the block at line {at + 1} never ends")
        skip = SKIP.match(last_text)
        if skip and not skip.group(1).strip():
            raise ValueError(f"the block at line {at + 1} is skipped without a reason")
        reason = skip.group(1).strip() if skip else None
        blocks.append(Block(opening.group(1), "\n".join(lines[at + 1 : end]) + "\n", at + 2, reason))
        at, last_text = end + 1, "```"
    return blocks


def read_commands(block: Block) -> list[list[str]]:
    """The ``hopstream`` commands of a bash block, as words, without output lines.

    Continued lines are joined.
    """
    joined = block.text.replace("\\\n", " ")
    commands = []
    for line in joined.splitlines():
        command = line.removeprefix("$ ").split(" | ")[0].split(" && ")[-1].strip()
        if command.startswith("hopstream "):
            commands.append(shlex.split(command, comments=True))
    return commands


def shown_commands() -> list[tuple[str, list[str]]]:
    """Every command of every document, with its place."""
    found = []
    for path in DOCUMENTS:
        for block in read_blocks(path.read_text()):
            if block.language in ("bash", "console", "sh", "shell") and block.skip_reason is None:
                found += [(f"{path.relative_to(ROOT)}:{block.line}", command) for command in read_commands(block)]
    return found


GROUPS = ("tfgnn",)
"""Verbs that have verbs of their own."""


@functools.cache
def help_of(verb: str) -> str:
    """Output of ``hopstream <verb> --help`` for one or two words; fails if there is no such verb."""
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
        patch.setenv("COLUMNS", "300")
        status = main([*verb.split(), "--help"])
    assert status == 0, f"there is no verb {verb!r}"
    return shown.getvalue()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in read_blocks(path.read_text()):
        if block.language == "python" and block.skip_reason is None:
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(path), "exec"), namespace)


def test_the_commands_of_the_tfgnn_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = read_blocks((ROOT / "docs/from-tfgnn.md").read_text())
    exec(next(block.text for block in blocks if block.language == "python"), {})
    for block in blocks:
        if block.language == "bash":
            for _, *words in read_commands(block):
                workers = [] if words[0] == "partition" else ["--workers", "0"]  # it has workers with --memory only
                assert main([*words, *workers]) == 0
    with ExampleLoader("samples/train@2", batch_size=3) as loader:
        assert next(iter(loader)).num_graphs == 3


def test_shown_commands_exist():
    for where, (_, verb, *rest) in shown_commands():
        if verb.startswith("-"):
            continue
        shown = help_of(f"{verb} {rest[0]}" if verb in GROUPS else verb)
        options = [word.split("=")[0] for word in rest if word.startswith("--")]
        missing = [option for option in options if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", shown)]
        assert not missing, f"{where}: hopstream {verb} has no {missing}"


def test_blocks_are_found_with_their_lines_and_reasons():
    text = (
        "# A\n```python\nx = 1\n```\n\n<!-- skip: needs a cluster -->\n\n```bash\n$ hopstream a \\\n  --b 1\nout\n```\n"
    )
    assert read_blocks(text) == [
        Block("python", "x = 1\n", 3, None),
        Block("bash", "$ hopstream a \\\n  --b 1\nout\n", 9, "needs a cluster"),
    ]
    assert read_commands(read_blocks(text)[1]) == [["hopstream", "a", "--b", "1"]]


@pytest.mark.parametrize("text", ["```python\nx = 1\n", "<!-- skip: -->\n```python\n```\n"], ids=["open", "no reason"])
def test_a_broken_document_is_refused(text: str):
    with pytest.raises(ValueError, match="line"):
        read_blocks(text)
