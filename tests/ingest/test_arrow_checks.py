"""Checks that damage that Arrow accepts is an error: short pages, codes outside the dictionary."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.errors import FormatError
from hopstream.ingest.arrow_checks import ValueCounts, check_codes
from hopstream.ingest.chunked.parquet import open_parquet
from hopstream.ingest.example_tables import ExampleTables
from hopstream.ingest.raw_tables.files import FilePart, TableFiles, read_part

HEADER_BYTES = 40
WORDS = ["a", "b", "c"] * 20
LISTS = {
    "list": pa.array([[row] * 30 for row in range(40)], pa.list_(pa.int64())),
    "large": pa.array([[row] * 30 for row in range(40)], pa.large_list(pa.int64())),
    "single": pa.array(range(1200), pa.int64()),
}


def read_examples(path):
    tables = ExampleTables([path], None)
    return tables.read(np.arange(len(tables)))["x"].values.tolist()


def read_table(path):
    files = TableFiles(root=path.parent, paths=(path,), format="parquet")
    columns = [batch.columns["x"] for batch in read_part(files, FilePart(file=0), ["x"])]
    return [
        value for column in columns for value in (column.flatten() if column.type.num_fields else column).to_pylist()
    ]


@pytest.mark.parametrize(("kind", "read"), [("list", read_examples), ("large", read_table), ("single", read_table)])
def test_no_bit_of_a_page_header_shortens_a_column(tmp_path, kind, read):
    column = LISTS[kind]
    path, table = tmp_path / "hurt", pa.table({"x": column})
    pq.write_table(table, path, use_dictionary=False, write_page_checksum=True)
    whole, values = path.read_bytes(), (column.flatten() if kind != "single" else column).to_pylist()
    assert read(path) == values
    told = []
    for place in range(4, 4 + HEADER_BYTES):
        for bit in range(place % 2, 8, 2):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            try:
                assert read(path) == values
            except FormatError as error:
                told.append(str(error))
    counted = [
        words
        for words in told
        if "values in column 'x', but its footer says 1200; the file is damaged: copy it again" in words
    ]
    assert len(told) > 50
    assert counted


def test_counts_of_values_equal_those_of_the_file(tmp_path):
    rows = 50
    squares = pa.array([[row] * 4 for row in range(rows)], pa.list_(pa.int64(), 4))
    table = pa.table(
        {
            "single": pa.array([row if row % 3 else None for row in range(rows)]),
            "lists": pa.array([[row, None] * (row % 3) if row % 5 else None for row in range(rows)]),
            "fixed": pa.array([[row, None] for row in range(rows)], pa.list_(pa.int64(), 2)),
            "deep": pa.array([[[1] * (row % 4), None] * (row % 3) if row % 7 else None for row in range(rows)]),
            "texts": pa.array([[f"t{row % 4}"] * (row % 3) for row in range(rows)]),
            "structs": pa.array([{"a": 1, "b": [1, 2]}] * rows),
            "of structs": pa.array([[{"a": 1}]] * rows),
            "maps": pa.array([[("a", 1), ("b", 2)]] * rows, pa.map_(pa.string(), pa.int64())),
            "tensors": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), (2, 2)), squares),
            "last": pa.array([[row] * 3 for row in range(rows)]),
        }
    )
    pq.write_table(table, tmp_path / "whole", row_group_size=20)
    with pq.ParquetFile(tmp_path / "whole") as file:
        counts = ValueCounts(file.metadata, file.schema_arrow, table.schema.names)
        for group in (0, 2):
            counts.add(file.read_row_group(group))
        counts.check("whole", [0, 2])
        for name in set(table.schema.names) - {"structs", "of structs", "maps"}:
            less = ValueCounts(file.metadata, file.schema_arrow, [name])
            less.add(file.read_row_group(0).select([name]).slice(1))
            with pytest.raises(FormatError, match=rf"whole has \d+ values in column '{name}', but its footer says \d+"):
                less.check("whole", [0])


def read_chunk(path):
    file = open_parquet(path, path.name)
    return [column for _, (column,) in file.batches(0, file.num_rows, 20, as_dictionaries=True)]


def read_dictionary(path):
    files = TableFiles(root=path.parent, paths=(path,), format="parquet")
    return [batch.columns["x"] for batch in read_part(files, FilePart(file=0), ["x"])]


@pytest.mark.parametrize("read", [read_chunk, read_dictionary])
def test_flipped_bits_never_index_outside_a_dictionary(tmp_path, read):
    path = tmp_path / "hurt"
    pq.write_table(pa.table({"x": pa.array(WORDS).dictionary_encode()}), path, compression="none")
    whole = path.read_bytes()
    assert [word for column in read(path) for word in column.to_pylist()] == WORDS
    told = []
    for place in range(4, len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")):  # up to the footer
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            try:
                columns = read(path)
            except FormatError as error:
                told.append(str(error))
                continue
            for column in columns:
                codes = column.indices.drop_null().to_numpy()
                assert not len(codes) or 0 <= codes.min() <= codes.max() < len(column.dictionary)
    assert any("column 'x' has codes 0 to 3 for a dictionary of 3 values" in words for words in told)


def test_codes_of_every_chunk_are_looked_at():
    words = pa.array(["a", "b"])
    good = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int8()), words)
    none = pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), words[:0])
    check_codes(pa.table({"x": pa.chunked_array([good, none, good[:0]]), "y": [1, 2, 3, 4]}))
    for code, shown in ((2, "0 to 2"), (-1, "-1 to 0")):
        bad = pa.DictionaryArray.from_arrays(pa.array([0, code], pa.int8()), words, safe=False)
        with pytest.raises(pa.ArrowInvalid, match=f"column 'x' has codes {shown} for a dictionary of 2 values"):
            check_codes(pa.table({"x": pa.chunked_array([good, bad])}))
