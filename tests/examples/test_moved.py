"""Checks scripts moved from other libraries: the lines that change, and the results on both sides."""

from __future__ import annotations

import csv
import difflib
import gzip
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.typing as pyg

import hopstream
from hopstream.compat.dgl.distributed import read_partitions
from hopstream.compat.pyg import DatasetSampler
from tests.examples.real_data import EXAMPLES, real_data
from tests.examples.test_movielens import as_csv, write_movielens

MOVED = EXAMPLES / "moved"
PAIR = re.compile(
    r"\[before\]\(\.\./examples/moved/(\S+)\), \[after\]\(\.\./examples/moved/(\S+)\) \| (\d+) of (\d+) \|"
)
"""A row of the table in the documents: both files, and how many lines of the first one change."""
CORA = EXAMPLES / "data/cora.npz"
RATES = ("user", "rates", "movie")
RUN_S = 1200


def test_as_many_lines_change_as_the_documents_say():
    told = PAIR.findall((EXAMPLES.parent / "docs/examples.md").read_text())
    found = []
    for before, after, *_ in told:
        lines, moved = ((MOVED / name).read_text().splitlines() for name in (before, after))
        changed = [line for line in difflib.ndiff(lines, moved) if line.startswith("- ") and line[2:].strip()]
        found.append((before, after, str(len(changed)), str(len(lines))))
    assert found == told
    assert {Path(before).parent.name for before, *_ in told} == {folder.name for folder in MOVED.iterdir()}


def accuracy(printed: str) -> float:
    (found,) = re.findall(r"test accuracy (0\.\d+)", printed)
    return float(found)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread: for small matrices, threads wait longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Cora in two parts."""
    hopstream.write_parts(hopstream.read_graph(CORA), tmp_path / "cora", num_parts=2, method="hash")
    return tmp_path / "cora"


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_a_lightning_module_learns_after_as_before(
    parts: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """If PyG has no library to sample with, Hopstream samples for PyG's data module."""

    class Sampler(DatasetSampler):
        def __init__(self, data: Any, num_neighbors: list[int], share_memory: bool = False) -> None:
            assert data.num_nodes == 2708
            super().__init__(parts, num_neighbors)

    if not (pyg.WITH_PYG_LIB or pyg.WITH_TORCH_SPARSE):
        monkeypatch.setattr("torch_geometric.data.lightning.datamodule.NeighborSampler", Sampler)
    for name, source in (("before", CORA), ("after", parts)):
        runpy.run_path(str(MOVED / f"lightning/{name}.py"))["main"](str(source))
        assert 0.75 < accuracy(capsys.readouterr().out) < 0.85, name


def write_tables(folder: Path) -> None:
    """Complete tables in the form of MovieLens for the moved description, and add the description.

    A movie keeps its first genre only: GraphStorm 0.4.2 refuses a ``separator`` for CSV and Parquet files.
    """
    for path in folder.glob("*.csv.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    movies = [(row["movieId"], row["genres"].split("|")[0]) for row in rows_of(folder / "movies.csv")]
    users = sorted({int(row["userId"]) for row in rows_of(folder / "ratings.csv")})
    (folder / "movies.csv").write_text(as_csv([("movieId", "genre"), *movies]))
    (folder / "users.csv").write_text(as_csv([("userId",), *((user,) for user in users)]))
    shutil.copy(MOVED / "graphstorm/after.json", folder / "metadata.json")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_moved_description_of_graphstorm_prepares_a_dataset(tmp_path: Path):
    tables = tmp_path / "tables"
    tables.mkdir()
    write_movielens(tables, np.random.default_rng(0))
    write_tables(tables)
    graph = hopstream.read_graph(tables)
    movies, ratings = rows_of(tables / "movies.csv"), rows_of(tables / "ratings.csv")
    genres = sorted({row["genre"] for row in movies})
    assert (
        graph.nodes["movie"].features["genre"].tolist()
        == np.eye(3)[[genres.index(r["genre"]) for r in movies]].tolist()
    )
    edges = graph.edges[RATES]
    times = np.array([int(row["timestamp"]) for row in ratings])
    assert np.allclose(edges.features["age"], (times - times.min()) / np.ptp(times), atol=1e-6)
    assert np.array_equal(edges.features["era"], np.eye(4)[(times - 800_000_000) // 200_000_000])
    assert edges.features["rating"].tolist() == [float(row["rating"]) for row in ratings]
    work = hopstream.dataset.WorkSettings(memory="1GiB", num_workers=0)
    hopstream.prepare(tables, tmp_path / "parts", num_parts=2, method="hash", work=work)
    assert hopstream.read_dataset(tmp_path / "parts").fingerprint() == graph.fingerprint()


@pytest.mark.slow
def test_graphstorm_makes_the_graph_of_the_moved_description(tmp_path: Path, graphstorm_python: str):
    """Edges and features are those of the real ``gconstruct``; GraphStorm splits by chance."""
    for path in real_data("ml-latest-small").glob("*s.csv.gz"):
        shutil.copy(path, tmp_path)
    write_tables(tmp_path)
    words = [
        graphstorm_python,
        "-m",
        "graphstorm.gconstruct.construct_graph",
        "--num-parts",
        "1",
        "--output-dir",
        "out",
    ]
    words += ["--graph-name", "movielens", "--conf-file", str(MOVED / "graphstorm/before.json")]
    run(words, tmp_path, {"DGLBACKEND": "pytorch"})
    theirs, _ = read_partitions(tmp_path / "out/movielens.json")
    graph = hopstream.read_graph(tmp_path)
    ours = hopstream.split_links(graph, RATES, val=0.1, test=0.1)
    assert np.array_equal(theirs.nodes["movie"].features["genre"], ours.nodes["movie"].features["genre"])
    assert theirs.nodes["user"].num_nodes == ours.nodes["user"].num_nodes == 610
    edges, moved = theirs.edges[RATES], ours.edges[RATES]
    assert np.array_equal(edges.src_keys, moved.src_keys) and np.array_equal(edges.dst_keys, moved.dst_keys)
    for name, values in moved.features.items():
        assert np.array_equal(np.asarray(edges.features[name]).reshape(np.shape(values)), values), name
    split, wanted = ours.edge_splits[RATES], theirs.edge_splits[RATES]
    assert split.keys() == wanted.keys() and all(abs(len(split[name]) - len(wanted[name])) < 2 for name in split)


def run(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Run a program of another environment in a folder; return what it prints."""
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=RUN_S
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(RUN_S + 100)
@pytest.mark.parametrize("name", ["before", "after"])
def test_a_model_of_tfgnn_learns_after_as_before(tmp_path: Path, tfgnn_python: str, name: str):
    """``tfgnn_sampler`` or Hopstream samples from a unigraph; TF-GNN's runner trains."""
    graph = hopstream.read_graph(CORA)
    hopstream.export.write_unigraph(replace(graph, splits={}), tmp_path / "cora")
    for split in ("train", "test"):
        table = as_csv([("#id",), *((key,) for key in graph.splits["node"][split])])
        (tmp_path / f"{split}.csv").write_text(table)
    for file in ("tfgnn_keras.py", "tfgnn_spec.pbtxt"):
        shutil.copy(EXAMPLES / file, tmp_path)
    programs = [str(Path(python).parent) for python in (tfgnn_python, sys.executable)]
    printed = run(
        ["bash", str(MOVED / f"tfgnn/{name}.sh")], tmp_path, {"PATH": os.pathsep.join([*programs, os.environ["PATH"]])}
    )
    assert accuracy(printed) > 0.72
