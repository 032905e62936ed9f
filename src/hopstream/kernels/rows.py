"""Orders the edges of a row, and sums their weights.

[Algorithm] A stable merge sort of positions, from the bottom up, over runs of 16 that insertion makes; a row that is in
    order already is passed over after one look. Running sums are added one after the other, in stored order.
[Cost] Sorting takes two comparisons per level and edge, reads values at random inside a row, and needs four bytes per
    edge of the largest row beside the result; sums take one sequential pass.
[Not chosen] ``numpy.lexsort`` over (row, value): three int64 arrays as long as the edges, and a sort of all of them at
    once, where rows are short. ``numpy.cumsum`` over all edges minus its value at each row's start: rounding of other
    rows' weights would reach into a row, so sums would depend on which part the row is in.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hopstream.kernels.compiling import kernel
from hopstream.kernels.weighted import add_weight

RUN = 16


@njit(inline="always")
def _is_after(left: float, right: float, is_descending: bool) -> bool:
    """Whether ``left`` must come after ``right``; equal values keep their order."""
    return right > left if is_descending else right < left


@kernel
def sort_rows(
    offsets: np.ndarray, values: np.ndarray, is_descending: bool, order: np.ndarray, scratch: np.ndarray
) -> None:
    """Write the positions inside each row in the order of their values; equal values keep their order.

    Args:
        offsets: int64[num_rows + 1], row ``r`` is ``[offsets[r], offsets[r + 1])``; from 0.
        values: int64[num_edges] or float64[num_edges], none of them NaN.
        is_descending: Largest value first.
        order: uint32[num_edges], out: for each row, its positions 0..degree-1.
        scratch: uint32[largest degree].
    """
    for row in range(len(offsets) - 1):
        start, degree = offsets[row], offsets[row + 1] - offsets[row]
        is_sorted = True
        for i in range(degree):
            order[start + i] = i
            if i and _is_after(values[start + i - 1], values[start + i], is_descending):
                is_sorted = False
        if is_sorted:
            continue
        for first in range(0, degree, RUN):
            for i in range(first + 1, min(first + RUN, degree)):
                value = values[start + i]
                place = i
                while place > first and _is_after(values[start + order[start + place - 1]], value, is_descending):
                    order[start + place] = order[start + place - 1]
                    place -= 1
                order[start + place] = i
        width = RUN
        while width < degree:
            for first in range(0, degree - width, 2 * width):
                middle, stop = first + width, min(first + 2 * width, degree)
                for i in range(first, middle):
                    scratch[i] = order[start + i]
                left, right, out = first, middle, first
                while left < middle and right < stop:
                    left_value, right_value = values[start + scratch[left]], values[start + order[start + right]]
                    if _is_after(left_value, right_value, is_descending):
                        order[start + out] = order[start + right]
                        right += 1
                    else:
                        order[start + out] = scratch[left]
                        left += 1
                    out += 1
                while left < middle:
                    order[start + out] = scratch[left]
                    left += 1
                    out += 1
            width *= 2


@kernel
def sum_rows(offsets: np.ndarray, weights: np.ndarray, sums: np.ndarray) -> None:
    """Write the running sum of the weights inside each row.

    Args:
        offsets: int64[num_rows + 1], row ``r`` is ``[offsets[r], offsets[r + 1])``; from 0.
        weights: float64[num_edges].
        sums: float64[num_edges], out: the weight of an edge and of those before it in its row; see ``add_weight``.
    """
    for row in range(len(offsets) - 1):
        total = 0.0
        for i in range(offsets[row], offsets[row + 1]):
            total = add_weight(total, weights[i])
            sums[i] = total
