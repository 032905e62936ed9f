"""HTML pages that need no other file: their frame and parts, and the page of a dataset's census."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from hopstream.cli.census import Census, DegreeSummary
from hopstream.cli.plots import MAX_BARS, MAX_HEAT_PARTS, balance_plot, bin_text, degree_plot, heat_map
from hopstream.cli.types import edge_type_text, features_text
from hopstream.cli.units import bytes_text, count_text, full_plural_text, percent_text
from hopstream.dataset.balance import max_over_mean
from hopstream.schema import EdgeType

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --panel: #f6f7f9; --ink: #1b1f24; --faint: #5c6672;
  --line: #dde1e6; --accent: #2f6f9f; --strong: #ffffff; --heat: #1d4f7c;
  --mean: #b4451f; --empty: #8a94a0; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --panel: #1d2125; --ink: #e6e9ec; --faint: #9aa5b1;
  --line: #343a41; --accent: #6db3e2; --strong: #0b1118; --heat: #4f97c9; --mean: #f0906a; --empty: #6c7681; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 4px; }
h3 { font-size: 14px; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
p { margin: 0 0 12px; max-width: 75ch; }
.faint, figcaption { color: var(--faint); font-size: 13px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); gap: 10px; margin: 20px 0 0; }
.tiles div, figure, .scroll { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; }
.tiles div { padding: 10px 14px; }
dl, dd { margin: 0; }
dt { color: var(--faint); font-size: 13px; }
dd { font-size: 21px; font-variant-numeric: tabular-nums; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 14px;
  align-items: start; }
figure { margin: 0; padding: 12px 14px; min-width: 0; }
figure svg { display: block; width: 100%; max-width: 480px; height: auto; margin: 8px auto 6px; }
.wide { overflow-x: auto; width: fit-content; max-width: 100%; }
.wide svg { width: auto; max-width: none; margin: 8px 0; }
.scroll { overflow-x: auto; margin: 0 0 14px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
th { font-weight: 600; }
thead th { color: var(--faint); font-size: 13px; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.text { min-width: min(200px, 34vw); overflow-wrap: anywhere; }
@media (max-width: 560px) { th, td { padding: 6px 8px; } main { padding: 20px 12px 40px; } }
details { margin: 10px 0; }
summary { cursor: pointer; color: var(--faint); font-size: 13px; }
details .scroll { margin-top: 8px; max-height: 420px; overflow-y: auto; }
svg text { fill: var(--faint); font-size: 11px; font-variant-numeric: tabular-nums; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
svg .axis { font-size: 12px; }
svg .label { fill: var(--ink); } svg .label.inside { fill: var(--strong); }
svg .cell { fill: var(--ink); } svg .cell.strong { fill: var(--strong); }
svg .bar { fill: var(--accent); } svg .heat { fill: var(--heat); } svg .bar.empty { fill: var(--empty); }
svg .grid { stroke: var(--line); } svg .base { stroke: var(--faint); }
svg .mean { stroke: var(--mean); stroke-width: 1.5; stroke-dasharray: 5 3; }
"""


def page_of(title: str, sections: Iterable[str]) -> str:
    """The whole page, of sections that are HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Numbers in boxes, each under its name."""
    boxes = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in values)
    return f'<dl class="tiles">{boxes}</dl>'


def section(title: str, about: str, *content: str) -> str:
    """A part of a page under a heading, with a line of what it shows."""
    text = f'<p class="faint">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{text}{''.join(content)}</section>"


def grid(figures: Iterable[str]) -> str:
    """Figures beside each other, as many as fit."""
    return f'<div class="grid">{"".join(figures)}</div>'


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls where it is too wide. A header that starts with ``>`` heads numbers."""
    css = ["number" if header.startswith(">") else "text" for header in headers]
    head = "".join(
        f'<th scope="col" class="{c}">{escape(h.removeprefix(">"))}</th>' for h, c in zip(headers, css, strict=True)
    )
    body = []
    for row in rows:
        first, *rest = (escape(cell) for cell in row)
        cells = "".join(f'<td class="{c}">{cell}</td>' for cell, c in zip(rest, css[1:], strict=True))
        body.append(f'<tr><th scope="row" class="{css[0]}">{first}</th>{cells}</tr>')
    title = f' aria-label="{escape(caption, quote=True)}"' if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table{title}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


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
