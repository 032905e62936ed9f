"""Checks that a reader of rows returns what the arrays of the parts, or of the graph, hold."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.dataset import rows as dataset_rows
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.overlays import newest_part
from hopstream.dataset.rows import RaggedFiles, entities_of, open_rows, own_type
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from tests.dataset.timed_graphs import RATES, timed_graph
from tests.preparation.append.graphs import OPTIONS
from tests.preparation.reshard.test_appended import grown


@pytest.fixture(params=["as written", "grown"])
def root(request, tmp_path, typed_graph: Graph):
    if request.param == "grown":
        grown().write(tmp_path / "set", 2, 3, **OPTIONS)
    else:
        write_parts(typed_graph, tmp_path / "set", num_parts=3, method="random", direction="both")
    return tmp_path / "set"


@pytest.mark.parametrize("gap", [1, 1 << 14])
def test_any_range_has_the_newest_rows(root, monkeypatch, rng, gap):
    monkeypatch.setattr(dataset_rows, "GAP_BYTES", gap)
    dataset, rows = open_dataset(root), open_rows(root)
    num_ragged = 0
    for part in range(rows.book.num_parts):
        arrays = newest_part(dataset.open_part(part))
        for entity in entities_of(rows.contents):
            is_node = isinstance(entity, str)
            features = arrays.node_features[entity] if is_node else arrays.edges[entity].features
            num_rows = len(arrays.node_keys[own_type(entity)])
            offsets = np.arange(num_rows + 1) if is_node else arrays.edges[entity].indptr
            for _ in range(3):
                first, stop = np.sort(rng.integers(0, num_rows + 1, 2)).tolist()
                spans = rows.spans(entity, part, first, stop)
                assert spans.counts.tolist() == np.diff(offsets[first : stop + 1]).tolist()
                for piece in np.unique(spans.pieces).tolist():
                    here = np.flatnonzero(spans.pieces == piece)
                    items = [e for row in here for e in range(offsets[first + row], offsets[first + row + 1])]
                    told = (piece, spans.starts[here], spans.counts[here])
                    if not is_node:
                        column = rows.columns(entity).named("indices.npy")
                        wanted = arrays.edges[entity].indices[items]
                        assert rows.read_spans(entity, column, *told).tolist() == wanted.tolist()
                    for name, column in rows.columns(entity).features.items():
                        wanted = features[name]
                        if isinstance(column, RaggedFiles):
                            assert isinstance(wanted, RaggedArray)
                            starts, counts = rows.element_spans(entity, column, *told)
                            found = rows.read_spans(entity, column.values, piece, starts, counts)
                            taken = wanted.take(np.array(items, np.int64))
                            assert counts.tolist() == np.diff(taken.offsets).tolist()
                            assert found.tobytes() == taken.values.tobytes()
                            num_ragged += len(items)
                        else:
                            found = rows.read_spans(entity, column, *told)
                            assert found.tobytes() == np.ascontiguousarray(wanted[items]).tobytes()
    assert num_ragged


@pytest.mark.parametrize("max_items", [1, 7])
def test_blocks_have_every_newest_item_once(root, monkeypatch, max_items):
    monkeypatch.setattr(dataset_rows, "BLOCK_ROWS", 5)
    dataset, rows = open_dataset(root), open_rows(root)
    parts = [newest_part(dataset.open_part(part)) for part in range(rows.book.num_parts)]
    for edge_type in rows.contents.schema.edges:
        owner = (edge_type, "in")
        indices = np.concatenate([part.edges[owner].indices for part in parts])
        degrees = np.concatenate([np.diff(part.edges[owner].indptr) for part in parts])
        own_ids = np.repeat(np.arange(len(degrees)), degrees)
        places = [np.empty(0, np.int64)]
        for block in rows.blocks(owner, max_items):
            column = rows.columns(owner).named("indices.npy")
            found = rows.read_spans(owner, column, block.piece, block.starts, block.counts)
            assert len(found) <= max_items and found.tolist() == indices[block.item_places].tolist()
            assert np.repeat(block.row_ids, block.counts).tolist() == own_ids[block.item_places].tolist()
            places.append(block.item_places)
        assert np.sort(np.concatenate(places)).tolist() == list(range(rows.book.num_edges(edge_type)))


def test_keys_splits_and_links(tmp_path, rng):
    graph = timed_graph(rng)
    write_parts(graph, tmp_path / "set", num_parts=4, method="random", time_attr="time")
    rows = open_rows(tmp_path / "set")
    ids = rows.ids_of_keys("user", 3, 29)
    parts = rows.book.parts_of("user", ids)
    for key, part, node in zip(range(3, 29), parts, ids, strict=True):
        row = int(node - rows.book.node_offsets["user"][part])
        assert rows.keys("user", int(part), row, row + 1).tolist() == [key]
    for name, keys in graph.edge_splits[RATES].items():
        assert np.concatenate([[], *rows.splits(RATES, name, 7)]).tolist() == keys.tolist()
    assert rows.links(RATES, "src_key", 11, 140).tolist() == graph.edges[RATES].src_keys[11:140].tolist()
    times = graph.edges[RATES].features["time"]
    assert rows.links(RATES, "time", 0, 150).tolist() == np.asarray(times).tolist()
