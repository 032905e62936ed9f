"""Decorator for loaders' constructors: their arguments are a record's fields, and PyG's get remedies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from hopstream.arguments import Arguments
from hopstream.load.load_settings import ConsumerSettings
from hopstream.load.service import Recipe, class_name
from hopstream.load.setup import SubgraphLoader

P = ParamSpec("P")
R = TypeVar("R")
OF_THE_CONSUMER = frozenset({"source", "buffer_bytes", "verify", "store_settings", *ConsumerSettings.field_names()})
"""Arguments of loaders that set how batches are consumed, and do not change their content."""

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
    "neighbor_sampler": "num_neighbors=, sampling= and related options define how neighbours are drawn",
    "is_sorted": "it is not needed here: parts that are written with time_attr= keep edges sorted by time",
    "filter_per_worker": _NOT_NEEDED,
    "share_memory": _NOT_NEEDED,
    "multiprocessing_context": _NOT_NEEDED,
    "persistent_workers": _NOT_NEEDED,
    "pin_memory_device": _NOT_NEEDED,
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
    arguments = Arguments(record, other)

    def decorate(init: Callable[[Any, R], None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(init)
        def taking(self: Any, /, *args: P.args, **options: P.kwargs) -> None:
            name = class_name(self)
            given = arguments.bind(name, args, options)
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
