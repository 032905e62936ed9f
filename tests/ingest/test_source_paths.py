"""Checks that output folders are refused inside, around and at the input, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopstream.errors import SettingsError
from hopstream.ingest.source_paths import check_apart


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("mag/chunks/edges", "mag/owners", "other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("mag/shop.json", "mag/g.npz"):
        (tmp_path / name).touch()
    (tmp_path / "mag/chunks/metadata.json").write_text('{"graph_name": "mag", "node_type": []}')
    (tmp_path / "link").symlink_to(tmp_path / "mag/chunks")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("out", "read", "how"),
    [
        ("mag/chunks", "mag/chunks", "which is the graph itself"),
        ("mag/chunks/", "mag/chunks/metadata.json", "which is the graph itself"),
        ("mag/chunks/out", "mag/chunks", "which lies in mag/chunks, the graph"),
        ("mag/chunks/a/b", "mag/chunks/metadata.json", "which lies in mag/chunks, the graph"),
        ("mag/chunks/../chunks/out", "mag/chunks", "which lies in mag/chunks, the graph"),
        ("link/out", "mag/chunks", "which lies in mag/chunks, the graph"),
        ("mag/chunks/out", "link", "which lies in link, the graph"),
        ("mag", "mag/chunks", "which holds mag/chunks, the graph"),
        ("mag", "mag/g.npz", "which holds mag/g.npz, the graph"),
        ("mag", "mag/shop.json", "which holds mag/shop.json, the graph"),
    ],
)
def test_outputs_inside_the_source_are_refused(here, out, read, how):
    with pytest.raises(SettingsError) as caught:
        check_apart(out, {"the rest": "other", "the graph": read}, "out_dir")
    assert str(caught.value) == f"out_dir is {out}, {how}; give a folder apart from the input"


@pytest.mark.parametrize(
    ("out", "read"),
    [
        ("mag/parts", "mag/chunks"), ("mag/chunks-2", "mag/chunks"), ("mag/parts", "mag/chunks/metadata.json"),
        ("mag/parts", "mag/shop.json"), ("mag/parts", "mag/g.npz"), ("new/deep/parts", "mag"), ("mag/parts", "link"),
    ],
)  # fmt: skip
def test_sibling_folders_are_accepted(here, out, read):
    check_apart(out, {"the graph": read})
