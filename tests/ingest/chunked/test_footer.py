"""Checks that footers are read as Arrow reads them, and that no damaged one ends the process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.ingest.chunked.parquet import open_parquet

READ = """
import json, sys
from pathlib import Path
import numpy as np
from hopstream.errors import FormatError, SchemaError
from hopstream.ingest.chunked.parquet import open_parquet_column
from hopstream.ingest.chunked.parquet_ragged import ParquetRagged

path = Path(sys.argv[1])
content = path.read_bytes()
changed = path.with_name("changed.parquet")
ends = {}
for at, value in json.load(sys.stdin):
    changed.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
    try:
        column = open_parquet_column(changed, "n/0.parquet")
        end = "read"
        if column.is_ragged:
            list(ParquetRagged(["n/0.parquet"], [column], np.array([0, column.num_rows])).pieces(0, column.num_rows))
        else:
            list(column.file.batches(0, column.num_rows, 3))
    except (FormatError, SchemaError) as error:
        assert "n/0.parquet" in str(error)
        end = type(error).__name__
    ends[end] = ends.get(end, 0) + 1
print(json.dumps(ends))
"""
TAIL_BYTES = 8
"""Length of the footer as uint32, and four letters."""
COLUMNS = {
    "numbers": pa.array(np.arange(9, dtype=np.float32)),
    "lists": pa.array([[1, 2, 3]] * 7 + [[]] * 2, pa.list_(pa.int16())),
    "deep": pa.array([[[1, 2], [3, 4]]] * 9, pa.list_(pa.list_(pa.int64(), 2))),
    "strings": pa.array(["", "a", "ünd"] * 3),
    "halves": pa.array([[1, 2]] * 7 + [[]] * 2, pa.list_(pa.float16())),
}


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}], ids=str)
@pytest.mark.parametrize("name", ["lists", "deep"])
def test_sizes_are_those_that_arrow_reads(tmp_path, name, options):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": COLUMNS[name]}), path, row_group_size=4, **options)
    footer = pq.read_metadata(path)
    records = [footer.row_group(group).column(0) for group in range(footer.num_row_groups)]
    num_values, num_nulls = open_parquet(path, "a").list_sizes
    assert num_values.tolist() == [record.num_values for record in records]
    assert num_nulls.tolist() == [record.statistics.null_count if record.is_stats_set else 0 for record in records]


@pytest.mark.parametrize("num_groups", [0, 1])
def test_a_footer_without_rows_has_empty_groups(tmp_path, num_groups):
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, pa.schema({"a": pa.list_(pa.int64())})) as file:
        for _ in range(num_groups):
            file.write_table(pa.table({"a": pa.array([], pa.list_(pa.int64()))}))
    assert [sizes.tolist() for sizes in open_parquet(path, "a").list_sizes] == [[0] * num_groups] * 2


def test_no_byte_of_a_footer_ends_the_process(tmp_path):
    check_changes(tmp_path, "lists", step=61)


ENDED_BY_ARROW = pytest.mark.xfail(
    strict=True, reason="Arrow 25 ends the process on 3 damaged bytes of a footer: Unexpected end of stream"
)


@pytest.mark.soak
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=ENDED_BY_ARROW if name == "halves" else ()) for name in COLUMNS]
)
def test_no_value_of_any_byte_of_a_footer_ends_the_process(tmp_path, name):
    check_changes(tmp_path, name, step=1)


def check_changes(folder, name, step):
    """Read a file once per changed byte of its footer, in a child process."""
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
