"""Request checks: validate requests against the dataset, and derive the dtypes of answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, is_within
from hopstream.checks import known_names, known_words
from hopstream.dataset.book import Entity, PartitionBook, ends_of, entity_label, number_dtype
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.schema import Direction, EdgeType, FeatureSchema, timed_edge_types, type_label
from hopstream.store.contract import (
    BY_WEIGHT,
    KEY,
    KEY_SCHEMA,
    MAX_COUNT,
    MAX_TREES,
    REPLACING,
    STORED_ORDER,
    STRATEGIES,
    TREE_SHIFT,
    FetchRequest,
    LaborSeeds,
    SampleRequest,
    Store,
)


def check_strategy(store: Store, request: SampleRequest) -> None:
    """Check all of a request but its edge type, direction and ids.

    Raises:
        SettingsError: The dataset lacks what the strategy needs, or fields contradict each other.
    """
    where = entity_label((request.edge_type, request.direction))
    if not -1 <= request.count <= MAX_COUNT:
        raise SettingsError(f"count is {request.count}; give -1 for all neighbours, or 0 to {MAX_COUNT}")
    if request.strategy not in STRATEGIES:
        raise SettingsError(f"strategy is {request.strategy!r}; {known_words(request.strategy, STRATEGIES)}")
    if request.is_replacing and request.count >= 0 and request.strategy not in REPLACING:
        raise SettingsError(f"{where}: strategy {request.strategy!r} draws an edge once; is_replacing must be False")
    if (request.labor is None) == (request.strategy == "labor"):
        given = "needs labor seeds" if request.labor is None else "takes no labor seeds; leave them out"
        raise SettingsError(f"{where}: strategy {request.strategy!r} {given}")
    _check_columns(store, request, where)
    _check_arrays(store, request, where)


def has_times(store: Store, request: SampleRequest) -> bool:
    """Return whether the edges of the request's edge type have times."""
    return request.edge_type in timed_edge_types(store.schema, store.time_attr, request.direction)


def _check_columns(store: Store, request: SampleRequest, where: str) -> None:
    strategy = request.strategy
    if strategy in BY_WEIGHT:
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
    """Return whether every value of the dtype fits int64."""
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


TREE_MASK = np.int64((1 << TREE_SHIFT) - 1)
SEED_STOP = 1 << 64


def neighbor_dtype(book: PartitionBook, edge_type: EdgeType, direction: Direction) -> np.dtype[Any]:
    """Return the dtype in which a dataset stores the neighbours of an edge type."""
    return number_dtype(book.num_ids(ends_of(edge_type, direction)[1]))


def column_feature(store: Store, entity: Entity, name: str) -> FeatureSchema:
    """Return the schema of a column that can be fetched, ``KEY`` included.

    Raises:
        UnknownNameError: The dataset has no such type, direction or feature.
    """
    check_entity(store, entity)
    return KEY_SCHEMA if name == KEY else store.schema.feature(entity if isinstance(entity, str) else entity[0], name)


def check_entity(store: Store, entity: Entity) -> None:
    """Raise ``UnknownNameError`` if the dataset lacks the node type, or the edge type in this direction."""
    if isinstance(entity, str):
        store.schema.check_node_type(entity)
        return
    store.schema.check_edge_type(entity[0])
    if entity not in store.book.edge_offsets:
        raise UnknownNameError(
            f"{entity_label(entity)}: the dataset holds direction {'|'.join(store.directions)}; "
            f"write the parts again with direction {entity[1]!r} or 'both'"
        )


def check_split(store: Store, node_type: str, name: str) -> None:
    """Raise ``UnknownNameError`` if the node type lacks the split."""
    store.schema.check_node_type(node_type)
    known = store.schema.splits.get(node_type, ())
    if name not in known:
        remedy = "; split_nodes(graph, …) makes splits before the parts are written, or give keys" if not known else ""
        raise UnknownNameError(f"node type {node_type!r} has no split {name!r}; {known_names(name, known)}{remedy}")


def check_edge_split(store: Store, edge_type: EdgeType, name: str) -> None:
    """Raise ``UnknownNameError`` if the edge type lacks the split."""
    store.schema.check_edge_type(edge_type)
    known = store.schema.edge_splits.get(edge_type, ())
    if name not in known:
        remedy = "; split_links(graph, …) makes splits before the parts are written" if not known else ""
        raise UnknownNameError(
            f"edge type {type_label(edge_type)} has no split {name!r}; {known_names(name, known)}{remedy}"
        )


def check_links(store: Store, edge_type: EdgeType, edge_keys: IntArray) -> None:
    """Raise ``UnknownNameError`` if the type keeps no links, ``IdRangeError`` if a key is out of range."""
    store.schema.check_edge_type(edge_type)
    if edge_type not in store.schema.edge_splits:
        kept = [type_label(each) for each in store.schema.edge_splits]
        raise UnknownNameError(
            f"the dataset keeps no links of edge type {type_label(edge_type)}, only of {kept}; "
            "write the parts again with links of it"
        )
    _check_integers("edge_keys", edge_keys, (len(edge_keys),))
    _check_range(f"{type_label(edge_type)} edge_keys", edge_keys, store.book.num_edges(edge_type))


def has_own_times(store: Store, edge_type: EdgeType) -> bool:
    """Return whether the edges of a type have times of their own, which ``links`` returns."""
    return store.time_attr is not None and store.time_attr in store.schema.edges[edge_type]


def check_find_edges(
    store: Store, edge_type: EdgeType, direction: Direction, ids: IntArray, neighbor_ids: IntArray
) -> None:
    """Check the arguments of ``find_edges``, but not which parts own the ids.

    Raises:
        UnknownNameError: The dataset has no such edge type or direction.
        SettingsError: ``neighbor_ids`` is no integer array of the length of ``ids``.
        IdRangeError: An id is outside the range of its node type.
    """
    check_entity(store, (edge_type, direction))
    near, far = ends_of(edge_type, direction)
    store.book.check_ids(near, ids)
    _check_integers("neighbor_ids", neighbor_ids, (len(ids),))
    _check_range(f"{far} neighbor_ids", neighbor_ids, store.book.num_ids(far))


def check_sample_request(store: Store, request: SampleRequest) -> None:
    """Check a request, but not which parts own its ids.

    Raises:
        UnknownNameError: The dataset has no such edge type or direction.
        SettingsError: A field is out of range, has the wrong shape, or contradicts another field; or the dataset lacks
            the weights, times or keys that the strategy needs.
        IdRangeError: An id of a node or neighbour is outside the range of its type.
    """
    check_entity(store, (request.edge_type, request.direction))
    check_strategy(store, request)
    _check_seed("rng_seed", request.rng_seed)
    if request.labor is not None:
        _check_labor(request.labor)
    near, far = ends_of(request.edge_type, request.direction)
    store.book.check_ids(near, request.ids)
    if request.excluded is not None:
        _check_integers("excluded", request.excluded, (2, request.excluded.shape[1]))
        _check_range(f"excluded[0], {near} ids,", request.excluded[0], store.book.num_ids(near))
        _check_range(f"excluded[1], {far} ids,", request.excluded[1], store.book.num_ids(far))
    if request.candidates is not None:
        _check_candidates(far, request.candidates, store.book.num_ids(far), has_trees=request.trees is not None)


def answers_ranges(request: SampleRequest) -> bool:
    """Return whether a node whose eligible edges are all drawn returns one range of its stored edges."""
    return (
        request.strategy in STORED_ORDER
        and (request.count < 0 or not request.is_replacing)
        and (request.excluded is None or request.excluded.size == 0)
        and request.candidates is None
    )


def check_fetch_request(store: Store, request: FetchRequest) -> dict[str, FeatureSchema]:
    """Check a request, but not which parts own its ids; return the schemas of its columns.

    Raises:
        UnknownNameError: The dataset has no such type, direction or feature.
        SettingsError: ``out`` does not fit the columns.
        IdRangeError: An id is outside the range of its type.
    """
    check_entity(store, request.entity)
    features = {name: column_feature(store, request.entity, name) for name in request.names}
    for name, out in (request.out or {}).items():
        if name in features:
            _check_out(name, features[name], out, len(request.ids))
    store.book.check_ids(request.entity, request.ids)
    return features


def check_keys(store: Store, node_type: str, keys: IntArray) -> None:
    """Raise ``UnknownNameError`` if there is no such node type, ``IdRangeError`` if a key is out of range."""
    store.schema.check_node_type(node_type)
    num_nodes = store.book.num_ids(node_type)
    if not is_within(keys, 0, num_nodes):
        row = int(np.flatnonzero((keys < 0) | (keys >= num_nodes))[0])
        raise IdRangeError(f"{node_type} keys[{row}] is {int(keys[row])}; they are 0..{num_nodes - 1}")


def _check_labor(labor: LaborSeeds) -> None:
    _check_seed("labor.first", labor.first)
    _check_seed("labor.second", labor.second)
    if not 0 <= labor.share < 1:
        raise SettingsError(f"labor.share is {labor.share}; it must be at least 0 and below 1")


def _check_seed(name: str, seed: int) -> None:
    if not 0 <= seed < SEED_STOP:
        raise SettingsError(f"{name} is {seed}; it is 64 bits, 0..{SEED_STOP - 1}")


def _check_integers(name: str, array: IntArray, shape: tuple[int, ...]) -> None:
    """Refuse an array with another shape, or with a dtype that does not fit int64."""
    is_integer = array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64)
    if not is_integer or array.shape != shape:
        wanted = f"int64[{', '.join(map(str, shape))}]"
        raise SettingsError(f"{name} is {array.dtype}[{', '.join(map(str, array.shape))}]; give {wanted}")


def _check_range(what: str, values: IntArray, stop: int) -> None:
    if not is_within(values, 0, stop):
        row = int(np.flatnonzero((values < 0) | (values >= stop))[0])
        raise IdRangeError(f"{what}[{row}] is {int(values[row])}; they are 0..{stop - 1}")


def _check_candidates(node_type: str, candidates: IntArray, num_ids: int, *, has_trees: bool) -> None:
    _check_integers("candidates", candidates, (len(candidates) if candidates.ndim else 0,))
    if bool(np.any(candidates[1:] <= candidates[:-1])):
        row = int(np.flatnonzero(candidates[1:] <= candidates[:-1])[0])
        raise SettingsError(
            f"candidates[{row + 1}] is {int(candidates[row + 1])} after {int(candidates[row])}; "
            "give them ascending, each once"
        )
    if has_trees and len(candidates) and int(candidates[0]) < 0:
        raise IdRangeError(
            f"candidates[0] is {int(candidates[0])}; with trees they are pairs tree << {TREE_SHIFT} | id"
        )
    ids = candidates & TREE_MASK if has_trees else candidates
    _check_range(f"candidates, {node_type} ids,", ids, num_ids)


def _check_out(name: str, feature: FeatureSchema, out: Array, num_rows: int) -> None:
    if not feature.is_fixed_width:
        raise SettingsError(f"out[{name!r}] was given; the column is {feature}, whose rows differ in length")
    if out.dtype != feature.numpy_dtype or out.shape[1:] != feature.shape or not out.flags.c_contiguous:
        raise SettingsError(f"out[{name!r}] is {out.dtype}{list(out.shape)}; the column is {feature}, C-contiguous")
    if len(out) < num_rows:
        raise SettingsError(f"out[{name!r}] has {len(out)} rows; the request writes {num_rows}")
