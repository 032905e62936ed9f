"""Checks that a dataset is as before or as wanted after a killed deletion or upsert."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.dataset.layout import read_manifest
from hopstream.preparation.revise.run import delete, upsert
from tests.killing import kill_again_and_again, left_beside
from tests.preparation.dispatch.sources import check_same

PROGRAM = """
import contextlib, sys
import numpy as np
from hopstream.errors import IdRangeError
from hopstream.preparation.revise.run import delete, upsert
def tell(*told):
    print(*told, flush=True)
tell("begun")
given = np.load(sys.argv[2])
ids = {"node": "raw"}
with contextlib.suppress(IdRangeError):  # deleted before
    delete(sys.argv[1], nodes=given["gone"], ids=ids, progress=tell)
upsert(sys.argv[1], nodes={"raw": given["raw"], "x": given["x"]}, ids=ids, progress=tell)
"""


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A dataset, the changes, and the wanted dataset."""
    graph = hopstream.rmat_graph(8, edges_per_node=20, num_features=6)
    graph.nodes["node"].features["raw"] = 1000 + np.arange(256)
    hopstream.write_parts(graph, tmp_path / "old", num_parts=2, method="hash", direction="both")
    given = {
        "gone": 1000 + np.arange(0, 256, 9),
        "raw": np.concatenate([1000 + np.arange(1, 256, 9), 5000 + np.arange(20)]),
    }
    given["x"] = rng.random((len(given["raw"]), 6), np.float32)
    np.savez(tmp_path / "given.npz", **given)
    for name in ("wanted", "got"):
        shutil.copytree(tmp_path / "old", tmp_path / name)
    delete(tmp_path / "wanted", nodes=given["gone"], ids={"node": "raw"})
    upsert(tmp_path / "wanted", nodes={"raw": given["raw"], "x": given["x"]}, ids={"node": "raw"})
    return tmp_path


def check_done(folder: Path) -> None:
    got, wanted = (read_manifest(folder / name) for name in ("got", "wanted"))
    check_same(folder / "got", folder / "wanted", got, wanted)
    assert left_beside(folder) == []


@pytest.mark.parametrize(
    "num_kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.soak)]
)
def test_killed_repeatedly(folder: Path, num_kills: int):
    def again() -> None:
        shutil.rmtree(folder / "got")
        shutil.copytree(folder / "old", folder / "got")

    kill_again_and_again(
        PROGRAM, [folder / "got", folder / "given.npz"], num_kills=num_kills, max_lines=12,
        check=lambda: check_done(folder), again=again, delay_s=0.02,
    )  # fmt: skip


KILLED = """
import os, pathlib, signal, sys
import numpy as np
import hopstream.engine.atomic_folder as atomic_folder
import hopstream.preparation.revise.write as write
from hopstream.dataset.manifest import Manifest
from hopstream.engine.atomic_folder import WorkFolder
from hopstream.preparation.revise.run import delete
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
stage = sys.argv[3]
if stage == "files":
    write.RevisionWriter._checksums = die
elif stage == "manifest":
    WorkFolder.put_in_place = die
elif stage == "exchange":  # the new dataset is in place, and the old one not removed
    exchange = atomic_folder._exchange
    atomic_folder._exchange = lambda *paths: exchange(*paths) and die()
else:  # without an exchange in one step: the old dataset is away, and the new one not in place
    atomic_folder._exchange = lambda *_: False
    rename, number = pathlib.Path.rename, [0]
    def rename_once(self, target):
        number[0] += 1
        return die() if number[0] == 2 else rename(self, target)
    put = WorkFolder.put_in_place
    def put_in_place(*args):
        pathlib.Path.rename = rename_once
        put(*args)
    WorkFolder.put_in_place = put_in_place
delete(sys.argv[1], nodes=np.load(sys.argv[2])["gone"], ids={"node": "raw"})
"""


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("files", marks=pytest.mark.slow),
        pytest.param("manifest", marks=pytest.mark.slow),
        "renames",
        "exchange",
    ],
)
def test_a_killed_deletion_leaves_the_old_or_the_new_dataset(folder: Path, stage: str):
    got, given = folder / "got", np.load(folder / "given.npz")
    words = [sys.executable, "-c", KILLED, str(got), str(folder / "given.npz"), stage]
    assert subprocess.run(words, env=dict(os.environ), check=False).returncode == -signal.SIGKILL
    if stage == "renames":
        assert not got.exists()
    else:
        is_old = read_manifest(got).dataset_id == read_manifest(folder / "old").dataset_id
        assert is_old == (stage != "exchange")
    hopstream.append(got, nodes={"raw": [5000], "x": np.zeros((1, 6), np.float32)})  # finds the old dataset
    shutil.rmtree(got)
    shutil.copytree(folder / "old", got)
    delete(got, nodes=given["gone"], ids={"node": "raw"})
    upsert(got, nodes={"raw": given["raw"], "x": given["x"]}, ids={"node": "raw"})
    check_done(folder)
