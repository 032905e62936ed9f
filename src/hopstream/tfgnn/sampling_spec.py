"""Reads and checks a TF-GNN ``SamplingSpec``.

A spec is a list of ops. The seed op names the node set that sampling starts from. Each sampling op draws up to
``sample_size`` edges of one edge set for every distinct node that its inputs reached, by one of four strategies. If
seeds are links between two node sets, an op after the seed op expands the ends in the source set of its edge set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from hopstream.errors import MAX_QUOTED, FormatError, SchemaError, SettingsError, quoted
from hopstream.tfgnn.graph_schema import message_text, parse_message, read_message
from hopstream.tfgnn.messages import SAMPLING_SPEC, enum_names
from hopstream.tfgnn.readout import READOUT
from hopstream.uris import local_path

TOP_K, RANDOM_UNIFORM, RANDOM_WEIGHTED, LATEST_K = range(4)
WEIGHTED = (TOP_K, RANDOM_WEIGHTED)
WEIGHT_NAMES = ("#weight", "weight")
"""Possible names of the feature that holds an edge set's weights."""
_TEXT = re.compile(r"[\n<{]|:\s")
"""Matches the text form of a spec, and hardly any path."""
LINK_ENDS = (f"{READOUT}/source", f"{READOUT}/target")


def strategy_name(number: int) -> str:
    """Return the name of a strategy by its number."""
    return enum_names("tensorflow_gnn.sampler.SamplingStrategy").get(number, str(number))


def parse_spec(text: str, where: str = "text") -> Any:
    """Parse a ``SamplingSpec`` message from its text form.

    Raises:
        FormatError: The text is not a ``SamplingSpec``; the message names line and column.
    """
    return parse_message(text, SAMPLING_SPEC, where)


def read_spec(path: str | Path) -> Any:
    """Read a ``SamplingSpec`` message from a file.

    Raises:
        FormatError: The file is missing or not a ``SamplingSpec``.
        OSError: The file cannot be read.
    """
    path = local_path(path)
    if not path.is_file():
        raise FormatError(f"{path} does not exist; give a SamplingSpec in text form")
    return read_message(path, SAMPLING_SPEC)


def spec_text(spec: Any) -> str:
    """Return the text form of a spec given as a file, as text, or as a message.

    Args:
        spec: The path of a file, as a ``Path`` or a string; the text form itself; or a ``SamplingSpec`` message, for
            example from ``SamplingSpecBuilder.build``.

    Raises:
        FormatError: The file does not exist, or it or the text is not a ``SamplingSpec``.
        SettingsError: The value is of another type.
        OSError: The file cannot be read.
    """
    if isinstance(spec, str) and (_TEXT.search(spec) or not spec.strip()) and not _is_file(spec):
        return message_text(parse_spec(spec, "spec"))
    if isinstance(spec, str | Path):
        return message_text(read_spec(spec))
    if isinstance(spec, Message) and spec.DESCRIPTOR.full_name == SAMPLING_SPEC:
        return message_text(spec)
    hint = "; call build() on the last step" if hasattr(spec, "sample") or hasattr(spec, "build") else ""
    raise SettingsError(f"spec is a {type(spec).__name__}; give a file, its text, or a SamplingSpec message{hint}")


def spec_name(spec: Any) -> str:
    """Return a spec's name in messages: the path of its file, or "spec"."""
    return str(spec) if isinstance(spec, Path) or (isinstance(spec, str) and _is_file(spec)) else "spec"


def _is_file(text: str) -> bool:
    """Return whether a text is the path of an existing file."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or with a null byte
        return False


def data_sets(schema: Any) -> list[str]:
    """List the node sets of a schema without ``#context``, the node type that holds a unigraph's context."""
    return sorted(name for name in schema.node_sets if name != "#context")


def seed_of(spec: Any, schema: Any) -> tuple[str, tuple[str, ...]]:
    """Return the name of the seed op and its node sets: one, or for links those of source and target.

    The readout edge sets of the schema name the node sets of links' ends.

    Raises:
        SchemaError: The spec has no seed op, or seeds are links and the schema has no readout of links.
    """
    kind = spec.WhichOneof("seed_type")
    if kind is None:
        raise SchemaError("the spec has no seed_op; add one with the node set from which sampling starts")
    if kind == "seed_op":
        return spec.seed_op.op_name, (spec.seed_op.node_set_name,)
    missing = [name for name in LINK_ENDS if name not in schema.edge_sets]
    if missing:
        raise SchemaError(
            f"symmetric_link_seed_op needs edge set {missing[0]!r} in the schema, from where links are read"
        )
    return spec.symmetric_link_seed_op.op_name, tuple(schema.edge_sets[name].source for name in LINK_ENDS)


def check_spec(spec: Any, schema: Any, where: str = "spec") -> None:
    """Refuse a spec that contradicts itself or the schema of the graph.

    Raises:
        SchemaError: The spec contradicts itself or the schema; the message lists all problems.
    """
    problems = list(spec_problems(spec, schema))
    if problems:
        more = "".join(f"\n  {problem}" for problem in problems)
        raise SchemaError(f"{where}: {problems[0]}" if len(problems) == 1 else f"{where}:{more}")


def spec_problems(spec: Any, schema: Any) -> Iterator[str]:
    """Yield the problems of a spec, one line each."""
    reached: dict[str, tuple[str, ...]] = {}  # op name to node sets; empty if unknown
    try:
        seed_name, seed_sets = seed_of(spec, schema)
    except SchemaError as error:
        yield str(error)
    else:
        if not seed_name:
            yield "the seed op has no op_name"
        unknown = [one for one in dict.fromkeys(seed_sets) if one not in schema.node_sets]
        for one in unknown:
            yield f"seed op {quoted(seed_name)}: unknown node set {quoted(one)}; known: {_names(data_sets(schema))}"
        reached[seed_name] = () if unknown else seed_sets
    inputs = {op.op_name: tuple(op.input_op_names) for op in spec.sampling_ops}
    for number, op in enumerate(spec.sampling_ops):
        what = f"op {quoted(op.op_name)}" if op.op_name else f"sampling_ops[{number}]"
        if not op.op_name:
            yield f"{what} has no op_name"
        elif op.op_name in reached:
            yield f"{what} occurs twice"
        edges = schema.edge_sets.get(op.edge_set_name, None)
        yield from _edge_problems(what, op, edges, schema)
        yield from _input_problems(what, op, edges, reached, inputs)
        reached[op.op_name] = () if edges is None else (edges.target,)


def _edge_problems(what: str, op: Any, edges: Any, schema: Any) -> Iterator[str]:
    if edges is None:
        yield f"{what}: unknown edge set {quoted(op.edge_set_name)}; known: {_names(schema.edge_sets)}"
    if op.sample_size < 1:
        yield f"{what}: sample_size is {op.sample_size}; give 1 or more"
    strategy = None if edges is None else strategy_of(op, edges)
    if strategy in WEIGHTED and weight_feature(edges.features) is None:
        lacks = f"edge set {quoted(op.edge_set_name)} has no feature {' or '.join(WEIGHT_NAMES)}"
        remedy = "write RANDOM_UNIFORM, or call the feature of weights 'weight' (or '#weight') in the tables"
        yield f"{what}: {strategy_name(op.strategy)} needs weights; {lacks}; {remedy}"


def _input_problems(
    what: str, op: Any, edges: Any, reached: Mapping[str, tuple[str, ...]], inputs: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    if not op.input_op_names:
        yield f"{what} has no input_op_names"
    for name in op.input_op_names:
        if name not in reached:
            yield f"{what}: input op {quoted(name)} {_why_not_reached(name, op.op_name, reached, inputs)}"
        elif edges is not None and reached[name] and edges.source not in reached[name]:
            sets = " and ".join(map(quoted, dict.fromkeys(reached[name])))
            yield (
                f"{what}: input op {quoted(name)} reaches node set {sets}; edge set {quoted(op.edge_set_name)} "
                f"starts from {quoted(edges.source)}"
            )


def _why_not_reached(
    name: str, op_name: str, reached: Mapping[str, tuple[str, ...]], inputs: Mapping[str, tuple[str, ...]]
) -> str:
    if name == op_name:
        return "is the op itself; ops start from the seed op or from other ops"
    if name not in inputs:
        return f"does not exist; known: {_names(reached)}"
    if op_name in _all_inputs(name, inputs):
        return "is reached from the op itself, in a circle; ops form a tree that starts from the seed op"
    return "comes later; put ops behind their inputs"


def _all_inputs(name: str, inputs: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return all direct and indirect inputs of an op."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = [one for one in inputs.get(waiting.pop(), ()) if one not in found]
        found.update(new)
        waiting += new
    return found


def weight_feature(features: Any) -> str | None:
    """Return the name of the feature that holds weights, or None."""
    return next((name for name in WEIGHT_NAMES if name in features), None)


def strategy_of(op: Any, edges: Any) -> int:
    """Return the strategy of an op.

    An op without a strategy uses ``TOP_K`` if its edge set has weights, else ``RANDOM_UNIFORM``. The default of
    TF-GNN's message format is ``TOP_K``, but TF-GNN 1.0.3 draws uniformly if no strategy is named.

    Args:
        op: A sampling op.
        edges: Its edge set in the ``GraphSchema``.
    """
    is_default = not op.HasField("strategy") and weight_feature(edges.features) is None
    return RANDOM_UNIFORM if is_default else int(op.strategy)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStep:
    """Op of a spec, for people.

    Attributes:
        name: Name of the op.
        draws: Its edge set, or the node set of the seed op; empty if seeds are links of an unknown node set.
        size: Most edges per node; None for the seed op.
        strategy: Name of the strategy; empty for the seed op, and for an op without one if the schema is unknown.
        inputs: Names of the ops whose nodes it expands.
    """

    name: str
    draws: str
    size: int | None
    strategy: str
    inputs: tuple[str, ...]


def spec_steps(spec: Any, schema: Any = None) -> list[SpecStep]:
    """List the ops of a spec, the seed op first.

    Args:
        spec: A ``SamplingSpec`` message.
        schema: A ``GraphSchema`` message, which decides the strategy of ops without one; None if unknown.
    """
    kind = spec.WhichOneof("seed_type")
    seed = None if kind is None else getattr(spec, kind)
    steps = []
    if seed is not None:
        draws = getattr(seed, "node_set_name", "")
        steps.append(SpecStep(name=seed.op_name, draws=draws, size=None, strategy="", inputs=()))
    for op in spec.sampling_ops:
        edges = None if schema is None else schema.edge_sets.get(op.edge_set_name, None)
        number = int(op.strategy) if op.HasField("strategy") else None if edges is None else strategy_of(op, edges)
        steps.append(
            SpecStep(
                name=op.op_name, draws=op.edge_set_name, size=op.sample_size,
                strategy="" if number is None else strategy_name(number), inputs=tuple(op.input_op_names),
            )
        )  # fmt: skip
    return steps


def spec_flowchart(steps: Sequence[SpecStep]) -> str:
    """Return a Mermaid flowchart of the ops of a spec, one line per op and per input."""
    numbers = {step.name: f"op{number}" for number, step in enumerate(steps)}
    lines = ["flowchart TD"]
    for step in steps:
        size = "" if step.size is None else f"<br/>at most {step.size} {step.strategy}".rstrip()
        label = f"{step.name}<br/>{step.draws}{size}".replace('"', "#quot;")
        lines.append(f'    {numbers[step.name]}["{label}"]')
    arrows = [(one, step.name) for step in steps for one in step.inputs if one in numbers]
    return "\n".join([*lines, *(f"    {numbers[one]} --> {numbers[name]}" for one, name in arrows)])


def uniform_by_default(spec: Any, schema: Any) -> list[str]:
    """List the ops without a strategy that draw uniformly because their edge sets have no weights."""
    ops = [op for op in spec.sampling_ops if not op.HasField("strategy")]
    return [op.op_name for op in ops if strategy_of(op, schema.edge_sets[op.edge_set_name]) == RANDOM_UNIFORM]


def _names(known: Any) -> str:
    return ", ".join(name if len(name) <= MAX_QUOTED else quoted(name) for name in sorted(known)) or "none"
