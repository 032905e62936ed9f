"""Tests of DistABLPLoader over servers: labels by id, equality on any number of servers, errors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import hopstream
from hopstream.compat.gigl import distributed
from hopstream.compat.gigl.distributed import DistABLPLoader, DistDataset, DistNeighborLoader
from hopstream.compat.gigl.distributed.graph_store import build_storage_dataset
from hopstream.compat.gigl.distributed.graph_store.dist_server import DistServer
from hopstream.compat.gigl.distributed.graph_store.messages import (
    FetchABLPInputRequest,
    InitSamplingBackendRequest,
    RegisterBackendRequest,
)
from hopstream.compat.gigl.distributed.sampler import ABLPNodeSamplerInput
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions, PPRSamplerOptions
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType, NodeType
from hopstream.compat.gigl.types.graph import DEFAULT_HOMOGENEOUS_EDGE_TYPE, DEFAULT_HOMOGENEOUS_NODE_TYPE
from hopstream.compat.gigl.utils.data_splitters import DistNodeSplitter
from hopstream.compat.gigl.utils.iterator import InfiniteIterator
from hopstream.compat.gigl.utils.sampling import ABLPInputNodes
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import SamplingConfig, SamplingType
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.preparation.write import write_parts
from tests.compat.gigl.conftest import Connect
from tests.compat.gigl.ring import NUM_NODES, write_ring
from tests.compat.gigl.test_loaders import as_lists

BUYS, BOUGHT_BY, LIKES = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "likes", "user")
NUM_USERS, NUM_ITEMS = 40, 30
TRAIN = np.arange(0, NUM_USERS, 2)
Rows = Mapping[int, list[int]]


def labels_of(relation: tuple[str, str, str], kind: str = "positive") -> tuple[str, str, str]:
    return (relation[0], f"{relation[1]}_gigl_{kind}", relation[2])


def links(rng: np.random.Generator, num_far: int, num_links: int, *, covers: bool = False) -> np.ndarray:
    """int64[2, n], distinct, of users with others; with ``covers`` every user has one."""
    near, far = rng.integers(0, NUM_USERS, num_links), rng.integers(0, num_far, num_links)
    if covers:
        near[:NUM_USERS] = np.arange(NUM_USERS)
    return np.unique(np.stack([near, far]), axis=1)


def rows_of(edges: np.ndarray) -> Rows:
    return {user: sorted(edges[1][edges[0] == user].tolist()) for user in range(NUM_USERS)}


RNG = np.random.default_rng(4)
POSITIVES, NEGATIVES, FRIENDS = links(RNG, NUM_ITEMS, 90, covers=True), links(RNG, NUM_ITEMS, 40), links(RNG, 40, 50)
EDGES = {
    BUYS: np.concatenate([POSITIVES[:, ::2], links(RNG, NUM_ITEMS, 100)], axis=1),
    LIKES: links(RNG, NUM_USERS, 80),
}
EDGES[BOUGHT_BY] = np.ascontiguousarray(EDGES[BUYS][::-1])
FEATURES = {t: {"x": np.arange(n, dtype=np.float32)[:, None]} for t, n in (("user", NUM_USERS), ("item", NUM_ITEMS))}
SPLITS = {"user": {"train": TRAIN, "val": np.arange(1, NUM_USERS, 4), "test": np.arange(3, NUM_USERS, 4)}}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = graph_from_arrays(
        {**EDGES, labels_of(BUYS): POSITIVES, labels_of(BUYS, "negative"): NEGATIVES, labels_of(LIKES): FRIENDS},
        num_nodes={"user": NUM_USERS, "item": NUM_ITEMS}, node_features=FEATURES, splits=SPLITS,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("shop") / "shop"
    write_parts(graph, folder, num_parts=4, method="hash", direction="both")
    return folder


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ring(tmp_path_factory.mktemp("ring") / "ring", 2)


def make(dataset: Any, given: Any, **options: Any) -> DistABLPLoader:
    settings = {"num_neighbors": [3, 2], "batch_size": 6, "use_label_edge_index_output": True}
    return DistABLPLoader(dataset, input_nodes=given, **{**settings, **options})


def merged(*fetched: dict[int, ABLPInputNodes]) -> dict[int, ABLPInputNodes]:
    """Inputs with labels of several supervision edge types, each type fetched separately."""
    return {
        server: replace(nodes, labels={t: rows for one in fetched for t, rows in one[server].labels.items()})
        for server, nodes in fetched[0].items()
    }


def check_pairs(pairs: torch.Tensor, anchors: list[int], far: torch.Tensor, wanted: Rows) -> None:
    """Check the labels of every anchor, grouped by anchor."""
    near = pairs[0].tolist()
    assert pairs.dtype == torch.int64 and near == sorted(near)
    for place, anchor in enumerate(anchors):
        assert sorted(far[pairs[1][pairs[0] == place]].tolist()) == wanted[anchor]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_labels_are_those_of_the_dataset(connect: Connect, shop: Path, edge_dir: str) -> None:
    dataset = connect(shop, 2, edge_dir)
    loader = make(dataset, dataset.fetch_ablp_input("train", None, None, "user", BUYS))
    assert len(loader) == 4 and loader.edge_dir == edge_dir and loader.batch_size == 6
    seen: list[int] = []
    for data in loader:
        assert isinstance(data, HeteroData)
        user, item = data["user"], data["item"]
        anchors = user.batch.tolist()
        assert len(anchors) == user.batch_size and user.node[: user.batch_size].tolist() == anchors
        assert "batch" not in item and "batch_size" not in item
        check_pairs(data.y_positive, anchors, item.node, rows_of(POSITIVES))
        check_pairs(data.y_negative, anchors, item.node, rows_of(NEGATIVES))
        for store in (user, item):
            assert len(set(store.node.tolist())) == len(store.node) and (store.x[:, 0] == store.node).all()
        names = [BUYS, BOUGHT_BY] if edge_dir == "in" else [("item", "rev_buys", "user"), ("user", "buys", "item")]
        assert set(data.edge_types) == {*names, LIKES}
        assert all("y_positive" not in store for store in data.stores[1:])
        seen += anchors
    assert seen == TRAIN.tolist()
    loader.shutdown()


def test_batches_are_equal_on_any_number_of_servers(connect: Connect, shop: Path) -> None:
    found = []
    for num_servers in (1, 2, 4):
        dataset = connect(shop, num_servers)
        given = merged(*(dataset.fetch_ablp_input("train", None, None, "user", t) for t in (BUYS, LIKES)))
        loader = make(dataset, given, shuffle=True, rng_seed=5)
        epochs = [list(loader) for _ in range(2)]
        assert [sorted(v for data in epoch for v in data["user"].batch.tolist()) for epoch in epochs] == [
            TRAIN.tolist()
        ] * 2
        found.append([[as_lists(data) for data in epoch] for epoch in epochs])
        for epoch, plain in zip(epochs, found[-1], strict=True):
            for data, lists in zip(epoch, plain, strict=True):
                lists["y"] = [{t: pairs.tolist() for t, pairs in data[n].items()} for n in ("y_positive", "y_negative")]
                del lists["None.y_positive"], lists["None.y_negative"]
        loader.shutdown()
    assert found[0] == found[1] == found[2] and found[0][0] != found[0][1]
    rows = {BUYS: tuple(given_rows(given, BUYS, kind) for kind in range(2)), LIKES: given_rows(given, LIKES, 0)}
    neighbors = {t: [3, 2] for t in EDGES}
    with hopstream.ABLPLoader(
        shop, {**neighbors, "default": [0, 0]}, ("user", TRAIN), supervision=[BUYS, LIKES], labels=rows, batch_size=6,
        shuffle=True, rng_seed=5,
    ) as ours:  # fmt: skip
        for batch, data in zip(ours, found[0][0], strict=True):
            assert all(batch[t].n_id.tolist() == data[f"{t}.node"] for t in ("user", "item"))
            assert all(batch[t].edge_index.tolist() == data[f"{t}.edge_index"] for t in EDGES)
            assert {t: batch[t].y_positive.tolist() for t in (BUYS, LIKES)} == data["y"][0]


def given_rows(given: dict[int, ABLPInputNodes], edge_type: tuple[str, str, str], kind: int) -> list[list[int]]:
    """The positives (0) or negatives (1) of every anchor of the split, as they are given."""
    found: dict[int, list[int]] = {}
    for nodes in given.values():
        for anchor, row in zip(nodes.anchor_nodes.tolist(), nodes.labels[edge_type][kind].tolist(), strict=True):  # type: ignore[union-attr]
            found[anchor] = [label for label in row if label >= 0]
    return [found[anchor] for anchor in TRAIN.tolist()]


def test_ranks_of_uneven_shares_have_every_anchor_once(connect: Connect, shop: Path) -> None:
    dataset = connect(shop, 2)
    for world_size in (1, 2, 3):
        seen: list[int] = []
        for rank in range(world_size):
            given = dataset.fetch_ablp_input("train", rank, world_size, "user", BUYS)
            assert sorted(given) == [0, 1]
            loader = make(dataset, given, batch_size=4)
            for data in loader:
                anchors = data["user"].batch.tolist()
                check_pairs(data.y_positive, anchors, data["item"].node, rows_of(POSITIVES))
                seen += anchors
            loader.shutdown()
        assert sorted(seen) == TRAIN.tolist()


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_pagerank_around_anchors_and_labels(connect: Connect, shop: Path, edge_dir: str) -> None:
    """Anchors, positives and negatives have the neighbourhoods that they have on their own."""
    options = PPRSamplerOptions(max_ppr_nodes=4)
    found = []
    for num_servers in (1, 4):
        dataset = connect(shop, num_servers, edge_dir)
        buys = dataset.fetch_ablp_input("train", None, None, "user", BUYS)
        loader = make(dataset, buys, sampler_options=options, shuffle=True, rng_seed=5, exclude_labels=False)
        batches = list(loader)
        found.append([as_lists(data) for data in batches])
        loader.shutdown()
    assert found[0] == found[1]
    seen: list[int] = []
    for data in batches:
        anchors, items, users = data["user"].batch.tolist(), data["item"].node, data["user"].node
        check_pairs(data.y_positive, anchors, items, rows_of(POSITIVES))
        check_pairs(data.y_negative, anchors, items, rows_of(NEGATIVES))
        assert set(data.edge_types) == {(src, "ppr", dst) for src in ("user", "item") for dst in ("user", "item")}
        assert (items[:, None] == data["item"].x).all() and (users[:, None] == data["user"].x).all()
        labels = {items[place].item() for pairs in (data.y_positive, data.y_negative) for place in pairs[1]}
        for seed_type, seeds in (("user", anchors), ("item", sorted(labels))) if not seen else ():
            alone = DistNeighborLoader(
                dataset, [1], (seed_type, {0: torch.tensor(sorted(seeds))}), batch_size=len(seeds),
                sampler_options=options,
            )  # fmt: skip
            assert neighborhoods(next(iter(alone)), seed_type) == neighborhoods(data, seed_type)
            alone.shutdown()
        seen += anchors
    assert sorted(seen) == TRAIN.tolist()


def neighborhoods(data: HeteroData, seed_type: str) -> set[tuple[Any, ...]]:
    """Per row of a seed of a type: seed, type and id of the node, score and proximity."""
    return {
        (data[seed_type].node[seed].item(), dst, data[dst].node[place].item(), *attr.tolist())
        for dst in ("user", "item")
        for store in (data[seed_type, "ppr", dst],)
        for seed, place, attr in zip(*store.edge_index, store.edge_attr, strict=True)
    }


def test_pagerank_without_types(connect: Connect, ring: Path) -> None:
    """On a ring, in a batch of its own, an anchor's walk does not follow its links to labels."""
    dataset = connect(ring, 2)
    given = {0: ABLPInputNodes(torch.tensor([0]), DEFAULT_HOMOGENEOUS_NODE_TYPE, {
        DEFAULT_HOMOGENEOUS_EDGE_TYPE: (torch.tensor([[1, 2]]), None)
    })}  # fmt: skip
    for excluded in (True, False):
        loader = make(dataset, given, sampler_options=PPRSamplerOptions(max_ppr_nodes=3), exclude_labels=excluded)
        (data,) = loader
        assert isinstance(data, Data) and data.batch.tolist() == [0] and data.y_positive.tolist() == [[0, 0], [1, 2]]
        assert data.node[:3].tolist() == [0, 1, 2] and len(data.edge_attr) == data.edge_index.shape[1] == 9
        for seed, near in ((1, 39), (2, 1)):
            around = data.node[data.edge_index[1, data.edge_index[0] == seed]].tolist()
            assert around[0] == seed and near in around and (0 in around) is not excluded
        loader.shutdown()


def test_a_loader_resumes_the_state_of_another(connect: Connect, shop: Path) -> None:
    dataset = connect(shop, 2)
    given = dataset.fetch_ablp_input("train", None, None, "user", BUYS)
    one, other = (make(dataset, given, shuffle=True, rng_seed=3) for _ in range(2))
    iterator = iter(one)
    begun = [as_lists(next(iterator)) for _ in range(2)]
    other.load_state_dict(one.state_dict())
    rest = [as_lists(data) for data in other]
    assert [as_lists(next(iterator)) for _ in rest] == rest and len(begun) + len(rest) == len(one)
    one.shutdown()
    other.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        iter(one)


def test_both_forms_of_labels(connect: Connect, shop: Path) -> None:
    dataset = connect(shop, 2)
    buys, likes = (dataset.fetch_ablp_input("train", None, None, "user", t) for t in (BUYS, LIKES))
    for given, names in ((buys, None), (merged(buys, likes), (BUYS, LIKES))):
        as_pairs = make(dataset, given, rng_seed=1)
        with pytest.warns(FutureWarning, match="dict of each anchor to its labels are deprecated"):
            as_rows = make(dataset, given, rng_seed=1, use_label_edge_index_output=False)
        for one, other in zip(as_pairs, as_rows, strict=True):
            num_anchors = one["user"].batch_size
            assert set(one._global_store.keys()) == set(other._global_store.keys()) == {
                "y_positive", "y_negative", "num_sampled_nodes", "num_sampled_edges"
            }  # fmt: skip
            for kind in ("y_positive", "y_negative"):
                pairs, rows = one[kind], other[kind]
                if names is None:
                    pairs, rows = {BUYS: pairs}, {BUYS: rows}
                else:
                    assert set(pairs) == set(rows) == ({BUYS, LIKES} if kind == "y_positive" else {BUYS})
                for edge_type, found in pairs.items():
                    of_anchor = rows[edge_type]
                    assert list(of_anchor) == list(range(num_anchors))
                    for place, labels in of_anchor.items():
                        assert labels.dtype == torch.int64 and labels.tolist() == found[1][found[0] == place].tolist()
            if names is not None:
                users = one["user"]
                check_pairs(one.y_positive[LIKES], users.batch.tolist(), users.node, rows_of(FRIENDS))
        as_pairs.shutdown()
        as_rows.shutdown()


def test_batches_without_given_negatives_have_no_negatives(connect: Connect, shop: Path) -> None:
    dataset = connect(shop, 2)
    loader = make(dataset, dataset.fetch_ablp_input("train", None, None, "user", LIKES), batch_size=20)
    (data,) = loader
    assert "y_negative" not in data
    check_pairs(data.y_positive, data["user"].batch.tolist(), data["user"].node, rows_of(FRIENDS))
    loader.shutdown()


def message_edges(data: HeteroData, edge_type: tuple[str, str, str]) -> set[tuple[int, int]]:
    src, dst = data[edge_type].edge_index
    return set(zip(data[edge_type[0]].node[src].tolist(), data[edge_type[2]].node[dst].tolist(), strict=True))


def test_label_edges_are_followed_if_requested(connect: Connect, shop: Path) -> None:
    dataset = connect(shop, 2)
    given = dataset.fetch_ablp_input("train", None, None, "user", BUYS)
    for excluded in (True, False):
        loader = make(dataset, given, num_neighbors=[200], exclude_labels=excluded)
        num_shared = 0
        for data in loader:
            users, items = data["user"].node, data["item"].node
            labels = set(zip(users[data.y_positive[0]].tolist(), items[data.y_positive[1]].tolist(), strict=True))
            num_shared += len(labels & message_edges(data, BUYS))
            num_shared += len({(item, user) for user, item in labels} & message_edges(data, BOUGHT_BY))
        assert (num_shared == 0) is excluded
        loader.shutdown()


def test_reverses_of_other_names_are_left_out_where_they_are_given(connect: Connect, tmp_path: Path) -> None:
    rates, rated_by = EdgeType("user", "rates", "item"), EdgeType("item", "rated_by", "user")
    users, items = np.divmod(np.arange(24), 6)
    graph = graph_from_arrays({rates: (users, items), rated_by: (items, users)}, num_nodes={"user": 4, "item": 6})
    write_parts(graph, tmp_path / "graph", num_parts=1, direction="both")
    dataset = connect(tmp_path / "graph", 1)
    labels = {rates: (torch.arange(4)[:, None], None)}
    given = {0: ABLPInputNodes(torch.arange(4), NodeType("user"), labels)}
    for reverse_types, num_shown in ((None, 4), ({rates: rated_by}, 0)):
        loader = make(dataset, given, num_neighbors=[50, 50], batch_size=4, reverse_types=reverse_types)
        (data,) = loader
        assert len({(n, n) for n in range(4)} & message_edges(data, rated_by)) == num_shown
        loader.shutdown()


def test_a_homogeneous_graph(connect: Connect, ring: Path) -> None:
    """All edges of a graph without types are labels: v has v + 1 and v + 2."""
    dataset = connect(ring, 2)
    given = dataset.fetch_ablp_input("train")
    assert {nodes.anchor_node_type for nodes in given.values()} == {DEFAULT_HOMOGENEOUS_NODE_TYPE}
    wanted = {v: sorted([(v + 1) % NUM_NODES, (v + 2) % NUM_NODES]) for v in range(NUM_NODES)}
    loader = make(dataset, given, shuffle=True)
    seen: list[int] = []
    for data in loader:
        assert isinstance(data, Data) and data.batch_size == len(data.batch) and (data.x == data.node[:, None]).all()
        check_pairs(data.y_positive, data.batch.tolist(), data.node, wanted)
        assert "y_negative" not in data and (data.y == data.node % 4).all()
        seen += data.batch.tolist()
    assert sorted(seen) == list(range(0, NUM_NODES, 2))
    loader.shutdown()
    wants = (DEFAULT_HOMOGENEOUS_NODE_TYPE, "wants", DEFAULT_HOMOGENEOUS_NODE_TYPE)
    own = {s: nodes.anchor_nodes[:, None] for s, nodes in given.items()}
    more = {s: replace(nodes, labels={**nodes.labels, wants: (own[s], own[s])}) for s, nodes in given.items()}
    loader = make(dataset, more, batch_size=20)
    (data,) = loader
    check_pairs(data.y_negative[wants], data.batch.tolist(), data.node, {v: [v] for v in range(NUM_NODES)})
    check_pairs(data.y_positive[DEFAULT_HOMOGENEOUS_EDGE_TYPE], data.batch.tolist(), data.node, wanted)
    loader.shutdown()


def test_a_labeled_homogeneous_graph(connect: Connect, tmp_path: Path) -> None:
    likes = {"likes": EDGES[LIKES], "likes_gigl_positive": POSITIVES, "likes_gigl_negative": NEGATIVES}
    graph = graph_from_arrays(
        {("user", relation, "user"): edges for relation, edges in likes.items()}, num_nodes={"user": NUM_USERS},
        node_features={"user": FEATURES["user"]}, splits=SPLITS,
    )  # fmt: skip
    write_parts(graph, tmp_path / "parts", num_parts=2, method="hash", direction="both")
    dataset = connect(tmp_path / "parts", 2)
    assert dataset.fetch_node_types() == [DEFAULT_HOMOGENEOUS_NODE_TYPE]
    for node_type in (None, DEFAULT_HOMOGENEOUS_NODE_TYPE, "user"):
        assert sorted(torch.cat([*dataset.fetch_node_ids(split="train", node_type=node_type).values()]).tolist()) == (
            TRAIN.tolist()
        )
    book = dataset.fetch_edge_partition_book()
    assert book is not None and len(book[torch.arange(EDGES[LIKES].shape[1])]) == EDGES[LIKES].shape[1]
    given = dataset.fetch_ablp_input("train")
    assert {t for nodes in given.values() for t in nodes.labels} == {DEFAULT_HOMOGENEOUS_EDGE_TYPE}
    loader = make(dataset, given)
    for data in loader:
        assert isinstance(data, Data) and data.batch_size == data.batch.numel()
        assert data.batch.tolist() == data.node[: data.batch_size].tolist() and (data.x[:, 0] == data.node).all()
        check_pairs(data.y_positive, data.batch.tolist(), data.node, rows_of(POSITIVES))
        check_pairs(data.y_negative, data.batch.tolist(), data.node, rows_of(NEGATIVES))
        followed = set(zip(*data.node[data.edge_index].tolist(), strict=True))
        assert followed and followed <= set(zip(*EDGES[LIKES].tolist(), strict=True))
    loader.shutdown()
    wants = (DEFAULT_HOMOGENEOUS_NODE_TYPE, "wants", DEFAULT_HOMOGENEOUS_NODE_TYPE)
    more = {s: replace(nodes, labels={**nodes.labels, wants: (nodes.anchor_nodes[:, None], None)})
            for s, nodes in given.items()}  # fmt: skip
    loader = make(dataset, more, batch_size=20)
    (data,) = loader
    check_pairs(data.y_positive[wants], data.batch.tolist(), data.node, {v: [v] for v in TRAIN.tolist()})
    check_pairs(data.y_positive[DEFAULT_HOMOGENEOUS_EDGE_TYPE], data.batch.tolist(), data.node, rows_of(POSITIVES))
    assert list(data.y_negative) == [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
    loader.shutdown()


def test_a_dataset_with_reversed_edges(connect: Connect, tmp_path: Path) -> None:
    """Anchors are destinations, as where GiGL follows edges inwards; labels have the outward type."""
    turned = ("item", "buys", "user")
    graph = graph_from_arrays(
        {turned: EDGES[BOUGHT_BY], labels_of(turned): POSITIVES[::-1]},
        num_nodes={"user": NUM_USERS, "item": NUM_ITEMS}, splits=SPLITS,
    )  # fmt: skip
    write_parts(graph, tmp_path / "parts", num_parts=2, method="hash", direction="in")
    dataset = connect(tmp_path / "parts", 2)
    loader = make(dataset, dataset.fetch_ablp_input("train", None, None, "user", BUYS), num_neighbors=[200])
    for data in loader:
        anchors, users, items = data["user"].batch.tolist(), data["user"].node, data["item"].node
        check_pairs(data.y_positive, anchors, items, rows_of(POSITIVES))
        labels = set(zip(items[data.y_positive[1]].tolist(), users[data.y_positive[0]].tolist(), strict=True))
        assert data.edge_types == [turned] and not labels & message_edges(data, turned)
    loader.shutdown()


def test_given_labels_need_no_direction_of_the_dataset(connect: Connect, tmp_path: Path) -> None:
    wants = ("user", "wants", "item")
    graph = graph_from_arrays(
        {t: EDGES[t] for t in (BUYS, BOUGHT_BY)}, num_nodes={"user": NUM_USERS, "item": NUM_ITEMS}, splits=SPLITS
    )
    write_parts(graph, tmp_path / "parts", num_parts=2, method="hash", direction="in")
    dataset = connect(tmp_path / "parts", 2)
    with pytest.raises(ValueError, match=r"follow edges 'out', and .* holds in; write it again with direction='both'"):
        dataset.fetch_ablp_input("train", None, None, "user", BUYS)
    given = {
        0: ABLPInputNodes(torch.tensor([9, 4]), "user", {wants: (torch.tensor([[3], [5]]), None)}),
        1: ABLPInputNodes(torch.tensor([6]), "user", {wants: (torch.tensor([[7, 8]]), torch.tensor([[1]]))}),
    }
    loader = make(dataset, given)
    (data,) = loader
    assert data["user"].batch.tolist() == [4, 6, 9]
    check_pairs(data.y_positive, [4, 6, 9], data["item"].node, {4: [5], 6: [7, 8], 9: [3]})
    check_pairs(data.y_negative, [4, 6, 9], data["item"].node, {4: [], 6: [1], 9: []})
    loader.shutdown()


def test_a_rank_without_anchors_has_no_batches(connect: Connect, shop: Path) -> None:
    dataset = connect(shop, 2)
    given = dataset.fetch_ablp_input("train", 0, 2, "user", BUYS)
    loader = make(dataset, {1: given[1]})
    assert not len(given[1].anchor_nodes) and list(loader) == [] and len(loader) == 0
    loader.shutdown()


def test_bad_loader_arguments_are_refused(connect: Connect, shop: Path) -> None:
    dataset = connect(shop, 2)
    given = dataset.fetch_ablp_input("train", None, None, "user", BUYS)
    likes = dataset.fetch_ablp_input("train", None, None, "user", LIKES)
    first = given[0]
    positives, negatives = first.labels[BUYS]

    def refused(message: str, error: type[Exception] = ValueError, **options: Any) -> None:
        with pytest.raises(error, match=message):
            make(**{"dataset": dataset, "given": given, **options})

    refused("in graph-store mode give a dict of server to ABLPInputNodes", given=None)
    refused("in graph-store mode give a dict", given=torch.arange(3))
    refused("in graph-store mode give a dict", given=("user", torch.arange(3)))
    refused("input_nodes has a Tensor; give ABLPInputNodes", given={0: torch.arange(3)})
    refused("names servers", given={2: first})
    refused("has no labels", given={})
    refused("has no labels", given={0: replace(first, labels={})})
    refused("in graph-store mode leave it out", supervision_edge_type=BUYS)
    refused("servers have different inputs", given={0: first, 1: likes[1]})
    refused("servers have different inputs", given={0: first, 1: replace(first, anchor_node_type="item")})
    refused("lead from anchors to label nodes", given={0: replace(first, anchor_node_type="item")})
    refused("wanted int64", given={0: replace(first, labels={BUYS: (positives[1:], negatives)})})
    refused("wanted int64", given={0: replace(first, labels={BUYS: (positives[:, 0], None)})})
    refused("more than once", given={0: first, 1: first})
    refused("counts are integers from 0", num_neighbors=[-1])
    refused("must name exactly", num_neighbors={BUYS: [2]})
    refused("must name exactly", num_neighbors={**{t: [2] for t in EDGES}, labels_of(BUYS): [0]})
    refused("has no weights", with_weight=True)
    refused("prefetch_size is 4", worker_concurrency=2)
    refused("dataset is a str", dataset="parts/shop")
    refused(
        "with_weight cannot be used with", NotImplementedError, with_weight=True, sampler_options=PPRSamplerOptions()
    )
    refused("positives: row 0 has 99", IndexError, given={0: ABLPInputNodes(
        torch.tensor([1]), "user", {BUYS: (torch.tensor([[99]]), None)}
    )})  # fmt: skip


def test_a_batch_without_positive_labels_has_empty_ones(connect: Connect, shop: Path) -> None:
    dataset = connect(shop, 2)
    labels = {BUYS: (torch.tensor([[3, -1], [-1, -1]]), None)}
    loader = make(dataset, {0: ABLPInputNodes(torch.tensor([1, 2]), "user", labels)}, batch_size=1)
    assert [data.y_positive.shape for data in loader] == [(2, 1), (2, 0)]
    loader.shutdown()


def test_bad_dataset_arguments_are_refused(connect: Connect, shop: Path, ring: Path) -> None:
    dataset = connect(shop, 2)

    def refused(message: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(ValueError, match=message):
            dataset.fetch_ablp_input(*arguments, **options)

    refused("both anchor_node_type and supervision_edge_type", "train", anchor_node_type="user")
    refused("both anchor_node_type and supervision_edge_type", "train", supervision_edge_type=BUYS)
    refused("both rank and world_size", "train", 0, None, "user", BUYS)
    refused("compute_rank is 2", "train", 2, 2, "user", BUYS)
    refused("split is 'later'", "later", None, None, "user", BUYS)
    refused("split is 'train'; 'item' has the splits: none", "train", None, None, "item", BOUGHT_BY)
    refused("supervision_edge_type is", "train", None, None, "user", ("user", "sells", "item"))
    refused("anchors of", "train", None, None, "item", BUYS)
    refused("supervision_edge_type is", "train")
    dataset = connect(ring, 2)
    refused("split is 'later'", "later")


def test_labels_are_capped(shop: Path) -> None:
    request = FetchABLPInputRequest("train", "user", BUYS)
    found = []
    for limit in (None, 2, 1):
        dataset = build_storage_dataset(shop, "in", max_labels_per_anchor_node=limit, rank=0, world_size=1)
        assert isinstance(dataset, DistDataset) and dataset.max_labels_per_anchor_node == limit
        found.append(DistServer(dataset).get_ablp_input(request))
        dataset.close()
    (_, all_positives, all_negatives), *capped = found
    for limit, (anchors, positives, negatives) in zip((2, 1), capped, strict=True):
        assert anchors.tolist() == TRAIN.tolist() and positives.shape[1] == limit == negatives.shape[1]
        assert torch.equal(positives, all_positives[:, :limit]) and torch.equal(negatives, all_negatives[:, :limit])
    for options, message in (
        ({"max_labels_per_anchor_node": 0}, "max_labels_per_anchor_node is 0"),
        ({"splitter": DistNodeSplitter()}, "splits and labels are stored with the dataset"),
    ):
        with pytest.raises(ValueError, match=message):
            build_storage_dataset(shop, "in", rank=0, world_size=1, **options)


@pytest.mark.parametrize("sampler", [KHopNeighborSamplerOptions([2]), PPRSamplerOptions(max_ppr_nodes=3)], ids=type)
def test_anchors_as_the_input_of_a_backend(shop: Path, sampler: Any) -> None:
    """Messages of a server carry labels as places of anchors (row 0) and of label nodes (row 1)."""
    dataset = DistDataset(shop)
    server = DistServer(dataset)
    anchors, positives, negatives = server.get_ablp_input(FetchABLPInputRequest("train", "user", BUYS))
    _, friends, _ = server.get_ablp_input(FetchABLPInputRequest("train", "user", LIKES))
    config = SamplingConfig(SamplingType.NODE, [2], 6, False, False, True, True, False, False, "in", 7)
    options = RemoteDistSamplingWorkerOptions(num_workers=1)
    positives_of = {labels_of(BUYS): positives, labels_of(LIKES): friends}
    given = ABLPNodeSamplerInput(anchors, "user", positives_of, {labels_of(BUYS, "negative"): negatives})
    backend = server.init_sampling_backend(InitSamplingBackendRequest("ablp", options, sampler, config))
    channel = server.register_sampling_input(RegisterBackendRequest(backend, "a", given, config, 4, "1MB"))
    server.start_new_epoch_sampling(channel, 0)
    seen: list[int] = []
    while not (answer := server.fetch_one_sampled_message(channel))[1]:
        message = answer[0]
        assert message is not None
        batch = message["user.batch"].tolist()
        check_pairs(message["y_positive.user__buys__item"], batch, message["item.node"], rows_of(POSITIVES))
        check_pairs(message["y_negative.user__buys__item"], batch, message["item.node"], rows_of(NEGATIVES))
        check_pairs(message["y_positive.user__likes__user"], batch, message["user.node"], rows_of(FRIENDS))
        assert ("user__ppr__item.edge_index" in message) is isinstance(sampler, PPRSamplerOptions)
        seen += batch
    assert seen == TRAIN.tolist()
    server.destroy_sampling_input(channel)
    dataset.close()


def test_training_beside_random_negatives(connect: Connect, shop: Path) -> None:
    """GiGL's training loop: each loader starts again at its own end, for a fixed number of steps."""
    dataset = connect(shop, 2)
    main = make(dataset, dataset.fetch_ablp_input("train", 0, 1, "user", BUYS), shuffle=True, batch_size=8)
    items = ("item", dataset.fetch_node_ids(0, 1, node_type="item"))
    random = DistNeighborLoader(dataset, [3, 2], items, batch_size=7, shuffle=True)
    anchors, negatives = [], []
    pairs = zip(InfiniteIterator(main), InfiniteIterator(random), strict=False)
    for _, (one, other) in zip(range(3 * len(main)), pairs, strict=False):
        check_pairs(one.y_positive, one["user"].batch.tolist(), one["item"].node, rows_of(POSITIVES))
        anchors += one["user"].batch.tolist()
        negatives += other["item"].batch.tolist()
    assert sorted(anchors) == sorted(TRAIN.tolist() * 3)
    assert set(negatives[:NUM_ITEMS]) == set(range(NUM_ITEMS))
    main.shutdown()
    random.shutdown()


def test_arguments_are_those_of_gigl() -> None:
    parameters = inspect.signature(DistABLPLoader).parameters.values()
    positional = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    empty = inspect.Parameter.empty
    assert list(positional.items()) == [
        ("dataset", empty), ("num_neighbors", empty), ("input_nodes", None), ("supervision_edge_type", None),
        ("num_workers", 1), ("batch_size", 1), ("pin_memory_device", None), ("worker_concurrency", 4),
        ("prefetch_size", None), ("channel_size", "4GB"), ("process_start_gap_seconds", 60.0),
        ("num_cpu_threads", None), ("shuffle", False), ("drop_last", False), ("with_weight", False),
        ("sampler_options", None), ("context", None), ("local_process_rank", None), ("local_process_world_size", None),
        ("non_blocking_transfers", True), ("use_label_edge_index_output", False),
    ]  # fmt: skip
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == ["rng_seed", "exclude_labels", "reverse_types"]


def test_names_of_the_package() -> None:
    assert distributed.__all__ == ["DistABLPLoader", "DistDataset", "DistNeighborLoader", "DistributedContext"]
    assert distributed.DistABLPLoader is DistABLPLoader
    for name, remedy in (
        ("DistPartitioner", "write_parts"), ("DistRangePartitioner", "write_parts"),
        ("build_dataset", "build_storage_dataset"), ("build_dataset_from_task_config_uri", "build_storage_dataset"),
    ):  # fmt: skip
        with pytest.raises(ImportError, match=f"gigl.distributed.{name} is not available: .*{remedy}"):
            getattr(distributed, name)
    with pytest.raises(ImportError, match="datasets are cut into parts before they are served"):
        from hopstream.compat.gigl.distributed import DistPartitioner  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'DistLinkLoader'; it has DistABLPLoader"):
        _ = distributed.DistLinkLoader
