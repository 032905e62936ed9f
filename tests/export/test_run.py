"""Checks that exports have one record per seed, for any number of workers, and touch nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.engine.atomic_folder import open_work
from hopstream.errors import FormatError, IdRangeError, NoRoomError, SchemaError, SettingsError, StateError
from hopstream.export import export_folder, samples
from hopstream.export import run as run_module
from hopstream.export import seeds as seeds_module
from hopstream.export.plan import plan_of_spec
from hopstream.export.run import export_subgraphs
from hopstream.export.samples import SeedSampling, trees_of
from hopstream.export.seed_sampler import SeedSampler
from hopstream.export.seeds import repeats_of
from hopstream.export.settings import ExportSettings
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.ingest.example_tables import ExampleTables
from hopstream.store import open_store
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.graph_schema import read_schema
from hopstream.tfgnn.graph_tensor import decode_graph, encode_graphs
from hopstream.tfgnn.sampling_spec import read_spec
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.tfrecord import files_of, read_records
from tests.export.worlds import NUM_AUTHORS, digests, some_seeds, spec_from, write_world
from tests.killing import left_beside

RNG_SEED = 7


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("made"))


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "world"))


def exported(world: Path, name: str = "out", **options):
    options = {
        "seeds": some_seeds(),
        "num_shards": 3,
        "rng_seed": RNG_SEED,
        "num_workers": 0,
        "node_ids": True,
        **options,
    }
    return export_subgraphs(world / "parts", world / "spec.pbtxt", world / name / "all.tfrecord", **options)


def records_of(report) -> list[bytes]:
    return [record for path in report.paths for record in read_records(path)]


def made_at_once(world: Path, keys: np.ndarray, subgraph_type="directional"):
    """The subgraphs of all seeds in one run of the plan."""
    with open_store(world / "parts") as store:
        plan = plan_of_spec(read_spec(world / "spec.pbtxt"), store.schema, subgraph_type=subgraph_type)
        features = {owner: tuple(of) for owner, of in {**store.schema.nodes, **store.schema.edges}.items()}
        encoded = encode_graphs(
            SubgraphMaker(store, plan, features).make(keys, RNG_SEED, trees_of(keys, repeats_of(keys)))
        )
        return [encoded[number] for number in range(len(encoded))]


def sampled_one_by_one(world: Path, seeds: list, **options) -> list[bytes]:
    """The samples of raw seeds, each alone."""
    sampling = SeedSampling(spec=(world / "spec.pbtxt").read_text(), rng_seed=RNG_SEED, node_ids=True, **options)
    with open_store(world / "parts") as store:
        sampler = SeedSampler(store, sampling)
        return [sampler.sample([seed], [seeds[:at].count(seed)])[0][1] for at, seed in enumerate(seeds)]


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_every_seed_has_its_record_in_order(world: Path, subgraph_type: str):
    report = exported(world, subgraph_type=subgraph_type)
    keys = np.array([int(seed.split()[1]) for seed in some_seeds()])
    assert records_of(report) == made_at_once(world, keys, subgraph_type)
    assert (report.num_seeds, len(report.paths)) == (150, 3)
    assert report.num_bytes == sum(path.stat().st_size for path in report.paths)
    assert [path.name for path in report.paths] == [f"all.tfrecord-0000{i}-of-00003" for i in range(3)]
    assert sorted(path.name for path in (world / "out").iterdir())[-1] == "all.tfrecord.pbtxt"
    assert left_beside(world / "out") == []


@pytest.mark.parametrize(
    "options",
    [{"num_shards": 7}, {"num_shards": 1, "num_threads": 3}],
)
def test_records_do_not_depend_on_workers_and_shards(world: Path, options):
    assert records_of(exported(world, "other", **options)) == records_of(exported(world))


@pytest.mark.parametrize(("file_format", "compression"), [("tfrecord", "gzip"), ("parquet", "none")])
def test_files_are_the_same_bytes(world: Path, monkeypatch, file_format: str, compression: str):
    """The bytes do not depend on the dataset's parts, nor on threads that make blocks ahead."""
    monkeypatch.setattr(export_folder, "BLOCK_BYTES", 1 << 14)
    options = {"file_format": file_format, "compression": compression, "seed_ids": True}
    exported(world, **options)
    (world / "again").mkdir()
    again = write_world(world / "again", num_parts=1)
    exported(again, num_threads=4, **options)
    assert digests(world / "out") == digests(again / "out")
    assert len(digests(world / "out")) == 4


def test_log_lists_node_sets_without_ids(world: Path, caplog: pytest.LogCaptureFixture):
    exported(world, "plain", node_ids=False)
    assert caplog.messages == []
    exported(world)
    assert caplog.messages == [
        "node_ids: no #id is written for paper, because the graph has no feature of their raw ids"
    ]


def test_one_seed_many_times_has_draws_and_names_of_its_own(world: Path):
    report = exported(world, seeds=["author 3"] * 40, seed_ids=True)
    lists = [decode_example(record) for record in records_of(report)]
    assert [of["context/sample_id"].tolist() for of in lists] == [
        ["author 3"], *([f"author 3:{number}"] for number in range(1, 40)),
    ]  # fmt: skip
    assert {of["context/seed_id"][0] for of in lists} == {"author 3"}
    assert len({tuple(of["edges/cites.#target"].tolist()) for of in lists}) > 1
    spec = GraphSpec.of_schema(read_schema(report.schema_path))
    assert decode_graph(records_of(report)[1], spec).context["sample_id"].tolist() == [b"author 3:1"]


def test_without_seeds_every_node_has_a_record(world: Path):
    report = exported(world, seeds=None, num_shards=None)
    assert records_of(report) == made_at_once(world, np.arange(NUM_AUTHORS))
    assert len(report.paths) == 1


def test_seeds_of_a_split(world: Path):
    with open_store(world / "parts") as store:
        keys = store.split("paper", "train")
    report = export_subgraphs(
        world / "parts", spec_from("paper", "cites"), world / "out" / "x", split="train", num_workers=0, seed_ids=True
    )
    firsts = [decode_example(record)["nodes/paper.id"][0] for record in records_of(report)]
    assert firsts == (1000 + 3 * keys).tolist()
    assert decode_example(records_of(report)[0])["context/seed_id"][0] == str(firsts[0])


def test_more_shards_than_seeds(world: Path):
    report = exported(world, seeds=some_seeds(2), num_shards=4)
    assert [len(list(read_records(path))) for path in report.paths] == [0, 1, 0, 1]


def test_parquet_has_the_lists_of_the_messages(world: Path):
    wanted = [decode_example(record) for record in records_of(exported(world))]
    report = exported(world, "table", file_format="parquet")
    rows = [row for path in report.paths for row in pq.read_table(path).to_pylist()]
    assert len(rows) == len(wanted)
    for row, lists in zip(rows, wanted, strict=True):
        assert row.keys() == lists.keys()
        for name, values in lists.items():
            got = [value.decode() if isinstance(value, bytes) else value for value in row[name]]
            assert got == values.tolist(), name


def test_schema_declares_the_written_features(world: Path):
    report = exported(world, leave_out=["paper.title", "author__writes__paper.weight"], seed_ids=True)
    schema = read_schema(report.schema_path)
    assert "title" not in schema.node_sets["paper"].features and "weight" not in schema.edge_sets["writes"].features
    assert sorted(schema.context.features) == ["sample_id", "seed_id"]
    names = set(decode_example(records_of(report)[0]))
    assert "nodes/paper.title" not in names and "nodes/paper.feat" in names
    decode_graph(records_of(report)[0], GraphSpec.of_schema(schema))


def test_seeds_that_fall_into_one_tree(world: Path, monkeypatch):
    """A block is cut before a seed that it already holds."""
    monkeypatch.setattr(samples, "MAX_TREES", 40)
    found = records_of(exported(world, seed_ids=True))
    assert found == sampled_one_by_one(world, some_seeds(), seed_ids=True)


def test_existing_files_are_replaced_only_if_requested(world: Path):
    exported(world)
    with pytest.raises(SettingsError, match=r"all\.tfrecord\.pbtxt exists already; give overwrite=True"):
        exported(world)
    before = digests(world / "out")
    (world / "out" / "all.tfrecord.md").write_text("mine")
    exported(world, num_shards=2, overwrite=True)
    assert sorted(digests(world / "out")) == [
        "all.tfrecord-00000-of-00002", "all.tfrecord-00001-of-00002", "all.tfrecord.md", "all.tfrecord.pbtxt",
    ]  # fmt: skip
    (world / "out" / "all.tfrecord.md").unlink()
    exported(world, overwrite=True)
    assert digests(world / "out") == before


def test_names_with_a_number_of_shards(world: Path):
    out = world / "out" / "all.tfrecord@5"
    report = export_subgraphs(world / "parts", world / "spec.pbtxt", out, num_workers=0)
    assert files_of(out) == list(report.paths)
    with pytest.raises(SettingsError, match="use only one of them"):
        export_subgraphs(world / "parts", world / "spec.pbtxt", out, num_shards=4)


def test_an_unknown_seed_is_named_and_nothing_is_left(world: Path):
    (world / "seeds.csv").write_text('#id,x\nauthor 1,2\n"author\n7",3\nauthor 99,4\n')
    with pytest.raises(IdRangeError) as raised:
        exported(world, seeds=world / "seeds.csv")
    assert str(raised.value) == (
        f"{world}/seeds.csv line 3: seed 'author\\n7' is not a node of type author; feature '#id' of its 25 "
        "nodes does not contain it"
    ).replace(f"{world}/", "")
    assert not (world / "out").exists() or list((world / "out").iterdir()) == []


def test_an_unknown_seed_keeps_existing_files(world: Path):
    exported(world)
    before = digests(world / "out")
    with pytest.raises(IdRangeError, match=r"seeds row 1: seed 'nobody' is not a node of type author"):
        exported(world, seeds=["author 1", "nobody"], overwrite=True)
    assert digests(world / "out") == before and left_beside(world / "out") == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"split": "train"}, SettingsError, "seeds are given, and split is 'train'"),
        (
            {"seed_column": "x"},
            SettingsError,
            "seed_column is 'x', but no table of seeds is given; give one, or leave seed_column out",
        ),
        ({"id_feature": "feat"}, SettingsError, "id_feature is 'feat', which is float64"),
        ({"leave_out": ["paper.x"]}, SchemaError, r"leave_out names 'paper\.x'; the graph has \['paper\."),
        ({"seeds": []}, SettingsError, "seeds has no rows"),
        ({"seeds": "seeds.xls"}, SettingsError, r"the name must end in one of \.csv"),
        ({"seeds": "seeds.csv"}, FormatError, "does not exist"),
        ({"num_shards": 0}, SettingsError, "num_shards is 0; it must be an integer from 1 to 100000"),
    ],
)
def test_bad_options_are_refused(world: Path, options, error, message: str):
    with pytest.raises(error, match=message):
        exported(world, **options)
    assert not (world / "out").exists()


def test_invalid_output_paths_are_refused(world: Path):
    with pytest.raises(SettingsError, match=r"out is .*, a folder; give the start of file names"):
        export_subgraphs(world / "parts", world / "spec.pbtxt", world)
    with pytest.raises(SettingsError, match=r"which lies in .*, the source"):
        export_subgraphs(world / "parts", world / "spec.pbtxt", world / "parts" / "x")


def test_two_at_once(world: Path):
    (world / "out").mkdir()
    with (
        open_work(world / "out" / "all.tfrecord.pbtxt"),
        pytest.raises(StateError, match=r"all\.tfrecord\.pbtxt is being written to by another process"),
    ):
        exported(world)


def test_an_export_resumes_after_a_full_disk(world: Path, monkeypatch):
    exported(world, "wanted")

    def full(*_):
        raise OSError(28, os.strerror(28), str(world / "out" / "x"))

    with monkeypatch.context() as patch:
        real = export_folder.open_shard
        opened: list[str] = []
        patch.setattr(
            export_folder, "open_shard", lambda *a, **b: full() if opened else (opened.append("x"), real(*a, **b))[1]
        )
        with pytest.raises(OSError, match="No space left"):
            exported(world)
    assert sorted(p.name for p in (world / "out").iterdir()) == [
        ".all.tfrecord.pbtxt.work", "all.tfrecord-00000-of-00003",
    ]  # fmt: skip
    kept = (world / "out" / "all.tfrecord-00000-of-00003").stat().st_ino
    done: list[int] = []
    exported(world, progress=lambda stage, count, total: done.append(count))
    assert done[0] == 50 and (world / "out" / "all.tfrecord-00000-of-00003").stat().st_ino == kept
    assert digests(world / "out") == digests(world / "wanted") and left_beside(world / "out") == []


def test_a_string_as_leave_out_is_refused():
    with pytest.raises(SettingsError, match=r"leave_out is 'paper\.title'; give a list"):
        ExportSettings(leave_out="paper.title")


@pytest.mark.parametrize("what", ["table", "spec", "schema"])
def test_input_files_are_not_overwritten(world: Path, what: str):
    folder = world / "out"
    folder.mkdir()
    names = {"table": "x.csv-00000-of-00001", "spec": "x.csv-00001-of-00002", "schema": "x.csv.pbtxt"}
    (folder / names[what]).write_text("#id\nauthor 1\n" if what == "table" else (world / "spec.pbtxt").read_text())
    (folder / "link.csv").symlink_to(folder / names["table"])
    before = digests(folder) if what != "table" else {names[what]: digests(folder)[names[what]]}
    for seeds in ("x.csv@1", "link.csv") if what == "table" else (None,):
        spec = world / "spec.pbtxt" if what == "table" else folder / names[what]
        with pytest.raises(SettingsError, match=rf"which would overwrite {names[what]}, the"):
            export_subgraphs(
                world / "parts", spec, folder / "x.csv", seeds=seeds and folder / seeds, num_workers=0, overwrite=True
            )
    assert {name: of for name, of in digests(folder).items() if name in before} == before


@pytest.mark.parametrize("form", ["array", "npy", "parquet", "csv"])
def test_memory_counts_given_seeds(world: Path, tmp_path, monkeypatch, form: str):
    """Files that state their number of rows are refused before any is read."""
    monkeypatch.setattr(run_module, "SEED_BYTES", 100 << 20)
    seeds = np.asarray(some_seeds()[:8])
    path = tmp_path / f"seeds.{form}"
    if form == "npy":
        np.save(path, seeds)
    elif form == "parquet":
        pq.write_table(pa.table({"id": seeds}), path)
    elif form != "array":
        path.write_text("id\n" + "\n".join(map(str, seeds)))
    given = seeds if form == "array" else path
    kept = []
    monkeypatch.setattr(run_module, "write_seeds", lambda *args: (kept.append(args), seeds_module.write_seeds(*args)))
    with pytest.raises(NoRoomError, match=r"8 seeds need at least 1\.1 GB: give more memory$"):
        exported(world, seeds=given, memory="500MB", num_workers=0)
    assert len(kept) == form.startswith("csv")
    report = exported(world, seeds=given, memory="1.1GB", num_workers=0)
    assert len(records_of(report)) == 8 and len(kept) == 1


def test_parquet_has_checksums(world: Path):
    path = exported(world, "table", file_format="parquet").paths[0]
    footer = pq.read_metadata(path)
    chunk = footer.row_group(0).column(0)
    hurt = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    hurt[begin + chunk.total_compressed_size - 1] ^= 1  # the end of its last page
    path.write_bytes(hurt)
    tables = ExampleTables([path], None)
    with pytest.raises(FormatError, match=rf"{path.name} cannot be read as Parquet.*CRC"):
        tables.read(np.arange(footer.num_rows))
