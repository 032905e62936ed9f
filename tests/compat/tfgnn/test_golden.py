"""Checks that graph tensors of the real library are read, and written back as it wrote them."""

from __future__ import annotations

import json

import hopstream.compat.tfgnn as tfgnn
from tests.compat.tfgnn.graphs import as_lists, row_of
from tests.tfgnn.goldens import each_golden, golden_path


def as_text(value):
    if isinstance(value, list):
        return [as_text(v) for v in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def wanted_lists(values):
    """The values of a file in the form of ``as_lists``, without the names of ends."""
    found = {"context": values["context"]}
    for name, of in values["node_sets"].items():
        found[f"nodes/{name}"] = {**of["features"], "#size": of["sizes"]}
    for name, of in values["edge_sets"].items():
        ends = {"#source": of["source"], "#target": of["target"]}
        found[f"edges/{name}"] = {**of["features"], "#size": of["sizes"], **ends}
    return found


def plain(lists):
    return {name: {n: as_text(v) for n, v in of.items() if n != "ends"} for name, of in lists.items()}


@each_golden
def test_every_golden_file_is_read_and_written_again(stem):
    spec = tfgnn.create_graph_spec_from_schema_pb(tfgnn.read_schema(golden_path(stem, "schema.pbtxt")))
    records = list(tfgnn.read_records(golden_path(stem, "tfrecord")))
    values = [wanted_lists(of) for of in json.loads(golden_path(stem, "values.json").read_text())]
    batch = tfgnn.parse_example(spec, records)
    assert batch.shape == (8,) and len(values) == 8
    for number, record in enumerate(records):
        graph = tfgnn.parse_single_example(spec, record)
        assert plain(as_lists(graph)) == plain(row_of(batch, number)) == values[number]
        assert tfgnn.write_example(graph) == tfgnn.Example.FromString(record)
        assert spec.relax(num_nodes=True, num_edges=True).is_compatible_with(graph)
