"""Renders the statistics of examples as one page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from hopstream.cli.page import HistogramWords, bin_text, grid, histogram_plot, page_of, section, span_text, table, tiles
from hopstream.cli.tfgnn.figures import FEATURE_HEADERS, feature_row, number_text
from hopstream.cli.units import bytes_text, count_text
from hopstream.tfgnn.statistics import ExampleStatistics, SizeStatistics

WIDE = 4
"""Where the largest example is so many times the smallest, bins are powers of two."""


def render_page(name: str, statistics: ExampleStatistics) -> str:
    """The whole page."""
    size = statistics.example_bytes.numbers
    numbers = [("examples", count_text(statistics.num_examples)), ("sets", count_text(len(statistics.sets)))]
    if size.mean is not None:
        numbers += [("mean example", bytes_text(round(size.mean))), ("largest", bytes_text(round(size.most)))]
    head = f"<header><h1>{escape(name)}</h1>{tiles(numbers)}</header>"
    figures = [_bytes_figure(statistics)] if size.count else []
    figures += [
        _figure(of, "node" if of.startswith("nodes/") else "edge", sizes)
        for of, sizes in sorted(statistics.sets.items(), reverse=True)
    ]
    about = "How many examples have how many items of a set. Both axes are logarithmic, and grey counts empty sets."
    rows = [feature_row(of, values, statistics.num_missing(of)) for of, values in sorted(statistics.features.items())]
    remarks = "".join(
        f'<p class="faint">{escape(what)}: {escape(", ".join(names))}</p>'
        for what, names in (
            ("not in the schema", sorted(statistics.unknown)),
            ("in no example", statistics.never_seen()),
        )
        if names
    )
    if statistics.num_left_out:
        remarks += f'<p class="faint">{escape(statistics.left_out_text())}</p>'
    features = table("Features", FEATURE_HEADERS, rows) if rows else ""
    about_features = "Of strings, min, mean and max are sizes in bytes."
    return page_of(
        name, [head, remarks, section("Sizes", about, grid(figures)), section("Features", about_features, features)]
    )


def _figure(name: str, noun: str, sizes: SizeStatistics) -> str:
    numbers = sizes.numbers
    caption = "no example"
    if numbers.mean is not None:
        caption = (
            f"{number_text(numbers.least)} to {number_text(numbers.most)}, {number_text(numbers.mean)} on average; "
            f"{sizes.histogram[0]:,} of {numbers.count:,} examples have none"
        )
    axis = f"{noun}s per example: none, then from 1, 2, 4 … on"
    plot = histogram_plot(sizes.histogram, HistogramWords(name, "example", noun, axis, caption))
    return _with_table(name, noun, plot, caption, [(bin_text(i), n) for i, n in enumerate(sizes.histogram)])


def _bytes_figure(statistics: ExampleStatistics) -> str:
    """Over the range that was seen, in bins of one width where it is narrow."""
    name, numbers = "bytes of an example", statistics.example_bytes.numbers
    bins, bounds = statistics.byte_bins.counts, statistics.byte_bins.bounds
    if numbers.most >= WIDE * max(1, numbers.least):
        histogram = statistics.example_bytes.histogram
        first = next(number for number, count in enumerate(histogram) if count)
        bins, bounds = histogram[first:], [(1 << number) >> 1 for number in range(first, len(histogram) + 1)]
    mean = number_text(numbers.mean or 0)
    caption = f"{number_text(numbers.least)} to {number_text(numbers.most)}, {mean} on average"
    words = HistogramWords(name, "example", "byte", "bytes per example, from … on", caption)
    spans = [(span_text(*pair), count) for pair, count in zip(pairwise(bounds), bins, strict=True)]
    return _with_table(name, "byte", histogram_plot(bins, words, bounds), caption, spans)


def _with_table(name: str, noun: str, plot: str, caption: str, rows: Sequence[tuple[str, int]]) -> str:
    bins = table("", (f"{noun}s", ">examples"), [(label, f"{count:,}") for label, count in rows])
    return (
        f"<figure><h3>{escape(name)}</h3>{plot}<figcaption>{escape(caption)}</figcaption>"
        f"<details><summary>as a table</summary>{bins}</details></figure>"
    )
