"""What PyG's distributed loaders have in common: meeting the other ranks, iterating, and leaving."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hopstream.arguments import refuse_unknown
from hopstream.checks import OfOneProcess, read_flag, read_integer
from hopstream.compat.pyg.channels import take_from
from hopstream.compat.pyg.dist_context import DistContext, check_context
from hopstream.compat.pyg.dist_neighbor_sampler import DistNeighborSampler
from hopstream.compat.pyg.rpc import RpcMember, current_member, global_barrier, init_rpc, member_of_thread
from hopstream.errors import SettingsError, StateError
from hopstream.load.epochs import EpochIterator
from hopstream.load.load_settings import LoadSettings
from hopstream.load.setup import SubgraphLoader
from hopstream.store.security import ServerSecurity
from hopstream.store.settings import StoreSettings

_ORDER = "order is chosen with the seeds, shuffle= and drop_last="
OTHER_OPTIONS: Mapping[str, str] = {
    "collate_fn": "transform= is called with each batch",
    "transform_sampler_output": "transform= is called with each batch",
    "custom_cls": "transform= is called with each batch",
    "worker_init_fn": "threads make batches, so no process has to be set up; to meet the other ranks in a way of your "
    "own, override the method DistLoader.worker_init_fn",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "directed": "it is called subgraph_type= now: 'directional' or 'induced'",
    "input_id": "batches say the place of each seed as input_id",
    "weight_attr": "partitions in memory hold no weights; write the graph's parts with write_parts(…, weight_attr=…) "
    "and use hopstream.NeighborLoader",
}
"""Options of PyG's loaders that are not options here, and what to do instead."""
WITHOUT_EFFECT = (
    "persistent_workers", "multiprocessing_context", "pin_memory_device", "is_sorted", "share_memory", "in_order",
    "num_rpc_threads",
)  # fmt: skip
"""Options of PyG's loaders that steer processes, which there are none of here."""


class DistLoader(OfOneProcess):
    """One rank's loader over the partitions of all ranks.

    One iteration is one epoch. ``with loader as batches:`` is one epoch too, whose threads end with the block;
    ``close``, or the end of the process, leaves the other ranks, after waiting until they leave too: they may still
    need this rank's partition.
    """

    _remedy = "make one in each rank; its threads replace the workers of a DataLoader"
    _makes_batches = False
    """Whether a loader is built after the ranks have met."""

    def __init__(  # noqa: PLR0913, PLR0917  PyG's arguments, in PyG's order
        self,
        current_ctx: DistContext,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        channel: Any = None,
        num_rpc_threads: int = 16,
        rpc_timeout: float = 180,
        dist_sampler: DistNeighborSampler | None = None,
        *,
        security: ServerSecurity | None = None,
        store_settings: StoreSettings | None = None,
    ) -> None:
        """Meet the other ranks; returns when all are there and agree.

        Args:
            current_ctx: This process.
            master_addr: A host name or IP address of the machine of rank 0; ``MASTER_ADDR`` if it is not given.
            master_port: A free port there; ``MASTER_PORT`` + 1 if it is not given. Loaders may share one.
            channel: What ``channel_get`` takes from.
            num_rpc_threads: Without effect: the transport has threads of its own.
            rpc_timeout: Seconds to wait for other ranks, to begin and to leave, and for an output of the channel.
            dist_sampler: What samples.
            security: TLS and token of what this rank serves; needed where ``master_addr`` is not loopback.
            store_settings: Deadline of requests, token and roots of what this rank asks.

        Raises:
            SettingsError: Wrong rank, world size, address or port, or a partition that contradicts itself.
            VersionMismatch: Ranks hold partitions of different graphs or cuts, or one is held by nobody.
            StoreTimeout: Some ranks did not come in time; the message says which.
            StoreUnavailable: Rank 0 cannot be reached or cannot listen, or a rank gave up.
            AccessDenied: Others could reach this rank, and TLS or a token is missing.
        """
        self.current_ctx = check_context(current_ctx)
        self.master_addr, self.master_port = _address(type(self).__name__, master_addr, master_port)
        self.channel = channel
        self.num_rpc_threads = num_rpc_threads
        self.rpc_timeout = rpc_timeout
        self.dist_sampler = dist_sampler
        self.num_workers = 0
        """Worker processes: none."""
        self.pid = os.getpid()
        self._security = security
        self._store_settings = store_settings
        self._member: RpcMember | None = None
        self._loader: SubgraphLoader | None = None
        self._entered: EpochIterator | None = None
        before = member_of_thread()
        try:
            self.worker_init_fn(0)
            if self._member is None:  # a script's own worker_init_fn has called init_rpc
                self._member = current_member()
            if not self._makes_batches:
                self._agree()
        except BaseException as error:
            begun = member_of_thread()
            if self._member is None and begun is not before:  # a script's own worker_init_fn has called init_rpc
                self._member = begun
            self._give_up(error)
            raise

    def worker_init_fn(self, worker_id: int) -> None:
        """Meet the other ranks and make one store of all partitions; override it to do more.

        Args:
            worker_id: 0: threads of this process do what PyG's worker processes do.
        """
        self._member = init_rpc(
            self.current_ctx, self.master_addr, self.master_port, self.num_rpc_threads, self.rpc_timeout,
            security=self._security, store_settings=self._store_settings,
        )  # fmt: skip
        if self.dist_sampler is not None:
            self.dist_sampler.init_sampler_instance()
            self.dist_sampler.register_sampler_rpc(self._member)
        global_barrier()

    def channel_get(self, out: Any) -> Any:
        """The next output of the channel; without one, what is given.

        Raises:
            StoreTimeout: Nothing came within ``rpc_timeout``.
        """
        return take_from(self.channel, self.rpc_timeout) if self.channel is not None else out

    @property
    def loader(self) -> SubgraphLoader:
        """The loader that makes the batches: it has ``state_dict``, ``set_epoch`` and the rest.

        Raises:
            StateError: The loader is closed.
        """
        if self._loader is None:
            raise StateError("the loader is closed, or makes no batches; make a new one")
        return self._loader

    def __len__(self) -> int:
        """Batches of one epoch on this rank."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Start the next epoch."""
        return iter(self.loader)

    def __call__(self, index: Any) -> Any:
        """Refuse, as batches here are numbered and not asked for by seeds.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError("a loader is not called with seeds; use dist_sampler.sample_from_nodes, or iterate")

    def __enter__(self) -> Iterator[Any]:
        """Start the next epoch; the block's end is its end, and the loader can be used again."""
        self._entered = iter(self.loader)
        return self._entered

    def __exit__(self, *exc_info: object) -> None:
        """End the epoch."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()

    def close(self, *, waits: bool | None = None) -> None:
        """End the epoch, wait until all ranks leave, and stop to serve; a second call does nothing.

        Args:
            waits: Wait for the others. None: unless an exception is being handled, as in ``finally`` after an error.
                Where nobody is waited for, the others hear of the error at their next request.

        Raises:
            StoreTimeout: Some ranks did not leave in time; this one has left all the same.
            StoreUnavailable: A rank gave up while this one waited; this one has left all the same.
        """
        member, self._member = self._member, None
        loader, self._loader = self._loader, None
        waits = member is not None and member.will_wait(waits)  # the others hear of an error before threads have ended
        try:
            if loader is not None:
                loader.close()
        finally:
            if member is not None:
                member.end(waits)

    def _give_up(self, error: BaseException) -> None:
        """Tell the others, who may be waiting, of an error here, and leave."""
        member, self._member = self._member, None
        if member is not None:
            member.give_up(error)

    def _build(self, make: Callable[[], SubgraphLoader], in_caller: Callable[[Any], Any] | None) -> None:
        """Make the loader that makes the batches, as all ranks do; an error of one is told to the others.

        Args:
            make: Makes the loader.
            in_caller: Called with each batch by who asks for it, or None.
        """
        loader = None
        try:
            loader = make()
            self._agree()
        except BaseException as error:
            if loader is not None:
                loader.close()
            self._give_up(error)
            raise
        loader.in_caller = in_caller
        self._loader = loader

    def _agree(self) -> None:
        """Wait for the loaders of all ranks, whatever kind they are of."""
        if self._member is not None and self._member.group is not None:
            self._member.group.gather(None, "for the loaders of all ranks")

    def __repr__(self) -> str:
        """The loader in one line."""
        return f"{type(self).__name__}(pid={self.pid})"


def common_options(
    door: Callable[..., object], options: Mapping[str, Any], *, transform: Any, concurrency: int,
    filter_per_worker: bool | None, async_sampling: bool,
) -> tuple[dict[str, Any], Callable[[Any], Any] | None]:  # fmt: skip
    """PyG's options of a loader as ours.

    Args:
        door: The loader's class, for messages.
        options: What the user gave beside the arguments.
        transform: A function of a batch, or None.
        concurrency: How many batches are made at once, for each of ``num_workers``.
        filter_per_worker: The threads that make batches call the transform; else whoever asks for them.
        async_sampling: Batches are made ahead.

    Returns:
        Our options, and what whoever asks for a batch has to call with it, or None.

    Raises:
        SettingsError: An option that is not to be had here; the message says what stands for it.
        TypeError: Nobody has it.
    """
    set_here = {"transform", "rank", "world_size", "verify", "store_settings"}
    ours = {*LoadSettings.field_names()} - set_here
    pyg = {"num_workers", "prefetch_factor", "timeout", "generator", *WITHOUT_EFFECT}
    refuse_unknown(door.__name__, options, ours | pyg, OTHER_OPTIONS)
    found: dict[str, Any] = {name: value for name, value in options.items() if name in ours}
    num_workers = read_integer("num_workers", options.get("num_workers", 0), 0)
    num_threads = max(1, num_workers) * concurrency if read_flag("async_sampling", async_sampling) else num_workers
    found.setdefault("num_threads", num_threads)
    if options.get("prefetch_factor") is not None:
        found.setdefault(
            "prefetch", read_integer("prefetch_factor", options["prefetch_factor"], 0) * max(1, num_workers)
        )
    if options.get("timeout"):
        found.setdefault("timeout_s", options["timeout"])
    generator = options.get("generator")
    if isinstance(generator, torch.Generator):
        found.setdefault("rng_seed", generator.initial_seed() & (1 << 64) - 1)
    if transform is not None and not callable(transform):
        raise SettingsError(f"transform is {transform!r}; it must be a function that takes a batch, or None")
    if filter_per_worker:
        found["transform"], transform = transform, None
    return found, transform


def _address(door: str, addr: str | None, port: int | str | None) -> tuple[str, int | str]:
    """Where rank 0 is, from the arguments or from torch's environment variables, as in PyG."""
    addr = addr if addr is not None else os.environ.get("MASTER_ADDR")
    if addr is None:
        raise SettingsError(
            f"{door} misses master_addr, an address of the machine of rank 0; give it, or set MASTER_ADDR"
        )
    if port is None and (given := os.environ.get("MASTER_PORT")) is not None:
        port = int(given) + 1 if given.isdecimal() else given
    if port is None:
        raise SettingsError(
            f"{door} misses master_port, a free port of rank 0; give it, or set MASTER_PORT, the one before"
        )
    return addr, port
