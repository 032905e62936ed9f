"""Report of a cut: edges between parts, the balance of the parts, and the cost of each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.dataset.book import ends_of
from hopstream.errors import FormatError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.schema import Direction, EdgeType, type_label


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Cost of one stage.

    Attributes:
        name: The stage.
        seconds: Wall time.
        peak_bytes: Peak memory of all processes together until the stage ended; see ``engine.machine``.
    """

    name: str
    seconds: float
    peak_bytes: int


Owners = Mapping[str, NDArray[np.int32]]
"""Node type to int32[num_nodes], the part of each node by key."""

MAX_MATRIX_PARTS = 256
"""Reports of more parts than this omit the matrix of edges between parts."""
CHUNK_EDGES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCut:
    """Number of edges of one type, and of the edges whose ends are in different parts."""

    num_edges: int
    num_cut: int

    @property
    def fraction(self) -> float:
        """The share of edges that are cut; 0 without edges."""
        return self.num_cut / self.num_edges if self.num_edges else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """Contents of each part, and the edge cut.

    Attributes:
        cuts: Edge type to its cut.
        nodes: Nodes of all types that each part owns.
        edges: Edges that each part holds, over all types and directions.
        bytes: Bytes of each part's files.
        seeds: (node type, split) to the number of the split's nodes that each part owns; (edge type, split) to the
            number of the split's edges that it holds in the first direction written.
        edges_between: ``edges_between[p][q]`` edges lead from part ``p`` to part ``q``, over all types; empty for more
            than ``MAX_MATRIX_PARTS`` parts.
        stages: Time and memory of the stages that made the parts.
    """

    cuts: Mapping[EdgeType, EdgeCut]
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    bytes: tuple[int, ...]
    seeds: Mapping[tuple[str | EdgeType, str], tuple[int, ...]]
    edges_between: tuple[tuple[int, ...], ...] = ()
    stages: tuple[StageCost, ...] = field(default=(), compare=False)

    @property
    def cut(self) -> EdgeCut:
        """The cut over all edge types together."""
        return EdgeCut(
            num_edges=sum(c.num_edges for c in self.cuts.values()), num_cut=sum(c.num_cut for c in self.cuts.values())
        )

    @property
    def balance(self) -> dict[str, float]:
        """Largest part over the mean, for nodes, edges, bytes and each split's seeds (``seeds paper/train``)."""
        loads = {"nodes": self.nodes, "edges": self.edges, "bytes": self.bytes}
        loads |= {f"seeds {type_label(entity)}/{split}": counts for (entity, split), counts in self.seeds.items()}
        return {name: max_over_mean(load) for name, load in loads.items()}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value for ``from_json``; its shares and balances are derived, for readers only."""
        return {
            "cut": round(self.cut.fraction, 6),
            "balance": {name: round(value, 4) for name, value in self.balance.items()},
            "edge_types": [
                {"type": list(t), "edges": c.num_edges, "cut_edges": c.num_cut, "cut": round(c.fraction, 6)}
                for t, c in self.cuts.items()
            ],
            "parts": {"nodes": list(self.nodes), "edges": list(self.edges), "bytes": list(self.bytes)},
            "seeds": [
                {"type": t if isinstance(t, str) else list(t), "split": s, "parts": list(counts)}
                for (t, s), counts in self.seeds.items()
            ],
            "edges_between": [list(row) for row in self.edges_between],
            "stages": [
                {"name": s.name, "seconds": round(s.seconds, 3), "peak_bytes": s.peak_bytes} for s in self.stages
            ],
        }

    @classmethod
    def from_json(cls, value: object) -> PartitionReport:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: The value is not a report.
        """
        try:
            record = cast(dict[str, Any], value)
            return cls(
                cuts={
                    cast(EdgeType, tuple(e["type"])): EdgeCut(num_edges=int(e["edges"]), num_cut=int(e["cut_edges"]))
                    for e in record["edge_types"]
                },
                **{name: tuple(map(int, record["parts"][name])) for name in ("nodes", "edges", "bytes")},
                seeds={(_owner(s["type"]), str(s["split"])): tuple(map(int, s["parts"])) for s in record["seeds"]},
                edges_between=tuple(tuple(map(int, row)) for row in record["edges_between"]),
                stages=tuple(
                    StageCost(name=str(s["name"]), seconds=float(s["seconds"]), peak_bytes=int(s["peak_bytes"]))
                    for s in record["stages"]
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"not a partition report ({error!r}): {str(value)[:200]}") from error


def _owner(value: object) -> str | EdgeType:
    """Return a node type, or an edge type, which JSON holds as a list."""
    return cast(EdgeType, tuple(map(str, value))) if isinstance(value, list) else str(value)


def max_over_mean(loads: Sequence[int]) -> float:
    """Return the largest load as a multiple of the mean; 1 if the total is 0."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def measure_cut(graph: Graph, owners: Owners, num_parts: int) -> tuple[dict[EdgeType, EdgeCut], IntArray]:
    """Count the cut edges of each type, and the edges between each pair of parts.

    Returns:
        cuts: Edge type to its cut.
        edges_between: int64[num_parts, num_parts], or int64[0, 0] above ``MAX_MATRIX_PARTS`` parts.
    """
    num_rows = num_parts if num_parts <= MAX_MATRIX_PARTS else 0
    edges_between = np.zeros((num_rows, num_rows), np.int64)
    cuts: dict[EdgeType, EdgeCut] = {}
    for edge_type, edges in graph.edges.items():
        num_cut = _count_between(edges, owners[edge_type[0]], owners[edge_type[2]], edges_between)
        cuts[edge_type] = EdgeCut(num_edges=edges.num_edges, num_cut=num_cut)
    return cuts, edges_between


def _count_between(
    edges: EdgeTable, src_owners: NDArray[np.int32], dst_owners: NDArray[np.int32], edges_between: IntArray
) -> int:
    """Add the edges to the matrix if it has rows; return how many are cut."""
    num_parts = len(edges_between)
    num_cut = 0
    for start in range(0, edges.num_edges, CHUNK_EDGES):
        src_parts = src_owners[edges.src_keys[start : start + CHUNK_EDGES]]
        dst_parts = dst_owners[edges.dst_keys[start : start + CHUNK_EDGES]]
        num_cut += int(np.count_nonzero(src_parts != dst_parts))
        if num_parts:
            pairs = src_parts * np.int32(num_parts) + dst_parts
            edges_between += np.bincount(pairs, minlength=num_parts**2).reshape(num_parts, num_parts)
    return num_cut


def count_seeds(
    graph: Graph, owners: Owners, num_parts: int, direction: Direction = "in"
) -> dict[tuple[str | EdgeType, str], tuple[int, ...]]:
    """Count the nodes or edges of each split in each part, by (node type, split) and (edge type, split).

    An edge counts in the part that holds it in the given direction.
    """
    nodes: dict[tuple[str | EdgeType, str], tuple[int, ...]] = {
        (node_type, split): tuple(np.bincount(owners[node_type][keys], minlength=num_parts).tolist())
        for node_type, splits in graph.splits.items()
        for split, keys in splits.items()
    }
    edges: dict[tuple[str | EdgeType, str], tuple[int, ...]] = {}
    for edge_type, splits in graph.edge_splits.items():
        table, own_owners = graph.edges[edge_type], owners[ends_of(edge_type, direction)[0]]
        parts = own_owners[table.dst_keys if direction == "in" else table.src_keys]
        for split, keys in splits.items():
            edges[edge_type, split] = tuple(np.bincount(parts[keys], minlength=num_parts).tolist())
    return nodes | edges
