"""Checks that each mistake in a spec, its seeds or its graph is an error that names its place.

``tests/tfgnn/test_sampling_spec.py`` tests the rules of specs alone. These tests use specs as users do, over a dataset.
"""

from __future__ import annotations

import numpy as np
import pytest

from hopstream import export_subgraphs, graph_from_arrays
from hopstream.arrays import RaggedArray
from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.export.samples import SeedSampling
from hopstream.export.seed_sampler import SeedSampler
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


def test_missing_times_and_weights_name_op_and_strategy(store, tmp_path):
    spec = SEED + op("cards", ["seed"], "owns", 3, "LATEST_K")
    with pytest.raises(SettingsError, match=r"^op 'cards': LATEST_K needs times, and the dataset was written without"):
        SeedSampler(store, SeedSampling(spec=spec))
    graph = graph_from_arrays(
        {PAID: np.array([[0, 1, 2], [0, 0, 1]])}, edge_features={PAID: {"weight": np.ones(3, np.float32)}}
    )
    write_parts(graph, tmp_path / "parts", num_parts=1, direction="out")
    with LocalStore(open_dataset(tmp_path / "parts")) as unweighted:
        for strategy in ("TOP_K", "RANDOM_WEIGHTED"):
            spec = SEED.replace("customer", "card") + op("shops", ["seed"], "paid", 2, strategy)
            with pytest.raises(SettingsError, match=rf"^op 'shops': {strategy} needs weights, and the dataset was wri"):
                SeedSampler(unweighted, SeedSampling(spec=spec))


def test_weights_follow_the_spec(tmp_path):
    weights = {PAID: {"weight": np.ones(3, np.float32), "amount": np.arange(3, dtype=np.float32)}}
    graph = graph_from_arrays({PAID: np.array([[0, 1, 2], [0, 0, 1]])}, edge_features=weights)
    write_parts(graph, tmp_path / "parts", num_parts=1, direction="out", weight_attr="amount")
    spec = SEED.replace("customer", "card") + op("shops", ["seed"], "paid", 2, "TOP_K")
    with (
        LocalStore(open_dataset(tmp_path / "parts")) as amounts,
        pytest.raises(SettingsError, match=r"op 'shops' draws by #weight or weight; .* with weight_attr='amount'"),
    ):
        SeedSampler(amounts, SeedSampling(spec=spec))


def test_spec_errors_name_the_file_and_its_ops(tmp_path):
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
