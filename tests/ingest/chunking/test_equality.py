"""Checks that chunks written in bounded memory equal, byte for byte, those of ``read_graph``'s graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream import read_graph
from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.chunking import plan
from hopstream.ingest.chunking.run import ChunkReport, chunk_tables
from hopstream.ingest.tables import TableSettings, read_tables
from tests.ingest.chunking.worlds import SMALL, make_world, tree_of

KINDS = st.sampled_from(["int", "string", "mixed"])
FORMATS = st.sampled_from(["csv", "gz", "parquet", "tsv"])


def check_equal(source: Path, out: Path, **options: object) -> tuple[Graph, ChunkReport]:
    """Check that both ways to chunk tables give the same."""
    out.mkdir(exist_ok=True)
    written = {name: options.pop(name) for name in ("num_chunks", "edges_format", "data_format") if name in options}
    work = {name: options.pop(name) for name in ("num_workers", "engine", "memory") if name in options}
    result = read_tables(source, TableSettings(**options))
    write_chunked(result.graph, out / "wanted", name="got", **written)
    report = chunk_tables(source, out / "got", **options, **written, **{"num_workers": 0, **work})
    assert report.metadata == out / "got" / "metadata.json"
    assert read_graph(report.metadata).fingerprint() == result.graph.fingerprint()
    got, wanted = tree_of(out / "got"), tree_of(out / "wanted")
    assert sorted(got) == sorted(wanted)
    assert [name for name in wanted if got[name] != wanted[name]] == []
    assert list(out.glob(".*")) == []
    assert report.num_nodes == {t: table.num_nodes for t, table in result.graph.nodes.items()}
    assert report.num_edges == {t: table.num_edges for t, table in result.graph.edges.items()}
    assert report.num_repeated == {t: count for t, count in result.num_repeated.items() if count}
    dropped = {t: ends["edges"] for t, ends in report.num_dangling.items()}
    assert dropped == {t: count for t, count in result.num_dropped.items() if count}
    return result.graph, report


any_tables = given(
    seed=st.integers(0, 2**32 - 1), kinds=st.tuples(KINDS, KINDS), formats=st.tuples(FORMATS, FORMATS),
    sizes=st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 60)),
    dirt=st.tuples(st.booleans(), st.booleans()), num_chunks=st.integers(1, 5),
)  # fmt: skip


def check_any_tables(seed, kinds, formats, sizes, dirt, num_chunks):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "LIMITS", SMALL)
        source = make_world(Path(folder), seed, kinds, formats, sizes, dirt).write()
        options = {"on_dangling": "drop", "on_duplicate": "drop", "keep_raw_ids": seed % 4 > 0}
        edges_format, data_format = ("csv", "parquet", "numpy")[seed % 3], ("numpy", "parquet")[seed % 2]
        check_equal(
            source, Path(folder), num_chunks=num_chunks, edges_format=edges_format, data_format=data_format, **options
        )


@settings(max_examples=4, deadline=None)
@any_tables
def test_any_tables_give_the_graph_that_read_graph_gives(**drawn):
    check_any_tables(**drawn)


@pytest.mark.soak
@settings(max_examples=150, deadline=None)
@any_tables
def test_any_tables_at_length(**drawn):
    check_any_tables(**drawn)


@settings(max_examples=1, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), formats=st.tuples(FORMATS, FORMATS))
def test_raw_ids_are_a_feature(seed, formats):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "LIMITS", SMALL)
        world = make_world(Path(folder), seed, ("int", "string"), formats, (30, 10, 50), (seed % 2 == 0, True))
        graph, _ = check_equal(world.write(), Path(folder), on_dangling="drop", on_duplicate="drop")
        assert next(iter(graph.nodes["user"].features)) == "id"
        assert list(graph.nodes["tag"].features) == ["name"]


@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), kinds=st.tuples(KINDS, KINDS), formats=st.tuples(FORMATS, FORMATS),
    dirt=st.sampled_from([(True, False), (False, True)]),
)  # fmt: skip
def test_the_first_error_equals_that_of_read_graph(seed, kinds, formats, dirt):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "LIMITS", SMALL)
        source = make_world(Path(folder), seed, kinds, formats, (30, 10, 40), dirt).write()
        with pytest.raises(SchemaError) as wanted:
            read_graph(source, keep_raw_ids=False)
        with pytest.raises(SchemaError) as got:
            chunk_tables(source, Path(folder) / "out", keep_raw_ids=False, num_workers=0)
        assert str(got.value) == str(wanted.value)
        assert not (Path(folder) / "out").exists() and list(Path(folder).glob(".*")) == []


def test_limits_do_not_change_the_result(tmp_path, monkeypatch):
    source = make_world(tmp_path, 5, ("mixed", "int"), ("csv", "parquet"), (20, 9, 30), (True, True)).write()
    options = {"on_dangling": "drop", "on_duplicate": "drop", "keep_raw_ids": False}
    for number, limits in enumerate((plan.LIMITS, replace(SMALL, block_rows=2, bucket_bytes=60))):
        monkeypatch.setattr(plan, "LIMITS", limits)
        check_equal(source, tmp_path / str(number), **options)


@pytest.mark.parametrize("file_format", ["tsv"])
def test_other_formats_give_the_same_as_csv(tmp_path, monkeypatch, file_format):
    monkeypatch.setattr(plan, "LIMITS", SMALL)
    graphs = []
    for number, name in enumerate(("csv", file_format)):
        folder = tmp_path / str(number)
        folder.mkdir()
        source = make_world(folder, 7, ("mixed", "int"), (name, name), (20, 9, 30), (False, False)).write()
        graphs.append(check_equal(source, folder)[0].fingerprint())
    assert graphs[0] == graphs[1]
