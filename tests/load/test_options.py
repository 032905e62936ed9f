"""Are options of the wrong kind refused at the door, by their names, with what to give instead?"""

from __future__ import annotations

import json
from fractions import Fraction
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from hopstream.errors import SettingsError
from hopstream.load import setup as loader_setup
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader
from hopstream.load.options import PYG_OPTIONS, check_seconds, read_flag, read_integer, read_rank
from hopstream.load.ppr import PPRLoader
from hopstream.store.settings import StoreSettings
from tests.load.graphs import local_store, make_plain_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "parts"
    local_store(make_plain_graph(np.random.default_rng(0)), path, 2)
    return path


def refuse_to_open(source, settings=None):
    raise AssertionError("the source was opened before the options were checked")


INTEGERS = {
    "batch_size": 1,
    "world_size": 1,
    "rank": 0,
    "num_threads": 0,
    "prefetch": 0,
    "buffer_bytes": 0,
    "rng_seed": 0,
    "batch_dependency": 1,
}
FLAGS = [
    "shuffle", "drop_last", "replace", "pin_memory", "edge_keys", "disjoint", "time_inclusive", "layer_dependency"
]  # fmt: skip


@pytest.mark.parametrize(
    "value", [1.5, 1.0, "4", True, np.True_, -1, [1], torch.tensor([1]), torch.tensor(1.0)], ids=repr
)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_integers(folder, monkeypatch, name, value):
    monkeypatch.setattr(loader_setup, "open_store", refuse_to_open)
    with pytest.raises(SettingsError, match=rf"^{name} is .*; it must be an integer, {INTEGERS[name]} "):
        NeighborLoader(folder, [2], **{name: value})


@pytest.mark.parametrize("name", ["batch_size", "world_size", "num_threads", "prefetch", "buffer_bytes", "rng_seed"])
def test_integers_but_for_the_edge_keys_and_ranks_are_not_none(folder, name):
    with pytest.raises(SettingsError, match=f"^{name} is None; it must be an integer"):
        NeighborLoader(folder, [2], **{name: None})


@pytest.mark.parametrize("value", ["no", 0, 1, [], np.array([True])], ids=repr)
@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(folder, monkeypatch, name, value):
    monkeypatch.setattr(loader_setup, "open_store", refuse_to_open)
    with pytest.raises(SettingsError, match=rf"^{name} is .*; it must be True or False"):
        NeighborLoader(folder, [2], **{name: value})


@pytest.mark.parametrize("rng_seed", [-1, 1 << 64, 0.5])
def test_an_rng_seed_has_64_bits(folder, rng_seed):
    with pytest.raises(SettingsError, match=f"^rng_seed is {rng_seed}; it must be an integer, 0 to {2**64 - 1}$"):
        NeighborLoader(folder, [2], rng_seed=rng_seed)
    assert NeighborLoader(folder, [2], rng_seed=(1 << 64) - 1).facts()["rng_seed"] == (1 << 64) - 1


@pytest.mark.parametrize("value", ["5", True, None, 0, -1, float("inf"), float("nan"), [5]], ids=repr)
def test_seconds_are_a_number_with_an_end(folder, value):
    with pytest.raises(SettingsError, match=r"^timeout_s is .*; it must be a number of seconds above 0$"):
        NeighborLoader(folder, [2], timeout_s=value)


def test_numbers_of_numpy_are_taken_and_make_the_same_batches_and_states(folder):
    numbers = {"batch_size": 7, "rng_seed": 5, "rank": 1, "world_size": 2, "num_threads": 0, "prefetch": 1}
    flags = {"shuffle": True, "drop_last": False, "replace": True}
    plain = NeighborLoader(folder, [3], **numbers, **flags, collate="numpy")
    other = NeighborLoader(
        folder, [3], **{n: np.int32(v) for n, v in numbers.items()}, **{n: np.bool_(v) for n, v in flags.items()},
        timeout_s=np.float32(5), collate="numpy",
    )  # fmt: skip
    assert json.dumps(plain.state_dict()) == json.dumps(other.state_dict())
    for one, two in zip(plain, other, strict=True):
        assert np.array_equal(one.node_keys["node"], two.node_keys["node"])
        assert np.array_equal(one.edge_index["node", "to", "node"], two.edge_index["node", "to", "node"])
    assert check_seconds("timeout_s", Fraction(1, 2)) is None
    assert (type(read_integer("n", np.int8(3), 0)), type(read_flag("f", np.True_))) == (int, bool)


def test_tensors_of_one_integer_are_integers(folder):
    for value in (torch.tensor(7), torch.tensor(7, dtype=torch.uint8), np.array(7)):
        found = read_integer("n", value, 0)
        assert (type(found), found) == (int, 7)
    with NeighborLoader(folder, [2], batch_size=torch.tensor(7)) as loader:
        assert json.loads(json.dumps(loader.state_dict()))["loader"]["batch_size"] == 7
    for value in (torch.tensor(True), torch.tensor(7.0), np.array(True), torch.tensor([7])):
        with pytest.raises(SettingsError, match=r"^n is .*; it must be an integer, 0 or above$"):
            read_integer("n", value, 0)


def test_a_rank_is_needed_where_there_are_several(folder):
    with pytest.raises(
        SettingsError, match=r"^world_size is 2 and rank is not given; give each process its own, rank=0 to rank=1$"
    ):
        NeighborLoader(folder, [2], batch_size=8, world_size=2)
    with pytest.raises(SettingsError, match=r"^rank is 1 of world_size 1; ranks are 0..world_size - 1$"):
        NeighborLoader(folder, [2], rank=1)
    assert read_rank(None, 1) == read_rank(0, 1) == (0, 1)
    assert read_rank(0, 3) == (0, 3)


def test_a_transform_can_be_called(folder):
    with pytest.raises(SettingsError, match=r"^transform is 'ToSparseTensor'; it must be a function"):
        NeighborLoader(folder, [2], transform="ToSparseTensor")


def test_settings_of_the_store_are_a_record(folder):
    with pytest.raises(
        SettingsError, match=r"^store_settings is {'timeout_s': 5}; it must be a StoreSettings, or None"
    ):
        NeighborLoader(folder, [2], store_settings={"timeout_s": 5})
    NeighborLoader(folder, [2], store_settings=StoreSettings(timeout_s=5)).close()


@pytest.mark.parametrize("names", [5, [5], [["x"]], [None]], ids=repr)
@pytest.mark.parametrize("option", ["node_features", "edge_features"])
def test_features_are_chosen_by_names(folder, option, names):
    with pytest.raises(SettingsError, match=rf"^{option} is .*; give a list of names, such as \['"):
        NeighborLoader(folder, [2], **{option: names})


def test_data_of_pyg_is_no_source():
    data = Data(x=torch.zeros(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    wanted = (
        r"^source is a Data; it must be the folder of a dataset, a cluster.json, an address .*, or an open store; "
        r"a folder is made once: write_parts\(graph, folder, num_parts=1\), where read_graph\(data\) makes the graph"
    )
    with pytest.raises(SettingsError, match=wanted):
        NeighborLoader(data, [2, 2], batch_size=2)


@pytest.mark.parametrize("source", [["grpc://a:1", "grpc://b:1"], ("grpc://a:1",), []], ids=repr)
def test_a_list_is_no_source(source):
    with pytest.raises(SettingsError, match=r"^source is a (list|tuple); .* several addresses are one str"):
        NeighborLoader(source, [2])


@pytest.mark.parametrize("source", [None, 5, b"parts", make_plain_graph(np.random.default_rng(0))], ids=type)
def test_other_things_are_no_sources(source):
    with pytest.raises(SettingsError, match=f"^source is a {type(source).__name__}; it must be the folder"):
        NeighborLoader(source, [2])


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("input_nodes", "it is called seeds= here"),
        ("num_workers", "it is called num_threads= here"),
        ("persistent_workers", "it is not needed here"),
        ("is_sorted", "it is not needed here: parts that are written with time_attr= keep edges sorted"),
    ],
)
def test_options_of_pyg_are_refused_with_what_stands_for_them(folder, name, remedy):
    with pytest.raises(SettingsError, match=f"^{name}= is no option of NeighborLoader: {remedy}"):
        NeighborLoader(folder, [2], **{name: 1})


@pytest.mark.parametrize("loader", [NeighborLoader, LinkNeighborLoader, PPRLoader])
def test_data_is_called_source(loader):
    with pytest.raises(SettingsError, match=f"^data= is no option of {loader.__name__}: it is called source= here"):
        loader(data=Data(), num_neighbors=[2])
    assert next(iter(signature(loader).parameters)) == "source"


def test_options_that_nobody_has_are_refused_as_python_does(folder):
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        NeighborLoader(folder, [2], batchsize=4)


def test_the_guide_names_the_options_of_pyg():
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text().split("## Coming from PyG's", 1)[1]
    missing = [name for name in PYG_OPTIONS if f"`{name}`" not in guide]
    assert not missing
