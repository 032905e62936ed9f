"""Checks that a part of an appended dataset is read as arrays with its newest edges."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.cli.census import degrees_of_dataset
from hopstream.dataset.key_book import read_key_book
from hopstream.dataset.layout import open_dataset
from hopstream.load.partitions import read_part, read_part_features
from hopstream.store.contract import KEY, FetchRequest
from hopstream.store.local import LocalStore
from tests.preparation.append.graphs import grown_graph, written


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("appended") / "d"
    written(folder, 2, 2)
    return folder


@pytest.mark.parametrize("direction", ["in", "out"])
def test_parts_have_every_edge_once(root, direction):
    graph, metadata = grown_graph().graph, read_key_book(root).metadata()
    parts = [read_part(root, part, direction=direction) for part in range(4)]
    with LocalStore(open_dataset(root)) as store:
        for edge_type, table in graph.edges.items():
            edges = [part.edges[edge_type] for part in parts]
            keys = np.concatenate([of_part.keys for of_part in edges])
            assert sorted(keys.tolist()) == list(range(table.num_edges))
            assert np.concatenate([e.src_keys for e in edges]).tolist() == table.src_keys[keys].tolist()
            assert np.concatenate([e.dst_keys for e in edges]).tolist() == table.dst_keys[keys].tolist()
            ids = np.concatenate([e.ids for e in edges])
            (found,) = store.fetch([FetchRequest(entity=(edge_type, direction), names=(KEY,), ids=ids)])
            assert found[KEY].tolist() == keys.tolist()
            counts = [of_part["num_edges"][direction]["__".join(edge_type)] for of_part in metadata]
            assert counts == [len(of_part.keys) for of_part in edges]
            for number, of_part in enumerate(edges):
                columns = read_part_features(root, number, direction=direction).edges[edge_type]
                for name, column in table.features.items():
                    assert np.array_equal(columns[name], column[of_part.keys])


def test_degrees_are_those_of_the_grown_graph(root):
    graph = grown_graph().graph
    for summary in degrees_of_dataset(open_dataset(root), lambda *_: None):
        table = graph.edges[summary.edge_type]
        keys = table.dst_keys if summary.direction == "in" else table.src_keys
        assert summary.num_edges == table.num_edges
        assert summary.largest == np.bincount(keys).max()
