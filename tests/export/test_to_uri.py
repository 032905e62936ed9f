"""Checks that exports to an S3 server are those to a folder, and resume with the shards there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopstream
from hopstream.cli import main
from hopstream.errors import SettingsError
from hopstream.export import export_folder
from hopstream.export.run import export_subgraphs
from hopstream.export.settings import ExportReport
from hopstream.places.paths import path_of
from hopstream.places.place import Place
from hopstream.places.remote_path import RemotePath
from tests.export.worlds import digests, some_seeds, write_world
from tests.s3_server import Relay, name_server, s3_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as uri:
        yield uri


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, bucket: str) -> Path:
    """A dataset, a spec, and seeds, which also lie in the bucket."""
    folder = write_world(tmp_path_factory.mktemp("world"))
    text = "\n".join(["#id", *some_seeds(60)])
    (folder / "seeds.csv").write_text(text)
    Place(f"{bucket}/in").write_text("seeds.csv", text.encode())
    return folder


def exported(world: Path, out: str | Path, *, seeds: str | Path | None = None, **options: Any) -> ExportReport:
    options = {"rng_seed": 5, "num_workers": 0, **options}
    return export_subgraphs(world / "parts", world / "spec.pbtxt", out, seeds=seeds or world / "seeds.csv", **options)


def fetched(uri: str, folder: Path) -> Path:
    """Copy the files at a URI to a folder."""
    folder.mkdir()
    there = Place(uri)
    for name in there.sizes():
        (folder / name).write_bytes(b"".join(there.blocks(name)))
    return folder


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("x@4", {}),
        ("x-?????-of-00004", {"compression": "gzip"}),
        ("x.parquet", {"file_format": "parquet", "num_shards": 4}),
        ("x.tfrecord", {"one_file": True}),
        *(
            pytest.param("y@4", {"engine": engine, "num_workers": 2}, marks=pytest.mark.slow)
            for engine in ("local", "beam", "ray")
        ),
    ],
)
def test_an_export_to_a_uri_has_the_same_files(
    request: pytest.FixtureRequest, world: Path, bucket: str, tmp_path: Path, name: str, options: Any
):
    if options.get("engine") == "ray":
        request.getfixturevalue("own_ray")
    wanted = exported(world, tmp_path / "wanted" / name, **options)
    out, work = f"{bucket}/{tmp_path.name}", tmp_path / "work"
    report = exported(world, f"{out}/{name}", seeds=f"{bucket}/in/seeds.csv", work_dir=str(work), **options)
    assert digests(fetched(out, tmp_path / "got")) == digests(tmp_path / "wanted")
    assert [str(path) for path in report.paths] == [f"{out}/{path.name}" for path in wanted.paths]
    assert (str(report.schema_path), report.num_bytes) == (f"{out}/{wanted.schema_path.name}", wanted.num_bytes)
    assert not work.exists() or not list(work.iterdir())


@pytest.mark.parametrize("name", ["x@4", "x-*-of-00004"])
def test_examples_at_a_uri_are_read_as_those_of_a_folder(
    world: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setenv("HOPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    out = f"{bucket}/examples-{name[1]}"
    exported(world, f"{out}/x@4", work_dir=str(tmp_path / "work"))
    exported(world, tmp_path / "wanted/x@4")
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "rng_seed": 2}
    with (
        hopstream.ExampleLoader(f"{out}/{name}", **options) as loader,
        hopstream.ExampleLoader(tmp_path / "wanted/x@4", **options) as wanted,
    ):
        assert [str(batch.to_dict()) for batch in loader] == [str(batch.to_dict()) for batch in wanted]


def test_an_interrupted_export_resumes_with_the_shards_that_are_there(
    world: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, work = f"{bucket}/resumed", str(tmp_path / "work")
    put: list[str] = []
    real = RemotePath.put

    def counted(path: RemotePath, made: Path) -> None:
        put.append(path.name)
        real(path, made)

    monkeypatch.setattr(RemotePath, "put", counted)

    def stop(stage: str, done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exported(world, f"{out}/x@6", work_dir=work, progress=stop)
    first = list(put)
    assert 0 < len(first) < 6
    assert sorted(Place(out).sizes()) == sorted(first)
    assert list(Path(work).rglob("*.partial")) == []
    (path_of(out) / first[0]).unlink()
    Place(out).write_text(first[1], b"short")
    exported(world, f"{out}/x@6", work_dir=work)
    names = [f"x-{shard:05}-of-00006" for shard in range(6)]
    assert sorted(put[len(first) :]) == sorted({*names, "x.pbtxt"} - set(first[2:]))
    exported(world, tmp_path / "wanted/x@6")
    assert digests(fetched(out, tmp_path / "got")) == digests(tmp_path / "wanted")


def test_an_export_that_is_there_is_only_replaced_if_told(world: Path, bucket: str, tmp_path: Path):
    out, work = f"{bucket}/replaced", str(tmp_path / "work")
    exported(world, f"{out}/x@3", work_dir=work)
    with pytest.raises(SettingsError, match=rf"^{out}/x.pbtxt exists already; give overwrite=True"):
        exported(world, f"{out}/x@2", work_dir=work)
    exported(world, f"{out}/x@2", work_dir=work, overwrite=True)
    assert sorted(Place(out).sizes()) == ["x-00000-of-00002", "x-00001-of-00002", "x.pbtxt"]


def test_a_connection_that_breaks_during_the_copy_does_no_harm(
    world: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    relay = Relay(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    name_server(monkeypatch, relay.port)
    try:
        real = export_folder.put_file

        def broken(made: Path, path: Any) -> None:
            relay.max_bytes = 0  # the next answer is lost
            real(made, path)

        monkeypatch.setattr(export_folder, "put_file", broken)
        exported(world, f"{bucket}/broken/x@2", work_dir=str(tmp_path / "work"))
        assert relay.num_broken == 2
        exported(world, tmp_path / "wanted/x@2")
        assert digests(fetched(f"{bucket}/broken", tmp_path / "got")) == digests(tmp_path / "wanted")
    finally:
        relay.close()


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("{bucket}/x@2", {}, "at a URI; give work_dir too"),
        ("{bucket}/x@2", {"work_dir": "{bucket}/work"}, "is not on this machine"),
        ("{folder}/x@2", {"work_dir": "{folder}/work"}, "on this machine; leave work_dir out"),
        ("s3://AKIA:hidden@graphs/x@2", {"work_dir": "{folder}/work"}, "holds a password"),
        ("{bucket}", {"work_dir": "{folder}/work"}, "a folder; give the start of file names"),
    ],
)
def test_what_cannot_be_written_is_refused(
    world: Path, bucket: str, tmp_path: Path, out: str, options: dict[str, str], message: str
):
    named = {"bucket": bucket, "folder": str(tmp_path)}
    options = {name: value.format(**named) for name, value in options.items()}
    with pytest.raises(SettingsError, match=message):
        exported(world, out.format(**named), **options)


def test_the_command_line_takes_uris(world: Path, bucket: str, tmp_path: Path):
    words = [
        "export", world / "parts", "--spec", world / "spec.pbtxt", "--seeds", f"{bucket}/in/seeds.csv",
        "--out", f"{bucket}/command/x@2", "--work-dir", tmp_path / "work", "--rng-seed", 5, "--workers", 0,
    ]  # fmt: skip
    assert main([str(word) for word in words]) == 0
    exported(world, tmp_path / "wanted/x@2")
    assert digests(fetched(f"{bucket}/command", tmp_path / "got")) == digests(tmp_path / "wanted")
