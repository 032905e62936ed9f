"""Base of all loaders of subgraphs: opens the source, checks settings, and closes the source.

All loaders share the settings of source, order, columns and threads. A subclass adds its inputs and its sampling.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, cast, get_args

from numpy.typing import ArrayLike

from hopstream.buffers import BufferPool, Buffers
from hopstream.checks import check_choice
from hopstream.dataset.settings import Sides
from hopstream.errors import MissingDependencyError, SettingsError, StateError
from hopstream.load.ahead import GROUP, SamplingAhead
from hopstream.load.batch import (
    BatchFinisher,
    BatchMaker,
    ColumnChoice,
    Convert,
    Fetch,
    Inputs,
    SubgraphReader,
    as_it_is,
    choose_columns,
)
from hopstream.load.epochs import EpochLoader, Facts, Maker
from hopstream.load.load_settings import LoadSettings, OrderSettings
from hopstream.load.order import ChosenOrder, SeedOrder, WeightedOrder, read_positions, read_seed_weights
from hopstream.load.service import BatchService, BatchSession, LoneMaker, Recipe, SessionMaker
from hopstream.sample.hgt import HGTPlan, HGTRunner
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SamplePlan
from hopstream.sample.ppr import PPRRunner
from hopstream.sample.ppr_settings import PPRPlan
from hopstream.schema import ATTACHED_ATTRIBUTES, Direction, GraphSchema
from hopstream.store import MemorySource, Source, open_graph, open_store
from hopstream.store.contract import Store
from hopstream.store.sources import check_source, is_in_memory
from hopstream.store.whole import keeps_edge_keys

MAX_IDLE_MAKERS, MAX_IDLE_SIZE = 8, 1 << 16
"""Makers of chosen batches that are kept for the next calls, and the most nodes and edges of their batches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoaderSetup:
    """The settings of one loader, with its open source.

    Attributes:
        settings: The user's settings.
        direction: The direction in which the loader follows edges.
        store: The store that the loader reads.
        session: Source of finished or sampled batches; None if the loader samples itself.
        close: Closes the store or session if the loader opened it.
        columns: Features to fetch.
        wants_edge_keys: Fetch original edge keys as well.
        convert: Converts a ``MiniBatch`` to the user's format.
        buffers: Allocates the arrays of batches.
    """

    settings: LoadSettings
    direction: Direction
    store: Store
    session: BatchSession | None
    close: Callable[[], object]
    columns: ColumnChoice
    wants_edge_keys: bool
    convert: Convert
    buffers: Buffers

    @property
    def wants_edge_ids(self) -> bool:
        """Whether a plan must find ids of edges, to fetch their keys or features."""
        return self.wants_edge_keys or self.columns.has_edge_features

    def order(self, num_seeds: int, weights: object = None) -> SeedOrder:
        """Return the order of ``num_seeds`` seeds: assigns them to batches on this rank.

        Args:
            num_seeds: Number of seeds.
            weights: A number per seed to draw seeds by; None takes each once per epoch.

        Raises:
            SettingsError: The seeds make no batch, or the weights are not one number of 0 or more per seed.
        """
        if weights is None:
            return SeedOrder(num_seeds=num_seeds, settings=self.settings)
        sums = read_seed_weights("seed_weights", weights, num_seeds)
        return WeightedOrder(num_seeds=num_seeds, settings=self.settings, sums=sums)

    def reader(self, store: Store | None = None) -> SubgraphReader:
        """Make a reader that turns sampled subgraphs into batches; each thread needs its own.

        Args:
            store: Another store of the same graph; None for the loader's store.
        """
        return SubgraphReader(store or self.store, self.columns, self.wants_edge_keys, self.buffers)

    def maker(self, kind: type[BatchMaker[Inputs]], plan: SamplePlan | PPRPlan, inputs: Inputs) -> BatchMaker[Inputs]:
        """Make a maker of a plan's batches; each thread needs its own."""
        if isinstance(plan, PPRPlan):
            return kind(PPRRunner(self.store, plan, self.wants_edge_ids), self.reader(), inputs, self.convert)
        if isinstance(plan, HGTPlan):
            return kind(HGTRunner(self.store, plan), self.reader(), inputs, self.convert)
        needs_ids = self.columns.has_edge_features or plan.settings.subgraph_type != "directional"
        if self.wants_edge_keys and self.store.asks_servers and not needs_ids:
            plan = replace(plan, wants_edge_ids=False, wants_edge_keys=True)
        return kind(PlanRunner(self.store, plan), self.reader(), inputs, self.convert)

    def session_maker(self, kind: type[SessionMaker], session: BatchSession) -> SessionMaker:
        """Make a maker that takes batches from a session; each thread needs its own."""
        return kind(session, self.reader(session.store), self.convert)

    def facts(self) -> Facts:
        """Return the common settings that determine the batches: graph, direction, and order without the rank."""
        order = {name: getattr(self.settings, name) for name in OrderSettings.field_names() if name != "rank"}
        return {"graph_id": self.store.graph_id, "direction": self.direction, **order}


class SubgraphLoader(EpochLoader):
    """Base class of loaders of sampled subgraphs; the loader closes the source that it opened.

    A subclass calls ``_open`` first and ``_begin`` last in its ``__init__``, and adds its own facts.
    """

    attached_names: ClassVar[frozenset[str]] = ATTACHED_ATTRIBUTES
    """Names that the loader attaches to a PyG batch; features of these names are refused."""
    reads_both_sides: ClassVar[bool] = False
    """Whether the loader also reads edges against the direction of sampling."""
    dataset: range = range(0)
    """Positions of the seeds of an epoch over all ranks, as in PyG; their number is what trainers read."""
    _setup: LoaderSetup
    _recipe: Recipe
    _ahead: SamplingAhead[Fetch] | None = None
    _closer: Callable[[], object] = staticmethod(lambda: None)
    _own_maker: Callable[[], Maker]
    _idle_makers: deque[BatchMaker[Any]]

    def _open(self, source: Source | BatchService, direction: Direction, settings: LoadSettings) -> LoaderSetup:
        """Open the source, and register that it is closed with the loader."""
        if is_in_memory(source):
            sides: Sides = "both" if self.reads_both_sides else direction
            source, settings = _open_graph(source, sides, settings), replace(settings, cache_bytes=None)
        setup = open_setup(source, direction, settings, self.attached_names)
        # Runs too when the loader is collected or the program ends: a connection must not outlive the interpreter.
        self._closer = weakref.finalize(self, setup.close)
        self._setup = setup
        return setup

    def _begin(self, order: SeedOrder, new_maker: Callable[[], Maker]) -> None:
        """Prepare epochs over the seeds of an order; the last step of a subclass's ``__init__``."""
        self.dataset = range(order.num_seeds)
        self._begin_steps(order.num_steps, new_maker)

    def _begin_steps(self, num_steps: int, new_maker: Callable[[], Maker]) -> None:
        """Prepare epochs of a number of batches."""
        self._own_maker, self._idle_makers = new_maker, deque(maxlen=MAX_IDLE_MAKERS)
        session = self._setup.session
        if session is not None:
            session.prepare(self._recipe)
            new_maker = partial(self._setup.session_maker, SessionMaker, session)
        super().__init__(
            num_steps=num_steps, new_maker=new_maker, settings=self._setup.settings,
            explain=self._setup.store.explain_damage,
        )  # fmt: skip

    def close_source(self) -> None:
        """Close the source if the loader opened it; a second call does nothing."""
        self._closer()

    def _on_begin(self, epoch: int, step: int) -> None:
        settings, store, session = self._setup.settings, self._setup.store, self._setup.session
        num_ahead = 0
        if store.keeps_rows:
            num_ahead = settings.look_ahead
        elif store.asks_servers and session is None:
            num_ahead = min(settings.look_ahead, GROUP)
        if session is not None:
            session.begin(max(1, settings.num_threads) + settings.prefetch + num_ahead, epoch, step)
        if num_ahead:
            self._ahead = SamplingAhead(
                next_step=step,
                stop=self._num_steps,
                num_ahead=num_ahead,
                timeout_s=settings.timeout_s,
                group=GROUP if session is None else 1,
            )
            for maker in self._makers:
                cast(BatchFinisher, maker).ahead = self._ahead

    def _batch_of(self, index: ArrayLike) -> Any:
        """Make one batch of chosen seeds, in the caller's thread; see ``NeighborLoader.__call__``.

        Args:
            index: integer[n], positions of the seeds.

        Raises:
            IdRangeError: A position is outside ``[0, num_seeds)``.
            SettingsError: ``index`` is no list of integers, or empty.
        """
        if self._is_closed:
            raise StateError("the loader is closed; make a new one")
        self._check_process()
        chosen, settings = read_positions(index, len(self.dataset)), self._setup.settings
        inputs = self._inputs_of(ChosenOrder(num_seeds=len(self.dataset), settings=settings, chosen=chosen))
        try:
            maker = self._idle_makers.pop()
        except IndexError:
            maker = cast(BatchMaker[Any], self._own_maker())
        batch = maker.make_of(inputs, self.epoch)
        if maker.num_chosen <= MAX_IDLE_SIZE:  # a maker keeps memory in proportion to its largest batch
            self._idle_makers.append(maker)
        return batch if settings.transform is None else settings.transform(batch)

    def _inputs_of(self, order: SeedOrder) -> Any:
        """Return a maker's inputs for chosen seeds, which may repeat; for loaders that can be called."""
        raise NotImplementedError

    def _end_call(self) -> Callable[[], None]:
        ends = [one.end for one in (self._setup.session, self._ahead) if one is not None]

        def end() -> None:
            for one in ends:
                one()

        return end

    def maker(self) -> Maker:
        """Make a maker of any batch, independent of iterations; each thread needs its own."""
        setup = self._setup
        if setup.session is None:
            return super().maker()
        return setup.session_maker(LoneMaker, setup.session.beside())

    @property
    def batch_size(self) -> int:
        """Seeds per batch and rank."""
        return self._setup.settings.batch_size

    @property
    def num_workers(self) -> int:
        """Threads that make batches, by PyG's name for its worker processes."""
        return self._setup.settings.num_threads

    @property
    def schema(self) -> GraphSchema:
        """The graph's types and features."""
        return self._setup.store.schema

    @property
    def store(self) -> Store:
        """The store that batches come from; ``close`` closes it if the loader opened it."""
        return self._setup.store

    def close(self) -> None:
        """End the current iteration, and close the source if the loader opened it; a second call does nothing.

        The store is closed before the threads are joined, so that no thread waits for a server that hangs.

        Raises:
            StoreTimeout: A thread did not end in time.
        """
        self.stop("the loader was closed")
        try:
            self.close_source()
        finally:
            super().close()
            self._idle_makers.clear()


def open_setup(
    source: Source | BatchService,
    direction: Direction,
    settings: LoadSettings,
    attached_names: frozenset[str] = ATTACHED_ATTRIBUTES,
) -> LoaderSetup:
    """Open a loader's source and check its settings against it; close the source if a check fails.

    Args:
        source: Source of the batches.
        direction: The direction in which the loader follows edges.
        settings: The user's settings.
        attached_names: Names that the loader may attach to a PyG batch; features of these names are refused.

    Raises:
        SettingsError: A setting cannot be met; the message names the setting and a remedy.
        UnknownNameError: The graph has no such node type, edge type or feature.
        MissingDependencyError: ``collate="pyg"`` without torch and torch_geometric.
        FormatError: ``source`` is no dataset and no cluster file.
        StoreError: A server cannot be reached, or refused to answer.
    """
    settings = LoadSettings.within(settings)
    store, session, close = _open_source(source, settings)
    try:
        columns = choose_columns(store.schema, settings.node_features, settings.edge_features)
        wants_edge_keys = _wants_edge_keys(store, direction, settings.edge_keys)
        if settings.collate == "pyg":
            import_pyg("pyg").check_names(store.schema, columns, attached_names)
        convert, buffers = _collator(store.schema, settings)
        return LoaderSetup(
            settings=settings, direction=direction, store=store, session=session, close=close, columns=columns,
            wants_edge_keys=wants_edge_keys, convert=convert, buffers=buffers,
        )  # fmt: skip
    except BaseException:
        close()
        raise


def _open_graph(graph: MemorySource, sides: Sides, settings: LoadSettings) -> Store:
    """Open a graph in memory, with the times and weights by which the loader samples, if it does."""
    if settings.verify != "none":
        raise SettingsError(f"verify is {settings.verify!r}, but the source is a graph in memory; leave it out")
    return open_graph(
        graph, direction=sides, time_attr=getattr(settings, "time_attr", None),
        weight_attr=getattr(settings, "weight_attr", None),
    )  # fmt: skip


def _open_source(
    source: Source | BatchService, settings: LoadSettings
) -> tuple[Store, BatchSession | None, Callable[[], object]]:
    """Open the source: return its store, its batch session or None, and the function that closes both."""
    access, verify, rank, cache_bytes = (
        settings.store_settings, settings.verify, settings.own_rank, settings.cache_bytes,
    )  # fmt: skip
    if verify != "none" and isinstance(source, Store | BatchService):
        raise SettingsError(
            f"verify is {verify!r}, but the source is open already; verify the dataset where the source is opened"
        )
    if cache_bytes is not None and isinstance(source, Store | BatchService):
        raise SettingsError(
            f"cache_bytes is an option of the source: open it with StoreSettings(cache_bytes={cache_bytes})"
        )
    if isinstance(source, Store):
        return source, None, lambda: None
    if isinstance(source, BatchService):
        if access is not None:
            raise SettingsError(
                "store_settings is given, but a RemoteGraph has its own settings: RemoteGraph(…, settings=…)"
            )
        session = source.open(rank)
        return session.store, session, session.close
    check_source(source)
    if access is not None or rank > 0 or verify != "none" or cache_bytes is not None:
        # Imported late: it loads the network's libraries.
        from hopstream.store.settings import StoreSettings

        access = StoreSettings(first_replica=rank) if access is None else access
        access = access if verify == "none" else replace(access, verify=verify)
        access = access if cache_bytes is None else replace(access, cache_bytes=cache_bytes)
    store = open_store(source, access)
    return store, None, store.close


def _wants_edge_keys(store: Store, direction: Direction, edge_keys: bool | None) -> bool:
    check_choice("direction", direction, get_args(Direction))
    if direction not in store.directions:
        raise SettingsError(
            f"direction is {direction!r}; the dataset holds {'|'.join(store.directions)}; write the parts again with "
            f"direction {direction!r} or 'both', or open the graph in memory with it"
        )
    if edge_keys is False:
        return False
    has_edge_keys = keeps_edge_keys(store, direction)
    if edge_keys and not has_edge_keys:
        raise SettingsError("edge_keys=True, and the dataset keeps no edge keys; write the parts again with edge keys")
    return has_edge_keys


def _collator(schema: GraphSchema, settings: LoadSettings) -> tuple[Convert, Buffers]:
    """Choose the converter of batches and the allocator of their arrays."""
    kept, is_pinned = settings.buffer_bytes, settings.pin_memory
    pool = kept if isinstance(kept, BufferPool) else BufferPool(int(kept))
    if settings.collate == "numpy":
        return as_it_is, pool
    pyg = import_pyg("pyg")
    if is_pinned:
        pyg.check_can_pin()
    convert = partial(pyg.to_pyg, is_homogeneous=schema.is_homogeneous, is_pinned=is_pinned)
    return convert, pyg.PinnedBuffers() if is_pinned else pool


def import_pyg(name: str) -> ModuleType:
    """Import a module of this package that needs PyG.

    Raises:
        MissingDependencyError: torch or torch_geometric is not installed.
    """
    try:
        return import_module(f"hopstream.load.{name}")
    except ImportError as error:
        raise MissingDependencyError(
            f"collate='pyg' needs torch and torch_geometric ({error}); pip install 'hopstream[pyg]', or use "
            "collate='numpy'"
        ) from error
