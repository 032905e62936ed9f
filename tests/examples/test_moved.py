"""Checks scripts moved from other libraries: how many of their lines change, and what they do before and after."""

from __future__ import annotations

import csv
import difflib
import gzip
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_geometric.typing as pyg

import hopstream
from hopstream.compat.dgl.distributed import read_partitions
from hopstream.compat.pyg import DatasetSampler
from tests.examples.real_data import EXAMPLES, real_data
from tests.examples.test_movielens import write_movielens

MOVED = EXAMPLES / "moved"
PAIR = re.compile(
    r"\[before\]\(\.\./examples/moved/(\S+)\), \[after\]\(\.\./examples/moved/(\S+)\) \| (\d+) of (\d+) \|"
)
"""A row of the table in the documents: both files, and how many lines of the first one change."""
CORA = EXAMPLES / "data/cora.npz"
RATES = ("user", "rates", "movie")
GRAPHSTORM_S = 300


def test_as_many_lines_change_as_the_documents_say():
    told = PAIR.findall((EXAMPLES.parent / "docs/examples.md").read_text())
    found = []
    for before, after, *_ in told:
        lines, moved = ((MOVED / name).read_text().splitlines() for name in (before, after))
        changed = [line for line in difflib.ndiff(lines, moved) if line.startswith("- ") and line[2:].strip()]
        found.append((before, after, str(len(changed)), str(len(lines))))
    assert found == told
    assert {Path(before).parent.name for before, *_ in told} == {folder.name for folder in MOVED.iterdir()}


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Cora in two parts."""
    hopstream.write_parts(hopstream.read_graph(CORA), tmp_path / "cora", num_parts=2, method="hash")
    return tmp_path / "cora"


def test_a_lightning_module_learns_after_as_before(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
        (accuracy,) = re.findall(r"test accuracy (0\.\d+)", capsys.readouterr().out)
        assert 0.75 < float(accuracy) < 0.85, name


def write_tables(folder: Path) -> None:
    """Complete tables in the form of MovieLens for the moved description, and add the description."""
    for path in folder.glob("*.csv.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    users = sorted({int(row["userId"]) for row in rows_of(folder / "ratings.csv")})
    (folder / "users.csv").write_text("\n".join(["userId", *map(str, users), ""]))
    shutil.copy(MOVED / "graphstorm/after.json", folder / "metadata.json")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def assert_described(folder: Path) -> hopstream.Graph:
    """Check the features of the moved description against loops over the rows; return the graph."""
    graph = hopstream.read_graph(folder)
    movies, ratings = rows_of(folder / "movies.csv"), rows_of(folder / "ratings.csv")
    genres = sorted({name for row in movies for name in row["genres"].split("|")})
    wanted = [[float(name in row["genres"].split("|")) for name in genres] for row in movies]
    assert graph.nodes["movie"].features["genres"].tolist() == wanted
    edges = graph.edges[RATES]
    assert edges.features["rating"].tolist() == [float(row["rating"]) for row in ratings]
    times = np.array([int(row["timestamp"]) for row in ratings])
    assert np.allclose(edges.features["age"], (times - times.min()) / (times.max() - times.min()), atol=1e-6)
    assert np.array_equal(edges.features["era"], np.eye(4)[(times - 800_000_000) // 200_000_000])
    raw_ids = np.asarray(graph.nodes["movie"].features["movieId"])
    assert raw_ids[edges.dst_keys].tolist() == [int(row["movieId"]) for row in ratings]
    return graph


def test_the_moved_description_of_graphstorm_prepares_a_dataset(tmp_path: Path):
    tables = tmp_path / "tables"
    tables.mkdir()
    write_movielens(tables, np.random.default_rng(0))
    write_tables(tables)
    graph = assert_described(tables)
    work = hopstream.dataset.WorkSettings(memory="1GiB", num_workers=0)
    hopstream.prepare(tables, tmp_path / "parts", num_parts=2, method="hash", work=work)
    assert hopstream.read_dataset(tmp_path / "parts").fingerprint() == graph.fingerprint()
    split = hopstream.split_links(graph, RATES, val=0.1, test=0.1)  # "split_pct" of the description
    assert {name: len(keys) for name, keys in split.edge_splits[RATES].items()} == {
        "train": 2400,
        "val": 300,
        "test": 300,
    }


@pytest.mark.slow
def test_graphstorm_makes_the_same_graph(tmp_path: Path, request: pytest.FixtureRequest):
    """Features and edges of MovieLens, by the real ``gconstruct`` and by the moved description."""
    python = request.config.getoption("--graphstorm-python")
    if python is None:
        pytest.skip("needs --graphstorm-python; see CONTRIBUTING.md")
    for path in real_data("ml-latest-small").glob("*.csv.gz"):
        shutil.copy(path, tmp_path)
    write_tables(tmp_path)
    words = [
        python,
        "-m",
        "graphstorm.gconstruct.construct_graph",
        "--conf-file",
        str(MOVED / "graphstorm/before.json"),
    ]
    words += ["--output-dir", "out", "--graph-name", "movielens", "--num-parts", "1"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=GRAPHSTORM_S)
    assert done.returncode == 0, done.stderr
    theirs, _ = read_partitions(tmp_path / "out/movielens.json")
    ours = assert_described(tmp_path)
    print(theirs.schema, ours.schema)
