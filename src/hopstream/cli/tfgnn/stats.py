"""Verb ``stats``: shows what exported examples hold, all of them together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.inspect import histogram_text
from hopstream.cli.options import JsonFlag
from hopstream.cli.progress import Clock, Facts, Output
from hopstream.cli.tfgnn.figures import FEATURE_HEADERS, feature_row, number_text, numbers_text
from hopstream.cli.tfgnn.files import FilesArgument, PrefixOption, SchemaOption, blocks_of, paths_of, read_spec
from hopstream.cli.units import bytes_text, plural_text
from hopstream.errors import FormatError

if TYPE_CHECKING:
    from hopstream.tfgnn.statistics import ExampleStatistics


def run(
    files: FilesArgument,
    schema: SchemaOption = None,
    prefix: PrefixOption = "",
    html: Annotated[Path | None, typer.Option(help="also write all this as one page with plots")] = None,
    json: JsonFlag = False,
) -> None:
    """Show how large the sets of exported examples are, and which values their features have; memory does not grow."""
    from hopstream.tfgnn.example import decode_examples
    from hopstream.tfgnn.statistics import ExampleStatistics

    output, clock = Output(is_json=json), Clock()
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise FormatError(f"--html {html} is a folder or lies in none; give a file to write")
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
        from hopstream.arrays import write_text
        from hopstream.cli.tfgnn.page import render_page
        from hopstream.engine.atomic_folder import errors_named

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
