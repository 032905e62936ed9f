"""How well do scores tell positives from negatives?"""

from __future__ import annotations

import numpy as np


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve: the share of pairs of a positive and a negative that scores put in the right order.

    Args:
        scores: number[n]; equal scores put a pair half right.
        labels: int[n] or bool[n], 1 for positives; both kinds must be there.
    """
    _, groups, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[groups]
    is_positive = labels == 1
    num_positive = int(is_positive.sum())
    num_negative = len(labels) - num_positive
    return float((ranks[is_positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))


def share_in_order(positives: np.ndarray, negatives: np.ndarray) -> float:
    """The same within rows: the share of negatives that score less than the positive of their row.

    Args:
        positives: number[n].
        negatives: number[n, k]; equal scores put a pair half right.
    """
    wins = (negatives < positives[:, None]) + 0.5 * (negatives == positives[:, None])
    return float(wins.mean())
