"""Checks that columns survive the disk bit by bit, and that every damaged file is noticed."""

import gc
import io
import pickle
import tokenize
import zipfile
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopstream import arrays
from hopstream.arrays import (
    BROKEN_ARRAY_ERRORS,
    FileRecord,
    RaggedArray,
    check_file,
    column_paths,
    column_schema,
    combine_checksums,
    extend_checksum,
    find_sorted,
    is_within,
    offsets_of,
    open_array,
    read_header,
    write_array,
    write_blocks,
    write_text,
)
from hopstream.errors import ChecksumError, FormatError, IdRangeError, SchemaError
from hopstream.schema import NUMERIC_DTYPES, FeatureSchema
from tests.conftest import mapped_file

dtypes = st.sampled_from(NUMERIC_DTYPES).map(np.dtype)
shared_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No deadline, as a busy machine is no failure."""


def any_array(min_dims=0):
    shapes = hnp.array_shapes(min_dims=min_dims, max_dims=3, min_side=0, max_side=5)
    return dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))


def same_bytes(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@shared_folder
@given(array=any_array())
def test_array_round_trip(tmp_path, array):
    path = tmp_path / "column.npy"
    record = write_array(path, array)
    assert record == FileRecord.from_json(record.to_json())
    assert record.num_bytes == path.stat().st_size
    check_file(path, record)
    assert same_bytes(open_array(path, record), array)
    assert same_bytes(np.load(path, allow_pickle=False), array)
    assert [entry.name for entry in tmp_path.iterdir()] == ["column.npy"]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 8 << 20])
def test_block_size_does_not_change_files(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(arrays, "CHUNK_BYTES", chunk_bytes)
    array = np.arange(60, dtype=np.int32).reshape(5, 4, 3)
    turned = np.asfortranarray(array)
    first = write_array(tmp_path / "a.npy", array)
    assert write_array(tmp_path / "b.npy", turned) == first
    assert write_array(tmp_path / "c.npy", array.astype(">i4")) == first
    assert write_array(tmp_path / "d.npy", np.repeat(array, 2, axis=0)[::2]) == first
    check_file(tmp_path / "a.npy", first)
    assert same_bytes(open_array(tmp_path / "b.npy", first), array)


def test_blocks_must_add_up_to_the_shape(tmp_path):
    blocks = [np.arange(4), np.arange(2)]
    record = write_blocks(tmp_path / "a.npy", np.dtype(np.int64), (3, 2), iter(blocks))
    assert open_array(tmp_path / "a.npy", record).tolist() == [[0, 1], [2, 3], [0, 1]]
    for shape in ((7,), (5,)):
        with pytest.raises(SchemaError, match="the blocks hold 6 items"):
            write_blocks(tmp_path / "b.npy", np.dtype(np.int64), shape, iter(blocks))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.npy"]


def test_a_dataset_file_in_fortran_order_is_refused(tmp_path):
    record = write_array(tmp_path / "a.npy", np.zeros((3, 2)))
    np.save(tmp_path / "a.npy", np.zeros((3, 2), order="F"))
    assert open_array(tmp_path / "a.npy").shape == (3, 2)
    with pytest.raises(FormatError, match="Fortran order"):
        open_array(tmp_path / "a.npy", record)


def test_arrays_are_mapped_read_only(tmp_path):
    write_array(tmp_path / "a.npy", np.arange(10))
    array = open_array(tmp_path / "a.npy")
    assert mapped_file(array) == tmp_path / "a.npy"
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}, 1], dtype=object),
        np.array(["a", "bc"]),
        np.array([b"a"]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.zeros(2, dtype=[("a", "i4")]),
        np.zeros(2, dtype=np.longdouble),
    ],
)
def test_dtypes_that_cannot_be_stored_are_refused(tmp_path, array):
    with pytest.raises(SchemaError, match="cannot be stored"):
        write_array(tmp_path / "a.npy", array)
    with pytest.raises(SchemaError, match="cannot be stored"):
        column_schema(array)
    assert list(tmp_path.iterdir()) == []


def test_pickles_are_never_loaded(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError):
        open_array(path)
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(FormatError):
        open_array(path)
    # an array of no objects holds no pickle, and is refused too
    np.save(path, np.empty(0, dtype=object), allow_pickle=True)
    with pytest.raises(FormatError):
        open_array(path)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    with pytest.raises(FormatError, match="is missing"):
        open_array(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="may be truncated"):
        open_array(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(FormatError):
        open_array(path)
    with pytest.raises(FormatError):
        open_array(tmp_path)


@pytest.mark.parametrize("array", [np.arange(40, dtype=np.float32).reshape(10, 4), np.empty((0, 4), np.int16)])
def test_every_truncation_and_every_extra_byte_is_noticed(tmp_path, array):
    path = tmp_path / "a.npy"
    record = write_array(path, array)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            open_array(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(FormatError, match=r"its header says"):
        open_array(path)
    with pytest.raises(ChecksumError):
        check_file(path, record)


@shared_folder
@given(changes=st.lists(st.tuples(st.integers(0, 207), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_damaged_file_raises_format_error_or_is_an_array(tmp_path, changes):
    path = tmp_path / "a.npy"
    record = write_array(path, np.arange(20, dtype=np.float32))
    damaged = bytearray(path.read_bytes())
    whole = bytes(damaged)
    for position, byte in changes:
        damaged[position] = byte
    path.write_bytes(damaged)
    try:
        array = open_array(path, record)
        assert (array.dtype, array.shape) == (np.float32, (20,))
    except FormatError:
        pass
    if bytes(damaged) != whole:
        with pytest.raises(ChecksumError):
            check_file(path, record)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_a_changed_header_byte_raises_only_known_errors(version):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asfortranarray(np.ones((2, 3), ">f4")), version=version)
    whole, errors = file.getvalue(), set()
    for place in range(whole.index(b"\n")):
        for byte in (*b" 'bu\"\\,:({[]})-019L\0", 0x80, 0xFF):
            try:
                read_header(io.BytesIO(whole[:place] + bytes([byte]) + whole[place + 1 :]))
            except BROKEN_ARRAY_ERRORS as error:
                errors.add(type(error))
    assert errors == {ValueError, TypeError, SyntaxError, tokenize.TokenError}


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "a.npy"
    record = write_array(path, np.arange(8, dtype=np.uint8))
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ChecksumError, match=r"has crc32c [0-9a-f]{8}; the manifest says [0-9a-f]{8}"):
            check_file(path, record)
    path.unlink()
    with pytest.raises(FormatError, match="is missing"):
        check_file(path, record)


def test_an_array_that_contradicts_the_manifest_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    write_array(path, np.arange(6, dtype=np.int64))
    other = write_array(tmp_path / "b.npy", np.arange(6, dtype=np.float64))
    with pytest.raises(FormatError, match=r"is int64\[6\] in \d+ bytes; the manifest says float64\[6\]"):
        open_array(path, other)
    np.save(path, np.arange(6, dtype=">f8"))
    with pytest.raises(FormatError, match=r"is >f8\[6\]"):
        open_array(path, other)


class BrokenDisk(io.RawIOBase):
    """Fails after some bytes, like a full disk."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, block):
        self.room -= len(block)
        if self.room < 0:
            raise OSError(28, "no space left on device")
        return self.file.write(block)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.npy"
    record = write_array(path, np.arange(4))
    real = arrays._ChecksumWriter

    def on_a_full_disk(file):
        return real(BrokenDisk(file, 200))

    monkeypatch.setattr(arrays, "_ChecksumWriter", on_a_full_disk)
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 64)
    for name in ("a.npy", "new.npy"):
        with pytest.raises(OSError, match="no space left"):
            write_array(tmp_path / name, np.arange(100))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.npy"]
    check_file(path, record)


def test_files_are_written_in_whole_large_pages(tmp_path, monkeypatch):
    sizes = []
    real = arrays._ChecksumWriter

    class Disk(BrokenDisk):
        def write(self, block):
            sizes.append(len(block))
            return super().write(block)

        def tell(self):
            return self.file.tell()

    monkeypatch.setattr(arrays, "_ChecksumWriter", lambda file: real(Disk(file, 1 << 20)))
    monkeypatch.setattr(arrays, "LARGE_PAGE_BYTES", 256)
    values = np.arange(2000)
    blocks = [values[:1], values[1:32], values[32:33], values[33:1000], values[1000:]]
    check_file(tmp_path / "a.npy", write_blocks(tmp_path / "a.npy", values.dtype, values.shape, blocks))
    assert np.array_equal(np.load(tmp_path / "a.npy"), values)
    assert sum(sizes[:-1]) > 15_000 and all(size % 256 == 0 for size in sizes[:-1]) and sizes[-1] < 256


@pytest.mark.parametrize("num_values", [16, 17])
@pytest.mark.parametrize("dtype", ["int64", ">i8", "int32"])
@pytest.mark.parametrize("first", [0, 3])
def test_ids_are_checked_against_both_bounds(num_values, dtype, first):
    good = np.full(num_values, 5, dtype)
    assert is_within(good, first, 6)
    for wrong in (6, first - 1, np.iinfo(dtype).min, np.iinfo(dtype).max):
        good[7] = wrong
        assert not is_within(good, first, 6)
    assert is_within(np.array([first, 5] * num_values, dtype)[::2], first, first + 1)


def test_text_is_written_atomically(tmp_path):
    path = tmp_path / "deep" / "note.json"
    write_text(path, "größe\n")
    assert path.read_text(encoding="utf-8") == "größe\n"
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "größe\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["note.json"]


@pytest.mark.parametrize(
    "value", [None, 3, [], {}, {"dtype": "int8", "shape": [1], "bytes": 3, "crc32c": "xyz"}, {"dtype": "int8"}]
)
def test_file_record_refuses(value):
    with pytest.raises(FormatError, match="not a file record"):
        FileRecord.from_json(value)


@patient
@given(st.lists(st.text(max_size=8), max_size=12))
def test_strings_round_trip(strings):
    column = RaggedArray.from_strings(strings)
    column.check("column")
    assert list(column) == column.tolist() == strings
    assert column_schema(column) == FeatureSchema(dtype="string")


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        (["a", None], "row 1 of a string column is NoneType None, not str"),
        (["a", 3.5], "row 1 of a string column is float"),
        ([b"a"], "row 0 of a string column is bytes"),
        (["\ud800"], "which UTF-8 cannot hold"),
    ],
)
def test_values_that_are_no_strings_are_refused(strings, message):
    with pytest.raises(SchemaError, match=message):
        RaggedArray.from_strings(strings)


@st.composite
def ragged(draw):
    dtype, tail = draw(dtypes), draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    return [draw(hnp.arrays(dtype, (length, *tail))) for length in lengths]


@patient
@given(ragged(), st.data())
def test_ragged_rows_and_take(rows, data):
    column = RaggedArray.from_rows(rows)
    column.check("column")
    schema = column_schema(column)
    assert (schema.is_ragged, schema.dtype, schema.shape) == (True, rows[0].dtype.name, rows[0].shape[1:])
    assert all(same_bytes(got, wanted) for got, wanted in zip(column, rows, strict=True))
    assert str(column.tolist()) == str([row.tolist() for row in rows])  # as text, where NaN is NaN
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    taken = column.take(np.array(picked, dtype=np.int64))
    taken.check("taken")
    assert all(same_bytes(got, rows[row]) for got, row in zip(taken, picked, strict=True))


@shared_folder
@given(rows=ragged())
def test_ragged_round_trip_on_disk(tmp_path, rows):
    column = RaggedArray.from_rows(rows)
    values, offsets = column_paths(tmp_path / "tag", column_schema(column))
    assert (values.name, offsets.name) == ("tag.values.npy", "tag.offsets.npy")
    records = write_array(values, column.values), write_array(offsets, column.offsets)
    again = RaggedArray(open_array(values, records[0]), open_array(offsets, records[1]))
    again.check("again")
    assert all(same_bytes(np.asarray(got), row) for got, row in zip(again, rows, strict=True))


def test_ragged_rows_refuse_mixtures_and_places_outside():
    with pytest.raises(SchemaError, match=r"row 1 of a ragged column is float64\[1\]; row 0 is int64\[2\]"):
        RaggedArray.from_rows([np.array([1, 2]), np.array([0.5])])
    with pytest.raises(SchemaError, match="only the first dimension may differ"):
        RaggedArray.from_rows([np.zeros((1, 2)), np.zeros((1, 3))])
    with pytest.raises(SchemaError):
        RaggedArray.from_rows([np.float32(1), np.float32(2)])
    column = RaggedArray.from_rows([np.arange(2), np.arange(3)])
    for row in (-1, 2):
        with pytest.raises(IdRangeError):
            column[row]
        with pytest.raises(IdRangeError):
            column.take(np.array([0, row]))
    assert len(RaggedArray.from_rows([])) == 0
    assert len(column.take(np.empty(0, np.int64))) == 0


@pytest.mark.parametrize(
    ("values", "offsets", "is_string"),
    [
        (np.arange(3), np.array([0, 3], np.int32), False),
        (np.arange(3), np.array([[0, 3]]), False),
        (np.arange(3), np.empty(0, np.int64), False),
        (np.arange(3), np.array([1, 3]), False),
        (np.arange(3), np.array([0, 2]), False),
        (np.arange(3), np.array([0, 2, 1, 3]), False),
        (np.arange(3), np.array([0, 3]), True),
        (np.zeros((3, 1), np.uint8), np.array([0, 3]), True),
    ],
)
def test_ragged_check_refuses(values, offsets, is_string):
    with pytest.raises(SchemaError, match="here: "):
        RaggedArray(values, offsets, is_string).check("here")


def test_column_schema_needs_rows_and_native_bytes():
    with pytest.raises(SchemaError, match="row dimension"):
        column_schema(np.float32(1.0) * np.ones(()))
    with pytest.raises(SchemaError, match="byte order"):
        column_schema(np.arange(3, dtype=">i4"))
    assert column_paths(arrays.Path("a.b"), FeatureSchema(dtype="int8"))[0].name == "a.b.npy"


def test_offsets_are_running_sums_from_zero():
    assert offsets_of(np.array([2, 0, 3], np.int32)).tolist() == [0, 2, 2, 5]
    assert offsets_of(np.empty(0, np.int64)).tolist() == [0]


def test_a_map_holds_no_file_descriptor_and_ends_with_its_last_view(tmp_path):
    record = write_array(tmp_path / "a.npy", np.arange(1000))
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    arrays = [open_array(tmp_path / "a.npy", record) for _ in range(50)]
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open
    view = arrays[0][10:20].reshape(2, 5)
    arrays.clear()
    gc.collect()
    assert view.tolist() == np.arange(10, 20).reshape(2, 5).tolist()
    assert Path("/proc/self/maps").read_text().count(str(tmp_path / "a.npy")) == 1
    del view
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def crc32c_of(values: np.ndarray) -> int:
    """The CRC-32C of an array's bytes in one go."""
    return google_crc32c.value(values.tobytes())


@given(parts=st.lists(st.binary(max_size=70), max_size=6))
@patient
def test_checksums_of_parts_combine(parts: list[bytes]):
    combined = extended = 0
    for part in parts:
        values = np.frombuffer(part, np.uint8)
        combined = combine_checksums(combined, crc32c_of(values), len(part))
        extended = extend_checksum(extended, values)
    assert combined == extended == crc32c_of(np.frombuffer(b"".join(parts), np.uint8))


def test_checksums_of_long_ranges_combine(rng):
    values = rng.integers(0, 1 << 40, 700_001)
    for cut in (0, 1, 131_072, 350_003, len(values)):
        first, second = crc32c_of(values[:cut]), extend_checksum(0, values[cut:])
        assert combine_checksums(first, second, values[cut:].nbytes) == crc32c_of(values)
    table = rng.random((50, 7)).T  # rows are not contiguous
    assert extend_checksum(0, table) == crc32c_of(np.ascontiguousarray(table))


@pytest.mark.parametrize("dtype", ["<i8", ">f4", "|u1", "|b1", "<U3", "<M8[s]", "|V4"])
@pytest.mark.parametrize("is_fortran", [False, True])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (3, 0, 5), (10**12, 2)])
def test_headers_are_read_as_numpy_reads_them(dtype, is_fortran, shape):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": is_fortran, "shape": shape})
    file = io.BytesIO(header.getvalue() + b"values")
    assert read_header(file) == (shape, is_fortran, np.dtype(dtype))
    assert file.read() == b"values"


@pytest.mark.parametrize(
    ("written", "damaged"), [(b"'<i8'", b"',i8'"), (b"'<i8'", b"'<i9'"), (b"(3,)", b"(3) "), (b"{", b"("), (b"}", b" ")]
)
def test_a_damaged_header_raises_a_hopstream_error(tmp_path, written, damaged):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(3))
    path.write_bytes(path.read_bytes().replace(written, damaged, 1))
    with pytest.raises(FormatError, match=r"x\.npy cannot be read as \.npy"):
        open_array(path)


@pytest.mark.parametrize("ascending", [[], [5], [-3, 0, 4, 9, 2**62]])
@pytest.mark.parametrize("values", [[], [5, 5, -3, 2**62, 2**63 - 1, -(2**63), 4, 1]])
def test_values_are_found_among_ascending_ones(ascending: list[int], values: list[int]):
    found = find_sorted(np.array(ascending, np.int64), np.array(values, np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == [ascending.index(value) if value in ascending else -1 for value in values]


def test_ragged_columns_are_sliced_by_rows():
    column = RaggedArray.from_strings(["a", "bc", "", "def"])
    assert column[1:].tolist() == ["bc", "", "def"]
    assert column[::-2].tolist() == ["def", "bc"]
    assert column[3:1].tolist() == column[4:].tolist() == column[9:].tolist() == []
    assert column[-3:-1].tolist() == ["bc", ""]
    assert repr(column) == "RaggedArray(4 rows of strings)"
