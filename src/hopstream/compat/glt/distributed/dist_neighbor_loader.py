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

    ``node`` are ids, seeds first, and ``batch`` those of the seeds; ``edge_index`` leads from neighbours to seeds.
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
            data: The dataset to sample from; None where servers sample.
            num_neighbors: Neighbours per hop, -1 for all: for all edge types, or per edge type; none along those that
                are not named.
            input_nodes: int64[n] ids of seeds, with their type in front where the graph has types. A text is a file of
                ids that ``torch.save`` wrote and this process can read; a ``Split`` is that of the dataset; a list of
                these is joined. Clients whose ``worker_options`` have one ``worker_key`` give the same and share it.
            batch_size: Seeds per batch.
            shuffle: Seeds come in another order in every epoch.
            drop_last: A last batch with fewer seeds is left out.
            with_edge: Batches have ids of edges, ``edge``, and, with ``collect_features``, features of edges.
            with_weight: Neighbours are drawn in proportion to weights.
            edge_dir: ``out`` follows edges from sources to destinations, ``in`` the other way.
            collect_features: Batches have features.
            to_device: Where batches are put; None for the current GPU, or the CPU where there is none.
            random_seed: What order and draws follow from; None for 0.
            worker_options: Who samples; see ``DistLoader``.

        Raises:
            ValueError: A setting that cannot be met; the message says which.
            RuntimeError: Servers are to sample, and ``init_client`` was not called.
        """
        config = SamplingConfig(
            SamplingType.NODE, num_neighbors, batch_size, shuffle, drop_last, with_edge, collect_features, False,
            with_weight, edge_dir, random_seed,
        )  # fmt: skip
        super().__init__(data, partial(read_nodes, input_nodes), config, to_device, worker_options)
