"""Loader for anchor-based link prediction: anchors with their positive and negative label nodes.

It samples one subgraph around anchors and their label nodes. Labels are edges of supervision edge types, read from the
store, or lists that the user gives. They are not among the edges of the subgraph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.load.batch import BatchMaker, SeedBatch
from hopstream.load.epochs import Facts
from hopstream.load.labels import (
    GivenLabelReader,
    GivenLabels,
    GivenLabelsLike,
    LabelNodes,
    LabelReader,
    Labels,
    Negatives,
    StoredLabels,
    Supervision,
    check_num_rows,
    labels_of_split,
    read_given_labels,
    read_labels,
)
from hopstream.load.load_settings import GraphSource, LoadSettings
from hopstream.load.loader_arguments import PYG_OPTIONS, takes
from hopstream.load.order import SeedOrder
from hopstream.load.ppr import HOW, check_edge_attr, plan_facts, without_edges
from hopstream.load.setup import LoaderSetup, SubgraphLoader
from hopstream.sample.plan import NumNeighbors, SamplePlan, SeedNodes, counts_per_edge_type
from hopstream.sample.ppr_settings import PPRPlan, PPRSettings, plan_ppr
from hopstream.sample.sampling import Sampling
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.sample.seeds import Seeds, SeedsLike, read_seeds
from hopstream.schema import ATTACHED_ATTRIBUTES, PPR_ATTRIBUTES, Direction, EdgeType, GraphSchema, type_label
from hopstream.store.contract import Store

OTHER_OPTIONS: Mapping[str, str] = {
    **PYG_OPTIONS,
    "seeds": "it is called anchors= here",
    "input_nodes": "it is called anchors= here",
    "supervision_edge_type": "it is called supervision= here, one edge type or several",
}
"""Refused options of other loaders to remedies."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ABLPArguments(LoadSettings, SamplingSettings, GraphSource):
    """Arguments of ``ABLPLoader``; ``time_attr`` and ``disjoint`` are refused.

    With ``PPRSettings``, ``reverse_types`` is the only sampling option.

    Attributes:
        num_neighbors: Neighbours per hop, as for ``NeighborLoader``. Edge types that labels are read from are never
            followed, nor are their reverses by name or by ``reverse_types``; naming one is an error. With
            ``PPRSettings``, neighbourhoods of anchors and label nodes come from personalised PageRank, as for
            ``PPRLoader``.
        anchors: The nodes to start from, each once, in the forms of ``NeighborLoader``'s seeds. With ``labels``, give
            their keys.
        supervision: The edge type or types whose edges join anchors to their positive labels. With ``labels`` an edge
            type need not exist, but its first and its last name must be node types.
        negatives: Edge types of user-given negatives: one for the only supervision edge type, or supervision edge
            type to negative edge type.
        labels: The label nodes of the anchors; labels are then not read from edges. A mapping of supervision edge type
            to positives, or to a tuple of positives and negatives (or None). Each has one row of int64 keys per
            anchor, in the order of ``anchors``: a ``RaggedArray``, a list of arrays, or a matrix int64[num_anchors, m]
            padded with -1. Repeated keys of a row are kept. A supervision edge type of the graph is followed like any
            other, unless the dataset declares that it holds labels (``label_types``).
        label_split: A split of the supervision edge types: only its edges are positive labels. None: all edges are.
            The dataset must keep edge keys.
        label_direction: ``out``: anchors are the sources of label edges. ``in``: they are the destinations. The
            dataset must hold that direction, unless labels are given.
        max_labels: Most labels of one anchor and edge type, drawn uniformly in every batch; -1 for all. The limit
            holds for positives and for negatives separately.
        exclude_labels: Do not follow edges between a batch's anchors and their labels, nor the reverses of these edges.
            This covers the supervision edge type, its reverse, and edge types that ``label_types`` relates to it.
            Other edges are drawn in their place.
    """

    num_neighbors: NumNeighbors | PPRSettings = field(kw_only=False)
    anchors: SeedsLike = field(default=None, kw_only=False)
    supervision: Supervision
    negatives: Negatives = None
    labels: GivenLabelsLike | None = None
    label_split: str | None = None
    label_direction: Direction = "out"
    max_labels: int = -1
    exclude_labels: bool = True

    def __post_init__(self) -> None:
        """Refuse contradicting options, and options that need trees."""
        super().__post_init__()
        self._read_flags(ABLPArguments)
        if self.labels is not None and (self.negatives is not None or self.label_split is not None):
            raise SettingsError(
                "negatives and label_split apply to labels read from edges; with labels=, give negatives inside it: "
                "{edge type: (positives, negatives)}"
            )
        if self.is_disjoint:
            raise SettingsError(
                "disjoint and time_attr are not options of ABLPLoader: anchors and label nodes share one subgraph; use "
                "LinkNeighborLoader"
            )


class ABLPLoader(SubgraphLoader):
    """Mini-batches around anchors and their label nodes, as PyG's ``Data`` or ``HeteroData``.

    The anchors are the first nodes of their type. For every supervision edge type a batch has ``y_positive``
    int64[2, n]: slots of anchors and of their label nodes, among the nodes of their types. If there are negatives, it
    has ``y_negative`` in the same form. Both are attributes of the supervision edge type. With ``PPRSettings`` a batch
    also has the edges of a ``PPRLoader``'s batch, from anchors and from label nodes.
    """

    attached_names: ClassVar[frozenset[str]] = ATTACHED_ATTRIBUTES | PPR_ATTRIBUTES
    reads_both_sides: ClassVar[bool] = True

    @takes(ABLPArguments, OTHER_OPTIONS)
    def __init__(self, arguments: ABLPArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting cannot be met.
            UnknownNameError: The graph has no such node type, edge type, split or feature.
            IdRangeError: An anchor or a label is outside 0..n-1 of its type.
        """
        if isinstance(arguments.num_neighbors, PPRSettings):
            arguments = _beside_ppr(arguments, arguments.num_neighbors, self._recipe.options)
        setup = self._open(arguments.source, arguments.direction, arguments)
        self._arguments = arguments
        self._labels, self._given = _read_labels(setup.store, arguments)
        self._sampling = Sampling.of(setup.store, arguments)
        self._anchors = _read_anchors(setup.store, arguments.anchors, self._labels)
        if self._given is not None:
            given = {**self._recipe.options, "labels": self._given.to_option()}
            self._recipe = replace(self._recipe, options=given)
            _check_listed(self._anchors)
            check_num_rows(self._given, self._anchors.num_seeds)
        self._plan = self._plan_around(setup, arguments.num_neighbors)
        self._order = setup.order(self._anchors.num_seeds)
        self._begin(self._order, partial(self._anchor_maker, setup))

    def facts(self) -> Facts:
        """Return settings and inputs that determine the batches; a saved state with other facts is refused."""
        labels = self._labels
        return {
            **self._setup.facts(),
            **self._sampling.facts(),
            "anchors": self._anchors.fingerprint(),
            "num_neighbors": plan_facts(self._plan)
            if isinstance(self._plan, PPRPlan)
            else {op.name: op.count for op in self._plan.ops},
            "supervision": " ".join(map(type_label, labels.positive)),
            "negatives": " ".join(f"{type_label(t)}:{type_label(n)}" for t, n in labels.negative.items()),
            "label_split": self._arguments.label_split,
            "label_direction": labels.direction,
            "max_labels": labels.max_labels,
            "labels": None if self._given is None else self._given.fingerprint(),
            "exclude_labels": self._arguments.exclude_labels,
        }

    def __repr__(self) -> str:
        """Return a description of the loader in one line."""
        supervision = ", ".join(map(type_label, self._labels.positive))
        return (
            f"ABLPLoader({self._anchors.num_seeds} anchors ({self._anchors.name}), {supervision}, "
            f"batch_size={self._order.settings.batch_size}, {len(self)} batches)"
        )

    def _holders_of_labels(self) -> tuple[EdgeType, ...]:
        """Return the edge types that hold labels and must not be followed.

        Labels read from edges: all label edge types. Given labels: the edge types in the schema's ``label_types``.
        """
        known = self.schema.label_types
        return tuple(t for t in self._labels.edge_types if self._given is None or t in known)

    def _plan_around(self, setup: LoaderSetup, num_neighbors: NumNeighbors | PPRSettings) -> SamplePlan | PPRPlan:
        """Make the plan that samples around anchors and label nodes without edge types that hold labels."""
        labeled = (self._labels.label_type(t) for t in self._labels.edge_types)
        types = tuple(dict.fromkeys((self._anchors.node_type, *labeled)))
        hidden = hidden_types(self._holders_of_labels(), self._sampling.reverse_types)
        if isinstance(num_neighbors, PPRSettings):
            check_edge_attr(setup, num_neighbors)
            return plan_ppr(setup.store, num_neighbors, *types, hidden=hidden)
        counts = without_labels(self.schema, num_neighbors, hidden)
        plan = replace(self._sampling.plan(counts, types, setup.wants_edge_ids), hidden_types=frozenset(hidden))
        if hidden and not plan.ops and _wants_any(num_neighbors):
            raise SettingsError(
                f"no edge type is left to follow: {', '.join(sorted(map(type_label, hidden)))} hold labels "
                f"or their reverses, and num_neighbors names no other edge type that starts at {' and '.join(types)}; "
                "add one, or keep labels in an edge type of their own (hold_out_links makes one)"
            )
        return plan

    def _anchor_maker(self, setup: LoaderSetup) -> BatchMaker[AnchorInputs]:
        plan, given = self._plan, self._given
        present = plan.edge_types if isinstance(plan, PPRPlan) else plan.directions_over(setup.store)
        stored = StoredLabels(setup.store, self._labels)
        inputs = AnchorInputs(
            anchors=self._anchors, labels=self._labels, order=self._order, sampling=self._sampling,
            present=frozenset(present), excludes_labels=self._arguments.exclude_labels,
            reader=stored if given is None else GivenLabelReader(given, setup.reader().ids_of),
        )  # fmt: skip
        return setup.maker(AnchorMaker, plan, inputs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnchorInputs:
    """Inputs of batches of anchors."""

    anchors: Seeds
    labels: Labels
    order: SeedOrder
    sampling: Sampling
    present: frozenset[EdgeType]
    excludes_labels: bool
    reader: LabelReader


class AnchorMaker(BatchMaker[AnchorInputs]):
    """Maker of batches of anchors with their label nodes."""

    def _start(self, epoch: int, step: int) -> SeedBatch:
        inputs, anchors = self._inputs, self._inputs.anchors
        span = inputs.order.span(step)
        positions = inputs.order.positions(epoch, span)
        self.stage = "looking up anchors"
        anchor_ids = self._reader.ids_of(anchors.node_type, anchors.keys_at(positions))
        rng_seed = inputs.order.batch_seed(epoch, span)
        self.stage = "reading labels"
        found = inputs.reader.read(positions, anchor_ids, rng_seed)
        ids, attributes = self._seeds(anchor_ids, found)
        return SeedBatch(
            index=span.index,
            seeds=SeedNodes(
                ids=ids, rng_seed=rng_seed,
                labor=inputs.sampling.labor_seeds(inputs.order.settings.rng_seed, epoch, span.index),
                excluded=self._excluded(anchor_ids, found) if inputs.excludes_labels else {},
            ),
            seed_type=anchors.node_type,
            input_ids=anchors.input_ids_at(positions),
            attributes=cast("Mapping[str | EdgeType | None, Mapping[str, Any]]", attributes),
        )  # fmt: skip

    def _excluded(self, anchor_ids: IntArray, found: Sequence[LabelNodes]) -> dict[EdgeType, IntArray]:
        """Return the batch's labels, and their reverses, in each edge type of the subgraph that holds them."""
        inputs = self._inputs
        pairs: dict[EdgeType, list[IntArray]] = {}
        for labels in found:
            ends = np.stack([np.repeat(anchor_ids, labels.counts), labels.ids])
            links = ends if inputs.labels.direction == "out" else ends[::-1]
            for holder, is_reverse in inputs.sampling.places_of_links(labels.held_in):
                if holder in inputs.present:
                    pairs.setdefault(holder, []).append(links[::-1] if is_reverse else links)
        return {holder: np.concatenate(of, axis=1) for holder, of in pairs.items()}

    def _seeds(
        self, anchor_ids: IntArray, found: Sequence[LabelNodes]
    ) -> tuple[dict[str, IntArray], dict[EdgeType, dict[str, IntArray]]]:
        """Return the distinct seeds per type, anchors first, and pairs of anchor and label slots among them."""
        anchor_type = self._inputs.anchors.node_type
        pieces: dict[str, list[IntArray]] = {anchor_type: [anchor_ids]}
        for labels in found:
            pieces.setdefault(labels.node_type, []).append(labels.ids)
        ids: dict[str, IntArray] = {}
        slots: dict[str, Iterator[IntArray]] = {}
        for node_type, some in pieces.items():
            ids[node_type], flat = self._slot_map.number(np.concatenate(some))
            slots[node_type] = iter(np.split(flat, np.cumsum([len(piece) for piece in some])[:-1]))
        anchor_slots = next(slots[anchor_type])
        attributes: dict[EdgeType, dict[str, IntArray]] = {}
        for labels in found:
            pairs = np.stack([np.repeat(anchor_slots, labels.counts), next(slots[labels.node_type])])
            attributes.setdefault(labels.edge_type, {})[labels.name] = pairs
        return ids, attributes


def _beside_ppr(arguments: ABLPArguments, settings: PPRSettings, given: Iterable[str]) -> ABLPArguments:
    """Return the arguments with the options that ``PPRSettings`` decides.

    Raises:
        SettingsError: An option is given that ``PPRSettings`` decides.
    """
    for name in given:
        if name in SamplingSettings.field_names() and name != "reverse_types":
            raise SettingsError(f"{name} is not an option with PPRSettings; {HOW}")
    return replace(without_edges(settings, arguments), direction=settings.direction)


def _read_labels(store: Store, arguments: ABLPArguments) -> tuple[Labels, GivenLabels | None]:
    """Check the labels' sources: edge types of the graph, or given lists."""
    about = arguments.label_direction, arguments.max_labels
    if arguments.labels is not None:
        given = read_given_labels(store, arguments.supervision, arguments.labels, *about)
        return given.labels, given
    labels = read_labels(store, arguments.supervision, arguments.negatives, *about)
    return labels if arguments.label_split is None else labels_of_split(store, labels, arguments.label_split), None


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


def _check_listed(anchors: Seeds) -> None:
    """Raise ``SettingsError`` unless anchors are keys, so that each has its row of given labels."""
    if anchors.keys is None or not anchors.may_repeat:
        raise SettingsError(
            f"anchors are {anchors.name}, but labels= has one row per anchor; give the anchors as keys in the order of "
            "these rows"
        )


def hidden_types(holders: Sequence[EdgeType], reverse_types: Mapping[EdgeType, EdgeType]) -> set[EdgeType]:
    """Return the edge types that hold labels or their reverses; following one would leak the labels."""
    return {*holders, *(reverse_types[t] for t in holders if t in reverse_types)}


def without_labels(
    schema: GraphSchema, num_neighbors: NumNeighbors, hidden: set[EdgeType]
) -> dict[EdgeType, Sequence[int]]:
    """Return neighbours per hop and edge type, with 0 for hidden edge types.

    Raises:
        SettingsError: ``num_neighbors`` names a hidden edge type with counts.
        UnknownNameError: ``num_neighbors`` names an edge type that the schema does not have.
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
