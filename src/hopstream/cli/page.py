"""Write a census as one page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hopstream.cli.census import Census
from hopstream.cli.degrees import DegreeSummary
from hopstream.cli.page_parts import grid, page_of, section, table, tiles
from hopstream.cli.plots import MAX_BARS, MAX_HEAT_PARTS, balance_plot, bin_text, degree_plot, heat_map
from hopstream.cli.types import edge_type_text, features_text
from hopstream.cli.units import bytes_text, count_text, full_plural_text, percent_text
from hopstream.dataset.balance import max_over_mean
from hopstream.schema import EdgeType


def render_page(census: Census) -> str:
    """The whole page."""
    sections = [_head(census), _types(census), _degrees(census.degrees), _parts(census), _edges_between(census)]
    return page_of(census.name, sections)


def _head(census: Census) -> str:
    report = census.report
    numbers = [
        ("nodes", count_text(census.num_nodes)),
        ("edges", count_text(census.num_edges)),
        ("parts", count_text(census.num_parts)),
    ]
    if report is not None:
        numbers += [("size", bytes_text(census.num_bytes)), ("edges cut", percent_text(report.cut.fraction))]
    made = census.made_by_text()
    stored = f" with {census.stored_text()}" if census.stored_text() else ""
    made_line = f'<p class="faint">made by: {escape(made)}</p>' if made else ""
    return (
        f'<header><h1>{escape(census.name)}</h1><p class="faint">dataset {escape(census.dataset_id)}, '
        f"graph {escape(census.graph_id)}, "
        f"edges grouped {' and '.join(_direction_text(d) for d in census.directions) or 'nowhere'}{escape(stored)}</p>"
        f"{made_line}"
        f"{tiles(numbers)}</header>"
    )


def _direction_text(direction: str) -> str:
    return "by destination (in)" if direction == "in" else "by source (out)"


def _types(census: Census) -> str:
    node_rows = [
        (
            node_type,
            f"{census.book.num_ids(node_type):,}",
            features_text(features) or "none",
            _splits_text(census, node_type) or "none",
        )
        for node_type, features in census.schema.nodes.items()
    ]
    tables = [table("Node types", ("node type", ">nodes", "features", "splits"), node_rows)]
    edge_rows = []
    for edge_type, features in census.schema.edges.items():
        cut = percent_text(census.report.cuts[edge_type].fraction) if census.report else "not told"
        has_links = edge_type in census.schema.edge_splits
        row = (
            edge_type_text(edge_type), f"{census.num_edges_of(edge_type):,}", cut, features_text(features) or "none",
            " and ".join(census.timed_directions(edge_type)) or "none",
            (_splits_text(census, edge_type) or "kept") if has_links else "none",
        )  # fmt: skip
        edge_rows.append(row)
    if edge_rows:
        headers = ("edge type", ">edges", ">cut", "features", "times", "links")
        tables.append(table("Edge types", headers, edge_rows))
    return section("Types", "", *tables)


def _splits_text(census: Census, owner: str | EdgeType) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in census.splits_of(owner).items())


def _degrees(summaries: Sequence[DegreeSummary]) -> str:
    if not summaries:
        return ""
    figures = []
    for summary in summaries:
        title = f"{edge_type_text(summary.edge_type)}, {summary.direction}"
        if not summary.num_edges:
            figures.append(f"<figure><h3>{escape(title)}</h3><figcaption>no edges of this type</figcaption></figure>")
            continue
        is_in, is_one = summary.direction == "in", summary.num_edges == 1
        ends = f"end{'s' if is_one else ''} in" if is_in else f"start{'s' if is_one else ''} from"
        caption = (
            f"{full_plural_text(summary.num_edges, 'edge')} that {ends} {full_plural_text(summary.num_nodes, 'node')} "
            f"of type {summary.node_type}; {summary.num_isolated:,} without any. "
            f"Mean {summary.mean:,.1f}, median {summary.median:,}, 99 % at most {summary.p99:,}, "
            f"highest {summary.largest:,}"
        )
        bins = [(bin_text(i), f"{count:,}") for i, count in enumerate(summary.histogram)]
        bins_table = table("", ("edges per node", ">nodes"), bins)
        figures.append(
            f"<figure><h3>{escape(title)}</h3>{degree_plot(summary)}<figcaption>{escape(caption)}</figcaption>"
            f"<details><summary>as a table</summary>{bins_table}</details></figure>"
        )
    about = "How many nodes have how many edges. Both axes are logarithmic; the grey bar counts nodes without edges."
    return section("Degrees", about, grid(figures))


def _parts(census: Census) -> str:
    loads = census.part_loads()
    servers = [(address, ", ".join(map(str, parts))) for address, parts in census.servers.items()]
    served = table("Servers", ("address", "parts"), servers) if servers else ""
    figures = grid(_load_figure(name, load) for name, load in loads.items())
    details = ""
    if census.num_parts <= MAX_BARS:
        rows = [(str(part), *(f"{load[part]:,}" for load in loads.values())) for part in range(census.num_parts)]
        loads_table = table("", (">part", *(f">{name}" for name in loads)), rows)
        details = f"<details><summary>as a table</summary>{loads_table}</details>"
    about = "What each part holds. Training waits for the fullest part, so bars should be level."
    return section("Parts", about, served, figures, details)


def _load_figure(name: str, load: Sequence[int]) -> str:
    show = bytes_text if name == "bytes" else count_text
    value = sum(load) / len(load)
    mean = f"{value:.2g}" if value < 10 and name != "bytes" else show(round(value))
    plot = balance_plot(name, load, [show(n) for n in load], mean) if len(load) <= MAX_BARS else ""
    caption = f"the fullest part has {max_over_mean(load):.2f} times the mean of {mean}"
    return f"<figure><h3>{escape(name)}</h3>{plot}<figcaption>{caption}</figcaption></figure>"


def _edges_between(census: Census) -> str:
    if census.report is None or not census.num_edges:
        return ""
    between, cut = census.report.edges_between, census.report.cut
    if not between or len(between) > MAX_HEAT_PARTS:
        text = f"{cut.num_cut:,} of {cut.num_edges:,} edges are cut. A map is drawn up to {MAX_HEAT_PARTS} parts."
        return section("Edges between parts", text)
    about = (
        f"{cut.num_cut:,} of {cut.num_edges:,} edges ({percent_text(cut.fraction)}) lead from one part to "
        "another. Rows are the part of the source, columns that of the destination."
    )
    header = ("from part", *(f">to {q}" for q in range(len(between))))
    rows = [(str(p), *(f"{count:,}" for count in row)) for p, row in enumerate(between)]
    details = f"<details><summary>as a table</summary>{table('', header, rows)}</details>"
    return section("Edges between parts", about, f'<figure class="wide">{heat_map(between)}</figure>', details)
