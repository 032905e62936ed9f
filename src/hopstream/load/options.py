"""Is what the user gave for an option of the option's kind?

Python takes ``batch_size=True`` and ``shuffle="no"`` without a word, and much later something else breaks, or nothing
does. So every option is checked at the door, before anything is opened, and the message says its name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Integral, Real

import numpy as np

from hopstream.errors import SettingsError

MAX_RNG_SEED = (1 << 64) - 1
MAX_RANK = (1 << 31) - 1

_NOT_NEEDED = "it is not needed here, leave it out"
_NOT_YET = "it is not in this version"
_RNG_SEED = "everything random depends on rng_seed="
_RANKS = "order and ranks are chosen with seeds=, shuffle=, rank= and world_size="
PYG_OPTIONS: Mapping[str, str] = {
    "input_nodes": "it is called seeds= here",
    "num_workers": "it is called num_threads= here: threads make batches, not processes",
    "prefetch_factor": "it is called prefetch= here, for all threads together",
    "timeout": "it is called timeout_s= here",
    "collate_fn": "transform= is called with each batch",
    "transform_sampler_output": "transform= is called with each batch",
    "generator": _RNG_SEED,
    "worker_init_fn": _RNG_SEED,
    "sampler": _RANKS,
    "batch_sampler": _RANKS,
    "directed": _NOT_NEEDED,
    "filter_per_worker": _NOT_NEEDED,
    "is_sorted": _NOT_NEEDED,
    "multiprocessing_context": _NOT_NEEDED,
    "persistent_workers": _NOT_NEEDED,
    "pin_memory_device": _NOT_NEEDED,
    "disjoint": _NOT_YET,
    "input_time": _NOT_YET,
    "neighbor_sampler": _NOT_YET,
    "subgraph_type": _NOT_YET,
    "temporal_strategy": _NOT_YET,
    "time_attr": _NOT_YET,
    "weight_attr": _NOT_YET,
}
"""Options of PyG's ``NeighborLoader`` that are not options here, and what to do instead."""


def read_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """The value as an ``int``.

    Raises:
        SettingsError: It is no integer (True and 1.0 are none), or outside ``low`` to ``high``.
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or int(value) < low or (high is not None and int(value) > high):  # type: ignore[call-overload]
        wanted = f"{low} or above" if high is None else f"{low} to {high}"
        raise SettingsError(f"{name} is {value!r}; it must be an integer, {wanted}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def read_flag(name: str, value: object) -> bool:
    """The value as a ``bool``.

    Raises:
        SettingsError: It is neither True nor False.
    """
    if not isinstance(value, bool | np.bool_):
        raise SettingsError(f"{name} is {value!r}; it must be True or False")
    return bool(value)


def check_seconds(name: str, value: object) -> None:
    """Raise ``SettingsError`` unless a value is a number of seconds that has an end."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
        raise SettingsError(f"{name} is {value!r}; it must be a number of seconds above 0")


def read_rank(rank: object, world_size: object) -> tuple[int, int]:
    """The rank, 0 where it is not given and there is only one, and the world size.

    Raises:
        SettingsError: One is no integer or out of its range, or several ranks share the epoch and this one has no
            number: taking 0 for it would give every process the same seeds.
    """
    world_size = read_integer("world_size", world_size, 1, MAX_RANK)
    if rank is None:
        if world_size > 1:
            raise SettingsError(
                f"world_size is {world_size} and rank is not given; give each process its own, "
                f"rank=0 to rank={world_size - 1}"
            )
        return 0, world_size
    return read_integer("rank", rank, 0, MAX_RANK), world_size


def check_source(source: object) -> None:
    """Raise ``SettingsError`` where a source is no text and no path, and so nothing that can be opened."""
    if isinstance(source, str | os.PathLike):
        return
    wanted = "the folder of a dataset, a cluster.json, an address such as grpc://host:7001, or an open store"
    if isinstance(source, list | tuple):
        raise SettingsError(
            f"source is a {type(source).__name__}; it must be {wanted}; several addresses are one str, joined by commas"
        )
    raise SettingsError(
        f"source is a {type(source).__name__}; it must be {wanted}; a folder is made once: "
        "write_parts(graph, folder, num_parts=1), where read_graph(data) makes the graph of PyG's Data or HeteroData"
    )


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Refuse options that a loader does not have.

    Raises:
        SettingsError: PyG's loader has it; the message says what stands for it here.
        TypeError: Nobody has it.
    """
    for name in options:
        if name in PYG_OPTIONS:
            raise SettingsError(f"{name}= is an option of PyG's NeighborLoader; {PYG_OPTIONS[name]}")
        raise TypeError(f"NeighborLoader got an unexpected keyword argument {name!r}")
