"""Checks that examples in Parquet files give the same lists as messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.errors import FormatError, IdRangeError
from hopstream.ingest.example_tables import ExampleTables, is_parquet
from hopstream.tfgnn.example import decode_examples, encode_examples


def write(path, first, count, list_type=pa.list_):
    rows = range(first, first + count)
    table = pa.table(
        {
            "ints": pa.array([[row] * (row % 4) for row in rows], list_type(pa.int64())),
            "small": pa.array([[row % 7] for row in rows], list_type(pa.uint8())),
            "floats": pa.array([[row / 2, -1.0] for row in rows], list_type(pa.float64())),
            "texts": pa.array([[f"t{row}"] * (row % 3) for row in rows], list_type(pa.string())),
            "blobs": pa.array([[b"\xff", b""] if row % 2 else None for row in rows], list_type(pa.binary())),
            "single": pa.array([row if row % 5 else None for row in rows], pa.int32()),
            "fixed": pa.array([[row, row + 1] for row in rows], pa.list_(pa.int64(), 2)),
            "flags": pa.array([[True, False]] * count, list_type(pa.bool_())),
            "wide": pa.array([[2**64 - 1]] * count, list_type(pa.uint64())),
        }
    )
    pq.write_table(table, path, row_group_size=4)
    return path


@pytest.fixture(params=[pa.list_, pa.large_list], ids=["list", "large_list"])
def paths(request, tmp_path):
    return [write(tmp_path / "a", 0, 10, request.param), write(tmp_path / "b", 10, 7, request.param)]


@pytest.mark.parametrize("window", [1, 100])
def test_rows_in_any_order(paths, rng, window):
    tables = ExampleTables(paths, None, window=window)
    assert tables.sizes == (10, 7) and tables.place(12) == (paths[1], 2)
    for numbers in (np.arange(17), rng.integers(0, 17, 40)):
        lists = tables.read(numbers)
        for row, number in enumerate(numbers.tolist()):
            of_row = {
                name: of.values.tolist()[of.offsets[row] : of.offsets[row + 1]]
                for name, of in lists.items()
                if name not in ("blobs",)
            }
            assert of_row == {
                "ints": [number] * (number % 4), "small": [number % 7], "floats": [number / 2, -1.0],
                "texts": [f"t{number}"] * (number % 3), "single": [number] * bool(number % 5),
                "fixed": [number, number + 1], "flags": [1, 0], "wide": [-1],
            }  # fmt: skip
        again = decode_examples([encode_examples(lists, len(numbers))[i] for i in range(len(numbers))])
        blobs = again["blobs"]
        assert np.diff(blobs.offsets).tolist() == [2 * (n % 2) for n in numbers.tolist()]
        assert blobs.values.values.tobytes() == b"\xff" * int(sum(numbers % 2))


def test_columns_are_chosen_and_unknown_rows_are_refused(paths):
    tables = ExampleTables(paths, ["ints", "none"])
    assert list(tables.read(np.arange(3))) == ["ints"]
    with pytest.raises(IdRangeError, match=r"rows 17\.\.17 of files that have 17"):
        tables.read(np.array([17]))
    assert tables.read(np.empty(0, np.int64)) == {}


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("PAR1 no")
    assert is_parquet(tmp_path / "text")
    with pytest.raises(FormatError, match="text cannot be read as Parquet; it may be damaged"):
        ExampleTables([tmp_path / "text"], None)
    pq.write_table(pa.table({"x": pa.array([[[1]]])}), tmp_path / "deep")
    with pytest.raises(FormatError, match=r"column 'x' holds list<.*>; wanted numbers or strings"):
        ExampleTables([tmp_path / "deep"], None).read(np.array([0]))
    pq.write_table(pa.table({"x": pa.array([[1, None]])}), tmp_path / "null")
    with pytest.raises(FormatError, match="column 'x' has a null inside a list"):
        ExampleTables([tmp_path / "null"], None).read(np.array([0]))


def test_damage_is_reported_in_one_line_with_the_file(tmp_path, rng):
    values = rng.integers(0, 2**40, (50, 30))
    table = pa.table({"x": pa.array(values.tolist(), pa.large_list(pa.int64()))})
    pq.write_table(table, tmp_path / "whole", row_group_size=20, use_dictionary=False, write_page_checksum=True)
    whole = (tmp_path / "whole").read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    path, num_refused, num_same = tmp_path / "hurt", 0, 0
    for trial in range(300):
        hurt = bytearray(whole)
        if trial % 3 == 2:
            hurt = hurt[: rng.integers(4, len(whole))]
        else:
            hurt[rng.integers(footer, len(whole)) if trial % 3 else rng.integers(4, footer)] ^= 1 << rng.integers(8)
        path.write_bytes(hurt)
        try:
            tables = ExampleTables([path], None)
            lists = tables.read(np.arange(len(tables)))
        except FormatError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            num_refused += 1
        else:  # in the footer, which has no checksum, or in unread bytes
            is_same = "x" in lists and np.array_equal(lists["x"].values, values.reshape(-1))
            assert is_same or trial % 3 == 1
            num_same += is_same
    assert num_refused > 150 and num_same < 150


def test_a_missing_file_is_not_reported_as_damage(tmp_path):
    with pytest.raises(FileNotFoundError):
        ExampleTables([tmp_path / "none"], None)
