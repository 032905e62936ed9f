"""Checks that ranks share all seeds once and equally, and get near ones on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.rank_splits import rank_links, rank_nodes
from hopstream.preparation.write import write_parts
from hopstream.store.local import LocalStore

RATES = ("user", "rates", "movie")
NUM_USERS, NUM_MOVIES, NUM_RATINGS = 100, 43, 331


def make_graph() -> Graph:
    rng = np.random.default_rng(3)
    return Graph(
        nodes={"user": NodeTable(num_nodes=NUM_USERS), "movie": NodeTable(num_nodes=NUM_MOVIES)},
        edges={
            RATES: EdgeTable(
                src_keys=rng.integers(0, NUM_USERS, NUM_RATINGS), dst_keys=rng.integers(0, NUM_MOVIES, NUM_RATINGS)
            )
        },
        splits={"user": {"train": np.arange(0, NUM_USERS, 3)}},
        edge_splits={RATES: {"train": np.arange(1, NUM_RATINGS, 2)}},
    ).check()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root = tmp_path_factory.mktemp("ranks")
    for num_parts in (1, 4):
        write_parts(make_graph(), root / str(num_parts), num_parts=num_parts, method="random", rng_seed=1)
    return {num_parts: root / str(num_parts) for num_parts in (1, 4)}


def test_even_shares_hold_every_seed_once_and_differ_by_one_at_most(folders):
    shares = [rank_nodes(folders[1], "user", rank=r, world_size=3, remainder="uneven") for r in range(3)]
    assert sorted(np.concatenate(shares)) == list(range(NUM_USERS))
    assert sorted(map(len, shares)) == [33, 33, 34]
    assert all((np.diff(share) > 0).all() for share in shares)


@pytest.mark.parametrize(("remainder", "size"), [("pad", 34), ("drop", 33)])
@pytest.mark.parametrize("by", ["even", "locality"])
def test_shares_are_of_equal_size(folders, by, remainder, size):
    shares = [rank_nodes(folders[4], "user", rank=r, world_size=3, by=by, remainder=remainder) for r in range(3)]
    assert [len(share) for share in shares] == [size] * 3
    distinct = np.unique(np.concatenate(shares))
    assert len(distinct) == (NUM_USERS if remainder == "pad" else 99)


def test_even_shares_do_not_depend_on_the_number_of_parts(folders):
    for rank in range(2):
        one, four = (rank_nodes(folders[n], ("user", "train"), rank=rank, world_size=2) for n in (1, 4))
        assert one.tolist() == four.tolist()
    other = rank_nodes(folders[4], ("user", "train"), rank=0, world_size=2, rng_seed=1)
    assert other.tolist() != rank_nodes(folders[4], ("user", "train"), rank=0, world_size=2).tolist()


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_locality_moves_only_the_seeds_needed_for_equal_shares(folders, world_size):
    with LocalStore(open_dataset(folders[4])) as store:
        num_of_part = np.diff(store.book.offsets("user"))
        shares = [
            rank_nodes(store, "user", rank=r, world_size=world_size, by="locality", remainder="uneven")
            for r in range(world_size)
        ]
        assert sorted(np.concatenate(shares)) == list(range(NUM_USERS))
        num_near = 0
        for rank, share in enumerate(shares):
            parts = store.book.parts_of("user", store.lookup("user", share))
            near = parts * world_size // 4 == rank if world_size <= 4 else parts == rank * 4 // world_size
            num_near += int(near.sum())
    sizes = np.diff(np.arange(world_size + 1) * NUM_USERS // world_size)
    if world_size <= 4:
        own = num_of_part.reshape(world_size, -1).sum(axis=1)
    else:
        own, sizes = num_of_part, sizes.reshape(4, -1).sum(axis=1)
    assert num_near == np.minimum(own, sizes).sum()


def test_ranks_may_name_their_parts(folders):
    with LocalStore(open_dataset(folders[4])) as store:
        own = [
            rank_nodes(
                store, "user", rank=r, world_size=2, by="locality", parts_of_ranks=[[3, 0], [1, 2]], remainder="uneven"
            )
            for r in range(2)
        ]
        parts = [np.bincount(store.book.parts_of("user", store.lookup("user", keys)), minlength=4) for keys in own]
    assert parts[0][[0, 3]].sum() >= len(own[0]) - 10
    assert parts[1][[1, 2]].sum() >= len(own[1]) - 10


@pytest.mark.parametrize("by", ["even", "locality"])
def test_links_of_a_split_are_shared(folders, by):
    edges = make_graph().edges[RATES]
    wanted = sorted(zip(edges.src_keys[1::2].tolist(), edges.dst_keys[1::2].tolist(), strict=True))
    shares = [
        rank_links(folders[4], (RATES, "train"), rank=r, world_size=3, by=by, remainder="uneven") for r in range(3)
    ]
    found = [pair for s in shares for pair in zip(s.src_keys.tolist(), s.dst_keys.tolist(), strict=True)]
    assert sorted(found) == wanted
    assert sorted(len(s.src_keys) for s in shares) == [55, 55, 55]
    everything = rank_links(folders[1], RATES, rank=0, world_size=1)
    assert everything.src_keys.tolist() == edges.src_keys.tolist()
    assert everything.dst_keys.tolist() == edges.dst_keys.tolist()


def test_links_are_named_as_loaders_name_them(folders):
    everything = [rank_links(folders[1], links, rank=0, world_size=1) for links in (None, RATES, (RATES, None))]
    assert all(links.src_keys.tolist() == everything[0].src_keys.tolist() for links in everything)
    split, label = (
        rank_links(folders[4], named, rank=0, world_size=2) for named in ("train", ("user__rates__movie", "train"))
    )
    assert split.src_keys.tolist() == label.src_keys.tolist()
    given = [rank_links(folders[4], (RATES, [[3, 1, 2, 0], [0, 2, 1, 3]]), rank=r, world_size=2) for r in range(2)]
    pairs = [pair for links in given for pair in zip(links.src_keys.tolist(), links.dst_keys.tolist(), strict=True)]
    assert sorted(pairs) == [(0, 3), (1, 2), (2, 1), (3, 0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank is 2 of world_size 2; ranks are 0..world_size - 1"),
        ({"rank": None, "world_size": 2}, "rank is not given"),
        ({"rank": 0, "world_size": 101}, "100 seeds cannot be shared by 101 ranks; use fewer ranks"),
        ({"rank": 0, "world_size": 1, "by": "near"}, "by is 'near'; it must be one of even, locality"),
        (
            {"rank": 0, "world_size": 1, "remainder": "spread"},
            "remainder is 'spread'; it must be one of pad, drop, uneven",
        ),
        ({"rank": 0, "world_size": 1, "rng_seed": -1}, "rng_seed is -1; it must be an integer"),
        ({"rank": 0, "world_size": 2, "parts_of_ranks": [[0]]}, "parts_of_ranks has 1 entries; world_size is 2"),
        (
            {"rank": 0, "world_size": 2, "by": "locality", "parts_of_ranks": [[0, 9], [1, 2]]},
            r"unknown parts \[9\] and omits parts \[3\]",
        ),
    ],
)
def test_bad_arguments_are_refused(folders, options, message):
    with pytest.raises(SettingsError, match=message):
        rank_nodes(folders[4], "user", **options)


def test_unknown_seeds_are_refused(folders):
    with pytest.raises(UnknownNameError, match="no split 'eval'"):
        rank_nodes(folders[1], ("user", "eval"), rank=0, world_size=1)
    with pytest.raises(IdRangeError, match=r"seeds\[0\] is 100"):
        rank_nodes(folders[1], ("user", [100]), rank=0, world_size=1)
    with pytest.raises(UnknownNameError, match="unknown edge type"):
        rank_links(folders[1], ("user", "likes", "movie"), rank=0, world_size=1)


def test_numbers_of_numpy_make_the_same_shares(folders):
    one = rank_nodes(folders[1], "user", rank=1, world_size=3, rng_seed=4)
    other = rank_nodes(folders[1], "user", rank=np.int64(1), world_size=np.int8(3), rng_seed=np.int64(4))
    assert one.tolist() == other.tolist()


def test_shares_of_a_graph_in_memory_equal_those_of_its_folder(folders):
    for sharing, of in ((rank_nodes, "user"), (rank_links, ("user", "rates", "movie"))):
        graph, folder = (sharing(source, of, rank=1, world_size=2) for source in (make_graph(), folders[1]))
        assert str(graph) == str(folder)
