"""Checks that loaders take their record's fields, validate them first and name what is wrong."""

from __future__ import annotations

import json
from fractions import Fraction
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch

from hopstream.checks import check_seconds, read_flag, read_integer
from hopstream.compat.pyg.sampler import DatasetSampler, SamplerArguments
from hopstream.errors import SettingsError
from hopstream.load.ablp import ABLPArguments, ABLPLoader
from hopstream.load.examples import ExampleArguments, ExampleDataset, ExampleLoader
from hopstream.load.layerwise import InferenceArguments, infer_layerwise
from hopstream.load.links import LinkArguments, LinkNeighborLoader
from hopstream.load.load_settings import ConsumerSettings, LoadSettings, OrderSettings, read_rank
from hopstream.load.loader import NeighborArguments, NeighborLoader, RandomNodeArguments, RandomNodeLoader
from hopstream.load.loader_arguments import PYG_ALIASES, PYG_OPTIONS
from hopstream.load.ppr import PPRArguments, PPRLoader
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.sample.walks import WalkArguments, random_walks, walk_batches
from hopstream.store.settings import StoreSettings
from tests.load.graphs import local_store, make_plain_graph

NOWHERE = "no/such/folder"
DOORS = {
    NeighborLoader: (NeighborArguments, {"num_neighbors": [2]}),
    LinkNeighborLoader: (LinkArguments, {"num_neighbors": [2]}),
    ABLPLoader: (ABLPArguments, {"num_neighbors": [2], "supervision": "a__b__c"}),
    PPRLoader: (PPRArguments, {}),
    RandomNodeLoader: (RandomNodeArguments, {"num_neighbors": [2], "num_batches": 2}),
    infer_layerwise: (InferenceArguments, {"layer": len, "out": "out", "num_layers": 2}),
    DatasetSampler: (SamplerArguments, {"num_neighbors": [2]}),
    ExampleLoader: (ExampleArguments, {}),
    ExampleDataset: (ExampleArguments, {}),
    random_walks: (WalkArguments, {"start": [0], "walk_length": 2}),
    walk_batches: (WalkArguments, {"start": [0], "walk_length": 2}),
}
WALKS = {random_walks, walk_batches}
REFUSED = {
    RandomNodeLoader: {"shuffle", "drop_last", "remainder"},
    infer_layerwise: {"shuffle", "drop_last", "remainder", "edge_keys", "transform"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("arguments") / "parts"
    local_store(make_plain_graph(np.random.default_rng(0)), path, 2)
    return path


def name_of(door):
    return door.__name__


@pytest.mark.parametrize("door", DOORS, ids=name_of)
def test_arguments_defaults_and_help_come_from_the_settings_record(door):
    record, _ = DOORS[door]
    own, known = signature(door).parameters, signature(record).parameters
    assert list(own.items()) == [(name, one) for name, one in known.items() if name not in REFUSED.get(door, ())]
    function = door.__init__ if isinstance(door, type) else door
    lines = function.__doc__.split("\nArgs:\n")[1].split("\n\nRaises")[0].splitlines()
    assert {line.split(":")[0].strip() for line in lines if line.startswith("    ") and line[4] != " "} >= set(own)


@pytest.mark.parametrize("door", DOORS, ids=name_of)
def test_bad_settings_are_refused_before_anything_is_opened(door):
    _, options = DOORS[door]
    wrong = {"rng_seed": -1}
    with pytest.raises(SettingsError, match=rf"^{next(iter(wrong))} is .*; it must be "):
        door(NOWHERE, **options, **wrong)


@pytest.mark.parametrize("door", DOORS, ids=name_of)
def test_unknown_options_are_refused_by_name(door):
    _, options = DOORS[door]
    with pytest.raises(TypeError, match=f"^{door.__name__} got an unexpected keyword argument 'seed_nodes'"):
        door(NOWHERE, **options, seed_nodes=1)
    for name in REFUSED.get(door, ()):
        with pytest.raises(SettingsError, match=f"^{name}= is no option of {door.__name__}: "):
            door(NOWHERE, **options, **{name: False})


def test_names_of_pyg_are_understood(folder):
    with NeighborLoader(folder, [2, 2], seeds=[5, 3], num_threads=0, batch_size=2) as loader:
        wanted = next(iter(loader))
    renamed = {"data": folder, "input_nodes": [5, 3], "num_workers": 0, "persistent_workers": True, "is_sorted": True}
    with NeighborLoader(num_neighbors=[2, 2], batch_size=2, **renamed) as loader:
        assert next(iter(loader)).n_id.equal(wanted.n_id)
        assert loader.num_workers == 0
    with pytest.raises(TypeError, match=r"^NeighborLoader: seeds= and input_nodes= are the same option; give one"):
        NeighborLoader(folder, [2], seeds=[1], input_nodes=[1])
    with pytest.raises(SettingsError, match=r"^input_nodes= is no option of LinkNeighborLoader: links are given as"):
        LinkNeighborLoader(folder, [2], input_nodes=[1])


def test_options_of_pyg_are_refused_with_a_remedy():
    with pytest.raises(
        SettingsError, match=r"^prefetch_factor= is no option of NeighborLoader: it is called prefetch="
    ):
        NeighborLoader(NOWHERE, [2], prefetch_factor=1)


def test_arguments_are_bound_as_python_does():
    with pytest.raises(TypeError, match=r"^NeighborLoader: missing a required argument: 'num_neighbors'"):
        NeighborLoader(NOWHERE)
    with pytest.raises(TypeError, match=r"^NeighborLoader: too many positional arguments"):
        NeighborLoader(NOWHERE, [2], None, 4, True)
    with pytest.raises(TypeError, match="LoadSettings got an unexpected keyword argument 'batchsize'; did you mean"):
        LoadSettings(batchsize=4)


INTEGERS = {
    "batch_size": 1, "world_size": 1, "rank": 0, "num_threads": 0, "prefetch": 0, "buffer_bytes": 0, "rng_seed": 0,
    "batch_dependency": 1,
}  # fmt: skip
FLAGS = (
    "shuffle", "drop_last", "pin_memory", "edge_keys", "replace", "disjoint", "time_inclusive", "layer_dependency"
)  # fmt: skip


def settings_with(name, value):
    record = SamplingSettings if name in SamplingSettings.field_names() else LoadSettings
    return record(**{name: value})


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_integers(name):
    nothing = () if name == "rank" else (None,)
    texts = () if name == "buffer_bytes" else ("4",)
    values = (1.5, 1.0, True, np.True_, INTEGERS[name] - 1, [1], torch.tensor([1]), torch.tensor(1.0))
    for value in (*values, *texts, *nothing):
        with pytest.raises(SettingsError, match=rf"^{name} is .*; it must be an integer, {INTEGERS[name]} "):
            settings_with(name, value)


def test_bytes_take_units():
    assert settings_with("buffer_bytes", "2 MiB").buffer_bytes == 2 << 20
    for value in ("12 parsecs", "9999999 TiB", "9" * 400, "-1"):
        with pytest.raises(SettingsError, match=r"^buffer_bytes is "):
            settings_with("buffer_bytes", value)


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name):
    for value in ("no", 0, 1, [], np.array([True])):
        with pytest.raises(SettingsError, match=rf"^{name} is .*; it must be True or False"):
            settings_with(name, value)
    assert settings_with("drop_last", np.True_).drop_last is True


def test_every_flag_is_checked():
    known = {
        name
        for record in (SamplingSettings, LoadSettings, OrderSettings, ConsumerSettings)
        for name, kind in record.__annotations__.items()
        if kind == "bool"
    }
    assert known == set(FLAGS) - {"edge_keys"}


@pytest.mark.parametrize("value", ["5", True, None, 0, -1, float("inf"), float("nan"), [5]], ids=repr)
def test_seconds_are_finite_numbers(value):
    with pytest.raises(SettingsError, match=r"^timeout_s is .*; it must be a number of seconds above 0$"):
        LoadSettings(timeout_s=value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rng_seed": 1 << 64}, f"^rng_seed is {1 << 64}; it must be an integer, 0 to {2**64 - 1}$"),
        ({"rank": 1}, "^rank is 1 of world_size 1; ranks are 0..world_size - 1$"),
        ({"rank": 2, "world_size": 2}, "^rank is 2 of world_size 2"),
        ({"remainder": "share"}, "'share'; it must be one of spread, pad, drop, uneven"),
        ({"collate": "tf"}, "^collate is 'tf'; it must be one of pyg, numpy"),
        ({"collate": "numpy", "pin_memory": True}, "^pin_memory=True pins torch tensors; use it with collate='pyg'"),
        ({"transform": "ToSparseTensor"}, "^transform is 'ToSparseTensor'; it must be a function"),
        ({"verify": "some"}, "^verify is 'some'; it must be one of none, sample, full"),
        ({"store_settings": {"timeout_s": 5}}, "^store_settings is {'timeout_s': 5}; it must be a StoreSettings, or N"),
    ],
)
def test_invalid_loading_settings_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        LoadSettings(**options)
    assert LoadSettings(store_settings=StoreSettings(timeout_s=5), rng_seed=(1 << 64) - 1).own_rank == 0


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


def test_a_rank_is_required_if_there_are_several(folder):
    with pytest.raises(
        SettingsError, match=r"^world_size is 2 and rank is not given; give each process its own, rank=0 to rank=1$"
    ):
        NeighborLoader(folder, [2], batch_size=8, world_size=2)
    assert read_rank(None, 1) == read_rank(0, 1) == (0, 1)
    assert read_rank(0, 3) == (0, 3)


@pytest.mark.parametrize("names", [5, [5], [["x"]], [None]], ids=repr)
@pytest.mark.parametrize("option", ["node_features", "edge_features"])
def test_features_are_chosen_by_names(folder, option, names):
    with pytest.raises(SettingsError, match=rf"^{option} is .*; give a list of names, such as \['"):
        NeighborLoader(folder, [2], **{option: names})


@pytest.mark.parametrize("source", [["tcp://a:1", "tcp://b:1"], ("tcp://a:1",), []], ids=repr)
def test_a_list_is_refused_as_a_source(source):
    with pytest.raises(SettingsError, match=r"^source is a (list|tuple); .* several addresses are one str"):
        NeighborLoader(source, [2])


@pytest.mark.parametrize("source", [None, 5, b"parts", {"x": 1}], ids=type)
def test_other_objects_are_refused_as_sources(source):
    with pytest.raises(SettingsError, match=f"^source is a {type(source).__name__}; it must be the folder"):
        NeighborLoader(source, [2])


def test_the_guide_names_the_options_of_pyg():
    guide = (Path(__file__).parents[2] / "docs" / "from-pyg.md").read_text().split("### Arguments of", 1)[1]
    missing = [name for name in (*PYG_ALIASES, *PYG_OPTIONS) if f"`{name}`" not in guide]
    assert not missing
