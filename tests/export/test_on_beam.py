"""Checks that a user's pipeline gets the same samples for any bundles, batches and processes."""

from __future__ import annotations

import threading
from collections import Counter

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that

from hopstream import graph_from_arrays, write_parts
from hopstream.dataset.layout import open_dataset
from hopstream.engine.on_beam import RUNNER_HERE
from hopstream.errors import FormatError, SettingsError
from hopstream.export.on_beam import OPENED, SampleSubgraphs, _Place, _Sample
from hopstream.export.samples import SeedSampling
from hopstream.export.seed_sampler import SeedSampler
from hopstream.store.local import LocalStore
from hopstream.tfgnn.tfrecord import read_records
from tests.export.seed_graphs import LINK_SPEC, SPEC, name_of, write_papers

DEADLINE_S = 100
HERE = [f"--runner={RUNNER_HERE}"]
PROCESSES = [*HERE, "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
SEEDS = [name_of(key) for key in (3, 9, 3, 41, 77, 3, 12, 0)]
SAMPLING = SeedSampling(spec=SPEC, seed_ids=True, rng_seed=8)


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return write_papers(tmp_path_factory.mktemp("beam") / "parts")


def sampled_here(papers, seeds=SEEDS, sampling=SAMPLING):
    numbers = [seeds[:place].count(seed) for place, seed in enumerate(seeds)]
    with LocalStore(open_dataset(papers)) as store:
        return SeedSampler(store, sampling).sample(seeds, numbers)


def run_within(pipeline):
    """Run a pipeline; a hang is an error."""
    done: list[object] = []

    def run():
        try:
            done.append(pipeline.run().wait_until_finish())
        except BaseException as error:  # the waiting thread raises it
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert done, f"the pipeline did not end in {DEADLINE_S} s"
    if isinstance(done[0], BaseException):
        raise done[0]


def samples_are(wanted):
    def check(found):
        assert Counter(found) == Counter(wanted), f"{len(found)} samples, wanted {len(wanted)}"

    return check


@pytest.mark.parametrize(("batch_size", "seeds"), [(1, SEEDS), (64, SEEDS[::-1])])
def test_samples_do_not_depend_on_batches_and_order(papers, batch_size, seeds):
    pipeline = beam.Pipeline(options=PipelineOptions(HERE))
    transform = SampleSubgraphs(papers, SAMPLING, batch_size=batch_size, is_keyed=True)
    assert_that(pipeline | beam.Create(seeds) | transform, samples_are(sampled_here(papers)))
    run_within(pipeline)


@pytest.mark.slow
def test_samples_are_the_same_in_processes_of_the_runner(papers, tmp_path):
    """The samples are also valid records in files that Beam writes."""
    pipeline = beam.Pipeline(options=PipelineOptions(PROCESSES))
    made = pipeline | beam.Create([seed.encode() for seed in SEEDS]) | SampleSubgraphs(papers, SAMPLING)
    _ = made | beam.io.WriteToTFRecord(str(tmp_path / "samples"))
    run_within(pipeline)
    found = [record for path in sorted(tmp_path.glob("samples-*")) for record in read_records(path)]
    assert Counter(found) == Counter(example for _, example in sampled_here(papers))


def test_integers_are_counted_by_value(tmp_path):
    """``007`` is 7, as in an export."""
    graph = graph_from_arrays(
        {("p", "to", "p"): np.array([[0, 1], [1, 0]])}, node_features={"p": {"id": np.array([7, 8])}}
    )
    write_parts(graph, tmp_path / "parts", num_parts=1, direction="out")
    spec = 'seed_op { op_name: "s" node_set_name: "p" } sampling_ops { op_name: "a" input_op_names: "s" '
    spec += 'edge_set_name: "to" sample_size: 2 strategy: RANDOM_UNIFORM }'
    sampling = SeedSampling(spec=spec, seed_ids=True)
    pipeline = beam.Pipeline(options=PipelineOptions(HERE))
    transform = SampleSubgraphs(tmp_path / "parts", sampling, is_keyed=True)
    wanted = sampled_here(tmp_path / "parts", [7, 7, 8], sampling)
    assert [name for name, _ in wanted] == [b"7", b"7:1", b"8"]
    assert_that(pipeline | beam.Create(["007", b"7", "8"]) | transform, samples_are(wanted))
    run_within(pipeline)


def test_an_unknown_seed_fails_the_pipeline_and_is_named(papers):
    pipeline = beam.Pipeline(options=PipelineOptions(HERE))
    _ = pipeline | beam.Create(["who"]) | SampleSubgraphs(papers, SAMPLING)
    with pytest.raises(Exception, match="seed b'who' is not a node of type 'paper'"):
        run_within(pipeline)


def test_a_process_opens_a_dataset_once_and_closes_it(papers):
    before = len(OPENED.held)
    functions = [_Sample(_Place(str(papers), SAMPLING)) for _ in range(3)]
    for function in functions:
        function.setup()
    assert len(OPENED.held) == before + 1
    shared = [OPENED.take(_Place(str(papers), SAMPLING)) for _ in range(2)]
    assert shared[0][0] is shared[1][0] and shared[0][1] is shared[1][1]
    for _ in shared:
        OPENED.give_back(_Place(str(papers), SAMPLING))
    for function in functions:
        assert len(list(function.process([(b"paper 003", 0)]))) == 1
        function.teardown()
        function.teardown()
    assert len(OPENED.held) == before
    broken = _Sample(_Place(str(papers), SeedSampling(spec=SPEC, readout=True, labels=("x",))))
    with pytest.raises(LookupError, match="paper has no feature 'x'"):
        broken.setup()
    assert len(OPENED.held) == before


def test_bad_settings_are_refused_before_the_pipeline_runs(papers):
    with pytest.raises(FormatError, match="not a SamplingSpec"):
        SampleSubgraphs(papers, SeedSampling(spec="seed { }"))
    with pytest.raises(SettingsError, match="batch_size is 0; give 1 to 4096"):
        SampleSubgraphs(papers, SAMPLING, batch_size=0)
    with pytest.raises(SettingsError, match="source is a list"):
        SampleSubgraphs([papers], SAMPLING)


def test_links_are_sampled(papers):
    links = [(name_of(3), name_of(8)), (name_of(8), name_of(3)), (name_of(3), name_of(8))]
    sampling = SeedSampling(spec=LINK_SPEC)
    pipeline = beam.Pipeline(options=PipelineOptions(HERE))
    made = pipeline | beam.Create(links) | SampleSubgraphs(papers, sampling, is_keyed=True)
    assert_that(made, samples_are(sampled_here(papers, links, sampling)))
    run_within(pipeline)
