"""Names of ``tensorflow_gnn``, without TensorFlow.

Write ``import hopstream.compat.tfgnn as tfgnn`` in place of ``import tensorflow_gnn as tfgnn``. Tensors are numpy
arrays, or ``FeatureValues`` if sizes vary. A missing name raises an error with the reason.
"""

from __future__ import annotations

from typing import Any

from hopstream.compat.tfgnn import sampler
from hopstream.compat.tfgnn.examples import (
    Example,
    FixedLenFeature,
    RaggedFeature,
    RecordWriter,
    RowLengths,
    UniformRowLength,
    get_io_spec,
    parse_example,
    parse_single_example,
    read_records,
    write_example,
)
from hopstream.compat.tfgnn.graph_tensor import GraphTensor, get_homogeneous_node_and_edge_set_name, homogeneous
from hopstream.compat.tfgnn.pieces import Adjacency, Context, EdgeSet, Field, NodeSet, ragged_constant
from hopstream.compat.tfgnn.random_graphs import random_graph_tensor
from hopstream.compat.tfgnn.readouts import (
    add_readout_from_first_node,
    context_readout_into_feature,
    gather_first_node,
    structured_readout,
    structured_readout_into_feature,
    validate_graph_tensor_for_readout,
    validate_graph_tensor_spec_for_readout,
)
from hopstream.compat.tfgnn.schemas import (
    Feature,
    GraphSchema,
    check_compatible_with_schema_pb,
    check_required_features,
    create_graph_spec_from_schema_pb,
    create_schema_pb_from_graph_spec,
    iter_features,
    iter_sets,
    parse_schema,
    validate_schema,
    write_schema,
)
from hopstream.compat.tfgnn.specs import (
    CONTEXT,
    DEFAULT_STATE_NAME,
    EDGES,
    HIDDEN_STATE,
    NODES,
    SOURCE,
    TARGET,
    AdjacencySpec,
    ContextSpec,
    EdgeSetSpec,
    GraphTensorSpec,
    NodeSetSpec,
    TensorSpec,
    get_aux_type_prefix,
    missing_name,
    reverse_tag,
)
from hopstream.errors import SchemaError as ValidationError
from hopstream.tfgnn.graph_schema import read_schema
from hopstream.tfgnn.graph_tensor import SIZE as SIZE_NAME
from hopstream.tfgnn.graph_tensor import SOURCE as SOURCE_NAME
from hopstream.tfgnn.graph_tensor import TARGET as TARGET_NAME
from hopstream.tfgnn.values import FeatureValues

readout_named = structured_readout
readout_named_into_feature = structured_readout_into_feature

__all__ = [
    "CONTEXT",
    "DEFAULT_STATE_NAME",
    "EDGES",
    "HIDDEN_STATE",
    "NODES",
    "SIZE_NAME",
    "SOURCE",
    "SOURCE_NAME",
    "TARGET",
    "TARGET_NAME",
    "Adjacency",
    "AdjacencySpec",
    "Context",
    "ContextSpec",
    "EdgeSet",
    "EdgeSetSpec",
    "Example",
    "Feature",
    "FeatureValues",
    "Field",
    "FixedLenFeature",
    "GraphSchema",
    "GraphTensor",
    "GraphTensorSpec",
    "NodeSet",
    "NodeSetSpec",
    "RaggedFeature",
    "RecordWriter",
    "RowLengths",
    "TensorSpec",
    "UniformRowLength",
    "ValidationError",
    "add_readout_from_first_node",
    "check_compatible_with_schema_pb",
    "check_required_features",
    "context_readout_into_feature",
    "create_graph_spec_from_schema_pb",
    "create_schema_pb_from_graph_spec",
    "gather_first_node",
    "get_aux_type_prefix",
    "get_homogeneous_node_and_edge_set_name",
    "get_io_spec",
    "homogeneous",
    "iter_features",
    "iter_sets",
    "parse_example",
    "parse_schema",
    "parse_single_example",
    "ragged_constant",
    "random_graph_tensor",
    "read_records",
    "read_schema",
    "readout_named",
    "readout_named_into_feature",
    "reverse_tag",
    "sampler",
    "structured_readout",
    "structured_readout_into_feature",
    "validate_graph_tensor_for_readout",
    "validate_graph_tensor_spec_for_readout",
    "validate_schema",
    "write_example",
    "write_schema",
]


def __getattr__(name: str) -> Any:
    """Raise an error that says why a name is missing.

    Raises:
        AttributeError: Always; the error names the alternative.
    """
    raise missing_name(name)
