"""Area under the ROC curve of scores of positives and negatives."""

from __future__ import annotations

import numpy as np


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve: the share of positive-negative pairs in which the positive scores higher.

    Args:
        scores: number[n]; pairs with equal scores count half.
        labels: int[n] or bool[n], 1 for positives; both kinds must exist.
    """
    _, groups, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[groups]
    is_positive = labels == 1
    num_positive = int(is_positive.sum())
    num_negative = len(labels) - num_positive
    return float((ranks[is_positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))


def share_in_order(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Share of negatives that score less than the positive of their row.

    Args:
        positives: number[n].
        negatives: number[n, k]; pairs with equal scores count half.
    """
    wins = (negatives < positives[:, None]) + 0.5 * (negatives == positives[:, None])
    return float(wins.mean())
