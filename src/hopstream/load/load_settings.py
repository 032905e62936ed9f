"""Settings of loading: order and ranks, what the consumer gets and how, columns and source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from hopstream.checks import Settings, check_choice, check_seconds, read_flag, read_integer
from hopstream.dataset.spot_check import Verify, read_verify
from hopstream.engine.settings import read_bytes
from hopstream.errors import SettingsError
from hopstream.load.batch import BufferPool, EdgeFeatures, NodeFeatures

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
        source: A dataset folder, a ``cluster.json``, an address such as ``tcp://host:7001``, or an open store. What
            the loader opens, it closes.
    """

    source: Source | BatchService = field(kw_only=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledGraph(GraphSource):
    """The graph that a loader samples, and how many neighbours it draws.

    Attributes:
        num_neighbors: Neighbours per hop, for all edge types or per edge type; -1 means all. What ``hold_out_links``
            made is followed only where it is named.
    """

    num_neighbors: NumNeighbors = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class OrderSettings(Settings):
    """Which seeds make which batch on which rank. Every field is checked when the record is made.

    Attributes:
        batch_size: Seeds per batch and rank.
        shuffle: Visit the seeds in a new order each epoch.
        drop_last: Leave out batches that would be smaller than ``batch_size``.
        rank: This process among those that share each epoch; needed where they are several.
        world_size: How many they are.
        remainder: How ranks come to the same number of steps: ``spread`` (every seed once; the last batches are
            smaller, on all ranks alike), ``pad`` (some batches twice), ``drop`` (some seeds not at all), or ``uneven``
            (they do not).
        rng_seed: Of the order and of all draws.

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
        """The rank as a number: 0 where it was not given."""
        return self.rank or 0

    @property
    def rank_text(self) -> str:
        """As in ``rank 0 of 2``."""
        return f"rank {self.own_rank} of {self.world_size}"


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(Settings):
    """What the consumer of batches gets, and how. Every field is checked when the record is made.

    Attributes:
        transform: Called with each batch, in the thread that made it; what it returns is what you get.
        collate: ``pyg`` for ``Data`` or ``HeteroData``, ``numpy`` for arrays without torch.
        num_threads: Threads that make whole batches; 0 means the caller's.
        prefetch: Finished batches that may wait, beyond one per thread.
        pin_memory: Put tensors into page-locked memory, from which copies to a GPU run beside computation.
        timeout_s: How long to wait for a batch, and for threads to end, before saying what hangs.

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
    """How batches of subgraphs are loaded. Every field is checked when the record is made.

    Attributes:
        node_features: Node features to fetch: None (all), names, or node type to names.
        edge_features: Edge features to fetch: None (all), names, or edge type to names.
        edge_keys: Bring original edge keys as ``e_id``; None means where the dataset keeps them.
        buffer_bytes: Memory of past batches that is kept for the next ones, or a pool that loaders share. Without
            effect where ``pin_memory`` is True: torch keeps page-locked memory itself.
        cache_bytes: Memory for rows of other servers that are kept for later batches, shared by the loaders of a
            dataset in this process: the first of them says how much, in bytes or as in ``"500MB"``. 0 keeps none; None
            means an eighth of the memory that is free. An option of the source where that is an open store.
        look_ahead: Batches that are sampled before they are fetched where servers are asked, so that the rows which are
            needed soonest stay (without a cache of rows, 4 at most); 0 to 48. Each takes the memory of a batch without
            its features.
        verify: How much of the dataset's files is checked first, where they are on this machine: nothing, a ``sample``
            of blocks of every file (less than a second for up to some thousand files), or everything (``full``).
        store_settings: Deadline, token and certificates, where servers are asked. Without them, each rank prefers
            another replica.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    node_features: NodeFeatures = None
    edge_features: EdgeFeatures = None
    edge_keys: bool | None = None
    buffer_bytes: int | str | BufferPool = DEFAULT_BUFFER_BYTES
    cache_bytes: int | str | None = None
    look_ahead: int = 16
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
            # Imported when it is needed: it brings the network's libraries.
            from hopstream.store.settings import StoreSettings

            if not isinstance(self.store_settings, StoreSettings):
                raise SettingsError(f"store_settings is {self.store_settings!r}; it must be a StoreSettings, or None")


def read_rank(rank: object, world_size: object) -> tuple[int, int]:
    """The rank, 0 where it is not given and there is only one, and the world size.

    Raises:
        SettingsError: One is no integer or out of its range, or several ranks share the epoch and this one has no
            number: taking 0 for it would give every process the same seeds.
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
