"""Checks and stores a loader's links with their labels and times, and the times of seed nodes.

Users name links as for PyG: pairs of keys, all edges of a type, or a split of them, with labels and times. They become
one checked ``LinkInputs`` record. The ends of stored edges are fetched batch by batch, so they take no memory here.

Times of seed nodes come from the user, one per seed, or from a feature of the nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from hopstream.arrays import Array, IntArray, to_array
from hopstream.checks import did_you_mean, known_names
from hopstream.dataset.raw_ids import are_raw_ids
from hopstream.dataset.stored_columns import times_in_unit
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.graph.graph import hex_digest
from hopstream.sample.raw_ids import keys_of_raw_ids
from hopstream.sample.sampling import Sampling
from hopstream.sample.seeds import Seeds
from hopstream.schema import EdgeType, GraphSchema, type_label
from hopstream.store.contract import FetchRequest, Links, Store


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeedTimes:
    """Times of a loader's seeds.

    Attributes:
        store: The store that holds the nodes' own times.
        node_type: Type of the seeds.
        time_attr: The feature that holds times.
        given: int64[num_seeds], the user's times in the order of the seeds, or None for the nodes' own times.
    """

    store: Store
    node_type: str
    time_attr: str
    given: IntArray | None

    def of(self, positions: IntArray, ids: IntArray) -> IntArray:
        """Return int64[n], a new array: the times of the seeds at ``positions``, whose ids are ``ids``."""
        if self.given is not None:
            return self.given[positions]
        request = FetchRequest(entity=self.node_type, names=(self.time_attr,), ids=ids)
        return np.array(self.store.fetch([request])[0][self.time_attr], np.int64)

    def fingerprint(self) -> str | None:
        """Return the digest of the given times in hex digits, or None without given times."""
        return None if self.given is None else hex_digest(self.given.data)


def read_seed_times(store: Store, sampling: Sampling, seeds: Seeds, input_time: object) -> SeedTimes | None:
    """Check the times of a loader's seeds.

    Args:
        store: The graph's store.
        sampling: Settings of sampling.
        seeds: The seeds.
        input_time: An integer per seed, or None.

    Returns:
        Their times, or None if the sampling is not temporal.

    Raises:
        SettingsError: Times are given without temporal sampling, they are missing with it, or they are not one integer
            per seed.
    """
    time_attr = sampling.settings.time_attr
    if time_attr is None:
        if input_time is not None:
            raise SettingsError("input_time needs time_attr=, the feature that holds times; give both")
        return None
    node_type = seeds.node_type
    if input_time is None and time_attr not in store.schema.nodes[node_type]:
        raise SettingsError(
            f"seeds of {node_type!r} have no time: they have no feature {time_attr!r}; give input_time=, one integer "
            "per seed"
        )
    given = None if input_time is None else read_times(store, "input_time", input_time, seeds.num_seeds)
    return SeedTimes(store=store, node_type=node_type, time_attr=time_attr, given=given)


def read_times(store: Store, name: str, values: object, num_wanted: int, each: str = "seed") -> IntArray:
    """Check the user's times and return a copy, int64[num_wanted], in the unit of the dataset's times.

    Args:
        store: The graph's store.
        name: Name of the option, for messages.
        values: An array of integers or datetime64, or a value that converts to one.
        num_wanted: Required number of times.
        each: The item that each time belongs to, for messages.

    Raises:
        SettingsError: The values are neither integers that fit int64 nor whole numbers of the dataset's time unit, or
            their number is wrong.
    """
    times = to_array(values)
    if times.dtype.kind == "M":
        times = times_in_unit(name, times, store.time_unit)
    if times.dtype.kind not in "iu":
        raise SettingsError(
            f"{name} is {times.dtype}; times are integers, so that they compare exactly: give whole numbers, in the "
            "unit of the dataset's times"
        )
    if times.shape != (num_wanted,):
        raise SettingsError(f"{name} is {times.dtype}{list(times.shape)}; give one integer per {each}: [{num_wanted}]")
    if times.dtype == np.uint64 and bool((times > np.iinfo(np.int64).max).any()):
        raise SettingsError(f"{name} holds {int(times.max())}; times go up to {np.iinfo(np.int64).max}")
    return times.astype(np.int64)


Pairs = ArrayLike | tuple[ArrayLike, ArrayLike] | Links
LinksLike = str | EdgeType | Pairs | tuple[str | EdgeType, str | Pairs | None] | None
"""None (all edges), a split, keys or raw ids (strings) [2, n] of sources and destinations, a pair of arrays [n], or
``Links``; or a pair of an edge type and one of these; or an edge type alone, for all of its edges."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkInputs:
    """Links of one epoch.

    Attributes:
        edge_type: Type of the links.
        num_links: Number of links, with repetitions.
        name: Name of the links in messages and saved states.
        src_keys: int64[num_links], keys of sources, or None to fetch them from the store.
        dst_keys: int64[num_links], keys of destinations, or None like ``src_keys``.
        edge_keys: int64[num_links], keys of the edges to fetch from the store; None for all edges, in order of keys.
        labels: Array of numbers with num_links rows, or None.
        times: int64[num_links], or None if there are none, or the store has them.
    """

    edge_type: EdgeType
    num_links: int
    name: str
    src_keys: IntArray | None = None
    dst_keys: IntArray | None = None
    edge_keys: IntArray | None = None
    labels: Array | None = None
    times: IntArray | None = None

    @property
    def are_stored(self) -> bool:
        """Whether the ends of the links are fetched from the store."""
        return self.src_keys is None

    def links_at(self, store: Store, positions: IntArray) -> Links:
        """Return the links at some positions, with times if they have any."""
        if self.src_keys is None or self.dst_keys is None:
            found = store.links(self.edge_type, positions if self.edge_keys is None else self.edge_keys[positions])
        else:
            found = Links(src_keys=self.src_keys[positions], dst_keys=self.dst_keys[positions])
        return found if self.times is None else replace(found, times=self.times[positions])

    def fingerprints(self) -> dict[str, str | None]:
        """Return the digests of links, labels and times in hex digits; takes about a second per gigabyte."""
        links = hashlib.blake2b(f"{self.name}\x1f{self.num_links}".encode(), digest_size=16)
        for name in ("src_keys", "dst_keys", "edge_keys"):
            _add_array(links, name, getattr(self, name))
        found: dict[str, str | None] = {"links": links.hexdigest()}
        for name, array in (("edge_label", self.labels), ("edge_label_time", self.times)):
            digest = hashlib.blake2b(digest_size=16)
            _add_array(digest, name, array)
            found[name] = None if array is None else digest.hexdigest()
        return found


def _add_array(digest: hashlib.blake2b, name: str, array: Array | None) -> None:
    if array is not None:
        digest.update(f"\x1f{name}\x1f{array.dtype.str}\x1f{array.shape}".encode())
        digest.update(array.data)


def read_link_inputs(
    store: Store, edge_label_index: LinksLike, edge_label: ArrayLike | None, edge_label_time: ArrayLike | None
) -> LinkInputs:
    """Check the user's links, labels and times, and make one record of them.

    Args:
        store: The graph's store; splits and edges are read from it.
        edge_label_index: See ``LinksLike``. In a graph with one edge type the type may be left out.
        edge_label: Numbers, one row per link, or None.
        edge_label_time: Integers, one per link, or None.

    Raises:
        UnknownNameError: The graph has no such edge type or split, or the dataset does not keep its links.
        IdRangeError: A key is outside 0..n-1 of its node type, or no node has a raw id.
        SettingsError: The edge type is missing in a graph with several, or an array has a wrong shape or
            dtype.
    """
    edge_type, choice = _split_type(store.schema, edge_label_index)
    store.schema.check_edge_type(edge_type)
    if choice is None or isinstance(choice, str):
        found = _stored_links(store, edge_type, choice)
    else:
        found = _given_links(store, edge_type, choice)
    times = found.times
    if edge_label_time is not None:
        times = read_times(store, "edge_label_time", edge_label_time, found.num_links, "link")
    return replace(found, labels=_read_labels(found, edge_label), times=times)


def _split_type(schema: GraphSchema, given: LinksLike) -> tuple[EdgeType, str | Pairs | None]:
    """Split the user's links into the edge type, named or the only one, and the rest."""
    edge_type = schema.find_edge_type(given)
    if edge_type is not None:
        return edge_type, None
    if isinstance(given, (tuple, list)) and len(given) == 2 and not _are_rows(schema, given):
        edge_type = schema.find_edge_type(given[0])
        if edge_type is not None:
            return edge_type, cast("str | Pairs | None", given[1])
        if isinstance(given[0], str) and (isinstance(given, tuple) or not isinstance(given[1], str)):
            raise UnknownNameError(
                f"unknown edge type {given[0]!r}; {known_names(given[0], map(type_label, schema.edges))}"
            )
    if len(schema.edges) == 1:
        return next(iter(schema.edges)), cast("str | Pairs | None", given)
    labels = ", ".join(map(type_label, schema.edges))
    if isinstance(given, str):
        known = {type_label(t): list(names) for t, names in schema.edge_splits.items()}
        raise UnknownNameError(
            f"edge_label_index={given!r} is not an edge type ({labels}); for a split give (edge type, split): "
            f"{known}{did_you_mean(given, map(type_label, schema.edges))}"
        )
    raise SettingsError(f"the graph has several edge types; give edge_label_index=(edge type, …) with one of {labels}")


def _are_rows(schema: GraphSchema, given: Sequence[object]) -> bool:
    """Return whether a pair is rows of three nodes: a list that is no edge type, and another row."""
    first, second = given
    is_list = isinstance(first, list) and len(first) == 3 and tuple(first) not in schema.edges
    return is_list and not isinstance(second, str) and np.shape(cast(ArrayLike, second)) == (3,)


def _stored_links(store: Store, edge_type: EdgeType, split: str | None) -> LinkInputs:
    label, splits = type_label(edge_type), store.schema.edge_splits
    if edge_type not in splits:
        wanted = "all edges" if split is None else f"split {split!r}"
        raise UnknownNameError(
            f"edge_label_index is {wanted} of {label}, and the dataset does not keep the ends of these edges by key; "
            f"write the parts again with write_parts(…, links=[{edge_type!r}]), or give the keys: int64[2, n]"
        )
    if split is None:
        return LinkInputs(edge_type=edge_type, num_links=store.book.num_edges(edge_type), name=f"{label}, all")
    if split not in splits[edge_type]:
        known = list(splits[edge_type])
        remedy = "; split_links(graph, …) makes splits before the parts are written" if not known else ""
        raise UnknownNameError(f"{label} has no split {split!r}; {known_names(split, known)}{remedy}")
    edge_keys = np.ascontiguousarray(store.edge_split(edge_type, split), np.int64)
    return LinkInputs(
        edge_type=edge_type, num_links=len(edge_keys), name=f"{label}, split {split!r}", edge_keys=edge_keys
    )


def _given_links(store: Store, edge_type: EdgeType, choice: Pairs) -> LinkInputs:
    times = None
    if isinstance(choice, Links):
        times = choice.times
        choice = (choice.src_keys, choice.dst_keys)
    is_pair = isinstance(choice, (tuple, list)) and len(choice) == 2
    rows = [to_array(row) for row in cast(Sequence[ArrayLike], choice)] if is_pair else list(_matrix(choice))
    if [row.ndim for row in rows] != [1, 1] or len(rows[0]) != len(rows[1]):
        shapes = " and ".join(str(list(row.shape)) for row in rows)
        raise SettingsError(f"edge_label_index has rows of shapes {shapes}; give keys [2, n]: sources, destinations")
    src_keys, dst_keys = (_checked_keys(store, row, number, edge_type[2 * number]) for number, row in enumerate(rows))
    return LinkInputs(
        edge_type=edge_type, num_links=len(src_keys), name=f"{type_label(edge_type)}, keys", src_keys=src_keys,
        dst_keys=dst_keys, times=None if times is None else read_times(store, "times", times, len(src_keys), "link"),
    )  # fmt: skip


def _matrix(choice: Pairs) -> Array:
    matrix = to_array(choice)
    if matrix.ndim != 2 or len(matrix) != 2:
        hint = "; it seems to be the other way round, give its transpose" if matrix.shape[1:] == (2,) else ""
        raise SettingsError(
            f"edge_label_index is {matrix.dtype}{list(matrix.shape)}; give keys [2, n]: sources, destinations{hint}"
        )
    return matrix


def _checked_keys(store: Store, row: Array, number: int, node_type: str) -> IntArray:
    if are_raw_ids(row):
        return keys_of_raw_ids(store, node_type, row, f"edge_label_index[{number}]")
    num_nodes = store.book.num_ids(node_type)
    if not len(row) and row.dtype == np.float64:
        row = row.astype(np.int64)  # an empty list has no dtype of its own
    if row.dtype.kind not in "iu":
        raise SettingsError(
            f"edge_label_index[{number}] is {row.dtype}; give integer keys of {node_type!r}, 0..{num_nodes - 1}, or "
            "strings, which are raw ids"
        )
    bad = np.flatnonzero((row < 0) | (row >= num_nodes))
    if len(bad):
        raise IdRangeError(
            f"edge_label_index[{number}, {bad[0]}] is {int(row[bad[0]])}; keys of {node_type!r} are 0..{num_nodes - 1}"
        )
    return np.array(row, np.int64)


def _read_labels(links: LinkInputs, given: ArrayLike | None) -> Array | None:
    if given is None:
        return None
    labels = _as_labels(given)
    if labels.ndim < 1 or len(labels) != links.num_links:
        raise SettingsError(
            f"edge_label is {labels.dtype}{list(labels.shape)}; give one row per link ({links.name}): "
            f"[{links.num_links}, …]"
        )
    if labels.dtype.kind not in "biuf":
        raise SettingsError(f"edge_label is {labels.dtype}; give numbers, one row per link")
    if labels.dtype.kind == "f" and bool(np.isnan(labels).any()):
        where = ", ".join(map(str, np.argwhere(np.isnan(labels))[0].tolist()))
        raise SettingsError(f"edge_label[{where}] is nan; give a number for every link, or leave such links out")
    return np.array(labels, np.int64 if labels.dtype == np.bool_ else labels.dtype, order="C")


def _as_labels(given: ArrayLike) -> Array:
    """Convert labels to an array.

    Raises:
        SettingsError: The labels are no array, for example a tensor whose dtype numpy does not have.
    """
    try:
        return to_array(given)
    except (TypeError, ValueError) as error:
        got = getattr(given, "dtype", type(given).__name__)
        raise SettingsError(
            f"edge_label is {got}, not an array of numbers ({error}); give numbers, one row per link, in a dtype that "
            "numpy has, such as float32"
        ) from error
