"""Which weights can edges be drawn by, and what is stored so that a draw need not add them up?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, column_schema
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.kernels.alias import build_aliases
from hopstream.kernels.rows import sum_rows
from hopstream.partition.book import ends_of
from hopstream.partition.chunks import row_chunks
from hopstream.partition.times import row_order
from hopstream.schema import Direction, type_label

CHUNK_ROWS = 1 << 20
MAX_SUM = float(np.finfo(np.float64).max) / 2
"""What the weights of one node's edges may add up to, in whichever order they are added."""

MAX_INTEGER = 1 << 53
"""Weights are compared as float64, which has all integers up to here."""


def weight_sums(indptr: IntArray, weights: Array, edge_keys: Array) -> Iterator[NDArray[np.float64]]:
    """float64 blocks of the running sums of weights inside each row.

    Args:
        indptr: int64[rows + 1], from 0.
        weights: real[num_edges], the weight of each edge key.
        edge_keys: integer[indptr[-1]], the keys of the rows' edges, in stored order.
    """
    for offsets, values in _weights_of_rows(indptr, weights, edge_keys):
        yield row_sums(offsets, values)


def row_sums(offsets: IntArray, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[n], the running sums of weights inside each row; see ``sum_rows``."""
    sums = np.empty(len(weights), np.float64)
    sum_rows(offsets, weights, sums)
    return sums


def weight_aliases(indptr: IntArray, weights: Array, edge_keys: Array) -> Iterator[NDArray[np.uint64]]:
    """uint64 blocks of the alias tables of rows; arguments as of ``weight_sums``."""
    for offsets, values in _weights_of_rows(indptr, weights, edge_keys):
        yield row_aliases(offsets, values)


def row_aliases(offsets: IntArray, weights: NDArray[np.float64]) -> NDArray[np.uint64]:
    """uint64[n], the alias table of each row; see ``build_aliases``."""
    most = int(np.diff(offsets).max(initial=0))
    entries = np.empty(len(weights), np.uint64)
    build_aliases(offsets, weights, np.empty(most), np.empty(most, np.uint32), entries)
    return entries


def weight_orders(indptr: IntArray, weights: Array, edge_keys: Array) -> Iterator[Array]:
    """uint32 blocks of the positions inside each row, largest weight first; arguments as of ``weight_sums``."""
    for offsets, values in _weights_of_rows(indptr, weights, edge_keys):
        yield row_order(offsets, values, is_descending=True)


def _weights_of_rows(
    indptr: IntArray, weights: Array, edge_keys: Array
) -> Iterator[tuple[IntArray, NDArray[np.float64]]]:
    for first, last, start, stop in row_chunks(indptr):
        yield indptr[first : last + 1] - start, weights[edge_keys[start:stop]].astype(np.float64, copy=False)


def check_weights(graph: Graph, weight_attr: str, directions: tuple[Direction, ...]) -> None:
    """Refuse columns that edges cannot be drawn by.

    Raises:
        UnknownNameError: No edge type has the feature.
        SchemaError: A type's feature of this name is not one real number per row; a weight is negative, infinite, not
            a number, or an integer above 2**53; all weights of a type are 0; or those of one
            node add up to more than a float64 holds.
    """
    if not any(weight_attr in edges.features for edges in graph.edges.values()):
        known = {type_label(t): list(edges.features) for t, edges in graph.edges.items()}
        raise UnknownNameError(f"weight_attr is {weight_attr!r}; no edge type has such a feature; known: {known}")
    for edge_type, edges in graph.edges.items():
        if weight_attr not in edges.features:
            continue
        where = f"{type_label(edge_type)}.{weight_attr}"
        weights = _check_column(where, edges.features[weight_attr])
        if _check_values(where, weights) > MAX_SUM:
            for direction in directions:
                num_nodes = graph.nodes[ends_of(edge_type, direction)[0]].num_nodes
                _check_sums(where, edges, weights, direction, num_nodes)


def _check_column(where: str, column: Column) -> Array:
    schema = column_schema(column)
    if not isinstance(column, np.ndarray) or schema.shape or column.dtype.kind not in "iuf":
        raise SchemaError(f"{where} is {schema}; weights are one integer or float per edge: convert it, or rename it")
    return column


def _check_values(where: str, weights: Array) -> float:
    """Check each weight; return their sum, which may be infinite."""
    total = 0.0
    for start in range(0, len(weights), CHUNK_ROWS):
        stored = weights[start : start + CHUNK_ROWS]
        block = stored.astype(np.float64)
        if stored.dtype.kind in "iu" and (is_large := stored > MAX_INTEGER).any():
            row = start + int(np.argmax(is_large))
            raise SchemaError(
                f"{where}[{row}] is {weights[row]}; integer weights go up to 2^53 = {MAX_INTEGER}, above which float64 "
                "cannot tell them apart: divide them by a constant, or convert them to float64"
            )
        is_wrong = ~((block >= 0) & np.isfinite(block))
        if is_wrong.any():
            row = start + int(np.argmax(is_wrong))
            raise SchemaError(f"{where}[{row}] is {weights[row]}; weights are finite numbers that are 0 or more")
        with np.errstate(over="ignore"):
            total += float(block.sum())
    if len(weights) and total == 0:
        raise SchemaError(f"{where} is 0 for all {len(weights)} edges, so none could be drawn; leave weight_attr out")
    return total


def _check_sums(where: str, edges: EdgeTable, weights: Array, direction: Direction, num_nodes: int) -> None:
    own_keys = edges.dst_keys if direction == "in" else edges.src_keys
    with np.errstate(over="ignore"):
        sums = np.bincount(own_keys, weights=weights, minlength=num_nodes)
    is_large = sums > MAX_SUM
    if is_large.any():
        key = int(np.argmax(is_large))
        raise SchemaError(
            f"{where}: the weights of the edges of {ends_word(direction)} {key} add up to {sums[key]:.4g}; "
            f"a sum must stay below {MAX_SUM:.4g}: divide them by a constant"
        )


def ends_word(direction: Direction) -> str:
    """Which end of an edge owns it, in words."""
    return "destination" if direction == "in" else "source"
