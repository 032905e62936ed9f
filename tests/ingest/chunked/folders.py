"""Chunked graphs for tests, written without the code under test."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WRITES = "author:writes:paper"
AUTHORS, PAPERS = 5, 4
PAIRS = np.array([[0, 1], [4, 3], [2, 2], [2, 2], [0, 0], [3, 1], [1, 3]])
FEAT = np.arange(12, dtype=np.float32).reshape(4, 3)
WEIGHT = np.arange(7, dtype=np.int16)


@dataclass
class Folder:
    """A folder and its metadata, which a test may change before it is read."""

    root: Path
    metadata: dict[str, Any] = field(default_factory=dict)

    def save(self) -> Path:
        (self.root / "metadata.json").write_text(json.dumps(self.metadata))
        return self.root

    def write(self, name: str, content: str | bytes | np.ndarray | pa.Table) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str | bytes):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        elif isinstance(content, np.ndarray):
            np.save(path, content)
        else:
            pq.write_table(content, path, row_group_size=2)
        return name

    def set_edges(self, file_format: str, contents: list[Any], **more: str) -> None:
        names = [self.write(f"e/{n}.{file_format}", content) for n, content in enumerate(contents)]
        if file_format == "numpy":
            names = [self.write(f"e/{n}.npy", content) for n, content in enumerate(contents)]
        self.metadata["edges"][WRITES] = {"format": {"name": file_format, **more}, "data": names}
        self.metadata.pop("num_edges_per_chunk", None)

    def set_feat(self, file_format: str, contents: list[Any], *, num_nodes: int = PAPERS) -> None:
        suffix = "npy" if file_format == "numpy" else "parquet"
        names = [self.write(f"n/{n}.{suffix}", content) for n, content in enumerate(contents)]
        self.metadata["node_data"]["paper"] = {"feat": {"format": {"name": file_format}, "data": names}}
        self.metadata["num_nodes_per_type"][1] = num_nodes
        self.metadata.pop("num_nodes_per_chunk", None)


def lines(pairs: np.ndarray, delimiter: str = " ", end: str = "\n") -> str:
    return "".join(f"{src}{delimiter}{dst}{end}" for src, dst in pairs)


def make_folder(root: Path) -> Folder:
    """Folder of authors that write papers: three CSV files of edges, one of them empty, and features."""
    folder = Folder(root)
    edges = [folder.write(f"e/{n}.csv", lines(PAIRS[a:b])) for n, (a, b) in enumerate([(0, 4), (4, 4), (4, 7)])]
    feats = [folder.write(f"n/{n}.npy", FEAT[a:b]) for n, (a, b) in enumerate([(0, 1), (1, 4)])]
    weights = [folder.write(f"w/{n}.npy", WEIGHT[a:b]) for n, (a, b) in enumerate([(0, 2), (2, 7)])]
    mask = folder.write("n/mask.npy", np.array([True, False, True, False]))
    numpy = {"name": "numpy"}
    folder.metadata = {
        "graph_name": "g",
        "node_type": ["author", "paper", "place"],
        "num_nodes_per_type": [AUTHORS, PAPERS, 0],
        "num_nodes_per_chunk": [[3, 2], [1, 3], []],
        "edge_type": [WRITES, "paper:cites:paper"],
        "num_edges_per_type": [7, 0],
        "num_edges_per_chunk": [[4, 0, 3], []],
        "edges": {WRITES: {"format": {"name": "csv", "delimiter": " "}, "data": edges}},
        "node_data": {
            "paper": {"feat": {"format": numpy, "data": feats}, "train_mask": {"format": numpy, "data": [mask]}}
        },
        "edge_data": {WRITES: {"weight": {"format": numpy, "data": weights}}},
    }
    return folder
