"""Loader of links with the neighbourhoods of their ends.

``LinkNeighborLoader`` checks its arguments against the graph. It makes no batch before the first iteration.

One thread makes a whole batch: it finds the ends of the links, draws negatives, runs the plan from all ends and fetches
all columns. Slots of the ends and labels are attributes of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hopstream.arrays import Array, IntArray
from hopstream.checks import did_you_mean
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.graph.graph import Subgraph
from hopstream.load.batch import BatchMaker, SeedBatch
from hopstream.load.epochs import Facts
from hopstream.load.link_inputs import LinkInputs, LinksLike, read_link_inputs
from hopstream.load.load_settings import LoadSettings, SampledGraph
from hopstream.load.loader_arguments import PYG_OPTIONS, takes
from hopstream.load.order import SeedOrder, SeedWeights
from hopstream.load.setup import LoaderSetup, SubgraphLoader
from hopstream.sample.negative_pairs import NegativeSampler, Positives
from hopstream.sample.negatives import NegativeSampling, read_negative_sampling
from hopstream.sample.plan import SeedNodes
from hopstream.sample.sampling import Sampling
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import EdgeType, type_label
from hopstream.store.contract import MAX_TREES, Links, Store


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTask:
    """Inputs of a loader of links.

    Attributes:
        store: The store of the links.
        inputs: The links; their labels are final.
        order: Assigns links to batches.
        sampling: How neighbourhoods are sampled.
        negatives: Sampler of negatives, or None.
        excluded: Edge types with the links of a batch (False) or their reverses (True), which must not be followed.
    """

    store: Store
    inputs: LinkInputs
    order: SeedOrder
    sampling: Sampling
    negatives: NegativeSampler | None
    excluded: tuple[tuple[EdgeType, bool], ...]

    @property
    def is_triplet(self) -> bool:
        """Whether batches hold triplets instead of labelled pairs."""
        return self.negatives is not None and self.negatives.how.mode == "triplet"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ends:
    """Ends of a batch's links as seeds, positives first.

    Attributes:
        keys: Node type to int64[n] keys of seeds.
        src_slots: int64[num_sources], slots of sources: positives, then negatives; triplets have only positives.
        dst_slots: int64[num_destinations], slots of destinations: positives, then negatives.
        trees: Node type to int64[n], the tree of each seed; None if trees are not disjoint.
        num_trees: Upper bound of tree numbers, exclusive.
    """

    keys: Mapping[str, IntArray]
    src_slots: IntArray
    dst_slots: IntArray
    trees: Mapping[str, IntArray] | None = None
    num_trees: int = 0


class LinkMaker(BatchMaker[LinkTask]):
    """Maker of batches of neighbourhoods of links."""

    def _start(self, epoch: int, step: int) -> SeedBatch:
        task, settings = self._inputs, self._inputs.sampling.settings
        span = task.order.span(step)
        positions = task.order.positions(epoch, span)
        rng_seed = task.order.batch_seed(epoch, span)
        self.stage = "finding the ends of links"
        links = task.inputs.links_at(task.store, positions)
        negatives, times = np.empty((2, 0), np.int64), links.times if settings.is_temporal else None
        if task.negatives is not None:
            self.stage = "drawing negatives"
            positives = Positives(src_keys=links.src_keys, dst_keys=links.dst_keys, times=times)
            negatives = task.negatives.draw(positives, rng_seed)
        src_keys = links.src_keys if task.is_triplet else np.concatenate([links.src_keys, negatives[0]])
        dst_keys = np.concatenate([links.dst_keys, negatives[1]])
        ends = (
            self._trees(src_keys, dst_keys, len(positions)) if settings.is_disjoint else self._joint(src_keys, dst_keys)
        )
        self.stage = "looking up seeds"
        ids = {node_type: self._reader.ids_of(node_type, keys) for node_type, keys in ends.keys.items()}
        return SeedBatch(
            index=span.index,
            seeds=SeedNodes(
                ids=ids,
                rng_seed=rng_seed,
                trees=ends.trees,
                times=None if times is None else np.resize(times, ends.num_trees),
                excluded=self._excluded(ids, ends, len(positions)),
                labor=task.sampling.labor_seeds(task.order.settings.rng_seed, epoch, span.index),
            ),
            seed_type=task.inputs.edge_type,
            input_ids=positions,
            attributes=self._attributes(links, ends, positions),
            arrange=None if ends.trees is None else partial(_number_trees_by_link, num_links=len(positions)),
        )

    def _joint(self, src_keys: IntArray, dst_keys: IntArray) -> _Ends:
        """Make seeds of the distinct nodes, in order of first occurrence, sources first."""
        src_type, _, dst_type = self._inputs.inputs.edge_type
        if src_type == dst_type:
            keys, slots = self._slot_map.number(np.concatenate([src_keys, dst_keys]))
            return _Ends(keys={src_type: keys}, src_slots=slots[: len(src_keys)], dst_slots=slots[len(src_keys) :])
        distinct_src, src_slots = self._slot_map.number(src_keys)
        distinct_dst, dst_slots = self._slot_map.number(dst_keys)
        return _Ends(keys={src_type: distinct_src, dst_type: distinct_dst}, src_slots=src_slots, dst_slots=dst_slots)

    def _trees(self, src_keys: IntArray, dst_keys: IntArray, num_links: int) -> _Ends:
        """Give every end a tree of its own; the tree's number modulo ``num_links`` is the end's link."""
        src_type, _, dst_type = self._inputs.inputs.edge_type
        num_src, num_dst = len(src_keys), len(dst_keys)
        first_dst = -(-num_src // num_links) * num_links
        src_trees = np.arange(num_src, dtype=np.int64)
        dst_trees = np.arange(first_dst, first_dst + num_dst, dtype=np.int64)
        if src_type == dst_type:
            keys = {src_type: np.concatenate([src_keys, dst_keys])}
            trees = {src_type: np.concatenate([src_trees, dst_trees])}
            dst_slots = np.arange(num_src, num_src + num_dst, dtype=np.int64)
        else:
            keys = {src_type: src_keys, dst_type: dst_keys}
            trees = {src_type: src_trees, dst_type: dst_trees}
            dst_slots = np.arange(num_dst, dtype=np.int64)
        return _Ends(keys=keys, src_slots=src_trees, dst_slots=dst_slots, trees=trees, num_trees=first_dst + num_dst)

    def _excluded(self, ids: Mapping[str, IntArray], ends: _Ends, num_links: int) -> dict[EdgeType, IntArray]:
        """Return the pairs of ids between which no edge is followed: the ends of the batch's positives."""
        src_type, _, dst_type = self._inputs.inputs.edge_type
        found: dict[EdgeType, IntArray] = {}
        for edge_type, is_reverse in self._inputs.excluded:
            pairs = np.stack([ids[src_type][ends.src_slots[:num_links]], ids[dst_type][ends.dst_slots[:num_links]]])
            pairs = pairs[::-1] if is_reverse else pairs
            found[edge_type] = np.concatenate([found[edge_type], pairs], axis=1) if edge_type in found else pairs
        return {edge_type: np.ascontiguousarray(pairs) for edge_type, pairs in found.items()}

    def _attributes(
        self, links: Links, ends: _Ends, positions: IntArray
    ) -> dict[str | EdgeType | None, dict[str, Array]]:
        num_links = len(positions)
        times = links.times if self._inputs.sampling.settings.is_temporal else None
        if self._inputs.is_triplet:
            return self._triplets(ends, num_links, times)
        attributes: dict[str, Array] = {"edge_label_index": np.stack([ends.src_slots, ends.dst_slots])}
        labels = self._labels(positions, len(ends.src_slots) - num_links)
        if labels is not None:
            attributes["edge_label"] = labels
        if times is not None:
            attributes["edge_label_time"] = np.resize(times, len(ends.src_slots))
        return {self._inputs.inputs.edge_type: attributes}

    def _labels(self, positions: IntArray, num_negatives: int) -> Array | None:
        """Return labels of positives (default 1), then zeros for negatives; None without labels and negatives."""
        given = self._inputs.inputs.labels
        if given is None and self._inputs.negatives is None:
            return None
        labels = np.ones(len(positions), np.float32) if given is None else given[positions]
        return np.concatenate([labels, np.zeros((num_negatives, *labels.shape[1:]), labels.dtype)])

    def _triplets(
        self, ends: _Ends, num_links: int, times: IntArray | None
    ) -> dict[str | EdgeType | None, dict[str, Array]]:
        src_type, _, dst_type = self._inputs.inputs.edge_type
        # Negative k belongs to link k % num_links.
        negatives = np.ascontiguousarray(ends.dst_slots[num_links:].reshape(-1, num_links).T)
        found: dict[str | EdgeType | None, dict[str, Array]] = {src_type: {}, dst_type: {}}
        found[src_type]["src_index"] = ends.src_slots
        found[dst_type]["dst_pos_index"] = ends.dst_slots[:num_links]
        found[dst_type]["dst_neg_index"] = negatives[:, 0] if negatives.shape[1] == 1 else negatives
        if times is not None:
            for attributes in found.values():
                attributes["seed_time"] = times
        return found


def _number_trees_by_link(subgraph: Subgraph, num_links: int) -> Subgraph:
    """Number the trees of a link's ends and of its negatives by the link, as PyG does."""
    trees = {node_type: of % num_links for node_type, of in (subgraph.trees or {}).items()}
    return replace(subgraph, trees=trees)


_LINKS = "links are chosen with edge_label_index=, shuffle=, rank= and world_size="
OTHER_OPTIONS: Mapping[str, str] = {
    **PYG_OPTIONS,
    "seeds": "links are given as edge_label_index=",
    "input_nodes": "links are given as edge_label_index=",
    "input_time": "the times of links are given as edge_label_time=",
    "neg_edge_label_index": "negatives are drawn: neg_sampling=; to give some, put them into edge_label_index= with "
    "an edge_label= of their own",
    "input_id": "batches have the positions of their links as input_id",
    "sampler": _LINKS,
    "batch_sampler": _LINKS,
    "link_sampler": _LINKS,
}
"""Refused options of other loaders to remedies."""
ExcludeLinks = bool | str | EdgeType | list[EdgeType] | list[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledLinks(SampledGraph):
    """Links whose ends' neighbourhoods are sampled.

    Attributes:
        edge_label_index: The links: int64[2, n] keys of sources and destinations, a pair of int64[n], the result of
            ``rank_links``, the name of an edge split, or None for all edges. In a graph of several edge types, put the
            type in front, as in ``(("user", "rates", "movie"), "train")``. An edge type alone means all of its edges.
            Splits and all edges need a dataset that keeps links.
    """

    edge_label_index: LinksLike = field(default=None, kw_only=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkArguments(LoadSettings, SamplingSettings, SampledLinks):
    """Arguments of ``LinkNeighborLoader``.

    Attributes:
        batch_size: Links per batch and rank, without negatives.
        edge_label: Numbers, one row per link. With binary negative sampling, 0 is the label of negatives: integer
            classes that start at 0 are raised by one.
        edge_label_time: An integer per link, or a datetime64 if the dataset states its ``time_unit``: the time at which
            its neighbourhood is sampled. Only with ``time_attr``, and required with it unless the dataset has the
            links' times. It overrides the dataset's times.
        neg_sampling: ``NegativeSampling``, its settings as a dict, ``"binary"`` or ``"triplet"``.
        neg_sampling_ratio: ``r`` means ``NegativeSampling("binary", r)``.
        exclude_links: Do not follow any edge between the ends of the batch's positives. True covers the edge type of
            the links and its reverse (see ``reverse_types``); ``"self"`` covers the edge type only. Both also cover the
            edge types that ``hold_out_links`` took the links from. One or several edge types name further edge types
            that hold the links or their reverses. Other edges are drawn in their place. With False and
            ``subgraph_type="induced"``, the links to predict are edges of the batch, even if their edge type has a
            fan-out of 0.
        seed_weights: real[num_links], 0 or more, one per link. Each epoch then draws as many links as there are, in
            proportion to their weights and with replacement; see ``NeighborLoader``. None takes every link once.
    """

    batch_size: int = field(default=1, kw_only=False)
    edge_label: ArrayLike | None = None
    edge_label_time: ArrayLike | None = None
    neg_sampling: NegativeSampling | Mapping[str, Any] | str | None = None
    neg_sampling_ratio: float | None = None
    exclude_links: ExcludeLinks = False
    seed_weights: SeedWeights = None


class LinkNeighborLoader(SubgraphLoader):
    """Mini-batches of links with their ends' neighbourhoods, as PyG's ``Data`` or ``HeteroData``.

    One iteration is one epoch, and the next iteration is the next epoch. Equal settings give bit-equal batches, for any
    number of threads, parts and servers, and after a resume.
    """

    attached_names: ClassVar[frozenset[str]] = frozenset(
        {"edge_label", "edge_label_index", "edge_label_time", "src_index", "dst_pos_index", "dst_neg_index"}
    )

    @takes(LinkArguments, OTHER_OPTIONS)
    def __init__(self, arguments: LinkArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting cannot be met; the message names the setting and a remedy.
            UnknownNameError: The graph has no such node type, edge type, split or feature.
            IdRangeError: A key is outside 0..n-1 of its node type.
            MissingDependencyError: ``collate="pyg"`` without torch and torch_geometric.
            FormatError: ``source`` is no dataset and no cluster file.
            StoreError: A server cannot be reached, or refused to answer.
        """
        how = read_negative_sampling(arguments.neg_sampling, arguments.neg_sampling_ratio)
        if how is not None and how.mode == "triplet" and arguments.edge_label is not None:
            raise SettingsError("triplets have no labels; leave edge_label out, or use binary negative sampling")
        if arguments.edge_label_time is not None and arguments.time_attr is None:
            raise SettingsError("edge_label_time needs time_attr=, the feature that holds times; give both")
        setup = self._open(arguments.source, arguments.direction, arguments)
        store = setup.store
        sampling = Sampling.of(store, arguments)
        inputs = read_link_inputs(store, arguments.edge_label_index, arguments.edge_label, arguments.edge_label_time)
        order = setup.order(inputs.num_links, arguments.seed_weights)
        self._task = _new_task(setup, sampling, inputs, order, how, arguments.exclude_links)
        seed_types = tuple(dict.fromkeys((inputs.edge_type[0], inputs.edge_type[2])))
        self._plan = sampling.plan(arguments.num_neighbors, seed_types, setup.wants_edge_ids)
        self._begin(self._task.order, partial(setup.maker, LinkMaker, self._plan, self._task))

    def facts(self) -> Facts:
        """Return settings and inputs that determine the batches; a saved state with other facts is refused."""
        task = self._task
        return {
            **self._setup.facts(),
            **task.sampling.facts(),
            **task.inputs.fingerprints(),
            "num_neighbors": {op.name: op.count for op in self._plan.ops},
            "neg_sampling": None if task.negatives is None else task.negatives.how.facts(),
            "exclude_links": _excluded_facts(task.excluded),
            "seed_weights": task.order.fingerprint(),
        }

    def __call__(self, index: ArrayLike) -> Any:
        """Make one batch of chosen links, in the caller's thread; see ``NeighborLoader.__call__``.

        Args:
            index: integer[n], positions of the links in ``edge_label_index``, as in PyG.

        Returns:
            A batch as the iteration gives it, after ``transform``.

        Raises:
            IdRangeError: A position is outside 0..num_links-1.
            SettingsError: ``index`` is empty, or no list of integers.
        """
        return self._batch_of(index)

    def _inputs_of(self, order: SeedOrder) -> LinkTask:
        return replace(self._task, order=order)

    def __repr__(self) -> str:
        """Return a description of the loader in one line."""
        order, inputs = self._task.order, self._task.inputs
        return (
            f"LinkNeighborLoader({inputs.num_links} links ({inputs.name}), batch_size={order.settings.batch_size}, "
            f"{len(self)} batches on {order.settings.rank_text})"
        )


def raise_labels(labels: Array) -> Array:
    """Free the label 0 for negatives: raise integer classes that start at 0 by one.

    Raises:
        SettingsError: Labels hold 0 and cannot be raised: floats, negative integers, or the dtype's largest value.
    """
    if not bool((labels == 0).any()):
        return labels
    if labels.dtype.kind not in "iu" or int(labels.min()) < 0:
        kind = "float labels" if labels.dtype.kind == "f" else "labels with values below 0"
        raise SettingsError(
            f"edge_label contains 0, which is the label of negatives, and {kind} are not incremented; give integer "
            "classes from 0 (they are incremented by 1), or labels without 0"
        )
    if int(labels.max()) == np.iinfo(labels.dtype).max:
        raise SettingsError(
            f"edge_label goes up to {int(labels.max())}, so it cannot be incremented by 1 in {labels.dtype}; use a "
            "wider integer dtype"
        )
    raised: Array = labels + labels.dtype.type(1)
    return raised


def read_excluded(edge_type: EdgeType, given: ExcludeLinks, sampling: Sampling) -> tuple[tuple[EdgeType, bool], ...]:
    """Find the edge types that hold the excluded links (False) or their reverses (True).

    Raises:
        SettingsError: An edge type joins other node types than the links do.
        UnknownNameError: The graph has no such edge type.
    """
    if isinstance(given, bool | np.bool_):
        return sampling.places_of_links(edge_type) if given else ()
    if isinstance(given, str) and given == "self":
        taken_from = sampling.schema.label_types.get(edge_type, ())
        return ((edge_type, False), *((t, False) for t in taken_from[:1]))
    one = sampling.schema.find_edge_type(given)
    named = [one] if one is not None else list(given) if isinstance(given, (list, tuple)) else [given]
    if not named:
        raise SettingsError(f"exclude_links is {given!r}; name edge types, or give True, 'self', or False for none")
    excluded = [(edge_type, False)]
    for name in named:
        other = sampling.schema.find_edge_type(name)
        if other is None:
            known = list(map(type_label, sampling.schema.edges))
            raise UnknownNameError(
                f"exclude_links is {given!r}; give True, False, 'self' or edge types out of {', '.join(known)}"
                f"{did_you_mean(name, [*known, 'self'])}"
            )
        sides = _sides(edge_type, other)
        if not sides:
            raise SettingsError(
                f"exclude_links names {type_label(other)}, which does not connect {edge_type[0]!r} and "
                f"{edge_type[2]!r}, so it has neither links of {type_label(edge_type)} nor their reverses; leave it out"
            )
        excluded += sides
    return tuple(dict.fromkeys(excluded))


def _sides(edge_type: EdgeType, other: EdgeType) -> list[tuple[EdgeType, bool]]:
    """Match the other edge type's node types to the links', forwards (False), backwards (True) or both."""
    ends = (edge_type[0], edge_type[2])
    return [(other, is_back) for is_back, given in ((False, other[::2]), (True, other[::-2])) if given == ends]


def _excluded_facts(excluded: tuple[tuple[EdgeType, bool], ...]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for edge_type, is_reverse in excluded:
        label = type_label(edge_type)
        facts[label] = "both" if label in facts else "reverses" if is_reverse else "links"
    return facts


def _new_task(
    setup: LoaderSetup, sampling: Sampling, inputs: LinkInputs, order: SeedOrder, how: NegativeSampling | None,
    exclude: ExcludeLinks,
) -> LinkTask:  # fmt: skip
    store = setup.store
    check_link_times(store, sampling, inputs)
    settings, negatives = sampling.settings, None
    if how is not None:
        negatives = NegativeSampler(store, inputs.edge_type, settings.direction, how, settings.time_attr)
        if inputs.labels is not None:
            inputs = replace(inputs, labels=raise_labels(inputs.labels))
    check_num_trees(sampling, setup.settings.batch_size, how)
    return LinkTask(
        store=store,
        inputs=inputs,
        order=order,
        sampling=sampling,
        negatives=negatives,
        excluded=read_excluded(inputs.edge_type, exclude, sampling),
    )


def check_link_times(store: Store, sampling: Sampling, inputs: LinkInputs) -> None:
    """Raise ``SettingsError`` if sampling is temporal and links have no times."""
    time_attr = sampling.settings.time_attr
    if time_attr is None or inputs.times is not None:
        return
    if inputs.are_stored and time_attr in store.schema.edges[inputs.edge_type]:
        return
    known = f"edges of {type_label(inputs.edge_type)} have no {time_attr!r}"
    why = known if inputs.are_stored else "links given as keys have none"
    raise SettingsError(f"time_attr needs the times of links: {why}; give edge_label_time=, one integer per link")


def check_num_trees(sampling: Sampling, num_links: int, how: NegativeSampling | None) -> None:
    """Raise ``SettingsError`` if trees are disjoint and a batch of ``num_links`` links may need too many."""
    num_ends = 2 * (num_links + (how.num_negatives(num_links) + num_links if how else 0))
    if sampling.settings.is_disjoint and num_ends > MAX_TREES:
        raise SettingsError(
            f"batch_size {num_links} with these negatives makes up to {num_ends} trees; at most {MAX_TREES} are "
            "possible; use a smaller batch_size or amount"
        )
