"""Checks that a seed's sample is the same in every batch, and holds what is requested."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError, IdRangeError, SettingsError, UnknownNameError
from hopstream.export import samples
from hopstream.export.samples import SeedSampling, schema_of_samples
from hopstream.export.seed_sampler import SeedSampler
from hopstream.store.local import LocalStore
from hopstream.tfgnn.graph_schema import check_schema, parse_schema
from hopstream.tfgnn.graph_tensor import decode_graph
from hopstream.tfgnn.readout import structured_readout
from hopstream.tfgnn.sampling_spec import parse_spec
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder
from tests.export.seed_graphs import LINK_SPEC, NUM_PAPERS, SPEC, name_of, write_papers


@pytest.fixture
def store(tmp_path):
    with LocalStore(open_dataset(write_papers(tmp_path / "parts"))) as opened:
        yield opened


def test_a_sample_does_not_depend_on_its_batch(store, tmp_path, rng):
    seeds = [name_of(key) for key in rng.integers(0, NUM_PAPERS, 40).tolist()]
    numbers = [seeds[:place].count(seed) for place, seed in enumerate(seeds)]
    whole = SeedSampler(store, SeedSampling(spec=SPEC)).sample(seeds, numbers)
    samples = dict(whole)
    assert len(samples) == len(whole), "each sample has a name of its own"
    assert len(set(samples.values())) == len(whole), "samples of one seed differ"
    with LocalStore(open_dataset(write_papers(tmp_path / "other", num_parts=3))) as other:
        for order in (np.arange(40)[::-1], rng.permutation(40)):
            sampler = SeedSampler(other, SeedSampling(spec=SPEC))
            for rows in np.array_split(order, 7):
                found = sampler.sample([seeds[row] for row in rows], [numbers[row] for row in rows])
                assert found == [whole[row] for row in rows]
    again = SeedSampler(store, SeedSampling(spec=SPEC, rng_seed=1)).sample(seeds, numbers)
    assert not {example for _, example in again} & set(samples.values())


def test_seeds_that_fall_into_one_tree_are_sampled_apart(store, monkeypatch):
    seeds, numbers = [name_of(key) for key in (4, 9, 9, 30)], [0, 0, 1, 0]
    monkeypatch.setattr(samples, "MAX_TREES", 2)
    sampler = SeedSampler(store, SeedSampling(spec=SPEC))
    together = sampler.sample(seeds, numbers)
    assert together == [sampler.sample([seed], [number])[0] for seed, number in zip(seeds, numbers, strict=True)]


def test_readout_labels_and_ids_are_in_samples_and_their_schema(store):
    sampling = SeedSampling(spec=SPEC, readout=True, labels=("labels",), seed_ids=True, node_ids=True)
    schema = schema_of_samples(sampling, store.schema)
    check_schema(schema)
    spec = GraphSpec.of_schema(schema)
    for sample_id, example in SeedSampler(store, sampling).sample([name_of(7), name_of(7)], [0, 1]):
        read = decode_graph(example, spec)
        assert read.context["seed_id"].tolist() == [b"paper 007"]
        assert read.context["sample_id"].tolist() == [sample_id]
        assert structured_readout(read, "seed", "#id").tolist() == [b"paper 007"]
        assert read.node_sets["_readout"].features["labels"].tolist() == [[7]]
        assert "labels" not in read.node_sets["paper"].features
    bare = SeedSampling(spec=SPEC, leave_out=("paper.#id", "paper.tags"))
    assert sorted(schema_of_samples(bare, store.schema).node_sets["paper"].features) == ["labels"]


def test_links_are_pairs_of_raw_ids(store):
    sampling = SeedSampling(spec=LINK_SPEC, seed_ids=True, node_ids=True)
    spec = GraphSpec.of_schema(schema_of_samples(sampling, store.schema))
    links = [(name_of(3), name_of(8)), (name_of(8), name_of(3)), (name_of(5), name_of(5))]
    found = SeedSampler(store, sampling).sample(links, [0, 0, 0])
    assert [sample_id for sample_id, _ in found][:2] == [b"paper 003->paper 008", b"paper 008->paper 003"]
    for (source, target), (_, example) in zip(links, found, strict=True):
        read = decode_graph(example, spec)
        assert structured_readout(read, "source", "#id").tolist() == [source.encode()]
        assert structured_readout(read, "target", "#id").tolist() == [target.encode()]


def test_bad_seeds_and_settings_are_refused(store):
    with pytest.raises(IdRangeError, match=r"seed 'x' is not a node of type 'paper': paper.#id does not contain it"):
        SeedSampler(store, SeedSampling(spec=SPEC)).sample([name_of(3), "x"], [0, 0])
    with pytest.raises(SettingsError, match=r"seed \('a', 'b'\) is a pair; the spec starts from nodes"):
        SeedSampler(store, SeedSampling(spec=SPEC)).sample([("a", "b")], [0])
    with pytest.raises(SettingsError, match="seed 'a' is not a pair; the spec starts from links"):
        SeedSampler(store, SeedSampling(spec=LINK_SPEC)).sample(["a"], [0])
    with pytest.raises(SettingsError, match="readout is only for specs that start from nodes"):
        SeedSampler(store, SeedSampling(spec=LINK_SPEC, readout=True))
    with pytest.raises(SettingsError, match=r"labels are \['labels'\], but there is no readout"):
        SeedSampling(spec=SPEC, labels=("labels",))
    with pytest.raises(SettingsError, match="rng_seed is -1; give an integer from 0"):
        SeedSampling(spec=SPEC, rng_seed=-1)
    with pytest.raises(UnknownNameError, match="paper has no feature 'x'"):
        SeedSampler(store, SeedSampling(spec=SPEC, readout=True, labels=("x",)))
    left_out = ("paper.labels", "paper.tags")
    unwritten = SeedSampling(spec=SPEC, readout=True, labels=("labels",), leave_out=left_out, node_ids=True)
    with pytest.raises(SettingsError, match="label 'labels' is not among the features of 'paper': #id"):
        SeedSampler(store, unwritten)
    with pytest.raises(SettingsError, match="label 'tags' holds lists of different lengths"):
        SeedSampler(store, SeedSampling(spec=SPEC, readout=True, labels=("tags",)))
    with pytest.raises(FormatError, match="not a SamplingSpec"):
        SeedSampler(store, SeedSampling(spec="seed { }"))


def test_a_spec_is_a_file_a_text_or_a_message(tmp_path):
    file = tmp_path / "spec.pbtxt"
    file.write_text(SPEC)
    given = [SPEC, file, str(file), parse_spec(SPEC)]
    assert len({SeedSampling(spec=spec).spec for spec in given}) == 1
    with pytest.raises(FormatError, match=r"none\.pbtxt does not exist"):
        SeedSampling(spec="none.pbtxt")
    builder = SamplingSpecBuilder(parse_schema('node_sets { key: "n" value {} }'))
    with pytest.raises(SettingsError, match=r"spec is a SamplingStep; give .*; call build\(\) on the last step"):
        SeedSampling(spec=builder.seed())
    with pytest.raises(SettingsError, match="rng_seed is 'x'; give an integer"):
        SeedSampling(spec=SPEC, rng_seed="x")


def test_numbers_are_one_per_seed(store):
    sampler = SeedSampler(store, SeedSampling(spec=SPEC))
    assert sampler.sample([], []) == []
    with pytest.raises(SettingsError, match="numbers has 2 values for 1 seeds"):
        sampler.sample([name_of(3)], [0, 1])
    for wrong in (-1, 1.5, "0"):
        with pytest.raises(SettingsError, match=r"numbers has .*; give 0 for the first"):
            sampler.sample([name_of(3)], [wrong])
