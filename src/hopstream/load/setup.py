"""Holds what all loaders of subgraphs have in common before their first batch.

Every loader takes the same settings for its source, its order, its columns and its threads, checks them before anything
is opened, and closes what it opened. A loader adds what it starts from and how it samples.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict, cast, get_args

from hopstream.checks import check_choice
from hopstream.dataset.spot_check import Verify, read_verify
from hopstream.errors import MissingDependencyError, SettingsError
from hopstream.load.batch import Convert, MiniBatch, SubgraphReader
from hopstream.load.buffers import BufferPool, Buffers
from hopstream.load.columns import ColumnChoice, EdgeFeatures, NodeFeatures, choose_columns
from hopstream.load.epochs import EpochLoader, Maker, Transform
from hopstream.load.options import (
    MAX_RNG_SEED,
    PYG_OPTIONS,
    check_source,
    read_flag,
    read_integer,
    read_rank,
    refuse_unknown,
)
from hopstream.load.order import Remainder, SeedOrder
from hopstream.load.place import Facts
from hopstream.load.service import BatchService, BatchSession, LoneMaker, Recipe, SessionMaker
from hopstream.load.workers import WorkerSettings
from hopstream.sample.options import SamplingOptions, check_options
from hopstream.schema import ATTACHED_ATTRIBUTES, Direction, GraphSchema
from hopstream.store import Source, open_store
from hopstream.store.contract import Store
from hopstream.store.whole import keeps_edge_keys

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings

Collate = Literal["pyg", "numpy"]
DEFAULT_BUFFER_BYTES = 1 << 30


class CommonOptions(TypedDict, total=False):
    """Settings that every loader takes by name, with the meaning that ``NeighborLoader`` gives them."""

    shuffle: bool
    drop_last: bool
    node_features: NodeFeatures
    edge_features: EdgeFeatures
    edge_keys: bool | None
    transform: Transform | None
    collate: Collate
    num_threads: int
    prefetch: int
    pin_memory: bool
    timeout_s: float
    buffer_bytes: int | BufferPool
    rank: int | None
    world_size: int
    remainder: Remainder
    rng_seed: int
    verify: Verify
    store_settings: StoreSettings | None


class LoaderOptions(CommonOptions, total=False):
    """Settings that every loader has; some take ``batch_size`` in a place of its own."""

    batch_size: int


def split_options(
    door: Callable[..., object], options: Mapping[str, object], other: Mapping[str, str] = PYG_OPTIONS
) -> tuple[LoaderOptions, SamplingOptions]:
    """The options of loading and of sampling, the latter checked as far as they can be by themselves.

    Args:
        door: The loader's class, for messages.
        options: What the user gave.
        other: Names that other loaders have for options, and what to write instead.

    Raises:
        SettingsError: An option is of the wrong kind, or one of another loader.
        TypeError: Nobody has such an option.
    """
    names = {**LoaderOptions.__annotations__, **SamplingOptions.__annotations__}
    refuse_unknown(door, options, names, other)
    loading = {name: value for name, value in options.items() if name in LoaderOptions.__annotations__}
    drawing = {name: value for name, value in options.items() if name in SamplingOptions.__annotations__}
    return cast(LoaderOptions, loading), check_options(cast(SamplingOptions, drawing))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoaderSetup:
    """The common settings of one loader, checked, with its source open.

    Attributes:
        store: Where everything comes from.
        session: Who makes the batches where the loader does not.
        close: Closes the store if the loader opened it.
        direction: The direction that the loader follows.
        columns: Features that are fetched.
        wants_edge_keys: Fetch original edge keys as well.
        convert: Brings a ``MiniBatch`` into the form that the user wants.
        buffers: Where a batch's arrays come from.
        workers: Threads.
        transform: The user's own last step.
        batch_size: Seeds per batch and rank.
        is_shuffled: Visit seeds in a new order each epoch.
        drop_last: Leave out batches that would be smaller.
        rng_seed: Of the order and of all draws.
        rank: This process among those that share each epoch.
        world_size: How many they are.
        remainder: How ranks come to the same number of steps.
    """

    store: Store
    session: BatchSession | None
    close: Callable[[], object]
    direction: Direction
    columns: ColumnChoice
    wants_edge_keys: bool
    convert: Convert
    buffers: Buffers
    workers: WorkerSettings
    transform: Transform | None
    batch_size: int
    is_shuffled: bool
    drop_last: bool
    rng_seed: int
    rank: int
    world_size: int
    remainder: Remainder

    @property
    def wants_edge_ids(self) -> bool:
        """A plan must find the ids of edges, for their keys or features."""
        return self.wants_edge_keys or self.columns.has_edge_features

    def order(self, num_seeds: int) -> SeedOrder:
        """Which of so many seeds make which batch on this rank.

        Raises:
            SettingsError: They make no batch.
        """
        return SeedOrder(
            num_seeds=num_seeds, batch_size=self.batch_size, is_shuffled=self.is_shuffled, drop_last=self.drop_last,
            rng_seed=self.rng_seed, rank=self.rank, world_size=self.world_size, remainder=self.remainder,
        )  # fmt: skip

    def reader(self) -> SubgraphReader:
        """What turns sampled subgraphs into batches; one thread uses one."""
        return SubgraphReader(self.store, self.columns, self.wants_edge_keys, self.buffers)

    def facts(self) -> Facts:
        """What of the common settings decides over the batches."""
        return {
            "graph_id": self.store.graph_id,
            "direction": self.direction,
            "batch_size": self.batch_size,
            "shuffle": self.is_shuffled,
            "drop_last": self.drop_last,
            "world_size": self.world_size,
            "remainder": self.remainder,
            "rng_seed": self.rng_seed,
        }


class SubgraphLoader(EpochLoader):
    """Epochs of sampled subgraphs from one source; what the loader opened, it closes.

    A subclass opens its setup in ``_open``, calls ``_begin`` when it knows how a batch is made, and adds its own facts.
    """

    attached_names: ClassVar[frozenset[str]] = ATTACHED_ATTRIBUTES
    """What the loader may attach to a PyG batch: features of these names are refused."""
    _setup: LoaderSetup
    _recipe: Recipe

    def _open(self, source: Source | BatchService, direction: Direction, options: LoaderOptions) -> LoaderSetup:
        """Check the common settings, then open the source; from here on it is closed with the loader."""
        setup = open_setup(source, direction, options, self.attached_names)
        # Also runs when the loader is collected or the program ends: a connection must not outlive the interpreter.
        self._closer = weakref.finalize(self, setup.close)
        self._setup = setup
        return setup

    def _begin(self, num_steps: int, new_maker: Callable[[], Maker]) -> None:
        """Prepare epochs; the last step of a subclass's ``__init__``."""
        session = self._setup.session
        if session is not None:
            try:
                session.prepare(self._recipe)
            except BaseException:
                self._closer()
                raise
            new_maker = partial(SessionMaker, session, self._setup.buffers, self._setup.convert)
        super().__init__(
            num_steps=num_steps, new_maker=new_maker, transform=self._setup.transform, workers=self._setup.workers,
            explain=self._setup.store.explain_damage,
        )  # fmt: skip

    def _on_begin(self, epoch: int, step: int) -> None:
        if self._setup.session is not None:
            workers = self._setup.workers
            num_ahead = max(1, workers.num_threads) + workers.prefetch
            self._setup.session.begin(num_ahead, epoch, step)

    def _end_call(self) -> Callable[[], None]:
        session = self._setup.session
        return super()._end_call() if session is None else session.end

    def maker(self) -> Maker:
        """What makes any batch in the caller's thread, beside all iterations; one thread uses one."""
        if self._setup.session is None:
            return super().maker()
        return LoneMaker(self._setup.session.beside(), self._setup.buffers, self._setup.convert)

    @property
    def schema(self) -> GraphSchema:
        """The graph's types and features."""
        return self._setup.store.schema

    @property
    def store(self) -> Store:
        """The store that batches come from; the loader closes it if the loader opened it."""
        return self._setup.store

    def close(self) -> None:
        """End the iteration that is alive, and close what the loader opened; a second call does nothing.

        The store is closed before threads are waited for, so that none of them waits for a server that hangs.

        Raises:
            StoreTimeout: A thread did not end in time.
        """
        self.stop("the loader was closed")
        try:
            self._closer()
        finally:
            super().close()


def open_setup(
    source: Source | BatchService,
    direction: Direction,
    options: LoaderOptions,
    attached_names: frozenset[str] = ATTACHED_ATTRIBUTES,
) -> LoaderSetup:
    """Check the common settings of a loader, then open its source; it is closed again where something does not fit.

    Args:
        source: Where batches come from.
        direction: The direction that the loader follows.
        options: The common settings.
        attached_names: What the loader may attach to a PyG batch: features of these names are refused.

    Raises:
        SettingsError: A setting that cannot be met; the message says which, and what can be done.
        UnknownNameError: A node type, edge type or feature that the graph does not have.
        MissingDependencyError: ``collate="pyg"`` without torch and torch_geometric.
        FormatError: ``source`` is no dataset and no cluster file.
        StoreError: A server cannot be reached, or refused to answer.
    """
    workers = WorkerSettings(
        num_threads=read_integer("num_threads", options.get("num_threads", 1), 0),
        prefetch=read_integer("prefetch", options.get("prefetch", 2), 0),
        timeout_s=options.get("timeout_s", 120.0),
    )
    batch_size = read_integer("batch_size", options.get("batch_size", 1), 1)
    kept = options.get("buffer_bytes", DEFAULT_BUFFER_BYTES)
    pool = kept if isinstance(kept, BufferPool) else BufferPool(read_integer("buffer_bytes", kept, 0))
    rng_seed = read_integer("rng_seed", options.get("rng_seed", 0), 0, MAX_RNG_SEED)
    rank, world_size = read_rank(options.get("rank"), options.get("world_size", 1))
    is_shuffled, drop_last = (read_flag(name, options.get(name, False)) for name in ("shuffle", "drop_last"))
    pin_memory = read_flag("pin_memory", options.get("pin_memory", False))
    edge_keys, transform = options.get("edge_keys"), options.get("transform")
    edge_keys = None if edge_keys is None else read_flag("edge_keys", edge_keys)
    if transform is not None and not callable(transform):
        raise SettingsError(f"transform is {transform!r}; it must be a function that takes a batch, or None")
    store, session, close = _open_source(source, options, rank)
    try:
        columns = choose_columns(store.schema, options.get("node_features"), options.get("edge_features"))
        wants_edge_keys = _wants_edge_keys(store, direction, edge_keys)
        collate = options.get("collate", "pyg")
        if collate == "pyg":
            _check_names(store.schema, columns, attached_names)
        convert, buffers = _collator(store.schema, collate, pin_memory, pool)
        return LoaderSetup(
            store=store, session=session, close=close, direction=direction, columns=columns,
            wants_edge_keys=wants_edge_keys, convert=convert, buffers=buffers, workers=workers, transform=transform,
            batch_size=batch_size, is_shuffled=is_shuffled, drop_last=drop_last, rng_seed=rng_seed, rank=rank,
            world_size=world_size, remainder=options.get("remainder", "spread"),
        )  # fmt: skip
    except BaseException:
        close()
        raise


def _open_source(
    source: Source | BatchService, options: LoaderOptions, rank: int
) -> tuple[Store, BatchSession | None, Callable[[], object]]:
    """The store, who makes batches if the loader does not, and what to call when the loader is done with both."""
    settings, verify = options.get("store_settings"), read_verify(options.get("verify"))
    if verify != "none" and isinstance(source, Store | BatchService):
        raise SettingsError(f"verify is {verify!r}; it checks the files of a folder that the loader opens itself")
    if isinstance(source, Store):
        return source, None, lambda: None
    if isinstance(source, BatchService):
        if settings is not None:
            raise SettingsError("store_settings is no option here; the source has settings of its own: settings=")
        session = source.open(rank)
        return session.store, session, session.close
    check_source(source)
    if settings is not None or rank > 0 or verify != "none":
        # Imported when it is needed: it brings the network's libraries.
        from hopstream.store.settings import StoreSettings

        settings = StoreSettings(first_replica=rank) if settings is None else settings
        if not isinstance(settings, StoreSettings):
            raise SettingsError(f"store_settings is {settings!r}; it must be a StoreSettings, or None")
        settings = settings if verify == "none" else replace(settings, verify=verify)
    store = open_store(source, settings)
    return store, None, store.close


def _wants_edge_keys(store: Store, direction: Direction, edge_keys: bool | None) -> bool:
    check_choice("direction", direction, get_args(Direction))
    if direction not in store.directions:
        raise SettingsError(
            f"direction is {direction!r}; the dataset holds {'|'.join(store.directions)}; write the parts again with "
            f"direction {direction!r} or 'both'"
        )
    if edge_keys is False:
        return False
    has_edge_keys = keeps_edge_keys(store, direction)
    if edge_keys and not has_edge_keys:
        raise SettingsError("edge_keys=True, and the dataset keeps no edge keys; write the parts again with edge keys")
    return has_edge_keys


def _check_names(schema: GraphSchema, columns: ColumnChoice, attached_names: frozenset[str]) -> None:
    """Refuse columns that would hide what a PyG batch has beside them."""
    _import_pyg().check_names(schema, columns, attached_names)


def _collator(schema: GraphSchema, collate: Collate, pin_memory: bool, pool: BufferPool) -> tuple[Convert, Buffers]:
    """What a batch is turned into, and where its arrays come from."""
    check_choice("collate", collate, get_args(Collate))
    if collate == "numpy":
        if pin_memory:
            raise SettingsError("pin_memory=True pins torch tensors; use it with collate='pyg'")
        return _as_it_is, pool
    pyg = _import_pyg()
    if pin_memory:
        pyg.check_can_pin()
    buffers = pyg.PinnedBuffers() if pin_memory else pool
    return partial(pyg.to_pyg, is_homogeneous=schema.is_homogeneous, is_pinned=pin_memory), buffers


def _import_pyg() -> ModuleType:
    try:
        from hopstream.load import pyg
    except ImportError as error:
        raise MissingDependencyError(
            f"collate='pyg' needs torch and torch_geometric ({error}); pip install 'hopstream[pyg]', or use "
            "collate='numpy'"
        ) from error
    return pyg


def _as_it_is(batch: MiniBatch) -> MiniBatch:
    return batch
