"""Runner of DGL's tools: reads flags, runs a tool, and writes DGL's files beside a dataset's parts.

Exit status: 0 success, 2 wrong input, 1 internal error or failed verification, 130 interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from hopstream.arrays import written_whole
from hopstream.compat.dgl.binary import write_tensor_file
from hopstream.compat.dgl.convert import dgl_names
from hopstream.compat.dgl.dataset_parts import DatasetParts
from hopstream.compat.dgl.graphbolt import NO_GRAPHBOLT, GraphBoltSettings
from hopstream.compat.dgl.part_config import label_of
from hopstream.compat.dgl.partition import write_part_files
from hopstream.dataset.layout import open_dataset
from hopstream.errors import EngineError, HopstreamError, SettingsError, StoreError
from hopstream.uris import local_path

JSON_STEM = "metadata"
ORIG_NIDS, ORIG_EIDS = "orig_nids.dgl", "orig_eids.dgl"


def write_dgl_parts(out: Path, graph_name: str, graphbolt: GraphBoltSettings = NO_GRAPHBOLT) -> None:
    """Write ``metadata.json`` and DGL's files of each part with halos of one hop, as DGL's pipeline does.

    Args:
        out: The dataset's folder, and the folder to write; see ``DatasetParts`` for its form. Parts are read one at a
            time.
        graph_name: The graph's name in the JSON file.
        graphbolt: Whether to write GraphBolt's files too.

    Raises:
        SchemaError: The graph has text or rows of different lengths, or names that DGL's files cannot hold.
    """
    with tempfile.TemporaryDirectory(prefix=f".{JSON_STEM}-edges.", suffix=".partial", dir=out) as scratch:
        source = DatasetParts(open_dataset(out), Path(scratch))
        write_part_files(source, out, JSON_STEM, part_method="file", graph_name=graph_name, graphbolt=graphbolt)


def remove_unfinished(out: Path) -> None:
    """Remove the temporary files of an interrupted ``write_dgl_parts``."""
    for folder in out.glob(f".{JSON_STEM}*.partial"):
        shutil.rmtree(folder)


def write_orig_ids(out: Path, *, nids: bool, eids: bool) -> None:
    """Write ``orig_nids.dgl`` and ``orig_eids.dgl`` into ``part<i>/`` of a dataset's folder, part by part.

    The position is DGL's number of a node or edge among the part's items of its type. The value is its key.

    Args:
        out: The dataset, with edges by destination and their keys.
        nids: Write keys of nodes, by node type.
        eids: Write keys of edges, by ``source:relation:destination``.
    """
    dataset = open_dataset(out)
    node_names, edge_names = dgl_names(dataset.manifest.schema)
    for number in range(dataset.manifest.book.num_parts if nids or eids else 0):
        part = dataset.open_part(number)
        folder = out / f"part{number}"
        folder.mkdir(exist_ok=True)
        if nids:
            with written_whole(folder / ORIG_NIDS) as partial:
                write_tensor_file(partial, {node_names[t]: keys for t, keys in part.node_keys.items()})
        if eids:
            edges = {
                label_of(edge_names[edge_type]): np.sort(held.keys).astype(np.int64)
                for (edge_type, direction), held in part.edges.items()
                if direction == "in" and held.keys is not None
            }
            with written_whole(folder / ORIG_EIDS) as partial:
                write_tensor_file(partial, edges)


DONE, OUR_FAULT, USERS_FAULT, INTERRUPTED = 0, 1, 2, 130
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Flags(argparse.ArgumentParser):
    """Parser that rejects unknown flags and abbreviations."""

    def __init__(self, tool: str, description: str) -> None:
        """Set the tool's name in usage messages."""
        super().__init__(prog=f"python -m hopstream.compat.dgl.tools.{tool}", description=description,
                         allow_abbrev=False)  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Raise an error, which ends the tool like every other error.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(f"{message}; see {self.prog} --help")


def say(stage: str, text: str) -> None:
    """Write one line of progress."""
    sys.stdout.write(f"{stage:<7} {text}\n")


def run_tool(run: Callable[[argparse.Namespace], int], flags: Flags, arguments: Sequence[str] | None) -> int:
    """Run a tool; return its exit status.

    Args:
        run: The tool; it returns the exit status.
        flags: The tool's flags.
        arguments: The arguments; None for those of the command line.
    """
    try:
        given = flags.parse_args(arguments)
        for value in vars(given).values():
            if isinstance(value, Path):
                local_path(value)
        return run(given)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except (HopstreamError, OSError) as error:
        message = str(error).replace("overwrite=True", "--overwrite")
        sys.stderr.write(f"error: {message}\n")
        is_ours = isinstance(error, StoreError | EngineError) or not isinstance(
            error, HopstreamError | FileNotFoundError | PermissionError | NotADirectoryError | IsADirectoryError
        )
        return OUR_FAULT if is_ours else USERS_FAULT
