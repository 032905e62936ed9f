"""Checks sampling of third-party tables: credit cards by their spec, citrus fruits by a golden file."""

from __future__ import annotations

import json
import shutil

import pytest

from hopstream import read_graph
from hopstream.dataset.layout import open_dataset
from hopstream.export.samples import SeedSampling
from hopstream.export.seed_sampler import SeedSampler
from hopstream.preparation.write import write_parts
from hopstream.store.local import LocalStore
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.graph_schema import parse_message, read_schema
from hopstream.tfgnn.messages import EXAMPLE
from tests.export.test_mag import DATA, needs_data, op


def write_tables(folder, data, schema, id_column, ends):
    """The same tables as ``read_graph`` takes them; 1 is DT_FLOAT."""

    def features_of(of):
        return {
            name: {"column": name, "dtype": "float32"} if feature.dtype == 1 else name
            for name, feature in of.features.items()
        }

    nodes = {
        name: {"files": of.metadata.filename, "id": id_column, "features": features_of(of)}
        for name, of in schema.node_sets.items()
    }
    edges = [
        {
            "type": [of.source, name, of.target], "files": of.metadata.filename, "src": ends[0],
            "dst": ends[1], "features": features_of(of),
        }
        for name, of in schema.edge_sets.items()
    ]  # fmt: skip
    for table in data.glob("*.csv"):
        shutil.copy(table, folder)
    path = folder / "metadata.json"
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return path


def golden_examples(path):
    blocks = path.read_text().split("\nexamples {\n")[1:]
    messages = [parse_message(block.rstrip().removesuffix("}"), EXAMPLE) for block in blocks]
    return [lists_of(message.SerializeToString()) for message in messages]


def lists_of(message):
    return {name: values.tolist() for name, values in decode_example(message).items()}


@needs_data
@pytest.mark.parametrize("strategy", ["RANDOM_UNIFORM", "RANDOM_WEIGHTED"])
def test_citrus_fruits_are_sampled_as_the_golden_file_has_them(tmp_path, strategy):
    """Edges are fewer than the sample size, so chance has no say. The golden file leaves empty sets out."""
    folder = DATA / "homogeneous"
    tables = write_tables(tmp_path, folder, read_schema(folder / "citrus.pbtxt"), "#id", ("#source", "#target"))
    graph = read_graph(tables)
    write_parts(graph, tmp_path / "parts", num_parts=2, method="random", direction="out", weight_attr="weight")
    wanted = golden_examples(folder / "sampler_golden.ascii")
    spec = 'seed_op < op_name: "seed" node_set_name: "fruits" >' + op("a", ["seed"], "tastelike", 10, strategy)
    with LocalStore(open_dataset(tmp_path / "parts")) as store:
        sampler = SeedSampler(store, SeedSampling(spec=spec, leave_out=("fruits.#id",), seed_ids=True))
        seeds = [one["context/seed_id"][0] for one in wanted]
        assert len(seeds) == 9
        for (_, message), golden in zip(sampler.sample(seeds, [0] * 9), wanted, strict=True):
            found = lists_of(message)
            is_empty = found["edges/tastelike.#size"] == [0]
            assert {name: of for name, of in found.items() if not (is_empty and name.startswith("edges/"))} == golden
