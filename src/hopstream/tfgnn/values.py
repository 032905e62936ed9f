"""Values of a feature of any shape.

Like TensorFlow's ragged tensors: flat values, and for each dimension its size, or the lengths of its rows if they vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import SchemaError, quoted
from hopstream.tfgnn.spec import FieldSpec

Dim = int | IntArray
"""The size of a dimension, or int64[rows], the length of each row."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureValues:
    """The values of a feature for the items of a set.

    Attributes:
        flat: dtype[num_values], or a ragged column of strings.
        num_items: Number of items.
        dims: The dimensions of an item's value, outermost first.
    """

    flat: Array | RaggedArray
    num_items: int
    dims: tuple[Dim, ...] = ()

    def __post_init__(self) -> None:
        """Check that the dimensions fit the number of values.

        Raises:
            SchemaError: The dimensions do not fit each other or the number of values.
        """
        num_rows = self.num_items
        for number, dim in enumerate(self.dims, 1):
            if isinstance(dim, int):
                num_rows *= dim
                continue
            if len(dim) != num_rows:
                raise SchemaError(f"dimension {number} has the lengths of {len(dim)} rows; there are {num_rows}")
            if len(dim) and int(dim.min()) < 0:
                raise SchemaError(f"dimension {number} has a row of length {int(dim.min())}")
            num_rows = int(dim.sum())
        if len(self.flat) != num_rows:
            raise SchemaError(f"got {len(self.flat)} values; {self.num_items} items of this shape need {num_rows}")

    @classmethod
    def of(cls, values: Any) -> FeatureValues:
        """Convert an array, a ragged column or nested lists; a ``FeatureValues`` is returned unchanged.

        Args:
            values: dtype[num_items, ...], a ``RaggedArray``, strings, or nested lists. A dimension whose lists all have
                one length is uniform.

        Raises:
            SchemaError: Lists are not equally deep, or hold neither numbers nor strings.
        """
        if isinstance(values, FeatureValues):
            return values
        if isinstance(values, RaggedArray):
            if values.is_string:
                return cls(values, len(values))
            inner = tuple(map(int, values.values.shape[1:]))
            return cls(values.values.reshape(-1), len(values), (np.diff(values.offsets), *inner))
        if isinstance(values, np.ndarray) and values.dtype.kind not in "OUS":
            if not values.ndim:
                raise SchemaError("the values of a set have a dimension for its items, got a scalar")
            return cls(np.ascontiguousarray(values).reshape(-1), len(values), tuple(map(int, values.shape[1:])))
        return _of_lists(values.tolist() if isinstance(values, np.ndarray) else list(values))

    def matching(self, spec: FieldSpec, where: str) -> FeatureValues:
        """Convert the values to the dtype and the ragged dimensions of a spec.

        Raises:
            SchemaError: Shape or kind of values does not fit the spec.
        """
        is_string = isinstance(self.flat, RaggedArray)
        fits = len(self.dims) == len(spec.shape) and all(
            wanted is None or _is_uniform(dim, wanted) for dim, wanted in zip(self.dims, spec.shape, strict=True)
        )
        is_empty = self.num_items == 0 and len(self.flat) == 0
        if not fits and not is_empty:
            raise SchemaError(f"{where} has shape {self.shape}; the schema says {list(spec.shape)}")
        if is_string != spec.is_string and len(self.flat):
            got = "strings" if is_string else str(self.flat.dtype)  # type: ignore[union-attr]
            raise SchemaError(f"{where} has {got}; the schema says {spec.dtype}")
        dims: list[Dim] = []
        num_rows = self.num_items
        for number, wanted in enumerate(spec.shape):
            dim: Dim = self.dims[number] if fits else 0
            if wanted is None and isinstance(dim, int):
                dim = np.full(num_rows, dim, np.int64)
            dims.append(dim if wanted is None else wanted)
            num_rows = num_rows * wanted if wanted is not None else int(np.sum(dim))
        flat: Array | RaggedArray = self.flat
        if spec.is_string and not is_string:
            flat = RaggedArray.from_strings([])
        elif not isinstance(flat, RaggedArray):
            flat = flat.astype(spec.numpy_dtype, copy=False)
        return FeatureValues(flat, self.num_items, tuple(dims))

    @property
    def shape(self) -> list[int | None]:
        """Shape of one item's value; None for a dimension that varies."""
        return [dim if isinstance(dim, int) else None for dim in self.dims]

    def take(self, items: IntArray) -> FeatureValues:
        """Return the values of the given items, in the given order.

        Raises:
            SchemaError: Values vary in size, or are lists of strings.
        """
        sizes = [dim for dim in self.dims if isinstance(dim, int)]
        if len(sizes) < len(self.dims) or (sizes and isinstance(self.flat, RaggedArray)):
            raise SchemaError(
                f"values of shape {self.shape} vary in size, or are lists of strings; only others are read"
            )
        if isinstance(self.flat, RaggedArray):
            return FeatureValues(self.flat.take(items), len(items))
        return FeatureValues(self.flat.reshape(self.num_items, *sizes)[items].reshape(-1), len(items), self.dims)

    def row_offsets(self, item_offsets: IntArray) -> list[IntArray]:
        """Convert offsets of ranges of items to offsets in the rows of each dimension and in the flat values.

        Args:
            item_offsets: int64[n + 1], ascending from 0 to the number of items.

        Returns:
            ``item_offsets``, then int64[n + 1] for each dimension; the last ones are offsets in the flat values.
        """
        found = [item_offsets]
        for dim in self.dims:
            at = found[-1]
            found.append(at * dim if isinstance(dim, int) else offsets_of(dim)[at])
        return found

    @classmethod
    def concatenate(cls, values: Sequence[FeatureValues]) -> FeatureValues:
        """Concatenate the values of one feature for several sets of items.

        Raises:
            SchemaError: Shapes differ, or only some values are strings.
        """
        shapes = {tuple(v.shape) for v in values if v.num_items} or {tuple(values[0].shape)}
        dims: list[Dim] = []
        if len({len(shape) for shape in shapes}) == 1:
            shown = [v for v in values if len(v.dims) == len(next(iter(shapes)))]
            for of in zip(*(v.dims for v in shown), strict=True):
                if all(isinstance(dim, int) for dim in of) and len(set(of)) == 1:
                    dims.append(of[0])
                elif not any(isinstance(dim, int) for dim in of):
                    dims.append(np.concatenate(of))
        if len(dims) != len(next(iter(shapes))) or len({type(v.flat) for v in values if len(v.flat)}) > 1:
            raise SchemaError(f"values of different shapes or kinds are joined: {[v.shape for v in values]}")
        flat: Array | RaggedArray
        strings = [v.flat for v in values if isinstance(v.flat, RaggedArray)]
        if strings:
            lengths = np.concatenate([np.diff(s.offsets) for s in strings])
            flat = RaggedArray(np.concatenate([s.values for s in strings]), offsets_of(lengths), is_string=True)
        else:
            flat = np.concatenate([v.flat for v in values])
        return cls(flat, sum(v.num_items for v in values), tuple(dims))

    def tolist(self) -> list[Any]:
        """Return nested lists of numbers or bytes."""
        flat: list[Any]
        if isinstance(self.flat, RaggedArray):
            data, bounds = self.flat.values.tobytes(), self.flat.offsets.tolist()
            flat = [data[start:end] for start, end in pairwise(bounds)]
        else:
            flat = self.flat.tolist()
        sizes = self.row_offsets(np.array([0, self.num_items], np.int64))
        for dim, size in zip(reversed(self.dims), reversed(sizes[:-1]), strict=True):
            lengths = [dim] * int(size[-1]) if isinstance(dim, int) else dim.tolist()
            bounds = offsets_of(np.array(lengths, np.int64)).tolist()
            flat = [flat[start:end] for start, end in pairwise(bounds)]
        return flat


def _is_uniform(dim: Dim, size: int) -> bool:
    return dim == size if isinstance(dim, int) else bool(np.all(dim == size))


def _of_lists(rows: list[Any]) -> FeatureValues:
    num_items, dims, level = len(rows), [], rows
    while level and all(isinstance(row, Sequence | np.ndarray) and not isinstance(row, str | bytes) for row in level):
        lengths = np.fromiter(map(len, level), np.int64, len(level))
        dims.append(int(lengths[0]) if bool(np.all(lengths == lengths[0])) else lengths)
        level = [value for row in level for value in row]
    if any(isinstance(value, str | bytes) for value in level):
        return FeatureValues(_strings(level), num_items, tuple(dims))
    try:
        flat = np.array(level, None if level else np.float32)
    except ValueError as error:
        raise SchemaError(f"lists are not equally deep: {error}") from error
    if flat.ndim != 1 or flat.dtype.kind not in "biuf":
        raise SchemaError(f"lists hold {flat.dtype}[{', '.join(map(str, flat.shape))}]; use numbers or strings")
    return FeatureValues(flat, num_items, tuple(dims))


def _strings(values: list[Any]) -> RaggedArray:
    encoded = []
    for value in values:
        if not isinstance(value, str | bytes):
            raise SchemaError(f"strings and {type(value).__name__} {quoted(value)} are mixed")
        encoded.append(value.encode() if isinstance(value, str) else value)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return RaggedArray(np.frombuffer(b"".join(encoded), np.uint8), offsets_of(lengths), is_string=True)
