"""Graphs that grow in several steps, for tests of appending to datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import Column, RaggedArray
from hopstream.dataset.manifest import Manifest
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.append.run import append
from hopstream.preparation.write import write_parts
from hopstream.schema import EdgeType


@dataclass(frozen=True)
class Grown:
    """A graph whose nodes and edges come in steps: every edge after its ends, and some later.

    Attributes:
        graph: All of it.
        num_nodes: Node type to the number of nodes after each step.
        num_edges: Edge type to the number of edges after each step.
    """

    graph: Graph
    num_nodes: Mapping[str, list[int]]
    num_edges: Mapping[EdgeType, list[int]]

    @property
    def num_steps(self) -> int:
        """The first, and one for every append."""
        return len(next(iter(self.num_nodes.values())))

    def until(self, step: int) -> Graph:
        """The graph as it is after a step."""
        nodes, edges = self.graph.nodes, self.graph.edges
        return Graph(
            nodes={
                t: NodeTable(num_nodes=n[step], features=_rows(nodes[t].features, 0, n[step]))
                for t, n in self.num_nodes.items()
            },
            edges={
                t: EdgeTable(
                    src_keys=edges[t].src_keys[: n[step]],
                    dst_keys=edges[t].dst_keys[: n[step]],
                    features=_rows(edges[t].features, 0, n[step]),
                )
                for t, n in self.num_edges.items()
            },
            splits={
                t: {name: keys[keys < self.num_nodes[t][step]] for name, keys in of.items()}
                for t, of in self.graph.splits.items()
            },
            edge_splits={
                t: {name: keys[keys < self.num_edges[t][step]] for name, keys in of.items()}
                for t, of in self.graph.edge_splits.items()
            },
            label_types=self.graph.label_types,
        )

    def added(self, step: int) -> dict[str, Any]:
        """The arguments of ``append`` that lead from the step before to a step."""
        nodes: dict[str, Any] = {}
        for t, n in self.num_nodes.items():
            columns = _rows(self.graph.nodes[t].features, n[step - 1], n[step])
            nodes[t] = columns or n[step] - n[step - 1]
        edges = {
            t: (
                self.graph.edges[t].src_keys[n[step - 1] : n[step]],
                self.graph.edges[t].dst_keys[n[step - 1] : n[step]],
                _rows(self.graph.edges[t].features, n[step - 1], n[step]),
            )
            for t, n in self.num_edges.items()
        }
        splits = {
            t: {name: _between(keys, self.num_nodes[t], step) for name, keys in of.items()}
            for t, of in self.graph.splits.items()
        }
        edge_splits = {
            t: {name: _between(keys, self.num_edges[t], step) for name, keys in of.items()}
            for t, of in self.graph.edge_splits.items()
        }
        return {"nodes": nodes, "edges": edges, "splits": splits, "edge_splits": edge_splits}

    def write(self, folder: Path, num_parts: int, num_appends: int, **options: Any) -> Manifest:
        """Write the graph of an early step and append the rest in so many steps; the last is the whole graph."""
        options = {"method": "random", "rng_seed": 5, **options}
        manifest = write_parts(self.until(self.num_steps - 1 - num_appends), folder, num_parts=num_parts, **options)
        for step in range(self.num_steps - num_appends, self.num_steps):
            manifest = append(folder, **self.added(step))
        return manifest


def grow(graph: Graph, rng: np.random.Generator, num_steps: int = 4, first: float = 0.6) -> Grown:
    """Let a graph come in steps; edges are put into another order, in which they come after their ends."""
    shares = np.linspace(first, 1, num_steps)
    num_nodes = {t: [*(int(n.num_nodes * s) for s in shares[:-1]), n.num_nodes] for t, n in graph.nodes.items()}
    edges, num_edges, edge_splits = {}, {}, dict(graph.edge_splits)
    for t, table in graph.edges.items():
        steps = rng.integers(0, num_steps, table.num_edges)
        for keys, end in ((table.src_keys, t[0]), (table.dst_keys, t[2])):
            steps = np.maximum(steps, np.searchsorted(num_nodes[end], keys, side="right"))
        order = np.argsort(steps, kind="stable")
        num_edges[t] = np.cumsum(np.bincount(steps, minlength=num_steps)).tolist()
        edges[t] = EdgeTable(
            src_keys=table.src_keys[order],
            dst_keys=table.dst_keys[order],
            features={name: _taken(column, order) for name, column in table.features.items()},
        )
        places = np.argsort(order)
        edge_splits |= {t: {n: np.sort(places[keys]) for n, keys in graph.edge_splits.get(t, {}).items()}}
    grown = replace(graph, edges=edges, edge_splits={t: of for t, of in edge_splits.items() if of}).check()
    return Grown(grown, num_nodes, num_edges)


def _between(keys: np.ndarray, counts: list[int], step: int) -> np.ndarray:
    return keys[(keys >= counts[step - 1]) & (keys < counts[step])]


def _rows(features: Mapping[str, Column], first: int, stop: int) -> dict[str, Column]:
    return {name: _taken(column, np.arange(first, stop)) for name, column in features.items()}


def _taken(column: Column, rows: np.ndarray) -> Column:
    return column.take(rows) if isinstance(column, RaggedArray) else column[rows]
