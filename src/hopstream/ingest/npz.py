"""Reads and writes graphs as ``.npz`` files.

Without types, arrays have the names of PyG's attributes: ``edge_index``, ``x``, ``y``, ``train_mask``, ``edge_attr``.
With types, a name is ``<type>/<attribute>``: ``paper/x``, ``paper/num_nodes``, ``author__writes__paper/edge_index``.
``hopstream.ingest.objects.attributes`` describes the meaning of each attribute. Three suffixes extend PyG's names:

- ``tags.values`` with ``tags.offsets`` is a ragged column;
- ``title.utf8`` with ``title.offsets`` is a column of strings, which may also be a numpy array of strings;
- ``pretrain.split`` holds the keys of a split: node keys of a node type, edge keys of an edge type.

``links.taken_from`` of a label type is an array of strings: the edge types that its links were taken from.

Pickles are never loaded. ``hopstream.ingest.objects.sparse_matrices`` reads files of ``scipy.sparse.save_npz``. An
array that is no part of the graph is an error unless ``ignore`` names it; scalars are dropped.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.lib import format as npy

from hopstream.arrays import BROKEN_ARRAY_ERRORS, Array, Column, RaggedArray, read_header, written_whole
from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.objects.attributes import (
    ADJACENCY,
    SPLIT_MASKS,
    Attributes,
    graph_from_attributes,
    graph_from_typed_attributes,
    left_out,
    named_columns,
)
from hopstream.ingest.objects.sparse_matrices import FILE_ARRAYS, graph_from_sparse_file
from hopstream.places.paths import AnyPath, path_of
from hopstream.places.staging import staging_of
from hopstream.schema import EDGE, NODE, EdgeType, type_label

SPLIT, VALUES, TEXT, OFFSETS = ".split", ".values", ".utf8", ".offsets"
TAKEN_FROM = "links.taken_from"

MAX_DEFLATE_RATIO = 1100
"""Deflate compresses by a factor of at most 1032; a file that claims more is damaged or hostile."""


def read_npz(path: Path, ignore: Collection[str] = ()) -> Graph:
    """Read a graph from an ``.npz`` file.

    Args:
        path: The file.
        ignore: Names of arrays to drop, or ``"all"`` to drop all arrays that are no part of the graph.

    Raises:
        FormatError: The file is missing, damaged, or holds pickles or members that are not arrays.
        SettingsError: ``ignore`` names an array that the file does not have.
        SchemaError: The arrays do not form a graph, or some are no part of it; see ``graph_from_attributes`` and
            ``graph_from_typed_attributes``.
        IdRangeError: An edge or split names a node that does not exist.
    """
    arrays = load_arrays(path)
    return graph_from_sparse_file(path, arrays) if arrays.keys() >= FILE_ARRAYS else _graph_of(path, arrays, ignore)


def _graph_of(path: Path, arrays: dict[str, Array], ignore: Collection[str]) -> Graph:
    """Build a graph from arrays that have the names of attributes."""
    shown = {name: f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items() if array.ndim}
    for name in () if ignore == "all" else ignore:
        if arrays.pop(name, None) is None:
            raise SettingsError(f"ignore names {name!r}; {path} has {', '.join(shown.values())}")
    groups: dict[str, dict[str, Array]] = defaultdict(dict)
    for name, array in arrays.items():
        entity, slash, attribute = name.partition("/")
        groups[entity if slash else ""][attribute if slash else name] = array
    if "" in groups and len(groups) > 1:
        raise FormatError(f"{path} names some arrays with a type and some without: {sorted(arrays)}")
    attributes, splits, taken_from = {}, {}, {}
    for entity, group in groups.items():
        if entity and TAKEN_FROM in group:
            taken_from[entity] = group.pop(TAKEN_FROM)
        splits[entity] = {name.removesuffix(SPLIT): group.pop(name) for name in list(group) if name.endswith(SPLIT)}
        attributes[entity] = _joined(f"{path}: {entity}", group)
    if "" in groups:
        if not {"edge_index", *ADJACENCY} & attributes[""].keys():
            raise SchemaError(f"{path} has no edge_index, integers [2, num_edges]; it has {', '.join(shown.values())}")
        graph = graph_from_attributes(attributes[""], splits[""])
        unused = {"": left_out(graph, attributes[""], NODE, EDGE)}
    else:
        graph = _with_label_types(_typed_graph(attributes, splits), taken_from)
        types = {type_label(t): t for t in graph.edges} | {t: t for t in graph.nodes}
        unused = {entity: left_out(graph, named, types[entity]) for entity, named in attributes.items()}
    if ignore != "all":
        _refuse_unused(path, unused, shown)
    return graph


def _typed_graph(attributes: Mapping[str, Attributes], splits: Mapping[str, Mapping[str, Array]]) -> Graph:
    edges = {cast(EdgeType, tuple(o.split("__"))): named for o, named in attributes.items() if _is_edge_label(o)}
    nodes = {entity: named for entity, named in attributes.items() if not _is_edge_label(entity)}
    for entity, named in nodes.items():
        if "edge_index" in named:
            raise SchemaError(
                f"{entity}/edge_index: {entity!r} is not an edge type; name it source__relation__destination"
            )
    edge_splits = {edge_type: splits[label] for edge_type in edges if splits[label := type_label(edge_type)]}
    node_splits = {entity: splits[entity] for entity in nodes if splits[entity]}
    return graph_from_typed_attributes(nodes, edges, node_splits, edge_splits)


def _with_label_types(graph: Graph, taken_from: Mapping[str, Array]) -> Graph:
    of = graph.schema.edge_type_of
    label_types = {of(label): tuple(of(str(other)) for other in others.ravel()) for label, others in taken_from.items()}
    return replace(graph, label_types=label_types).check()


def _refuse_unused(path: Path, found: Mapping[str, list[str]], shown: Mapping[str, str]) -> None:
    """Refuse arrays that are no part of the graph, because most of them are misnamed."""
    unused: list[str] = []
    for entity, names in found.items():
        for name in names:
            full = f"{entity}/{name}" if entity else name
            unused += [text for file_name, text in shown.items() if file_name in (full, full + VALUES, full + TEXT)]
    if unused:
        raise SchemaError(
            f"{path}: {', '.join(sorted(unused))} match neither nodes nor edges; wanted a row per node or edge, "
            f"edge_index, or {', '.join(SPLIT_MASKS)}; rename them, or leave them out with ignore=[names] or "
            "ignore='all'"
        )


def write_npz(graph: Graph, path: str | AnyPath) -> None:
    """Write a graph to one compressed ``.npz`` file; ``read_npz`` reads an equal graph in the same order.

    Names of arrays always contain types. The file is written under a temporary name and
    renamed; one at a URI is written in the cache folder and copied.

    Raises:
        SchemaError: A name has another meaning in the file, for example a feature ``edge_index``.
        OSError: The file cannot be written; the error names it.
    """
    path = path_of(path)
    if not isinstance(path, Path):
        with staging_of(path) as staging:
            write_npz(graph, staging.folder)
            path.put(staging.folder)
        return
    arrays: dict[str, Array] = {}
    for node_type, nodes in graph.nodes.items():
        _check_label(node_type, is_edge=False)
        named = {"num_nodes": np.array(nodes.num_nodes), **_taken_apart(node_type, nodes.features)}
        named |= {name + SPLIT: keys for name, keys in graph.splits.get(node_type, {}).items()}
        arrays |= {f"{node_type}/{name}": array for name, array in named.items()}
    for edge_type, edges in graph.edges.items():
        label = type_label(edge_type)
        _check_label(label, is_edge=tuple(label.split("__")) == edge_type)
        named = {"edge_index": np.stack([edges.src_keys, edges.dst_keys]), **_taken_apart(label, edges.features)}
        named |= {name + SPLIT: keys for name, keys in graph.edge_splits.get(edge_type, {}).items()}
        if edge_type in graph.label_types:
            named[TAKEN_FROM] = np.array([type_label(other) for other in graph.label_types[edge_type]])
        arrays |= {f"{label}/{name}": array for name, array in named.items()}
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_arrays(path: Path) -> dict[str, Array]:
    """Load all arrays of a file by name.

    Each array's header is compared with its size in the archive before memory is allocated.

    Raises:
        FormatError: The file is missing, damaged, or holds pickles or members that are not arrays.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                info.filename.removesuffix(".npy"): _load_member(path, archive, info) for info in archive.infolist()
            }
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    except (*BROKEN_ARRAY_ERRORS, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} cannot be read as .npz ({error})") from error


def _load_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    if not info.filename.endswith(".npy"):
        raise FormatError(f"{path} holds {info.filename!r}, which is not a .npy array")
    with archive.open(info) as file:
        shape, _, dtype = read_header(file)
        wanted = file.tell() + math.prod(shape) * dtype.itemsize
    if wanted != info.file_size or info.file_size > MAX_DEFLATE_RATIO * (info.compress_size + 1):
        raise FormatError(
            f"{path}: {info.filename} is {info.file_size} bytes in {info.compress_size}; its header says {wanted}"
        )
    with archive.open(info) as file:
        return npy.read_array(file, allow_pickle=False)


def _joined(where: str, group: Mapping[str, Array]) -> Attributes:
    """Join the values and offsets of one type's attributes to ragged columns."""
    found: dict[str, object] = {}
    for name, array in group.items():
        stem, dot, ending = name.rpartition(".")
        if dot + ending in (VALUES, TEXT):
            if stem + OFFSETS not in group or stem in group:
                raise FormatError(f"{where}/{name} needs {stem}{OFFSETS} too, and must not have {stem}")
            found[stem] = RaggedArray(array, group[stem + OFFSETS], is_string=dot + ending == TEXT)
        elif dot + ending != OFFSETS or not {stem + VALUES, stem + TEXT} & group.keys():
            found[name] = array
    return found


def _taken_apart(label: str, features: Mapping[str, Column]) -> dict[str, Array]:
    """Split features into named arrays, the inverse of ``_joined`` and ``named_columns``."""
    refused = set(features) - dict(named_columns(features)).keys()
    refused |= {
        n for n in features if n in (*SPLIT_MASKS, *ADJACENCY, TAKEN_FROM) or n.endswith((SPLIT, VALUES, TEXT, OFFSETS))
    }
    if refused:
        raise SchemaError(
            f"features {sorted(refused)} of {label} have names with another meaning in .npz files; rename them"
        )
    arrays: dict[str, Array] = {}
    for name, column in features.items():
        if isinstance(column, RaggedArray):
            arrays |= {name + (TEXT if column.is_string else VALUES): column.values, name + OFFSETS: column.offsets}
        else:
            arrays[name] = column
    return arrays


def _is_edge_label(entity: str) -> bool:
    return entity.count("__") == 2


def _check_label(label: str, *, is_edge: bool) -> None:
    if "/" in label or not label or is_edge != _is_edge_label(label):
        raise SchemaError(
            f"the name of type {label!r} is ambiguous in an .npz file; names must not contain '/' or '__'"
        )
