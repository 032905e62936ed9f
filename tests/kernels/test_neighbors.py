"""Checks that nodes draw the right neighbours, each with its exact chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hopstream.kernels.eligible import Draws
from hopstream.kernels.memory import address_table
from hopstream.kernels.neighbors import TREE_SHIFT, draw_neighbors, edge_ranges
from hopstream.sample.slots import SlotMap
from tests import naive
from tests.kernels.draw_inputs import make_nodes, make_tables


class Parts:
    """A random graph cut into parts, in the form that kernels take."""

    def __init__(self, rng: np.random.Generator, rows: list[int], max_degree: int) -> None:
        self.offsets = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        degrees = [rng.integers(0, max_degree + 1, n) for n in rows]
        self.indptr = [np.concatenate([[0], np.cumsum(d)]).astype(np.int64) for d in degrees]
        self.indices = [rng.integers(0, self.offsets[-1], int(p[-1])).astype(np.uint32) for p in self.indptr]
        self.edge_offsets = np.concatenate([[0], np.cumsum([len(i) for i in self.indices])]).astype(np.int64)
        self.keys = np.split(rng.permutation(int(self.offsets[-1])), self.offsets[1:-1])

    def draw(
        self, ids: NDArray[np.int64], count: int, is_replacing: bool, rng_seed: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        tables = make_tables(
            offsets=self.offsets,
            edge_offsets=self.edge_offsets,
            indptrs=address_table(self.indptr),
            keys=address_table(self.keys),
            indices=address_table(self.indices),
        )
        nodes = make_nodes(ids)
        total = edge_ranges(tables, nodes, count, is_replacing)
        assert total == nodes.counts.sum()
        neighbors, edge_ids = np.empty(total, np.uint32), np.empty(total, np.int64)
        draws = Draws(count, is_replacing and count >= 0, np.uint64(rng_seed))
        draw_neighbors(tables, draws, nodes, None, neighbors, edge_ids)
        return nodes.counts, neighbors, edge_ids

    def naive(
        self, ids: NDArray[np.int64], count: int, is_replacing: bool, rng_seed: int
    ) -> tuple[list[int], list[int], list[int]]:
        counts, neighbors, edge_ids = [], [], []
        for identifier in ids.tolist():
            part = int(np.searchsorted(self.offsets, identifier, side="right")) - 1
            row = identifier - int(self.offsets[part])
            start, end = self.indptr[part][row : row + 2].tolist()
            drawn = naive.draw_positions(rng_seed, int(self.keys[part][row]), end - start, count, is_replacing)
            counts.append(len(drawn))
            neighbors += [int(self.indices[part][start + position]) for position in drawn]
            edge_ids += [int(self.edge_offsets[part]) + start + position for position in drawn]
        return counts, neighbors, edge_ids


@pytest.mark.parametrize("is_replacing", [False, True])
@pytest.mark.parametrize("count", [-1, 0, 1, 3, 10, 70, 500])
@pytest.mark.parametrize("rows", [[40], [7, 0, 20, 13]])
def test_draws_equal_the_naive_reference(
    rng: np.random.Generator, rows: list[int], count: int, is_replacing: bool
) -> None:
    graph = Parts(rng, rows, 12 if count < 70 else 700)
    ids = rng.integers(0, sum(rows), 30)
    rng_seed = int(rng.integers(0, 1 << 63)) * 2 + 1
    counts, neighbors, edge_ids = graph.draw(ids, count, is_replacing, rng_seed)
    wanted = graph.naive(ids, count, is_replacing, rng_seed)
    assert (counts.tolist(), neighbors.tolist(), edge_ids.tolist()) == wanted


def test_no_ids_draw_nothing(rng: np.random.Generator) -> None:
    counts, neighbors, _ = Parts(rng, [5], 3).draw(np.empty(0, np.int64), 4, False, 1)
    assert len(counts) == len(neighbors) == 0


def test_neighbours_of_a_single_node_are_of_its_tree() -> None:
    arrays = np.array([0, 2]), np.array([0]), np.array([5, 6], np.uint32)
    indptrs, keys, indices = (address_table([array]) for array in arrays)
    tables = make_tables(
        offsets=np.array([0, 1]), edge_offsets=np.array([0, 2]), indptrs=indptrs, keys=keys, indices=indices
    )
    nodes = make_nodes(np.array([0]), trees=np.array([3]))
    assert edge_ranges(tables, nodes, -1, False) == 2
    neighbors, edge_ids, slots = np.empty((3, 2), np.int64)
    draw_neighbors(tables, Draws(-1, False, np.uint64(1)), nodes, SlotMap().slot_table(slots), neighbors, edge_ids)
    assert neighbors.tolist() == [3 << int(TREE_SHIFT) | 5, 3 << int(TREE_SHIFT) | 6]


@pytest.mark.parametrize("indptr", [[0, 2, 9], [0, -1, 3], [0, 3, 2]])
def test_a_range_outside_the_edges_is_reported(indptr: list[int]) -> None:
    """A damaged ``indptr`` must not make a kernel read outside the file."""
    arrays = np.array(indptr), np.arange(3)
    indptrs, indices = (address_table([array]) for array in arrays)
    tables = make_tables(offsets=np.array([0, 2]), indptrs=indptrs, indices=indices)
    assert edge_ranges(tables, make_nodes(np.array([0, 1])), -1, False) in (-1, -2)


@pytest.mark.parametrize("degree,count", [(2, 1), (5, 1), (5, 4), (30, 7), (200, 66), (100, 90)])
def test_without_replacement_every_edge_is_drawn_equally_often(degree: int, count: int) -> None:
    """Each edge is drawn within 5 sigma of count / degree over 10 000 draws, never twice in one draw."""
    num_draws = 10_000
    drawn = _draw_many(degree, count, False, num_draws)
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    chance = count / degree
    sigma = math.sqrt(num_draws * chance * (1 - chance))
    deviation = (np.bincount(drawn.ravel(), minlength=degree) - num_draws * chance) / sigma
    assert np.abs(deviation).max() < 5, deviation


@pytest.mark.parametrize("degree,count", [(5, 2), (30, 7), (100, 90)])
def test_without_replacement_pairs_are_drawn_equally_often(degree: int, count: int) -> None:
    """Each pair of edges is drawn together within 5.5 sigma of its chance, over 10 000 draws."""
    num_draws = 10_000
    drawn = _draw_many(degree, count, False, num_draws)
    is_in = np.zeros((num_draws, degree))
    is_in[np.arange(num_draws)[:, None], drawn] = 1
    pairs = (is_in.T @ is_in)[np.triu_indices(degree, 1)]
    chance = count * (count - 1) / (degree * (degree - 1))
    deviation = (pairs - num_draws * chance) / math.sqrt(num_draws * chance * (1 - chance))
    assert np.abs(deviation).max() < 5.5, deviation


@pytest.mark.parametrize("degree,count", [(1, 3), (7, 4), (50, 20)])
def test_with_replacement_draws_are_uniform_and_independent_of_the_turn(degree: int, count: int) -> None:
    num_draws = 10_000
    drawn = _draw_many(degree, count, True, num_draws)
    sigma = math.sqrt(num_draws / degree * (1 - 1 / degree))
    for turn in range(count):
        deviation = np.bincount(drawn[:, turn], minlength=degree) - num_draws / degree
        assert np.abs(deviation).max() <= 5 * sigma, (turn, deviation)


def test_different_nodes_and_seeds_draw_differently() -> None:
    drawn = _draw_many(1000, 5, False, 500)
    assert len(np.unique(drawn, axis=0)) == 500


def _draw_many(degree: int, count: int, is_replacing: bool, num_draws: int) -> NDArray[np.int64]:
    """int64[num_draws, count] positions: half of the draws are of other keys, half of other seeds."""
    half = np.arange(num_draws // 2, dtype=np.int64)
    indptr = np.array([0, degree], np.int64)
    drawn = []
    for rng_seed in (11, 12):
        for block in np.array_split(half, 3):
            n = len(block)
            # Every node shares one list of edges: id i is row 0 of part i.
            offsets = np.arange(n + 1, dtype=np.int64)
            indices = np.arange(degree, dtype=np.uint32)
            tables = make_tables(
                offsets=offsets,
                edge_offsets=np.zeros(n + 1, np.int64),
                indptrs=address_table([indptr] * n),
                keys=address_table([block[i : i + 1] for i in range(n)]),
                indices=address_table([indices] * n),
            )
            nodes = make_nodes(offsets[:-1])
            total = edge_ranges(tables, nodes, count, is_replacing)
            neighbors, edge_ids = np.empty(total, np.uint32), np.empty(total, np.int64)
            draws = Draws(count, is_replacing, np.uint64(rng_seed))
            draw_neighbors(tables, draws, nodes, None, neighbors, edge_ids)
            drawn.append(neighbors.reshape(n, count))
    return np.concatenate(drawn)
