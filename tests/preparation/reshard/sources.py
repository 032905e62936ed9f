"""Re-shard datasets, and compare the bytes with those of ``write_parts``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopstream.assign import owners
from hopstream.assign import source as assign_dataset
from hopstream.dataset.manifest import Manifest
from hopstream.graph.graph import Graph
from hopstream.preparation.reshard import reshard_folder
from hopstream.preparation.reshard.reshard_job import reshard
from hopstream.preparation.write import write_parts
from tests.preparation.dispatch.sources import check_same, write_owners


def cut_small(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Limit blocks, pieces and runs to about ``size`` rows, so that small graphs take many tasks."""
    limits = reshard_folder.ReshardLimits(block_rows=size, piece_bytes=8 * size, run_bytes=(64 * size, 64 * size))
    monkeypatch.setattr(reshard_folder, "LIMITS", limits)
    monkeypatch.setattr(owners, "BLOCK_ROWS", max(1, size // 2))
    monkeypatch.setattr(assign_dataset, "BLOCK_EDGES", size)


def check_reshard(
    graph: Graph, folder: Path, num_old: int, num_new: int, rng: np.random.Generator, **options: object
) -> tuple[Manifest, Manifest]:
    """Write a graph into parts, re-shard them, and compare every byte with a direct write of the graph."""
    old = write_owners(folder / "old-owners", graph, num_old, rng)
    write_parts(graph, folder / "old", num_parts=num_old, owners=old, overwrite=True, **options)
    owners = write_owners(folder / "owners", graph, num_new, rng)
    return check_again(graph, folder, num_new, owners, **options)


def check_again(graph: Graph, folder: Path, num_new: int, owners: Path, **options: object) -> tuple[Manifest, Manifest]:
    """Re-shard an existing dataset; compare it with a direct write."""
    got = reshard(
        folder / "old", folder / "got", partitions_dir=owners, num_parts=num_new, num_workers=0, overwrite=True
    )
    wanted = write_parts(graph, folder / "wanted", num_parts=num_new, owners=owners, overwrite=True, **options)
    check_same(folder / "got", folder / "wanted", got, wanted, ignored=("made_by",))
    assert got.made_by["method"] == "file" and got.made_by["num_parts"] == num_new
    return got, wanted
