"""Loading of anchors for link prediction, together with the nodes that they are and are not linked with.

Anchor-based link prediction samples one subgraph around anchors and their label nodes. Labels are edges of supervision
edge types: they are read from the store, and are neither followed nor among the edges of the subgraph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Unpack, cast

import numpy as np

from hopstream.arrays import IntArray, find_sorted, offsets_of
from hopstream.checks import check_choice
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.load.batch import BatchFacts, Convert, SubgraphReader
from hopstream.load.options import PYG_OPTIONS, read_integer
from hopstream.load.order import BatchSpan, SeedOrder
from hopstream.load.place import Facts
from hopstream.load.service import BatchService, remembers_recipe
from hopstream.load.setup import LoaderOptions, LoaderSetup, SubgraphLoader, split_options
from hopstream.sample.hops import PlanRunner
from hopstream.sample.options import Sampling, SamplingOptions
from hopstream.sample.plan import NumNeighbors, SeedNodes, counts_per_edge_type
from hopstream.sample.seeds import Seeds, SeedsLike, read_seeds
from hopstream.sample.slots import SlotMap
from hopstream.schema import Direction, EdgeType, GraphSchema, is_edge_type, type_label
from hopstream.store import Source
from hopstream.store.contract import KEY, MAX_COUNT, FetchRequest, SampleReply, SampleRequest, Store
from hopstream.store.whole import keeps_edge_keys

Supervision = EdgeType | str | Sequence[EdgeType] | Sequence[str]
Negatives = Mapping[EdgeType, EdgeType] | Mapping[str, str] | EdgeType | str | None


OTHER_OPTIONS: Mapping[str, str] = {
    **PYG_OPTIONS,
    "seeds": "it is called anchors= here",
    "input_nodes": "it is called anchors= here",
    "supervision_edge_type": "it is called supervision= here, one edge type or several",
}
"""Options of other loaders that are not options here, and what to do instead."""


class ABLPOptions(LoaderOptions, SamplingOptions, total=False):
    """Settings that ``ABLPLoader`` shares with ``NeighborLoader``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """Where the label nodes of anchors come from.

    Attributes:
        positive: Supervision edge types.
        negative: Supervision edge type to the edge type that holds its negatives, for those that have one.
        direction: ``out``: anchors are sources of supervision edges; ``in``: they are destinations.
        max_labels: Most labels of one anchor and edge type, drawn uniformly; -1 for all.
        edge_keys: Supervision edge type to int64[n], the keys of those of its edges that are labels, ascending; none
            of them where all are.
    """

    positive: tuple[EdgeType, ...]
    negative: Mapping[EdgeType, EdgeType]
    direction: Direction
    max_labels: int
    edge_keys: Mapping[EdgeType, IntArray] = field(default_factory=dict)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """Every edge type that holds labels, each once."""
        return tuple(dict.fromkeys((*self.positive, *self.negative.values())))

    def anchor_type(self, edge_type: EdgeType) -> str:
        """The node type of anchors of an edge type."""
        return edge_type[0] if self.direction == "out" else edge_type[2]

    def label_type(self, edge_type: EdgeType) -> str:
        """The node type of label nodes of an edge type."""
        return edge_type[2] if self.direction == "out" else edge_type[0]


class ABLPLoader(SubgraphLoader):
    """Mini-batches around anchors and their label nodes, in one subgraph, as PyG's ``Data`` or ``HeteroData``.

    The anchors are the first nodes of their type. For every supervision edge type a batch has ``y_positive``
    int64[2, n] (places of anchors and of their label nodes among the nodes of their types) and, where there are
    negatives, ``y_negative`` likewise; both are attributes of the supervision edge type.
    """

    @remembers_recipe
    def __init__(  # noqa: PLR0913 - what anchors, labels and neighbours are
        self,
        source: Source | BatchService,
        num_neighbors: NumNeighbors,
        anchors: SeedsLike = None,
        *,
        supervision: Supervision,
        negatives: Negatives = None,
        label_split: str | None = None,
        label_direction: Direction = "out",
        max_labels: int = -1,
        **options: Unpack[ABLPOptions],
    ) -> None:
        """Open the source and check every setting against it.

        Args:
            source: A dataset folder, a ``cluster.json``, addresses of servers, or an open store.
            num_neighbors: Neighbours per hop, as for ``NeighborLoader``. Label edge types, and the edge types that are
                their reverses by name or by ``reverse_types``, are never followed; naming one is an error.
            anchors: The nodes to start from, each once, as ``NeighborLoader`` takes its seeds.
            supervision: The edge type, or types, whose edges join anchors to their positive labels.
            negatives: Edge types of user-given negatives: one for the only supervision edge type, or supervision edge
                type to negative edge type.
            label_split: A split of the supervision edge types: positive labels are those of their edges that are in it.
                None: all of their edges are. The dataset must keep edge keys.
            label_direction: ``out``: anchors are the sources of label edges; ``in``: their destinations. The dataset
                must hold that direction.
            max_labels: Most labels of one anchor and edge type, drawn uniformly anew in every batch; -1 for all.
            **options: The other settings of ``NeighborLoader``, but for those of time and of disjoint trees.

        Raises:
            SettingsError: A setting that cannot be met.
            UnknownNameError: A node type, edge type, split or feature that the graph does not have.
            IdRangeError: An anchor outside 0..n-1 of its type.
        """
        loading, sampling_options = split_options(ABLPLoader, options, OTHER_OPTIONS)
        if sampling_options["disjoint"] or sampling_options["time_attr"] is not None:
            raise SettingsError(
                "disjoint and time_attr are not options of ABLPLoader: anchors and label nodes share one subgraph; use "
                "LinkNeighborLoader"
            )
        setup = self._open(source, sampling_options["direction"], loading)
        self._fingerprint: str | None = None
        try:
            self._labels = read_labels(setup.store, supervision, negatives, label_direction, max_labels)
            if label_split is not None:
                self._labels = labels_of_split(setup.store, self._labels, label_split)
            self._label_split = label_split
            self._sampling = Sampling.of(setup.store, sampling_options)
            self._anchors = _read_anchors(setup.store, anchors, self._labels)
            types = (self._anchors.node_type, *(self._labels.label_type(t) for t in self._labels.edge_types))
            hidden = hidden_types(self._labels, self._sampling.reverse_types)
            counts = without_labels(self.schema, num_neighbors, hidden)
            plan = self._sampling.plan(counts, tuple(dict.fromkeys(types)), setup.wants_edge_ids)
            self._plan = replace(plan, hidden_types=frozenset(hidden))
            if not self._plan.ops and _wants_any(num_neighbors):
                raise SettingsError(
                    f"no edge type is left to follow: {', '.join(sorted(map(type_label, hidden)))} hold labels "
                    f"or their reverses, and no other that num_neighbors names leads on from {' and '.join(types)}; "
                    "name one that does, or keep labels in an edge type of their own (hold_out_links makes one)"
                )
            self._order = setup.order(self._anchors.num_seeds)
            self._begin(self._order.num_steps, partial(self._anchor_maker, setup))
        except BaseException:
            self._closer()
            raise

    def facts(self) -> Facts:
        """What decides over the batches: a saved state is refused where one of them differs."""
        if self._fingerprint is None:
            self._fingerprint = self._anchors.fingerprint()
        labels = self._labels
        return {
            **self._setup.facts(),
            **self._sampling.facts(),
            "anchors": self._fingerprint,
            "num_neighbors": {op.name: op.count for op in self._plan.ops},
            "supervision": " ".join(map(type_label, labels.positive)),
            "negatives": " ".join(f"{type_label(t)}:{type_label(n)}" for t, n in labels.negative.items()),
            "label_split": self._label_split,
            "label_direction": labels.direction,
            "max_labels": labels.max_labels,
        }

    def __repr__(self) -> str:
        """The loader in one line."""
        supervision = ", ".join(map(type_label, self._labels.positive))
        return (
            f"ABLPLoader({self._anchors.num_seeds} anchors ({self._anchors.name}), {supervision}, "
            f"batch_size={self._order.batch_size}, {len(self)} batches)"
        )

    def _anchor_maker(self, setup: LoaderSetup) -> AnchorMaker:
        inputs = AnchorInputs(
            anchors=self._anchors, labels=self._labels, order=self._order, sampling=self._sampling,
            present=frozenset(self._plan.directions_over(setup.store)),
        )  # fmt: skip
        return AnchorMaker(setup.store, PlanRunner(setup.store, self._plan), setup.reader(), inputs, setup.convert)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnchorInputs:
    """What batches of anchors start from."""

    anchors: Seeds
    labels: Labels
    order: SeedOrder
    sampling: Sampling
    present: frozenset[EdgeType]


class AnchorMaker:
    """Makes batches of anchors with their label nodes. One thread uses one maker."""

    def __init__(
        self, store: Store, runner: PlanRunner, reader: SubgraphReader, inputs: AnchorInputs, convert: Convert
    ) -> None:
        """Bring together what makes a batch."""
        self._store = store
        self._runner = runner
        self._reader = reader
        self._inputs = inputs
        self._convert = convert
        self._slot_map = SlotMap()
        self.stage = "idle"
        """What the maker is doing, for messages about batches that take too long."""

    def make(self, epoch: int, step: int) -> Any:
        """Make one batch, and bring it into the form that the user wants; equal arguments give equal batches."""
        inputs = self._inputs
        span = inputs.order.span(step)
        positions = inputs.order.positions(epoch, span)
        self.stage = "looking up anchors"
        anchor_ids = self._reader.ids_of(inputs.anchors.node_type, inputs.anchors.keys_at(positions))
        rng_seed = inputs.order.batch_seed(epoch, span)
        self.stage = "reading labels"
        replies = self._read_labels(anchor_ids, rng_seed)
        ids, attributes = self._seeds(anchor_ids, replies)
        self.stage = "sampling"
        labor = inputs.sampling.labor_seeds(inputs.order.rng_seed, epoch, span.index)
        excluded = self._excluded(anchor_ids, replies)
        subgraph = self._runner.run(SeedNodes(ids=ids, rng_seed=rng_seed, labor=labor, excluded=excluded))
        self.stage = "fetching features"
        batch = self._reader.read(subgraph, self._facts(epoch, span, positions, attributes))
        self.stage = "collating"
        return self._convert(batch)

    def _facts(
        self, epoch: int, span: BatchSpan, positions: IntArray, attributes: Mapping[EdgeType, dict[str, IntArray]]
    ) -> BatchFacts:
        anchors = self._inputs.anchors
        return BatchFacts(
            epoch=epoch,
            index=span.index,
            seed_type=anchors.node_type,
            input_ids=anchors.input_ids_at(positions),
            attributes=cast("Mapping[str | EdgeType | None, Mapping[str, Any]]", attributes),
        )

    def _read_labels(self, anchor_ids: IntArray, rng_seed: int) -> dict[EdgeType, SampleReply]:
        """The label nodes of every anchor, all edge types in one call of the store."""
        labels = self._inputs.labels
        requests = [
            SampleRequest(
                edge_type=edge_type,
                direction=labels.direction,
                ids=anchor_ids,
                count=-1 if edge_type in labels.edge_keys else labels.max_labels,
                rng_seed=derive_seed("labels", rng_seed, type_label(edge_type)),
                wants_edge_ids=edge_type in labels.edge_keys,
            )
            for edge_type in labels.edge_types
        ]
        replies = dict(zip(labels.edge_types, self._store.sample(requests), strict=True))
        for request in requests:
            if request.edge_type in labels.edge_keys:
                replies[request.edge_type] = self._of_split(request, replies[request.edge_type])
        return replies

    def _of_split(self, request: SampleRequest, reply: SampleReply) -> SampleReply:
        """The labels whose edges are in the split, up to ``max_labels`` per anchor, in stored order."""
        labels = self._inputs.labels
        wanted = labels.edge_keys[request.edge_type]
        owner = (request.edge_type, request.direction)
        fetch = FetchRequest(owner=owner, names=(KEY,), ids=cast(IntArray, reply.edge_ids))
        keys = np.asarray(self._store.fetch([fetch])[0][KEY])
        kept = np.flatnonzero(find_sorted(wanted, keys) >= 0)
        anchors = np.repeat(np.arange(len(reply.counts)), reply.counts)[kept]
        if labels.max_labels >= 0:
            # Random numbers follow the order of anchors and of stored edges, which is the same on every topology.
            ranks = np.lexsort((np.random.default_rng(request.rng_seed).random(len(kept)), anchors))
            starts = offsets_of(np.bincount(anchors, minlength=len(reply.counts)))
            is_drawn = np.arange(len(kept)) - starts[anchors[ranks]] < labels.max_labels
            drawn = np.sort(ranks[is_drawn])
            kept, anchors = kept[drawn], anchors[drawn]
        counts = np.bincount(anchors, minlength=len(reply.counts)).astype(np.int32)
        return SampleReply(counts=counts, neighbor_ids=reply.neighbor_ids[kept])

    def _excluded(self, anchor_ids: IntArray, replies: Mapping[EdgeType, SampleReply]) -> dict[EdgeType, IntArray]:
        """The batch's labels, and their reverses, in each edge type of the subgraph that holds them."""
        inputs = self._inputs
        pairs: dict[EdgeType, list[IntArray]] = {}
        for edge_type, reply in replies.items():
            ends = np.stack([np.repeat(anchor_ids, reply.counts), reply.neighbor_ids.astype(np.int64)])
            links = ends if inputs.labels.direction == "out" else ends[::-1]
            for holder, is_reverse in inputs.sampling.places_of_links(edge_type):
                if holder in inputs.present:
                    pairs.setdefault(holder, []).append(links[::-1] if is_reverse else links)
        return {holder: np.concatenate(of, axis=1) for holder, of in pairs.items()}

    def _seeds(
        self, anchor_ids: IntArray, replies: Mapping[EdgeType, SampleReply]
    ) -> tuple[dict[str, IntArray], dict[EdgeType, dict[str, IntArray]]]:
        """Distinct seeds per type, anchors first, and the places of anchors and labels among them."""
        labels, anchor_type = self._inputs.labels, self._inputs.anchors.node_type
        given: dict[str, list[IntArray]] = {anchor_type: [anchor_ids]}
        for edge_type, reply in replies.items():
            given.setdefault(labels.label_type(edge_type), []).append(reply.neighbor_ids.astype(np.int64))
        ids: dict[str, IntArray] = {}
        slots: dict[str, list[IntArray]] = {}
        for node_type, pieces in given.items():
            ids[node_type], flat = self._slot_map.number(np.concatenate(pieces))
            slots[node_type] = np.split(flat, offsets_of(np.array([len(p) for p in pieces]))[1:-1])
        label_slots = {anchor_type: slots[anchor_type][1:], **{t: of for t, of in slots.items() if t != anchor_type}}
        pairs: dict[EdgeType, IntArray] = {}
        for edge_type, reply in replies.items():
            found = label_slots[labels.label_type(edge_type)].pop(0)
            pairs[edge_type] = np.stack([np.repeat(np.arange(len(anchor_ids)), reply.counts), found])
        attributes = {t: {"y_positive": pairs[t]} for t in labels.positive}
        for edge_type, negative in labels.negative.items():
            attributes[edge_type]["y_negative"] = pairs[negative]
        return ids, attributes


def read_labels(
    store: Store, supervision: Supervision, negatives: Negatives, direction: Direction, max_labels: int
) -> Labels:
    """Check what the user says of labels against a store.

    Raises:
        SettingsError: Types do not belong together, a direction is not held, or ``max_labels`` is out of range.
        UnknownNameError: The graph has no such edge type.
    """
    check_choice("label_direction", direction, ("in", "out"))
    if direction not in store.directions:
        raise SettingsError(
            f"labels follow edges {direction!r}; the dataset holds {'|'.join(store.directions)}; write the parts again "
            "with direction 'both', or choose the other label_direction with anchors at the edges' other end"
        )
    max_labels = read_integer("max_labels", max_labels, -1, MAX_COUNT)
    if max_labels == 0:
        raise SettingsError("max_labels is 0, so there would be no labels; give -1 for all, or 1 and above")
    positive = tuple(store.schema.edge_type_of(given) for given in _as_list(supervision))
    if not positive or len(set(positive)) < len(positive):
        raise SettingsError(f"supervision is {supervision!r}; give one edge type or several, each once")
    negative = _read_negatives(store.schema, positive, negatives)
    labels = Labels(positive=positive, negative=negative, direction=direction, max_labels=max_labels)
    for edge_type, other in negative.items():
        if edge_type not in positive:
            raise SettingsError(f"negatives names {edge_type!r}; the supervision edge types are {list(positive)}")
        if (edge_type[0], edge_type[2]) != (other[0], other[2]) or other in positive:
            raise SettingsError(f"negatives pairs {edge_type!r} with {other!r}; give another edge type between the two")
    if len({labels.anchor_type(t) for t in positive}) > 1:
        raise SettingsError(f"supervision edge types {list(positive)} have different types of anchors; use two loaders")
    return labels


def labels_of_split(store: Store, labels: Labels, split: str) -> Labels:
    """Positive labels that are in an edge split, and no others.

    Raises:
        UnknownNameError: A supervision edge type has no such split.
        SettingsError: The split is empty, or the dataset keeps no edge keys.
    """
    if not isinstance(split, str):
        raise SettingsError(
            f"label_split is {split!r}; give the name of a split of the supervision edge types, or None"
        )
    if not keeps_edge_keys(store, labels.direction):
        raise SettingsError("label_split needs edge keys, and the dataset keeps none; write the parts again with them")
    edge_keys = {t: np.asarray(store.edge_split(t, split), np.int64) for t in labels.positive}
    for edge_type, keys in edge_keys.items():
        if not len(keys):
            raise SettingsError(f"split {split!r} of {type_label(edge_type)} is empty, so there would be no labels")
    return replace(labels, edge_keys=edge_keys)


def _read_negatives(
    schema: GraphSchema, positive: tuple[EdgeType, ...], negatives: Negatives
) -> dict[EdgeType, EdgeType]:
    """Supervision edge type to the edge type of its negatives."""
    if negatives is None:
        return {}
    if isinstance(negatives, Mapping):
        return {schema.edge_type_of(t): schema.edge_type_of(other) for t, other in negatives.items()}
    if len(positive) == 1:
        return {positive[0]: schema.edge_type_of(negatives)}
    raise SettingsError(f"negatives is {negatives!r}; with several supervision edge types give a mapping of them")


def _read_anchors(store: Store, anchors: SeedsLike, labels: Labels) -> Seeds:
    wanted = labels.anchor_type(labels.positive[0])
    if anchors is None:
        anchors = wanted
    found = read_seeds(store, anchors)
    if found.node_type != wanted:
        raise SettingsError(
            f"anchors are of type {found.node_type!r}; with label_direction {labels.direction!r} supervision edges "
            f"{type_label(labels.positive[0])} have anchors of type {wanted!r}"
        )
    if found.may_repeat and found.keys is not None:
        keys, counts = np.unique(found.keys, return_counts=True)
        if (counts > 1).any():
            raise SettingsError(f"anchors name node {int(keys[counts > 1][0])} more than once; give each node once")
    return found


def hidden_types(labels: Labels, reverse_types: Mapping[EdgeType, EdgeType]) -> set[EdgeType]:
    """Label edge types and the edge types that hold their reverses: following one would give the answer away."""
    return {*labels.edge_types, *(reverse_types[t] for t in labels.edge_types if t in reverse_types)}


def without_labels(
    schema: GraphSchema, num_neighbors: NumNeighbors, hidden: set[EdgeType]
) -> dict[EdgeType, Sequence[int]]:
    """Neighbours per hop and edge type, none along hidden edge types.

    Raises:
        SettingsError: ``num_neighbors`` names a hidden edge type with counts.
        UnknownNameError: It names an edge type that the schema does not have.
    """
    if isinstance(num_neighbors, Mapping):
        named = {type_label(t) if isinstance(t, tuple) else t for t, counts in num_neighbors.items() if any(counts)}
        leaking = sorted(named & {type_label(t) for t in hidden})
        if leaking:
            raise SettingsError(
                f"num_neighbors follows {', '.join(leaking)}, which holds labels or their reverses; leave it out or "
                "give it 0"
            )
        num_hops = max(map(len, num_neighbors.values()), default=1)
        num_neighbors = cast(NumNeighbors, {**{t: [0] * num_hops for t in hidden}, **num_neighbors})
    counts = counts_per_edge_type(schema, num_neighbors)
    return {t: [0] * len(per_hop) if t in hidden else per_hop for t, per_hop in counts.items()}


def _wants_any(num_neighbors: NumNeighbors) -> bool:
    per_hop = num_neighbors.values() if isinstance(num_neighbors, Mapping) else [num_neighbors]
    return any(any(counts) for counts in per_hop)


def _as_list(supervision: Supervision) -> list[Any]:
    """One edge type, or several: a tuple of three strings is one edge type.

    Raises:
        SettingsError: It is no edge type and no list of any.
    """
    if not isinstance(supervision, str | Sequence):
        raise SettingsError(f"supervision is {supervision!r}; give the edge type, or types, whose edges are labels")
    if isinstance(supervision, str):
        return [supervision]
    values = list(supervision)
    return [supervision] if is_edge_type(supervision) else values
