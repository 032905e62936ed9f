"""Checks that the AUC of scores follows its definition, ties included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.examples.real_data import functions_of


def in_order(positive: float, negative: float) -> float:
    return 1.0 if positive > negative else 0.5 if positive == negative else 0.0


def test_shares_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch):
    functions = functions_of("auc.py", monkeypatch)
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 6, 40), rng.integers(0, 2, 40)
    pairs = itertools.product(scores[labels == 1], scores[labels == 0])
    assert functions["roc_auc"](scores, labels) == pytest.approx(np.mean([in_order(*pair) for pair in pairs]))
    rows = scores.reshape(8, 5)
    wins = [in_order(row[0], negative) for row in rows for negative in row[1:]]
    assert functions["share_in_order"](rows[:, 0], rows[:, 1:]) == pytest.approx(np.mean(wins))
