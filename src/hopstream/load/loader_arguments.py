"""Decorator for loaders' constructors: their arguments are a record's fields, and PyG's get remedies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from hopstream.arguments import Arguments
from hopstream.errors import SettingsError
from hopstream.load.load_settings import ConsumerSettings
from hopstream.load.order import WeightedSampler, weights_of
from hopstream.load.service import Recipe, class_name
from hopstream.load.setup import SubgraphLoader

P = ParamSpec("P")
R = TypeVar("R")
OF_THE_CONSUMER = frozenset({"source", "buffer_bytes", "verify", "store_settings", *ConsumerSettings.field_names()})
"""Arguments of loaders that set how batches are consumed, and do not change their content."""

_RNG_SEED = "everything random depends on rng_seed="
PYG_ALIASES: Mapping[str, str] = {
    "data": "source",
    "input_nodes": "seeds",
    "num_workers": "num_threads",
    "sampler": "seed_weights",
    **dict.fromkeys(
        (
            "filter_per_worker", "is_sorted", "multiprocessing_context", "persistent_workers", "pin_memory_device",
            "share_memory",
        ),
        "",
    ),
}  # fmt: skip
"""Options of PyG's loaders to their names here; "" for those that have no effect on batches, and are ignored."""
PYG_OPTIONS: Mapping[str, str] = {
    "prefetch_factor": "it is called prefetch= here, for all threads together",
    "timeout": "it is called timeout_s= here",
    "collate_fn": "transform= is called with each batch",
    "transform_sampler_output": "transform= is called with each batch",
    "generator": _RNG_SEED,
    "worker_init_fn": _RNG_SEED,
    "batch_sampler": "order and ranks are chosen with shuffle=, rank= and world_size=",
    "directed": "it is called subgraph_type= here: 'directional' or 'induced'",
    "neighbor_sampler": "num_neighbors=, sampling= and related options define how neighbours are drawn",
    "custom_cls": "transform= is called with each batch",
    "input_id": "batches have the position of each seed in seeds= as input_id",
}
"""Options of PyG's ``NeighborLoader`` that are not options here, and what to do instead."""


def takes(
    record: Callable[P, R], other: Mapping[str, str] = PYG_OPTIONS
) -> Callable[[Callable[[Any, R], None]], Callable[Concatenate[Any, P], None]]:
    """Decorate an ``__init__`` that takes a record, so that it takes the record's fields as arguments.

    A loader of subgraphs keeps its arguments as ``_recipe``, without ``OF_THE_CONSUMER``. It closes its source if
    ``__init__`` fails.

    Args:
        record: The dataclass of the arguments.
        other: Name of a refused option, for example one of another loader, to a remedy for the message.
    """
    arguments = Arguments(record, other, PYG_ALIASES)

    def decorate(init: Callable[[Any, R], None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(init)
        def taking(self: Any, /, *args: P.args, **options: P.kwargs) -> None:
            name = class_name(self)
            given = arguments.bind(name, args, options)
            if isinstance(given.get("seed_weights"), WeightedSampler):
                given["seed_weights"] = weights_of(given["seed_weights"])
            elif options.get("sampler") is not None:
                raise SettingsError(
                    f"sampler is a {type(options['sampler']).__name__}; give a WeightedRandomSampler, such as PyG's "
                    "ImbalancedSampler; the order and ranks are chosen with shuffle=, rank= and world_size="
                )
            if isinstance(self, SubgraphLoader):
                self._recipe = Recipe(name, {k: value for k, value in given.items() if k not in OF_THE_CONSUMER})
            try:
                init(self, arguments.record(**given))
            except BaseException:
                if isinstance(self, SubgraphLoader):
                    self.close_source()
                raise

        arguments.describe(taking, [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
        return taking

    return decorate
