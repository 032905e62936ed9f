"""Measures exported subgraphs per second and core, on a graph like OGBN-MAG.

A paper has 128 float32 features; the five ops draw 16, 8, 8, 8 and 8 neighbours, the two ops 8 and 4.
"""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import RNG_SEED, Options, read_options, report
from hopstream.dataset.layout import open_dataset
from hopstream.export.run import export_subgraphs
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.tfgnn.graph_schema import schema_message
from hopstream.tfgnn.sampling_spec import RANDOM_UNIFORM
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder

FULL_SCALE = 20
"""From this scale on, the graph has 1 M papers."""
SEEDS_PER_BATCH = {"five_ops": 16, "two_ops": 160}


def num_papers_of(options: Options) -> int:
    """Number of papers: a million, or fewer at small scales."""
    return 1_000_000 >> max(0, FULL_SCALE - options.scale)


def mag_like(num_papers: int) -> Graph:
    """Make a graph of papers, authors, topics and institutions with skewed popularity."""
    rng = np.random.default_rng(RNG_SEED)
    counts = {
        "paper": num_papers, "author": num_papers * 9 // 8, "field_of_study": num_papers // 16,
        "institution": num_papers // 115,
    }  # fmt: skip

    def popular(node_type: str, num_edges: int) -> np.ndarray:
        return (rng.random(num_edges) ** 2 * counts[node_type]).astype(np.int64)

    def edges(src: str, dst: str, num_edges: int) -> EdgeTable:
        return EdgeTable(src_keys=rng.integers(0, counts[src], num_edges), dst_keys=popular(dst, num_edges))

    written = edges("paper", "author", 10 * num_papers)
    features = {
        "feat": rng.random((num_papers, 128), np.float32),
        "labels": rng.integers(0, 349, num_papers),
        "year": rng.integers(1990, 2020, num_papers),
    }
    return Graph(
        nodes={t: NodeTable(num_nodes=n, features=features if t == "paper" else {}) for t, n in counts.items()},
        edges={
            ("paper", "cites", "paper"): edges("paper", "paper", 20 * num_papers),
            ("paper", "written", "author"): written,
            ("author", "writes", "paper"): EdgeTable(src_keys=written.dst_keys, dst_keys=written.src_keys),
            ("author", "affiliated_with", "institution"): edges("author", "institution", counts["author"]),
            ("paper", "has_topic", "field_of_study"): edges("paper", "field_of_study", 10 * num_papers),
        },
    )


def specs_of(schema: Any) -> dict[str, Any]:
    """Sampling specs with five ops and with two ops, by name."""
    seed = SamplingSpecBuilder(schema, RANDOM_UNIFORM).seed("paper")
    cited = seed.sample(16, "cites")
    authors = cited.join([seed]).sample(8, "written")
    papers = authors.sample(8, "writes")
    authors.sample(8, "affiliated_with")
    five = papers.join([seed, cited]).sample(8, "has_topic").build()
    two = SamplingSpecBuilder(schema, RANDOM_UNIFORM).seed("paper").sample(8, "cites").sample(4, "cites").build()
    return {"five_ops": five, "two_ops": two}


def measure(folder: Path, name: str, spec: Any, seeds: np.ndarray, num_repeats: int) -> dict[str, float]:
    """Export seeds several times; return figures of the fastest run, in processor time and wall time."""
    quickest: dict[str, float] = {}
    by_clock: dict[str, float] = {}
    num_bytes, clock_s = 0, math.inf
    for _ in range(num_repeats + 1):  # the first one compiles
        started = time.perf_counter()
        done = export_subgraphs(
            folder / "parts", spec, folder / "out" / name, seeds=seeds, num_workers=0, num_shards=1, overwrite=True
        )
        num_bytes, clock_s = done.num_bytes, min(clock_s, time.perf_counter() - started)
        if not quickest or sum(done.seconds.values()) < sum(quickest.values()):
            quickest, by_clock = dict(done.seconds), dict(done.wall_seconds)
    total = sum(quickest.values())
    shares = {f"{name}_{stage}_share": seconds / total for stage, seconds in quickest.items()}
    return {
        f"{name}_subgraphs_per_s": len(seeds) / total,
        f"{name}_subgraphs_per_s_by_clock": len(seeds) / clock_s,
        f"{name}_kb_per_subgraph": num_bytes / len(seeds) / 1e3,
        **shares,
        **{f"{name}_{stage}_wall_s": seconds for stage, seconds in by_clock.items()},
    }


def prepared(options: Options) -> Path:
    """Return the folder with the dataset; write the dataset if it is missing."""
    num_papers = num_papers_of(options)
    folder = options.data / f"mag-{num_papers}"
    if not (folder / "parts" / "manifest.json").exists():
        write_parts(
            mag_like(num_papers), folder / "parts", num_parts=1, method="hash", direction="out", overwrite=True,
            keep_edge_keys=False,
        )  # fmt: skip
    return folder


def main() -> None:
    """Measure one thread."""
    options = read_options(__doc__ or "")
    folder = prepared(options)
    schema = open_dataset(folder / "parts").manifest.schema
    rng = np.random.default_rng(RNG_SEED)
    figures: dict[str, float] = {}
    for name, spec in specs_of(schema_message(schema)).items():
        seeds = rng.integers(0, num_papers_of(options), SEEDS_PER_BATCH[name] * options.num_batches)
        figures |= measure(folder, name, spec, seeds, options.num_repeats)
    shutil.rmtree(folder / "out")
    report("export", {"scale": options.scale, "threads": 1}, figures)


if __name__ == "__main__":
    main()
