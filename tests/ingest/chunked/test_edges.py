"""Checks that ends of edges are read unchanged, and that flaws are errors that name their place."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from hopstream.errors import FormatError, HopstreamError, IdRangeError, SchemaError
from hopstream.ingest.chunked import EdgeRange, edge_files, open_chunked, sources
from tests.ingest.chunked.folders import PAIRS, WRITES, Folder
from tests.ingest.chunked.folders import lines as text_of

TYPE = ("author", "writes", "paper")
MANY = np.stack([np.arange(100) % 5, np.arange(100) % 4], axis=1)
CUTS = [0, 31, 31, 60, 99, 100]


def table_of(pairs: np.ndarray, dtype: str = "int64") -> pa.Table:
    return pa.table({"a": pairs[:, 0].astype(dtype), "b": pairs[:, 1].astype(dtype)})


WRITTEN = {"csv": text_of, "parquet": table_of, "numpy": lambda pairs: pairs}


def set_many(folder: Folder, file_format: str, *, is_counted: bool) -> None:
    chunks = [MANY[a:b] for a, b in pairwise(CUTS)]
    folder.set_edges(file_format, [WRITTEN[file_format](chunk) for chunk in chunks])
    folder.metadata["num_edges_per_type"][0] = 100
    folder.metadata["edge_data"] = {}
    if is_counted:
        folder.metadata["num_edges_per_chunk"] = [[len(chunk) for chunk in chunks], []]


def read_all(ends: sources.EdgeSource, max_rows: int) -> np.ndarray:
    found = []
    key = 0
    for piece in ends.pieces(max_rows):
        assert 0 < piece.num_edges <= max_rows and piece.first == key
        for first, src_keys, dst_keys in ends.read(EdgeRange.from_json(piece.to_json())):
            assert first == key and src_keys.dtype == dst_keys.dtype == np.int64
            found.append(np.stack([src_keys, dst_keys], axis=1))
            key += len(src_keys)
        assert key == piece.stop
    return np.concatenate(found) if found else np.empty((0, 2), np.int64)


@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("file_format", WRITTEN)
def test_pieces_of_every_size(folder, file_format, is_counted):
    set_many(folder, file_format, is_counted=is_counted)
    root = folder.save()
    for max_rows in (1, 7, 29, 30, 31, 100, 1000):
        ends = open_chunked(root).edges[TYPE].ends
        np.testing.assert_array_equal(read_all(ends, max_rows), MANY)
        assert ends.pieces(max_rows) == open_chunked(root).edges[TYPE].ends.pieces(max_rows)


def test_pieces_take_small_files_together(folder):
    set_many(folder, "csv", is_counted=True)
    ends = open_chunked(folder.save()).edges[TYPE].ends
    assert [len(piece.spans) for piece in ends.pieces(100)] == [4]
    assert [(p.first, p.stop) for p in ends.pieces(60)] == [(0, 60), (60, 100)]


def test_row_groups_stay_whole_where_they_fit(folder):
    folder.set_edges("parquet", [table_of(MANY)])  # of two rows each
    folder.metadata["num_edges_per_type"][0] = 100
    folder.metadata["edge_data"] = {}
    ends = open_chunked(folder.save()).edges[TYPE].ends
    assert {piece.num_edges for piece in ends.pieces(7)} == {6, 4}


@pytest.mark.parametrize(
    ("parsed", "counted", "end", "delimiter"),
    [(8, 3, "\n", " "), (16, 1, "\r\n", ","), (64, 64, "\n", "\t"), (8, 3, "\r\n", ";"), (16, 1, "\n", "|")],
)
def test_lines_across_blocks(folder, monkeypatch, parsed, counted, end, delimiter):
    monkeypatch.setattr(edge_files, "PARSED_BYTES", parsed)
    monkeypatch.setattr(edge_files, "COUNTED_BYTES", counted)
    texts = [text_of(PAIRS[:4], delimiter, end), text_of(PAIRS[4:], delimiter, end).removesuffix(end)]
    folder.set_edges("csv", texts, delimiter=delimiter)
    ends = open_chunked(folder.save()).edges[TYPE].ends
    for max_rows in (1, 2, 3, 4, 7):
        np.testing.assert_array_equal(read_all(ends, max_rows), PAIRS)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i4"])
@pytest.mark.parametrize("file_format", ["parquet", "numpy"])
def test_integers_of_every_width(folder, file_format, dtype):
    if file_format == "parquet" and dtype == ">i4":
        dtype = "uint16"
    folder.set_edges(file_format, [table_of(PAIRS, dtype) if file_format == "parquet" else PAIRS.astype(dtype)])
    np.testing.assert_array_equal(read_all(open_chunked(folder.save()).edges[TYPE].ends, 3), PAIRS)


def test_edges_in_fortran_order_are_read(folder):
    folder.set_edges("numpy", [np.asfortranarray(PAIRS)])
    np.testing.assert_array_equal(read_all(open_chunked(folder.save()).edges[TYPE].ends, 3), PAIRS)


def with_null() -> pa.Table:
    return pa.table({"a": pa.array([0, 4, 2, 2, 0, None, 1]), "b": PAIRS[:, 1]})


def far(value: int, dtype: type = np.int64) -> np.ndarray:
    pairs = PAIRS.astype(dtype)
    pairs[5, 1] = value
    return pairs


GOOD = text_of(PAIRS)
LAST = text_of(PAIRS[:6])
BAD_EDGES = {
    "source out of range": ("csv", [GOOD.replace("4 3", "5 3")], IdRangeError, "0.csv line 2 has source 5; .* 0..4"),
    "target out of range": (
        "csv",
        [GOOD.replace("3 1", "3 4")],
        IdRangeError,
        "line 6 has destination 4; .*paper .* 0..3",
    ),
    "negative": ("csv", [GOOD.replace("4 3", "4 -3")], IdRangeError, "line 2 has destination -3"),
    "second file": (
        "csv",
        [text_of(PAIRS[:3]), text_of(PAIRS[3:]).replace("3 1", "3 9")],
        IdRangeError,
        "1.csv line 3",
    ),
    "no integer": ("csv", [GOOD.replace("4 3", "4 x")], SchemaError, "0.csv line 2 has 'x'; wanted an integer"),
    "hexadecimal": ("csv", [GOOD.replace("4 3", "4 0x3")], SchemaError, "line 2 has '0x3'; wanted an integer"),
    "a plus": ("csv", [GOOD.replace("4 3", "4 +3")], SchemaError, "line 2 has '\\+3'; wanted an integer"),
    "a lone return": ("csv", [GOOD.replace("4 3\n", "4 3\r")], FormatError, "line 2 is '4 3..2 2', 3 cells"),
    "a real": ("csv", [GOOD.replace("4 3", "4 3.0")], SchemaError, "line 2 has '3.0'; wanted an integer"),
    "a null": ("csv", [GOOD.replace("4 3", "4 NA")], SchemaError, "line 2 has 'NA'"),
    "no cell": ("csv", [GOOD.replace("4 3", "4 ")], SchemaError, "line 2 has ''; wanted"),
    "too large": (
        "csv",
        [GOOD.replace("4 3", "4 9223372036854775808")],
        SchemaError,
        "line 2 has '9223372036854775808'",
    ),
    "too small": (
        "csv",
        [GOOD.replace("4 3", "4 -9223372036854775809")],
        SchemaError,
        "line 2 has '-9223372036854775809'",
    ),
    "one cell": ("csv", [GOOD.replace("4 3", "443")], FormatError, "line 2 is '443', 1 cells"),
    "three cells": ("csv", [GOOD.replace("4 3", "4 3 1")], FormatError, "line 2 is '4 3 1', 3 cells"),
    "a header": ("csv", ["src dst\n" + LAST], SchemaError, "line 1 has 'src'; wanted an integer"),
    "an empty line": ("csv", [GOOD.replace("0 0", "0 00\n")], FormatError, "line 6 is '', 1 cells"),
    "quoted": ("csv", [GOOD.replace("4 3", '"4" 3')], SchemaError, "line 2 has '\"4\"'"),
    "another delimiter": ("csv", [GOOD.replace(" ", ",")], FormatError, "line 1 is '0,1', 1 cells with delimiter ' '"),
    "bytes": ("csv", [b"\xff\xfe\x00\x01" * 9], FormatError, "line 1"),
    "one line": ("csv", ["1" * 99], FormatError, "line 1"),
    "too few lines": (
        "csv",
        [LAST.replace("0 1", "000 001")],
        SchemaError,
        "0.csv line 1 and on holds 6 edges; .* says 7",
    ),
    "too many lines": ("csv", [GOOD + "0 0\n"], SchemaError, "holds more than 7 edges"),
    "too few in two files": ("csv", [LAST, "0 0"[:0]], SchemaError, r"has 6 edges in 2 files .*; 7 edges are declared"),
    "far too few bytes": ("csv", ["0 0\n"], SchemaError, "0.csv is 4 bytes; the metadata says 7 edges"),
    "zero bytes": ("csv", [""], SchemaError, "0.csv is 0 bytes; the metadata says 7 edges"),
    "parquet out of range": (
        "parquet",
        [table_of(far(4))],
        IdRangeError,
        r"0.parquet row 5 \(row group 2\) has dest.* 4;",
    ),
    "parquet above int64": ("parquet", [table_of(far(2**63, np.uint64), "uint64")], IdRangeError, "row 5 .*below 2"),
    "parquet null": ("parquet", [with_null()], SchemaError, r"row 5 \(row group 2\) has no value"),
    "parquet reals": ("parquet", [table_of(PAIRS, "float64")], SchemaError, "'double'.*wanted two of integers"),
    "parquet three columns": (
        "parquet",
        [table_of(PAIRS).append_column("c", [PAIRS[:, 0]])],
        SchemaError,
        "wanted two",
    ),
    "parquet rows": ("parquet", [table_of(PAIRS[:6])], SchemaError, "0.parquet has 6 edges; the metadata says 7"),
    "parquet rows of two": (
        "parquet",
        [table_of(PAIRS[:3])] * 2,
        SchemaError,
        "6 edges in 2 files .*0.parquet 3, e/1.p",
    ),
    "no parquet": ("parquet", [GOOD], FormatError, "0.parquet cannot be read as parquet"),
    "numpy out of range": ("numpy", [far(-1)], IdRangeError, "0.npy row 5 has destination -1"),
    "numpy above int64": (
        "numpy",
        [far(2**63, np.uint64)],
        IdRangeError,
        "row 5 has 9223372036854775808; keys are below",
    ),
    "numpy reals": ("numpy", [PAIRS.astype(np.float64)], SchemaError, r"is float64\[7, 2\]; wanted integers"),
    "numpy transposed": ("numpy", [PAIRS.T.copy()], SchemaError, "wanted integers.*transpose them"),
    "numpy three columns": ("numpy", [np.zeros((7, 3), int)], SchemaError, "wanted integers"),
    "no numpy": ("numpy", [b"\x93NUMPY"], FormatError, "0.npy cannot be read as .npy"),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_error_names_the_place_of_bad_edges(folder, case):
    file_format, contents, error, message = BAD_EDGES[case]
    folder.set_edges(file_format, contents)
    with pytest.raises(error, match=message) as raised:
        open_chunked(folder.save()).load()
    assert WRITES in str(raised.value)


def test_declared_chunks_are_counted_too(folder):
    folder.set_edges("csv", [text_of(PAIRS[:3]).replace("0 1", "000 001"), text_of(PAIRS[3:])])
    folder.metadata["num_edges_per_chunk"] = [[4, 3], []]
    with pytest.raises(SchemaError, match=r"0.csv line 1 and on holds 3 edges; .* says 4"):
        open_chunked(folder.save()).load()
    with pytest.raises(SchemaError, match=r"0.csv has 3 edges; the metadata says 4"):
        open_chunked(folder.root).edges[TYPE].ends.pieces(2)


@pytest.mark.parametrize("file_format", WRITTEN)
def test_truncated_edge_files_are_refused(folder, file_format):
    set_many(folder, file_format, is_counted=True)
    folder.save()
    (path,) = (folder.root / name for name in folder.metadata["edges"][WRITES]["data"][:1])
    content = path.read_bytes()
    for length in range(0, len(content) - 1, max(1, len(content) // 40)):
        path.write_bytes(content[:length])
        with pytest.raises((FormatError, SchemaError), match=r"e/0\."):
            open_chunked(folder.root).load()


@pytest.mark.parametrize("file_format", WRITTEN)
def test_damaged_files_raise_hopstream_errors(folder, rng, file_format):
    set_many(folder, file_format, is_counted=False)
    folder.save()
    path = folder.root / folder.metadata["edges"][WRITES]["data"][0]
    content = path.read_bytes()
    for _ in range(40):
        broken = bytearray(content)
        broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        path.write_bytes(bytes(broken))
        try:
            graph = open_chunked(folder.root).load()
        except HopstreamError as error:
            assert "e/0." in str(error) or WRITES in str(error)
        else:
            graph.check()


@pytest.mark.parametrize("file_format", WRITTEN)
def test_files_that_shrink_while_they_are_read(folder, file_format):
    set_many(folder, file_format, is_counted=True)
    ends = open_chunked(folder.save()).edges[TYPE].ends
    pieces = ends.pieces(1000)
    path = folder.root / folder.metadata["edges"][WRITES]["data"][0]
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(FormatError, match=r"e/0\."):
        list(ends.read(pieces[0]))


def test_a_piece_of_another_graph(folder):
    ends = open_chunked(folder.save()).edges[TYPE].ends
    with pytest.raises(FormatError, match="has 3 files; the piece is another graph's"):
        list(ends.read(EdgeRange.from_json([0, 1, [[3, 0, 1, 0, 4]]])))


@pytest.mark.parametrize("value", [None, [], [1], [0, 1, [[0]]], [0, 1, 2], ["a", 1, []]])
def test_invalid_pieces_are_refused(value):
    with pytest.raises(FormatError, match="not a piece of edges"):
        EdgeRange.from_json(value)
