"""How is a ``SamplingSpec`` written step by step, instead of as text?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.tfgnn.graph_schema import AUXILIARY
from hopstream.tfgnn.messages import SAMPLING_SPEC, message_class
from hopstream.tfgnn.sampling_spec import RANDOM_UNIFORM, TOP_K


@dataclass(frozen=True, slots=True, eq=False)
class SamplingStep:
    """One op of a spec that is being written. Steps do not change: ``sample`` gives a new one.

    Attributes:
        builder: What the step belongs to.
        node_set_name: The node set that it reaches.
        number: Its place among the ops; the seed op is 0.
    """

    builder: SamplingSpecBuilder
    node_set_name: str
    number: int

    def sample(
        self, sample_size: int | Sequence[int], edge_set_name: str | None = None, strategy: int | None = None,
        op_name: str | None = None,
    ) -> SamplingStep:  # fmt: skip
        """Draw edges for every node that this step reaches.

        Args:
            sample_size: Edges per node, or, for several steps along one edge set, those of each.
            edge_set_name: The edge set; may be left out where there is only one.
            strategy: ``TOP_K``, ``RANDOM_UNIFORM``, ``RANDOM_WEIGHTED`` or ``LATEST_K``; the builder's if None.
            op_name: A name for the op, which numbers follow where there are several; made from node sets if None.

        Raises:
            UnknownNameError: There is no such edge set.
            SettingsError: A size is below 1, or the edge set starts from another node set.
        """
        return self.builder._sample((self,), sample_size, edge_set_name, strategy, op_name)

    def join(self, others: Iterable[SamplingStep]) -> JoinedSteps:
        """This step and others, to be sampled from together."""
        return JoinedSteps((self, *others))

    def build(self) -> Any:
        """The ``SamplingSpec`` of all steps of the builder."""
        return self.builder.build()


@dataclass(frozen=True, slots=True, eq=False)
class JoinedSteps:
    """Steps that reach one node set; the next op draws once for each node that any of them reaches.

    Attributes:
        steps: The steps.
    """

    steps: tuple[SamplingStep, ...]

    def __post_init__(self) -> None:
        """Refuse steps of different builders, or that reach different node sets."""
        if not self.steps or len({id(step.builder) for step in self.steps}) > 1:
            raise SettingsError("join takes one step or more of one builder")
        reached = sorted({step.node_set_name for step in self.steps})
        if len(reached) > 1:
            raise SettingsError(f"join: the steps reach different node sets: {', '.join(reached)}")

    def sample(
        self, sample_size: int | Sequence[int], edge_set_name: str | None = None, strategy: int | None = None,
        op_name: str | None = None,
    ) -> SamplingStep:  # fmt: skip
        """Draw edges as ``SamplingStep.sample`` does."""
        return self.steps[0].builder._sample(self.steps, sample_size, edge_set_name, strategy, op_name)


class SamplingSpecBuilder:
    """Writes one spec: ``SamplingSpecBuilder(schema).seed("paper").sample(8, "cites").build()``."""

    def __init__(self, graph_schema: Any, default_strategy: int = TOP_K) -> None:
        """Begin.

        Args:
            graph_schema: A ``GraphSchema`` message.
            default_strategy: For ops that name none.
        """
        self._schema = graph_schema
        self._default_strategy = default_strategy
        self._spec = message_class(SAMPLING_SPEC)()
        self._names: Counter[str] = Counter()
        self._seed: tuple[str, str] | None = None  # the name of the seed op, and its node set

    @staticmethod
    def join(steps: Iterable[SamplingStep]) -> JoinedSteps:
        """Steps to be sampled from together."""
        return JoinedSteps(tuple(steps))

    def seed(self, node_set_name: str | None = None, op_name: str | None = None) -> SamplingStep:
        """Start from a node set, which may be left out where there is only one.

        Raises:
            UnknownNameError: There is no such node set.
            SettingsError: There are several and none is named, or the spec has a seed already.
        """
        seed_name, node_set = self._begin(node_set_name, op_name)
        self._spec.seed_op.op_name, self._spec.seed_op.node_set_name = seed_name, node_set
        return SamplingStep(self, node_set, 0)

    def seed_links(self, node_set_name: str | None = None, op_name: str | None = None) -> SamplingStep:
        """Start from links, with both of their ends in a node set, which may be left out where there is only one.

        Raises:
            UnknownNameError: There is no such node set.
            SettingsError: There are several and none is named, or the spec has a seed already.
        """
        self._spec.symmetric_link_seed_op.op_name, node_set = self._begin(node_set_name, op_name)
        return SamplingStep(self, node_set, 0)

    def build(self) -> Any:
        """The ``SamplingSpec`` as it is now; ops follow their inputs.

        Raises:
            SchemaError: It has no seed.
        """
        if self._seed is None:
            raise SchemaError("the spec has no seed; call seed or seed_links first")
        spec = message_class(SAMPLING_SPEC)()
        spec.CopyFrom(self._spec)
        return spec

    def _sample(
        self, steps: tuple[SamplingStep, ...], sample_size: int | Sequence[int], edge_set_name: str | None,
        strategy: int | None, op_name: str | None,
    ) -> SamplingStep:  # fmt: skip
        sizes = [sample_size] if isinstance(sample_size, int) else list(sample_size)
        if not sizes or min(sizes) < 1:
            raise SettingsError(f"sample_size is {sample_size}; give 1 or more edges per node")
        for number, size in enumerate(sizes):
            name = op_name if op_name is None or not number else f"{op_name}.{number + 1}"
            steps = (self._one_step(steps, size, edge_set_name, strategy, name),)
        return steps[0]

    def _one_step(
        self, steps: tuple[SamplingStep, ...], size: int, edge_set_name: str | None, strategy: int | None,
        op_name: str | None,
    ) -> SamplingStep:  # fmt: skip
        edge_set = self._only("edge set", self._schema.edge_sets, edge_set_name)
        edges, source = self._schema.edge_sets[edge_set], steps[0].node_set_name
        if edges.source != source:
            raise SettingsError(f"edge set {edge_set!r} starts from {edges.source!r}; the step reaches {source!r}")
        inputs = [self._name_of(step) for step in steps]
        start = source if len(steps) == 1 else f"({'|'.join(inputs)})"
        op = self._spec.sampling_ops.add(edge_set_name=edge_set, sample_size=size)
        op.op_name = self._distinct(op_name or f"{start}->{edges.target}")
        op.strategy = self._default_strategy if strategy is None else strategy
        op.input_op_names.extend(inputs)
        return SamplingStep(self, edges.target, len(self._spec.sampling_ops))

    def _name_of(self, step: SamplingStep) -> str:
        if step.number == 0 and self._seed is not None:
            return self._seed[0]
        return str(self._spec.sampling_ops[step.number - 1].op_name)

    def _begin(self, node_set_name: str | None, op_name: str | None) -> tuple[str, str]:
        """The name of the seed op, and its node set."""
        if self._seed is not None:
            raise SettingsError(f"the spec starts from {self._seed[1]!r} already; it has one seed op")
        node_set = self._only("node set", self._schema.node_sets, node_set_name)
        self._seed = self._distinct(op_name or f"SEED->{node_set}"), node_set
        return self._seed

    def _distinct(self, name: str) -> str:
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}.{self._names[name]}"

    def _only(self, what: str, known: Any, name: str | None) -> str:
        if name is None and len(known) != 1:
            raise SettingsError(f"which {what}? There are {len(known)}: {', '.join(sorted(known))}")
        found = next(iter(known)) if name is None else name
        if found not in known:
            raise UnknownNameError(f"unknown {what} {found!r}; known: {', '.join(sorted(known))}")
        return str(found)


def make_sampling_spec_tree(
    graph_schema: Any, seed_nodeset: str, *, sample_sizes: Sequence[int], sampling_strategy: int = RANDOM_UNIFORM
) -> Any:
    """A spec that follows every edge set from every node set that it reaches, to a depth.

    Args:
        graph_schema: A ``GraphSchema`` message.
        seed_nodeset: The node set of the seeds.
        sample_sizes: Edges per node of each depth, for every edge set.
        sampling_strategy: One for all ops.

    Raises:
        UnknownNameError: There is no such node set.
        SettingsError: A size is below 1.
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
