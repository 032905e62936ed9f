"""Checks that all kinds of tables name the same seeds, and that each error names its place."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.arrays import RaggedArray, offsets_of
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError
from hopstream.export import seeds as seeds_module
from hopstream.export.seeds import (
    LINK_COLUMNS,
    NodeIds,
    SeedTable,
    array_batches,
    digest_of_seeds,
    read_seeds,
    write_seeds,
)
from hopstream.sample import raw_ids
from hopstream.store import open_store
from hopstream.tfgnn.example import ValueLists, encode_examples
from hopstream.tfgnn.tfrecord import RecordWriter
from tests.export.worlds import write_world

KEYS = [3, 0, 24, 3, 11]
NAMES = [f"author {key}" for key in KEYS]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world")) / "parts"


def keys_of(parts: Path, folder: Path, table: SeedTable, node_type: str = "author", feature=None):
    with open_store(parts) as store:
        ends = [NodeIds(store, node_type, feature)] * len(table.columns)
        write_seeds(folder / "keys", table.batches(), ends, "seeds")
    return np.array(read_seeds(folder / "keys", len(table.columns))).tolist()


def write_records(path: Path, values, name: str = "#id", *, is_compressed: bool = False) -> None:
    is_text = isinstance(values[0], str)
    column = RaggedArray.from_strings(values) if is_text else np.array(values, np.int64)
    encoded = encode_examples({name: ValueLists(column, np.arange(len(values) + 1))}, len(values))
    with RecordWriter(path, is_compressed=is_compressed) as writer:
        for number in range(len(values)):
            writer.write(encoded[number])


def write_csv(path: Path, names=NAMES, header: str = "x,#id") -> None:
    text = "\n".join([header, *(f'{number},"{name}"' for number, name in enumerate(names))]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())


def test_every_kind_of_table(parts: Path, tmp_path: Path):
    write_csv(tmp_path / "a.csv")
    write_csv(tmp_path / "b.csv.gz", header="x,id")
    pq.write_table(pa.table({"#id": NAMES, "id": [0] * 5}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"id": pa.array([n.encode() for n in NAMES]).dictionary_encode()}), tmp_path / "d.pq")
    write_records(tmp_path / "e.tfrecord", NAMES)
    write_records(tmp_path / "f.tfrecord.gz", NAMES, "id", is_compressed=True)
    np.save(tmp_path / "g.npy", np.array(NAMES))
    for name in ("a.csv", "b.csv.gz", "c.parquet", "d.pq", "e.tfrecord", "f.tfrecord.gz", "g.npy"):
        assert keys_of(parts, tmp_path, SeedTable.of(tmp_path / name)) == KEYS, name


def test_many_files_and_columns_of_other_names(parts: Path, tmp_path: Path):
    for shard, (first, last) in enumerate(((0, 2), (2, 2), (2, 5))):
        write_csv(tmp_path / f"s.csv-0000{shard}-of-00003", NAMES[first:last], header="x,who")
    for name in ("s.csv@3", "s.csv-*", "s.csv-?????-of-00003"):
        assert keys_of(parts, tmp_path, SeedTable.of(tmp_path / name, (("who",),))) == KEYS
    (tmp_path / "s.csv-00001-of-00003").unlink()
    with pytest.raises(FormatError, match=r"00001-of-00003 is missing"):
        SeedTable.of(tmp_path / "s.csv@3")


def test_integer_seeds_are_read_from_every_format(parts: Path, tmp_path: Path):
    numbers = [1000, 1006, 1177, 1006]
    (tmp_path / "a.csv").write_text("id\n" + "\n".join(map(str, numbers)))
    write_records(tmp_path / "b.tfrecord", numbers)
    np.save(tmp_path / "c.npy", np.array(numbers, np.int32))
    for name in ("a.csv", "b.tfrecord", "c.npy"):
        assert keys_of(parts, tmp_path, SeedTable.of(tmp_path / name), "paper") == [0, 2, 59, 2]


def test_nodes_without_ids_are_named_by_key(parts: Path, tmp_path: Path):
    (tmp_path / "a.csv").write_text("id\n2\n0\n")
    assert keys_of(parts, tmp_path, SeedTable.of(tmp_path / "a.csv"), "institute") == [2, 0]
    (tmp_path / "b.csv").write_text("id\n2\n3\n")
    with pytest.raises(
        IdRangeError, match=r"b\.csv line 3: seed '3' is not a node of type institute; its nodes are 0\.\.2"
    ):
        keys_of(parts, tmp_path, SeedTable.of(tmp_path / "b.csv"), "institute")


def test_link_seeds_are_looked_up_by_raw_id(parts: Path, tmp_path: Path):
    (tmp_path / "a.csv").write_text("#source,#target,label\nauthor 1,author 2,0\nauthor 1,author 1,1\n")
    assert keys_of(parts, tmp_path, SeedTable.of(tmp_path / "a.csv", LINK_COLUMNS)) == [[1, 2], [1, 1]]
    (tmp_path / "a.csv").write_text("source,target\nauthor 1,author 2\nauthor 1,author x\n")
    with pytest.raises(IdRangeError, match=r"a\.csv line 3: seed 'author x' is not a node of type author"):
        keys_of(parts, tmp_path, SeedTable.of(tmp_path / "a.csv", LINK_COLUMNS))


def test_any_number_at_once(parts: Path, tmp_path: Path, monkeypatch):
    """Seeds are looked up in several passes over blocks; of two nodes with one name the first counts."""
    monkeypatch.setattr(seeds_module, "SEEDS_AT_ONCE", 2)
    monkeypatch.setattr(raw_ids, "NODES_AT_ONCE", 4)
    monkeypatch.setattr("hopstream.export.seeds.BATCH_ROWS", 2)
    np.save(tmp_path / "g.npy", np.array(NAMES))
    assert keys_of(parts, tmp_path, SeedTable.of(tmp_path / "g.npy")) == KEYS
    np.save(tmp_path / "h.npy", np.array([*NAMES, "x"]))
    with pytest.raises(IdRangeError, match=r"h\.npy row 5: seed 'x' is not a node of type author"):
        keys_of(parts, tmp_path, SeedTable.of(tmp_path / "h.npy"))
    with open_store(parts) as store:
        years = store.fetch([_years_of(store)])[0]["year"]
        ids = NodeIds(store, "paper", "year")
        got = ids.keys_of(pa.array(years.astype(np.int64)))
    assert got.tolist() == [years.tolist().index(year) for year in years.tolist()]


def _years_of(store):
    from hopstream.store.contract import FetchRequest

    keys = np.arange(60)
    return FetchRequest(entity="paper", names=("year",), ids=store.lookup("paper", keys))


@pytest.mark.parametrize(
    ("name", "write", "error", "message"),
    [
        ("a.csv", lambda p: p.write_text("x,y\n1,2\n"), SchemaError, r"has no column '#id' or 'id'; its columns are"),
        ("a.csv", lambda p: p.write_bytes(b"#id\n\xff\n"), FormatError, "line 2 is not UTF-8"),
        ("a.csv", lambda p: p.write_text(""), SchemaError, "has no column"),
        ("a.parquet", lambda p: p.write_bytes(b"PAR1"), FormatError, "cannot be read as parquet"),
        ("a.parquet", lambda p: pq.write_table(pa.table({"id": [1.5]}), p), SchemaError, "column 'id' is double"),
        ("a.parquet", lambda p: pq.write_table(pa.table({"id": ["a", None]}), p), SchemaError, "row 1: id is empty"),
        ("a.npy", lambda p: p.write_bytes(b"x"), FormatError, r"a\.npy cannot be read as \.npy"),
        ("a.npy", lambda p: np.save(p, np.zeros((2, 2), int)), SchemaError, r"is int64\[2, 2\]; seeds are"),
        ("a.npy", lambda p: np.save(p, np.int64(3)), SchemaError, r"is int64\[\]; seeds are integers"),
        ("a.npy", lambda p: np.save(p, np.zeros(2)), SchemaError, "is double; seeds are integers or strings"),
        ("a.npy", lambda p: np.save(p, np.array([{}]), allow_pickle=True), FormatError, r"cannot be read as \.npy"),
        ("a.tfrecord", lambda p: p.write_bytes(b"x" * 40), Exception, "record 0"),
        ("a.tfrecord", lambda p: write_records(p, [1, 2], "x"), SchemaError, r"no column '#id' or 'id'.* are \['x'\]"),
    ],
)
def test_flawed_seed_tables_are_refused(parts: Path, tmp_path: Path, name: str, write, error, message: str):
    write(tmp_path / name)
    with pytest.raises(error, match=message):
        seeds = SeedTable.of(tmp_path / name)
        seeds.num_known()
        keys_of(parts, tmp_path, seeds)
    assert not (tmp_path / "keys").exists()


def test_records_of_several_values_and_kinds(parts: Path, tmp_path: Path):
    lists = ValueLists(RaggedArray.from_strings(["a", "b", "c"]), offsets_of(np.array([1, 2])))
    encoded = encode_examples({"#id": lists}, 2)
    with RecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(encoded[0])
        writer.write(encoded[1])
    with pytest.raises(SchemaError, match=r"a\.tfrecord record 1: feature '#id' has 2 values; wanted 1"):
        keys_of(parts, tmp_path, SeedTable.of(tmp_path / "a.tfrecord"))
    write_records(tmp_path / "m.tfrecord-00000-of-00002", ["author 1"])
    write_records(tmp_path / "m.tfrecord-00001-of-00002", [1])
    with pytest.raises(SchemaError, match="holds integers in one file and strings in another"):
        keys_of(parts, tmp_path, SeedTable.of(tmp_path / "m.tfrecord@2"))


def test_invalid_arrays_are_refused():
    with pytest.raises(SchemaError, match=r"seeds is int64\[1, 3\]; seeds are integers or strings \[n, 2\]"):
        list(array_batches(np.zeros((1, 3), np.int64), "seeds", 2))


def test_unknown_file_suffixes_are_refused():
    with pytest.raises(SettingsError, match=r"seeds are 'x\.txt'; the name must end in"):
        SeedTable.of("x.txt")


def test_digests_are_of_values():
    def digest(given):
        return digest_of_seeds(array_batches(given, "seeds"))

    made = ["".join(["se", "ed"]), str(10**6)]
    assert digest(np.array(made, object)) == digest(made) == digest(np.array([*made[:1], "1000000"], object))
    assert digest([1, 2]) == digest(np.array([1, 2], object)) == digest(np.array([1, 2], np.uint8))
    others = [["seed", "1000001"], ["1", "2"], [1, 3], [12], ["se", "ed1000000"]]
    assert len({digest(made), digest([1, 2]), *map(digest, others)}) == 2 + len(others)
    program = (
        "import numpy as np; from hopstream.export.seeds import *;"
        "print(digest_of_seeds(array_batches(np.array(['seed', '1000000'], object), 'seeds')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == digest(made)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([2**70], r"seeds row 0 is 1180591620717411303424; a seed is a string or a 64-bit integer"),
        (np.array([1, None], object), r"seeds row 1 is None"),
        (np.array([1, "x"], object), r"seeds rows 0 to 1 are of several kinds"),
        ([1.5], "seeds is double"),
        ([[1], [2, 3]], "seeds is not an array"),
    ],
)  # fmt: skip
def test_error_names_an_invalid_seed(given, message: str):
    with pytest.raises(SchemaError, match=message):
        list(array_batches(given, "seeds"))


def test_an_empty_first_record_is_not_an_empty_file(tmp_path):
    path = tmp_path / "a.tfrecord"
    with RecordWriter(path) as writer:
        writer.write(b"")
    with pytest.raises(SchemaError, match="no column '#id' or 'id'"):
        list(SeedTable.of(path).batches())
