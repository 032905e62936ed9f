"""Make the files of this folder by the real TF-GNN, from random graphs: ``python make.py``.

Hopstream has no part in it, so that it is compared with the work of others.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import tensorflow as tf
import tensorflow_gnn as tfgnn

FOLDER = Path(__file__).parent
NUM_RECORDS = 8


def lists_of(field):
    values = field.to_list() if isinstance(field, tf.RaggedTensor) else field.numpy().tolist()
    return text_of(values)


def text_of(value):
    if isinstance(value, list):
        return [text_of(v) for v in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def values_of(graph):
    """Everything in a graph; strings as latin-1 text."""
    nodes = {
        name: {"sizes": lists_of(of.sizes), "features": {n: lists_of(f) for n, f in of.features.items()}}
        for name, of in graph.node_sets.items()
    }
    edges = {
        name: {
            "sizes": lists_of(of.sizes), "source": lists_of(of.adjacency.source),
            "target": lists_of(of.adjacency.target), "features": {n: lists_of(f) for n, f in of.features.items()},
        } for name, of in graph.edge_sets.items()
    }  # fmt: skip
    return {
        "context": {n: lists_of(f) for n, f in graph.context.features.items()}, "node_sets": nodes, "edge_sets": edges,
    }  # fmt: skip


def main():
    """Write records of every schema, and their values."""
    tf.random.set_seed(7)
    for path in sorted(FOLDER.glob("*.schema.pbtxt")):
        stem = path.name.removesuffix(".schema.pbtxt")
        spec = tfgnn.create_graph_spec_from_schema_pb(tfgnn.read_schema(str(path)))
        values = []
        with tf.io.TFRecordWriter(str(FOLDER / f"{stem}.tfrecord")) as writer:
            for _ in range(NUM_RECORDS):
                graph = tfgnn.random_graph_tensor(spec, row_lengths_range=(0, 4))
                record = tfgnn.write_example(graph).SerializeToString()
                writer.write(record)
                values.append(values_of(tfgnn.parse_single_example(spec, tf.constant(record))))
        lines = ",\n".join(json.dumps(of, separators=(",", ":")) for of in values)
        (FOLDER / f"{stem}.values.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
