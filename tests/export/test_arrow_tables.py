"""Checks that a dataset read as Arrow has the tables that it was made of."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import hopstream
from hopstream.arrays import RaggedArray
from hopstream.dataset import read_arrow
from hopstream.errors import ChecksumError, SchemaError, SettingsError, UnknownNameError
from hopstream.export import unigraph

NUM_USERS, NUM_FILMS, NUM_RATINGS = 200, 30, 1500
RATES = ("user", "rates", "film")


@pytest.fixture
def tables(rng: np.random.Generator) -> dict[str, pa.Table]:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(6 * NUM_USERS, np.float32)), 3)
    users = {
        "name": pa.array([f"größe {i}" for i in rng.permutation(NUM_USERS)], pa.large_string()),
        "age": pa.array(rng.integers(0, 99, NUM_USERS), pa.int8()),
        "is_new": [i % 3 == 0 for i in range(NUM_USERS)],
        "text": pa.array(["" if i % 5 == 0 else "ab" * (i % 4) for i in range(NUM_USERS)], pa.large_string()),
        "tags": pa.array([list(range(i % 4)) for i in range(NUM_USERS)], pa.large_list(pa.int64())),
        "matrix": pa.FixedSizeListArray.from_arrays(vectors, 2),
        "part": pa.array([["train", "test", None][i % 3] for i in range(NUM_USERS)], pa.large_string()),
    }
    films = {"id": rng.permutation(NUM_FILMS) * 7 - 50}
    ratings = {
        "user": pa.array([f"größe {i}" for i in rng.integers(0, NUM_USERS, NUM_RATINGS)], pa.large_string()),
        "film": rng.choice(films["id"], NUM_RATINGS),
        "stars": pa.array(rng.integers(1, 6, NUM_RATINGS), pa.float16()),
        "note": pa.array(["x" * (i % 9) for i in range(NUM_RATINGS)], pa.large_string()),
    }
    return {"user": pa.table(users), "film": pa.table(films), "rates": pa.table(ratings)}


@pytest.fixture
def graph(tables: dict[str, pa.Table]) -> hopstream.Graph:
    features = ["age", "is_new", "text", "tags", "matrix"]
    ratings = {"table": tables["rates"], "src": "user", "dst": "film", "features": ["stars", "note"]}
    return hopstream.read_graph(
        {
            "nodes": {
                "user": {"table": tables["user"], "id": "name", "features": features, "split": "part"},
                "film": {"table": tables["film"], "id": "id"},
            },
            "edges": [{"type": RATES, **ratings}],
        }
    )


@pytest.fixture
def parts(graph: hopstream.Graph, tmp_path: Path) -> Path:
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=3, method="hash")
    return tmp_path / "parts"


@pytest.mark.parametrize("block_rows", [1 << 16, 7])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_tables_become_a_dataset_and_the_same_tables(graph, tables, tmp_path, monkeypatch, direction, block_rows):
    monkeypatch.setattr(unigraph, "BLOCK_ROWS", block_rows)
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=3, method="hash", direction=direction)
    users = read_arrow(tmp_path / "parts", "user", split="part").read_all()
    assert users.combine_chunks() == tables["user"].combine_chunks()
    assert read_arrow(tmp_path / "parts", "film").read_all().combine_chunks() == tables["film"].combine_chunks()
    ratings = read_arrow(tmp_path / "parts", RATES, ends=("user", "film"), ids={"user": "name"}).read_all()
    assert ratings.combine_chunks() == tables["rates"].combine_chunks()
    assert ratings["user"].num_chunks == -(-NUM_RATINGS // block_rows)


def test_ends_are_keys_where_there_are_no_raw_ids(graph, parts):
    reader = read_arrow(parts, "user__rates__film", columns=["dst", "src"], ids={"film": None})
    assert reader.schema == pa.schema([("dst", pa.int64()), ("src", pa.int64())])
    found = reader.read_all()
    assert found["src"].to_numpy().tolist() == graph.edges[RATES].src_keys.tolist()
    assert found["dst"].to_numpy().tolist() == graph.edges[RATES].dst_keys.tolist()


def test_appended_rows_are_read(graph, parts):
    more = {name: graph.nodes["user"].features[name][:2] for name in ("age", "is_new", "matrix")}
    more |= {"name": ["new", "newer"], "text": ["", "y"], "tags": RaggedArray.from_rows([np.arange(3), np.arange(1)])}
    features = {"stars": np.ones(1, np.float16), "note": ["late"]}
    hopstream.append(parts, nodes={"user": more}, edges={RATES: (np.array([NUM_USERS]), np.array([0]), features)})
    users = read_arrow(parts, "user", columns=["name", "tags"]).read_all()
    assert users["name"].to_pylist()[-2:] == ["new", "newer"] and users["tags"].to_pylist()[-2] == [0, 1, 2]
    ratings = read_arrow(parts, RATES, ids={"user": "name"}).read_all().to_pylist()
    first = int(graph.nodes["film"].features["id"][0])
    assert ratings[-1] == {"src": "new", "dst": first, "stars": 1.0, "note": "late"}


def test_a_type_without_rows_gives_its_columns(tmp_path):
    graph = hopstream.graph_from_arrays(
        {RATES: np.empty((2, 0), np.int64)}, num_nodes={"user": 0, "film": 2},
        edge_features={RATES: {"x": np.empty((0, 2), np.float32)}},
    )  # fmt: skip
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=1, method="hash")
    ratings = read_arrow(tmp_path / "parts", RATES).read_all()
    assert ratings.num_rows == 0
    assert ratings.schema.types == [pa.int64(), pa.int64(), pa.list_(pa.float32(), 2)]


def test_other_libraries_take_the_reader(parts, tables):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(read_arrow(parts, "user", split="part"))
    assert frame.to_arrow().cast(tables["user"].schema) == tables["user"]


def test_temporary_files_end_with_the_reader(parts, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(unigraph, "BLOCK_ROWS", 7)
    reader = read_arrow(parts, RATES, scratch=scratch)
    reader.read_next_batch()
    assert list(scratch.iterdir())
    reader.close()
    del reader
    assert not list(scratch.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    read_arrow(parts, RATES).read_all()
    assert not list(scratch.iterdir())


def test_flaws_are_named(graph, parts, tmp_path):
    with pytest.raises(UnknownNameError, match=r"'rated'; known: \[.*'user', 'film'\]"):
        read_arrow(parts, "rated")
    with pytest.raises(UnknownNameError, match="user has no column 'nome'"):
        read_arrow(parts, "user", columns=["nome"])
    with pytest.raises(SettingsError, match="user has two columns 'age'; give other names in ends or split"):
        read_arrow(parts, "user", split="age")
    with pytest.raises(SettingsError, match="two columns 'end'"):
        read_arrow(parts, RATES, ends=("end", "end"))
    with pytest.raises(SettingsError, match="id_feature is 'tags', which is"):
        read_arrow(parts, RATES, ids={"user": "tags"})
    complex_graph = hopstream.graph_from_arrays(np.array([[0], [1]]), node_features={"z": np.ones(2, np.complex64)})
    hopstream.write_parts(complex_graph, tmp_path / "complex", num_parts=1, method="hash")
    with pytest.raises(SchemaError, match=r"node\.z is complex64\[rows\], which Arrow cannot hold; leave it out"):
        read_arrow(tmp_path / "complex", "node")
    doubled = replace(graph, splits={"user": {"a": np.array([0, 1]), "b": np.array([1])}})
    hopstream.write_parts(doubled, tmp_path / "doubled", num_parts=2, method="hash")
    with pytest.raises(SchemaError, match="row 1 of user is in splits 'a' and 'b'; a column of splits has one per row"):
        read_arrow(tmp_path / "doubled", "user", split="part").read_all()


def test_a_damaged_file_is_found_before_rows_are_given(parts):
    (path,) = (parts / "part-00001").rglob("age.npy")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    read_arrow(parts, "film").read_all()
    with pytest.raises(ChecksumError, match=r"age\.npy"):
        read_arrow(parts, "user")
