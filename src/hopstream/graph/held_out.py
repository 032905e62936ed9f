"""Keeps the links that a model is to predict out of the graph that it sees.

Links to predict move to an edge type of their own, the *supervision* edge type, and those that are held out leave the
edge type that messages follow, and its reverses. What is not there cannot leak, whichever way the graph is sampled. The
graph remembers which edge type holds labels, so that it is followed only where it is named.

A link is a pair of nodes, not an edge: where one edge is held out, every edge between the two leaves, parallel ones
and reverses alike. Those in no split just leave; one in a split that is not held out would be both seen and hidden, so
it is refused, unless ``parallel="remove"`` says that it leaves, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, take_column
from hopstream.checks import did_you_mean
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.graph.splits import group_pairs, only_of
from hopstream.schema import REVERSE_PREFIX, EdgeType, reverse_by_name, type_label


def hold_out_links(
    graph: Graph,
    edge_type: EdgeType | str | None = None,
    supervision_type: EdgeType | None = None,
    *,
    splits: Sequence[str] = ("val", "test"),
    reverse: EdgeType | str | None = REVERSE_PREFIX,
    parallel: Literal["refuse", "remove"] = "refuse",
) -> Graph:
    """Move the splits of an edge type to a supervision edge type, and take held-out edges out of the graph.

    Args:
        graph: The graph, with splits of the edge type; see ``split_links``.
        edge_type: The edge type that the links are of. It may be left out where one has splits.
        supervision_type: A new edge type between the same node types; it must be given. It gets every edge that is in a
            split, in the order of their keys, with features and splits.
        splits: The splits that are held out: their edges leave ``edge_type``, and so do edges in no split that lead
            from and to the same nodes. The edges of other splits are in both.
        reverse: The edge type that holds the reverses of these edges: all edges there that lead from the destination to
            the source of a held-out edge leave, too. Left out, it is known by name: that of ``("a", "r", "b")`` is
            ``("b", "rev_r", "a")``, and without such a partner an edge type between nodes of one type is its own, so
            that edges may be there both ways; split by pair then, so that what leaves is in the same split. A reverse
            type of another name must be given. None says that there are no reverses.
        parallel: What becomes of an edge in a split that is not held out, between the nodes of a held-out one:
            ``refuse`` the graph, or ``remove`` it from ``edge_type`` and ``reverse``; it stays in its split of the
            supervision type.

    Returns:
        The graph with one more edge type, which ``label_types`` names together with the edge types that its links are
        edges of. Edges that are left are numbered anew, in the same order.

    Raises:
        SettingsError: The edge type is not given and not the only one, the supervision type is not given, is there
            already or is between other node types, the reverse type does not lead back, or a parallel edge or the
            reverse of a held-out one is in a split that is not held out.
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
                "if an edge says nothing of its reverse, give reverse=None",
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
    """The supervision type."""
    ends = (edge_type[0], edge_type[2])
    if not isinstance(given, tuple) or len(given) != 3 or (given[0], given[2]) != ends:
        raise SettingsError(
            f"supervision_type is {given!r}; give an edge type from {ends[0]!r} to {ends[1]!r}, as {edge_type!r} is"
        )
    if given in graph.edges:
        raise SettingsError(f"supervision_type {given!r} is there already; give another name")
    if reverse is not None and (reverse[2], reverse[0]) != ends:
        raise SettingsError(
            f"reverse {reverse!r} does not lead back from {ends[1]!r} to {ends[0]!r}, so it holds no reverses"
        )
    return given


def _is_in(num_edges: int, keys: Sequence[IntArray]) -> NDArray[np.bool_]:
    """bool[num_edges], whether each edge key is among some."""
    found = np.zeros(num_edges, np.bool_)
    for some in keys:
        found[some] = True
    return found


def _leads_as(
    graph: Graph, edge_type: EdgeType, is_held: NDArray[np.bool_], other_type: EdgeType, *, is_back: bool
) -> NDArray[np.bool_]:
    """bool[edges of the other type], whether each leads from and to the nodes of a held edge, or back between them."""
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
    """Refuse to hold an edge out whose partner is in a split that is not."""
    for name, keys in named.items():
        torn = keys[is_partner[keys] & ~is_held[keys]]
        if len(torn):
            raise SettingsError(
                f"edge {int(torn[0])} of {type_label(edge_type)} is in split {name!r} and {partner} is held out; split "
                f"by pair, so that both are in one split: split_links(…, by='pair'); or {otherwise}"
            )


def _renumbered(keys: IntArray, is_kept: NDArray[np.bool_]) -> IntArray:
    """The keys that are kept, as numbers among those that are."""
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
