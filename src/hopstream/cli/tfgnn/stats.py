"""How does a user see what exported examples hold, all of them together?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.inspect import histogram_text
from hopstream.cli.options import JsonFlag
from hopstream.cli.progress import Clock, Facts, Output
from hopstream.cli.tfgnn.files import FilesArgument, PrefixOption, SchemaOption, blocks_of, paths_of, read_spec
from hopstream.cli.units import bytes_text, count_text, plural_text
from hopstream.errors import FormatError

if TYPE_CHECKING:
    from hopstream.tfgnn.statistics import ExampleStatistics, FeatureStatistics, Numbers


def run(
    files: FilesArgument,
    schema: SchemaOption = None,
    prefix: PrefixOption = "",
    html: Annotated[Path | None, typer.Option(help="also write all this as one page with plots")] = None,
    json: JsonFlag = False,
) -> None:
    """Show how large the sets of exported examples are, and which values their features have; memory does not grow."""
    from hopstream.tfgnn.example_lists import decode_examples
    from hopstream.tfgnn.statistics import ExampleStatistics

    output, clock = Output(is_json=json), Clock()
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise FormatError(f"--html {html} is a folder or lies in none; give a file to write")
    paths = paths_of(files)
    statistics = ExampleStatistics(None if schema is None else read_spec(schema)[1], prefix)
    for block in blocks_of(paths):
        try:
            statistics.add(decode_examples(block.records), block.records)
        except FormatError as error:
            raise FormatError(f"{block.path}, from record {block.first} on: {error}") from error
    _write_head(output, statistics, paths, clock)
    _write_sets(output, statistics)
    _write_features(output, statistics)
    if html is not None:
        from hopstream.arrays import write_text
        from hopstream.cli.tfgnn.page import render_page
        from hopstream.partition.replace import errors_named

        with errors_named(html):
            write_text(html, render_page(", ".join(files), statistics))
        output.text()
        output.stage("done", "page", str(html), {"html": str(html)})


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
    least, mean, most = _texts(statistics.example_bytes.numbers, lambda number: bytes_text(round(number)))
    output.text(f"{'':<16} an example has {least} to {most}, {mean} on average")
    for what, names in (("not in the schema", unknown), ("in no example", unseen)):
        if names:
            output.text(f"{'':<16} {what}: {', '.join(names)}")
    if statistics.num_left_out:
        output.text(f"{'':<16} {statistics.left_out_text()}")


def _write_sets(output: Output, statistics: ExampleStatistics) -> None:
    rows, facts = [], list[Facts]()
    for name, sizes in sorted(statistics.sets.items(), reverse=True):
        rows.append((name, *_texts(sizes.numbers, number_text), histogram_text(sizes.histogram)))
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


FEATURE_HEADERS = (
    "feature", "kind", ">examples", ">missing", ">values", ">per example", ">min", ">mean", ">max", ">NaN", ">infinite",
)  # fmt: skip


def feature_row(name: str, of: FeatureStatistics, num_missing: int) -> tuple[str, ...]:
    """A feature's line under ``FEATURE_HEADERS``."""
    mean_length = _texts(of.lengths, number_text)[1]
    counts = (of.num_examples, num_missing, of.values.count)
    odd = (of.values.num_nan, of.values.num_infinite)
    return (
        name, of.kind, *map(count_text, counts), mean_length, *_texts(of.values, number_text), *map(count_text, odd),
    )  # fmt: skip


def number_text(number: float) -> str:
    """A number in at most five digits, or all of its digits where it is whole and small."""
    return str(int(number)) if number == int(number) and abs(number) < 1e9 else f"{number:.5g}"


def _texts(numbers: Numbers, show: Callable[[float], str]) -> tuple[str, str, str]:
    """The least, the mean and the highest; dashes where there are none."""
    if numbers.mean is None:
        return ("-", "-", "-")
    return show(numbers.least), show(numbers.mean), show(numbers.most)
