"""Checks that strings and lists are read unchanged, block by block, and that flaws are errors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.arrays import RaggedArray
from hopstream.errors import FormatError, HopstreamError, IdRangeError, SchemaError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import RaggedSource, open_chunked, parquet_ragged, sources, write_chunked
from hopstream.schema import EDGE, NODE, NUMERIC_DTYPES, FeatureSchema
from tests.ingest.chunked.folders import Folder

WORDS = ["", "é", "a longer one, with 日本", "x"]
LISTS = [[1, 2], [], [3], []]


@pytest.fixture(params=[16, 8 << 20], ids=["small blocks", "large blocks"])
def block_bytes(request, monkeypatch) -> int:
    monkeypatch.setattr(sources, "BLOCK_BYTES", request.param)
    return int(request.param)


def column_of(folder: Folder) -> RaggedSource:
    column = open_chunked(folder.save()).nodes["paper"].features["feat"]
    assert isinstance(column, RaggedSource)
    return column


def check_rows(column: RaggedSource, wanted: list) -> None:
    for start in range(5):
        for stop in range(start, 5):
            found = column.read(start, stop)
            found.check("rows")
            assert found.tolist() == wanted[start:stop]
            assert column.lengths(start, stop).tolist() == np.diff(found.offsets).tolist()


def text(words: list, kind: pa.DataType) -> pa.Table:
    return pa.table({"a": pa.array(words, kind)})


STRINGS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_strings_of_any_arrow_type_are_read(folder, block_bytes, kind):
    folder.set_feat("parquet", [text(WORDS[:1], kind), text([], pa.string()), text(WORDS[1:], pa.large_string())])
    column = column_of(folder)
    assert column.schema == FeatureSchema(dtype="string")
    check_rows(column, WORDS)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_bytes_are_elements(folder, block_bytes, kind):
    folder.set_feat("parquet", [text([word.encode() for word in WORDS], kind)])
    column = column_of(folder)
    assert column.schema == FeatureSchema(dtype="uint8", is_ragged=True)
    check_rows(column, [list(word.encode()) for word in WORDS])


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (dtype, (pa.list_, pa.large_list)[number % 2])
        for number, dtype in enumerate(dtype for dtype in NUMERIC_DTYPES if not dtype.startswith("complex"))
    ],
)
def test_lists_of_every_dtype(folder, block_bytes, dtype, kind):
    rows = [np.array(row).astype(dtype) for row in LISTS]
    value_type = pa.from_numpy_dtype(np.dtype(dtype))
    folder.set_feat(
        "parquet", [pa.table({"a": pa.array(rows[:3], kind(value_type))}), text(rows[3:], kind(value_type))]
    )
    column = column_of(folder)
    assert column.schema == FeatureSchema(dtype=dtype, is_ragged=True)
    check_rows(column, [row.tolist() for row in rows])


def test_elements_may_have_a_shape(folder, block_bytes):
    rows = [np.arange(6 * n).reshape(n, 2, 3).tolist() for n in (2, 0, 1, 3)]
    kind = pa.list_(pa.list_(pa.list_(pa.int32(), 3), 2))
    folder.set_feat("parquet", [text(rows, kind)])
    assert column_of(folder).shape == (2, 3)
    check_rows(column_of(folder), rows)


def test_lists_are_ragged_by_length_or_by_metadata(folder):
    ones, twos = pa.table({"a": [[1], [1]]}), pa.table({"a": [[1, 2], [3, 4]]})
    folder.set_feat("parquet", [ones, twos])
    check_rows(column_of(folder), [[1], [1], [1, 2], [3, 4]])
    folder.set_feat("parquet", [ones, pa.table({"a": [[3], [4]]})])
    assert not isinstance(open_chunked(folder.save()).nodes["paper"].features["feat"], RaggedSource)
    folder.set_feat("parquet", [ones, pa.table({"a": [[3], [4]]}).replace_schema_metadata({"ragged": "true"})])
    check_rows(column_of(folder), [[1], [1], [3], [4]])


def lists(rows: list, kind: pa.DataType | None = None) -> pa.Table:
    return text(rows, kind or pa.list_(pa.int32()))


EVEN = {
    "the mean is whole": [[[1], [2, 3, 4]]],
    "an empty list counts as one value": [[[], [7]]],
    "each file has one length": [[[1, 2], [3, 4]], [[5], [6, 7, 8]]],
    "only empty lists": [[[]]],
    "files of lists and of empty lists": [[[1], [2]], [[], []]],
    "row groups even out": [[[1, 2], [3, 4], [1], [2, 3, 4]]],
    "the last file": [[[1, 2]], [], [[3, 4], [5, 6], [7, 8, 9], [0]]],
}


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.float64())], ids=str)
@pytest.mark.parametrize("case", EVEN)
def test_lists_of_several_lengths_are_ragged_despite_footer_counts(folder, block_bytes, case, kind):
    rows = [row for of_file in EVEN[case] for row in of_file]
    folder.set_feat("parquet", [lists(of_file, kind) for of_file in EVEN[case]], num_nodes=len(rows))
    folder.metadata["node_data"]["paper"].pop("train_mask", None)
    column = column_of(folder)
    assert column.shape == () and column.read(0, len(rows)).tolist() == rows


def test_lists_of_shaped_elements_are_dense_if_equal_lengths_allow_it(folder):
    pair, kind = [1, 2], pa.list_(pa.list_(pa.int32(), 2))
    for rows in ([[pair], [pair] * 3], [[], [pair] * 3], [[pair, pair], []]):
        folder.set_feat("parquet", [lists(rows, kind)], num_nodes=2)
        assert column_of(folder).shape == (2,) and column_of(folder).read(0, 2).tolist() == rows
    folder.set_feat("parquet", [lists([[pair, pair]] * 4, kind)])
    dense = open_chunked(folder.save()).nodes["paper"].features["feat"]
    assert dense.shape == (2, 2) and dense.read(0, 4).tolist() == [[pair, pair]] * 4


def big_column(folder: Folder, change: dict[int, int], row_group_size: int = 1000):
    """20000 rows of 8 numbers; rows in the given dict are longer, at the expense of the next row."""
    lengths = np.full(20000, 8)
    for row, more in change.items():
        lengths[row : row + 2] += (more, -more)
    values = np.arange(160000, dtype=np.float32)
    array = pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), pa.array(values))
    folder.set_feat("parquet", [b""], num_nodes=20000)
    pq.write_table(pa.table({"a": array}), folder.root / "n/0.parquet", row_group_size=row_group_size)
    return open_chunked(folder.save()).nodes["paper"].features["feat"], values


def test_a_large_column_of_one_length_is_dense(folder):
    column, values = big_column(folder, {})
    assert not isinstance(column, RaggedSource) and column.shape == (8,)
    assert np.array_equal(column.read(0, 20000), values.reshape(20000, 8))
    assert isinstance(big_column(folder, {19998: 1})[0], RaggedSource)


@pytest.mark.parametrize("max_groups", [1 << 10, 5])
def test_large_columns_are_sampled_in_each_row_group(folder, monkeypatch, max_groups):
    """A longer list that the samples miss is an error at reading, which names the remedy."""
    monkeypatch.setattr(parquet_ragged, "CHECK_BYTES", 20 * 100 * 32)
    monkeypatch.setattr(parquet_ragged, "MAX_GROUPS", max_groups)
    assert not isinstance(big_column(folder, {})[0], RaggedSource)
    assert isinstance(big_column(folder, {8050: 1})[0], RaggedSource)
    assert isinstance(big_column(folder, {7900: 8})[0], RaggedSource), "statistics tell of the empty list"
    column, _ = big_column(folder, {7900: 1})
    assert not isinstance(column, RaggedSource)
    with pytest.raises(SchemaError, match=r'row 7900 .*give "ragged": "true" in the schema') as raised:
        column.read(0, 20000)
    assert "a list of 9; lists before it have 8" in str(raised.value)


def test_large_row_groups_in_dictionaries_and_not(tmp_path, monkeypatch):
    """Strings for which the writer falls back from its dictionary, and few long ones that repeat often."""
    monkeypatch.setattr(parquet_ragged, "MAX_DICTIONARY_BYTES", 1 << 16)
    words = ["x" * 5000 + str(n % 5) for n in range(3000)] + [f"{'y' * 300}{n}" for n in range(9000)]
    words[7000] = "z" * (1 << 20)
    graph = Graph(nodes={NODE: NodeTable(num_nodes=len(words))}, edges={}).check()
    write_chunked(graph, tmp_path / "g", num_chunks=1)
    (tmp_path / "g" / "0.parquet").touch()
    pq.write_table(pa.table({"a": words}), tmp_path / "g" / "0.parquet", dictionary_pagesize_limit=1 << 14)
    text_of = tmp_path / "g" / "metadata.json"
    entry = '"node_data": {"node": {"t": {"format": {"name": "parquet"}, "data": ["0.parquet"]}}}'
    text_of.write_text(text_of.read_text().replace('"node_data": {}', entry))
    column = open_chunked(tmp_path / "g").nodes[NODE].features["t"]
    assert isinstance(column, RaggedSource)
    assert column.read(0, len(words)).tolist() == words
    assert column.read(2990, 7100).tolist() == words[2990:7100]


def graph_of(rng: np.random.Generator, num_rows: int) -> Graph:
    features = {
        "s": RaggedArray.from_strings([WORDS[i] * int(n) for i, n in rng.integers(0, 4, (num_rows, 2))]),
        "l": RaggedArray.from_rows([rng.random(n).astype(np.float16) for n in rng.integers(0, 5, num_rows)]),
        "m": RaggedArray.from_rows([rng.random((n, 2, 3)) for n in rng.integers(0, 3, num_rows)]),
        "x": rng.random((num_rows, 3)),
    }
    if not num_rows:
        features["l"] = RaggedArray(np.empty(0, np.float16), np.zeros(1, np.int64))
        features["m"] = RaggedArray(np.empty((0, 2, 3)), np.zeros(1, np.int64))
    ends = rng.integers(0, max(1, num_rows), (2, num_rows))
    edges = {EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1], features=features)}
    return Graph(nodes={NODE: NodeTable(num_nodes=num_rows, features=features)}, edges=edges).check()


@pytest.mark.parametrize(
    ("num_rows", "num_chunks", "data_format"),
    [(0, 1, "numpy"), (0, 7, "parquet"), (3, 7, "numpy"), (30, 1, "parquet"), (30, 7, "numpy")],
)
def test_written_columns_survive_a_round_trip(tmp_path, rng, block_bytes, num_rows, num_chunks, data_format):
    graph = graph_of(rng, num_rows)
    write_chunked(graph, tmp_path / "g", num_chunks=num_chunks, data_format=data_format)
    found = open_chunked(tmp_path / "g")
    assert found.schema == graph.schema
    assert found.load().fingerprint() == graph.fingerprint()


def bad_text() -> pa.Array:
    buffers = [None, pa.py_buffer(np.array([0, 1, 2, 3, 4], np.int32)), pa.py_buffer(b"ab\xffd")]
    return pa.Array.from_buffers(pa.string(), 4, buffers)


BYTES = pa.list_(pa.int8())
BAD = {
    "null": ([text(["a", "b", None, "c"], pa.string())], r"0.parquet row 2 \(row group 1\) has no value"),
    "null list": (
        [text([[1], [1, 2], [], None], BYTES)],
        r"0.parquet row 3 \(row group 1\) has no value",
    ),
    "null inside": (
        [text([[], [], [1, 2], [3, None]], BYTES)],
        r"row 3 \(row .*no value inside its list",
    ),
    "no UTF-8": ([pa.table([bad_text()], names=["a"])], r"0.parquet row 2 .*is not UTF-8"),
    "another type": (
        [text(WORDS[:2], pa.string()), text(LISTS[:2], BYTES)],
        r"1.parquet is int8 with rows of any length; n/0.parquet is of strings",
    ),
    "another dtype": (
        [text(LISTS[:2], BYTES), text([[1], [2, 3]], pa.list_(pa.int16()))],
        r"1.parquet is int16 with rows of any length; n/0.parquet is int8 with",
    ),
    "lists and numbers": (
        [text(LISTS[:2], BYTES), text([1, 2], pa.int8())],
        r"1.parquet is int8 with rows of shape \(\); n/0.parquet is int8 with rows of any length",
    ),
    "lists of any length and of a fixed one": (
        [lists([[1], [2, 3, 4]]), lists([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))],
        r"1.parquet is int32 with rows of shape \(2,\); n/0.parquet is int32 with .*: write all files",
    ),
    "shapes and several lengths": (
        [lists([[1], [2, 3, 4], [], []]).replace_schema_metadata({"shape": "(4, 2)"})],
        "of several lengths.*: for rows of any length, .* leave shape out",
    ),
    "shapes and lengths that even out": (
        [lists([[1], [2, 3, 4], [1, 2], [3, 4]]).replace_schema_metadata({"shape": "(4, 2)"})],
        "row 1 .*has a list of 3; .*: for rows of any length, .* leave shape out",
    ),
    "lists of strings": ([text([["a"], ["b", "c"], [], []], pa.list_(pa.string()))], "not a dtype of a feature"),
    "lists of lists": ([text([[[1]], [[1, 2]], [], []], pa.list_(pa.list_(pa.int8())))], "of several lengths"),
    "too few": ([text(WORDS[:3], pa.string())], "has 3 rows in 1 file"),
    "said to be": ([text([1] * 4, pa.int8()).replace_schema_metadata({"ragged": "true"})], "is declared ragged but is"),
    "no answer": ([text(LISTS, BYTES).replace_schema_metadata({"ragged": "yes"})], "wanted 'true'"),
}


@pytest.mark.parametrize("case", BAD)
def test_error_names_the_file_and_row_of_bad_lists(folder, case):
    contents, message = BAD[case]
    folder.set_feat("parquet", contents)
    with pytest.raises(SchemaError, match=message) as raised:
        open_chunked(folder.save()).load()
    assert "paper.feat" in str(raised.value)


def test_a_text_mask_is_refused(folder):
    folder.set_feat("parquet", [text(WORDS, pa.string())])
    folder.metadata["node_data"]["paper"]["val_mask"] = folder.metadata["node_data"]["paper"].pop("feat")
    with pytest.raises(SchemaError, match=r"paper.val_mask is string; a split is bool"):
        open_chunked(folder.save())


@pytest.mark.parametrize("content", [text(WORDS * 30, pa.string()), text(LISTS * 30, pa.list_(pa.int64()))])
def test_damaged_and_truncated_files(folder, rng, content):
    folder.set_feat("parquet", [content], num_nodes=120)
    folder.metadata["node_data"] = {"paper": {"feat": folder.metadata["node_data"]["paper"]["feat"]}}
    folder.save()
    path = folder.root / "n/0.parquet"
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 10):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"paper.feat: n/0"):
            open_chunked(folder.root)
    for _ in range(20):
        broken = bytearray(whole)
        broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        path.write_bytes(bytes(broken))
        try:
            column = open_chunked(folder.root).nodes["paper"].features["feat"]
            column.read(0, column.num_rows)
        except HopstreamError as error:
            assert "n/0." in str(error)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 5)])
def test_rows_outside_a_ragged_column_are_refused(folder, start, stop):
    folder.set_feat("parquet", [text(WORDS, pa.string())])
    with pytest.raises(IdRangeError, match=f"rows {start}..{stop} of a column of 4 rows"):
        column_of(folder).read(start, stop)
