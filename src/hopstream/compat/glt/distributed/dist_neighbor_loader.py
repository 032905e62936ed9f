"""GraphLearn-for-PyTorch's loader of sampled neighbourhoods of nodes."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch

from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.dist_loader import DistLoader, read_nodes
from hopstream.compat.glt.distributed.options import AllDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import SamplingConfig, SamplingType
from hopstream.compat.glt.typing import InputNodes, NumNeighbors


class DistNeighborLoader(DistLoader):
    """Mini-batches around nodes, as PyG's ``Data`` or ``HeteroData`` with GLT's attributes.

    ``node`` has ids, seeds first. ``batch`` has the ids of the seeds. ``edge_index`` leads from neighbours to seeds.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of GLT, in its order
        self,
        data: DistDataset | None,
        num_neighbors: NumNeighbors,
        input_nodes: InputNodes | None = None,
        batch_size: int = 1,
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
            num_neighbors: Neighbours per hop, -1 for all: for all edge types, or by edge type; 0 along edge types that
                are missing.
            input_nodes: int64[n] ids of seeds; in a graph with types, a pair with the node type first. A text is a file
                of ids that ``torch.save`` wrote and this process can read. A ``Split`` is a split of the dataset. A
                list of these is concatenated. Clients whose ``worker_options`` have the same ``worker_key`` pass the
                same nodes and share them.
            batch_size: Seeds per batch.
            shuffle: Shuffle the seeds in every epoch.
            drop_last: Drop a last batch with fewer seeds.
            with_edge: Include ids of edges, ``edge``, and, with ``collect_features``, features of edges in batches.
            with_weight: Draw neighbours in proportion to weights.
            edge_dir: ``out`` follows edges from sources to destinations, ``in`` the other way.
            collect_features: Include features in batches.
            to_device: Device of the batches; None for the current GPU, or the CPU without a GPU.
            random_seed: Seed of order and draws; None for 0.
            worker_options: Where sampling runs; see ``DistLoader``.

        Raises:
            ValueError: A setting is refused; the message names it.
            RuntimeError: ``worker_options`` are remote, and ``init_client`` was not called.
        """
        config = SamplingConfig(
            SamplingType.NODE, num_neighbors, batch_size, shuffle, drop_last, with_edge, collect_features, False,
            with_weight, edge_dir, random_seed,
        )  # fmt: skip
        super().__init__(data, partial(read_nodes, input_nodes), config, to_device, worker_options)
