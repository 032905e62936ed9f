import pytest

from hopstream.compat.dgl import loading


@pytest.fixture(autouse=True)
def no_dgl(request, monkeypatch):
    """Give graphs of this package also where DGL is installed, but for the tests with DGL itself."""
    if not request.module.__name__.endswith("test_with_dgl"):
        monkeypatch.setattr(loading, "find_spec", lambda name: None)
