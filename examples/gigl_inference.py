"""Embeds all nodes by a script for GiGL's graph-store mode, and writes an array of embeddings.

    python examples/gigl_inference.py --out embeddings.npy

Two ranks embed Cora's papers batch by batch, with all neighbours of two hops; two storage machines sample the batches.
Row ``i`` of the file is the embedding of node ``i``. The script then compares the file with the model's result for the
whole graph at once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.distributed as dist
from gigl_cluster import compute_process, end_loaders, run_cluster
from gigl_nodes import ALL_NEIGHBORS, CORA
from sage import Sage, Settings, stage_line

import hopstream
from hopstream.compat.gigl.distributed.distributed_neighborloader import DistNeighborLoader
from hopstream.compat.gigl.distributed.graph_store import GraphStoreInfo

WIDTH, BATCH_SIZE = 16, 256
TOLERANCE = 1e-5
"""Float32 sums differ in their order."""


def main() -> int:
    """Embed all papers; return 0 if every embedding was written and is correct."""
    parser = argparse.ArgumentParser(description="Embed Cora's papers in graph-store mode, on two ranks.")
    parser.add_argument("--out", type=Path, help="where float32[num_nodes, width] is written; nowhere by default")
    arguments = parser.parse_args()
    graph = hopstream.read_graph(CORA)
    (papers,), (cites,) = graph.nodes.values(), graph.edges.values()
    with TemporaryDirectory(prefix="hopstream-cora-") as folder:
        out = arguments.out or Path(folder) / "embeddings.npy"
        np.save(out, np.full((papers.num_nodes, WIDTH), np.nan, np.float32))
        if status := run_cluster(graph, embed_process, out):
            return status
        found = np.load(out)
    x = torch.from_numpy(np.asarray(papers.features["x"]))
    with torch.no_grad():
        wanted = model_for(x.shape[1])(x, torch.from_numpy(np.stack([cites.src_keys, cites.dst_keys])))
    difference = float(np.abs(found - wanted.numpy()).max())
    print(
        stage_line("result", f"{len(found):,} embeddings by id, at most {difference:.0e} from those of the whole graph")
    )
    return 0 if difference <= TOLERANCE else 1  # rows that no rank wrote are NaN


def embed_process(local_rank: int, cluster_info: GraphStoreInfo, out: Path) -> int:
    """Embed one rank's papers."""
    with compute_process(local_rank, cluster_info) as dataset:
        loader = DistNeighborLoader(
            dataset,
            num_neighbors=ALL_NEIGHBORS,
            input_nodes=dataset.fetch_node_ids(dist.get_rank(), dist.get_world_size()),
            batch_size=BATCH_SIZE,
        )
        model = model_for(dataset.fetch_node_feature_info().dim).to(loader.to_device)
        embeddings = np.lib.format.open_memmap(out, "r+")  # ranks write different rows
        with torch.no_grad():
            for batch in loader:
                rows = model(batch.x, batch.edge_index)[: batch.batch_size]
                embeddings[batch.batch.cpu()] = rows.cpu()
        embeddings.flush()
        end_loaders([loader])
    return 0


def model_for(num_features: int) -> Sage:
    """Make the model, untrained, with equal weights on all ranks."""
    torch.manual_seed(0)
    return Sage(num_features, Settings(num_classes=WIDTH)).eval()


if __name__ == "__main__":
    sys.exit(main())
