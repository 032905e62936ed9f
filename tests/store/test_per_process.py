"""Checks that each process opens a source for itself, once, and closes it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hopstream.compat.pyg.stores import ProcessStore
from hopstream.errors import FormatError, SettingsError
from tests.load.graphs import local_store, make_plain_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("process") / "parts"
    local_store(make_plain_graph(np.random.default_rng(1)), folder).close()
    return folder


def test_a_source_is_opened_once_per_process(folder):
    source = ProcessStore(folder)
    sent = pickle.loads(pickle.dumps(source))
    assert source.store() is source.store() is not sent.store()
    assert sent.store().graph_id == source.store().graph_id
    source.close()
    source.close()
    with pytest.raises(SettingsError, match="the source was closed"):
        source.store()
    assert len(sent.store().lookup("node", np.arange(3))) == 3
    sent.close()


def test_an_open_store_stays_open_and_is_not_sent(folder, tmp_path):
    with local_store(make_plain_graph(np.random.default_rng(1)), tmp_path / "parts") as store:
        source = ProcessStore(store)
        with pytest.raises(TypeError, match="LocalStore can be neither pickled nor copied: open one in each"):
            pickle.dumps(source)
        source.close()
        assert len(store.lookup("node", np.arange(3))) == 3


def test_invalid_sources_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="source is a int"):
        ProcessStore(7)
    with pytest.raises(FormatError):
        ProcessStore(tmp_path)
