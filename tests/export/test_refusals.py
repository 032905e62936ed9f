"""Does each mistake in a spec, its seeds or its graph get an error that names its place?

Rules of specs alone are those of ``tests/tfgnn/test_sampling_spec.py``; here they are seen from where users stand, over
a dataset.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from hopstream import export_subgraphs, graph_from_arrays
from hopstream.arrays import RaggedArray
from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError
from hopstream.export.on_beam import SeedSampler
from hopstream.export.samples import SeedSampling
from hopstream.preparation.write import write_parts
from hopstream.store.local import LocalStore
from tests.export.test_mag import op

OWNS, PAID = ("customer", "owns", "card"), ("card", "paid", "shop")
SEED = 'seed_op < op_name: "seed" node_set_name: "customer" >'
GOOD = op("cards", ["seed"], "owns", 3) + op("shops", ["cards"], "paid", 2)


def card_graph():
    return graph_from_arrays(
        {OWNS: np.array([[0, 0, 1], [0, 1, 2]]), PAID: np.array([[0, 1, 2], [0, 0, 1]])},
        node_features={"customer": {"id": RaggedArray.from_strings(["ann", "bob"])}},
        edge_features={PAID: {"time": np.arange(3)}},
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards") / "parts"
    write_parts(card_graph(), folder, num_parts=1, direction="out")
    with LocalStore(open_dataset(folder)) as opened:
        yield opened


def test_the_right_spec_is_sampled(store):
    found = SeedSampler(store, SeedSampling(spec=SEED + GOOD)).sample(["bob", "ann"], [0, 0])
    assert [sample_id for sample_id, _ in found] == [b"bob", b"ann"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            SEED + op("cards", ["seed"], "paid", 3),
            "op 'cards': input op 'seed' reaches node set 'customer'; edge set 'paid' starts from 'card'",
        ),
        (SEED + op("cards", ["seed"], "owns", 0), "op 'cards': sample_size is 0; give 1 or more"),
        (SEED + op("cards", ["seed"], "owned", 3), "op 'cards': unknown edge set 'owned'; known: owns, paid"),
        (
            SEED + op("shops", ["cards"], "paid", 2) + op("cards", ["seed"], "owns", 3),
            "op 'shops': input op 'cards' comes later; put ops behind their inputs",
        ),
        (
            SEED + op("cards", ["seed"], "owns", 3, "TOP_K"),
            "op 'cards': TOP_K needs weights; edge set 'owns' has no feature #weight or weight",
        ),
        (SEED.replace("customer", "client") + GOOD, "seed op 'seed': unknown node set 'client'; known: card, customer"),
        (GOOD, "the spec has no seed_op"),
    ],
)
def test_a_spec_that_contradicts_the_dataset_names_the_op(store, spec, message):
    with pytest.raises(SchemaError, match=re.escape(message)):
        SeedSampler(store, SeedSampling(spec=spec))


def test_latest_k_without_times_names_the_edge_type(store):
    spec = SEED + op("cards", ["seed"], "owns", 3, "LATEST_K")
    with pytest.raises(SettingsError, match="strategy 'last' needs times, and the dataset was written without"):
        SeedSampler(store, SeedSampling(spec=spec))


def test_weights_are_those_that_specs_mean(tmp_path):
    weights = {PAID: {"weight": np.ones(3, np.float32), "amount": np.arange(3, dtype=np.float32)}}
    graph = graph_from_arrays({PAID: np.array([[0, 1, 2], [0, 0, 1]])}, edge_features=weights)
    write_parts(graph, tmp_path / "parts", num_parts=1, direction="out", weight_attr="amount")
    spec = SEED.replace("customer", "card") + op("shops", ["seed"], "paid", 2, "TOP_K")
    with (
        LocalStore(open_dataset(tmp_path / "parts")) as amounts,
        pytest.raises(SettingsError, match=r"op 'shops' draws by #weight or weight; .* with weight_attr='amount'"),
    ):
        SeedSampler(amounts, SeedSampling(spec=spec))


def test_an_unknown_seed_is_named(store):
    sampler = SeedSampler(store, SeedSampling(spec=SEED + GOOD))
    with pytest.raises(
        IdRangeError, match=re.escape("seed 'eve' is no node of type 'customer': customer.id has no suc")
    ):
        sampler.sample(["ann", "eve"], [0, 0])


def test_an_edge_to_a_node_that_is_not_there_is_named():
    with pytest.raises(IdRangeError, match=r"customer__owns__card.*7|7.*customer__owns__card"):
        graph_from_arrays({OWNS: np.array([[0, 1], [0, 7]])}, num_nodes={"customer": 2, "card": 3})


def test_ops_in_a_circle_are_called_so(store):
    with pytest.raises(SchemaError, match="op 'a': input op 'a' is the op itself; ops start from the seed op"):
        SeedSampler(store, SeedSampling(spec=SEED + op("a", ["a"], "owns", 3)))
    circle = op("a", ["b"], "owns", 3) + op("b", ["a"], "paid", 3)
    with pytest.raises(SchemaError, match="op 'a': input op 'b' is reached from the op itself, in a circle"):
        SeedSampler(store, SeedSampling(spec=SEED + circle))


def test_errors_of_specs_name_the_file_and_ops_as_it_does(tmp_path):
    parts = tmp_path / "parts"
    write_parts(card_graph(), parts, num_parts=1, direction="in")
    spec = tmp_path / "mine.pbtxt"
    spec.write_text(SEED + op("cards", ["seed"], "owned", 3))
    with pytest.raises(SchemaError, match=r"mine\.pbtxt: op 'cards': unknown edge set 'owned'"):
        export_subgraphs(parts, spec, tmp_path / "x", num_workers=0)
    spec.write_text(SEED + GOOD)
    with pytest.raises(SettingsError, match=r"^op 'cards' follows direction 'out'; the dataset holds in; write the"):
        export_subgraphs(parts, spec, tmp_path / "x", num_workers=0)
    spec.write_text("x" * 10_000)
    with pytest.raises(FormatError, match=r"mine\.pbtxt: not a SamplingSpec: 1:1 .*") as error:
        export_subgraphs(parts, spec, tmp_path / "x", num_workers=0)
    assert len(str(error.value)) < 400
