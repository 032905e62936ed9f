"""Converts users' arrays, tensors, lists and strings to columns or keys, and checks names of features.

Copies are avoided, so a graph may share memory with its inputs, memory maps included. Tensors are recognized by their
methods, because this package does not import torch.

Batches have attributes of their own, whose names features must not have. Unigraphs and chunked graphs are exempt,
because their users export them for DGL or TF-GNN.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.errors import SchemaError, quoted
from hopstream.graph.graph import Graph
from hopstream.ingest.raw_tables.metadata import TablesMetadata
from hopstream.schema import (
    ATTACHED_ATTRIBUTES,
    EDGE,
    EDGE_ATTRIBUTES,
    NODE,
    NODE_ATTRIBUTES,
    NUMERIC_DTYPES,
    PPR_ATTRIBUTES,
    EdgeType,
    type_label,
)

LOG = logging.getLogger(__name__)


def check_batch_names(features: Mapping[str | EdgeType, Iterable[str]], *, is_exempt: bool = False) -> None:
    """Refuse names of features that every batch uses itself.

    Names that only some loaders use cause a warning in the log.

    Args:
        features: Node type or edge type to names of features.
        is_exempt: Allow all names, and log a warning for those that would be refused.

    Raises:
        SchemaError: A feature has the name of an attribute of every batch.
    """
    is_untyped = features.keys() <= {NODE, EDGE}
    attached: list[str] = []
    for entity, names in features.items():
        own = NODE_ATTRIBUTES if isinstance(entity, str) else EDGE_ATTRIBUTES
        hidden = sorted((NODE_ATTRIBUTES | EDGE_ATTRIBUTES if is_untyped else own).intersection(names))
        if hidden and not is_exempt:
            where = "the graph" if is_untyped else type_label(entity)
            raise SchemaError(
                f"{where} has a feature {hidden[0]!r}, which is the name of an attribute of every batch; rename or "
                "remove it"
            )
        some = sorted((ATTACHED_ATTRIBUTES | PPR_ATTRIBUTES).intersection(names))
        attached += [f"{type_label(entity)}.{name}" for name in (*hidden, *some)]
    if attached:
        LOG.warning(
            "features %s have the names of attributes of PyG batches, so loaders of these batches refuse them; leave "
            "them out with node_features or edge_features of the loader, or use collate='numpy'",
            ", ".join(attached),
        )


def check_graph(graph: Graph, *, is_exempt: bool = False) -> None:
    """Apply ``check_batch_names`` to the features of a graph.

    Raises:
        SchemaError: A feature has the name of an attribute of every batch.
    """
    features: dict[str | EdgeType, Iterable[str]] = {t: nodes.features for t, nodes in graph.nodes.items()}
    features |= {t: edges.features for t, edges in graph.edges.items()}
    check_batch_names(features, is_exempt=is_exempt)


def check_tables(
    metadata: TablesMetadata, *, keep_raw_ids: bool, leave_out: Collection[str] = (), is_exempt: bool = False
) -> None:
    """Apply ``check_batch_names`` to the features of tables that are not in ``leave_out``.

    Raises:
        SchemaError: A feature has the name of an attribute of every batch.
    """
    names: dict[str | EdgeType, list[str]] = {}
    for node_type, spec in metadata.nodes.items():
        raw_ids = [spec.id_column] if keep_raw_ids and spec.keeps_ids and spec.id_column is not None else []
        names[node_type] = [name for name in (*raw_ids, *spec.features) if f"{node_type}.{name}" not in leave_out]
    for edge_type, edges in metadata.edges.items():
        names[edge_type] = [name for name in edges.features if f"{type_label(edge_type)}.{name}" not in leave_out]
    check_batch_names(names, is_exempt=is_exempt)


MAX_KEY = np.iinfo(np.int64).max


@runtime_checkable
class TensorLike(Protocol):
    """A torch tensor, or another object that becomes an array by ``.detach().cpu().numpy()``."""

    def detach(self) -> Any:
        """Return the same values without a gradient."""
        ...

    def cpu(self) -> Any:
        """Return the same values in main memory."""
        ...


ColumnLike = Array | RaggedArray | TensorLike | Sequence[object]
"""Values that convert to a column: an array or tensor with a row dimension, ragged rows, a list of strings or arrays.

Objects that share memory by ``__dlpack__``, for example arrays of JAX, convert as well.
"""


def as_column(value: ColumnLike, where: str) -> Column:
    """Convert one value per row to a column.

    A list of arrays of one shape becomes a column of fixed width, a list of arrays of different lengths a ragged one.
    Times (datetime64) become int64 in their own unit since 1970.

    Args:
        value: Array, tensor, list, or ragged array.
        where: Name of the column in messages, for example ``paper.title``.

    Raises:
        SchemaError: The value has no rows, a dtype that cannot be stored, or a time that is missing (NaT).
    """
    if isinstance(value, RaggedArray):
        return RaggedArray(_storable(value.values, where), value.offsets, value.is_string)
    if isinstance(value, list | tuple):
        return _column_of_list(value, where)
    array = as_array(value, where)
    if array.ndim < 1:
        raise SchemaError(f"{where} is a scalar; a column has one value per row")
    if array.dtype.kind in "OUT":
        if array.ndim > 1:
            raise SchemaError(f"{where} is {array.dtype}{list(array.shape)}; a column holds one string per row")
        return _column_of_list(array.tolist(), where)
    return _storable(array, where)


def as_array(value: object, where: str) -> Array:
    """Return the values of a tensor or array-like, without a copy where possible.

    Raises:
        SchemaError: The value is neither, or it is a tensor whose dtype or layout numpy does not have.
    """
    if isinstance(value, np.ndarray):
        return _plain(value, where)
    if isinstance(value, TensorLike):
        try:
            return cast(Array, value.detach().cpu().numpy())
        except (TypeError, RuntimeError, NotImplementedError) as error:
            raise SchemaError(f"{where} is a tensor that numpy cannot hold ({error}); convert it first") from error
    is_arrow_time = str(getattr(value, "type", "")).startswith(("timestamp", "date"))  # which DLPack does not have
    if hasattr(value, "__dlpack__") and not is_arrow_time:
        try:
            return np.from_dlpack(cast(Any, value))
        except Exception as error:  # each library raises its own errors
            raise SchemaError(f"{where} is a {type(value).__name__} that numpy cannot share ({error}); copy it to main "
                              "memory, or convert it, first") from error  # fmt: skip
    if hasattr(value, "__array__"):
        return np.asarray(value)
    if hasattr(value, "tocoo"):
        raise SchemaError(f"{where} is a sparse matrix; make a graph of it with hopstream.graph.graph_from_scipy")
    raise SchemaError(
        f"{where} is {type(value).__name__}; give an array, a tensor, a RaggedArray, or a list of strings or arrays"
    )


def as_keys(value: ColumnLike, where: str) -> IntArray:
    """Convert any integers to int64[n], contiguous.

    Raises:
        SchemaError: The values are not integers of rank 1, or do not fit 63 bits.
    """
    if isinstance(value, RaggedArray):
        raise SchemaError(f"{where} is ragged; keys are integers of rank 1")
    array = _array_of_list(value, where) if isinstance(value, list | tuple) else as_array(value, where)
    if array.ndim != 1:
        raise SchemaError(f"{where} is {array.dtype}{list(array.shape)}; keys are integers of rank 1")
    if len(array) == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind == "b":
        raise SchemaError(f"{where} is bool[{len(array)}], a mask; give keys, such as np.flatnonzero(mask)")
    if array.dtype.kind not in "iu":
        raise SchemaError(
            f"{where} is {array.dtype}[{len(array)}]; keys are integers; check the values and use astype(int64)"
        )
    if array.dtype == np.uint64 and int(array.max()) > MAX_KEY:
        row = int(np.argmax(array > MAX_KEY))
        raise SchemaError(f"{where}[{row}] is {int(array[row])}; keys are below 2**63")
    return np.ascontiguousarray(array, np.int64)


def _storable(array: Array, where: str) -> Array:
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "M":
        return _times(native, where)
    if array.dtype.name not in NUMERIC_DTYPES:
        remedy = "; convert spans of time with astype('int64')" if array.dtype.kind == "m" else ""
        raise SchemaError(f"{where} is {array.dtype}{list(array.shape)}, which cannot be stored{remedy}")
    return native


def _times(array: Array, where: str) -> Array:
    """Return datetime64 values as int64 in their unit since 1970, a view."""
    is_missing = np.isnat(array)
    if is_missing.any():
        row = int(np.argwhere(is_missing)[0][0])
        raise SchemaError(f"{where}[{row}] is NaT; give every row a time, or leave such rows out")
    if np.datetime_data(array.dtype)[0] == "generic":
        raise SchemaError(f"{where} is {array.dtype}, which has no unit; convert it, for example to datetime64[s]")
    return array.view(np.int64)


def _plain(array: Array, where: str) -> Array:
    """Return a masked array or matrix as a plain array.

    Other arrays, memory maps included, stay as they are.
    """
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            raise SchemaError(f"{where} has masked values; fill them first: array.filled(value)")
        return cast(Array, array.data)
    return np.asarray(array) if isinstance(array, np.matrix) else array


def _column_of_list(values: Sequence[Any], where: str) -> Column:
    if not values:
        raise SchemaError(f"{where} is an empty list, which has no dtype; give an empty array")
    try:
        if any(isinstance(value, str) for value in values):
            return RaggedArray.from_strings(values)
        rows = [as_array(value, where) if isinstance(value, TensorLike) else value for value in values]
        if _has_unequal_rows(rows):
            return RaggedArray.from_rows(_rows_of_one_dtype(rows, where))
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from error
    return _storable(_array_of_list(rows, where), where)


def _has_unequal_rows(rows: Sequence[Any]) -> bool:
    lengths = {len(row) if isinstance(row, list | tuple) or np.ndim(row) else -1 for row in rows}
    return len(lengths) > 1 and -1 not in lengths


def _rows_of_one_dtype(rows: Sequence[Any], where: str) -> list[Array]:
    """Convert rows to arrays; Python lists, which have no dtype, get the dtype that holds all rows."""
    arrays = [_array_of_list(row, where) if isinstance(row, list | tuple) else _storable(row, where) for row in rows]
    filled = [array for array in arrays if len(array)]
    dtype, tail = np.result_type(*filled), filled[0].shape[1:]
    for position, row in enumerate(rows):
        if isinstance(row, list | tuple):
            arrays[position] = arrays[position].astype(dtype) if len(row) else np.empty((0, *tail), dtype)
    return arrays


def _array_of_list(values: Sequence[Any], where: str) -> Array:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise SchemaError(f"{where} is a list that is not an array ({error})") from error
    if array.dtype == np.float64 and values and all(isinstance(value, int | np.integer) for value in values):
        try:  # numpy makes floats of integers if one is above 2**63, and would round them
            return np.array([int(value) for value in values], np.uint64)
        except OverflowError as error:
            raise SchemaError(f"{where} has integers that fit neither int64 nor uint64") from error
    if array.dtype.kind not in "biufcM":
        row = next((i for i, v in enumerate(values) if np.ndim(v) or np.asarray(v).dtype.kind not in "biufcM"), 0)
        raise SchemaError(f"{where}: row {row} is {type(values[row]).__name__} {quoted(values[row])}, not a number")
    return array
