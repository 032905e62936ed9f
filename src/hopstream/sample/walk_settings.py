"""Settings of walks, and the check that a dataset can be walked that way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hopstream.checks import Settings, is_number
from hopstream.dataset.book import ends_of
from hopstream.errors import SettingsError
from hopstream.schema import Direction, EdgeType, type_label
from hopstream.store.contract import MAX_TREES, Store
from hopstream.store.requests import SEED_STOP

MAX_STEPS = 1 << 20

Step = tuple[EdgeType, Direction]
"""An edge type, and whether it is followed from sources to destinations (``out``) or back (``in``)."""
Metapath = Sequence[EdgeType | Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkSettings(Settings):
    """How to walk.

    Attributes:
        length: Steps of a walk; None means once along the metapath.
        metapath: Edge types to follow, one per step, or (edge type, direction) for a step in a direction of its own;
            walks longer than it go along it again. None: the graph's only edge type, in every step.
        direction: ``out`` walks along the edges, ``in`` against them; the dataset must hold it.
        num_walks: Walks from each start.
        p: With 1/p, how readily a walk goes back to the node that it came from (node2vec's return parameter).
        q: With 1/q, how readily it goes to nodes to which no edge leads from where it came from (node2vec's in-out
            parameter).
        restart_probability: With this chance, a step leads back to the start instead.
        weight_attr: Draw edges in proportion to this feature, with which the dataset was written; edge types without it
            uniformly.
        rng_seed: Of all walks.
        batch_size: Walks that are taken at a time. It decides over memory and over the number of requests, not over the
            walks.
    """

    length: int | None = None
    metapath: Metapath | None = None
    direction: Direction = "out"
    num_walks: int = 1
    p: float = 1.0
    q: float = 1.0
    restart_probability: float = 0.0
    weight_attr: str | None = None
    rng_seed: int = 0
    batch_size: int = 1 << 16

    def __post_init__(self) -> None:
        """Refuse what no dataset could meet, and keep plain integers of what may be numpy's or tensors."""
        if self.length is None and self.metapath is None:
            raise SettingsError("length is not given; say how many steps a walk takes")
        bounds = {"num_walks": (1, MAX_TREES), "rng_seed": (0, SEED_STOP - 1), "batch_size": (1, MAX_TREES)}
        if self.length is not None:
            bounds["length"] = (1, MAX_STEPS)
        for name, (low, high) in bounds.items():
            self._read_integer(name, low, high)
        if self.direction not in ("in", "out"):
            raise SettingsError(f"direction is {self.direction!r}; give 'out' to follow edges forwards, or 'in'")
        for name in ("p", "q"):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value < math.inf or not 0 < 1 / value < math.inf:
                raise SettingsError(f"{name} is {value!r}; it must be a number above 0")
        chance = self.restart_probability
        if not is_number(chance) or not 0 <= chance < 1:
            raise SettingsError(f"restart_probability is {chance!r}; it must be at least 0 and below 1")

    @property
    def has_memory(self) -> bool:
        """Where a walk goes depends on where it came from."""
        return self.p != 1 or self.q != 1

    def steps(self, store: Store) -> tuple[Step, ...]:
        """The edge type and direction of each step, checked against a dataset.

        Raises:
            UnknownNameError: The graph has no such edge type.
            SettingsError: Steps that do not follow one another, or that the dataset does not hold; a memory or restarts
                in walks over several types; weights that the dataset does not have.
        """
        path = self._path(store)
        length = len(path) if self.length is None else self.length
        for number, (step, following) in enumerate(zip(path, path[1:] + path[:1], strict=True)):
            is_last = number == len(path) - 1
            found, expanded = ends_of(*step)[1], ends_of(*following)[0]
            if found != expanded and not (is_last and length <= len(path)):
                where = "to be repeated, it must end where it began" if is_last else "it must go on from there"
                raise SettingsError(
                    f"metapath: step {number} finds {found!r}, and the next one starts from {expanded!r}; {where}"
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
        for name, is_set in (("p and q", self.has_memory), ("restart_probability", self.restart_probability > 0)):
            if is_set and not is_one_type:
                raise SettingsError(f"{name}: only for walks along one edge type between nodes of one type")

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
