"""Checks that datasets at URIs are opened, served and changed like folders, over a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest

import hopstream
from hopstream.cli import main
from hopstream.dataset.copying import delivery
from hopstream.dataset.copying.local_copy import folder_of
from hopstream.dataset.layout import open_dataset
from hopstream.errors import ChecksumError, FormatError, SettingsError, StateError
from hopstream.export.run import export_subgraphs
from hopstream.places import cache
from hopstream.places import place as places
from hopstream.places.place import Place
from hopstream.preparation.halo.run import add_halo
from hopstream.preparation.write import write_parts
from hopstream.store import open_store
from hopstream.transfer.place import place
from tests.dataset.graphs import tree_of
from tests.equality.batches import Batches, compared_batches
from tests.export.worlds import digests, some_seeds, write_world
from tests.s3_server import name_server, s3_server
from tests.transfer.conftest import make_graph, without_beside

LOADED = {"num_neighbors": [3, 2], "batch_size": 7, "shuffle": True, "rng_seed": 3, "collate": "numpy"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as uri:
        yield uri


@pytest.fixture(scope="module")
def mag(tmp_path_factory: pytest.TempPathFactory, bucket: str) -> Path:
    """A dataset of four parts, which also lies in the bucket at ``mag``."""
    folder = tmp_path_factory.mktemp("written") / "mag"
    write_parts(make_graph(3), folder, num_parts=3, method="hash")
    place(folder, [f"{bucket}/mag"], num_workers=0)
    return folder


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of one test."""
    monkeypatch.setenv("HOPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that this process copies."""
    names: list[str] = []
    real = delivery.copy_file

    def counted(source: Place, target: Place, file: delivery.CopiedFile, **how: bool) -> None:
        real(source, target, file, **how)
        names.append(file.name)

    monkeypatch.setattr(delivery, "copy_file", counted)
    return names


def batches(source: str | Path) -> Batches:
    """All arrays of an epoch."""
    with hopstream.NeighborLoader(source, **LOADED) as loader:
        return compared_batches(loader)


def test_a_loader_gives_the_batches_of_the_folder(mag: Path, bucket: str, copied: list[str]):
    assert batches(f"{bucket}/mag") == batches(mag)
    assert len(copied) == len(set(copied)) > 0
    first = len(copied)
    with open_store(f"{bucket}/mag") as store:
        assert store.graph_id == open_dataset(mag).manifest.graph_id
    assert len(copied) == first  # the copy is used again


def test_the_copy_equals_the_folder(mag: Path, bucket: str, cache_dir: Path):
    dataset = open_dataset(f"{bucket}/mag", verify="full")
    assert dataset.root.is_relative_to(cache_dir)
    assert without_beside(tree_of(dataset.root)) == tree_of(mag)
    assert open_dataset(f"file://{mag}").root == mag


def test_only_the_parts_that_are_asked_for_are_copied(mag: Path, bucket: str, copied: list[str]):
    folder = folder_of(f"{bucket}/mag", [2])
    assert {name.partition("/")[0] for name in copied} == {"part-00002"}
    open_dataset(folder).verify([2])
    first = len(copied)
    assert folder_of(f"{bucket}/mag", [1, 2]) == folder
    assert {name.partition("/")[0] for name in copied[first:]} == {"part-00001"}


@pytest.mark.slow
def test_parts_at_several_uris_are_put_together(mag: Path, bucket: str):
    place(mag, [f"{bucket}/m0", f"{bucket}/m1"], num_workers=0)
    assert Place(f"{bucket}/m1").sizes("part-00000") == {}
    root = open_dataset(f"{bucket}/m1", verify="full").root
    assert without_beside(tree_of(root)) == tree_of(mag)


def test_an_interrupted_copy_resumes(mag: Path, bucket: str, copied: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delivery, "GROUP_FILES", 3)

    def stop(stage: str, done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder_of(f"{bucket}/mag", progress=stop)
    first = set(copied)
    folder = folder_of(f"{bucket}/mag")
    assert 3 <= len(first) < len(copied) == len(set(copied))
    assert without_beside(tree_of(folder)) == tree_of(mag)


def test_a_changed_dataset_is_copied_again_and_the_old_copy_stays(bucket: str, tmp_path: Path):
    folders = []
    for rng_seed in (5, 6):
        write_parts(make_graph(rng_seed), tmp_path / "changing", num_parts=1, overwrite=True)
        place(tmp_path / "changing", [f"{bucket}/changing"], overwrite=True, num_workers=0)
        folders.append(open_dataset(f"{bucket}/changing").root)
    assert folders[0] != folders[1]
    assert without_beside(tree_of(folders[1])) == tree_of(tmp_path / "changing")
    open_dataset(folders[0], verify="full")


@pytest.mark.slow
def test_a_halo_has_a_copy_of_its_own(bucket: str, tmp_path: Path):
    write_parts(make_graph(3), tmp_path / "halo", num_parts=2, method="hash")
    place(tmp_path / "halo", [f"{bucket}/halo"], num_workers=0)
    assert open_dataset(f"{bucket}/halo").manifest.halo is None
    halo = add_halo(tmp_path / "halo", hops=1, with_savings=False).manifest.halo
    place(tmp_path / "halo", [f"{bucket}/halo"], num_workers=0)
    opened = open_dataset(f"{bucket}/halo", verify="full").manifest
    assert opened.halo is not None and opened.halo.halo_id == halo.halo_id


COPYING = """
import sys
import hopstream
print(hopstream.open_dataset(sys.argv[1], verify="full").root, flush=True)
"""


def test_processes_that_open_a_dataset_at_once_share_one_copy(mag: Path, bucket: str, cache_dir: Path):
    there = [sys.executable, "-c", COPYING, f"{bucket}/mag"]
    running = [subprocess.Popen(there, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    roots = {process.communicate(timeout=120)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(roots) == len(list(cache_dir.iterdir())) == 1
    assert without_beside(tree_of(Path(roots.pop()))) == tree_of(mag)


def test_a_server_copies_its_parts_and_gives_the_batches_of_the_folder(mag: Path, bucket: str, cache_dir: Path):
    words = [sys.executable, "-m", "hopstream", "serve", f"{bucket}/mag", "--stop-on-eof", "--json", "--parts"]
    running = [
        subprocess.Popen([*words, parts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for parts in ("0,2", "1")
    ]
    ready = [json.loads(process.stdout.readline()) for process in running]
    try:
        assert [fact["parts"] for fact in ready] == [[0, 2], [1]]
        assert batches(",".join(fact["location"] for fact in ready)) == batches(mag)
    finally:
        for process in running:
            process.communicate(timeout=60)  # closes stdin
    assert [process.returncode for process in running] == [0, 0]
    assert len(list(cache_dir.iterdir())) == 1


def test_waiting_for_a_process_that_does_not_go_on_has_a_deadline(
    mag: Path, bucket: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cache, "STALL_S", 0.3)
    folder = cache_dir / open_dataset(mag).manifest.dataset_id[: cache.KEY_LENGTH]
    folder.mkdir(parents=True)
    with cache.locked(folder), pytest.raises(StateError, match=r"another process copies to .*, and has copied nothing"):
        folder_of(f"{bucket}/mag")


class TestFlaws:
    @pytest.mark.parametrize(
        ("uri", "error", "message"),
        [
            (
                "{bucket}/none",
                FormatError,
                r"^s3://graphs/none/manifest\.json is missing; s3://graphs/none is not a",
            ),
            ("s3://nowhere/mag", FormatError, r"^s3://nowhere/mag/manifest\.json is missing"),
            ("s3://AKIA:hidden@graphs/mag", SettingsError, r"^s3://graphs/mag holds a password"),
            ("nope://graphs/mag", SettingsError, r"^nope://graphs/mag cannot be opened"),
        ],
    )
    def test_what_is_no_dataset_is_refused(self, bucket: str, uri: str, error: type[Exception], message: str):
        for opened in (open_dataset, open_store):
            with pytest.raises(error, match=message) as caught:
                opened(uri.format(bucket=bucket))
            assert "hidden" not in str(caught.value)

    def test_a_damaged_file_is_named(self, bucket: str, tmp_path: Path):
        write_parts(make_graph(3), tmp_path / "damaged", num_parts=2, method="hash")
        place(tmp_path / "damaged", [f"{bucket}/damaged"], num_workers=0)
        name = "part-00001/node/paper/key.npy"
        data = bytearray((tmp_path / "damaged" / name).read_bytes())
        data[-1] ^= 1
        Place(f"{bucket}/damaged").write_text(name, bytes(data))
        with pytest.raises(ChecksumError, match=rf"^{bucket}/damaged/{name} has crc32c"):
            open_dataset(f"{bucket}/damaged")

    def test_a_disk_without_room_is_named(self, mag: Path, bucket: str, monkeypatch: pytest.MonkeyPatch):
        usage = type("Usage", (), {"free": 1000})
        monkeypatch.setattr(delivery.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(SettingsError, match=r"mag needs 7\.8 kB; its disk has 1\.0 kB: make room"):
            open_dataset(f"{bucket}/mag")

    def test_wrong_credentials_are_told_with_a_remedy(self):
        with s3_server() as bucket:
            Place(f"{bucket}/mag").write_text("manifest.json", b"{}")
            checked = Request(
                f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}
            )
            urlopen(checked, timeout=10).close()  # from now on the server checks credentials
            with pytest.raises(OSError, match=r"^s3://graphs/mag/.*; the place refuses these credentials: give others"):
                open_dataset(f"{bucket}/mag")

    def test_a_store_that_is_away_is_an_error_with_a_deadline(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(places, "RETRY_S", 0.05)
        name_server(monkeypatch, 9)  # no server listens at this port
        with pytest.raises(OSError, match=r"^s3://graphs/mag.*; it was tried for 0 s: check the network"):
            open_dataset("s3://graphs/mag")

    @pytest.mark.parametrize("verb", ["append", "compact", "halo", "place"])
    def test_changes_in_place_are_refused_with_a_remedy(self, bucket: str, capsys, tmp_path: Path, verb: str):
        more = {"append": [str(tmp_path)], "place": ["--root", str(tmp_path / "r")]}.get(verb, [])
        assert main([verb, f"{bucket}/mag", *more]) == 2
        assert "pull copies a dataset" in capsys.readouterr().err


def test_a_line_tells_of_a_long_copy_on_a_terminal(
    mag: Path, bucket: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    open_dataset(f"{bucket}/mag")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(cache, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("HOPSTREAM_CACHE_DIR", os.environ["HOPSTREAM_CACHE_DIR"] + "-2")
    open_dataset(f"{bucket}/mag")
    assert f"copying {bucket}/mag to " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["inspect", "{at}"], ["verify", "{at}"], ["verify", "{mag}", "--against", "{at}"]], ids=" ".join
)
def test_verbs_show_a_dataset_at_a_uri(mag: Path, bucket: str, capsys, words: list[str]):
    assert main([word.format(at=f"{bucket}/mag", mag=mag) for word in words]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["reshard", "{source}", "--out", "{out}", "--parts", "3", "--method", "hash", "--workers", "0"],
        ["partition", "{source}", "--out", "{out}", "--parts", "2", "--method", "hash"],
        ["assign", "{source}", "--out", "{out}", "--parts", "2", "--method", "hash"],
        ["unigraph", "{source}", "--out", "{out}", "--format", "parquet"],
    ],
    ids=lambda words: words[0],
)
def test_verbs_write_what_they_write_of_the_folder(mag: Path, bucket: str, tmp_path: Path, words: list[str]):
    for name, source in (("a", f"{bucket}/mag"), ("b", mag)):
        assert main([word.format(source=source, out=tmp_path / name) for word in words]) == 0
    trees = [{n: data for n, data in tree_of(tmp_path / name).items() if n != "manifest.json"} for name in "ab"]
    assert trees[0] == trees[1] != {}


def test_arrow_tables_and_graphs_are_those_of_the_folder(mag: Path, bucket: str):
    at = f"{bucket}/mag"
    tables = [list(hopstream.dataset.read_arrow(source, "paper")) for source in (at, mag)]
    assert tables[0] == tables[1]
    graphs = [hopstream.read_dataset(source) for source in (at, mag)]
    np.testing.assert_array_equal(*(graph.nodes["paper"].features["feat"] for graph in graphs))
    assert hopstream.verify_dataset(at, against=at).is_ok


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "beam", "ray"])
def test_an_export_of_a_dataset_at_a_uri_has_the_same_files(
    request: pytest.FixtureRequest, bucket: str, tmp_path: Path, engine: str
):
    if engine == "ray":
        request.getfixturevalue("own_ray")
    world = write_world(tmp_path / "world")
    place(world / "parts", [f"{bucket}/world-{engine}"], num_workers=0)
    (tmp_path / "seeds.csv").write_text("\n".join(["#id", *some_seeds(40)]))
    options = {"rng_seed": 5, "engine": engine, "num_workers": 0 if engine == "local" else 2}
    for name, source in (("a", f"{bucket}/world-{engine}"), ("b", world / "parts")):
        export_subgraphs(source, world / "spec.pbtxt", tmp_path / name / "x@2", seeds=tmp_path / "seeds.csv", **options)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
