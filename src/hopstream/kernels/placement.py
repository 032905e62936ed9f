"""Assigns the nodes of a stream to parts, and moves nodes between parts until all loads are balanced.

[Algorithm] Linear deterministic greedy (LDG): the part with the most neighbours of the node, weighted by the free share
    of the part. Source: Stanton, Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012. Fennel:
    the part with the most neighbours minus the marginal cost of its load, with exponent 3/2. Source: Tsourakakis,
    Gkantsidis, Radunovic, Vojnovic, "FENNEL: streaming graph partitioning for massive scale graphs", WSDM 2014. Both
    count weights where the papers count nodes, and take a part only if all balanced loads stay within its limits. A
    node that fits no part gets the part where the fullest of its loads is least full.
[Cost] One access per neighbour and per part for each node: O(ends + nodes * parts). Memory: the arrays passed in.
[Not chosen] A tree over the parts' loads, with O(ends + nodes * log(parts)): for up to some hundred parts, a scan of
    all parts costs less than a node's cache misses.

[Algorithm] The excess is the sum of all loads above limits, each as a share of the total of its kind. A node moves if
    this does not raise the excess, and if it cuts fewer new edges than the price of the removed excess. It moves to the
    part where edges plus priced excess fall most. The caller sweeps over all nodes with a rising price until the excess
    is gone, so cheap moves are made first. Every move lowers ``cut + price * excess``, so sweeps do not cycle. Without
    excess, a sweep makes moves that lower the cut, as label propagation under limits does.
    Source: priced moves are Lagrangian relaxation; label propagation under size limits is in Ugander, Backstrom,
    "Balanced label propagation for partitioning massive graphs", WSDM 2013.
[Cost] One access per neighbour for each node, and one per part for nodes in a part above one of its limits.
[Not chosen] A queue of moves by gain (Fiduccia-Mattheyses): it needs random access to neighbours, where a sweep reads
    them in the order of the file.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel


@kernel
def fill_after(node: np.int64, part: np.int64, rows: np.ndarray, amounts: np.ndarray, loads: np.ndarray,
               limits: np.ndarray) -> float:  # fmt: skip
    """Return the largest load, as a share of its limit, of a node's loads in a part with the node added."""
    fullest = 0.0
    for group in range(len(rows)):
        row = rows[group, node]
        if row >= 0:
            amount = amounts[group, node] if group < len(amounts) else 1
            fullest = max(fullest, (loads[row, part] + amount) / limits[row, part])
    return fullest


@kernel
def add_load(node: np.int64, part: np.int64, sign: np.int64, rows: np.ndarray, amounts: np.ndarray,
             loads: np.ndarray) -> None:  # fmt: skip
    """Add a node to a part's loads, or remove it with ``sign`` -1."""
    for group in range(len(rows)):
        row = rows[group, node]
        if row >= 0:
            loads[row, part] += sign * (amounts[group, node] if group < len(amounts) else 1)


@kernel
def place_nodes(first: np.int64, stop: np.int64, indptr: np.ndarray, neighbors: np.ndarray, rows: np.ndarray,
                amounts: np.ndarray, limits: np.ndarray, is_fennel: bool, penalty: float, first_part: np.int64,
                loads: np.ndarray, owner: np.ndarray, counts: np.ndarray) -> None:  # fmt: skip
    """Assign a range of nodes to parts one after the other; nodes without neighbours are skipped.

    Args:
        first: The first node.
        stop: One past the last node.
        indptr: int64[num_nodes + 1], offsets of each node's neighbours among those of all nodes.
        neighbors: uint32[indptr[stop] - indptr[first]], the neighbours of the range.
        rows: int32[groups, num_nodes], the row of ``loads`` that a node adds to in each group, or -1.
        amounts: int64[weighted, num_nodes], the amount that a node adds in the first groups; 1 in the others.
        limits: float64[num_rows, num_parts], above 0. Group 0 has one row, row 0: the weight used in scores.
        is_fennel: Use Fennel's scores, else LDG's.
        penalty: Fennel's cost of a full part, in neighbours per unit of weight.
        first_part: The part that is tested first; it wins ties.
        loads: int64[num_rows, num_parts], added to.
        owner: int32[num_nodes], in and out: the part of each node, -1 for none yet.
        counts: int64[num_parts], zeros; zeros again at the end.
    """
    num_parts = loads.shape[1]
    base = indptr[first]
    for node in range(first, stop):
        if indptr[node] == indptr[node + 1]:
            continue
        for i in range(indptr[node] - base, indptr[node + 1] - base):
            part = owner[neighbors[i]]
            if part >= 0:
                counts[part] += 1
        best, best_score, best_fill, is_within = -1, 0.0, 0.0, False
        for turn in range(num_parts):
            part = first_part + turn
            if part >= num_parts:
                part -= num_parts
            fill = fill_after(node, part, rows, amounts, loads, limits)
            share = loads[0, part] / limits[0, part]
            if fill > 1.0:
                if not is_within and (best < 0 or fill < best_fill):
                    best, best_fill = part, fill
                continue
            if is_fennel:
                score = counts[part] - penalty * amounts[0, node] * np.sqrt(share)
            else:
                score = counts[part] * (1.0 - share)
            if not is_within or score > best_score or (score == best_score and fill < best_fill):
                best, best_score, best_fill, is_within = part, score, fill, True
        for i in range(indptr[node] - base, indptr[node + 1] - base):
            part = owner[neighbors[i]]
            if part >= 0:
                counts[part] = 0
        owner[node] = best
        add_load(node, best, 1, rows, amounts, loads)


@kernel
def add_loads(owner: np.ndarray, rows: np.ndarray, amounts: np.ndarray, loads: np.ndarray) -> None:
    """Add every node with a part to its part's loads.

    Args:
        owner: int32[num_nodes], -1 for none.
        rows: As for ``place_nodes``.
        amounts: As for ``place_nodes``.
        loads: int64[num_rows, num_parts], added to.
    """
    for node in range(len(owner)):
        if owner[node] >= 0:
            add_load(node, owner[node], 1, rows, amounts, loads)


@kernel
def count_keys(keys: np.ndarray, counts: np.ndarray) -> None:
    """Add the number of occurrences of each key to ``counts[key]``.

    Args:
        keys: integer[n], in range.
        counts: int64[num_nodes], added to.
    """
    for i in range(len(keys)):
        counts[keys[i]] += 1


@kernel
def add_amount(keys: np.ndarray, amount: np.int64, sums: np.ndarray) -> None:
    """Add an amount to ``sums[key]`` for each occurrence of a key.

    Args:
        keys: integer[n], in range.
        amount: Amount per occurrence.
        sums: int64[num_nodes], added to.
    """
    for i in range(len(keys)):
        sums[keys[i]] += amount


@kernel
def add_amounts(keys: np.ndarray, amounts: np.ndarray, sums: np.ndarray) -> None:
    """Add ``amounts[i]`` to ``sums[keys[i]]``.

    Args:
        keys: integer[n], in range.
        amounts: int64[n].
        sums: int64[num_nodes], added to.
    """
    for i in range(len(keys)):
        sums[keys[i]] += amounts[i]


@kernel
def excess_change(node: np.int64, old: np.int64, new: np.int64, rows: np.ndarray, amounts: np.ndarray,
                  limits: np.ndarray, scales: np.ndarray, loads: np.ndarray) -> float:  # fmt: skip
    """Return the change of the excess if a node moves from one part to another."""
    change = 0.0
    for group in range(len(rows)):
        row = rows[group, node]
        if row >= 0:
            amount = amounts[group, node] if group < len(amounts) else 1
            over = loads[row, old] - limits[row, old]
            room = limits[row, new] - loads[row, new]
            change += scales[row] * (max(0.0, amount - max(room, 0.0)) - min(amount * 1.0, max(over, 0.0)))
    return change


@kernel
def move_nodes(first: np.int64, stop: np.int64, indptr: np.ndarray, neighbors: np.ndarray, rows: np.ndarray,
               amounts: np.ndarray, limits: np.ndarray, scales: np.ndarray, price: float, loads: np.ndarray,
               owner: np.ndarray, counts: np.ndarray) -> int:  # fmt: skip
    """Move nodes of a range if this lowers the cut plus the priced excess.

    Args:
        first: The first node.
        stop: One past the last node.
        indptr: int64[num_nodes + 1], offsets of each node's neighbours among those of all nodes.
        neighbors: uint32[indptr[stop] - indptr[first]], the neighbours of the range.
        rows: As for ``place_nodes``.
        amounts: As for ``place_nodes``.
        limits: float64[num_rows, num_parts].
        scales: float64[num_rows], weight of one unit of a row in the excess.
        price: Edges that may be cut to remove an excess of 1.
        loads: int64[num_rows, num_parts], in and out.
        owner: int32[num_nodes], in and out: the part of each node.
        counts: int64[num_parts], zeros; zeros again at the end.

    Returns:
        Number of moved nodes.
    """
    num_parts = loads.shape[1]
    base = indptr[first]
    num_moved = 0
    for node in range(first, stop):
        old = owner[node]
        begin, end = indptr[node] - base, indptr[node + 1] - base
        is_over = False
        for group in range(len(rows)):
            row = rows[group, node]
            if row >= 0 and loads[row, old] > limits[row, old]:
                is_over = True
        if begin == end and not is_over:
            continue
        for i in range(begin, end):
            counts[owner[neighbors[i]]] += 1
        best, best_merit = -1, 1e-9  # smaller merits are rounding errors, and could move a node back and forth
        for i in range(num_parts if is_over else end - begin):
            new = i if is_over else owner[neighbors[begin + i]]
            gain = counts[new] - counts[old]
            if new == old or (gain <= 0 and not is_over):
                continue
            change = excess_change(node, old, new, rows, amounts, limits, scales, loads)
            merit = gain - price * change
            if change <= 0.0 and merit > best_merit and (gain > 0 or change < 0.0):
                best, best_merit = new, merit
        for i in range(begin, end):
            counts[owner[neighbors[i]]] = 0
        if best >= 0:
            add_load(node, old, -1, rows, amounts, loads)
            add_load(node, best, 1, rows, amounts, loads)
            owner[node] = best
            num_moved += 1
    return num_moved


@kernel
def count_cut(first: np.int64, stop: np.int64, indptr: np.ndarray, neighbors: np.ndarray, owner: np.ndarray) -> int:
    """Count the neighbours of a range of nodes that are in another part than the node.

    Args:
        first: The first node.
        stop: One past the last node.
        indptr: int64[num_nodes + 1], as for ``move_nodes``.
        neighbors: uint32[indptr[stop] - indptr[first]], the neighbours of the range.
        owner: int32[num_nodes].
    """
    base = indptr[first]
    num_cut = 0
    for node in range(first, stop):
        for i in range(indptr[node] - base, indptr[node + 1] - base):
            num_cut += owner[neighbors[i]] != owner[node]
    return num_cut
