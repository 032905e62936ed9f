"""Damage datasets so that their checksums, counts and fingerprint still fit."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from hopstream.arrays import RaggedArray, write_array
from hopstream.dataset.layout import read_manifest
from hopstream.dataset.manifest import Manifest
from hopstream.graph.graph import Graph, NodeTable
from tests.dataset.timed_graphs import RATES, timed_graph

IN = "edge/user__rates__movie/in"
EDGE_FILES = (
    "indices", "key", "neighbor_key", "time", "weight_sums", "weight_order", "weight_alias", "features/rating",
    "features/time",
)  # fmt: skip
OPTIONS = {"num_parts": 3, "method": "random", "time_attr": "time", "weight_attr": "rating", "neighbor_keys": True}


def full_graph(seed: int) -> Graph:
    """Times, weights, links, splits of nodes and edges; features of fixed width, ragged and of strings."""
    rng = np.random.default_rng(seed)
    graph = timed_graph(rng, timed=("user", "movie", RATES))
    num_users = graph.nodes["user"].num_nodes
    lengths = rng.integers(0, 4, num_users)
    features = {
        **graph.nodes["user"].features,
        "x": rng.random((num_users, 3)).astype(np.float32),
        "tags": RaggedArray(rng.integers(0, 9, lengths.sum()), np.concatenate([[0], np.cumsum(lengths)])),
        "name": RaggedArray.from_strings([f"user {number}" for number in range(num_users)]),
    }
    nodes = {**graph.nodes, "user": NodeTable(num_nodes=num_users, features=features)}
    splits = {"user": {"train": np.arange(0, num_users, 3)}, "movie": {"test": np.arange(5)}}
    return replace(graph, nodes=nodes, splits=splits).check()


def forge(root: Path, arrays: dict[str, np.ndarray], **changes: object) -> None:
    """Write files, and the manifest so that it agrees.

    Args:
        root: The dataset.
        arrays: File name to the array to write.
        changes: Fields of the manifest.
    """
    manifest = read_manifest(root)
    values = {field.name: getattr(manifest, field.name) for field in fields(Manifest) if field.init}
    records = {name: write_array(root / name, array) for name, array in arrays.items()}
    Manifest(**{**values, "files": {**manifest.files, **records}, **changes}).write(root)


def load(root: Path, name: str) -> np.ndarray:
    return np.load(root / name)


def edit(root: Path, name: str, change) -> None:
    """Change one file."""
    array = load(root, name)
    changed = change(array)
    changed = array if changed is None else changed
    assert not np.array_equal(changed, load(root, name))
    forge(root, {name: changed})


def edge_files(root: Path, part: int) -> dict[str, np.ndarray]:
    """All columns of the edges that a part holds."""
    return {n: load(root, n) for n in (f"part-{part:05d}/{IN}/{name}.npy" for name in ("indptr", *EDGE_FILES))}


def drop_edge(files: dict[str, np.ndarray], position: int) -> dict[str, np.ndarray]:
    """The files without one edge."""
    changed = {name: np.delete(array, position) for name, array in files.items() if "indptr" not in name}
    (indptr,) = (name for name in files if "indptr" in name)
    return {**changed, indptr: files[indptr] - (files[indptr] > position)}


def shifted_edges(root: Path, owner: tuple[object, str], by: list[int]) -> object:
    """The book with the edge offsets of one owner shifted."""
    book = read_manifest(root).book
    return replace(book, edge_offsets={**book.edge_offsets, owner: book.edge_offsets[owner] + np.array(by)})
