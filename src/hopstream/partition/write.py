"""How does a graph become a folder of parts, of which nobody ever sees half?

Nodes are assigned, then written, then edges, one edge type and direction at a time, so the most memory is taken by the
largest of them, then links. Columns are gathered in blocks while they are written. The manifest comes last, and then
the folder comes into its place.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, Unpack

import numpy as np

import hopstream
from hopstream.arrays import (
    CHUNK_BYTES,
    Array,
    Column,
    FileRecord,
    IntArray,
    RaggedArray,
    column_schema,
    offsets_of,
    write_array,
    write_blocks,
)
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.graph.graph import Graph
from hopstream.partition.assign import OwnersSource, assign_owners
from hopstream.partition.balance import Owners, PartitionReport, StageCost, count_seeds, measure_cut
from hopstream.partition.book import PartitionBook, ends_of
from hopstream.partition.edge_weights import check_weights, weight_aliases, weight_orders, weight_sums
from hopstream.partition.manifest import Manifest
from hopstream.partition.paths import (
    edge_folder,
    feature_paths,
    link_folder,
    node_folder,
    part_folder,
    split_path,
)
from hopstream.partition.replace import replaced_folder
from hopstream.partition.settings import PartitionOptions, PartitionSettings, Progress
from hopstream.partition.split import EdgeSplit, NodeSplit, split_edges, split_nodes
from hopstream.partition.times import EdgeTimes, check_times, edge_times, sort_by_time
from hopstream.schema import Direction, EdgeType, GraphSchema, type_label

CHUNK_ROWS = 1 << 20
WEIGHT_COLUMNS = (
    ("weight_sums.npy", np.float64, weight_sums),
    ("weight_order.npy", np.uint32, weight_orders),
    ("weight_alias.npy", np.uint64, weight_aliases),
)


def write_parts(
    graph: Graph, out: str | Path, *, settings: PartitionSettings | None = None, owners: OwnersSource | None = None,
    overwrite: bool = False, progress: Progress | None = None, **options: Unpack[PartitionOptions],
) -> Manifest:  # fmt: skip
    """Cut a graph into parts and write them as a dataset.

    Args:
        graph: The graph; it is checked first.
        out: The folder to write; made if it is not there.
        settings: How to cut it; the defaults if it is not given.
        owners: For ``method="file"``: a folder with ``<node type>.npy`` or ``<node type>.txt``, or a mapping of node
            type to integer[num_nodes], the part of each node. Giving it implies the method.
        overwrite: Replace a dataset that is in ``out``, when the new one is complete; until then it stays as it is.
        progress: Called as ``progress(stage, done, total)``.
        **options: Fields of ``PartitionSettings``; they go before ``settings``.

    Returns:
        The manifest that was written.

    Raises:
        SettingsError: A setting is outside its range, ``graph`` is no ``Graph``, or ``out`` holds a dataset that is not
            to be overwritten, or other files.
        SchemaError: The graph's columns contradict each other, hold no times or weights where they should, or
            ``owners`` does not fit the graph.
        IdRangeError: An edge names a node that is not there, or ``owners`` a part that is not there.
        UnknownNameError: No type has the feature ``time_attr`` or ``weight_attr``, or ``links`` names an edge type that
            is not there.
    """
    if owners is not None:
        options = {"method": "file", **options}
    settings = replace(settings or PartitionSettings(), **options)
    given: object = graph
    if not isinstance(given, Graph):
        got = type(given).__name__
        raise SettingsError(
            f"graph is a {got}; wanted a Graph: hopstream.read_graph or graph_from_data makes one of it"
        )
    graph.check()
    schema = _schema_with_links(graph, settings)
    if settings.time_attr is not None:
        check_times(graph, settings.time_attr)
    if settings.weight_attr is not None:
        check_weights(graph, settings.weight_attr, settings.directions)
    with replaced_folder(Path(out), overwrite=overwrite) as root:
        return _Writer(root, graph, schema, settings, progress or _no_progress).run(owners)


def _no_progress(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GroupedEdges:
    """The edges of one type and direction as they are stored.

    Attributes:
        split: Ids and keys, in stored order.
        row_offsets: int64[num_parts + 1], the range of rows of ``split.indptr`` that each part owns.
        neighbor_keys: integer[num_nodes], the key of each id of the other end.
        times: Where their times come from, or None.
        weights: real[num_edges], the weight of each edge key, or None.
        features: Columns of one row per edge key.
    """

    split: EdgeSplit
    row_offsets: IntArray
    neighbor_keys: Array
    times: EdgeTimes | None
    weights: Array | None
    features: Mapping[str, Column]


@dataclass(slots=True)
class _Writer:
    """One run: the records of the files written so far, and what the stages took."""

    root: Path
    graph: Graph
    schema: GraphSchema
    settings: PartitionSettings
    progress: Progress
    files: dict[str, FileRecord] = field(default_factory=dict)
    stages: list[StageCost] = field(default_factory=list)

    def run(self, owners_source: OwnersSource | None) -> Manifest:
        num_parts = self.settings.num_parts
        with self._stage("assign"):
            self.progress("assign", 0, 1)
            owners = assign_owners(self.graph, self.settings, owners_source, scratch=self.root)
            self.progress("assign", 1, 1)
        with self._stage("measure"):
            self.progress("measure", 0, 1)
            cuts, edges_between = measure_cut(self.graph, owners, num_parts)
            seeds = count_seeds(self.graph, owners, num_parts, self.settings.directions[0])
            graph_id = _graph_id(self.graph, self.settings.time_attr)
            self.progress("measure", 1, 1)
        with self._stage("write"):
            book = self._write(owners)
        report = PartitionReport(
            cuts=cuts,
            nodes=_part_sizes(book.node_offsets.values(), num_parts),
            edges=_part_sizes(book.edge_offsets.values(), num_parts),
            bytes=self._part_bytes(),
            seeds=seeds,
            edges_between=tuple(map(tuple, edges_between.tolist())),
            stages=tuple(self.stages),
        )
        manifest = Manifest(
            schema=self.schema,
            directions=self.settings.directions,
            book=book,
            has_edge_keys=self.settings.keep_edge_keys,
            files=dict(sorted(self.files.items())),
            made_by={"version": hopstream.__version__, **self.settings.to_json()},
            report=report,
            graph_id=graph_id,
            time_attr=self.settings.time_attr,
            weight_attr=self.settings.weight_attr,
            has_neighbor_keys=self.settings.neighbor_keys,
        )
        manifest.write(self.root)
        return manifest

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.stages.append(StageCost(name=name, seconds=time.perf_counter() - start, peak_bytes=_peak_bytes()))

    def _write(self, owners: Owners) -> PartitionBook:
        """Write all nodes, then all edges, then all links; return the ranges of ids."""
        num_parts = self.settings.num_parts
        owners_of_edges = [(t, d) for t in self.graph.edges for d in self.settings.directions]
        advance = self._advance(
            num_parts * (len(self.graph.nodes) + len(owners_of_edges) + len(self.schema.edge_splits))
        )
        nodes: dict[str, NodeSplit] = {}
        for node_type in self.graph.nodes:
            nodes[node_type] = split_nodes(owners[node_type], num_parts)
            for part in range(num_parts):
                self._write_nodes(part, node_type, nodes[node_type])
                advance()
        edge_offsets: dict[tuple[EdgeType, Direction], IntArray] = {}
        for edge_type, direction in owners_of_edges:
            edges = self._grouped(edge_type, direction, nodes)
            edge_offsets[edge_type, direction] = edges.split.offsets
            for part in range(num_parts):
                self._write_edges(edge_folder(part, edge_type, direction), edges, part)
                advance()
        for edge_type in self.schema.edge_splits:
            for part in range(num_parts):
                self._write_links(part, edge_type)
                advance()
        return PartitionBook(
            num_parts=num_parts,
            node_offsets={t: split.offsets for t, split in nodes.items()},
            edge_offsets=edge_offsets,
        )

    def _advance(self, total: int) -> Callable[[], None]:
        """Tell how far writing is each time the result is called."""
        done = count(1)
        self.progress("write", 0, total)
        return lambda: self.progress("write", next(done), total)

    def _grouped(self, edge_type: EdgeType, direction: Direction, nodes: Mapping[str, NodeSplit]) -> _GroupedEdges:
        """The edges of one type and direction in the order in which they are stored."""
        table = self.graph.edges[edge_type]
        own_type, other_type = ends_of(edge_type, direction)
        split = split_edges(table, edge_type, direction, nodes)
        times = edge_times(self.graph, edge_type, direction, nodes, self.settings.time_attr)
        if times is not None:
            sort_by_time(split, times)
        weights = table.features.get(self.settings.weight_attr) if self.settings.weight_attr is not None else None
        return _GroupedEdges(
            split=split,
            row_offsets=nodes[own_type].offsets,
            neighbor_keys=nodes[other_type].keys,
            times=times,
            weights=weights if isinstance(weights, np.ndarray) else None,
            features=table.features,
        )

    def _write_nodes(self, part: int, node_type: str, split: NodeSplit) -> None:
        folder = node_folder(part, node_type)
        keys = split.keys[split.offsets[part] : split.offsets[part + 1]]
        num_nodes, num_parts = len(split.keys), self.settings.num_parts
        first, stop = part * num_nodes // num_parts, (part + 1) * num_nodes // num_parts
        self._write_int64(folder / "key.npy", keys)
        self._write_int64(folder / "id_of_key.npy", split.ids_of_keys[first:stop])
        for name, split_keys in self.graph.splits.get(node_type, {}).items():
            begin, end = np.searchsorted(split_keys, (first, stop))
            self._write_int64(split_path(folder, name), split_keys[begin:end])
        self._write_columns(folder, self.graph.nodes[node_type].features, keys)

    def _write_edges(self, folder: PurePosixPath, edges: _GroupedEdges, part: int) -> None:
        row, last_row = int(edges.row_offsets[part]), int(edges.row_offsets[part + 1])
        first, stop = int(edges.split.indptr[row]), int(edges.split.indptr[last_row])
        indptr = edges.split.indptr[row : last_row + 1] - first
        indices, keys = edges.split.indices[first:stop], edges.split.keys[first:stop]
        self._write_int64(folder / "indptr.npy", indptr)
        self._record(folder / "indices.npy", write_array(self._path(folder / "indices.npy"), indices))
        if self.settings.keep_edge_keys:
            self._write_int64(folder / "key.npy", keys)
        if self.settings.neighbor_keys:
            neighbor_keys = (edges.neighbor_keys[block] for block in _blocks(indices))
            self._write_blocks(folder / "neighbor_key.npy", indices.dtype, len(indices), neighbor_keys)
        if edges.times is not None:
            times = map(edges.times.of, _blocks(keys), _blocks(indices))
            self._write_blocks(folder / "time.npy", np.dtype(np.int64), len(keys), times)
        if edges.weights is not None:
            for name, dtype, blocks_of in WEIGHT_COLUMNS:
                blocks = blocks_of(indptr, edges.weights, keys)
                self._write_blocks(folder / name, np.dtype(dtype), len(keys), blocks)
        self._write_columns(folder, edges.features, keys)

    def _write_links(self, part: int, edge_type: EdgeType) -> None:
        """Write the ends, times and splits of the edges whose keys the part keeps."""
        folder, edges = link_folder(part, edge_type), self.graph.edges[edge_type]
        first, stop = (edges.num_edges * p // self.settings.num_parts for p in (part, part + 1))
        self._write_int64(folder / "src_key.npy", edges.src_keys[first:stop])
        self._write_int64(folder / "dst_key.npy", edges.dst_keys[first:stop])
        times = edges.features.get(self.settings.time_attr) if self.settings.time_attr is not None else None
        if isinstance(times, np.ndarray):
            self._write_int64(folder / "time.npy", times[first:stop])
        for name, split_keys in self.graph.edge_splits.get(edge_type, {}).items():
            begin, end = np.searchsorted(split_keys, (first, stop))
            self._write_int64(split_path(folder, name), split_keys[begin:end])

    def _write_int64(self, name: PurePosixPath, values: Array) -> None:
        """Write integers of any width as int64."""
        self._write_blocks(name, np.dtype(np.int64), len(values), _blocks(values))

    def _write_blocks(self, name: PurePosixPath, dtype: np.dtype[Any], num_items: int, blocks: Iterable[Array]) -> None:
        self._record(name, write_blocks(self._path(name), dtype, (num_items,), blocks))

    def _write_columns(self, folder: PurePosixPath, features: Mapping[str, Column], rows: Array) -> None:
        """Write the given rows of each column."""
        for name, column in features.items():
            paths = feature_paths(folder, name, column_schema(column))
            if isinstance(column, RaggedArray):
                self._write_ragged(paths[0], paths[1], column, rows)
            else:
                shape = (len(rows), *column.shape[1:])
                self._record(
                    paths[0], write_blocks(self._path(paths[0]), column.dtype, shape, _column_blocks(column, rows))
                )

    def _write_ragged(
        self, values_name: PurePosixPath, offsets_name: PurePosixPath, column: RaggedArray, rows: Array
    ) -> None:
        offsets = offsets_of(column.offsets[rows + 1] - column.offsets[rows])
        shape = (int(offsets[-1]), *column.values.shape[1:])
        blocks = _ragged_blocks(column, rows, offsets)
        self._record(values_name, write_blocks(self._path(values_name), column.values.dtype, shape, blocks))
        self._write_int64(offsets_name, offsets)

    def _path(self, name: PurePosixPath) -> Path:
        return self.root / name

    def _record(self, name: PurePosixPath, record: FileRecord) -> None:
        self.files[str(name)] = record

    def _part_bytes(self) -> tuple[int, ...]:
        totals = dict.fromkeys((str(part_folder(p)) for p in range(self.settings.num_parts)), 0)
        for name, record in self.files.items():
            totals[name.partition("/")[0]] += record.num_bytes
        return tuple(totals.values())


def _schema_with_links(graph: Graph, settings: PartitionSettings) -> GraphSchema:
    """The graph's schema, with every edge type whose links are to be kept among ``edge_splits``.

    Raises:
        UnknownNameError: ``settings.links`` names an edge type that is not there.
    """
    schema = graph.schema
    by_label = {type_label(edge_type): edge_type for edge_type in graph.edges}
    asked = {by_label.get(link) if isinstance(link, str) else link: link for link in settings.links}
    unknown = [link for edge_type, link in asked.items() if edge_type not in graph.edges]
    if unknown:
        raise UnknownNameError(f"links name edge type {unknown[0]!r}; known: {list(by_label)}")
    linked = {t: schema.edge_splits.get(t, ()) for t in graph.edges if t in asked or t in schema.edge_splits}
    return replace(schema, edge_splits=linked)


def _graph_id(graph: Graph, time_attr: str | None) -> str:
    """The graph's fingerprint, and another one where times decide in which order edges are stored: draws follow it."""
    fingerprint = graph.fingerprint()
    if time_attr is None:
        return fingerprint
    return hashlib.blake2b(f"{fingerprint} by {time_attr}".encode(), digest_size=16).hexdigest()


def _blocks(values: Array) -> Iterator[Array]:
    return (values[i : i + CHUNK_ROWS] for i in range(0, len(values), CHUNK_ROWS))


def _column_blocks(column: Array, rows: Array) -> Iterator[Array]:
    """The given rows of a column, in blocks of about ``CHUNK_BYTES``."""
    row_bytes = max(1, int(np.prod(column.shape[1:], dtype=np.int64)) * column.itemsize)
    step = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        # Ascending rows without gaps, as in a dataset of one part, are a view of the column.
        is_stretch = int(block[-1]) - int(block[0]) == len(block) - 1 and bool(np.all(block[1:] > block[:-1]))
        yield column[int(block[0]) : int(block[-1]) + 1] if is_stretch else column[block]


def _ragged_blocks(column: RaggedArray, rows: Array, offsets: IntArray) -> Iterator[Array]:
    """The values of the given rows, in blocks of about ``CHUNK_BYTES``; at least one row each."""
    element_bytes = max(1, int(np.prod(column.values.shape[1:], dtype=np.int64)) * column.values.itemsize)
    step = max(1, CHUNK_BYTES // element_bytes)
    start = 0
    while start < len(rows):
        stop = int(np.searchsorted(offsets, offsets[start] + step, side="right")) - 1
        stop = min(max(stop, start + 1), start + CHUNK_ROWS, len(rows))
        yield column.take(rows[start:stop]).values
        start = stop


def _part_sizes(ranges: Any, num_parts: int) -> tuple[int, ...]:
    sizes = np.zeros(num_parts, np.int64)
    for offsets in ranges:
        sizes += np.diff(offsets)
    return tuple(sizes.tolist())


def _peak_bytes() -> int:
    """The most memory this process has had resident so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
