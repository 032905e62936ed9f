"""Verb ``delete``: deletes nodes and edges of a dataset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopstream.cli.options import IdsFlag, JsonFlag, by_type
from hopstream.cli.progress import Clock, Output, progress_bars
from hopstream.cli.written import manifest_to_change, show_changed
from hopstream.errors import FormatError, SchemaError

if TYPE_CHECKING:
    from hopstream.arrays import Array

_INTEGER = re.compile(r"\s*-?[0-9]{1,18}\s*")


def run(
    path: Annotated[Path, typer.Argument(help="a dataset's folder", metavar="PATH", show_default=False)],
    nodes: Annotated[
        list[str],
        typer.Option(help="file of nodes to delete: .npy, or one per line; may be given several times",
                     metavar="TYPE=FILE"),
    ] = [],  # noqa: B006  typer copies it
    edges: Annotated[
        list[str],
        typer.Option(help="file of edges to delete: .npy [n, 2], or lines SOURCE,DESTINATION; may be repeated",
                     metavar="TYPE=FILE"),
    ] = [],  # noqa: B006
    ids: IdsFlag = [],  # noqa: B006
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Delete nodes, with their edges, and edges; later nodes and edges move down."""
    from hopstream.preparation.revise.run import delete

    output, clock = Output(is_json=json), Clock()
    root = path.parent if path.name == "manifest.json" else path
    before, features = manifest_to_change(root), by_type("--ids", ids)
    named_nodes, named_edges = by_type("--nodes", nodes), by_type("--edges", edges)
    for node_type in named_nodes:
        before.schema.check_node_type(node_type)
    edge_types = {label: before.schema.edge_type_of(label) for label in named_edges}
    given_nodes = {t: _read(Path(file), [t in features])[0] for t, file in named_nodes.items()}
    given_edges: dict[Any, Any] = {}
    for label, (src_type, _, dst_type) in edge_types.items():
        given_edges[label] = tuple(_read(Path(named_edges[label]), [src_type in features, dst_type in features]))
    with progress_bars() as progress:
        manifest = delete(root, nodes=given_nodes, edges=given_edges, ids=features, progress=progress)
    show_changed(output, clock, "delete", root, before, manifest)


def _read(path: Path, are_raw: list[bool]) -> list[Array]:
    """Read a file with one column for each flag; a column that is not of raw ids must be integers."""
    import numpy as np

    from hopstream.arrays import open_array
    from hopstream.ingest.raw_tables.files import csv_rows

    num_columns = len(are_raw)
    if path.suffix == ".npy":
        array = np.asarray(open_array(path))
        if array.shape[1:] != ((num_columns,) if num_columns > 1 else ()):
            wanted = f"[n, {num_columns}]" if num_columns > 1 else "[n]"
            raise SchemaError(f"{path} is {array.dtype}{list(array.shape)}; wanted integers {wanted}")
        return list(array.T) if num_columns > 1 else [array]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv_rows(file, ","))
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8 text ({error}); give a .npy file, or one line per row") from error
    for number, cells in lines:
        if len(cells) != num_columns:
            raise FormatError(f"{path} line {number} has {len(cells)} cells; wanted {num_columns}")
        for cell, is_raw in zip(cells, are_raw, strict=True):
            if not is_raw and not _INTEGER.fullmatch(cell):
                raise SchemaError(
                    f"{path} line {number} has {cell!r}; keys are integers: name the feature of raw ids by --ids"
                )
    columns = [[cells[place] for _, cells in lines] for place in range(num_columns)]
    return [
        np.array(column, object) if is_raw else np.array([int(cell) for cell in column], np.int64)
        for column, is_raw in zip(columns, are_raw, strict=True)
    ]
