"""How does a training script get mini-batches of sampled neighbourhoods?

``NeighborLoader`` is the door: it checks what the user asks for against the graph, and puts together what does the
work. No batch is made before the first iteration.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Never

from numpy.typing import ArrayLike

from hopstream.dataset.spot_check import Verify
from hopstream.errors import SettingsError
from hopstream.load.buffers import BufferPool
from hopstream.load.columns import EdgeFeatures, NodeFeatures
from hopstream.load.epochs import Transform
from hopstream.load.nodes import NodeInputs, NodeMaker
from hopstream.load.options import refuse_data, refuse_unknown
from hopstream.load.order import Remainder
from hopstream.load.place import Facts
from hopstream.load.service import BatchService, remembers_recipe
from hopstream.load.setup import DEFAULT_BUFFER_BYTES, Collate, LoaderOptions, LoaderSetup, SubgraphLoader
from hopstream.load.times import read_seed_times
from hopstream.sample.hops import PlanRunner
from hopstream.sample.options import (
    Drawing,
    ReverseTypes,
    Sampling,
    SamplingOptions,
    TemporalStrategy,
    check_options,
)
from hopstream.sample.plan import NumNeighbors, SamplePlan, SubgraphType
from hopstream.sample.seeds import SeedsLike, read_seeds
from hopstream.schema import Direction
from hopstream.store import Source
from hopstream.store.contract import MAX_TREES

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings


class NeighborLoader(SubgraphLoader):
    """Mini-batches of sampled neighbourhoods, as PyG's ``Data`` or ``HeteroData``.

    One iteration is one epoch, and the next iteration is the next epoch. Equal settings give bit-equal batches,
    whatever the number of threads, parts or servers, and after a resume.
    """

    attached_names: ClassVar[frozenset[str]] = frozenset()

    @refuse_data
    @remembers_recipe
    def __init__(  # noqa: PLR0913 - the settings that users of PyG know, under the names they know
        self,
        source: Source | BatchService,
        num_neighbors: NumNeighbors,
        seeds: SeedsLike = None,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        direction: Direction = "in",
        disjoint: bool = False,
        time_attr: str | None = None,
        input_time: ArrayLike | None = None,
        temporal_strategy: TemporalStrategy = "uniform",
        time_inclusive: bool = True,
        weight_attr: str | None = None,
        sampling: Drawing | None = None,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        subgraph_type: SubgraphType = "directional",
        reverse_types: ReverseTypes | None = None,
        node_features: NodeFeatures = None,
        edge_features: EdgeFeatures = None,
        edge_keys: bool | None = None,
        transform: Transform | None = None,
        collate: Collate = "pyg",
        num_threads: int = 1,
        prefetch: int = 2,
        pin_memory: bool = False,
        timeout_s: float = 120.0,
        buffer_bytes: int | BufferPool = DEFAULT_BUFFER_BYTES,
        rank: int | None = None,
        world_size: int = 1,
        remainder: Remainder = "spread",
        rng_seed: int = 0,
        verify: Verify = "none",
        store_settings: StoreSettings | None = None,
        **unknown: Never,
    ) -> None:
        """Open the source and check every setting against it.

        Args:
            source: A dataset folder, a ``cluster.json``, an address such as ``grpc://host:7001``, or an open store.
                What the loader opens, it closes.
            num_neighbors: Neighbours per hop, for all edge types or per edge type; -1 means all. What
                ``hold_out_links`` made is followed only where it is named.
            seeds: Nodes to start from: None (all), a split, integer[n] keys or a bool[num_nodes] mask; in a graph of
                several node types with the type in front, as in ``("paper", "train")``. A node type alone means all of
                its nodes.
            batch_size: Seeds per batch and rank.
            shuffle: Visit the seeds in a new order each epoch.
            drop_last: Leave out batches that would be smaller than ``batch_size``.
            replace: Draw neighbours with replacement; with ``sampling`` ``uniform`` or ``weighted``.
            direction: ``in`` follows edges backwards, as message passing needs it; ``out`` forwards.
            disjoint: Every seed, repeated or not, grows a tree of its own: no node is shared between trees, and
                ``batch`` int64[num_nodes] says which seed a node belongs to.
            time_attr: The feature that holds times, with which the dataset was written. An edge's time is its own, or
                that of the neighbour it leads to, or the later of the two; an edge without either is never left out.
                Only edges up to a seed's time are followed, and trees are disjoint. None: times do not matter.
            input_time: integer[num_seeds], the time of each seed in the order of ``seeds``. None means the seeds' own
                ``time_attr``, which nodes of their type must have then. Batches carry it as ``seed_time``.
            temporal_strategy: ``uniform`` draws among the edges up to the seed's time, ``last`` takes the latest.
            time_inclusive: Edges at exactly the seed's time are followed too.
            weight_attr: The edge feature that holds weights, with which the dataset was written. Edge types without it
                are drawn uniformly. None: weights do not matter.
            sampling: How neighbours are chosen: ``uniform`` (the default), ``weighted`` (the default with
                ``weight_attr``: by successive draws in proportion to weight), ``top_k`` (the largest weights), or
                ``labor``: as ``uniform`` for each node, but so that the nodes of a batch find the same neighbours where
                they can; parallel edges are drawn together, and of too many of them any.
            layer_dependency: With ``labor``: choose by the same order of nodes in all hops.
            batch_dependency: With ``labor``: let that order change slowly, over so many batches; 1 means a new one per
                batch.
            subgraph_type: Edges of a batch: ``directional`` (those drawn), ``bidirectional`` (and the reverse of each),
                or ``induced`` (all between the nodes found, of followed and of other edge types). Only the first has
                ``num_sampled_edges``.
            reverse_types: With ``bidirectional``: edge type to the one that holds its reverses. Not needed for
                ``("a", "r", "b")`` with ``("b", "rev_r", "a")``, nor for an edge type between nodes of one type, which
                is its own.
            node_features: Node features to fetch: None (all), names, or node type to names.
            edge_features: Edge features to fetch: None (all), names, or edge type to names.
            edge_keys: Bring original edge keys as ``e_id``; None means where the dataset keeps them.
            transform: Called with each batch, in the thread that made it; what it returns is what you get.
            collate: ``pyg`` for ``Data`` or ``HeteroData``, ``numpy`` for ``MiniBatch`` (needs no torch).
            num_threads: Threads that make whole batches; 0 means the caller's.
            prefetch: Finished batches that may wait, beyond one per thread.
            pin_memory: Put tensors into page-locked memory, from which copies to a GPU run beside computation.
            timeout_s: How long to wait for a batch before saying what hangs.
            buffer_bytes: Memory of past batches that is kept for the next ones, or a pool that loaders share. Without
                effect where ``pin_memory`` is True: torch keeps page-locked memory itself.
            rank: This process among those that share each epoch; needed where they are several.
            world_size: How many they are.
            remainder: How ranks come to the same number of steps: ``spread`` (every seed once; the last batches are
                smaller, on all ranks alike), ``pad`` (some batches twice), ``drop`` (some seeds not at all), or
                ``uneven`` (they do not).
            rng_seed: Of the order and of all draws.
            verify: How much of the dataset's files is checked first, where they are on this machine: nothing, a
                ``sample`` of blocks of every file (less than a second for up to some thousand files), or everything
                (``full``).
            store_settings: Deadline, token and certificates, where servers are asked. Without them, each rank prefers
                another replica.
            unknown: None; options of PyG's loader that are called otherwise here are refused by name.

        Raises:
            SettingsError: A setting that cannot be met; the message says which, and what can be done.
            UnknownNameError: A node type, edge type, split or feature that the graph does not have.
            IdRangeError: A seed outside 0..n-1 of its node type.
            MissingDependencyError: ``collate="pyg"`` without torch and torch_geometric.
            FormatError: ``source`` is no dataset and no cluster file, or ``verify`` found damage.
            ChecksumError: ``verify`` found a file that is not the one that was written.
            StoreError: A server cannot be reached, or refused to answer.
        """
        refuse_unknown(NeighborLoader, unknown, ())
        options = check_options(
            SamplingOptions(
                replace=replace, direction=direction, disjoint=disjoint, time_attr=time_attr,
                temporal_strategy=temporal_strategy, time_inclusive=time_inclusive, weight_attr=weight_attr,
                sampling=sampling, layer_dependency=layer_dependency, batch_dependency=batch_dependency,
                subgraph_type=subgraph_type, reverse_types=reverse_types,
            )
        )  # fmt: skip
        if reverse_types is not None and options["subgraph_type"] != "bidirectional":
            raise SettingsError("reverse_types is an option of subgraph_type='bidirectional'; leave it out")
        setup = self._open(
            source, direction,
            LoaderOptions(
                batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, node_features=node_features,
                edge_features=edge_features, edge_keys=edge_keys, transform=transform, collate=collate,
                num_threads=num_threads, prefetch=prefetch, pin_memory=pin_memory, timeout_s=timeout_s,
                buffer_bytes=buffer_bytes, rank=rank, world_size=world_size, remainder=remainder, rng_seed=rng_seed,
                verify=verify, store_settings=store_settings,
            ),
        )  # fmt: skip
        self._fingerprints: dict[str, str | None] | None = None
        try:
            self._inputs = _read_inputs(setup, options, seeds, input_time)
            node_type = self._inputs.seeds.node_type
            self._plan = self._inputs.sampling.plan(num_neighbors, (node_type,), setup.wants_edge_ids)
            self._begin(self._inputs.order.num_steps, partial(_new_maker, setup, self._plan, self._inputs))
        except BaseException:
            self._closer()
            raise

    def facts(self) -> Facts:
        """What decides over the batches: a saved state is refused where one of them differs."""
        if self._fingerprints is None:
            times = self._inputs.times
            given = None if times is None else times.fingerprint()
            self._fingerprints = {"seeds": self._inputs.seeds.fingerprint(), "input_time": given}
        return {
            **self._setup.facts(),
            **self._inputs.sampling.facts(),
            **self._fingerprints,
            "num_neighbors": {op.name: op.count for op in self._plan.ops},
        }

    def __repr__(self) -> str:
        """The loader in one line."""
        order, seeds = self._inputs.order, self._inputs.seeds
        return (
            f"NeighborLoader({seeds.num_seeds} seeds ({seeds.name}), batch_size={order.batch_size}, "
            f"{len(self)} batches on rank {order.rank} of {order.world_size})"
        )


def _read_inputs(
    setup: LoaderSetup, options: SamplingOptions, seeds: SeedsLike, input_time: ArrayLike | None
) -> NodeInputs:
    """Check against the open store what the loader starts from and how it draws."""
    sampling = Sampling.of(setup.store, options)
    if sampling.is_disjoint and setup.batch_size > MAX_TREES:
        raise SettingsError(f"batch_size is {setup.batch_size}; with a tree per seed it may be {MAX_TREES} at most")
    found = read_seeds(setup.store, seeds)
    return NodeInputs(
        seeds=found,
        order=setup.order(found.num_seeds),
        sampling=sampling,
        times=read_seed_times(setup.store, sampling, found, input_time),
    )


def _new_maker(setup: LoaderSetup, plan: SamplePlan, inputs: NodeInputs) -> NodeMaker:
    return NodeMaker(PlanRunner(setup.store, plan), setup.reader(), inputs, setup.convert)
