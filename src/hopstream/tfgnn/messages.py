"""Which protocol messages do TF-GNN's files hold, and under which numbers are their fields?

The messages are declared here, field by field, and made into classes when the first of them is asked for. They have the
names and numbers of TensorFlow's and TF-GNN's own, so bytes and text go both ways, but live in a pool of their own: a
process may load TensorFlow too.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

GRAPH_SCHEMA = "tensorflow_gnn.GraphSchema"
SAMPLING_SPEC = "tensorflow_gnn.sampler.SamplingSpec"
EXAMPLE = "tensorflow.Example"

_TENSORFLOW = """
enum DataType
  DT_INVALID 0, DT_FLOAT 1, DT_DOUBLE 2, DT_INT32 3, DT_UINT8 4, DT_INT16 5, DT_INT8 6, DT_STRING 7, DT_COMPLEX64 8
  DT_INT64 9, DT_BOOL 10, DT_QINT8 11, DT_QUINT8 12, DT_QINT32 13, DT_BFLOAT16 14, DT_QINT16 15, DT_QUINT16 16
  DT_UINT16 17, DT_COMPLEX128 18, DT_HALF 19, DT_RESOURCE 20, DT_VARIANT 21, DT_UINT32 22, DT_UINT64 23
message TensorShapeProto
  repeated TensorShapeProto.Dim dim 2
  optional bool unknown_rank 3
message TensorShapeProto.Dim
  optional int64 size 1
  optional string name 2
message BytesList
  repeated bytes value 1
message FloatList
  packed float value 1
message Int64List
  packed int64 value 1
message Feature
  oneof.kind BytesList bytes_list 1
  oneof.kind FloatList float_list 2
  oneof.kind Int64List int64_list 3
message Features
  map Feature feature 1
message Example
  optional Features features 1
"""

_TENSORFLOW_GNN = """
enum SetType
  UNSPECIFIED 0, CONTEXT 1, NODES 2, EDGES 3
enum GraphType
  UNDEFINED 0, FULL 1, SUBGRAPH 2, RANDOM_WALKS 3
message GraphSchema
  optional Context context 1
  map NodeSet node_sets 2
  map EdgeSet edge_sets 3
  optional OriginInfo info 4
message Feature
  optional string description 1
  optional tensorflow.DataType dtype 2
  optional tensorflow.TensorShapeProto shape 3
  optional string source 4
message BigQuery
  oneof.source BigQuery.TableSpec table_spec 1
  oneof.source string sql 2
  optional BigQuery.ReadMethod read_method 3
  optional bool reshuffle 4
message BigQuery.TableSpec
  optional string project 1
  optional string dataset 2
  optional string table 3
enum BigQuery.ReadMethod
  UNSPECIFIED 0, EXPORT 1, DIRECT_READ 2
message Metadata
  repeated Metadata.KeyValue extra 1
  optional string filename 2
  optional int64 cardinality 3
  optional BigQuery bigquery 4
message Metadata.KeyValue
  optional string key 1
  optional string value 2
message Context
  map Feature features 1
  optional Metadata metadata 2
message NodeSet
  optional string description 1
  map Feature features 2
  repeated string context 3
  optional Metadata metadata 4
message EdgeSet
  optional string description 1
  map Feature features 2
  optional string source 3
  optional string target 4
  repeated string context 5
  optional Metadata metadata 6
message OriginInfo
  optional GraphType graph_type 1
  repeated string root_set 2
"""

_SAMPLER = """
enum SamplingStrategy
  TOP_K 0, RANDOM_UNIFORM 1, RANDOM_WEIGHTED 2, LATEST_K 3
message SamplingSpec
  oneof.seed_type SeedOp seed_op 1
  repeated SamplingOp sampling_ops 2
  oneof.seed_type SymmetricLinkSeedOp symmetric_link_seed_op 5
message SeedOp
  optional string op_name 1
  optional string node_set_name 2
message SymmetricLinkSeedOp
  optional string op_name 1
message SamplingOp
  optional string op_name 1
  repeated string input_op_names 2
  optional string edge_set_name 3
  optional int32 sample_size 4
  optional SamplingStrategy strategy 5
"""

_FILES = (
    ("hopstream/tensorflow.proto", "tensorflow", _TENSORFLOW),
    ("hopstream/tensorflow_gnn.proto", "tensorflow_gnn", _TENSORFLOW_GNN),
    ("hopstream/sampler.proto", "tensorflow_gnn.sampler", _SAMPLER),
)
_FieldProto = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int32": _FieldProto.TYPE_INT32, "int64": _FieldProto.TYPE_INT64, "bool": _FieldProto.TYPE_BOOL,
    "string": _FieldProto.TYPE_STRING, "bytes": _FieldProto.TYPE_BYTES, "float": _FieldProto.TYPE_FLOAT,
}  # fmt: skip


@functools.cache
def pool() -> Any:
    """The pool of descriptors that all messages here are of."""
    made = descriptor_pool.DescriptorPool()
    for name, package, text in _FILES:
        made.Add(_file_of(name, package, text))
    return made


@functools.cache
def message_class(name: str) -> Any:
    """The class of a message, by its full name."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


@functools.cache
def enum_names(name: str) -> dict[int, str]:
    """The names of an enumeration's values by number."""
    return {value.number: value.name for value in pool().FindEnumTypeByName(name).values}


def _file_of(name: str, package: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto2")
    file.dependency.extend(other for other, _, _ in _FILES[: [f[0] for f in _FILES].index(name)])
    enums = {match[1] for match in re.finditer(r"^enum (\S+)$", text, re.M)} | {"tensorflow.DataType"}
    made: dict[str, Any] = {}
    for line in text.strip().splitlines():
        words = line.split()
        if not line.startswith(" "):
            holder, _, own = words[1].rpartition(".")
            places = made[holder] if holder else file
            if words[0] == "enum":
                entry = places.enum_type.add(name=own)
            else:
                entry = (places.nested_type if holder else places.message_type).add(name=own)
            made[words[1]] = entry
        elif isinstance(entry, descriptor_pb2.EnumDescriptorProto):
            for value in line.split(","):
                _add_values(entry, value.split())
        else:
            _add_field(entry, words, package, enums)
    return file


def _add_values(enum: descriptor_pb2.EnumDescriptorProto, words: list[str]) -> None:
    enum.value.add(name=words[0], number=int(words[1]))


def _add_field(message: Any, words: list[str], package: str, enums: set[str]) -> None:
    label, kind, name, number = words
    field = message.field.add(name=name, number=int(number), label=_FieldProto.LABEL_OPTIONAL)
    if label in ("repeated", "packed", "map"):
        field.label = _FieldProto.LABEL_REPEATED
    if label == "packed":
        field.options.packed = True
    if label.startswith("oneof."):
        choice = label.removeprefix("oneof.")
        if choice not in [other.name for other in message.oneof_decl]:
            message.oneof_decl.add(name=choice)
        field.oneof_index = [other.name for other in message.oneof_decl].index(choice)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    full = kind if kind.startswith("tensorflow.") else f"{package}.{kind}"
    if label == "map":
        entry = message.nested_type.add(name=name.title().replace("_", "") + "Entry")
        entry.options.map_entry = True
        _add_field(entry, ["optional", "string", "key", "1"], package, enums)
        _add_field(entry, ["optional", kind, "value", "2"], package, enums)
        full = f"{package}.{message.name}.{entry.name}"  # no message with a map is held by another
    field.type = _FieldProto.TYPE_ENUM if kind in enums else _FieldProto.TYPE_MESSAGE
    field.type_name = f".{full}"
