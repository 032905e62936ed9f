"""Verb ``tfgnn validate``: checks a GraphSchema, and examples against it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.options import JsonFlag
from hopstream.cli.progress import Clock, Facts, Output
from hopstream.cli.tfgnn.files import PrefixOption, blocks_of, paths_of
from hopstream.cli.units import plural_text
from hopstream.cli.verify import WRONG


def run(
    schema: Annotated[
        Path, typer.Argument(help="a GraphSchema, or the folder that holds it", metavar="SCHEMA", show_default=False)
    ],
    examples: Annotated[
        list[str] | None,
        typer.Option("--examples", help="check these files as well, every record; may be given several times"),
    ] = None,
    components: Annotated[int, typer.Option("--components", help="components of each example's graph", min=1)] = 1,
    prefix: PrefixOption = "",
    max_findings: Annotated[int, typer.Option(help="number of findings in examples to list", min=1)] = 100,
    json: JsonFlag = False,
) -> None:
    """Check a GraphSchema, and examples against it; the exit status is 1 if something is wrong."""
    from hopstream.tfgnn.graph_schema import read_schema, schema_path, schema_problems, schema_remarks
    from hopstream.tfgnn.readable import Examination
    from hopstream.tfgnn.spec import GraphSpec

    output, clock = Output(is_json=json), Clock()
    path = schema_path(schema)
    message = read_schema(path)
    problems, remarks = list(schema_problems(message)), list(schema_remarks(message))
    for kind, lines in (("wrong", problems), ("remark", remarks)):
        for line in lines:
            output.stage(kind, "schema", line, {"schema": str(path), "text": line})
    facts: dict[str, int | str | bool] = {"schema": str(path), "problems": len(problems), "remarks": len(remarks)}
    text = f"{plural_text(len(problems), 'problem')}, {plural_text(len(remarks), 'remark')}"
    if examples and not problems:
        examination = Examination(GraphSpec.of_schema(message), num_components=components, prefix=prefix)
        found = examination.problems(paths_of(examples), blocks_of, max_problems=max_findings)
        for empty in examination.empty_paths:
            line = f"{empty} has no examples"
            output.stage("remark", "example", line, {"text": line})
        for line in found:
            output.stage("wrong", "example", line, {"text": line})
        problems += found
        text += f"; {plural_text(len(found), 'finding')} in {plural_text(examination.num_examples, 'example')}"
        facts |= {"findings": len(found), "examples": examination.num_examples}
    elif examples:
        text += "; examples were not checked"
    told: Facts = {**facts, "is_ok": not problems}
    output.stage("done", "validate", text, told, clock.cost())
    if problems:
        raise typer.Exit(WRONG)
