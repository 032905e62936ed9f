"""Classes of the protobuf messages in TF-GNN's files.

``protos/*.proto`` declares the messages with the names and field numbers of TensorFlow and TF-GNN, so bytes and text
are compatible. The classes are in a separate descriptor pool, so that a process can also load TensorFlow.

To compile ``protos/messages.binpb`` from the declarations, install grpcio-tools and run in ``protos/``:
``python -m grpc_tools.protoc -I . --descriptor_set_out=messages.binpb tensorflow.proto tensorflow_gnn.proto
sampler.proto``.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

GRAPH_SCHEMA = "tensorflow_gnn.GraphSchema"
SAMPLING_SPEC = "tensorflow_gnn.sampler.SamplingSpec"
EXAMPLE = "tensorflow.Example"


@functools.cache
def pool() -> Any:
    """Return the descriptor pool of the messages."""
    compiled = resources.files("hopstream.tfgnn").joinpath("protos", "messages.binpb").read_bytes()
    made = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        made.Add(file)
    return made


@functools.cache
def message_class(name: str) -> Any:
    """Return the class of a message, by its full name."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


@functools.cache
def enum_names(name: str) -> dict[int, str]:
    """Return the names of an enumeration's values by number."""
    return {value.number: value.name for value in pool().FindEnumTypeByName(name).values}
