"""Checks that requests that the dataset cannot answer are refused, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from hopstream.dataset.book import PartitionBook, number_dtype
from hopstream.errors import HopstreamError, IdRangeError, SettingsError, UnknownNameError
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema
from hopstream.store.contract import MAX_COUNT, MAX_TREES, TREE_SHIFT, LaborSeeds, SampleRequest, Store
from hopstream.store.requests import (
    answers_ranges,
    check_edge_split,
    check_find_edges,
    check_links,
    check_sample_request,
    has_own_times,
)

BUYS: EdgeType = ("user", "buys", "item")
LIKES: EdgeType = ("item", "likes", "user")
KNOWS: EdgeType = ("user", "knows", "user")
BOTH: tuple[Direction, ...] = ("in", "out")
SIZES: dict[str | EdgeType, int] = {"user": 10, "item": 5, BUYS: 8, LIKES: 6, KNOWS: 4}


def make_schema() -> GraphSchema:
    """Purchases have a time and a weight, items a time; nothing else has either."""
    stamp, weight = FeatureSchema(dtype="int64"), FeatureSchema(dtype="float32")
    return GraphSchema(
        nodes={"user": {}, "item": {"stamp": stamp}},
        edges={BUYS: {"stamp": stamp, "weight": weight}, LIKES: {}, KNOWS: {}},
        edge_splits={BUYS: ("train",), LIKES: ()},
    )


@dataclass
class Facts:
    """The facts of a store that checks read."""

    schema: GraphSchema = field(default_factory=make_schema)
    book: PartitionBook = field(
        default_factory=lambda: PartitionBook(
            num_parts=1,
            node_offsets={t: np.array([0, n]) for t, n in SIZES.items() if isinstance(t, str)},
            edge_offsets={(t, d): np.array([0, n]) for t, n in SIZES.items() if not isinstance(t, str) for d in BOTH},
        )
    )
    directions: tuple[Direction, ...] = BOTH
    time_attr: str | None = "stamp"
    weight_attr: str | None = "weight"
    has_neighbor_keys: bool = True


STORE = cast(Store, Facts())
PLAIN = cast(Store, Facts(time_attr=None, weight_attr=None, has_neighbor_keys=False))
GOOD = SampleRequest(edge_type=BUYS, direction="in", ids=np.array([4, 0, 4]), count=2)
"""Ids are items, neighbours are users."""
SEEDS = LaborSeeds(first=1, second=2, share=0.5)
TREES = np.array([0, 1, 7])


def pairs(*columns: tuple[int, int]) -> np.ndarray:
    return np.array(columns, np.int64).reshape(-1, 2).T


def pair(tree: int, neighbor: int) -> np.ndarray:
    return np.array([(tree << TREE_SHIFT) + neighbor])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"count": -1},
        {"count": MAX_COUNT},
        {"rng_seed": 2**64 - 1},
        {"strategy": "weighted", "is_replacing": True},
        {"strategy": "top_k"},
        {"strategy": "top_k", "is_replacing": True, "count": -1},
        {"strategy": "last"},
        {"edge_type": LIKES, "direction": "out", "strategy": "uniform"},
        {"edge_type": LIKES, "strategy": "last"},
        {"strategy": "labor", "labor": SEEDS},
        {"strategy": "labor", "labor": LaborSeeds(first=2**64 - 1)},
        {"trees": np.array([0, 5, MAX_TREES - 1])},
        {"trees": np.array([0, 5, 9], np.int32), "times": np.array([-5, 0, 2**62])},
        {"edge_type": KNOWS, "times": np.array([1, 2, 3], np.int16), "is_inclusive": False},
        {"excluded": pairs((4, 9), (0, 0), (4, 9))},
        {"excluded": pairs()},
        {"candidates": np.array([0, 4, 9])},
        {"candidates": np.array([], np.uint32)},
        {"candidates": np.concatenate([pair(0, 9), pair(7, 0), pair(MAX_TREES - 1, 9)]), "trees": TREES},
        {"candidates": np.array([1, 9], np.uint32), "trees": TREES},
        {"ids": np.array([], np.int64), "trees": np.array([], np.int64)},
    ],
)
def test_a_valid_request_is_accepted(fields: dict[str, Any]) -> None:
    check_sample_request(STORE, replace(GOOD, **fields))


NOT_INTEGERS = [np.array([0.0, 1.0, 2.0]), np.array([0, 1, 2], np.uint64), np.array([True, False, True])]
NOT_ONE_PER_ID = [np.arange(2), np.arange(4), np.zeros((3, 1), np.int64), np.array(1)]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"edge_type": ("a", "b", "c")}, UnknownNameError, "unknown edge type"),
        ({"count": -2}, SettingsError, "count is -2; give -1 for all neighbours, or 0 to 2147483647"),
        ({"count": MAX_COUNT + 1}, SettingsError, "count is 2147483648"),
        ({"rng_seed": -1}, SettingsError, "rng_seed is -1; it is 64 bits"),
        ({"rng_seed": 2**64}, SettingsError, "rng_seed is 18446744073709551616; it is 64 bits"),
        ({"ids": np.array([0, 5, 1])}, IdRangeError, r"item: ids\[1\] is 5; ids are 0..4"),
        ({"strategy": "best"}, SettingsError, "strategy is 'best'; known: uniform, weighted, top_k, last, labor"),
        ({"strategy": ["uniform"]}, SettingsError, "strategy is .*; known: uniform"),
        *[
            ({"strategy": s, "is_replacing": True}, SettingsError, f"'{s}' draws an edge once")
            for s in ("top_k", "last", "labor")
        ],
        ({"strategy": "weighted", "edge_type": LIKES}, SettingsError, "likes__user/in: .* has no feature 'weight'"),
        ({"strategy": "top_k", "edge_type": KNOWS, "ids": np.array([1])}, SettingsError, "needs weights"),
        ({"strategy": "last", "edge_type": KNOWS}, SettingsError, "neither the edges nor their neigh"),
        ({"strategy": "last", "edge_type": LIKES, "direction": "out"}, SettingsError, "likes__user/out: .* needs ti"),
        ({"strategy": "labor"}, SettingsError, "'labor' needs labor seeds"),
        ({"labor": SEEDS}, SettingsError, "'uniform' takes no labor seeds"),
        ({"strategy": "labor", "labor": LaborSeeds(first=-1)}, SettingsError, "labor.first is -1; it is 64 bits"),
        ({"strategy": "labor", "labor": LaborSeeds(first=0, second=2**64)}, SettingsError, "labor.second"),
        *[
            ({"strategy": "labor", "labor": LaborSeeds(first=0, share=share)}, SettingsError, "labor.share is .* below")
            for share in (-0.1, 1.0, float("nan"), float("inf"))
        ],
        *[({"trees": a}, SettingsError, r"trees is .*; wanted int64\[3\]") for a in [*NOT_INTEGERS, *NOT_ONE_PER_ID]],
        *[({"times": a}, SettingsError, r"times is .*; wanted int64\[3\]") for a in [*NOT_INTEGERS, *NOT_ONE_PER_ID]],
        ({"trees": np.array([0, -1, 2])}, SettingsError, "trees hold -1; they are 0..8388607"),
        ({"trees": np.array([0, MAX_TREES, 2])}, SettingsError, "trees hold 8388608"),
        *[
            ({"excluded": a}, SettingsError, "excluded is .*int64")
            for a in [np.ones((3, 2), int), np.ones(2, int), np.ones((2, 2)), np.ones((2, 1, 1), int), np.array(1)]
        ],
        ({"excluded": pairs((4, 9), (5, 0))}, IdRangeError, r"excluded\[0\], item ids,\[1\] is 5; they are 0..4"),
        ({"excluded": pairs((4, 10))}, IdRangeError, r"excluded\[1\], user ids,\[0\] is 10; they are 0..9"),
        ({"excluded": pairs((4, -1))}, IdRangeError, "is -1"),
        *[({"candidates": a}, SettingsError, "candidates is .*int64") for a in NOT_INTEGERS],
        ({"candidates": np.zeros((2, 2), np.int64)}, SettingsError, "candidates is"),
        ({"candidates": np.array(3)}, SettingsError, "candidates is"),
        ({"candidates": np.array([0, 2, 2])}, SettingsError, r"candidates\[2\] is 2 after 2; give them ascending"),
        ({"candidates": np.array([3, 2])}, SettingsError, r"candidates\[1\] is 2 after 3"),
        ({"candidates": np.array([3, 10])}, IdRangeError, r"candidates, user ids,\[1\] is 10; they are 0..9"),
        ({"candidates": np.array([-1, 10])}, IdRangeError, r"candidates, user ids,\[0\] is -1"),
        ({"candidates": pair(1, 9)}, IdRangeError, r"\[0\] is 1099511627785; they are 0..9"),
        ({"candidates": pair(1, 10), "trees": TREES}, IdRangeError, r"candidates, user ids,\[0\] is 10; they are 0..9"),
        ({"candidates": pair(-1, 9), "trees": TREES}, IdRangeError, r"candidates\[0\] is -1099511627767; with trees"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused(fields: dict[str, Any], error: type[HopstreamError], message: str) -> None:
    with pytest.raises(error, match=message):
        check_sample_request(STORE, replace(GOOD, **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strategy": "weighted"}, "was written without; write the parts again with weight_attr"),
        ({"strategy": "last"}, "was written without; write the parts again with time_attr"),
        ({"strategy": "labor", "labor": SEEDS}, "write the parts again with neighbor_keys"),
    ],
)
def test_error_for_data_missing_for_a_strategy_names_the_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_sample_request(PLAIN, replace(GOOD, **fields))


@pytest.mark.parametrize(
    ("fields", "is_range"),
    [
        ({"count": -1}, True),
        ({"count": -1, "is_replacing": True}, True),
        ({"count": 3, "is_replacing": True}, False),
        ({"strategy": "last"}, True),
        ({"strategy": "labor", "labor": SEEDS}, True),
        ({"strategy": "weighted"}, False),
        ({"strategy": "top_k"}, False),
        ({"trees": np.arange(3)}, True),
        ({"times": np.arange(3)}, True),
        ({"excluded": pairs((4, 1))}, False),
        ({"candidates": np.array([1])}, False),
    ],
)
def test_eligible_edges_are_a_range_without_pairs_and_weights(fields: dict[str, Any], is_range: bool) -> None:
    assert answers_ranges(replace(GOOD, **fields)) == is_range


def test_questions_for_edges_are_checked() -> None:
    check_find_edges(STORE, BUYS, "in", np.array([4, 0]), np.array([9, 9]))
    with pytest.raises(UnknownNameError, match="ghost"):
        check_find_edges(STORE, ("user", "ghost", "item"), "in", np.array([4]), np.array([9]))
    with pytest.raises(SettingsError, match=r"neighbor_ids is int64\[1\]; give int64\[2\]"):
        check_find_edges(STORE, BUYS, "in", np.array([4, 0]), np.array([9]))
    with pytest.raises(IdRangeError, match=r"item: ids\[0\] is 9"):
        check_find_edges(STORE, BUYS, "in", np.array([9]), np.array([4]))
    with pytest.raises(IdRangeError, match=r"item neighbor_ids\[0\] is 9"):
        check_find_edges(STORE, BUYS, "out", np.array([9]), np.array([9]))


def test_questions_for_links_are_checked() -> None:
    check_links(STORE, BUYS, np.array([7, 0, 7]))
    check_links(STORE, LIKES, np.array([], np.int64))
    with pytest.raises(UnknownNameError, match="ghost"):
        check_links(STORE, ("user", "ghost", "item"), np.array([0]))
    with pytest.raises(UnknownNameError, match=r"keeps no links of edge type user__knows__user, only of .*buys.*write"):
        check_links(STORE, KNOWS, np.array([0]))
    with pytest.raises(IdRangeError, match=r"user__buys__item edge_keys\[1\] is 8; they are 0..7"):
        check_links(STORE, BUYS, np.array([7, 8]))
    with pytest.raises(SettingsError, match="edge_keys is float64"):
        check_links(STORE, BUYS, np.array([0.5]))
    check_edge_split(STORE, BUYS, "train")
    for edge_type in (BUYS, KNOWS):
        with pytest.raises(UnknownNameError, match="has no split 'test'; known"):
            check_edge_split(STORE, edge_type, "test")


def test_only_times_of_edges_come_with_links() -> None:
    assert [has_own_times(STORE, edge_type) for edge_type in (BUYS, LIKES, KNOWS)] == [True, False, False]
    assert not has_own_times(PLAIN, BUYS)


def test_ids_are_narrow_where_they_fit() -> None:
    assert [number_dtype(n).name for n in (0, 2**32 - 1, 2**32)] == ["uint32", "uint32", "int64"]
