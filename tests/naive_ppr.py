"""Slow answer for a seed's neighbourhood by personalised PageRank, node by node and edge by edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hopstream.graph.graph import Graph
from hopstream.kernels.hashing import derive_seed
from hopstream.sample.ppr_settings import PPRSettings
from hopstream.schema import EdgeType, type_label
from tests.naive import draw_positions

Node = tuple[str, int]
"""A node type and a key."""


@dataclass
class Walk:
    """Nodes that one walk reached, in order of discovery."""

    residual: dict[Node, float] = field(default_factory=dict)
    score: dict[Node, float] = field(default_factory=dict)
    hop: dict[Node, int] = field(default_factory=dict)

    def emitted(self, node: Node, tops_up: bool) -> float:
        """The score that a user sees."""
        return self.score[node] + (self.residual[node] if tops_up else 0.0)


@dataclass(frozen=True)
class Row:
    """One node of a seed's neighbourhood."""

    node: Node
    attributes: list[float]


class NaivePPR:
    """Neighbourhoods over a whole graph in memory."""

    def __init__(self, graph: Graph, settings: PPRSettings, rng_seed: int = 0) -> None:
        self.graph, self.settings, self.rng_seed = graph, settings, rng_seed
        self.is_in = settings.direction == "in"
        channels = settings.channels()
        given = None if settings.edge_types is None else [tuple(t) for t in settings.edge_types]
        named = given if given is not None else None if channels is None else [t for c in channels for t in c]
        self.followed = [t for t in graph.edges if named is None or t in named]
        self.channels = [set(self.followed)] if channels is None else [set(channel) for channel in channels]
        self.rows: dict[tuple[Node, EdgeType], list[tuple[Node, int]]] = {}
        for edge_type in self.followed:
            table = graph.edges[edge_type]
            for edge_key, (src, dst) in enumerate(zip(table.src_keys.tolist(), table.dst_keys.tolist(), strict=True)):
                ends = ((edge_type[0], src), (edge_type[2], dst))
                expanded, neighbor = ends[::-1] if self.is_in else ends
                self.rows.setdefault((expanded, edge_type), []).append((neighbor, edge_key))
        self.fetched: dict[tuple[Node, EdgeType], list[tuple[Node, int]]] = {}

    def followed_from(self, node: Node, channel: set[EdgeType] | None = None) -> list[EdgeType]:
        """Edge types that lead on from a node."""
        types = [t for t in self.followed if (t[2] if self.is_in else t[0]) == node[0]]
        return [t for t in types if channel is None or t in channel]

    def degree(self, node: Node) -> int:
        """Edges of all types followed."""
        return sum(len(self.rows.get((node, t), [])) for t in self.followed_from(node))

    def neighbors(self, node: Node, edge_type: EdgeType) -> list[Node]:
        """The neighbours that a node pushes to, the same in a whole batch."""
        if (node, edge_type) not in self.fetched:
            row = self.rows.get((node, edge_type), [])
            seed = self.rng_seed ^ derive_seed("ppr", type_label(edge_type), self.settings.direction)
            taken = draw_positions(seed, node[1], len(row), self.settings.num_neighbors_per_hop, False)
            self.fetched[node, edge_type] = [row[position] for position in taken]
        return [neighbor for neighbor, _ in self.fetched[node, edge_type]]

    def walk(self, seed: Node, channel: set[EdgeType]) -> Walk:
        """Forward push in rounds, until nothing is left to push."""
        alpha, eps, limit = self.settings.alpha, self.settings.eps, self.settings.max_fetch_iterations
        walk = Walk({seed: alpha}, {seed: 0.0}, {})
        waiting, opened, num_rounds = [seed], [], 0
        while waiting:
            num_rounds += 1
            this_round, waiting = waiting, []
            for turn, node in enumerate(this_round):
                residual, walk.residual[node] = walk.residual[node], 0.0
                walk.score[node] += residual
                if limit is not None and num_rounds > limit and node not in opened:
                    continue
                found = [n for t in self.followed_from(node, channel) for n in self.neighbors(node, t)]
                if not found:
                    continue
                opened.append(node)
                share = (1.0 - alpha) * residual / len(found)
                for neighbor in found:
                    walk.residual[neighbor] = walk.residual.get(neighbor, 0.0) + share
                    walk.score.setdefault(neighbor, 0.0)
                    is_waiting = neighbor in this_round[turn + 1 :] or neighbor in waiting
                    if not is_waiting and walk.residual[neighbor] >= alpha * eps * self.degree(neighbor):
                        waiting.append(neighbor)
        walk.hop = self.hops(seed, channel, set(opened))
        return walk

    def hops(self, seed: Node, channel: set[EdgeType], opened: set[Node]) -> dict[Node, int]:
        """Length of the shortest path to each node along pushed edges."""
        hop, frontier = {seed: 0}, [seed]
        for node in frontier:
            for edge_type in self.followed_from(node, channel) if node in opened else []:
                for neighbor in self.neighbors(node, edge_type):
                    if neighbor not in hop:
                        hop[neighbor] = hop[node] + 1
                        frontier.append(neighbor)
        return hop

    def neighborhood(self, seed: Node) -> list[Row]:
        """The rows of one seed, best first; by node type where the limit is per type."""
        tops_up, limit = self.settings.enable_residual_topup, self.settings.max_ppr_nodes
        walks = [self.walk(seed, channel) for channel in self.channels]
        nodes = list(dict.fromkeys(node for walk in walks for node in walk.residual))
        scores = {n: [w.emitted(n, tops_up) if n in w.residual else -1.0 for w in walks] for n in nodes}
        place = {node: number for number, node in enumerate(nodes)}
        is_pushed = {n: any(w.score.get(n, 0.0) > 0 for w in walks) for n in nodes}
        rank = {n: (not is_pushed[n], -max(scores[n]), place[n]) for n in nodes}
        groups = [[t] for t in self.graph.nodes] if self.settings.limit_per_type else [list(self.graph.nodes)]
        chosen: list[Node] = []
        for group in groups:
            candidates = sorted((n for n in nodes if n[0] in group and max(scores[n]) > 0), key=rank.__getitem__)
            taken: list[Node] = []
            for channel, target in enumerate(self.targets()):
                own = [n for n in candidates if scores[n].index(max(scores[n])) == channel]
                taken += own[: min(target, limit - len(taken))]
            taken += [n for n in candidates if n not in taken][: limit - len(taken)]
            chosen += sorted(taken, key=lambda n: (-max(scores[n]), place[n]))
        return [Row(n, self.attributes(n, walks, scores[n])) for n in chosen]

    def attributes(self, node: Node, walks: Sequence[Walk], scores: Sequence[float]) -> list[float]:
        """Score, proximity, and of each channel score, proximity and presence."""
        found = [max(scores), 1 / (1 + min(w.hop[node] for w in walks if node in w.hop))]
        for walk, score in zip(walks, scores, strict=True):
            if self.settings.typed_channel_ratios is not None:
                found += [score, 1 / (1 + walk.hop[node]), 1.0] if node in walk.hop else [0.0, 0.0, 0.0]
        return found

    def targets(self) -> list[int]:
        """Target size of each channel: its share of the limit, rounded by largest remainder."""
        ratios = list((self.settings.typed_channel_ratios or {"all": 1.0}).values())
        shares = [round(ratio * self.settings.max_ppr_nodes, 9) for ratio in ratios]
        targets = [int(share) for share in shares]
        while sum(targets) < self.settings.max_ppr_nodes:
            left = [share - target for share, target in zip(shares, targets, strict=True)]
            targets[left.index(max(left))] += 1
        return targets
