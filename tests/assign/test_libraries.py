"""Checks that KaMinPar and METIS get the intended graph and give the same cut twice."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import kaminpar
import numpy as np
import pytest

from hopstream.assign import libraries
from hopstream.assign.libraries import cut_with_kaminpar, cut_with_metis, fit_weights, write_parhip
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import MissingDependencyError, SettingsError
from tests.assign.test_flatten import adjacency_of
from tests.dataset.graphs import community_graph


@pytest.fixture
def flat(rng):
    return adjacency_of(community_graph(rng, 300, 2000))


def test_kaminpar_reads_the_written_file(tmp_path, rng, flat):
    weights = rng.integers(1, 1 << 40, len(flat.connected()))
    with (tmp_path / "graph.parhip").open("wb") as file:
        write_parhip(file, flat, weights)
    graph = kaminpar.load_graph(str(tmp_path / "graph.parhip"), kaminpar.GraphFileFormat.PARHIP)
    assert (graph.n(), graph.m()) == (len(flat.connected()), flat.num_ends)
    assert graph.is_node_weighted() and not graph.is_edge_weighted()
    assert [graph.node_weight(u) for u in range(graph.n())] == weights.tolist()
    compact = {position: node for node, position in enumerate(flat.connected().tolist())}
    for node, position in enumerate(compact):
        ((_, _, row),) = ((a, b, c) for a, b, c in flat.blocks(1) if a == position)
        assert graph.neighbors(node) == [(compact[v], 1) for v in row.tolist()]


def test_a_full_disk_is_reported(flat):
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space left") as caught:
        write_parhip(full, flat, np.ones(len(flat.connected()), np.int64))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("method", ["kaminpar", "metis"])
def test_the_seed_decides(flat, tmp_path, method):
    weights = np.ones(len(flat.connected()), np.int64)

    def cut(rng_seed: int) -> list[int]:
        chosen = PartitionSettings(num_parts=4, method=method, rng_seed=rng_seed)
        if method == "metis":
            return cut_with_metis(flat, weights, chosen).tolist()
        return cut_with_kaminpar(flat, weights, chosen, tmp_path).tolist()

    first = cut(1)
    others = [cut(seed) for seed in range(2, 6)]
    assert cut(1) == first
    assert any(other != first for other in others)
    assert set(first) == {0, 1, 2, 3}
    assert list(tmp_path.iterdir()) == []


def test_metis_bisects_recursively_only_if_requested(flat):
    weights = np.ones(len(flat.connected()), np.int64)
    at_once, in_twos = (
        cut_with_metis(flat, weights, PartitionSettings(num_parts=4, method="metis", recursive=asked)).tolist()
        for asked in (False, True)
    )
    assert at_once != in_twos
    assert set(in_twos) == {0, 1, 2, 3}
    with pytest.raises(SettingsError, match=r"recursive is given, but method is 'kaminpar'; only metis supports it"):
        PartitionSettings(num_parts=4, recursive=True)


def test_a_missing_library_is_named(flat, monkeypatch):
    weights = np.ones(len(flat.connected()), np.int64)
    chosen = PartitionSettings(num_parts=2)
    monkeypatch.setitem(sys.modules, "kaminpar", None)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(MissingDependencyError, match="pip install kaminpar"):
        cut_with_kaminpar(flat, weights, chosen, None)
    with pytest.raises(MissingDependencyError, match="pip install pymetis"):
        cut_with_metis(flat, weights, chosen)


def test_a_32_bit_kaminpar_is_refused_before_it_crashes(flat, monkeypatch):
    monkeypatch.setattr(kaminpar, "__64bit__", False)
    with pytest.raises(SettingsError, match="64-bit"):
        cut_with_kaminpar(flat, np.ones(len(flat.connected()), np.int64), PartitionSettings(num_parts=2), None)


def test_weights_fit_the_library():
    weights = np.array([1, 10, 1000, 10**6, 10**9])
    assert fit_weights(weights, 1 << 40) is weights
    fitted = fit_weights(weights, 1000)
    assert fitted.min() == 1 and fitted.sum() <= 1000 + len(weights) and fitted.tolist() == sorted(fitted.tolist())


def test_a_big_graph_is_cut_compressed(flat, monkeypatch):
    weights, seen = np.ones(len(flat.connected()), np.int64), []
    load = kaminpar.load_graph
    monkeypatch.setattr(
        kaminpar, "load_graph", lambda *a, compress: seen.append(compress) or load(*a, compress=compress)
    )
    rows = [(first, row) for first, _, row in flat.blocks(1)]
    part_of = np.empty(len(flat.indptr) - 1, np.int64)
    for limit in (flat.num_ends, flat.num_ends - 1):
        monkeypatch.setattr(libraries, "BIG_ENDS", limit)
        parts = cut_with_kaminpar(flat, weights, PartitionSettings(num_parts=4), None)
        assert np.bincount(parts).max() <= 1.03 * -(-len(weights) // 4) + 1
        part_of[flat.connected()] = parts
        num_cut = sum(np.count_nonzero(part_of[row] != part_of[node]) for node, row in rows)
        assert 0 < num_cut < 0.4 * flat.num_ends  # 0.75 of them for parts drawn at random
    assert seen == [False, True]
