"""Checks that edges are found by their keys in the parts that hold them."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream import write_parts
from hopstream.errors import IdRangeError
from hopstream.schema import EDGE
from hopstream.store import open_store, whole
from hopstream.store.contract import KEY, FetchRequest
from hopstream.store.whole import EdgeIdsOfKeys
from tests.load.graphs import make_plain_graph


def test_ids_of_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "MAX_ROWS", 7)
    graph, owner = make_plain_graph(np.random.default_rng(1)), (EDGE, "in")
    write_parts(graph, tmp_path / "parts", num_parts=3, method="hash")
    with open_store(tmp_path / "parts") as store:
        offsets = store.book.edge_offsets[owner]
        ids = np.random.default_rng(2).permutation(int(offsets[-1])).repeat(2)
        keys = store.fetch([FetchRequest(entity=owner, names=(KEY,), ids=ids)])[0][KEY]
        parts = np.searchsorted(offsets, ids, side="right") - 1
        found = EdgeIdsOfKeys(store, EDGE)
        assert found.find(keys, parts).tolist() == ids.tolist()
        assert found.find(keys[:0], parts[:0]).tolist() == []
        with pytest.raises(IdRangeError, match="is not in part"):
            found.find(keys[:1], (parts[:1] + 1) % 3)
        with pytest.raises(IdRangeError, match=r"part is 3; parts are numbered 0\.\.2"):
            found.find(keys[:1], np.array([3]))
