"""Writer of a chunked graph in ParMETIS's text files, with the flags of ``parmetis_preprocess.py``.

Nodes of all types are numbered one after the other. A node's global number is its key plus the number of nodes of the
types before its own. One process writes all files; DGL starts one per part.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hopstream.arrays import IntArray, offsets_of, write_text, written_whole
from hopstream.checks import check_int
from hopstream.compat.dgl.tools.command import DONE, LOG_LEVELS, Flags, run_tool, say
from hopstream.dataset.paths import path_name
from hopstream.dataset.settings import MAX_PARTS
from hopstream.ingest.chunked import ChunkedGraph, open_chunked
from hopstream.schema import EdgeType

ROWS_PER_FILE = 1 << 24
NODE_FILES, EDGE_FILES = "parmetis_nfiles.txt", "parmetis_efiles.txt"


def first_numbers(graph: ChunkedGraph) -> dict[str, int]:
    """Map each node type to the global number of its first node."""
    offsets = offsets_of(np.array([nodes.num_nodes for nodes in graph.nodes.values()]))
    return dict(zip(graph.nodes, offsets.tolist(), strict=False))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status."""
    flags = Flags("parmetis_preprocess", "Write a chunked graph in ParMETIS's text files.")
    flags.add_argument("--schema_file", default="metadata.json", help="the graph's metadata, in --input_dir")
    flags.add_argument("--input_dir", type=Path, required=True, help="folder of the chunked graph")
    flags.add_argument("--output_dir", type=Path, required=True, help="the folder to write")
    flags.add_argument("--num_parts", type=int, required=True, help="number of files of nodes for each node type")
    flags.add_argument("--log_level", default="INFO", choices=LOG_LEVELS, help="above INFO only errors are printed")
    return run_tool(_run, flags, arguments)


def _run(given: argparse.Namespace) -> int:
    check_int("num_parts", given.num_parts, 1, MAX_PARTS)
    graph, out = open_chunked(given.input_dir, given.schema_file), given.output_dir
    out.mkdir(parents=True, exist_ok=True)
    node_files = _write_nodes(graph, out, given.num_parts)
    edge_files = [line for edge_type in graph.edges for line in _write_edges(graph, out, edge_type)]
    stats = graph.root / f"{graph.name}_stats.txt"
    if not stats.exists():
        num_nodes, num_edges = (sum(counts) for counts in (
            (nodes.num_nodes for nodes in graph.nodes.values()), (edges.num_edges for edges in graph.edges.values())
        ))  # fmt: skip
        write_text(stats, f"{num_nodes} {num_edges} {len(graph.nodes)}")
    write_text(out / EDGE_FILES, "".join(edge_files))
    write_text(out / NODE_FILES, "".join(node_files))
    if given.log_level in ("DEBUG", "INFO"):
        say("done", f"{out / NODE_FILES} {out / EDGE_FILES}")
    return DONE


def _write_nodes(graph: ChunkedGraph, out: Path, num_parts: int) -> list[str]:
    """Write a line per node, and return the list of files.

    A line has the number of the node's type, a weight for each type, and the node's key.
    """
    lines = []
    for number, (node_type, first) in enumerate(first_numbers(graph).items()):
        weights = " ".join("1" if other == number else "0" for other in range(len(graph.nodes)))
        num_nodes = graph.nodes[node_type].num_nodes
        sizes = np.full(num_parts, num_nodes // num_parts) + (np.arange(num_parts) < num_nodes % num_parts)
        bounds = offsets_of(sizes).tolist()
        for part in range(num_parts):
            path = out / f"node_weights_{path_name(node_type)}_{part}.txt"
            with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
                file.writelines(f"{number} {weights} {key}\n" for key in range(bounds[part], bounds[part + 1]))
            lines.append(f"{path} {first + bounds[part]} {first + bounds[part + 1]}\n")
    return lines


def _write_edges(graph: ChunkedGraph, out: Path, edge_type: EdgeType) -> list[str]:
    """Write a line per edge, the global numbers of its ends; return the list of files."""
    first, lines, ends = first_numbers(graph), [], graph.edges[edge_type].ends
    folder = out / ":".join(map(path_name, edge_type))
    folder.mkdir(exist_ok=True)
    for number, piece in enumerate(ends.pieces(ROWS_PER_FILE)):
        path = folder / f"edges_{number}.csv"
        with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
            for _, src, dst in ends.read(piece):
                file.writelines(_pairs(src + first[edge_type[0]], dst + first[edge_type[2]]))
        lines.append(f"{path}\n")
    return lines


def _pairs(src: IntArray, dst: IntArray) -> list[str]:
    return [f"{one} {other}\n" for one, other in zip(src.tolist(), dst.tolist(), strict=True)]


if __name__ == "__main__":
    sys.exit(main())
