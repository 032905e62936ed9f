"""Checks that every name of TF-GNN exists, or explains why it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hopstream.compat.tfgnn as tfgnn
from hopstream.compat.tfgnn.specs import REASONS

PUBLIC = """
  CONTEXT NODES EDGES HIDDEN_STATE DEFAULT_STATE_NAME SOURCE TARGET IncidentNodeTag IncidentNodeOrContextTag
  reverse_tag SIZE_NAME SOURCE_NAME TARGET_NAME Field FieldName FieldOrFields FieldSpec Fields FieldsSpec SetName
  SetType NodeSetName EdgeSetName Context ContextSpec NodeSet NodeSetSpec EdgeSet EdgeSetSpec Adjacency AdjacencySpec
  HyperAdjacency HyperAdjacencySpec GraphTensor GraphTensorSpec homogeneous GraphSchema Feature FeatureDefaultValues
  SizeConstraints dataset_filter_with_summary dataset_from_generator parse_example parse_single_example get_io_spec
  pad_to_total_sizes assert_satisfies_size_constraints satisfies_size_constraints assert_satisfies_total_sizes
  satisfies_total_sizes find_tight_size_constraints learn_fit_or_skip_size_constraints write_example
  graph_tensor_to_values random_graph_tensor broadcast_node_to_edges broadcast_context_to_nodes
  broadcast_context_to_edges broadcast pool_edges_to_node pool_nodes_to_context pool_edges_to_context pool
  pool_neighbors_to_node pool_neighbors_to_node_feature get_registered_reduce_operation_names mask_edges
  add_self_loops gather_first_node shuffle_features_globally combine_values reorder_nodes shuffle_nodes node_degree
  convert_to_line_graph softmax softmax_edges_per_node validate_graph_tensor_spec_for_readout
  validate_graph_tensor_for_readout add_readout_from_first_node structured_readout structured_readout_into_feature
  context_readout_into_feature readout_named readout_named_into_feature parse_schema read_schema write_schema
  check_compatible_with_schema_pb create_graph_spec_from_schema_pb create_schema_pb_from_graph_spec iter_sets
  iter_features ValidationError validate_schema check_required_features assert_constraints check_scalar_graph_tensor
  check_homogeneous_graph_tensor get_homogeneous_node_and_edge_set_name get_aux_type_prefix is_dense_tensor
  is_ragged_tensor is_graph_tensor enable_graph_tensor_inputs_validation disable_graph_tensor_inputs_validation
  experimental keras models runner sampler
"""


def test_every_public_name_is_available_or_has_a_reason():
    unknown = [name for name in PUBLIC.split() if name not in tfgnn.__all__ and name not in REASONS]
    both = [name for name in tfgnn.__all__ if name in REASONS]
    assert (unknown, both) == ([], [])
    assert all(hasattr(tfgnn, name) for name in tfgnn.__all__)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("keras", r"has no 'keras': it is for Keras models; train with PyTorch Geometric"),
        ("pool_edges_to_node", r"it is a step of a model; use PyTorch Geometric's layers, or numpy"),
        ("HyperAdjacency", r"cannot be written to files; use Adjacency"),
        ("nonsense", r"has no 'nonsense'; docs/from-tfgnn.md lists the names that it has"),
    ],
)
def test_error_for_a_missing_name_names_the_replacement(name, match):
    with pytest.raises(AttributeError, match=match):
        getattr(tfgnn, name)


def test_names_of_tags():
    assert tfgnn.reverse_tag(tfgnn.SOURCE) == tfgnn.TARGET and tfgnn.reverse_tag(tfgnn.TARGET) == tfgnn.SOURCE
    with pytest.raises(ValueError, match=r"tag is 2; an edge has SOURCE"):
        tfgnn.reverse_tag(2)
    assert [tfgnn.get_aux_type_prefix(name) for name in ("_readout/seed", "paper", "#x")] == ["_readout", None, "#x"]


def test_the_sampler_has_its_names():
    schema = tfgnn.parse_schema(
        'node_sets { key: "paper" value {} } edge_sets { key: "cites" value { source: "paper" target: "paper" } }'
    )
    spec = (
        tfgnn.sampler.SamplingSpecBuilder(schema, tfgnn.sampler.RANDOM_UNIFORM).seed("paper").sample(8, "cites").build()
    )
    assert isinstance(spec, tfgnn.sampler.SamplingSpec)
    tree = tfgnn.sampler.make_sampling_spec_tree(schema, "paper", sample_sizes=[8])
    assert tree == spec
    tfgnn.sampler.check_spec(spec, schema)


def test_neither_torch_nor_tensorflow_is_loaded():
    code = "import sys, hopstream.compat.tfgnn; print(sorted({'torch', 'tensorflow', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
