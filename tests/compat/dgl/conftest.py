import pytest

from hopstream.compat.dgl import loading


@pytest.fixture(autouse=True)
def no_dgl(monkeypatch):
    """Give graphs of this package also where DGL is installed."""
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
