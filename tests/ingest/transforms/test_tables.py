"""Checks transforms of tables in graphs, chunks, datasets, appended rows, and at inference."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream import graph_from_arrays, open_dataset, prepare, read_dataset, read_graph, write_parts
from hopstream.arrays import RaggedArray
from hopstream.dataset import (
    WorkSettings,
    append,
    append_folder,
    chunk_tables,
    compact,
    read_manifest,
    read_transforms,
    reshard,
    write_chunked,
)
from hopstream.errors import FormatError, SchemaError, SettingsError, UnknownNameError
from hopstream.ingest.chunking import plan
from hopstream.ingest.tables import TableSettings
from tests.ingest.chunking.test_equality import check_equal
from tests.ingest.chunking.worlds import SMALL

KNOWS = ("user", "knows", "user")
CITIES = ["Oslo", "Rom", "Wien", "", "東京"]
FEATURES = {
    "age": {"column": "age", "transform": "standard"},
    "numbers": {"columns": ["age", "height"], "transform": {"name": "min-max", "dtype": "float64"}},
    "rank": {"column": "height", "transform": "rank", "fill": "nan"},
    "city": {"column": "city", "transform": "categories"},
    "cities": {"column": "city", "transform": {"name": "categories", "encode": "one-hot", "most": 3}},
    "initial": {"column": "city", "transform": [{"name": "truncate", "length": 1}, "categories"]},
    "decade": {"column": "age", "transform": {"name": "buckets", "buckets": 4, "strategy": "quantile"}},
    "ages": {"column": "age", "transform": {"name": "buckets", "edges": [0, 30, 60], "encode": "one-hot"}},
    "letters": {"column": "city", "transform": {"name": "categories", "separator": "o"}},
    "hashed": {"column": "city", "transform": {"name": "hash", "buckets": 16}},
    "born": {"column": "born", "transform": {"name": "datetime", "parts": ["year", "month", "weekday"]}},
    "time": {"column": "born", "transform": {"name": "datetime", "parts": "epoch"}},
    "plain": "age",
}


def write_users(folder: Path, rng: np.random.Generator, file_format: str, num_rows: int = 300) -> dict[str, list]:
    """Write tables of users and edges, two files each, with repeated users and dangling edges."""
    folder.mkdir()
    rows = {
        "name": [f"u{i}" for i in rng.integers(0, num_rows, num_rows)],
        "age": rng.integers(0, 99, num_rows).astype(float).tolist(),
        "height": np.exp(rng.normal(size=num_rows)).tolist(),
        "city": [CITIES[i] for i in rng.integers(0, 5, num_rows)],
        "born": [f"19{40 + i}-0{1 + i % 9}-1{i % 9} 0{i % 9}:30:00" for i in rng.integers(0, 60, num_rows).tolist()],
    }
    edges = {name: [f"u{i}" for i in rng.integers(0, num_rows, 200)] for name in ("a", "b")}
    edges["weight"] = rng.normal(size=200).tolist()
    for name, table in (("users", rows), ("edges", edges)):
        for number, part in enumerate((slice(0, 90), slice(90, None))):
            columns = pa.table({key: values[part] for key, values in table.items()})
            if file_format == "parquet":
                if name == "users":
                    columns = columns.set_column(4, "born", columns["born"].cast(pa.timestamp("ms")))
                pq.write_table(columns, folder / f"{name}-{number}.parquet", row_group_size=25)
            else:
                lines = [",".join(columns.column_names)]
                lines += [",".join(map(str, row.values())) for row in columns.to_pylist()]
                (folder / f"{name}-{number}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    describe(folder, file_format)
    return rows


def describe(folder: Path, file_format: str, **more: object) -> None:
    weight = {"column": "weight", "transform": "standard"}
    described = {
        "nodes": {"user": {"files": f"users-*.{file_format}", "id": "name", "features": {**FEATURES, **more}}},
        "edges": [
            {"type": list(KNOWS), "files": f"edges-*.{file_format}", "src": "a", "dst": "b", "features": {"w": weight}}
        ],
    }
    (folder / "metadata.json").write_text(json.dumps(described))


LENIENT = {"on_duplicate": "drop", "on_dangling": "drop"}


@pytest.fixture(scope="module", params=["csv", "parquet"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of tables, in small files."""
    folder = tmp_path_factory.mktemp("tables") / "tables"
    write_users(folder, np.random.default_rng(7), request.param)
    return folder


def features_of(graph, rows):
    return {name: [column[int(row)] for row in rows] for name, column in graph.nodes["user"].features.items()}


def check_rows(made, graph, first: int, count: int):
    """Check that features made of raw rows are those of consecutive nodes of a graph."""
    for name, column in graph.nodes["user"].features.items():
        for row in range(count):
            got, wanted = made[name][row], column[first + row]
            assert np.array_equal(got, wanted, equal_nan=not isinstance(wanted, str)), name


def raw_rows(folder: Path, rows: slice) -> dict[str, list]:
    """Return raw columns of users without repeated ones, as a caller at inference has them."""
    tables = [read_raw(path) for path in sorted(folder.glob("users-*"))]
    table = pa.concat_tables(tables)
    names = table["name"].to_pylist()
    kept = [i for i, name in enumerate(names) if name not in names[:i]]
    return {
        name: [column[i].as_py() for i in kept[rows]] for name, column in zip(table.column_names, table, strict=True)
    }


def read_raw(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    columns = dict(zip(lines[0], zip(*lines[1:], strict=True), strict=True))
    return pa.table({n: list(map(float, c)) if n in ("age", "height") else list(c) for n, c in columns.items()})


def as_given(rows: dict[str, list]) -> dict[str, object]:
    times = rows["born"]
    return {**rows, "born": np.array(times, "datetime64[ms]") if not isinstance(times[0], str) else times}


def test_chunks_equal_the_graph_in_memory(world, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "LIMITS", SMALL)
    graph, report = check_equal(world / "metadata.json", tmp_path, num_chunks=3, num_workers=0, **LENIENT)
    assert read_graph(report.metadata).transforms == graph.transforms
    assert set(graph.transforms) == {"user", "user__knows__user"}
    columns = graph.nodes["user"].features
    assert columns["age"].dtype == np.float32 and columns["numbers"].shape[1:] == (2,)
    assert columns["cities"].shape[1:] == (3,) and columns["ages"].shape[1:] == (2,)
    assert abs(columns["numbers"].max() - 1) < 1e-12 and columns["city"].max() == 4
    assert columns["time"].dtype == np.int64 and columns["plain"].dtype == np.float64


def test_a_dataset_keeps_transforms_and_applies_them_to_one_row(world, tmp_path):
    graph = read_graph(world, **LENIENT)
    written = write_parts(graph, tmp_path / "parts", num_parts=2, method="hash")
    tables = TableSettings(**LENIENT)
    prepared = prepare(
        world, tmp_path / "prepared", num_parts=2, method="hash", tables=tables, work=WorkSettings(num_workers=0)
    )
    assert prepared.dataset_id == written.dataset_id
    assert prepared.transforms == written.transforms == graph.transforms
    transforms = read_transforms(tmp_path / "prepared")
    assert list(transforms) == ["user", "user__knows__user"] and KNOWS in transforms and len(transforms) == 2
    for row in (0, 17, graph.nodes["user"].num_nodes - 1):
        check_rows(transforms["user"].apply(as_given(raw_rows(world, slice(row, row + 1)))), graph, row, 1)
    made = transforms["user"].apply({"city": ["Atlantis"]})
    assert made["city"].tolist() == [5] and made["cities"].tolist() == [[0, 0, 0]] and "age" not in made
    with pytest.raises(SchemaError, match=r"user.numbers is made of \['age', 'height'\]; 'height' is missing"):
        transforms["user"].apply({"age": [3]})
    with pytest.raises(SchemaError, match=r"user.city of column 'city': values are numbers; the table's are string"):
        transforms["user"].apply({"city": [3]})
    with pytest.raises(SchemaError, match=r"user.age is made of float64\[rows\]; got float64\[rows, 2\]"):
        transforms["user"].apply({"age": [[3, 4]], "height": [1]})
    with pytest.raises(UnknownNameError, match=r"'usr' has no transforms; .*did you mean 'user'"):
        transforms["usr"]


def test_every_change_of_a_dataset_keeps_transforms(world, tmp_path):
    graph = read_graph(world, **LENIENT)
    write_parts(graph, tmp_path / "parts", num_parts=2, method="hash")
    assert read_dataset(tmp_path / "parts").transforms == graph.transforms
    write_chunked(graph, tmp_path / "chunks", num_chunks=2)
    assert read_graph(tmp_path / "chunks").transforms == graph.transforms
    reshard(tmp_path / "parts", tmp_path / "three", num_parts=3, method="hash", num_workers=0)
    assert open_dataset(tmp_path / "three").manifest.transforms == graph.transforms
    rows = as_given(raw_rows(world, slice(0, 5)))
    transforms = read_transforms(tmp_path / "parts")
    first = graph.nodes["user"].num_nodes
    manifest = append(
        tmp_path / "parts",
        nodes={"user": rows},
        edges={KNOWS: ([first], [0], {"weight": [0.25]})},
        transforms=transforms,
    )
    assert manifest.transforms == graph.transforms
    grown = read_dataset(tmp_path / "parts")
    check_rows(features_of(grown, range(first, first + 5)), graph, 0, 5)
    weight = transforms[KNOWS].apply({"weight": [0.25]})["w"]
    assert grown.edges[KNOWS].features["w"][-1] == weight[0]
    assert compact(tmp_path / "parts", num_workers=0).transforms == graph.transforms


def test_fitted_transforms_are_applied_to_other_tables(world, tmp_path, rng):
    suffix = next(world.glob("users-*")).suffix[1:]
    graph = read_graph(world, **LENIENT)
    write_parts(graph, tmp_path / "parts", num_parts=1)
    write_users(tmp_path / "more", rng, suffix, 120)
    fitted = read_transforms(tmp_path / "parts")
    more = read_graph(tmp_path / "more", fitted=fitted, **LENIENT)
    assert more.transforms == graph.transforms
    rows = raw_rows(tmp_path / "more", slice(None))
    check_rows(fitted["user"].apply(as_given(rows)), more, 0, more.nodes["user"].num_nodes)
    described = json.loads((tmp_path / "more/metadata.json").read_text())
    del described["edges"]
    (tmp_path / "more/metadata.json").write_text(json.dumps(described))
    chunk_tables(tmp_path / "more", tmp_path / "delta", num_workers=0, fitted=fitted, **LENIENT)
    append_folder(tmp_path / "parts", tmp_path / "delta")
    first, count = graph.nodes["user"].num_nodes, more.nodes["user"].num_nodes
    grown = read_dataset(tmp_path / "parts")
    assert grown.nodes["user"].num_nodes == first + count
    check_rows(features_of(grown, range(first, first + count)), more, 0, count)
    described["nodes"]["user"]["features"]["age"]["transform"] = "min-max"
    (tmp_path / "more/metadata.json").write_text(json.dumps(described))
    with pytest.raises(SchemaError, match=r"user.age has the transforms .*min-max.*; the fitted ones are .*standard"):
        read_graph(tmp_path / "more", fitted=fitted, **LENIENT)


def test_texts_are_read_by_an_allowed_tokenizer(tmp_path, rng, monkeypatch):
    tokenizer = types.SimpleNamespace(lengths=lambda texts: [[len(word) for word in text.split()] for text in texts])
    monkeypatch.setitem(sys.modules, "tokenizer_of_a_test", tokenizer)
    write_users(tmp_path / "tables", rng, "csv")
    (tmp_path / "tables/texts.csv").write_text("id,text\n1,a bbb cc\n2,\n3,dddd\n")
    steps = [{"name": "tokens", "tokenizer": "tokenizer_of_a_test:lengths"}, {"name": "pad", "length": 2}]
    nodes = {"text": {"files": "texts.csv", "id": "id", "features": {"tokens": {"column": "text", "transform": steps}}}}
    (tmp_path / "tables/metadata.json").write_text(json.dumps({"nodes": nodes}))
    with pytest.raises(SettingsError, match=r"tokenizers are .*; a transform names 'tokenizer_of_a_test:lengths'"):
        read_graph(tmp_path / "tables")
    allowed = ["tokenizer_of_a_test:lengths"]
    graph, _ = check_equal(tmp_path / "tables/metadata.json", tmp_path / "out", num_workers=0, tokenizers=allowed)
    assert graph.nodes["text"].features["tokens"].tolist() == [[1, 3], [0, 0], [4, 0]]
    write_parts(graph, tmp_path / "parts", num_parts=1)
    with pytest.raises(SettingsError, match="a transform names 'tokenizer_of_a_test:lengths'"):
        read_transforms(tmp_path / "parts")
    transforms = read_transforms(tmp_path / "parts", tokenizers=allowed)
    assert transforms["text"].apply({"text": ["ee f"]})["tokens"].tolist() == [[2, 1]]


def test_an_empty_table_and_one_without_values_are_read(tmp_path):
    (tmp_path / "users.csv").write_text("name,age,height,city,born\n")
    (tmp_path / "nan.csv").write_text("x\nnan\nnan\n")
    transform = {"column": "x", "transform": "rank"}
    nodes = {"user": {"files": "users.csv", "id": "name", "features": FEATURES},
             "nan": {"files": "nan.csv", "features": {"x": transform}}}  # fmt: skip
    (tmp_path / "metadata.json").write_text(json.dumps({"nodes": nodes}))
    graph, report = check_equal(tmp_path / "metadata.json", tmp_path / "out", num_workers=0)
    assert graph.nodes["user"].features["numbers"].shape == (0, 2)
    assert np.isnan(graph.nodes["nan"].features["x"]).all()
    assert read_graph(report.metadata).transforms == graph.transforms


def test_lists_of_parquet_files_are_padded(tmp_path):
    pq.write_table(pa.table({"tags": [[1, 2, 3], [], [4]]}), tmp_path / "films.parquet")
    features = {"tags": {"column": "tags", "transform": {"name": "pad", "length": 2, "value": -1}},
                "few": {"column": "tags", "transform": {"name": "truncate", "length": 2}}}  # fmt: skip
    nodes = {"film": {"files": "films.parquet", "features": features}}
    (tmp_path / "metadata.json").write_text(json.dumps({"nodes": nodes}))
    graph, _ = check_equal(tmp_path / "metadata.json", tmp_path / "out", num_workers=0)
    assert graph.nodes["film"].features["tags"].tolist() == [[1, 2], [-1, -1], [4, -1]]
    assert graph.nodes["film"].features["few"].tolist() == [[1, 2], [], [4]]
    write_parts(graph, tmp_path / "parts", num_parts=1)
    film = read_transforms(tmp_path / "parts")["film"]
    for given in ([[7, 8, 9]], [[7], [7, 8, 9]], RaggedArray(np.array([7, 8, 9], np.int8), np.array([0, 3]))):
        made = film.apply({"tags": given})
        assert made["tags"][-1].tolist() == [7, 8] and made["few"].tolist()[-1] == [7, 8]
    with pytest.raises(SchemaError, match=r"film.tags is made of int64\[rows, ragged\]; got int64\[rows\]"):
        film.apply({"tags": [7]})
    with pytest.raises(SchemaError, match=r"film.tags is made of int64\[rows, ragged\]; got float64\[rows, ragged\]"):
        film.apply({"tags": [[7.5]]})


def test_empty_cells_of_dates_are_filled(tmp_path):
    (tmp_path / "users.csv").write_text("born,x\n1999-05-01,1\n,2\n")
    born = {"column": "born", "fill": "2000-01-01", "transform": {"name": "datetime", "parts": "year"}}
    nodes = {"user": {"files": "users.csv", "features": {"born": born}}}
    (tmp_path / "metadata.json").write_text(json.dumps({"nodes": nodes}))
    assert read_graph(tmp_path).nodes["user"].features["born"].tolist() == [1999, 2000]
    del born["fill"]
    (tmp_path / "metadata.json").write_text(json.dumps({"nodes": nodes}))
    with pytest.raises(SchemaError, match=r'user.born has no value at users.csv line 3; give "fill"'):
        read_graph(tmp_path)


def test_a_cell_that_is_no_number_is_named(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/users.csv").write_text("age\n3\nmany\n")
    nodes = {"user": {"files": "users.csv", "features": {"age": FEATURES["age"]}}}
    (tmp_path / "tables/metadata.json").write_text(json.dumps({"nodes": nodes}))
    for read in (
        lambda: read_graph(tmp_path / "tables"),
        lambda: chunk_tables(tmp_path / "tables", tmp_path / "out", num_workers=0),
    ):
        with pytest.raises(SchemaError, match=r"user.age is 'many' at users.csv line 3; wanted float64"):
            read()


def test_a_graph_without_transforms_has_none(tmp_path):
    graph = graph_from_arrays(np.array([[0], [1]]), num_nodes=2)
    write_parts(graph, tmp_path / "parts", num_parts=1)
    assert not graph.transforms and not read_transforms(tmp_path / "parts")
    assert "transforms" not in json.loads((tmp_path / "parts/manifest.json").read_text())


def test_damaged_transforms_are_refused(tmp_path):
    write_parts(graph_from_arrays(np.array([[0], [1]])), tmp_path / "parts", num_parts=1)
    manifest = read_manifest(tmp_path / "parts")
    for value in ({"node": {"x": {"columns": ["x"]}}}, {"node": [3]}):
        replace(manifest, transforms=value).write(tmp_path / "parts")
        with pytest.raises(FormatError, match=r"no saved transform|wanted an object"):
            read_transforms(tmp_path / "parts")


def test_text_columns_at_inference_may_be_ragged(world, tmp_path):
    write_parts(read_graph(world, **LENIENT), tmp_path / "parts", num_parts=1)
    transforms = read_transforms(tmp_path / "parts")
    made = transforms["user"].apply({"city": RaggedArray.from_strings(["Rom"]), "note": [1]})
    assert made["city"].tolist() == [2] and made["note"].tolist() == [1]
