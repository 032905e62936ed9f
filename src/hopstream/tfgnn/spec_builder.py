"""Builder of a ``SamplingSpec``, with the names and the order of ops of TF-GNN 1.0.3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import numpy as np
from google.protobuf.message import Message

from hopstream.checks import known_words
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.tfgnn.graph_schema import AUXILIARY
from hopstream.tfgnn.messages import GRAPH_SCHEMA, SAMPLING_SPEC, message_class
from hopstream.tfgnn.sampling_spec import LATEST_K, RANDOM_UNIFORM, TOP_K, strategy_name

MAX_SAMPLE_SIZE = 2**31 - 1
"""Largest int32, the type of the message's field."""
STRATEGY_NUMBERS = range(TOP_K, LATEST_K + 1)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingStep:
    """Op of a spec under construction; ``sample`` returns a new step.

    Attributes:
        builder: The builder that the step belongs to.
        node_set_name: The node set that it reaches.
        op_name: The given name; None if ``build`` chooses one.
        edge_set_name: The edge set that it draws from; "" for the seed op.
        sample_size: Edges per node; 0 for the seed op.
        strategy: Number of the strategy; 0 for the seed op.
        inputs: The input steps; none for the seed op.
        children: The steps that have this step as an input, in order of creation.
    """

    builder: SamplingSpecBuilder
    node_set_name: str
    op_name: str | None
    edge_set_name: str = ""
    sample_size: int = 0
    strategy: int = TOP_K
    inputs: tuple[SamplingStep, ...] = ()
    children: list[SamplingStep] = field(default_factory=list, repr=False)

    def sample(
        self, sample_size: int | Sequence[int], edge_set_name: str | None = None, strategy: int | None = None,
        op_name: str | None = None,
    ) -> SamplingStep:  # fmt: skip
        """Draw edges for every node that this step reaches.

        Args:
            sample_size: Edges per node; a list for several consecutive ops along one edge set.
            edge_set_name: The edge set; may be omitted if there is only one.
            strategy: ``TOP_K``, ``RANDOM_UNIFORM``, ``RANDOM_WEIGHTED`` or ``LATEST_K``; None for the builder's.
            op_name: Name of the op; the second, third … op gets the suffix ``.2``, ``.3`` … None: the names of the node
                sets.

        Raises:
            UnknownNameError: There is no such edge set.
            SettingsError: A size is not an integer from 1 to 2**31 - 1, the edge set starts from another node set,
                there is no such strategy, or another op has this name.
        """
        return self.builder._sample((self,), sample_size, edge_set_name, strategy, op_name)

    def join(self, others: Iterable[SamplingStep]) -> JoinedSteps:
        """Join this step and others, so that one op draws for all of them.

        Raises:
            SettingsError: There are no others, or they belong to another builder or reach another node set.
        """
        joined = (*others,)
        if not joined:
            raise SettingsError("join got no other steps; give one or more, or call sample without join")
        return JoinedSteps((self, *joined))

    def merge_then_sample(self, other_steps: Iterable[SamplingStep], *args: Any, **options: Any) -> SamplingStep:
        """Call ``join(other_steps).sample(…)``; TF-GNN's older name."""
        return self.join(other_steps).sample(*args, **options)

    def build(self) -> Any:
        """Build the ``SamplingSpec`` of all steps of the builder."""
        return self.builder.build()

    def to_sampling_spec(self) -> Any:
        """Call ``build()``; TF-GNN's older name."""
        return self.build()


@dataclass(frozen=True, slots=True, eq=False)
class JoinedSteps:
    """Steps that reach the same node set; the next op draws once for each node that any of them reaches.

    With a list of sizes, all ops but the last draw only for the first step, and the last op for all steps, as in
    TF-GNN.

    Attributes:
        steps: The steps.
    """

    steps: tuple[SamplingStep, ...]

    def __post_init__(self) -> None:
        """Check the steps.

        Raises:
            SettingsError: There are no steps, or they have different builders or reach different node sets.
        """
        for step in self.steps:
            if not isinstance(step, SamplingStep):
                raise SettingsError(f"join takes steps, which seed and sample give; got {type(step).__name__}")
        if not self.steps or len({id(step.builder) for step in self.steps}) > 1:
            raise SettingsError("join takes one step or more of one builder")
        reached = sorted({step.node_set_name for step in self.steps})
        if len(reached) > 1:
            raise SettingsError(f"join: the steps reach different node sets: {', '.join(reached)}")

    def sample(
        self, sample_size: int | Sequence[int], edge_set_name: str | None = None, strategy: int | None = None,
        op_name: str | None = None,
    ) -> SamplingStep:  # fmt: skip
        """Draw edges; see ``SamplingStep.sample``."""
        return self.steps[0].builder._sample(self.steps, sample_size, edge_set_name, strategy, op_name)


class SamplingSpecBuilder:
    """Builder of one spec: ``SamplingSpecBuilder(schema).seed("paper").sample(8, "cites").build()``."""

    def __init__(self, graph_schema: Any, default_strategy: int = TOP_K) -> None:
        """Start with an empty spec.

        Args:
            graph_schema: A ``GraphSchema`` message, for example from ``read_schema`` or ``schema_message``.
            default_strategy: Strategy of ops that do not name one.

        Raises:
            SettingsError: The schema is not a ``GraphSchema`` message, or there is no such strategy.
        """
        self._schema = _checked_schema(graph_schema)
        self._default_strategy = _checked_strategy(default_strategy)
        self._names: set[str] = set()  # names given by the user
        self._seed: SamplingStep | None = None
        self._targets: SamplingStep | None = None  # a second step of the seed op, if links' targets have another set
        self._is_of_links = False

    @staticmethod
    def join(steps: Iterable[SamplingStep]) -> JoinedSteps:
        """Join steps, so that one op draws for all of them."""
        return JoinedSteps(tuple(steps))

    def seed(self, node_set_name: str | None = None, op_name: str | None = None) -> SamplingStep:
        """Start from a node set; its name may be omitted if there is only one.

        Raises:
            UnknownNameError: There is no such node set.
            SettingsError: There are several node sets and none is named, or the spec has a seed already.
        """
        return self._begin(node_set_name, op_name)

    def seed_links(self, node_set_name: str | None = None, op_name: str | None = None) -> SamplingStep:
        """Start from links with both ends in one node set; its name may be omitted if there is only one.

        Raises:
            UnknownNameError: There is no such node set.
            SettingsError: There are several node sets and none is named, or the spec has a seed already.
        """
        step = self._begin(node_set_name, op_name)
        self._is_of_links = True
        return step

    def seed_links_between(
        self, source_set_name: str, target_set_name: str, op_name: str | None = None
    ) -> tuple[SamplingStep, SamplingStep]:
        """Start from links between two node sets; return a step for the sources and one for the targets.

        Both steps belong to one seed op. The spec does not store which node set holds the sources; ``link_set`` of an
        export does.

        Raises:
            UnknownNameError: There is no such node set.
            SettingsError: The spec has a seed already.
        """
        target_set = self._only("node set", self._schema.node_sets, target_set_name)
        sources = self.seed_links(source_set_name, op_name)
        if target_set != sources.node_set_name:
            self._targets = replace(sources, node_set_name=target_set)  # with the same list of children
        return sources, self._targets or sources

    def build(self) -> Any:
        """Build the ``SamplingSpec`` of the steps so far; every op comes after its inputs.

        Raises:
            SchemaError: The spec has no seed.
        """
        if self._seed is None:
            raise SchemaError("the spec has no seed; call seed or seed_links first")
        spec, names = message_class(SAMPLING_SPEC)(), _Names(self._names)
        seed, *steps = _in_order(self._seed)
        seed_op = spec.symmetric_link_seed_op if self._is_of_links else spec.seed_op
        seed_op.op_name = names.give(seed, f"SEED->{seed.node_set_name}")
        if self._targets is not None:
            names.of[self._targets] = seed_op.op_name
        if not self._is_of_links:
            seed_op.node_set_name = seed.node_set_name
        for step in steps:
            inputs = [names.of[one] for one in step.inputs]
            start = step.inputs[0].node_set_name if len(inputs) == 1 else f"({'|'.join(inputs)})"
            spec.sampling_ops.add(
                op_name=names.give(step, f"{start}->{step.node_set_name}"), edge_set_name=step.edge_set_name,
                sample_size=step.sample_size, strategy=step.strategy, input_op_names=inputs,
            )  # fmt: skip
        return spec

    def to_sampling_spec(self) -> Any:
        """Call ``build()``; TF-GNN's older name."""
        return self.build()

    def _sample(
        self, steps: tuple[SamplingStep, ...], sample_size: int | Sequence[int], edge_set_name: str | None,
        strategy: int | None, op_name: str | None,
    ) -> SamplingStep:  # fmt: skip
        sizes = _checked_sizes(sample_size)
        _checked_strategy(strategy if strategy is not None else self._default_strategy)
        names = [op_name if op_name is None or not n else f"{op_name}.{n + 1}" for n in range(len(sizes))]
        edge_set = self._only("edge set", self._schema.edge_sets, edge_set_name)
        edges = self._schema.edge_sets[edge_set]
        for source in [steps[0].node_set_name, edges.target][: len(sizes)]:
            if edges.source != source:
                raise SettingsError(f"edge set {edge_set!r} starts from {edges.source!r}; the step reaches {source!r}")
        for name in names:
            self._take_name(name)
        strategy = self._default_strategy if strategy is None else strategy
        step, *others = steps
        for number, (name, size) in enumerate(zip(names, sizes, strict=True), 1):
            inputs = (step, *others) if number == len(sizes) else (step,)
            step = SamplingStep(self, edges.target, name, edge_set, size, strategy, inputs)
            for one in dict.fromkeys(inputs):
                one.children.append(step)
        return step

    def _begin(self, node_set_name: str | None, op_name: str | None) -> SamplingStep:
        if self._seed is not None:
            raise SettingsError(f"the spec starts from {self._seed.node_set_name!r} already; it has one seed op")
        node_set = self._only("node set", self._schema.node_sets, node_set_name)
        self._take_name(op_name)
        self._seed = SamplingStep(self, node_set, op_name)
        return self._seed

    def _take_name(self, op_name: str | None) -> None:
        if op_name is None:
            return
        if not isinstance(op_name, str):
            raise SettingsError(f"op_name is {op_name!r}; give a string")
        if op_name in self._names:
            raise SettingsError(
                f"op_name is {op_name!r}, which is used by another op; give another name, or leave it out"
            )
        self._names.add(op_name)

    def _only(self, what: str, known: Any, name: str | None) -> str:
        if name is None and len(known) != 1:
            raise SettingsError(f"which {what}? There are {len(known)}: {', '.join(sorted(known))}")
        found = next(iter(known)) if name is None else name
        if found not in known:
            raise UnknownNameError(f"unknown {what} {found!r}; {known_words(found, sorted(known))}")
        return str(found)


class _Names:
    """Names of the ops of one spec: given by the user, or generated as ``x->y``, ``x->y.2`` and so on."""

    def __init__(self, given: set[str]) -> None:
        self._taken = set(given)
        self.of: dict[SamplingStep, str] = {}

    def give(self, step: SamplingStep, made: str) -> str:
        """Name a step: as given by the user, else ``made``.

        If that name is taken, it gets a suffix from ``.2`` on.
        """
        if not step.op_name:
            numbered = (f"{made}.{number}" for number in count(2))
            made = next(name for name in chain((made,), numbered) if name not in self._taken)
            self._taken.add(made)
        self.of[step] = step.op_name or made
        return self.of[step]


def _in_order(seed: SamplingStep) -> list[SamplingStep]:
    """List the steps that a seed leads to, each after its inputs.

    Of the steps whose inputs are all listed, the one that became ready last comes next. This is TF-GNN's order, and the
    generated names depend on it.
    """
    found: list[SamplingStep] = []
    ready, met = [seed], dict[SamplingStep, int]()
    while ready:
        found.append(ready.pop())
        for child in found[-1].children:
            met[child] = met.get(child, 0) + 1
            if met[child] == len(set(child.inputs)):
                ready.append(child)
    return found


def _checked_schema(given: Any) -> Any:
    if not isinstance(given, Message) or given.DESCRIPTOR.full_name != GRAPH_SCHEMA:
        raise SettingsError(
            f"graph_schema is a {type(given).__name__}; give a GraphSchema message: read_schema(path) reads one, "
            "schema_message(graph.schema) makes one of a graph"
        )
    return given


def _checked_strategy(strategy: object) -> int:
    if isinstance(strategy, bool) or not isinstance(strategy, int) or strategy not in STRATEGY_NUMBERS:
        known = ", ".join(f"{strategy_name(number)} ({number})" for number in STRATEGY_NUMBERS)
        raise SettingsError(f"strategy is {strategy!r}; known: {known}")
    return strategy


def _checked_sizes(sample_size: object) -> list[int]:
    """Return the sample size of each op as a list; NumPy integers are allowed."""
    many = isinstance(sample_size, Sequence | np.ndarray) and not isinstance(sample_size, str | bytes)
    sizes: list[Any] = list(sample_size) if many else [sample_size]  # type: ignore[call-overload]
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= MAX_SAMPLE_SIZE:
            raise SettingsError(f"sample_size is {sample_size!r}; give integers from 1 to 2**31 - 1: edges per node")
    if not sizes:
        raise SettingsError("sample_size is []; give 1 or more edges per node")
    return [int(size) for size in sizes]


def make_sampling_spec_tree(
    graph_schema: Any, seed_nodeset: str, *, sample_sizes: Sequence[int], sampling_strategy: int = RANDOM_UNIFORM
) -> Any:
    """Build a spec that follows every edge set from every reached node set, down to a depth.

    Args:
        graph_schema: A ``GraphSchema`` message.
        seed_nodeset: The node set of the seeds.
        sample_sizes: Edges per node and edge set, one number for each depth.
        sampling_strategy: Strategy of all ops.

    Raises:
        UnknownNameError: There is no such node set.
        SettingsError: The schema is not a ``GraphSchema`` message, a size is out of range, or there is no such
            strategy.
    """
    builder = SamplingSpecBuilder(graph_schema, sampling_strategy)

    def expand(step: SamplingStep, sizes: Sequence[int]) -> None:
        if not sizes:
            return
        for name in sorted(graph_schema.edge_sets):
            if not AUXILIARY.match(name) and graph_schema.edge_sets[name].source == step.node_set_name:
                expand(step.sample(sizes[0], name), sizes[1:])

    expand(builder.seed(seed_nodeset), list(sample_sizes))
    return builder.build()
