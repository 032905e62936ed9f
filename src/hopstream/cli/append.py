"""Verb ``append``: adds nodes and edges to a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopstream.cli.options import IdsFlag, JsonFlag, by_type
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.units import bytes_text, count_text, plural_text


def run(
    path: Annotated[Path, typer.Argument(help="a dataset's folder", metavar="PATH", show_default=False)],
    delta: Annotated[
        Path,
        typer.Argument(
            help="folder of a chunked graph, or of described tables, with the new rows and edges of old and new nodes",
            metavar="DELTA",
            show_default=False,
        ),
    ],
    metadata_filename: Annotated[
        str, typer.Option(help="the chunked graph's metadata, or the description of the tables")
    ] = "metadata.json",
    again: Annotated[
        bool, typer.Option("--again", help="add rows that an earlier delta added, as further nodes and edges")
    ] = False,
    ids: IdsFlag = [],  # noqa: B006  typer copies it
    json: JsonFlag = False,
) -> None:
    """Add nodes and edges to a dataset; processes that open it afterwards see them."""
    from hopstream.dataset.paths import overlay_folder, part_folder
    from hopstream.preparation.append.run import append_folder

    output, clock = Output(is_json=json), Clock()
    root = path.parent if path.name == "manifest.json" else path
    with progress_bars() as progress:
        manifest = append_folder(
            root, delta, metadata_filename=metadata_filename, again=again, ids=by_type("--ids", ids), progress=progress
        )
    book = manifest.book
    part, number, newest = book.num_parts - 1, len(book.deltas), book.deltas[-1]
    num_nodes = sum(int(offsets[-1] - offsets[-2]) for offsets in book.node_offsets.values())
    num_edges, overlays = sum(newest.num_edges.values()), [o for of in newest.overlays.values() for o in of]
    num_rows, num_copied = sum(o.num_rows for o in overlays), sum(o.num_edges - o.num_new for o in overlays)
    folders = {str(part_folder(part))} | {
        str(overlay_folder(o.part, number, *entity)) for entity, of in newest.overlays.items() for o in of
    }
    num_bytes = sum(
        record.num_bytes for name, record in manifest.files.items() if any(name.startswith(f"{f}/") for f in folders)
    )
    text = f"part {part}, {plural_text(num_nodes, 'node')}, {plural_text(num_edges, 'edge')}, {bytes_text(num_bytes)}"
    facts: Facts = {
        "delta": number, "part": part, "nodes": num_nodes, "edges": num_edges, "bytes": num_bytes,
        "rows": num_rows, "copied_edges": num_copied,
    }  # fmt: skip
    output.stage("append", f"delta {number}", text, facts, clock.cost())
    output.text(
        f"{'':<7} {'rows':<8} {count_text(num_rows)} of old nodes rewritten, with {count_text(num_copied)} old edges"
    )
    told: Facts = {
        "manifest": str(root / "manifest.json"), "dataset_id": manifest.dataset_id, "graph_id": manifest.graph_id,
    }  # fmt: skip
    output.stage("done", str(root / "manifest.json"), "", told)
