"""Checks that the example of banned workers learns from neighbours, and that missing data are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.examples.real_data import functions_of, real_data, run_script

pytestmark = pytest.mark.slow

NUM_WORKERS, NUM_EDGES = 400, 4000


def write_tolokers(folder: Path, rng: np.random.Generator) -> None:
    """Write a file in that form: edges join workers of one label.

    Features tell the label of one worker in ten.
    """
    labels = rng.integers(0, 2, NUM_WORKERS)
    features = rng.standard_normal((NUM_WORKERS, 6))
    features[:, 0] = np.where(rng.random(NUM_WORKERS) < 0.1, 8.0 * (2 * labels - 1), 0.0)
    of_label = [np.flatnonzero(labels == label) for label in (0, 1)]
    pairs = [rng.choice(workers, (NUM_EDGES // 2, 2)) for workers in of_label]
    shuffled = [rng.permutation(NUM_WORKERS) for _ in range(10)]
    masks = {}
    for name, first, last in (("train", 0, 200), ("val", 200, 300), ("test", 300, 400)):
        masks[f"{name}_masks"] = np.zeros((10, NUM_WORKERS), bool)
        for split, order in enumerate(shuffled):
            masks[f"{name}_masks"][split, order[first:last]] = True
    np.savez(folder / "tolokers.npz", edges=np.concatenate(pairs), node_features=features, node_labels=labels, **masks)


def test_the_model_is_better_than_the_baselines_on_workers_that_their_neighbours_give_away(tmp_path: Path):
    write_tolokers(tmp_path, np.random.default_rng(0))
    status, shown = run_script("tolokers.py", tmp_path, "--epochs", 12)
    assert [line.split()[0] for line in shown.splitlines() if not line.startswith("up: ")] == [
        "read",
        "train",
        "result",
    ], shown
    assert "400 workers, 8,000 edges" in shown
    assert status == 0, shown


def test_the_model_is_better_than_the_baselines_on_tolokers():
    status, shown = run_script("tolokers.py", real_data("tolokers"), "--epochs", 1)
    assert "11,758 workers, 1,038,000 edges" in shown
    assert status == 0, shown


def test_error_for_missing_data_points_to_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SystemExit, match=r"^error: .* has no tolokers\.npz; see --help for where to get it$"):
        functions_of("tolokers.py", monkeypatch)["read_tolokers"](tmp_path)
