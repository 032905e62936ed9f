"""Random walks: uniform, by weight, along metapaths, with restarts, and node2vec's second-order walks.

All walks of a batch take a step together. A step without memory is one request to the store; a step with memory needs
a few requests. If all parts are mapped and edges are drawn uniformly, one call of a kernel takes many steps with
memory. A walk's draws depend only on the seed, the number of the walk, the step, and the key of the current node.

For steps with memory, candidates are drawn without regard to the previous nodes, and some are rejected; see
``kernels/walks.py``. Every round draws as many candidates as all earlier rounds together. A walk's rounds end when it
has a successor, or when reading the edges of its two nodes costs no more than the candidates so far. So a walk never
costs much more than the cheaper of the two ways, and the distribution is exact.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arguments import called_with
from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.checks import Settings, is_number
from hopstream.dataset.book import ends_of
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.walks import (
    ACCEPTED,
    NO_NODE,
    OPEN,
    REJECTED,
    WalkRule,
    draw_second_order,
    hash_fractions,
    judge_candidates,
    take_steps,
)
from hopstream.sample.seeds import SeedsLike, read_seeds
from hopstream.schema import Direction, EdgeType, type_label
from hopstream.store import Source, open_graph, open_store
from hopstream.store.contract import (
    KEY,
    MAX_TREES,
    TREE_SHIFT,
    FetchRequest,
    SampleReply,
    SampleRequest,
    Store,
    Strategy,
)
from hopstream.store.drawing import NO_OVERLAYS
from hopstream.store.local import LocalStore
from hopstream.store.requests import SEED_STOP
from hopstream.store.sources import is_in_memory

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings


FIRST_CANDIDATES = 8
"""Candidates of the first round."""
MAX_ROUNDS = 12
"""Rounds after which edges are read at any cost."""
READ_COST = 8.0
"""Cost of reading an edge, in units of one drawn candidate."""
MAX_CANDIDATES = 1 << 22
"""Candidates of all walks together that are drawn at a time."""
MAX_EDGES_READ = 1 << 22
"""Edges that are read at a time, unless a single walk needs more."""
ROUNDS_AT_ONCE = 3
"""Rounds per step in one call of ``take_steps``; few walks need more."""
STEPS_AT_ONCE = 64
"""Most steps in one call of ``take_steps``."""
NO_WEIGHTS: NDArray[np.float64] = np.empty(0, np.float64)


class WalkMemory:
    """Sampler of the steps of node2vec walks along one edge type."""

    def __init__(self, store: Store, step: Step, biases: tuple[float, float], weight_attr: str | None) -> None:
        """Prepare the steps.

        Args:
            store: The store.
            step: The edge type, between nodes of one type, and the direction.
            biases: Bias of the step back to the previous node, 1/p, and bias of steps to nodes to which the previous
                node has no edge, 1/q.
            weight_attr: The feature that edges are drawn in proportion to, or None.
        """
        self._store = store
        self._step = step
        self._return_bias, self._far_bias = biases
        self._weight_attr = weight_attr
        extent = max(1.0, self._far_bias) - min(1.0, self._far_bias)
        self._open_share = extent / max(1.0, *biases)
        # ``take_steps`` reads no weights, so weighted walks request their candidates from the store.
        is_here = isinstance(store, LocalStore) and store.is_whole and weight_attr is None
        self._local = cast(LocalStore, store) if is_here else None

    def advance(self, rng_seeds: Sequence[int], trees: IntArray, current: IntArray, previous: IntArray) -> IntArray:
        """Take the next step of some walks, and as many further steps as the same kernel call can take.

        Args:
            rng_seeds: Seeds of the steps, one or more.
            trees: int64[n], numbers of the walks.
            current: int64[n], ids of the current nodes.
            previous: int64[n], ids of the previous nodes; ``NO_NODE`` for none.

        Returns:
            int64[number of steps taken, n], ids of the nodes after each step; ``NO_NODE`` for a walk that has ended.
        """
        ids = np.full((2 + len(rng_seeds), len(trees)), NO_NODE, np.int64)
        ids[0], ids[1] = previous, current
        step, num_rounds, pending = 0, 0, np.arange(len(trees))
        if self._local is not None:
            step, num_rounds, pending, reading = self._take_steps(self._local, rng_seeds, trees, ids)
            if step == len(rng_seeds):
                return ids[2:]
            self._read(rng_seeds[step], reading, (trees, ids[step + 1], ids[step], ids[step + 2]))
        self._finish(rng_seeds[step], num_rounds, pending, (trees, ids[step + 1], ids[step], ids[step + 2]))
        return ids[2 : step + 3]

    def _take_steps(
        self, store: LocalStore, rng_seeds: Sequence[int], trees: IntArray, ids: IntArray
    ) -> tuple[int, int, IntArray, IntArray]:
        """Take steps in one call over the rows of a store that holds all parts; see ``take_steps``.

        Returns:
            Number of steps taken; number of finished rounds of the next step; positions of the walks that need further
            rounds; and positions of the walks whose edges must be read.
        """
        tables = store.tables(*self._step)
        store.check_ids(tables.node_type, ids[1])
        rounds = min(ROUNDS_AT_ONCE, MAX_ROUNDS)
        seeds = np.array([_round_seeds(seed, rounds) for seed in rng_seeds], np.uint64)
        rule = WalkRule(self._return_bias, self._far_bias, FIRST_CANDIDATES, READ_COST, self._open_share)
        pending, reading = np.empty((2, len(trees)), np.int64)
        overlays = tables.overlays or NO_OVERLAYS
        step, num_rounds, num_pending, num_reading, num_scanned = take_steps(
            tables.addresses, tables.long_rows.index, overlays.marks, overlays.newest,
            store.book.num_ids(tables.node_type), rule,
            seeds.reshape(len(rng_seeds), rounds, 2), trees, ids, pending, reading,
        )  # fmt: skip
        tables.long_rows.count(tables, num_scanned)
        return step, num_rounds, pending[:num_pending], reading[:num_reading]

    def _finish(
        self, rng_seed: int, num_rounds: int, pending: IntArray, walks: tuple[IntArray, IntArray, IntArray, IntArray]
    ) -> None:
        """Complete a step of the walks at some positions, after ``num_rounds`` finished rounds."""
        _, current, previous, _ = walks
        drawn = FIRST_CANDIDATES << num_rounds >> 1 if num_rounds else 0
        costs: NDArray[np.float64] | None = None
        for turn in range(num_rounds, MAX_ROUNDS):
            if not len(pending):
                return
            size = drawn or FIRST_CANDIDATES
            round_seed = derive_seed(rng_seed, "candidates", turn)
            pieces = np.array_split(pending, max(1, -(-len(pending) * size // MAX_CANDIDATES)))
            pending = np.concatenate([self._try(round_seed, piece, size, walks) for piece in pieces])
            drawn += size
            if costs is None:
                costs = np.zeros((2, len(current)))
                costs[:, pending] = self._costs(current[pending], previous[pending])
            is_cheap = costs[0, pending] <= drawn * costs[1, pending]
            self._read(rng_seed, pending[is_cheap], walks)
            pending = pending[~is_cheap]
        self._read(rng_seed, pending, walks)

    def _costs(self, current: IntArray, previous: IntArray) -> NDArray[np.float64]:
        """Return float64[2, n], the costs of reading the edges of both nodes, and of one candidate."""
        ahead, behind = self._store.degrees(*self._step, np.concatenate([current, previous])).reshape(2, -1)
        return np.stack([READ_COST * (ahead + behind), 1 + self._open_share * behind])

    def _try(
        self, rng_seed: int, pending: IntArray, size: int, walks: tuple[IntArray, IntArray, IntArray, IntArray]
    ) -> IntArray:
        """Draw candidates of walks; return the positions of walks with edges and no accepted candidate."""
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
        """Return int64[n], the index of each walk's first accepted candidate; their number if none is."""
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
        # The sort puts walks at the same node into one piece, so that the node's edges are read once.
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
        """Yield positions, sorted by node, in pieces of ``MAX_EDGES_READ`` edges at most or of one position."""
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
        request = FetchRequest(entity=self._step, names=(self._weight_attr,), ids=reply.edge_ids)
        return np.asarray(self._store.fetch([request])[0][self._weight_attr], np.float64).reshape(-1)


@lru_cache(STEPS_AT_ONCE)
def _round_seeds(rng_seed: int, num_rounds: int) -> list[tuple[int, int]]:
    """Return the seeds of candidates and of verdicts in the first rounds of a step."""
    of_candidates = [derive_seed(rng_seed, "candidates", turn) for turn in range(num_rounds)]
    return [(seed, derive_seed(seed, "verdicts")) for seed in of_candidates]


def _first(is_it: NDArray[np.bool_]) -> IntArray:
    """Return int64[n], the first column of each row that is True; the number of columns if none is."""
    first: IntArray = is_it.argmax(axis=1)
    return np.where(is_it.any(axis=1), first, is_it.shape[1])


def _sorted_rows(reply: SampleReply) -> IntArray:
    """Sort the neighbours of each node, as the lower bits of numbers with the row in the upper bits."""
    rows = np.repeat(np.arange(len(reply.counts)) << TREE_SHIFT, reply.counts)
    return np.sort(rows | reply.neighbor_ids.astype(np.int64, copy=False)) & ((1 << TREE_SHIFT) - 1)


MAX_STEPS = 1 << 20

Step = tuple[EdgeType, Direction]
"""An edge type, and whether it is followed from sources to destinations (``out``) or back (``in``)."""
Metapath = Sequence[EdgeType | Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkSettings(Settings):
    """Settings of random walks.

    Attributes:
        walk_length: Steps of a walk; None means once along the metapath.
        metapath: Edge types to follow, one per step, or (edge type, direction) for a step in another direction. Longer
            walks repeat it. None: the graph's only edge type, in every step.
        direction: ``out`` walks from source to destination, ``in`` from destination to source; the dataset must hold
            the direction.
        walks_per_node: Walks from each start.
        p: node2vec's return parameter: the step back to the previous node has the bias 1/p.
        q: node2vec's in-out parameter: steps to nodes to which the previous node has no edge have the bias 1/q.
        restart_prob: Probability that a step returns to the start instead.
        weight_attr: Draw edges in proportion to this feature; the dataset must have been written with it. Edge types
            without it are drawn uniformly.
        rng_seed: Seed of all walks.
        batch_size: Walks that are drawn together. It affects memory and the number of requests, not the walks.
    """

    walk_length: int | None = None
    metapath: Metapath | None = None
    direction: Direction = "out"
    walks_per_node: int = 1
    p: float = 1.0
    q: float = 1.0
    restart_prob: float = 0.0
    weight_attr: str | None = None
    rng_seed: int = 0
    batch_size: int = 1 << 16

    def __post_init__(self) -> None:
        """Refuse values that no dataset supports, and convert integers of numpy or tensors to ``int``."""
        if self.walk_length is None and self.metapath is None:
            raise SettingsError("walk_length is not given; say how many steps a walk takes")
        bounds = {"walks_per_node": (1, MAX_TREES), "rng_seed": (0, SEED_STOP - 1), "batch_size": (1, MAX_TREES)}
        if self.walk_length is not None:
            bounds["walk_length"] = (1, MAX_STEPS)
        for name, (low, high) in bounds.items():
            self._read_integer(name, low, high)
        if self.direction not in ("in", "out"):
            raise SettingsError(f"direction is {self.direction!r}; give 'out' to follow edges forwards, or 'in'")
        for name in ("p", "q"):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value < math.inf or not 0 < 1 / value < math.inf:
                raise SettingsError(f"{name} is {value!r}; it must be a number above 0")
        chance = self.restart_prob
        if not is_number(chance) or not 0 <= chance < 1:
            raise SettingsError(f"restart_prob is {chance!r}; it must be at least 0 and below 1")

    @property
    def has_memory(self) -> bool:
        """Whether a walk's next node depends on the node that it came from."""
        return self.p != 1 or self.q != 1

    def steps(self, store: Store) -> tuple[Step, ...]:
        """Return the edge type and direction of each step, checked against a dataset.

        Raises:
            UnknownNameError: The graph has no such edge type.
            SettingsError: A step starts at another node type than the one before ends at, the dataset does not hold a
                direction, walks over several types have a memory or restarts, or the dataset lacks the weights.
        """
        path = self._path(store)
        length = len(path) if self.walk_length is None else self.walk_length
        for number, (step, following) in enumerate(zip(path, path[1:] + path[:1], strict=True)):
            is_last = number == len(path) - 1
            found, expanded = ends_of(*step)[1], ends_of(*following)[0]
            if found != expanded and not (is_last and length <= len(path)):
                where = "a repeated metapath must end where it began" if is_last else "make them the same"
                raise SettingsError(
                    f"metapath: step {number} ends at {found!r}, but the next step starts at {expanded!r}; {where}"
                )
        self._check_directions(path, store)
        self._check_one_type(path)
        self._check_weights(path, store)
        return tuple(path[number % len(path)] for number in range(length))

    def _path(self, store: Store) -> list[Step]:
        if self.metapath is None:
            followed = store.schema.message_types
            own = [t for t in followed if t[0] == t[2]]
            if len(followed) != 1 or not own:
                known = [type_label(t) for t in store.schema.edges]
                raise SettingsError(f"the graph has edge types {known}; say which to follow: metapath=[…]")
            return [(own[0], self.direction)]
        entries: object = self.metapath
        if not isinstance(entries, list | tuple) or not entries or isinstance(entries[0], str):
            raise SettingsError(f"metapath is {entries!r}; give a list of one or more edge types")
        return [self._step(entry, store) for entry in entries]

    def _step(self, entry: object, store: Store) -> Step:
        edge_type, direction = entry, self.direction
        if isinstance(entry, tuple) and len(entry) == 2:
            edge_type, direction = entry
        if direction not in ("in", "out"):
            raise SettingsError(f"metapath: {entry!r} has direction {direction!r}; it is 'in' or 'out'")
        store.schema.check_edge_type(edge_type)  # type: ignore[arg-type]  # anything but a known type fails the check
        return edge_type, direction  # type: ignore[return-value]

    def _check_directions(self, path: list[Step], store: Store) -> None:
        for edge_type, direction in path:
            if direction not in store.directions:
                held = "|".join(store.directions)
                raise SettingsError(
                    f"walks follow {type_label(edge_type)} in direction {direction!r}, and the dataset holds {held!r}; "
                    f"write the parts again with direction='both', or walk in direction={held!r}"
                )

    def _check_one_type(self, path: list[Step]) -> None:
        is_one_type = len(set(path)) == 1 and path[0][0][0] == path[0][0][2]
        for name, is_set in (("p and q", self.has_memory), ("restart_prob", self.restart_prob > 0)):
            if is_set and not is_one_type:
                raise SettingsError(
                    f"only walks along one edge type between nodes of one type can use {name}; leave {name} out"
                )

    def _check_weights(self, path: list[Step], store: Store) -> None:
        if self.weight_attr is None:
            return
        if self.weight_attr != store.weight_attr:
            raise SettingsError(
                f"weight_attr is {self.weight_attr!r}; the dataset was written with weight_attr={store.weight_attr!r}: "
                "give that, or write the parts again"
            )
        if not any(self.weight_attr in store.schema.edges[edge_type] for edge_type, _ in path):
            raise SettingsError(f"weight_attr: no edge type of the walks has a feature {self.weight_attr!r}")


MAX_KEYS_ASKED = 1 << 22
"""Most keys in one request, unless one step of a batch has more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WalkArguments(WalkSettings):
    """Arguments of ``random_walks`` and ``walk_batches``.

    Attributes:
        source: A dataset folder, a ``cluster.json``, an address such as ``tcp://host:7001``, an open store, or a graph
            in memory (a ``Graph``, or PyG's ``Data`` or ``HeteroData``).
        start: Nodes to start from: integer[num_starts] keys, a bool[num_nodes] mask, the name of a split, or None for
            all nodes. A node type in front is optional; it must be the type that the first step starts from.
        store_settings: Deadline, token and certificates for servers.
    """

    source: Source = field(kw_only=False)
    start: SeedsLike = field(kw_only=False)
    store_settings: StoreSettings | None = None


@called_with(WalkArguments)
def random_walks(arguments: WalkArguments) -> IntArray:
    """Walk at random from some nodes.

    Returns:
        Keys, int64[num_starts * walks_per_node, walk_length + 1], the start first; the walks of start ``i`` are the
        rows from ``i * walks_per_node`` on. Column ``j`` holds nodes of the type that step ``j - 1`` leads to. After a
        node without an edge to follow, a row holds -1.

    Raises:
        SettingsError: An option is outside its range, the dataset cannot meet it, or there is no start.
        UnknownNameError: The graph has no such edge type or split.
        IdRangeError: A start is outside 0..n-1 of its type.
    """
    source = arguments.source
    store = _open(arguments)
    try:
        walker = Walker(store, arguments)
        starts = walker.read_start(arguments.start)
        walks = np.empty((len(starts) * arguments.walks_per_node, len(walker.steps) + 1), np.int64)
        done = 0
        for batch in walker.batches(starts):
            walks[done : done + len(batch)] = batch
            done += len(batch)
        return walks
    finally:
        if store is not source:
            store.close()


@called_with(WalkArguments)
def walk_batches(arguments: WalkArguments) -> Iterator[IntArray]:
    """Iterate over the walks of ``random_walks``, ``batch_size`` rows at a time, to bound memory.

    The iterator closes a store that it opened at its end, or when it is closed or collected.

    Raises:
        SettingsError: As for ``random_walks``.
        UnknownNameError: As for ``random_walks``.
        IdRangeError: As for ``random_walks``.
    """
    source = arguments.source
    store = _open(arguments)
    try:
        walker = Walker(store, arguments)
        batches = walker.batches(walker.read_start(arguments.start))
    except BaseException:
        if store is not source:
            store.close()
        raise
    if store is not source:
        batches = _closing(batches, store)
        weakref.finalize(batches, store.close)
    return batches


def _open(arguments: WalkArguments) -> Store:
    source = arguments.source
    if is_in_memory(source):
        return open_graph(source, direction="both", weight_attr=arguments.weight_attr)
    return open_store(source, arguments.store_settings)


def _closing(batches: Iterator[IntArray], store: Store) -> Iterator[IntArray]:
    with store:
        yield from batches


class Walker:
    """Sampler of walks over one store."""

    def __init__(self, store: Store, settings: WalkSettings) -> None:
        """Check the settings against the dataset.

        Raises:
            UnknownNameError: The graph has no such edge type.
            SettingsError: The dataset does not support the settings.
        """
        self._store = store
        self._settings = settings
        self.steps = settings.steps(store)
        self._node_types = [ends_of(*self.steps[0])[0], *(ends_of(*step)[1] for step in self.steps)]

    def read_start(self, start: SeedsLike) -> IntArray:
        """Return int64[n], the keys of the nodes to start from.

        Raises:
            SettingsError: ``start`` holds no keys, is empty, or has another type than the first step starts from.
            UnknownNameError: There is no such split or type.
            IdRangeError: A key is outside 0..n-1.
        """
        node_type = self._node_types[0]
        found = read_seeds(self._store, start, "start", node_type)
        if found.node_type != node_type:
            raise SettingsError(
                f"start is of type {found.node_type!r}, and the first step goes from {node_type!r}; give nodes of that "
                "type, or another metapath"
            )
        return found.keys_at(np.arange(found.num_seeds, dtype=np.int64))

    def batches(self, starts: IntArray) -> Iterator[IntArray]:
        """Yield int64[walks, walk_length + 1] keys, batch by batch."""
        walks_per_node = self._settings.walks_per_node
        first, end = 0, len(starts) * walks_per_node
        while first < end:
            # Numbers of trees are limited, so walk ``i`` is tree ``i % MAX_TREES``, and every ``MAX_TREES`` walks have
            # a seed of their own. No batch may span two seeds.
            stop = min(first + self._settings.batch_size, end, (first // MAX_TREES + 1) * MAX_TREES)
            numbers = np.arange(first, stop, dtype=np.int64)
            start_ids = self._store.lookup(self._node_types[0], starts[numbers // walks_per_node])
            yield self._keys(_Batch(self._store, self._settings, self.steps, start_ids, numbers).walk())
            first = stop

    def _keys(self, ids: IntArray) -> IntArray:
        """Return the keys of int64[walk_length + 1, walks] ids, as int64[walks, walk_length + 1]."""
        keys = np.full(ids.shape[::-1], NO_NODE, np.int64)
        columns_at_a_time = max(1, MAX_KEYS_ASKED // max(1, ids.shape[1]))
        for first in range(0, len(ids), columns_at_a_time):
            types: dict[str, list[int]] = {}
            for column in range(first, min(first + columns_at_a_time, len(ids))):
                types.setdefault(self._node_types[column], []).append(column)
            found = [ids[columns] for columns in types.values()]
            replies = self._store.fetch(
                [
                    FetchRequest(entity=node_type, names=(KEY,), ids=of_type[of_type >= 0])
                    for node_type, of_type in zip(types, found, strict=True)
                ]
            )
            for columns, of_type, reply in zip(types.values(), found, replies, strict=True):
                of_type[of_type >= 0] = cast(Array, reply[KEY])
                keys[:, columns] = of_type.T
        return keys


class _Batch:
    """Walks that take their steps together; arguments ``walks`` are positions in the batch."""

    def __init__(
        self, store: Store, settings: WalkSettings, steps: tuple[Step, ...], start_ids: IntArray, numbers: IntArray
    ) -> None:
        self._store = store
        self._settings = settings
        self._steps = steps
        self._start_ids = start_ids
        self._trees = numbers % MAX_TREES
        self._rng_seed = derive_seed(settings.rng_seed, "walks", int(numbers[0]) // MAX_TREES)
        self._previous = np.full(len(start_ids), NO_NODE, np.int64)
        biases = (1 / settings.p, 1 / settings.q)
        self._memory = WalkMemory(store, steps[0], biases, self._weight_attr(0)) if settings.has_memory else None

    def walk(self) -> IntArray:
        """Return int64[walk_length + 1, walks] ids; ``NO_NODE`` after the end of a walk."""
        ids = np.full((len(self._steps) + 1, len(self._start_ids)), NO_NODE, np.int64)
        ids[0] = self._start_ids
        walks = np.arange(len(self._start_ids))
        number = 0
        while number < len(self._steps) and len(walks):
            moving = walks
            if self._settings.restart_prob > 0:
                moving = self._restart(walks, ids[number + 1], number)
            current = ids[number][moving]
            found = self._take_steps(moving, current, number)
            ids[number + 1 : number + 1 + len(found), moving] = found
            number += len(found)
            self._previous[moving] = current if len(found) == 1 else found[-2]
            walks = walks[ids[number][walks] != NO_NODE]
        return ids

    def _restart(self, walks: IntArray, next_ids: IntArray, number: int) -> IntArray:
        """Move some walks back to their start; return the others."""
        chances = np.empty(len(walks), np.float64)
        hash_fractions(self._seed(number, "restart"), self._trees[walks], chances)
        is_restarting = chances < self._settings.restart_prob
        back = walks[is_restarting]
        next_ids[back] = self._start_ids[back]
        self._previous[back] = NO_NODE
        return walks[~is_restarting]

    def _take_steps(self, walks: IntArray, current: IntArray, number: int) -> IntArray:
        """Return int64[steps, n], the next nodes of each walk; several steps if a kernel took them."""
        if self._memory is not None:
            at_once = 1 if self._settings.restart_prob > 0 else STEPS_AT_ONCE
            seeds = [int(self._seed(n, "step")) for n in range(number, min(number + at_once, len(self._steps)))]
            return self._memory.advance(seeds, self._trees[walks], current, self._previous[walks])
        reply = self._draw(walks, current, number)
        found = np.full(len(walks), NO_NODE, np.int64)
        found[reply.counts > 0] = reply.neighbor_ids
        return found[None]

    def _draw(self, walks: IntArray, current: IntArray, number: int) -> SampleReply:
        """Draw an edge of each walk's node; a node without edges has none."""
        edge_type, direction = self._steps[number]
        strategy: Strategy = "uniform" if self._weight_attr(number) is None else "weighted"
        request = SampleRequest(
            edge_type=edge_type, direction=direction, ids=current, count=1, is_replacing=True,
            rng_seed=int(self._seed(number, "step")), strategy=strategy, trees=self._trees[walks],
        )  # fmt: skip
        return self._store.sample([request])[0]

    def _weight_attr(self, number: int) -> str | None:
        name = self._settings.weight_attr
        return name if name in self._store.schema.edges[self._steps[number][0]] else None

    def _seed(self, number: int, what: str) -> np.uint64:
        edge_type, direction = self._steps[number]
        return np.uint64(derive_seed(self._rng_seed, number, type_label(edge_type), direction, what))
