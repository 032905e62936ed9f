"""Checks that tables at URIs are read like tables of this machine, over a real S3 server."""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data

from hopstream.engine.settings import WorkSettings
from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.export.unigraph import write_unigraph
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked import open_chunked
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.load.files import read_graph
from hopstream.places import cache
from hopstream.places import place as places
from hopstream.places.paths import path_of
from hopstream.places.place import Place
from hopstream.places.remote_path import RemotePath, RemoteStat
from hopstream.preparation.prepare import prepare
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import tree_of
from tests.s3_server import Relay, name_server, s3_server

NUM_USERS = 300
METADATA = {
    "nodes": {
        "user": {"files": "users/*.csv*", "id": "uid", "features": ["age"], "split": "part"},
        "film": {"files": "films.parquet", "id": "id", "features": ["title"]},
    },
    "edges": [{"type": ["user", "rates", "film"], "files": ["r 1.parquet"], "src": "u", "dst": "f",
               "features": ["stars"]}],
}  # fmt: skip


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as uri:
        yield uri


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, bucket: str) -> Path:
    """Tables in a folder; the same files are in the bucket at ``raw``."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(2)
    (folder / "users").mkdir()
    rows = [f"u{number},{number % 70},{('train', 'test')[number % 2]}" for number in range(NUM_USERS)]
    (folder / "users/a.csv").write_text("\n".join(["uid,age,part", *rows[:100]]))
    (folder / "users/b.csv.gz").write_bytes(gzip.compress("\n".join(["uid,age,part", *rows[100:]]).encode()))
    pq.write_table(pa.table({"id": range(50), "title": [f"größe {n}" for n in range(50)]}), folder / "films.parquet")
    ends = {"u": [f"u{n}" for n in rng.integers(0, NUM_USERS, 4000)], "f": rng.integers(0, 50, 4000)}
    pq.write_table(pa.table({**ends, "stars": rng.integers(0, 9, 4000)}), folder / "r 1.parquet", row_group_size=500)
    (folder / "metadata.json").write_text(json.dumps(METADATA))
    upload(folder, f"{bucket}/raw")
    return folder


def upload(folder: Path, uri: str) -> None:
    """Copy a folder to a URI."""
    there = Place(uri)
    for name, data in tree_of(folder).items():
        there.write_text(name, data)


def written(graph: Graph, out: Path) -> dict[str, bytes]:
    """The files of a graph as a dataset of one part."""
    write_parts(graph, out, num_parts=1)
    return files_of(out)


def files_of(dataset: Path) -> dict[str, bytes]:
    """The files of a dataset, without the manifest, which holds times."""
    return {name: data for name, data in tree_of(dataset).items() if name != "manifest.json"}


@pytest.mark.parametrize(
    "source", ["{bucket}/raw", "{bucket}/raw/metadata.json", "file://{tables}", "file://{tables}/metadata.json"]
)
def test_a_graph_at_a_uri_equals_the_one_in_a_folder(tables: Path, bucket: str, tmp_path: Path, source: str):
    graph = read_graph(source.format(bucket=bucket, tables=tables))
    assert written(graph, tmp_path / "a") == written(read_graph(tables), tmp_path / "b")


@pytest.mark.parametrize(
    ("engine", "num_workers"),
    [("local", 0), *(pytest.param(engine, 2, marks=pytest.mark.slow) for engine in ("local", "beam", "ray"))],
)
def test_a_chunked_graph_of_tables_at_a_uri_equals_the_one_of_a_folder(
    request: pytest.FixtureRequest, tables: Path, bucket: str, tmp_path: Path, engine: str, num_workers: int
):
    if engine == "ray":
        request.getfixturevalue("own_ray")
    for name, source in (("a", f"{bucket}/raw"), ("b", tables)):
        chunk_tables(source, tmp_path / name, name="g", engine=engine, num_workers=num_workers, memory="3GiB")
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "b")


@pytest.mark.slow
def test_a_dataset_prepared_from_a_uri_equals_the_one_from_a_folder(tables: Path, bucket: str, tmp_path: Path):
    work = WorkSettings(num_workers=2, memory="2GiB")
    for name, source in (("a", f"{bucket}/raw"), ("b", tables)):
        prepare(source, tmp_path / name, num_parts=2, method="hash", work=work)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_a_long_row_is_read_in_pieces(bucket: str, tmp_path: Path):
    folder = tmp_path / "long"
    folder.mkdir()
    long = "x" * (9 << 20)  # longer than a block of CSV
    for name, write in (
        ("n.csv", Path.write_bytes),
        ("n.csv.gz", lambda path, text: path.write_bytes(gzip.compress(text, 1))),
    ):
        write(folder / name, f"id,text\n1,{long}\n2,y\n".encode())
    for name in ("n.csv", "n.csv.gz"):
        (folder / "metadata.json").write_text(
            json.dumps({"nodes": {"n": {"files": name, "id": "id", "features": ["text"]}}})
        )
        upload(folder, f"{bucket}/long")
        text = read_graph(f"{bucket}/long").nodes["n"].features["text"]
        assert [len(row) for row in (text[0], text[1])] == [9 << 20, 1]


def test_a_unigraph_at_a_uri_is_read(tables: Path, bucket: str, tmp_path: Path):
    for file_format in ("tfrecord", "csv", "parquet"):
        folder = tmp_path / file_format
        write_unigraph(read_graph(tables), folder, format=file_format, num_shards=2)
        upload(folder, f"{bucket}/{file_format}")
        got, wanted = read_graph(f"{bucket}/{file_format}"), read_graph(folder)
        assert written(got, tmp_path / f"{file_format}-a") == written(wanted, tmp_path / f"{file_format}-b")


def test_an_interrupted_conversion_resumes_unless_a_table_has_changed(tables: Path, bucket: str, tmp_path: Path):
    upload(tables, f"{bucket}/changing")

    def stop(stage: str, done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    numbers = []
    options = {"num_workers": 0, "memory": "1GiB", "on_estimate": lambda costs, _: numbers.append(costs.num_done)}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            chunk_tables(f"{bucket}/changing", tmp_path / "out", progress=stop, **options)
    data = (tables / "films.parquet").read_bytes()
    Place(f"{bucket}/changing").write_text("films.parquet", data + b"")
    time_before = path_of(f"{bucket}/raw/films.parquet").stat().st_mtime_ns
    assert path_of(f"{bucket}/changing/films.parquet").stat().st_mtime_ns >= time_before
    pq.write_table(pq.read_table(tables / "films.parquet").slice(0, 50), tmp_path / "f.parquet", compression="none")
    Place(f"{bucket}/changing").write_text("films.parquet", (tmp_path / "f.parquet").read_bytes())
    chunk_tables(f"{bucket}/changing", tmp_path / "out", **options)
    assert numbers[0] == 0 < numbers[1]
    assert numbers[2] == 0


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of one test."""
    monkeypatch.setenv("HOPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class TestCopied:
    """Sources that are copied to this machine: edge lists, files of numpy and torch, and chunked graphs."""

    @pytest.fixture(autouse=True)
    def _cache(self, cache_dir: Path) -> None: ...

    def test_files_at_uris_give_the_graphs_of_the_files(self, bucket: str, tmp_path: Path):
        folder = tmp_path / "files"
        folder.mkdir()
        (folder / "e.csv").write_text("0,1\n1,2\n")
        (folder / "e.txt.gz").write_bytes(gzip.compress(b"0 1\n2 0\n"))
        np.savez(folder / "g.npz", edge_index=np.array([[0, 1], [1, 0]]), x=np.ones((2, 3), np.float32))
        torch.save(Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3), folder / "d.pt")
        upload(folder, f"{bucket}/files")
        for name in ("e.csv", "e.txt.gz", "g.npz", "d.pt"):
            got, wanted = read_graph(f"{bucket}/files/{name}"), read_graph(folder / name)
            assert written(got, tmp_path / f"{name}-a") == written(wanted, tmp_path / f"{name}-b")

    @pytest.mark.parametrize("file_format", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
    def test_a_chunked_graph_at_a_uri_equals_the_one_in_a_folder(
        self, tables: Path, bucket: str, tmp_path: Path, file_format: str
    ):
        chunk_tables(tables, tmp_path / "chunks", name="g", num_workers=0, memory="1GiB", edges_format=file_format)
        at = f"{bucket}/chunks-{file_format}"
        upload(tmp_path / "chunks", at)
        for source in (at, f"{at}/metadata.json"):
            assert open_chunked(source).schema == open_chunked(tmp_path / "chunks").schema
        wanted = written(read_graph(tmp_path / "chunks"), tmp_path / "wanted")
        assert written(read_graph(at), tmp_path / "got") == wanted

    def test_a_file_is_copied_once_until_it_changes(
        self, bucket: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
    ):
        there, copied = Place(f"{bucket}/once"), []
        real = RemotePath.get
        monkeypatch.setattr(RemotePath, "get", lambda path, here: (copied.append(path.name), real(path, here)))
        for text, num_copied in (("0 1\n", 1), ("0 1\n1 2\n", 2)):
            there.write_text("e.txt", text.encode())
            for _ in range(2):
                assert read_graph(f"{bucket}/once/e.txt").edges["node", "to", "node"].num_edges == num_copied
            assert len(copied) == num_copied

    def test_an_interrupted_copy_resumes(self, tables: Path, bucket: str, tmp_path: Path, monkeypatch):
        chunk_tables(tables, tmp_path / "chunks", name="g", num_workers=0, memory="1GiB")
        upload(tmp_path / "chunks", f"{bucket}/again")
        copied, real = [], RemotePath.get

        def get(path: RemotePath, here: Path) -> None:
            if len(copied) == 3:
                copied.append("")
                raise KeyboardInterrupt
            copied.append(path.name)
            real(path, here)

        monkeypatch.setattr(RemotePath, "get", get)
        with pytest.raises(KeyboardInterrupt):
            open_chunked(f"{bucket}/again")
        open_chunked(f"{bucket}/again")
        assert len(copied) == 1 + len(tree_of(tmp_path / "chunks"))

    def test_a_name_that_leads_elsewhere_is_refused(self, bucket: str, monkeypatch: pytest.MonkeyPatch):
        there = path_of(f"{bucket}/evil")
        evil = RemotePath(there._place, "evil/../../x.npy", there._place.info("evil"))
        monkeypatch.setattr(cache, "sorted_files", lambda folder, pattern: [evil])
        monkeypatch.setattr(RemotePath, "stat", lambda path: RemoteStat(1, 1))
        with pytest.raises(FormatError, match=r"holds a file with \.\. in its name"):
            cache.copied_here(there)


class TestFlaws:
    def test_a_missing_file_is_named_with_its_uri(self, bucket: str, tables: Path):
        with pytest.raises(FormatError, match=rf"^{bucket}/none/metadata.json is missing"):
            read_graph(f"{bucket}/none/metadata.json")
        with pytest.raises(FormatError, match=rf"^{bucket}/none is missing"):
            read_graph(f"{bucket}/none")
        value = {"nodes": {"n": {"files": "*.csv"}}}
        Place(f"{bucket}/flaw").write_text("metadata.json", json.dumps(value).encode())
        with pytest.raises(FormatError, match=rf"'\*\.csv', which does not exist in {bucket}/flaw"):
            read_graph(f"{bucket}/flaw")

    def test_a_flaw_is_named_with_its_line(self, bucket: str):
        there = Place(f"{bucket}/flawed")
        there.write_text("metadata.json", json.dumps({"nodes": {"n": {"files": "n.csv", "id": "id"}}}).encode())
        there.write_text("n.csv", b"id,x\n1,2\n1,3\n")
        with pytest.raises(SchemaError, match=r"n has raw id 1 twice: n\.csv line 2 and n\.csv line 3"):
            read_graph(f"{bucket}/flawed")
        there.write_text("n.csv", b"id,x\n1,2\n3\n")
        with pytest.raises(FormatError, match=r"n\.csv line 3 cannot be read as csv"):
            read_graph(f"{bucket}/flawed")

    @pytest.mark.parametrize(
        ("uri", "message"),
        [
            ("s3://AKIA:hidden@graphs/raw", "s3://graphs/raw holds a password, which would be written"),
            ("nope://graphs/raw", "cannot be opened"),
            ("tcp://h:1", "is the address of a server"),
        ],
    )
    def test_a_uri_that_cannot_be_read_is_refused(self, bucket: str, uri: str, message: str):
        with pytest.raises(SettingsError, match=message) as caught:
            read_graph(uri)
        assert "hidden" not in str(caught.value)

    def test_an_unknown_source_is_refused(self, bucket: str):
        Place(f"{bucket}/other").write_text("x.bin", b"x")
        with pytest.raises(FormatError, match=r"/x\.bin is not a known source; a graph is read from"):
            read_graph(f"{bucket}/other/x.bin")

    def test_a_missing_bucket_is_named(self, bucket: str):
        with pytest.raises(FormatError, match=r"s3://nowhere/raw/metadata\.json is missing"):
            read_graph("s3://nowhere/raw/metadata.json")


class TestNetwork:
    @pytest.fixture
    def relay(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
        relay = Relay(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]))
        name_server(monkeypatch, relay.port)
        try:
            yield relay
        finally:
            relay.close()

    def test_a_connection_that_breaks_is_opened_again(self, relay: Relay, bucket: str):
        data = np.random.default_rng(1).bytes(3 << 20)
        Place(f"{bucket}/net").write_text("a", data)
        path = path_of(f"{bucket}/net/a")
        with path.open_raw() as file:
            relay.max_bytes = 1 << 20
            assert file.read(1 << 21) + file.read() == data
        assert relay.num_broken == 1

    def test_a_store_that_is_away_longer_than_arrow_tries_is_waited_for(
        self, relay: Relay, bucket: str, monkeypatch: pytest.MonkeyPatch
    ):
        path = path_of(f"{bucket}/net/b")
        Place(f"{bucket}/net").write_text("b", b"data")
        failures = []
        real = places.is_passing

        def seen(error: OSError) -> bool:
            failures.append(error)
            relay.is_broken = False  # the store is back after Arrow gave up
            return real(error)

        monkeypatch.setattr(places, "is_passing", seen)
        relay.is_broken = True
        assert path.read_bytes() == b"data"
        assert len(failures) == 1

    @pytest.mark.slow
    def test_a_store_that_never_answers_is_an_error_with_a_deadline(self, monkeypatch: pytest.MonkeyPatch):
        """Three attempts of three seconds."""
        monkeypatch.setattr(places, "RETRY_S", 0.05)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            name_server(monkeypatch, silent.getsockname()[1])
            begin_s = time.monotonic()
            with pytest.raises(OSError, match="it was tried for"):
                path_of("s3://silent/x").exists()
        assert time.monotonic() - begin_s < 30

    def test_a_store_that_stays_away_is_an_error_with_a_deadline(
        self, relay: Relay, bucket: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(places, "RETRY_S", 0.05)
        relay.is_broken = True
        with pytest.raises(OSError, match=rf"^{bucket}/net/c: .*; it was tried for .* AWS_ENDPOINT_URL"):
            path_of(f"{bucket}/net/c").exists()


class TestRemotePath:
    def test_it_finds_what_a_path_finds(self, tables: Path, bucket: str):
        there = path_of(f"{bucket}/raw")
        assert isinstance(there, RemotePath)
        for pattern in (
            "*",
            "*.parquet",
            "users/*.csv*",
            "**/*.csv",
            "u*/a.csv",
            "*/*",
            "none/*",
            "[f]*.parquet",
            "r 1.*",
        ):
            got = sorted(str(path.relative_to(there)) for path in there.glob(pattern) if path.is_file())
            assert got == sorted(str(path.relative_to(tables)) for path in tables.glob(pattern) if path.is_file()), (
                pattern
            )

    def test_its_uri_names_it_again(self, bucket: str, tables: Path):
        path = path_of(f"{bucket}/raw") / "r 1.parquet"
        assert path.uri == f"{bucket}/raw/r%201.parquet"
        assert path_of(path.uri) == path
        assert (path.name, path.suffix, str(path.parent)) == ("r 1.parquet", ".parquet", f"{bucket}/raw")
        assert path_of(path.uri).stat().st_size == (tables / "r 1.parquet").stat().st_size

    def test_it_is_no_path_of_this_machine(self, bucket: str):
        with pytest.raises(SettingsError, match="is at a URI, which is not read here"):
            open(path_of(f"{bucket}/raw/metadata.json"))  # noqa: SIM115, PTH123
