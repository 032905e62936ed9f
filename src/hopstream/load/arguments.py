"""Constructors of loaders whose arguments are the fields of a record.

The record says each option once: name, type, default, what it means and its check. From it the constructor gets its
signature, for type checkers as well as at run time, and its documentation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from hopstream.checks import did_you_mean
from hopstream.errors import SettingsError
from hopstream.load.load_settings import ConsumerSettings
from hopstream.load.service import Recipe, class_name
from hopstream.load.setup import SubgraphLoader

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
FIELD = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
OF_THE_CONSUMER = frozenset({"source", "buffer_bytes", "verify", "store_settings", *ConsumerSettings.field_names()})
"""Arguments of loaders that say how batches are consumed, not what they are."""

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


def takes(
    record: Callable[P, R], other: Mapping[str, str] = PYG_OPTIONS
) -> Callable[[Callable[[Any, R], None]], Callable[Concatenate[Any, P], None]]:
    """Let an ``__init__`` that takes a record be called with the fields of the record.

    A loader of subgraphs keeps as ``_recipe`` what it was called with.

    Args:
        record: The dataclass of the arguments.
        other: Names that are refused, options of other loaders among them, and what to do instead.
    """
    arguments = _Arguments(record, other)

    def decorate(init: Callable[[Any, R], None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(init)
        def taking(self: Any, /, *args: P.args, **options: P.kwargs) -> None:
            name = class_name(self)
            given = arguments.bind(name, args, options)
            if isinstance(self, SubgraphLoader):
                self._recipe = Recipe(name, {k: value for k, value in given.items() if k not in OF_THE_CONSUMER})
            init(self, arguments.record(**given))

        arguments.describe(taking, [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
        return taking

    return decorate


def called_with(
    record: Callable[P, R], other: Mapping[str, str] = PYG_OPTIONS
) -> Callable[[Callable[[R], T]], Callable[P, T]]:
    """Let a function that takes a record be called with the fields of the record; see ``takes``."""
    arguments = _Arguments(record, other)

    def decorate(function: Callable[[R], T]) -> Callable[P, T]:
        @wraps(function)
        def called(*args: P.args, **options: P.kwargs) -> T:
            return function(arguments.record(**arguments.bind(function.__name__, args, options)))

        arguments.describe(called, [])
        return called

    return decorate


class _Arguments:
    """Reads the arguments of a call into a record."""

    def __init__(self, record: Callable[..., Any], other: Mapping[str, str]) -> None:
        self.record = record
        self._other = other
        signature = inspect.signature(record)
        known = [parameter for name, parameter in signature.parameters.items() if name not in other]
        self._signature = signature.replace(parameters=known, return_annotation=inspect.Signature.empty)

    def bind(self, door: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that were given, by name; ``refuse_unknown`` says what is raised."""
        refuse_unknown(door, options, self._signature.parameters, self._other)
        return dict(self._signature.bind(*args, **options).arguments)

    def describe(self, function: Any, first: list[inspect.Parameter]) -> None:
        """Give a function the record's signature and the documentation of its fields."""
        function.__signature__ = self._signature.replace(parameters=[*first, *self._signature.parameters.values()])
        described: dict[str, str] = {}
        for one in reversed(inspect.getmro(self.record)):  # type: ignore[arg-type]  # a dataclass
            _, _, fields = inspect.cleandoc(one.__dict__.get("__doc__") or "").partition("\nAttributes:\n")
            described.update(FIELD.findall(fields.partition("\n\n")[0]))
        args = [f"    {name}: {described[name]}" for name in self._signature.parameters if name in described]
        head, raises, rest = inspect.cleandoc(function.__doc__ or "").partition("\nRaises:")
        function.__doc__ = "\n".join([head.rstrip(), "", "Args:", *args, raises + rest])


def refuse_unknown(door: str, given: Iterable[str], known: Iterable[str], other: Mapping[str, str]) -> None:
    """Refuse options that a loader does not have.

    Args:
        door: Name of the loader's class, or of the function.
        given: The options.
        known: Those that it has.
        other: Names that are refused, options of other loaders among them, and what to do instead.

    Raises:
        SettingsError: Another loader has it; the message says what stands for it here.
        TypeError: Nobody has it; the message says which one may be meant.
    """
    known = set(known)
    for name in given:
        if name in known:
            continue
        if name in other:
            raise SettingsError(f"{name}= is no option of {door}: {other[name]}")
        raise TypeError(f"{door} got an unexpected keyword argument {name!r}{did_you_mean(name, known)}")
