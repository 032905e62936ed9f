"""Reads graphs of the Open Graph Benchmark (OGB): dataset folders, and graphs as arrays.

The package ``ogb`` is not needed. The files in a folder tell which of four layouts it has; each holds one large graph:

- ``raw/edge.csv.gz``: a graph without types as gzipped tables (ogbn-arxiv, ogbn-products, ogbl-collab);
- ``raw/triplet-type-list.csv.gz``: a graph with types, one folder per relation and node type (ogbn-mag, ogbl-biokg);
- ``raw/data.npz`` and ``raw/edge_index_dict.npz``: graphs without and with types as numpy archives (ogbn-papers100M);
- ``processed/<source>___<relation>___<target>/edge_index.npy``: MAG240M, whose arrays are memory-mapped.

Splits are in ``split/<name>/``, those of MAG240M in ``split_dict.pt``. The caller passes ``read_torch`` to read ``.pt``
files, because this package does not import torch. Graphs as arrays are recognized by their keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from hopstream.arrays import Array, IntArray, open_array
from hopstream.errors import FormatError, MissingDependencyError, SchemaError, SettingsError, quoted
from hopstream.graph.graph import Graph
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.ingest.npz import load_arrays
from hopstream.ingest.user_columns import ColumnLike, as_array, as_keys
from hopstream.schema import EDGE, NODE, EdgeType
from hopstream.uris import local_path

NODE_PREFIX, EDGE_PREFIX = "node_", "edge_"
SPLITS = {"valid": "val"}
"""OGB's name of a split to the name used here, where they differ."""
_TOPOLOGY = frozenset({"edge_index", "edge_index_dict", "num_nodes", "num_nodes_dict"})


def graph_from_ogb(
    graph: Mapping[str, Any] | tuple[Mapping[str, Any], Any], labels: Any = None, split_idx: Any = None, *,
    label_name: str = "y",
) -> Graph:  # fmt: skip
    """Make a graph from ``dataset[0]`` and ``dataset.get_idx_split()`` of OGB's node datasets.

    ``node_feat`` becomes the node feature ``feat``, ``node_year`` becomes ``year``, and so on; ``edge_feat`` and
    ``edge_reltype`` become edge features. Columns ``[n, 1]`` lose their second dimension, except ``feat``. Split
    ``valid`` becomes ``val``.

    Args:
        graph: A dict with ``edge_index``, ``num_nodes``, ``node_feat`` … For graphs with types, ``edge_index_dict`` by
            ``(source, relation, target)``, and ``num_nodes_dict``, ``node_feat_dict`` … by type. Or a pair of such a
            dict and the labels.
        labels: Values per node; for graphs with types, by node type.
        split_idx: Split name to keys; for graphs with types, split name to node type to keys.
        label_name: Name of the feature for the labels.

    Returns:
        A graph that passed ``Graph.check``; its arrays share memory with the arguments where possible.

    Raises:
        SchemaError: An array's number of rows differs from its type's, or the arguments do not have OGB's form.
        IdRangeError: An edge or split names a node that does not exist.
    """
    if isinstance(graph, tuple):
        if len(graph) != 2 or labels is not None:
            raise SchemaError(
                "graph is a tuple; give dataset[0], the pair of a graph and its labels, or both separately"
            )
        graph, labels = graph
    if not isinstance(graph, Mapping):
        raise SchemaError(f"graph is {type(graph).__name__}; wanted a dict with edge_index or edge_index_dict")
    is_typed = "edge_index_dict" in graph
    if not is_typed and "edge_index" not in graph:
        raise SchemaError(f"graph has neither edge_index nor edge_index_dict; it has {sorted(graph)}")
    node_features: dict[str, dict[str, ColumnLike]] = {}
    edge_features: dict[EdgeType, dict[str, ColumnLike]] = {}
    for key, value in graph.items():
        name = key.removesuffix("_dict")
        if key in _TOPOLOGY or value is None:
            continue
        if name.startswith(NODE_PREFIX):
            _put(node_features, name.removeprefix(NODE_PREFIX), _by_type(key, value, NODE, is_typed))
        elif name.startswith(EDGE_PREFIX):
            _put(edge_features, name.removeprefix(EDGE_PREFIX), _by_type(key, value, EDGE, is_typed))
        else:
            raise SchemaError(
                f"graph has {key!r}, which is for neither nodes (node_…) nor edges (edge_…); leave it out"
            )
    if labels is not None:
        _put(node_features, label_name, _by_type("labels", labels, NODE, is_typed))
    edges = _by_type("edge_index", graph["edge_index_dict" if is_typed else "edge_index"], EDGE, is_typed)
    num_nodes = graph.get("num_nodes_dict" if is_typed else "num_nodes")
    return graph_from_arrays(
        {_edge_type(t): pair for t, pair in edges.items()},
        num_nodes={}
        if num_nodes is None
        else {t: int(n) for t, n in _by_type("num_nodes", num_nodes, NODE, is_typed).items()},
        node_features=node_features,
        edge_features={_edge_type(t): of for t, of in edge_features.items()},
        splits=_splits(split_idx, is_typed),
    )


def _by_type(name: str, value: Any, only: Any, is_typed: bool) -> Mapping[Any, Any]:
    if is_typed != isinstance(value, Mapping):
        wanted = "a dict by type" if is_typed else "one array"
        raise SchemaError(f"{name} is {type(value).__name__}; wanted {wanted}, as the edges are given")
    return value if is_typed else {only: value}


def _edge_type(given: object) -> EdgeType:
    if not isinstance(given, tuple) or len(given) != 3:
        raise SchemaError(f"edge_index_dict has the type {quoted(given)}; wanted (source, relation, target)")
    return cast(EdgeType, given)


def _put(features: dict[Any, dict[str, ColumnLike]], name: str, columns: Mapping[Any, Any]) -> None:
    for entity, column in columns.items():
        if column is None:
            continue
        if name in features.setdefault(entity, {}):
            raise SchemaError(f"{entity!r} has two features named {name!r}; give another label_name")
        array = as_array(column, f"{entity}.{name}")
        features[entity][name] = array.reshape(-1) if name != "feat" and array.shape[1:] == (1,) else array


def _splits(split_idx: Any, is_typed: bool) -> dict[str, dict[str, ColumnLike]]:
    splits: dict[str, dict[str, ColumnLike]] = {}
    for name, value in (split_idx or {}).items():
        for node_type, keys in _by_type(f"split_idx[{name!r}]", value, NODE, is_typed).items():
            if isinstance(keys, Mapping):
                raise SchemaError(f"split_idx[{name!r}] holds {sorted(keys)}; for splits of links use split_links")
            found: IntArray = as_keys(keys, f"split {name!r} of {node_type!r}")
            splits.setdefault(node_type, {})[SPLITS.get(name, name)] = found
    return splits


def _csv(path: Path, names: list[str] | None = None, *, is_text: bool = False) -> pa.Table:
    """Read a gzipped table: without a header if ``names`` is None, with a header if it is an empty list."""
    try:
        with pa.input_stream(str(path), compression="gzip") as file:
            return pacsv.read_csv(
                file,
                read_options=pacsv.ReadOptions(autogenerate_column_names=names is None),
                convert_options=pacsv.ConvertOptions(
                    column_types={f"f{number}": pa.string() for number in range(3)} if is_text else None
                ),
            )
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path} cannot be read as gzipped CSV ({error})") from error


def read_matrix(path: Path, real: type[np.floating[Any]] = np.float32) -> Array:
    """Read a table as int64[n, k] if all cells are integers, else as ``real``[n, k].

    Empty cells are NaN.
    """
    table = _csv(path)
    is_whole = all(column.type == pa.int64() and not column.null_count for column in table.columns)
    matrix: Array = np.empty((table.num_rows, table.num_columns), np.int64 if is_whole else real)
    for number, column in enumerate(table.columns):
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
            raise SchemaError(f"{path}: column {number} is {column.type}; wanted numbers")
        matrix[:, number] = column.cast(pa.int64() if is_whole else pa.float64()).to_numpy()
    return matrix


def read_texts(path: Path, num_columns: int) -> list[EdgeType]:
    """Read the edge types that a table lists, in its order."""
    table = _csv(path, is_text=True)
    if table.num_columns != num_columns:
        raise SchemaError(f"{path} has {table.num_columns} columns; wanted source, relation, target")
    if any(mark in name for column in table.columns for name in column.to_pylist() for mark in ("/", "\\", "\0")):
        raise FormatError(
            f"{path} has a type with a slash in its name, which is also the name of a folder; rename the type"
        )
    heads, relations, tails = (column.to_pylist() for column in table.columns)
    return list(zip(heads, relations, tails, strict=True))


def read_named_row(path: Path) -> dict[str, Any]:
    """Read the only row of a table as a dict by the names in the header."""
    table = _csv(path, [])
    if table.num_rows != 1:
        raise SchemaError(f"{path} has {table.num_rows} rows, one per graph; only folders of one graph can be read")
    return {name: column[0].as_py() for name, column in zip(table.column_names, table.columns, strict=True)}


ReadTorch = Callable[[Path], Any]
"""Reads a ``.pt`` file of dicts, numbers, tensors and arrays."""
OPTIONS = ("split", "inverse_edges", "num_nodes")
BETWEEN = "___"
SPLIT_NAMES = ("train", "valid", "test")
INVERSES_OF = {
    **dict.fromkeys(("ogbn_proteins", "ogbn_products", "ogbl_ppa", "ogbl_collab", "ogbl_ddi", "ogbl_vessel"), True),
    **dict.fromkeys(("ogbn_arxiv", "ogbl_citation", "ogbl_citation2", "ogbl_wikikg", "ogbl_wikikg2"), False),
}
"""CSV datasets of one edge type to whether their files hold one direction of each edge and ``ogb`` adds the reverse."""
LIBRARIES = ("_pyg", "_dgl")
"""Suffixes that older versions of ``ogb`` add to the name of a folder."""
PLAIN_CSV, TYPED_CSV = "edge.csv.gz", "triplet-type-list.csv.gz"
PLAIN_NPZ, TYPED_NPZ = "data.npz", "edge_index_dict.npz"


def is_ogb_folder(folder: Path) -> bool:
    """Return whether a folder has the files of an OGB dataset."""
    raw = folder / "raw"
    return any((raw / name).is_file() for name in (PLAIN_CSV, TYPED_CSV, PLAIN_NPZ, TYPED_NPZ)) or _is_mapped(folder)


def read_ogb_folder(
    folder: str | os.PathLike[str], *, split: str | None = None, inverse_edges: bool | None = None,
    num_nodes: Mapping[str, int] | None = None, read_torch: ReadTorch | None = None,
) -> Graph:  # fmt: skip
    """Read the graph in a folder of an OGB dataset.

    It equals the result of ``graph_from_ogb`` for the arrays that ``ogb`` gives.

    Features, labels (``y``; ``label`` in MAG240M) and splits of nodes are read. Links to predict are not part of the
    graph; see ``hopstream.graph.read_ogb_links``.

    Args:
        folder: A dataset's folder, such as ``dataset/ogbn_arxiv``.
        split: Name of the folder in ``split/``; may be omitted if there is only one.
        inverse_edges: Whether to add the reverse of each edge after it, as ``ogb`` does for some datasets in CSV. None
            decides by the folder's name, with or without the suffix ``_pyg`` or ``_dgl``.
        num_nodes: Node type to number of nodes, for MAG240M's layout without ``meta.pt``.
        read_torch: Function that reads ``.pt`` files.

    Returns:
        A graph that passed ``Graph.check``.

    Raises:
        FormatError: A file is missing or damaged, or the folder has no known layout.
        SchemaError: Files contradict each other, for example in numbers of nodes or edges, or hold several graphs.
        IdRangeError: An edge or split names a node that does not exist.
        SettingsError: There are several splits and none is chosen, or the chosen one does not exist; or
            ``inverse_edges`` is None, and the folder has one edge type in CSV and no name of an OGB dataset.
        MissingDependencyError: A ``.pt`` file must be read and ``read_torch`` is None.
    """
    root = local_path(folder)
    raw = root / "raw"
    if inverse_edges is not None and not isinstance(inverse_edges, bool):
        raise SettingsError(f"inverse_edges is {inverse_edges!r}; wanted True, False or None")
    if _is_mapped(root):
        if split is not None or inverse_edges is not None:
            raise SettingsError(
                f"{root} has the layout of MAG240M, which supports neither split nor inverse_edges; leave them out"
            )
        return _read_mapped(root, dict(num_nodes or {}), read_torch)
    if num_nodes is not None:
        raise SettingsError(f"num_nodes is given, but {root} has the number of nodes; leave num_nodes out")
    graph, labels = _read_raw(root)
    if inverse_edges is None and (raw / PLAIN_CSV).is_file():
        inverse_edges = _has_inverses_by_name(root)
    if inverse_edges:
        _add_inverses(graph)
    split_folder = find_split(root, split)
    return graph_from_ogb(graph, labels, None if split_folder is None else _read_split(split_folder, read_torch))


def _read_raw(root: Path) -> tuple[dict[str, Any], Any]:
    """Read the graph and its labels as stored, before ``ogb`` adds reverses."""
    raw = root / "raw"
    readers = {
        PLAIN_CSV: _read_plain_csv, TYPED_CSV: _read_typed_csv, PLAIN_NPZ: _read_plain_npz, TYPED_NPZ: _read_typed_npz,
    }  # fmt: skip
    for name, read in readers.items():
        if (raw / name).is_file():
            return read(raw)
    raise FormatError(f"{root} is not an OGB folder: it has neither raw/{PLAIN_CSV}, raw/{TYPED_CSV}, raw/{PLAIN_NPZ}, "
        f"raw/{TYPED_NPZ} nor MAG240M's processed/")  # fmt: skip


def find_split(root: Path, split: str | None) -> Path | None:
    """Return the folder of a split; None if there are no splits and none is chosen.

    Raises:
        SettingsError: There are several splits and none is chosen, or the chosen one does not exist.
    """
    parent = root / "split"
    found = sorted(path.name for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
    found = [name for name in found if not name.startswith((".", "__"))]
    if split is None and len(found) < 2:
        return parent / found[0] if found else None
    if split is None:
        raise SettingsError(f"{parent} has the splits {', '.join(found)}; choose one of them: split={found[0]!r}")
    if split not in found:
        remedy = f"give one of {', '.join(found)}" if found else "leave it out"
        raise SettingsError(
            f"split is {split!r}, and {parent} has {'no split of this name' if found else 'no splits'}; {remedy}"
        )
    return parent / split


def _has_inverses_by_name(root: Path) -> bool:
    """Return whether ``ogb`` adds the reverses of a dataset's edges.

    Raises:
        SettingsError: The folder's name is none that ``ogb`` gives.
    """
    for path in (Path(os.path.abspath(root)), root.resolve()):  # noqa: PTH100 a link may be called by either name
        name = path.name.lower().replace("-", "_")
        for ending in LIBRARIES:
            name = name.removesuffix(ending)
        if name in INVERSES_OF:
            return INVERSES_OF[name]
    once = ", ".join(name for name, is_held_once in INVERSES_OF.items() if is_held_once)
    raise SettingsError(
        f"the name of {root} is not a name of OGB's, so it is unknown whether to add reverse edges (OGB adds them for "
        f"{once}); give inverse_edges=True to add them, or inverse_edges=False if the files hold every edge"
    )


def _read_plain_csv(raw: Path) -> tuple[dict[str, Any], Array | None]:
    graph: dict[str, Any] = {
        "num_nodes": _only_count(raw / "num-node-list.csv.gz"), "edge_index": _edge_index(raw / PLAIN_CSV)
    }  # fmt: skip
    graph |= dict(_tables(raw, ("node", "edge")))
    if (raw / "species.csv.gz").is_file():  # ogbn-proteins, if ogb has not renamed the file yet
        graph["node_species"] = read_matrix(raw / "species.csv.gz")
    _check_edges(raw, graph["edge_index"])
    labels = raw / "node-label.csv.gz"
    return graph, read_matrix(labels, np.float64) if labels.is_file() else None


def _read_typed_csv(raw: Path) -> tuple[dict[str, Any], dict[str, Array] | None]:
    counts = read_named_row(raw / "num-node-dict.csv.gz")
    node_types = sorted(counts)
    edge_types = sorted(read_texts(raw / TYPED_CSV, 3))
    folders = {t: raw / "relations" / BETWEEN.join(t) for t in edge_types}
    graph: dict[str, Any] = {
        "num_nodes_dict": {t: int(counts[t]) for t in node_types},
        "edge_index_dict": {t: _edge_index(folder / PLAIN_CSV) for t, folder in folders.items()},
    }
    with_feat = raw / "nodetype-has-feat.csv.gz"
    having = read_named_row(with_feat) if with_feat.is_file() else {}
    for node_type in node_types:
        feat = raw / "node-feat" / node_type / "node-feat.csv.gz"
        if having.get(node_type) is True and not feat.is_file():
            raise FormatError(f"{feat} is missing, but {with_feat.name} lists it; download the dataset again")
        for name, array in _tables(raw / "node-feat" / node_type, ("node",)):
            graph.setdefault(f"{name}_dict", {})[node_type] = array
    for edge_type, folder in folders.items():
        _check_edges(folder, graph["edge_index_dict"][edge_type])
        for name, array in _tables(folder, ("edge",)):
            graph.setdefault(f"{name}_dict", {})[edge_type] = array
    _check_types(raw / "num-node-dict.csv.gz", counts, edge_types)
    known = raw / "nodetype-has-label.csv.gz"
    if not known.is_file():
        return graph, None
    labelled = [t for t, has in read_named_row(known).items() if has]
    return graph, {t: read_matrix(raw / "node-label" / t / "node-label.csv.gz", np.float64) for t in labelled}


def _read_plain_npz(raw: Path) -> tuple[dict[str, Any], Array | None]:
    graph: dict[str, Any] = dict(load_arrays(raw / PLAIN_NPZ))
    counts = {name: graph.pop(name, None) for name in ("num_nodes_list", "num_edges_list")}
    if counts["num_nodes_list"] is None or "edge_index" not in graph:
        raise FormatError(f"{raw / PLAIN_NPZ} lacks edge_index or num_nodes_list; it has {sorted(graph)}")
    graph["num_nodes"] = _one_count(raw / PLAIN_NPZ, counts["num_nodes_list"])
    if counts["num_edges_list"] is not None:
        _check_count(raw / PLAIN_NPZ, counts["num_edges_list"], raw / PLAIN_NPZ, graph["edge_index"])
    labels = raw / "node-label.npz"
    if not labels.is_file():
        return graph, None
    arrays = load_arrays(labels)
    if "node_label" not in arrays:
        raise FormatError(f"{labels} has {sorted(arrays)}; wanted node_label")
    return graph, arrays["node_label"]


def _read_typed_npz(raw: Path) -> tuple[dict[str, Any], dict[str, Array] | None]:
    counts = load_arrays(raw / "num_nodes_dict.npz")
    graph: dict[str, Any] = {
        "num_nodes_dict": {t: _one_count(raw / "num_nodes_dict.npz", counts[t]) for t in sorted(counts)},
    }
    labels: dict[str, Array] | None = None
    for path in sorted(raw.glob("*.npz")):
        name = path.name.removesuffix(".npz")
        if name in ("num_nodes_dict", "num_edges_dict"):
            continue
        arrays = load_arrays(path)
        if name == "node-label":
            labels = dict(arrays)
        elif name.startswith("edge_"):
            graph[name] = {_edge_type_of(path, key): array for key, array in sorted(arrays.items())}
        else:
            graph[name] = arrays
            _check_types(raw / "num_nodes_dict.npz", counts, (), arrays)
    _check_types(raw / "num_nodes_dict.npz", counts, graph.get("edge_index_dict", ()))
    counted = raw / "num_edges_dict.npz"
    for label, num_edges in load_arrays(counted).items() if counted.is_file() else ():
        edge_type = _edge_type_of(counted, label)
        if edge_type not in graph["edge_index_dict"]:
            raise SchemaError(f"{counted} counts edges of {edge_type}, but {TYPED_NPZ} has none; download it again")
        _check_count(counted, num_edges, raw / TYPED_NPZ, graph["edge_index_dict"][edge_type])
    return graph, labels


def _is_mapped(root: Path) -> bool:
    return any((root / "processed").glob(f"*{BETWEEN}*{BETWEEN}*/edge_index.npy"))


def _read_mapped(root: Path, num_nodes: dict[str, int], read_torch: ReadTorch | None) -> Graph:
    """Read a graph in the layout of MAG240M; its arrays are memory-mapped."""
    meta = root / "meta.pt"
    if not num_nodes:
        if not meta.is_file():
            raise SettingsError(f"{meta} is missing; give num_nodes, the number of nodes of each type")
        num_nodes = {t: int(n) for t, n in _read_pt(meta, read_torch).items() if t != "num_classes"}
    graph: dict[str, Any] = {"num_nodes_dict": num_nodes, "edge_index_dict": {}}
    for folder in sorted(path for path in (root / "processed").iterdir() if path.is_dir()):
        is_edges = BETWEEN in folder.name
        entity = _edge_type_of(folder, folder.name) if is_edges else folder.name
        for path in sorted(folder.glob("*.npy")):
            kind = "edge_" if is_edges else "node_"
            if not path.stem.startswith(kind):
                raise FormatError(f"{path} is not a file of OGB's; wanted {kind}<name>.npy")
            graph.setdefault(f"{path.stem}_dict", {})[entity] = open_array(path)
    _check_types(meta, num_nodes, graph["edge_index_dict"])
    split, splits = root / "split_dict.pt", None
    if split.is_file():
        splits = {name: {"paper": keys} for name, keys in _read_pt(split, read_torch).items() if name in SPLIT_NAMES}
    return graph_from_ogb(graph, split_idx=splits)


def _read_split(folder: Path, read_torch: ReadTorch | None) -> dict[str, Any] | None:
    """Read splits of nodes; None if the folder holds links to predict."""
    if (folder / "split_dict.pt").is_file():
        return dict(_read_pt(folder / "split_dict.pt", read_torch))
    typed = folder / "nodetype-has-split.csv.gz"
    if typed.is_file():
        having = [t for t, has in read_named_row(typed).items() if has]
        keys = {t: _split_tables(folder / t) for t in having}
        return {name: {t: keys[t][name] for t in having} for name in SPLIT_NAMES}
    if any((folder / f"{name}.pt").is_file() for name in SPLIT_NAMES):
        return None
    return _split_tables(folder)


def _split_tables(folder: Path) -> dict[str, Array]:
    """Read the keys of each split of a node type."""
    paths = {name: folder / f"{name}.csv.gz" for name in SPLIT_NAMES}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        there = ", ".join(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ""
        raise FormatError(
            f"{folder} has {there or 'nothing'} but lacks {', '.join(missing)}; download the dataset again, choose "
            "another split with split=, or move the folder away to read the graph without splits"
        )
    return {name: _keys(path) for name, path in paths.items()}


def _read_pt(path: Path, read_torch: ReadTorch | None) -> dict[str, Any]:
    if read_torch is None:
        raise MissingDependencyError(f"{path} is read with torch; use hopstream.graph.graph_from_ogb_folder")
    value = read_torch(path)
    if not isinstance(value, dict):
        raise FormatError(f"{path} holds {type(value).__name__}; wanted a dict")
    return value


def _add_inverses(graph: dict[str, Any]) -> None:
    """Insert the reverse of each edge after it, with the same features."""
    if "edge_index_dict" in graph:
        raise SettingsError(
            "inverse_edges applies to graphs of one edge type only; with several, reverses have an edge type of "
            "their own: leave it out"
        )
    for name, array in graph.items():
        if name == "edge_index":
            graph[name] = np.stack([array, array[::-1]], axis=2).reshape(2, -1)
        elif name.startswith("edge_"):
            graph[name] = np.repeat(array, 2, axis=0)


def _tables(folder: Path, kinds: tuple[str, ...]) -> Iterator[tuple[str, Array]]:
    """Yield name (``node_feat``, ``node_year`` …) and values of each table with a row per node or edge."""
    for kind in kinds:
        feat = folder / f"{kind}-feat.csv.gz"
        if feat.is_file():
            yield f"{kind}_feat", read_matrix(feat)
        for path in sorted(folder.glob(f"{kind}_*.csv.gz")):
            yield path.name.removesuffix(".csv.gz"), read_matrix(path)


def _edge_index(path: Path) -> Array:
    array = read_matrix(path)
    if array.shape[1:] != (2,) or array.dtype != np.int64:
        raise SchemaError(f"{path} is {array.dtype}{list(array.shape)}; wanted two integers on each line")
    return array.T


def _keys(path: Path) -> Array:
    return read_matrix(path).reshape(-1)


def _only_count(path: Path) -> int:
    return _one_count(path, read_matrix(path).reshape(-1))


def _one_count(path: Path, counts: Array) -> int:
    if counts.size != 1:
        raise SchemaError(f"{path} has counts of {counts.size} graphs; only folders of one graph can be read")
    count = counts.reshape(-1)[0]
    if counts.dtype.kind not in "iuf" or not count >= 0 or count != int(count):
        raise SchemaError(f"{path} has {count}; wanted a count")
    return int(count)


def _check_types(
    counted: Path, num_nodes: Collection[str], edge_types: Collection[EdgeType], others: Collection[str] = ()
) -> None:
    """Refuse node types of edges or tables that ``num_nodes`` does not count."""
    for node_type in (*(end for source, _, target in edge_types for end in (source, target)), *others):
        if node_type not in num_nodes:
            raise SchemaError(
                f"{counted} (or num_nodes) counts nodes of {sorted(num_nodes)}, but not of {node_type!r}, which other "
                "files have"
            )


def _check_edges(folder: Path, edge_index: Array) -> None:
    """Refuse a table of edges whose number of lines differs from the count in ``num-edge-list.csv.gz``."""
    counted = folder / "num-edge-list.csv.gz"
    if counted.is_file():
        _check_count(counted, read_matrix(counted), folder / PLAIN_CSV, edge_index)


def _check_count(counted: Path, counts: Array, held: Path, edge_index: Array) -> None:
    wanted = _one_count(counted, counts)
    if edge_index.ndim == 2 and edge_index.shape[1] != wanted:
        raise SchemaError(
            f"{held} has {edge_index.shape[1]} edges, but {counted.name} says {wanted}; download the dataset again"
        )


def _edge_type_of(path: Path, name: str) -> EdgeType:
    words = name.split(BETWEEN)
    if len(words) != 3:
        raise FormatError(f"{path} has the edge type {name!r}; wanted source{BETWEEN}relation{BETWEEN}target")
    return words[0], words[1], words[2]
