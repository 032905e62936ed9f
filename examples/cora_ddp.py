"""Trains with DistributedDataParallel on parts that servers hold.

    hopstream up parts/cora --cluster-file cluster.json
    torchrun --nproc-per-node 2 examples/cora_ddp.py cluster.json

Every rank sends requests to every server. ``rank`` and ``world_size`` alone determine the seeds of a rank.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from sage import Settings, train_repeatedly

import hopstream


def main() -> int:
    """Train on the ranks that torchrun started; return 0 if the accuracy is high enough."""
    parser = argparse.ArgumentParser(description="Train GraphSAGE on Cora with DDP; run by torchrun.")
    parser.add_argument("source", help="a cluster.json, a list of servers, or a folder of parts")
    parser.add_argument("--runs", type=int, default=3, help="trainings, each with its own rng seed")
    parser.add_argument("--epochs", type=int, default=Settings.num_epochs)
    parser.add_argument("--wanted", type=float, default=0.78, help="mean test accuracy below which the script fails")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        rank = dist.get_rank()
        settings = Settings(num_classes=7, num_epochs=arguments.epochs)
        # By default, parts with a folder on this machine are mapped; this example uses the servers instead. If parts
        # have replicas, each rank prefers another one.
        store_settings = hopstream.StoreSettings(prefer_local=False, first_replica=rank)
        with hopstream.open_store(arguments.source, store_settings) as store:
            is_as_wanted = train_repeatedly(
                store, settings, num_runs=arguments.runs, wanted=arguments.wanted,
                report=lambda line: print(line, flush=True) if rank == 0 else None,
            )  # fmt: skip
    finally:
        dist.destroy_process_group()
    return 0 if is_as_wanted else 1


if __name__ == "__main__":
    sys.exit(main())
