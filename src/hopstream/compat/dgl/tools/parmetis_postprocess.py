"""Converter of ParMETIS's result to files of parts, with ``parmetis_postprocess.py``'s flags."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopstream.assign.owners import META, check_owners, write_owners
from hopstream.compat.dgl.tools.command import DONE, Flags, run_tool, say
from hopstream.compat.dgl.tools.parmetis_preprocess import first_numbers
from hopstream.dataset.settings import MAX_PARTS
from hopstream.errors import FormatError
from hopstream.ingest.chunked import open_chunked


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status."""
    flags = Flags("parmetis_postprocess", "Write the part of each node, as ParMETIS or pm_dglpart chose it, by type.")
    flags.add_argument("--postproc_input_dir", type=Path, required=True, help="folder of the chunked graph")
    flags.add_argument("--schema_file", default="metadata.json", help="the graph's metadata, in --postproc_input_dir")
    flags.add_argument("--parmetis_output_file", type=Path, required=True, help="<graph name>_part.<number of parts>")
    flags.add_argument("--partitions_dir", type=Path, required=True, help="folder to write <node type>.txt to")
    flags.add_argument("--overwrite", action="store_true", help="replace existing files (not in DGL)")
    return run_tool(_run, flags, arguments)


def _run(given: argparse.Namespace) -> int:
    graph = open_chunked(given.postproc_input_dir, Path(given.schema_file).name)
    num_nodes = sum(nodes.num_nodes for nodes in graph.nodes.values())
    found = _read(given.parmetis_output_file, num_nodes)
    suffix = given.parmetis_output_file.suffix[1:]
    num_parts = int(suffix) if suffix.isdecimal() and 0 < int(suffix) <= MAX_PARTS else int(found.max(initial=0)) + 1
    owner = check_owners(str(given.parmetis_output_file), found, num_nodes, num_parts)
    owners = {t: owner[first : first + graph.nodes[t].num_nodes] for t, first in first_numbers(graph).items()}
    with write_owners(given.partitions_dir, num_parts, "metis", overwrite=given.overwrite) as (_, write):
        write(owners)
    say("done", str(given.partitions_dir / META))
    return DONE


def _read(path: Path, num_nodes: int) -> NDArray[np.int64]:
    """Return int64[num_nodes], the part of each global number; lines may be in any order."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            values = np.fromfile(path, np.int64, count=2 * num_nodes + 1, sep=" ")
    except (OSError, ValueError, DeprecationWarning) as error:
        raise FormatError(f"{path} cannot be read ({error}); wanted lines of a node's number and its part") from error
    nodes, parts = values[: len(values) // 2 * 2].reshape(-1, 2).T
    if len(values) != 2 * num_nodes or not np.array_equal(np.sort(nodes), np.arange(num_nodes)):
        raise FormatError(f"{path} does not have one line for each node 0..{num_nodes - 1}; it is another graph's")
    owner = np.empty(num_nodes, np.int64)
    owner[nodes] = parts
    return owner


if __name__ == "__main__":
    sys.exit(main())
