"""Checks that every edge drawn may be drawn, and that there are as many as can be, whatever is asked together."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from hopstream.store.contract import KEY, TREE_SHIFT, FetchRequest, LaborSeeds, SampleRequest
from hopstream.store.local import LocalStore
from tests.naive_sampling import Edge, stored_rows
from tests.store.ways_contract import candidates_in_ids

MAX_TIME = 5
STRATEGIES = ("uniform", "weighted", "top_k", "last", "labor")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Few nodes, many parallel edges, few times, and weights of which some are 0."""
    num_nodes, num_edges = draw(st.integers(1, 6)), draw(st.integers(1, 40))

    def column(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=num_edges, max_size=num_edges))

    keys = st.integers(0, num_nodes - 1)
    weights = column(st.sampled_from([0.0, 1e-30, 0.5, 1e6]))
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes)},
        edges={
            EDGE: EdgeTable(
                src_keys=np.array(column(keys), np.int64),
                dst_keys=np.array(column(keys), np.int64),
                features={
                    "time": np.array(column(st.integers(0, MAX_TIME)), np.int64),
                    "weight": np.array([1.0, *weights[1:]]),
                },
            )
        },
    )


@st.composite
def asked(draw: st.DrawFn, num_nodes: int) -> SampleRequest:
    """A request in keys for all nodes, with any fields together that go together."""
    strategy = draw(st.sampled_from(STRATEGIES))
    pairs = draw(st.none() | st.lists(st.tuples(*[st.integers(0, num_nodes - 1)] * 2), max_size=6))
    trees = draw(st.none() | st.just(np.arange(num_nodes) * 3))
    candidates = draw(st.none() | st.sets(st.tuples(st.integers(0, num_nodes), st.integers(0, num_nodes - 1))))
    if trees is None and candidates is not None:
        candidates = {(0, neighbor) for _, neighbor in candidates}
    return SampleRequest(
        edge_type=EDGE,
        direction=draw(st.sampled_from(["in", "out"])),
        ids=np.arange(num_nodes),
        count=draw(st.sampled_from([-1, 0, 1, 2, 5, 50])),
        is_replacing=strategy in ("uniform", "weighted") and draw(st.booleans()),
        rng_seed=draw(st.integers(0, (1 << 64) - 1)),
        wants_edge_ids=True,
        strategy=strategy,
        trees=trees,
        times=np.array([draw(st.integers(-1, MAX_TIME)) for _ in range(num_nodes)]) if draw(st.booleans()) else None,
        is_inclusive=draw(st.booleans()),
        excluded=None if pairs is None else np.array(pairs, np.int64).reshape(-1, 2).T,
        candidates=None
        if candidates is None
        else np.array(sorted(tree * 3 << TREE_SHIFT | n for tree, n in candidates), np.int64),
        labor=LaborSeeds(first=draw(st.integers(0, 9)), share=0.5) if strategy == "labor" else None,
    )


def eligible_edges(row: list[Edge], request: SampleRequest, key: int) -> list[Edge]:
    """What a node may draw, word by word as the request's fields say it."""
    limit = None if request.times is None else int(request.times[key])
    excluded = [] if request.excluded is None else request.excluded.T.tolist()
    tree = 0 if request.trees is None else int(request.trees[key])
    return [
        edge
        for edge in row
        if (limit is None or (edge.time or 0) < limit or ((edge.time or 0) == limit and request.is_inclusive))
        and [key, edge.neighbor] not in excluded
        and (request.candidates is None or tree << TREE_SHIFT | edge.neighbor in request.candidates)
        and (edge.weight or request.strategy not in ("weighted", "top_k"))
    ]


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.target],
)
@given(data=st.data(), graph=graphs(), num_parts=st.sampled_from([1, 3]))
def test_only_eligible_edges_are_drawn_and_as_many_as_there_are(
    data: st.DataObject, graph: Graph, num_parts: int
) -> None:
    num_nodes = graph.nodes[NODE].num_nodes
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "parts"
        write_parts(
            graph, root, num_parts=num_parts, method="hash", direction="both", time_attr="time", weight_attr="weight",
            neighbor_keys=True,
        )  # fmt: skip
        with LocalStore(open_dataset(root)) as store:
            for _ in range(10):
                request = data.draw(asked(num_nodes))
                check_drawn(graph, request, ask(store, request))


def ask(store: LocalStore, request: SampleRequest) -> list[list[int]]:
    """Keys of the edges that each key draws."""
    pairs = request.excluded
    in_ids = replace(
        request,
        ids=store.lookup(NODE, request.ids),
        excluded=None if pairs is None else store.lookup(NODE, pairs.ravel()).reshape(2, -1),
        candidates=candidates_in_ids(store, NODE, request),
    )
    (reply,) = store.sample([in_ids])
    assert (store.num_drawn_bound(in_ids) >= reply.counts).all()
    assert reply.edge_ids is not None
    owner = (EDGE, request.direction)
    (columns,) = store.fetch([FetchRequest(owner=owner, names=(KEY,), ids=reply.edge_ids)])
    return [keys.tolist() for keys in np.split(np.asarray(columns[KEY]), np.cumsum(reply.counts)[:-1])]


def check_drawn(graph: Graph, request: SampleRequest, drawn: list[list[int]]) -> None:
    rows = stored_rows(graph, EDGE, request.direction, "time", "weight")
    for key, edge_keys in enumerate(drawn):
        eligible = eligible_edges(rows[key], request, key)
        order = [edge.edge_key for edge in eligible]
        assert set(edge_keys) <= set(order), (key, request)
        if request.is_replacing and request.count >= 0:
            assert len(edge_keys) == (request.count if eligible else 0), (key, request)
            continue
        wanted = len(eligible) if request.count < 0 else min(request.count, len(eligible))
        assert len(edge_keys) == wanted, (key, request)
        assert not Counter(edge_keys) - Counter(order), (key, request)
        if request.strategy == "top_k":
            weights = {edge.edge_key: edge.weight or 0.0 for edge in eligible}
            assert edge_keys == sorted(order, key=lambda edge_key: -weights[edge_key])[:wanted], (key, request)
        elif request.strategy == "last":
            assert edge_keys == order[len(order) - wanted :], (key, request)
        elif wanted == len(eligible) or request.strategy in ("weighted", "labor"):
            assert edge_keys == [edge_key for edge_key in order if edge_key in edge_keys], (key, request)
