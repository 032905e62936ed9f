"""Assigner of nodes to parts, in place of ParMETIS's ``pm_dglpart``.

The files are the same. KaMinPar cuts the graph, in one process without MPI. Edges are read in blocks. Memory: the part
and the type of each node, and what ``hopstream assign`` needs for edges.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import written_whole
from hopstream.assign.run import assign_folder
from hopstream.checks import check_int
from hopstream.compat.dgl.tools.command import DONE, Flags, run_tool, say
from hopstream.dataset.settings import MAX_PARTS
from hopstream.engine.settings import MEMORY_HELP
from hopstream.errors import FormatError
from hopstream.ingest.chunked import open_chunked

BLOCK_BYTES = 1 << 22


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status."""
    flags = Flags("pm_dglpart", "Put each node of a graph in ParMETIS's text files into a part; balance node types.")
    flags.add_argument("graph_name", help="the result is <graph_name>_part.<num_parts> in the current folder")
    flags.add_argument("num_parts", type=int, help="number of parts, as of one process of ParMETIS")
    flags.add_argument("node_files", type=Path, help="parmetis_nfiles.txt")
    flags.add_argument("edge_files", type=Path, help="parmetis_efiles.txt")
    flags.add_argument("--rng_seed", type=int, default=0, help="seed of all random choices (not in ParMETIS)")
    flags.add_argument("--memory", help=f"{MEMORY_HELP} (not in ParMETIS)".replace("%", "%%"))
    return run_tool(_run, flags, arguments)


def _run(given: argparse.Namespace) -> int:
    check_int("num_parts", given.num_parts, 1, MAX_PARTS)
    types = _node_types(given.node_files)
    files = [Path(line).resolve() for line in _lines(given.edge_files)]
    target = Path(f"{given.graph_name}_part.{given.num_parts}")
    with tempfile.TemporaryDirectory(prefix=f".{given.graph_name}.", suffix=".partial", dir=".") as scratch:
        source, owners = Path(scratch) / "graph", Path(scratch) / "owners"
        source.mkdir()
        label, counts = "node:to:node", [_count_lines(path) for path in files]
        metadata = {
            "graph_name": given.graph_name, "node_type": ["node"], "num_nodes_per_type": [len(types)],
            "edge_type": [label], "num_edges_per_chunk": [counts],
            "edges": {label: {"format": {"name": "csv", "delimiter": " "}, "data": [str(path) for path in files]}},
            "node_data": {}, "edge_data": {},
        }  # fmt: skip
        (source / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
        found = assign_folder(
            open_chunked(source), owners, num_parts=given.num_parts, method="kaminpar", rng_seed=given.rng_seed,
            classes={"node": types} if types.any() else None, memory=given.memory,
        )  # fmt: skip
        with written_whole(target) as partial, partial.open("w", encoding="utf-8") as file:
            file.writelines(f"{node} {part}\n" for node, part in enumerate(found.owners["node"].tolist()))
    say("assign", f"{len(types)} nodes to {given.num_parts} parts")
    say("done", str(target))
    return DONE


def _lines(path: Path) -> list[str]:
    """Return the lines of a list of files."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read ({error}); give a file that parmetis_preprocess wrote") from error


def _node_types(path: Path) -> NDArray[np.int32]:
    """Return int32[num_nodes], the type of each node, which begins every line of its file."""
    pieces: list[NDArray[np.int32]] = []
    stop = 0
    for line in _lines(path):
        name, *bounds = line.rsplit(maxsplit=2)
        if len(bounds) != 2 or not all(text.isdecimal() for text in bounds) or int(bounds[0]) != stop:
            raise FormatError(f"{path} has the line {line!r}; wanted a file and its range of nodes, from {stop} on")
        first, stop = map(int, bounds)
        _check_size(path, name, stop - first)
        if stop > first:
            with Path(name).open(encoding="utf-8") as file:
                word = file.readline(1 << 16).split(" ", 1)[0]
            if not word.isdecimal() or int(word) > np.iinfo(np.int32).max:
                raise FormatError(f"{name} begins with {word!r}; wanted the number of a node type")
            pieces.append(np.full(stop - first, int(word), np.int32))
    return np.concatenate([np.empty(0, np.int32), *pieces])


def _check_size(path: Path, name: str, num_nodes: int) -> None:
    """Refuse a file that does not have a line per node, before memory is allocated for them."""
    if num_nodes < 0 or _count_lines(Path(name)) != num_nodes:
        raise FormatError(f"{path} says that {name} has {num_nodes} nodes; the file has another number of lines")


def _count_lines(path: Path) -> int:
    count = 0
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                count += block.count(b"\n")
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error}); run parmetis_preprocess again") from error
    return count


if __name__ == "__main__":
    sys.exit(main())
