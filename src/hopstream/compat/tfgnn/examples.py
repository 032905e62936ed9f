"""Reader and writer of graph tensors as ``tf.Example`` messages and TFRecord files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.compat.tfgnn.graph_tensor import GraphTensor
from hopstream.compat.tfgnn.specs import CONTEXT, EDGES, NODES, GraphTensorSpec, Shape, TensorSpec
from hopstream.errors import SchemaError
from hopstream.schema import STRING
from hopstream.tfgnn import tfrecord
from hopstream.tfgnn.graph_tensor import SIZE, SOURCE, TARGET, decode_graph, decode_graphs, encode_graphs
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.uris import local_path

Example = message_class(EXAMPLE)
"""Class of ``tf.Example`` messages, with the fields and bytes of ``tf.train.Example``."""


def write_example(graph: GraphTensor, prefix: str | None = None) -> Any:
    """Convert a graph tensor to an ``Example`` message.

    Args:
        graph: One graph, of any number of components.
        prefix: Prefix of every feature's name.

    Raises:
        SchemaError: ``graph`` is a batch.
    """
    check_scalar(graph, "write_example")
    return Example.FromString(encode_graphs(graph.pieces(), prefix=prefix or "")[0])


def parse_single_example(
    spec: GraphTensorSpec, serialized: Any, prefix: str | None = None, validate: bool = True
) -> GraphTensor:
    """Parse a graph tensor from the bytes of an ``Example``.

    Args:
        spec: Expected sets and features; other features of the message are ignored.
        serialized: Bytes, or the message itself.
        prefix: Prefix of every feature's name.
        validate: No effect, as in TF-GNN's signature: values are always checked.

    Raises:
        FormatError: The bytes are no ``Example``, or contradict the spec or each other; the error names the feature.
        SchemaError: ``spec`` describes a batch.
    """
    check_scalar(spec, "parse_single_example")
    pieces = decode_graph(
        _bytes_of(serialized), spec.graph_spec(), num_components=spec.num_components, prefix=prefix or ""
    )
    return GraphTensor.of_pieces(pieces, indices_dtype=spec.indices_dtype)


def parse_example(
    spec: GraphTensorSpec, serialized: Any, prefix: str | None = None, validate: bool = True
) -> GraphTensor:
    """Parse a batch of graph tensors from the bytes of several ``Example`` messages.

    Args:
        spec: Expected sets and features of each graph; other features are ignored.
        serialized: Bytes of each message in a list, a tuple or an object array, or the messages themselves.
        prefix: Prefix of every feature's name.
        validate: No effect, as in TF-GNN's signature: values are always checked.

    Raises:
        FormatError: Bytes are no ``Example``, or contradict the spec or each other; the error names the feature.
        SchemaError: Graphs have different numbers of components, or ``spec`` describes a batch.
    """
    check_scalar(spec, "parse_example")
    if isinstance(serialized, str | bytes | bytearray | memoryview):
        raise SchemaError("parse_example takes a list of messages; use parse_single_example for one")
    records = [_bytes_of(one) for one in serialized]
    pieces = decode_graphs(records, spec.graph_spec(), num_components=spec.num_components, prefix=prefix or "")
    return GraphTensor.of_pieces(pieces, is_batch=True, indices_dtype=spec.indices_dtype)


def check_scalar(graph: GraphTensor | GraphTensorSpec, what: str) -> None:
    """Refuse a batch where a single graph is required.

    Raises:
        SchemaError: ``graph`` is a batch.
    """
    if graph.rank:
        raise SchemaError(f"{what} takes one graph, got a batch; call merge_batch_to_components first")


def _bytes_of(serialized: Any) -> bytes:
    if isinstance(serialized, np.ndarray) and serialized.dtype == object and not serialized.ndim:
        serialized = serialized.item()
    if hasattr(serialized, "SerializeToString"):
        return bytes(serialized.SerializeToString())
    if not isinstance(serialized, bytes | bytearray | memoryview):
        remedy = "; arrays of dtype S cut zeros off, use dtype object" if isinstance(serialized, np.ndarray) else ""
        raise SchemaError(f"a message is {type(serialized).__name__}; wanted bytes{remedy}")
    return bytes(serialized)


@dataclass(frozen=True, slots=True)
class RowLengths:
    """Ragged dimension with row lengths in another feature; same as ``tf.io.RaggedFeature.RowLengths``."""

    key: str


@dataclass(frozen=True, slots=True)
class UniformRowLength:
    """Dimension of one size; same as ``tf.io.RaggedFeature.UniformRowLength``."""

    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedFeature:
    """Format of a feature with any number of items in an ``Example``; fields of ``tf.io.RaggedFeature``.

    Attributes:
        dtype: ``int64``, ``float32`` or ``string``, the dtypes of lists in a message.
        value_key: The feature with the values.
        partitions: The dimensions of one item's value, outermost first.
        row_splits_dtype: int32 or int64.
        validate: Whether to check values.
    """

    dtype: str
    value_key: str
    partitions: tuple[RowLengths | UniformRowLength, ...] = ()
    row_splits_dtype: str = "int32"
    validate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLenFeature:
    """Format of a feature of a known shape in an ``Example``; fields of ``tf.io.FixedLenFeature``.

    Attributes:
        shape: Shape of all values together.
        dtype: ``int64``, ``float32`` or ``string``, the dtypes of lists in a message.
        default_value: Value of a missing feature; zeros for sizes.
    """

    shape: tuple[int, ...]
    dtype: str
    default_value: tuple[int, ...] | None = None


IOFeature = FixedLenFeature | RaggedFeature


def get_io_spec(spec: GraphTensorSpec, prefix: str | None = None, validate: bool = True) -> dict[str, IOFeature]:
    """Return the format of each feature of a spec in an ``Example``.

    Args:
        spec: A graph's spec.
        prefix: Prefix of every feature's name.
        validate: Value of ``validate`` in the records.

    Returns:
        A record per feature, by its name in the message. Classes and fields have the names of ``tf.io``.

    Raises:
        SchemaError: ``spec`` describes a batch.
    """
    check_scalar(spec, "get_io_spec")
    fields: dict[str, TensorSpec] = {f"{CONTEXT}/{n}": of for n, of in spec.context_spec.features_spec.items()}
    for name, nodes in spec.node_sets_spec.items():
        key = f"{NODES}/{name}."
        fields |= {key + SIZE: nodes.sizes_spec, **{key + n: of for n, of in nodes.features_spec.items()}}
    for name, edges in spec.edge_sets_spec.items():
        key, index = f"{EDGES}/{name}.", edges.adjacency_spec.index_spec
        fields |= {key + SIZE: edges.sizes_spec, key + SOURCE: index, key + TARGET: index}
        fields |= {key + n: of for n, of in edges.features_spec.items()}
    splits = spec.indices_dtype.name
    found: dict[str, IOFeature] = {}
    for name, of in fields.items():
        key = f"{prefix or ''}{name}"
        found[key] = _fixed(key, of.shape, of.dtype) or _ragged(key, of, splits, validate)
    return found


def _list_dtype(dtype: str) -> str:
    if dtype in (STRING, "bfloat16"):
        return STRING if dtype == STRING else "float32"
    return "float32" if np.dtype(dtype).kind == "f" else "int64"


def _fixed(key: str, shape: Shape, dtype: str) -> FixedLenFeature | None:
    sizes = tuple(size for size in shape if size is not None)
    if len(sizes) < len(shape):
        return None
    default = (0,) * sizes[0] if key.endswith(SIZE) else None
    return FixedLenFeature(shape=sizes, dtype=_list_dtype(dtype), default_value=default)


def _ragged(key: str, spec: TensorSpec, splits: str, validate: bool) -> RaggedFeature:
    partitions = tuple(
        RowLengths(f"{key}.d{number}") if size is None else UniformRowLength(size)
        for number, size in enumerate(spec.shape[1:], 1)
    )
    return RaggedFeature(
        dtype=_list_dtype(spec.dtype), value_key=key, partitions=partitions, row_splits_dtype=splits, validate=validate
    )


class RecordWriter(tfrecord.RecordWriter):
    """Writer of records to one file, like ``tf.io.TFRecordWriter``. Use it as a context, or ``close`` it."""

    def __init__(self, path: str | Path, *, is_compressed: bool = False) -> None:
        """Create the file, or truncate an existing one.

        Raises:
            OSError: The file cannot be written.
        """
        super().__init__(local_path(path), is_compressed=is_compressed)


def read_records(name: str | Path) -> Iterator[bytes]:
    """Yield the records of a file, of shards ``name@15``, or of a pattern such as ``name-*``, in order.

    Raises:
        FormatError: A file is missing, truncated, or no TFRecord file.
        ChecksumError: A record does not match its checksum.
        OSError: A file cannot be read.
    """
    for path in tfrecord.files_of(name):
        yield from tfrecord.read_records(path)
