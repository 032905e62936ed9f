"""Verb ``describe``: drafts the ``metadata.json`` of a folder of tables."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.options import JsonFlag
from hopstream.cli.progress import Clock, Output
from hopstream.cli.units import plural_text


def run(
    tables: Annotated[
        Path, typer.Argument(help="a folder of CSV and Parquet files", metavar="TABLES", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="the file to write; by default metadata.json in the folder", show_default=False),
    ] = None,
    sample_rows: Annotated[int, typer.Option("--sample-rows", help="rows of each table that are read")] = 100_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a file that is already there")] = False,
    json: JsonFlag = False,
) -> None:
    """Draft the metadata.json of tables: types, ids, ends of edges, dtypes and transforms.

    Names and the first rows decide, so read and correct the draft.
    """
    from hopstream.arrays import write_text
    from hopstream.errors import SettingsError
    from hopstream.ingest.raw_tables.drafts import describe_tables

    output, clock = Output(is_json=json), Clock()
    path = out or tables / "metadata.json"
    if path.exists() and not overwrite:
        raise SettingsError(f"{path} exists; give --overwrite to replace it, or another --out")
    draft = describe_tables(tables, sample_rows=sample_rows)
    write_text(path, json_text.dumps(draft, indent=2, ensure_ascii=False) + "\n")
    for kind, named in (("node", draft["nodes"]), ("edge", {"__".join(e["type"]): e for e in draft["edges"]})):
        for name, spec in named.items():
            features = [_feature_text(name, of) for name, of in spec.get("features", {}).items()]
            id_text = f"id {spec['id']}, " if "id" in spec else ""
            text = f"{id_text}{plural_text(len(features), 'feature')}: {', '.join(features)}".removesuffix(": ")
            output.stage(kind, name, text, {"type": name, "features": list(spec.get("features", {}))})
    output.stage("done", str(path), "read it, and correct it", {"metadata": str(path)}, clock.cost())


def _feature_text(name: str, spec: dict[str, object]) -> str:
    transform = spec.get("transform")
    kind = transform["name"] if isinstance(transform, dict) else transform
    return f"{name} {kind}" if kind else name
