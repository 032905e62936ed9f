"""Find the examples that the real TF-GNN wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

OWN = Path(__file__).parent / "golden"
SHARED = Path(__file__).parents[2].parent / "shared" / "golden" / "tfgnn"
"""More golden files, outside of the project."""

_STEMS = [path.with_name(path.name.removesuffix(".tfrecord")) for f in (OWN, SHARED) for path in f.glob("*.tfrecord")]
each_golden = pytest.mark.parametrize("stem", sorted(_STEMS), ids=lambda stem: f"{stem.parent.parent.name}-{stem.name}")
"""Run a test for every ``<stem>.schema.pbtxt``, ``<stem>.tfrecord`` and ``<stem>.values.json``."""


def golden_path(stem: Path, end: str) -> Path:
    """One of the files of a stem."""
    return stem.with_name(f"{stem.name}.{end}")
