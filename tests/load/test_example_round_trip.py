"""Checks that exported subgraphs, read back, are subgraphs of the graph they were sampled from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hopstream.dataset.layout import open_dataset
from hopstream.export.plan import plan_of_spec
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.load.examples import ExampleLoader
from hopstream.preparation.write import write_parts
from hopstream.store.local import LocalStore
from hopstream.tfgnn.graph_schema import message_text, schema_message
from hopstream.tfgnn.graph_tensor import encode_graphs
from hopstream.tfgnn.sampling_spec import RANDOM_UNIFORM
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder
from hopstream.tfgnn.tfrecord import RecordWriter, shard_paths
from tests.conftest import make_typed_graph

SEEDS = np.arange(60)


@pytest.fixture
def graph(rng):
    """Papers and authors, with the keys of all as a feature."""
    made = make_typed_graph(rng)
    nodes = {t: replace(of, features={**of.features, "key": np.arange(of.num_nodes)}) for t, of in made.nodes.items()}
    edges = {t: replace(of, features={**of.features, "key": np.arange(of.num_edges)}) for t, of in made.edges.items()}
    return replace(made, nodes=nodes, edges=edges).check()


@pytest.fixture
def files(graph, tmp_path):
    """Subgraphs of all papers, in three files."""
    write_parts(graph, tmp_path / "parts", num_parts=2, method="hash", direction="out")
    schema = schema_message(graph.schema)
    spec = SamplingSpecBuilder(schema, RANDOM_UNIFORM).seed("paper").sample(4, "cites").sample(3, "cites").build()
    (tmp_path / "schema.pbtxt").write_text(message_text(schema))
    with LocalStore(open_dataset(tmp_path / "parts")) as store:
        features = {t: tuple(of) for t, of in (*store.schema.nodes.items(), *store.schema.edges.items())}
        maker = SubgraphMaker(store, plan_of_spec(spec, store.schema), features)
        for keys, path in zip(np.array_split(SEEDS, 3), shard_paths(tmp_path / "s", 3), strict=True):
            examples = encode_graphs(maker.make(keys, rng_seed=5))
            with RecordWriter(path) as writer:
                writer.write_framed(examples.data, examples.offsets)
    return f"{tmp_path}/s@3"


def test_batches_hold_the_graphs_own_nodes_and_edges(graph, files):
    seeds = []
    with ExampleLoader(files, 7, shuffle=True, window=20, seed_set="paper", num_threads=2) as loader:
        for batch in loader:
            papers = batch["paper"]
            seeds += papers.key[papers.seed_index].tolist()
            assert papers.key[papers.seed_index].tolist() == SEEDS[batch.input_id].tolist()
            for node_type in graph.nodes:
                keys = batch[node_type].key.numpy()
                for name, column in graph.nodes[node_type].features.items():
                    check_rows(batch[node_type], name, column, keys)
            for edge_type, edges in graph.edges.items():
                store = batch[edge_type]
                keys = store.key.numpy()
                sources, targets = store.edge_index
                assert torch.equal(batch[edge_type[0]].key[sources], torch.from_numpy(edges.src_keys[keys]))
                assert torch.equal(batch[edge_type[2]].key[targets], torch.from_numpy(edges.dst_keys[keys]))
                assert torch.equal(batch[edge_type[0]].batch[sources], batch[edge_type[2]].batch[targets])
                for name, column in edges.features.items():
                    check_rows(store, name, column, keys)
    assert sorted(seeds) == SEEDS.tolist()


def check_rows(store, name, column, keys):
    if isinstance(column, np.ndarray):
        wanted = column[keys]
        if wanted.dtype == np.float64:  # as messages store reals
            wanted = wanted.astype(np.float32).astype(np.float64)
        assert np.array_equal(store[name].numpy(), wanted)
    elif column.is_string:
        assert store[name] == list(column.take(keys))
    else:
        taken = column.take(keys)
        assert np.array_equal(store[name].numpy(), taken.values)
        assert np.array_equal(store[f"{name}_offsets"].numpy(), taken.offsets)
