"""Deletes nodes and edges of a dataset, and updates nodes by raw id, atomically.

The changed dataset is written in the work folder beside the dataset, which it then replaces. Files that do not change
are hard links. New nodes and edges of an update are appended before the replacement.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopstream.arrays import Array, Column, IntArray, take_column, to_array
from hopstream.dataset.balance import StageCost
from hopstream.dataset.dataset_folder import check_target, dataset_to_change
from hopstream.dataset.key_book import KeyBook
from hopstream.dataset.layout import Dataset
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.raw_ids import HashIndex, id_feature_of, texts_of
from hopstream.dataset.rows import DatasetRows
from hopstream.dataset.settings import Progress
from hopstream.dataset.stored_columns import check_time_values
from hopstream.engine.atomic_folder import WorkFolder, errors_named
from hopstream.engine.machine import peak_bytes, watched
from hopstream.errors import IdRangeError, SchemaError, SettingsError, quoted
from hopstream.graph.graph import Graph
from hopstream.ingest.user_columns import ColumnLike, as_keys
from hopstream.preparation.append.addition import (
    NewEdges,
    NewNodes,
    RawEnds,
    addition_of_arrays,
    as_raw,
    as_stored,
    by_edge_type,
    by_types,
    check_names,
    checked_columns,
)
from hopstream.preparation.append.run import add_rows, check_one_disk, check_whole, folder_rows, teller
from hopstream.preparation.revise.removal import Removed
from hopstream.preparation.revise.write import EdgePick, NewRows, RevisionWriter
from hopstream.schema import EdgeType, type_label
from hopstream.uris import local_path

if TYPE_CHECKING:
    from hopstream.ingest.transforms.saved import Transforms

Ends = tuple[ColumnLike, ColumnLike]
"""Keys or raw ids of sources and of destinations."""


def delete(
    dataset: str | Path, *, nodes: Mapping[str, ColumnLike] | ColumnLike | None = None,
    edges: Mapping[EdgeType | str, Ends | ColumnLike] | Ends | ColumnLike | None = None,
    ids: Mapping[str, str] | None = None, progress: Progress | None = None,
) -> Manifest:  # fmt: skip
    """Delete nodes, with their edges, and edges of a dataset.

    The dataset becomes, file for file, what ``write_parts`` writes of the graph without these rows, with the same
    owners. So keys and ids are renumbered without gaps: those of later nodes and edges move down. Raw ids stay. Deltas
    become ordinary parts, and a halo is removed.

    Args:
        dataset: The folder of the dataset.
        nodes: Node type to keys, or raw ids, of the nodes to delete.
        edges: Edge type, or its label, to ``(sources, destinations)``: all edges of the type from a source to the
            destination at the same position are deleted. Or to integer[n], edge keys. If the dataset has one node type
            or one edge type, these arguments may omit the type.
        ids: Node type to a feature with its raw ids, which then name its nodes in place of keys.
        progress: Called as ``progress("delete", done, total)``.

    Returns:
        The new manifest of the dataset.

    Raises:
        FormatError: The folder is no dataset, or one of its files is missing or contradicts the others.
        ChecksumError: A file does not match its checksum.
        StateError: Another process changes or reads the dataset now.
        SettingsError: Nothing is to be deleted, edge keys are given and the dataset keeps none, a feature cannot hold
            raw ids, or two nodes have a raw id.
        UnknownNameError: The dataset has no such type or feature.
        SchemaError: Keys are not integers[n], a pair lacks an end, or all edges that stay have weight 0.
        IdRangeError: There is no node with a key or raw id, or no edge between two ends.
    """
    with _to_change(dataset) as (old, work):
        schema = old.manifest.schema
        given_nodes = _typed("nodes", nodes, schema.nodes)
        given_edges = by_edge_type(schema, _typed("edges", edges, schema.edges), "edges")
        check_names("nodes", given_nodes, schema.nodes)
        raw = _raw_ends(old, ids)

        def keys_of(node_type: str, values: ColumnLike, where: str) -> IntArray:
            if node_type in raw.ids:
                return raw.keys_of(node_type, as_raw(values), None, where)
            keys = as_keys(values, where)
            KeyBook(old).ids_of(node_type, keys)  # raises IdRangeError
            return keys

        removed = {t: Removed(np.unique(keys_of(t, of, f"nodes of {t}"))) for t, of in given_nodes.items()}
        picks = {t: _pick(old.manifest, t, of, keys_of) for t, of in given_edges.items()}
        if not any(map(len, removed.values())) and not any(len(p.src_keys) + len(p.keys) for p in picks.values()):
            raise SettingsError(f"there is nothing to delete from {old.root}: give nodes or edges")

        def refuse(edge_type: EdgeType, position: int) -> IdRangeError:
            ends = (quoted(to_array(end)[position : position + 1].tolist()[0]) for end in given_edges[edge_type])
            return IdRangeError(f"edges of {type_label(edge_type)}: no edge leads from {' to '.join(ends)}")

        return _revise(old, work, _Changes("delete", removed, picks, {}, refuse), progress)


def upsert(  # noqa: PLR0913  the arguments of append
    dataset: str | Path, *, nodes: Mapping[str, NewNodes] | NewNodes, ids: Mapping[str, str],
    edges: Mapping[EdgeType | str, NewEdges] | NewEdges | None = None,
    splits: Mapping[str, Mapping[str, ColumnLike]] | Mapping[str, ColumnLike] | None = None,
    edge_splits: Mapping[EdgeType | str, Mapping[str, ColumnLike]] | Mapping[str, ColumnLike] | None = None,
    transforms: Transforms | None = None, progress: Progress | None = None,
) -> Manifest:  # fmt: skip
    """Replace features of the nodes that have given raw ids, and append nodes with other raw ids.

    The result is that of ``append`` to a dataset that was written with the new values. If no raw id is known, that is
    all. Otherwise the changed columns are written again, and other files become hard links in the new folder. If times
    of nodes change, the edges are written again, too, and deltas become ordinary parts.

    Args:
        dataset: The folder of the dataset.
        nodes: Node type to columns by feature. Features that are left out keep their values; new nodes need all.
        ids: Node type to the feature with its raw ids, for every type of ``nodes`` with old nodes. New edges name nodes
            of these types by raw id.
        edges: New edges, as of ``append``.
        splits: Node type to split to a mask of its rows in ``nodes``, for types in ``ids``. The nodes of the rows are
            in the split, or leave it, as the mask says. For other types as of ``append``.
        edge_splits: As of ``append``.
        transforms: As of ``append``.
        progress: Called as ``progress("upsert", done, total)``.

    Returns:
        The new manifest of the dataset.

    Raises:
        FormatError: The folder is no dataset, or one of its files is missing or contradicts the others.
        ChecksumError: A file does not match its checksum.
        StateError: Another process changes or reads the dataset now.
        SettingsError: Two nodes, or two rows, have a raw id. Or times change in a dataset that keeps no edge keys. Or
            as of ``append``.
        UnknownNameError: The dataset has no such type, feature or split.
        SchemaError: A column is missing, or has the wrong dtype or length, or a split is no mask. Or as of ``append``.
        IdRangeError: As of ``append``.
    """

    def read(_: Manifest, __: Path) -> tuple[Any, Any, Any, Any, Mapping[str, str]]:
        return nodes, edges or {}, splits or {}, edge_splits or {}, ids

    return _upsert(dataset, read, transforms, progress)


def upsert_folder(
    dataset: str | Path, delta: str | Path, *, ids: Mapping[str, str] | None = None,
    metadata_filename: str = "metadata.json", progress: Progress | None = None,
) -> Manifest:  # fmt: skip
    """Update nodes by the rows of a folder, and append its new nodes and edges; see ``upsert``.

    Args:
        dataset: The folder of the dataset.
        delta: The folder of a chunked graph or of tables, as of ``append_folder``.
        ids: As of ``append_folder``; a chunked graph needs it for every type with old nodes.
        metadata_filename: As of ``append_folder``.
        progress: As of ``upsert``.
    """
    return _upsert(dataset, folder_rows(delta, metadata_filename, ids or {}), None, progress)


@contextmanager
def _to_change(dataset: str | Path) -> Iterator[tuple[Dataset, WorkFolder]]:
    """Lock a whole dataset for a change; yield it and its work folder."""
    root = Path(os.path.realpath(local_path(dataset)))
    with watched(), errors_named(root), dataset_to_change(root) as work:
        found = Dataset(root, read_manifest(root))
        check_whole(found)
        check_one_disk(found, work)
        yield found, work


def _typed(what: str, given: Any, types: Collection[Any]) -> Mapping[Any, Any]:
    """Return an argument by type; without types it belongs to the dataset's only type."""
    if given is None or isinstance(given, Mapping):
        return given or {}
    if len(types) != 1:
        raise SchemaError(
            f"{what} name no type; the dataset has {', '.join(map(type_label, types))}: give them by type"
        )
    return dict.fromkeys(types, given)


def _raw_ends(dataset: Dataset, ids: Mapping[str, str] | None) -> RawEnds:
    schema = dataset.manifest.schema
    for node_type, feature in (ids or {}).items():
        id_feature_of(schema, node_type, feature)
    return RawEnds(rows=DatasetRows(dataset.root, dataset.manifest, takes_sums=False), ids=ids or {})


def _pick(
    manifest: Manifest, edge_type: EdgeType, given: Any, keys_of: Callable[[str, ColumnLike, str], IntArray]
) -> EdgePick:
    """Return the edges of a type to delete, by their ends or by their keys."""
    where = f"edges of {type_label(edge_type)}"
    if isinstance(given, tuple):
        if len(given) != 2:
            raise SchemaError(f"{where} are a tuple of {len(given)}; wanted (sources, destinations)")
        src = keys_of(edge_type[0], given[0], f"{where}: sources")
        dst = keys_of(edge_type[2], given[1], f"{where}: destinations")
        if len(src) != len(dst):
            raise SchemaError(f"{where} have {len(src)} sources and {len(dst)} destinations")
        return EdgePick(src_keys=src, dst_keys=dst)
    if not manifest.has_edge_keys:
        raise SettingsError(f"{where} are given by key; the dataset keeps no edge keys: give (sources, destinations)")
    keys, num_edges = np.unique(as_keys(given, where)), manifest.book.num_edges(edge_type)
    if len(keys) and not 0 <= keys[0] <= keys[-1] < num_edges:
        wrong = int(keys[0]) if keys[0] < 0 else int(keys[-1])
        raise IdRangeError(f"{where} name edge key {wrong}; the type has keys 0..{num_edges - 1}")
    return EdgePick(keys=Removed(keys))


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes of a dataset.

    Attributes:
        name: Name of the stage for progress and costs.
        nodes: Node type to the keys of removed nodes.
        edges: Edge type to removed edges.
        rows: Node type to new values of nodes.
        refuse: Builds the error for a pair of ends without an edge.
    """

    name: str
    nodes: Mapping[str, Removed] = field(default_factory=dict)
    edges: Mapping[EdgeType, EdgePick] = field(default_factory=dict)
    rows: Mapping[str, NewRows] = field(default_factory=dict)
    refuse: Callable[[EdgeType, int], IdRangeError] | None = None


def _revise(
    old: Dataset, work: WorkFolder, changes: _Changes, progress: Progress | None,
    extend: Callable[[Dataset, WorkFolder], Manifest] | None = None,
) -> Manifest:  # fmt: skip
    """Replace a locked dataset by a changed one; ``extend`` may append rows to it before."""
    started, schema = time.perf_counter(), old.manifest.schema
    with work.new_folder(partial(check_target, old.root, overwrite=True)) as new:
        writer = RevisionWriter(
            new, old, nodes={t: changes.nodes.get(t, Removed()) for t in schema.nodes},
            edges={t: changes.edges.get(t, EdgePick()) for t in schema.edges}, rows=changes.rows,
        )  # fmt: skip
        for edge_type in schema.edges:
            missing = writer.find_edges(edge_type)
            if missing is not None and changes.refuse is not None:
                raise changes.refuse(edge_type, missing)
        scratch = work.path / "scratch"
        scratch.mkdir()
        manifest = writer.write(scratch, teller(old.manifest, progress, changes.name))
        cost = StageCost(name=changes.name, seconds=time.perf_counter() - started, peak_bytes=peak_bytes())
        manifest = replace(manifest, report=replace(manifest.report, stages=(*manifest.report.stages, cost)))
        manifest.write(new)
        if extend is not None:
            manifest = extend(Dataset(new, manifest), work.inside("append"))
    return manifest


def _upsert(
    dataset: str | Path, read: Callable[[Manifest, Path], tuple[Any, Any, Any, Any, Mapping[str, str]]],
    transforms: Transforms | None, progress: Progress | None,
) -> Manifest:  # fmt: skip
    with _to_change(dataset) as (old, work):
        work.clear()
        try:
            scratch = work.path / "given"
            scratch.mkdir()
            # Later steps clear the work folder; what is mapped from it stays readable.
            return _update(old, work, read(old.manifest, scratch), transforms, progress)
        finally:
            work.clear()


def _update(
    old: Dataset, work: WorkFolder, given: tuple[Any, Any, Any, Any, Mapping[str, str]],
    transforms: Transforms | None, progress: Progress | None,
) -> Manifest:  # fmt: skip
    schema, ids = old.manifest.schema, given[4]
    raw = _raw_ends(old, ids)
    nodes, splits = by_types(given[0], schema.nodes), dict(by_types(given[2], schema.nodes))
    edges: Any = by_edge_type(schema, by_types(given[1], schema.edges), "edges")
    check_names("nodes", nodes, schema.nodes)
    check_names("splits", splits, schema.splits)
    nodes, edges = as_stored(old.manifest, transforms, nodes, edges)
    edges = {t: of for t, of in edges.items() if len(of[0]) or len(of[1])}
    edge_splits: Any = by_edge_type(schema, by_types(given[3], schema.edges), "edge_splits")
    edge_splits = {t: of for t, of in edge_splits.items() if t in edges or any(map(len, of.values()))}
    new_nodes, rows = dict(nodes), dict[str, NewRows]()
    for node_type in [t for t in nodes if t in ids]:
        columns = _columns(node_type, nodes[node_type], old.manifest, ids[node_type])
        keys = _keys_of_rows(raw, node_type, columns)
        masks = _masks(node_type, splits.pop(node_type, {}), schema.splits.get(node_type, ()), len(keys))
        features = {name: column for name, column in columns.items() if name != ids[node_type]}
        found = _new_rows(old.manifest, node_type, keys, features, masks)
        if len(found.keys) and (features or masks):
            rows[node_type] = found
        unknown = np.flatnonzero(keys < 0)
        new_nodes[node_type] = {name: take_column(column, unknown) for name, column in columns.items()}
        if masks:
            splits[node_type] = {name: mask[unknown] for name, mask in masks.items()}
        if not len(unknown):
            del new_nodes[node_type]
            splits.pop(node_type, None)

    def added(dataset: Dataset) -> Callable[[Manifest, Path], Graph]:
        ends = _raw_ends(dataset, ids)
        return lambda manifest, _: addition_of_arrays(manifest, new_nodes, edges, splits, edge_splits, raw=ends)

    if not rows:
        return add_rows(old, work, added(old), progress)

    def extend(changed: Dataset, inside: WorkFolder) -> Manifest:
        return add_rows(changed, inside, added(changed), progress)

    has_more = bool(new_nodes or edges or splits or edge_splits)
    return _revise(old, work, _Changes("upsert", rows=rows), progress, extend if has_more else None)


def _columns(node_type: str, given: NewNodes, manifest: Manifest, id_feature: str) -> dict[str, Column]:
    """Return the checked columns of some nodes; one holds their raw ids."""
    if not isinstance(given, Mapping) or id_feature not in given:
        raise SchemaError(f"{node_type}.{id_feature} is missing; it holds the raw ids of the rows")
    return checked_columns(node_type, given, manifest.schema.nodes[node_type], None, is_partial=True)


def _keys_of_rows(raw: RawEnds, node_type: str, columns: Mapping[str, Column]) -> IntArray:
    """Return int64[n], the key of the node with the raw id of each row; -1 for unknown raw ids."""
    feature = raw.ids[node_type]
    asked = columns[feature]
    firsts = HashIndex.of(asked).find(asked)
    twice = np.flatnonzero(firsts != np.arange(len(firsts)))
    if len(twice):
        row = int(twice[0])
        shown = quoted(texts_of(take_column(asked, twice[:1]))[0].decode())
        raise SettingsError(
            f"{node_type}.{feature} is {shown} in rows {int(firsts[row])} and {row}; give each node once"
        )
    return raw.find(node_type, asked)


def _new_rows(
    manifest: Manifest, node_type: str, keys: IntArray, features: Mapping[str, Column], masks: Mapping[str, Array]
) -> NewRows:
    """Return the rows of known nodes, in the order of their keys."""
    order = np.argsort(keys, kind="stable")
    order = order[np.searchsorted(keys[order], 0) :]
    name = manifest.time_attr or ""
    times = features.get(name)
    if isinstance(times, np.ndarray):
        check_time_values(f"{node_type}.{name}", 0, times)
        is_end = any(node_type in (t[0], t[2]) for t in manifest.schema.edges)
        if is_end and len(order) and not manifest.has_edge_keys:
            raise SettingsError(
                f"{node_type}.{name} is the time of nodes; the dataset keeps no edge keys, so edges cannot be sorted "
                "by new times: leave the feature out, or write the dataset again with keep_edge_keys"
            )
    return NewRows(
        keys=keys[order], features={n: take_column(column, order) for n, column in features.items()},
        splits={n: mask[order] for n, mask in masks.items()},
    )  # fmt: skip


def _masks(
    node_type: str, given: Mapping[str, ColumnLike], names: Collection[str], num_rows: int
) -> dict[str, Array]:  # fmt: skip
    check_names(f"splits of {node_type}", given, dict.fromkeys(names))
    found = {name: to_array(mask) for name, mask in given.items()}
    for name, mask in found.items():
        if mask.dtype != np.bool_ or mask.shape != (num_rows,):
            raise SchemaError(
                f"split {name!r} of {node_type} is {mask.dtype}{list(mask.shape)}; wanted bool[{num_rows}], one per "
                "row of nodes"
            )
    return found
