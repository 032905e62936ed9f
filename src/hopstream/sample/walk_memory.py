"""Steps of walks that depend on where a walk came from.

Candidates are drawn without regard to where walks came from, and some rejected; see ``kernels/walks.py``. Every round
draws as many as all before it, until a walk has a successor or until reading the edges of its two nodes costs no more
than what was tried already: so a walk never costs much more than the cheaper of the two ways, and the law is exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, offsets_of
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.walks import ACCEPTED, NO_NODE, OPEN, REJECTED, draw_second_order, judge_candidates
from hopstream.sample.walk_settings import Step
from hopstream.store.contract import TREE_SHIFT, FetchRequest, SampleReply, SampleRequest, Store, Strategy

FIRST_CANDIDATES = 8
"""Candidates of the first round."""
MAX_ROUNDS = 12
"""Rounds after which edges are read, whatever that costs."""
READ_COST = 8.0
"""What reading an edge costs, in candidates drawn."""
MAX_CANDIDATES = 1 << 22
"""Candidates of all walks together that are drawn at a time."""
MAX_EDGES_READ = 1 << 22
"""Edges that are read at a time, unless a single walk needs more."""
NO_WEIGHTS: NDArray[np.float64] = np.empty(0, np.float64)


class WalkMemory:
    """Takes steps of node2vec walks along one edge type."""

    def __init__(self, store: Store, step: Step, biases: tuple[float, float], weight_attr: str | None) -> None:
        """Prepare the steps.

        Args:
            store: The store.
            step: The edge type, between nodes of one type, and the direction.
            biases: How readily a walk goes back, and to nodes to which none leads from where it came from: 1/p and 1/q.
            weight_attr: The feature that edges are drawn in proportion to, or None.
        """
        self._store = store
        self._step = step
        self._return_bias, self._far_bias = biases
        self._weight_attr = weight_attr
        extent = max(1.0, self._far_bias) - min(1.0, self._far_bias)
        self._open_share = extent / max(1.0, *biases)

    def advance(self, rng_seed: int, trees: IntArray, current: IntArray, previous: IntArray) -> IntArray:
        """Take one step of some walks.

        Args:
            rng_seed: Seed of the step.
            trees: int64[n], numbers of the walks.
            current: int64[n], ids of the nodes where they are.
            previous: int64[n], ids of those where they came from; ``NO_NODE`` for nowhere.

        Returns:
            int64[n], ids of the nodes that they go to; ``NO_NODE`` where no edge leads on.
        """
        found = np.full(len(trees), NO_NODE, np.int64)
        pending, drawn = np.arange(len(trees)), 0
        costs = np.zeros((2, len(trees)))
        for turn in range(MAX_ROUNDS):
            size = drawn or FIRST_CANDIDATES
            round_seed = derive_seed(rng_seed, "candidates", turn)
            pieces = np.array_split(pending, max(1, -(-len(pending) * size // MAX_CANDIDATES)))
            left = [self._try(round_seed, piece, size, (trees, current, previous, found)) for piece in pieces]
            pending = np.concatenate(left)
            drawn += size
            if not len(pending):
                return found
            if turn == 0:
                costs[:, pending] = self._costs(current[pending], previous[pending])
            is_cheap = costs[0, pending] <= drawn * costs[1, pending]
            self._read(rng_seed, pending[is_cheap], (trees, current, previous, found))
            pending = pending[~is_cheap]
        self._read(rng_seed, pending, (trees, current, previous, found))
        return found

    def _costs(self, current: IntArray, previous: IntArray) -> NDArray[np.float64]:
        """float64[2, n]: what it costs to read the edges of both nodes, and to try one candidate."""
        ahead, behind = self._store.degrees(*self._step, np.concatenate([current, previous])).reshape(2, -1)
        return np.stack([READ_COST * (ahead + behind), 1 + self._open_share * behind])

    def _try(
        self, rng_seed: int, pending: IntArray, size: int, walks: tuple[IntArray, IntArray, IntArray, IntArray]
    ) -> IntArray:
        """Draw candidates for the walks at some positions, and take some; return the positions without."""
        trees, current, previous, found = walks
        reply = self._draw(rng_seed, trees[pending], current[pending], size)
        pending = pending[reply.counts > 0]
        candidates = reply.neighbor_ids.astype(np.int64, copy=False).reshape(-1, size)
        taken = self._choose(rng_seed, trees[pending], candidates, previous[pending])
        has_chosen = taken < size
        found[pending[has_chosen]] = candidates[has_chosen, taken[has_chosen]]
        return pending[~has_chosen]

    def _draw(self, rng_seed: int, trees: IntArray, current: IntArray, size: int) -> SampleReply:
        edge_type, direction = self._step
        strategy: Strategy = "uniform" if self._weight_attr is None else "weighted"
        request = SampleRequest(
            edge_type=edge_type, direction=direction, ids=current, count=size, is_replacing=True, rng_seed=rng_seed,
            strategy=strategy, trees=trees,
        )  # fmt: skip
        return self._store.sample([request])[0]

    def _choose(self, rng_seed: int, trees: IntArray, candidates: IntArray, previous: IntArray) -> IntArray:
        """int64[n], which candidate each walk takes; their number where it takes none."""
        verdicts = np.empty(candidates.shape, np.uint8)
        judge_candidates(
            np.uint64(derive_seed(rng_seed, "verdicts")), trees, candidates, previous, self._return_bias,
            self._far_bias, verdicts,
        )  # fmt: skip
        rows, columns = np.nonzero(verdicts == OPEN)
        is_needed = columns < _first(verdicts == ACCEPTED)[rows]
        rows, columns = rows[is_needed], columns[is_needed]
        if len(rows):
            edge_ids = self._store.find_edges(*self._step, previous[rows], candidates[rows, columns])
            verdicts[rows, columns] = np.where((edge_ids >= 0) == (self._far_bias < 1), ACCEPTED, REJECTED)
        return _first(verdicts == ACCEPTED)

    def _read(self, rng_seed: int, pending: IntArray, walks: tuple[IntArray, IntArray, IntArray, IntArray]) -> None:
        """Draw exactly for the walks at some positions, from all edges of their nodes."""
        if not len(pending):
            return
        trees, current, previous, found = walks
        draw_seed = np.uint64(derive_seed(rng_seed, "exactly"))
        # Walks at one node come together, so that its edges are read once.
        pending = pending[np.argsort(current[pending], kind="stable")]
        for piece in self._pieces(pending, current, previous):
            nodes, rows = np.unique(current[piece], return_inverse=True)
            beside, beside_rows = np.unique(previous[piece], return_inverse=True)
            ahead = self._edges(nodes, self._weight_attr is not None)
            behind_offsets, behind_ids = np.zeros(len(beside) + 1, np.int64), np.empty(0, np.int64)
            if self._far_bias != 1:
                behind = self._edges(beside, False)
                behind_offsets, behind_ids = offsets_of(behind.counts), _sorted_rows(behind)
            chosen = np.empty(len(piece), np.int64)
            draw_second_order(
                draw_seed, trees[piece], rows, offsets_of(ahead.counts),
                ahead.neighbor_ids.astype(np.int64, copy=False), self._weights(ahead), previous[piece], beside_rows,
                behind_offsets, behind_ids, self._return_bias, self._far_bias,
                np.empty(int(ahead.counts.max(initial=0))), chosen,
            )  # fmt: skip
            found[piece] = chosen

    def _pieces(self, pending: IntArray, current: IntArray, previous: IntArray) -> Iterator[IntArray]:
        """Positions, already sorted by node, whose nodes have no more than ``MAX_EDGES_READ`` edges together."""
        nodes = current[pending]
        ids = np.concatenate([nodes, previous[pending]])
        ahead, behind = self._store.degrees(*self._step, ids).reshape(2, -1)
        ahead[1:][nodes[1:] == nodes[:-1]] = 0
        ends = np.cumsum(ahead + behind)
        first, done = 0, 0
        while first < len(pending):
            stop = max(first + 1, int(np.searchsorted(ends, done + MAX_EDGES_READ, side="right")))
            yield pending[first:stop]
            first, done = stop, int(ends[stop - 1])

    def _edges(self, ids: IntArray, wants_edge_ids: bool) -> SampleReply:
        edge_type, direction = self._step
        request = SampleRequest(
            edge_type=edge_type, direction=direction, ids=ids, count=-1, wants_edge_ids=wants_edge_ids
        )
        return self._store.sample([request])[0]

    def _weights(self, reply: SampleReply) -> NDArray[np.float64]:
        if self._weight_attr is None or reply.edge_ids is None:
            return NO_WEIGHTS
        request = FetchRequest(owner=self._step, names=(self._weight_attr,), ids=reply.edge_ids)
        return np.asarray(self._store.fetch([request])[0][self._weight_attr], np.float64)


def _first(is_it: NDArray[np.bool_]) -> IntArray:
    """int64[n], the first column of each row that is True; the number of columns where none is."""
    first: IntArray = is_it.argmax(axis=1)
    return np.where(is_it.any(axis=1), first, is_it.shape[1])


def _sorted_rows(reply: SampleReply) -> IntArray:
    """The neighbours of each node, ascending; nodes are few enough to sort them as the upper bits of one number."""
    rows = np.repeat(np.arange(len(reply.counts)) << TREE_SHIFT, reply.counts)
    return np.sort(rows | reply.neighbor_ids.astype(np.int64, copy=False)) & ((1 << TREE_SHIFT) - 1)
