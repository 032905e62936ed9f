"""Checks that CSV text is cut between rows, and that huge cells are read, whole or piecewise."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from hopstream import read_graph
from hopstream.errors import FormatError, SchemaError
from hopstream.ingest.chunked import open_chunked
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.ingest.raw_tables.files import FilePart, read_part, whole_rows
from hopstream.ingest.raw_tables.metadata import TableFiles

CELLS = ["", "a", 'b"c', '"d,e"', '"f\ng"', '"h""i"', '"j""k,\r\n""l"m', "12345678"]
LONG = 20 << 20


def rows_of(text: bytes) -> list[tuple[str, ...]]:
    read = pacsv.ReadOptions(column_names=["x", "y", "z"], block_size=len(text) + 1)
    convert = pacsv.ConvertOptions(column_types=dict.fromkeys("xyz", pa.string()), strings_can_be_null=False)
    parse = pacsv.ParseOptions(newlines_in_values=True)
    return [tuple(row.values()) for row in pacsv.read_csv(pa.BufferReader(text), read, parse, convert).to_pylist()]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_pieces_end_at_row_ends_of_arrow(rng: np.random.Generator, end: str):
    rows = [",".join(rng.choice(CELLS, 3)) for _ in range(40)]
    text = (end.join(rows) + end).encode()
    for piece_bytes in (1, 7, 64, len(text)):
        pieces = list(whole_rows(io.BytesIO(text).read, ",", piece_bytes))
        assert b"".join(pieces) == text
        assert [row for piece in pieces if piece.strip() for row in rows_of(piece)] == rows_of(text)
    assert len(list(whole_rows(io.BytesIO(text).read, ",", 64))) > 4


def test_a_row_of_any_length_grows_its_piece_up_to_the_bound():
    text = b"a,b\n" + b'c,"' + b'd""\n' * 1000 + b'"\ne,f\n'
    pieces = list(whole_rows(io.BytesIO(text).read, ",", 16, 5000))
    assert b"".join(pieces) == text and max(map(len, pieces)) > 4000
    with pytest.raises(FormatError, match=r"^a row is longer than 3000 bytes$"):
        list(whole_rows(io.BytesIO(text).read, ",", 16, 3000))


def write_texts(folder: Path, *, num_long: int = 1, suffix: str = "") -> list[str]:
    """A unigraph whose nodes have texts; ``num_long`` texts are of 20 MB, some quoted and of many lines."""
    folder.mkdir()
    texts = ["short", *(["x" * LONG, "one, two\n" * (LONG // 9)] * num_long)[:num_long], "last"]
    rows = "".join(f'n{number},"{text}",{number}\n' for number, text in enumerate(texts))
    data = f"#id,text,n\n{rows}".encode()
    (folder / f"nodes.csv{suffix}").write_bytes(gzip.compress(data, 1) if suffix else data)
    (folder / "edges.csv").write_text("#source,#target\nn0,n1\n")
    (folder / "schema.pbtxt").write_text(f"""
    node_sets {{ key: "node" value {{
      features {{ key: "text" value {{ dtype: DT_STRING }} }} features {{ key: "n" value {{ dtype: DT_INT64 }} }}
      metadata {{ filename: "nodes.csv{suffix}" }} }} }}
    edge_sets {{ key: "to" value {{ source: "node" target: "node" metadata {{ filename: "edges.csv" }} }} }}""")
    return texts


def test_cells_of_20_megabytes_are_read_in_memory_and_piece_by_piece(tmp_path: Path):
    texts = write_texts(tmp_path / "texts", num_long=2)
    graph = read_graph(tmp_path / "texts")
    assert graph.nodes["node"].features["text"].tolist() == texts
    assert graph.nodes["node"].features["n"].tolist() == [0, 1, 2, 3]
    report = chunk_tables(tmp_path / "texts", tmp_path / "chunks", memory="1GiB", num_workers=0)
    assert open_chunked(report.metadata).load().fingerprint() == graph.fingerprint()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_row_longer_than_all_blocks_ahead_is_refused_by_its_number(tmp_path: Path, suffix: str):
    texts = write_texts(tmp_path / "texts", suffix=suffix)
    path = tmp_path / "texts" / f"nodes.csv{suffix}"
    files = TableFiles(root=path.parent, paths=(path,), format="csv")
    read = [
        text
        for batch in read_part(files, FilePart(file=0), ["text"], block_bytes=1 << 20)
        for text in batch.columns["text"].to_pylist()
    ]
    assert read == texts
    with pytest.raises(
        FormatError, match=rf"nodes.csv{suffix} row 1: a row is longer than 8388608 bytes; give more memory"
    ):
        list(read_part(files, FilePart(file=0), ["text"], block_bytes=1 << 18))


def test_error_names_the_line_after_a_long_cell(tmp_path: Path):
    write_texts(tmp_path / "texts")
    with (tmp_path / "texts" / "nodes.csv").open("a") as file:
        file.write("n9,text,nine\n")
    with pytest.raises(SchemaError, match=r"node.n is 'nine' at nodes.csv line 5; wanted"):
        read_graph(tmp_path / "texts")
