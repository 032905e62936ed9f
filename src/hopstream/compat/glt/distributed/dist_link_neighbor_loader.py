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

    With binary negatives, or none, ``edge_label_index`` int64[2, n] has the positions of destinations and sources in
    ``node``, in this order, because ``edge_index`` leads from neighbours to seeds. With ``edge_dir="in"`` in a graph
    with types, sources come first. ``edge_label`` has the labels. With triplets there are ``src_index``,
    ``dst_pos_index`` and ``dst_neg_index``. In a graph with types, the first two belong to the (reversed) type of the
    links, and the others to the types of their ends. Only loaders of nodes have ``batch``, ``batch_size`` and ``y``.
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
            data: The dataset to sample from; None if servers sample.
            num_neighbors: Neighbours per hop, -1 for all: for all edge types, or by edge type.
            batch_size: Links per batch, without negatives.
            edge_label_index: int64[2, n] ids of sources and destinations; in a graph with types, a pair with the edge
                type first. None, or only the edge type, means the edges of the dataset's parts, or all edges if servers
                sample.
            edge_label: Labels, one per link. With binary negatives, classes that start at 0 are raised by one.
            neg_sampling: A ``NegativeSampling``, ``"binary"``, ``"triplet"``, or None for no negatives.
            shuffle: Shuffle the links in every epoch.
            drop_last: Drop a last batch with fewer links.
            with_edge: Include ids of edges in batches.
            with_weight: Draw neighbours in proportion to weights.
            edge_dir: The direction in which edges are followed.
            collect_features: Include features in batches.
            to_device: Device of the batches.
            random_seed: Seed of order and draws; None for 0.
            worker_options: Where sampling runs; see ``DistLoader``.

        Raises:
            ValueError: A setting is refused; the message names it.
            RuntimeError: ``worker_options`` are remote, and ``init_client`` was not called.
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
