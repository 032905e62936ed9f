"""Which nodes of other parts lie within so many hops of a part, and which are likely to be sampled?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.kernels.halo import clear_range, count_marks, list_marks, spread_chances
from hopstream.partition.book import ends_of
from hopstream.partition.halo.settings import HaloSettings
from hopstream.partition.halo.sources import CHUNK_ROWS, Parts, chunks_of

Chances = NDArray[np.float64]


def nodes_within(parts: Parts, part: int, hops: int) -> dict[str, IntArray]:
    """Node type to int64[n], ascending: ids of other parts at a distance of 1 to ``hops`` from what a part owns.

    Takes two bits per node of the graph, beside what it finds.

    Raises:
        FormatError: A part is damaged.
    """
    book, schema = parts.book, parts.manifest.schema
    found = {t: _bitmap(book.num_ids(t)) for t in schema.nodes}
    frontier = {t: np.arange(*_range(parts, t, part)) for t in schema.nodes}
    for _ in range(hops):
        reached = {t: _bitmap(book.num_ids(t)) for t in schema.nodes}
        for owner in book.edge_offsets:
            near, far = ends_of(*owner)
            for ids in chunks_of(frontier[near]):
                parts.mark(owner, ids, reached[far])
        for node_type, marks in reached.items():
            clear_range(marks, *_range(parts, node_type, part))
            marks &= ~found[node_type]
            found[node_type] |= marks
            frontier[node_type] = _listed(marks)
    return {t: _listed(marks) for t, marks in found.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Inclusion:
    """How likely nodes are to be in a batch of seeds that a part owns.

    Attributes:
        sampled: Node type to float64[num_nodes], the chance that a node is in a batch.
        expanded: Node type to float64[num_nodes], how often its neighbours are asked for in a batch, on average.
    """

    sampled: Mapping[str, Chances]
    expanded: Mapping[str, Chances]


def inclusion_of(parts: Parts, part: int, settings: HaloSettings) -> Inclusion:
    """The vertex inclusion probabilities of a part.

    Takes four numbers of 64 bits per node of the graph.

    Source: Kaler et al., "Communication-Efficient Graph Neural Networks with Probabilistic Neighborhood Expansion
    Analysis and Caching", MLSys 2023, section 3; here a node may have several edge types, each with the fan-out.

    Raises:
        FormatError: A part is damaged.
    """
    book = parts.book
    chances = _seed_chances(parts, part, settings.batch_size)
    missed = {t: 1 - chance for t, chance in chances.items()}
    expanded = {t: np.zeros(book.num_ids(t)) for t in chances}
    for fanout in settings.fanouts:
        for node_type, chance in chances.items():
            expanded[node_type] += chance
        chances = _spread(parts, chances, fanout)
        for node_type, chance in chances.items():
            missed[node_type] *= 1 - chance
    for of_type in missed.values():
        np.subtract(1, of_type, out=of_type)
    return Inclusion(sampled=missed, expanded=expanded)


def _spread(parts: Parts, chances: Mapping[str, Chances], fanout: int) -> dict[str, Chances]:
    """The chance of each node to be drawn by nodes that are expanded with these chances."""
    misses = {t: np.ones(len(chance)) for t, chance in chances.items()}
    for owner in parts.book.edge_offsets:
        near, far = ends_of(*owner)
        offsets = parts.book.offsets(near)
        for part, edges in enumerate(parts.edges(owner)):
            own = chances[near][offsets[part] : offsets[part + 1]]
            wrong = spread_chances(edges.indptr, edges.indices, own, fanout, misses[far])
            if wrong:
                parts.refuse(owner, int(offsets[part]) - 1 - wrong)
    for of_type in misses.values():
        np.subtract(1, of_type, out=of_type)
    return misses


def _seed_chances(parts: Parts, part: int, batch_size: int) -> dict[str, Chances]:
    """Seeds are the nodes of ``train`` splits that the part owns, or all that it owns where there is no such split."""
    book, splits = parts.book, parts.manifest.schema.splits
    is_split = any("train" in names for names in splits.values())
    chances = {t: np.zeros(book.num_ids(t)) for t in book.node_offsets}
    for node_type, of_type in chances.items():
        first, stop = _range(parts, node_type, part)
        if not is_split and stop > first:
            of_type[first:stop] = min(1.0, batch_size / (stop - first))
        if "train" not in splits.get(node_type, ()):
            continue
        own = [ids[(ids >= first) & (ids < stop)] for ids in _train_ids(parts, node_type)]
        num_seeds = sum(map(len, own))
        for ids in own:
            of_type[ids] = min(1.0, batch_size / max(1, num_seeds))
    return chances


def _train_ids(parts: Parts, node_type: str) -> list[IntArray]:
    """Ids of the training nodes, those of each slice of keys."""
    starts = parts.book.key_offsets(node_type)
    return [
        arrays.ids_of_keys[node_type][arrays.splits[node_type]["train"] - start]
        for arrays, start in zip(parts.arrays, starts, strict=False)
    ]


def hottest(
    parts: Parts, part: int, sampled: Mapping[str, Chances], features: Mapping[str, tuple[str, ...]], budget: int
) -> dict[str, IntArray]:
    """Node type to int64[n], ascending: the nodes of other parts that are likeliest sampled, in VIP order, by bytes.

    Nodes are taken in the order of their chance, equal ones by type and id, until the next one does not fit.
    """
    types, all_ids, all_chances, all_bytes = [], [], [], []
    for number, node_type in enumerate(features):
        chance = sampled[node_type].copy()
        chance[slice(*_range(parts, node_type, part))] = 0
        ids = np.flatnonzero(chance > 0)
        types.append(np.full(len(ids), number, np.int16))
        all_ids.append(ids)
        all_chances.append(chance[ids])
        all_bytes.append(row_bytes(parts, node_type, features[node_type], ids))
    if not types:
        return {}
    of_type, ids = np.concatenate(types), np.concatenate(all_ids)
    order = np.argsort(-np.concatenate(all_chances), kind="stable")
    num_fitting = int(np.searchsorted(np.cumsum(np.concatenate(all_bytes)[order]), budget, side="right"))
    taken = order[:num_fitting]
    return {t: np.sort(ids[taken][of_type[taken] == number]) for number, t in enumerate(features)}


def row_bytes(parts: Parts, node_type: str, names: tuple[str, ...], ids: IntArray) -> IntArray:
    """int64[n], what a copy of each node's features takes: with its id and key, and where ragged rows start."""
    schema = parts.manifest.schema.nodes[node_type]
    total = np.full(len(ids), 16, np.int64)
    for name in names:
        ragged = parts.ragged(node_type, name)
        if ragged is None:
            total += schema[name].row_bytes
            continue
        ranges, values = ragged
        for start in range(0, len(ids), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            total[chunk] += 8 + ranges.of(ids[chunk], values)[2] * values.item_bytes
    return total


def _bitmap(num_nodes: int) -> NDArray[np.uint64]:
    return np.zeros(-(-num_nodes // 64), np.uint64)


def _listed(marks: NDArray[np.uint64]) -> IntArray:
    ids = np.empty(count_marks(marks), np.int64)
    list_marks(marks, ids)
    return ids


def _range(parts: Parts, node_type: str, part: int) -> tuple[int, int]:
    offsets = parts.book.offsets(node_type)
    return int(offsets[part]), int(offsets[part + 1])
