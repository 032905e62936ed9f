"""Makes graphs from SciPy's sparse matrices, in memory or in files of ``scipy.sparse.save_npz``.

Matrices are recognized by their methods and files by the names of their arrays, so SciPy is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import FormatError, SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest.from_arrays import Columns, graph_from_arrays
from hopstream.schema import EDGE, NODE, EdgeType, is_edge_type, type_label

WEIGHT = "weight"
FILE_ARRAYS = frozenset({"format", "shape", "data"})
"""The arrays that every file of ``save_npz`` has."""


@runtime_checkable
class SparseLike(Protocol):
    """A SciPy sparse matrix or array of two dimensions, in any format."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and of columns."""
        ...

    @property
    def nnz(self) -> int:
        """Number of stored values."""
        ...

    def tocoo(self) -> Any:
        """Convert to COO, with ``row``, ``col`` and ``data``."""
        ...


def graph_from_scipy(
    matrices: SparseLike | Mapping[EdgeType, SparseLike], *, weight: str | None = WEIGHT,
    node_features: Mapping[str, Columns] | Columns | None = None,
    splits: Mapping[str, Columns] | Columns | None = None,
) -> Graph:  # fmt: skip
    """Make a graph from sparse matrices.

    A stored value at row ``u`` and column ``v`` is an edge from ``u`` to ``v``. Stored zeros are edges, too, and
    duplicate entries are parallel edges; call ``eliminate_zeros`` or ``sum_duplicates`` first to avoid that. Edges are
    in the order of ``tocoo()``.

    Args:
        matrices: One square matrix. For graphs with types, edge type to a matrix whose rows are the source nodes and
            whose columns are the destination nodes.
        weight: Name of the edge feature for the values; None drops the values.
        node_features: As in ``graph_from_arrays``.
        splits: As in ``graph_from_arrays``.

    Returns:
        A graph that passed ``Graph.check``.

    Raises:
        SchemaError: A value is not a sparse matrix, a matrix is not square although both ends are of one type, two
            matrices disagree on the number of nodes of a type, or a feature or split does not fit.
        IdRangeError: A split names a node that does not exist.
    """
    is_typed = isinstance(matrices, Mapping) and not isinstance(matrices, SparseLike)  # SciPy's DOK format is a dict
    by_type = cast(Mapping[EdgeType, SparseLike], matrices if is_typed else {EDGE: matrices})
    num_nodes: dict[str, int] = {}
    ends: dict[EdgeType, tuple[Array, Array]] = {}
    values: dict[EdgeType, dict[str, Array]] = {}
    for edge_type, matrix in by_type.items():
        if not is_edge_type(edge_type):
            raise SchemaError(f"edge type {edge_type!r} must be a (source, relation, destination) tuple of names")
        label = type_label(edge_type)
        if not isinstance(matrix, SparseLike) or isinstance(matrix, type) or len(matrix.shape) != 2:
            raise SchemaError(f"{label} is {type(matrix).__name__}; wanted a sparse matrix of two dimensions")
        for node_type, count in zip((edge_type[0], edge_type[2]), matrix.shape, strict=True):
            if num_nodes.setdefault(node_type, count) != count:
                raise SchemaError(
                    f"{label} is a matrix {list(matrix.shape)}, but {node_type!r} has {num_nodes[node_type]} nodes in "
                    "its other dimension or an earlier matrix; give matrices that agree"
                )
        entries = _entries(label, matrix)
        ends[edge_type] = (entries.row, entries.col)
        values[edge_type] = {} if weight is None else {weight: np.asarray(entries.data)}
    if is_typed:
        return graph_from_arrays(
            ends, num_nodes=num_nodes, node_features=node_features, edge_features=values, splits=splits
        )
    return graph_from_arrays(
        ends[EDGE], num_nodes=num_nodes[NODE], node_features=node_features, edge_features=values[EDGE], splits=splits
    )


def _entries(label: str, matrix: SparseLike) -> Any:
    """Return the stored values with their rows and columns.

    Raises:
        SchemaError: The matrix is inconsistent; SciPy would read out of bounds.
    """
    try:
        if callable(check := getattr(matrix, "check_format", None)):
            check()
        return matrix.tocoo()
    except ValueError as error:
        raise SchemaError(f"{label} is a matrix {list(matrix.shape)} that contradicts itself ({error})") from error


def graph_from_sparse_file(where: object, arrays: Mapping[str, Array]) -> Graph:
    """Make a graph from the arrays of ``scipy.sparse.save_npz``.

    The matrix must be square and in CSR, CSC or COO format.

    Args:
        where: The file, for messages.
        arrays: The arrays of the file, by name.

    Raises:
        FormatError: The matrix is of another format, or its arrays contradict each other.
        SchemaError: The matrix is not square.
        IdRangeError: An entry is out of range.
    """
    kind, shape, data = (arrays[name] for name in ("format", "shape", "data"))
    text = "".join(kind.reshape(-1)[:1].astype(str).tolist())
    wanted = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("row", "col")}.get(text, ())
    if not wanted or any(name not in arrays for name in wanted) or shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise FormatError(f"{where} holds a {text} matrix of {sorted(arrays)}; wanted csr, csc or coo: m.tocsr()")
    first, second = (arrays[name] for name in wanted)
    if text != "coo":
        first, second = _unpacked(where, first, second, int(shape[int(text == "csc")]), is_csc=text == "csc")
    if not first.shape == second.shape == data.shape:
        raise FormatError(f"{where}: {wanted[0]}, {wanted[1]} and data contradict each other; write it again")
    return graph_from_scipy(_Entries(row=first, col=second, data=data, shape=tuple(shape.tolist())))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Entries:
    """A sparse matrix in COO format."""

    row: Array
    col: Array
    data: Array
    shape: tuple[int, ...]

    @property
    def nnz(self) -> int:
        return len(self.data)

    def tocoo(self) -> _Entries:
        return self


def _unpacked(where: object, indptr: Array, indices: Array, size: int, *, is_csc: bool) -> tuple[IntArray, IntArray]:
    """Return rows and columns of the entries of a CSR or CSC matrix, in stored order."""
    is_whole = indptr.shape == (size + 1,) and indptr.dtype.kind in "iu"
    if not is_whole or indptr[0] != 0 or indptr[-1] != len(indices) or (indptr[1:] < indptr[:-1]).any():
        raise FormatError(f"{where}: indptr does not fit shape and indices; write it again")
    packed = np.repeat(np.arange(size), np.diff(indptr).astype(np.int64))
    return (indices, packed) if is_csc else (packed, indices)
