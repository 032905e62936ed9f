"""Graph, spec and seeds that tests export."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import RaggedArray
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from hopstream.tfgnn.graph_schema import message_text, schema_message
from hopstream.tfgnn.sampling_spec import RANDOM_UNIFORM
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder
from tests.conftest import make_typed_graph

NUM_AUTHORS = 25


def named_graph(rng: np.random.Generator) -> Graph:
    """Papers and authors; authors have raw ids that are strings, papers such as are integers."""
    made = make_typed_graph(rng)
    names = RaggedArray.from_strings([f"author {number}" for number in range(NUM_AUTHORS)])
    authors, papers = made.nodes["author"], made.nodes["paper"]
    numbers = 1000 + 3 * np.arange(papers.num_nodes)
    return replace(
        made,
        nodes={
            **made.nodes,
            "author": replace(authors, features={**authors.features, "#id": names}),
            "paper": replace(papers, features={**papers.features, "id": numbers}),
        },
    ).check()


def write_world(folder: Path, *, num_parts: int = 3) -> Path:
    """A dataset and a spec that starts from authors; the same graph for any number of parts."""
    graph = named_graph(np.random.default_rng(3))
    write_parts(graph, folder / "parts", num_parts=num_parts, method="random", direction="out")
    seed = SamplingSpecBuilder(schema_message(graph.schema), RANDOM_UNIFORM).seed("author")
    spec = seed.sample(4, "writes").sample(3, "cites").build()
    (folder / "spec.pbtxt").write_text(message_text(spec))
    return folder


def spec_from(node_type: str, edge_set: str) -> Any:
    """One op."""
    schema = schema_message(named_graph(np.random.default_rng(3)).schema)
    return SamplingSpecBuilder(schema, RANDOM_UNIFORM).seed(node_type).sample(3, edge_set).build()


def some_seeds(num_seeds: int = 150) -> list[str]:
    """Names of authors, each several times."""
    numbers = np.random.default_rng(5).integers(0, NUM_AUTHORS, num_seeds)
    return [f"author {number}" for number in numbers]


def digests(folder: Path) -> dict[str, str]:
    """Digest of every file of a folder by its name."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir()) if p.is_file()}
