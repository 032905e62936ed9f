"""Reads a graph in memory from CSV, Parquet and TFRecord tables.

Node tables are read first, each once: they give every raw id its key. Node types that only edges name are collected by
one more pass over the edges' ends. Then edges are read once, and their raw ids are looked up a few million at a time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hopstream.arrays import IntArray
from hopstream.checks import Settings
from hopstream.errors import SchemaError, SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.batch_names import check_tables
from hopstream.ingest.raw_tables.metadata import NodeTableSpec, check_num_rows
from hopstream.ingest.raw_tables.nodes_and_edges import raw_ids_of_edges, read_edge_table, read_node_table
from hopstream.ingest.raw_tables.raw_ids import RawIds
from hopstream.ingest.source_paths import is_unigraph, read_metadata
from hopstream.schema import EdgeType, type_label
from hopstream.uris import local_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(Settings):
    """How tables are read.

    Attributes:
        keep_raw_ids: Keep the raw ids of a node type as a feature named like their column.
        on_dangling: What happens to an edge with an end that is empty or no node: ``error``, or ``drop`` it and count.
        on_duplicate: What happens to a node whose raw id an earlier row has: ``error``, or ``drop`` it and count.
        data_path: The folder that file names in a unigraph's schema are relative to, and below which absolute ones lie;
            the schema's own by default. It is kept as an absolute path.
    """

    keep_raw_ids: bool = True
    on_dangling: Literal["error", "drop"] = "error"
    on_duplicate: Literal["error", "drop"] = "error"
    data_path: str | None = None

    def __post_init__(self) -> None:
        """Refuse what the reader does not know."""
        for name in ("on_dangling", "on_duplicate"):
            if getattr(self, name) not in ("error", "drop"):
                raise SettingsError(f"{name} is {getattr(self, name)!r}; wanted error or drop")
        if not isinstance(self.keep_raw_ids, bool):
            raise SettingsError(f"keep_raw_ids is {self.keep_raw_ids!r}; wanted True or False")
        if self.data_path is not None:
            if not isinstance(self.data_path, str | os.PathLike) or not local_path(self.data_path).is_dir():
                raise SettingsError(f"data_path is {self.data_path!r}; wanted a folder that is there")
            # Workers may run in other folders.
            object.__setattr__(self, "data_path", str(Path(self.data_path).absolute()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesResult:
    """What reading tables gave.

    Attributes:
        graph: The graph; it passed ``Graph.check``.
        num_dropped: Edge type to the number of its edges that were dropped because an end is no node.
        num_repeated: Node type to the number of its rows that were dropped because an earlier row has their raw id.
    """

    graph: Graph
    num_dropped: Mapping[EdgeType, int]
    num_repeated: Mapping[str, int]


def read_tables(path: Path, settings: TableSettings | None = None) -> TablesResult:
    """Read a graph out of CSV and Parquet tables.

    Args:
        path: The JSON file, or the ``.pbtxt`` of a unigraph, that describes the tables; their paths are relative to
            its folder, or to ``settings.data_path``.
        settings: How to read them; ``TableSettings()`` by default.

    Raises:
        FormatError: A file is missing or damaged.
        SchemaError: The file is not what it has to be, a table is not what the file says, a raw id is there twice, or
            an edge names a raw id that no node has. The message names the file and the line or row.
    """
    path, settings = local_path(path), settings or TableSettings()
    metadata = read_metadata(path, settings.data_path)
    check_tables(metadata, keep_raw_ids=settings.keep_raw_ids, is_exempt=is_unigraph(path))
    raw_ids: dict[str, RawIds] = {}
    nodes: dict[str, NodeTable] = {}
    splits: dict[str, dict[str, IntArray]] = {}
    num_repeated: dict[str, int] = {}
    for node_type, spec in metadata.nodes.items():
        if spec.files is None:
            raw_ids[node_type] = raw_ids_of_edges(node_type, spec, metadata)
            nodes[node_type] = NodeTable(num_nodes=raw_ids[node_type].num_nodes)
        else:
            raw_ids[node_type], nodes[node_type], splits[node_type], num_repeated[node_type] = read_node_table(
                node_type, spec, spec.files, is_dropping=settings.on_duplicate == "drop"
            )
            if num_repeated[node_type]:
                logger.warning("dropped %d repeated nodes of %s", num_repeated[node_type], node_type)
        check_num_rows(node_type, spec, nodes[node_type].num_nodes + num_repeated.get(node_type, 0))
        if settings.keep_raw_ids and spec.keeps_ids and spec.id_column is not None:
            nodes[node_type] = _with_raw_ids(node_type, spec, nodes[node_type], raw_ids[node_type])
    edges: dict[EdgeType, EdgeTable] = {}
    edge_splits: dict[EdgeType, dict[str, IntArray]] = {}
    num_dropped: dict[EdgeType, int] = {}
    is_dropping = settings.on_dangling == "drop"
    for edge_type, edge_spec in metadata.edges.items():
        edges[edge_type], edge_splits[edge_type], num_dropped[edge_type] = read_edge_table(
            edge_type, edge_spec, raw_ids, is_dropping=is_dropping
        )
        check_num_rows(type_label(edge_type), edge_spec, edges[edge_type].num_edges + num_dropped[edge_type])
        if num_dropped[edge_type]:
            logger.warning("dropped %d dangling edges of %s", num_dropped[edge_type], type_label(edge_type))
    graph = Graph(
        nodes=nodes,
        edges=edges,
        splits={t: named for t, named in splits.items() if named},
        edge_splits={t: named for t, named in edge_splits.items() if named},
    )
    return TablesResult(graph=graph.check(), num_dropped=num_dropped, num_repeated=num_repeated)


def _with_raw_ids(node_type: str, spec: NodeTableSpec, nodes: NodeTable, raw_ids: RawIds) -> NodeTable:
    name = str(spec.id_column)
    if name in nodes.features:
        if spec.features[name].columns == (name,):  # asked for as a feature, so it is there already
            return nodes
        raise clashing_raw_ids_error(node_type, name)
    return replace(nodes, features={name: raw_ids.as_column(), **nodes.features})


def clashing_raw_ids_error(node_type: str, name: str) -> SchemaError:
    """The error of a feature that has the name that raw ids are to have."""
    return SchemaError(
        f"{node_type} has a feature {name!r} that is not its column of raw ids; rename it, or read with "
        f"keep_raw_ids=False"
    )
