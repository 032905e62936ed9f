"""Are footers read as Arrow reads them, and does a damaged one never end the process?"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.errors import FormatError
from hopstream.ingest.chunked.footer import TAIL_BYTES, read_group_sizes
from hopstream.ingest.chunked.parquet import open_parquet_column

READ = """
import json, sys
from pathlib import Path
from hopstream.errors import FormatError, SchemaError
from hopstream.ingest.chunked.parquet import open_parquet_column

path = Path(sys.argv[1])
content = path.read_bytes()
changed = path.with_name("changed.parquet")
ends = {}
for at, value in json.load(sys.stdin):
    changed.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
    try:
        column = open_parquet_column(changed, "n/0.parquet")
        end = "read"
        if not column.is_ragged:
            list(column.file.batches(0, column.num_rows, 3))
    except (FormatError, SchemaError) as error:
        assert "n/0.parquet" in str(error)
        end = type(error).__name__
    ends[end] = ends.get(end, 0) + 1
print(json.dumps(ends))
"""
COLUMNS = {
    "numbers": pa.array(np.arange(9, dtype=np.float32)),
    "lists": pa.array([[1, 2, 3]] * 7 + [[]] * 2, pa.list_(pa.int16())),
    "deep": pa.array([[[1, 2], [3, 4]]] * 9, pa.list_(pa.list_(pa.int64(), 2))),
    "strings": pa.array(["", "a", "ünd"] * 3),
}


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"write_statistics": False}], ids=str)
@pytest.mark.parametrize("name", COLUMNS)
def test_sizes_are_those_that_arrow_reads(tmp_path, name, options):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": COLUMNS[name], "b": COLUMNS["strings"]}), path, row_group_size=4, **options)
    footer = pq.read_metadata(path)
    records = [footer.row_group(group).column(0) for group in range(footer.num_row_groups)]
    sizes = read_group_sizes(path, "a", 3)
    assert sizes.num_values.tolist() == [record.num_values for record in records]
    assert sizes.num_bytes.tolist() == [record.total_uncompressed_size for record in records]
    assert sizes.has_dictionary.tolist() == [record.has_dictionary_page for record in records]
    nulls = [record.statistics.null_count if record.is_stats_set else 0 for record in records]
    assert sizes.num_nulls.tolist() == nulls


def test_no_row_groups(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
    assert read_group_sizes(path, "a", 1).num_values.tolist() == [0]
    pq.ParquetWriter(path, pa.schema({"a": pa.int64()})).close()
    assert len(read_group_sizes(path, "a", 0).num_values) == 0


@pytest.mark.parametrize(
    ("footer", "message"),
    [
        (b"", "cannot be read"),
        (b"\x49\xfc\xff\xff\xff\xff\xff\xff\xff\xff\x01", "cannot be read"),  # a list of 2^63 row groups
        (b"\x1c" * 200, "too many structs"),
        (b"\x16" + b"\xff" * 11, "more than 64 bits"),
        (b"\x1b\x00", "kind 11"),
        (b"\x46\x02\x00", "kind 6 where 9 is wanted"),
        (b"\x49\x0c\x00", "contradict each other"),
    ],
)
def test_what_no_footer_is(tmp_path, footer, message):
    path = tmp_path / "a.parquet"
    path.write_bytes(footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(FormatError, match=f"n/0 has a footer.*{message}"):
        read_group_sizes(path, "n/0", 1)
    path.write_bytes((99).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(FormatError, match="99 bytes, and 0 in the file"):
        read_group_sizes(path, "n/0", 1)


@pytest.mark.parametrize("name", ["lists", "strings"])
def test_no_byte_of_a_footer_ends_the_process(tmp_path, name):
    check_changes(tmp_path, name, step=61)


@pytest.mark.slow
@pytest.mark.parametrize("name", COLUMNS)
def test_no_byte_of_any_footer_ends_the_process(tmp_path, name):
    check_changes(tmp_path, name, step=31)


@pytest.mark.soak
@pytest.mark.parametrize("name", COLUMNS)
def test_no_value_of_any_byte_of_a_footer_ends_the_process(tmp_path, name):
    check_changes(tmp_path, name, step=1)


def check_changes(folder, name, step):
    """Read a file once for each changed byte of its footer, in a process of its own."""
    path = folder / "a.parquet"
    # Without Arrow's own schema, which is long, but where lists in lists need it.
    pq.write_table(pa.table({"a": COLUMNS[name]}), path, store_schema=name == "deep")
    content = path.read_bytes()
    end = len(content) - TAIL_BYTES
    start = end - int.from_bytes(content[end : end + 4], "little")
    changes = [[at, value] for at in range(start, len(content)) for value in range(256)][::step]
    words = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(words, input=str(changes), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert '"FormatError"' in done.stdout and '"read"' in done.stdout


def test_the_footer_of_plain_columns_is_not_read_again(tmp_path):
    """It may be long: a record for each column and row group."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": COLUMNS["numbers"], "b": COLUMNS["numbers"]}), path)
    assert "sizes" not in vars(open_parquet_column(path, "a").file)
    pq.write_table(pa.table({"a": COLUMNS["lists"]}), path)
    assert "sizes" in vars(open_parquet_column(path, "a").file)
