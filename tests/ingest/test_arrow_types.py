"""Is it told where a damaged Parquet file has codes that are in no dictionary?"""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.errors import FormatError
from hopstream.ingest.arrow_checks import check_codes
from hopstream.ingest.chunked.parquet import open_parquet
from hopstream.ingest.raw_tables.files import FilePart, TableFiles, read_part

WORDS = ["a", "b", "c"] * 20


def read_chunk(path):
    file = open_parquet(path, path.name)
    return [column for _, (column,) in file.batches(0, file.num_rows, 20, as_dictionaries=True)]


def read_table(path):
    files = TableFiles(root=path.parent, paths=(path,), format="parquet")
    return [batch.columns["x"] for batch in read_part(files, FilePart(file=0), ["x"])]


@pytest.mark.parametrize("read", [read_chunk, read_table])
def test_no_bit_leads_out_of_a_dictionary(tmp_path, read):
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
