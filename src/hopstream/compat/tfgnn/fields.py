"""Takes the values of a graph tensor as users give them, and shows them.

Values of one shape are arrays, strings among them as ``bytes`` in an object array; values that vary in size are
``FeatureValues``. A batch of graphs holds the values of all items one after the other, and shows those of each graph as
a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray
from hopstream.checks import known_words
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.tfgnn.values import Dim, FeatureValues

Field = Array | FeatureValues
"""The values of a feature: dtype[items, ...], or values that vary in size."""


def held(values: Any) -> FeatureValues:
    """Values as they are held. Lists of numbers become int32 and float32, as TensorFlow has them.

    Args:
        values: An array, ``FeatureValues``, a ``RaggedArray``, or lists in lists, whose lengths may differ.

    Raises:
        SchemaError: They are not equally deep, or neither numbers nor strings.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "OSU" and values.ndim:
        given = values.reshape(-1).tolist()
        if all(isinstance(value, str | bytes) for value in given):  # as arrays, empty ones are of strings, too
            strings = FeatureValues.of(given).flat if given else RaggedArray.from_strings([])
            return FeatureValues(strings, len(values), values.shape[1:])
    made = FeatureValues.of(values)
    if isinstance(values, np.ndarray | RaggedArray | FeatureValues) or isinstance(made.flat, RaggedArray):
        return made
    flat = made.flat
    if flat.dtype == np.float64:
        flat = flat.astype(np.float32)
    elif flat.dtype.kind in "iu" and (not len(flat) or -(2**31) <= int(flat.min()) <= int(flat.max()) < 2**31):
        flat = flat.astype(np.int32)
    return FeatureValues(flat, made.num_items, made.dims)


def ragged_constant(rows: Any, ragged_rank: int | None = None) -> FeatureValues:
    """Values from lists in lists, as ``tf.ragged.constant`` gives them: dimensions may vary even where none does.

    Args:
        rows: Lists in lists of numbers or strings.
        ragged_rank: How many dimensions may vary, the items' own not counted; all of them if None.

    Raises:
        SchemaError: Lists are not equally deep, or hold neither numbers nor strings.
    """
    made = held(rows)
    num_ragged = len(made.dims) if ragged_rank is None else ragged_rank
    if not 0 <= num_ragged <= len(made.dims):
        raise SchemaError(f"ragged_rank is {ragged_rank}; lists this deep have 0 to {len(made.dims)}")
    dims: list[Dim] = []
    num_rows = made.num_items
    for number, dim in enumerate(made.dims):
        dims.append(np.full(num_rows, dim, np.int64) if number < num_ragged and isinstance(dim, int) else dim)
        num_rows = num_rows * dim if isinstance(dim, int) else int(dim.sum())
    return FeatureValues(made.flat, made.num_items, tuple(dims))


def shown(values: FeatureValues) -> Field:
    """Values as users see them: an array where no dimension varies."""
    sizes = [dim for dim in values.dims if isinstance(dim, int)]
    if len(sizes) < len(values.dims):
        return values
    flat: Array
    if isinstance(values.flat, RaggedArray):
        flat = np.empty(len(values.flat), object)
        flat[:] = FeatureValues(values.flat, len(values.flat)).tolist()
    else:
        flat = values.flat
    return flat.reshape(values.num_items, *sizes)


def items_of(values: Any, sizes: IntArray, where: str) -> FeatureValues:
    """The values of all items, from what is given for one graph or for a batch of them.

    Args:
        values: As ``held`` takes them; those of a batch have a row per graph.
        sizes: int[num_components], or int[num_graphs, num_components].
        where: What errors call the values.

    Raises:
        SchemaError: There are values of another number of items or graphs.
    """
    made = held(values)
    if sizes.ndim == 2:
        counts = sizes.sum(axis=1)
        dims = made.dims
        if made.num_items != len(counts) or not dims or not bool(np.all(np.asarray(dims[0]) == counts)):
            raise SchemaError(f"{where} has {made.num_items} rows; a batch has one per graph: {counts.tolist()} items")
        made = FeatureValues(made.flat, int(counts.sum()), dims[1:])
    if made.num_items != int(sizes.sum()):
        raise SchemaError(f"{where} has values of {made.num_items} items; sizes are {sizes.tolist()}")
    return made


def rows_of(items: FeatureValues, sizes: IntArray, *, is_uniform: bool = False) -> FeatureValues:
    """The values of all items as a row per graph where ``sizes`` are those of a batch.

    Args:
        items: Values of all items.
        sizes: int[num_components], or int[num_graphs, num_components].
        is_uniform: Every graph has equally many items, so that rows do not vary.
    """
    if sizes.ndim == 1:
        return items
    counts: Dim = int(sizes.shape[1]) if is_uniform else sizes.sum(axis=1, dtype=np.int64)
    return FeatureValues(items.flat, len(sizes), (counts, *items.dims))


class Fields(Mapping[str, Field]):
    """The features of a set by name; each is made when it is asked for."""

    def __init__(self, items: Mapping[str, FeatureValues], sizes: IntArray, where: str, *, is_uniform: bool) -> None:
        """Look at values of all items, of sets of these sizes; ``where`` is what errors call the set."""
        self._items, self._sizes, self._where, self._is_uniform = items, sizes, where, is_uniform

    def __getitem__(self, name: str) -> Field:
        """The values of one feature."""
        if name not in self._items:
            raise UnknownNameError(f"{self._where} has no feature {name!r}; {known_words(name, self._items)}")
        return shown(rows_of(self._items[name], self._sizes, is_uniform=self._is_uniform))

    def __iter__(self) -> Iterator[str]:
        """The names of features."""
        return iter(self._items)

    def __len__(self) -> int:
        """How many features there are."""
        return len(self._items)

    def __repr__(self) -> str:
        """The names and shapes of features."""
        shapes = (f"{name!r}: {[values.num_items, *values.shape]}" for name, values in self._items.items())
        return f"Fields({', '.join(shapes)})"
