"""Makes the classes of the protocol messages that TF-GNN's files hold.

``protos/*.proto`` declares the messages under the names and numbers of TensorFlow's and TF-GNN's own, so bytes and text
go both ways. The classes live in a pool of their own: a process may load TensorFlow too.

``protos/messages.binpb`` is made of the declarations, in ``protos/`` and with grpcio-tools installed, by
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
    """The pool of descriptors that all messages here are of."""
    compiled = resources.files("hopstream.tfgnn").joinpath("protos", "messages.binpb").read_bytes()
    made = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        made.Add(file)
    return made


@functools.cache
def message_class(name: str) -> Any:
    """The class of a message, by its full name."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


@functools.cache
def enum_names(name: str) -> dict[int, str]:
    """The names of an enumeration's values by number."""
    return {value.number: value.name for value in pool().FindEnumTypeByName(name).values}
