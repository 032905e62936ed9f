"""Verb ``tfgnn stats``: shows statistics of exported examples, as tables or as a page."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.inspect import histogram_text
from hopstream.cli.options import JsonFlag
from hopstream.cli.page import (
    HistogramWords,
    bins_figure,
    check_page_path,
    grid,
    histogram_plot,
    page_of,
    section,
    table,
    tiles,
    write_page,
)
from hopstream.cli.progress import Clock, Facts, Output
from hopstream.cli.tfgnn.files import FilesArgument, PrefixOption, SchemaOption, blocks_of, paths_of, read_spec
from hopstream.cli.units import bytes_text, count_text, plural_text
from hopstream.errors import FormatError

if TYPE_CHECKING:
    from hopstream.tfgnn.statistics import ExampleStatistics, FeatureStatistics, Numbers, SizeStatistics


FEATURE_HEADERS = (
    "feature", "kind", ">examples", ">missing", ">values", ">per example", ">min", ">mean", ">max", ">NaN", ">infinite",
)  # fmt: skip


def feature_row(name: str, of: FeatureStatistics, num_missing: int) -> tuple[str, ...]:
    """Return a feature's row for a table with ``FEATURE_HEADERS``."""
    mean_length = numbers_text(of.lengths, number_text)[1]
    counts = (of.num_examples, num_missing, of.values.count)
    odd = (of.values.num_nan, of.values.num_infinite)
    values = numbers_text(of.values, number_text)
    return name, of.kind, *map(count_text, counts), mean_length, *values, *map(count_text, odd)


def number_text(number: float) -> str:
    """Format a number: an integer below 1e9 with all digits, other numbers with five."""
    return str(int(number)) if number == int(number) and abs(number) < 1e9 else f"{number:.5g}"


def numbers_text(numbers: Numbers, show: Callable[[float], str]) -> tuple[str, str, str]:
    """Format minimum, mean and maximum; dashes if there are no finite numbers."""
    if numbers.mean is None:
        return ("-", "-", "-")
    return show(numbers.least), show(numbers.mean), show(numbers.most)


def render_page(name: str, statistics: ExampleStatistics) -> str:
    """Build the page of statistics as HTML."""
    size = statistics.example_bytes.numbers
    numbers = [("examples", count_text(statistics.num_examples)), ("sets", count_text(len(statistics.sets)))]
    if size.mean is not None:
        numbers += [("mean example", bytes_text(round(size.mean))), ("largest", bytes_text(round(size.most)))]
    head = f"<header><h1>{escape(name)}</h1>{tiles(numbers)}</header>"
    figures = [_bytes_figure(statistics.example_bytes)] if size.count else []
    figures += [
        _figure(of, "node" if of.startswith("nodes/") else "edge", sizes)
        for of, sizes in sorted(statistics.sets.items(), reverse=True)
    ]
    about = "Number of examples by number of items of a set. Both axes are logarithmic, and grey counts empty sets."
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
    return bins_figure(name, plot, caption, (f"{noun}s", ">examples"), sizes.histogram)


def _bytes_figure(sizes: SizeStatistics) -> str:
    """Draw the histogram of the sizes of examples, from the first bin that is not empty."""
    name, numbers = "bytes of an example", sizes.numbers
    first = next(number for number, count in enumerate(sizes.histogram) if count)
    mean = number_text(numbers.mean or 0)
    caption = f"{number_text(numbers.least)} to {number_text(numbers.most)}, {mean} on average"
    words = HistogramWords(name, "example", "byte", "bytes per example, from … on", caption)
    plot = histogram_plot(sizes.histogram, words, first)
    return bins_figure(name, plot, caption, ("bytes", ">examples"), sizes.histogram, first)


def run(
    files: FilesArgument,
    schema: SchemaOption = None,
    prefix: PrefixOption = "",
    html: Annotated[Path | None, typer.Option(help="also write one page with plots")] = None,
    json: JsonFlag = False,
) -> None:
    """Show sizes of sets and values of features in exported examples, in bounded memory."""
    from hopstream.tfgnn.example import decode_examples
    from hopstream.tfgnn.statistics import ExampleStatistics

    output, clock = Output(is_json=json), Clock()
    check_page_path(html)
    paths = paths_of(files)
    statistics = ExampleStatistics(None if schema is None else read_spec(schema)[1], prefix)
    for block in blocks_of(paths):
        records = block.records()
        try:
            statistics.add(decode_examples(records), records)
        except FormatError as error:
            raise FormatError(f"{block.path}, from record {block.first} on: {error}") from error
    _write_head(output, statistics, paths, clock)
    _write_sets(output, statistics)
    _write_features(output, statistics)
    if html is not None:
        write_page(output, html, render_page(", ".join(files), statistics))


def _write_head(output: Output, statistics: ExampleStatistics, paths: list[Path], clock: Clock) -> None:
    num_bytes = sum(path.stat().st_size for path in paths)
    text = f"{plural_text(statistics.num_examples, 'example')} in {plural_text(len(paths), 'file')}, "
    text += bytes_text(num_bytes)
    unknown, unseen = sorted(statistics.unknown), statistics.never_seen()
    facts: Facts = {
        "examples": statistics.num_examples, "files": len(paths), "bytes": num_bytes,
        "example_bytes": statistics.example_bytes.numbers.to_json(), "not_in_schema": unknown, "never_seen": unseen,
        "left_out": statistics.num_left_out,
    }  # fmt: skip
    output.stage("stats", "", text, facts, clock.cost())
    least, mean, most = numbers_text(statistics.example_bytes.numbers, lambda number: bytes_text(round(number)))
    output.text(f"{'':<16} an example has {least} to {most}, {mean} on average")
    for what, names in (("not in the schema", unknown), ("in no example", unseen)):
        if names:
            output.text(f"{'':<16} {what}: {', '.join(names)}")
    if statistics.num_left_out:
        output.text(f"{'':<16} {statistics.left_out_text()}")


def _write_sets(output: Output, statistics: ExampleStatistics) -> None:
    rows, facts = [], list[Facts]()
    for name, sizes in sorted(statistics.sets.items(), reverse=True):
        rows.append((name, *numbers_text(sizes.numbers, number_text), histogram_text(sizes.histogram)))
        facts.append({"set": name, **sizes.numbers.to_json(), "log2_histogram": sizes.histogram})
    output.text()
    output.table(("set", ">min", ">mean", ">max", "0, 1, 2-3, 4-7 …"), rows, facts)


def _write_features(output: Output, statistics: ExampleStatistics) -> None:
    rows, facts = [], list[Facts]()
    for name, of in sorted(statistics.features.items()):
        num_missing = statistics.num_missing(name)
        rows.append(feature_row(name, of, num_missing))
        facts.append(
            {
                "feature": name, "kind": of.kind, "examples": of.num_examples, "missing": num_missing,
                "values": of.values.count, "nan": of.values.num_nan, "infinite": of.values.num_infinite,
                **of.values.to_json(), "values_per_example": of.lengths.to_json(),
            }
        )  # fmt: skip
    output.text()
    output.table(FEATURE_HEADERS, rows, facts)
    if any(of.kind == "strings" for of in statistics.features.values()):
        output.text("of strings, min, mean and max are sizes in bytes")
