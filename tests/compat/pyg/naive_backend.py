"""Slow versions of pyg-lib's and torch-sparse's sampling operators, for all neighbours.

PyG's loaders leave the drawing to an operator of another package, and do all else in Python: sorting, times of seeds,
links, relabelling, batches. Where that package is not installed, ``installed`` puts this in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch_geometric.typing
from torch import Tensor

ONLY = "node__to__node"
"""The edge type of a graph without types, as the operators write it."""
HAS_PYG_LIB = torch_geometric.typing.WITH_PYG_LIB
HAS_ANY = HAS_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE


@contextmanager
def installed() -> Iterator[None]:
    """Patch PyG so that it finds these operators as if pyg-lib were installed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WITH_PYG_LIB", "WITH_EDGE_TIME_NEIGHBOR_SAMPLE", "WITH_WEIGHTED_NEIGHBOR_SAMPLE"):
            patch.setattr(torch_geometric.typing, name, True)
        names = SimpleNamespace(neighbor_sample=neighbor_sample, hetero_neighbor_sample=hetero_neighbor_sample)
        patch.setattr(torch.ops, "pyg", names)
        patch.setattr(torch_geometric.typing, "WITH_TORCH_SPARSE", True)
        names = SimpleNamespace(neighbor_sample=induced_sample, hetero_neighbor_sample=hetero_induced_sample)
        patch.setattr(torch.ops, "torch_sparse", names)
        yield


def neighbor_sample(
    colptr: Tensor, row: Tensor, seed: Tensor, counts: list[int],
    node_time: Tensor | None, edge_time: Tensor | None, seed_time: Tensor | None, *options: object,
) -> tuple[object, ...]:  # fmt: skip
    """Sample without types: rows, columns, nodes, edges, and the number of nodes and edges per hop."""
    of_nodes = [None if value is None else {"node": value} for value in (node_time, seed_time)]
    of_edges = None if edge_time is None else {ONLY: edge_time}
    found = hetero_neighbor_sample(
        ["node"], [tuple(ONLY.split("__"))], {ONLY: colptr}, {ONLY: row}, {"node": seed}, {ONLY: counts},
        of_nodes[0], of_edges, of_nodes[1], *options,
    )  # fmt: skip
    return tuple(next(iter(values.values())) for values in found)


def induced_sample(
    colptr: Tensor, row: Tensor, seed: Tensor, counts: list[int], replace: bool, is_directed: bool
) -> tuple[Tensor, ...]:
    """torch-sparse's operator, which PyG asks for induced subgraphs: nodes, and all edges between them."""
    found = hetero_induced_sample(
        ["node"], [tuple(ONLY.split("__"))], {ONLY: colptr}, {ONLY: row}, {"node": seed}, {ONLY: counts}, len(counts),
        replace, is_directed,
    )  # fmt: skip
    return tuple(next(iter(values.values())) for values in found)


def hetero_induced_sample(
    node_types: list[str], edge_types: list[tuple[str, str, str]],
    colptr: dict[str, Tensor], row: dict[str, Tensor], seed: dict[str, Tensor], counts: dict[str, list[int]],
    num_hops: int, replace: bool, is_directed: bool,
) -> tuple[dict, ...]:  # fmt: skip
    """The same with types: all edges of every edge type, whatever its counts are."""
    assert not is_directed
    nodes = hetero_neighbor_sample(
        node_types, edge_types, colptr, row, seed, counts, None, None, None, None, True, replace, True, False,
        "uniform", True,
    )[2]  # fmt: skip
    slots = {t: {key: slot for slot, key in enumerate(of.tolist())} for t, of in nodes.items()}
    found = {}
    for src_type, relation, dst_type in edge_types:
        name = f"{src_type}__{relation}__{dst_type}"
        edges = [
            (slots[src_type][int(row[name][offset])], slot, offset)
            for key, slot in slots[dst_type].items()
            for offset in range(int(colptr[name][key]), int(colptr[name][key + 1]))
            if int(row[name][offset]) in slots[src_type]
        ]
        found[name] = torch.tensor(edges, dtype=torch.int64).reshape(-1, 3).t()
    return (nodes, *({name: of[place] for name, of in found.items()} for place in range(3)))


def hetero_neighbor_sample(
    node_types: list[str], edge_types: list[tuple[str, str, str]],
    colptr: dict[str, Tensor], row: dict[str, Tensor], seed: dict[str, Tensor], counts: dict[str, list[int]],
    node_time: dict[str, Tensor] | None, edge_time: dict[str, Tensor] | None, seed_time: dict[str, Tensor] | None,
    edge_weight: object, is_csc: bool, replace: bool, is_directed: bool, is_disjoint: bool, strategy: str,
    wants_edges: bool,
) -> tuple[dict, ...]:  # fmt: skip
    """The same with types; an edge type is its three names, joined by ``__``.

    A seed sees neighbours up to its time where nodes have times, and edges up to it where edges have times.
    """
    assert (edge_weight, is_csc, replace, is_directed, wants_edges) == (None, True, False, True, True)
    nodes: dict[str, list[tuple[int, int]]] = {node_type: [] for node_type in node_types}
    slots: dict[str, dict[tuple[int, int], int]] = {node_type: {} for node_type in node_types}
    limits: list[int | None] = []
    for node_type, keys in seed.items():
        for index, key in enumerate(keys.tolist()):
            nodes[node_type].append((len(limits) if is_disjoint else 0, key))
            slots[node_type][nodes[node_type][-1]] = len(nodes[node_type]) - 1
            limits.append(_limit(node_type, index, key, node_time, seed_time))
    edges: dict[str, list[tuple[int, int, int]]] = {"__".join(edge_type): [] for edge_type in edge_types}
    num_nodes = {node_type: [len(of)] for node_type, of in nodes.items()}
    num_edges: dict[str, list[int]] = {name: [] for name in edges}
    begins = dict.fromkeys(node_types, 0)
    for hop in range(max(len(of) for of in counts.values())):
        ends = {node_type: len(of) for node_type, of in nodes.items()}
        for src_type, relation, dst_type in edge_types:
            name = f"{src_type}__{relation}__{dst_type}"
            num_before = len(edges[name])
            assert counts[name][hop] <= 0, "only all neighbours or none"
            begin = begins[dst_type] if counts[name][hop] else ends[dst_type]
            for slot in range(begin, ends[dst_type]):
                tree, center = nodes[dst_type][slot]
                for offset in range(int(colptr[name][center]), int(colptr[name][center + 1])):
                    neighbor, limit = int(row[name][offset]), limits[tree] if is_disjoint else None
                    times = [(node_time or {}).get(src_type), (edge_time or {}).get(name)]
                    of_edge = [int(t[at]) for t, at in zip(times, (neighbor, offset), strict=True) if t is not None]
                    if limit is not None and any(time > limit for time in of_edge):
                        continue
                    if (tree, neighbor) not in slots[src_type]:
                        slots[src_type][tree, neighbor] = len(nodes[src_type])
                        nodes[src_type].append((tree, neighbor))
                    edges[name].append((slots[src_type][tree, neighbor], slot, offset))
            num_edges[name].append(len(edges[name]) - num_before)
        for node_type, of in nodes.items():
            num_nodes[node_type].append(len(of) - ends[node_type])
        begins = ends
    ends_of = {name: torch.tensor(of, dtype=torch.int64).reshape(-1, 3).t().contiguous() for name, of in edges.items()}
    pairs = {node_type: torch.tensor(of, dtype=torch.int64).reshape(-1, 2) for node_type, of in nodes.items()}
    return (
        {name: of[0] for name, of in ends_of.items()},
        {name: of[1] for name, of in ends_of.items()},
        pairs if is_disjoint else {node_type: of[:, 1] for node_type, of in pairs.items()},
        {name: of[2] for name, of in ends_of.items()},
        num_nodes,
        num_edges,
    )


def _limit(
    node_type: str, index: int, key: int, node_time: dict[str, Tensor] | None, seed_time: dict[str, Tensor] | None
) -> int | None:
    """The time of a seed: given, or its own; None if it has none."""
    if seed_time is not None and node_type in seed_time:
        return int(seed_time[node_type][index])
    return int(node_time[node_type][key]) if node_time and node_type in node_time else None
