"""Checks that features, splits and raw ids of every kind are chunked, and that others are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream import read_graph
from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.ingest.chunking import plan, steps
from hopstream.ingest.chunking.run import chunk_tables
from tests.ingest.chunking.test_equality import check_equal
from tests.ingest.chunking.worlds import SMALL


class Shop:
    """Users and films; tests change single tables."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes = {
            "user": {"files": ["users.csv"], "id": "uid", "features": ["age"], "split": "part"},
            "film": {"files": ["films.parquet"], "id": "id"},
        }
        self.rates = {"type": ["user", "rates", "film"], "files": "rates.csv", "src": "user", "dst": "film"}
        self.write("users.csv", "uid,age,part,name\n7,30,val,a\n12,41,,b\n9,12,train,c\n")
        self.parquet("films.parquet", id=[5, 3, 8], x=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], t=["é", "", "x"])
        self.write("rates.csv", "user,film,stars\n9,3,5\n7,8,\n9,5,2\n")

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text, encoding="utf-8")

    def parquet(self, name: str, **columns: object) -> None:
        pq.write_table(pa.table(columns), self.root / name, row_group_size=2)

    def source(self) -> Path:
        path = self.root / "metadata.json"
        path.write_text(json.dumps({"nodes": self.nodes, "edges": [self.rates]}))
        return path

    def chunk(self, **options: object):
        return chunk_tables(self.source(), self.root / "got", num_workers=0, **options)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(plan, "LIMITS", SMALL)
    return Shop(tmp_path)


def test_features_of_every_kind(shop: Shop):
    shop.nodes["film"]["features"] = {"x": {"column": "x", "shape": [2]}, "id": "id"}
    shop.nodes["user"]["features"] = {"age": {"column": "age", "dtype": "int8"}, "both": ["age", "uid"]}
    shop.rates["features"] = {"stars": {"column": "stars", "fill": -1, "dtype": "float32"}, "s": ["stars"]}
    shop.rates["features"]["s"] = {"columns": ["stars"], "fill": 0}
    graph, _ = check_equal(shop.source(), shop.root, num_chunks=2, data_format="parquet")
    assert list(graph.splits["user"]) == ["val", "train"]
    assert list(graph.nodes["user"].features) == ["uid", "age", "both"]


def test_dtypes_are_inferred_from_all_files(shop: Shop):
    shop.write("more.csv", "uid,age,part\n4,1.5,test\n")
    shop.nodes["user"]["files"] = ["users.csv", "more.csv"]
    graph, _ = check_equal(shop.source(), shop.root)
    assert graph.nodes["user"].features["age"].dtype == "float64"
    shop.write("more.csv", "uid,age,part\nx,2,test\n")
    graph, _ = check_equal(shop.source(), shop.root / "strings", keep_raw_ids=False)
    assert graph.nodes["user"].features["age"].dtype == "int64"


def test_tables_without_rows(shop: Shop):
    shop.write("users.csv", "uid,age,part\n")
    shop.parquet("films.parquet", id=pa.array([], pa.int32()))
    shop.write("rates.csv", "user,film,stars\n")
    shop.nodes["tag"] = {"from_edges": True}
    shop.rates["features"] = ["stars"]
    graph, _ = check_equal(shop.source(), shop.root)
    assert graph.edges["user", "rates", "film"].num_edges == 0
    shop.nodes["user"] = {"files": "users.csv", "columns": ["uid", "age"], "features": ["age"]}
    shop.write("users.csv", "")
    check_equal(shop.source(), shop.root / "no-header")


def test_ids_of_edges_are_bounded_by_a_sample(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    """More distinct raw ids than are sampled; many of them repeat."""
    rows = [(n * n % 997, f"tag{n % 301}") for n in range(2000)]
    shop.write("rates.csv", "user,film\n" + "".join(f"{a},{b}\n" for a, b in rows))
    shop.nodes = {"user": {"from_edges": True}, "film": {"from_edges": True, "id": "tag"}}
    monkeypatch.setattr(
        plan, "LIMITS", plan.ChunkLimits(block_rows=500, bucket_bytes=800, lookup_bytes=900, num_samples=64)
    )
    graph, _ = check_equal(shop.source(), shop.root, keep_raw_ids=False)
    assert graph.nodes["film"].num_nodes == 301


def test_a_sample_estimates_the_number_of_distinct_values():
    cells = pa.array([str(n) for n in range(20_000)], pa.large_string())
    whole, parts = steps.Sample(500), steps.Sample(500)
    whole.add(steps.hashes_of(cells), cells)
    for start in range(0, 20_000, 3_000):
        part = cells.slice(start, 3_500)
        parts.add(steps.hashes_of(part), part)
    again = steps.Sample.from_text(500, parts.to_text())
    assert again.cells.to_pylist() == whole.cells.to_pylist()
    assert again.hashes.tolist() == whole.hashes.tolist() == sorted(whole.hashes.tolist())
    assert 17_000 < again.num_different() < 23_000


def test_dropped_rows_are_counted(shop: Shop):
    shop.write("users.csv", "uid,age,part\n7,30,val\n12,41,\n7,12,train\n7,1,test\n")
    shop.write("rates.csv", "user,film,stars\n9,3,5\n7,4,\n9,,2\n12,3,1\n")
    report = shop.chunk(on_dangling="drop", on_duplicate="drop")
    assert report.num_nodes == {"user": 2, "film": 3} and report.num_repeated == {"user": 2}
    assert report.num_edges == {("user", "rates", "film"): 1}
    assert report.num_dangling == {("user", "rates", "film"): {"edges": 3, "src": 2, "dst": 2}}
    graph = read_graph(report.metadata)
    assert graph.nodes["user"].features["age"].tolist() == [30, 41]
    assert graph.edges["user", "rates", "film"].src_keys.tolist() == [1]
    assert {name: keys.tolist() for name, keys in graph.splits["user"].items()} == {"val": [0], "train": [], "test": []}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda s: s.nodes["user"].update(split="name"), "split 'a' of user has no mask"),
        (lambda s: s.rates.update(split="stars"), "rates__film.stars holds splits of edges"),
        (lambda s: s.nodes["user"].update(features={"train_mask": "age"}), "would be read back as split"),
        (lambda s: s.nodes["user"].update(features={"uid": "age"}), "not its column of raw ids"),
        (lambda s: s.rates.update(type=["user", "ra:tes", "film"]), "has a colon"),
        (lambda s: s.nodes["user"].update(id={"column": "name", "dtype": "int64"}), "user.name is 'a' at users.csv"),
    ],
)
def test_unstorable_features_and_splits_are_refused(shop: Shop, change, match):
    change(shop)
    with pytest.raises(SchemaError, match=match):
        shop.chunk()
    assert list(shop.root.glob(".*")) == [] and not (shop.root / "got").exists()


def test_leave_out_drops_named_features(shop: Shop):
    shop.nodes["user"].update(id="name", features=["name", "age"], split="uid")
    shop.write("rates.csv", "user,film,stars\na,3,5\nc,8,\n")
    shop.rates["split"] = "stars"
    with pytest.raises(SchemaError, match=r"leave_out names 'user\.nom'"):
        shop.chunk(leave_out=("user.nom",))
    report = shop.chunk(leave_out=("user.name", "user.uid", "user__rates__film.stars"))
    graph = read_graph(report.metadata)
    assert list(graph.nodes["user"].features) == ["age"] and not graph.splits


def test_settings_are_checked(shop: Shop):
    with pytest.raises(SettingsError, match=r"which holds .*metadata.json, the tables"):
        chunk_tables(shop.source(), shop.root, num_workers=0)
    with pytest.raises(SettingsError, match="unknown option 'chunks'"):
        shop.chunk(chunks=3)
    with pytest.raises(SettingsError, match="on_duplicate is 'keep'"):
        shop.chunk(on_duplicate="keep")
    with pytest.raises(SettingsError, match="engine is 'dask'"):
        shop.chunk(engine="dask")
    with pytest.raises(FormatError, match="does not describe tables"):
        chunk_tables(shop.root / "users.csv", shop.root / "got", num_workers=0)
