"""How do the figures of a run read in the README?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BEGIN = "<!-- benchmarks: begin (written by `make bench`) -->"
END = "<!-- benchmarks: end -->"

NOTE = """\
R-MAT scale {scale} (2.1 M nodes, 67 M directed edges), 1024 seeds, fan-out 15, 10, 5, 100 float32 features. Medians of
one run on {cores}, each case in a fresh process (peak memory is of the largest process and counts mapped pages),
{made}. Memory of the machine before and after: {dependent_read_ns} ns per dependent
random read, {independent_read_ns} ns per independent one, {memcpy_gb_per_s} GB/s copied. The limit of a batch is one
independent read per edge and one copy of its rows at those speeds, over the cores in use.
While a case ran, other processes took at most {others} of the cores. Ratios travel between machines, absolutes do not;
`make bench` measures yours."""

Figures = Mapping[str, float]
ROWS: tuple[tuple[str, str, Callable[[Figures], str]], ...] = (
    (
        "prepare",
        "make the R-MAT graph, 2 threads; write it as 1 part",
        lambda f: f"{f['make_s']:.1f} s; {f['write_1_parts_s']:.1f} s",
    ),
    (
        "partition",
        "cut into 4 parts of even bytes (KaMinPar, 1 thread); write them",
        lambda f: f"{f['assign_s']:.1f} s, {f['cut']:.0%} of edges cut; {f['write_s']:.1f} s",
    ),
    (
        "sampling",
        "sample and relabel, 1 thread",
        lambda f: f"{f['ms_per_batch']:.1f} ms per batch, {f['edges_per_s'] / 1e6:.0f} M edges/s",
    ),
    (
        "gather",
        "gather rows of 400 bytes, 1 thread",
        lambda f: f"{f['gb_per_s']:.1f} GB/s, {f['rows_per_s'] / 1e6:.0f} M rows/s",
    ),
    ("loader", "`NeighborLoader` to `Data`, 1 thread", lambda f: _loader(f)),
    ("loader-2-threads", "`NeighborLoader` to `Data`, 2 threads", lambda f: _loader(f)),
    (
        "two_trainers",
        "two trainers, each with half the graph, asking the other's server",
        lambda f: f"{f['ms_per_batch']:.1f} ms per batch of the machine",
    ),
    ("peer-graphbolt", "GraphBolt: sample and relabel, 1 thread", lambda f: _graphbolt(f)),
)


def _loader(figures: Figures) -> str:
    with_e_id = figures["with_e_id_ms_per_batch"]
    return f"{figures['ms_per_batch']:.1f} ms per batch, {with_e_id:.1f} with original edge keys (`e_id`)"


def _graphbolt(figures: Figures) -> str:
    return f"{figures['sampling_ms_per_batch']:.1f} ms per batch, {figures['edges_per_s'] / 1e6:.0f} M edges/s"


def make_table(result: Mapping[str, Any]) -> str:
    """The table and how it came about, in Markdown."""
    lines = ["| what | figure | of the limit | peak memory |", "|---|---|---|---|"]
    for name, what, show in ROWS:
        if name in result["cases"]:
            case = result["cases"][name]
            share = case["figures"].get("share_of_limit")
            limit = "" if share is None else f"{share:.0%}"
            peaks = [value for key, value in case["figures"].items() if key.endswith("peak_bytes")]
            peak = max(case["peak_rss_bytes"], *peaks, 0)
            lines.append(f"| {what} | {show(case['figures'])} | {limit} | {peak / 2**30:.1f} GiB |")
    machine = result["machine"]
    note = NOTE.format(
        scale=result["scale"],
        cores=f"{machine['num_cores']} cores of {machine['cpu']} with {machine['memory_gib']} GiB",
        others=f"{max(case['others_share'] for case in result['cases'].values()):.0%}",
        made=f"{result['made_at'][:10]}, commit {machine['commit']}",
        **{key: " and ".join(f"{probe[key]:.3g}" for probe in result["probes"]) for key in result["probes"][0]},
    )
    return "\n".join([*lines, "", note])


def write_table(result: Mapping[str, Any], readme: Path) -> None:
    """Put the table between its markers.

    Raises:
        ValueError: The file does not have both markers, in order, once each.
    """
    text = readme.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{readme} must have the lines {BEGIN!r} and {END!r}, in this order and once each")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    readme.write_text(f"{head}{BEGIN}\n{make_table(result)}\n{END}{tail}", encoding="utf-8")
