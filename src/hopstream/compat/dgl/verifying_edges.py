"""Are the edges in parts' graphs, their own and those around them, the edges of the source?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.preparation.audit.reference import Reference
from hopstream.preparation.audit.report import Findings, Kind
from hopstream.schema import EdgeType

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldEdges:
    """The edges of one type in the graph of a part, by key.

    Attributes:
        part: The part.
        where: Its file, and the type.
        keys: int64[n], ascending.
        src_keys: int64[n], sources, -1 where that is not known.
        dst_keys: int64[n], destinations likewise.
        is_inner: bool[n], whether the part says that they are its own.
        rows: int64[n], the place of each among the part's own edges of the type, by number.
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
    """Compare the edges of some parts with the source, which is read once.

    Args:
        reference: The source.
        edge_type: The type, as the source calls it.
        parts: What the parts hold.
        owners: int32[n], the part of each source, or None where it does not matter: it does where edges between parts
            are in none; and of each destination.
        findings: Who is told.
    """
    for first, src_keys, dst_keys in reference.ends(edge_type, 0, reference.num_edges[edge_type] if parts else 0):
        of_edges = _owners_of(dst_keys, owners[1])
        if owners[0] is not None:
            of_edges[_owners_of(src_keys, owners[0]) != of_edges] = UNKNOWN
        for held in parts:
            _compare_block(held, first, (src_keys, dst_keys), np.flatnonzero(of_edges == held.part), findings)


def _owners_of(keys: IntArray, owner: NDArray[np.int32]) -> IntArray:
    """int64[n], the part of each key, -1 for those that no node has."""
    found = np.full(len(keys), UNKNOWN, np.int64)
    is_node = (keys >= 0) & (keys < len(owner))
    found[is_node] = owner[keys[is_node]]
    return found


def _compare_block(
    held: HeldEdges, first: int, ends: tuple[IntArray, IntArray], wanted: IntArray, findings: Findings
) -> None:  # fmt: skip
    """Compare what a part holds of a block of edges with the block, and with those of it that should be its own."""
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
