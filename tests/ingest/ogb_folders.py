"""Write datasets in OGB's layouts; each function writes one and returns the arrays of ``ogb``."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
NUM_NODES = {"author": 5, "paper": 7}


def table(path: Path, rows, header: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(str, np.atleast_1d(row).tolist())) for row in rows]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in ([header] if header else []) + lines).encode()))


def split_keys(root: Path, num_nodes: int) -> dict[str, np.ndarray]:
    keys = {"train": np.arange(0, num_nodes, 2), "valid": np.array([1]), "test": np.arange(3, num_nodes, 2)}
    for name, values in keys.items():
        table(root / f"{name}.csv.gz", values)
    return keys


def plain(root: Path, rng: np.random.Generator, num_nodes: int = 9, num_edges: int = 14):
    """As ogbn-arxiv, with features of edges."""
    graph = {
        "edge_index": rng.integers(0, num_nodes, (2, num_edges)),
        "node_feat": rng.random((num_nodes, 3)).astype(np.float32),
        "node_year": rng.integers(2000, 2020, (num_nodes, 1)),
        "edge_feat": rng.random((num_edges, 2)).astype(np.float32),
        "edge_weight": rng.integers(1, 4, (num_edges, 1)),
        "num_nodes": num_nodes,
    }
    labels = rng.integers(0, 4, (num_nodes, 1)).astype(np.float64)
    labels[2] = np.nan
    raw = root / "raw"
    table(raw / "edge.csv.gz", graph["edge_index"].T)
    table(raw / "num-node-list.csv.gz", [num_nodes])
    table(raw / "num-edge-list.csv.gz", [num_edges])
    for name in ("node_feat", "edge_feat"):
        table(raw / f"{name.replace('_', '-')}.csv.gz", graph[name].astype(str))
    for name in ("node_year", "edge_weight"):
        table(raw / f"{name}.csv.gz", graph[name])
    table(raw / "node-label.csv.gz", labels)
    table(root / "mapping" / "nodeidx2paperid.csv.gz", np.arange(num_nodes), "node idx,paper id")
    return graph, labels, split_keys(root / "split" / "time", num_nodes)


def typed(root: Path, rng: np.random.Generator):
    """As ogbn-mag."""
    edges = {WRITES: _pairs(rng, WRITES, 11), CITES: _pairs(rng, CITES, 8)}
    graph = {
        "edge_index_dict": edges,
        "num_nodes_dict": NUM_NODES,
        "node_feat_dict": {"paper": rng.random((7, 4)).astype(np.float32)},
        "node_year": {"paper": rng.integers(2000, 2020, (7, 1))},
        "edge_reltype": {t: np.full((pair.shape[1], 1), number) for number, (t, pair) in enumerate(edges.items())},
    }
    labels = {"paper": rng.integers(0, 3, (7, 1))}
    raw = root / "raw"
    table(raw / "triplet-type-list.csv.gz", [CITES, WRITES])
    table(raw / "num-node-dict.csv.gz", [list(NUM_NODES.values())], ",".join(NUM_NODES))
    table(raw / "nodetype-has-feat.csv.gz", [["False", "True"]], "author,paper")
    table(raw / "node-feat/paper/node-feat.csv.gz", graph["node_feat_dict"]["paper"].astype(str))
    table(raw / "node-feat/paper/node_year.csv.gz", graph["node_year"]["paper"])
    for edge_type, pair in edges.items():
        folder = raw / "relations" / "___".join(edge_type)
        table(folder / "edge.csv.gz", pair.T)
        table(folder / "num-edge-list.csv.gz", [pair.shape[1]])
        table(folder / "edge_reltype.csv.gz", graph["edge_reltype"][edge_type])
    table(raw / "nodetype-has-label.csv.gz", [["False", "True"]], "author,paper")
    table(raw / "node-label/paper/node-label.csv.gz", labels["paper"])
    table(root / "split/time/nodetype-has-split.csv.gz", [["False", "True"]], "author,paper")
    keys = split_keys(root / "split/time/paper", 7)
    return graph, labels, {name: {"paper": values} for name, values in keys.items()}


def plain_npz(root: Path, rng: np.random.Generator):
    """As ogbn-papers100M."""
    graph = {
        "edge_index": rng.integers(0, 9, (2, 14)), "node_feat": rng.random((9, 3)).astype(np.float32),
        "node_year": rng.integers(2000, 2020, (9, 1)), "num_nodes": 9,
    }  # fmt: skip
    labels = rng.random((9, 1)).astype(np.float32)
    (root / "raw").mkdir(parents=True)
    arrays = {name: value for name, value in graph.items() if name != "num_nodes"}
    np.savez(root / "raw/data.npz", num_nodes_list=np.array([9]), num_edges_list=np.array([14]), **arrays)
    np.savez(root / "raw/node-label.npz", node_label=labels)
    return graph, labels, split_keys(root / "split" / "time", 9)


def typed_npz(root: Path, rng: np.random.Generator):
    """The archives of several types."""
    edges = {WRITES: _pairs(rng, WRITES, 11), CITES: _pairs(rng, CITES, 8)}
    graph = {
        "edge_index_dict": edges, "num_nodes_dict": NUM_NODES,
        "node_feat": {"paper": rng.random((7, 4)).astype(np.float32)},
        "edge_time": {CITES: rng.integers(0, 9, (8, 1))},
    }  # fmt: skip
    raw = root / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / "num_nodes_dict.npz", **{t: np.array([n]) for t, n in NUM_NODES.items()})
    np.savez(raw / "num_edges_dict.npz", **{"___".join(t): np.array([e.shape[1]]) for t, e in edges.items()})
    np.savez(raw / "edge_index_dict.npz", **{"___".join(t): pair for t, pair in edges.items()})
    np.savez(raw / "node_feat.npz", **graph["node_feat"])
    np.savez(raw / "edge_time.npz", **{"___".join(t): column for t, column in graph["edge_time"].items()})
    return graph, None, None


def mapped(root: Path, rng: np.random.Generator):
    """As MAG240M, without the two files that torch writes."""
    edges = {WRITES: _pairs(rng, WRITES, 11), CITES: _pairs(rng, CITES, 8)}
    columns = {
        "feat": rng.random((7, 4)).astype(np.float16), "label": rng.random(7).astype(np.float32),
        "year": rng.integers(2000, 2020, 7).astype(np.int16),
    }  # fmt: skip
    for edge_type, pair in edges.items():
        folder = root / "processed" / "___".join(edge_type)
        folder.mkdir(parents=True)
        np.save(folder / "edge_index.npy", pair)
    (root / "processed/paper").mkdir()
    for name, column in columns.items():
        np.save(root / f"processed/paper/node_{name}.npy", column)
    graph = {"edge_index_dict": edges, "num_nodes_dict": NUM_NODES}
    return {**graph, **{f"node_{name}": {"paper": column} for name, column in columns.items()}}, None, None


def _pairs(rng: np.random.Generator, edge_type, num_edges: int) -> np.ndarray:
    return np.stack([rng.integers(0, NUM_NODES[t], num_edges) for t in (edge_type[0], edge_type[2])])
