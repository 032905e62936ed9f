"""Checks that the likeliest nodes are those of a sorted list, in memory or in files."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import hopstream
from hopstream.arrays import offsets_of
from hopstream.kernels.halo import mark_ids
from hopstream.preparation.halo import reach, sources
from hopstream.preparation.halo.reach import InclusionModel, edge_bytes, feature_bytes, hottest
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.halo.sources import EdgesOf, NodeBitmap, NumberTables, Parts, chunks_of
from tests.preparation.audit.forging import OPTIONS, full_graph


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    root = tmp_path_factory.mktemp("origin") / "d"
    hopstream.write_parts(full_graph(3), root, direction="both", **OPTIONS)
    return Parts(hopstream.open_dataset(root))


def sorted_hottest(parts, part, sampled, sizes_of, budget, per_byte):
    """The hottest nodes of other parts by a full sort."""
    rows = []
    for number, (node_type, bytes_of) in enumerate(sizes_of.items()):
        first, stop = parts.book.node_offsets[node_type][part : part + 2]
        ids = np.setdiff1d(np.flatnonzero(sampled[node_type] > 0), np.arange(first, stop))
        sizes = bytes_of(ids)
        ranks = sampled[node_type][ids] / sizes if per_byte else sampled[node_type][ids]
        rows += [(-rank, number, i, size) for rank, i, size in zip(ranks, ids, sizes, strict=True) if rank]
    taken = {t: [] for t in sizes_of}
    for _, number, i, size in sorted(rows):
        budget -= int(size)
        if budget < 0:
            break
        taken[list(sizes_of)[number]].append(int(i))
    return {t: sorted(ids) for t, ids in taken.items()}


@pytest.mark.parametrize("as_bitmap", [False, True])
def test_edges_of_nodes_come_in_bounded_blocks_in_the_order_of_nodes(monkeypatch, as_bitmap):
    monkeypatch.setattr(sources, "CHUNK_ROWS", 64)
    counts = np.array([0, 150, 3, 0, 64, 1, 70] * 12)
    offsets = offsets_of(counts) + 1000
    nodes = np.flatnonzero(np.arange(len(counts)) % 5)
    taken = NodeBitmap.empty(len(counts))
    mark_ids(nodes, taken.marks)
    edges = EdgesOf(taken if as_bitmap else nodes, lambda ids: (offsets[ids], counts[ids]), int(counts[nodes].sum()))
    blocks = list(edges.chunks())
    assert max(map(len, blocks)) <= 64
    wanted = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in nodes])
    assert np.array_equal(np.concatenate(blocks), wanted) and len(edges) == len(wanted)


@pytest.mark.parametrize("of_edges", [False, True])
@pytest.mark.parametrize("num_values", [1, 3, 1000])
def test_the_hottest_are_those_of_a_sorted_list(parts, monkeypatch, num_values, of_edges):
    """Many equal, zero and tiny chances; ragged features and edges give rows different sizes."""
    monkeypatch.setattr(reach, "CHUNK_ROWS", 7)
    rng, book = np.random.default_rng(num_values), parts.book
    features = {t: tuple(names) for t, names in parts.manifest.schema.nodes.items()}
    sizes_of = {t: partial(feature_bytes, parts, t, names) for t, names in features.items()}
    if of_edges:
        sizes_of = {t: partial(edge_bytes, parts, t) for t in features}
    values = np.append(rng.random(num_values), [0, 5e-324, 1.0])
    sampled = {t: rng.choice(values, book.num_ids(t)) for t in features}
    total = sum(int(bytes_of(np.arange(book.num_ids(t))).sum()) for t, bytes_of in sizes_of.items())
    sizes = set()
    for budget in [0, 1, *rng.integers(1, total, 25).tolist(), total, 1 << 80]:
        for part in range(book.num_parts):
            chosen = hottest(parts, part, sampled, sizes_of, budget, per_byte=of_edges)
            found = {t: nodes.ids().tolist() for t, nodes in chosen.items()}
            assert found == sorted_hottest(parts, part, sampled, sizes_of, budget, of_edges)
            sizes.add(sum(map(len, found.values())))
    assert len(sizes) > 10
    assert hottest(parts, 0, sampled, {}, 100) == {}


@pytest.mark.parametrize("is_expanding", [True, False])
def test_tables_in_files_hold_the_same(parts, tmp_path, is_expanding):
    settings = HaloSettings(fanouts=[3, -1, 2], batch_size=5)
    models = [
        InclusionModel(parts, settings, NumberTables(tmp_path, n), is_expanding=is_expanding) for n in (1 << 20, 0, 99)
    ]
    for part in (1, 0, 1):
        one, *others = [model.of(part) for model in models]
        assert set(one.expanded) == (set(one.sampled) if is_expanding else set())
        for other in others:
            for ours, theirs in ((one.sampled, other.sampled), (one.expanded, other.expanded)):
                assert {t: a.tobytes() for t, a in ours.items()} == {t: a.tobytes() for t, a in theirs.items()}
    assert list(tmp_path.iterdir()) == []


def test_sets_are_read_in_ranges(monkeypatch):
    monkeypatch.setattr(sources, "CHUNK_ROWS", 70)
    nodes = NodeBitmap.of_range(1000, 13, 900)
    assert len(nodes) == 887 and nodes.ids().tolist() == list(range(13, 900))
    assert max(map(len, chunks_of(nodes))) <= 70
    assert [len(ids) for ids in chunks_of(np.arange(150))] == [70, 70, 10]
    assert len(NodeBitmap.empty(0)) == 0 and NodeBitmap.empty(0).ids().tolist() == []
