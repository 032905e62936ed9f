"""Storage server: answers requests for its parts of a dataset, and samples for compute processes.

Teardown has three phases. First every loader destroys its channels (``destroy_sampling_input``). Then every compute
process calls ``shutdown_compute_process``, and the first of them stops all servers. Last, every server, which waits in
``wait_and_shutdown_server``, leaves with the others. A crashed compute process delays no other process; servers that
still have its channels end with a RuntimeError.

Channels and backends have a lease, so that a crashed compute process does not hold memory until the end of a long
session. Compute processes send a heartbeat to server 0 every 2 s, and server 0 passes on the names of live clients. A
server gives up a channel if, for ``LEASE_S``, no request used it and the client that registered it was not live. So a
client that pauses between epochs keeps its channels. A server gives up a backend without channels in the same way, if
no client is live that requested it and has not registered a channel yet. A caller in the server's own process always
counts as live. A server checks leases in ``wait_and_shutdown_server``. Use of a channel that was given up raises a
RuntimeError.
"""

from __future__ import annotations

import itertools
import logging
import math
import reprlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch

from hopstream.checks import read_integer
from hopstream.compat.gigl.distributed.graph_store.messages import (
    FetchABLPInputRequest,
    FetchNodesRequest,
    InitSamplingBackendRequest,
    RegisterBackendRequest,
    outgoing,
)
from hopstream.compat.gigl.distributed.graph_store.sharding import ServerSlice
from hopstream.compat.gigl.distributed.graph_store.shared_dist_sampling_producer import (
    QueueChannel,
    SampleMessage,
    SharedDistSamplingBackend,
)
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType, NodeType
from hopstream.compat.gigl.types.graph import FeatureInfo, FeatureQuantizationMetadata
from hopstream.compat.gigl.utils.data_splitters import padded_labels
from hopstream.compat.glt.distributed.calls import CALLER, WAIT_S, WAIT_SHARE
from hopstream.compat.glt.distributed.dist_dataset import DistDataset, width_and_dtype
from hopstream.compat.glt.distributed.dist_server import METHODS as METHODS_OF_PARTS
from hopstream.compat.glt.distributed.dist_server import (
    SERVER_EXIT_STATUS_CHECK_INTERVAL as SERVER_EXIT_STATUS_CHECK_INTERVAL,
)
from hopstream.compat.glt.distributed.dist_server import DistServer as ServerOfParts
from hopstream.compat.glt.distributed.dist_server import get_server as get_server
from hopstream.compat.glt.distributed.dist_server import ids_of
from hopstream.compat.glt.distributed.dist_server import wait_and_shutdown_server as wait_and_shutdown_server
from hopstream.compat.glt.distributed.graph_facts import POSITIVE, to_torch
from hopstream.compat.glt.partition_books import GLTPartitionBook, PartitionBook, RangePartitionBook
from hopstream.compat.glt.sampler import (
    EdgeSamplerInput,
    NodeSamplerInput,
    RemoteNodeSplitSamplerInput,
    SamplerInput,
)
from hopstream.engine.settings import memory_bytes
from hopstream.errors import SettingsError, StoreTimeout
from hopstream.schema import EdgeType as Types
from hopstream.store.whole import keeps_edge_keys
from hopstream.stream.settings import SamplingLimits

logger = logging.getLogger(__name__)
T = TypeVar("T")
FETCH_SLOW_LOG_SECS = 1.0
"""Seconds after which a fetch is logged as slow."""
FETCH_S = 600.0
"""Deadline in seconds for one fetch of a batch."""
LEASE_S = SamplingLimits().lease_s
"""Seconds without use and without a live client after which a server gives up a channel."""
MAX_BACKENDS = 256
MAX_REMEMBERED = 1024
"""Number of given-up channels that a server remembers; it forgets the oldest first."""


@dataclass(slots=True, eq=False)
class ChannelState:
    """Channel of one input of one compute rank.

    Attributes:
        backend_id: The backend that samples for the channel.
        worker_key: The compute rank's name of the channel.
        channel: Queue of the channel's messages.
        clients: The client that registered the channel; None for a caller in this process.
        used_at: Time of the last use, or of the last check that found the client live.
    """

    backend_id: int
    worker_key: str
    channel: QueueChannel
    clients: set[str | None] = field(default_factory=set)
    used_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True, eq=False)
class SamplingBackendState:
    """State of a sampling backend.

    Attributes:
        backend_id: Number of the backend.
        backend_key: The loaders' name of the backend.
        runtime: The sampling backend.
        active_channels: Numbers of the backend's channels.
        lock: Held while a channel is registered or given up.
        clients: Clients that requested the backend and have not registered a channel; None for a caller in this
            process.
        used_at: Time of the last request for the backend, or of the last check that found one of these clients live.
    """

    backend_id: int
    backend_key: str
    runtime: SharedDistSamplingBackend
    active_channels: set[int] = field(default_factory=set)
    lock: Any = field(default_factory=threading.RLock)
    clients: set[str | None] = field(default_factory=set)
    used_at: float = field(default_factory=time.monotonic)


class DistServer(ServerOfParts):
    """Server of the parts of one process. Thread-safe."""

    def __init__(self, dataset: DistDataset, log_every_n: int = 50) -> None:
        """Serve ``dataset``.

        Args:
            dataset: The parts.
            log_every_n: Number of fetches of a channel between two log lines of their times.
        """
        super().__init__(dataset)
        self._log_every_n = log_every_n
        self._lock = threading.RLock()
        self._backends: dict[int, SamplingBackendState] = {}
        self._channels: dict[int, ChannelState] = {}
        self._num_fetches: dict[int, tuple[int, float]] = {}
        self._backend_ids, self._channel_ids, self._last_channel = itertools.count(1), itertools.count(1), 0
        self._given_up: deque[int] = deque(maxlen=MAX_REMEMBERED)

    # --- Life -----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End all channels and backends, and warn of those that were not destroyed."""
        with self._lock:
            left = sorted(self._channels), sorted(self._backends)
            backends = list(self._backends.values())
            self._channels.clear()
            self._backends.clear()
            self._num_fetches.clear()
        if any(left):
            logger.warning("channels %s and backends %s were left by loaders that were not shut down", *left)
        with ExitStack() as stack:  # ends every backend even if one fails
            for backend in backends:
                stack.callback(backend.runtime.shutdown)

    def give_up_abandoned(self, present: Collection[str]) -> None:
        """Give up the channels and backends with an expired lease.

        Args:
            present: Names of the live clients.
        """
        now = time.monotonic()
        there, used_before = {None, *present}, now - LEASE_S
        with self._lock:
            states: list[ChannelState | SamplingBackendState] = [*self._channels.values(), *self._backends.values()]
            for state in states:
                if not there.isdisjoint(state.clients):
                    state.used_at = now
            channels = [(number, one) for number, one in self._channels.items() if one.used_at < used_before]
            backends = [one for one in self._backends.values() if one.used_at < used_before]
            self._given_up.extend(number for number, _ in channels)
        with ExitStack() as stack:
            for number, channel in channels:
                logger.warning(
                    "channel %d (%s) is dropped: it was not used for %g s, and its client is gone", number,
                    channel.worker_key, LEASE_S,
                )  # fmt: skip
                stack.callback(self._destroy, number, used_before)
            for backend in backends:
                stack.callback(self._end_unused, backend, used_before)

    @property
    def left(self) -> list[int]:
        """Numbers of the registered channels."""
        with self._lock:
            return sorted(self._channels)

    # --- Facts and rows -------------------------------------------------------------------------------------------

    def get_node_types(self) -> list[NodeType] | None:
        """Return node types; None for a homogeneous dataset."""
        found = self.dataset.facts.node_types()
        return None if found is None else [NodeType(one) for one in found]

    def get_edge_types(self) -> list[EdgeType] | None:
        """Return edge types; None for a homogeneous dataset."""
        found = self.dataset.facts.edge_types()
        return None if found is None else [EdgeType._make(one) for one in found]

    def get_edge_dir(self) -> Literal["in", "out"]:
        """Return the direction in which edges are followed."""
        return self.dataset.edge_dir

    def get_edge_weights_registered(self) -> bool:
        """Return whether edges can be drawn by weights."""
        return self.dataset.store.weight_attr is not None

    def get_node_partition_book(self, node_type: NodeType | None) -> PartitionBook | None:
        """Return the partition of every node of a type.

        Raises:
            ValueError: A type is given for a homogeneous dataset, or is missing for another one.
        """
        name = self.dataset.facts.node_type(node_type)
        return self._book(self.dataset.partition_book(name))

    def get_edge_partition_book(self, edge_type: EdgeType | None) -> PartitionBook | None:
        """Return the partition of every edge of a type by its key; None if the dataset has no edge keys.

        Raises:
            ValueError: A type is given for a homogeneous dataset, or is missing for another one, or no part has an
                edge.
        """
        name, direction = self.dataset.facts.edge_type(edge_type), self.dataset.edge_dir
        if not keeps_edge_keys(self.dataset.graph(), direction):
            return None
        return self._book(self.dataset.partition_book((name, direction)))

    def _book(self, owners: np.ndarray[Any, np.dtype[np.int64]]) -> PartitionBook:
        """Return ranges if partitions own consecutive ids in order, else a table."""
        if len(owners) and (np.diff(owners) >= 0).all():
            stops = np.searchsorted(owners, np.arange(self.dataset.num_partitions), "right")
            ranges = [(int(a), int(b)) for a, b in zip([0, *stops[:-1]], stops, strict=True)]
            return RangePartitionBook(ranges, self.dataset.partition_idx)
        return GLTPartitionBook(to_torch(owners))

    def get_node_feature_info(self) -> FeatureInfo | dict[NodeType, FeatureInfo] | None:
        """Return width and dtype of node features: of the only type, or by type; None without features."""
        facts = self.dataset.facts
        return self._infos(facts.schema.nodes, facts.node_columns, lambda t: NodeType(facts.shown_node(t)))

    def get_edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Return width and dtype of edge features: of the only type, or by type; None without features."""
        facts = self.dataset.facts
        return self._infos(facts.schema.edges, facts.edge_columns, lambda t: EdgeType._make(facts.shown_edge(t)))

    def _infos(
        self, schemas: Mapping[Any, Any], columns_of: Callable[[Any], tuple[str, ...]], shown: Callable[[Any], T]
    ) -> FeatureInfo | dict[T, FeatureInfo] | None:
        found = {
            shown(t): FeatureInfo(*info)
            for t, features in schemas.items()
            if (info := width_and_dtype(dict(features), columns_of(t)))
        }
        return next(iter(found.values()), None) if self.dataset.facts.kind == "homogeneous" else found or None

    def get_node_quantization_metadata(self) -> dict[NodeType, FeatureQuantizationMetadata] | None:
        """Return None: no features are quantised."""
        return None

    def get_edge_quantization_metadata(self) -> dict[EdgeType, FeatureQuantizationMetadata] | None:
        """Return None: no features are quantised."""
        return None

    # --- Inputs ---------------------------------------------------------------------------------------------------

    def get_node_ids(self, request: FetchNodesRequest) -> torch.Tensor:
        """Return int64[n], ids of nodes of this partition, ascending.

        Raises:
            ValueError: There is no such split, or the type is missing, or given for a homogeneous dataset.
        """
        _check_type("request", request, FetchNodesRequest)
        if request.server_slice is not None:
            _check_type("server_slice", request.server_slice, ServerSlice)
        facts = self.dataset.facts
        name = facts.node_type(request.node_type)
        if request.split is None:
            keys = self.dataset.own_keys(name)
        else:
            if request.split not in facts.schema.splits.get(name, ()):
                known = ", ".join(facts.schema.splits.get(name, ())) or "none"
                raise SettingsError(f"split is {request.split!r}; {name!r} has the splits: {known}")
            keys = self.dataset.own_split(name, request.split)
        return to_torch(keys if request.server_slice is None else request.server_slice.slice_tensor(keys))

    def get_ablp_input(self, request: FetchABLPInputRequest) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return anchors of this partition with their labels.

        These are int64[n], int64[n, M] and int64[n, K], with rows padded with -1. Anchors are the sources of the
        supervision edge type. If the dataset has its reverse, they are the reverse's destinations.

        Raises:
            ValueError: There is no such split, the types do not belong together, or the dataset does not have edges in
                the direction from anchors to labels.
        """
        _check_type("request", request, FetchABLPInputRequest)
        facts = self.dataset.facts
        supervision = self._supervision(request.supervision_edge_type)
        positive, negative = facts.label_types_of(supervision)
        if facts.kind != "typed":
            anchor_type = next(iter(facts.schema.nodes))
        elif (anchor_type := request.supervision_edge_type[0]) != request.node_type:
            raise SettingsError(
                f"node_type is {request.node_type!r}; anchors of {request.supervision_edge_type} are {anchor_type!r}"
            )
        direction = self._label_direction(positive, anchor_type)
        asked_type = None if facts.kind == "homogeneous" else request.node_type
        anchors = self.get_node_ids(FetchNodesRequest(request.split, asked_type, request.server_slice))
        positives = self._labels(positive, direction, anchors)
        return anchors, positives, None if negative is None else self._labels(negative, direction, anchors)

    def _supervision(self, given: EdgeType | None) -> Types:
        """Return the dataset's edge type for a supervision edge type in outward form, or its reverse."""
        facts = self.dataset.facts
        if facts.kind == "homogeneous":
            return next(iter(facts.schema.edges))
        known = {facts.shown_edge(t): t for t in facts.schema.edges} | {t: t for t in facts.schema.edges}
        wanted = cast(Types, tuple(given or ()))
        if len(wanted) == 3:
            src, relation, dst = wanted
            for found in (wanted, (dst, relation, src)):
                if found in known:
                    return known[found]
                if (found[0], found[1] + POSITIVE, found[2]) in known:
                    return found
        raise SettingsError(f"supervision_edge_type is {given}; the dataset has {', '.join(map(str, known))}")

    def _label_direction(self, positive: Types, anchor_type: str) -> Literal["in", "out"]:
        """Return the edge direction from anchors to labels."""
        direction: Literal["in", "out"] = "out" if positive[0] == anchor_type else "in"
        if direction not in self.dataset.store.directions:
            raise SettingsError(
                f"labels of {anchor_type!r} follow edges {direction!r}, and {self.dataset.folder} holds "
                f"{'|'.join(self.dataset.store.directions)}; write it again with direction='both'"
            )
        return direction

    def _labels(self, edge_type: Types, direction: Literal["in", "out"], anchors: torch.Tensor) -> torch.Tensor:
        """Return int64[n, M], the first label nodes of anchors in stored order, padded with -1."""
        indptr, keys = self.dataset.edges_of(edge_type, direction, ids_of(anchors))
        rows = torch.arange(len(anchors))
        return padded_labels(rows, to_torch(indptr), to_torch(keys), self.dataset.max_labels_per_anchor_node)

    # --- Sampling -------------------------------------------------------------------------------------------------

    def init_sampling_backend(self, opts: InitSamplingBackendRequest) -> int:
        """Return the number of the backend with this key, and make it if there is none.

        Concurrent callers for a backend that is not running wait until one of them has started it.

        Raises:
            RuntimeError: The backend cannot run yet or is being torn down, or the limit of backends is reached.
            ValueError: The backend with this key has other ``sampler_options``.
            StoreError: Another server cannot be reached; the next call tries again.
        """
        _check_type("opts", opts, InitSamplingBackendRequest)
        with self._lock:
            state = next((s for s in self._backends.values() if s.backend_key == opts.backend_key), None)
            if state is None:
                if len(self._backends) >= MAX_BACKENDS:
                    raise RuntimeError(f"the server has {MAX_BACKENDS} backends, the maximum; shut loaders down")
                runtime = SharedDistSamplingBackend(
                    data=self.dataset, worker_options=opts.worker_options, sampling_config=opts.sampling_config,
                    sampler_options=opts.sampler_options, degree_tensors=None,
                )  # fmt: skip
                state = SamplingBackendState(next(self._backend_ids), opts.backend_key, runtime)
                self._backends[state.backend_id] = state
            elif opts.sampler_options != state.runtime.sampler_options:
                raise SettingsError(
                    f"backend {opts.backend_key!r} samples with {state.runtime.sampler_options}, but "
                    f"{opts.sampler_options} was requested; choose another backend_key"
                )
            state.clients.add(CALLER.get())
            state.used_at = time.monotonic()
        state.runtime.init_backend()
        return state.backend_id

    def register_sampling_input(self, opts: RegisterBackendRequest) -> int:
        """Make a channel on a backend, and return its number.

        Raises:
            KeyError: There is no such backend.
            ValueError: ``buffer_size`` is no size, or servers do not accept the type of input.
            Exception: The backend refused the input; the channel is removed.
        """
        _check_type("opts", opts, RegisterBackendRequest)
        max_bytes = memory_bytes(str(opts.buffer_size), "buffer_size")
        sampler_input = self._seeds_of(opts.sampler_input)
        with self._lock:
            backend = self._backends.get(opts.backend_id)
        if backend is None:
            raise KeyError(f"backend {opts.backend_id} does not exist; call init_sampling_backend first")
        capacity = min(max(1, opts.buffer_capacity), backend.runtime.worker_options.buffer_capacity)
        channel = QueueChannel(capacity, max_bytes)
        state = ChannelState(opts.backend_id, opts.worker_key, channel, clients={CALLER.get()})
        channel_id = next(self._channel_ids)
        with backend.lock:
            self._check_there(backend)
            backend.runtime.register_input(channel_id, opts.worker_key, sampler_input, opts.sampling_config, channel)
            with self._lock:
                self._check_there(backend)
                self._channels[channel_id] = state
                self._last_channel = max(self._last_channel, channel_id)
                backend.active_channels.add(channel_id)
                backend.clients.discard(CALLER.get())  # from now on its channel has the lease
        return channel_id

    def _check_there(self, backend: SamplingBackendState) -> None:
        with self._lock:
            if self._backends.get(backend.backend_id) is not backend:
                raise KeyError(f"backend {backend.backend_id} was shut down; call init_sampling_backend again")

    def _seeds_of(self, given: SamplerInput | RemoteNodeSplitSamplerInput) -> SamplerInput:
        """Return an input as seeds; for a split, read the nodes of this partition."""
        if not isinstance(given, RemoteNodeSplitSamplerInput):
            _check_type("sampler_input", given, NodeSamplerInput, EdgeSamplerInput)
            return given
        known = self.dataset.facts.schema.splits.get(self.dataset.facts.node_type(given.input_type), ())
        request = FetchNodesRequest(given.split.name_among(known), given.input_type)  # type: ignore[arg-type]
        return NodeSamplerInput(self.get_node_ids(request), given.input_type)

    def destroy_sampling_input(self, channel_id: int) -> None:
        """Give up a channel, and its backend with the last channel; ignore an unknown channel."""
        self._destroy(read_integer("channel_id", channel_id), math.inf)

    def _destroy(self, channel_id: int, used_before: float) -> None:
        """Give up a channel; with the last one, also its backend, unless the backend was used later."""
        with self._lock:
            state = self._channels.pop(channel_id, None)
            backend = None if state is None else self._backends.get(state.backend_id)
            self._num_fetches.pop(channel_id, None)
        if backend is None:
            return
        with backend.lock:
            backend.runtime.unregister_input(channel_id)
            backend.active_channels.discard(channel_id)
            self._end_unused(backend, used_before)

    def _end_unused(self, backend: SamplingBackendState, used_before: float) -> None:
        """End a backend that has no channels and was not used since ``used_before``."""
        with backend.lock:
            if backend.active_channels or backend.used_at >= used_before:
                return
            with self._lock:
                self._backends.pop(backend.backend_id, None)
            backend.runtime.shutdown()

    def start_new_epoch_sampling(self, channel_id: int, epoch: int) -> None:
        """Start an epoch of a channel; ignore an epoch not later than the last, or a destroyed channel.

        Raises:
            RuntimeError: The channel never existed, or was given up.
            ValueError: An argument is no integer.
        """
        channel_id, epoch = read_integer("channel_id", channel_id), read_integer("epoch", epoch)
        with self._lock:
            state = self._used(channel_id)
            backend = None if state is None else self._backends.get(state.backend_id)
        if state is None and not 0 < channel_id <= self._last_channel:
            raise RuntimeError(f"channel {channel_id} does not exist; call register_sampling_input first")
        if backend is not None:
            try:
                backend.runtime.start_new_epoch_sampling(channel_id, epoch)
            except (KeyError, RuntimeError):
                with self._lock:
                    if channel_id in self._channels:  # otherwise it was destroyed meanwhile
                        raise

    def fetch_one_sampled_message(self, channel_id: int) -> tuple[SampleMessage | None, bool]:
        """Wait for the next message of a channel.

        Returns:
            The message and False; or None and True at the end of the epoch; or None and False if the client's deadline
            comes before the batch. The client then repeats the call, and no message is lost.

        Raises:
            RuntimeError: No batch came in ten minutes, or the channel was given up.
            ValueError: ``channel_id`` is no integer.
        """
        channel_id = read_integer("channel_id", channel_id)
        started, limit_s = time.monotonic(), min(FETCH_S, WAIT_SHARE * WAIT_S.get())
        with self._lock:
            state = self._used(channel_id)
        if state is None:
            return None, True
        try:
            message = state.channel.recv(limit_s)
        except StoreTimeout as error:
            if limit_s < FETCH_S:
                return None, False
            raise RuntimeError(f"no batch of channel {channel_id} came in {FETCH_S:g} s") from error
        finally:
            state.used_at = time.monotonic()
        if message is not None:
            self._log_fetch(channel_id, time.monotonic() - started)
        return message, message is None

    def _log_fetch(self, channel_id: int, seconds: float) -> None:
        with self._lock:
            number, total = self._num_fetches.get(channel_id, (0, 0.0))
            self._num_fetches[channel_id] = number + 1, total + seconds
        if seconds > FETCH_SLOW_LOG_SECS:
            logger.warning("a fetch of channel %d took %.1f s", channel_id, seconds)
        if (number + 1) % self._log_every_n == 0:
            logger.info("%d fetches of channel %d took %.3f s each", number + 1, channel_id, total / (number + 1))

    def _used(self, channel_id: int) -> ChannelState | None:
        """Find a channel and renew its lease; None if it is unknown or destroyed. The caller holds the lock."""
        state = self._channels.get(channel_id)
        if state is not None:
            state.used_at = time.monotonic()
        elif channel_id in self._given_up:
            raise RuntimeError(
                f"channel {channel_id} was dropped, because its client sent nothing for {LEASE_S:g} s; register the "
                "input again"
            )
        return state

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods for clients by name; they return values in the form of messages."""

        def sending(method: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **kwargs: outgoing(method(*args, **kwargs))

        return {name: sending(getattr(self, name)) for name in METHODS}


METHODS = (
    *METHODS_OF_PARTS, "get_node_types", "get_edge_types", "get_edge_dir", "get_edge_weights_registered",
    "get_node_partition_book", "get_edge_partition_book", "get_node_feature_info", "get_edge_feature_info",
    "get_node_quantization_metadata", "get_edge_quantization_metadata", "get_node_ids", "get_ablp_input",
    "init_sampling_backend", "register_sampling_input", "destroy_sampling_input", "start_new_epoch_sampling",
    "fetch_one_sampled_message",
)  # fmt: skip
"""Methods for clients: all except ``shutdown`` and ``wait_for_exit``, which are the server's own."""


init_server = DistServer.init_server


def _check_type(name: str, value: object, *wanted: type) -> None:
    if not isinstance(value, wanted):
        raise SettingsError(f"{name} is {reprlib.repr(value)}; give {' or '.join(one.__name__ for one in wanted)}")
