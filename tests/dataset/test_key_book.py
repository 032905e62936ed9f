"""Checks that the book maps every key and id to its part."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import hopstream
from hopstream.errors import FormatError, IdRangeError, SchemaError, UnknownNameError
from tests.preparation.audit.forging import OPTIONS, RATES, full_graph


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("book") / "d"
    hopstream.write_parts(full_graph(1), root, direction="both", **OPTIONS)
    return root


def test_keys_ids_and_parts_agree(written):
    book, dataset = hopstream.dataset.read_key_book(written), hopstream.open_dataset(written)
    assert book.num_parts == 3
    for node_type, num_nodes in (("user", 30), ("movie", 12)):
        keys = np.random.default_rng(0).permutation(num_nodes)
        ids = book.ids_of(node_type, keys)
        assert sorted(ids.tolist()) == list(range(num_nodes))
        assert np.array_equal(book.keys_of(node_type, ids), keys)
        for key, part, node_id in zip(keys, book.part_of(node_type, keys), ids, strict=True):
            assert key in dataset.open_part(int(part)).node_keys[node_type]
            first, stop = book.node_range(node_type, int(part))
            assert first <= node_id < stop
        owned = [book.keys_of_part(node_type, part) for part in range(3)]
        assert sorted(np.concatenate(owned).tolist()) == list(range(num_nodes))
    assert book.ids_of("user", 3).shape == (1,)
    assert book.ids_of("user", []).tolist() == []


def test_metadata_counts_nodes_and_edges_of_each_part(written):
    book, dataset = hopstream.dataset.read_key_book(written), hopstream.open_dataset(written)
    for part, told in enumerate(book.metadata()):
        arrays = dataset.open_part(part)
        assert told["part"] == part
        assert told["num_nodes"] == {t: len(keys) for t, keys in arrays.node_keys.items()}
        assert told["num_edges"]["out"]["user__rates__movie"] == len(arrays.edges[RATES, "out"].indices)
        first, stop = book.edge_range("user__rates__movie", "in", part)
        assert stop - first == len(arrays.edges[RATES, "in"].indices)


def test_bad_arguments_are_refused(written, tmp_path):
    book = hopstream.dataset.read_key_book(written)
    for call, error, message in [
        (lambda: book.ids_of("user", [3, 30]), IdRangeError, r"user: keys\[1\] is 30; keys are 0\.\.29"),
        (lambda: book.keys_of("movie", [-1]), IdRangeError, r"movie: ids\[0\] is -1; ids are 0\.\.11"),
        (lambda: book.part_of("actor", [0]), UnknownNameError, "unknown node type 'actor'"),
        (lambda: book.ids_of("user", [0.5]), SchemaError, "must be integers"),
        (lambda: book.keys_of_part("user", 3), UnknownNameError, "has no part 3"),
        (lambda: book.edge_range(RATES, "up", 0), UnknownNameError, "no edges of direction 'up'"),
    ]:
        with pytest.raises(error, match=message):
            call()
    shutil.copytree(written, tmp_path / "d")
    shutil.rmtree(tmp_path / "d" / "part-00001")
    book = hopstream.dataset.read_key_book(tmp_path / "d")
    assert len(book.ids_of("user", [0, 9, 29])) == 3
    with pytest.raises(FormatError, match=r"id_of_key.npy is missing"):
        book.ids_of("user", [12])
