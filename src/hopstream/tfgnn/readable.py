"""Shows an example to people, as text or as JSON, whatever bytes it holds."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopstream.arrays import RaggedArray
from hopstream.tfgnn.example import Values, decode_example
from hopstream.tfgnn.graph_tensor import SIZE, SOURCE, TARGET, GraphPieces, decode_graph
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.values import FeatureValues

MAX_TEXT = 60
"""Characters of a string in text."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One feature, or the indices or sizes of a set.

    Attributes:
        key: What it belongs to: ``context``, ``nodes/<set>``, ``edges/<set>``, or nothing where no schema is given.
        section: The same for people, such as ``node set paper, 3 nodes``.
        name: What it is called there.
        kind: Its dtype and shape.
        values: Nested lists of bool, int, float and bytes.
    """

    key: str
    section: str
    name: str
    kind: str
    values: list[Any]


def shown_lists(record: bytes) -> list[Shown]:
    """The lists of an example as they are stored, in the order of their names.

    Raises:
        FormatError: The bytes are no ``Example``.
    """
    found = []
    for key, values in sorted(decode_example(record).items()):
        dtype = "string" if isinstance(values, RaggedArray) else str(values.dtype)
        found.append(Shown("", "", key, f"{dtype}[{len(values)}]", plain_values(FeatureValues(values, len(values)))))
    return found


def shown_graph(record: bytes, spec: GraphSpec, prefix: str = "") -> list[Shown]:
    """The graph tensor of an example: features in their shapes, set by set.

    Raises:
        FormatError: The bytes are no ``Example``, or contradict the spec.
    """
    graph = decode_graph(record, spec, num_components=num_components_of(decode_example(record)), prefix=prefix)
    return list(_shown(graph))


def num_components_of(lists: Mapping[str, Values]) -> int:
    """How many components the sizes of an example are of; 1 where it has none."""
    return max((len(values) for key, values in lists.items() if key.endswith("." + SIZE)), default=1) or 1


def _shown(graph: GraphPieces) -> Iterator[Shown]:
    for name, values in graph.context.items():
        yield _feature(("context", "context"), name, values)
    for set_name, nodes in graph.node_sets.items():
        where = (f"nodes/{set_name}", f"node set {set_name}, {_count_text(nodes.sizes, 'node')}")
        yield _feature(where, SIZE, FeatureValues(nodes.sizes, len(nodes.sizes)))
        for name, values in nodes.features.items():
            yield _feature(where, name, values)
    for set_name, edges in graph.edge_sets.items():
        ends = f"{edges.source_set} -> {edges.target_set}"
        where = (f"edges/{set_name}", f"edge set {set_name}, {ends}, {_count_text(edges.sizes, 'edge')}")
        yield _feature(where, SIZE, FeatureValues(edges.sizes, len(edges.sizes)))
        for name, indices in ((SOURCE, edges.source), (TARGET, edges.target)):
            yield _feature(where, name, FeatureValues(indices, len(indices)))
        for name, values in edges.features.items():
            yield _feature(where, name, values)


def _count_text(sizes: Any, noun: str) -> str:
    count = int(sizes.sum())
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _feature(where: tuple[str, str], name: str, values: FeatureValues) -> Shown:
    dtype = "string" if isinstance(values.flat, RaggedArray) else str(values.flat.dtype)
    shape = ", ".join(str(size) if size is not None else "ragged" for size in (values.num_items, *values.shape))
    return Shown(*where, name, f"{dtype}[{shape}]", plain_values(values))


def plain_values(values: FeatureValues) -> list[Any]:
    """Nested lists, with floats in as few digits as their dtype needs."""
    flat = values.flat
    if not isinstance(flat, RaggedArray) and flat.dtype.kind == "f" and flat.dtype.itemsize < 8:
        flat = np.array([float(text) for text in flat.astype(str).tolist()], np.float64)
    return FeatureValues(flat, values.num_items, values.dims).tolist()


def json_value(value: Any) -> Any:
    """A value that JSON can hold: bytes as text, or as ``{"base64": …}``; NaN and infinite numbers by their names."""
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def value_text(value: Any, max_values: int) -> str:
    """A value in one line: of each list its first ``max_values`` values; what does not print is escaped."""
    if isinstance(value, list):
        shown = [value_text(item, max_values) for item in value[:max_values]]
        if len(value) > max_values:
            shown.append(f"… {len(value) - max_values} more")
        return f"[{', '.join(shown)}]"
    if isinstance(value, bytes):
        try:
            text = repr(value.decode())
        except UnicodeDecodeError:
            text = repr(value)
        return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return str(value)
