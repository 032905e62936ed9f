"""Self-contained HTML pages with SVG plots, and the page of a dataset's census.

Plots are drawn for a width of about 340 CSS pixels and the page arranges them, so text is readable at any width. The
page's style sheet defines the colours. For accessibility, every plot has a description, and a table with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.cli.units import bytes_text, count_text, edge_type_text, features_text, full_plural_text, percent_text
from hopstream.errors import FormatError
from hopstream.schema import EdgeType

if TYPE_CHECKING:
    from hopstream.cli.census import Census, DegreeSummary
    from hopstream.cli.progress import Output

WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 62, 6, 8, 40
MAX_HEAT_PARTS = 64
"""For more parts, cells would be too small to see, and the page too large to open."""
MAX_NUMBERED_PARTS = 16
"""For more parts, cells are too small for numbers; the tooltip of a cell shows its number."""
MAX_BARS = 600
"""For more parts, bars would be thinner than half a pixel."""
STRONG_OPACITY = 0.7
"""From this opacity on, the number in a cell has the colour for a dark cell, in light and in dark mode."""
MAX_BAR_LABELS = 6
MAX_BAR_WIDTH = 60
MIN_BINS = 8
LABEL_ROOM = 14
CHARACTER_WIDTH, LINE_HEIGHT = 7, 12
"""Largest average width of a character of a label, and height of a line, in pixels, for the fonts of browsers."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Rectangle of the plot area."""

    left: float
    right: float
    top: float
    bottom: float


FRAME = _Frame(LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM)


@dataclass(frozen=True, slots=True)
class HistogramWords:
    """Texts of a histogram.

    Attributes:
        title: Its name.
        counted: Noun for the counted items, in the singular, such as ``node``.
        per: Noun for the quantity of the bins, in the singular, such as ``edge``.
        axis: Label of the axis below the bins.
        description: A sentence about the content, for screen readers.
    """

    title: str
    counted: str
    per: str
    axis: str
    description: str


def degree_plot(summary: DegreeSummary) -> str:
    """Draw the nodes per degree on logarithmic axes: a bar for each power of two, and a bar for degree 0."""
    description = (
        f"{full_plural_text(summary.num_nodes, 'node')}, {summary.num_isolated:,} of them without edges; "
        f"the mean is {summary.mean:.1f}, "
        f"the median {summary.median:,}, 99 % have at most {summary.p99:,}, the highest degree is {summary.largest:,}"
    )
    axis = "edges per node: none, then from 1, 2, 4 … on"
    return histogram_plot(summary.histogram, HistogramWords("Degree distribution", "node", "edge", axis, description))


def histogram_plot(bins: Sequence[int], words: HistogramWords, first: int = 0) -> str:
    """Draw bars of logarithmic height over bins for 0, 1, 2 to 3, 4 to 7 and so on.

    Args:
        bins: Count of each bin.
        words: Texts of the plot.
        first: The first bin to draw.
    """
    decades = max(1, math.ceil(math.log10(max(*bins, 1) * 1.05)))
    step = (FRAME.right - FRAME.left) / max(len(bins) - first, MIN_BINS)
    marks = [_count_axis(decades, words.counted + "s")]
    # Bins are a power of two apart; only every second, fourth … bin has a label if labels would overlap.
    skip = 1 << max(0, math.ceil(math.log2(30 / step)))
    for i, count in enumerate(bins[first:], first):
        left = FRAME.left + (i - first) * step
        label = bin_text(i)
        if count:
            # The offset makes a bin with count 1 visible, because the logarithm of 1 is 0.
            height = (FRAME.bottom - FRAME.top) * (math.log10(count) + 0.15) / (decades + 0.15)
            css = "bar empty" if i == 0 else "bar"
            title = f"{full_plural_text(count, words.counted)} with {label} {words.per}{'' if label == '1' else 's'}"
            marks.append(_rectangle(css, (left + 1, FRAME.bottom - height, step - 2, height), title))
        if i == 0 or (i - 1) % skip == 0:
            text = "0" if i == 0 else _power_text(i - 1)
            marks.append(_text("tick middle", left + step / 2, FRAME.bottom + 14, text))
    marks.append(_text("axis middle", (FRAME.left + FRAME.right) / 2, HEIGHT - 6, words.axis))
    return _svg(WIDTH, HEIGHT, words.title, words.description, marks)


def balance_plot(name: str, loads: Sequence[int], unit_text: Sequence[str], mean_text: str) -> str:
    """Draw one bar per part, and a line at the mean.

    Args:
        name: Name of the load.
        loads: Load of each part.
        unit_text: Load of each part as text with units.
        mean_text: The mean as text.
    """
    mean = sum(loads) / len(loads)
    top_value = max(*loads, mean, 1)
    step = (FRAME.right - FRAME.left) / len(loads)
    width = min(step - (3 if step > 6 else 0.5), MAX_BAR_WIDTH)
    is_labelled = len(loads) <= MAX_BAR_LABELS

    def height(value: float) -> float:
        return (FRAME.bottom - FRAME.top - LABEL_ROOM) * value / top_value

    marks = [_base_line()]
    labels = []
    is_split = max(map(_text_width, unit_text)) > width
    skip = max(1, math.ceil(len(loads) / MAX_BAR_LABELS))
    for part, load in enumerate(loads):
        middle = FRAME.left + (part + 0.5) * step
        box = (middle - width / 2, FRAME.bottom - height(load), width, height(load))
        marks.append(_rectangle("bar", box, f"part {part}: {unit_text[part]}"))
        if is_labelled:
            # Numbers are at the foot of the bars, because the line of the mean crosses the tops of balanced bars.
            lines = unit_text[part].split(" ") if is_split else [unit_text[part]]
            is_inside = height(load) > LINE_HEIGHT * len(lines) + 6
            css, y = ("label inside middle", FRAME.bottom - 6) if is_inside else ("label middle", box[1] - 4)
            labels += [_text(css, middle, y - LINE_HEIGHT * i, line) for i, line in enumerate(reversed(lines))]
        if part % skip == 0:
            marks.append(_text("tick middle", middle, FRAME.bottom + 14, str(part)))
    line = FRAME.bottom - height(mean)
    marks.append(f'<line class="mean" x1="{FRAME.left}" x2="{FRAME.right}" y1="{line:.1f}" y2="{line:.1f}"/>')
    marks.append(_text("tick end", FRAME.left - 5, line + 4, mean_text))
    if FRAME.bottom - line >= LINE_HEIGHT:
        marks.append(_text("tick end", FRAME.left - 5, FRAME.bottom + 4, "0"))
    marks.append(_text("axis middle", (FRAME.left + FRAME.right) / 2, HEIGHT - 6, "part (dashed line: mean)"))
    marks += labels
    largest = max(range(len(loads)), key=loads.__getitem__)
    description = f"mean {mean_text}; the most is {unit_text[largest]} in part {largest}"
    return _svg(WIDTH, HEIGHT, f"{name} per part", description, marks)


def heat_map(edges_between: Sequence[Sequence[int]]) -> str:
    """Draw the edges from each part (row) to each part (column).

    Darker cells have a larger share of all edges.
    """
    num_parts = len(edges_between)
    is_numbered = num_parts <= MAX_NUMBERED_PARTS
    left, top = 40, 34
    largest = max(max(row) for row in edges_between)
    widest = max(_text_width(count_text(count)) for row in edges_between for count in row)
    cell = max(52 if num_parts <= 4 else 40, widest + 4) if is_numbered else 12
    total = sum(map(sum, edges_between))
    marks = [_text("axis middle", left + cell * num_parts / 2, 11, "to part")]
    marks.append(_upright_text(10, top + cell * num_parts / 2, "from part"))
    skip = 1 if is_numbered else 8
    for p, row in enumerate(edges_between):
        if p % skip == 0:
            marks.append(_text("tick end", left - 5, top + p * cell + cell / 2 + 4, str(p)))
            marks.append(_text("tick middle", left + p * cell + cell / 2, top - 6, str(p)))
        for q, count in enumerate(row):
            share = count / largest if largest else 0.0
            share_text = percent_text(count / total if total else 0.0)
            title = f"part {p} to part {q}: {full_plural_text(count, 'edge')}, {share_text}"
            box = (left + q * cell + 0.5, top + p * cell + 0.5, cell - 1.0, cell - 1.0)
            # The square root makes small counts visible.
            opacity = 0.06 + 0.94 * math.sqrt(share) if count else 0.03
            marks.append(_rectangle("heat", box, title, opacity))
            if is_numbered:
                css = "cell strong middle" if opacity > STRONG_OPACITY else "cell middle"
                marks.append(_text(css, box[0] + cell / 2, box[1] + cell / 2 + 4, count_text(count)))
    size = num_parts * cell
    cut = total - sum(row[p] for p, row in enumerate(edges_between))
    description = (
        f"{num_parts} by {num_parts} parts; {cut:,} of {total:,} edges ({percent_text(cut / total if total else 0.0)}) "
        "lead from one part to another"
    )
    return _svg(left + size + 4, top + size + 4, "Edges between parts", description, marks, is_fixed=True)


def bin_text(index: int) -> str:
    """Format the range of a bin of a histogram: ``0``, ``1``, ``2 to 3``, ``4 to 7``."""
    return str(index) if index < 2 else f"{1 << (index - 1):,} to {(1 << index) - 1:,}"


def _count_axis(decades: int, counted: str) -> str:
    """Draw grid lines and labels at powers of ten."""
    marks = []
    skip = 1 if decades <= 5 else 2 if decades <= 10 else 3
    for power in range(0, decades + 1, skip):
        y = FRAME.bottom - (FRAME.bottom - FRAME.top) * (power + 0.15) / (decades + 0.15)
        marks.append(f'<line class="grid" x1="{FRAME.left}" x2="{FRAME.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(_text("tick end", FRAME.left - 5, y + 4, _decade_text(power)))
    label = _upright_text(11, (FRAME.top + FRAME.bottom) / 2, counted)
    return "".join([*marks, label, _base_line()])


def _decade_text(power: int) -> str:
    return f"{10 ** (power % 3)}{('', ' k', ' M', ' G', ' T', ' P')[min(power // 3, 5)]}"


def _power_text(power: int) -> str:
    """Format a power of two: ``64``, ``2k``, ``1M``."""
    return f"{1 << (power % 10)}{('', 'k', 'M', 'G', 'T', 'P', 'E')[power // 10]}"


def _base_line() -> str:
    return f'<line class="base" x1="{FRAME.left}" x2="{FRAME.right}" y1="{FRAME.bottom}" y2="{FRAME.bottom}"/>'


def _rectangle(css: str, box: tuple[float, float, float, float], title: str, opacity: float | None = None) -> str:
    x, y, width, height = box
    shade = "" if opacity is None else f' fill-opacity="{opacity:.2f}"'
    return (
        f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0):.1f}"'
        f"{shade}><title>{escape(title)}</title></rect>"
    )


def _text_width(text: str) -> int:
    """Return an upper estimate of a label's width in pixels."""
    return CHARACTER_WIDTH * len(text)


def _text(css: str, x: float, y: float, text: str) -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _upright_text(x: float, y: float, text: str) -> str:
    return f'<text class="axis middle" transform="translate({x:.1f} {y:.1f}) rotate(-90)">{escape(text)}</text>'


def _svg(
    width: float, height: float, title: str, description: str, marks: Sequence[str], is_fixed: bool = False
) -> str:
    """Build an SVG with a title and a description. The page scrolls an SVG of fixed size."""
    size = f' width="{width:.0f}" height="{height:.0f}"' if is_fixed else ""
    label = escape(f"{title}. {description}", quote=True)
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}"{size} role="img" aria-label="{label}">{"".join(marks)}</svg>'


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
    """Build a page of sections, which are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Build boxes with numbers, each under its name."""
    boxes = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in values)
    return f'<dl class="tiles">{boxes}</dl>'


def section(title: str, about: str, *content: str) -> str:
    """Build a section with a heading, a line about it, and its content."""
    text = f'<p class="faint">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{text}{''.join(content)}</section>"


def grid(figures: Iterable[str]) -> str:
    """Build a grid of figures, with as many side by side as fit."""
    return f'<div class="grid">{"".join(figures)}</div>'


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Build a table that scrolls if it is too wide.

    The prefix ``>`` of a header marks a column of numbers.
    """
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


def bins_figure(
    title: str, plot: str, caption: str, headers: Sequence[str], bins: Sequence[int], first: int = 0
) -> str:
    """Build a figure of a histogram with its name, its caption, and a table of its bins from ``first`` on."""
    rows = [(bin_text(i), f"{count:,}") for i, count in enumerate(bins[first:], first)]
    return (
        f"<figure><h3>{escape(title)}</h3>{plot}<figcaption>{escape(caption)}</figcaption>"
        f"<details><summary>as a table</summary>{table('', headers, rows)}</details></figure>"
    )


def check_page_path(html: Path | None) -> None:
    """Check the path of a page before anything is read.

    Raises:
        FormatError: The path is a folder, or its folder does not exist.
    """
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise FormatError(f"--html {html} is a folder, or its folder does not exist; give a file to write")


def write_page(output: Output, html: Path, text: str) -> None:
    """Write a page to a file, and write a line with its path."""
    from hopstream.arrays import write_text
    from hopstream.engine.atomic_folder import errors_named

    with errors_named(html):
        write_text(html, text)
    output.text()
    output.stage("done", "page", str(html), {"html": str(html)})


def render_page(census: Census) -> str:
    """Build the page of a census."""
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
        cut = percent_text(census.report.cuts[edge_type].fraction) if census.report else "unknown"
        has_links = edge_type in census.schema.edge_splits
        row = (
            edge_type_text(edge_type), f"{census.num_edges_of(edge_type):,}", cut, features_text(features) or "none",
            " and ".join(census.timed_directions(edge_type)) or "none",
            "yes" if census.weight_attr in features else "none",
            (_splits_text(census, edge_type) or "kept") if has_links else "none",
        )  # fmt: skip
        edge_rows.append(row)
    if edge_rows:
        headers = ("edge type", ">edges", ">cut", "features", "times", "weights", "links")
        tables.append(table("Edge types", headers, edge_rows))
    return section("Types", "", *tables)


def _splits_text(census: Census, entity: str | EdgeType) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in census.splits_of(entity).items())


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
        headers = ("edges per node", ">nodes")
        figures.append(bins_figure(title, degree_plot(summary), caption, headers, summary.histogram))
    about = "Number of nodes by number of edges. Both axes are logarithmic; the grey bar counts nodes without edges."
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
    from hopstream.dataset.balance import max_over_mean

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
