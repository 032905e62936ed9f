"""Base of GraphLearn-for-PyTorch's loaders: source of the graph, seeds, and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from hopstream.compat.glt.distributed import dist_client
from hopstream.compat.glt.distributed.dist_client import Session
from hopstream.compat.glt.distributed.dist_context import get_context
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.graph_facts import GLTFacts, to_torch
from hopstream.compat.glt.distributed.loading import Fanout, make_loader
from hopstream.compat.glt.distributed.options import (
    AllDistSamplingWorkerOptions,
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from hopstream.compat.glt.sampler import (
    NodeSamplerInput,
    RemoteNodePathSamplerInput,
    RemoteSamplerInput,
    SamplerInput,
    SamplingConfig,
)
from hopstream.compat.glt.typing import InputEdges, InputNodes, Split
from hopstream.errors import SettingsError
from hopstream.load.files import read_torch_file
from hopstream.load.setup import SubgraphLoader
from hopstream.schema import EdgeType
from hopstream.store.contract import Store
from hopstream.stream.client import RemoteGraph


class BatchLoader:
    """Iterator over batches of a Hopstream loader; each iteration is one epoch."""

    to_device: torch.device
    _session: Session | None = None
    """Session with servers that sample; None if this process samples."""
    _is_blocking = False
    _is_open = True
    _loader: SubgraphLoader | None = None
    _batches: Iterator[Any] = iter(())

    def __iter__(self) -> Self:
        """Start the next epoch.

        Raises:
            RuntimeError: The loader was shut down, or this process has left the servers.
        """
        self._check_open()
        self._batches = iter(() if self._loader is None else self._loader)
        return self

    def __next__(self) -> Data | HeteroData:
        """Return the next batch, on ``to_device``.

        Raises:
            StopIteration: The epoch has ended.
            RuntimeError: This process has left the servers.
        """
        self._check_session()
        batch: Data | HeteroData = next(self._batches)
        return batch if self.to_device.type == "cpu" else batch.to(self.to_device, non_blocking=not self._is_blocking)

    def __len__(self) -> int:
        """Return the number of batches per epoch on this rank."""
        return 0 if self._loader is None else len(self._loader)

    def state_dict(self) -> Mapping[str, Any]:
        """Return the loader's position; ``load_state_dict`` of an equal loader continues from it."""
        self._check_open()
        return {} if self._loader is None else self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the position of another loader."""
        self._check_open()
        if self._loader is not None:
            self._loader.load_state_dict(dict(state))

    def shutdown(self) -> None:
        """Release the loader's channels on servers; a second call does nothing."""
        self._is_open = False
        loader, self._loader = self._loader, None
        self._batches = iter(())
        if loader is not None:
            loader.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("the loader was shut down; make another one")
        self._check_session()

    def _check_session(self) -> None:
        """Check that the session is open, because stopped servers would not answer."""
        if self._session is not None and not self._session.is_open:
            raise RuntimeError("this process has left the servers that sample; shut loaders down before it leaves")


class DistLoader(BatchLoader):
    """Loader of batches that this process samples from a dataset, or that servers sample for it."""

    def __init__(
        self,
        data: DistDataset | None,
        input_data: SamplerInput
        | RemoteSamplerInput
        | list[RemoteSamplerInput]
        | Callable[[LoaderSource], SamplerInput],
        sampling_config: SamplingConfig,
        to_device: torch.device | None = None,
        worker_options: AllDistSamplingWorkerOptions | None = None,
    ) -> None:
        """Check every setting against the graph.

        Args:
            data: The dataset to sample from; None if servers sample.
            input_data: The seeds: nodes or links; a file or a split of nodes; a list of these; or a function that reads
                nodes or links from the source of the graph.
            sampling_config: Settings of sampling. A missing seed is 0.
            to_device: Device of the batches; None for the current GPU, or the CPU without a GPU.
            worker_options: Where sampling runs: in this process on request (None or collocated), in threads of this
                process ahead (mp), or on servers (remote).

        Raises:
            ValueError: A setting is refused; the message names it.
            RuntimeError: ``worker_options`` are remote, and ``init_client`` was not called.
        """
        self.data, self.sampling_config = data, sampling_config
        self.worker_options = CollocatedDistSamplingWorkerOptions() if worker_options is None else worker_options
        self.sampling_type, self.num_neighbors = sampling_config.sampling_type, sampling_config.num_neighbors
        self.batch_size, self.edge_dir = sampling_config.batch_size, sampling_config.edge_dir
        self.shuffle, self.drop_last = sampling_config.shuffle, sampling_config.drop_last
        self.with_edge, self.collect_features = sampling_config.with_edge, sampling_config.collect_features
        self.to_device = _device(to_device)
        self._source = LoaderSource(data, self.worker_options)
        self._session = self._source.session
        if isinstance(input_data, RemoteSamplerInput | list):
            input_data = read_nodes(input_data, self._source)
        self.input_data = input_data(self._source) if callable(input_data) else input_data
        self._loader = self._make() if len(self.input_data) else None

    def _make(self) -> SubgraphLoader:
        config, source = self.sampling_config, self._source
        config = replace(config, num_neighbors=completed(source.facts, config.num_neighbors))
        return make_loader(
            source.graph, source.facts, config, self.input_data, edge_keys=config.with_edge,
            weight_attr=source.weight_attr() if config.with_weight else None,
            timeout_s=float(self.worker_options.rpc_timeout), **source.consuming(),
        )  # fmt: skip


class LoaderSource:
    """Source of a loader's graph: a dataset in this process, or the servers of its session."""

    def __init__(self, data: DistDataset | None, options: AllDistSamplingWorkerOptions) -> None:
        """Find the graph.

        Raises:
            ValueError: There is no dataset and ``worker_options`` are not remote, or there is no such server.
            RuntimeError: ``worker_options`` are remote, and ``init_client`` was not called.
        """
        self._options = options
        self.graph: Store | RemoteGraph
        self.session: Session | None = None
        if isinstance(options, RemoteDistSamplingWorkerOptions):
            self.session = session = dist_client.session()
            ranks = [options.server_rank] if isinstance(options.server_rank, int) else options.server_rank or []
            if any(rank >= session.num_servers for rank in ranks):
                raise SettingsError(f"server_rank is {ranks}; servers are numbered 0..{session.num_servers - 1}")
            self.graph = session.graph
        elif data is None:
            raise SettingsError(
                "data is None, and servers are not to sample; give a DistDataset, or "
                "worker_options=RemoteDistSamplingWorkerOptions(…)"
            )
        elif isinstance(options, CollocatedDistSamplingWorkerOptions | MpDistSamplingWorkerOptions):
            self._dataset, self.graph = data, data.graph()
        else:
            raise SettingsError(f"worker_options are {type(options).__name__}; give options of sampling workers")
        self.facts = GLTFacts(self.graph.schema if isinstance(self.graph, Store) else self.graph.fetch_schema())

    def weight_attr(self) -> str | None:
        """Return the edge feature that holds weights, or None."""
        return self.graph.fetch_weight_attr() if isinstance(self.graph, RemoteGraph) else self.graph.weight_attr

    def split(self, node_type: str | None, split: Split) -> Tensor:
        """Return int64[n], the nodes of a split: all of them on servers, or those of the dataset's parts."""
        name = self.facts.node_type(node_type)
        known = self.facts.schema.splits.get(name, ())
        wanted = split.name_among(known)
        if isinstance(self.graph, RemoteGraph):
            return to_torch(self.graph.fetch_split(name, wanted))
        return to_torch(self._dataset.own_split(name, wanted))

    def edges(self, edge_type: EdgeType | None) -> tuple[Tensor, Tensor]:
        """Return int64[n] sources and destinations of edges: all on servers, or of the dataset's parts."""
        session = self.session
        if session is None:
            rows, cols = self._dataset.own_edges(self.facts.edge_type(edge_type))
            return to_torch(rows), to_torch(cols)
        asked = [session.submit(s, "get_edge_index", edge_type, "coo") for s in range(session.num_servers)]
        found = [answer.result() for answer in asked]
        return torch.cat([rows for rows, _ in found]), torch.cat([cols for _, cols in found])

    def consuming(self) -> dict[str, Any]:
        """Return options of loaders for concurrency, and for this client's share of the batches."""
        options = self._options
        if isinstance(options, MpDistSamplingWorkerOptions):
            return {
                "num_threads": options.num_workers, "prefetch": options.channel_capacity,
                "pin_memory": options.pin_memory,
            }  # fmt: skip
        if isinstance(options, CollocatedDistSamplingWorkerOptions):
            return {"num_threads": 0}
        num_servers = dist_client.session().num_servers
        found: dict[str, Any] = {"num_threads": num_servers, "prefetch": options.prefetch_size * num_servers}
        context = get_context()
        if options.worker_key is not None and context is not None and context.num_clients() > 1:
            found |= {"rank": context.rank, "world_size": context.num_clients()}
        return found


def read_nodes(
    given: InputNodes | RemoteSamplerInput | list[RemoteSamplerInput] | None, source: LoaderSource
) -> NodeSamplerInput:
    """Read nodes from the user's argument, with their ids.

    Raises:
        SettingsError: The argument holds no nodes.
        FormatError: A file of ids is missing or damaged.
    """
    node_type: str | None = None
    nodes: Any = given
    if isinstance(given, tuple):
        if len(given) != 2 or not isinstance(given[0], str):
            raise SettingsError(f"input_nodes is a tuple of {len(given)}; give (node type, ids)")
        node_type, nodes = given[0], given[1]
    records: list[Any] = given if isinstance(given, list) else [given]
    if records and all(isinstance(one, RemoteSamplerInput) for one in records):
        types = list(dict.fromkeys(one.input_type for one in records))
        if len(types) > 1:
            raise SettingsError(f"input_nodes have the types {' and '.join(map(repr, types))}; give nodes of one type")
        node_type = types[0]
        nodes = [one.node_path if isinstance(one, RemoteNodePathSamplerInput) else one.split for one in records]
    if nodes is None:
        raise SettingsError("input_nodes is None; give ids, for example torch.arange(num_nodes)")
    is_several = isinstance(nodes, list) and bool(nodes) and isinstance(nodes[0], str | Split | Tensor)
    several = nodes if is_several else [nodes]
    if all(isinstance(one, str | Split) for one in several):
        several = list(dict.fromkeys(several))  # a list has one item per server; equal items count once
    return NodeSamplerInput(torch.cat([_ids(one, node_type, source) for one in several]), node_type)


def _ids(given: Any, node_type: str | None, source: LoaderSource) -> Tensor:
    if isinstance(given, Split):
        return source.split(node_type, given)
    return NodeSamplerInput(read_torch_file(given, tensors_only=True) if isinstance(given, str) else given).node


def read_edges(given: InputEdges | None, source: LoaderSource) -> tuple[EdgeType | None, Tensor, Tensor]:
    """Read links from the user's argument: their type, int64[n] ids of sources and of destinations."""
    edge_type: Any = None
    ends: Any = given
    if isinstance(given, tuple) and given and isinstance(given[0], str):
        edge_type, ends = given, None
    elif isinstance(given, tuple | list) and given and isinstance(given[0], tuple):
        edge_type, ends = given
    if ends is None:
        return edge_type, *source.edges(edge_type)
    if len(ends) != 2:
        raise SettingsError(f"edge_label_index has {len(ends)} rows; give int64[2, n]: sources and destinations")
    return edge_type, ends[0], ends[1]


def completed(facts: GLTFacts, num_neighbors: Fanout) -> Fanout:
    """Return neighbours per hop: 0 along edge types that are missing, and one hop of 0 for None."""
    if num_neighbors is None:
        return [0]
    if not isinstance(num_neighbors, Mapping):
        return num_neighbors
    given = {facts.edge_type(edge_type): list(counts) for edge_type, counts in num_neighbors.items()}
    num_hops = max(map(len, given.values()), default=1)
    return {edge_type: given.get(edge_type, [0] * num_hops) for edge_type in facts.message_types}


def _device(given: torch.device | str | int | None) -> torch.device:
    if given is not None:
        return torch.device(given)
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
