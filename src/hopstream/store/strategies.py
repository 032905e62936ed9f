"""Checks that a dataset can draw neighbours the way a request asks for."""

from __future__ import annotations

from typing import get_args

import numpy as np

from hopstream.arrays import IntArray
from hopstream.checks import known_words
from hopstream.dataset.book import ends_of, owner_label
from hopstream.errors import SettingsError
from hopstream.schema import timed_edge_types
from hopstream.store.contract import MAX_COUNT, MAX_TREES, TREE_SHIFT, SampleRequest, Store, Strategy

STRATEGIES: tuple[str, ...] = get_args(Strategy)
REPLACING: tuple[Strategy, ...] = ("uniform", "weighted")


def check_strategy(store: Store, request: SampleRequest) -> None:
    """Check how a request draws: all of it but its edge type and its ids.

    Raises:
        SettingsError: The dataset lacks what the strategy needs, or fields of the request contradict each other.
    """
    where = owner_label((request.edge_type, request.direction))
    if not -1 <= request.count <= MAX_COUNT:
        raise SettingsError(f"count is {request.count}; give -1 for all neighbours, or 0 to {MAX_COUNT}")
    if request.strategy not in STRATEGIES:
        raise SettingsError(f"strategy is {request.strategy!r}; {known_words(request.strategy, STRATEGIES)}")
    if request.is_replacing and request.count >= 0 and request.strategy not in REPLACING:
        raise SettingsError(f"{where}: strategy {request.strategy!r} draws an edge once; is_replacing must be False")
    if (request.labor is None) == (request.strategy == "labor"):
        given = "without" if request.labor is None else "with"
        raise SettingsError(f"{where}: strategy {request.strategy!r} came {given} labor seeds; they belong together")
    _check_columns(store, request, where)
    _check_arrays(store, request, where)


def has_times(store: Store, request: SampleRequest) -> bool:
    """The edges of the request's edge type have times."""
    return request.edge_type in timed_edge_types(store.schema, store.time_attr, request.direction)


def _check_columns(store: Store, request: SampleRequest, where: str) -> None:
    strategy = request.strategy
    if strategy in ("weighted", "top_k"):
        if store.weight_attr is None:
            raise SettingsError(
                f"{where}: strategy {strategy!r} needs weights, and the dataset was written without; write the parts "
                "again with weight_attr='…', an edge feature"
            )
        if store.weight_attr not in store.schema.edges[request.edge_type]:
            raise SettingsError(
                f"{where}: strategy {strategy!r} needs weights, and the edge type has no feature "
                f"{store.weight_attr!r}; draw its neighbours uniformly"
            )
    if strategy == "last" and not has_times(store, request):
        raise SettingsError(
            f"{where}: strategy 'last' needs times, and "
            + (
                "the dataset was written without; write the parts again with time_attr='…'"
                if store.time_attr is None
                else f"neither the edges nor their neighbours have a feature {store.time_attr!r}"
            )
        )
    if strategy == "labor" and not store.has_neighbor_keys:
        raise SettingsError(
            f"{where}: strategy 'labor' needs the keys of neighbours, and the dataset was written without; write the "
            "parts again with neighbor_keys=True"
        )


def _check_arrays(store: Store, request: SampleRequest, where: str) -> None:
    num_ids = len(request.ids)
    for name, values in (("trees", request.trees), ("times", request.times)):
        if values is not None and (values.shape != (num_ids,) or not _is_integer(values)):
            raise SettingsError(f"{where}: {name} is {values.dtype}{list(values.shape)}; wanted int64[{num_ids}]")
    if request.trees is not None:
        _check_trees(store, request, request.trees, where)
    excluded, candidates = request.excluded, request.candidates
    if excluded is not None and (excluded.ndim != 2 or len(excluded) != 2 or not _is_integer(excluded)):
        raise SettingsError(f"{where}: excluded is {excluded.dtype}{list(excluded.shape)}; wanted int64[2, m]")
    if candidates is not None and (candidates.ndim != 1 or not _is_integer(candidates)):
        raise SettingsError(f"{where}: candidates is {candidates.dtype}{list(candidates.shape)}; wanted int64[c]")


def _is_integer(values: IntArray) -> bool:
    """Whether all integers of this dtype are int64."""
    return values.dtype.kind in "iu" and np.can_cast(values.dtype, np.int64)


def _check_trees(store: Store, request: SampleRequest, trees: IntArray, where: str) -> None:
    if len(trees) and not (int(trees.min()) >= 0 and int(trees.max()) < MAX_TREES):
        wrong = int(trees.min()) if trees.min() < 0 else int(trees.max())
        raise SettingsError(f"{where}: trees hold {wrong}; they are 0..{MAX_TREES - 1}")
    for node_type in ends_of(request.edge_type, request.direction):
        if store.book.num_ids(node_type) > 1 << TREE_SHIFT:
            raise SettingsError(
                f"{where}: node type {node_type!r} has {store.book.num_ids(node_type)} nodes; trees can be of types of "
                f"up to {1 << TREE_SHIFT}"
            )
