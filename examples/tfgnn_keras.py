"""Trains a Keras model of TF-GNN on exported subgraphs: classifies the papers of Cora.

    hopstream partition examples/data/cora.npz --out parts/cora --parts 2 --method hash --direction out
    hopstream export parts/cora --spec examples/tfgnn_spec.pbtxt --split train --out samples/train@2
    hopstream export parts/cora --spec examples/tfgnn_spec.pbtxt --split test --out samples/test@2
    python examples/tfgnn_keras.py samples

The last command needs an environment with ``tensorflow-gnn``; Hopstream need not be in it. With ``--runner``, TF-GNN's
runner trains the model, otherwise Keras's ``fit`` on a ``tf.data.Dataset``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_gnn as tfgnn
from tensorflow_gnn import runner
from tensorflow_gnn.models import graph_sage

NUM_CLASSES = 7
BATCH_SIZE = 32
LEARNING_RATE = 0.01


def make_gnn(spec: tfgnn.GraphTensorSpec) -> tf.keras.Model:
    """Make two layers of GraphSAGE, from graph to graph.

    Edges lead away from the seed, so messages pass from their targets to their sources.
    """
    graph = inputs = tf.keras.layers.Input(type_spec=spec)
    graph = tfgnn.keras.layers.MapFeatures(node_sets_fn=initial_state)(graph)
    for number in range(2):
        graph = graph_sage.GraphSAGEGraphUpdate(
            units=64, receiver_tag=tfgnn.SOURCE, use_pooling=False, dropout_rate=0.5, name=f"layer_{number}"
        )(graph)
    return tf.keras.Model(inputs, graph)


def initial_state(node_set: tfgnn.NodeSet, node_set_name: str) -> tf.Tensor:
    """Return float32[nodes, words], the words of each paper, with rows of length 1."""
    return tf.keras.layers.UnitNormalization()(node_set["x"])


def read_batches(samples: Path, split: str) -> tf.data.Dataset:
    """Read batches of exported subgraphs, each a serialized ``tf.Example``."""
    records = tf.data.TFRecordDataset(sorted(map(str, samples.glob(f"{split}-*-of-*"))))
    return (records.shuffle(1024, seed=0) if split == "train" else records).batch(BATCH_SIZE)


def train_with_fit(samples: Path, spec: tfgnn.GraphTensorSpec, num_epochs: int) -> float:
    """Train with Keras's ``fit``; return the accuracy on the split ``test``."""

    def graph_and_labels(examples: tf.Tensor) -> tuple[tfgnn.GraphTensor, tf.Tensor]:
        graph = tfgnn.parse_example(spec, examples).merge_batch_to_components()
        labels = tfgnn.gather_first_node(graph, "node", feature_name="y")  # the seed is the first node
        return graph.remove_features(node_sets={"node": ["y"]}), labels

    train, test = (read_batches(samples, split).map(graph_and_labels) for split in ("train", "test"))
    gnn = make_gnn(train.element_spec[0])
    seeds = tfgnn.keras.layers.ReadoutFirstNode(node_set_name="node")(gnn.output)
    model = tf.keras.Model(gnn.input, tf.keras.layers.Dense(NUM_CLASSES)(seeds))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(LEARNING_RATE), loss, metrics=["sparse_categorical_accuracy"])
    model.fit(train, epochs=num_epochs, verbose=0)
    return accuracy(model, test)


def train_with_runner(samples: Path, spec: tfgnn.GraphTensorSpec, num_epochs: int) -> float:
    """Train with TF-GNN's runner; return the accuracy on the split ``test``."""
    label_fn = runner.RootNodeLabelFn("node", feature_name="y")
    with TemporaryDirectory() as folder:
        result = runner.run(
            train_ds_provider=runner.TFRecordDatasetProvider(f"{samples}/train-*-of-*", examples_shuffle_size=1024),
            model_fn=make_gnn,
            optimizer_fn=lambda: tf.keras.optimizers.Adam(LEARNING_RATE),
            epochs=num_epochs,
            trainer=runner.KerasTrainer(
                tf.distribute.get_strategy(), model_dir=folder, checkpoint_every_n_steps="never",
                backup_and_restore=False, verbose=0,
            ),
            task=runner.RootNodeMulticlassClassification("node", num_classes=NUM_CLASSES, label_fn=label_fn),
            gtspec=spec,
            global_batch_size=BATCH_SIZE,
        )  # fmt: skip
    return accuracy(result.trained_model, read_batches(samples, "test").map(result.preprocess_model))


def accuracy(model: tf.keras.Model, batches: tf.data.Dataset) -> float:
    """Return the share of seeds whose label has the highest score."""
    return model.evaluate(batches, return_dict=True, verbose=0)["sparse_categorical_accuracy"]


def main() -> int:
    """Train on Cora; return 0 if the accuracy is high enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path, help="the folder of the exported files train-… and test-…")
    parser.add_argument("--schema", type=Path, help="the GraphSchema of the files; default: train.pbtxt beside them")
    parser.add_argument("--runner", action="store_true", help="train with TF-GNN's runner")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--wanted", type=float, default=0.72, help="test accuracy below which the script fails")
    values = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    tf.keras.utils.set_random_seed(0)
    schema = tfgnn.read_schema(str(values.schema or values.samples / "train.pbtxt"))
    spec = tfgnn.create_graph_spec_from_schema_pb(schema)
    train = train_with_runner if values.runner else train_with_fit
    found = train(values.samples, spec, values.epochs)
    print(f"test accuracy {found:.3f} after {values.epochs} epochs; wanted {values.wanted} or more")
    return 0 if found >= values.wanted else 1


if __name__ == "__main__":
    sys.exit(main())
