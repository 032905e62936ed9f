"""Checks that a job's memory stays within the given limit, however large its tables are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from hopstream.ingest.chunking.run import chunk_tables

MIB = 1 << 20
GIVEN = 370 * MIB
PROGRAM = """
import sys
from hopstream.ingest.chunking.run import chunk_tables
chunk_tables(*sys.argv[1:3], memory=sys.argv[3], num_workers=0, keep_raw_ids=False, data_format="parquet")
(line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(int(line.split()[1]) * 1024)
"""


def compile_kernels(folder: Path) -> None:
    """Compile kernels once for later processes, as compiling takes more memory than the work."""
    folder.mkdir()
    (folder / "n.csv").write_text("id\na\nb\n")
    (folder / "e.csv").write_text("a,b\na,b\n")
    metadata = {
        "nodes": {"n": {"files": "n.csv", "id": "id"}},
        "edges": [{"type": ["n", "to", "n"], "files": "e.csv", "src": "a", "dst": "b"}],
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    chunk_tables(folder / "metadata.json", folder / "out", memory="1GiB", num_workers=0, keep_raw_ids=False)


@pytest.mark.scale
@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_resident_memory_stays_within_the_given_bound(tmp_path: Path, rng: np.random.Generator, file_format: str):
    """60 MB of raw ids, 240 MB of edge ends, and 250 MB of features so wide that a batch is too large."""
    num_nodes, num_edges = 3_000_000, 6_000_000
    raw = np.char.add("a-rather-long-", rng.permutation(num_nodes).astype(str))

    def write(name: str, columns: dict[str, pa.Array]) -> str:
        path = tmp_path / f"{name}.{file_format}"
        (pacsv.write_csv if file_format == "csv" else pq.write_table)(pa.table(columns), path)
        return path.name

    nodes = write("nodes", {"id": pa.array(raw)})
    ids = pa.array(raw)
    src, dst = (ids.take(pa.array(rng.integers(0, num_nodes, num_edges))) for _ in range(2))
    edges = write("edges", {"a": src, "b": dst})
    wide = {"files": nodes, "id": "id"}
    rows = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(60_000 * 1000, np.float32)), 1000)
    pq.write_table(pa.table({"x": rows}), tmp_path / "wide.parquet")
    metadata = {
        "nodes": {"n": wide, "w": {"files": "wide.parquet", "features": ["x"]}},
        "edges": [{"type": ["n", "to", "n"], "files": edges, "src": "a", "dst": "b"}],
    }
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    del ids, src, dst, raw, rows
    compile_kernels(tmp_path / "small")
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "metadata.json"), str(tmp_path / "out"), str(GIVEN)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= GIVEN, f"{int(done.stdout) / MIB:.0f} MiB"
