"""Does a reader of rows say what the arrays of the parts hold?"""

from __future__ import annotations

import numpy as np

from hopstream.arrays import RaggedArray
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.newest_rows import open_rows
from hopstream.dataset.rows import owners_of
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from tests.dataset.timed_graphs import RATES, timed_graph


def test_rows_are_those_of_the_parts(tmp_path, rng, typed_graph: Graph):
    write_parts(typed_graph, tmp_path / "set", num_parts=3, method="random", direction="both")
    dataset, rows = open_dataset(tmp_path / "set"), open_rows(tmp_path / "set")
    num_ragged = 0
    for part in range(3):
        arrays = dataset.open_part(part)
        for owner in owners_of(rows.contents):
            is_node = isinstance(owner, str)
            features = arrays.node_features[owner] if is_node else arrays.edges[owner].features
            num_rows = len(arrays.node_keys[owner]) if is_node else len(arrays.edges[owner].indptr) - 1
            first, stop = num_rows // 3, num_rows
            starts = rows.starts(owner, part, first, stop)
            wanted = np.arange(num_rows + 1) if is_node else arrays.edges[owner].indptr
            assert starts.tolist() == wanted[first:].tolist()
            begin, end = int(starts[0]), int(starts[-1])
            columns = rows.columns(owner)
            for column in columns.fixed:
                values = rows.read(owner, part, column, begin, end)
                if column.name.parent.name == "features":
                    assert values.tobytes() == features[column.name.stem][begin:end].tobytes()
                elif column.name.name == "indices.npy":
                    assert values.tolist() == arrays.edges[owner].indices[begin:end].tolist()
            for ragged in columns.ragged:
                column = features[ragged.values.name.name.removesuffix(".values.npy")]
                assert isinstance(column, RaggedArray)
                places = rows.value_starts(owner, part, ragged, begin, end)
                assert places.tolist() == column.offsets[begin : end + 1].tolist()
                values = rows.read_values(owner, part, ragged, int(places[0]), int(places[-1]))
                assert values.tobytes() == column.values[places[0] : places[-1]].tobytes()
                num_ragged += 1
    assert num_ragged


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
