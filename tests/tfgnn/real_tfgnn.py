"""Answer what the real TF-GNN 1.0.3 does: questions as JSON on stdin, answers on stdout.

Run by the interpreter that has it, which need not have Hopstream: see "Beside the real libraries" in CONTRIBUTING.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parent))


def specs(asked: list[dict[str, Any]]) -> list[Any]:
    """Specs that TF-GNN's builder makes of programs."""
    import programs
    from google.protobuf import text_format
    from tensorflow_gnn.proto import graph_schema_pb2
    from tensorflow_gnn.sampler import sampling_spec_builder as real

    schemas = {name: text_format.Parse(text, graph_schema_pb2.GraphSchema()) for name, text in programs.SCHEMAS.items()}
    return [
        programs.run(one, schemas[one["schema"]], real.SamplingSpecBuilder, real.make_sampling_spec_tree)
        for one in asked
    ]


def names(asked: list[str]) -> list[list[str]]:
    """Names of the files that TF-GNN writes for values of ``--output_samples``."""
    import apache_beam as beam
    import tensorflow as tf
    from tensorflow_gnn.data import unigraph

    found = []
    for name in asked:
        with tempfile.TemporaryDirectory() as folder:
            with beam.Pipeline() as pipeline:
                examples = pipeline | beam.Create([tf.train.Example()])
                _ = examples | unigraph.WriteTable(str(Path(folder) / name))
            found.append(sorted(path.name for path in Path(folder).iterdir() if path.is_file()))
    return found


def sampled(asked: dict[str, Any]) -> dict[str, Any]:
    """Output of ``tfgnn_sampler`` for a unigraph: file names, and the sorted values of each record.

    Args:
        asked: ``files`` of the unigraph by name, the ``spec`` and the ``output``.
    """
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in asked["files"].items():
            (folder / path).write_text(text)
        (folder / "spec.pbtxt").write_text(asked["spec"])
        (folder / "out").mkdir()
        subprocess.run(
            [
                Path(sys.executable).with_name("tfgnn_sampler"), f"--graph_schema={folder}/schema.pbtxt",
                f"--sampling_spec={folder}/spec.pbtxt", f"--output_samples={folder}/out/{asked['output']}",
            ],
            check=True, stdout=sys.stderr, timeout=600,
        )  # fmt: skip
        paths = sorted(path for path in (folder / "out").iterdir() if path.is_file())
        records = [record.numpy() for record in tf.data.TFRecordDataset([str(path) for path in paths])]
    return {
        "files": [path.name for path in paths],
        "records": sorted((_values_of(tf.train.Example.FromString(record)) for record in records), key=str),
    }


def _values_of(example: Any) -> dict[str, list[Any]]:
    found = {}
    for name, feature in sorted(example.features.feature.items()):
        if feature.WhichOneof("kind") == "bytes_list":
            found[name] = sorted(value.decode() for value in feature.bytes_list.value)
        else:
            found[name] = sorted([*feature.int64_list.value, *feature.float_list.value])
    return found


def main() -> None:
    """Answer the questions of each kind."""
    asked = json.load(sys.stdin)
    answered = {kind: {"specs": specs, "names": names, "sampled": sampled}[kind](of) for kind, of in asked.items()}
    print(json.dumps(answered).replace("]], [[", "]],\n[["))  # noqa: T201


if __name__ == "__main__":
    main()
