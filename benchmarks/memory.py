"""Measures the peak memory of every verb with ``--memory``, over all its processes, against the bound.

    python -m benchmarks.memory --scale 20 --memory least 512MiB 700MB 1GiB 2GiB

The R-MAT graph of the other benchmarks, with features of nodes and of edges, is written once as tables, as a chunked
graph and as datasets. Each verb runs as a command, and the memory of its processes is sampled. ``least`` means the
smallest memory that the verb accepts, which its error message names.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.processes import Watched, watch
from hopstream.assign.run import assign_folder
from hopstream.engine.settings import memory_bytes
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.synthetic import rmat_graph
from hopstream.preparation.append.run import append
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE, type_label

EDGES_PER_NODE, NUM_FEATURES, NUM_CHUNKS, NUM_PARTS = 16, 32, 4, 4
NEW_SHARE, NUM_SEEDS = 64, 4096
"""``NEW_SHARE``: old edges per edge that is appended before ``compact``."""
SPEC = """
seed_op { op_name: "seed" node_set_name: "node" }
sampling_ops { op_name: "hop" input_op_names: "seed" edge_set_name: "to" sample_size: 4 strategy: RANDOM_UNIFORM }
"""
SCHEMA = """
node_sets {
  key: "node"
  value { features { key: "v" value { dtype: DT_INT64 } } metadata { filename: "nodes.parquet" } }
}
edge_sets { key: "to" value { source: "node" target: "node" metadata { filename: "edges.parquet" } } }
"""


def prepare(folder: Path, scale: int) -> None:
    """Write all inputs, unless they exist."""
    if (folder / "ready").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plain = rmat_graph(scale, edges_per_node=EDGES_PER_NODE, num_features=NUM_FEATURES, num_classes=16)
    table = plain.edges[EDGE]
    rng = np.random.default_rng(0)
    features = {"weight": rng.random(table.num_edges, np.float32)}
    edges = EdgeTable(src_keys=table.src_keys, dst_keys=table.dst_keys, features=features)
    graph = Graph(nodes=plain.nodes, edges={EDGE: edges}, splits=plain.splits)
    _write_tables(folder, graph)
    write_chunked(graph, folder / "chunks", num_chunks=NUM_CHUNKS, edges_format="parquet", data_format="numpy")
    assign_folder(graph, folder / "owners", num_parts=NUM_PARTS, method="random")
    write_parts(graph, folder / "parts", num_parts=NUM_PARTS, method="random")
    _append(folder, graph)
    (folder / "spec.pbtxt").write_text(SPEC)
    (folder / "ready").touch()


def _write_tables(folder: Path, graph: Graph) -> None:
    """Write raw ids in an order of their own, as Parquet tables that are also a unigraph."""
    (folder / "tables").mkdir()
    (folder / "unigraph").mkdir()
    num_nodes, table = graph.nodes[NODE].num_nodes, graph.edges[EDGE]
    raw = np.random.default_rng(1).permutation(num_nodes) + (1 << 40)
    x = graph.nodes[NODE].features["x"]
    columns = {f"x{i}": x[:, i] for i in range(8)}  # type: ignore[index]
    pq.write_table(pa.table({"id": raw, **columns}), folder / "tables" / "nodes.parquet", row_group_size=1 << 16)
    ends = {"src": raw[table.src_keys], "dst": raw[table.dst_keys], "weight": table.features["weight"]}
    pq.write_table(pa.table(ends), folder / "tables" / "edges.parquet", row_group_size=1 << 18)
    metadata = {
        "nodes": {"node": {"files": "nodes.parquet", "id": "id", "features": {"x": {"columns": list(columns)}}}},
        "edges": [
            {"type": list(EDGE), "files": "edges.parquet", "src": "src", "dst": "dst", "features": ["weight"]}
        ],
    }  # fmt: skip
    (folder / "tables" / "metadata.json").write_text(json.dumps(metadata))
    names = raw.astype(str)
    pq.write_table(
        pa.table({"#id": names, "v": np.arange(num_nodes)}), folder / "unigraph" / "nodes.parquet",
        row_group_size=1 << 16,
    )  # fmt: skip
    ends = {"#source": names[table.src_keys], "#target": names[table.dst_keys]}
    pq.write_table(pa.table(ends), folder / "unigraph" / "edges.parquet", row_group_size=1 << 18)
    (folder / "unigraph" / "schema.pbtxt").write_text(SCHEMA)
    (folder / "seeds.csv").write_text("\n".join(["#id", *names[: min(num_nodes, NUM_SEEDS)]]))


def _append(folder: Path, graph: Graph) -> None:
    """Write a dataset with appended edges."""
    num_new, rng = graph.edges[EDGE].num_edges // NEW_SHARE, np.random.default_rng(2)
    src, dst = rng.integers(0, graph.nodes[NODE].num_nodes, (2, num_new))
    shutil.copytree(folder / "parts", folder / "grown")
    append(folder / "grown", edges={type_label(EDGE): (src, dst, {"weight": rng.random(num_new, np.float32)})})


def commands(folder: Path, out: Path, memory: str, workers: str | None) -> dict[str, list[str]]:
    """Verb to the words of its command; ``out`` must not exist."""
    bound = ["--memory", memory]
    shared = bound if workers is None else [*bound, "--workers", workers]
    parts = ["--parts", str(NUM_PARTS)]
    tables, chunks, unigraph = (str(folder / name) for name in ("tables", "chunks", "unigraph"))
    spec = ["--spec", str(folder / "spec.pbtxt"), "--shards", "4", "--seeds", str(folder / "seeds.csv")]
    return {
        "chunk": [tables, "--out", str(out), "--num-chunks", str(NUM_CHUNKS), *shared],
        "assign": [chunks, "--out", str(out), *parts, "--method", "ldg", *bound],
        "dispatch": [
            "--in-dir", chunks, "--partitions-dir", str(folder / "owners"), "--out-dir", str(out), *parts, *shared
        ],
        "partition": [chunks, "--out", str(out), *parts, "--method", "ldg", "--halo-hops", "1", *shared],
        "verify": [str(folder / "parts"), "--against", chunks, *bound],
        "reshard": [str(folder / "parts"), "--out", str(out), "--parts", "3", "--method", "ldg", *shared],
        "halo": [str(out), "--budget", "64MB", *bound],
        "compact": [str(out), *shared],
        "export": [unigraph, "--out", str(out / "samples"), *spec, *shared],
    }  # fmt: skip


COPIED = {"halo": "parts", "compact": "grown"}
"""Verbs that change their input in place, to the input to copy for them."""


def main() -> None:
    """Measure each verb with each memory; print one JSON object per run, and a table at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path(".benchmarks/memory"))
    parser.add_argument("--memory", nargs="+", default=["least", "512MiB", "700MB", "1GiB", "2GiB"])
    parser.add_argument("--workers", help="what the verb chooses if not given")
    parser.add_argument("--verbs", nargs="+", default=None)
    parser.add_argument("--keep", action="store_true", help="keep the inputs for the next run")
    options = parser.parse_args()
    folder, out = options.folder / str(options.scale), options.folder / "out"
    prepare(folder, options.scale)
    rows: dict[str, list[str]] = {}
    for verb in options.verbs or commands(folder, out, "", None):
        for memory in options.memory:
            given = least_of(verb, folder, out, options.workers) if memory == "least" else memory
            took, told = run_verb(verb, commands(folder, out, given, options.workers)[verb], out, folder)
            if memory == "least" and took is None:  # a later step needs more, known only after tables are read
                given = least_of(verb, folder, out, options.workers, given)
                took, told = run_verb(verb, commands(folder, out, given, options.workers)[verb], out, folder)
            facts = {"verb": verb, "memory": memory, "bound_bytes": memory_bytes(given), "told_bytes": told}
            print(json.dumps(facts | (asdict(took) if took else {})), flush=True)
            text = "refused" if took is None else f"{took.own_bytes / 1e6:.0f} MB"
            rows.setdefault(verb, []).append(text if given == memory else f"{text} of {given}")
    print(f"| verb | {' | '.join(options.memory)} |\n|---|{'---|' * len(options.memory)}")
    for verb, cells in rows.items():
        print(f"| `{verb}` | {' | '.join(cells)} |")
    if not options.keep:
        shutil.rmtree(options.folder)


def least_of(verb: str, folder: Path, out: Path, workers: str | None, memory: str = "1kB") -> str:
    """Find the smallest memory that a verb accepts, from its error message."""
    lay_out(verb, folder, out)
    words = commands(folder, out, memory, workers)[verb]
    done = subprocess.run(
        [sys.executable, "-m", "hopstream", verb, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    found = re.search(r"at least (\S+ [MG]B)", done.stderr)
    if found is None:
        raise SystemExit(f"{verb} says no least memory: {done.stderr}")
    return found[1]


def lay_out(verb: str, folder: Path, out: Path) -> None:
    """Prepare the output folder of a verb."""
    shutil.rmtree(out, ignore_errors=True)
    if verb in COPIED:
        shutil.copytree(folder / COPIED[verb], out)


def run_verb(verb: str, words: list[str], out: Path, folder: Path) -> tuple[Watched | None, int]:
    """Run a verb; return its costs, or None if it refused the memory, and the peak that it reported."""
    lay_out(verb, folder, out)
    log = folder / "log"
    took = watch([sys.executable, "-m", "hopstream", verb, *words, "--json"], log, refused=2)
    told = [json.loads(line).get("peak_bytes", 0) for line in log.read_text().splitlines() if line.startswith("{")]
    shutil.rmtree(out, ignore_errors=True)
    return took, max(told, default=0)


if __name__ == "__main__":
    main()
