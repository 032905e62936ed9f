"""Writes the manifest of a dataset to which something was added."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hopstream.arrays import Column, FileRecord, IntArray
from hopstream.dataset.balance import EdgeCut, PartitionReport, StageCost
from hopstream.dataset.book import PartitionBook
from hopstream.dataset.manifest import Manifest, graph_id_of, graph_schema
from hopstream.engine.peak import peak_bytes
from hopstream.graph.checksums import ByteSum, GraphChecksums, appended_sums, array_sum, join_sums
from hopstream.graph.graph import Graph
from hopstream.preparation.append.write import AddedEnds, DeltaWriter
from hopstream.schema import EdgeType, type_label


def grown_manifest(
    manifest: Manifest, writer: DeltaWriter, ends: Mapping[EdgeType, AddedEnds], started: float
) -> Manifest:
    """The manifest of a dataset with what a writer wrote.

    Args:
        manifest: The dataset's, as it was.
        writer: Has written all.
        ends: Ids of the ends of new edges.
        started: When that began, by ``time.perf_counter``.
    """
    added, old = writer.added, manifest.book
    book = PartitionBook(
        num_parts=old.num_parts + 1,
        node_offsets={t: np.append(o, o[-1] + added.nodes[t].num_nodes) for t, o in old.node_offsets.items()},
        edge_offsets={t: np.append(o, o[-1] + writer.new_edges[t]) for t, o in old.edge_offsets.items()},
        deltas=(*old.deltas, writer.delta),
    )
    checksums = grown_checksums(manifest, added)
    cost = StageCost(name="append", seconds=time.perf_counter() - started, peak_bytes=peak_bytes())
    return replace(
        manifest,
        book=book,
        halo=None,  # it is of the parts as they were
        files=dict(sorted({**manifest.files, **writer.files}.items())),
        checksums=checksums,
        graph_id=graph_id_of(checksums.fingerprint(graph_schema(manifest.schema)), manifest.time_attr),
        report=replace(
            _grown_report(manifest, book, added, ends, writer.files), stages=(*manifest.report.stages, cost)
        ),
    )


def digest_of_addition(manifest: Manifest, added: Graph) -> str:
    """32 hexadecimal digits that name what is added, its splits by rows and not by keys: the same ones a second time.

    Args:
        manifest: The dataset's, as it is before.
        added: The new rows.
    """
    book = manifest.book
    splits = {t: {name: keys - book.num_ids(t) for name, keys in of.items()} for t, of in added.splits.items()}
    edge_splits = {
        t: {name: keys - book.num_edges(t) for name, keys in of.items()} for t, of in added.edge_splits.items()
    }
    sums = replace(added, splits=splits, edge_splits=edge_splits).checksums()
    return sums.fingerprint(graph_schema(manifest.schema))


def grown_checksums(manifest: Manifest, added: Graph) -> GraphChecksums:
    """What the fingerprint of the graph with its new rows is made of."""
    old = manifest.checksums
    num_rows, columns = dict(old.num_rows), dict(old.columns)
    tables: dict[str, tuple[int, list[Column]]] = {
        t: (nodes.num_nodes, list(nodes.features.values())) for t, nodes in added.nodes.items()
    }
    for t, edges in added.edges.items():
        tables[type_label(t)] = (edges.num_edges, [edges.src_keys, edges.dst_keys, *edges.features.values()])
    for label, (more, new) in tables.items():
        num_rows[label] += more
        columns[label] = tuple(
            appended_sums(sums, column) for sums, column in zip(old.columns[label], new, strict=True)
        )
    return GraphChecksums(
        num_rows=num_rows,
        columns=columns,
        splits=_grown_splits(old.splits, added.splits),
        edge_splits=_grown_splits(old.edge_splits, {type_label(t): of for t, of in added.edge_splits.items()}),
    )


def _grown_splits(
    old: Mapping[str, Mapping[str, ByteSum]], added: Mapping[str, Mapping[str, IntArray]]
) -> dict[str, dict[str, ByteSum]]:
    return {
        label: {name: join_sums(total, array_sum(added[label][name])) for name, total in of.items()}
        for label, of in old.items()
    }


def _grown_report(
    manifest: Manifest, book: PartitionBook, added: Graph, ends: Mapping[EdgeType, AddedEnds],
    files: Mapping[str, FileRecord],
) -> PartitionReport:  # fmt: skip
    """Cut and balance with the new part; bytes of overlays are those of the part whose rows they are."""
    report, num_parts = manifest.report, book.num_parts
    between = np.zeros((num_parts, num_parts), np.int64)
    between[:-1, :-1] = np.array(report.edges_between, np.int64) if report.edges_between else 0
    cuts = dict(report.cuts)
    num_bytes = [*report.bytes, 0]
    for path, record in files.items():
        num_bytes[int(path.partition("/")[0].removeprefix("part-"))] += record.num_bytes
    for edge_type, of_type in ends.items():
        src, dst = book.parts_of(edge_type[0], of_type.src_ids), book.parts_of(edge_type[2], of_type.dst_ids)
        num_cut = int(np.count_nonzero(src != dst))
        before = report.cuts[edge_type]
        cuts[edge_type] = EdgeCut(num_edges=before.num_edges + len(src), num_cut=before.num_cut + num_cut)
        if report.edges_between:
            between += np.bincount(src * num_parts + dst, minlength=num_parts**2).reshape(num_parts, num_parts)
    held = dict(manifest.report.seeds)
    for (owner, name), counts in report.seeds.items():
        more = _added_seeds(manifest, book, added, ends, (owner, name))
        held[owner, name] = tuple((np.array([*counts, 0]) + more).tolist())
    num_nodes = sum(nodes.num_nodes for nodes in added.nodes.values())
    num_edges = sum((book.edges_of_parts(owner) for owner in book.edge_offsets), np.zeros(num_parts, np.int64))
    return replace(
        report, cuts=cuts, nodes=(*report.nodes, num_nodes), edges=tuple(num_edges.tolist()), bytes=tuple(num_bytes),
        seeds=held, edges_between=tuple(map(tuple, between.tolist())) if report.edges_between else (),
    )  # fmt: skip


def _added_seeds(
    manifest: Manifest, book: PartitionBook, added: Graph, ends: Mapping[EdgeType, AddedEnds],
    split: tuple[str | EdgeType, str],
) -> IntArray:  # fmt: skip
    """int64[num_parts], how many nodes or edges each part gets of a split."""
    owner, name = split
    if isinstance(owner, str):
        keys, node_type = added.splits[owner][name], owner  # the ids of new nodes are their keys
        return np.bincount(book.parts_of(node_type, keys), minlength=book.num_parts)
    is_in = manifest.directions[0] == "in"
    own = ends[owner].dst_ids if is_in else ends[owner].src_ids
    chosen = own[added.edge_splits[owner][name] - manifest.book.num_edges(owner)]
    return np.bincount(book.parts_of(owner[2] if is_in else owner[0], chosen), minlength=book.num_parts)
