"""Verb ``tfgnn print``: prints exported examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag
from hopstream.cli.progress import Json, Output
from hopstream.cli.tfgnn.files import FilesArgument, PrefixOption, SchemaOption, blocks_of, paths_of, read_spec
from hopstream.cli.units import bytes_text, printable_text
from hopstream.errors import FormatError, SchemaError

if TYPE_CHECKING:
    from hopstream.tfgnn.readable import ShownFeature


def run(  # noqa: PLR0913, PLR0917  one parameter for each flag
    files: FilesArgument,
    schema: SchemaOption = None,
    limit: Annotated[int, typer.Option(help="number of examples to print; 0 means all", min=0)] = 3,
    skip: Annotated[int, typer.Option(help="number of examples to skip first", min=0)] = 0,
    max_values: Annotated[int, typer.Option(help="number of values of each list to print; JSON has all", min=1)] = 8,
    prefix: PrefixOption = "",
    json: JsonFlag = False,
) -> None:
    """Print examples: with a schema as graphs, set by set; without one as stored lists."""
    from hopstream.tfgnn.readable import shown_graph, shown_lists

    output = Output(is_json=json)
    spec = None if schema is None else read_spec(schema)[1]
    number = -1
    for block in blocks_of(paths_of(files)):
        for row, record in enumerate(block.records(), block.first):
            number += 1
            if number < skip:
                continue
            if limit and number >= skip + limit:
                return
            try:
                shown = shown_lists(record) if spec is None else shown_graph(record, spec, prefix)
            except (FormatError, SchemaError) as error:
                raise type(error)(f"{block.path}: record {row}: {error}") from error
            if json:
                output.facts({"record": row, "file": str(block.path), "bytes": len(record), "example": _tree(shown)})
                continue
            output.stage("record", f"{row} of {printable_text(str(block.path))}", bytes_text(len(record)), {})
            _write_text(output, shown, max_values)


def _write_text(output: Output, shown: list[ShownFeature], max_values: int) -> None:
    from hopstream.tfgnn.readable import value_text

    section = ""
    widths = [max((len(getattr(one, name)) for one in shown), default=0) for name in ("name", "kind")]
    for one in shown:
        if one.section != section:
            section = one.section
            output.text(printable_text(section))
        indent = "  " if section else ""
        values = value_text(one.values, max_values)
        line = f"{indent}{printable_text(one.name):<{widths[0]}}  {one.kind:<{widths[1]}}  {values}"
        output.text(line.rstrip())
    output.text()


def _tree(shown: list[ShownFeature]) -> Json:
    """Build an object of features by owner and name; by name only if there is no schema."""
    from hopstream.tfgnn.readable import json_value

    tree: dict[str, dict[str, Json]] = {}
    flat: dict[str, Json] = {}
    for one in shown:
        holder = tree.setdefault(one.key, {}) if one.key else flat
        holder[one.name] = json_value(one.values)
    return {**flat, **tree}
