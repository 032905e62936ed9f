"""Checks that after an append that was ended at any moment, a dataset is as before or as wanted."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import read_manifest
from hopstream.ingest.synthetic import EDGE, rmat_graph
from hopstream.preparation.append.run import append
from hopstream.preparation.write import write_parts
from tests.killing import kill_again_and_again, left_beside
from tests.preparation.dispatch.sources import check_same

PROGRAM = """
import sys
import numpy as np
from hopstream.preparation.append.run import append
from hopstream.dataset.manifest import read_manifest
def tell(*told):
    print(*told, flush=True)
tell("begun")
for number in range(1, 4):  # as many as it has when all is done
    if len(read_manifest(sys.argv[1]).book.deltas) < number:
        new = np.load(sys.argv[2])
        append(sys.argv[1], nodes={"node": {"x": new["x"]}}, progress=tell,
               edges={sys.argv[3]: (new["src"], new["dst"])})
"""

"""Append three times, except for appends that were done before."""
LABEL = "__".join(EDGE)


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A dataset, the rows to append, and the wanted dataset."""
    graph = rmat_graph(8, edges_per_node=20, num_features=6)
    write_parts(graph, tmp_path / "old", num_parts=2, method="hash", direction="both")
    new = {"x": rng.random((50, 6), np.float32), "src": rng.integers(0, 306, 900), "dst": rng.integers(0, 306, 900)}
    np.savez(tmp_path / "new.npz", **new)
    for name in ("wanted", "got"):
        shutil.copytree(tmp_path / "old", tmp_path / name)
    for _ in range(3):
        append(tmp_path / "wanted", nodes={"node": {"x": new["x"]}}, edges={LABEL: (new["src"], new["dst"])})
    return tmp_path


def check_done(folder: Path) -> None:
    got, wanted = (read_manifest(folder / name) for name in ("got", "wanted"))
    check_same(folder / "got", folder / "wanted", got, wanted)
    assert left_beside(folder) == []


@pytest.mark.parametrize(
    "num_kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.soak)]
)
def test_an_append_killed_repeatedly_is_the_same(folder: Path, num_kills: int):
    def again() -> None:
        shutil.rmtree(folder / "got")
        shutil.copytree(folder / "old", folder / "got")

    kill_again_and_again(
        PROGRAM, [folder / "got", folder / "new.npz", LABEL], num_kills=num_kills, max_lines=14,
        check=lambda: check_done(folder), again=again, delay_s=0.01,
    )  # fmt: skip
