"""Checks that chunked folders of any format, dispatched by any engine, give the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.arrays import Column, RaggedArray
from hopstream.errors import FormatError, IdRangeError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import write_chunked
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.write import write_parts
from tests.preparation.dispatch.sources import check_same, cut_small, write_owners

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def with_words(rng: np.random.Generator, num_rows: int, features: dict[str, Column]) -> dict[str, Column]:
    """The given features and two more: strings, and lists of any length."""
    words = [("", "é", "zwölf", "日本 " * 9)[i] for i in rng.integers(0, 4, num_rows)]
    lists = [rng.integers(-99, 99, n).astype(np.int16) for n in rng.integers(0, 5, num_rows)]
    return {**features, "word": RaggedArray.from_strings(words), "list": RaggedArray.from_rows(lists)}


def small_graph(rng: np.random.Generator) -> Graph:
    """Graph of three node types, one of three nodes, and two edge types.

    Features have several dtypes and ranks; some are ragged.
    """
    num_papers, num_authors = 70, 31
    ends = {
        WRITES: (rng.integers(0, num_authors, 120), rng.integers(0, num_papers, 120)),
        CITES: (rng.integers(0, num_papers, 300), rng.integers(0, num_papers, 300)),
    }
    return Graph(
        nodes={
            "paper": NodeTable(
                num_nodes=num_papers,
                features=with_words(
                    rng,
                    num_papers,
                    {"feat": rng.random((num_papers, 5), np.float32), "year": rng.integers(0, 9, num_papers)},
                ),
            ),
            "author": NodeTable(num_nodes=num_authors, features={"feat": rng.random((num_authors, 2, 2))}),
            "venue": NodeTable(num_nodes=3, features=with_words(rng, 3, {})),
        },
        edges={
            t: EdgeTable(
                src_keys=src, dst_keys=dst, features=with_words(rng, len(src), {"w": rng.random(len(src), np.float32)})
            )
            for t, (src, dst) in ends.items()
        },
        splits={"paper": {"train": np.arange(0, num_papers, 3), "val": np.arange(1, num_papers, 3)}},
    ).check()


@pytest.mark.parametrize(
    ("edges_format", "data_format", "vector_rows", "num_chunks", "num_parts"),
    [("csv", "numpy", False, 4, 4), ("parquet", "parquet", True, 4, 3), ("numpy", "parquet", False, 11, 6)],
)
def test_every_file_format_gives_the_same_dataset(
    tmp_path, monkeypatch, rng, edges_format, data_format, vector_rows, num_chunks, num_parts
):
    graph = small_graph(rng)
    write_chunked(
        graph, tmp_path / "in", num_chunks=num_chunks, edges_format=edges_format, data_format=data_format,
        vector_rows=vector_rows,
    )  # fmt: skip
    owners = write_owners(tmp_path / "owners", graph, num_parts, rng)
    if num_chunks == 4:  # else chunks are read whole
        cut_small(monkeypatch, 60)
    options = {"num_parts": num_parts, "direction": "both", "weight_attr": "w"}
    got = dispatch(tmp_path / "in", owners, tmp_path / "got", num_workers=0, **options)
    wanted = write_parts(graph, tmp_path / "wanted", owners=owners, **options)
    check_same(tmp_path / "got", tmp_path / "wanted", got, wanted)


def test_a_damaged_file_is_named(tmp_path, rng):
    graph = small_graph(rng)
    write_chunked(graph, tmp_path / "in", num_chunks=3, edges_format="csv")
    owners = write_owners(tmp_path / "owners", graph, 3, rng)
    edges = sorted(path for path in (tmp_path / "in").rglob("*.csv") if "cites" in str(path))[1]
    lines = edges.read_text().splitlines(keepends=True)
    places = (tmp_path / "in", owners, tmp_path / "got")
    for number, line, error in [(5, "3 70\n", IdRangeError), (7, "1 x\n", FormatError)]:
        edges.write_text("".join([*lines[:number], line, *lines[number + 1 :]]))
        with pytest.raises((error, ValueError), match=edges.name):
            dispatch(*places, num_workers=0, num_parts=3)
        assert not (tmp_path / "got").exists()
        assert list(tmp_path.glob(".*")) == []
