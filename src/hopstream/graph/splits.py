"""Splits nodes or links into training, validation and testing, and removes held-out links.

Splits are made before a graph is partitioned, from keys and a seed alone. So they are the same on every machine and for
every number of parts. They are stored with the graph.

Links to predict move to an edge type of their own, the *supervision* edge type. Held-out links are removed from the
edge type that messages follow, and from its reverse type. So they cannot leak, whatever the sampling. The graph records
that the supervision edge type holds labels, so that samplers follow it only if a plan names it.

A link is a pair of nodes, not an edge. If one edge is held out, every edge between the two nodes is removed, including
parallel and reverse edges. Edges in no split are just removed. An edge in a split that is not held out would be both
visible and hidden, so it is refused, unless ``parallel="remove"`` removes it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, TypedDict, Unpack, cast, get_args

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray, take_column
from hopstream.checks import Settings, check_int, did_you_mean
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.kernels.hashing import derive_seed, hash_keys, permute_range
from hopstream.schema import REVERSE_PREFIX, EdgeType, reverse_by_name, type_label

SplitMethod = Literal["random", "hash", "time"]
LinkUnit = Literal["edge", "pair", "src", "dst"]
Share = float | int
"""A float is a share of all items, from 0 to 1; an integer is a number of items."""

NO_SPLIT, TRAIN, VAL, TEST = range(4)
HASH_BITS = 53
"""Bits of a hash that are compared with shares; as many as a float has."""


class SplitOptions(TypedDict, total=False):
    """The fields of ``SplitSettings`` as keyword arguments."""

    val: Share
    test: Share
    train: Share | None
    method: SplitMethod
    rng_seed: int
    names: tuple[str, str, str]
    time_attr: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings(Settings):
    """Settings of splits of nodes or links. The descriptions say nodes; they apply to links as well.

    Attributes:
        val: Share or number of the validation nodes; 0 makes no such split, and removes an old one of that name.
        test: Share or number of the test nodes; 0 makes no such split, and removes an old one of that name.
        train: Share or number of the training nodes; None for all others. The remaining nodes are in no split.
        method: ``random`` gives exact numbers, by a permutation of all keys. ``hash`` uses a hash of each key, so
            shares are met on average, and adding nodes moves no others. ``time`` puts the latest nodes into testing,
            the nodes before them into validation, and the nodes before these into training.
        rng_seed: 0 to 2**64 - 1; equal seeds give equal splits.
        names: Names of the splits for training, validation and testing.
        time_attr: The feature that holds the time of a node or edge, for ``time``.

    Raises:
        SettingsError: A field has an invalid value.
    """

    val: Share = 0.1
    test: Share = 0.1
    train: Share | None = None
    method: SplitMethod = "random"
    rng_seed: int = 0
    names: tuple[str, str, str] = ("train", "val", "test")
    time_attr: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if self.method not in get_args(SplitMethod):
            known = get_args(SplitMethod)
            raise SettingsError(f"method is {self.method!r}; give {'|'.join(known)}{did_you_mean(self.method, known)}")
        for name in ("val", "test", "train"):
            self._check_share(name, getattr(self, name))
        shares = [share for share in (self.val, self.test, self.train) if isinstance(share, float)]
        if sum(shares) > 1 + 1e-9:
            raise SettingsError(f"val {self.val}, test {self.test} and train {self.train} add up to more than 1")
        check_int("rng_seed", self.rng_seed, 0, 2**64 - 1)
        names = self.names
        if not isinstance(names, list | tuple) or len(names) != 3 or len(set(names)) != 3:
            raise SettingsError(f"names is {names!r}; give three distinct names, for training, validation and testing")
        if (self.time_attr is not None) != (self.method == "time"):
            raise SettingsError(
                f"method is {self.method!r} and time_attr {self.time_attr!r}; give time_attr with method 'time', and "
                "only then"
            )

    def _check_share(self, name: str, share: object) -> None:
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if share is None and name == "train":
            return
        if not is_number or not cast(float, share) >= 0 or (isinstance(share, float) and share > 1):
            raise SettingsError(f"{name} is {share!r}; give a share from 0.0 to 1.0, or a number as an integer")
        if self.method == "hash" and not isinstance(share, float) and share != 0:
            raise SettingsError(
                f"{name} is {share!r}; method 'hash' supports only shares: give a float from 0.0 to 1.0"
            )


def split_nodes(graph: Graph, node_type: str | None = None, **options: Unpack[SplitOptions]) -> Graph:
    """Split the nodes of one type into training, validation and testing.

    Args:
        graph: The graph.
        node_type: The type; optional if there is only one.
        **options: Fields of ``SplitSettings``: ``val``, ``test``, ``train``, ``method``, ``rng_seed``, ``names``,
            ``time_attr``.

    Returns:
        The graph with these splits. Other splits of the type stay, except those with one of the ``names``.

    Raises:
        SettingsError: An option has an invalid value, or asks for more nodes than there are.
        UnknownNameError: The graph has no such node type, or the type has no feature ``time_attr``.
        SchemaError: The feature ``time_attr`` is not one number per row.
    """
    settings = SplitSettings(**options)
    node_type = cast(str, only_of("node_type", node_type, list(graph.nodes)))
    graph.schema.check_node_type(node_type)
    nodes = graph.nodes[node_type]
    times = None
    if settings.time_attr is not None:
        graph.schema.feature(node_type, settings.time_attr)
        times = _times(node_type, nodes.features, settings.time_attr)
    if settings.method == "hash":
        places = places_of_keys(node_type, np.arange(nodes.num_nodes, dtype=np.int64), settings)
    else:
        places = _places(node_type, nodes.num_nodes, settings, hashes=None, times=times)
    splits = _with_new(graph.splits.get(node_type, {}), places, settings)
    return replace(graph, splits={**graph.splits, node_type: splits}).check()


def places_of_keys(node_type: str, keys: IntArray, settings: SplitSettings) -> NDArray[np.int8]:
    """Return int8[n], the split of some nodes by the hash of their keys, independent of other nodes.

    Args:
        node_type: Type of the nodes.
        keys: int64[n].
        settings: Shares and the seed; the method is taken to be ``hash``.

    Returns:
        ``TRAIN``, ``VAL``, ``TEST`` or ``NO_SPLIT``, as in ``split_nodes`` of a graph with these nodes.
    """
    return _places(node_type, len(keys), settings, hashes=_node_hashes(node_type, keys, settings.rng_seed), times=None)


def split_links(
    graph: Graph, edge_type: EdgeType | str | None = None, *, by: LinkUnit = "edge", **options: Unpack[SplitOptions]
) -> Graph:
    """Split the edges of one type into training, validation and testing of link prediction.

    The edges stay in their edge type. ``hold_out_links`` then hides the edges to predict from the model.

    Args:
        graph: The graph.
        edge_type: The type, also as ``source__relation__destination``; optional if there is only one.
        by: The unit that is split: ``edge``; ``pair``, all edges between the same two nodes, including reverses if both
            nodes are of one type; ``src`` or ``dst``, all edges of one source or destination. Numbers count units. The
            hash of a unit is that of the edge's key, of the keys of both nodes, or of the key of the one node. The time
            of a unit is that of its latest edge.
        **options: Fields of ``SplitSettings``. The time of an edge is its own, or else the later time of its ends.

    Returns:
        The graph with these splits of edges. Other splits of the type stay, except those with one of the ``names``.

    Raises:
        SettingsError: An option has an invalid value, or asks for more units than there are.
        UnknownNameError: The graph has no such edge type, or neither the type nor its ends have ``time_attr``.
        SchemaError: A feature ``time_attr`` is not one number per row.
    """
    settings = SplitSettings(**options)
    edge_type = graph.schema.edge_type_of(only_of("edge_type", edge_type, list(graph.edges)))
    if by not in get_args(LinkUnit):
        raise SettingsError(f"by is {by!r}; give {'|'.join(get_args(LinkUnit))}{did_you_mean(by, get_args(LinkUnit))}")
    units = _link_units(graph, edge_type, by)
    num_units = int(units.max()) + 1 if len(units) else 0
    hashes = times = None
    if settings.method == "hash":
        hashes = np.empty(num_units, np.uint64)
        hashes[units] = _link_hashes(graph, edge_type, by, settings.rng_seed)
    if settings.time_attr is not None:
        edge_times = _link_times(graph, edge_type, settings.time_attr)
        order = np.argsort(edge_times, kind="stable")
        times = np.empty(num_units, edge_times.dtype)
        times[units[order]] = edge_times[order]  # for equal indices numpy keeps the last value: the latest time
    label = f"{type_label(edge_type)} by {by}"
    places = _places(label, num_units, settings, hashes=hashes, times=times)[units]
    splits = _with_new(graph.edge_splits.get(edge_type, {}), places, settings)
    return replace(graph, edge_splits={**graph.edge_splits, edge_type: splits}).check()


def only_of(what: str, given: Any, known: Sequence[Any]) -> Any:
    """Return the given value, or the only known one."""
    if given is None and len(known) != 1:
        raise SettingsError(f"{what} is not given, but the graph has {len(known)}; give one of {known}")
    return known[0] if given is None else given


def _places(
    label: str, num_units: int, settings: SplitSettings, *, hashes: NDArray[np.uint64] | None, times: Array | None
) -> NDArray[np.int8]:
    """Return int8[num_units], the split of each unit: ``TRAIN``, ``VAL``, ``TEST`` or ``NO_SPLIT``."""
    places = np.full(num_units, TRAIN if settings.train is None else NO_SPLIT, np.int8)
    if hashes is not None:
        bounds = [int(bound * (1 << HASH_BITS)) for bound in _bounds(settings, 1.0)]
        values = hashes >> np.uint64(64 - HASH_BITS)
        for place, low, high in zip((VAL, TEST, TRAIN), (0, *bounds), bounds, strict=False):
            places[(values >= low) & (values < high)] = place
        return places
    bounds = [round(bound) for bound in _bounds(settings, num_units)]
    if bounds[-1] > num_units:
        raise SettingsError(
            f"val {settings.val}, test {settings.test} and train {settings.train} need {bounds[-1]}; there are "
            f"{num_units} of {label}"
        )
    chosen = (VAL, TEST, TRAIN)
    if times is not None:
        order = np.argsort(times, kind="stable")[::-1]
        chosen = (TEST, VAL, TRAIN)
        bounds[0] = bounds[1] - bounds[0]
    else:
        order = np.empty(num_units, np.int64)
        if num_units:
            permute_range(0, num_units, np.uint64(derive_seed("random split", label, settings.rng_seed)), order)
    for place, low, high in zip(chosen, (0, *bounds), bounds, strict=False):
        places[order[low:high]] = place
    return places


def _bounds(settings: SplitSettings, total: float) -> list[float]:
    """Return the cumulative ends of the shares for validation, testing and, if given, training."""
    shares = [settings.val, settings.test, *([] if settings.train is None else [settings.train])]
    return list(accumulate(share * total if isinstance(share, float) else float(share) for share in shares))


def _with_new(known: Mapping[str, IntArray], places: NDArray[np.int8], settings: SplitSettings) -> dict[str, IntArray]:
    """Return the keys by split name: old splits of other names, then the requested new splits."""
    asked = (settings.train is None or settings.train > 0, settings.val > 0, settings.test > 0)
    new = {
        name: np.flatnonzero(places == place).astype(np.int64, copy=False)
        for name, place, is_asked in zip(settings.names, (TRAIN, VAL, TEST), asked, strict=True)
        if is_asked
    }
    return {**{name: keys for name, keys in known.items() if name not in settings.names}, **new}


def _node_hashes(node_type: str, keys: IntArray, rng_seed: int) -> NDArray[np.uint64]:
    return _hashes(keys, derive_seed("split", node_type, rng_seed))


def _hashes(keys: IntArray, rng_seed: int) -> NDArray[np.uint64]:
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(np.ascontiguousarray(keys), np.uint64(rng_seed), hashes)
    return hashes


def _link_units(graph: Graph, edge_type: EdgeType, by: LinkUnit) -> IntArray:
    """Return int64[num_edges], the dense number of each edge's unit, in the order of keys."""
    edges = graph.edges[edge_type]
    if by == "edge":
        return np.arange(edges.num_edges, dtype=np.int64)
    if by == "pair":
        return group_pairs(*_pair_ends(graph, edge_type))
    _, units = np.unique(edges.src_keys if by == "src" else edges.dst_keys, return_inverse=True)
    return units.astype(np.int64, copy=False)


def _pair_ends(graph: Graph, edge_type: EdgeType) -> tuple[IntArray, IntArray]:
    """Return the two ends of each edge; the smaller key comes first if both are of one type."""
    edges = graph.edges[edge_type]
    if edge_type[0] != edge_type[2]:
        return edges.src_keys, edges.dst_keys
    return np.minimum(edges.src_keys, edges.dst_keys), np.maximum(edges.src_keys, edges.dst_keys)


def group_pairs(first: IntArray, second: IntArray) -> IntArray:
    """Return int64[n], dense numbers of pairs in ascending order; equal pairs have equal numbers."""
    order = np.lexsort((second, first))
    is_new = np.zeros(len(order), np.bool_)
    is_new[1:] = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new)
    return numbers


def _link_hashes(graph: Graph, edge_type: EdgeType, by: LinkUnit, rng_seed: int) -> NDArray[np.uint64]:
    """Return uint64[num_edges], the hash of each edge's unit."""
    edges, label = graph.edges[edge_type], type_label(edge_type)
    if by == "edge":
        return _hashes(np.arange(edges.num_edges, dtype=np.int64), derive_seed("split edges", label, rng_seed))
    if by == "pair":
        first, second = _pair_ends(graph, edge_type)
        # Each end is hashed with its own seed. So the sum is uniform, and differs between (a, b) and (b, a).
        left = _hashes(first, derive_seed("split pairs", label, rng_seed, "first"))
        left += _hashes(second, derive_seed("split pairs", label, rng_seed, "second"))
        return left
    node_type, keys = (edge_type[0], edges.src_keys) if by == "src" else (edge_type[2], edges.dst_keys)
    return _node_hashes(node_type, keys, rng_seed)


def _link_times(graph: Graph, edge_type: EdgeType, time_attr: str) -> Array:
    """Return the time of each edge: its own, or else the later time of its ends."""
    edges = graph.edges[edge_type]
    if time_attr in edges.features:
        return _times(type_label(edge_type), edges.features, time_attr)
    ends = [
        _times(node_type, graph.nodes[node_type].features, time_attr)[keys]
        for node_type, keys in ((edge_type[0], edges.src_keys), (edge_type[2], edges.dst_keys))
        if time_attr in graph.nodes[node_type].features
    ]
    if not ends:
        raise UnknownNameError(
            f"neither {type_label(edge_type)} nor {edge_type[0]!r} nor {edge_type[2]!r} has a feature {time_attr!r}"
        )
    return ends[0] if len(ends) == 1 else np.maximum(*ends)


def _times(label: str, features: Mapping[str, Any], name: str) -> Array:
    column = features[name]
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iuf":
        raise SchemaError(f"{label}.{name} is not one number per row, so it cannot be a time")
    if column.dtype.kind == "f" and bool(np.isnan(column).any()):
        raise SchemaError(f"{label}.{name}[{int(np.argmax(np.isnan(column)))}] is not a number, so it cannot be a time")
    return column


def hold_out_links(
    graph: Graph,
    edge_type: EdgeType | str | None = None,
    supervision_type: EdgeType | None = None,
    *,
    splits: Sequence[str] = ("val", "test"),
    reverse: EdgeType | str | None = REVERSE_PREFIX,
    parallel: Literal["refuse", "remove"] = "refuse",
) -> Graph:
    """Move the splits of an edge type to a supervision edge type, and remove held-out edges.

    Args:
        graph: The graph, with splits of the edge type; see ``split_links``.
        edge_type: The edge type of the links; optional if only one has splits.
        supervision_type: A new edge type between the same node types; required. It gets every edge that is in a split,
            in the order of keys, with features and splits.
        splits: The held-out splits. Their edges are removed from ``edge_type``, together with edges in no split between
            the same nodes. Edges of other splits are in both types.
        reverse: The edge type that holds the reverses of these edges. Its edges from the destination to the source of a
            held-out edge are removed too. By default the name decides: the reverse of ``("a", "r", "b")`` is ``("b",
            "rev_r", "a")``. If there is no such type, an edge type between nodes of one type is its own reverse. Then
            split by pair, so that both directions are in the same split. Give the type if it has another name. None
            means that there are no reverses.
        parallel: What happens to an edge in another split between the nodes of a held-out edge: ``refuse`` raises an
            error; ``remove`` removes it from ``edge_type`` and ``reverse``, but it stays in its split of the
            supervision type.

    Returns:
        The graph with one more edge type. ``label_types`` maps it to the edge types of its links. The remaining edges
        are renumbered, in the same order.

    Raises:
        SettingsError: The edge type is not given and not the only one. The supervision type is not given, exists
            already or is between other node types. The reverse type does not lead back. Or a parallel edge or the
            reverse of a held-out edge is in a split that is not held out.
        UnknownNameError: The graph has no such edge type or split.
    """
    schema = graph.schema
    with_splits = [t for t in graph.edges if graph.edge_splits.get(t) and t not in graph.label_types]
    edge_type = schema.edge_type_of(only_of("edge_type", edge_type, with_splits or list(graph.edges)))
    if reverse == REVERSE_PREFIX:
        reverse = reverse_by_name(edge_type, graph.edges)
    reverse = None if reverse is None else schema.edge_type_of(reverse)
    supervision_type = _checked_types(graph, edge_type, supervision_type, reverse)
    named = graph.edge_splits.get(edge_type, {})
    unknown = [name for name in splits if name not in named]
    if unknown or not named:
        meant = did_you_mean(unknown[0], named) if unknown else ""
        what = f"{type_label(edge_type)} has no split {unknown or 'at all'}"
        raise UnknownNameError(f"{what}; it has {list(named)}{meant}")
    num_edges = graph.edges[edge_type].num_edges
    if parallel not in ("refuse", "remove"):
        raise SettingsError(f"parallel is {parallel!r}; give refuse|remove")
    is_held = _is_in(num_edges, [named[name] for name in splits])
    is_parallel = _leads_as(graph, edge_type, is_held, edge_type, is_back=False)
    if parallel == "refuse":
        _refuse_torn(
            edge_type, is_held, is_parallel, named, "a parallel edge", "drop one of the two, or parallel='remove'"
        )
    is_kept = {edge_type: ~is_parallel}
    if reverse is not None:
        is_reverse = _leads_as(graph, edge_type, is_held, reverse, is_back=True)
        if reverse == edge_type and parallel == "refuse":
            _refuse_torn(
                edge_type,
                is_held,
                is_reverse,
                named,
                "its reverse",
                "if the reverse of an edge does not imply the edge, give reverse=None",
            )
        is_kept[reverse] = is_kept.get(reverse, np.True_) & ~is_reverse
    is_supervision = _is_in(num_edges, list(named.values()))
    moved = {name: _renumbered(keys, is_supervision) for name, keys in named.items()}
    edges = {t: _taken(table, is_kept[t]) if t in is_kept else table for t, table in graph.edges.items()}
    edge_splits = {
        t: {name: _renumbered(keys, is_kept[t]) if t in is_kept else keys for name, keys in of.items()}
        for t, of in graph.edge_splits.items()
        if t != edge_type
    }
    taken_from = (edge_type,) if reverse in (None, edge_type) else (edge_type, reverse)
    return replace(
        graph,
        edges={**edges, supervision_type: _taken(graph.edges[edge_type], is_supervision)},
        edge_splits={**edge_splits, supervision_type: moved},
        label_types={**graph.label_types, supervision_type: taken_from},
    ).check()


def _checked_types(graph: Graph, edge_type: EdgeType, given: Any, reverse: EdgeType | None) -> EdgeType:
    """Check the supervision type and the reverse type; return the supervision type."""
    ends = (edge_type[0], edge_type[2])
    if not isinstance(given, tuple) or len(given) != 3 or (given[0], given[2]) != ends:
        raise SettingsError(
            f"supervision_type is {given!r}; give an edge type from {ends[0]!r} to {ends[1]!r}, as {edge_type!r} is"
        )
    if given in graph.edges:
        raise SettingsError(f"supervision_type {given!r} exists already; give another name")
    if reverse is not None and (reverse[2], reverse[0]) != ends:
        raise SettingsError(
            f"reverse {reverse!r} does not lead back from {ends[1]!r} to {ends[0]!r}, so it holds no reverses"
        )
    return given


def _is_in(num_edges: int, keys: Sequence[IntArray]) -> NDArray[np.bool_]:
    """Return bool[num_edges], whether each edge key is in one of the arrays."""
    found = np.zeros(num_edges, np.bool_)
    for some in keys:
        found[some] = True
    return found


def _leads_as(
    graph: Graph, edge_type: EdgeType, is_held: NDArray[np.bool_], other_type: EdgeType, *, is_back: bool
) -> NDArray[np.bool_]:
    """Return bool[edges of the other type], whether each connects the nodes of a held edge.

    With ``is_back`` it must lead from the destination to the source, otherwise from the source to the destination.
    """
    edges, others = graph.edges[edge_type], graph.edges[other_type]
    held = np.flatnonzero(is_held)
    src_keys, dst_keys = (edges.dst_keys, edges.src_keys) if is_back else (edges.src_keys, edges.dst_keys)
    numbers = group_pairs(
        np.concatenate([src_keys[held], others.src_keys]), np.concatenate([dst_keys[held], others.dst_keys])
    )
    is_wanted = np.zeros(int(numbers.max(initial=-1)) + 1, np.bool_)
    is_wanted[numbers[: len(held)]] = True
    found: NDArray[np.bool_] = is_wanted[numbers[len(held) :]]
    return found


def _refuse_torn(
    edge_type: EdgeType,
    is_held: NDArray[np.bool_],
    is_partner: NDArray[np.bool_],
    named: Mapping[str, IntArray],
    partner: str,
    otherwise: str,
) -> None:
    """Refuse to hold out an edge whose partner is in a split that is not held out."""
    for name, keys in named.items():
        torn = keys[is_partner[keys] & ~is_held[keys]]
        if len(torn):
            raise SettingsError(
                f"edge {int(torn[0])} of {type_label(edge_type)} is in split {name!r}, but {partner} is held out; use "
                f"split_links(…, by='pair'), which puts both into one split, or {otherwise}"
            )


def _renumbered(keys: IntArray, is_kept: NDArray[np.bool_]) -> IntArray:
    """Return the kept keys, renumbered among the kept edges."""
    numbers = np.cumsum(is_kept, dtype=np.int64) - 1
    found: IntArray = numbers[keys[is_kept[keys]]]
    return found


def _taken(table: EdgeTable, is_taken: NDArray[np.bool_]) -> EdgeTable:
    rows = np.flatnonzero(is_taken)
    return EdgeTable(
        src_keys=table.src_keys[rows],
        dst_keys=table.dst_keys[rows],
        features={name: take_column(column, rows) for name, column in table.features.items()},
    )
