"""Checks that tables in memory become the graph that Parquet files of the same rows become."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopstream
from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.graph import TableSettings, read_tables, write_tables
from hopstream.ingest.raw_tables import spool

NUM_USERS, NUM_RATINGS = 300, 2000
RATES = ("user", "rates", "film")


class Stream:
    """A table of another library: it has Arrow's interface alone, and columns of views."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        columns = {name: self._viewed(self._table[name].combine_chunks()) for name in self._table.column_names}
        return pa.table(columns).__arrow_c_stream__(requested_schema)

    def _viewed(self, column: pa.Array) -> pa.Array:
        if pa.types.is_string(column.type):
            return column.cast(pa.string_view())
        if pa.types.is_dictionary(column.type):
            return column.cast(pa.dictionary(pa.int8(), pa.string_view()))
        if pa.types.is_list(column.type):
            return pa.ListViewArray.from_arrays(column.offsets[:-1], column.value_lengths(), column.values)
        return column


@pytest.fixture
def users(rng: np.random.Generator) -> pa.Table:
    numbers = range(NUM_USERS)
    floats = pa.array(rng.random(3 * NUM_USERS, np.float32))
    return pa.table(
        {
            "name": [f"größe {i}" for i in rng.permutation(NUM_USERS)],
            "age": pa.array(rng.integers(0, 99, NUM_USERS), pa.int8()),
            "score": pa.array([None if i % 7 == 0 else i / 4 for i in numbers]),
            "is_new": [i % 3 == 0 for i in numbers],
            "text": ["" if i % 5 == 0 else "ab" * (i % 4) for i in numbers],
            "kind": pa.array([["x", "y"][i % 2] for i in numbers]).dictionary_encode(),
            "tags": [list(range(i % 4)) for i in numbers],
            "vector": pa.FixedSizeListArray.from_arrays(floats, 3),
            "part": [["train", "test", None][i % 3] for i in numbers],
        }
    )


@pytest.fixture
def ratings(rng: np.random.Generator) -> pa.Table:
    return pa.table(
        {
            "user": [f"größe {i}" for i in rng.integers(0, NUM_USERS, NUM_RATINGS)],
            "film": rng.integers(100, 200, NUM_RATINGS),
            "stars": pa.array(rng.integers(1, 6, NUM_RATINGS), pa.int8()),
        }
    )


def described(key: str, users: object, ratings: object) -> dict[str, object]:
    features = {name: name for name in ("age", "is_new", "text", "kind", "tags")}
    features |= {"score": {"column": "score", "fill": 0.5}, "vector": {"column": "vector", "shape": [3]}}
    features |= {"pair": {"columns": ["age", "score"], "dtype": "float32", "cast": True, "fill": 1}}
    return {
        "nodes": {
            "user": {key: users, "id": "name", "features": features, "split": "part"},
            "film": {"from_edges": True},
        },
        "edges": [{"type": list(RATES), key: ratings, "src": "user", "dst": "film", "features": ["stars"]}],
    }


def from_files(folder: Path) -> hopstream.Graph:
    (folder / "metadata.json").write_text(json.dumps(described("files", "users.parquet", "ratings.parquet")))
    return hopstream.read_graph(folder)


@pytest.fixture
def wanted(users: pa.Table, ratings: pa.Table, tmp_path: Path) -> hopstream.Graph:
    """The graph of the tables' Parquet files."""
    pq.write_table(users, tmp_path / "users.parquet")
    pq.write_table(ratings, tmp_path / "ratings.parquet")
    return from_files(tmp_path)


def in_chunks(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1, 90), table.slice(91)])


@pytest.mark.parametrize("make", [pa.table, in_chunks, Stream], ids=["table", "chunks", "stream of views"])
def test_tables_in_memory_give_the_graph_of_their_parquet_files(users, ratings, wanted, make):
    graph = hopstream.read_graph(described("table", make(users), make(ratings)))
    assert graph.schema == wanted.schema
    assert graph.fingerprint() == wanted.fingerprint()


def test_polars_frames_give_the_graph_of_their_parquet_files(users, ratings, wanted, tmp_path):
    polars = pytest.importorskip("polars")
    frames = polars.from_arrow(users), polars.from_arrow(ratings)
    assert hopstream.read_graph(described("table", *frames)).fingerprint() == wanted.fingerprint()
    frames[0].write_parquet(tmp_path / "users.parquet")
    frames[1].write_parquet(tmp_path / "ratings.parquet")
    assert from_files(tmp_path).fingerprint() == wanted.fingerprint()


def test_pandas_frames_give_the_graph_of_their_parquet_files(users, ratings, tmp_path):
    pytest.importorskip("pandas")
    frames = users.to_pandas().set_index(np.arange(NUM_USERS)[::-1]), ratings.to_pandas()
    frames[0].to_parquet(tmp_path / "users.parquet")
    frames[1].to_parquet(tmp_path / "ratings.parquet")
    wanted = from_files(tmp_path)
    graph = hopstream.read_graph(described("table", *frames))
    assert graph.fingerprint() == wanted.fingerprint()
    assert graph.nodes["user"].features["score"][0] == 0.5  # nan of pandas is a missing value


def test_written_tables_give_the_same_graph(users, ratings, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "GROUP_BYTES", 4096)
    path = write_tables(described("table", in_chunks(users), Stream(ratings)), tmp_path / "written")
    assert hopstream.read_graph(path).fingerprint() == wanted.fingerprint()
    assert pq.read_metadata(path.with_name("edges-0.parquet")).num_row_groups > 5
    with pytest.raises(SettingsError, match="written is not empty"):
        write_tables(described("table", users, ratings), tmp_path / "written")


def test_prepare_and_chunk_tables_take_tables_in_memory(users, ratings, wanted, tmp_path):
    description = described("table", users, ratings)
    manifest = hopstream.prepare(description, tmp_path / "parts", num_parts=2, method="hash")
    same = hopstream.write_parts(wanted, tmp_path / "same", num_parts=2, method="hash")
    assert manifest.dataset_id == same.dataset_id
    hopstream.dataset.chunk_tables(description, tmp_path / "chunks", num_workers=0)
    assert hopstream.read_graph(tmp_path / "chunks").fingerprint() == wanted.fingerprint()
    files = {"chunks", "metadata.json", "parts", "ratings.parquet", "same", "users.parquet"}
    assert {path.name for path in tmp_path.iterdir()} == files  # no copy of the tables is left


def test_transforms_of_tables_in_memory_are_those_of_their_parquet_files(users, ratings, tmp_path):
    users = users.append_column("born", pa.array(np.arange(NUM_USERS) * 86_400_000_000, pa.timestamp("us")))
    transforms = {
        "age": {"column": "age", "transform": "standard"},
        "kind": {"column": "kind", "transform": "categories"},
        "born": {"column": "born", "transform": {"name": "datetime", "parts": ["year", "weekday"]}},
    }
    pq.write_table(users, tmp_path / "users.parquet")
    pq.write_table(ratings, tmp_path / "ratings.parquet")
    in_files, in_memory = described("files", "users.parquet", "ratings.parquet"), described("table", users, ratings)
    for description in (in_files, in_memory):
        description["nodes"]["user"]["features"] |= transforms
    (tmp_path / "metadata.json").write_text(json.dumps(in_files))
    wanted, graph = hopstream.read_graph(tmp_path), hopstream.read_graph(in_memory)
    assert graph.fingerprint() == wanted.fingerprint() and graph.transforms == wanted.transforms
    assert set(graph.transforms["user"]) >= set(transforms)

    hopstream.prepare(in_memory, tmp_path / "parts", num_parts=2, method="hash")
    fitted = hopstream.dataset.read_transforms(tmp_path / "parts")
    assert fitted.to_json() == wanted.transforms

    some = {**in_memory, "nodes": {**in_memory["nodes"], "user": {**in_memory["nodes"]["user"], "table": users[:50]}}}
    of_some = hopstream.read_graph(some, fitted=fitted, on_dangling="drop").nodes["user"].features
    assert np.array_equal(of_some["age"], graph.nodes["user"].features["age"][:50])
    some["nodes"]["user"]["features"] = {
        **in_memory["nodes"]["user"]["features"],
        "kind": "kind",
        "age": transforms["kind"],
    }
    with pytest.raises(SchemaError, match=r"^description: user\.age has the transforms .*; the fitted ones are "):
        hopstream.read_graph(some, fitted=fitted, on_dangling="drop")


def test_a_failed_call_leaves_no_copy_of_the_tables(users, ratings, tmp_path):
    unknown = ratings.set_column(0, "user", pa.array(["zoe"] * NUM_RATINGS))
    with pytest.raises(SchemaError, match=r"user is 'zoe', which no user node has, at edges-0\.parquet row 0"):
        hopstream.dataset.chunk_tables(described("table", users, unknown), tmp_path / "chunks", num_workers=0)
    assert not list(tmp_path.iterdir())


def test_a_description_in_memory_may_name_files(ratings, users, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mixed = described("files", "users.parquet", "ratings.parquet")
    mixed["nodes"]["user"] = described("table", users, ratings)["nodes"]["user"]
    assert hopstream.read_graph(mixed).fingerprint() == wanted.fingerprint()
    with pytest.raises(SettingsError, match=r"ratings\.parquet is a file, .* give only tables in memory"):
        write_tables(mixed, tmp_path / "written")


def test_tables_without_rows_are_as_their_files(users, ratings, tmp_path):
    none = users.slice(0, 0), ratings.slice(0, 0)
    path = write_tables(described("table", *none), tmp_path / "written")
    graph = hopstream.read_graph(described("table", *none))
    assert not graph.nodes["user"].num_nodes and graph.fingerprint() == hopstream.read_graph(path).fingerprint()


def test_rows_without_columns_are_counted(tmp_path):
    description = {"nodes": {"user": {"table": pa.table({"unused": [1.5, 2.5, None]})}}}
    assert hopstream.read_graph(description).nodes["user"].num_nodes == 3
    path = write_tables(description, tmp_path / "written")
    assert hopstream.read_graph(path).nodes["user"].num_nodes == 3


def test_options_of_tables_apply_to_tables_in_memory(users, ratings):
    unknown = pa.concat_tables([ratings, ratings.slice(0, 1).set_column(0, "user", pa.array(["zoe"]))])
    description = described("table", users, unknown)
    result = read_tables(description, TableSettings(on_dangling="drop", keep_raw_ids=False))
    assert result.num_dropped == {RATES: 1}
    assert "name" not in result.graph.nodes["user"].features
    with pytest.raises(SettingsError, match="tables have no option 'on_danglin'"):
        hopstream.read_graph(description, on_danglin="drop")
    with pytest.raises(SettingsError, match="data_path is only for unigraphs; description is not one"):
        read_tables(description, TableSettings(data_path="."))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": 5}, r"nodes\.user\.table is int; wanted a DataFrame of pandas or Polars, an Arrow table"),
        ({"table": pa.table({"a": [1]}).to_reader()}, "is a RecordBatchReader, which can be read once; give read_all"),
        ({"id": "nome"}, r"nodes\.user\.table has no column 'nome'; its columns are \['name', 'age'"),
        ({"files": "users.csv"}, "has unknown key 'files'"),
        ({"delimiter": ";"}, "has unknown key 'delimiter'"),
        ({"features": {"score": "score"}}, r"user\.score has no value at .*nodes\.user\.table row 0; give \"fill\""),
    ],
)
def test_flaws_of_tables_in_memory_name_the_table_and_the_row(users, ratings, change, message):
    description = described("table", users, ratings)
    description["nodes"]["user"] |= change
    with pytest.raises(SchemaError, match=message):
        hopstream.read_graph(description)


def test_a_json_file_cannot_hold_a_table(tmp_path):
    (tmp_path / "metadata.json").write_text('{"nodes": {"user": {"table": "users"}}}')
    with pytest.raises(SchemaError, match=r'nodes\.user\.table is str; .*; paths of files are "files"'):
        hopstream.read_graph(tmp_path)


def test_a_column_that_parquet_cannot_hold_is_named(ratings, tmp_path):
    union = pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])])
    description = {"nodes": {"user": {"table": pa.table({"x": union}), "features": ["x"]}}}
    with pytest.raises(FormatError, match=r"nodes\.user\.table cannot be written as parquet"):
        write_tables(description, tmp_path / "written")
    assert not (tmp_path / "written").exists()


RAY_PROGRAM = """
import sys
from pathlib import Path
import ray, ray.data
import pyarrow.parquet as pq
import hopstream
from tests.ingest.raw_tables.test_frames import described, from_files

folder = Path(sys.argv[1])
users, ratings = pq.read_table(folder / "users.parquet"), pq.read_table(folder / "ratings.parquet")
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20, _temp_dir=sys.argv[2])
try:
    pieces = [ratings.slice(first, 100) for first in range(0, len(ratings), 100)]
    dataset = ray.data.from_arrow(pieces).map_batches(lambda batch: batch, batch_format="pyarrow")
    graph = hopstream.read_graph(described("table", ray.data.from_arrow(users), dataset))
    assert graph.fingerprint() == from_files(folder).fingerprint()
    assert not dataset.context.execution_options.preserve_order  # as before
finally:
    ray.shutdown()
"""


@pytest.mark.slow
def test_ray_datasets_give_their_rows_in_order(wanted, tmp_path):
    pytest.importorskip("pandas")  # Ray Data needs it
    # Not under pytest's folder: Ray makes sockets there, whose paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-c", RAY_PROGRAM, str(tmp_path), folder], cwd=Path(__file__).parents[3], timeout=200,
            capture_output=True, text=True, check=False, env={**os.environ, "RAY_ADDRESS": ""},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
