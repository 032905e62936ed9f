"""Checks that features of every dtype, shape and file format are read by rows, unchanged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.errors import FormatError, HopstreamError, IdRangeError, SchemaError
from hopstream.ingest.chunked import open_chunked, parquet
from hopstream.schema import NUMERIC_DTYPES
from tests.ingest.chunked.folders import FEAT, Folder

SHAPES = [(), (3,), (1,), (2, 3), (2, 1, 3)]


def column_of(folder: Folder):
    return open_chunked(folder.save()).nodes["paper"].features["feat"]


def rows_of(dtype: str, shape: tuple[int, ...], num_rows: int = 4) -> np.ndarray:
    values = np.arange(num_rows * int(np.prod(shape))) % 5
    return (values > 2 if dtype == "bool" else values).astype(dtype).reshape(num_rows, *shape)


def columns_table(array: np.ndarray, *, is_told: bool = True) -> pa.Table:
    flat = array.reshape(len(array), -1)
    names = [str(n) for n in range(flat.shape[1])]
    table = pa.table([pa.array(np.ascontiguousarray(flat[:, n])) for n in range(flat.shape[1])], names=names)
    return table.replace_schema_metadata({"shape": str(array.shape)}) if is_told else table


def lists_table(array: np.ndarray, kind: str, *, is_told: bool = False) -> pa.Table:
    column = pa.array(array.reshape(-1))
    for width in reversed(array.shape[1:]):
        if kind == "fixed":
            column = pa.FixedSizeListArray.from_arrays(column, width)
        else:
            of = pa.ListArray if kind == "list" else pa.LargeListArray
            offset_type = np.int32 if kind == "list" else np.int64
            column = of.from_arrays(pa.array(np.arange(0, len(column) + 1, width, dtype=offset_type)), column)
    table = pa.table([column], names=["vector"])
    return table.replace_schema_metadata({"shape": str(array.shape)}) if is_told else table


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((dtype, SHAPES[number % len(SHAPES)]) for number, dtype in enumerate(NUMERIC_DTYPES) if dtype != "float32"),
        *(("float32", shape) for shape in SHAPES),
    ],
    ids=str,
)
def test_every_dtype_and_shape(folder, dtype, shape):
    array = rows_of(dtype, shape)
    written = [("numpy", [array[:1], array[1:1], array[1:]]), ("numpy", [np.asfortranarray(array)])]
    if dtype.startswith("complex"):
        pass
    elif shape:
        written += [("parquet", [columns_table(array[:3]), columns_table(array[3:])])]
        written += [
            ("parquet", [lists_table(array, kind, is_told=kind != "fixed")]) for kind in ("fixed", "list", "large")
        ]
    else:
        written += [("parquet", [columns_table(array[:3], is_told=False), columns_table(array[3:])])]
    for file_format, contents in written:
        folder.set_feat(file_format, contents)
        column = column_of(folder)
        assert (column.num_rows, column.dtype.name, column.shape) == (4, dtype, shape)
        for start in range(5):
            for stop in range(start, 5):
                found = column.read(start, stop)
                assert found.dtype.name == dtype and found.flags.c_contiguous
                np.testing.assert_array_equal(found, array[start:stop])


@pytest.mark.parametrize("order", [">", "<"])
def test_both_byte_orders(folder, order):
    folder.set_feat("numpy", [FEAT.astype(order + "f4")[:2], FEAT[2:]])
    found = column_of(folder).read(1, 4)
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, FEAT[1:4])


def test_lists_of_one_length_need_no_shape(folder):
    folder.set_feat(
        "parquet", [lists_table(FEAT[:3], "list"), lists_table(FEAT[3:], "fixed"), lists_table(FEAT[:0], "list")]
    )
    np.testing.assert_array_equal(column_of(folder).read(0, 4), FEAT)


def test_columns_need_no_shape(folder):
    folder.set_feat("parquet", [columns_table(FEAT, is_told=False)])
    np.testing.assert_array_equal(column_of(folder).read(0, 4), FEAT)


def test_tensors_of_arrow(folder):
    array = rows_of("int16", (2, 3))
    folder.set_feat("parquet", [pa.table([pa.FixedShapeTensorArray.from_numpy_ndarray(array)], names=["t"])])
    np.testing.assert_array_equal(column_of(folder).read(1, 4), array[1:])


def test_a_shape_of_one_column(folder):
    folder.set_feat("parquet", [columns_table(FEAT[:, :1])])
    assert column_of(folder).shape == (1,)


def test_rows_without_values(folder):
    folder.set_feat("numpy", [np.zeros((4, 0), np.int8)])
    assert column_of(folder).read(1, 3).shape == (2, 0)


def test_an_empty_file_can_define_the_shape(folder):
    array = rows_of("int16", (2, 3))
    folder.set_feat("parquet", [lists_table(array[:0], "list", is_told=True), lists_table(array, "fixed")])
    np.testing.assert_array_equal(column_of(folder).read(0, 4), array)
    folder.set_feat("parquet", [lists_table(array[:0], "list", is_told=True), lists_table(array[:, 0], "fixed")])
    with pytest.raises(SchemaError, match=r"n/1.parquet is int16 with rows of shape \(3,\); n/0.parquet is"):
        column_of(folder)


def test_types_without_nodes(folder):
    folder.set_feat("parquet", [lists_table(FEAT[:0], "list")], num_nodes=0)
    folder.metadata["num_edges_per_type"] = [0, 0]
    folder.metadata.pop("num_edges_per_chunk")
    folder.metadata["edges"], folder.metadata["edge_data"] = {}, {}
    assert column_of(folder).read(0, 0).shape == (0, 0)


def test_row_groups_are_not_held_as_a_whole(tmp_path):
    rows = np.arange(4 << 20, dtype=np.float32).reshape(-1, 64)
    path = tmp_path / "0.parquet"
    pq.write_table(lists_table(rows, "fixed"), path, compression="none", use_dictionary=False)
    file, before, most = parquet.open_parquet(path, "n/0.parquet"), pa.total_allocated_bytes(), 0
    for _, arrays in file.batches(0, len(rows), 1 << 10):
        assert len(arrays) == 1
        most = max(most, pa.total_allocated_bytes() - before)
    assert len(file.group_offsets) == 2 and most < rows.nbytes // 4


def test_only_requested_row_groups_are_decoded(folder):
    folder.set_feat("parquet", [columns_table(FEAT[:, :1])])
    column = column_of(folder)
    path = folder.root / folder.metadata["node_data"]["paper"]["feat"]["data"][0]
    second = pq.read_metadata(path).row_group(1).column(0)
    start = second.dictionary_page_offset or second.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + second.total_compressed_size] = b"\xff" * second.total_compressed_size
    path.write_bytes(bytes(content))
    np.testing.assert_array_equal(column.read(0, 2), FEAT[:2, :1])
    with pytest.raises(FormatError, match=r"0.parquet row group 1 cannot be read as parquet"):
        column.read(1, 3)


def shaped(text: str) -> pa.Table:
    return columns_table(FEAT).replace_schema_metadata({"shape": text})


def huge() -> pa.Table:
    """Nested lists with a shape that would take four gigabytes to read."""
    return pa.table({"a": [[[1.0]]] * 4}).replace_schema_metadata({"shape": "(4, 1000000000)"})


NULLS = pa.table({"a": pa.array([1.0, 2.0, None, 4.0])})
BAD_COLUMNS = {
    "mixed dtypes": (
        "numpy",
        [FEAT[:2], FEAT[2:].astype(float)],
        SchemaError,
        r"n/1.npy is float64 .*; n/0.npy is float32",
    ),
    "mixed shapes": (
        "numpy",
        [FEAT[:2], FEAT[2:, :2]],
        SchemaError,
        r"n/1.npy is float32 with rows of shape \(2,\); n/0",
    ),
    "mixed in parquet": (
        "parquet",
        [columns_table(FEAT[:2]), columns_table(FEAT[2:].astype(int))],
        SchemaError,
        "n/1.parquet is int64",
    ),
    "too many rows": (
        "numpy",
        [FEAT, FEAT[:1]],
        SchemaError,
        r"5 rows in 2 files \(n/0.npy 4, n/1.npy 1\); 4 nodes are",
    ),
    "objects": ("numpy", [np.array([None] * 4)], FormatError, "n/0.npy cannot be read as .npy .*Python objects"),
    "strings": ("numpy", [np.array(["a"] * 4)], SchemaError, r"n/0.npy is <U1\[4\]; dtypes are"),
    "times": ("numpy", [np.zeros(4, "M8[s]")], SchemaError, "n/0.npy is datetime64"),
    "records": ("numpy", [np.zeros(4, "i4,i4")], SchemaError, "n/0.npy is "),
    "a scalar": ("numpy", [np.array(3.0)], SchemaError, "n/0.npy is a scalar"),
    "no npy": ("numpy", [b"PK\x03\x04" * 9], FormatError, "n/0.npy cannot be read as .npy"),
    "a null": ("parquet", [NULLS], SchemaError, r"n/0.parquet row 2 \(row group 1\) has no value"),
    "times in parquet": (
        "parquet",
        [pa.table({"a": pa.array([1] * 4, pa.timestamp("s"))})],
        SchemaError,
        r"is timestamp\[\w*\], which is not a dtype of a feature",
    ),
    "two dtypes": (
        "parquet",
        [pa.table({"a": [1] * 4, "b": [1.0] * 4})],
        SchemaError,
        "'a': 'int64', 'b': 'double'.*of one dtype",
    ),
    "no columns": ("parquet", [pa.table({})], SchemaError, "has columns {}"),
    "two lists": (
        "parquet",
        [pa.table({"a": [[1]] * 4, "b": [[1]] * 4})],
        SchemaError,
        "has 2 columns of lists",
    ),
    "an index": (
        "parquet",
        [pa.table({"a": [1] * 4, "__index_level_0__": [0] * 4})],
        SchemaError,
        "an index of pandas; write it",
    ),
    "null lists": ("parquet", [pa.table({"a": [[1], None, [1], [1]]})], SchemaError, "row 1 .*has no value"),
    "nulls in lists": (
        "parquet",
        [pa.table({"a": [[1], [2], [1], [None]]})],
        SchemaError,
        "row 3 .*no value inside its",
    ),
    "empty lists": (
        "parquet",
        [pa.table({"a": pa.array([[]] * 4, pa.list_(pa.int8()))}).replace_schema_metadata({"shape": "(4, 1)"})],
        SchemaError,
        "has 0 values; wan",
    ),
    "lists in lists": ("parquet", [pa.table({"a": [[[1]]] * 4})], SchemaError, "of unknown length; give shape"),
    "another width": ("parquet", [shaped("(4, 2)")], SchemaError, r"3 values per row; its declared shape is \(2,\)"),
    "another length": (
        "parquet",
        [shaped("(3, 3)")],
        SchemaError,
        r"has 4 rows; its schema metadata declares shape \(3, 3\)",
    ),
    "more than there is": (
        "parquet",
        [huge()],
        SchemaError,
        r"1 values per row; its declared shape is \(1000000000,\)",
    ),
    "code for a shape": (
        "parquet",
        [shaped("__import__('os').abort()")],
        SchemaError,
        "shape in the schema metadata is",
    ),
    "a sum for a shape": ("parquet", [shaped("(2+2, 3)")], SchemaError, r"wanted such as '\(1000, 3\)'"),
    "no shape": ("parquet", [shaped("()")], SchemaError, "wanted such as"),
    "a huge shape": ("parquet", [shaped("(4, " + "9" * 30 + ")")], SchemaError, "wanted such as"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_error_names_the_file_of_a_bad_column(folder, case):
    file_format, contents, error, message = BAD_COLUMNS[case]
    folder.set_feat("numpy", [FEAT])
    suffix = "npy" if file_format == "numpy" else "parquet"
    if case == "objects":
        np.save(folder.root / "n/0.npy", contents[0], allow_pickle=True)
        folder.metadata["node_data"]["paper"]["feat"]["data"] = ["n/0.npy"]
    else:
        folder.set_feat(file_format, contents)
    with pytest.raises(error, match=message) as raised:
        open_chunked(folder.save()).load()
    assert "paper.feat" in str(raised.value) and suffix in str(raised.value)


@pytest.mark.parametrize("file_format", ["numpy", "parquet"])
def test_truncated_column_files_are_refused(folder, file_format):
    folder.set_feat(file_format, [FEAT if file_format == "numpy" else columns_table(FEAT)])
    path = folder.root / folder.metadata["node_data"]["paper"]["feat"]["data"][0]
    content = path.read_bytes()
    for length in range(0, len(content), max(1, len(content) // 40)):
        path.write_bytes(content[:length])
        with pytest.raises(FormatError, match=r"paper.feat: n/0"):
            column_of(folder)


@pytest.mark.parametrize("file_format", ["numpy", "parquet"])
def test_damaged_files_raise_hopstream_errors(folder, rng, file_format):
    folder.set_feat(file_format, [FEAT if file_format == "numpy" else lists_table(FEAT, "list", is_told=True)])
    path = folder.root / folder.metadata["node_data"]["paper"]["feat"]["data"][0]
    content = path.read_bytes()
    for _ in range(50):
        broken = bytearray(content)
        broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        path.write_bytes(bytes(broken))
        try:
            column = column_of(folder)
            column.read(0, column.num_rows)
        except HopstreamError as error:
            assert "n/0." in str(error)


def test_a_column_name_that_is_not_utf8(folder):
    folder.set_feat("parquet", [pa.table({"abcdef": FEAT[:, 0]})])
    path = folder.root / folder.metadata["node_data"]["paper"]["feat"]["data"][0]
    path.write_bytes(path.read_bytes().replace(b"abcdef", b"\xb9bcdef"))
    with pytest.raises(FormatError, match=r"n/0.parquet cannot be read as parquet"):
        column_of(folder)


def test_a_file_that_shrinks_while_it_is_read(folder):
    folder.set_feat("numpy", [FEAT])
    column = column_of(folder)
    path = folder.root / "n/0.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FormatError, match="shorter than when it was opened"):
        column.read(0, 4)
    path.unlink()
    with pytest.raises(FormatError, match=r"n/0.npy cannot be read"):
        column.read(0, 4)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 5)])
def test_rows_outside_a_column_are_refused(folder, start, stop):
    with pytest.raises(IdRangeError, match=f"rows {start}..{stop} of a column of 4 rows"):
        column_of(folder).read(start, stop)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("(4,)", (4,)), ("(4, 3)", (4, 3)), ("[4,3]", (4, 3)), (" ( 4 , 3, 2 ) ", (4, 3, 2)), ("4", None),
        ("(4, -3)", None), ("(4", None), ("(4, 3]", None), ("", None), ("(,)", None), ("(4,,)", None),
    ],
)  # fmt: skip
def test_shapes_are_read_not_run(text, shape):
    assert parquet.parse_shape(text) == shape
