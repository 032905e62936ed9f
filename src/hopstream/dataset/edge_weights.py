"""Weights that edges can be drawn by, and what is stored so that a draw need not add them up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.checks import did_you_mean
from hopstream.dataset.book import ends_of
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.times import row_order
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.kernels.alias import build_aliases
from hopstream.kernels.rows import sum_rows
from hopstream.schema import Direction, GraphSchema, type_label

CHUNK_ROWS = 1 << 20
MAX_SUM = float(np.finfo(np.float64).max) / 2
"""What the weights of one node's edges may add up to, in whichever order they are added."""

MAX_INTEGER = 1 << 53
"""Weights are compared as float64, which has all integers up to here."""


def weight_sums(indptr: IntArray, weights: Array, places: Array) -> Iterator[NDArray[np.float64]]:
    """float64 blocks of the running sums of weights inside each row.

    Args:
        indptr: int64[rows + 1], from 0.
        weights: real[num_edges], the weight of each edge (by key, or by its place in a run).
        places: integer[indptr[-1]], where ``weights`` has that of each edge of the rows, in stored order.
    """
    for offsets, values in _weights_of_rows(indptr, weights, places):
        yield row_sums(offsets, values)


def row_sums(offsets: IntArray, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[n], the running sums of weights inside each row; see ``sum_rows``."""
    sums = np.empty(len(weights), np.float64)
    sum_rows(offsets, weights, sums)
    return sums


def weight_aliases(indptr: IntArray, weights: Array, places: Array) -> Iterator[NDArray[np.uint64]]:
    """uint64 blocks of the alias tables of rows; arguments as of ``weight_sums``."""
    for offsets, values in _weights_of_rows(indptr, weights, places):
        yield row_aliases(offsets, values)


def row_aliases(offsets: IntArray, weights: NDArray[np.float64]) -> NDArray[np.uint64]:
    """uint64[n], the alias table of each row; see ``build_aliases``."""
    most = int(np.diff(offsets).max(initial=0))
    entries = np.empty(len(weights), np.uint64)
    build_aliases(offsets, weights, np.empty(most), np.empty(most, np.uint32), entries)
    return entries


def weight_orders(indptr: IntArray, weights: Array, places: Array) -> Iterator[Array]:
    """uint32 blocks of the positions inside each row, largest weight first; arguments as of ``weight_sums``."""
    for offsets, values in _weights_of_rows(indptr, weights, places):
        yield row_order(offsets, values, is_descending=True)


def _weights_of_rows(indptr: IntArray, weights: Array, places: Array) -> Iterator[tuple[IntArray, NDArray[np.float64]]]:
    for first, last, start, stop in row_chunks(indptr):
        yield indptr[first : last + 1] - start, weights[places[start:stop]].astype(np.float64, copy=False)


def check_weights(graph: Graph, weight_attr: str, directions: tuple[Direction, ...]) -> None:
    """Refuse columns that edges cannot be drawn by.

    Raises:
        UnknownNameError: No edge type has the feature.
        SchemaError: A type's feature of this name is not one real number per row; a weight is negative, infinite, not
            a number, or an integer above 2**53; all weights of a type are 0; or those of one
            node add up to more than a float64 holds.
    """
    check_weight_schema(graph.schema, weight_attr)
    for edge_type, edges in graph.edges.items():
        weights = edges.features.get(weight_attr)
        if not isinstance(weights, np.ndarray):
            continue
        where = f"{type_label(edge_type)}.{weight_attr}"
        total = 0.0
        for start in range(0, len(weights), CHUNK_ROWS):
            total += check_weight_values(where, start, weights[start : start + CHUNK_ROWS])
        check_weight_total(where, len(weights), total)
        if total > MAX_SUM:
            for direction in directions:
                num_nodes = graph.nodes[ends_of(edge_type, direction)[0]].num_nodes
                _check_sums(where, edges, weights, direction, num_nodes)


def check_weight_schema(schema: GraphSchema, weight_attr: str) -> None:
    """Refuse types of columns that edges cannot be drawn by; see ``check_weights``."""
    if not any(weight_attr in features for features in schema.edges.values()):
        known = {type_label(t): list(features) for t, features in schema.edges.items()}
        raise UnknownNameError(
            f"weight_attr is {weight_attr!r}; no edge type has such a feature; "
            f"known: {known}{did_you_mean(weight_attr, {name for of in schema.edges.values() for name in of})}"
        )
    for edge_type, features in schema.edges.items():
        feature = features.get(weight_attr)
        if feature is not None and not (
            feature.is_fixed_width and not feature.shape and feature.numpy_dtype.kind in "iuf"
        ):
            raise SchemaError(
                f"{type_label(edge_type)}.{weight_attr} is {feature}; weights are one integer or float per edge: "
                "convert it, or rename it"
            )


def check_weight_values(where: str, first_row: int, weights: Array) -> float:
    """Check each weight of some rows of a column, from ``first_row``; return their sum, which may be infinite.

    Raises:
        SchemaError: One is negative, infinite, not a number, or an integer above 2**53.
    """
    values = weights.astype(np.float64)
    if weights.dtype.kind in "iu" and (is_large := weights > MAX_INTEGER).any():
        row = int(np.argmax(is_large))
        raise SchemaError(
            f"{where}[{first_row + row}] is {weights[row]}; integer weights go up to 2^53 = {MAX_INTEGER}, above which "
            "float64 cannot tell them apart: divide them by a constant, or convert them to float64"
        )
    is_wrong = ~((values >= 0) & np.isfinite(values))
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise SchemaError(
            f"{where}[{first_row + row}] is {weights[row]}; weights are finite numbers that are 0 or more"
        )
    with np.errstate(over="ignore"):
        return float(values.sum())


def check_weight_total(where: str, num_edges: int, total: float) -> None:
    """Refuse weights that are all 0.

    Raises:
        SchemaError: They are.
    """
    if num_edges and total == 0:
        raise SchemaError(f"{where} is 0 for all {num_edges} edges, so none could be drawn; leave weight_attr out")


def _check_sums(where: str, edges: EdgeTable, weights: Array, direction: Direction, num_nodes: int) -> None:
    own_keys = edges.dst_keys if direction == "in" else edges.src_keys
    with np.errstate(over="ignore"):
        sums = np.bincount(own_keys, weights=weights, minlength=num_nodes)
    is_large = sums > MAX_SUM
    if is_large.any():
        key = int(np.argmax(is_large))
        raise large_sum(where, direction, key, float(sums[key]))


def large_sum(where: str, direction: Direction, key: int, total: float) -> SchemaError:
    """What is raised where the weights of one node's edges add up to more than a float64 holds."""
    return SchemaError(
        f"{where}: the weights of the edges of {ends_word(direction)} {key} add up to {total:.4g}; "
        f"a sum must stay below {MAX_SUM:.4g}: divide them by a constant"
    )


def ends_word(direction: Direction) -> str:
    """Which end of an edge owns it, in words."""
    return "destination" if direction == "in" else "source"
