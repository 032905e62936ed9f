"""Checks drafts of descriptions of tables, and that they can be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream import read_graph
from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.graph import describe_tables


def lines(header: str, rows: list[str]) -> str:
    return "\n".join([header, *rows]) + "\n"


@pytest.fixture
def shop(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Tables of every kind that a draft tells apart."""
    users = [
        f"u{i};{20 + i % 50 if i % 7 else ''};{['Oslo', 'Rom', 'Wien'][i % 3]};2024-01-{1 + i % 28:02d};"
        f"{['train', 'val', 'test', ''][i % 4]};text number {i}"
        for i in range(200)
    ]
    for number in range(2):
        text = lines("user_id;age;city;joined;split;bio", users[100 * number : 100 * number + 100])
        (tmp_path / f"users-{number}.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "films").mkdir()
    for number in range(2):
        films = {
            "id": np.arange(50 * number, 50 * number + 50), "title": [f"film {number} {i}" for i in range(50)],
            "score": pa.array([None, *rng.random(49)]), "tags": [[1, 2]] * 50, "studio_id": rng.integers(0, 5, 50),
            "label": rng.integers(0, 3, 50), "out": pa.array(rng.integers(0, 10**9, 50), pa.timestamp("s")),
            "price": pa.array([None] * 50, pa.decimal128(5, 2)),
        }  # fmt: skip
        pq.write_table(pa.table(films), tmp_path / "films" / f"part-{number:05d}.parquet")
    (tmp_path / "studios.tsv").write_text(lines("id\tname", [f"{i}\tS{i}" for i in range(5)]))
    ratings = [f"{i},u{i % 200},{i % 100},{i % 5},{i % 2 == 0}" for i in range(500)]
    (tmp_path / "ratings.csv").write_text(lines("id,user_id,film_id,stars,liked", ratings))
    (tmp_path / "follows.csv").write_text(lines("dst,src", [f"u{i},u{i * 3 % 200}" for i in range(100)]))
    (tmp_path / "web.csv").write_text(lines("source,target", [f"{i + 500},{i + 1000}" for i in range(100)]))
    (tmp_path / "notes.txt").write_text("no table")
    return tmp_path


def test_a_draft_names_types_ids_ends_and_transforms(shop):
    draft = describe_tables(shop)
    nodes, edges = draft["nodes"], {tuple(edge["type"]): edge for edge in draft["edges"]}
    assert {t: spec.get("id") for t, spec in nodes.items()} == {
        "films": "id", "studios": "id", "users": "user_id", "node": None
    }  # fmt: skip
    assert nodes["users"]["files"] == "users-*.csv.gz" and nodes["users"]["delimiter"] == ";"
    assert nodes["users"]["split"] == "split" and nodes["node"] == {"from_edges": True}
    assert nodes["films"]["files"] == "films/part-*.parquet"
    assert set(edges) == {
        ("films", "studio", "studios"), ("users", "follows", "users"), ("users", "ratings", "films"),
        ("node", "web", "node"),
    }  # fmt: skip
    assert (edges["users", "follows", "users"]["src"], edges["users", "follows", "users"]["dst"]) == ("src", "dst")
    assert nodes["users"]["features"] == {
        "age": {"column": "age", "fill": "nan", "transform": "standard"},
        "city": {"column": "city", "transform": "categories"},
        "joined": {
            "column": "joined", "transform": {"name": "datetime", "parts": ["year", "month", "day", "weekday"]}
        },
        "bio": {"column": "bio", "dtype": "string"},
    }  # fmt: skip
    assert set(nodes["films"]["features"]) == {"title", "score", "tags", "label", "out"}
    assert nodes["films"]["features"]["label"] == {"column": "label"}
    assert edges["users", "ratings", "films"]["features"] == {
        "stars": {"column": "stars", "transform": "standard"}, "liked": {"column": "liked", "dtype": "bool"}
    }  # fmt: skip


def test_a_draft_is_read(shop):
    (shop / "metadata.json").write_text(json.dumps(describe_tables(shop)))
    graph = read_graph(shop)
    assert {t: table.num_nodes for t, table in graph.nodes.items()} == {
        "films": 100, "studios": 5, "users": 200, "node": 200
    }  # fmt: skip
    assert graph.edges["users", "ratings", "films"].num_edges == 500
    assert graph.splits["users"]["train"].tolist() == list(range(0, 200, 4))
    follows = graph.edges["users", "follows", "users"]
    assert follows.dst_keys.tolist() == list(range(100))
    assert np.isnan(graph.nodes["users"].features["age"]).sum() == 29
    assert graph.nodes["films"].features["out"].shape == (100, 4)


def test_only_the_first_rows_are_read(tmp_path):
    (tmp_path / "users.csv").write_text(lines("id,x", [f"{i},{i if i < 50 else 'many'}" for i in range(100)]))
    (tmp_path / "pairs.csv").write_text(lines("user_id,other_user_id", [f"{i},{99 - i}" for i in range(100)]))
    draft = describe_tables(tmp_path, sample_rows=10)  # 90..99 are not among the ids that were read
    assert draft["edges"][0]["type"] == ["users", "pairs", "users"]
    assert draft["nodes"]["users"]["features"]["x"] == {"column": "x", "dtype": "string"}


@pytest.mark.parametrize("ends", [("a", "b"), ("user_id", "friend_id"), ("who", "whom")])
def test_a_table_of_edges_may_have_one_row_per_source(tmp_path, ends):
    (tmp_path / "users.csv").write_text("name,age\nada,1\nbo,2\ncy,3\n")
    (tmp_path / "likes.csv").write_text(f"{ends[0]},{ends[1]},stars\nada,bo,5\nbo,cy,3\ncy,ada,4\n")
    draft = describe_tables(tmp_path)
    assert list(draft["nodes"]) == ["users"]
    (likes,) = draft["edges"]
    assert (likes["type"], likes["src"], likes["dst"]) == (["users", "likes", "users"], *ends)
    assert list(likes["features"]) == ["stars"]


def test_a_table_without_ids_gets_row_numbers(tmp_path):
    (tmp_path / "points.csv").write_text("x,y\n1.5,2\n1.5,3\n")
    draft = describe_tables(tmp_path)
    assert draft == {
        "nodes": {"points": {"files": "points.csv", "features": {
            "x": {"column": "x", "transform": "standard"}, "y": {"column": "y", "dtype": "int64"},
        }}},
        "edges": [],
    }  # fmt: skip


def test_a_table_without_rows_is_described(tmp_path):
    (tmp_path / "users.csv").write_text("id,age\n")
    assert describe_tables(tmp_path)["nodes"]["users"]["files"] == "users.csv"


def test_folders_without_tables_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"has no tables; wanted files .csv"):
        describe_tables(tmp_path)
    with pytest.raises(FormatError, match="is no folder; give the folder of the tables"):
        describe_tables(tmp_path / "none")
    with pytest.raises(SettingsError, match="sample_rows is 0"):
        describe_tables(tmp_path, sample_rows=0)
    (tmp_path / "a-1.csv").write_text("x\n1\n")
    (tmp_path / "a-2.csv").write_text("y\n1\n")
    with pytest.raises(SchemaError, match=r"a-2.csv has no column 'x'"):
        describe_tables(tmp_path)
    (tmp_path / "a-2.csv").unlink()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a-2.parquet")
    with pytest.raises(FormatError, match="table 'a' has CSV and Parquet files"):
        describe_tables(tmp_path)
