"""Checks that every node is stored once, as the book says, and equals the source's node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from hopstream.arrays import Array, Column, IntArray, empty_column, extend_checksum
from hopstream.dataset.paths import link_folder, node_folder, split_path
from hopstream.dataset.rows import rows_of_ids
from hopstream.graph.graph import appended_sums, column_sums, join_sums
from hopstream.preparation.audit.reference import Reference, block_rows, differing_rows
from hopstream.preparation.audit.report import Files, Findings, Kind
from hopstream.schema import EdgeType, FeatureSchema, type_label

NOT_HERE = -2
"""Key of a node in a part that is not audited; -1 is the key of an id without a node."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedNodes:
    """Nodes of one type, as far as the audited parts store them.

    Attributes:
        keys: int64[num_nodes], the key of each id, -1 for an invalid key, ``NOT_HERE`` for a part that is not audited.
        ids: int64[num_nodes], the id of each key, -1 if no part has the key.
        times: int64[num_nodes], the time of each id, 0 for a part that is not audited, or None if the type has no
            times.
    """

    keys: IntArray
    ids: IntArray
    times: IntArray | None


def keys_text(what: str, keys: Iterable[int]) -> Iterable[str]:
    """Format keys as places of a finding."""
    return (f"{what} {key}" for key in keys)


def check_keys(
    files: Files, node_type: str, sums: dict[str, list[int]], reference: Reference | None
) -> CheckedNodes | None:
    """Check the nodes of one type and their features.

    Args:
        files: The dataset.
        node_type: The type.
        sums: Receives the number of nodes and the checksum of each column, if none is missing.
        reference: The graph to compare features with.

    Returns:
        The nodes, or None if their keys cannot be read.
    """
    manifest, findings = files.manifest, files.findings
    offsets, num_nodes = manifest.book.node_offsets[node_type], manifest.book.num_ids(node_type)
    folders = [node_folder(part, node_type) for part in range(manifest.book.num_parts)]
    arrays = files.arrays([folder / "key.npy" for folder in folders])
    if arrays is None:
        findings.skip(("ranges", "order", "nodes", "book", "features"), f"{node_type}: a file of keys cannot be used")
        return None
    keys, ids = np.full(num_nodes, NOT_HERE, np.int64), np.full(num_nodes, -1, np.int64)
    for part in files.parts:
        keys[offsets[part] : offsets[part + 1]] = -1
    for folder, stored, first in zip(folders, arrays, offsets, strict=False):
        _place_keys(findings, f"{folder}/key.npy", stored, int(first), keys, ids)
    missing = np.flatnonzero(ids < 0) if files.is_whole else np.empty(0, np.int64)
    findings.checked("nodes", num_nodes if files.is_whole else int(np.count_nonzero(keys != NOT_HERE)))
    findings.add("nodes", node_type, "is a node of no part", len(missing), keys_text("key", missing))
    _check_book(files, node_type, folders, CheckedNodes(keys=keys, ids=ids, times=None))
    columns = files.columns(folders, manifest.schema.nodes[node_type])
    features = Features(files, node_type, columns, offsets, reference)
    features.check(0, ids)
    names = manifest.schema.nodes[node_type]
    if files.is_whole and not len(missing) and len(columns) == len(names):
        sums[node_type] = [num_nodes, *(features.checksums[name] for name in names)]
    return CheckedNodes(keys=keys, ids=ids, times=_times(files, node_type, columns))


def _place_keys(findings: Findings, where: str, stored: Array, first: int, keys: IntArray, ids: IntArray) -> None:
    """Record the keys and ids of one part."""
    is_key = check_range(findings, where, "keys", stored, len(keys))
    rows = np.flatnonzero(is_key)
    findings.checked("order", len(stored))
    check_ascends(findings, "order", where, "keys", stored)
    of_rows, row_ids = stored[rows], rows + first
    was_seen = ids[of_rows] >= 0
    keys[row_ids] = of_rows
    before = ids[of_rows]
    ids[of_rows] = row_ids
    doubled = was_seen | (ids[of_rows] != row_ids)
    places = (
        f"key {key} (id {i}{f' and {b}' if b >= 0 else ''})"
        for key, i, b in zip(of_rows[doubled], row_ids[doubled], before[doubled], strict=True)
    )
    findings.add("nodes", where, "is a node more than once", int(np.count_nonzero(doubled)), places)


def check_range(findings: Findings, where: str, what: str, values: Array, stop: int, first: int = 0) -> Array:
    """Return bool[n], whether values lie in ``[first, stop)``; report values that do not."""
    findings.checked("ranges", len(values))
    is_inside: Array = (values >= first) & (values < stop)
    if not is_inside.all():
        rows = np.flatnonzero(~is_inside)
        places = (f"row {row} is {values[row]}" for row in rows)
        findings.add("ranges", where, f"{what} are outside {first}..{stop - 1}", len(rows), places)
    return is_inside


def check_ascends(findings: Findings, kind: Kind, where: str, what: str, values: Array) -> bool:
    """Return whether values ascend; report values that do not."""
    descends = np.flatnonzero(values[1:] <= values[:-1]) + 1
    findings.add(kind, where, f"{what} do not ascend", len(descends), (f"row {row}" for row in descends))
    return not len(descends)


def _check_book(files: Files, node_type: str, folders: Sequence[PurePosixPath], nodes: CheckedNodes) -> None:
    """Compare the ids of keys with the rows that hold the keys, in the audited parts."""
    findings, offsets, ids = files.findings, files.manifest.book.key_offsets(node_type), nodes.ids
    for part, folder in enumerate(folders):
        stored = files.array(folder / "id_of_key.npy")
        if stored is None:
            continue
        where, first = f"{folder}/id_of_key.npy", int(offsets[part])
        is_inside = check_range(findings, where, "ids", stored, len(ids))
        wanted = ids[first : first + len(stored)]
        differs = is_inside & (wanted >= 0) & (stored != wanted)
        if not files.is_whole:  # no part here has the key, but its id belongs to a part here
            lost = np.flatnonzero(is_inside & (wanted < 0))
            differs[lost] = nodes.keys[stored[lost]] != NOT_HERE
        wrong = np.flatnonzero(differs)
        findings.checked("book", len(stored))
        told = (f"is {wanted[row]}" if wanted[row] >= 0 else f"key {nodes.keys[stored[row]]} is that" for row in wrong)
        places = (
            f"key {first + row} is said to be id {stored[row]} and {what}"
            for row, what in zip(wrong, told, strict=True)
        )
        findings.add("book", where, "ids are not those of the keys", len(wrong), places)


def _times(files: Files, node_type: str, columns: Mapping[str, Sequence[Column]]) -> IntArray | None:
    stored = columns.get(files.manifest.time_attr or "")
    if not stored:
        return None
    book = files.manifest.book
    times, offsets = np.zeros(book.num_ids(node_type), np.int64), book.node_offsets[node_type]
    for column, first in zip(stored, offsets, strict=False):
        if isinstance(column, np.ndarray):
            times[first : first + len(column)] = column
    return times


class Features:
    """Features of one type, compared with the source and summed in ranges of keys."""

    def __init__(
        self, files: Files, entity: str | EdgeType, columns: Mapping[str, Sequence[Column]], offsets: IntArray,
        reference: Reference | None,
    ) -> None:  # fmt: skip
        """Start at the first key.

        Args:
            files: The dataset.
            entity: Node or edge type.
            columns: Feature name to the column of each part.
            offsets: The ranges of ids of the parts.
            reference: The source, if it has as many rows.
        """
        schema = files.manifest.schema
        self.entity, self._files, self._offsets, self._reference = entity, files, offsets, reference
        self._columns = columns
        self._schemas = schema.nodes[entity] if isinstance(entity, str) else schema.edges[entity]
        self._sums = {name: column_sums(empty_column(self._schemas[name])) for name in columns}
        theirs: Mapping[str, FeatureSchema] = {}
        if reference is not None:
            of = reference.schema
            theirs = of.nodes.get(entity, {}) if isinstance(entity, str) else of.edges.get(entity, {})
        self._compared = {name for name in columns if theirs.get(name) == self._schemas[name]}

    @property
    def checksums(self) -> dict[str, int]:
        """CRC-32C of each feature's rows so far, in the order of keys."""
        return {name: join_sums(*column.sums)[1] for name, column in self._sums.items()}

    def check(self, first: int, ids: IntArray) -> None:
        """Check the next keys, starting at ``first``, given their ids; -1 for none."""
        for name, columns in self._columns.items():
            step = block_rows(self._schemas[name])
            for start in range(0, len(ids), step):
                some = ids[start : start + step]
                known = np.flatnonzero(some >= 0)
                got = rows_of_ids(columns, self._offsets, some[known])
                self._sums[name] = appended_sums(self._sums[name], got)
                if self._reference is not None and name in self._compared:
                    want = self._reference.rows(self.entity, name, first + start, first + start + len(some))
                    self._compare(name, first + start, some, known, got, want)

    def _compare(self, name: str, first: int, ids: IntArray, known: IntArray, got: Column, want: Column) -> None:
        if len(known) < len(ids):
            want = want[known] if isinstance(want, np.ndarray) else want.take(known)
        wrong = known[differing_rows(got, want)]
        parts = np.searchsorted(self._offsets, ids[wrong], side="right") - 1
        rows = ids[wrong] - self._offsets[parts]
        places = (f"key {k} (part {p}, row {r})" for k, p, r in zip(first + wrong, parts, rows, strict=True))
        where = f"{type_label(self.entity)}.{name}"
        self._files.findings.checked("features", len(known))
        self._files.findings.add("features", where, "is not what the source has", len(wrong), places)


def check_splits(files: Files, entity: str | EdgeType, reference: Reference | None) -> dict[str, int]:
    """Check the splits of a type; return the checksum of each readable split."""
    manifest = files.manifest
    book = manifest.book
    parts = range(book.num_parts)
    wanted: Mapping[str, IntArray] = {}
    if isinstance(entity, str):
        names, offsets = manifest.schema.splits.get(entity, ()), book.key_offsets(entity)
        folders = [node_folder(part, entity) for part in parts]
        wanted = reference.splits.get(entity, {}) if reference is not None else {}
    else:
        names, offsets = manifest.schema.edge_splits[entity], book.link_offsets(entity)
        folders = [link_folder(part, entity) for part in parts]
        wanted = reference.edge_splits.get(entity, {}) if reference is not None else {}
    sums: dict[str, int] = {}
    for name in names:
        paths = [split_path(folder, name) for folder in folders]
        found = [
            _checked_split(files.findings, str(path), keys, int(offsets[part]), int(offsets[part + 1]))
            for part, path in enumerate(paths)
            if (keys := files.array(path)) is not None
        ]
        if len(found) < book.num_parts:
            continue
        keys = np.concatenate(found)
        sums[name] = extend_checksum(0, keys)
        if name in wanted:
            where = f"split {name!r} of {type_label(entity)}"
            _compare_split(files.findings, where, keys, _of_slices(wanted[name], offsets, files.parts))
    return sums


def _checked_split(findings: Findings, where: str, keys: IntArray, first: int, stop: int) -> IntArray:
    findings.checked("splits", len(keys))
    outside = np.flatnonzero((keys < first) | (keys >= stop))
    what = f"keys are outside the part's slice {first}..{stop - 1}"
    findings.add("splits", where, what, len(outside), keys_text("key", keys[outside]))
    check_ascends(findings, "splits", where, "keys", keys)
    return keys


def _of_slices(keys: IntArray, offsets: IntArray, parts: Sequence[int]) -> IntArray:
    """Return the keys in the slices of some parts."""
    return keys[np.isin(np.searchsorted(offsets, keys, side="right") - 1, parts)]


def _compare_split(findings: Findings, where: str, keys: IntArray, wanted: IntArray) -> None:
    extra, lacking = np.setdiff1d(keys, wanted), np.setdiff1d(wanted, keys)
    findings.add("splits", where, "has keys that the source's split does not have", len(extra), keys_text("key", extra))
    findings.add("splits", where, "lacks keys of the source's split", len(lacking), keys_text("key", lacking))
