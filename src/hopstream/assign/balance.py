"""Balance constraints of parts, and the refinement of a cut until the parts meet them.

The constraints form *groups*: the weights of nodes, their edges, node types or classes of a feature, and splits. In
each group a node counts for one *row* (its node type, its class, its split) or for none. A part's load is one number
per row, and so is its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopstream.arrays import Array, IntArray, RaggedArray, open_array
from hopstream.assign.flatten import SymmetricGraph, type_offsets
from hopstream.assign.source import AssignSource
from hopstream.checks import known_names
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import FormatError, SchemaError, UnknownNameError
from hopstream.kernels.placement import add_loads, move_nodes
from hopstream.uris import local_path

BLOCK_NODES = 1 << 20
MAX_CLASSES = 4096
"""Most distinct classes of one node type."""
CLASS_FILES = (".npy", ".txt")
PRICES = tuple(4.0**power for power in range(-4, 8))
"""Edges that a move may cut per unit of excess it removes, as multiples of the graph's edges, sweep by sweep."""
CUT_SWEEPS = 2
MAX_SWEEPS_PER_PRICE = 3

Members = tuple[str, int, Callable[[], Iterator[IntArray]]]
"""A row's name, the position of the type's first node, and a function that reads the members' keys in blocks."""
NodeClasses = Mapping[str, ArrayLike | str | Path | None]
"""Node type to the class of each node: an array, a file, the name of a feature, or None for a single class."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constraints:
    """Groups of loads to balance, with their limits.

    Attributes:
        names: The name of each row of ``limits``.
        rows: int32[groups, num_nodes], the row that a node counts for in each group, -1 for none.
        amounts: int64[weighted, num_nodes], how much a node counts in the first ``weighted`` groups; it counts 1 in the
            others.
        limits: float64[num_rows, num_parts], the largest allowed load of each part.
        totals: int64[num_rows], the load of all parts together.
    """

    names: tuple[str, ...]
    rows: NDArray[np.int32]
    amounts: IntArray
    limits: NDArray[np.float64]
    totals: IntArray

    def loads_of(self, owner: NDArray[np.int32]) -> IntArray:
        """Return the loads of the parts, int64[num_rows, num_parts]; nodes with part -1 do not count."""
        loads = np.zeros(self.limits.shape, np.int64)
        add_loads(owner, self.rows, self.amounts, loads)
        return loads

    def largest_over_share(self, loads: IntArray, shares: Sequence[float]) -> dict[str, float]:
        """Return the largest load of each row as a multiple of the part's share; 1 for an empty row."""
        ratios = loads / np.maximum(self.totals[:, None] * np.array(shares), 1e-9)
        largest = np.where(self.totals > 0, ratios.max(axis=1), 1.0)
        return dict(zip(self.names, largest.tolist(), strict=True))

    def excess_of(self, loads: IntArray) -> float:
        """Return the loads above their limits, each as a fraction of its row's total, summed."""
        over = np.maximum(loads - self.limits, 0.0).sum(axis=1)
        return float((over / np.maximum(self.totals, 1)).sum())


class ConstraintBuilder:
    """Collector of groups. Groups with amounts must come first.

    [Cost] Memory: 4 bytes per node and group, and another 8 per weighted group if two groups or more have amounts.
    """

    def __init__(self, num_nodes: int, settings: PartitionSettings, max_groups: int) -> None:
        """Start without groups. The kernel commits memory only when a group is written."""
        self._num_nodes = num_nodes
        self._settings = settings
        self._names: list[str] = []
        self._rows = np.empty((max_groups, num_nodes), np.int32)
        self._num_groups = 0
        self._has_members = False
        self._amounts: list[IntArray] = []

    def add(self, names: list[str], classes: NDArray[np.int32] | None, amounts: IntArray | None = None) -> None:
        """Add a group.

        Args:
            names: The name of each row.
            classes: int32[num_nodes], the row of each node inside the group, -1 for none; None counts all nodes for the
                first.
            amounts: int64[num_nodes], or None if each node counts 1.
        """
        rows = self._next_group(len(self._names))
        if classes is not None:
            for start in range(0, self._num_nodes, BLOCK_NODES):
                block = classes[start : start + BLOCK_NODES]
                rows[start : start + BLOCK_NODES] = np.where(block >= 0, block + np.int32(len(self._names)), -1)
        self._names += names
        if amounts is not None:
            self._amounts.append(amounts)

    def add_members(self, members: list[Members]) -> None:
        """Add one row per item, for the members of a split.

        The rows share the previous group of members if no node is in both. This saves the memory of a group.
        """
        rows = self._rows[self._num_groups - 1]
        has_room = self._has_members and not any(
            (rows[first:][keys] >= 0).any() for _, first, blocks in members for keys in blocks()
        )
        if not has_room:
            rows, self._has_members = self._next_group(-1), True
        for name, first, blocks in members:
            for keys in blocks():
                rows[first:][keys] = len(self._names)
            self._names.append(name)

    def _next_group(self, row: int) -> NDArray[np.int32]:
        self._num_groups += 1
        rows: NDArray[np.int32] = self._rows[self._num_groups - 1]
        rows[:] = row
        return rows

    def build(self) -> Constraints:
        """Build the constraints. A limit is the share plus ``imbalance``, at least the share rounded up."""
        num_rows, num_nodes = len(self._names), self._num_nodes
        rows = self._rows[: self._num_groups]
        amounts = (
            self._amounts[0].reshape(1, num_nodes)  # no copy
            if len(self._amounts) == 1
            else np.array(self._amounts, np.int64).reshape(len(self._amounts), num_nodes)
        )
        totals = np.zeros((num_rows, 1), np.int64)
        add_loads(np.zeros(num_nodes, np.int32), rows, amounts, totals)
        shares = np.array(self._settings.shares)
        even = totals * shares
        limits = np.maximum((1 + self._settings.imbalance) * even, np.ceil(even - 1e-9))
        return Constraints(
            names=tuple(self._names), rows=rows, amounts=amounts, limits=np.maximum(limits, 1e-9), totals=totals[:, 0]
        )


def make_constraints(
    source: AssignSource, settings: PartitionSettings, weights: IntArray | None, degrees: IntArray | None,
    classes: NodeClasses | None = None,
) -> Constraints:  # fmt: skip
    """Make the constraints that the settings ask for.

    Args:
        source: The graph.
        settings: What to balance, and by how much parts may differ.
        weights: int64[num_nodes], the weight of each node, or None to leave weights unbalanced.
        degrees: int64[num_nodes], the edges of each node, for ``balance_edges``.
        classes: Further node types to balance, in addition to ``settings.balance_ntypes``.

    Raises:
        UnknownNameError: A node type or feature does not exist.
        SchemaError: A class is not one integer per node, or there are too many classes.
    """
    splits = dict.fromkeys(name for of_type in source.schema.splits.values() for name in of_type)
    builder = ConstraintBuilder(sum(source.num_nodes.values()), settings, 3 + len(splits))
    names, of_node = _read_classes(source, {**_asked(settings, source), **(classes or {})})
    if weights is not None:
        builder.add([settings.balance], None, weights)
    if settings.balance_edges and degrees is not None:
        edge_names = [f"edges {name}" for name in names] or ["edges"]
        builder.add(edge_names, of_node, degrees)
    if names:
        builder.add(names, of_node)
    del of_node
    if settings.balance_splits:
        for split in splits:
            builder.add_members(_members(source, split))
    return builder.build()


def _asked(settings: PartitionSettings, source: AssignSource) -> dict[str, str | None]:
    """Map node types to the feature or file of their classes.

    If the graph has one node type, a bare name may be a feature or a file of that type.

    Raises:
        UnknownNameError: A bare name is no node type, feature or file.
    """
    node_types = list(source.num_nodes)
    found: dict[str, str | None] = {}
    for text in settings.balance_ntypes:
        node_type, equals, what = text.partition("=")
        if not equals and len(node_types) == 1 and node_type not in node_types:
            features = list(source.schema.nodes[node_types[0]])
            if text not in features and not text.endswith(CLASS_FILES):
                raise UnknownNameError(
                    f"balance_ntypes is {text!r}, neither a node type ({known_names(text, node_types)}) nor a "
                    f"feature ({known_names(text, features)}) nor a file that ends in .npy or .txt"
                )
            found[node_types[0]] = text
        else:
            found[node_type] = what if equals else None
    return found


def _members(source: AssignSource, split: str) -> list[Members]:
    """Return the members of a split: per node type a name, its first position, and a reader of the keys."""
    firsts = type_offsets(source.num_nodes)
    return [
        (f"{split} {t}", firsts[t], partial(source.split, t, split))
        for t in source.num_nodes
        if split in source.schema.splits.get(t, ())
    ]


def _read_classes(source: AssignSource, asked: NodeClasses) -> tuple[list[str], NDArray[np.int32] | None]:
    """Return the name of each class and the class of each node: int32[num_nodes], -1 for none, or None."""
    for node_type in asked:
        if node_type not in source.num_nodes:
            raise UnknownNameError(
                f"balance_ntypes name node type {node_type!r}; {known_names(node_type, source.num_nodes)}"
            )
    if not asked:
        return [], None
    names: list[str] = []
    found = np.full(sum(source.num_nodes.values()), -1, np.int32)
    for node_type, first in type_offsets(source.num_nodes).items():
        num_nodes = source.num_nodes[node_type]
        if node_type not in asked:
            continue
        what = asked[node_type]
        if what is None:
            found[first : first + num_nodes] = len(names)
            names += [node_type] * (num_nodes > 0)
            continue
        where, values = _class_values(source, node_type, what)
        distinct = _distinct(where, values)
        for start in range(0, num_nodes, BLOCK_NODES):
            block = values[start : start + BLOCK_NODES]
            found[first + start : first + start + len(block)] = len(names) + np.searchsorted(distinct, block)
        names += [f"{node_type} {value}" for value in distinct.tolist()]
    return names, found if names else None


def _distinct(where: str, values: Array) -> Array:
    """Return the distinct values, ascending.

    Raises:
        SchemaError: There are more than ``MAX_CLASSES``.
    """
    distinct = values[:0]
    for start in range(0, len(values), BLOCK_NODES):
        distinct = np.union1d(distinct, values[start : start + BLOCK_NODES])
        if len(distinct) > MAX_CLASSES:
            num_distinct = len(np.unique(values))
            raise SchemaError(
                f"{where} has {num_distinct} distinct values; at most {MAX_CLASSES} classes can be balanced"
            )
    return distinct


def _class_values(source: AssignSource, node_type: str, what: ArrayLike | str | Path) -> tuple[str, Array]:
    """Return the name of a node type's classes in errors, and the class of each node, integer[num_nodes]."""
    num_nodes = source.num_nodes[node_type]
    where = f"balance_ntypes of {node_type!r}"
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith(CLASS_FILES)):
        where, values = str(what), _open_numbers(local_path(what))
    elif isinstance(what, str):
        known = list(source.schema.nodes[node_type])
        if what not in known:
            raise UnknownNameError(
                f"{where} is {what!r}, neither a feature ({known_names(what, known)}) nor a file that ends in .npy or "
                ".txt"
            )
        where, column = f"{node_type}.{what}", source.feature(node_type, what)
        if isinstance(column, RaggedArray):
            raise SchemaError(f"{where} has rows of different lengths; classes are one integer for each node")
        values = column
    else:
        values = np.asarray(what)
    is_whole = np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_ or not num_nodes
    if values.shape != (num_nodes,) or not is_whole:
        raise SchemaError(
            f"{where} is {values.dtype}{list(values.shape)}; it must be one integer for each of {num_nodes} nodes"
        )
    return where, values


def _open_numbers(path: Path) -> Array:
    """Read the numbers in a file: a memory-mapped ``.npy``, or a text with one integer per line.

    Raises:
        FormatError: The file is missing or holds something else.
    """
    if path.suffix == ".npy":
        return open_array(path)
    try:
        if path.stat().st_size == 0:
            return np.empty(0, np.int32)
        return np.loadtxt(path, np.int64, ndmin=1, comments=None)
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    except ValueError as error:
        raise FormatError(f"{path} must have one part number per line ({error})") from error


def refine_owners(
    graph: SymmetricGraph, constraints: Constraints, owner: NDArray[np.int32], *, cut_sweeps: int = CUT_SWEEPS
) -> float:
    """Move nodes, in place, until all loads are within their limits, then to cut fewer edges.

    Args:
        graph: The graph; one without edges if edges do not matter.
        constraints: The limits.
        owner: int32[num_nodes], the part of each node.
        cut_sweeps: Number of sweeps over all nodes for fewer cut edges, once all loads are within their limits.

    Returns:
        The excess that is left. It is 0 unless moves of single nodes cannot meet the limits.
    """
    loads = constraints.loads_of(owner)
    scales = 1.0 / np.maximum(constraints.totals, 1).astype(np.float64)
    counts = np.zeros(loads.shape[1], np.int64)

    def sweep(price: float) -> int:
        return sum(
            move_nodes(
                first, stop, graph.indptr, neighbors, constraints.rows, constraints.amounts, constraints.limits, scales,
                price, loads, owner, counts,
            )
            for first, stop, neighbors in graph.blocks()
        )  # fmt: skip

    unit = max(graph.num_ends / 2, 1.0)
    excess = constraints.excess_of(loads)
    for price in PRICES:
        for _ in range(MAX_SWEEPS_PER_PRICE):
            if excess <= 0.0 or not sweep(price * unit):
                break
            excess, before = constraints.excess_of(loads), excess
            if excess > before / 2:
                break
    if graph.num_ends:
        for _ in range(cut_sweeps):
            if not sweep(PRICES[-1] * unit):
                break
    return constraints.excess_of(loads)
