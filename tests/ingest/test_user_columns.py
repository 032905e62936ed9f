"""Checks that users' arrays, tensors and lists become columns, and that all else is refused."""

import sys

import numpy as np
import pyarrow as pa
import pytest
import torch

from hopstream.arrays import RaggedArray, column_schema
from hopstream.errors import SchemaError
from hopstream.ingest.user_columns import as_column, as_keys

HUGE = 2**63


def test_arrays_are_not_copied():
    array = np.ones((3, 2), np.float32)
    assert as_column(array, "x") is array
    tensor = torch.ones(3, 2, requires_grad=True)
    column = as_column(tensor, "x")
    assert column.ctypes.data == tensor.data_ptr()
    ragged = RaggedArray.from_rows([np.arange(2), np.arange(1)])
    assert as_column(ragged, "x").values is ragged.values


def test_memory_maps_stay_memory_maps(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4))
    assert isinstance(as_column(np.load(tmp_path / "a.npy", mmap_mode="r"), "x"), np.memmap)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ([1, 2, 3], "int64[rows]"),
        ((1.5, 2), "float64[rows]"),
        ([True, False], "bool[rows]"),
        ([[1, 2], [3, 4]], "int64[rows, 2]"),
        ([torch.ones(2), torch.zeros(2)], "float32[rows, 2]"),
        ([np.ones(2, np.int8), np.ones(3, np.int8)], "int8[rows, ragged]"),
        ([torch.ones(2, 4), torch.ones(0, 4)], "float32[rows, ragged, 4]"),
        ([[1], [], [2, 3]], "int64[rows, ragged]"),
        ([[], [0.5], [1, 2]], "float64[rows, ragged]"),
        (["a", ""], "string"),
        (np.array(["a", "bc"]), "string"),
        (np.array(["a", "bc"], dtype=object), "string"),
        (np.array([np.ones(2), np.ones(1)], dtype=object), "float64[rows, ragged]"),
        (np.arange(3, dtype=">i2"), "int16[rows]"),
        (np.empty((0, 3), np.uint8), "uint8[rows, 3]"),
    ],
)
def test_values_are_converted_to_columns(value, wanted):
    column = as_column(value, "x")
    assert len(column) == len(value)
    assert str(column_schema(column)) == wanted


def test_ragged_rows_keep_their_values():
    column = as_column([[1], [], [2, 3]], "x")
    assert [row.tolist() for row in column] == [[1], [], [2, 3]]


def test_objects_with_the_array_method_are_arrays():
    class Series:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3, dtype=dtype)

    assert as_column(Series(), "x").tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.float32(1) * np.ones(()), "x is a scalar"),
        (3, "x is int; give an array"),
        ("text", "x is str; give an array"),
        ({"a": 1}, "x is dict"),
        ([], "x is an empty list, which has no dtype"),
        (["a", None], "x: row 1 of a string column is NoneType"),
        ([1, None], "row 1 is NoneType None, not a number"),
        ([1, [2]], "x is a list that is not an array"),
        ([[1], [[2]]], "x is a list that is not an array"),
        ([[1], [[2], [3]]], "only the first dimension may differ"),
        ([["a"], ["b", "c"]], "is str 'a', not a number"),
        ([HUGE * 4], "not a number"),
        ([np.ones(2), np.ones(1, np.int8)], "row 1 of a ragged column is int8"),
        (np.array([["a"]]), r"x is <U1\[1, 1\]; a column holds one string per row"),
        (np.array([b"a"]), "cannot be stored"),
        (np.array([3], dtype="timedelta64[s]"), r"convert spans of time with astype\('int64'\)"),
        (np.array(["2020", "NaT"], dtype="datetime64[s]"), r"x\[1\] is NaT; give every row a time"),
        (np.array(["2020", "NaT"], dtype="datetime64"), r"x\[1\] is NaT"),
        (np.array([1]).astype("datetime64"), "x is datetime64, which has no unit"),
        (pa.array([1, None], pa.timestamp("ms")), r"x\[1\] is NaT"),
        (np.array([object()]), "not a number"),
        (torch.ones(2, dtype=torch.bfloat16), "tensor that numpy cannot hold"),
        (torch.eye(2).to_sparse(), "tensor that numpy cannot hold"),
    ],
)
def test_invalid_columns_are_refused(value, message):
    with pytest.raises(SchemaError, match=message):
        as_column(value, "x")


@pytest.mark.parametrize(
    "value",
    [
        np.array([0, 5, 2], "datetime64[s]"),
        np.array([0, 5, 2], ">M8[s]"),
        np.array([0, 9, 5, 9, 2, 9], "datetime64[s]")[::2],
        [np.datetime64(seconds, "s") for seconds in (0, 5, 2)],
        pa.array([0, 5, 2], pa.timestamp("s", tz="UTC")),
        pa.chunked_array([pa.array([0, 5], pa.timestamp("s")), pa.array([2], pa.timestamp("s"))]),
        pa.array([0, 5, 2], pa.date32()),
    ],
)
def test_times_become_integers_in_their_unit(value):
    column = as_column(value, "x")
    assert column.dtype == np.int64
    assert column.tolist() == [0, 5, 2]


def test_times_are_not_copied():
    times = np.array([0, 5, 2], "datetime64[ns]")
    assert np.shares_memory(as_column(times, "x"), times)


@pytest.mark.parametrize(
    "value", [[2, 0, 1], np.array([2, 0, 1], np.uint8), torch.tensor([2, 0, 1], dtype=torch.int32), (2, 0, 1)]
)
def test_keys_are_contiguous_int64(value):
    keys = as_keys(value, "k")
    assert keys.dtype == np.int64
    assert keys.flags.c_contiguous
    assert keys.tolist() == [2, 0, 1]


def test_no_keys_have_no_dtype():
    assert as_keys([], "k").dtype == np.int64
    assert as_keys(np.empty(0), "k").dtype == np.int64


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([0.0, 1.0]), r"k is float64\[2\]; keys are integers"),
        (np.array([np.nan]), r"k is float64\[1\]; keys are integers"),
        (np.array([True]), r"k is bool\[1\], a mask; give keys, such as np\.flatnonzero\(mask\)"),
        (np.array([[1]]), r"k is int64\[1, 1\]; keys are integers of rank 1"),
        (np.array([0, HUGE], np.uint64), rf"k\[1\] is {HUGE}; keys are below 2\*\*63"),
        (["a"], "not a number"),
        (RaggedArray.from_strings(["a"]), "k is ragged"),
    ],
)
def test_values_that_are_no_keys_are_refused(value, message):
    with pytest.raises(SchemaError, match=message):
        as_keys(value, "k")


def test_the_module_does_not_import_torch():
    assert "torch" not in vars(sys.modules["hopstream.ingest.user_columns"])
