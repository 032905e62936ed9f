import pytest

from hopstream.compat.dgl import tensors


@pytest.fixture(autouse=True)
def no_dgl(monkeypatch):
    """Give graphs of this package also where DGL is installed."""
    monkeypatch.setattr(tensors, "find_spec", lambda name: None)
