"""Checks that the book finds parts, types and ids."""

import numpy as np
import pytest
import torch

from hopstream.compat.dgl.distributed import RangePartitionBook
from hopstream.errors import IdRangeError, SchemaError, SettingsError, UnknownNameError

NODES = {"T0": [[0, 100], [200, 300], [400, 400]], "T1": [[100, 200], [300, 400], [400, 405]]}
EDGES = {
    ("T0", "r", "T1"): [[0, 7], [9, 9], [12, 13]],
    ("T1", "r", "T0"): [[7, 9], [9, 12], [13, 13]],
    ("T0", "s", "T0"): [[9, 9], [12, 12], [13, 20]],
}


def book_of(part=1):
    etypes = {t: number for number, t in enumerate(EDGES)}
    return RangePartitionBook(part, 3, dict(NODES), dict(EDGES), {"T0": 0, "T1": 1}, etypes)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_numbers_over_all_types_and_in_a_type(kind):
    book = book_of()
    types, numbers = book.map_to_per_ntype(kind([90, 201, 100, 404, 399]))
    assert types.tolist() == [0, 0, 1, 1, 1] and numbers.tolist() == [90, 101, 0, 204, 199]
    assert book.map_to_homo_nid(kind([90, 101]), "T0").tolist() == [90, 201]
    assert book.map_to_homo_nid(kind([0, 204, 199]), "T1").tolist() == [100, 404, 399]
    assert book.nid2partid(kind([0, 199, 200, 404])).tolist() == [0, 0, 1, 2]
    assert book.nid2partid(kind([99, 100, 199]), "T0").tolist() == [0, 1, 1]
    assert book.nid2partid(kind([99, 100, 200]), "T1").tolist() == [0, 1, 2]


def test_every_number_survives_a_round_trip():
    book = book_of()
    for total, per_type, to_all, types in (
        (405, book.map_to_per_ntype, book.map_to_homo_nid, list(NODES)),
        (20, book.map_to_per_etype, book.map_to_homo_eid, list(EDGES)),
    ):
        ids = torch.arange(total)
        found, numbers = per_type(ids)
        for number, t in enumerate(types):
            mine = found == number
            assert numbers[mine].tolist() == list(range(int(mine.sum())))
            assert torch.equal(to_all(numbers[mine], t), ids[mine])


def test_parts_of_edges_and_edges_of_parts():
    book = book_of()
    assert [book.partid2nids(part, "T1").tolist()[::99] for part in range(3)] == [[0, 99], [100, 199], [200]]
    assert book.partid2nids(2).tolist() == [400, 401, 402, 403, 404] and not len(book.partid2nids(2, "T0"))
    assert book.partid2eids(0).tolist() == list(range(9)) and book.partid2eids(1, ("T1", "r", "T0")).tolist() == [
        2,
        3,
        4,
    ]
    assert book.eid2partid([0, 8, 9, 12, 19]).tolist() == [0, 0, 1, 2, 2]
    assert book.eid2partid([6, 7], ("T0", "r", "T1")).tolist() == [0, 2] and book.eid2partid([0], "s").tolist() == [2]
    assert book.metadata()[2] == {"machine_id": 2, "num_nodes": 5, "num_edges": 8}
    assert book.num_partitions() == 3 and book.partid == 1
    assert book.ntypes == ["T0", "T1"] and book.etypes == ["r", "r", "s"] and book.canonical_etypes == list(EDGES)
    assert book.local_ntype_offset == [0, 100, 200] and book.local_etype_offset == [0, 0, 3, 3]


def test_a_book_of_one_type_is_homogeneous():
    assert not book_of().is_homogeneous
    assert RangePartitionBook(0, 1, {"_N": [[0, 2]]}, {}, {"_N": 0}, {}).is_homogeneous
    of_types = {("_N", "a", "_N"): 0, ("_N", "b", "_N"): 1}
    ranges = {("_N", "a", "_N"): [[0, 1]], ("_N", "b", "_N"): [[1, 2]]}
    assert not RangePartitionBook(0, 1, {"_N": [[0, 2]]}, ranges, {"_N": 0}, of_types).is_homogeneous


def test_local_numbers_are_the_books_own_part():
    book = book_of()
    assert book.nid2localnid([200, 399], 1).tolist() == [0, 199]
    assert book.nid2localnid([100, 199], 1, "T1").tolist() == [0, 99]
    assert book.eid2localeid([9, 11], 1).tolist() == [0, 2] and book.eid2localeid(
        [4], 1, ("T1", "r", "T0")
    ).tolist() == [2]
    with pytest.raises(SettingsError, match="book of part 1"):
        book.nid2localnid([0], 0)
    with pytest.raises(IdRangeError, match=r"number 0 in position 1 is not part 1's, which has 200\.\.399"):
        book.nid2localnid([200, 0], 1)


def test_relations_name_edge_types_where_they_can():
    book = book_of()
    assert book.to_canonical_etype("s") == ("T0", "s", "T0") == book.to_canonical_etype(("T0", "s", "T0"))
    with pytest.raises(UnknownNameError, match="ambiguous"):
        book.to_canonical_etype("r")
    for etype in ("t", ("T0", "s", "T1")):
        with pytest.raises(UnknownNameError, match="does not exist"):
            book.to_canonical_etype(etype)


def test_unknown_numbers_and_parts_are_refused():
    book = book_of()
    for call in (
        lambda: book.nid2partid([405]), lambda: book.map_to_per_ntype([-1]), lambda: book.map_to_homo_nid([200], "T0"),
        lambda: book.eid2partid([20]), lambda: book.partid2nids(3),
    ):  # fmt: skip
        with pytest.raises(IdRangeError):
            call()
    with pytest.raises(IdRangeError, match=r"node 205 in position 2 does not exist; nodes of 'T1' are 0\.\.204"):
        book.nid2partid([0, 204, 205], "T1")
    with pytest.raises(UnknownNameError, match="T2"):
        book.nid2partid([0], "T2")
    with pytest.raises(SettingsError, match="part_id is 3"):
        book_of(3)
    for ranges in ([[5, 9], [0, 5]], [[0, 1], [5, 9]], [[1, 5], [5, 9]]):
        with pytest.raises(SchemaError, match="must be contiguous from 0, by part and then by type"):
            RangePartitionBook(0, 2, {"a": ranges}, {}, {"a": 0}, {})
    with pytest.raises(SchemaError, match=r"ranges of 'a' are float64\[1, 2\]; wanted integers\[1, 2\]"):
        RangePartitionBook(0, 1, {"a": [[0, 1.5]]}, {}, {"a": 0}, {})
    for partid in ("0", None, 1.5, True):
        for call in (book_of, book.partid2nids, book.partid2eids, lambda at: book.nid2localnid([0], at)):
            with pytest.raises(SettingsError, match=r"part_?id is .*; it must be an integer"):
                call(partid)
    assert len(book.partid2nids(np.int64(1))) == len(book.partid2nids(1))
    with pytest.raises(SchemaError, match="ids are at most 9223372036854775807"):
        book.nid2partid(np.array([1 << 63], np.uint64))
    with pytest.raises(SchemaError, match=r"ids 0\.\.n-1"):
        RangePartitionBook(0, 1, {"a": [[0, 5]]}, {}, {"a": 1}, {})
