"""GraphLearn-for-PyTorch's loader of induced subgraphs of nodes and their neighbourhoods."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch

from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.dist_loader import DistLoader, read_nodes
from hopstream.compat.glt.distributed.options import AllDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import SamplingConfig, SamplingType
from hopstream.compat.glt.typing import InputNodes, NumNeighbors


class DistSubGraphLoader(DistLoader):
    """Mini-batches of all edges between seeds and their sampled neighbours.

    Attributes are those of ``DistNeighborLoader``, without ``num_sampled_edges``. ``mapping`` int64[batch_size] has the
    positions of the seeds in ``node``, where they come first.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of GLT, in its order
        self,
        data: DistDataset | None,
        input_nodes: InputNodes,
        num_neighbors: NumNeighbors | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: Literal["in", "out"] = "out",
        collect_features: bool = False,
        to_device: torch.device | None = None,
        worker_options: AllDistSamplingWorkerOptions | None = None,
        *,
        random_seed: int | None = None,
    ) -> None:
        """Check every setting against the graph; arguments are those of ``DistNeighborLoader``.

        Args:
            data: The dataset to sample from; None if servers sample.
            input_nodes: Seeds.
            num_neighbors: Neighbours per hop, -1 for all; None for only the seeds.
            batch_size: Seeds per batch.
            shuffle: Shuffle the seeds in every epoch.
            drop_last: Drop a last batch with fewer seeds.
            with_edge: Include ids of edges in batches.
            with_weight: Draw neighbours in proportion to weights.
            edge_dir: The direction in which edges are followed.
            collect_features: Include features in batches.
            to_device: Device of the batches.
            worker_options: Where sampling runs.
            random_seed: Seed of order and draws; None for 0.

        Raises:
            ValueError: A setting is refused; the message names it.
            RuntimeError: ``worker_options`` are remote, and ``init_client`` was not called.
        """
        config = SamplingConfig(
            SamplingType.SUBGRAPH, num_neighbors, batch_size, shuffle, drop_last, with_edge, collect_features, False,
            with_weight, edge_dir, random_seed,
        )  # fmt: skip
        super().__init__(data, partial(read_nodes, input_nodes), config, to_device, worker_options)
