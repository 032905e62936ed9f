"""Slow, obvious answers: one plain-Python reference per kernel, to compare the two."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hopstream.graph.graph import Graph
from hopstream.schema import EdgeType

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """SplitMix64's finalizer in Python integers."""
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def node_stream(rng_seed: int, key: int) -> int:
    """The start of a node's stream of draws."""
    return mix64(rng_seed ^ mix64(key + GOLDEN))


def draw_below(stream: int, turn: int, bound: int) -> int:
    """The draw of one turn in ``[0, bound)``."""
    return (mix64(stream + turn * GOLDEN) * bound) >> 64


def draw_positions(rng_seed: int, key: int, degree: int, count: int, is_replacing: bool) -> list[int]:
    """Positions of the edges that a node draws: the rule of ``kernels/neighbors.py`` as one loop."""
    return draw_from_stream(node_stream(rng_seed, key), degree, count, is_replacing)


def draw_from_stream(stream: int, degree: int, count: int, is_replacing: bool) -> list[int]:
    """The positions that follow from a stream of draws."""
    if count == -1 or (count >= degree and not is_replacing):
        return list(range(degree))
    if is_replacing:
        return [draw_below(stream, turn, degree) for turn in range(count)] if degree else []
    if count <= 64 or count * count <= 8 * degree:
        taken: list[int] = []
        for last in range(degree - count, degree):
            position = draw_below(stream, last - degree + count, last + 1)
            taken.append(last if position in taken else position)
        return taken
    taken = []
    for position in range(degree):
        if draw_below(stream, position, degree - position) < count - len(taken):
            taken.append(position)
    return taken


def assign_slots(ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """Slots in order of first occurrence, and the id of each slot."""
    slot_of: dict[int, int] = {}
    slots = [slot_of.setdefault(identifier, len(slot_of)) for identifier in ids]
    return slots, list(slot_of)


def group_edges(rows: Sequence[int], num_rows: int) -> tuple[list[int], list[int]]:
    """Row offsets, and edge positions grouped by row in original order."""
    groups: list[list[int]] = [[] for _ in range(num_rows)]
    for position, row in enumerate(rows):
        groups[row].append(position)
    indptr = [0]
    for group in groups:
        indptr.append(indptr[-1] + len(group))
    return indptr, [position for group in groups for position in group]


def rmat_edge(number: int, scale: int, rng_seed: int) -> tuple[int, int]:
    """The place in the adjacency matrix of one R-MAT edge: one quadrant per level, of 16 bits each."""
    stream = mix64(rng_seed + number * GOLDEN)
    src = dst = 0
    for level in range(scale):
        block = level - level % 4
        draw = (mix64(stream + (block + 1) * GOLDEN) >> (16 * (level % 4))) % 2**16 / 2**16
        quadrant = sum(draw >= round(share * 2**16) / 2**16 for share in (0.57, 0.76, 0.95))
        src, dst = 2 * src + quadrant // 2, 2 * dst + quadrant % 2
    return src, dst


def _neighbors_by_key(graph: Graph, edge_type: EdgeType, direction: str) -> dict[int, list[tuple[int, int]]]:
    table = graph.edges[edge_type]
    adjacency: dict[int, list[tuple[int, int]]] = {}
    for edge_key, (src, dst) in enumerate(zip(table.src_keys.tolist(), table.dst_keys.tolist(), strict=True)):
        expanded, neighbor = (dst, src) if direction == "in" else (src, dst)
        adjacency.setdefault(expanded, []).append((neighbor, edge_key))
    return adjacency


def split_nodes(owner: Sequence[int], num_parts: int) -> tuple[list[int], list[int]]:
    """Key of each id, and id of each key: part by part, ascending keys inside a part."""
    keys = [key for part in range(num_parts) for key in range(len(owner)) if owner[key] == part]
    return keys, [keys.index(key) for key in range(len(owner))]


def part_edges(
    graph: Graph, edge_type: EdgeType, direction: str, owners: dict[str, list[int]], part: int
) -> list[list[tuple[int, int]]]:
    """(key of the other end, edge key) of every edge of each row of a part, in original order."""
    owner = owners[edge_type[2] if direction == "in" else edge_type[0]]
    adjacency = _neighbors_by_key(graph, edge_type, direction)
    return [adjacency.get(key, []) for key in range(len(owner)) if owner[key] == part]


def undirected_neighbors(graph: Graph) -> dict[int, list[int]]:
    """Map the position of a node, in the layout of all types, to the other positions joined to it."""
    first, firsts = 0, {}
    for node_type, nodes in graph.nodes.items():
        firsts[node_type] = first
        first += nodes.num_nodes
    found: dict[int, set[int]] = {}
    for edge_type, edges in graph.edges.items():
        for src_key, dst_key in zip(edges.src_keys.tolist(), edges.dst_keys.tolist(), strict=True):
            src, dst = firsts[edge_type[0]] + src_key, firsts[edge_type[2]] + dst_key
            if src != dst:
                found.setdefault(src, set()).add(dst)
                found.setdefault(dst, set()).add(src)
    return {node: sorted(others) for node, others in sorted(found.items())}


def keys_of_raw_ids(raw: list, asked: list) -> list[int]:
    """The row of each raw id, -1 for unknown ids."""
    key_of = {value: key for key, value in enumerate(raw)}
    return [key_of.get(value, -1) for value in asked]


def positions_by_part(ids: Sequence[int], offsets: Sequence[int]) -> list[list[int]]:
    """Positions of the ids that each part owns, in their order."""
    return [
        [row for row, identifier in enumerate(ids) if first <= identifier < stop] for first, stop in pairwise(offsets)
    ]
