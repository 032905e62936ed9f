"""Checks that tables become the graph that their JSON describes; flaws name their file and line."""

import gzip
import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.ingest import read_graph
from hopstream.ingest import tables as nodes_and_edges
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.ingest.raw_tables import files
from hopstream.ingest.tables import TableSettings, read_tables

DATA = Path(__file__).parents[2].parent / "shared" / "data"
RATES = ("user", "rates", "film")

USERS = "uid,age,height,vip,part\n11,30,1.5,true,train\n7,41,2.5,false,\n9,-2,0.5,true,test\n"
FILMS = 'id,title,a,b\nx,"Se7en, a film",1,2\ny,größe,3,4.5\n'
RATINGS = "user,film,stars\n9,y,5\n11,x,3\n9,y,4\n"


class Tables:
    """A folder of tables; tests change single files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes = {
            "user": {
                "files": "users.csv",
                "id": "uid",
                "features": ["age", "height", "vip"],
                "split": "part",
            },
            "film": {"files": "films.csv", "id": "id", "features": {"name": "title", "pos": ["a", "b"]}},
        }
        self.rates = {"type": list(RATES), "files": "ratings.csv", "src": "user", "dst": "film", "features": ["stars"]}
        self.write("users.csv", USERS)
        self.write("films.csv", FILMS)
        self.write("ratings.csv", RATINGS)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8", newline="")

    def write_parquet(self, name: str, /, **columns: object) -> None:
        pq.write_table(pa.table(columns), self.root / name)

    def feature(self, owner: str, **features: object) -> None:
        (self.rates if owner == "rates" else self.nodes[owner])["features"] = features

    def read(self, **options: object):
        path = self.root / "metadata.json"
        path.write_text(json.dumps({"nodes": self.nodes, "edges": [self.rates]}), encoding="utf-8")
        return read_graph(path, **options)


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "tables").mkdir()
    return Tables(tmp_path / "tables")


def column(graph, owner, name):
    table = graph.nodes[owner] if isinstance(owner, str) else graph.edges[owner]
    values = table.features[name]
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def pairs(graph, edge_type=RATES):
    edges = graph.edges[edge_type]
    return list(zip(edges.src_keys.tolist(), edges.dst_keys.tolist(), strict=True))


def test_csv_tables_become_typed_features(tables):
    graph = tables.read()
    assert {t: table.num_nodes for t, table in graph.nodes.items()} == {"user": 3, "film": 2}
    assert {name: str(f) for name, f in graph.schema.nodes["user"].items()} == {
        "uid": "int64[rows]",
        "age": "int64[rows]",
        "height": "float64[rows]",
        "vip": "bool[rows]",
    }
    assert column(graph, "user", "uid") == [11, 7, 9]
    assert column(graph, "user", "age") == [30, 41, -2]
    assert column(graph, "user", "vip") == [True, False, True]
    assert column(graph, "film", "id") == ["x", "y"]
    assert column(graph, "film", "name") == ["Se7en, a film", "größe"]
    assert column(graph, "film", "pos") == [[1, 2], [3, 4.5]]
    assert pairs(graph) == [(2, 1), (0, 0), (2, 1)]
    assert column(graph, RATES, "stars") == [5, 3, 4]
    assert {n: k.tolist() for n, k in graph.splits["user"].items()} == {"train": [0], "test": [2]}


def test_edges_may_be_in_splits(tables):
    tables.rates["split"] = "part"
    tables.write("ratings.csv", "user,film,stars,part\n9,y,5,val\n11,x,3,\n9,y,4,train\n7,x,1,val\n")
    assert {n: k.tolist() for n, k in tables.read().edge_splits[RATES].items()} == {"val": [0, 3], "train": [2]}
    tables.write("ratings.csv", "user,film,stars,part\n9,z,5,val\n11,x,3,\n9,y,4,train\n7,x,1,val\n")
    graph = tables.read(on_dangling="drop")
    assert {n: k.tolist() for n, k in graph.edge_splits[RATES].items()} == {"val": [2], "train": [1]}
    tables.write("ratings.csv", "user,film,stars,part\n9,y,5,\n")
    assert tables.read().edge_splits == {}
    tables.rates["split"] = "stars"
    tables.rates["files"] = "ratings.parquet"
    tables.write_parquet("ratings.parquet", user=[9], film=["y"], stars=[5])
    with pytest.raises(SchemaError, match=r"user__rates__film\.stars is int64 at .*; a split column holds names"):
        tables.read()


def test_raw_ids_are_kept_by_default(tables):
    assert set(tables.read(keep_raw_ids=False).nodes["user"].features) == {"age", "height", "vip"}
    tables.feature("user", uid={"column": "uid", "dtype": "int16"})
    assert str(tables.read().schema.feature("user", "uid")) == "int16[rows]"
    tables.feature("user", uid="age")
    with pytest.raises(SchemaError, match="'uid' that is not its column of raw ids"):
        tables.read()
    assert column(tables.read(keep_raw_ids=False), "user", "uid") == [30, 41, -2]


def test_a_folder_is_read_by_its_metadata(tables):
    tables.read()
    assert pairs(read_graph(tables.root)) == pairs(read_graph(str(tables.root)))


def test_delimiters_and_files_without_header(tables):
    tables.write("films.csv", "x;A;1;2\n\ny;B;3;4\n")
    tables.nodes["film"] |= {"delimiter": ";", "columns": ["id", "title", "a", "b"]}
    tables.write("ratings.tsv", "user\tfilm\tstars\n9\ty\t5\n")
    tables.rates["files"] = "ratings.tsv"
    graph = tables.read()
    assert column(graph, "film", "name") == ["A", "B"]
    assert pairs(graph) == [(2, 1)]
    tables.write("USERS.TSV", USERS.replace(",", "\t"))
    tables.nodes["user"]["files"] = "USERS.TSV"
    assert tables.read().fingerprint() == graph.fingerprint()


def test_several_files_are_read_in_their_order(tables):
    tables.write("more/part-10.csv", "user,film,stars\n7,x,1\n")
    tables.write("more/part-2.csv", "stars,film,user\n2.5,y,7\n")
    (tables.root / "more" / "part-3.csv.gz").write_bytes(gzip.compress(b"user,film,stars\n11,y,3\n"))
    tables.rates["files"] = ["ratings.csv", "more/part-*"]
    tables.rates["format"] = "csv"
    graph = tables.read()
    assert pairs(graph)[3:] == [(1, 0), (1, 1), (0, 1)]
    assert column(graph, RATES, "stars") == [5, 3, 4, 1, 2.5, 3]


def test_byte_order_marks_line_ends_and_quoted_lines(tables):
    tables.write("films.csv", '\ufeffid,title,a,b\r\nx,"two\r\nlines ""quoted""",1,2\r\ny,B,3,4')
    graph = tables.read()
    assert column(graph, "film", "name") == ['two\r\nlines "quoted"', "B"]


def test_row_numbers_as_raw_ids(tables):
    del tables.nodes["user"]["id"]
    tables.write("ratings.csv", "user,film,stars\n2,y,5\n0,x,3\n")
    graph = tables.read()
    assert pairs(graph) == [(2, 1), (0, 0)]
    assert "uid" not in graph.nodes["user"].features


def test_raw_ids_are_strings_if_one_of_them_is(tables):
    tables.write("users.csv", USERS + "007,1,1,true,\nu1,1,1,true,\n")
    tables.write("ratings.csv", "user,film,stars\n7,y,5\n007,x,3\n")
    assert pairs(tables.read()) == [(1, 1), (3, 0)]
    tables.write("users.csv", USERS + "007,1,1,true,\n")
    with pytest.raises(SchemaError, match=r"user has raw id 7 twice: users\.csv line 3 and users\.csv line 5"):
        tables.read()
    tables.nodes["user"]["id"] = {"column": "uid", "dtype": "string"}
    assert pairs(tables.read()) == [(1, 1), (3, 0)]


def test_nodes_that_only_edges_name(tables):
    tables.nodes["user"] = {"from_edges": True}
    tables.nodes["film"] = {"from_edges": True, "id": "code"}
    tables.write("ratings.csv", "user,film,stars\n10,y,5\n9,x,3\n,y,1\n10,aa,4\n")
    graph = tables.read(on_dangling="drop")
    assert column(graph, "user", "id") == [9, 10]
    assert column(graph, "film", "code") == ["aa", "x", "y"]
    assert pairs(graph) == [(1, 2), (0, 1), (1, 0)]
    tables.nodes["user"]["id"] = {"column": "uid", "dtype": "string"}
    assert column(tables.read(on_dangling="drop"), "user", "uid") == ["10", "9"]
    tables.nodes["film"]["id"] = {"column": "code", "dtype": "int64"}
    with pytest.raises(
        SchemaError, match=r"user__rates__film\.film has raw ids that are not integers, but film.id.dtype is int64"
    ):
        tables.read(on_dangling="drop")


def test_nodes_of_edges_do_not_depend_on_batches(tables, monkeypatch, rng):
    monkeypatch.setattr(files, "CSV_BLOCK_BYTES", 64)
    monkeypatch.setattr(nodes_and_edges, "MERGED_BATCHES", 3)
    monkeypatch.setattr(nodes_and_edges, "LOOKUP_ROWS", 7)
    sources, targets = rng.integers(-50, 50, 200), rng.integers(-50, 50, 200)
    lines = "".join(f"{s},{t},{i}\n" for i, (s, t) in enumerate(zip(sources, targets, strict=True)))
    tables.nodes = {"user": {"from_edges": True}}
    tables.rates["type"] = ["user", "knows", "user"]
    tables.write("ratings.csv", "user,film,stars\n" + lines)
    graph = tables.read()
    raw = np.array(column(graph, "user", "id"))
    assert raw.tolist() == sorted({*sources.tolist(), *targets.tolist()})
    edges = graph.edges["user", "knows", "user"]
    assert np.array_equal(raw[edges.src_keys], sources)
    assert np.array_equal(raw[edges.dst_keys], targets)
    assert edges.features["stars"].tolist() == list(range(200))


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"column": "age", "dtype": "float32"}, ("float32[rows]", [30, 41, -2])),
        ({"column": "age", "dtype": "int8"}, ("int8[rows]", [30, 41, -2])),
        ({"column": "age", "dtype": "string"}, ("string", ["30", "41", "-2"])),
        ({"column": "vip", "dtype": "bool"}, ("bool[rows]", [True, False, True])),
        ({"column": "height", "dtype": "float16"}, ("float16[rows]", [1.5, 2.5, 0.5])),
        ({"columns": ["age", "height"], "dtype": "float32"}, ("float32[rows, 2]", [[30, 1.5], [41, 2.5], [-2, 0.5]])),
        (["age"], ("int64[rows, 1]", [[30], [41], [-2]])),
        ({"column": "part"}, ("string", ["train", "", "test"])),
    ],
)
def test_cells_are_read_as_declared(tables, spec, wanted):
    tables.feature("user", f=spec)
    graph = tables.read()
    assert (str(graph.schema.feature("user", "f")), column(graph, "user", "f")) == wanted


def test_undeclared_columns_get_a_dtype_that_fits_all_files(tables):
    tables.write("users2.csv", "uid,age,height,vip,part\n1,0.5,nan,1,train\n2,x,inf,no,\n")
    tables.nodes["user"]["files"] = ["users.csv", "users2.csv"]
    graph = tables.read()
    assert column(graph, "user", "age") == ["30", "41", "-2", "0.5", "x"]
    assert str(graph.schema.feature("user", "height")) == "float64[rows]"
    assert column(graph, "user", "vip")[-1] == "no"
    assert {n: k.tolist() for n, k in graph.splits["user"].items()} == {"train": [0, 3], "test": [2]}


def test_fill_and_null_values(tables):
    tables.write("users.csv", "uid,age,height,vip,part\n11,NA,,NA,NA\n7,1,2.5,true,train\n")
    tables.write("ratings.csv", RATINGS.replace("9", "7"))
    tables.nodes["user"]["null_values"] = ["", "NA"]
    tables.feature(
        "user",
        age={"column": "age", "fill": -1},
        height={"column": "height", "dtype": "float32", "fill": "nan"},
        vip={"column": "vip", "dtype": "bool", "fill": False},
        text={"column": "vip", "dtype": "string", "fill": "unknown"},
        pair={"columns": ["age", "height"], "fill": 0},
    )
    graph = tables.read()
    assert column(graph, "user", "age") == [-1, 1]
    assert np.isnan(column(graph, "user", "height")[0])
    assert column(graph, "user", "vip") == [False, True]
    assert column(graph, "user", "text") == ["unknown", "true"]
    assert column(graph, "user", "pair") == [[0, 0], [1, 2.5]]
    assert {n: k.tolist() for n, k in graph.splits["user"].items()} == {"train": [1]}


def test_dangling_edges_are_dropped_and_counted(tables, caplog):
    tables.write("ratings.csv", "user,film,stars,tag\n9,y,5,a\nq,x,3,b\n11,z,4,c\n,x,1,d\n11,x,2,e\n")
    tables.feature("rates", stars="stars", tag="tag")
    tables.rates["features"]["both"] = ["stars", "stars"]
    with caplog.at_level(logging.WARNING, "hopstream"):
        graph = tables.read(on_dangling="drop")
    assert pairs(graph) == [(2, 1), (0, 0)]
    assert column(graph, RATES, "stars") == [5, 2]
    assert column(graph, RATES, "tag") == ["a", "e"]
    assert column(graph, RATES, "both") == [[5, 5], [2, 2]]
    assert caplog.messages == ["dropped 3 dangling edges of user__rates__film"]
    result = read_tables(tables.root / "metadata.json", TableSettings(on_dangling="drop"))
    assert result.num_dropped == {RATES: 3}


def test_parquet_tables_keep_their_dtypes(tables):
    tables.write_parquet(
        "users.parquet",
        uid=pa.array([11, 7, 9], pa.int32()),
        age=pa.array([1.5, 2, 3], pa.float32()),
        name=pa.array(["a", "ü", ""]).dictionary_encode(),
        tags=pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
        emb=pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6.0)), 2),
        steps=pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.large_list(pa.list_(pa.uint8(), 2))),
        same=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float64())),
        vip=pa.array([True, False, True]),
        half=pa.array(np.array([1, 2, 3], np.float16)),
        part=pa.array(["train", None, "test"]).dictionary_encode(),
    )
    tables.nodes["user"] |= {"files": "users.parquet"}
    tables.feature(
        "user",
        **{name: name for name in ("age", "name", "tags", "emb", "steps", "vip", "half")},
        same={"column": "same", "shape": [2]},
        pair=["age", "age"],
    )
    graph = tables.read()
    assert {name: str(f) for name, f in graph.schema.nodes["user"].items()} == {
        "uid": "int64[rows]",
        "age": "float32[rows]",
        "name": "string",
        "tags": "int16[rows, ragged]",
        "emb": "float64[rows, 2]",
        "steps": "uint8[rows, ragged, 2]",
        "vip": "bool[rows]",
        "half": "float16[rows]",
        "same": "float64[rows, 2]",
        "pair": "float32[rows, 2]",
    }
    assert column(graph, "user", "name") == ["a", "ü", ""]
    assert [row.tolist() for row in column(graph, "user", "tags")] == [[1, 2], [], [3]]
    assert [row.tolist() for row in column(graph, "user", "steps")] == [[[1, 2]], [], [[3, 4], [5, 6]]]
    assert column(graph, "user", "emb") == [[0, 1], [2, 3], [4, 5]]
    assert column(graph, "user", "same") == [[1, 2], [3, 4], [5, 6]]
    assert pairs(graph) == [(2, 1), (0, 0), (2, 1)]
    assert {n: k.tolist() for n, k in graph.splits["user"].items()} == {"train": [0], "test": [2]}


def test_parquet_batch_size_does_not_change_the_graph(tables, monkeypatch):
    monkeypatch.setattr(files, "PARQUET_BATCH_ROWS", 2)
    tags = [[1], [], [2, 3], [4], [], [5, 6, 7], [8]]
    names = ["", "b", "cc", "ddd", "e", "", "ü"]
    tables.write_parquet("films.parquet", id=[str(i) for i in range(7)], tags=tags, name=names, n=list(range(7)))
    tables.nodes["film"] |= {"files": "films.parquet"}
    tables.feature("film", tags="tags", name="name", n="n")
    tables.write_parquet("ratings.parquet", user=[9, 7, 11], film=["6", "0", "5"], stars=[1, 2, 3])
    tables.rates["files"] = "ratings.parquet"
    graph = tables.read()
    assert [row.tolist() for row in column(graph, "film", "tags")] == tags
    assert column(graph, "film", "name") == names
    assert pairs(graph) == [(2, 6), (1, 0), (0, 5)]


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        (pa.array([1.5, 2.0, 3.0]), "float32", [1.5, 2, 3]),
        (pa.array([1.0, 2.0, 3.0]), "int8", [1, 2, 3]),
        (pa.array([1, 2, 3]), "string", ["1", "2", "3"]),
        (pa.array([1, 2, 3], pa.timestamp("ms")), "int64", [1, 2, 3]),
        (pa.array([[1.0], [2.0, 0.5], []]), "float32", [[1], [2, 0.5], []]),
    ],
)
def test_cast_converts_values_to_the_dtype(tables, values, dtype, wanted):
    tables.write_parquet("users.parquet", uid=[11, 7, 9], f=values)
    tables.nodes["user"] = {"files": "users.parquet", "id": "uid"}
    tables.feature("user", f={"column": "f", "dtype": dtype, "cast": True})
    graph = tables.read()
    got = column(graph, "user", "f")
    assert [row.tolist() if isinstance(row, np.ndarray) else row for row in got] == wanted
    assert graph.schema.feature("user", "f").dtype == dtype


def test_cast_reads_whole_floats_of_csv_as_integers(tables):
    tables.write("users.csv", "uid,age\n11,3.0\n7,4\n9,9007199254740993\n")
    tables.nodes["user"] = {"files": "users.csv", "id": "uid"}
    tables.feature("user", age={"column": "age", "dtype": "int64"})
    with pytest.raises(SchemaError, match=r"user\.age is '3\.0' at users\.csv line 2; wanted int64"):
        tables.read()
    tables.feature("user", age={"column": "age", "dtype": "int16", "cast": True})
    with pytest.raises(SchemaError, match=r"'9007199254740993' at users\.csv line 4; wanted int16"):
        tables.read()


def test_fill_replaces_missing_values_of_parquet(tables):
    tables.write_parquet("users.parquet", uid=[11, 7, 9], age=[1, None, 3], name=["a", None, "c"], tags=[[1], None, []])
    tables.nodes["user"] = {"files": "users.parquet", "id": "uid"}
    tables.feature(
        "user",
        age={"column": "age", "fill": 5},
        name={"column": "name", "fill": "?"},
        tags={"column": "tags", "fill": []},
    )
    graph = tables.read()
    assert column(graph, "user", "age") == [1, 5, 3]
    assert column(graph, "user", "name") == ["a", "?", "c"]
    assert [row.tolist() for row in column(graph, "user", "tags")] == [[1], [], []]


@pytest.mark.parametrize(
    ("column_values", "spec", "message"),
    [
        ([1.5, 2.0], {"dtype": "float32"}, r"user\.f is float64 in users\.parquet; the metadata says float32; declare"),
        ([1, None], {}, r"user\.f has no value at users\.parquet row 1; give \"fill\""),
        ([[1], [2, None]], {}, "user.f has no value at users.parquet row 1"),
        ([[1], [2, None]], {"fill": []}, 'row 1; "fill" does not apply inside lists'),
        ([1, None], {"fill": "x"}, r"user\.f: fill 'x' is not of type int64"),
        ([[1], None], {"fill": 3}, "fill 3 is not of type list"),
        ([1, 300], {"dtype": "int8", "cast": True}, "user.f is 300 at users.parquet row 1; int8 cannot hold it"),
        ([1.0, 1e300], {"dtype": "float32", "cast": True}, r"user\.f is 1e\+300 at users\.parquet row 1; float32"),
        ([1.0, 1.5], {"dtype": "int64", "cast": True}, r"user\.f is 1\.5 at users\.parquet row 1; int64 cannot"),
        ([[1, 2], [3]], {"shape": [2]}, r"user\.f has 1 values at users\.parquet row 1; the metadata says 2"),
        ([1, 2], {"shape": [2]}, r"user\.f is int64\[rows\] in users\.parquet; wanted shape \[2\]"),
        ([["a"], ["b"]], {}, "holds lists of numbers of one shape"),
        ([[[1]], [[2, 3]]], {}, "holds lists of numbers of one shape"),
        ([b"a", b"b"], {}, r"user\.f is binary in users\.parquet; give a dtype and \"cast\": true"),
        (pa.array([1, 2], pa.timestamp("ms")), {}, r"user\.f is timestamp\[ms\] in users\.parquet"),
        ([{"a": 1}, {"a": 2}], {}, r"user\.f is struct<a: int64> in users\.parquet"),
        ([None, None], {}, "has no value at users.parquet row 0"),
    ],
)
def test_parquet_columns_that_do_not_fit_are_refused(tables, column_values, spec, message):
    tables.write_parquet("users.parquet", uid=[11, 9], f=column_values)
    tables.nodes["user"] = {"files": "users.parquet", "id": "uid", "features": {"f": {"column": "f", **spec}}}
    with pytest.raises(SchemaError, match=message):
        tables.read()


def test_files_of_one_table_agree(tables):
    tables.write_parquet("a.parquet", uid=[11, 9], f=[1, 2])
    tables.write_parquet("b.parquet", uid=[7], f=[0.5])
    tables.nodes["user"] = {"files": ["a.parquet", "b.parquet"], "id": "uid", "features": ["f"]}
    with pytest.raises(SchemaError, match=r"user\.f is float64\[rows\] in b\.parquet; before it was int64\[rows\]"):
        tables.read()
    tables.feature("user", f={"column": "f", "dtype": "float64", "cast": True})
    assert column(tables.read(), "user", "f") == [1, 2, 0.5]


@pytest.mark.parametrize("raw", [[1.0, 2.0], [True, False], [[1], [2]], [2**63, 1]])
def test_raw_ids_of_parquet_are_integers_or_strings(tables, raw):
    values = pa.array(raw, pa.uint64()) if raw[0] == 2**63 else raw
    tables.write_parquet("users.parquet", uid=values)
    tables.nodes["user"] = {"files": "users.parquet", "id": "uid"}
    with pytest.raises(SchemaError, match=r"user\.uid"):
        tables.read()


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("users.csv", USERS + "7,1,1,true,\n", SchemaError, r"raw id 7 twice: users\.csv line 3 and users\.csv line 5"),
        ("users.csv", USERS + ",1,1,true,\n", SchemaError, r"user\.uid is empty at users\.csv line 5"),
        ("users.csv", USERS + "8,,1,true,\n", SchemaError, r"user\.age has no value at users\.csv line 5; give"),
        ("users.csv", USERS + "8,1,1\n", FormatError, r"users\.csv line 5 cannot be read as csv"),
        ("users.csv", USERS + '8,1,"1,true,a\n', FormatError, r"users\.csv line 5 cannot be read as csv"),
        ("users.csv", "", FormatError, r"users\.csv cannot be read as csv: Empty CSV file"),
        (
            "users.csv",
            "uid,age,height,vip\n1,1,1,1\n",
            SchemaError,
            r"users\.csv has no column 'part'; its columns are",
        ),
        ("users.csv", "uid,age,age,height,vip,part\n", SchemaError, "has more than one column 'age'"),
        (
            "films.csv",
            FILMS + "z,t,1,q\n",
            SchemaError,
            r"film\.pos is 'z'|film\.pos is a vector of columns \['a', 'b'\]",
        ),
        (
            "ratings.csv",
            RATINGS + "12,x,1\n",
            SchemaError,
            r"rates__film\.user is '12', which no user node has, at rat",
        ),
        (
            "ratings.csv",
            RATINGS + "\n\nzz,x,1\n",
            SchemaError,
            r"'zz', which no user node has, at ratings\.csv line 7;",
        ),
        (
            "ratings.csv",
            RATINGS + "7,X,1\n",
            SchemaError,
            r"\.film is 'X', which no film node has, at ratings\.csv line 5",
        ),
        ("ratings.csv", RATINGS + "7,,1\n", SchemaError, r"user__rates__film\.film is empty, at ratings\.csv line 5"),
    ],
)
def test_flaws_name_their_file_and_line(tables, name, text, error, message):
    tables.write(name, text)
    with pytest.raises(error, match=message) as in_memory:
        tables.read()
    with pytest.raises(error) as chunked:
        chunk_tables(tables.root, tables.root.parent / "out", num_workers=0)
    # Arrow counts rows in its messages where it reads in one thread.
    assert str(chunked.value).replace("Row #5: ", "") == str(in_memory.value)
    assert not (tables.root.parent / "out").exists() and list(tables.root.parent.glob(".*")) == []


def test_lines_are_counted_through_quoted_lines_and_later_files(tables, monkeypatch):
    monkeypatch.setattr(files, "CSV_BLOCK_BYTES", 48)
    tables.write("films.csv", 'id,title,a,b\n\n"x","three\n\nlines",1,2\ny,B,3,4\nw,C,5,6\nv,D,7,oops\n')
    tables.feature("film", pos={"columns": ["a", "b"], "dtype": "float32"})
    with pytest.raises(SchemaError, match=r"film\.pos is 'oops' at films\.csv line 8; wanted float32"):
        tables.read()
    (tables.root / "more.csv.gz").write_bytes(gzip.compress(b"id,title,a,b\nq,Q,1,2\ny,B,3,4\n"))
    tables.write("films.csv", FILMS)
    tables.nodes["film"]["files"] = ["films.csv", "more.csv.gz"]
    with pytest.raises(SchemaError, match=r"raw id 'y' twice: films\.csv line 3 and more\.csv\.gz line 3"):
        tables.read()


def test_damaged_table_files_are_named(tables):
    (tables.root / "bad.csv.gz").write_bytes(gzip.compress(RATINGS.encode() * 100)[:-20])
    (tables.root / "latin.csv").write_bytes("user,film,stars\n9,größe,1\n".encode("latin-1"))
    (tables.root / "cut.parquet").write_bytes(b"PAR1 and then nothing")
    for name in ("bad.csv.gz", "latin.csv", "cut.parquet"):
        tables.rates["files"] = name
        with pytest.raises(FormatError, match=f"{name}.* (cannot be read as|is not UTF-8)"):
            tables.read()


def test_empty_tables_become_types_without_rows(tables):
    tables.write("users.csv", "uid,age,height,vip,part\n")
    tables.write("films.csv", "")
    tables.nodes["film"]["columns"] = ["id", "title", "a", "b"]
    tables.write("ratings.csv", "user,film,stars\n")
    graph = tables.read()
    assert (graph.nodes["user"].num_nodes, graph.nodes["film"].num_nodes, graph.edges[RATES].num_edges) == (0, 0, 0)
    assert graph.nodes["film"].features["pos"].shape == (0, 2)
    tables.feature("user", age={"column": "age", "dtype": "string"})
    assert str(tables.read().schema.feature("user", "age")) == "string"


@pytest.mark.parametrize("pattern", ["../films.csv", "/etc/passwd", "a/../../films.csv", "link.csv", "link*.csv"])
def test_paths_stay_in_the_folder(tmp_path, pattern):
    (tmp_path / "films.csv").write_text(FILMS)
    (tmp_path / "inside" / "a").mkdir(parents=True)
    tables = Tables(tmp_path / "inside")
    (tmp_path / "inside" / "link.csv").symlink_to(tmp_path / "films.csv")
    tables.nodes["film"]["files"] = pattern
    with pytest.raises(SchemaError, match=r"below the folder|leads out of"):
        tables.read()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda t: t.nodes["user"].update(file="x"),
            SchemaError,
            "nodes.user has unknown key 'file'; known: .*; did you mean 'files'",
        ),
        (lambda t: t.nodes["user"].pop("files"), SchemaError, "nodes.user lacks 'files'"),
        (lambda t: t.nodes["user"].update(files=[]), SchemaError, "files is .*; wanted a string or a list"),
        (lambda t: t.nodes["user"].update(files="no.csv"), FormatError, "'no.csv', which does not exist"),
        (lambda t: t.nodes["user"].update(files="no*.csv"), FormatError, "which does not exist"),
        (lambda t: t.nodes["user"].update(files=["users.csv", "users*"]), SchemaError, "name .*users.csv twice"),
        (lambda t: t.nodes["user"].update(files=["users.csv"], format="xml"), SchemaError, "tables are csv or parquet"),
        (lambda t: t.nodes["user"].update(delimiter=";;"), SchemaError, "wanted one character"),
        (lambda t: t.nodes["user"].update(features=3), SchemaError, "wanted a list of columns"),
        (lambda t: t.feature("user", f={"dtype": "int8"}), SchemaError, "features.f lacks 'column'"),
        (lambda t: t.feature("user", f={"column": "age", "dtype": "int"}), SchemaError, "dtype is 'int'; wanted one"),
        (lambda t: t.feature("user", f={"column": "age", "cast": True}), SchemaError, "cast needs a dtype"),
        (lambda t: t.feature("user", f={"column": "age", "cast": 1}), SchemaError, "wanted true or false"),
        (lambda t: t.feature("user", f=[]), SchemaError, "wanted a string or a list|at least one column"),
        (lambda t: t.feature("user", f={"columns": ["age"], "dtype": "string"}), SchemaError, "of numbers"),
        (lambda t: t.feature("user", f={"columns": ["age"], "shape": [1]}), SchemaError, "one column of lists"),
        (lambda t: t.feature("user", f={"column": "age", "shape": [0]}), SchemaError, "positive integers"),
        (lambda t: t.feature("user", f={"column": "age", "shape": 3}), SchemaError, "shape is 3; wanted"),
        (lambda t: t.nodes["user"].update(id={"column": "uid", "dtype": "float64"}), SchemaError, "int64 or string"),
        (lambda t: t.nodes["user"].update(from_edges=True), SchemaError, "unknown key"),
        (lambda t: t.rates.update(type=["user", "rates"]), SchemaError, r"wanted \[source type, relation"),
        (lambda t: t.rates.update(type=["user", "rates", "movie"]), SchemaError, "joins node type 'movie'"),
        (lambda t: t.nodes.clear(), SchemaError, "wanted an object with at least one entry"),
        (lambda t: t.nodes.update(user=[]), SchemaError, "nodes.user is list; wanted a JSON object"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(tables, change, error, message):
    change(tables)
    with pytest.raises(error, match=message):
        tables.read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ('{"nodes": {"a": {}, "a": {}}}', "a key is repeated"),
    ],
)
def test_invalid_metadata_files_are_refused(tmp_path, text, message):
    path = tmp_path / "graph.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_graph(path)


def test_an_edge_type_is_described_once(tables):
    tables.read()
    path = tables.root / "metadata.json"
    path.write_text(json.dumps({"nodes": tables.nodes, "edges": [tables.rates, tables.rates]}))
    with pytest.raises(SchemaError, match=r"edges\[1\] describes user__rates__film again"):
        read_graph(path)


def test_settings_are_checked():
    with pytest.raises(SettingsError, match="on_dangling is 'keep'; wanted error or drop"):
        TableSettings(on_dangling="keep")
    with pytest.raises(SettingsError, match="keep_raw_ids is 1"):
        TableSettings(keep_raw_ids=1)


def folder_with(tmp_path, name, files, metadata):
    for file in files:
        source = DATA / name / file
        if not source.exists():
            pytest.skip(f"needs {source}")
        (tmp_path / file).write_bytes(source.read_bytes())
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    return tmp_path


def test_bitcoin_otc_has_its_known_sizes(tmp_path):
    metadata = {
        "nodes": {"account": {"files": "nodes.csv", "columns": ["id"], "id": "id"}},
        "edges": [
            {
                "type": ["account", "rates", "account"],
                "files": "edges.csv.gz",
                "columns": ["from", "to", "rating", "time"],
                "src": "from",
                "dst": "to",
                "features": {"rating": {"column": "rating", "dtype": "int8"}, "time": "time"},
            }
        ],
    }
    graph = read_graph(folder_with(tmp_path, "bitcoin-otc", ["nodes.csv", "edges.csv.gz"], metadata))
    edges = graph.edges["account", "rates", "account"]
    assert (graph.nodes["account"].num_nodes, edges.num_edges) == (5881, 35592)
    raw, rating = graph.nodes["account"].features["id"], edges.features["rating"]
    assert raw[:3].tolist() == [610, 452, 687]
    assert (rating.dtype, rating.min(), rating.max(), (rating == 0).any()) == (np.int8, -10, 10, False)
    with gzip.open(tmp_path / "edges.csv.gz", "rt") as file:
        lines = [line.split(",") for line in file]
    assert raw[edges.src_keys].tolist() == [int(line[0]) for line in lines]
    assert raw[edges.dst_keys].tolist() == [int(line[1]) for line in lines]
    assert edges.features["time"].tolist() == [float(line[3]) for line in lines]


def test_movielens_has_its_known_sizes(tmp_path):
    metadata = {
        "nodes": {
            "user": {"from_edges": True, "id": "userId"},
            "movie": {"files": "movies.csv.gz", "id": "movieId", "features": ["title", "genres"]},
        },
        "edges": [
            {
                "type": ["user", "rates", "movie"],
                "files": "ratings.csv.gz",
                "src": "userId",
                "dst": "movieId",
                "features": {"rating": {"column": "rating", "dtype": "float32"}, "time": "timestamp"},
            },
            {
                "type": ["user", "tags", "movie"],
                "files": "tags.csv.gz",
                "src": "userId",
                "dst": "movieId",
                "features": ["tag"],
            },
        ],
    }
    files = ["movies.csv.gz", "ratings.csv.gz", "tags.csv.gz"]
    graph = read_graph(folder_with(tmp_path, "ml-latest-small", files, metadata))
    assert {t: table.num_nodes for t, table in graph.nodes.items()} == {"user": 610, "movie": 9742}
    assert {t[1]: table.num_edges for t, table in graph.edges.items()} == {"rates": 100_836, "tags": 3_683}
    titles = graph.nodes["movie"].features["title"]
    assert titles[0] == "Toy Story (1995)"
    assert "Misérables, Les (1995)" in set(titles)
    time = graph.edges["user", "rates", "movie"].features["time"]
    assert (time.dtype, time.min(), time.max()) == (np.int64, 828_124_615, 1_537_799_250)


@pytest.mark.parametrize(("dtype", "cell"), [("float32", "1e300"), ("float16", "70000"), ("float64", "-1e400")])
def test_a_number_that_overflows_names_its_line(tables, dtype, cell):
    tables.write("users.csv", f"uid,age\nada,inf\nbob,-Infinity\ncy,{cell}\n")
    tables.nodes["user"] = {"files": "users.csv", "id": "uid", "features": {"age": {"column": "age", "dtype": dtype}}}
    tables.write("ratings.csv", "user,film,stars\n")
    with pytest.raises(SchemaError, match=rf"user\.age is '{cell}' at users\.csv line 4; wanted {dtype}, -.* to "):
        tables.read()
    tables.write("users.csv", "uid,age\nada,inf\nbob,-Infinity\n")
    assert column(tables.read(), "user", "age") == [np.inf, -np.inf]


@pytest.mark.parametrize("features", [["age"], ["name"]])
def test_text_that_is_not_utf8_names_its_line(tables, features):
    (tables.root / "users.csv").write_bytes(b"uid,age,name\nada,1,x\nbob,2,b\xffb\n")
    tables.nodes["user"] = {"files": "users.csv", "id": "uid", "features": features}
    tables.write("ratings.csv", "user,film,stars\n")
    if features == ["age"]:  # columns that were not requested are not checked
        assert column(tables.read(), "user", "age") == [1, 2]
        return
    with pytest.raises(FormatError, match=r"users\.csv line 3 is not UTF-8; convert the file"):
        tables.read()


def test_tables_have_no_complex_numbers(tables):
    tables.feature("user", age={"column": "age", "dtype": "complex64"})
    with pytest.raises(SchemaError, match="dtype is 'complex64'; wanted one of bool, int8"):
        tables.read()


def test_repeated_raw_ids_are_dropped_if_requested(tmp_path):
    tables = Tables(tmp_path)
    tables.write("users.csv", USERS + "7,99,9.5,true,val\n11,98,9.5,true,val\n")
    with pytest.raises(SchemaError, match=r"user has raw id 7 twice: users\.csv line 3 and users\.csv line 5"):
        tables.read()
    graph = tables.read(on_duplicate="drop")
    assert graph.nodes["user"].features["uid"].tolist() == [11, 7, 9]
    assert graph.nodes["user"].features["age"].tolist() == [30, 41, -2]
    assert graph.splits["user"]["train"].tolist() == [0] and graph.splits["user"]["val"].tolist() == []
    assert graph.edges[RATES].src_keys.tolist() == [2, 0, 2]
    result = read_tables(tmp_path / "metadata.json", TableSettings(on_duplicate="drop"))
    assert result.num_repeated == {"user": 2, "film": 0}
    with pytest.raises(SettingsError, match="on_duplicate is 'keep'"):
        TableSettings(on_duplicate="keep")


def test_features_with_names_reserved_for_batches_are_refused(tables, tmp_path_factory):
    chunks = tmp_path_factory.mktemp("beside") / "chunks"
    tables.nodes["film"]["features"] = {"n_id": "title"}
    refused = "film has a feature 'n_id', which is the name of an attribute of every batch; rename or remove it"
    with pytest.raises(SchemaError, match=refused):
        tables.read()
    with pytest.raises(SchemaError, match=refused):
        chunk_tables(tables.root, chunks, num_workers=0)
    assert not chunks.exists()
    chunk_tables(tables.root, chunks, num_workers=0, leave_out=("film.n_id",))
    tables.nodes["film"] = {"files": "films.csv", "id": "batch"}
    tables.write("films.csv", "batch\nx\ny\n")
    with pytest.raises(SchemaError, match="film has a feature 'batch', which"):
        tables.read()
    assert tables.read(keep_raw_ids=False).nodes["film"].num_nodes == 2
