"""Checks that the trust example learns which ratings are negative, from files in Bitcoin-OTC's form."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from tests.examples.real_data import functions_of, real_data, run_here, run_script

pytestmark = pytest.mark.slow

NUM_TRADERS, NUM_RATINGS = 50, 1500


def write_bitcoin_otc(folder: Path, rng: np.random.Generator) -> None:
    """Write files in that form: ratings are above 0 between traders of one kind, and below 0 otherwise."""
    raw_ids = 3 * rng.permutation(NUM_TRADERS) + 2
    is_honest = rng.random(NUM_TRADERS) < 0.65
    src = rng.integers(0, NUM_TRADERS, NUM_RATINGS)
    dst = (src + rng.integers(1, NUM_TRADERS, NUM_RATINGS)) % NUM_TRADERS
    ratings = np.where(is_honest[src] == is_honest[dst], 1, -1) * rng.integers(1, 11, NUM_RATINGS)
    times = 1.3e9 + 1e6 * rng.random(NUM_RATINGS)
    rows = zip(raw_ids[src], raw_ids[dst], ratings, times, strict=True)
    text = "".join(f"{source},{target},{rating},{time:.6f}\n" for source, target, rating, time in rows)
    (folder / "nodes.csv").write_text("".join(f"{raw_id}\n" for raw_id in raw_ids))
    (folder / "edges.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def figures_of(shown: str) -> list[float]:
    """The model's figure, then those of the plain methods."""
    found = re.search(
        r"^result +ROC AUC (\S+); .*: received (\S+), given (\S+), both (\S+); chance (\S+)$", shown, re.M
    )
    assert found, shown
    return [float(figure) for figure in found.groups()]


def assert_shown(shown: str, *, is_better: bool) -> None:
    assert [line.split()[0] for line in shown.splitlines() if not line.startswith("up: ")] == [
        "read",
        "train",
        "test",
        "result",
    ], shown
    assert "50 traders, 1,500 ratings" in shown
    found, *baselines = figures_of(shown)
    assert (found > max(baselines)) == is_better, shown


def test_the_model_is_better_than_the_baselines_once_it_is_trained(tmp_path: Path):
    write_bitcoin_otc(tmp_path, np.random.default_rng(0))
    status, shown = run_script("bitcoin_otc.py", tmp_path, "--epochs", 20)
    assert_shown(shown, is_better=True)
    assert status == 0, shown


def test_exit_status_shows_that_an_untrained_model_is_not_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_bitcoin_otc(tmp_path, np.random.default_rng(0))
    status, shown = run_here("bitcoin_otc.py", monkeypatch, capsys, tmp_path, "--epochs", 0)
    assert_shown(shown, is_better=False)
    assert status == 1, shown


def test_means_use_strictly_earlier_ratings(monkeypatch: pytest.MonkeyPatch):
    means = functions_of("bitcoin_otc.py", monkeypatch)["earlier_means"]
    traders, times = np.array([4, 4, 7, 4, 4]), np.array([30, 10, 20, 20, 20])
    assert means(traders, np.array([9.0, 1.0, 5.0, -3.0, 5.0]), times, 0.5).tolist() == [1.0, 0.5, 0.5, 1.0, 1.0]


def test_ratings_are_weights_features_and_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "nodes.csv").write_text("30\n10\n20\n")
    (tmp_path / "edges.csv").write_text("10,30,-10,1289241911.72836\n20,10,10,1289241941.5\n10,20,3,7.0\n")
    functions = functions_of("bitcoin_otc.py", monkeypatch)
    graph = functions["read_bitcoin_otc"](tmp_path)
    rates, rated_by = graph.edges[functions["RATES"]], graph.edges[functions["RATED_BY"]]
    assert rates.src_keys.tolist() == rated_by.dst_keys.tolist() == [1, 2, 1]
    assert rates.dst_keys.tolist() == rated_by.src_keys.tolist() == [0, 1, 2]
    assert rates.features["weight"].tolist() == [1.0, 21.0, 14.0]
    assert rates.features["time"].tolist() == [1289241911, 1289241941, 7]


def test_the_model_is_better_than_the_baselines_on_bitcoin_otc():
    status, shown = run_script("bitcoin_otc.py", real_data("bitcoin-otc"), "--epochs", 4)
    assert "5,881 traders, 35,592 ratings, 3,563 negative" in shown
    assert status == 0, shown


def test_error_for_missing_data_points_to_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SystemExit, match=r"^error: .* has no nodes\.csv and no nodes\.csv\.gz; --help says where"):
        functions_of("bitcoin_otc.py", monkeypatch)["read_bitcoin_otc"](tmp_path)
