"""Checks and stores the seed nodes of a loader or a walk.

Users name seeds as for PyG: a split, keys, a mask, or None for all nodes, with the node type in front if the graph has
several. Strings in place of keys are raw ids. All become one checked ``Seeds`` record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import ArrayLike

from hopstream.arrays import Array, IntArray, to_array
from hopstream.checks import did_you_mean
from hopstream.dataset.raw_ids import are_raw_ids
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.sample.raw_ids import keys_of_raw_ids
from hopstream.schema import NODE
from hopstream.store.contract import Store

SeedsLike = str | ArrayLike | tuple[str, str | ArrayLike | None] | None
"""None (all nodes), a split, keys, a mask or raw ids (a list of strings); or a pair of a node type and one of these; or
a node type alone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seeds:
    """Seed nodes of one epoch.

    Attributes:
        node_type: Type of the seeds.
        num_seeds: Number of seeds, with repetitions.
        keys: int64[num_seeds], or None for all nodes of the type, in order of keys.
        is_mask: The seeds were given as a mask; the input id of a seed is then its key, its position in the mask.
        may_repeat: Whether a key may occur more than once.
        name: Name of the seeds in messages and saved states.
    """

    node_type: str
    num_seeds: int
    keys: IntArray | None
    name: str
    is_mask: bool = False
    may_repeat: bool = False

    def keys_at(self, positions: IntArray) -> IntArray:
        """Return int64[n], the keys of the seeds at some positions."""
        return positions if self.keys is None else self.keys[positions]

    def input_ids_at(self, positions: IntArray) -> IntArray:
        """Return int64[n], the positions in the user's input of the seeds at some positions."""
        return self.keys_at(positions) if self.is_mask else positions

    def fingerprint(self) -> str:
        """Return the digest of the seeds in hex digits; takes about a second per gigabyte of keys."""
        digest = hashlib.blake2b(f"{self.name}\x1f{self.num_seeds}".encode(), digest_size=16)
        if self.keys is not None:
            digest.update(self.keys.data)
        return digest.hexdigest()


def read_seeds(store: Store, seeds: SeedsLike, name: str = "seeds", node_type: str | None = None) -> Seeds:
    """Check the user's seeds, and make one record of them.

    Args:
        store: The graph's store; splits are read from it.
        seeds: See ``SeedsLike``. In a graph with one node type the type may be left out; a node type alone means all of
            its nodes.
        name: Name of the option, for messages.
        node_type: Default node type; None means the only one of the graph, if there is only one.

    Raises:
        UnknownNameError: The graph has no such node type or split.
        IdRangeError: A key is outside 0..n-1 of the node type, or no node has a raw id.
        SettingsError: The node type is missing in a graph with several, a mask has a wrong length, keys are neither
            integers nor raw ids, or the dataset keeps no raw ids.
    """
    node_type, choice = _split_type(store, seeds, name, node_type)
    store.schema.check_node_type(node_type)
    num_nodes = store.book.num_ids(node_type)
    if choice is None:
        found = Seeds(node_type=node_type, num_seeds=num_nodes, keys=None, name=f"{node_type}, all")
    elif isinstance(choice, str):
        keys = np.ascontiguousarray(store.split(node_type, choice), np.int64)
        found = Seeds(node_type=node_type, num_seeds=len(keys), keys=keys, name=f"{node_type}, split {choice!r}")
    else:
        array = _as_array(choice, name)
        if are_raw_ids(array):
            array = keys_of_raw_ids(store, node_type, array, name)
        found = _from_array(node_type, num_nodes, array, name)
    return found


def _split_type(store: Store, seeds: SeedsLike, name: str, default: str | None) -> tuple[str, str | ArrayLike | None]:
    """Split the user's seeds into the node type (named, default or only one) and the rest."""
    types = list(store.schema.nodes)
    if default is None and len(types) == 1:
        default = types[0]
    if _is_pair(seeds, types):
        return cast(tuple[str, "str | ArrayLike | None"], tuple(seeds))
    is_split = isinstance(seeds, str) and default is not None and seeds in store.schema.splits.get(default, ())
    if isinstance(seeds, str) and seeds in types and not is_split:
        return seeds, None
    if default is not None:
        return default, cast("str | ArrayLike | None", seeds)
    if isinstance(seeds, str):
        known = {t: list(names) for t, names in store.schema.splits.items()}
        raise UnknownNameError(
            f"{name}={seeds!r} is not a node type ({', '.join(types)}); for a split give (node type, split): "
            f"{known}{did_you_mean(seeds, types)}"
        )
    raise SettingsError(f"the graph has several node types; give {name}=(node type, …) with one of {', '.join(types)}")


def _is_pair(seeds: SeedsLike, types: Sequence[str]) -> TypeGuard[Sequence[Any]]:
    """Return whether seeds are a pair that begins with a node type; two other strings are two raw ids."""
    if not isinstance(seeds, (tuple, list)) or len(seeds) != 2 or not isinstance(seeds[0], str):
        return False
    return isinstance(seeds, tuple) or seeds[0] in types or not isinstance(seeds[1], str)


def _as_array(values: ArrayLike, name: str) -> Array:
    if isinstance(values, Iterable) and not isinstance(values, Sequence) and not hasattr(values, "__array__"):
        raise SettingsError(f"{name} is a {type(values).__name__}; give a list: list({name})")
    try:
        array = to_array(values)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{name} is a {type(values).__name__}, not an array ({error}); give integer keys or a bool mask, "
            "with the node type in front if the graph has several: (node type, keys)"
        ) from error
    if array.ndim == 0:
        raise SettingsError(f"{name} is {array.item()!r}; give a list: [{array.item()!r}]")
    if array.ndim != 1:
        raise SettingsError(f"{name} is {array.dtype}{list(array.shape)}; it must be one-dimensional")
    if array.size == 0 and isinstance(values, Sequence):
        array = array.astype(np.int64)  # an empty list has no dtype of its own
    return array


def _from_array(node_type: str, num_nodes: int, array: Array, name: str) -> Seeds:
    label = "the graph" if node_type == NODE else repr(node_type)
    if array.dtype == np.bool_:
        if len(array) != num_nodes:
            raise SettingsError(f"{name} is a mask with {len(array)} entries; {label} has {num_nodes} nodes")
        keys = np.flatnonzero(array).astype(np.int64, copy=False)
        return Seeds(node_type=node_type, num_seeds=len(keys), keys=keys, name=f"{node_type}, mask", is_mask=True)
    if not np.issubdtype(array.dtype, np.integer):
        raise SettingsError(f"{name} is {array.dtype}; give integer keys or a bool mask")
    if len(array) and (int(array.min()) < 0 or int(array.max()) >= num_nodes):
        position = int(np.flatnonzero((array < 0) | (array >= num_nodes))[0])
        raise IdRangeError(f"{name}[{position}] is {int(array[position])}; keys of {label} are 0..{num_nodes - 1}")
    keys = np.array(array, np.int64)
    return Seeds(node_type=node_type, num_seeds=len(keys), keys=keys, name=f"{node_type}, keys", may_repeat=True)
