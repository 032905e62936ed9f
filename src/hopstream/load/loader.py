"""How does a training script get mini-batches of sampled neighbourhoods?

``NeighborLoader`` is the door: it checks what the user asks for against the graph, and puts together what does the
work. No batch is made before the first iteration.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, Never, get_args

from hopstream.errors import MissingDependencyError, SettingsError
from hopstream.load.batch import BatchMaker, BatchSettings, Convert, MiniBatch, keeps_edge_keys
from hopstream.load.buffers import BufferPool, Buffers
from hopstream.load.columns import ColumnChoice, EdgeFeatures, NodeFeatures, choose_columns
from hopstream.load.epochs import EpochLoader, Transform
from hopstream.load.options import MAX_RNG_SEED, check_source, read_flag, read_integer, read_rank, refuse_unknown
from hopstream.load.order import Remainder, SeedOrder
from hopstream.load.place import Facts
from hopstream.load.seeds import SeedsLike, read_seeds
from hopstream.load.workers import WorkerSettings
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import NumNeighbors, SamplePlan, plan_from_num_neighbors
from hopstream.schema import Direction, GraphSchema
from hopstream.store import Source, open_store
from hopstream.store.contract import Store

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings

Collate = Literal["pyg", "numpy"]
DEFAULT_BUFFER_BYTES = 1 << 30


class NeighborLoader(EpochLoader):
    """Mini-batches of sampled neighbourhoods, as PyG's ``Data`` or ``HeteroData``.

    One iteration is one epoch, and the next iteration is the next epoch. Equal settings give bit-equal batches,
    whatever the number of threads, parts or servers, and after a resume.
    """

    def __init__(  # noqa: PLR0913 - the settings that users of PyG know, under the names they know
        self,
        source: Source,
        num_neighbors: NumNeighbors,
        seeds: SeedsLike = None,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        direction: Direction = "in",
        node_features: NodeFeatures = None,
        edge_features: EdgeFeatures = None,
        edge_keys: bool | None = None,
        transform: Transform | None = None,
        collate: Collate = "pyg",
        num_threads: int = 1,
        prefetch: int = 2,
        pin_memory: bool = False,
        timeout_s: float = 120.0,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        rank: int | None = None,
        world_size: int = 1,
        remainder: Remainder = "spread",
        rng_seed: int = 0,
        store_settings: StoreSettings | None = None,
        **unknown: Never,
    ) -> None:
        """Open the source and check every setting against it.

        Args:
            source: A dataset folder, a ``cluster.json``, an address such as ``grpc://host:7001``, or an open store.
                What the loader opens, it closes.
            num_neighbors: Neighbours per hop, for all edge types or per edge type; -1 means all.
            seeds: Nodes to start from: None (all), a split, integer keys or a bool mask; in a graph of several node
                types with the type in front, as in ``("paper", "train")``. A node type alone means all of its nodes.
            batch_size: Seeds per batch and rank.
            shuffle: Visit the seeds in a new order each epoch.
            drop_last: Leave out batches that would be smaller than ``batch_size``.
            replace: Draw neighbours with replacement.
            direction: ``in`` follows edges backwards, as message passing needs it; ``out`` forwards.
            node_features: Node features to fetch: None (all), names, or node type to names.
            edge_features: Edge features to fetch: None (all), names, or edge type to names.
            edge_keys: Bring original edge keys as ``e_id``; None means where the dataset keeps them.
            transform: Called with each batch, in the thread that made it; what it returns is what you get.
            collate: ``pyg`` for ``Data`` or ``HeteroData``, ``numpy`` for ``MiniBatch`` (needs no torch).
            num_threads: Threads that make whole batches; 0 means the caller's.
            prefetch: Finished batches that may wait, beyond one per thread.
            pin_memory: Put tensors into page-locked memory, from which copies to a GPU run beside computation.
            timeout_s: How long to wait for a batch before saying what hangs.
            buffer_bytes: Memory of past batches that is kept for the next ones. Without effect where ``pin_memory`` is
                True: torch keeps page-locked memory itself.
            rank: This process among those that share each epoch; needed where they are several.
            world_size: How many they are.
            remainder: How ranks come to the same number of steps: ``spread`` (every seed once; the last batches are
                smaller, on all ranks alike), ``pad`` (some batches twice), ``drop`` (some seeds not at all), or
                ``uneven`` (they do not).
            rng_seed: Of the order and of all draws.
            store_settings: Deadline, token and certificates, where servers are asked. Without them, each rank prefers
                another replica.
            unknown: None; options of PyG's loader that are called otherwise here are refused by name.

        Raises:
            SettingsError: A setting that cannot be met; the message says which, and what can be done.
            UnknownNameError: A node type, edge type, split or feature that the graph does not have.
            IdRangeError: A seed outside 0..n-1 of its node type.
            MissingDependencyError: ``collate="pyg"`` without torch and torch_geometric.
            FormatError: ``source`` is no dataset and no cluster file.
            StoreError: A server cannot be reached, or refused to answer.
        """
        refuse_unknown(unknown)
        workers = WorkerSettings(
            num_threads=read_integer("num_threads", num_threads, 0), prefetch=read_integer("prefetch", prefetch, 0),
            timeout_s=timeout_s,
        )  # fmt: skip
        batch_size, buffer_bytes = (
            read_integer("batch_size", batch_size, 1),
            read_integer("buffer_bytes", buffer_bytes, 0),
        )
        rng_seed = read_integer("rng_seed", rng_seed, 0, MAX_RNG_SEED)
        rank, world_size = read_rank(rank, world_size)
        shuffle, drop_last = read_flag("shuffle", shuffle), read_flag("drop_last", drop_last)
        replace, pin_memory = read_flag("replace", replace), read_flag("pin_memory", pin_memory)
        edge_keys = None if edge_keys is None else read_flag("edge_keys", edge_keys)
        if transform is not None and not callable(transform):
            raise SettingsError(f"transform is {transform!r}; it must be a function that takes a batch, or None")
        self._seed_fingerprint: str | None = None
        self._direction = direction
        self._store, close = _open(source, store_settings, rank)
        # Also runs when the loader is collected or the program ends: a connection must not outlive the interpreter.
        self._closer = weakref.finalize(self, close)
        try:
            found = read_seeds(self._store, seeds)
            order = SeedOrder(
                num_seeds=found.num_seeds, batch_size=batch_size, is_shuffled=shuffle, drop_last=drop_last,
                rng_seed=rng_seed, rank=rank, world_size=world_size, remainder=remainder,
            )  # fmt: skip
            columns = choose_columns(self.schema, node_features, edge_features)
            wants_edge_keys = _wants_edge_keys(self._store, direction, edge_keys)
            self._settings = BatchSettings(seeds=found, order=order, columns=columns, wants_edge_keys=wants_edge_keys)
            self._plan = plan_from_num_neighbors(
                self.schema, num_neighbors, found.node_type, direction=direction, is_replacing=replace,
                wants_edge_ids=wants_edge_keys or columns.has_edge_features,
            )  # fmt: skip
            convert, buffers = _collator(self.schema, columns, collate, pin_memory, buffer_bytes)
            new_maker = partial(_new_maker, self._store, self._plan, self._settings, buffers, convert)
            super().__init__(num_steps=order.num_steps, new_maker=new_maker, transform=transform, workers=workers)
        except BaseException:
            self._closer()
            raise

    @property
    def schema(self) -> GraphSchema:
        """The graph's types and features."""
        return self._store.schema

    @property
    def store(self) -> Store:
        """The store that batches come from; the loader closes it if the loader opened it."""
        return self._store

    def facts(self) -> Facts:
        """What decides over the batches: a saved state is refused where one of them differs."""
        order = self._settings.order
        if self._seed_fingerprint is None:
            self._seed_fingerprint = self._settings.seeds.fingerprint()
        return {
            "graph_id": self._store.graph_id,
            "seeds": self._seed_fingerprint,
            "num_neighbors": {op.name: op.count for op in self._plan.ops},
            "direction": self._direction,
            "replace": self._plan.is_replacing,
            "batch_size": order.batch_size,
            "shuffle": order.is_shuffled,
            "drop_last": order.drop_last,
            "world_size": order.world_size,
            "remainder": order.remainder,
            "rng_seed": order.rng_seed,
        }

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

    def __repr__(self) -> str:
        """The loader in one line."""
        order, seeds = self._settings.order, self._settings.seeds
        return (
            f"NeighborLoader({seeds.num_seeds} seeds ({seeds.name}), batch_size={order.batch_size}, "
            f"{len(self)} batches on rank {order.rank} of {order.world_size})"
        )


def _open(source: Source, settings: StoreSettings | None, rank: int) -> tuple[Store, Callable[[], object]]:
    """The store, and what to call when the loader is done with it."""
    if isinstance(source, Store):
        return source, lambda: None
    check_source(source)
    if settings is not None or rank > 0:
        # Imported when it is needed: it brings the network's libraries.
        from hopstream.store.settings import StoreSettings

        settings = StoreSettings(first_replica=rank) if settings is None else settings
        if not isinstance(settings, StoreSettings):
            raise SettingsError(f"store_settings is {settings!r}; it must be a StoreSettings, or None")
    store = open_store(source, settings)
    return store, store.close


def _wants_edge_keys(store: Store, direction: Direction, edge_keys: bool | None) -> bool:
    if direction not in get_args(Direction):
        raise SettingsError(f"direction is {direction!r}; choose one of {', '.join(get_args(Direction))}")
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


def _new_maker(
    store: Store, plan: SamplePlan, settings: BatchSettings, buffers: Buffers, convert: Convert
) -> BatchMaker:
    return BatchMaker(store, PlanRunner(store, plan), settings, buffers, convert)


def _collator(
    schema: GraphSchema, columns: ColumnChoice, collate: Collate, pin_memory: bool, buffer_bytes: int
) -> tuple[Convert, Buffers]:
    """What a batch is turned into, and where its arrays come from."""
    if collate not in get_args(Collate):
        raise SettingsError(f"collate is {collate!r}; choose one of {', '.join(get_args(Collate))}")
    if collate == "numpy":
        if pin_memory:
            raise SettingsError("pin_memory=True pins torch tensors; use it with collate='pyg'")
        return _as_it_is, BufferPool(buffer_bytes)
    try:
        from hopstream.load import pyg
    except ImportError as error:
        raise MissingDependencyError(
            f"collate='pyg' needs torch and torch_geometric ({error}); pip install 'hopstream[pyg]', or use "
            "collate='numpy'"
        ) from error
    pyg.check_names(schema, columns)
    if pin_memory:
        pyg.check_can_pin()
    buffers = pyg.PinnedBuffers() if pin_memory else BufferPool(buffer_bytes)
    return partial(pyg.to_pyg, is_homogeneous=schema.is_homogeneous, is_pinned=pin_memory), buffers


def _as_it_is(batch: MiniBatch) -> MiniBatch:
    return batch
