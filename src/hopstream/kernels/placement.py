"""Chooses the part of each node of a stream, and moves nodes between parts until all loads are even.

[Algorithm] Linear deterministic greedy (LDG): the part with the most neighbours of the node, each counted by the share
    of the part that is still free. Source: Stanton, Kliot, "Streaming graph partitioning for large distributed graphs",
    KDD 2012. Fennel: the part with the most neighbours less the marginal cost of its load, with exponent 3/2. Source:
    Tsourakakis, Gkantsidis, Radunovic, Vojnovic, "FENNEL: streaming graph partitioning for massive scale graphs", WSDM
    2014. Both count weights where the papers count nodes, and take a part only if all that is to be even stays within
    its limits there; a node that fits nowhere goes where the fullest of its loads is least full.
[Cost] One look at each neighbour and at each part per node: O(ends + nodes * parts). Memory: the arrays passed in.
[Not chosen] A tree over the parts' loads, which would make it O(ends + nodes * log(parts)): up to some hundred parts,
    looking at all of them costs less than a node's cache misses.

[Algorithm] What a part holds above its limits, each as a share of the total of its kind and all added up, is the
    excess. A node moves if that does not raise the excess, and the edges that it cuts are fewer than a price per unit
    of excess that it takes away; of all parts it goes where edges plus priced excess fall most. The caller sweeps over
    all nodes with a rising price until the excess is gone, so cheap moves are made first. Every move lowers
    ``cut + price * excess``, so no sweep goes in circles. With no excess left, a sweep makes moves that lower the cut
    alone, as label propagation under limits does.
    Source: the idea of priced moves is Lagrangian relaxation; label propagation under size limits is in Ugander,
    Backstrom, "Balanced label propagation for partitioning massive graphs", WSDM 2013.
[Cost] One look at each neighbour per node, and one at each part for nodes in a part above a limit of theirs.
[Not chosen] A queue of moves by gain (Fiduccia-Mattheyses): it needs every node's neighbours at any time, where a sweep
    takes them in the order in which a file has them.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel


@kernel
def fill_after(node: np.int64, part: np.int64, rows: np.ndarray, amounts: np.ndarray, loads: np.ndarray,
               limits: np.ndarray) -> float:  # fmt: skip
    """How full the fullest of a node's loads would be in a part with the node in it, as a share of the limit."""
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
    """Count a node into a part's loads, or with ``sign`` -1 out of them."""
    for group in range(len(rows)):
        row = rows[group, node]
        if row >= 0:
            loads[row, part] += sign * (amounts[group, node] if group < len(amounts) else 1)


@kernel
def place_nodes(first: np.int64, stop: np.int64, indptr: np.ndarray, neighbors: np.ndarray, rows: np.ndarray,
                amounts: np.ndarray, limits: np.ndarray, is_fennel: bool, penalty: float, first_part: np.int64,
                loads: np.ndarray, owner: np.ndarray, counts: np.ndarray) -> None:  # fmt: skip
    """Place a stretch of nodes one after the other; nodes without neighbours are left as they are.

    Args:
        first: The first node.
        stop: One past the last node.
        indptr: int64[num_nodes + 1], where each node's neighbours stand among those of all nodes.
        neighbors: uint32[indptr[stop] - indptr[first]], the neighbours of the stretch.
        rows: int32[groups, num_nodes], the row of ``loads`` that a node counts for in each group, or -1.
        amounts: int64[weighted, num_nodes], what it counts there for the first groups; 1 for the others.
        limits: float64[num_rows, num_parts], above 0. Group 0 has one row, row 0: the weight that scores look at.
        is_fennel: Score as Fennel does, else as LDG does.
        penalty: Fennel's cost of a full part, in neighbours per unit of weight.
        first_part: The part that is looked at first, and so wins where all else is equal.
        loads: int64[num_rows, num_parts], raised by what is placed.
        owner: int32[num_nodes], the part of each node, -1 for none yet.
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
    """Count every node that has a part into its loads.

    Args:
        owner: int32[num_nodes], -1 for none.
        rows: As ``place_nodes`` takes them.
        amounts: As ``place_nodes`` takes them.
        loads: int64[num_rows, num_parts], raised.
    """
    for node in range(len(owner)):
        if owner[node] >= 0:
            add_load(node, owner[node], 1, rows, amounts, loads)


@kernel
def count_keys(keys: np.ndarray, counts: np.ndarray) -> None:
    """Add to ``counts[key]`` how often a key occurs.

    Args:
        keys: integer[n], in range.
        counts: int64[num_nodes], raised.
    """
    for i in range(len(keys)):
        counts[keys[i]] += 1


@kernel
def add_amount(keys: np.ndarray, amount: np.int64, sums: np.ndarray) -> None:
    """Add to ``sums[key]`` the amount as many times as a key occurs.

    Args:
        keys: integer[n], in range.
        amount: What each occurrence adds.
        sums: int64[num_nodes], raised.
    """
    for i in range(len(keys)):
        sums[keys[i]] += amount


@kernel
def add_amounts(keys: np.ndarray, amounts: np.ndarray, sums: np.ndarray) -> None:
    """Add ``amounts[i]`` to ``sums[keys[i]]``.

    Args:
        keys: integer[n], in range.
        amounts: int64[n].
        sums: int64[num_nodes], raised.
    """
    for i in range(len(keys)):
        sums[keys[i]] += amounts[i]


@kernel
def excess_change(node: np.int64, old: np.int64, new: np.int64, rows: np.ndarray, amounts: np.ndarray,
                  limits: np.ndarray, scales: np.ndarray, loads: np.ndarray) -> float:  # fmt: skip
    """By how much the excess rises when a node moves from one part to another."""
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
    """Move nodes of a stretch where that pays; return how many moved.

    Args:
        first: The first node.
        stop: One past the last node.
        indptr: int64[num_nodes + 1], where each node's neighbours stand among those of all nodes.
        neighbors: uint32[indptr[stop] - indptr[first]], the neighbours of the stretch.
        rows: int32[groups, num_nodes], the row of ``loads`` that a node counts for in each group, or -1.
        amounts: int64[weighted, num_nodes], what it counts there for the first groups; 1 for the others.
        limits: float64[num_rows, num_parts].
        scales: float64[num_rows], what one unit of a row counts in the excess.
        price: Edges that may be cut to take away an excess of 1.
        loads: int64[num_rows, num_parts], kept up to date.
        owner: int32[num_nodes], the part of each node, changed in place.
        counts: int64[num_parts], zeros; zeros again at the end.
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
        best, best_merit = -1, 1e-9  # less is rounding, and could go back and forth
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
    """How many neighbours of a stretch of nodes are in another part than the node.

    Args:
        first: The first node.
        stop: One past the last node.
        indptr: int64[num_nodes + 1], as ``move_nodes`` takes it.
        neighbors: uint32[indptr[stop] - indptr[first]], the neighbours of the stretch.
        owner: int32[num_nodes].
    """
    base = indptr[first]
    num_cut = 0
    for node in range(first, stop):
        for i in range(indptr[node] - base, indptr[node + 1] - base):
            num_cut += owner[neighbors[i]] != owner[node]
    return num_cut
