"""Checks that every verb fits any machine by default and that its stated least memory is enough."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopstream
from hopstream.assign.run import assign_folder
from hopstream.cli import main
from hopstream.engine import settings
from hopstream.engine.machine import Machine
from hopstream.engine.settings import Allotment, memory_bytes
from hopstream.ingest.chunked import open_chunked, write_chunked
from hopstream.preparation.append.run import append
from hopstream.preparation.dataset_job_folder import REST_BYTES

GB = 10**9
SPEC = """
seed_op { op_name: "seed" node_set_name: "node" }
sampling_ops { op_name: "hop" input_op_names: "seed" edge_set_name: "to" sample_size: 2 strategy: RANDOM_UNIFORM }
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small graph in every format that a verb reads."""
    folder = tmp_path_factory.mktemp("world")
    graph = hopstream.rmat_graph(7, edges_per_node=4, num_features=2)
    write_chunked(graph, folder / "chunks", num_chunks=2)
    for name in ("parts", "grown"):
        hopstream.write_parts(graph, folder / name, num_parts=2, method="hash", direction="both")
    append(folder / "grown", edges={"node__to__node": (np.array([1, 2]), np.array([3, 4]))})
    (folder / "owners").mkdir()
    np.save(folder / "owners/node.npy", np.arange(128) % 2)
    (folder / "tables").mkdir()
    (folder / "tables/nodes.csv").write_text("id\n" + "\n".join(f"n{k}" for k in range(9)))
    (folder / "tables/edges.csv").write_text("src,dst\n" + "\n".join(f"n{k},n{k // 2}" for k in range(9)))
    (folder / "tables/metadata.json").write_text(
        '{"nodes": {"node": {"files": "nodes.csv", "id": "id"}}, "edges": [{"type": ["node", "to", "node"], '
        '"files": "edges.csv", "src": "src", "dst": "dst"}]}'
    )
    (folder / "spec.pbtxt").write_text(SPEC)
    return folder


def words_of(verb: str, world: Path, out: Path) -> list[str | Path]:
    """Command of a verb, whose result is written to a new folder."""
    if verb in ("halo", "compact"):
        shutil.copytree(world / ("grown" if verb == "compact" else "parts"), out)
    if verb == "export":
        out.mkdir()
    words: dict[str, list[str | Path]] = {
        "chunk": [world / "tables", "--out", out],
        "assign": [world / "chunks", "--out", out, "--parts", "2"],
        "dispatch": ["--in-dir", world / "chunks", "--partitions-dir", world / "owners", "--out-dir", out,
                     "--halo-hops", "1"],
        "partition": [world / "chunks", "--out", out, "--parts", "2", "--halo-hops", "1"],
        "verify": [world / "parts", "--against", world / "chunks"],
        "reshard": [world / "parts", "--out", out, "--parts", "3", "--method", "ldg"],
        "compact": [out],
        "halo": [out, "--budget", "1kB"],
        "export": [world / "parts", "--out", out / "samples", "--spec", world / "spec.pbtxt"],
    }  # fmt: skip
    return [verb, *words[verb]]


VERBS = ("chunk", "assign", "dispatch", "partition", "verify", "reshard", "compact", "halo", "export")
HAVE_WORKERS = ("chunk", "dispatch", "partition", "reshard", "compact", "export")


@pytest.mark.parametrize(
    ("verb", "num_workers"),
    [(verb, 0) for verb in VERBS] + [pytest.param(verb, 3, marks=pytest.mark.slow) for verb in HAVE_WORKERS],
)
def test_the_reported_minimum_memory_is_sufficient_and_necessary(world, tmp_path, capsys, verb, num_workers):
    workers = ["--workers", str(num_workers)] if verb in HAVE_WORKERS else []

    def run(memory: str, name: str) -> tuple[int, str]:
        status = main([*map(str, words_of(verb, world, tmp_path / name)), "--memory", memory, *workers])
        return status, capsys.readouterr().err

    status, said = run("1kB", "refused")
    found = re.search(r"at least (\S+ [MG]B)", said)
    assert status == 2 and found, said
    assert run(str(memory_bytes(found[1]) - 1), "less")[0] == 2
    assert run(found[1], "least")[0] == 0


def test_tables_report_a_minimum_memory_known_before_reading(world, tmp_path, capsys):
    words = ["prepare", world / "tables", "--out", tmp_path / "out", "--parts", "2", "--method", "ldg"]
    assert main([*map(str, words), "--memory", "1kB", "--workers", "0"]) == 2
    said = capsys.readouterr().err
    assert "method 'ldg' needs at least 445.0 MB: give more memory; this is the least, and the nodes and edges" in said


class PlannedError(Exception):
    """Raised when a plan is made, in place of the work."""


PLANNERS: dict[str, Callable[[Path, Path, Callable[..., None]], Any]] = {
    "chunk": lambda world, out, tell: hopstream.dataset.chunk_tables(world / "tables", out, on_estimate=tell),
    "dispatch": lambda world, out, tell: hopstream.dataset.dispatch(
        world / "chunks", world / "owners", out, halo=hopstream.dataset.HaloSettings(), on_estimate=tell
    ),
    "prepare": lambda world, out, tell: hopstream.prepare(world / "chunks", out, num_parts=2, on_news=tell),
    "prepare tables": lambda world, out, tell: hopstream.prepare(world / "tables", out, num_parts=2, on_news=tell),
    "reshard": lambda world, out, tell: hopstream.dataset.reshard(world / "parts", out, num_parts=3, on_estimate=tell),
    "compact": lambda world, out, tell: hopstream.dataset.compact(world / "grown", on_estimate=tell),
    "halo": lambda world, out, tell: hopstream.dataset.add_halo(world / "parts", on_estimate=tell),
}


CHOOSERS: dict[str, tuple[str, Callable[[Path, Path], Any]]] = {
    "assign": (
        "assign.run", lambda world, out: assign_folder(open_chunked(world / "chunks"), out, num_parts=2)
    ),
    "verify": ("preparation.audit.run", lambda world, out: hopstream.verify_dataset(world / "parts")),
    "export": (
        "export.run",
        lambda world, out: hopstream.export_subgraphs(world / "parts", world / "spec.pbtxt", out / "samples"),
    ),
    "place": (
        "dataset.copying.delivery",
        lambda world, out: hopstream.dataset.place(world / "parts", [out / "a", out / "b"]),
    ),
    "pull": (
        "dataset.copying.delivery",
        lambda world, out: hopstream.dataset.pull(world / "parts", out / "c", parts=[0]),
    ),
}  # fmt: skip
"""For verbs that print no plan, the module that chooses memory and workers."""
ONE_PROCESS = ("halo", "assign", "verify")


@pytest.mark.parametrize(
    ("num_processors", "free_bytes"), [(1, 2 * GB), (192, 2 * GB), (64, 16 * GB), (2, 512 * GB), (192, 512 * GB)]
)
def test_defaults_fit_any_machine(world, tmp_path, monkeypatch, num_processors, free_bytes):
    machine = Machine(num_processors=num_processors, free_bytes=free_bytes)
    for module in (settings, import_module("hopstream.preparation.prepare")):
        monkeypatch.setattr(module, "this_machine", lambda: machine)
    got: dict[str, Allotment] = {}

    for verb, plan in PLANNERS.items():

        def tell(news: Any, cut: Any = None, *, verb: str = verb) -> None:
            got[verb] = news.work
            if cut is not None:
                taken = news.work.num_workers * REST_BYTES + news.work.num_working * cut.budget_bytes
                assert 0 < taken < news.work.memory_bytes, verb
            raise PlannedError

        with pytest.raises(PlannedError):
            plan(world, tmp_path / verb, tell)
    for verb, (module, call) in CHOOSERS.items():

        def choose(*args: Any, verb: str = verb) -> None:
            got[verb] = settings.allot(*args)
            raise PlannedError

        with monkeypatch.context() as patch, pytest.raises(PlannedError):
            patch.setattr(import_module(f"hopstream.{module}"), "allot", choose)
            (tmp_path / verb).mkdir(exist_ok=True)
            call(world, tmp_path / verb)
    assert set(got) == {*PLANNERS, *CHOOSERS}
    for verb, work in got.items():
        assert work.memory_bytes == int(0.6 * free_bytes), verb
        assert work.num_workers <= num_processors
        if free_bytes == 512 * GB and verb not in ONE_PROCESS:
            assert work.num_workers == num_processors, verb


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"partition"}))
def test_a_machine_with_too_little_memory_is_refused(world, tmp_path, monkeypatch, capsys, verb):
    """``partition`` is left out, as it holds the graph in memory without ``--memory``."""
    tiny = Machine(num_processors=64, free_bytes=100 * 10**6)
    for module in (settings, import_module("hopstream.preparation.prepare")):
        monkeypatch.setattr(module, "this_machine", lambda: tiny)
    assert main([*map(str, words_of(verb, world, tmp_path / "out"))]) == 2
    assert "100.0 MB of memory are free; " in capsys.readouterr().err


def test_the_plan_shows_the_chosen_memory_and_its_reason(world, tmp_path, monkeypatch, capsys):
    small = Machine(num_processors=64, free_bytes=700 * 10**6)
    for module in (settings, import_module("hopstream.preparation.prepare")):
        monkeypatch.setattr(module, "this_machine", lambda: small)
    assert main([*map(str, words_of("dispatch", world, tmp_path / "out"))]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[0] == "memory")
    assert line.split(None, 1)[1].startswith("420.0 MB (60 % of 700.0 MB free) for all processes, ")
    assert line.endswith("; none of 64 workers fit")
