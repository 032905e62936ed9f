"""Checks that the movie example learns users' tastes, from files in MovieLens's form."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.examples.real_data import functions_of, real_data, run_here, run_script

pytestmark = pytest.mark.slow

NUM_USERS, NUM_MOVIES, NUM_RATINGS = 60, 120, 3000
GENRES = ("Comedy|Drama", "Action|Sci-Fi", "(no genres listed)")


def as_csv(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def write_movielens(folder: Path, rng: np.random.Generator) -> None:
    """Write files in that form: each user has one of two tastes and rates its movies, some more often."""
    users = rng.integers(0, NUM_USERS, NUM_RATINGS)
    chances = 1 / np.arange(2, NUM_MOVIES // 2 + 2)
    movies = 2 * rng.choice(NUM_MOVIES // 2, NUM_RATINGS, p=chances / chances.sum()) + users % 2
    times = rng.integers(10**9, 10**9 + 10**7, NUM_RATINGS) // 100 * 100  # some are equal
    stars = rng.integers(1, 11, NUM_RATINGS) / 2
    titles = [f'"Film", the {key}º (1999)' for key in range(NUM_MOVIES)]
    genres = [GENRES[2 if key % 10 == 9 else key % 2] for key in range(NUM_MOVIES)]
    raw_ids = [7 * key + 3 for key in range(NUM_MOVIES)]
    rows = zip(users + 1, np.array(raw_ids)[movies], stars, times, strict=True)
    movie_table = as_csv([("movieId", "title", "genres"), *zip(raw_ids, titles, genres, strict=True)])
    rating_table = as_csv([("userId", "movieId", "rating", "timestamp"), *rows])
    (folder / "movies.csv").write_text(movie_table, encoding="utf-8")
    (folder / "ratings.csv.gz").write_bytes(gzip.compress(rating_table.encode(), mtime=0))


def figures_of(shown: str) -> list[float]:
    """The model's figure, then those of the baselines."""
    found = re.search(
        r"^result +AUC (\S+); popularity in training (\S+), until that moment (\S+); chance (\S+)$", shown, re.M
    )
    assert found, shown
    return [float(figure) for figure in found.groups()]


def assert_shown(shown: str, *, is_better: bool) -> None:
    stages = [line.split()[0] for line in shown.splitlines() if not line.startswith("up: ")]
    assert stages == ["read", "train", "test", "user", "recommend", "result"], shown
    assert "60 users, 120 movies, 3,000 ratings" in shown
    assert len(re.findall(r'"Film", the \d+º \(1999\)', shown)) == 6, shown
    found, *baselines = figures_of(shown)
    assert (found > max(baselines)) == is_better, shown


def test_the_model_is_better_than_the_baselines_once_it_is_trained(tmp_path: Path):
    write_movielens(tmp_path, np.random.default_rng(0))
    status, shown = run_script("movielens.py", tmp_path, "--epochs", 6)
    assert_shown(shown, is_better=True)
    assert status == 0, shown


def test_exit_status_shows_that_an_untrained_model_is_not_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_movielens(tmp_path, np.random.default_rng(0))
    status, shown = run_here("movielens.py", monkeypatch, capsys, tmp_path, "--epochs", 0)
    assert_shown(shown, is_better=False)
    assert status == 1, shown


def test_popularity_counts_ratings_strictly_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n5,A,x|y\n9,B,y\n")
    ratings = [
        "userId,movieId,rating,timestamp",
        *(f"{user},9,4.0,{time}" for user, time in ((1, 20), (2, 10), (3, 20))),
    ]
    (tmp_path / "ratings.csv").write_text("\n".join([*ratings, "1,5,1.0,15", ""]))
    functions = functions_of("movielens.py", monkeypatch)
    graph = functions["read_movielens"](tmp_path)
    assert graph.nodes["movie"].features["genres"].tolist() == [[1.0, 1.0], [0.0, 1.0]]
    moments = np.array([10, 11, 20, 21])
    assert functions["popularity"](graph, np.full(4, 1), moments).tolist() == [0, 1, 1, 3]
    assert functions["popularity"](graph, np.full(4, 0), moments).tolist() == [0, 0, 1, 1]


def test_the_model_is_better_than_the_baselines_on_movielens():
    status, shown = run_script("movielens.py", real_data("ml-latest-small"), "--epochs", 1)
    assert "610 users, 9,742 movies, 100,836 ratings" in shown
    assert status == 0, shown


def test_error_for_missing_data_points_to_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SystemExit, match=r"^error: .* has no movies\.csv and no movies\.csv\.gz; --help says where"):
        functions_of("movielens.py", monkeypatch)["read_movielens"](tmp_path)
