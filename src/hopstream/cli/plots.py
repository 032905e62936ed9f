"""Draw degrees, balance and edges between parts as inline SVG.

Plots are drawn for a width of about 340 CSS pixels and laid out by the page, so text stays readable at any width.
Colours are the page's. Everything that a plot shows is also in words, for those who do not see it: in its description,
and in a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hopstream.cli.census import DegreeSummary
from hopstream.cli.units import count_text, full_plural_text, percent_text

WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 62, 6, 8, 40
MAX_HEAT_PARTS = 64
"""With more parts than this cells are too small to see, and the page too large to open."""
MAX_NUMBERED_PARTS = 16
"""With more parts than this a cell is too small for its number; pointing at it shows it."""
MAX_BARS = 600
"""With more parts than this a bar is thinner than half a pixel."""
STRONG_OPACITY = 0.7
"""From here on a cell is nearer to its full colour than to the ground, in light and in dark, and its number changes."""
MAX_BAR_LABELS = 6
MAX_BAR_WIDTH = 60
MIN_BINS = 8
LABEL_ROOM = 14
CHARACTER_WIDTH, LINE_HEIGHT = 7, 12
"""Pixels that a character of a label and a line of it take at most on average, in the fonts that browsers choose."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the plot's own rectangle is."""

    left: float
    right: float
    top: float
    bottom: float


FRAME = _Frame(LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM)


@dataclass(frozen=True, slots=True)
class HistogramWords:
    """What a histogram says of itself.

    Attributes:
        title: Its name.
        counted: What bars count, in the singular, such as ``node``.
        per: What the bins are numbers of, in the singular, such as ``edge``.
        axis: What is under the bins.
        description: What it shows, in a sentence, for those who do not see it.
    """

    title: str
    counted: str
    per: str
    axis: str
    description: str


def degree_plot(summary: DegreeSummary) -> str:
    """Nodes per degree, both axes logarithmic: one bar for each power of two, and one for no edges."""
    description = (
        f"{full_plural_text(summary.num_nodes, 'node')}, {summary.num_isolated:,} of them without edges; "
        f"the mean is {summary.mean:.1f}, "
        f"the median {summary.median:,}, 99 % have at most {summary.p99:,}, the highest degree is {summary.largest:,}"
    )
    axis = "edges per node: none, then from 1, 2, 4 … on"
    return histogram_plot(summary.histogram, HistogramWords("Degree distribution", "node", "edge", axis, description))


def histogram_plot(bins: Sequence[int], words: HistogramWords, bounds: Sequence[int] | None = None) -> str:
    """Bars of logarithmic height over bins.

    Args:
        bins: What is counted in each.
        words: What the plot says.
        bounds: Where bins begin, and where the last one ends; None: they are for 0, 1, 2 to 3, 4 to 7 and so on.
    """
    decades = max(1, math.ceil(math.log10(max(*bins, 1) * 1.05)))
    step = (FRAME.right - FRAME.left) / max(len(bins), MIN_BINS)
    marks = [_count_axis(decades, words.counted + "s")]
    # Labels are a power of two apart; every second or fourth where they would run into each other.
    room = 30 if bounds is None else _text_width(f"{bounds[-1]:,}") + 2
    skip = 1 << max(0, math.ceil(math.log2(room / step)))
    for i, count in enumerate(bins):
        left = FRAME.left + i * step
        label = bin_text(i) if bounds is None else span_text(bounds[i], bounds[i + 1])
        if count:
            # A bin of one has a height of its own, though the logarithm of one is nothing.
            height = (FRAME.bottom - FRAME.top) * (math.log10(count) + 0.15) / (decades + 0.15)
            css = "bar empty" if i == 0 and bounds is None else "bar"
            title = f"{full_plural_text(count, words.counted)} with {label} {words.per}{'' if label == '1' else 's'}"
            marks.append(_rectangle(css, (left + 1, FRAME.bottom - height, step - 2, height), title))
        if bounds is not None:
            if i % skip == 0:
                marks.append(_text("tick middle", left + step / 2, FRAME.bottom + 14, f"{bounds[i]:,}"))
        elif i == 0 or (i - 1) % skip == 0:
            text = "0" if i == 0 else _power_text(i - 1)
            marks.append(_text("tick middle", left + step / 2, FRAME.bottom + 14, text))
    marks.append(_text("axis middle", (FRAME.left + FRAME.right) / 2, HEIGHT - 6, words.axis))
    return _svg(WIDTH, HEIGHT, words.title, words.description, marks)


def balance_plot(name: str, loads: Sequence[int], unit_text: Sequence[str], mean_text: str) -> str:
    """One bar per part, and a line at the mean.

    Args:
        name: What is counted.
        loads: What each part has.
        unit_text: The same for people, with units.
        mean_text: The mean for people.
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
            # At the foot of its bar a number is out of the way of the mean, which level bars all touch.
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
    """Edges from each part (row) to each part (column): the darker a cell, the larger its share of all edges."""
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
            # The square root keeps what is small apart from what is nothing.
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
    """The degrees that a bin of a histogram counts: ``0``, ``1``, ``2 to 3``, ``4 to 7``."""
    return str(index) if index < 2 else f"{1 << (index - 1):,} to {(1 << index) - 1:,}"


def span_text(start: int, end: int) -> str:
    """The numbers from ``start`` to before ``end``."""
    return f"{start:,}" if end == start + 1 else f"{start:,} to {end - 1:,}"


def _count_axis(decades: int, counted: str) -> str:
    """Grid lines and labels at powers of ten."""
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
    """A power of two, short: ``64``, ``2k``, ``1M``."""
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
    """The most pixels that a label takes."""
    return CHARACTER_WIDTH * len(text)


def _text(css: str, x: float, y: float, text: str) -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _upright_text(x: float, y: float, text: str) -> str:
    return f'<text class="axis middle" transform="translate({x:.1f} {y:.1f}) rotate(-90)">{escape(text)}</text>'


def _svg(
    width: float, height: float, title: str, description: str, marks: Sequence[str], is_fixed: bool = False
) -> str:
    """A picture with a name and a description. A fixed one keeps its size, and the page scrolls it."""
    size = f' width="{width:.0f}" height="{height:.0f}"' if is_fixed else ""
    label = escape(f"{title}. {description}", quote=True)
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}"{size} role="img" aria-label="{label}">{"".join(marks)}</svg>'
