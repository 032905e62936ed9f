"""Checks that datasets and chunked graphs written to URIs are those of folders, over a real S3 server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hopstream.cli import main
from hopstream.dataset.copying import delivery
from hopstream.dataset.layout import open_dataset
from hopstream.engine.settings import WorkSettings
from hopstream.errors import SettingsError, StateError
from hopstream.export.unigraph import write_unigraph
from hopstream.ingest.chunked.writing import write_chunked
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.ingest.npz import write_npz
from hopstream.ingest.raw_tables.spool import write_tables
from hopstream.load.files import read_graph
from hopstream.places import staging
from hopstream.places.cache import copied_here
from hopstream.places.paths import path_of
from hopstream.places.place import Place
from hopstream.places.remote_path import RemotePath
from hopstream.preparation.prepare import prepare
from hopstream.preparation.reshard.reshard_job import reshard
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import tree_of
from tests.s3_server import s3_server
from tests.transfer.conftest import make_graph, without_beside


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as uri:
        yield uri


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of one test."""
    monkeypatch.setenv("HOPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    """A chunked graph."""
    write_chunked(make_graph(3), tmp_path / "chunks", name="mag")
    return tmp_path / "chunks"


def tree_at(uri: str) -> dict[str, bytes]:
    """The files at a URI."""
    there = Place(uri)
    return {name: b"".join(there.blocks(name)) for name in there.sizes()}


def content_of(tree: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a dataset but its manifest, which holds times, and those that name places."""
    return {name: data for name, data in without_beside(tree).items() if name != "manifest.json"}


def stop_in(stage: str) -> Any:
    """A progress function that ends the work in the middle of a stage."""

    def stop(now: str, done: int, total: int) -> None:
        if now == stage and 2 * done > total:
            raise KeyboardInterrupt

    return stop


def test_write_parts_writes_the_files_of_the_folder(bucket: str, tmp_path: Path, cache_dir: Path):
    wanted = write_parts(make_graph(3), tmp_path / "mag", num_parts=2, method="hash")
    manifest = write_parts(make_graph(3), f"{bucket}/written/mag", num_parts=2, method="hash")
    assert manifest.dataset_id == wanted.dataset_id
    assert content_of(tree_at(f"{bucket}/written/mag")) == content_of(tree_of(tmp_path / "mag"))
    assert list(cache_dir.iterdir()) == []
    assert open_dataset(f"{bucket}/written/mag", verify="full").manifest.dataset_id == wanted.dataset_id


def test_a_dataset_that_is_there_is_only_replaced_if_told(bucket: str, tmp_path: Path, cache_dir: Path):
    out = f"{bucket}/replaced"
    write_parts(make_graph(3), out, num_parts=1)
    with pytest.raises(SettingsError, match=rf"^{out} holds a dataset; give overwrite=True"):
        write_parts(make_graph(4), out, num_parts=2, method="hash")
    assert list(cache_dir.iterdir()) == []
    write_parts(make_graph(4), out, num_parts=2, method="hash", overwrite=True)
    write_parts(make_graph(4), tmp_path / "wanted", num_parts=2, method="hash")
    assert content_of(tree_at(out)) == content_of(tree_of(tmp_path / "wanted"))


def test_a_place_with_other_files_is_refused(bucket: str):
    Place(f"{bucket}/foreign").write_text("notes.txt", b"x")
    with pytest.raises(SettingsError, match=r"foreign holds 'notes\.txt', which does not belong to a dataset"):
        write_parts(make_graph(3), f"{bucket}/foreign", num_parts=2, overwrite=True)


@pytest.mark.parametrize("stage", [pytest.param("dispatch", marks=pytest.mark.slow), "place"])
def test_an_interrupted_preparation_resumes(
    chunks: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
):
    monkeypatch.setattr(delivery, "GROUP_FILES", 3)
    out, work = f"{bucket}/prepared-{stage}", WorkSettings(num_workers=0, memory="1GiB")
    options: dict[str, Any] = {"num_parts": 2, "method": "hash", "work": work}
    put: list[str] = []
    real = delivery.copy_file

    def counted(source: Place, target: Place, file: delivery.CopiedFile, **how: bool) -> None:
        put.append(file.name)
        real(source, target, file, **how)

    monkeypatch.setattr(delivery, "copy_file", counted)
    with pytest.raises(KeyboardInterrupt):
        prepare(chunks, out, progress=stop_in(stage), **options)
    assert Place(out).size("manifest.json") is None
    first, stages = len(put), set[str]()
    assert (first > 0) == (stage == "place")
    prepare(chunks, out, progress=lambda now, done, total: stages.add(now), **options)
    assert ("dispatch" in stages) == (stage == "dispatch")
    assert len(put) == len(set(put))  # no file is copied twice
    prepare(chunks, tmp_path / "wanted", **options)
    assert content_of(tree_at(out)) == content_of(tree_of(tmp_path / "wanted"))


@pytest.mark.slow
def test_a_chunked_graph_at_a_uri_becomes_a_dataset_at_a_uri(chunks: Path, bucket: str, tmp_path: Path):
    for name, data in tree_of(chunks).items():
        Place(f"{bucket}/chunks").write_text(name, data)
    work = WorkSettings(num_workers=0, memory="1GiB")
    prepare(f"{bucket}/chunks", f"{bucket}/from-chunks", num_parts=2, method="hash", work=work)
    prepare(chunks, tmp_path / "wanted", num_parts=2, method="hash", work=work)
    assert content_of(tree_at(f"{bucket}/from-chunks")) == content_of(tree_of(tmp_path / "wanted"))
    with pytest.raises(SettingsError, match=r"holds the other; give another URI"):
        prepare(f"{bucket}/chunks", f"{bucket}/chunks/parts", num_parts=2)


@pytest.mark.slow
def test_a_dataset_is_resharded_from_a_uri_to_a_uri(bucket: str, tmp_path: Path):
    write_parts(make_graph(3), f"{bucket}/four", num_parts=4, method="hash")
    reshard(f"{bucket}/four", f"{bucket}/three", num_parts=3, method="hash", num_workers=0)
    write_parts(make_graph(3), tmp_path / "wanted", num_parts=3, method="hash")
    assert content_of(tree_at(f"{bucket}/three")) == content_of(tree_of(tmp_path / "wanted"))


def test_chunked_graphs_and_unigraphs_are_those_of_folders(bucket: str, tmp_path: Path):
    graph = make_graph(3)
    for name, write in (
        ("chunked", partial(write_chunked, graph, name="mag")),
        ("unigraph", partial(write_unigraph, graph, format="parquet")),
    ):
        metadata = write(f"{bucket}/{name}")
        assert str(metadata) == f"{bucket}/{name}/{write(tmp_path / name).name}"
        assert tree_at(f"{bucket}/{name}") == tree_of(tmp_path / name)
        with pytest.raises(SettingsError, match=rf"^{bucket}/{name} is not empty"):
            write(f"{bucket}/{name}")


def test_a_graph_is_written_to_a_file_at_a_uri(bucket: str, tmp_path: Path, cache_dir: Path):
    for _ in range(2):
        write_npz(make_graph(3), f"{bucket}/files/g.npz")
    write_npz(make_graph(3), tmp_path / "g.npz")
    assert write_parts(read_graph(f"{bucket}/files/g.npz"), tmp_path / "a", num_parts=1).dataset_id == (
        write_parts(read_graph(tmp_path / "g.npz"), tmp_path / "b", num_parts=1).dataset_id
    )
    assert not [path for path in cache_dir.iterdir() if path.name.startswith("to-")]


@pytest.mark.parametrize("stage", [pytest.param("chunk", marks=pytest.mark.slow), "copy"])
def test_an_interrupted_conversion_of_tables_resumes(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
):
    users = pa.table({"id": [f"u{n}" for n in range(90)], "age": range(90)})
    ends = pa.table({"u": [f"u{n % 90}" for n in range(500)], "v": [f"u{n % 37}" for n in range(500)]})
    description = {
        "nodes": {"user": {"table": users, "id": "id", "features": ["age"]}},
        "edges": [{"type": ["user", "knows", "user"], "table": ends, "src": "u", "dst": "v"}],
    }
    write_tables(description, f"{bucket}/tables-{stage}")
    put: list[str] = []
    real = RemotePath.put
    monkeypatch.setattr(RemotePath, "put", lambda path, made: (put.append(path.name), real(path, made)))
    source, out = f"{bucket}/tables-{stage}", f"{bucket}/chunked-{stage}"
    options: dict[str, Any] = {"name": "g", "num_workers": 0, "memory": "1GiB", "num_chunks": 3}
    with pytest.raises(KeyboardInterrupt):
        chunk_tables(source, out, progress=stop_in(stage), **options)
    assert (len(put) > 0) == (stage == "copy")
    stages = set[str]()
    report = chunk_tables(source, out, progress=lambda now, done, total: stages.add(now), **options)
    assert ("chunk" in stages) == (stage == "chunk")
    assert len(put) == len(set(put)) and put[-1] == "metadata.json"
    wanted = chunk_tables(source, tmp_path / "wanted", **options)
    assert tree_at(out) == tree_of(tmp_path / "wanted")
    assert replace(report, metadata=wanted.metadata) == wanted
    assert str(report.metadata) == f"{out}/metadata.json"


def test_a_call_that_was_killed_while_copying_and_then_while_writing_resumes(bucket: str, tmp_path: Path):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    def write(folder: Path) -> None:
        folder.mkdir()
        for name in ("a", "b", "last"):
            (folder / name).write_text(name)

    out = path_of(f"{bucket}/killed-twice")
    assert isinstance(out, RemotePath)
    with pytest.raises(KeyboardInterrupt):
        staging.write_folder_at(out, write, "last", interrupted)
    assert tree_at(f"{bucket}/killed-twice") == {"a": b"a"}
    with pytest.raises(KeyboardInterrupt):
        staging.write_folder_at(out, interrupted, "last", None)
    staging.write_folder_at(out, write, "last", None)
    assert tree_at(f"{bucket}/killed-twice") == {"a": b"a", "b": b"b", "last": b"last"}


def test_a_second_writer_of_the_same_uri_is_refused(bucket: str):
    with staging.staging_of(path_of(f"{bucket}/twice")), pytest.raises(StateError, match="by another process"):
        write_parts(make_graph(3), f"{bucket}/twice", num_parts=2)


@pytest.mark.slow
def test_verbs_write_to_uris(bucket: str, tmp_path: Path, chunks: Path, capsys: pytest.CaptureFixture[str]):
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1, 2], [1, 2, 0]]))
    for verb, source, more in (
        ("ingest", tmp_path / "g.npz", []),
        ("partition", tmp_path / "g.npz", ["--parts", "2", "--method", "hash"]),
        ("prepare", chunks, ["--parts", "2", "--method", "hash", "--workers", "0"]),
    ):
        for out in (f"{bucket}/verbs/{verb}", tmp_path / verb):
            assert main([verb, str(source), "--out", str(out), *more]) == 0
        assert f"{bucket}/verbs/{verb}/manifest.json" in capsys.readouterr().out
        assert content_of(tree_at(f"{bucket}/verbs/{verb}")) == content_of(tree_of(tmp_path / verb))
        assert main([verb, str(source), "--out", f"{bucket}/verbs/{verb}", *more]) == 2
        assert "holds a dataset; " in capsys.readouterr().err


def test_of_a_chunked_graph_at_a_uri_only_the_named_files_are_copied(
    chunks: Path, bucket: str, tmp_path: Path, cache_dir: Path
):
    folder = tmp_path / "lake"
    shutil.copytree(chunks, folder)
    (folder / "dump.bin").write_bytes(bytes(100))
    for path in folder.rglob("*"):
        if path.is_file():
            RemotePath.of(f"{bucket}/lake/{path.relative_to(folder)}").put(path)
    work = WorkSettings(num_workers=0, memory="1GiB")
    prepare(f"{bucket}/lake/metadata.json", tmp_path / "parts", num_parts=2, method="hash", work=work)
    copies = {path.name for path in cache_dir.rglob("*") if path.is_file()}
    assert "metadata.json" in copies and "dump.bin" not in copies


def test_a_file_that_changes_while_it_is_copied_is_refused(
    chunks: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    original = RemotePath.of(f"{bucket}/changing/metadata.json")
    original.put(chunks / "metadata.json")
    real = RemotePath.get

    def get(path: RemotePath, target: Path) -> None:
        real(path, target)
        (tmp_path / "longer").write_text((chunks / "metadata.json").read_text() + " ")
        path.put(tmp_path / "longer")

    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "get", get)
        with pytest.raises(
            StateError, match=r"changing/metadata\.json was changed while it was copied; repeat the call"
        ):
            copied_here(original)
    assert copied_here(original).read_text().endswith(" ")
