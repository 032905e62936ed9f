"""Loader of anchors with their labels for link prediction, in graph-store mode."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch.nn.functional import pad

from hopstream.compat.gigl.distributed.base_dist_loader import BaseDistLoader, NumNeighbors, check_servers
from hopstream.compat.gigl.distributed.graph_store.remote_dist_dataset import RemoteDistDataset
from hopstream.compat.gigl.distributed.sampler import ABLPNodeSamplerInput, make_ablp_loader
from hopstream.compat.gigl.distributed.sampler_options import SamplerOptions
from hopstream.compat.gigl.env.distributed import DistributedContext
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType
from hopstream.compat.gigl.types.graph import (
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from hopstream.compat.gigl.utils.data_splitters import PADDING_NODE
from hopstream.compat.gigl.utils.sampling import ABLPInputNodes
from hopstream.errors import SettingsError
from hopstream.schema import type_label


class DistABLPLoader(BaseDistLoader):
    """Mini-batches around anchors and their label nodes, as PyG data with GiGL's attributes.

    A batch is a ``Data`` or ``HeteroData``. Anchors come first in ``node``, and ``batch`` and ``batch_size`` count only
    them. Label nodes are seeds too. The batch has ``y_positive``, and ``y_negative`` if negatives are given: int64[2,
    n], positions of anchors over positions of their labels among the nodes of their types, grouped by anchor; or a dict
    of each anchor's position to int64[k]. With several supervision edge types they are dicts by edge type, from anchors
    to label nodes.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of GiGL, in its order
        self,
        dataset: RemoteDistDataset,
        num_neighbors: NumNeighbors,
        input_nodes: Mapping[int, ABLPInputNodes] | None = None,
        supervision_edge_type: EdgeType | list[EdgeType] | None = None,
        num_workers: int = 1,
        batch_size: int = 1,
        pin_memory_device: torch.device | None = None,
        worker_concurrency: int = 4,
        prefetch_size: int | None = None,
        channel_size: str = "4GB",
        process_start_gap_seconds: float = 60.0,
        num_cpu_threads: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_weight: bool = False,
        sampler_options: SamplerOptions | None = None,
        context: DistributedContext | None = None,
        local_process_rank: int | None = None,
        local_process_world_size: int | None = None,
        non_blocking_transfers: bool = True,
        use_label_edge_index_output: bool = False,
        *,
        rng_seed: int = 0,
        exclude_labels: bool = True,
        reverse_types: Mapping[EdgeType, EdgeType] | None = None,
    ) -> None:
        """Check every setting against the graph; servers sample when the loader is iterated.

        Args:
            dataset: The graph.
            num_neighbors: Neighbours per hop, for all edge types or by edge type.
            input_nodes: Server to its anchors with labels, from ``RemoteDistDataset.fetch_ablp_input``. Labels may have
                several supervision edge types, which must start at the anchors' type and be the same on all servers.
            supervision_edge_type: None; ``input_nodes`` names it.
            num_workers: ``num_workers`` times ``worker_concurrency`` limits ``prefetch_size``; servers sample with
                their own threads.
            batch_size: Anchors per batch.
            pin_memory_device: Device of the batches; None for this process's GPU, or the CPU.
            worker_concurrency: See ``num_workers``.
            prefetch_size: Batches fetched ahead per server; None for 4.
            channel_size: No effect; servers limit waiting batches.
            process_start_gap_seconds: No effect.
            num_cpu_threads: No effect.
            shuffle: Shuffle the anchors in every epoch.
            drop_last: Drop a last batch with fewer anchors.
            with_weight: Draw neighbours in proportion to weights.
            sampler_options: Hop by hop, or by personalised PageRank around anchors and label nodes.
            context: No effect.
            local_process_rank: No effect.
            local_process_world_size: No effect.
            non_blocking_transfers: Copy to a GPU asynchronously.
            use_label_edge_index_output: Return labels as int64[2, n] instead of dicts by anchor.
            rng_seed: Seed of order and draws. Equal seeds give equal batches on any number of servers.
            exclude_labels: Do not follow edges between a batch's anchors and their labels, nor their reverses. With
                False, as with GiGL, a model sees its labels if they are edges of the graph.
            reverse_types: Edge type to its reverse. Reverses with the name ``rev_…`` are found without it. Other
                reverses leak the labels to the model unless they are given here.

        Raises:
            ValueError: A setting is refused; the message names it.
            NotImplementedError: Weights with PageRank.
            RuntimeError: ``init_compute_process`` was not called.

        Warns:
            FutureWarning: Labels are requested as dicts by anchor.
        """
        if not use_label_edge_index_output:
            warnings.warn(
                "labels as a dict of each anchor to its labels are deprecated; give use_label_edge_index_output=True "
                "for int64[2, n]",
                FutureWarning,
                stacklevel=2,
            )
        super().__init__(
            "dist_ablp_loader", dataset, num_neighbors=num_neighbors, sampler_options=sampler_options,
            batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, with_weight=with_weight,
            num_workers=num_workers, worker_concurrency=worker_concurrency, channel_size=channel_size,
            prefetch_size=prefetch_size, pin_memory_device=pin_memory_device,
            non_blocking_transfers=non_blocking_transfers, rng_seed=rng_seed,
        )  # fmt: skip
        if supervision_edge_type is not None:
            raise SettingsError(
                f"supervision_edge_type is {supervision_edge_type!r}; in graph-store mode leave it out: the labels of "
                "input_nodes name it"
            )
        check_servers(cast(Any, input_nodes), "a dict of server to ABLPInputNodes")
        given = list(cast(Mapping[int, ABLPInputNodes], input_nodes).values())
        self._open(
            make_ablp_loader, _joined(given, _supervision_of(given)), as_index=use_label_edge_index_output,
            exclude_labels=exclude_labels, reverse_types=reverse_types,
        )  # fmt: skip


def _supervision_of(given: Sequence[ABLPInputNodes]) -> tuple[EdgeType, ...]:
    """Return the supervision edge types of all servers.

    Raises:
        SettingsError: An input is no anchors with labels, or servers differ in types, or a type starts elsewhere.
    """
    for nodes in given:
        if not isinstance(nodes, ABLPInputNodes):
            raise SettingsError(
                f"input_nodes has a {type(nodes).__name__}; give ABLPInputNodes, as RemoteDistDataset.fetch_ablp_input "
                "fetches them"
            )
    if not given or not given[0].labels:
        raise SettingsError("input_nodes has no labels; give those that RemoteDistDataset.fetch_ablp_input fetches")
    first, supervision = given[0], tuple(EdgeType(*edge_type) for edge_type in given[0].labels)
    for nodes in given:
        if set(nodes.labels) != set(supervision) or nodes.anchor_node_type != first.anchor_node_type:
            raise SettingsError(
                f"servers have different inputs: anchors of {first.anchor_node_type!r} with labels of "
                f"{_names(supervision)}, and anchors of {nodes.anchor_node_type!r} with labels of "
                f"{_names(nodes.labels)}; give the same types for all"
            )
    for edge_type in supervision:
        if edge_type[0] != first.anchor_node_type:
            raise SettingsError(
                f"labels are of {type_label(edge_type)} and anchors of {first.anchor_node_type!r}; supervision edge "
                "types lead from anchors to label nodes"
            )
    return supervision


def _joined(given: Sequence[ABLPInputNodes], supervision: Sequence[EdgeType]) -> ABLPNodeSamplerInput:
    """Merge the anchors of all servers, sorted by id, with their labels.

    The order makes batches independent of the number of servers.

    Raises:
        SchemaError: Anchors are no list of ids, or labels do not have one row per anchor.
    """
    parts: list[ABLPNodeSamplerInput] = []
    for nodes in given:
        positives = {message_passing_to_positive_label(t): nodes.labels[t][0] for t in supervision}
        negatives = {
            message_passing_to_negative_label(t): torch.empty((len(nodes.anchor_nodes), 0), dtype=torch.int64)
            if (rows := nodes.labels[t][1]) is None
            else rows
            for t in supervision
            if any(other.labels[t][1] is not None for other in given)
        }
        parts.append(ABLPNodeSamplerInput(nodes.anchor_nodes, nodes.anchor_node_type, positives, negatives))
    anchors = torch.cat([part.node for part in parts])
    joined = ABLPNodeSamplerInput(
        anchors, given[0].anchor_node_type,
        _stacked([part.positive_label_by_edge_types for part in parts]),
        _stacked([part.negative_label_by_edge_types for part in parts]),
    )  # fmt: skip
    return joined[torch.argsort(anchors, stable=True)]


def _stacked(parts: Sequence[Mapping[EdgeType, torch.Tensor]]) -> dict[EdgeType, torch.Tensor]:
    """Concatenate int64[n, m] of all parts for every edge type; pad rows to the same length."""
    found: dict[EdgeType, torch.Tensor] = {}
    for edge_type in parts[0]:
        rows = [part[edge_type] for part in parts]
        width = max(some.shape[1] for some in rows)
        padded = [pad(some, (0, width - some.shape[1]), value=int(PADDING_NODE)) for some in rows]
        found[edge_type] = torch.cat(padded)
    return found


def _names(edge_types: Any) -> str:
    return ", ".join(map(type_label, edge_types)) or "no edge type"
