"""Raw ids of nodes: the feature that holds them, and exact lookup by hash.

[Algorithm] A ``HashIndex`` holds sorted hashes with their places. A lookup compares the values at the places with an
    equal hash. Integers are their own hashes. ``find_ids`` indexes the wanted raw ids, and passes once over those of
    all nodes.
[Cost] 16 bytes per indexed value, and a sort.
[Not chosen] A dictionary of Python objects: ten times the memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of, take_column
from hopstream.dataset.rows import ColumnFile, DatasetRows
from hopstream.errors import IdRangeError, SettingsError, quoted
from hopstream.kernels.spill import hash_strings
from hopstream.schema import FeatureSchema, GraphSchema

ID_NAMES = ("#id", "id")
"""Default names of the feature that holds raw ids, in order of preference."""
NODES_AT_ONCE = 1 << 18
"""Nodes whose raw ids are read together."""

RawId = bytes | str | int
UintArray = NDArray[np.uint64]
IdBlocks = Iterable[tuple[IntArray, Column]]
"""Keys of nodes with their raw ids, in blocks."""

_NUMBER = re.compile(rb"-?[0-9]{1,20}")


def id_feature_of(schema: GraphSchema, node_type: str, feature: str | None) -> str | None:
    """Return the feature that holds the raw ids of a node type; None if raw ids are keys.

    Args:
        schema: Schema of the graph.
        node_type: The node type.
        feature: The chosen feature. None takes the first of ``#id`` and ``id`` that can hold raw ids; an ``id`` of
            reals or lists cannot.

    Raises:
        UnknownNameError: There is no such node type or feature.
        SettingsError: The chosen feature holds neither single strings nor single integers.
    """
    schema.check_node_type(node_type)
    if feature is None:
        features = schema.nodes[node_type]
        return next((name for name in ID_NAMES if name in features and can_be_ids(features[name])), None)
    held = schema.feature(node_type, feature)
    if not can_be_ids(held):
        raise SettingsError(f"id_feature is {feature!r}, which is {held}; ids are single strings or integers")
    return feature


def kept_ids_of(schema: GraphSchema, node_type: str, feature: str | None) -> str:
    """Return the feature that holds the raw ids of a node type, as ``id_feature_of``.

    Without ``#id`` and ``id``, it is the only feature of strings.

    Raises:
        UnknownNameError: There is no such node type or feature.
        SettingsError: The chosen feature cannot hold raw ids, or none is chosen and several or none could.
    """
    found = id_feature_of(schema, node_type, feature)
    strings = [name for name, held in schema.nodes[node_type].items() if held.is_string]
    if found is None and len(strings) != 1:
        could = f"several features of strings ({', '.join(strings)})" if strings else "no feature of strings"
        raise SettingsError(
            f"{node_type!r} has no feature id with raw ids, and {could}; give keys, or look keys up with "
            f"hopstream.sample.find_keys(…, {node_type!r}, raw_ids, id_feature=…)"
        )
    return found or strings[0]


def can_be_ids(schema: FeatureSchema) -> bool:
    """Return whether a feature has one string or integer per node."""
    is_single = not schema.shape and not schema.is_ragged
    return is_single and (schema.is_string or np.dtype(schema.dtype).kind in "iu")


def are_raw_ids(values: Array) -> bool:
    """Return whether an array of seeds holds texts, which are raw ids, and not keys."""
    return values.dtype.kind in "USOT" and len(values) > 0 and isinstance(values[:1].tolist()[0], str | bytes)


def ids_like(raw: Array, node_type: str, feature: str, held: FeatureSchema, where: str) -> Column:
    """Convert a user's raw ids to those of a feature: texts for strings, else integers.

    Args:
        raw: Integers or texts [n]; texts of digits are converted to integers.
        node_type: The node type, for messages.
        feature: Name of the feature.
        held: Schema of the feature.
        where: Name of the raw ids in messages.

    Raises:
        SettingsError: A value is neither text nor an integer.
        IdRangeError: The feature cannot hold a value.
    """
    if not held.is_string and raw.dtype.kind in "iu":
        return raw
    texts = [as_bytes(one) for one in raw.tolist()]
    if held.is_string:
        return strings_of(texts)
    dtype = np.dtype(np.uint64 if held.dtype == "uint64" else np.int64)
    bounds = np.iinfo(dtype)
    numbers = [int(text) if _NUMBER.fullmatch(text) else bounds.min - 1 for text in texts]
    for position, number in enumerate(numbers):
        if not bounds.min <= number <= bounds.max:
            raise unknown_id_error(where, position, raw, node_type, feature)
    return np.array(numbers, dtype)


def unknown_id_error(where: str, position: int, raw: Column, node_type: str, feature: str) -> IdRangeError:
    """Build the error for a raw id that no node has."""
    shown = quoted(raw[position : position + 1].tolist()[0])
    return IdRangeError(f"{where}[{position}] is {shown}; no node of type {node_type!r} has it in feature {feature!r}")


def find_ids(blocks: IdBlocks, asked: Column, label: str, *, takes_first: bool = False) -> IntArray:
    """Return int64[n], the key of the node with each raw id; -1 for unknown raw ids.

    Args:
        blocks: The raw ids of all nodes, which are read once.
        asked: The wanted raw ids, with repetitions; of the same kind.
        label: Name of the feature in messages.
        takes_first: Of several nodes with a raw id, the first in the blocks counts, and there is no error.

    Raises:
        SettingsError: Several nodes have one of the raw ids.
    """
    index = HashIndex.of(asked)
    firsts, keys = index.find(asked), np.full(len(asked), -1, np.int64)
    for of_nodes, ids in blocks:
        places = index.find(ids)
        is_asked = places >= 0
        places, found = places[is_asked], of_nodes[is_asked]
        is_new = keys[places] < 0
        keys[places[is_new][::-1]] = found[is_new][::-1]  # the first one stays
        is_other = keys[places] != found
        if is_other.any() and not takes_first:
            place = int(places[is_other][0])
            raw = quoted(texts_of(take_column(asked, np.array([place])))[0].decode())
            raise SettingsError(
                f"{label} is {raw} of nodes {int(keys[place])} and {int(found[is_other][0])}; raw ids must be unique: "
                "give keys, or another feature"
            )
    return keys[firsts]


def ids_of_rows(rows: DatasetRows, node_type: str, feature: str) -> Iterator[tuple[IntArray, Column]]:
    """Yield the raw ids of all nodes of a type from the files of a dataset, in blocks, with their keys."""
    keys_of_ids, files = rows.keys_of_ids(node_type), rows.columns(node_type).features[feature]
    for block in rows.blocks(node_type, NODES_AT_ONCE):
        keys = keys_of_ids[block.row_ids].astype(np.int64)
        if isinstance(files, ColumnFile):
            yield keys, rows.read_spans(node_type, files, block.piece, block.starts, block.counts)
            continue
        starts, counts = rows.element_spans(node_type, files, block.piece, block.starts, block.counts)
        values = rows.read_spans(node_type, files.values, block.piece, starts, counts)
        yield keys, RaggedArray(values, offsets_of(counts), is_string=True)


@dataclass(frozen=True, slots=True, eq=False)
class HashIndex:
    """Index from values to places; a value that occurs several times leads to its first place.

    Attributes:
        hashes: uint64[n], ascending.
        places: int64[n], the place of each hash; ascending among equal hashes.
        rows_of: Function that returns the values at some places.
    """

    hashes: UintArray
    places: IntArray
    rows_of: Callable[[IntArray], Column]

    @classmethod
    def of(cls, column: Column) -> HashIndex:
        """Index the rows of a column."""
        return cls.of_hashes(hashed(column), lambda rows: take_column(column, rows))

    @classmethod
    def of_hashes(cls, hashes: UintArray, rows_of: Callable[[IntArray], Column]) -> HashIndex:
        """Index the values with the given hashes, in order of their places."""
        places = np.argsort(hashes, kind="stable")
        return cls(hashes[places], places, rows_of)

    def find(self, asked: Column) -> IntArray:
        """Return int64[n], the first place of each value; -1 for values that are not there."""
        hashes, found = hashed(asked), np.full(len(asked), -1, np.int64)
        next_ones = np.searchsorted(self.hashes, hashes)
        open_ones = np.arange(len(asked))
        while len(open_ones):
            at = next_ones[open_ones]
            is_same = at < len(self.hashes)
            is_same[is_same] = self.hashes[at[is_same]] == hashes[open_ones[is_same]]
            open_ones, at = open_ones[is_same], at[is_same]
            is_it = _are_equal(self.rows_of(self.places[at]), take_column(asked, open_ones))
            found[open_ones[is_it]] = self.places[at[is_it]]
            next_ones[open_ones] += 1
            open_ones = open_ones[~is_it]
        return found


def hashed(column: Column) -> UintArray:
    """Return uint64[n], the hashes of strings or integers."""
    if isinstance(column, RaggedArray):
        hashes = np.empty(len(column), np.uint64)
        hash_strings(column.values, column.offsets, hashes)
        return hashes
    return column.view(np.uint64) if column.dtype == np.uint64 else column.astype(np.int64).view(np.uint64)


def _are_equal(one: Column, other: Column) -> NDArray[np.bool_]:
    """Return bool[n], whether the rows of two columns of strings or of integers are equal."""
    if not isinstance(one, RaggedArray) or not isinstance(other, RaggedArray):
        return cast(NDArray[np.bool_], one == other)
    is_equal: NDArray[np.bool_] = np.diff(one.offsets) == np.diff(other.offsets)
    alike = np.flatnonzero(is_equal)
    left, right = one.take(alike), other.take(alike)
    unequal = np.flatnonzero(left.values != right.values)
    is_equal[alike[np.searchsorted(left.offsets, unequal, side="right") - 1]] = False
    return is_equal


def texts_of(column: Column) -> list[bytes]:
    """Convert raw ids to text."""
    if not isinstance(column, RaggedArray):
        return [b"%d" % value for value in column.tolist()]
    data, bounds = column.values.tobytes(), column.offsets.tolist()
    return [data[start:end] for start, end in pairwise(bounds)]


def strings_of(texts: Sequence[bytes]) -> RaggedArray:
    """Convert texts to a column of strings."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return RaggedArray(np.frombuffer(b"".join(texts), np.uint8), offsets_of(lengths), is_string=True)


def as_bytes(raw: RawId) -> bytes:
    """Convert a raw id to text in UTF-8, as in ``context/seed_id``.

    Raises:
        SettingsError: The value is neither text nor an integer.
    """
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, str):
        return raw.encode()
    if isinstance(raw, int | np.integer) and not isinstance(raw, bool):
        return b"%d" % raw
    raise SettingsError(f"seed {quoted(raw)} is {type(raw).__name__}; raw ids are bytes, str or int")
