"""Checks that the arrays of a dataset agree with each other and with what kernels rely on.

Checksums only prove that files are unchanged. These checks prove that the arrays are valid. References of one part to
another part's nodes and edges are compared if both parts are open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.dataset.book import EdgeEntity, PartitionBook, ends_of, entity_label
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.stored_columns import row_aliases, row_order, row_sums, weights_of
from hopstream.errors import FormatError, SchemaError
from hopstream.schema import Direction, EdgeType, type_label

if TYPE_CHECKING:
    from hopstream.dataset.layout import EdgeArrays, LinkArrays, PartArrays

REMEDY = "hopstream verify finds what else is damaged"


def check_part(manifest: Manifest, arrays: PartArrays) -> None:
    """Check order and ranges of one part's offsets, times, keys and ids, and its weight sums.

    Raises:
        FormatError: A check failed.
    """
    where = f"part {arrays.part}"
    book = manifest.book
    for node_type, keys in arrays.node_keys.items():
        num_nodes = book.num_ids(node_type)
        check_ascending(f"{where}: keys of {node_type}", keys, 0, num_nodes)
        _check_range(f"{where}: ids of keys of {node_type}", arrays.ids_of_keys[node_type], 0, num_nodes)
        first, stop = book.key_offsets(node_type)[arrays.part : arrays.part + 2]
        for split, split_keys in arrays.splits[node_type].items():
            check_ascending(f"{where}: split {split!r} of {node_type}", split_keys, int(first), int(stop))
        _check_columns(f"{where}: {node_type}", arrays.node_features[node_type])
    for entity, edges in arrays.edges.items():
        _check_edges(f"{where}: {entity_label(entity)}", manifest, entity, edges)
    for entity, overlays in arrays.overlays.items():
        for overlay in overlays:
            named = f"{where}: delta {overlay.delta}: {entity_label(entity)}"
            keys = arrays.node_keys[ends_of(*entity)[0]]
            _refuse_first(overlay.node_keys != keys[overlay.rows], 0, f"{named}: node key", "is not the key of its row")
            _check_edges(named, manifest, entity, overlay.edges)
    for edge_type, links in arrays.links.items():
        _check_links(f"{where}: links of {type_label(edge_type)}", book, edge_type, arrays.part, links)


def _check_edges(where: str, manifest: Manifest, entity: tuple[EdgeType, Direction], edges: EdgeArrays) -> None:
    book = manifest.book
    if bool(np.any(edges.indptr[1:] < edges.indptr[:-1])):
        raise FormatError(f"{where}: indptr does not ascend")
    num_neighbors = book.num_ids(ends_of(*entity)[1])
    _check_range(f"{where}: indices", edges.indices, 0, num_neighbors)
    if edges.neighbor_keys is not None:
        _check_range(f"{where}: neighbor keys", edges.neighbor_keys, 0, num_neighbors)
    if edges.keys is not None:
        _check_range(f"{where}: keys", edges.keys, 0, book.num_edges(entity[0]))
    _check_columns(where, edges.features)
    if edges.times is not None:
        _check_times(where, edges.indptr, edges.times)
    weights = weights_of(edges.features, manifest.weight_attr)
    if weights is not None:
        _check_weights(where, edges, weights)


def _check_times(where: str, indptr: IntArray, times: IntArray) -> None:
    for first, last, start, stop in row_chunks(indptr):
        descends = times[start + 1 : stop] < times[start : stop - 1]
        begins = indptr[first + 1 : last] - start - 1  # a row may start earlier than the previous row ended
        descends[begins[(begins >= 0) & (begins < len(descends))]] = False
        if descends.any():
            edge = start + int(np.argmax(descends)) + 1
            raise FormatError(f"{where}: times of one node do not ascend: edge {edge} is before edge {edge - 1}")


def _check_weights(where: str, edges: EdgeArrays, weights: Array) -> None:
    sums, order, aliases = edges.weight_sums, edges.weight_order, edges.weight_alias
    if sums is None or order is None or aliases is None:
        return
    for first, last, start, stop in row_chunks(edges.indptr):
        offsets = edges.indptr[first : last + 1] - start
        values = weights[start:stop].astype(np.float64)
        if not np.array_equal(row_sums(offsets, values), sums[start:stop]):
            raise FormatError(f"{where}: weight sums are not the running sums of the weights")
        if not np.array_equal(row_order(offsets, values, is_descending=True), order[start:stop]):
            raise FormatError(f"{where}: weight order is not the order of the weights, largest first")
        if not np.array_equal(row_aliases(offsets, values), aliases[start:stop]):
            raise FormatError(f"{where}: alias tables are not those of the weights")


def _check_links(where: str, book: PartitionBook, edge_type: EdgeType, part: int, links: LinkArrays) -> None:
    _check_range(f"{where}: source keys", links.src_keys, 0, book.num_ids(edge_type[0]))
    _check_range(f"{where}: destination keys", links.dst_keys, 0, book.num_ids(edge_type[2]))
    first, stop = book.link_offsets(edge_type)[part : part + 2]
    for split, edge_keys in links.splits.items():
        check_ascending(f"{where}: split {split!r}", edge_keys, int(first), int(stop))


def _check_range(where: str, values: Array, first: int, stop: int) -> None:
    if len(values) and (int(values.min()) < first or int(values.max()) >= stop):
        raise FormatError(
            f"{where} lie in {int(values.min())}..{int(values.max())}; they must be in {first}..{stop - 1}; {REMEDY}"
        )


def check_ascending(where: str, keys: IntArray, first: int, stop: int) -> None:
    """Raise ``FormatError`` unless keys, ids or rows strictly ascend and lie in ``[first, stop)``."""
    _check_range(where, keys, first, stop)
    if bool(np.any(keys[1:] <= keys[:-1])):
        raise FormatError(f"{where} do not ascend; {REMEDY}")


def _check_columns(where: str, columns: Mapping[str, Column]) -> None:
    for name, column in columns.items():
        if isinstance(column, RaggedArray):
            try:
                column.check(f"{where}.{name}")
            except SchemaError as error:
                raise FormatError(str(error)) from error


def needs_others(manifest: Manifest) -> bool:
    """Return whether parts refer to each other in ways that ``check_across`` compares."""
    return manifest.time_attr is not None or manifest.has_neighbor_keys or bool(manifest.schema.edge_splits)


def check_across(manifest: Manifest, parts: Sequence[PartArrays]) -> None:
    """Compare the given parts' references to each other's nodes and edges, after ``check_part``.

    Takes 8 bytes for each node of the dataset, and 8 more for each node with a time.

    Raises:
        FormatError: A stored key or time differs from that of the neighbour, or a link contradicts the edge of its key.
    """
    nodes = {t: _known_nodes(manifest, parts, t) for t in manifest.schema.nodes}
    for part in parts:
        for entity in part.edges:
            for piece in _pieces(part, entity):
                _check_neighbors(piece.where, manifest, piece.edges, nodes[ends_of(*entity)[1]])
    if manifest.has_edge_keys:
        for edge_type in manifest.schema.edge_splits:
            for part in parts:
                _check_linked(manifest, edge_type, part, parts, nodes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _KnownNodes:
    """Nodes of one type whose parts are open.

    Attributes:
        keys: int64[num_nodes], the key of each id, or -1.
        times: int64[num_nodes], the time of each id, or None if the type has no times.
    """

    keys: IntArray
    times: IntArray | None


def _known_nodes(manifest: Manifest, parts: Sequence[PartArrays], node_type: str) -> _KnownNodes:
    offsets = manifest.book.node_offsets[node_type]
    has_times = manifest.time_attr in manifest.schema.nodes[node_type]
    keys = np.full(offsets[-1], -1, np.int64)
    times = np.zeros(offsets[-1], np.int64) if has_times else None
    for part in parts:
        rows = slice(int(offsets[part.part]), int(offsets[part.part + 1]))
        keys[rows] = part.node_keys[node_type]
        column = part.node_features[node_type][manifest.time_attr] if manifest.time_attr and has_times else None
        if times is not None and isinstance(column, np.ndarray):
            times[rows] = column
    return _KnownNodes(keys=keys, times=times)


def _check_neighbors(where: str, manifest: Manifest, edges: EdgeArrays, neighbors: _KnownNodes) -> None:
    own_times = edges.features.get(manifest.time_attr) if manifest.time_attr is not None else None
    for _, _, start, stop in row_chunks(edges.indptr):
        ids = edges.indices[start:stop]
        keys = neighbors.keys[ids]
        is_known = keys >= 0
        if edges.neighbor_keys is not None:
            differs = (edges.neighbor_keys[start:stop] != keys) & is_known
            _refuse_first(differs, start, f"{where}: neighbor key", "is not the key of its neighbour")
        if edges.times is None:
            continue
        times = edges.times[start:stop]
        own = own_times[start:stop] if isinstance(own_times, np.ndarray) else None
        if neighbors.times is None:
            differs = np.zeros(0, np.bool_) if own is None else times != own
        else:
            later = neighbors.times[ids] if own is None else np.maximum(neighbors.times[ids], own.astype(np.int64))
            differs = (times != later) & is_known
        _refuse_first(differs, start, f"{where}: time", "is not that of the edge or its neighbour")


def _check_linked(
    manifest: Manifest,
    edge_type: EdgeType,
    part: PartArrays,
    parts: Sequence[PartArrays],
    nodes: Mapping[str, _KnownNodes],
) -> None:
    """Compare the edges of a part with the links in the parts that keep their keys."""
    for piece in _pieces(part, (edge_type, manifest.directions[0])):
        _check_linked_edges(manifest, edge_type, piece, parts, nodes)


class _Piece(NamedTuple):
    """Edges of a part or overlay, and the keys of the nodes of their rows."""

    where: str
    own_keys: IntArray
    edges: EdgeArrays


def _pieces(part: PartArrays, entity: EdgeEntity) -> Iterator[_Piece]:
    """Yield the edges of a part and of its overlays, for an edge type and direction."""
    where, label = f"part {part.part}", entity_label(entity)
    yield _Piece(f"{where}: {label}", part.node_keys[ends_of(*entity)[0]], part.edges[entity])
    for overlay in part.overlays.get(entity, ()):
        yield _Piece(f"{where}: delta {overlay.delta}: {label}", overlay.node_keys, overlay.edges)


def _check_linked_edges(
    manifest: Manifest,
    edge_type: EdgeType,
    piece: _Piece,
    parts: Sequence[PartArrays],
    nodes: Mapping[str, _KnownNodes],
) -> None:
    edges = piece.edges
    direction = manifest.directions[0]
    other_type = ends_of(edge_type, direction)[1]
    times = edges.features.get(manifest.time_attr) if manifest.time_attr is not None else None
    offsets = manifest.book.link_offsets(edge_type)
    links = {p.part: p.links[edge_type] for p in parts}
    for first, last, start, stop in row_chunks(edges.indptr):
        own = np.repeat(piece.own_keys[first:last], np.diff(edges.indptr[first : last + 1]))
        other = nodes[other_type].keys[edges.indices[start:stop]]
        src, dst = (other, own) if direction == "in" else (own, other)
        keys = edges.keys[start:stop] if edges.keys is not None else np.empty(0, np.int64)
        keepers = np.searchsorted(offsets, keys, side="right") - 1
        for keeper in np.intersect1d(keepers, list(links)).tolist():
            link = links[keeper]
            found = np.flatnonzero(keepers == keeper)
            rows = keys[found] - offsets[keeper]
            differs = (link.src_keys[rows] != src[found]) & (src[found] >= 0)
            differs |= (link.dst_keys[rows] != dst[found]) & (dst[found] >= 0)
            if link.times is not None and isinstance(times, np.ndarray):
                differs |= link.times[rows] != times[start:stop][found]
            if differs.any():
                key = int(keys[found][np.argmax(differs)])
                raise FormatError(
                    f"{piece.where}: edge key {key} differs from the edge of this key in the links of part {keeper}"
                )


def _refuse_first(is_wrong: Array, start: int, what: str, why: str) -> None:
    if is_wrong.any():
        raise FormatError(f"{what} {start + int(np.argmax(is_wrong))} {why}")
