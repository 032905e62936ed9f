"""Options that all loaders check alike, and what to write here for the options of PyG's loaders."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import ParamSpec

from hopstream.checks import did_you_mean, is_number
from hopstream.checks import read_flag as read_flag
from hopstream.checks import read_integer as read_integer
from hopstream.errors import SettingsError
from hopstream.store.sources import check_source as check_source

P = ParamSpec("P")
MAX_RNG_SEED = (1 << 64) - 1
MAX_RANK = (1 << 31) - 1

_NOT_NEEDED = "it is not needed here, leave it out"
_RNG_SEED = "everything random depends on rng_seed="
_RANKS = "order and ranks are chosen with seeds=, shuffle=, rank= and world_size="
PYG_OPTIONS: Mapping[str, str] = {
    "data": "it is called source= here, the folder that write_parts(graph, folder, num_parts=1) makes once, where "
    "read_graph(data) makes the graph of PyG's Data or HeteroData",
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
    "directed": "it is called subgraph_type= here: 'directional' or 'induced'",
    "neighbor_sampler": "num_neighbors=, sampling= and the options beside them say how neighbours are drawn",
    "is_sorted": "it is not needed here: parts that are written with time_attr= keep edges sorted by time",
    "filter_per_worker": _NOT_NEEDED,
    "share_memory": _NOT_NEEDED,
    "multiprocessing_context": _NOT_NEEDED,
    "persistent_workers": _NOT_NEEDED,
    "pin_memory_device": _NOT_NEEDED,
    "custom_cls": "transform= is called with each batch",
    "input_id": "batches say the place of each seed in seeds= as input_id",
}
"""Options of PyG's ``NeighborLoader`` that are not options here, and what to do instead."""


def check_seconds(name: str, value: object) -> None:
    """Raise ``SettingsError`` unless a value is a number of seconds that has an end."""
    if not is_number(value) or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
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


def refuse_unknown(
    door: Callable[..., object], given: Iterable[str], known: Iterable[str], other: Mapping[str, str] = PYG_OPTIONS
) -> None:
    """Refuse options that a loader does not have.

    Args:
        door: The loader's class, or the function.
        given: The options.
        known: Those that it has beside its arguments.
        other: Names that other loaders have for options, and what to write instead.

    Raises:
        SettingsError: Another loader has it; the message says what stands for it here.
        TypeError: Nobody has it; the message says which one may be meant.
    """
    known = set(known)
    for name in given:
        if name in known:
            continue
        if name in other:
            raise SettingsError(f"{name}= is no option of {door.__name__}: {other[name]}")
        meant = did_you_mean(name, known.union(inspect.signature(door).parameters))
        raise TypeError(f"{door.__name__} got an unexpected keyword argument {name!r}{meant}")


def refuse_data(init: Callable[P, None]) -> Callable[P, None]:
    """Let an ``__init__`` say what stands for ``data=``; Python would only say that ``source`` is missing."""

    @wraps(init)
    def checked(*args: P.args, **options: P.kwargs) -> None:
        if "data" in options:
            refuse_unknown(type(args[0]), ["data"], ())
        init(*args, **options)

    return checked
