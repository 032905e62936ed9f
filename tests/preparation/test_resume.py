"""Checks that every job that makes a folder resumes, and that a failed one is not taken for complete."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.dataset import regions
from hopstream.dataset.manifest import read_manifest
from hopstream.engine import folder_job
from hopstream.errors import SettingsError, StateError
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.chunking import plan
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.ingest.synthetic import rmat_graph
from hopstream.preparation.dispatch import dispatch_folder
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.reshard.reshard_job import reshard
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE
from tests.dataset.graphs import tree_of as dataset_tree
from tests.ingest.chunking.worlds import SMALL, make_world, tree_of
from tests.killing import kill_again_and_again, left_beside, run_until
from tests.preparation.dispatch import sources as dispatching
from tests.preparation.dispatch.test_files import with_words
from tests.preparation.reshard import sources as resharding

PROGRAM = """
import sys
from pathlib import Path
from hopstream.errors import SettingsError
from hopstream.ingest.chunking import plan
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.preparation.dispatch import dispatch_folder
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.reshard import reshard_folder
from hopstream.preparation.reshard.reshard_job import reshard
dispatch_folder.LIMITS = dispatch_folder.DispatchLimits(
    piece_edges=(1500, 1500), bucket_edges=(700, 700), column_bytes=(4000, 4000)
)
reshard_folder.LIMITS = reshard_folder.ReshardLimits(block_rows=100, piece_bytes=2000, run_bytes=(9000, 9000))
plan.LIMITS = plan.ChunkLimits(part_bytes=400, block_bytes=2000, block_rows=9, bucket_bytes=900, lookup_bytes=900)
folder, num_workers, verb = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def tell(stage, done, total):
    print(done, total, flush=True)
how = {"num_workers": num_workers, "progress": tell}
try:
    if verb == "dispatch":
        dispatch(folder / "in", folder / "owners", folder / "got", direction="both", overwrite=True, **how)
    elif verb == "reshard":
        reshard(folder / "old", folder / "got", num_parts=3, method="hash", overwrite=True, **how)
    else:
        chunk_tables(folder / "metadata.json", folder / "got", on_dangling="drop", on_duplicate="drop",
                     keep_raw_ids=False, **how)
except SettingsError as error:  # it was killed when all was in its place
    if "is not empty" not in str(error):
        raise
"""
"""Run a job of many small tasks, which reports its progress."""


SMALL_DISPATCH = dispatch_folder.DispatchLimits(
    piece_edges=(1500, 1500), bucket_edges=(700, 700), column_bytes=(4000, 4000)
)


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A job: ``write`` makes its input in a folder, and ``wanted`` beside it; ``call`` makes ``got``.

    ``other`` are options of another job. ``unused`` names functions that a job does not need once half of it is done.
    """

    name: str
    write: Callable[[Path, np.random.Generator], None]
    call: Callable[..., object]
    cut_small: Callable[[pytest.MonkeyPatch], None]
    check: Callable[[Path], None]
    limits: tuple[int, ...]
    other: dict[str, Any]
    unused: tuple[str, ...] = ()
    max_lines: int = 50
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, folder: Path, **options: Any) -> None:
        """Do the job in this process."""
        self.call(folder, **{"num_workers": 0, **self.options, **options})

    def check_done(self, folder: Path) -> None:
        """Check that the result is as wanted, and that nothing is left beside it."""
        self.check(folder)
        assert left_beside(folder) == []


def write_for_dispatch(folder: Path, rng: np.random.Generator) -> None:
    graph = rmat_graph(9, edges_per_node=20, num_features=6, num_classes=3)
    nodes, edges = graph.nodes["node"], graph.edges[EDGE]
    graph = replace(
        graph, nodes={"node": replace(nodes, features=with_words(rng, nodes.num_nodes, dict(nodes.features)))},
        edges={EDGE: replace(edges, features=with_words(rng, edges.num_edges, dict(edges.features)))},
    )  # fmt: skip
    write_chunked(graph, folder / "in", num_chunks=3, edges_format="parquet")
    dispatching.write_owners(folder / "owners", graph, 3, rng)
    write_parts(graph, folder / "wanted", num_parts=3, owners=folder / "owners", direction="both")


def write_for_reshard(folder: Path, rng: np.random.Generator) -> None:
    graph = rmat_graph(9, edges_per_node=20, num_features=6, num_classes=3)
    write_parts(graph, folder / "old", num_parts=4, method="random", direction="both")
    write_parts(graph, folder / "wanted", num_parts=3, method="hash", direction="both")


TABLES = {"on_dangling": "drop", "on_duplicate": "drop", "keep_raw_ids": False}


def write_for_chunk(folder: Path, rng: np.random.Generator) -> None:
    path = make_world(folder, 3, ("mixed", "int"), ("csv", "parquet"), (30, 10, 40), (True, True)).write()
    chunk_tables(path, folder / "wanted", name="got", num_workers=0, **TABLES)


def check_datasets(folder: Path, ignored: tuple[str, ...] = ()) -> None:
    got, wanted = folder / "got", folder / "wanted"
    dispatching.check_same(got, wanted, read_manifest(got), read_manifest(wanted), ignored)


def check_chunked(folder: Path) -> None:
    assert tree_of(folder / "got") == tree_of(folder / "wanted")


VERBS = [
    Verb(
        name="dispatch", write=write_for_dispatch, check=check_datasets, limits=(6,), other={"direction": "out"},
        call=lambda folder, **options: dispatch(folder / "in", folder / "owners", folder / "got", **options),
        cut_small=lambda patch: patch.setattr(dispatch_folder, "LIMITS", SMALL_DISPATCH), options={"direction": "both"},
    ),
    Verb(
        name="reshard", write=write_for_reshard, limits=(4, 25), other={"num_parts": 4},
        check=lambda folder: check_datasets(folder, ignored=("made_by",)),
        call=lambda folder, **options: reshard(folder / "old", folder / "got", **options),
        cut_small=lambda patch: resharding.cut_small(patch, 100), options={"num_parts": 3, "method": "hash"},
        unused=("hopstream.preparation.reshard.reshard_job.assign_nodes",),  # owners are kept
    ),
    Verb(
        name="chunk", write=write_for_chunk, check=check_chunked, limits=(20, 60), other={"num_chunks": 4},
        call=lambda folder, **options: chunk_tables(folder / "metadata.json", folder / "got", **options),
        cut_small=lambda patch: patch.setattr(plan, "LIMITS", SMALL), options=TABLES, max_lines=150,
    ),
]  # fmt: skip


@pytest.fixture(params=VERBS, ids=lambda verb: verb.name)
def verb(request: pytest.FixtureRequest) -> Verb:
    """Each job in turn."""
    return request.param


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per job for its input and wanted result, filled when a test needs it."""
    return {verb.name: tmp_path_factory.mktemp(verb.name) for verb in VERBS}


@pytest.fixture
def folder(verb: Verb, origins: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the job's input and wanted result."""
    origin = origins[verb.name]
    if not any(origin.iterdir()):
        verb.write(origin, np.random.default_rng(3))
    return shutil.copytree(origin, tmp_path / "work")


def stop_at(share: float) -> Callable[[str, int, int], None]:
    """Progress callback that ends the job at a share of its work."""

    def tell(stage: str, done: int, total: int) -> None:
        if done > share * total:
            raise KeyboardInterrupt

    return tell


@pytest.mark.parametrize(
    "verb", [VERBS[0], *(pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS[1:])], ids=lambda verb: verb.name
)
def test_a_killed_job_resumes(verb: Verb, folder: Path):
    for limit in verb.limits:
        assert run_until(PROGRAM, [folder, 0, verb.name], limit) == -signal.SIGKILL
        assert not (folder / "got").exists()
        assert left_beside(folder) == [".got.work"]
    assert run_until(PROGRAM, [folder, 0, verb.name]) == 0
    verb.check_done(folder)


@pytest.mark.soak
def test_a_job_killed_twenty_times_is_the_same(verb: Verb, folder: Path):
    """Workers are killed with the job, at random moments."""
    kill_again_and_again(
        PROGRAM, [folder, 2, verb.name], num_kills=20, max_lines=verb.max_lines,
        check=lambda: verb.check_done(folder), again=lambda: shutil.rmtree(folder / "got"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "engine"),
    [
        pytest.param(
            verb, engine, id=f"{verb.name}-{engine}",
            marks=[] if (verb.name, engine) in (("reshard", "local"), ("chunk", "local")) else pytest.mark.slow,
        )
        for verb in VERBS
        for engine in ("local", "ray", "beam")
    ],
)  # fmt: skip
def test_every_engine_gives_the_same_result(verb: Verb, folder: Path, engine: str, request):
    if engine == "ray":
        request.getfixturevalue("ray_cluster")
    verb.run(folder, engine=engine, num_workers=2)
    verb.check_done(folder)


def test_finished_work_is_not_repeated(verb: Verb, folder: Path, monkeypatch):
    verb.cut_small(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        verb.run(folder, progress=stop_at(0.6))
    written: list[str] = []
    write = regions.RegionWriter.write_blocks

    def watched(self, name, *args):
        written.append(str(name))
        return write(self, name, *args)

    monkeypatch.setattr(regions.RegionWriter, "write_blocks", watched)
    for name in verb.unused:
        monkeypatch.setattr(name, None)
    num_done: list[int] = []
    verb.run(folder, on_estimate=lambda costs, _: num_done.append(costs.num_done))
    assert num_done[0] > 3 and not any(name.endswith("node/key.npy") for name in written)
    verb.check_done(folder)


def test_a_stopped_job_resumes_and_a_different_job_restarts(verb: Verb, folder: Path, monkeypatch):
    verb.cut_small(monkeypatch)
    for share, options in ((0.3, verb.other), (0.5, {})):
        with pytest.raises(KeyboardInterrupt):
            verb.run(folder, progress=stop_at(share), **options)
    verb.run(folder)
    verb.check_done(folder)


def test_partial_files_of_killed_workers_are_removed(verb: Verb, folder: Path):
    def leave_one(stage: str, done: int, total: int) -> None:
        for product in (folder / ".got.work").glob("*/*"):
            if product.is_dir() and product.name in ("new", "dataset", "chunked"):
                (product / ".x.npy.1.partial").touch()
                left.append(product)

    left: list[Path] = []
    verb.run(folder, progress=leave_one)
    assert left
    verb.check_done(folder)


def test_concurrent_jobs_at_one_place_are_refused(verb: Verb, folder: Path):
    seen: list[str] = []

    def second(stage: str, done: int, total: int) -> None:
        if not seen:
            seen.append(stage)
            for options in ({}, verb.other):
                with pytest.raises(StateError, match="by another process"):
                    verb.run(folder, **options)

    verb.run(folder, progress=second)
    assert seen
    verb.check_done(folder)


def test_progress_ends_at_its_total(verb: Verb, folder: Path):
    told: list[tuple[int, int]] = []

    def tell(stage: str, done: int, total: int) -> None:
        if stage == verb.name:
            told.append((done, total))

    verb.run(folder, progress=tell)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len({total for _, total in told}) == 1 and told[-1][0] == told[-1][1]


def test_a_disk_or_memory_too_small_is_refused(verb: Verb, folder: Path, monkeypatch):
    before = sorted(path.name for path in folder.iterdir())
    for memory in ("100MB", "lots", "-1"):
        with pytest.raises(SettingsError, match="memory is"):
            verb.run(folder, memory=memory)
    monkeypatch.setattr(folder_job.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(SettingsError, match=r"needs about .*B of disk while it is written, .* itself; .*: make room"):
        verb.run(folder)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_files_created_meanwhile_are_not_replaced(verb: Verb, folder: Path):

    def tell(stage: str, done: int, total: int) -> None:
        (folder / "got").mkdir(exist_ok=True)
        (folder / "got" / "mine").touch()

    with pytest.raises(SettingsError, match=r"got (holds 'mine' and is not a dataset|is not empty)"):
        verb.run(folder, progress=tell)
    assert dataset_tree(folder / "got") == {"mine": b""}
