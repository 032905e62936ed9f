"""Measures time, memory and edge cut of partitioning the benchmark graph."""

from __future__ import annotations

import shutil
import time

from benchmarks.harness import read_options, report
from benchmarks.prepare import make_graph
from hopstream.preparation.write import write_parts

NUM_PARTS = 4


def main() -> None:
    """Partition the graph with the default method and balance."""
    options = read_options(__doc__ or "")
    out = options.data / f"cut-{options.scale}"
    write_parts(make_graph(6), out, num_parts=NUM_PARTS, overwrite=True)  # compiles the kernels
    graph = make_graph(options.scale)
    started = time.perf_counter()
    cut = write_parts(graph, out, num_parts=NUM_PARTS, overwrite=True, num_threads=options.num_threads).report
    seconds = time.perf_counter() - started
    num_edges = sum(table.num_edges for table in graph.edges.values())
    settings = {"scale": options.scale, "num_parts": NUM_PARTS, "method": "kaminpar", "threads": options.num_threads}
    figures = {"total_s": seconds, "edges_per_s": num_edges / seconds, "cut": cut.cut.fraction}
    figures |= {f"{stage.name}_s": stage.seconds for stage in cut.stages}
    figures |= {f"{name}_max_over_mean": cut.balance[name] for name in ("nodes", "edges", "bytes")}
    report("partition", settings, figures)
    shutil.rmtree(out)


if __name__ == "__main__":
    main()
