"""Are the tables of others sampled: credit cards by their own spec, citrus fruits as the golden file has them?"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hopstream import read_graph
from hopstream.dataset.layout import open_dataset
from hopstream.errors import SchemaError
from hopstream.export.on_beam import SeedSampler
from hopstream.export.samples import SeedSampling, schema_of_samples
from hopstream.preparation.write import write_parts
from hopstream.store.local import LocalStore
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.graph_schema import check_schema, parse_message, read_schema
from hopstream.tfgnn.graph_tensor import decode_graph
from hopstream.tfgnn.messages import EXAMPLE
from hopstream.tfgnn.spec import GraphSpec
from tests.export.test_mag import DATA, needs_data, op


def rows_of(path: Path):
    return list(csv.DictReader(path.read_text().splitlines()))


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


@needs_data
def test_the_card_graph_is_sampled_by_its_own_spec(tmp_path):
    """One of its edges names a card that is not there: an error that says where, unless such edges are dropped."""
    folder = DATA / "creditcard"
    tables = write_tables(tmp_path, folder, read_schema(folder / "graph_schema.pbtxt"), "id", ("source", "target"))
    with pytest.raises(SchemaError, match=r"owns_card\S+ is '1238474857489384', which no .* owns_card.csv line 9"):
        read_graph(tables)
    graph = read_graph(tables, on_dangling="drop")
    write_parts(graph, tmp_path / "parts", num_parts=2, method="random", direction="out")
    owns = rows_of(folder / "owns_card.csv")
    customers = {row["id"]: row for row in rows_of(folder / "customer.csv")}
    issuers = {row["id"]: row["issuer"] for row in rows_of(folder / "creditcard.csv")}
    sampling = SeedSampling(spec=(folder / "sampling_spec.pbtxt").read_text(), seed_ids=True)
    with LocalStore(open_dataset(tmp_path / "parts")) as store:
        schema = schema_of_samples(sampling, store.schema)
        check_schema(schema)
        samples = SeedSampler(store, sampling).sample(list(customers), [0] * len(customers))
    for customer, (sample_id, message) in zip(customers, samples, strict=True):
        read = decode_graph(message, GraphSpec.of_schema(schema))
        assert sample_id == customer.encode() and read.context["seed_id"].tolist() == [sample_id]
        seed = {name: of.tolist() for name, of in read.node_sets["customer"].features.items()}
        row = customers[customer]
        assert seed["id"] == [int(customer)] and seed["name"] == [row["name"].encode()]
        assert seed["zipcode"] == [int(row["zipcode"])] and seed["score"] == [np.float32(row["score"])]
        owned = [int(row["target"]) for row in owns if row["source"] == customer and row["target"] in issuers]
        cards = read.node_sets["creditcard"].features
        drawn = cards["id"].tolist()
        assert set(drawn) <= set(owned) and len(drawn) == min(3, len(set(owned)))
        assert cards["issuer"].tolist() == [issuers[str(card)].encode() for card in drawn]
        assert read.edge_sets["owns_card"].source.tolist() == [0] * min(3, len(owned))


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
