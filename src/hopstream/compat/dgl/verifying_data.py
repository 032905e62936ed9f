"""Verifier of the edges, features and masks in parts' files against those of the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.compat.dgl.loading import read_feats
from hopstream.compat.dgl.part_config import PartConfig, label_of
from hopstream.compat.dgl.part_files import TRAINER_ID, mask_name, mask_of
from hopstream.errors import FormatError
from hopstream.preparation.audit.reference import Reference, block_rows, differing_rows
from hopstream.preparation.audit.report import Findings, Kind
from hopstream.schema import EdgeType, FeatureSchema

MASK = FeatureSchema(dtype="bool")
UNKNOWN = -1
"""Unknown key, and the part of an id outside the range of nodes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldRows:
    """Rows of a part's items of one type, by key.

    Attributes:
        part: The part.
        keys: int64[n], ascending; unknown keys are left out.
        rows: int64[n], the row of each key in the part's data.
    """

    part: int
    keys: IntArray
    rows: IntArray

    @classmethod
    def of(cls, part: int, keys: IntArray) -> HeldRows:
        """Sort the rows of a part by key; a negative key is unknown, and its row is left out."""
        order = np.argsort(keys, kind="stable")
        order = order[keys[order] >= 0]
        return cls(part=part, keys=keys[order], rows=order)


class DataCheck:
    """Verifier of the data of some parts against the source."""

    def __init__(
        self, config: PartConfig, reference: Reference, findings: Findings, parts: Sequence[int]
    ) -> None:  # fmt: skip
        """Map the parts' files, and report unreadable ones.

        Args:
            config: Contents of the JSON file.
            reference: The source.
            findings: Receives the differences.
            parts: The parts.
        """
        self._config, self._reference, self._findings = config, reference, findings
        schema = reference.schema
        self._features: dict[Any, Mapping[str, FeatureSchema]] = {**schema.nodes, **schema.edges}
        self._splits: dict[Any, Mapping[str, IntArray]] = {**reference.splits, **reference.edge_splits}
        self._feats = {(what, part): self._map(part, what) for what in ("node_feats", "edge_feats") for part in parts}

    def check(self, of: str | EdgeType, name: str | EdgeType, parts: Sequence[HeldRows]) -> None:
        """Compare all data of a type.

        Args:
            of: The type in the files.
            name: The type in the source.
            parts: Rows of the type in each part.
        """
        label = label_of(of)
        for feature, feature_schema in self._features[name].items():
            if not feature_schema.is_fixed_width:
                self._findings.skip("features", f"{label}/{feature} is text or ragged, which DGL's files cannot hold")
                continue
            columns = list(self._columns(of, f"{label}/{feature}", feature_schema, parts))
            self._compare(name, feature, feature_schema, columns)
        for split, members in self._splits.get(name, {}).items():
            for held, column, where in self._columns(of, f"{label}/{mask_name(split)}", MASK, parts):
                wanted = mask_of(held.keys, [members])
                wrong = np.flatnonzero(column[held.rows] != wanted.view(np.uint8))
                self._findings.checked("splits", len(wanted))
                told = (f"key {held.keys[row]}" for row in wrong)
                self._findings.add("splits", where, "is not the source's split", len(wrong), told)

    def check_labels(self, names: Mapping[Any, Any]) -> None:
        """Report data that the source does not have.

        Args:
            names: Node or edge type in the files to that in the source.
        """
        known = {
            label_of(of): {*self._features[name], *map(mask_name, self._splits.get(name, ())), TRAINER_ID}
            for of, name in names.items()
        }
        for (what, part), feats in self._feats.items():
            for label in feats or ():
                entity, _, name = label.partition("/")
                self._findings.checked("schema")
                if entity in known and name not in known[entity]:
                    where = self._config.parts[part][what]
                    self._findings.add("schema", where, f"has {label!r}, which the source does not have")

    def _map(self, part: int, what: str) -> dict[str, Array] | None:
        where = self._config.parts[part].get(what, f"part-{part}")
        self._findings.checked("files")
        try:
            return read_feats(self._config, part, what, is_mapped=True)
        except FormatError as error:
            self._findings.add("files", where, str(error).removeprefix(f"{self._config.path.parent / where} "))
            return None

    def _columns(
        self, of: str | EdgeType, label: str, schema: FeatureSchema, parts: Iterable[HeldRows]
    ) -> Iterator[tuple[HeldRows, Array, str]]:  # fmt: skip
        """Yield each part's column with the expected dtype and shape, and its label; report other columns."""
        what, ranges = ("node_feats", self._config.nodes) if isinstance(of, str) else ("edge_feats", self._config.edges)
        num_rows = np.diff(ranges.typed[of]).tolist()
        dtype = "uint8" if schema.dtype == "bool" else schema.dtype
        for held in parts:
            feats = self._feats[what, held.part]
            if feats is None:
                continue
            where, shape = f"{self._config.parts[held.part][what]} {label}", (num_rows[held.part], *schema.shape)
            column = feats.get(label)
            if column is None:
                self._findings.add("schema", where, "is missing", shape[0] > 0)
                continue
            column = column.view(np.uint8) if column.dtype == np.bool_ else column
            if column.dtype != np.dtype(dtype) or column.shape != shape:
                got, want = f"{column.dtype}{list(column.shape)}", f"{dtype}{list(shape)}"
                self._findings.add("schema", where, f"is {got}; wanted {want}")
                continue
            yield held, column, where

    def _compare(
        self, name: str | EdgeType, feature: str, schema: FeatureSchema, columns: list[tuple[HeldRows, Array, str]]
    ) -> None:
        reference, at_once = self._reference, block_rows(schema)
        num_rows = reference.num_nodes[name] if isinstance(name, str) else reference.num_edges[name]
        for first in range(0, num_rows if columns else 0, at_once):
            stop = min(first + at_once, num_rows)
            block = cast(Array, reference.rows(name, feature, first, stop))
            block = block.view(np.uint8) if block.dtype == np.bool_ else block
            for held, column, where in columns:
                begin, end = np.searchsorted(held.keys, [first, stop]).tolist()
                keys = held.keys[begin:end]
                wrong = differing_rows(column[held.rows[begin:end]], block[keys - first])
                self._findings.checked("features", len(keys))
                told = (f"key {keys[row]}" for row in wrong)
                self._findings.add("features", where, "is not what the source has", len(wrong), told)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldEdges:
    """Edges of one type in the graph of a part, by key.

    Attributes:
        part: The part.
        where: The part's file and the edge type.
        keys: int64[n], ascending.
        src_keys: int64[n], sources, -1 if unknown.
        dst_keys: int64[n], destinations, -1 if unknown.
        is_inner: bool[n], whether the part's graph marks the edge as its own.
        rows: int64[n], number of the edge minus the first number of the part's own edges of the type.
    """

    part: int
    where: str
    keys: IntArray
    src_keys: IntArray
    dst_keys: IntArray
    is_inner: NDArray[np.bool_]
    rows: IntArray


def compare_edges(
    reference: Reference, edge_type: EdgeType, parts: Sequence[HeldEdges],
    owners: tuple[NDArray[np.int32] | None, NDArray[np.int32]], findings: Findings,
) -> None:  # fmt: skip
    """Compare the edges of some parts with the source; the source is read once.

    Args:
        reference: The source.
        edge_type: The type in the source.
        parts: Edges of each part.
        owners: int32[n], the part of each source and of each destination. None in place of the sources' parts if the
            parts include edges between parts.
        findings: Receives the differences.
    """
    for first, src_keys, dst_keys in reference.ends(edge_type, 0, reference.num_edges[edge_type] if parts else 0):
        of_edges = _owners_of(dst_keys, owners[1])
        if owners[0] is not None:
            of_edges[_owners_of(src_keys, owners[0]) != of_edges] = UNKNOWN
        for held in parts:
            _compare_block(held, first, (src_keys, dst_keys), np.flatnonzero(of_edges == held.part), findings)


def _owners_of(keys: IntArray, owner: NDArray[np.int32]) -> IntArray:
    """Return int64[n], the part of each key, -1 for keys outside the range of nodes."""
    found = np.full(len(keys), UNKNOWN, np.int64)
    is_node = (keys >= 0) & (keys < len(owner))
    found[is_node] = owner[keys[is_node]]
    return found


def _compare_block(
    held: HeldEdges, first: int, ends: tuple[IntArray, IntArray], wanted: IntArray, findings: Findings
) -> None:  # fmt: skip
    """Compare a part's edges with one block of the source.

    ``wanted`` are the offsets in the block of the edges that the part should own.
    """
    begin, end = np.searchsorted(held.keys, [first, first + len(ends[0])]).tolist()
    at = held.keys[begin:end] - first
    got = (held.src_keys[begin:end], held.dst_keys[begin:end])
    want = (ends[0][at], ends[1][at])
    differs = [(of_got != of_want) & (of_got != UNKNOWN) for of_got, of_want in zip(got, want, strict=True)]
    wrong = np.flatnonzero(differs[0] | differs[1])
    told = (f"edge key {first + at[e]} is {got[0][e]} to {got[1][e]}, not {want[0][e]} to {want[1][e]}" for e in wrong)
    findings.checked("edges", len(at))
    findings.add("edges", held.where, "joins other nodes than the source says", len(wrong), told)
    own = at[held.is_inner[begin:end]]
    doubled = own[1:][own[1:] == own[:-1]]
    found: tuple[tuple[Kind, str, IntArray], ...] = (
        ("edges", "holds edges more than once", doubled),
        ("edges", "lacks edges into its nodes", np.setdiff1d(wanted, own)),
        ("ownership", "has edges of its own into nodes of other parts", np.setdiff1d(own, wanted)),
    )
    for kind, what, keys in found:
        findings.add(kind, held.where, what, len(keys), (f"edge key {first + key}" for key in keys))
    findings.checked("ownership", len(own))
