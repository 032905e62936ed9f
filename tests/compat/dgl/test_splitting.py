"""Checks that each trainer gets its share, and that shares cover everything once."""

from itertools import chain

import numpy as np
import pytest
import torch

from hopstream.compat.dgl.distributed import edge_split, load_partition_book, node_split, partition_graph
from hopstream.errors import SchemaError, SettingsError
from tests.compat.dgl.graphs import some_owners, typed_graph

NUM_PARTS = 3


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    out, graph = tmp_path_factory.mktemp("parts"), typed_graph()
    partition_graph(graph, "g", NUM_PARTS, out, part_method="file", owners=some_owners(graph, NUM_PARTS))
    return [load_partition_book(out / "g.json", part)[0] for part in range(NUM_PARTS)]


def joined(lists):
    return list(chain.from_iterable(lists))


def shares(split, books, mask, per_part, **options):
    num_trainers = per_part * NUM_PARTS
    return [
        split(mask, books[rank // per_part], rank=rank, num_trainers=num_trainers, **options).tolist()
        for rank in range(num_trainers)
    ]


@pytest.mark.parametrize("per_part", [1, 2])
@pytest.mark.parametrize("num_chosen", [0, 2, 11])
def test_even_shares_differ_by_one_in_each_part(books, per_part, num_chosen):
    mask = torch.zeros(17, dtype=torch.bool)
    mask[torch.from_numpy(np.random.default_rng(4).permutation(17)[:num_chosen])] = True
    chosen = mask.nonzero()[:, 0].tolist()
    found = shares(node_split, books, mask, per_part, ntype="a")
    assert sorted(joined(found)) == chosen
    of_parts = [sorted(joined(found[part * per_part : (part + 1) * per_part])) for part in range(NUM_PARTS)]
    assert joined(of_parts) == chosen  # parts take runs of numbers, so mostly their own
    assert max(map(len, of_parts)) - min(map(len, of_parts)) <= 1
    assert all(share == sorted(share) for share in found)
    assert shares(node_split, books, mask, per_part, ntype="a") == found


@pytest.mark.parametrize("per_part", [1, 2])
def test_uneven_shares_are_the_parts_own(books, per_part):
    mask = np.arange(40) % 3 > 0
    found = shares(edge_split, books, mask, per_part, etype=("a", "to", "b"), force_even=False)
    for part, book in enumerate(books):
        own = book.partid2eids(part, ("a", "to", "b")).numpy()
        assert joined(found[part * per_part : (part + 1) * per_part]) == own[mask[own]].tolist()


def test_shares_follow_the_locality_of_nodes(books):
    mask = np.ones(17, bool)
    owners = np.concatenate([np.full(len(b.partid2nids(p, "a")), p) for p, b in enumerate(books)])
    trainers = owners * 2 + np.arange(17) % 2
    found = shares(node_split, books, mask, 2, ntype="a", node_trainer_ids=trainers)
    assert sorted(joined(found)) == list(range(17))
    near = sum(int((trainers[share] == rank).sum()) for rank, share in enumerate(found))
    assert near >= 10
    more = shares(node_split, books, mask, 2, ntype="a", node_trainer_ids=trainers * 2)  # with twice as many trainers
    assert sorted(joined(more)) == list(range(17))


def test_all_types_together_and_the_defaults(books):
    mask = torch.ones(30)
    assert joined(node_split(mask, book).tolist() for book in books) == list(range(30))
    assert joined(edge_split(np.ones(95), book).tolist() for book in books) == list(range(95))


def test_trainers_that_do_not_fit_are_refused(books):
    mask = np.ones(17, bool)
    for options, error, said in (
        ({"num_trainers": 4}, SettingsError, "4 trainers"), ({"rank": 3}, SettingsError, "rank is 3"),
        ({"num_trainers": 6, "node_trainer_ids": np.arange(16)}, SchemaError, r"\[16\]"),
        ({"num_trainers": 6, "node_trainer_ids": -np.arange(17)}, SchemaError, "start with -16; wanted none below 0"),
        ({"num_trainers": 6, "node_trainer_ids": ["a"] * 17}, SchemaError, "trainer ids are <U1"),
        ({"num_trainers": 0}, SettingsError, "num_trainers is 0"), ({"rank": "1"}, SettingsError, "rank is '1'"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            node_split(mask, books[0], "a", **options)
    with pytest.raises(SchemaError, match=r"\[17\]"):
        node_split(mask, books[0], "b")
    for wrong in (["a"] * 17, np.full(17, np.nan)):
        with pytest.raises(SchemaError, match=r"nodes are .*\[17\]; wanted a mask of all nodes: 17"):
            node_split(wrong, books[0], "a")
    with pytest.raises(SettingsError, match="partition_book"):
        node_split(mask)
