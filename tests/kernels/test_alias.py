"""Checks that draws by alias table follow the weights, and never take edges without weight."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hopstream.kernels.alias import WEIGHTLESS, build_aliases
from hopstream.kernels.by_weight import draw_edges, uses_alias
from hopstream.kernels.eligible import Draws, Scratch, Weights
from hopstream.kernels.memory import address_table
from hopstream.kernels.weighted import weight_kind
from tests import naive_weighted
from tests.kernels.draw_inputs import NO_TABLE, for_python, make_nodes, make_tables

RNG_SEED = 1000
WEIGHTS = {
    "even": [1.0] * 7,
    "uneven": [5.0, 1.0, 0.0, 3.0, 0.5, 0.0, 2.5, 8.0],
    "one heavy": [1e-3, 1e6, 1e-3, 1.0],
    "one alone": [2.0],
    "one of many": [0.0, 0.0, 3.0, 0.0],
    "heavy first": [1.0, 1e-20, 3e-20, 1e-20, 3e-20, 1e-20, 3e-20],
    "heavy last": [1e-20, 3e-20, 1e-20, 3e-20, 1e-20, 3e-20, 1.0],
    "tiny": [1e-300, 2e-300, 3e-300],
}


def table_of(weights: list[float]) -> np.ndarray:
    entries = np.empty(len(weights), np.uint64)
    scratch = np.empty(len(weights)), np.empty(len(weights), np.uint32)
    build_aliases(np.array([0, len(weights)]), np.array(weights), *scratch, entries)
    return entries


def draw_many(weights: list[float], num_rows: int, num: int, count: int, is_replacing: bool) -> list[np.ndarray]:
    """Rows of draws from the first ``num`` edges of one node, each row in its own tree."""
    assert for_python(uses_alias)(num, len(weights), count, is_replacing)
    columns = [np.array(weights), np.array(naive_weighted.running_sums(weights)), table_of(weights)]
    own_weights, sums, aliases = (address_table([column]) for column in columns)
    keys, indices = np.array([7]), np.arange(len(weights), dtype=np.uint32)
    tables = make_tables(offsets=np.array([0, 1]), keys=address_table([keys]), indices=address_table([indices]))
    nodes = make_nodes(
        np.zeros(num_rows, np.int64),
        trees=np.arange(num_rows),
        parts=np.zeros(num_rows, np.int32),
        starts=np.zeros(num_rows, np.int64),
        degrees=np.full(num_rows, num),
        row_degrees=np.full(num_rows, len(weights)),
    )
    source = Weights(
        sums=sums, aliases=aliases, orders=NO_TABLE, weights=own_weights, kind=weight_kind(np.dtype(float))
    )
    scratch = Scratch(np.empty(64, np.int64), np.empty(64), np.empty(64), np.empty(64, np.uint64))
    positions = np.empty(num_rows * count, np.int64)
    draws = Draws(count, is_replacing, np.uint64(RNG_SEED))
    done, written, *_ = draw_edges(tables, source, None, draws, nodes, scratch, 0, positions, 0)
    assert done == num_rows
    return np.split(positions[:written], np.cumsum(nodes.counts)[:-1])


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_table_gives_every_edge_its_share(name):
    """The shares follow from the table alone, without draws."""
    weights = np.array(WEIGHTS[name])
    entries = table_of(WEIGHTS[name])
    thresholds, aliases = entries >> np.uint64(32), entries & np.uint64(0xFFFFFFFF)
    own = (thresholds + (thresholds == 2**32 - 1)) / 2.0**32  # the largest threshold means a whole place
    shares = own.copy()
    np.add.at(shares, aliases.astype(np.int64), 1 - own)
    np.testing.assert_allclose(shares / len(weights), weights / weights.sum(), rtol=1e-6, atol=1e-9)
    assert (shares[weights == 0] == 0).all()
    assert entries.tolist() == naive_weighted.alias_entries(WEIGHTS[name])


def test_rows_have_tables_of_their_own():
    offsets = np.array([0, 3, 3, 5, 9])
    weights = np.array([1.0, 2.0, 3.0, 0.0, 0.0, 4.0, 0.0, 1.0, 1.0])
    entries = np.empty(9, np.uint64)
    build_aliases(offsets, weights, np.empty(4), np.empty(4, np.uint32), entries)
    assert entries[:3].tolist() == table_of([1.0, 2.0, 3.0]).tolist()
    assert entries[3:5].tolist() == [WEIGHTLESS, WEIGHTLESS]
    assert entries[5:].tolist() == table_of([4.0, 0.0, 1.0, 1.0]).tolist()


def test_an_alias_table_equals_one_written_by_hand():
    """Weights 1 and 3: half of the first place is the first edge's, all the rest is the second edge's."""
    assert [(int(e) >> 32, int(e) & 0xFFFFFFFF) for e in table_of([1.0, 3.0])] == [(2**31, 1), (2**32 - 1, 1)]


@pytest.mark.parametrize("name", ["even", "uneven", "one heavy"])
def test_draws_with_replacement_are_in_proportion(name):
    """5 sigma per edge over 200 000 draws."""
    weights = np.array(WEIGHTS[name])
    drawn = np.concatenate(draw_many(WEIGHTS[name], 20_000, len(weights), 10, True))
    assert len(drawn) == 200_000
    counts = np.bincount(drawn, minlength=len(weights))
    expected = 200_000 * weights / weights.sum()
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1e-9).all(), (RNG_SEED, counts)
    assert (counts[weights == 0] == 0).all(), (RNG_SEED, counts)


@pytest.mark.parametrize(
    ("name", "num", "count"),
    [
        ("uneven", 8, 3),
        ("uneven", 5, 2),
        ("even", 7, 3),
        ("heavy first", 7, 2),
        ("heavy first", 7, 3),
        ("heavy last", 7, 3),
    ],
)
def test_draws_without_replacement_are_successive(name, num, count):
    """Each set is drawn within 5 sigma of its exact chance.

    After too many turns the table gives up a row. Such rows favour some sets, so successive draws complete them. With
    one heavy edge nearly all rows are given up.
    """
    weights, num_rows = WEIGHTS[name], 40_000
    rows = np.sort(draw_many(weights, num_rows, num, count, False), axis=1)
    sets, times = np.unique(rows, axis=0, return_counts=True)
    found = Counter(dict(zip(map(tuple, sets.tolist()), times.tolist(), strict=True)))
    chances = naive_weighted.chances_of_sets(weights[:num], count)
    assert set(found) <= {positions for positions, chance in chances.items() if chance > 0}, RNG_SEED
    for positions, chance in chances.items():
        sigma = np.sqrt(max(num_rows * chance * (1 - chance), 1.0))
        assert abs(found[positions] - num_rows * chance) < 5 * sigma, (RNG_SEED, positions, found[positions], chance)


def test_draws_among_the_first_edges_of_a_row_are_in_proportion_too():
    weights = WEIGHTS["uneven"]
    drawn = np.concatenate(draw_many(weights, 40_000, 5, 4, True))
    counts = np.bincount(drawn, minlength=8)
    assert (counts[5:] == 0).all(), (RNG_SEED, counts)
    expected = len(drawn) * np.array(weights[:5]) / sum(weights[:5])
    assert (np.abs(counts[:5] - expected) <= 5 * np.sqrt(expected) + 1e-9).all(), (RNG_SEED, counts)


def test_rows_without_weight_give_nothing():
    assert all(len(row) == 0 for row in draw_many([0.0, 0.0, 0.0], 10, 3, 2, True))
    assert all(len(row) == 0 for row in draw_many([0.0, 0.0, 0.0, 1.0], 10, 3, 1, False))


def test_all_weighted_edges_are_drawn_if_fewer_than_requested():
    rows = draw_many([0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0], 50, 7, 3, False)
    assert {tuple(sorted(row.tolist())) for row in rows} == {(1, 3)}
