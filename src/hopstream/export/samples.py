"""Sample of a seed, equal in every job, pipeline and batch, and the context of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.checks import Settings
from hopstream.dataset.raw_ids import strings_of
from hopstream.errors import SchemaError, SettingsError
from hopstream.export.plan import (
    add_seed_readout,
    declare_link_readout,
    declare_readout_values,
    declare_seed_readout,
    in_words_of_spec,
    most_drawn,
    of_ends,
    plan_of_spec,
    starts_from_links,
)
from hopstream.export.raw_ids import SeedEnd
from hopstream.export.settings import Seconds
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.ingest.raw_tables.unigraph import CONTEXT, ID
from hopstream.kernels.hashing import hash_keys
from hopstream.sample.plan import SamplePlan
from hopstream.sample.raw_ids import num_keys
from hopstream.sample.sampling_settings import SubgraphType
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema, type_label
from hopstream.store.contract import MAX_TREES, FetchRequest, Store
from hopstream.store.requests import SEED_STOP
from hopstream.tfgnn.graph_schema import schema_message
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.messages import pool
from hopstream.tfgnn.sampling_spec import parse_spec, spec_text
from hopstream.tfgnn.values import FeatureValues

SEED_ID, SAMPLE_ID = "seed_id", "sample_id"


def with_seed_ids(
    pieces: GraphPieces, seed_ids: Sequence[bytes] | None, *, sample_ids: Sequence[bytes] | None = None
) -> GraphPieces:
    """Add ``context/seed_id`` and ``context/sample_id`` to graphs.

    Args:
        pieces: Graphs of one component.
        seed_ids: The raw id of each graph's seed; None to omit it.
        sample_ids: The name of each graph; None to omit it.

    Raises:
        SchemaError: The number of ids is not that of graphs, graphs have several components, or the feature exists.
    """
    context = dict(pieces.context)
    for name, ids in ((SEED_ID, seed_ids), (SAMPLE_ID, sample_ids)):
        if ids is None:
            continue
        if len(ids) != pieces.num_graphs or pieces.num_graphs != pieces.component_offsets[-1]:
            raise SchemaError(
                f"context/{name}: {len(ids)} ids for {pieces.num_graphs} graphs of {pieces.component_offsets[-1]} "
                "components; give one id per graph of one component"
            )
        if name in context:
            raise SchemaError(f"context already has a feature {name!r}")
        context[name] = FeatureValues(strings_of(ids), len(ids))
    return replace(pieces, context=context)


def declare_ids(schema: Any, *names: str) -> None:
    """Declare ``SEED_ID`` or ``SAMPLE_ID`` in a ``GraphSchema`` message."""
    string = pool().FindEnumTypeByName("tensorflow.DataType").values_by_name["DT_STRING"].number
    for name in names:
        schema.context.features[name].dtype = string


def sample_id_of(seed_id: bytes, number: int) -> bytes:
    """Return the name of a seed's sample: the seed's name for number 0, else ``<seed>:<number>``."""
    return seed_id if number == 0 else b"%s:%d" % (seed_id, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSampling(Settings):
    """The sampling of each seed.

    Attributes:
        spec: A ``SamplingSpec`` in text form. A file or a message may be given; the constructor converts it.
        rng_seed: 64 bits; seed of all random draws.
        leave_out: Features that are not written, such as ``paper.title`` or ``author__writes__paper.year``.
        id_feature: The feature that holds the raw ids of the seeds' node type; for links also two as ``source,target``.
            None takes ``#id`` or ``id``; without both, raw ids are keys.
        link_set: The node set of links' ends, or two as ``source,target``; see ``plan_of_spec``.
        subgraph_type: ``directional``: the drawn edges; ``induced``: all edges between the sampled nodes.
        readout: Add a readout of the seed. Graphs of links always have a readout.
        labels: Features of the seeds' node set that move to the readout.
        seed_ids: Add ``context/seed_id`` and ``context/sample_id``.
        node_ids: Write the feature ``#id`` of every node set that has it. If False, it is written as TF-GNN does: for
            node sets without other features, and for those in ``declared_ids``.
        declared_ids: Node sets whose ``GraphSchema`` declares the feature ``#id``.
    """

    spec: Any
    rng_seed: int = 0
    leave_out: tuple[str, ...] = ()
    id_feature: str | None = None
    link_set: str | None = None
    subgraph_type: SubgraphType = "directional"
    readout: bool = False
    labels: tuple[str, ...] = ()
    seed_ids: bool = False
    node_ids: bool = False
    declared_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values, and convert the spec to text.

        Raises:
            SettingsError: ``rng_seed`` is out of range, or there are labels and no readout.
        """
        object.__setattr__(self, "spec", spec_text(self.spec))
        is_integer = isinstance(self.rng_seed, int) and not isinstance(self.rng_seed, bool)
        if not is_integer or not 0 <= self.rng_seed < SEED_STOP:
            raise SettingsError(f"rng_seed is {self.rng_seed!r}; give an integer from 0 to 2**64 - 1")
        if self.labels and not self.readout:
            raise SettingsError(f"labels are {list(self.labels)}, but there is no readout to move them to; set readout")
        for name in ("leave_out", "labels", "declared_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def plan_over(self, schema: GraphSchema, where: str = "spec") -> SamplePlan:
        """Return the plan for a dataset; ``where`` is the name of the spec in messages.

        Raises:
            FormatError: The spec is invalid.
            SchemaError: The spec contradicts itself or the dataset.
            SettingsError: ``readout`` is set and seeds are links.
        """
        plan = plan_of_spec(
            parse_spec(self.spec), schema, subgraph_type=self.subgraph_type, link_set=self.link_set,
            where=where,
        )  # fmt: skip
        if starts_from_links(plan) and self.readout:
            raise SettingsError(
                "readout is only for specs that start from nodes; links are read out at their ends: leave it out"
            )
        return plan

    def ends_of(self, plan: SamplePlan) -> tuple[SeedEnd, ...]:
        """Return node type and feature of raw ids for seeds that are nodes, or for both ends of links.

        Raises:
            SettingsError: ``id_feature`` names more than two features.
        """
        features = of_ends("id_feature", self.id_feature, len(plan.seed_types))
        return tuple(zip(plan.seed_types, features, strict=True))


def features_of(schema: GraphSchema, sampling: SeedSampling) -> dict[str | EdgeType, tuple[str, ...]]:
    """Return the features of each type that are written.

    Raises:
        SchemaError: ``leave_out`` names an unknown feature.
    """
    entities: list[tuple[str | EdgeType, Mapping[str, Any]]] = [*schema.nodes.items(), *schema.edges.items()]
    known = [f"{type_label(entity)}.{name}" for entity, of in entities for name in of]
    unknown = [name for name in sampling.leave_out if name not in known]
    if unknown:
        raise SchemaError(f"leave_out names {unknown[0]!r}; the graph has {known}")
    left_out = set(sampling.leave_out)
    if not sampling.node_ids:
        left_out |= {f"{t}.{ID}" for t, of in schema.nodes.items() if len(of) > 1 and t not in sampling.declared_ids}
    return {
        entity: tuple(name for name in of if f"{type_label(entity)}.{name}" not in left_out) for entity, of in entities
    }


def sets_without_ids(plan: SamplePlan, schema: GraphSchema) -> list[str]:
    """List the node sets that a plan can reach and that have no feature ``#id``."""
    reached = {*plan.seed_types, *(op.edge_type[2] for op in plan.ops)}
    return sorted(t for t in reached if ID not in schema.nodes[t])


def schema_of_samples(
    sampling: SeedSampling, schema: GraphSchema, link_values: Mapping[str, FeatureSchema] | None = None
) -> Any:
    """Return the ``GraphSchema`` message of the samples of a dataset.

    ``info.root_set`` names the node set whose first node is the seed. The features of the node type ``#context``, which
    holds the context of a unigraph, are the context of each sample.

    Args:
        sampling: The sampling of each seed.
        schema: Schema of the dataset.
        link_values: Additional features of the readout of links, by name.

    Raises:
        SchemaError: The spec contradicts the schema, a feature or label does not exist, or TF-GNN cannot store it.
        FormatError: The spec is invalid.
        SettingsError: ``readout`` is set and seeds are links.
    """
    plan, kept = sampling.plan_over(schema), features_of(schema, sampling)
    message = schema_message(
        GraphSchema(
            nodes={t: {name: of[name] for name in kept[t]} for t, of in schema.nodes.items()},
            edges={t: {name: of[name] for name in kept[t]} for t, of in schema.edges.items()},
        )
    )
    if CONTEXT in message.node_sets:
        message.context.features.MergeFrom(message.node_sets[CONTEXT].features)
        del message.node_sets[CONTEXT]
    if starts_from_links(plan):
        declare_link_readout(message, *plan.seed_types)
        declare_readout_values(message, link_values or {})
    else:
        message.info.root_set.append(plan.seed_types[0])
    if sampling.readout:
        declare_seed_readout(message, plan.seed_types[0], sampling.labels)
    if sampling.seed_ids:
        declare_ids(message, SEED_ID, SAMPLE_ID)
    return message


class SampleMaker:
    """Maker of the samples of seeds given by key. Not thread-safe: each thread needs its own."""

    def __init__(self, store: Store, sampling: SeedSampling) -> None:
        """Check the sampling against the store.

        Raises:
            SchemaError: The spec contradicts itself or the dataset, or the context does not have exactly one row.
            FormatError: The spec is invalid.
            UnknownNameError: The dataset has no such feature.
            SettingsError: The dataset does not hold what the spec needs, or ``readout`` is set and seeds are links.
        """
        plan, features = sampling.plan_over(store.schema), features_of(store.schema, sampling)
        self._store, self._sampling, self._plan = store, sampling, plan
        self.ends, self.is_of_links = sampling.ends_of(plan), starts_from_links(plan)
        _check_labels(sampling, store.schema, plan.seed_types[0], features[plan.seed_types[0]])
        self._of_context = features.pop(CONTEXT, ())
        if self._of_context and num_keys(store, CONTEXT) != 1:
            raise SchemaError(
                f"the context's table has {num_keys(store, CONTEXT)} rows, and each sample has one context; leave out "
                f"{', '.join(f'{CONTEXT}.{name}' for name in self._of_context)}"
            )
        try:
            self._maker = SubgraphMaker(store, plan, features)
        except SettingsError as error:
            raise SettingsError(in_words_of_spec(str(error), plan)) from error

    @property
    def most_drawn(self) -> int | None:
        """Upper bound of the edges drawn per sample; None if the spec sets no limit."""
        return most_drawn(self._plan)

    @property
    def gathering(self) -> Seconds:
        """Time spent on fetching columns so far."""
        return self._maker.gathering

    def make(
        self,
        keys: IntArray,
        numbers: IntArray,
        seed_ids: Sequence[bytes] | None = None,
        *,
        max_bytes: int | None = None,
    ) -> GraphPieces:
        """Make the samples of seeds, in their order.

        Args:
            keys: int64[n], or int64[n, 2] if the spec starts from links.
            numbers: int64[n], the number of each sample among the samples of its seed. All samples must have distinct
                trees, see ``trees_of``.
            seed_ids: Names of the seeds, if the sampling adds ``seed_ids``.
            max_bytes: Make only the first samples whose values fit, at least one; None for all.

        Raises:
            SettingsError: The shape of the keys does not fit the spec.
            StoreError: The store failed.
        """
        sampling = self._sampling
        pieces = self._maker.make(keys, sampling.rng_seed, trees_of(keys, numbers), max_bytes=max_bytes)
        if CONTEXT in pieces.node_sets:
            pieces = self._with_context(pieces)
        if sampling.readout:
            pieces = add_seed_readout(pieces, self._plan.seed_types[0], sampling.labels)
        if sampling.seed_ids and seed_ids is not None:
            seed_ids = seed_ids[: pieces.num_graphs]
            sample_ids = list(map(sample_id_of, seed_ids, numbers[: pieces.num_graphs].tolist()))
            pieces = with_seed_ids(pieces, seed_ids, sample_ids=sample_ids)
        return pieces

    def _with_context(self, pieces: GraphPieces) -> GraphPieces:
        """Move the features of the node type ``#context`` to the context of each graph, and drop the type."""
        context = dict(pieces.context)
        if self._of_context:
            ids = self._store.lookup(CONTEXT, np.zeros(pieces.num_graphs, np.int64))
            [columns] = self._store.fetch([FetchRequest(entity=CONTEXT, names=self._of_context, ids=ids)])
            context |= {name: FeatureValues.of(columns[name]) for name in self._of_context}
        node_sets = {name: of for name, of in pieces.node_sets.items() if name != CONTEXT}
        return replace(pieces, context=context, node_sets=node_sets)


def trees_of(keys: IntArray, numbers: IntArray) -> IntArray:
    """Return int64[n], the tree number of each sample, from a hash of its seed and its number.

    Samples of one seed have distinct trees, as long as there are at most ``MAX_TREES`` of them. Trees of different
    seeds may collide.

    Args:
        keys: int64[n], or int64[n, 2] for links.
        numbers: int64[n], the number of each sample among the samples of its seed.
    """
    mixed = np.zeros(len(keys), np.uint64)
    for column in (keys,) if keys.ndim == 1 else keys.T:
        hash_keys(column ^ mixed.view(np.int64), np.uint64(0), mixed)
    trees: IntArray = ((mixed >> np.uint64(1)).view(np.int64) + numbers) % MAX_TREES
    return trees


def distinct_stretches(trees: IntArray) -> list[tuple[int, int]]:
    """Return ``[start, stop)`` ranges without repeated trees; as few as possible, usually one."""
    order = np.argsort(trees, kind="stable")
    is_again = trees[order[1:]] == trees[order[:-1]]
    later, earlier = order[1:][is_again], order[:-1][is_again]
    starts = [0]
    for place in np.argsort(later).tolist():
        if earlier[place] >= starts[-1]:
            starts.append(int(later[place]))
    return list(zip(starts, [*starts[1:], len(trees)], strict=True)) if len(trees) else []


def _check_labels(sampling: SeedSampling, schema: GraphSchema, seed_type: str, written: Sequence[str]) -> None:
    for name in sampling.labels:
        held = schema.feature(seed_type, name)
        if name not in written:
            raise SettingsError(f"label {name!r} is not among the features of {seed_type!r}: {', '.join(written)}")
        if held.is_ragged:
            raise SettingsError(f"label {name!r} holds lists of different lengths; labels have one shape")
