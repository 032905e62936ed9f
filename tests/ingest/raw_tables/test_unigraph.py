"""Checks that a unigraph is read by its schema, in every file format, and that flaws name their place."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.ingest import read_graph
from hopstream.ingest.chunking import plan
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.tfgnn.tfrecord import RecordWriter
from tests.ingest.chunking.worlds import SMALL

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "tfgnn"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")

USERS = {
    "#id": ["ann", "bob", "çem", "7"], "age": [30, 41, 0, -2], "score": [0.5, float("nan"), 1.25, -3.0],
    "name": ['Ann "A"', "Bob, B", "", "line\nbreak"], "ok": [1, 0, 1, 1],
}  # fmt: skip
LIKES = {"#source": ["ann", "7", "ann", "bob"], "#target": ["i1", "i2", "i1", "i9"], "weight": [1.0, 0.5, 2.0, 0.0]}
SCHEMA = """
context {{ features {{ key: "size" value {{ dtype: DT_INT64 }} }} metadata {{ filename: "graph.{suffix}" }} }}
node_sets {{ key: "user" value {{
  features {{ key: "age" value {{ dtype: DT_INT32 }} }}
  features {{ key: "score" value {{ dtype: DT_FLOAT }} }}
  features {{ key: "name" value {{ dtype: DT_STRING }} }}
  features {{ key: "ok" value {{ dtype: DT_BOOL }} }}
  metadata {{ filename: "users.{name}" cardinality: 4 }} }} }}
node_sets {{ key: "item" value {{}} }}
edge_sets {{ key: "likes" value {{ source: "user" target: "item"
  features {{ key: "weight" value {{ dtype: DT_FLOAT }} }} metadata {{ filename: "likes.{name}" }} }} }}
edge_sets {{ key: "liked" value {{ source: "item" target: "user"
  metadata {{ filename: "likes.{name}" extra {{ key: "edge_type" value: "reversed" }} }} }} }}
"""


def write_table(path, columns):
    """Write a file in the format of its suffix."""
    if ".csv" in path.name:
        rows = [list(columns), *([str(v) for v in row] for row in zip(*columns.values(), strict=True))]
        quoted = "".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n" for row in rows)
        path.write_text(quoted)
    elif ".parquet" in path.name:
        pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path, row_group_size=2)
    else:
        with RecordWriter(path, is_compressed=".gz" in path.name) as writer:
            for row in zip(*columns.values(), strict=True):
                message = message_class(EXAMPLE)()
                for name, value in zip(columns, row, strict=True):
                    values = value if isinstance(value, list) else [value]
                    feature = message.features.feature[name]
                    if values and isinstance(values[0], str):
                        feature.bytes_list.value.extend(v.encode() for v in values)
                    elif values and isinstance(values[0], float):
                        feature.float_list.value.extend(values)
                    else:
                        feature.int64_list.value.extend(values)
                writer.write(message.SerializeToString())
    return path


def write_world(folder, suffix="csv", shards=0, users=USERS, likes=LIKES):
    """Two tables and a schema; each table has a number of shards, or one file."""
    folder.mkdir(exist_ok=True)
    for name, columns in {"users": users, "likes": likes}.items():
        num_rows = len(next(iter(columns.values())))
        for shard in range(max(1, shards)):
            start, stop = num_rows * shard // max(1, shards), num_rows * (shard + 1) // max(1, shards)
            tail = f"-{shard:05}-of-{shards:05}" if shards else ""
            write_table(folder / f"{name}.{suffix}{tail}", {n: of[start:stop] for n, of in columns.items()})
    write_table(folder / f"graph.{suffix}", {"size": [12]})
    text = SCHEMA.format(suffix=suffix, name=f"{suffix}@{shards}" if shards else suffix)
    (folder / "graph.pbtxt").write_text(text)
    return folder / "graph.pbtxt"


def chunked(path, monkeypatch, **options):
    """The same graph, read through files in small pieces."""
    monkeypatch.setattr(plan, "LIMITS", SMALL)
    out = path.parent.parent / f"{path.parent.name}-chunked"
    return read_graph(chunk_tables(path, out, num_workers=0, **options).metadata)


@pytest.mark.parametrize(
    ("suffix", "shards"),
    [("csv", 3), ("tfrecord", 0), ("tfrecords", 3), ("tfrecord.gz", 0), ("parquet", 0)],
)
def test_all_formats_make_the_same_graph(tmp_path, monkeypatch, suffix, shards):
    path = write_world(tmp_path / "g", suffix, shards)
    graph = read_graph(path.parent)
    users, items = graph.nodes["user"], graph.nodes["item"]
    assert list(graph.nodes) == ["#context", "item", "user"]
    assert graph.nodes["#context"].features["size"].tolist() == [12]
    assert users.features["#id"].tolist() == USERS["#id"] and users.features["name"].tolist() == USERS["name"]
    assert users.features["age"].dtype == np.int32 and users.features["age"].tolist() == USERS["age"]
    np.testing.assert_array_equal(users.features["score"], np.array(USERS["score"], np.float32))
    assert users.features["ok"].tolist() == [True, False, True, True]
    assert items.features["#id"].tolist() == ["i1", "i2", "i9"]
    likes, liked = graph.edges["user", "likes", "item"], graph.edges["item", "liked", "user"]
    assert likes.src_keys.tolist() == [0, 3, 0, 1] and likes.dst_keys.tolist() == [0, 1, 0, 2]
    assert liked.src_keys.tolist() == likes.dst_keys.tolist() and liked.dst_keys.tolist() == likes.src_keys.tolist()
    assert likes.features["weight"].tolist() == liked.features["weight"].tolist() == LIKES["weight"]
    assert chunked(path, monkeypatch).fingerprint() == graph.fingerprint()


@pytest.mark.parametrize("suffix", ["csv", "tfrecord", "parquet"])
def test_id_columns_may_omit_the_hash_prefix(tmp_path, suffix):
    plain = {name.removeprefix("#"): values for name, values in LIKES.items() if name != "weight"}
    likes = {**plain, "#weight": LIKES["weight"]}
    users = {name.removeprefix("#"): values for name, values in USERS.items()}
    graph = read_graph(write_world(tmp_path / "g", suffix, users=users, likes=likes))
    signed = read_graph(write_world(tmp_path / "h", suffix))
    for of in (graph, signed):
        weight = of.edges["item", "liked", "user"].features["weight"]  # is read though no schema declares it
        assert weight.dtype == np.float32 and weight.tolist() == LIKES["weight"]
    assert graph.fingerprint() == signed.fingerprint()


@pytest.mark.parametrize("suffix", ["csv", "tfrecord", "parquet"])
def test_an_undeclared_weight_must_be_numeric(tmp_path, suffix):
    path = write_world(tmp_path / "g", suffix, likes={**LIKES, "weight": ["heavy"] * 4})
    declared = 'features { key: "weight" value { dtype: DT_FLOAT } }'
    path.write_text(path.read_text().replace(declared, ""))
    with pytest.raises(SchemaError, match=r"weight"):
        read_graph(path)
    path.write_text(
        path.read_text().replace('"item"\n', '"item" features { key: "weight" value { dtype: DT_STRING } }\n')
    )
    path.write_text(
        path.read_text().replace(
            'target: "user"', 'target: "user" features { key: "weight" value { dtype: DT_STRING } }'
        )
    )
    assert read_graph(path).edges["user", "likes", "item"].features["weight"].tolist() == ["heavy"] * 4


REVERSED = """
node_sets { key: "user" value { metadata { filename: "users.%(suffix)s" } } }
node_sets { key: "item" value { metadata { filename: "items.%(suffix)s" } } }
edge_sets { key: "bought_by" value { source: "item" target: "user"
  features { key: "at" value { dtype: DT_INT64 } }
  metadata { filename: "bought.%(suffix)s" extra { key: "edge_type" value: "%(kind)s" } } } }
"""


@pytest.mark.parametrize(("suffix", "is_piecewise"), [("csv", True), ("tfrecord", False), ("parquet", True)])
def test_an_edge_type_that_is_reversed(tmp_path, monkeypatch, suffix, is_piecewise):
    folder = tmp_path / "g"
    folder.mkdir()
    write_table(folder / f"users.{suffix}", {"#id": ["ann", "bob", "cy"]})
    write_table(folder / f"items.{suffix}", {"#id": ["pen", "ink"]})
    # As users buy: the table has users in its column #source, items in #target.
    bought = {"#source": ["cy", "ann", "cy"], "#target": ["pen", "ink", "ink"], "at": [7, 8, 9]}
    write_table(folder / f"bought.{suffix}", bought)
    path = folder / "g.pbtxt"
    path.write_text(REVERSED % {"suffix": suffix, "kind": "reversed"})
    graph = chunked(path, monkeypatch) if is_piecewise else read_graph(path)
    assert list(graph.edges) == [("item", "bought_by", "user")]
    edges = graph.edges["item", "bought_by", "user"]
    assert edges.src_keys.tolist() == [0, 1, 1]  # pen, ink, ink
    assert edges.dst_keys.tolist() == [2, 0, 2]  # cy, ann, cy
    assert edges.features["at"].tolist() == [7, 8, 9]
    path.write_text(REVERSED % {"suffix": suffix, "kind": "edges"})
    with pytest.raises(SchemaError, match=r"#source is 'cy', which no item node has"):
        read_graph(path)


def test_ids_are_strings(tmp_path):
    likes = {**LIKES, "#target": [5, 7, 5, 12]}
    graph = read_graph(write_world(tmp_path / "g", "parquet", likes=likes))
    assert graph.nodes["item"].features["#id"].tolist() == ["12", "5", "7"]


def test_bytes_of_parquet_files_are_text(tmp_path):
    likes = {**LIKES, "#source": [s.encode() for s in LIKES["#source"]]}
    users = {**USERS, "#id": [s.encode() for s in USERS["#id"]], "name": [s.encode() for s in USERS["name"]]}
    whole = read_graph(write_world(tmp_path / "g", "parquet"))
    assert read_graph(write_world(tmp_path / "h", "parquet", users=users, likes=likes)).fingerprint() == (
        whole.fingerprint()
    )
    with pytest.raises(SchemaError, match=r"user.#id is b'\\xff' at users.parquet row 2, which is not UTF-8"):
        read_graph(write_world(tmp_path / "i", "parquet", users=replaced(users, "#id", 2, b"\xff")))


def test_the_header_may_be_in_any_shard(tmp_path, monkeypatch):
    path = write_world(tmp_path / "g", "csv", 3)
    first, second, third = sorted(path.parent.glob("likes.csv-*"))
    rows = first.read_text() + "".join(p.read_text().split("\n", 1)[1] for p in (second, third))
    header, *lines = rows.splitlines(keepends=True)
    whole = read_graph(path)
    first.write_text("")
    second.write_text("".join(lines[:3]))
    third.write_text(header + "".join(lines[3:]))
    assert read_graph(path).fingerprint() == whole.fingerprint()
    assert chunked(path, monkeypatch).fingerprint() == whole.fingerprint()
    second.write_text("".join(lines[:2]) + '"ann","i1","x"\n')
    with pytest.raises(SchemaError, match=r"likes.csv-00001-of-00003 line 3"):
        read_graph(path)


def test_a_cell_equal_to_a_column_name_is_not_a_header(tmp_path, monkeypatch):
    path = write_world(tmp_path / "g", "csv", 2)
    first, second = sorted(path.parent.glob("users.csv-*"))
    header, rows = second.read_text().split("\n", 1)
    second.write_text(rows.replace('""', '"name"'))  # a user with the name "name"
    first.write_text(f"{header}\n" + '"ann","30","0.5","score","1"\n"bob","41","1","id","0"\n')
    graph = read_graph(path)
    assert graph.nodes["user"].features["#id"].tolist() == USERS["#id"]
    assert graph.nodes["user"].features["name"].tolist()[:3] == ["score", "id", "name"]
    assert chunked(path, monkeypatch).fingerprint() == graph.fingerprint()
    likes = sorted(path.parent.glob("likes.csv-*"))
    likes[1].write_text('"ann","target","0.5"\n')  # an item that is called like a column
    assert "target" in read_graph(path).nodes["item"].features["#id"].tolist()


VECTORS = """
node_sets { key: "n" value {
  features { key: "v" value { dtype: DT_FLOAT shape { dim { size: 2 } } } }
  features { key: "m" value { dtype: DT_INT64 shape { dim { size: 2 } dim { size: 3 } } } }
  features { key: "one" value { dtype: DT_INT8 shape { dim { size: 1 } } } }
  features { key: "r" value { dtype: DT_INT64 shape { dim { size: -1 } } } }
  features { key: "rv" value { dtype: DT_FLOAT shape { dim { size: -1 } dim { size: 2 } } } }
  metadata { filename: "n.%s" } } }
"""


@pytest.mark.parametrize("suffix", ["tfrecord", "parquet"])
def test_vectors_and_lists(tmp_path, monkeypatch, suffix):
    rv = [[], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]
    columns = {
        "#id": ["a", "b", "c"], "v": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "m": [list(range(6))] * 3,
        "one": [[1], [2], [3]],
        "r": [[], [1], [1, 2]],
        "rv": rv if suffix == "tfrecord" else [np.reshape(r, (-1, 2)).tolist() for r in rv],
    }  # fmt: skip
    (tmp_path / "g").mkdir()
    write_table(tmp_path / "g" / f"n.{suffix}", columns)
    path = tmp_path / "g" / "g.pbtxt"
    path.write_text(VECTORS % suffix)
    graph = read_graph(path)
    features = graph.nodes["n"].features
    assert features["v"].tolist() == columns["v"] and features["m"].shape == (3, 2, 3)
    assert features["one"].shape == (3, 1) and features["one"].dtype == np.int8
    assert features["r"].tolist() == columns["r"]
    assert features["rv"].tolist() == [[], [[1, 2]], [[1, 2], [3, 4]]]
    assert chunked(path, monkeypatch).fingerprint() == graph.fingerprint()


def test_lists_of_equal_length_may_be_declared_ragged(tmp_path):
    rows = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4]), 2)
    pq.write_table(pa.table({"#id": ["a", "b"], "r": rows}), tmp_path / "n.parquet")
    features = 'features { key: "r" value { dtype: DT_INT64 shape { dim { size: -1 } } } }'
    (tmp_path / "g.pbtxt").write_text(
        'node_sets { key: "n" value { %s metadata { filename: "n.parquet" } } }' % features  # noqa: UP031
    )
    assert read_graph(tmp_path).nodes["n"].features["r"].tolist() == [[1, 2], [3, 4]]


def replaced(columns, name, row, value):
    return {**columns, name: [value if i == row else v for i, v in enumerate(columns[name])]}


LINES = {"csv": r"line 4", "tfrecord": r"record 2", "parquet": r"row 2"}


@pytest.mark.parametrize(
    ("suffix", "is_chunked"), [("csv", False), ("tfrecord", True), ("parquet", False), ("parquet", True)]
)
def test_error_names_the_place_of_a_bad_row(tmp_path, monkeypatch, suffix, is_chunked):
    def read(name, **columns):
        path = write_world(tmp_path / name, suffix, **columns)
        return chunked(path, monkeypatch) if is_chunked else read_graph(path)

    place = f"{suffix} {LINES[suffix]}"
    with pytest.raises(SchemaError, match=rf"#source is 'zoe', which no user node has, at likes.{place}"):
        read("dangling", likes=replaced(LIKES, "#source", 2, "zoe"))
    with pytest.raises(SchemaError, match=rf"user has raw id 'bob' twice: users.* and users.{place}"):
        read("twice", users=replaced(USERS, "#id", 2, "bob"))
    with pytest.raises(
        SchemaError, match=rf"users.{place}.*" if suffix == "tfrecord" else rf"age is .* at users.{place}"
    ):
        read("range", users=replaced(USERS, "age", 2, 2**40))


@pytest.mark.parametrize("suffix", ["csv", "tfrecord", "parquet"])
def test_a_column_that_is_missing_is_named(tmp_path, suffix):
    with pytest.raises(SchemaError, match=rf"users.{suffix}.* has no (column|feature) 'age'"):
        read_graph(write_world(tmp_path / "a", suffix, users={n: v for n, v in USERS.items() if n != "age"}))
    with pytest.raises(SchemaError, match=rf"likes.{suffix}.* has no (column|feature) '#target'"):
        read_graph(write_world(tmp_path / "b", suffix, likes={n: v for n, v in LIKES.items() if n != "#target"}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("age", "old", r"record 1: feature 'age' holds strings; the schema says int32\[rows\]"),
        ("age", 1.5, r"record 1: feature 'age' holds reals"),
        ("age", [1, 2], r"record 1: feature 'age' has 2 values; the schema says 1"),
        ("age", [], r"record 1: feature 'age' has 0 values"),
        ("name", 3.5, r"record 1: feature 'name' holds reals; the schema says string"),
    ],
)
def test_records_of_another_kind(tmp_path, name, value, message):
    with pytest.raises(SchemaError, match=message):
        read_graph(write_world(tmp_path / "g", "tfrecord", users=replaced(USERS, name, 1, value)))


def test_bytes_that_are_not_utf8(tmp_path):
    path = write_world(tmp_path / "g", "tfrecord")
    message = message_class(EXAMPLE)()
    message.features.feature["#source"].bytes_list.value.append(b"\xff")
    message.features.feature["#target"].bytes_list.value.append(b"i1")
    message.features.feature["weight"].float_list.value.append(1)
    with RecordWriter(path.parent / "likes.tfrecord") as writer:
        writer.write(message.SerializeToString())
    with pytest.raises(
        SchemaError, match=r"likes.tfrecord record 0: feature '#source' is b'\\xff', which is not UTF-8"
    ):
        read_graph(path)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('source: "user"', 'source: "nobody"', SchemaError, "set 'likes' has source 'nobody', which is not a node set"),
        ('filename: "users.csv"', 'filename: "../users.csv"', SchemaError, "files lie below"),
        ('filename: "users.csv"', 'filename: "/users.csv"', SchemaError, "is not below .*g; give data_path, a folder"),
        ('filename: "users.csv"', 'filename: "gs://x/users.csv"', SchemaError, "files lie below"),
        ('filename: "users.csv"', 'filename: "users.txt"', SchemaError, "whose format is unknown"),
        ('filename: "users.csv"', 'filename: "nobody.csv"', FormatError, "nobody.csv does not exist"),
        ('filename: "users.csv"', 'filename: "no*.csv"', FormatError, "no file matches"),
        ('filename: "users.csv"', "", SchemaError, "node set 'user' has features .* and no metadata.filename"),
        ('filename: "users.csv"', 'filename: "users.csv@0"', SchemaError, "names 0 files"),
        ("cardinality: 4", "cardinality: 5", SchemaError, "user has cardinality 5 .* its table has 4 rows"),
        ("value {}", "value { metadata { cardinality: 2 } }", SchemaError, "item has cardinality 2 .* edges name 3"),
        ("DT_INT32", "DT_COMPLEX64", SchemaError, "dtype"),
        ("DT_INT32", "DT_INT32 shape { dim { size: 2 } }", SchemaError, "a cell of a CSV file holds one value"),
        ("DT_INT32", "DT_INT32 shape { dim { size: 0 } }", SchemaError, "which has no values"),
        ('filename: "users.csv"', 'bigquery { sql: "x" }', SchemaError, "BigQuery"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_read(tmp_path, old, new, error, message):
    path = write_world(tmp_path / "g")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(error, match=message):
        read_graph(path)


def test_cardinality_is_checked_when_read_in_chunks_too(tmp_path, monkeypatch):
    for number, (old, new) in enumerate(
        {"cardinality: 4": "cardinality: 3", "value {}": "value { metadata { cardinality: 2 } }"}.items()
    ):
        path = write_world(tmp_path / str(number))
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(SchemaError, match=r"has cardinality"):
            chunked(path, monkeypatch)


def test_fewer_latent_nodes_than_their_cardinality_are_accepted(tmp_path):
    path = write_world(tmp_path / "g")
    path.write_text(path.read_text().replace("value {}", "value { metadata { cardinality: 9 } }"))
    assert read_graph(path).nodes["item"].num_nodes == 3


def test_missing_shards_are_refused(tmp_path):
    path = write_world(tmp_path / "g", "tfrecord", 3)
    text = path.read_text()
    path.write_text(text.replace("users.tfrecord@3", "users.tfrecord@4"))
    with pytest.raises(FormatError, match=r"users.tfrecord-00000-of-00004 is missing, and all others too; .*-of-00003"):
        read_graph(path)
    path.write_text(text.replace("users.tfrecord@3", "users.tfrecord-?????-of-?????"))
    assert read_graph(path).nodes["user"].num_nodes == 4
    (path.parent / "users.tfrecord-00001-of-00003").unlink()
    with pytest.raises(FormatError, match=r"users.tfrecord-00001-of-00003 is missing, but 2 of 3 exist"):
        read_graph(path)
    path.write_text(text)
    with pytest.raises(FormatError, match=r"users.tfrecord-00001-of-00003 is missing; check the name and the folder"):
        read_graph(path)


def test_shards_of_two_writings(tmp_path):
    path = write_world(tmp_path / "g", "csv", 2)
    path.write_text(path.read_text().replace("likes.csv@2", "likes.csv-*"))
    write_table(path.parent / "likes.csv-00000-of-00001", LIKES)
    with pytest.raises(FormatError, match=r"has shards of \[1, 2\] files"):
        read_graph(path)


def test_a_link_out_of_the_folder(tmp_path):
    path = write_world(tmp_path / "g")
    (path.parent / "users.csv").rename(tmp_path / "users.csv")
    (path.parent / "users.csv").symlink_to(tmp_path / "users.csv")
    with pytest.raises(SchemaError, match=r"leads out of"):
        read_graph(path)


@pytest.mark.parametrize("is_piecewise", [False, True])
def test_file_names_that_are_absolute(tmp_path, monkeypatch, is_piecewise):
    def read(path, **options):
        return chunked(path, monkeypatch, **options) if is_piecewise else read_graph(path, **options)

    whole = read_graph(write_world(tmp_path / "g", "csv", 2))
    path = write_world(tmp_path / "h", "csv", 2)
    text = path.read_text()
    path.write_text(text.replace('filename: "', f'filename: "{path.parent}/'))
    assert read(path).fingerprint() == whole.fingerprint()  # they lie below the schema's folder
    (tmp_path / "schemas").mkdir()
    moved = path.rename(tmp_path / "schemas" / "graph.pbtxt")
    with pytest.raises(SchemaError, match=r"which is not below .*schemas; give data_path, a folder that"):
        read(moved)
    with pytest.raises(SchemaError, match=r"which is not below .*g; give data_path, a folder that"):
        read(moved, data_path=tmp_path / "g")
    monkeypatch.chdir(tmp_path)
    again = read_graph(moved, data_path="h")
    assert again.fingerprint() == read_graph(moved, data_path=tmp_path).fingerprint() == whole.fingerprint()
    assert is_piecewise is False or chunk_tables(moved, "out", num_workers=0, data_path="h").num_nodes["user"] == 4


def test_file_names_are_relative_to_the_folder_of_data(tmp_path):
    path = write_world(tmp_path / "g", "parquet")
    whole = read_graph(path)
    (tmp_path / "schemas").mkdir()
    moved = path.rename(tmp_path / "schemas" / "graph.pbtxt")
    assert read_graph(moved, data_path=tmp_path / "g").fingerprint() == whole.fingerprint()
    with pytest.raises(FormatError, match=r"schemas/.* does not exist"):
        read_graph(moved)
    with pytest.raises(SettingsError, match=r"data_path is .*nowhere.*; wanted an existing folder"):
        read_graph(moved, data_path=tmp_path / "nowhere")
    (tmp_path / "metadata.json").write_text('{"nodes": {}, "edges": []}')
    with pytest.raises(
        SettingsError, match=r"data_path is only for unigraphs; .*metadata.json is not one: leave it out"
    ):
        read_graph(tmp_path / "metadata.json", data_path=tmp_path)


def test_a_folder_with_several_schemas(tmp_path):
    path = write_world(tmp_path / "g")
    (path.parent / "other.pbtxt").write_text("")
    with pytest.raises(FormatError, match=r"has 2 files \*.pbtxt: graph.pbtxt, other.pbtxt"):
        read_graph(path.parent)


def test_the_pipeline_reports_a_damaged_record(tmp_path, monkeypatch):
    path = write_world(tmp_path / "g", "tfrecord")
    raw = bytearray((path.parent / "likes.tfrecord").read_bytes())
    raw[-1] ^= 1
    (path.parent / "likes.tfrecord").write_bytes(raw)
    with pytest.raises(FormatError, match=r"likes.tfrecord: record 3 does not match its checksum"):
        chunked(path, monkeypatch)


def test_a_gzip_by_its_content_and_not_its_name(tmp_path):
    path = write_world(tmp_path / "g", "tfrecord")
    whole = read_graph(path)
    users = path.parent / "users.tfrecord"
    users.write_bytes(gzip.compress(users.read_bytes()))
    assert read_graph(path).fingerprint() == whole.fingerprint()


def test_auxiliary_sets_are_left_out_of_the_graph(tmp_path):
    path = write_world(tmp_path / "g")
    whole = read_graph(path)
    path.write_text(
        path.read_text()
        + 'node_sets { key: "_readout" value {} } '
        + 'edge_sets { key: "_readout/seed" value { source: "user" target: "_readout" } }'
    )
    assert read_graph(path).fingerprint() == whole.fingerprint()


@needs_data
def test_the_card_graph(tmp_path, monkeypatch):
    path = DATA / "creditcard" / "graph_schema.pbtxt"
    with pytest.raises(SchemaError, match=r"'1238474857489384', which no creditcard node has, at owns_card.csv line 9"):
        read_graph(path)
    graph = read_graph(path, on_dangling="drop")
    assert {t: nodes.num_nodes for t, nodes in graph.nodes.items()} == {"creditcard": 36, "customer": 24}
    assert graph.edges["customer", "owns_card", "creditcard"].num_edges == 18
    assert graph.nodes["customer"].features["address"][0] == "343 Third St. Houston, TX 77016"
    assert graph.nodes["creditcard"].features["number"][0] == 11238474857489380
    out = chunk_tables(path, tmp_path / "chunked", num_workers=0, on_dangling="drop").metadata
    assert read_graph(out).fingerprint() == graph.fingerprint()


@needs_data
def test_the_citrus_fruits():
    graph = read_graph(DATA / "homogeneous")
    names = graph.nodes["fruits"].features["#id"].tolist()
    edges = graph.edges["fruits", "tastelike", "fruits"]
    assert [(names[s], names[d]) for s, d in zip(edges.src_keys, edges.dst_keys, strict=True)] == [
        ("amanatsu", "daidai"), ("amanatsu", "lumia"), ("kiyomi", "komikan"), ("mandora", "komikan"),
        ("mandora", "tangelo"),
    ]  # fmt: skip
    np.testing.assert_allclose(edges.features["weight"], [0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-6)
    assert re.fullmatch(r"[0-9a-f]{32}", graph.fingerprint())
