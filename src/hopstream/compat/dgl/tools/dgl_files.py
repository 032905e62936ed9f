"""Writes the files that DGL looks for beside a dataset's parts: original ids, and DGL's own copy of all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hopstream.arrays import Array
from hopstream.compat.dgl.binary import write_tensor_file
from hopstream.compat.dgl.dataset_parts import DatasetParts
from hopstream.compat.dgl.graphs import DEFAULT_ETYPE, DEFAULT_NTYPE
from hopstream.compat.dgl.part_config import etype_label
from hopstream.compat.dgl.writing import write_part_files
from hopstream.dataset.layout import open_dataset
from hopstream.schema import EDGE, NODE

JSON_STEM = "metadata"
ORIG_NIDS, ORIG_EIDS = "orig_nids.dgl", "orig_eids.dgl"


def write_dgl_parts(out: Path, graph_name: str) -> None:
    """Write what DGL's pipeline leaves: ``metadata.json`` and DGL's files of each part, with halos of one hop.

    Args:
        out: The dataset's folder, where they go; see ``DatasetParts`` for what it must be. Its parts are read one after
            the other.
        graph_name: What the JSON calls the graph.

    Raises:
        SchemaError: The graph holds text or rows of different lengths, or names that DGL's files cannot hold.
    """
    with tempfile.TemporaryDirectory(prefix=f".{JSON_STEM}-edges.", suffix=".partial", dir=out) as scratch:
        source = DatasetParts(open_dataset(out), Path(scratch))
        write_part_files(source, out, JSON_STEM, part_method="file", graph_name=graph_name)


def remove_unfinished(out: Path) -> None:
    """Remove what a process left in a dataset's folder that was ended in ``write_dgl_parts``."""
    for folder in out.glob(f".{JSON_STEM}*.partial"):
        shutil.rmtree(folder)


def write_orig_ids(out: Path, *, nids: bool, eids: bool) -> None:
    """Write ``orig_nids.dgl`` and ``orig_eids.dgl`` into ``part<i>/`` of a dataset's folder, one part after the other.

    A position is DGL's number of a node or edge among those of its type in the part; the value is its key.

    Args:
        out: The dataset, with edges by destination and their keys.
        nids: Write those of nodes, by node type.
        eids: Write those of edges, by ``source:relation:destination``.
    """
    dataset = open_dataset(out)
    schema = dataset.manifest.schema
    is_plain = list(schema.nodes) == [NODE] and schema.edges.keys() <= {EDGE}  # as DGL calls a graph without types
    for number in range(dataset.manifest.book.num_parts if nids or eids else 0):
        part = dataset.open_part(number)
        folder = out / f"part{number}"
        folder.mkdir(exist_ok=True)
        if nids:
            nodes = {DEFAULT_NTYPE if is_plain else t: keys for t, keys in part.node_keys.items()}
            _write(folder / ORIG_NIDS, nodes)
        if eids:
            edges = {
                etype_label(DEFAULT_ETYPE if is_plain else edge_type): np.sort(held.keys)
                for (edge_type, direction), held in part.edges.items()
                if direction == "in" and held.keys is not None
            }
            _write(folder / ORIG_EIDS, edges)


def _write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a file under another name, then rename it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write_tensor_file(partial, arrays)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
