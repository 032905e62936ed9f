"""Opens a chunked graph, and checks its metadata against its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hopstream.errors import FormatError, SettingsError
from hopstream.ingest.chunked.files import FileEdges, open_feature
from hopstream.ingest.chunked.metadata import FileSpec, TypeSpec, describes_chunks, read_chunked_metadata
from hopstream.ingest.chunked.sources import ChunkedEdges, ChunkedGraph, ChunkedNodes, FeatureSource, checked_mask
from hopstream.ingest.json_files import read_json
from hopstream.ingest.objects.attributes import MASKS
from hopstream.schema import EdgeType
from hopstream.uris import local_path

METADATA = "metadata.json"


def is_chunked(path: str | os.PathLike[str]) -> bool:
    """Whether a JSON file is the metadata of a chunked graph, and not that of tables, by its fields."""
    try:
        return describes_chunks(read_json(local_path(path)))
    except FormatError:  # its reader says what is wrong with it
        return False


def open_chunked(
    path: str | os.PathLike[str], metadata_filename: str = METADATA, first_keys: Mapping[str, int] | None = None
) -> ChunkedGraph:
    """Open a chunked graph: read its metadata and the headers or footers of its files.

    Lists in Parquet files are looked at as well, up to 512 MiB of a feature, where footers leave open whether they all
    have one length.

    Lines of CSV files are counted when edges are cut into pieces, where the metadata does not count them.

    Args:
        path: The folder, or the metadata in it.
        metadata_filename: Name of the metadata in the folder.
        first_keys: Node type to the key of its first node here, for a graph whose edges name nodes that are elsewhere
            as well; 0 where nothing is said.

    Raises:
        FormatError: A file is missing, damaged or truncated, or of a format that is not read.
        SchemaError: A field of the metadata is missing or wrong, counts contradict each other or the files, dtypes or
            shapes differ between files, or a path leads out of the folder.
    """
    root = local_path(path)
    if root.is_file():
        root, metadata_filename = root.parent, root.name
    if Path(metadata_filename).name != metadata_filename or metadata_filename in ("", ".", ".."):
        raise SettingsError(f"metadata_filename is {metadata_filename!r}; wanted the name of a file in the folder")
    metadata = read_chunked_metadata(root / metadata_filename)
    graph = ChunkedGraph(
        name=metadata.name,
        root=root,
        metadata_filename=metadata_filename,
        nodes={t: _nodes(t, spec) for t, spec in metadata.nodes.items()},
        edges={t: _edges(t, spec, metadata.nodes, first_keys or {}) for t, spec in metadata.edges.items()},
    )
    _ = graph.schema  # refuses names that no file can carry
    return graph


def _nodes(node_type: str, spec: TypeSpec) -> ChunkedNodes:
    columns = _columns(spec.features, spec.num_rows, "node")
    masks = {
        MASKS[name]: checked_mask(f"{node_type}.{name}", column) for name, column in columns.items() if name in MASKS
    }
    features = {name: column for name, column in columns.items() if name not in MASKS}
    return ChunkedNodes(num_nodes=spec.num_rows, features=features, masks=masks)


def _edges(
    edge_type: EdgeType, spec: TypeSpec, nodes: Mapping[str, TypeSpec], first_keys: Mapping[str, int]
) -> ChunkedEdges:
    src, dst = (first_keys.get(t, 0) + nodes[t].num_rows for t in (edge_type[0], edge_type[2]))
    num_nodes = (src, dst)
    return ChunkedEdges(
        num_edges=spec.num_rows,
        ends=FileEdges(edge_type, spec, num_nodes),
        features=_columns(spec.features, spec.num_rows, "edge"),
    )


def _columns(features: Mapping[str, FileSpec], num_rows: int, what: str) -> dict[str, FeatureSource]:
    return {name: open_feature(spec, num_rows, what) for name, spec in features.items()}
