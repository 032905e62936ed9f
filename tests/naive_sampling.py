"""Slow answer for the edges that a request draws, one edge at a time, in keys.

``answer`` takes the request that a store would be given, with keys wherever that has ids, and the graph that the
store's dataset was written from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hopstream.graph.graph import Graph
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import TREE_SHIFT, SampleRequest
from tests import naive, naive_weighted

SCANNED = 512
"""Rows of up to this many edges are always scanned for excluded ones."""
FEW = 64
"""Up to this count, longer rows draw from all of their edges and reject excluded ones."""
MAX_ROUNDS = 8


@dataclass(frozen=True)
class Edge:
    """One edge as the node at one of its ends sees it."""

    neighbor: int
    edge_key: int
    time: int | None
    weight: float | None


def answer(
    graph: Graph, request: SampleRequest, *, time_attr: str | None = None, weight_attr: str | None = None
) -> list[list[tuple[int, int]]]:
    """(key of the neighbour, edge key) of every edge drawn, for each of the keys in ``request.ids``.

    Args:
        graph: The graph.
        request: ``ids``, ``excluded`` and ``candidates`` are keys; with trees, candidates are keys under their trees.
        time_attr: The feature that was given as such when the dataset was written.
        weight_attr: Likewise.
    """
    rows = stored_rows(graph, request.edge_type, request.direction, time_attr, weight_attr)
    drawn = []
    for index, key in enumerate(request.ids.tolist()):
        whole = row = rows[key]
        if request.times is not None and row and row[0].time is not None:
            limit = int(request.times[index])
            row = [
                e for e in row if e.time is not None and (e.time < limit or (e.time == limit and request.is_inclusive))
            ]
        stream = naive.node_stream(request.rng_seed, key)
        if request.trees is not None:
            stream = naive.node_stream(stream, int(request.trees[index]))
        own = of_tree(request, index)
        drawn.append([(e.neighbor, e.edge_key) for e in choose(row, own, key, stream, whole)])
    return drawn


def of_tree(request: SampleRequest, index: int) -> SampleRequest:
    """The request with the candidates of one node's tree, without that tree."""
    if request.trees is None or request.candidates is None:
        return request
    pairs = [(pair >> TREE_SHIFT, pair % (1 << TREE_SHIFT)) for pair in request.candidates.tolist()]
    own = [neighbor for tree, neighbor in pairs if tree == request.trees[index]]
    return replace(request, candidates=np.array(own, np.int64))


def stored_rows(
    graph: Graph,
    edge_type: EdgeType,
    direction: Direction,
    time_attr: str | None = None,
    weight_attr: str | None = None,
) -> list[list[Edge]]:
    """Every node's edges in stored order: by time, if they have one, and equal times in table order."""
    table = graph.edges[edge_type]
    near, far = (edge_type[2], edge_type[0]) if direction == "in" else (edge_type[0], edge_type[2])
    ends, others = (table.dst_keys, table.src_keys) if direction == "in" else (table.src_keys, table.dst_keys)
    rows: list[list[Edge]] = [[] for _ in range(graph.nodes[near].num_nodes)]
    times = [
        np.asarray(column, np.int64)
        for column in (
            table.features.get(time_attr or ""),
            None
            if time_attr not in graph.nodes[far].features
            else np.asarray(graph.nodes[far].features[time_attr])[others],
        )
        if column is not None
    ]
    weights = table.features.get(weight_attr or "")
    for edge_key, (end, other) in enumerate(zip(ends.tolist(), others.tolist(), strict=True)):
        time = max((int(column[edge_key]) for column in times), default=None)
        rows[end].append(Edge(other, edge_key, time, None if weights is None else float(weights[edge_key])))
    for row in rows:
        row.sort(key=lambda edge: 0 if edge.time is None else edge.time)
    return rows


def choose(
    row: Sequence[Edge], request: SampleRequest, key: int, stream: int, whole: Sequence[Edge] | None = None
) -> list[Edge]:
    """Edges that one node draws of ``row``, its edges that are early enough; ``whole`` is its full row."""
    whole = row if whole is None else whole
    excluded = set() if request.excluded is None else {n for k, n in request.excluded.T.tolist() if k == key}
    candidates = None if request.candidates is None else set(request.candidates.tolist())
    eligible = [e for e in row if e.neighbor not in excluded and (candidates is None or e.neighbor in candidates)]
    count = request.count
    if request.strategy == "last":
        return eligible if count < 0 else eligible[max(0, len(eligible) - count) :]
    if request.strategy == "top_k":
        weights = [e.weight or 0.0 for e in eligible]
        return [eligible[p] for p in naive_weighted.take_heaviest(weights, len(weights), count)]
    if request.strategy == "labor":
        assert request.labor is not None
        seeds = request.labor
        keys = [e.neighbor for e in eligible]
        places = {id(e): place for place, e in enumerate(row)}
        own = [places[id(e)] for e in eligible]
        chosen = naive_weighted.draw_labor(keys, count, seeds.first, seeds.second, seeds.share, own)
        return [eligible[p] for p in chosen]
    if excluded and candidates is None and len(row) > SCANNED and 0 <= count <= FEW:
        return skip_excluded(row, eligible, request, stream)
    is_replacing = request.is_replacing and count >= 0
    is_whole = request.strategy == "weighted" and not excluded and candidates is None
    if is_whole and naive_weighted.uses_alias(len(row), len(whole), count, is_replacing):
        weights = [edge.weight or 0.0 for edge in whole]
        return [row[p] for p in naive_weighted.draw_by_alias(stream, weights, len(row), count, is_replacing)]
    return draw(stream, eligible, request, count)


def draw(stream: int, edges: Sequence[Edge], request: SampleRequest, count: int) -> list[Edge]:
    """Some of a list of edges, uniformly or by weight."""
    is_replacing = request.is_replacing and request.count >= 0
    if request.strategy == "weighted":
        weights = [edge.weight or 0.0 for edge in edges]
        return [edges[p] for p in naive_weighted.draw_weighted(stream, weights, count, is_replacing)]
    return [edges[p] for p in naive.draw_from_stream(stream, len(edges), count, is_replacing)]


def skip_excluded(row: Sequence[Edge], eligible: list[Edge], request: SampleRequest, stream: int) -> list[Edge]:
    """Draw from a long row with replacement, and reject edges that are excluded or already drawn.

    Each round draws as many as are missing. After the last round the missing ones are drawn from the remaining edges.
    """
    taken: list[Edge] = []
    turns = 0
    for _ in range(MAX_ROUNDS):
        missing = request.count - len(taken)
        for edge in draw(stream + turns * naive.GOLDEN, row, replace(request, is_replacing=True), missing):
            if edge in eligible and (request.is_replacing or edge not in taken):
                taken.append(edge)
        turns += missing
    rest = eligible if request.is_replacing else [edge for edge in eligible if edge not in taken]
    if len(taken) < request.count:
        taken += draw(stream + turns * naive.GOLDEN, rest, request, request.count - len(taken))
    return taken if request.is_replacing else [edge for edge in row if edge in taken]
