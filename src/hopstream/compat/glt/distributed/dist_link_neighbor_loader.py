"""GraphLearn-for-PyTorch's loader of sampled neighbourhoods of links."""

from __future__ import annotations

from typing import Any, Literal

import torch

from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.dist_loader import DistLoader, LoaderSource, read_edges
from hopstream.compat.glt.distributed.options import AllDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import EdgeSamplerInput, NegativeSampling, SamplingConfig, SamplingType
from hopstream.compat.glt.typing import InputEdges, NumNeighbors
from hopstream.errors import SettingsError
from hopstream.sample.negatives import read_negative_sampling


class DistLinkNeighborLoader(DistLoader):
    """Mini-batches around links and their negatives, with GLT's attributes.

    With binary negatives, or none, ``edge_label_index`` int64[2, n] has the places of destinations and sources among
    ``node``, in this order, as ``edge_index`` leads from what was found to where it was sought; with ``edge_dir="in"``
    in a graph with types sources come first. ``edge_label`` are the labels. With triplets there are ``src_index``,
    ``dst_pos_index`` and ``dst_neg_index``. In a graph with types, the first two are of the (turned) type of the links,
    and the others of the types of their ends. ``batch``, ``batch_size`` and ``y`` are those of loaders of nodes only.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of GLT, in its order
        self,
        data: DistDataset | None,
        num_neighbors: NumNeighbors,
        batch_size: int = 1,
        edge_label_index: InputEdges | None = None,
        edge_label: torch.Tensor | None = None,
        neg_sampling: NegativeSampling | Any = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: Literal["in", "out"] = "out",
        collect_features: bool = False,
        to_device: torch.device | None = None,
        random_seed: int | None = None,
        worker_options: AllDistSamplingWorkerOptions | None = None,
    ) -> None:
        """Check every setting against the graph.

        Args:
            data: The dataset to sample from; None where servers sample.
            num_neighbors: Neighbours per hop, -1 for all: for all edge types, or per edge type.
            batch_size: Links per batch, negatives not counted.
            edge_label_index: int64[2, n] ids of sources and destinations, with their edge type in front where the graph
                has types. None, or the edge type alone: the edges that the dataset's parts own, or all edges where
                servers sample.
            edge_label: Labels, one per link. With binary negatives those from 0 are raised by one.
            neg_sampling: A ``NegativeSampling``, ``"binary"``, ``"triplet"``, or None for no negatives.
            shuffle: Links come in another order in every epoch.
            drop_last: A last batch with fewer links is left out.
            with_edge: Batches have ids of edges.
            with_weight: Neighbours are drawn in proportion to weights.
            edge_dir: The direction in which edges are followed.
            collect_features: Batches have features.
            to_device: Where batches are put.
            random_seed: What order and draws follow from; None for 0.
            worker_options: Who samples; see ``DistLoader``.

        Raises:
            ValueError: A setting that cannot be met; the message says which.
            RuntimeError: Servers are to sample, and ``init_client`` was not called.
        """
        self.neg_sampling = read_negative_sampling(neg_sampling)
        if self.neg_sampling is not None and self.neg_sampling.mode == "triplet" and edge_label is not None:
            raise SettingsError("triplets have no labels; leave edge_label out, or use binary negative sampling")
        config = SamplingConfig(
            SamplingType.LINK, num_neighbors, batch_size, shuffle, drop_last, with_edge, collect_features,
            self.neg_sampling is not None, with_weight, edge_dir, random_seed,
        )  # fmt: skip

        def read(source: LoaderSource) -> EdgeSamplerInput:
            edge_type, src, dst = read_edges(edge_label_index, source)
            return EdgeSamplerInput(src, dst, edge_label, edge_type, self.neg_sampling)

        super().__init__(data, read, config, to_device, worker_options)
