"""Small graph and spec for tests of seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopstream.arrays import RaggedArray
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts

NUM_PAPERS = 80
OPS = """
sampling_ops < op_name: "a" input_op_names: "seed" edge_set_name: "cites" sample_size: 3 strategy: RANDOM_UNIFORM >
sampling_ops < op_name: "b" input_op_names: "a" edge_set_name: "cites" sample_size: 2 strategy: RANDOM_UNIFORM >
"""
SPEC = 'seed_op < op_name: "seed" node_set_name: "paper" >' + OPS
LINK_SPEC = 'symmetric_link_seed_op < op_name: "seed" >' + OPS


def name_of(key: int) -> str:
    """The raw id of a paper."""
    return f"paper {key:03}"


def write_papers(folder: Path, num_parts: int = 2) -> Path:
    """Papers with raw ids and labels; each cites twelve others, so that draws differ."""
    rng = np.random.default_rng(5)
    names = RaggedArray.from_strings([name_of(key) for key in range(NUM_PAPERS)])
    labels = np.arange(NUM_PAPERS).reshape(-1, 1)
    tags = RaggedArray.from_rows([np.arange(key % 3) for key in range(NUM_PAPERS)])
    papers = NodeTable(num_nodes=NUM_PAPERS, features={"#id": names, "labels": labels, "tags": tags})
    cites = EdgeTable(
        src_keys=np.repeat(np.arange(NUM_PAPERS), 12), dst_keys=rng.integers(0, NUM_PAPERS, 12 * NUM_PAPERS)
    )
    graph = Graph(nodes={"paper": papers}, edges={("paper", "cites", "paper"): cites})
    write_parts(graph.check(), folder, num_parts=num_parts, method="random", direction="out")
    return folder
