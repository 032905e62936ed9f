"""Checks that exported subgraphs are read once, unchanged: any order, any rank, after a resume."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Batch, HeteroData

from hopstream.arrays import RaggedArray
from hopstream.errors import (
    ChecksumError,
    FormatError,
    SchemaError,
    SettingsError,
    StateError,
    UnknownNameError,
)
from hopstream.load.examples import ExampleLoader, GraphBatch
from hopstream.tfgnn.example import ValueLists, decode_examples, encode_examples
from hopstream.tfgnn.graph_generator import random_graphs
from hopstream.tfgnn.graph_schema import message_text, parse_schema
from hopstream.tfgnn.graph_tensor import encode_graphs
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.tfrecord import RecordWriter, shard_paths
from tests.load.contract import LoaderContract
from tests.tfgnn.schemas import EVERYTHING, not_utf_8, same_graphs

NUM_EXAMPLES, SHARDS = 41, [12, 0, 9, 20]


@pytest.fixture(scope="module")
def spec():
    return GraphSpec.of_schema(parse_schema(EVERYTHING))


@pytest.fixture(scope="module")
def graphs(spec):
    return random_graphs(spec, range(NUM_EXAMPLES), rng_seed=1)


def write(folder, graphs, *, is_compressed=False, sizes=SHARDS):
    folder.mkdir(exist_ok=True)
    schema = parse_schema(EVERYTHING)
    schema.info.root_set.append("paper")
    (folder / "schema.pbtxt").write_text(message_text(schema))
    encoded, number = encode_graphs(graphs), 0
    for path, size in zip(shard_paths(folder / "s", len(sizes)), sizes, strict=True):
        with RecordWriter(path, is_compressed=is_compressed) as writer:
            for _ in range(size):
                writer.write(encoded[number])
                number += 1
    return f"{folder}/s@{len(sizes)}"


@pytest.fixture(scope="module", params=["plain", "gzip"])
def files(request, tmp_path_factory, graphs):
    return write(tmp_path_factory.mktemp("examples"), graphs, is_compressed=request.param == "gzip")


class TestExampleLoader(LoaderContract):
    @pytest.fixture(params=[("plain", 3), pytest.param(("gzip", 0), marks=pytest.mark.slow)], ids=str)
    def new_loader(self, request, graphs, tmp_path):
        kind, num_threads = request.param
        files = write(tmp_path, graphs, is_compressed=kind == "gzip")

        def new(**settings):
            more = {"shuffle": True, "window": 7, "collate": "numpy", "num_threads": num_threads, **settings}
            return ExampleLoader(files, **{"batch_size": 4, **more})

        return new


def test_examples_are_in_order_and_equal_the_written_ones(files, spec, graphs):
    with ExampleLoader(files, NUM_EXAMPLES, collate="numpy") as loader:
        (batch,) = loader
    assert batch.input_ids.tolist() == list(range(NUM_EXAMPLES))
    same_graphs(batch.graphs, graphs)
    assert loader.num_examples == NUM_EXAMPLES and loader.spec == spec


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_an_epoch_has_every_example_once_and_windows_mix(files, spec, window):
    with ExampleLoader(files, 5, shuffle=True, window=window, collate="numpy", rng_seed=4) as loader:
        epochs = [np.concatenate([batch.input_ids for batch in loader]) for _ in range(3)]
    for numbers in epochs:
        assert sorted(numbers.tolist()) == list(range(NUM_EXAMPLES))
    assert epochs[0].tolist() != epochs[1].tolist()
    file_of = np.repeat(np.arange(4), SHARDS)
    changes = [int(np.sum(np.diff(file_of[numbers]) != 0)) for numbers in epochs]
    if window == 1:  # files one after the other, each in its own order
        assert changes == [2, 2, 2]
        assert all(np.all(np.diff(n)[np.diff(file_of[n]) == 0] == 1) for n in epochs)
    else:
        assert min(changes) > 2


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_each_epoch(files, world_size):
    seen = []
    lengths = set()
    for rank in range(world_size):
        options = {"shuffle": True, "window": 9, "rank": rank, "world_size": world_size, "collate": "numpy"}
        with ExampleLoader(files, 3, **options) as loader:
            seen += [number for batch in loader for number in batch.input_ids.tolist()]
            lengths.add(len(loader))
    assert sorted(seen) == list(range(NUM_EXAMPLES))
    assert len(lengths) == 1


def test_batches_are_those_that_pyg_makes_of_single_graphs(files):
    options = {"strings": "drop"}
    with ExampleLoader(files, 6, **options) as loader, ExampleLoader(files, 1, **options) as alone:
        batches, single = list(loader), list(alone)
    for number, batch in enumerate(batches):
        of_batch = single[6 * number : 6 * number + 6]
        assert batch.num_graphs == len(of_batch)
        assert set(batch.node_types) == {"paper", "author", "latent"}
        assert set(batch.edge_types) == {("author", "writes", "paper"), ("paper", "cites", "paper")}
        for one in of_batch:  # PyG joins these its own way
            for store in one.stores:
                for name in [name for name in store if "_offsets" in name or name in ("batch", "ptr", "seed_index")]:
                    del store[name]
            del one.readout, one.readout_edges
        joined = Batch.from_data_list(of_batch)
        for kind in (*batch.node_types, *batch.edge_types):
            for name, value in joined[kind].items():
                assert (
                    torch.equal(value, batch[kind][name]) if torch.is_tensor(value) else value == batch[kind][name]
                ), (kind, name)
        assert torch.equal(batch["paper"].seed_index, batch["paper"].ptr[:-1])
        assert torch.equal(joined["label"], batch["label"])
        assert batch.input_id.tolist() == list(range(6 * number, 6 * number + len(of_batch)))


def test_features_of_every_shape(files, graphs):
    with ExampleLoader(files, NUM_EXAMPLES) as loader:
        (batch,) = loader
    authors, wanted = batch["author"], graphs.node_sets["author"].features
    assert isinstance(batch, HeteroData)
    assert authors.dense.shape == (authors.num_nodes, 4) and authors.matrix.shape == (authors.num_nodes, 2, 3)
    assert authors.no_values.shape == (authors.num_nodes, 0)
    assert authors.rows.shape == (len(wanted["rows"].flat) // 2, 2)
    split = [part.tolist() for part in torch.tensor_split(authors.ragged, authors.ragged_offsets[1:-1])]
    assert split == wanted["ragged"].tolist()
    assert authors.deep_offsets_2.tolist()[-1] * 3 == len(authors.deep_offsets_4) - 1
    assert authors.deep_offsets_4.tolist()[-1] == len(authors.deep)
    assert authors.tags == [[tag.decode() for tag in row] for row in wanted["tags"].tolist()]
    assert batch["paper"].DT_STRING[0] == graphs.node_sets["paper"].features["DT_STRING"].tolist()[0].decode()
    assert batch["paper"].DT_UINT64.dtype == torch.uint64 and batch["paper"].DT_BOOL.dtype == torch.bool
    assert batch["words"] == [[w.decode() for w in row] for row in graphs.context["words"].tolist()]
    assert batch["latent"].num_nodes == int(graphs.node_sets["latent"].sizes.sum())


def test_readouts_point_at_their_nodes(files, graphs):
    with ExampleLoader(files, NUM_EXAMPLES) as loader:
        (batch,) = loader
    assert batch.readout["y"].tolist() == graphs.node_sets["_readout"].features["y"].flat.tolist()
    seeds, predictions = batch.readout_edges["seed"]["paper"]
    assert predictions.tolist() == list(range(NUM_EXAMPLES))
    assert batch["paper"].batch[seeds].tolist() == list(range(NUM_EXAMPLES))
    assert (
        seeds.tolist()
        == (batch["paper"].ptr[:-1] + torch.from_numpy(graphs.edge_sets["_readout/seed"].source)).tolist()
    )
    others = batch.readout_edges["other"]
    together = torch.cat([others["author"][1], others["_shadow/writes"][1]])
    assert sorted(together.tolist()) == list(range(NUM_EXAMPLES))
    edges, of = others["_shadow/writes"]
    writes = batch["author", "writes", "paper"].edge_index[:, edges]
    assert torch.equal(batch["author"].batch[writes[0]], of)


def test_only_chosen_features_are_in_batches(files):
    options = {"node_features": {"paper": ["DT_FLOAT"]}, "edge_features": {}, "context_features": []}
    with ExampleLoader(files, 3, **options) as loader:
        batch = next(iter(loader))
    assert set(batch["paper"].keys()) == {"DT_FLOAT", "num_nodes", "batch", "ptr", "seed_index"}
    assert set(batch["author"].keys()) == {"num_nodes", "batch", "ptr"}
    assert set(batch["author", "writes", "paper"].keys()) == {"edge_index"}
    assert "label" not in batch


def test_a_state_of_other_files_is_refused(files, tmp_path, graphs):
    other = write(tmp_path / "other", graphs, sizes=[41])
    with ExampleLoader(files, 4) as one, ExampleLoader(other, 4) as two:
        with pytest.raises(StateError, match="other files="):
            two.load_state_dict(one.state_dict())
        with ExampleLoader(files, 4, window=3) as three, pytest.raises(StateError, match="window 1024"):
            three.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"strings": "no"}, SettingsError, "strings is 'no'; it must be one of text, bytes, drop"),
        ({"window": 0}, SettingsError, "window is 0"),
        ({"seed_set": "_readout"}, UnknownNameError, "seed_set: node set '_readout' does not exist"),
        ({"node_features": {"x": []}}, UnknownNameError, "node_features: set 'x' does not exist"),
        ({"node_features": {"paper": ["x"]}}, UnknownNameError, "feature 'x' does not exist; known"),
        ({"node_features": {"paper": "x"}}, SettingsError, r"is the name 'x'; give a list of names: \['x'\]"),
        ({"collate": "tf"}, SettingsError, "collate is 'tf'"),
        ({"world_size": 2}, SettingsError, "rank is not given"),
        ({"schema": "nowhere.pbtxt"}, FormatError, "nowhere.pbtxt does not exist"),
        ({"prefetch_factor": 2}, SettingsError, "prefetch="),
        ({"transform": 3}, SettingsError, "transform is 3"),
    ],
)
def test_bad_settings_are_refused(files, options, error, message):
    with pytest.raises(error, match=message):
        ExampleLoader(files, 4, **options)


@pytest.mark.parametrize("name", ["batch", "num_nodes", "seed_index"])
def test_a_feature_that_would_hide_an_attribute_is_refused(tmp_path, name):
    schema = parse_schema(
        f'node_sets {{ key: "a" value {{ features {{ key: "{name}" value {{ dtype: DT_INT64 }} }} }} }}'
    )
    with RecordWriter(tmp_path / "s") as writer:
        writer.write(encode_graphs(random_graphs(GraphSpec.of_schema(schema), [0]))[0])
    with pytest.raises(SettingsError, match=f"feature '{name}' of node set 'a' would hide"):
        ExampleLoader(tmp_path / "s", schema=schema)
    with ExampleLoader(tmp_path / "s", schema=schema, collate="numpy") as loader:
        assert isinstance(next(iter(loader)), GraphBatch)


def test_damaged_files_are_named(tmp_path, graphs):
    files = write(tmp_path / "d", graphs, sizes=[30, 11])
    path = tmp_path / "d" / "s-00001-of-00002"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(FormatError, match="s-00001-of-00002 ends in the middle of record 10"):
        ExampleLoader(files)
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with (
        ExampleLoader(files, 4) as loader,
        pytest.raises(ChecksumError, match="00001-of-00002: record 0 does not match"),
    ):
        list(loader)
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(ChecksumError, match="the size of record 0"):
        ExampleLoader(files)


def test_an_example_that_contradicts_the_schema_is_named(tmp_path, graphs):
    files = write(tmp_path / "d", graphs, sizes=[38, 3])
    path = tmp_path / "d" / "s-00001-of-00002"
    with RecordWriter(path) as writer:
        writer.write(encode_graphs(graphs)[0])
        writer.write(b"\x0a\x00")
    with (
        ExampleLoader(files, 7) as loader,
        pytest.raises(FormatError, match=r"s-00001-of-00002: record 1: context/label"),
    ):
        list(loader)
    other = parse_schema('node_sets { key: "a" value { } }')
    with RecordWriter(tmp_path / "none") as writer:
        writer.write(b"")
    with (
        ExampleLoader(tmp_path / "none", schema=other, seed_set="a") as loader,
        pytest.raises(FormatError, match="has no a, so it has no seed"),
    ):
        list(loader)


def test_strings_that_are_not_utf8(tmp_path):
    schema = parse_schema('node_sets { key: "a" value { features { key: "s" value { dtype: DT_STRING } } } }')
    graphs = random_graphs(GraphSpec.of_schema(schema), [3])
    graphs.node_sets["a"].features["s"].flat.values[:] = 0xFF
    with RecordWriter(tmp_path / "s") as writer:
        writer.write(encode_graphs(graphs)[0])
    with ExampleLoader(tmp_path / "s", schema=schema, strings="bytes") as loader:
        assert next(iter(loader))["a"].s == graphs.node_sets["a"].features["s"].tolist()
    with (
        ExampleLoader(tmp_path / "s", schema=schema) as loader,
        pytest.raises(SchemaError, match=r"s holds .* not UTF-8"),
    ):
        list(loader)


def test_files_without_examples_are_refused(tmp_path, graphs):
    files = write(tmp_path / "d", graphs, sizes=[0, 0])
    with pytest.raises(FormatError, match="there are no examples"):
        ExampleLoader(files)


def test_parquet_files_give_the_same_batches(files, graphs, tmp_path):
    write(tmp_path, graphs, sizes=[41])
    paths = []
    for number, numbers in enumerate(np.array_split(np.arange(NUM_EXAMPLES), 3)):
        encoded = encode_graphs(graphs)
        lists = decode_examples([encoded[i] for i in numbers.tolist()])
        columns = {
            name: pa.LargeListArray.from_arrays(
                of.offsets,
                pa.array([bytes(of.values.values[a:b]) for a, b in pairwise(of.values.offsets.tolist())], pa.binary())
                if isinstance(of.values, RaggedArray)
                else pa.array(of.values),
            )
            for name, of in lists.items()
        }
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(pa.table(columns), paths[-1], row_group_size=5)
    with ExampleLoader(paths, NUM_EXAMPLES, collate="numpy") as loader:
        (batch,) = loader
        same_graphs(batch.graphs, graphs)
    with ExampleLoader(paths, 4, shuffle=True, window=6, num_threads=2, collate="numpy") as loader:
        seen = [number for batch in loader for number in batch.input_ids.tolist()]
    assert sorted(seen) == list(range(NUM_EXAMPLES))
    with pytest.raises(FormatError, match="is not a Parquet file, but "):
        ExampleLoader([*paths, tmp_path / "s-00000-of-00001"])


def test_the_schema_is_found_by_the_files_name(tmp_path, graphs):
    files = write(tmp_path, graphs, sizes=[20, 21])
    (tmp_path / "schema.pbtxt").rename(tmp_path / "s.pbtxt")
    (tmp_path / "other.pbtxt").write_text("node_sets { key: 'x' value {} }")
    with ExampleLoader(files, collate="numpy") as loader:
        assert "paper" in loader.spec.node_sets
    (tmp_path / "s.pbtxt").rename(tmp_path / "t.pbtxt")
    with pytest.raises(FormatError, match=r"has 2 files \*\.pbtxt: other\.pbtxt, t\.pbtxt; give the one"):
        ExampleLoader(files)


def test_oversized_and_invalid_records_are_named(tmp_path):
    (tmp_path / "s.pbtxt").write_text(
        'node_sets { key: "a" value { features { key: "r" value { dtype: DT_INT64 shape { dim { size: -1 } } } } } }'
    )
    sizes = encode_examples({"nodes/a.#size": ValueLists(np.array([2, 1 << 24]), np.arange(3))}, 2)
    for bad, message in ((sizes[1], "record 5: nodes/a.r.d1 is left out"), (not_utf_8(), "record 5: not a tf.Example")):
        with RecordWriter(tmp_path / "t") as writer:
            for record in [sizes[0]] * 5 + [bad, sizes[0]]:
                writer.write(record)
        loader = ExampleLoader(tmp_path / "t", 7, collate="numpy", num_threads=0)
        with pytest.raises(FormatError, match=rf"t: {message}"), loader:
            list(loader)
