"""Draws one hop by itself, as PyG's ``sample_one_hop`` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch_geometric.sampler import SamplerOutput

from hopstream.arrays import IntArray, to_array
from hopstream.sample.sampling_settings import TemporalStrategy
from hopstream.schema import EdgeType, timed_edge_types
from hopstream.store.contract import KEY, FetchRequest, SampleRequest, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class OneHop:
    """One hop along one edge type.

    Attributes:
        store: The graph.
        edge_type: May be None where there is one.
        count: Neighbours per node; -1 means all.
        is_replacing: Draw with replacement.
        rng_seed: Of the draws.
        time_attr: The feature that holds times, or None.
        strategy: How neighbours are chosen in time.
        has_edge_keys: Whether edges have keys.
    """

    store: Store
    edge_type: EdgeType | None
    count: int
    is_replacing: bool
    rng_seed: int
    time_attr: str | None
    strategy: TemporalStrategy
    has_edge_keys: bool

    def run(self, srcs: torch.Tensor, times: torch.Tensor | None, trees: torch.Tensor | None) -> SamplerOutput:
        """Draw; see ``DistNeighborSampler.sample_one_hop``.

        Args:
            srcs: int64[n], keys of nodes of the edge type's destination.
            times: int64[n], the time of each, or None.
            trees: int64[n], the tree of each, or None.
        """
        store, edge_type = self.store, self.edge_type
        if edge_type is None and len(store.schema.edges) == 1:
            edge_type = next(iter(store.schema.edges))
        edge_type = store.schema.edge_type_of(edge_type)
        is_timed = self.time_attr is not None and edge_type in timed_edge_types(store.schema, self.time_attr, "in")
        reply = store.sample([
            SampleRequest(
                edge_type=edge_type, direction="in", ids=store.lookup(edge_type[2], to_array(srcs)), count=self.count,
                is_replacing=self.is_replacing, rng_seed=self.rng_seed, wants_edge_ids=True,
                strategy="last" if is_timed and self.strategy == "last" else "uniform",
                trees=None if trees is None else to_array(trees),
                times=None if times is None or not is_timed else to_array(times),
            )
        ])[0]  # fmt: skip
        wanted = [FetchRequest(owner=edge_type[0], names=(KEY,), ids=reply.neighbor_ids.astype(np.int64))]
        if self.has_edge_keys:
            wanted.append(FetchRequest(owner=(edge_type, "in"), names=(KEY,), ids=cast(IntArray, reply.edge_ids)))
        keys = [torch.from_numpy(rows[KEY]) for rows in store.fetch(wanted)]
        counts = torch.from_numpy(reply.counts.astype(np.int64))
        return SamplerOutput(
            node=keys[0],
            row=None,
            col=None,
            edge=keys[1] if self.has_edge_keys else None,
            batch=None if trees is None else trees.repeat_interleave(counts),
            metadata=(counts.tolist(),),
        )
