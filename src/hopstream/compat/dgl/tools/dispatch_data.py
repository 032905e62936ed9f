"""Writer of a chunked graph as parts, with the flags of DGL's ``dispatch_data.py``.

One process and its workers do the work that DGL starts over ssh on every machine. So flags for access to machines are
accepted without effect. The tool writes a dataset, whose parts keep the original ids of nodes and edges. Then it writes
DGL's own files beside the dataset, part by part.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hopstream.checks import known_words
from hopstream.compat.dgl.graphbolt import GraphBoltSettings
from hopstream.compat.dgl.part_files import check_schema
from hopstream.compat.dgl.partition import FORMATS
from hopstream.compat.dgl.tools.command import (
    DONE,
    JSON_STEM,
    LOG_LEVELS,
    Flags,
    remove_unfinished,
    run_tool,
    say,
    write_dgl_parts,
    write_orig_ids,
)
from hopstream.dataset.paths import CLUSTER, MANIFEST
from hopstream.engine.settings import MEMORY_HELP, WorkerSettings
from hopstream.errors import SchemaError, SettingsError
from hopstream.ingest.chunked import open_chunked
from hopstream.preparation.dataset_job import DatasetEstimate
from hopstream.preparation.dataset_job_folder import DatasetJobSpec
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.dispatch.settings import DispatchSettings
from hopstream.store.ip_config import read_ip_config
from hopstream.transfer.place import place

OF_MACHINES = ("master_port", "python_path", "ssh_port", "process_group_timeout")
"""Flags for how DGL reaches and starts its workers."""
GRAPHBOLT = {
    "use_graphbolt": "write GraphBolt's files too", "store_eids": "store numbers of edges in them",
    "store_inner_node": "store in them whether the part owns each node",
    "store_inner_edge": "store in them whether the part owns each edge",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status."""
    flags = Flags("dispatch_data", "Write a chunked graph as parts, given the part of each node.")
    flags.add_argument("--in-dir", type=Path, required=True, help="folder of the chunked graph")
    flags.add_argument("--metadata-filename", default="metadata.json", help="the graph's metadata, in --in-dir")
    flags.add_argument("--partitions-dir", type=Path, required=True, help="folder with the part of each node")
    flags.add_argument("--out-dir", type=Path, required=True, help="the folder to write the dataset to")
    flags.add_argument("--ip-config", type=Path, help="a line 'ip [port]' per machine; makes cluster.json")
    flags.add_argument("--save-orig-nids", action="store_true", help="write part<i>/orig_nids.dgl too")
    flags.add_argument("--save-orig-eids", action="store_true", help="write part<i>/orig_eids.dgl too")
    flags.add_argument("--log-level", default="INFO", choices=LOG_LEVELS, help="above INFO only errors are printed")
    for name in OF_MACHINES:
        flags.add_argument(f"--{name.replace('_', '-')}", help="has no effect: nothing is started over ssh")
    for name, what in GRAPHBOLT.items():
        flags.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=what)
    flags.add_argument("--graph-formats", help="formats that DGL makes of its graph files")
    flags.add_argument("--no-dgl-files", action="store_true", help="write only the dataset (not in DGL)")
    flags.add_argument("--workers", type=int, help="number of worker processes; 0 works in this process (not in DGL)")
    flags.add_argument("--memory", help=f"{MEMORY_HELP} (not in DGL)".replace("%", "%%"))
    flags.add_argument("--overwrite", action="store_true", help="replace an existing dataset (not in DGL)")
    return run_tool(_run, flags, arguments)


def _run(given: argparse.Namespace) -> int:
    _refuse(given)
    graphbolt = GraphBoltSettings(**{name: getattr(given, name) for name in GRAPHBOLT})
    graph_name = None if given.no_dgl_files else _name_for_dgl(given)
    machines = () if given.ip_config is None else read_ip_config(given.ip_config)

    def check(_: DatasetEstimate, spec: DatasetJobSpec) -> None:
        if spec.settings.num_parts < len(machines):
            raise SettingsError(
                f"{given.ip_config} names {len(machines)} machines for {spec.settings.num_parts} parts; "
                "give each machine at least one part"
            )

    if given.overwrite:
        remove_unfinished(given.out_dir)
    manifest = dispatch(
        given.in_dir, given.partitions_dir, given.out_dir, metadata_filename=given.metadata_filename,
        settings=DispatchSettings(num_workers=given.workers, memory=given.memory), overwrite=given.overwrite,
        on_estimate=check,
    )  # fmt: skip
    if machines:
        place(given.out_dir, [], ip_config=given.ip_config, settings=WorkerSettings(num_workers=0))
    if graph_name is not None:
        write_dgl_parts(given.out_dir, graph_name, graphbolt)
    write_orig_ids(given.out_dir, nids=given.save_orig_nids, eids=given.save_orig_eids)
    if given.log_level in ("DEBUG", "INFO"):
        for part, (nodes, edges) in enumerate(zip(manifest.report.nodes, manifest.report.edges, strict=True)):
            say("write", f"part {part}: {nodes} nodes, {edges} edges, {manifest.report.bytes[part]} bytes")
        if machines:
            say("serve", str(given.out_dir / CLUSTER))
        if graph_name is not None:
            say("done", str(given.out_dir / f"{JSON_STEM}.json"))
        say("done", str(given.out_dir / MANIFEST))
    return DONE


def _refuse(given: argparse.Namespace) -> None:
    if given.use_graphbolt and given.no_dgl_files:
        raise SettingsError("--use-graphbolt is for DGL's files; leave it out, or leave out --no-dgl-files")
    if given.graph_formats is not None and given.no_dgl_files:
        raise SettingsError("--graph-formats is for DGL's files; leave it out, or leave out --no-dgl-files")
    unknown = [f for f in (given.graph_formats or "").split(",") if f not in ("", *FORMATS)]
    if unknown:
        raise SettingsError(f"--graph-formats has {unknown[0]!r}; {known_words(unknown[0], FORMATS)}")


def _name_for_dgl(given: argparse.Namespace) -> str:
    """Return the graph's name; refuse a graph that DGL's files cannot hold before hours of work.

    Raises:
        SchemaError: DGL's files cannot hold the graph.
        FormatError: A file is missing or cannot be read.
    """
    chunked = open_chunked(given.in_dir, given.metadata_filename)
    try:
        check_schema(chunked.schema)
    except SchemaError as error:
        raise SchemaError(f"{error}, or give --no-dgl-files to write the dataset alone") from error
    return chunked.name


if __name__ == "__main__":
    sys.exit(main())
