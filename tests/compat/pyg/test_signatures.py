"""Checks that arguments, their order and defaults are those of ``torch_geometric.distributed``.

Exceptions are listed here and in the docs.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch_geometric.distributed as theirs
from torch.utils.data import DataLoader
from torch_geometric.distributed import dist_context, event_loop, partition, rpc, utils
from torch_geometric.loader import LinkLoader, NodeLoader

import hopstream.compat.pyg as ours
from hopstream.compat.pyg.dist_loader import common_options
from hopstream.errors import SettingsError

DOCS = Path(__file__).parents[3] / "docs" / "from-pyg.md"
OF_LOADERS = {
    "collate_fn", "filter_fn", "reset_channel", "enable_cpu_affinity", "enable_memory_log", "enable_multithreading",
}  # fmt: skip
LEFT_OUT: dict[str, set[str]] = {
    "DistLinkNeighborLoader": OF_LOADERS,
    "DistLoader": {"reset_channel"},
    "DistNeighborLoader": OF_LOADERS,
    "DistNeighborSampler": {"edge_permutation", "init_event_loop"},
    "LocalFeatureStore": {"set_rpc_router"},
    "Partitioner": {"edge_types", "is_edge_level_time", "is_hetero", "is_node_level_time", "node_types"},
}
"""Methods and properties of PyG's classes that ours lack."""
WITHOUT_FURTHER = {
    ("DistLoader", "__init__"),
    ("DistNeighborSampler", "__init__"),
    ("DistNeighborSampler", "sample_from_edges"),
    ("DistNeighborSampler", "sample_from_nodes"),
}
"""Functions that ignore further options in PyG; ours refuse them."""
OF_RANKS = {"security", "store_settings"}
ADDED: dict[tuple[str, str], set[str]] = {
    ("DistLinkNeighborLoader", "__init__"): OF_RANKS | {"rpc_timeout", "exclude_links"},
    ("DistLoader", "__init__"): OF_RANKS,
    ("DistNeighborLoader", "__init__"): OF_RANKS | {"rpc_timeout"},
    ("DistNeighborSampler", "__init__"): {"label_type", "rng_seed"},
    ("DistNeighborSampler", "register_sampler_rpc"): {"member"},
    ("DistNeighborSampler", "sample_from_edges"): {"callback"},
    ("DistNeighborSampler", "sample_from_nodes"): {"callback"},
    ("Partitioner", "__init__"): {"options"},
    ("init_rpc", "init_rpc"): OF_RANKS,
}
"""Arguments that only ours have; all have defaults."""
BY_HAND = {"callback", "member", "options"}
"""Of these: a further option of PyG's, one with a default that is found, and one for several others."""
OPTIONS = {
    name: parameter.default
    for loader in (LinkLoader, NodeLoader, DataLoader)
    for name, parameter in inspect.signature(loader).parameters.items()
    if name not in {"self", "kwargs", "dataset", "data", "node_sampler", "link_sampler"}
    and name not in inspect.signature(ours.DistNeighborLoader).parameters
    and name not in inspect.signature(ours.DistLinkNeighborLoader).parameters
}
"""Options that PyG's distributed loaders pass to their base loaders, with the defaults there."""
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "DistEdgeHeteroSamplerInput": utils.DistEdgeHeteroSamplerInput,
    "global_barrier": rpc.global_barrier,
    "init_rpc": rpc.init_rpc,
    "load_partition_info": partition.load_partition_info,
    "shutdown_rpc": rpc.shutdown_rpc,
    "to_asyncio_future": event_loop.to_asyncio_future,
}


def names_of(theirs_class: type) -> set[str]:
    """Public names that PyG itself defines on a class."""
    of_pyg = [one for one in theirs_class.__mro__ if one.__module__.startswith("torch_geometric.")]
    return {name for one in of_pyg for name in vars(one) if not name.startswith("_")}


def compare(owner: str, name: str, their: Callable[..., Any], our: Callable[..., Any]) -> None:
    """Check that ours takes all of their calls, and that its further arguments are listed above."""
    wanted, found = (list(inspect.signature(one).parameters.values()) for one in (their, our))
    takes_any = [one.name for one in wanted if one.kind is one.VAR_KEYWORD]
    wanted = [one for one in wanted if one.name not in takes_any]
    for one, same in zip(wanted, found, strict=False):
        assert (same.name, same.kind) == (one.name, one.kind)
        assert str(same.default) == str(one.default) or one.default is one.empty  # roles are two enumerations
    further = found[len(wanted) :]
    assert len(found) >= len(wanted), "an argument is missing"
    open_ended = {one.name for one in further if one.kind is one.VAR_KEYWORD}
    assert all(one.default is not one.empty for one in further if one.name not in open_ended)
    assert (bool(takes_any) and not open_ended) == ((owner, name) in WITHOUT_FURTHER)
    names = {one.name for one in further} - (open_ended if takes_any else set())
    assert names == ADDED.get((owner, name), set())


@pytest.mark.parametrize("owner", theirs.__all__)
def test_classes_take_the_arguments_of_pyg(owner: str) -> None:
    their, our = getattr(theirs, owner), getattr(ours, owner)
    names = names_of(their)
    assert {name for name in names if not hasattr(our, name)} == LEFT_OUT.get(owner, set())
    for name in sorted({"__init__", *names} - LEFT_OUT.get(owner, set())):
        one = inspect.getattr_static(their, name)
        if callable(getattr(their, name)) and not isinstance(one, property):
            compare(owner, name, getattr(their, name), getattr(our, name))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_the_arguments_of_pyg(name: str) -> None:
    compare(name, name, FUNCTIONS[name], getattr(ours, name))


def test_a_context_has_the_fields_of_pygs() -> None:
    fields = [[field.name for field in dataclasses.fields(one)] for one in (theirs.DistContext, ours.DistContext)]
    assert fields[0] == fields[1]
    assert [(role.name, role.value) for role in dist_context.DistRole] == [("WORKER", 1)]
    assert [(role.name, role.value) for role in ours.DistRole] == [("WORKER", 1)]
    of_both = [one(1, 1, 2, 2, "papers") for one in (theirs.DistContext, ours.DistContext)]
    assert of_both[0].worker_name == of_both[1].worker_name


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_pyg_loader_options_are_accepted_or_refused_by_name(name: str) -> None:
    try:
        common_options(
            ours.DistNeighborLoader, {name: OPTIONS[name]}, transform=None, concurrency=1, filter_per_worker=None,
            async_sampling=True,
        )  # fmt: skip
    except SettingsError as error:
        assert name in str(error)


def test_differences_from_pyg_are_documented() -> None:
    text = DOCS.read_text()
    named = {name for of in (*LEFT_OUT.values(), *ADDED.values()) for name in of} - BY_HAND
    assert {name for name in named if f"`{name}`" not in text} == set()
