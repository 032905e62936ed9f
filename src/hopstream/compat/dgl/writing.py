"""Writes DGL's files of parts into a folder, a part at a time; they are visible when all are there."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hopstream.compat.dgl.binary import write_tensor_file
from hopstream.compat.dgl.convert import dgl_names
from hopstream.compat.dgl.graph_files import write_graph_file
from hopstream.compat.dgl.part_config import PartConfig
from hopstream.compat.dgl.part_files import PartSource, check_schema, edge_data, node_data, part_graph, unsaid
from hopstream.errors import SettingsError
from hopstream.ingest.source_paths import is_dgl_config

NODE_FEATS, EDGE_FEATS, GRAPH = "node_feat.dgl", "edge_feat.dgl", "graph.dgl"
FILES = {"node_feats": NODE_FEATS, "edge_feats": EDGE_FEATS, "part_graph": GRAPH}


def write_part_files(
    source: PartSource, out: Path, stem: str, *, part_method: str, graph_name: str | None = None
) -> None:  # fmt: skip
    """Write ``<stem>.json`` and ``part<i>/`` with the files of each part; the JSON file comes last.

    Args:
        source: The graph and its parts.
        out: The folder to write; made if it is not there. Parts of the same graph that were there are replaced.
        stem: What the JSON file is called.
        part_method: What it says of how nodes were assigned.
        graph_name: What it calls the graph; as the file, if None.

    Raises:
        SettingsError: The folder has parts of another graph.
        SchemaError: DGL's files cannot hold the graph.
    """
    check_schema(source.schema, has_trainers=source.has_trainers)
    old_parts = _old_parts(out, stem)
    out.mkdir(parents=True, exist_ok=True)
    config = _config_of(source, out / f"{stem}.json", part_method, graph_name or stem)
    with tempfile.TemporaryDirectory(prefix=f".{stem}.", suffix=".partial", dir=out) as new:
        for part in range(source.num_parts):
            folder = Path(new) / f"part{part}"
            folder.mkdir()
            write_tensor_file(folder / NODE_FEATS, node_data(source, part))
            write_tensor_file(folder / EDGE_FEATS, edge_data(source, part))
            write_graph_file(folder / GRAPH, part_graph(source, part))
        config.path.unlink(missing_ok=True)  # from here on there is no graph, until the new one is whole
        for folder in old_parts:
            shutil.rmtree(folder)
        for part in range(source.num_parts):
            (Path(new) / f"part{part}").rename(out / f"part{part}")
    config.write()


def _config_of(source: PartSource, path: Path, part_method: str, graph_name: str) -> PartConfig:
    node_names, edge_names = dgl_names(source.schema)
    node_ranges, edge_ranges = source.node_ranges, source.edge_ranges
    return PartConfig(
        path=path, graph_name=graph_name, part_method=part_method, num_parts=source.num_parts,
        num_nodes=sum(int((of[:, 1] - of[:, 0]).sum()) for of in node_ranges.values()), halo_hops=source.num_hops,
        num_edges=sum(int((of[:, 1] - of[:, 0]).sum()) for of in edge_ranges.values()),
        node_map={node_names[t]: node_ranges[t] for t in source.schema.nodes},
        edge_map={edge_names[t]: edge_ranges[t] for t in source.schema.edges},
        ntypes={node_names[t]: number for number, t in enumerate(source.schema.nodes)},
        etypes={edge_names[t]: number for number, t in enumerate(source.schema.edges)},
        parts=tuple({what: f"part{p}/{file}" for what, file in FILES.items()} for p in range(source.num_parts)),
        ours=unsaid(source),
    )  # fmt: skip


def _old_parts(out: Path, stem: str) -> list[Path]:
    """Folders of parts to replace.

    Raises:
        SettingsError: They are another graph's, or nobody's.
    """
    folders = [folder for folder in out.glob("part*") if folder.name[4:].isdecimal()] if out.is_dir() else []
    others = [path.name for path in out.glob("*.json") if path.stem != stem and is_dgl_config(path)]
    if folders and others:
        raise SettingsError(f"{out} holds the parts of {others[0]}; give another folder")
    for folder in folders:
        foreign = [e.name for e in folder.iterdir() if e.suffix != ".dgl"] if folder.is_dir() else ["no folder"]
        if foreign:
            raise SettingsError(f"{folder} holds {foreign[0]!r}, which is no file of DGL; give another out_path")
    return folders
