"""Checks that a seed's sample is the same in jobs and pipelines, and that readers know its contents."""

from __future__ import annotations

from collections import Counter

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from hopstream import ExampleLoader
from hopstream.arrays import RaggedArray
from hopstream.errors import SchemaError, SettingsError
from hopstream.export.on_beam import SampleSubgraphs
from hopstream.export.run import export_subgraphs
from hopstream.export.samples import SeedSampling, distinct_stretches, schema_of_samples
from hopstream.store import open_store
from hopstream.tfgnn.example import ValueLists, encode_examples
from hopstream.tfgnn.graph_schema import message_text, parse_schema, read_schema
from hopstream.tfgnn.graph_tensor import decode_graph
from hopstream.tfgnn.readout import structured_readout
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.tfrecord import RecordWriter, read_records
from tests.export.seed_graphs import LINK_SPEC, SPEC, name_of, write_papers
from tests.export.test_on_beam import HERE, run_within

SEEDS = [name_of(key) for key in (3, 9, 3, 41, 77, 3, 12, 0, 9)]
LINKS = [(name_of(a), name_of(b)) for a, b in ((3, 8), (8, 3), (5, 5), (3, 8))]
SEED_READOUT = {"readout": True, "labels": ("labels",), "seed_ids": True, "leave_out": ("paper.tags",)}


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return write_papers(tmp_path_factory.mktemp("samples") / "parts")


def records_of(report):
    return [record for path in report.paths for record in read_records(path)]


def piped(papers, seeds, sampling, folder):
    """Records of a pipeline, for any workers."""
    pipeline = beam.Pipeline(options=PipelineOptions(HERE))
    made = pipeline | beam.Create(seeds) | SampleSubgraphs(papers, sampling, batch_size=3)
    _ = made | beam.io.WriteToTFRecord(str(folder / "piped"))
    run_within(pipeline)
    return [record for path in sorted(folder.glob("piped-*")) for record in read_records(path)]


@pytest.mark.parametrize(
    ("spec", "seeds", "options"),
    [(SPEC, SEEDS, SEED_READOUT), (LINK_SPEC, LINKS, {"seed_ids": True})],
)
def test_the_job_and_the_pipeline_write_the_same_records(papers, tmp_path, spec, seeds, options):
    sampling = SeedSampling(spec=spec, rng_seed=8, **options)
    (tmp_path / "spec.pbtxt").write_text(spec)
    report = export_subgraphs(
        papers, tmp_path / "spec.pbtxt", tmp_path / "x@2", seeds=np.array(seeds), rng_seed=8, num_workers=0, **options
    )
    records = records_of(report)
    assert Counter(records) == Counter(piped(papers, seeds, sampling, tmp_path))
    assert len(set(records)) == len(seeds)
    with open_store(papers) as store:
        assert report.schema_path.read_text() == message_text(schema_of_samples(sampling, store.schema))


def test_readout_and_labels_are_read_back(papers, tmp_path):
    (tmp_path / "spec.pbtxt").write_text(SPEC)
    report = export_subgraphs(
        papers, tmp_path / "spec.pbtxt", tmp_path / "x@3", seeds=SEEDS[:2], num_workers=0, **SEED_READOUT
    )
    assert list(read_schema(report.schema_path).info.root_set) == ["paper"]
    with ExampleLoader(f"{tmp_path}/x@3", batch_size=2, strings="drop") as loader:
        [batch] = list(loader)
    assert batch.readout["labels"].flatten().tolist() == [3, 9]
    assert batch["paper"].seed_index.tolist() == batch.readout_edges["seed"]["paper"][0].tolist()


def test_invalid_labels_are_refused(papers, tmp_path):
    (tmp_path / "spec.pbtxt").write_text(SPEC)
    with pytest.raises(SettingsError, match="there is no readout to move them to; set readout"):
        export_subgraphs(papers, tmp_path / "spec.pbtxt", tmp_path / "x", labels=["labels"], num_workers=0)
    with pytest.raises(SchemaError, match="paper has no feature 'x'"):
        export_subgraphs(
            papers, tmp_path / "spec.pbtxt", tmp_path / "x", labels=["x"], readout=True, num_workers=0
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == [tmp_path / "spec.pbtxt"]


def test_ranges_hold_no_tree_twice(rng):
    for _ in range(50):
        trees = rng.integers(0, rng.integers(1, 30), rng.integers(0, 40))
        slow, held = [], set()
        for place, tree in enumerate(trees.tolist()):
            if tree in held or not slow:
                slow.append([place, place])
                held = set()
            held.add(tree)
            slow[-1][1] = place + 1
        assert distinct_stretches(trees) == [tuple(one) for one in slow]


LINK_CSV = "#source,#target,label,strength,kind,#weight\n" + "".join(
    f"{a},{b},{row % 2},{row}.5,kind {row},9\n" for row, (a, b) in enumerate(LINKS)
)


def link_table(folder, kind):
    """The same links as a table of CSV or TFRecord."""
    path = folder / f"links.{kind}"
    if kind == "csv":
        path.write_text(LINK_CSV)
        return path
    rows = {"#source": [a for a, _ in LINKS], "#target": [b for _, b in LINKS], "label": [0, 1, 0, 1]}
    rows |= {"strength": [0.5, 1.5, 2.5, 3.5], "kind": [f"kind {row}" for row in range(4)]}
    offsets = np.arange(5)
    lists = {
        name: ValueLists(
            RaggedArray.from_strings(of) if isinstance(of[0], str)
            else np.array(of, np.float32 if isinstance(of[0], float) else np.int64),
            offsets,
        )
        for name, of in rows.items()
    }  # fmt: skip
    examples = encode_examples(lists, 4)
    with RecordWriter(path) as writer:
        writer.write_framed(examples.data, examples.offsets)
    return path


@pytest.mark.parametrize("kind", ["csv", "tfrecord"])
def test_links_of_a_table_are_written_with_its_columns(papers, tmp_path, kind):
    (tmp_path / "spec.pbtxt").write_text(LINK_SPEC)
    report = export_subgraphs(
        papers, tmp_path / "spec.pbtxt", tmp_path / "out" / "x@2", seeds=link_table(tmp_path, kind), num_workers=0,
        node_ids=True,
    )  # fmt: skip
    schema = read_schema(report.schema_path)
    assert {name: of.dtype for name, of in schema.node_sets["_readout"].features.items()} == {
        "kind": 7, "label": 9, "strength": 1,
    }  # fmt: skip
    assert [schema.edge_sets[f"_readout/{end}"].source for end in ("source", "target")] == ["paper", "paper"]
    assert not schema.info.root_set
    for row, record in enumerate(records_of(report)):
        read = decode_graph(record, GraphSpec.of_schema(schema))
        values = {name: of.tolist() for name, of in read.node_sets["_readout"].features.items()}
        assert values == {"kind": [b"kind %d" % row], "label": [row % 2], "strength": [row + 0.5]}
        ends = [structured_readout(read, end, "#id").tolist()[0].decode() for end in ("source", "target")]
        assert tuple(ends) == LINKS[row]


def test_label_columns_of_a_table_are_chosen_by_name(papers, tmp_path):
    (tmp_path / "spec.pbtxt").write_text(LINK_SPEC)
    bare = export_subgraphs(
        papers, tmp_path / "spec.pbtxt", tmp_path / "bare" / "x@2", seeds=np.array(LINKS), num_workers=0
    )
    one = export_subgraphs(
        papers, tmp_path / "spec.pbtxt", tmp_path / "one" / "x@2", seeds=link_table(tmp_path, "csv"), labels=["label"],
        num_workers=0,
    )  # fmt: skip
    assert list(read_schema(one.schema_path).node_sets["_readout"].features) == ["label"]
    assert "features" not in message_text(read_schema(bare.schema_path).node_sets["_readout"])
    assert len(records_of(bare)) == 4


def test_link_options_are_required_and_checked(papers, tmp_path):
    (tmp_path / "spec.pbtxt").write_text('symmetric_link_seed_op < op_name: "seed" >')
    (tmp_path / "links.csv").write_text(LINK_CSV)
    options = {"seeds": tmp_path / "links.csv", "num_workers": 0}
    report = export_subgraphs(papers, tmp_path / "spec.pbtxt", tmp_path / "x", link_set="paper", **options)
    assert report.num_seeds == 4
    with pytest.raises(SettingsError, match="readout is only for specs that start from nodes"):
        export_subgraphs(papers, tmp_path / "spec.pbtxt", tmp_path / "y", readout=True, **options)
    with pytest.raises(SchemaError, match="has no column 'x'; its columns are"):
        export_subgraphs(papers, tmp_path / "spec.pbtxt", tmp_path / "y", labels=["x"], **options)
    assert parse_schema(report.schema_path.read_text()).node_sets["_readout"].features["label"].dtype == 9
