"""Fixtures that run the command, in this process and in child processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.cli import main, progress
from hopstream.cli.up import Child, Children
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts

DEADLINE_S = 110.0
"""For what takes seconds, but for the first server of a run where ``tests.warm`` was not run before: it compiles
kernels for 45 s of one core, which others may use too. A test may take 120 s in all."""
POLL_S = 0.2


@dataclass(frozen=True)
class Result:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The JSON objects on stdout, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def fact(self, key: str, value: object = ...) -> dict[str, Any]:
        """The first object that has a key, with a value if one is given."""
        return next(f for f in self.facts if key in f and (value is ... or f[key] == value))


RunCommand = Callable[..., Result]


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Run the command in this process, without the progress lines of long work."""
    monkeypatch.setattr(progress, "FIRST_LINE_S", 3600.0)

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        status = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


class Processes:
    """Start commands in child processes and wait for their output."""

    def __init__(self, children: Children) -> None:
        self._children = children

    def start(self, *arguments: object, environment: dict[str, str] | None = None) -> Child:
        words = ["-m", "hopstream.cli", *map(str, arguments)]
        return self._children.start(" ".join(words), words, {**os.environ, **(environment or {})})

    def wait_for(self, child: Child, is_done: Callable[[], bool]) -> None:
        """Wait until a condition holds; fail if the command ends before, or after a deadline."""
        ends = time.monotonic() + DEADLINE_S
        while not is_done():
            assert not child.has_ended, f"{child.ending_text()}\nsaid: {child.lines}"
            assert time.monotonic() < ends, f"waited {DEADLINE_S} s; {child.ending_text()}\nsaid: {child.lines}"
            self._children.wait(POLL_S)

    def wait_for_fact(self, child: Child, key: str, value: object = ...) -> dict[str, Any]:
        """Wait for a JSON object with a key, and its value if one is given."""

        def found() -> list[dict[str, Any]]:
            facts = [json.loads(line) for line in child.lines]
            return [f for f in facts if key in f and (value is ... or f[key] == value)]

        self.wait_for(child, lambda: bool(found()))
        return found()[0]

    def wait_for_end(self, child: Child) -> Result:
        """Wait until a command ends of its own accord."""
        ends = time.monotonic() + DEADLINE_S
        while not child.has_ended:
            assert time.monotonic() < ends, f"waited {DEADLINE_S} s; {child.ending_text()}\nsaid: {child.lines}"
            self._children.wait(POLL_S)
        # Whether and how long kernels compile depends on earlier runs on this machine.
        hints = ("compiling kernels: first start", "WARNING: waiting; the first start")
        errors = [line for line in child.errors if not any(hint in line for hint in hints)]
        return Result(child.process.returncode, "\n".join(child.lines), "\n".join(errors))


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Commands in child processes; the fixture ends those that still run."""
    with Children(grace_s=DEADLINE_S) as children:
        yield Processes(children)


@pytest.fixture
def parts(typed_graph: Graph, tmp_path: Path) -> Path:
    """The typed graph in two parts, both directions."""
    write_parts(typed_graph, tmp_path / "parts", num_parts=2, method="hash", direction="both")
    return tmp_path / "parts"


NAME = "<b>&\"'é"


@pytest.fixture
def odd_graph() -> Graph:
    """Graph with empty types and names that a page must escape and a terminal must not read as markup."""
    return Graph(
        nodes={
            NAME: NodeTable(num_nodes=5, features={"[red]x": np.zeros((5, 2), np.float32)}),
            "none": NodeTable(num_nodes=0),
        },
        edges={
            (NAME, "<i>", NAME): EdgeTable(src_keys=np.array([0, 0, 1]), dst_keys=np.array([1, 1, 1])),
            ("none", "to", "none"): EdgeTable(src_keys=np.empty(0, np.int64), dst_keys=np.empty(0, np.int64)),
        },
        splits={"none": {"train": np.empty(0, np.int64)}, NAME: {"</title>": np.arange(5)}},
    ).check()


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder of CSV tables: four papers, two authors, one edge whose end is no paper."""
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "papers.csv").write_text("id,year,split\np1,2001,train\np2,2002,train\np3,2003,val\np4,2004,\n")
    (folder / "authors.csv").write_text("id,h\n10,0.5\n20,1.5\n")
    (folder / "cites.csv").write_text("from,to\np1,p2\np1,p3\np2,p3\np9,p1\n")
    (folder / "writes.csv").write_text("author,paper,weight\n10,p1,1.0\n20,p1,2.0\n20,p4,3.0\n")
    metadata = {
        "nodes": {
            "paper": {"files": "papers.csv", "id": "id", "features": ["year"], "split": "split"},
            "author": {"files": "authors.csv", "id": "id", "features": ["h"]},
        },
        "edges": [
            {"type": ["paper", "cites", "paper"], "files": "cites.csv", "src": "from", "dst": "to"},
            {
                "type": ["author", "writes", "paper"], "files": "writes.csv", "src": "author", "dst": "paper",
                "features": ["weight"],
            },
        ],
    }  # fmt: skip
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder
