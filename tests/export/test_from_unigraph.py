"""Checks that a unigraph is sampled as its dataset is, also after a kill, and leaves nothing behind."""

from __future__ import annotations

import csv
import signal
from pathlib import Path

import numpy as np
import pytest

from hopstream import prepare
from hopstream.cli import main
from hopstream.errors import IdRangeError, SchemaError, SettingsError
from hopstream.export import source as source_module
from hopstream.export.run import export_subgraphs
from hopstream.ingest.tables import TableSettings
from hopstream.tfgnn.graph_schema import read_schema
from hopstream.tfgnn.graph_tensor import decode_graph
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.tfrecord import files_of, read_records
from tests.export.test_mag import DATA, needs_data
from tests.export.worlds import digests
from tests.killing import left_beside, run_until

NUM_USERS, NUM_ITEMS = 60, 40
SCHEMA = """
context { features { key: "era" value { dtype: DT_STRING } } features { key: "g" value { dtype: DT_FLOAT } }
  metadata { filename: "context.csv" } }
node_sets { key: "user" value { features { key: "age" value { dtype: DT_INT64 } }
  metadata { filename: "users.csv" } } }
node_sets { key: "item" value {} }
edge_sets { key: "bought" value { source: "user" target: "item" features { key: "weight" value { dtype: DT_FLOAT } }
  metadata { filename: "bought.csv@2" } } }
edge_sets { key: "bought_by" value { source: "item" target: "user"
  metadata { filename: "bought.csv@2" extra { key: "edge_type" value: "reversed" } } } }
"""
SPEC = """
seed_op < op_name: "seed" node_set_name: "user" >
sampling_ops < op_name: "a" input_op_names: "seed" edge_set_name: "bought" sample_size: 3 strategy: STRATEGY >
sampling_ops < op_name: "b" input_op_names: "a" edge_set_name: "bought_by" sample_size: 2 strategy: RANDOM_UNIFORM >
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    rng = np.random.default_rng(4)
    ages = "".join(f"user {number},{20 + number}\n" for number in range(NUM_USERS))
    (folder / "users.csv").write_text("#id,age\n" + ages)
    (folder / "context.csv").write_text("era,g\nmodern,9.5\n")
    for shard in range(2):
        rows = zip(rng.integers(0, NUM_USERS, 300), rng.integers(0, NUM_ITEMS, 300), rng.random(300), strict=True)
        text = "".join(f"user {user},item {item},{weight:.4f}\n" for user, item, weight in rows)
        (folder / f"bought.csv-0000{shard}-of-00002").write_text("#source,#target,weight\n" + text)
    (folder / "schema.pbtxt").write_text(SCHEMA)
    (tmp_path / "spec.pbtxt").write_text(SPEC.replace("STRATEGY", "RANDOM_UNIFORM"))
    return folder


def exported(shop: Path, source: Path, name: str, **options):
    options = {"num_workers": 0, "seed_ids": True, "rng_seed": 3, "memory": "1GiB", **options}
    return export_subgraphs(source, shop.parent / "spec.pbtxt", shop.parent / name / "x@4", **options)


def records_of(out: str) -> list[bytes]:
    return [record for path in files_of(out) for record in read_records(path)]


@pytest.mark.parametrize("strategy", ["RANDOM_UNIFORM", pytest.param("TOP_K", marks=pytest.mark.slow)])
def test_a_unigraph_is_sampled_as_its_dataset(shop: Path, strategy: str):
    (shop.parent / "spec.pbtxt").write_text(SPEC.replace("STRATEGY", strategy))
    by_weight = "weight" if strategy == "TOP_K" else None
    parts = shop.parent / "parts"
    prepare(shop, parts, num_parts=2, method="random", direction="out", weight_attr=by_weight)
    exported(shop, parts, "wanted")
    report = exported(shop, shop / "schema.pbtxt" if by_weight else shop, "got")
    assert digests(shop.parent / "got") == digests(shop.parent / "wanted")
    assert left_beside(shop.parent / "got") == []
    schema = read_schema(report.schema_path)
    assert sorted(schema.context.features) == ["era", "g", "sample_id", "seed_id"]
    assert sorted(schema.node_sets) == ["item", "user"]
    records = records_of(f"{shop.parent}/got/x@4")
    assert len(records) == NUM_USERS
    for number, record in enumerate(records):
        read = decode_graph(record, GraphSpec.of_schema(schema))
        context = {name: of.tolist() for name, of in read.context.items()}
        seed = b"user %d" % number
        assert context == {"era": [b"modern"], "g": [9.5], "seed_id": [seed], "sample_id": [seed]}
        assert read.node_sets["user"].features["age"].tolist()[0] == 20 + number


def test_a_context_of_several_rows_is_left_out(shop: Path):
    (shop / "context.csv").write_text("era,g\nmodern,9.5\nold,9.25\n")
    with pytest.raises(SchemaError, match=r"the context's table has 2 rows, .*; leave out #context.era, #context.g"):
        exported(shop, shop, "two")
    bare = exported(shop, shop, "two", leave_out=["#context.era", "#context.g"])
    assert sorted(read_schema(bare.schema_path).context.features) == ["sample_id", "seed_id"]


@pytest.mark.slow
def test_the_schema_may_lie_elsewhere(shop: Path, capsys: pytest.CaptureFixture[str]):
    wanted = exported(shop, shop, "wanted")
    moved = (shop / "schema.pbtxt").rename(shop.parent / "graph.pbtxt")
    exported(shop, moved, "got", data_path=str(shop))
    assert digests(shop.parent / "got") == digests(shop.parent / "wanted")
    words = [
        "tfgnn-sample",
        "--graph_schema",
        moved,
        "--data_path",
        shop,
        "--workers",
        0,
        "--rng_seed",
        3,
        "--seed_ids",
    ]
    words += ["--sampling_spec", shop.parent / "spec.pbtxt", "--output_samples", shop.parent / "verb" / "x@4"]
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    assert digests(shop.parent / "verb") == digests(shop.parent / "wanted")
    with pytest.raises(SettingsError, match=r"data_path is only for unigraphs; .*parts is not one: leave it out"):
        prepare(
            moved,
            shop.parent / "parts",
            num_parts=1,
            method="hash",
            direction="out",
            tables=TableSettings(data_path=str(shop)),
        )
        exported(shop, shop.parent / "parts", "none", data_path=str(shop))
    assert wanted.num_seeds == NUM_USERS


def test_node_sets_whose_ids_are_keys_have_no_ids_to_write(shop: Path, caplog: pytest.LogCaptureFixture):
    keys = 'filename: "users.csv" extra { key: "hopstream_ids" value: "keys" }'
    (shop / "schema.pbtxt").write_text(SCHEMA.replace('filename: "users.csv"', keys))
    for path in shop.glob("*.csv*"):
        path.write_text(path.read_text().replace("user ", ""))
    exported(shop, shop, "out", node_ids=True)
    assert [text for text in caplog.messages if "#id" in text] == [
        "node_ids: no #id is written for user, because the graph has no feature of their raw ids"
    ]


def test_failed_preparation_leaves_nothing(shop: Path):
    (shop / "seeds.csv").write_text("#id\nuser 1\nnobody\n")
    with pytest.raises(IdRangeError, match="seed 'nobody' is not a node of type user"):
        exported(shop, shop, "out", seeds=shop / "seeds.csv")
    (shop.parent / "spec.pbtxt").write_text(SPEC.replace("STRATEGY", "LATEST_K"))
    with pytest.raises(SettingsError, match="op 'a' samples by time, but a unigraph does not declare"):
        exported(shop, shop, "out")
    with pytest.raises(SettingsError, match="on_dangling is 'keep'; it must be one of error, drop"):
        exported(shop, shop, "out", on_dangling="keep")
    with pytest.raises(SettingsError, match=r"which lies in .*, the source"):
        export_subgraphs(shop, shop.parent / "spec.pbtxt", shop / "x", num_workers=0)
    assert not (shop.parent / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "seeds.csv",
            r"seeds\.csv has no column '#id' or 'id'; its columns are \['who'\]; rename the column, or name it",
        ),
        ("seeds.npy", r"seeds\.npy is <U6\[1, 1\]; seeds are integers or strings \[n\]"),
    ],
)
def test_columns_of_seeds_are_checked_before_a_unigraph_is_prepared(shop: Path, monkeypatch, name: str, message: str):
    (shop / "seeds.csv").write_text("who\nuser 1\n")
    np.save(shop / "seeds.npy", np.array([["user 1"]]))
    monkeypatch.setattr(source_module, "prepare", lambda *words, **options: pytest.fail("prepared first"))
    with pytest.raises(SchemaError, match=message):
        exported(shop, shop, "out", seeds=shop / name)
    assert not (shop.parent / "out").exists()


def test_dangling_edges_are_dropped_only_if_requested(shop: Path):
    table = shop / "bought.csv-00001-of-00002"
    table.write_text(table.read_text() + "user 99,item 1,1\n")
    with pytest.raises(SchemaError, match=r"'user 99', which no user node has"):
        exported(shop, shop, "out")
    assert not (shop.parent / "out").exists()
    assert exported(shop, shop, "out", on_dangling="drop").num_seeds == NUM_USERS


PROGRAM = """
import pathlib
import sys
from hopstream.export.run import export_subgraphs
def tell(stage, done, total):
    if stage in sys.argv[2]:
        print(stage, done, total, flush=True)
shop = pathlib.Path(sys.argv[1])
export_subgraphs(shop, shop.parent / "spec.pbtxt", shop.parent / "got" / "x@4", rng_seed=3, seed_ids=True,
       num_workers=0, memory="1GiB", progress=tell)
"""


@pytest.mark.slow
def test_a_killed_preparation_or_export_resumes(shop: Path, monkeypatch):
    exported(shop, shop, "wanted")
    stages: list[str] = []
    exported(shop, shop, "told", progress=lambda stage, done, total: stages.append(stage))
    half = stages.index("export") // 2
    for shown, num_lines in ((" ".join(stages), 2), (" ".join(stages), half), ("export", 2)):
        assert run_until(PROGRAM, (shop, shown), num_lines) == -signal.SIGKILL
        assert left_beside(shop.parent / "got") == [".x.pbtxt.work"]
    prepared = []
    monkeypatch.setattr(source_module, "prepare", lambda *words, **options: prepared.append(words))
    export_subgraphs(
        shop, shop.parent / "spec.pbtxt", shop.parent / "got" / "x@4", rng_seed=3, seed_ids=True, num_workers=0,
        memory="1GiB",
    )  # fmt: skip
    assert prepared == [], "the dataset was there"
    assert digests(shop.parent / "got") == digests(shop.parent / "wanted")
    assert left_beside(shop.parent / "got") == []


def test_edges_between_nodes_are_of_every_edge_set(tmp_path: Path):
    """TF-GNN's example testdata/node_vs_edge: a leads to b and c, and b to c by a set without an op."""
    ends = {"one_to_two": ("one", "two", "a,b\na,c\n"), "two_to_two": ("two", "two", "b,c\nb,d\n")}
    schema = "".join(f'node_sets {{ key: "{name}" value {{}} }}\n' for name in ("one", "two"))
    for name, (source, target, rows) in ends.items():
        (tmp_path / f"{name}.csv").write_text("#source,#target\n" + rows)
        schema += f'edge_sets {{ key: "{name}" value {{ source: "{source}" target: "{target}" '
        schema += f'metadata {{ filename: "{name}.csv" }} }} }}\n'
    (tmp_path / "schema.pbtxt").write_text(schema)
    spec = (
        'sampling_ops < op_name: "op" input_op_names: "seed" edge_set_name: "one_to_two" sample_size: 9 strategy: 1 >'
    )
    (tmp_path / "spec.pbtxt").write_text('seed_op < op_name: "seed" node_set_name: "one" >' + spec)
    found = {}
    for method in ("edge", "node"):
        words = [
            "tfgnn-sample", "--graph_schema", tmp_path / "schema.pbtxt", "--sampling_spec", tmp_path / "spec.pbtxt",
            "--output_samples", f"{tmp_path}/{method}/x@1", "--workers", 0, "--memory", "1GiB",
            "--edge_aggregation_method", method,
        ]  # fmt: skip
        assert main([str(word) for word in words]) == 0
        [record] = records_of(f"{tmp_path}/{method}/x@1")
        read = decode_graph(record, GraphSpec.of_schema(read_schema(tmp_path / method / "x.pbtxt")))
        assert read.node_sets["two"].features["#id"].tolist() == [b"b", b"c"]
        assert read.edge_sets["one_to_two"].target.tolist() == [0, 1]
        between = read.edge_sets["two_to_two"]
        found[method] = list(zip(between.source.tolist(), between.target.tolist(), strict=True))
    assert found == {"edge": [], "node": [(0, 1)]}


@needs_data
def test_the_card_graph_through_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = DATA / "creditcard"
    words = [
        "tfgnn-sample", "--graph_schema", folder / "graph_schema.pbtxt", "--sampling_spec",
        folder / "sampling_spec.pbtxt", "--output_samples", f"{tmp_path}/x@2", "--workers", 0, "--seed_ids",
        "--node_ids",
    ]  # fmt: skip
    assert main([str(word) for word in words]) == 2
    assert "'1238474857489384', which no creditcard node has" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main([str(word) for word in (*words, "--on_dangling", "drop")]) == 0
    spec = GraphSpec.of_schema(read_schema(tmp_path / "x.pbtxt"))

    def rows_of(name: str) -> list[dict[str, str]]:
        return list(csv.DictReader((folder / name).read_text().splitlines()))

    issuers = {row["id"]: row["issuer"] for row in rows_of("creditcard.csv")}
    owns = [(row["source"], row["target"]) for row in rows_of("owns_card.csv") if row["target"] in issuers]
    customers = {row["id"]: row for row in rows_of("customer.csv")}
    found = {}
    for record in records_of(f"{tmp_path}/x@2"):
        read = decode_graph(record, spec)
        seed = read.context["seed_id"].tolist()[0].decode()
        assert read.node_sets["customer"].features["name"].tolist()[0].decode() == customers[seed]["name"]
        cards = read.node_sets["creditcard"].features
        found[seed] = [card.decode() for card in cards["#id"].tolist()]
        assert [of.decode() for of in cards["issuer"].tolist()] == [issuers[card] for card in found[seed]]
    assert set(found) == set(customers)
    for customer, cards in found.items():
        owned = {card for owner, card in owns if owner == customer}
        assert set(cards) <= owned and len(cards) == min(3, len(owned))
