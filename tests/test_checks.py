"""Checks that messages about names and options that do not exist say which one may be meant."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import hopstream
from hopstream.checks import did_you_mean
from hopstream.errors import SettingsError, UnknownNameError
from tests.conftest import make_typed_graph
from tests.load.graphs import local_store

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


@pytest.mark.parametrize(
    ("name", "known", "wanted"),
    [
        ("trian", ["train", "val"], "; did you mean 'train'?"),
        ("TRAIN", ["train", "val"], "; did you mean 'train'?"),
        ("paper__cite__paper", [CITES], f"; did you mean {CITES!r}?"),
        (["paper", "cites", "papers"], [CITES], f"; did you mean {CITES!r}?"),
        (7, ["train", "val"], ""),
        ("x", [], ""),
    ],
)
def test_the_closest_name_is_suggested_if_similar(name, known, wanted):
    assert did_you_mean(name, known) == wanted


@pytest.mark.parametrize(
    ("make", "name", "meant"),
    [
        (partial(hopstream.NeighborLoader, "x", [1]), "num_thread", "num_threads"),
        (partial(hopstream.NeighborLoader, "x", [1]), "seed", "seeds"),
        (partial(hopstream.LinkNeighborLoader, "x", [1]), "edge_labels", "edge_label"),
        (partial(hopstream.ABLPLoader, "x", [1], "a", supervision=[]), "batchsize", "batch_size"),
        (partial(hopstream.PPRLoader, "x"), "prefetsh", "prefetch"),
        (partial(hopstream.load.RandomNodeLoader, "x", [1], num_batches=1), "times_s", "timeout_s"),
        (partial(hopstream.ExampleLoader, "x"), "windows", "window"),
        (partial(hopstream.infer_layerwise, "x", print, "y", num_layers=1), "row_per_chunk", "rows_per_chunk"),
        (hopstream.StoreSettings, "timeouts_s", "timeout_s"),
        (hopstream.load.PPRSettings, "max_ppr_node", "max_ppr_nodes"),
        (hopstream.NegativeSampling, "stric", "strict"),
        (partial(hopstream.dataset.dispatch, "x", "y", "z"), "memry", "memory"),
    ],
)  # fmt: skip
def test_an_unknown_option_of_a_loader_or_of_settings_names_the_closest_one(make, name, meant):
    with pytest.raises(TypeError, match=rf"got an unexpected keyword argument '{name}'; did you mean '{meant}'\?$"):
        make(**{name: 1})


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"seeds": "papers"}, "paper"),
        ({"seeds": ("paper", "trian")}, "train"),
        ({"num_neighbors": {("paper", "cite", "paper"): [2]}}, CITES),
        ({"node_features": {"author": ["feats"]}}, "feat"),
        ({"edge_features": {"author__write__paper": ["weight"]}}, WRITES),
        ({"weight_attr": "weigh"}, "weight"),
        ({"subgraph_type": "induce"}, "induced"),
    ],
)
def test_an_unknown_name_of_a_graph_or_choice_names_the_closest_one(tmp_path, options, meant):
    with (
        local_store(make_typed_graph(np.random.default_rng(0)), tmp_path / "typed") as store,
        pytest.raises((UnknownNameError, SettingsError)) as raised,
    ):
        hopstream.NeighborLoader(store, **{"num_neighbors": [2], "seeds": "paper", **options})
    assert f"; did you mean {meant!r}?" in str(raised.value)
