"""Settings of loaders: source, order and ranks, threads and format of batches, columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from hopstream.buffers import BufferPool
from hopstream.checks import Settings, check_choice, check_seconds, read_flag, read_integer
from hopstream.dataset.spot_check import Verify, read_verify
from hopstream.engine.settings import read_bytes
from hopstream.errors import SettingsError
from hopstream.load.batch import EdgeFeatures, NodeFeatures

if TYPE_CHECKING:
    from hopstream.load.service import BatchService
    from hopstream.sample.plan import NumNeighbors
    from hopstream.store import Source
    from hopstream.store.settings import StoreSettings

Collate = Literal["pyg", "numpy"]
Remainder = Literal["spread", "pad", "drop", "uneven"]
Transform = Callable[[Any], Any]
DEFAULT_BUFFER_BYTES = 1 << 30
MAX_RNG_SEED = (1 << 64) - 1
MAX_RANK = (1 << 31) - 1
MAX_LOOK_AHEAD = 48


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphSource(Settings):
    """The graph that a loader reads.

    Attributes:
        source: A dataset folder, a ``cluster.json``, an address such as ``tcp://host:7001``, an open store, a graph in
            memory (a ``Graph``, or PyG's ``Data`` or ``HeteroData``), or a ``RemoteGraph``. Also called ``data``. The
            loader closes a store that it opened, and leaves an open store open.
    """

    source: Source | BatchService = field(kw_only=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledGraph(GraphSource):
    """The graph that a loader samples, and how many neighbours it draws.

    Attributes:
        num_neighbors: Neighbours per hop, for all edge types or per edge type; -1 means all. An edge type that
            ``hold_out_links`` made is followed only if it is named.
    """

    num_neighbors: NumNeighbors = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class OrderSettings(Settings):
    """Settings that assign seeds to batches and ranks. The record checks every field.

    Attributes:
        batch_size: Seeds per batch and rank.
        shuffle: Visit the seeds in a new order each epoch.
        drop_last: Leave out batches that would be smaller than ``batch_size``.
        rank: Number of this process among the processes that share each epoch, from 0. Required if ``world_size`` is
            above 1.
        world_size: Number of processes that share each epoch.
        remainder: How all ranks get the same number of steps. ``spread``: every seed once; the last one or two batches
            of every rank may be smaller. ``pad``: some ranks repeat batches. ``drop``: some seeds are left out.
            ``uneven``: every seed once, and some ranks take one step more.
        rng_seed: Seed of the order and of all random draws.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    rank: int | None = None
    world_size: int = 1
    remainder: Remainder = "spread"
    rng_seed: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._read_flags(OrderSettings)
        self._read_integer("batch_size", 1)
        self._read_integer("rng_seed", 0, MAX_RNG_SEED)
        rank, world_size = read_rank(self.rank, self.world_size)
        self._keep("rank", rank)
        self._keep("world_size", world_size)
        if rank >= world_size:
            raise SettingsError(f"rank is {rank} of world_size {world_size}; ranks are 0..world_size - 1")
        check_choice("remainder", self.remainder, get_args(Remainder))

    @property
    def own_rank(self) -> int:
        """The rank; 0 if it was not given."""
        return self.rank or 0

    @property
    def rank_text(self) -> str:
        """The rank for messages, as in ``rank 0 of 2``."""
        return f"rank {self.own_rank} of {self.world_size}"


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(Settings):
    """Settings of threads and of the batches' format. The record checks every field.

    Attributes:
        transform: Function of one batch, called in the thread that made the batch; the loader gives out its result.
        collate: ``pyg`` for :class:`torch_geometric.data.Data` or :class:`torch_geometric.data.HeteroData`,
            ``numpy`` for arrays without torch.
        num_threads: Threads that make whole batches; 0 makes them in the caller's thread. Also called ``num_workers``.
        prefetch: Finished batches that may wait for the consumer, beyond one per thread.
        pin_memory: Put tensors into page-locked memory, so that copies to a GPU overlap with computation.
        timeout_s: Seconds to wait for a batch, and for threads to end. An error then says what hangs.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    transform: Transform | None = None
    collate: Collate = "pyg"
    num_threads: int = 1
    prefetch: int = 2
    pin_memory: bool = False
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._read_flags(ConsumerSettings)
        self._read_integer("num_threads", 0)
        self._read_integer("prefetch", 0)
        check_seconds("timeout_s", self.timeout_s)
        check_choice("collate", self.collate, get_args(Collate))
        if self.pin_memory and self.collate == "numpy":
            raise SettingsError("pin_memory=True pins torch tensors; use it with collate='pyg'")
        if self.transform is not None and not callable(self.transform):
            raise SettingsError(f"transform is {self.transform!r}; it must be a function that takes a batch, or None")


@dataclass(frozen=True, kw_only=True)
class LoadSettings(ConsumerSettings, OrderSettings):
    """Settings of loaders of subgraphs. The record checks every field.

    Attributes:
        node_features: Node features to fetch: None (all), names, or node type to names.
        edge_features: Edge features to fetch: None (all), names, or edge type to names.
        edge_keys: Bring original edge keys as ``e_id``; None brings them if the dataset keeps them.
        buffer_bytes: Bytes of past batches' memory that are kept for later batches, or a pool that loaders share. No
            effect with ``pin_memory=True``: torch keeps page-locked memory itself.
        cache_bytes: Size of the cache of rows from other servers, in bytes or as in ``"500MB"``; 0 turns it off. The
            loaders of a dataset in this process share one cache, and the first of them sets its size. None means an
            eighth of the free memory. For an open store, set it in its ``StoreSettings``.
        look_ahead: Batches to sample ahead of fetching, 0 to 48, if rows come from servers: the cache then keeps the
            rows that are needed soonest. Without a cache of rows at most 4 are sampled ahead. Each takes the memory of
            a batch without its features.
        verify: Check of the dataset's files on this machine before loading: ``none``, ``sample`` (some blocks of every
            file; less than a second for up to some thousand files), or ``full`` (everything).
        store_settings: Deadline, token and certificates for servers. None: each rank prefers another replica.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    node_features: NodeFeatures = None
    edge_features: EdgeFeatures = None
    edge_keys: bool | None = None
    buffer_bytes: int | str | BufferPool = DEFAULT_BUFFER_BYTES
    cache_bytes: int | str | None = None
    look_ahead: int = 24
    verify: Verify = "none"
    store_settings: StoreSettings | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        if self.edge_keys is not None:
            self._keep("edge_keys", read_flag("edge_keys", self.edge_keys))
        if not isinstance(self.buffer_bytes, BufferPool):
            self._keep("buffer_bytes", read_bytes("buffer_bytes", self.buffer_bytes))
        if self.cache_bytes is not None:
            self._keep("cache_bytes", read_bytes("cache_bytes", self.cache_bytes))
        self._read_integer("look_ahead", 0, MAX_LOOK_AHEAD)
        self._keep("verify", read_verify(self.verify))
        if self.store_settings is not None:
            # Imported late: it loads the network's libraries.
            from hopstream.store.settings import StoreSettings

            if not isinstance(self.store_settings, StoreSettings):
                raise SettingsError(f"store_settings is {self.store_settings!r}; it must be a StoreSettings, or None")


def read_rank(rank: object, world_size: object) -> tuple[int, int]:
    """Check and return the rank and the world size; a single rank defaults to 0.

    Raises:
        SettingsError: A number is no integer or out of its range, or ``rank`` is None with several ranks. A default of
            0 would then give every process the same seeds.
    """
    world_size = read_integer("world_size", world_size, 1, MAX_RANK)
    if rank is None:
        if world_size > 1:
            raise SettingsError(
                f"world_size is {world_size} and rank is not given; give each process its own, "
                f"rank=0 to rank={world_size - 1}"
            )
        return 0, world_size
    return read_integer("rank", rank, 0, MAX_RANK), world_size
