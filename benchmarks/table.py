"""Formats the figures of a run as tables of the README."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.limits import LIMITS

BEGIN = "<!-- benchmarks: begin (written by `make bench`) -->"
END = "<!-- benchmarks: end -->"
WAYS_BEGIN = "<!-- ways to sample: begin (written by `make bench`) -->"
WAYS_END = "<!-- ways to sample: end -->"

NOTE = """\
R-MAT scale {scale} (2.1 M nodes, 67 M directed edges), 1024 seeds, fan-out 15, 10, 5, 100 float32 features. Medians of
one run on {cores}, each case in a fresh process (peak memory is of the largest process and counts mapped pages),
{made}. Memory of the machine before and after: {dependent_read_ns} ns per dependent
random read, {independent_read_ns} ns per independent one, {memcpy_gb_per_s} GB/s copied. The limit of a batch is one
independent read per edge and one copy of its rows at those speeds, over the cores in use.
While a case ran, other processes took at most {others} of the cores. Other machines have similar ratios, not times;
`make bench` measures yours."""

WAYS_NOTE = """\
The same run, graph, seeds and fan-out; one thread, the graph mapped, and random times and weights on all edges. Uniform
sampling is slower than above, because the other ways take turns with it and evict its data from the caches. Times
are per edge of the subgraphs, beside those of plain uniform sampling; of links per seed node, beside a loader of nodes
that starts from the ends of the same links. Ways take turns, so that a slow spell of the machine hits all alike.
A node of `labor`, and every node that an `induced` subgraph has found, has all of its edges read, which on a graph with
hubs are many times those that are kept. `bidirectional` subgraphs count the reverses that are added as edges. Seeds of
temporal sampling see three quarters of the edges. Walks are 20 steps long; node2vec has p = 0.5 and q = 2."""

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
        lambda f: (
            f"{f['gb_per_s']:.1f} GB/s, {f['rows_per_s'] / 1e6:.0f} M rows/s; `numpy.take`: "
            f"{f['numpy_take_gb_per_s']:.1f} GB/s"
        ),
    ),
    ("loader", "`NeighborLoader` to `Data`, 1 thread", lambda f: _loader(f)),
    ("loader-2-threads", "`NeighborLoader` to `Data`, 2 threads", lambda f: _loader(f)),
    (
        "wire",
        "one server asked: a small call; a stream of rows",
        lambda f: (
            f"{f['small_call_ms']:.2f} ms ({f['tls_small_call_ms']:.2f} with TLS); {f['stream_gb_per_s']:.1f} GB/s "
            f"({f['tls_stream_gb_per_s']:.1f})"
        ),
    ),
    (
        "wire",
        "one seed to `Data`, fan-out 10, 10: from a folder; from two servers (median / 99th percentile)",
        lambda f: (
            f"{f['folder_one_seed_ms']:.2f} / {f['folder_one_seed_p99_ms']:.2f} ms; {f['one_seed_ms']:.1f} / "
            f"{f['one_seed_p99_ms']:.1f} ms ({f['tls_one_seed_ms']:.1f} / {f['tls_one_seed_p99_ms']:.1f} with TLS)"
        ),
    ),
    (
        "two_trainers",
        "two trainers, each with half the graph, asking the other's server",
        lambda f: f"{f['ms_per_batch']:.1f} ms per batch of the machine",
    ),
    ("two_trainers-cached", "the same, with caches for 5 % of all rows", lambda f: _cached(f)),
    ("two_trainers-sampled", "the same, with servers that sample and trainers without parts", lambda f: _cached(f)),
    (
        "streaming",
        "one trainer, batches from two servers that sample",
        lambda f: f"{f['ms_per_batch']:.1f} ms per batch, {f['share_of_called']:.0%} of the speed of plain calls",
    ),
    ("peer-graphbolt", "GraphBolt: sample and relabel, 1 thread", lambda f: _graphbolt(f)),
    (
        "peer-graphlearn",
        "graphlearn-torch: two trainers, each with half the graph",
        lambda f: f"{f['ms_per_batch']:.1f} ms per batch of the machine, {f['rows_per_batch'] / 1e3:.1f} k rows",
    ),
)

WAYS: tuple[tuple[str, str, str, str], ...] = (
    ("modes", "uniform", "uniform, without replacement", "edges"),
    ("modes", "with_replacement", "uniform, with replacement", "edges"),
    ("modes", "disjoint", "disjoint trees", "edges"),
    ("modes", "temporal_uniform", "temporal, uniform", "edges"),
    ("modes", "temporal_last", "temporal, the last", "edges"),
    ("modes", "weighted", "weighted, without replacement", "edges"),
    ("modes", "weighted_with_replacement", "weighted, with replacement", "edges"),
    ("modes", "weighted_disjoint", "weighted, disjoint trees", "edges"),
    ("modes", "weighted_temporal", "weighted, temporal", "edges"),
    ("modes", "top_k", "top-k by weight", "edges"),
    ("modes", "labor", "`labor`", "edges"),
    ("modes", "bidirectional", "`bidirectional`", "edges"),
    ("modes", "induced", "`induced`", "edges"),
    ("links", "link", "links with one negative each", "seed_nodes"),
    ("links", "link_excluded", "the same, the links themselves not followed", "seed_nodes"),
    ("links", "link_strict", "the same, negatives never edges", "seed_nodes"),
    ("links", "link_triplet", "triplets", "seed_nodes"),
    ("walks", "uniform", "random walks", "steps"),
    ("walks", "weighted", "random walks by weight", "steps"),
    ("walks", "node2vec", "node2vec walks", "steps"),
    ("ppr", "default", "neighbourhoods by personalised PageRank", "seeds"),
)
"""Case, name of its figures, their description, and the unit of speed."""


def _loader(figures: Figures) -> str:
    with_e_id = figures["with_e_id_ms_per_batch"]
    return f"{figures['ms_per_batch']:.1f} ms per batch, {with_e_id:.1f} with original edge keys (`e_id`)"


def _cached(figures: Figures) -> str:
    return f"{figures['ms_per_batch']:.1f} ms per batch of the machine, {figures['saved_rows']:.0%} of rows saved"


def _graphbolt(figures: Figures) -> str:
    return (
        f"{figures['sampling_ms_per_batch']:.1f} ms per batch, {figures['edges_per_s'] / 1e6:.0f} M edges/s; "
        f"LABOR {figures['labor_edges_per_s'] / 1e6:.2f} M edges/s"
    )


def make_table(result: Mapping[str, Any]) -> str:
    """Format the table and its conditions in Markdown."""
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


def make_ways_table(result: Mapping[str, Any]) -> str:
    """Format the comparison of all ways to sample with uniform sampling in Markdown."""
    lines = ["| way to sample | speed of one core | times as long | wanted |", "|---|---|---|---|"]
    for case, name, what, unit in WAYS:
        if case not in result["cases"]:
            continue
        figures = result["cases"][case]["figures"]
        ratio = figures.get(f"{name}_ratio")
        is_plain = name == "uniform"
        shown = "" if ratio is None or is_plain else f"{ratio:.2f}"
        wanted = f"at most {LIMITS[name]:g}" if name in LIMITS else ""
        lines.append(f"| {what} | {_speed(figures[f'{name}_{unit}_per_s'], unit)} | {shown} | {wanted} |")
    return "\n".join([*lines, "", WAYS_NOTE])


def _speed(per_s: float, unit: str) -> str:
    size, letter = next(((s, m) for s, m in ((1e6, "M"), (1e3, "k")) if per_s >= s), (1.0, ""))
    number = f"{per_s / size:.0f}" if per_s >= 10 * size else f"{per_s / size:.1f}"
    return f"{number} {letter} {unit.replace('_', ' ')}/s".replace("  ", " ")


def write_tables(result: Mapping[str, Any], readme: Path) -> None:
    """Put each table between its markers.

    Raises:
        ValueError: The file does not have both markers of a table, in order, once each.
    """
    text = readme.read_text(encoding="utf-8")
    for begin, end, table in ((BEGIN, END, make_table(result)), (WAYS_BEGIN, WAYS_END, make_ways_table(result))):
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise ValueError(f"{readme} must have the lines {begin!r} and {end!r}, in this order and once each")
        head, rest = text.split(begin)
        tail = rest.split(end)[1]
        text = f"{head}{begin}\n{table}\n{end}{tail}"
    readme.write_text(text, encoding="utf-8")
