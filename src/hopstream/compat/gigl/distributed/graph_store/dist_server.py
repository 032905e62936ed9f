"""Storage server: answers questions about its parts of a dataset, and samples for the loaders of compute processes.

Teardown has three phases. Every loader gives up its channels (``destroy_sampling_input``). Then every compute process
calls ``shutdown_compute_process``, and the first of them tells all servers to end. Then every server, which waits in
``wait_and_shutdown_server``, leaves with the others. A compute process that crashed holds up nobody; servers on which
it left channels end with a RuntimeError.

Channels and backends have a lease, so that a compute process that crashed in a long session does not hold memory until
the session ends. Compute processes say to server 0 every 2 s that they are present, and server 0 passes their names on.
A server gives a channel up when, for ``LEASE_S``, nobody used it and the client that registered it was not present. So
a client that pauses between epochs keeps its channels. A backend without channels ends in the same way, where no client
that asked for it, and has not registered a channel yet, is present. A caller in the server's own process counts as
present. A server looks at leases in ``wait_and_shutdown_server``. The use of a channel that was given up is a
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
"""Seconds after which a fetch is reported as slow."""
FETCH_S = 600.0
"""How long one fetch waits for a batch."""
LEASE_S = SamplingLimits().lease_s
"""Seconds without use, and without a sign of its client, after which a channel is given up."""
MAX_BACKENDS = 256
MAX_REMEMBERED = 1024
"""How many given-up channels a server remembers; the oldest are forgotten first."""


@dataclass(slots=True, eq=False)
class ChannelState:
    """One input of one compute rank.

    Attributes:
        backend_id: The backend that samples it.
        worker_key: What the compute rank calls it.
        channel: Where messages are received.
        clients: Who registered it; None for a caller in this process.
        used_at: When it was used last, or its client was present.
    """

    backend_id: int
    worker_key: str
    channel: QueueChannel
    clients: set[str | None] = field(default_factory=set)
    used_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True, eq=False)
class SamplingBackendState:
    """One sampling backend.

    Attributes:
        backend_id: Its number.
        backend_key: What loaders call it.
        runtime: What samples.
        active_channels: Numbers of its channels.
        lock: Held while a channel is registered or given up.
        clients: Who asked for it and has not registered a channel; None for a caller in this process.
        used_at: When it was asked for last, or one of these clients was present.
    """

    backend_id: int
    backend_key: str
    runtime: SharedDistSamplingBackend
    active_channels: set[int] = field(default_factory=set)
    lock: Any = field(default_factory=threading.RLock)
    clients: set[str | None] = field(default_factory=set)
    used_at: float = field(default_factory=time.monotonic)


class DistServer(ServerOfParts):
    """Answers for the parts of one server. Safe to use from many threads."""

    def __init__(self, dataset: DistDataset, log_every_n: int = 50) -> None:
        """Answer for ``dataset``.

        Args:
            dataset: The parts.
            log_every_n: Fetches of a channel after which their times are logged.
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
        """Forget all channels and backends, and warn of those that were not destroyed; they are ended."""
        with self._lock:
            left = sorted(self._channels), sorted(self._backends)
            backends = list(self._backends.values())
            self._channels.clear()
            self._backends.clear()
            self._num_fetches.clear()
        if any(left):
            logger.warning("channels %s and backends %s were left by loaders that were not shut down", *left)
        with ExitStack() as stack:  # each is ended, whatever another one says
            for backend in backends:
                stack.callback(backend.runtime.shutdown)

    def give_up_abandoned(self, present: Collection[str]) -> None:
        """Give up the channels and backends whose lease has run out.

        Args:
            present: Names of the clients that are present.
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
                    "channel %d (%s) is given up: nobody used it for %g s, and its client is gone", number,
                    channel.worker_key, LEASE_S,
                )  # fmt: skip
                stack.callback(self._destroy, number, used_before)
            for backend in backends:
                stack.callback(self._end_unused, backend, used_before)

    @property
    def left(self) -> list[int]:
        """Numbers of the channels that are registered."""
        with self._lock:
            return sorted(self._channels)

    # --- Facts and rows -------------------------------------------------------------------------------------------

    def get_node_types(self) -> list[NodeType] | None:
        """Node types; None for a homogeneous dataset."""
        found = self.dataset.facts.node_types()
        return None if found is None else [NodeType(one) for one in found]

    def get_edge_types(self) -> list[EdgeType] | None:
        """Edge types; None for a homogeneous dataset."""
        found = self.dataset.facts.edge_types()
        return None if found is None else [EdgeType._make(one) for one in found]

    def get_edge_dir(self) -> Literal["in", "out"]:
        """The direction in which edges are followed."""
        return self.dataset.edge_dir

    def get_edge_weights_registered(self) -> bool:
        """Whether edges can be drawn by weights."""
        return self.dataset.store.weight_attr is not None

    def get_node_partition_book(self, node_type: NodeType | None) -> PartitionBook | None:
        """The partition of every node of a type.

        Raises:
            ValueError: A type for a homogeneous dataset, or none for another one.
        """
        name = self.dataset.facts.node_type(node_type)
        return self._book(self.dataset.partition_book(name))

    def get_edge_partition_book(self, edge_type: EdgeType | None) -> PartitionBook | None:
        """The partition of every edge of a type by its key; None where the dataset keeps no keys of edges.

        Raises:
            ValueError: A type for a homogeneous dataset, or none for another one, or an edge of a key is in no part.
        """
        name, direction = self.dataset.facts.edge_type(edge_type), self.dataset.edge_dir
        if not keeps_edge_keys(self.dataset.graph(), direction):
            return None
        return self._book(self.dataset.partition_book((name, direction)))

    def _book(self, owners: np.ndarray[Any, np.dtype[np.int64]]) -> PartitionBook:
        """Ranges where partitions follow each other, else a table."""
        if len(owners) and (np.diff(owners) >= 0).all():
            stops = np.searchsorted(owners, np.arange(self.dataset.num_partitions), "right")
            ranges = [(int(a), int(b)) for a, b in zip([0, *stops[:-1]], stops, strict=True)]
            return RangePartitionBook(ranges, self.dataset.partition_idx)
        return GLTPartitionBook(to_torch(owners))

    def get_node_feature_info(self) -> FeatureInfo | dict[NodeType, FeatureInfo] | None:
        """Width and dtype of features: of the only type, or by type; None where there are none."""
        facts = self.dataset.facts
        return self._infos(facts.schema.nodes, facts.node_columns, lambda t: NodeType(facts.shown_node(t)))

    def get_edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Width and dtype of features of edges: of the only type, or by type; None where there are none."""
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
        """None: no features are quantised."""
        return None

    def get_edge_quantization_metadata(self) -> dict[EdgeType, FeatureQuantizationMetadata] | None:
        """None: no features are quantised."""
        return None

    # --- Inputs ---------------------------------------------------------------------------------------------------

    def get_node_ids(self, request: FetchNodesRequest) -> torch.Tensor:
        """int64[n], ids of nodes of this partition, ascending.

        Raises:
            ValueError: There is no such split, or the type is missing or too much.
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
        """Anchors of this partition with their labels: int64[n], int64[n, M] and int64[n, K], rows padded with -1.

        Anchors are the sources of the supervision edge type; in a dataset that has it turned round, its destinations.

        Raises:
            ValueError: There is no such split, the types do not belong together, or the dataset does not hold edges in
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
        """The dataset's edge type of a supervision edge type in outward form, or its reverse where edges are turned."""
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
        """Which way labels are found from anchors."""
        direction: Literal["in", "out"] = "out" if positive[0] == anchor_type else "in"
        if direction not in self.dataset.store.directions:
            raise SettingsError(
                f"labels of {anchor_type!r} follow edges {direction!r}, and {self.dataset.folder} holds "
                f"{'|'.join(self.dataset.store.directions)}; write it again with direction='both'"
            )
        return direction

    def _labels(self, edge_type: Types, direction: Literal["in", "out"], anchors: torch.Tensor) -> torch.Tensor:
        """int64[n, M], the first label nodes of anchors in stored order, padded with -1."""
        indptr, keys = self.dataset.edges_of(edge_type, direction, ids_of(anchors))
        rows = torch.arange(len(anchors))
        return padded_labels(rows, to_torch(indptr), to_torch(keys), self.dataset.max_labels_per_anchor_node)

    # --- Sampling -------------------------------------------------------------------------------------------------

    def init_sampling_backend(self, opts: InitSamplingBackendRequest) -> int:
        """Make a backend, or find the one of this key; its number.

        Where several callers ask for one that is not running yet, they wait until one of them has started it.

        Raises:
            RuntimeError: It cannot run yet, is being torn down, or there is no room for another one.
            ValueError: There is one of this key with other ``sampler_options``.
            StoreError: Another server cannot be reached; the next call tries again.
        """
        _check_type("opts", opts, InitSamplingBackendRequest)
        with self._lock:
            state = next((s for s in self._backends.values() if s.backend_key == opts.backend_key), None)
            if state is None:
                if len(self._backends) >= MAX_BACKENDS:
                    raise RuntimeError(
                        f"the server has {MAX_BACKENDS} backends, as many as it may have; shut loaders down"
                    )
                runtime = SharedDistSamplingBackend(
                    data=self.dataset, worker_options=opts.worker_options, sampling_config=opts.sampling_config,
                    sampler_options=opts.sampler_options, degree_tensors=None,
                )  # fmt: skip
                state = SamplingBackendState(next(self._backend_ids), opts.backend_key, runtime)
                self._backends[state.backend_id] = state
            elif opts.sampler_options != state.runtime.sampler_options:
                raise SettingsError(
                    f"backend {opts.backend_key!r} samples with {state.runtime.sampler_options}, and "
                    f"{opts.sampler_options} are asked for; choose another backend_key"
                )
            state.clients.add(CALLER.get())
            state.used_at = time.monotonic()
        state.runtime.init_backend()
        return state.backend_id

    def register_sampling_input(self, opts: RegisterBackendRequest) -> int:
        """Make a channel on a backend; its number.

        Raises:
            KeyError: There is no such backend.
            ValueError: ``buffer_size`` is no size, or the input is of a type that servers do not take.
            Exception: What the backend says of the input; nothing is left of the channel.
        """
        _check_type("opts", opts, RegisterBackendRequest)
        max_bytes = memory_bytes(str(opts.buffer_size), "buffer_size")
        sampler_input = self._seeds_of(opts.sampler_input)
        with self._lock:
            backend = self._backends.get(opts.backend_id)
        if backend is None:
            raise KeyError(f"there is no backend {opts.backend_id}; call init_sampling_backend first")
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
                backend.clients.discard(CALLER.get())  # its channel has a lease from now on
        return channel_id

    def _check_there(self, backend: SamplingBackendState) -> None:
        with self._lock:
            if self._backends.get(backend.backend_id) is not backend:
                raise KeyError(f"backend {backend.backend_id} was shut down; call init_sampling_backend again")

    def _seeds_of(self, given: SamplerInput | RemoteNodeSplitSamplerInput) -> SamplerInput:
        """Read the nodes of a split that this partition owns; other inputs are as they came."""
        if not isinstance(given, RemoteNodeSplitSamplerInput):
            _check_type("sampler_input", given, NodeSamplerInput, EdgeSamplerInput)
            return given
        known = self.dataset.facts.schema.splits.get(self.dataset.facts.node_type(given.input_type), ())
        request = FetchNodesRequest(given.split.name_among(known), given.input_type)  # type: ignore[arg-type]
        return NodeSamplerInput(self.get_node_ids(request), given.input_type)

    def destroy_sampling_input(self, channel_id: int) -> None:
        """Give a channel up; the last one of a backend takes the backend along. Unknown ones are gone already."""
        self._destroy(read_integer("channel_id", channel_id), math.inf)

    def _destroy(self, channel_id: int, used_before: float) -> None:
        """Give a channel up, and its backend with the last one where it was not used since."""
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
        """End a backend that has no channels, where it was not used since."""
        with backend.lock:
            if backend.active_channels or backend.used_at >= used_before:
                return
            with self._lock:
                self._backends.pop(backend.backend_id, None)
            backend.runtime.shutdown()

    def start_new_epoch_sampling(self, channel_id: int, epoch: int) -> None:
        """Start an epoch of a channel; one that is no later than the last, or of a destroyed channel, does nothing.

        Raises:
            RuntimeError: There never was such a channel, or it was given up.
            ValueError: A number is no integer.
        """
        channel_id, epoch = read_integer("channel_id", channel_id), read_integer("epoch", epoch)
        with self._lock:
            state = self._used(channel_id)
            backend = None if state is None else self._backends.get(state.backend_id)
        if state is None and not 0 < channel_id <= self._last_channel:
            raise RuntimeError(f"there is no channel {channel_id}; call register_sampling_input first")
        if backend is not None:
            try:
                backend.runtime.start_new_epoch_sampling(channel_id, epoch)
            except (KeyError, RuntimeError):
                with self._lock:
                    if channel_id in self._channels:  # else it was destroyed meanwhile
                        raise

    def fetch_one_sampled_message(self, channel_id: int) -> tuple[SampleMessage | None, bool]:
        """Wait for the next message of a channel.

        Returns:
            The message and False; None and True when the epoch has ended; None and False to a client that would stop
            waiting before a batch is made: it asks again, and no message is lost.

        Raises:
            RuntimeError: No batch came in ten minutes, or the channel was given up.
            ValueError: The number is no integer.
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
        """Find a channel and renew its lease; None where it is unknown or destroyed. Called with the lock."""
        state = self._channels.get(channel_id)
        if state is not None:
            state.used_at = time.monotonic()
        elif channel_id in self._given_up:
            raise RuntimeError(
                f"channel {channel_id} was given up, as its client was not heard of for {LEASE_S:g} s; register the "
                "input again"
            )
        return state

    def methods(self) -> dict[str, Callable[..., Any]]:
        """What clients may call, by name; answers are as they travel."""

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
"""Methods that clients may call: all but ``shutdown`` and ``wait_for_exit``, which are the server's own."""


init_server = DistServer.init_server


def _check_type(name: str, value: object, *wanted: type) -> None:
    if not isinstance(value, wanted):
        raise SettingsError(f"{name} is {reprlib.repr(value)}; give {' or '.join(one.__name__ for one in wanted)}")
