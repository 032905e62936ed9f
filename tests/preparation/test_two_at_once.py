"""Checks that a process is refused while another one writes to the same place."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.copying.pull import pull
from hopstream.dataset.layout import open_dataset, read_manifest
from hopstream.engine.settings import WorkSettings
from hopstream.errors import StateError
from hopstream.ingest.chunked import write_chunked
from hopstream.preparation.append.run import append
from hopstream.preparation.audit.run import verify_dataset
from hopstream.preparation.compact import compact
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.halo.run import add_halo
from hopstream.preparation.prepare import prepare
from hopstream.preparation.reshard.reshard_job import reshard
from hopstream.preparation.write import write_parts
from hopstream.transfer.place import place
from tests.dataset.graphs import community_graph
from tests.killing import left_beside
from tests.preparation.dispatch.sources import write_owners

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from hopstream.errors import StateError
from hopstream.engine.settings import WorkSettings
from hopstream.preparation.append.run import append
from hopstream.preparation.compact import compact
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.prepare import prepare
from hopstream.dataset.copying import delivery
from hopstream.transfer.place import place as place_parts
delivery.GROUP_FILES = 3
folder, verb, moment = Path(sys.argv[1]), *sys.argv[2:4]
place, said = folder / "d", []
def stop():
    print("here", flush=True)
    sys.stdin.readline()
def progress(stage, done, total):
    if moment == "within" and not said and (done or verb != "place"):
        said.append(stage)
        stop()
if moment == "before":
    stop()
try:
    if verb == "append":
        append(place, nodes={"node": {"x": np.zeros((2, 4))}}, progress=progress)
    elif verb == "compact":
        compact(place, num_workers=0, progress=progress)
    elif verb == "dispatch":
        dispatch(folder / "in", folder / "owners", place, overwrite=True, num_workers=0, progress=progress)
    elif verb == "place":
        place_parts(place, [folder / "new" / "root"], num_workers=0, progress=progress)
    else:
        prepare(folder / "in", place, overwrite=True, num_parts=2, work=WorkSettings(memory="2GiB", num_workers=0),
                progress=progress)
except StateError as error:
    print(error)
"""
"""Run a verb, and stop before it or within it until a line comes."""

NEW = {"node": {"x": np.zeros((2, 4))}}
WORK = WorkSettings(memory="2GiB", num_workers=0)


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A dataset that was appended to, a chunked graph, and parts of its nodes."""
    graph = community_graph(rng, 60, 400)
    write_chunked(graph, tmp_path / "in", num_chunks=2)
    write_owners(tmp_path / "owners", graph, 3, rng)
    write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    append(tmp_path / "d", nodes=NEW)
    return tmp_path


@contextmanager
def stopped(folder: Path, verb: str, moment: str = "within") -> Iterator[subprocess.Popen[str]]:
    """Hold a process in the middle of a verb; let it go on at the end, and check that it succeeds."""
    words = [sys.executable, "-c", PROGRAM, str(folder), verb, moment]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "here\n"
        yield process
        said, _ = process.communicate("\n", timeout=60)
        assert (process.returncode, said) == (0, "")
    finally:
        process.kill()
        process.communicate()


def check_refused(folder: Path, *calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(StateError, match="by another process"):
            call()


def check_done(folder: Path, num_nodes: int, num_deltas: int, num_parts: int) -> None:
    book = read_manifest(folder / "d").book
    assert (book.num_ids("node"), len(book.deltas), book.num_base_parts) == (num_nodes, num_deltas, num_parts)
    assert verify_dataset(folder / "d").is_ok
    assert left_beside(folder) == []


def test_append_is_refused_during_replacement(folder: Path):
    """An append would be lost silently. A process that has the old dataset open keeps it."""
    here = folder / "d"
    part = open_dataset(here).open_part(0)
    keys = part.node_keys["node"].tolist()
    with stopped(folder, "dispatch"):
        check_refused(
            folder, lambda: append(here, nodes=NEW), lambda: add_halo(here, hops=1), lambda: compact(here),
            lambda: prepare(folder / "in", here, num_parts=2, overwrite=True, work=WORK),
            lambda: write_parts(community_graph(np.random.default_rng(1), 9, 9, 1), here, overwrite=True),
            lambda: verify_dataset(here), lambda: reshard(here, folder / "else", num_parts=1, num_workers=0),
        )  # fmt: skip
        assert read_manifest(here).book.num_ids("node") == 62
    check_done(folder, 60, 0, 3)
    assert part.node_keys["node"].tolist() == keys
    append(here, nodes=NEW)
    check_done(folder, 62, 1, 3)


def test_replacement_is_refused_during_append(folder: Path):
    with stopped(folder, "append"):
        check_refused(
            folder, lambda: dispatch(folder / "in", folder / "owners", folder / "d", overwrite=True, num_workers=0),
            lambda: compact(folder / "d"),
        )  # fmt: skip
    check_done(folder, 64, 2, 2)


@pytest.mark.slow
def test_append_is_refused_during_compaction(folder: Path):
    with stopped(folder, "compact"):
        check_refused(folder, lambda: append(folder / "d", nodes=NEW), lambda: compact(folder / "d", num_workers=0))
    check_done(folder, 62, 0, 2)


def test_replacement_is_refused_during_a_read(folder: Path):
    """Readers do not keep each other away."""

    def tell(stage: str, done: int, total: int) -> None:
        if done == 1:
            check_refused(folder, lambda: append(folder / "d", nodes=NEW), lambda: compact(folder / "d"))
            assert verify_dataset(folder / "d").is_ok

    assert verify_dataset(folder / "d", progress=tell).is_ok
    check_done(folder, 62, 1, 2)


def test_concurrent_placements_into_one_root_are_refused(folder: Path):
    """A new root is protected too: it would get files of both datasets, with the manifest of one."""
    root = folder / "new" / "root"
    write_parts(community_graph(np.random.default_rng(1), 60, 400), folder / "other", num_parts=2, method="hash")
    with stopped(folder, "place"):
        check_refused(
            folder, lambda: place(folder / "other", [folder / "a", root], overwrite=True, num_workers=0),
            lambda: pull(folder / "other", root, overwrite=True, num_workers=0),
            lambda: prepare(folder / "in", root, num_parts=2, overwrite=True, work=WORK),
        )  # fmt: skip
        assert not (root / "manifest.json").exists() and not (folder / "a").exists()
    assert verify_dataset(root).is_ok
    assert read_manifest(root).dataset_id == read_manifest(folder / "d").dataset_id
    assert left_beside(folder) == left_beside(root.parent) == []


@pytest.mark.slow
def test_concurrent_writers_of_a_new_dataset_are_refused(folder: Path):
    shutil.rmtree(folder / "d")
    with stopped(folder, "prepare"):
        check_refused(folder, lambda: prepare(folder / "in", folder / "d", num_parts=2, work=WORK))
        assert not (folder / "d").exists()
    check_done(folder, 60, 0, 2)


@pytest.mark.slow
def test_many_verbs_started_at_once_finish_or_are_refused(folder: Path):
    """Each process finishes or is refused; none removes the result of another."""
    words = [sys.executable, "-c", PROGRAM, str(folder)]
    for verbs in (["prepare"] * 4, ["append", "compact"] * 2, ["dispatch", "prepare", "append", "compact"]):
        processes = [
            subprocess.Popen([*words, verb, "before"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for verb in verbs
        ]
        for process in processes:
            assert process.stdout.readline() == "here\n"
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=100)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(verbs)
        assert "" in said and all("by another process" in text for text in said if text)
        assert verify_dataset(folder / "d").is_ok
        assert left_beside(folder) == []
