"""Checks that loaders over several parts find what PyG's sampler finds, all neighbours taken.

PyG leaves the drawing to pyg-lib or torch-sparse. Where one of them is installed it is asked (``own``); everywhere
PyG's loaders are also run over the plain operators of ``naive_backend`` (``plain``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import hopstream
from hopstream.compat.pyg import (
    DatasetFeatureStore,
    DatasetGraphStore,
    open_stores,
)
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EDGE, NODE
from tests.compat.pyg import naive_backend
from tests.compat.pyg.ranks import in_turns
from tests.compat.pyg.worlds import as_data
from tests.load.graphs import make_plain_graph
from tests.processes import ServerPool

pytestmark = pytest.mark.filterwarnings("ignore:.*without a 'pyg-lib' installation")

WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
CITES, KNOWS = ("paper", "cites", "paper"), ("author", "knows", "author")
PARTS = [2, 3]
BATCH_SIZE = 7
BACKENDS = [
    "plain",
    pytest.param(
        "own", marks=pytest.mark.skipif(not naive_backend.HAS_ANY, reason="needs pyg-lib or torch-sparse")
    ),
]  # fmt: skip
ALL = [-1, -1]
PER_TYPE = {WRITES: [-1, 0, -1], WRITTEN: [0, -1, -1], CITES: [-1, -1, 0], KNOWS: [-1, -1, -1]}
ONE_TYPE = {WRITES: ALL, WRITTEN: [0, 0], CITES: [0, 0], KNOWS: [0, 0]}
LATE = {"time_attr": "time", "input_time": "late"}
NODES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "no types": ("plain", None, {"num_neighbors": [-1, -1, -1]}),
    "no types, trees": ("plain", None, {"num_neighbors": ALL, "disjoint": True}),
    "no types, induced": ("plain", None, {"num_neighbors": [-1], "subgraph_type": "induced"}),
    "no types, both ways": ("plain", None, {"num_neighbors": ALL, "subgraph_type": "bidirectional"}),
    "no types, times of nodes": ("plain, timed nodes", None, {"num_neighbors": ALL, "time_attr": "time"}),
    "no types, times of edges": ("plain, timed edges", None, {"num_neighbors": ALL, **LATE}),
    "papers": ("typed", "paper", {"num_neighbors": ALL}),
    "authors, counts per type": ("typed", "author", {"num_neighbors": PER_TYPE}),
    "papers, induced, one type followed": (
        "typed",
        "paper",
        {"num_neighbors": ONE_TYPE, "subgraph_type": "induced"},
    ),
    "papers, trees": ("typed", "paper", {"num_neighbors": ALL, "disjoint": True}),
    "papers, times of nodes": ("typed, timed nodes", "paper", {"num_neighbors": ALL, "time_attr": "time"}),
    "authors, times of nodes, given": ("typed, timed nodes", "author", {"num_neighbors": ALL, **LATE}),
    "papers, times of edges": ("typed, timed edges", "paper", {"num_neighbors": ALL, **LATE}),
}
LINKS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "no types": ("plain", None, {"num_neighbors": ALL}),
    "no types, trees": ("plain", None, {"num_neighbors": ALL, "disjoint": True}),
    "no types, times of edges": ("plain, timed edges", None, {"num_neighbors": ALL, "time_attr": "time"}),
    "writes": ("typed", WRITES, {"num_neighbors": ALL}),
    "cites": ("typed", CITES, {"num_neighbors": PER_TYPE}),
    "writes, trees": ("typed", WRITES, {"num_neighbors": ALL, "disjoint": True}),
    "cites, times of nodes": ("typed, timed nodes", CITES, {"num_neighbors": ALL, "time_attr": "time"}),
    "writes, times of edges": ("typed, timed edges", WRITES, {"num_neighbors": ALL, "time_attr": "time"}),
}
OVER_STORES = ["no types", "no types, trees", "no types, induced", "papers", "authors, counts per type"]
PLACES = ["folder", "servers"]


def make_graph(kind: str) -> Graph:
    """``plain`` or ``typed``; where nodes or edges are timed, every type of them is."""
    rng = np.random.default_rng(8)
    if kind.startswith("plain"):
        graph = make_plain_graph(rng)
    else:
        x = rng.standard_normal((60, 3)).astype(np.float32)
        sizes = {"author": 40, "paper": 60}
        graph = Graph(
            nodes={t: NodeTable(num_nodes=n, features={"x": x[:n]}) for t, n in sizes.items()},
            edges={
                (src_type, relation, dst_type): EdgeTable(
                    src_keys=rng.integers(0, sizes[src_type], 160), dst_keys=rng.integers(0, sizes[dst_type], 160)
                )
                for src_type, relation, dst_type in (WRITES, WRITTEN, CITES, KNOWS)
            },
        )
    tables: dict[Any, Any] = {}
    if "timed" in kind:
        tables = graph.nodes if kind.endswith("nodes") else graph.edges
    for table in tables.values():
        num_rows = table.num_nodes if isinstance(table, NodeTable) else len(table.src_keys)
        table.features["time"] = rng.integers(0, 12, num_rows)
    return graph.check()


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[tuple[str, int], str]:
    """Each graph in two and in three parts."""
    root, found = tmp_path_factory.mktemp("pyg-sampler"), {}
    for kind in dict.fromkeys(case[0] for case in (*NODES.values(), *LINKS.values())):
        for num_parts in PARTS:
            options = {"time_attr": "time"} if "timed" in kind else {}
            folder = root / kind.replace(", ", "-").replace(" ", "-") / str(num_parts)
            hopstream.write_parts(make_graph(kind), folder, num_parts=num_parts, method="random", **options)
            found[kind, num_parts] = str(folder)
    return found


@pytest.fixture(params=BACKENDS)
def backend(request) -> Iterator[str]:
    with naive_backend.installed() if request.param == "plain" else nullcontext():
        yield request.param


def facts(batch: Data | HeteroData) -> dict[object, object]:
    """Contents of a batch by keys, in any order: nodes with trees and features, edges, links."""
    found: dict[object, object] = {}
    typed = isinstance(batch, HeteroData)
    trees, keys = {}, {}
    for node_type in batch.node_types if typed else [NODE]:
        store = batch[node_type] if typed else batch
        keys[node_type] = store.n_id
        trees[node_type] = store.get("batch", torch.zeros_like(store.n_id))
        found[node_type] = rows(trees[node_type], store.n_id, *(store[n] for n in ("x",) if n in store))
        if "edge_label_index" not in batch:
            found.update(
                {(node_type, n): as_list(store[n]) for n in ("input_id", "batch_size", "seed_time") if n in store}
            )
        if store.get("num_sampled_nodes"):
            found[node_type, "hops"] = as_list(store.num_sampled_nodes)
    for edge_type in batch.edge_types if typed else [EDGE]:
        store = batch[edge_type] if typed else batch
        ends = keys[edge_type[0]][store.edge_index[0]], keys[edge_type[2]][store.edge_index[1]]
        of_tree = trees[edge_type[2]][store.edge_index[1]]
        assert torch.equal(of_tree, trees[edge_type[0]][store.edge_index[0]]), "edges stay in their trees"
        found[edge_type] = rows(of_tree, *ends, *(store[n] for n in ("e_id", "edge_attr") if store.get(n) is not None))
        if store.get("num_sampled_edges"):
            found[edge_type, "hops"] = as_list(store.num_sampled_edges)
        if store.get("edge_label_index") is not None:
            src_keys, dst_keys = keys[edge_type[0]], keys[edge_type[2]]
            src_slots, dst_slots = store.edge_label_index
            found[edge_type, "links"] = [src_keys[src_slots].tolist(), dst_keys[dst_slots].tolist()]
            found[edge_type, "times"] = as_list(store.get("edge_label_time"))
    return found


def rows(*columns: torch.Tensor) -> list[tuple[float, ...]]:
    """Rows over several columns, sorted, to compare two tables that may be in different orders."""
    wide = [c[:, None] if c.dim() == 1 else c for c in columns]
    return sorted(tuple(row) for row in torch.cat([c.double() for c in wide], 1).tolist())


def as_list(value: object) -> object:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def seeds_of(graph: Graph, node_type: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Seeds, and a time for each."""
    rng = np.random.default_rng(2)
    num_nodes = graph.nodes[node_type or NODE].num_nodes
    return rng.permutation(num_nodes)[: 3 * BATCH_SIZE - 2], rng.integers(-1, 14, 3 * BATCH_SIZE - 2)


def pairs_of(batch: Data) -> set[tuple[int, int]]:
    """Keys of source and destination of the edges of a batch."""
    return set(map(tuple, batch.n_id[batch.edge_index].t().tolist()))


def skip_trees(backend: str, options: dict[str, Any]) -> None:
    """PyG's own sampler grows trees with pyg-lib alone."""
    if backend == "own" and not naive_backend.HAS_PYG_LIB and ("disjoint" in options or "time_attr" in options):
        pytest.skip("PyG's sampler grows trees with pyg-lib alone")


@pytest.mark.parametrize(("case", "num_parts"), in_turns(NODES))
def test_pygs_loader_gives_the_same_node_batches(places, backend, case, num_parts):
    kind, node_type, options = NODES[case]
    keys, options = node_inputs(case)
    with hopstream.NeighborLoader(
        places[kind, num_parts], seeds=keys if node_type is None else (node_type, keys),
        batch_size=BATCH_SIZE, edge_keys=True, num_threads=0, **options,
    ) as batches:  # fmt: skip
        check_nodes(list(batches), case, keys, options, backend)


def node_inputs(case: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Seeds, and options of a loader."""
    kind, node_type, options = NODES[case]
    keys, times = seeds_of(make_graph(kind), node_type)
    return keys, {name: times if name == "input_time" else value for name, value in options.items()}


def check_nodes(batches: list[Any], case: str, keys: np.ndarray, options: dict[str, Any], backend: str) -> None:
    """Check that batches of a loader equal those of PyG's loader over the whole graph."""
    kind, node_type, _ = NODES[case]
    graph, options = make_graph(kind), dict(options)
    data, nodes, times = as_data(graph), torch.from_numpy(keys), options.pop("input_time", None)
    skip_trees(backend, options)
    wanted = NeighborLoader(
        data, input_nodes=nodes if node_type is None else (node_type, nodes),
        input_time=None if times is None else torch.from_numpy(times), batch_size=BATCH_SIZE, **options,
    )  # fmt: skip
    for ours, theirs in zip(batches, wanted, strict=True):
        if options.get("subgraph_type") == "bidirectional":
            assert pairs_of(ours) == pairs_of(theirs)  # of parallel edges, PyG keeps one
        else:
            assert_same_facts(facts(ours), facts(theirs))


@pytest.mark.parametrize(("case", "num_parts"), in_turns(LINKS))
def test_pygs_loader_gives_the_same_link_batches(places, backend, case, num_parts):
    """PyG gets our negatives as links, as it draws others, so that their neighbourhoods are compared too."""
    kind, edge_type, options = LINKS[case]
    pairs, times = link_inputs(case)
    loader = hopstream.LinkNeighborLoader(
        places[kind, num_parts], edge_label_index=pairs if edge_type is None else (edge_type, pairs),
        edge_label_time=times, neg_sampling_ratio=1, batch_size=BATCH_SIZE, edge_keys=True, num_threads=0, **options,
    )  # fmt: skip
    with loader:
        check_links(list(loader), case, pairs, times, backend)


def link_inputs(case: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Keys of the ends of links, and a time for each where the case has times."""
    kind, edge_type, options = LINKS[case]
    edges = make_graph(kind).edges[edge_type or EDGE]
    keys = np.random.default_rng(2).permutation(len(edges.src_keys))[: 2 * BATCH_SIZE - 3]
    times = np.random.default_rng(3).integers(-1, 14, len(keys)) if "time_attr" in options else None
    return np.stack([edges.src_keys[keys], edges.dst_keys[keys]]), times


def check_links(batches: list[Any], case: str, pairs: np.ndarray, times: np.ndarray | None, backend: str) -> None:
    """Check batches with one negative per link against PyG's loader, which gets the negatives as links."""
    kind, edge_type, options = LINKS[case]
    skip_trees(backend, options)
    data, edge_type_of, num_pairs = as_data(make_graph(kind)), edge_type or EDGE, pairs.shape[1]
    assert len(batches) == -(-num_pairs // BATCH_SIZE)
    for number, ours in enumerate(batches):
        found, first = facts(ours), number * BATCH_SIZE
        pairs_found = torch.tensor(found[edge_type_of, "links"])
        num_links = min(BATCH_SIZE, num_pairs - first)
        assert pairs_found[:, :num_links].tolist() == pairs[:, first : first + num_links].tolist()
        assert pairs_found.shape[1] == 2 * num_links
        limits = None if times is None else torch.from_numpy(times[first : first + num_links].copy()).repeat(2)
        wanted = LinkNeighborLoader(
            data, edge_label_index=pairs_found if edge_type is None else (edge_type, pairs_found),
            edge_label_time=limits, batch_size=2 * num_links, **options,
        )  # fmt: skip
        (batch,) = wanted
        for store in batch.node_stores if "batch" in batch else []:
            store.batch %= num_links  # a negative belongs to its positive
        assert_same_facts(found, facts(batch))


def assert_same_facts(ours: dict[object, object], theirs: dict[object, object]) -> None:
    for name, value in theirs.items():
        assert ours[name] == value, name
    assert {name for name in ours if name not in theirs} <= {name for name in ours if name[-1] in ("hops", "seed_time")}


@contextmanager
def stores_at(folder: str, place: str, pool: ServerPool) -> Iterator[tuple[DatasetFeatureStore, DatasetGraphStore]]:
    """Our stores over a dataset of two parts: in its folder, or served by two processes."""
    with ExitStack() as stack:
        source = folder
        if place == "servers":
            source = ",".join(*stack.enter_context(pool.serve([Path(folder)], [[0], [1]])))
        features, edges = open_stores(source)
        stack.callback(features.close)
        yield features, edges


@pytest.mark.parametrize(("case", "place"), in_turns(OVER_STORES, PLACES))
def test_pyg_loader_gives_the_same_over_stores_and_data(places, server_pool, backend, case, place):
    """PyG's loader and sampler give the same over our stores as over data, up to the order of neighbours."""
    kind, node_type, options = NODES[case]
    skip_trees(backend, options)
    data, keys = as_data(make_graph(kind)), torch.from_numpy(seeds_of(make_graph(kind), node_type)[0])
    nodes = keys if node_type is None else (node_type, keys)
    with stores_at(places[kind, 2], place, server_pool) as (features, edges):
        ours = NeighborLoader(
            (features, edges), input_nodes=nodes, batch_size=BATCH_SIZE, transform=features.add_edge_features, **options
        )
        wanted = NeighborLoader(data, input_nodes=nodes, batch_size=BATCH_SIZE, **options)
        for found, theirs in zip(ours, wanted, strict=True):
            assert_same_facts(facts(found), facts(theirs))


@pytest.mark.parametrize(("case", "place"), in_turns(["no types", "writes", "cites"], PLACES))
def test_pyg_link_loader_gives_the_same_over_stores_and_data(places, server_pool, backend, case, place):
    kind, edge_type, options = LINKS[case]
    data = as_data(make_graph(kind))
    pairs = (data if edge_type is None else data[edge_type]).edge_index[:, : 2 * BATCH_SIZE]
    with stores_at(places[kind, 2], place, server_pool) as (features, edges):
        ours = LinkNeighborLoader(
            (features, edges), edge_label_index=(edge_type, pairs), batch_size=BATCH_SIZE,
            transform=features.add_edge_features, **options,
        )  # fmt: skip
        links = pairs if edge_type is None else (edge_type, pairs)
        wanted = LinkNeighborLoader(data, edge_label_index=links, batch_size=BATCH_SIZE, **options)
        for found, theirs in zip(ours, wanted, strict=True):
            assert_same_facts(facts(found), facts(theirs))
