"""Verb ``tfgnn spec``: prints a SamplingSpec, checks it against a GraphSchema, and draws it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hopstream.cli.options import JsonFlag
from hopstream.cli.progress import Output
from hopstream.cli.verify import WRONG


def run(
    spec: Annotated[Path, typer.Argument(help="a SamplingSpec in text form", metavar="SPEC", show_default=False)],
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="check it against this GraphSchema, or the folder that holds it"),
    ] = None,
    mermaid: Annotated[
        bool,
        typer.Option("--mermaid", help="print a Mermaid flowchart instead of the table; Markdown viewers draw it"),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Print a SamplingSpec, and check it against a GraphSchema; the exit status is 1 for a problem."""
    from hopstream.tfgnn.graph_schema import read_schema, schema_path
    from hopstream.tfgnn.sampling_spec import read_spec, spec_flowchart, spec_problems, spec_steps

    output, message = Output(is_json=json), read_spec(spec)
    known: Any = None if schema is None else read_schema(schema_path(schema))
    steps = spec_steps(message, known)
    if mermaid:
        output.text(spec_flowchart(steps))
        output.facts({"mermaid": spec_flowchart(steps)})
    else:
        output.table(
            ("op", "draws", ">at most", "by", "for the nodes of"),
            [(s.name, s.draws, "" if s.size is None else str(s.size), s.strategy, ", ".join(s.inputs)) for s in steps],
            [
                {
                    "op": s.name,
                    "draws": s.draws,
                    "size": s.size,
                    "strategy": s.strategy,
                    "inputs": list(s.inputs),
                }
                for s in steps
            ],
        )
    problems = [] if known is None else list(spec_problems(message, known))
    for line in problems:
        output.stage("wrong", "spec", line, {"spec": str(spec), "text": line})
    if problems:
        raise typer.Exit(WRONG)
