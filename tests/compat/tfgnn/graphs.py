"""Graph tensors that these tests share, and a comparison of two."""

from __future__ import annotations

import numpy as np

import hopstream.compat.tfgnn as tfgnn

SCORES = [[10, 15, 23], [89], [64, 53, 25, 29]]
LINKS = """
  context { features { key: "label" value { dtype: DT_STRING shape { dim { size: 2 } } } } }
  node_sets { key: "users" value { features { key: "h" value { dtype: DT_FLOAT shape { dim { size: 2 } } } }
    features { key: "tags" value { dtype: DT_STRING shape { dim { size: -1 } dim { size: -1 } } } } } }
  node_sets { key: "items" value { features { key: "h" value { dtype: DT_FLOAT shape { dim { size: 2 } } } } } }
  node_sets { key: "latent" value { } }
  node_sets { key: "_readout" value { features { key: "label" value { dtype: DT_INT64 } } } }
  node_sets { key: "_shadow/buys" value { } }
  edge_sets { key: "buys" value { source: "users" target: "items"
    features { key: "h" value { dtype: DT_FLOAT shape { dim { size: 2 } } } }
    features { key: "when" value { dtype: DT_INT32 shape { dim { size: -1 } dim { size: 2 } } } } } }
  edge_sets { key: "in" value { source: "items" target: "latent" features { key: "w" value { dtype: DT_BOOL } } } }
  edge_sets { key: "_readout/source" value { source: "users" target: "_readout" } }
  edge_sets { key: "_readout/target/1" value { source: "users" target: "_readout" } }
  edge_sets { key: "_readout/target/2" value { source: "items" target: "_readout" } }
  edge_sets { key: "_readout/edge" value { source: "_shadow/buys" target: "_readout" } }
"""
"""Schema with strings, ragged values, a set without features, and a readout of nodes and edges."""


def students(scores=SCORES, **features):
    nodes = tfgnn.NodeSet.from_fields(
        sizes=[tfgnn.FeatureValues.of(scores).num_items], features={"scores": scores, **features}
    )
    return tfgnn.GraphTensor.from_pieces(node_sets={"students": nodes})


def links_spec(**options):
    return tfgnn.create_graph_spec_from_schema_pb(tfgnn.parse_schema(LINKS), **options)


def as_lists(graph):
    """Everything in a graph tensor as nested lists."""
    found = {"context": {name: field.tolist() for name, field in graph.context.features.items()}}
    for kind, sets in (("nodes", graph.node_sets), ("edges", graph.edge_sets)):
        for name, of in sets.items():
            found[f"{kind}/{name}"] = {n: field.tolist() for n, field in of.features.items()}
            found[f"{kind}/{name}"]["#size"] = of.sizes.tolist()
            if kind == "edges":
                ends = of.adjacency
                found[f"{kind}/{name}"] |= {"#source": ends.source.tolist(), "#target": ends.target.tolist()}
                found[f"{kind}/{name}"]["ends"] = (ends.source_name, ends.target_name)
    return found


def row_of(batch, number):
    """Values of one graph of a batch in the form of ``as_lists``."""
    return {
        name: {n: values if n == "ends" else values[number] for n, values in of.items()}
        for name, of in as_lists(batch).items()
    }


def two_components():
    """Users in two components, three and one, with edges in each."""
    adjacency = tfgnn.Adjacency.from_indices(("users", [0, 2, 3]), ("users", [1, 1, 3]))
    return tfgnn.GraphTensor.from_pieces(
        tfgnn.Context.from_fields(features={"name": np.array([b"a", b"b"], object)}),
        {"users": tfgnn.NodeSet.from_fields(sizes=[3, 1], features={"h": np.arange(8.0).reshape(4, 2)})},
        {"knows": tfgnn.EdgeSet.from_fields(sizes=[2, 1], adjacency=adjacency, features={"w": [1, 2, 3]})},
    )
