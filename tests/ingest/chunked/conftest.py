"""A small chunked graph."""

from __future__ import annotations

import pytest

from tests.ingest.chunked.folders import Folder, make_folder


@pytest.fixture
def folder(tmp_path) -> Folder:
    return make_folder(tmp_path)
