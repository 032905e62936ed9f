"""Checks that the real TF-GNN reads our files, and that we read its files.

Skipped where it is not installed: ``pip install hopstream[tfgnn]`` brings it.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    real = pytest.importorskip("tensorflow_gnn", exc_type=ImportError)
    import tensorflow as tf

import hopstream.compat.tfgnn as tfgnn
from hopstream import export_subgraphs
from hopstream.dataset.layout import open_dataset
from hopstream.export.plan import plan_of_spec
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.preparation.write import write_parts
from hopstream.sample.plan import SEEDS
from hopstream.store.local import LocalStore
from hopstream.tfgnn.graph_schema import message_text, schema_message
from hopstream.tfgnn.graph_tensor import decode_graph, encode_graphs
from hopstream.tfgnn.spec import DTYPES, GraphSpec
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder
from tests.compat.tfgnn.graphs import LINKS, as_lists, row_of
from tests.conftest import make_typed_graph
from tests.export.worlds import some_seeds, write_world

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPES = ([], [1], [3], [2, 3], [None], [None, 2], [2, None], [None, None], [None, 2, None], [2, None, 2, None, 3])


def schema_of(shape, dtype="DT_FLOAT"):
    dims = "".join(f"dim {{ size: {-1 if size is None else size} }}" for size in shape)
    feature = f'features {{ key: "f" value {{ dtype: {dtype} shape {{ {dims} }} }} }}'
    return (
        f'context {{ {feature} }} node_sets {{ key: "n" value {{ {feature} }} }} '
        f'edge_sets {{ key: "e" value {{ source: "n" target: "n" {feature} }} }}'
    )


def lists_of(field):
    return field.to_list() if isinstance(field, tf.RaggedTensor) else field.numpy().tolist()


def real_lists(graph):
    """All values of a graph tensor of the real library, in the form of ``as_lists``."""
    found = {"context": {name: lists_of(field) for name, field in graph.context.features.items()}}
    for kind, sets in (("nodes", graph.node_sets), ("edges", graph.edge_sets)):
        for name, of in sets.items():
            found[f"{kind}/{name}"] = {n: lists_of(field) for n, field in of.features.items()}
            found[f"{kind}/{name}"]["#size"] = lists_of(of.sizes)
            if kind == "edges":
                ends = of.adjacency
                found[f"{kind}/{name}"] |= {"#source": lists_of(ends.source), "#target": lists_of(ends.target)}
                found[f"{kind}/{name}"]["ends"] = (ends.source_name, ends.target_name)
    return found


def row_of_lists(lists, number):
    return {name: values if name == "ends" else values[number] for name, values in lists.items()}


def check_both_ways(text, graphs):
    """Check that the real library reads our graphs, alone and in a batch, and writes them back the same."""
    spec = real.create_graph_spec_from_schema_pb(real.parse_schema(text))
    mine = tfgnn.create_graph_spec_from_schema_pb(tfgnn.parse_schema(text))
    examples = [tfgnn.write_example(graph).SerializeToString() for graph in graphs]
    batch = real_lists(real.parse_example(spec, tf.constant(examples)))
    for number, (graph, example) in enumerate(zip(graphs, examples, strict=True)):
        read = real.parse_single_example(spec, tf.constant(example))
        assert real_lists(read) == as_lists(graph)
        assert {
            key: {n: v if n == "ends" else v[number] for n, v in of.items()} for key, of in batch.items()
        } == as_lists(graph)
        written = real.write_example(read).SerializeToString()
        assert tfgnn.Example.FromString(written) == tfgnn.Example.FromString(example)
        assert as_lists(tfgnn.parse_single_example(mine, written)) == as_lists(graph)
    assert batch == as_lists(tfgnn.parse_example(mine, examples))


def random_graphs(text, number=3, **options):
    spec = tfgnn.create_graph_spec_from_schema_pb(tfgnn.parse_schema(text))
    return [tfgnn.random_graph_tensor(spec, rng_seed=seed, **options) for seed in range(number)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_is_read(shape):
    check_both_ways(schema_of(shape), random_graphs(schema_of(shape), row_lengths_range=(1, 4)))


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"DT_DOUBLE", "DT_UINT64"}))  # stored in fewer bits
def test_every_dtype_is_read(dtype):
    samples = {}
    if dtype == "DT_BFLOAT16":  # held as float32 here, so that rounding is not done
        places = ((tfgnn.CONTEXT, None), (tfgnn.NODES, "n"), (tfgnn.EDGES, "e"))
        samples = {(*place, "f"): [0.5, 1.25] for place in places}
    check_both_ways(schema_of([2], dtype), random_graphs(schema_of([2], dtype), sample_dict=samples))


def test_graphs_with_everything_are_read():
    check_both_ways(LINKS, random_graphs(LINKS))


def test_empty_rows_are_read():
    check_both_ways(schema_of([None, None]), random_graphs(schema_of([None, None]), 6, row_lengths_range=(0, 1)))


def test_several_components_are_read():
    spec = real.create_graph_spec_from_schema_pb(real.parse_schema(LINKS))
    open_spec = spec.relax(num_components=True, num_nodes=True, num_edges=True)
    for graph in random_graphs(LINKS, 4, num_components_range=(2, 3)):
        example = tfgnn.write_example(graph).SerializeToString()
        read = real.parse_single_example(open_spec, tf.constant(example))
        assert real_lists(read) == as_lists(graph)


def test_io_specs_are_those_of_tensorflow():
    wanted = real.get_io_spec(real.create_graph_spec_from_schema_pb(real.parse_schema(LINKS)))
    found = tfgnn.get_io_spec(tfgnn.create_graph_spec_from_schema_pb(tfgnn.parse_schema(LINKS)))
    assert set(found) == set(wanted)
    for name, mine in found.items():
        theirs = wanted[name]
        assert (type(mine).__name__, mine.dtype) == (type(theirs).__name__, theirs.dtype.name)
        if isinstance(mine, tfgnn.FixedLenFeature):
            assert list(mine.shape) == list(theirs.shape)
        else:
            made = [
                tf.io.RaggedFeature.RowLengths(p.key) if isinstance(p, tfgnn.RowLengths)
                else tf.io.RaggedFeature.UniformRowLength(p.length)
                for p in mine.partitions
            ]  # fmt: skip
            assert (mine.value_key, made) == (theirs.value_key, list(theirs.partitions))


def test_readouts_are_those_of_the_real_library():
    spec = real.create_graph_spec_from_schema_pb(real.parse_schema(LINKS))
    for graph in random_graphs(LINKS, 5):
        read = real.parse_single_example(spec, tf.constant(tfgnn.write_example(graph).SerializeToString()))
        real.validate_graph_tensor_for_readout(read)
        for key in ("source", "target", "edge"):
            wanted = real.structured_readout(read, key, feature_name="h").numpy()
            assert np.array_equal(tfgnn.structured_readout(graph, key, feature_name="h"), wanted)
        which = {"node_set_name": "users", "readout_node_set": "_readout:first"}
        added = real.add_readout_from_first_node(read, "seed", **which)
        assert as_lists(tfgnn.add_readout_from_first_node(graph, "seed", **which)) == real_lists(added)


def test_features_of_graphs_are_replaced_alike():
    spec = real.create_graph_spec_from_schema_pb(real.parse_schema(LINKS))
    graph = random_graphs(LINKS, 1)[0]
    read = real.parse_single_example(spec, tf.constant(tfgnn.write_example(graph).SerializeToString()))
    for change in (
        {"node_sets": {"users": ["h"]}}, {"context": ["label"]}, {"edge_sets": {"buys": ["when", "h"]}},
    ):  # fmt: skip
        assert as_lists(graph.remove_features(**change)) == real_lists(read.remove_features(**change))
    both = [tfgnn.write_example(graph).SerializeToString()] * 2
    mine = tfgnn.parse_example(tfgnn.create_graph_spec_from_schema_pb(tfgnn.parse_schema(LINKS)), both)
    theirs = real.parse_example(spec, tf.constant(both))
    assert as_lists(mine.merge_batch_to_components()) == real_lists(theirs.merge_batch_to_components())


def test_sampled_subgraphs_are_read_under_their_schema(rng, tmp_path):
    """Samples of a dataset, read under the schema of the dataset."""
    graph = make_typed_graph(rng)
    write_parts(graph, tmp_path / "parts", num_parts=2, method="random", direction="out")
    store = LocalStore(open_dataset(tmp_path / "parts"))
    schema = schema_message(store.schema)
    spec = SamplingSpecBuilder(schema, tfgnn.sampler.RANDOM_UNIFORM).seed("author").sample(4, "writes").build()
    plan = plan_of_spec(spec, store.schema)
    assert plan.ops[0].inputs == (SEEDS,)
    features = {owner: tuple(of) for owner, of in {**store.schema.nodes, **store.schema.edges}.items()}
    pieces = SubgraphMaker(store, plan, features).make(np.arange(6), 7)
    encoded = encode_graphs(pieces)
    records = [encoded[number] for number in range(6)]
    read = real.parse_example(
        real.create_graph_spec_from_schema_pb(real.parse_schema(message_text(schema))), tf.constant(records)
    )
    mine = tfgnn.parse_example(tfgnn.create_graph_spec_from_schema_pb(schema), records)
    assert real_lists(read) == as_lists(mine)
    assert mine.edge_sets["writes"].total_size > 0
    for number, record in enumerate(records):
        one = tfgnn.GraphTensor.of_pieces(decode_graph(record, GraphSpec.of_schema(schema)))
        assert as_lists(one) == row_of(mine, number)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(("leave_out", "seed_ids"), [((), False), (("author.#id", "paper.id"), True)])
def test_an_export_is_read_under_the_schema_beside_it(tmp_path, compression, leave_out, seed_ids):
    """Files and schema of ``export_subgraphs``, read by the real library alone."""
    world, seeds = write_world(tmp_path), some_seeds(30)
    report = export_subgraphs(
        world / "parts", world / "spec.pbtxt", tmp_path / "out", seeds=seeds, num_workers=0, num_shards=3,
        leave_out=leave_out, seed_ids=seed_ids, compression=compression,
    )  # fmt: skip
    assert report.num_seeds == len(seeds)
    spec = real.create_graph_spec_from_schema_pb(real.read_schema(str(tmp_path / "out.pbtxt")))
    paths = sorted(str(path) for path in tmp_path.glob("out-*"))
    assert len(paths) == 3
    kind = "GZIP" if compression == "gzip" else ""
    records = [record.numpy() for record in tf.data.TFRecordDataset(paths, compression_type=kind)]
    read = real.parse_example(spec, tf.constant(records))
    assert ("seed_id" in read.context.features) == seed_ids
    if seed_ids:
        assert sorted(read.context["seed_id"].numpy().ravel().tolist()) == sorted(seed.encode() for seed in seeds)
    assert ("id" in read.node_sets["paper"].features) == ("paper.id" not in leave_out)
    assert ("#id" in read.node_sets["author"].features) == ("author.#id" not in leave_out)
    assert int(tf.reduce_sum(read.edge_sets["writes"].sizes)) > 0
    mine = tfgnn.parse_example(
        tfgnn.create_graph_spec_from_schema_pb(tfgnn.read_schema(tmp_path / "out.pbtxt")), records
    )
    assert real_lists(read) == as_lists(mine)
    for number, record in enumerate(records):
        assert real_lists(real.parse_single_example(spec, tf.constant(record))) == row_of(mine, number)
