"""Formats examples for people, and finds examples that contradict their schema."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import RaggedArray
from hopstream.errors import FormatError, SchemaError
from hopstream.tfgnn.example import Values, decode_example
from hopstream.tfgnn.graph_tensor import SIZE, SOURCE, TARGET, GraphPieces, decode_graph, decode_graphs
from hopstream.tfgnn.readout import check_readout, is_readout
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.tfrecord import RecordBlock, example_blocks
from hopstream.tfgnn.values import FeatureValues

MAX_TEXT = 60
"""Most characters of a string in text."""


@dataclass(frozen=True, slots=True)
class ShownFeature:
    """Feature, or the indices or sizes of a set.

    Attributes:
        key: Its owner: ``context``, ``nodes/<set>`` or ``edges/<set>``; "" without a schema.
        section: The owner in words, such as ``node set paper, 3 nodes``.
        name: Name of the feature in its owner.
        kind: Dtype and shape as text.
        values: Nested lists of bool, int, float and bytes.
    """

    key: str
    section: str
    name: str
    kind: str
    values: list[Any]


def shown_lists(record: bytes) -> list[ShownFeature]:
    """Return the lists of an example as stored, in order of names.

    Raises:
        FormatError: The bytes are not an ``Example``.
    """
    found = []
    for key, values in sorted(decode_example(record).items()):
        dtype = "string" if isinstance(values, RaggedArray) else str(values.dtype)
        found.append(
            ShownFeature("", "", key, f"{dtype}[{len(values)}]", plain_values(FeatureValues(values, len(values))))
        )
    return found


def shown_graph(record: bytes, spec: GraphSpec, prefix: str = "") -> list[ShownFeature]:
    """Return the features of an example's graph tensor in their shapes, set by set.

    Raises:
        FormatError: The bytes are not an ``Example``, or contradict the spec.
    """
    graph = decode_graph(record, spec, num_components=num_components_of(decode_example(record)), prefix=prefix)
    return list(_shown(graph))


def num_components_of(lists: Mapping[str, Values]) -> int:
    """Return the number of components from the lists of sizes; 1 if there are none."""
    return max((len(values) for key, values in lists.items() if key.endswith("." + SIZE)), default=1) or 1


def _shown(graph: GraphPieces) -> Iterator[ShownFeature]:
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


def _feature(where: tuple[str, str], name: str, values: FeatureValues) -> ShownFeature:
    dtype = "string" if isinstance(values.flat, RaggedArray) else str(values.flat.dtype)
    shape = ", ".join(str(size) if size is not None else "ragged" for size in (values.num_items, *values.shape))
    return ShownFeature(*where, name, f"{dtype}[{shape}]", plain_values(values))


def plain_values(values: FeatureValues) -> list[Any]:
    """Return nested lists, with floats in the fewest digits that identify them in their dtype."""
    flat = values.flat
    if not isinstance(flat, RaggedArray) and flat.dtype.kind == "f" and flat.dtype.itemsize < 8:
        flat = np.array([float(text) for text in flat.astype(str).tolist()], np.float64)
    return FeatureValues(flat, values.num_items, values.dims).tolist()


def json_value(value: Any) -> Any:
    """Convert a value for JSON.

    Bytes become text or ``{"base64": …}``, NaN and infinite numbers their names.
    """
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
    """Format a value in one line, with at most ``max_values`` values per list.

    Unprintable characters are escaped.
    """
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


_VERB = re.compile(r" (?:has|is|adds|points) ")
_NUMBER = re.compile(r"\d+")


class Examination:
    """Check of examples against a spec in bounded memory."""

    def __init__(self, spec: GraphSpec, *, num_components: int = 1, prefix: str = "") -> None:
        """Prepare to check examples of graphs of ``num_components`` components each."""
        self._spec, self._num_components, self._prefix = spec, num_components, prefix
        self.num_examples = 0
        """Number of examples checked so far."""
        self.empty_paths: list[Path] = []
        """Files without examples."""

    def problems(
        self, paths: Sequence[Path], blocks_of: Callable[[Sequence[Path]], Iterator[RecordBlock]] = example_blocks,
        *, max_problems: int = 100,
    ) -> list[str]:  # fmt: skip
        """Check files and return the problems, one line each, with file and record.

        For records with the same kind of problem, the line names the first one and counts the others. A file is
        skipped from the first unreadable record on.

        Args:
            paths: The files.
            blocks_of: Function that reads the blocks of files.
            max_problems: Most lines to return.
        """
        found: dict[tuple[str, ...], tuple[str, int]] = {}
        for path in paths:
            num_before = self.num_examples
            try:
                for block in blocks_of([path]):
                    for place, text in self._problems_of(block):
                        kind = _kind_of(text)
                        if kind in found or len(found) < max_problems:
                            line, count = found.get(kind, (f"{place}: {text}", 0))
                            found[kind] = (line, count + 1)
                    self.num_examples += len(block.bounds)
                if self.num_examples == num_before:
                    self.empty_paths.append(path)
            except FormatError as error:  # about the file; _problems_of catches errors about a record
                if len(found) < max_problems:
                    found[str(path), str(error)] = (str(error), 1)
        return [line + _alike(count - 1) for line, count in found.values()]

    def _problems_of(self, block: RecordBlock) -> Iterator[tuple[str, str]]:
        """Yield place and text of each problem."""
        records = block.records()
        try:
            self._check(records)
            return
        except (FormatError, SchemaError):
            pass
        for number, record in enumerate(records, block.first):
            try:
                self._check([record])
            except (FormatError, SchemaError) as error:
                text = str(error).removeprefix("message 0: ")
                yield f"{block.path}: record {number}", text + self._hint(record)

    def _check(self, records: Sequence[bytes]) -> None:
        wanted = self._num_components
        graphs = decode_graphs(records, self._spec, num_components=wanted, prefix=self._prefix)
        for name in filter(is_readout, self._spec.node_sets):
            check_readout(graphs, name)

    def _hint(self, record: bytes) -> str:
        try:
            found = num_components_of(decode_example(record))
        except FormatError:
            return ""
        return f"; it has {found} components, wanted {self._num_components}" if found != self._num_components else ""


def _kind_of(text: str) -> tuple[str, str]:
    """Return the feature that a text names first, and the rest of the text without its numbers."""
    match = _VERB.search(text)
    at = match.start() if match else 0
    return text[:at], _NUMBER.sub("0", text[at:])


def _alike(count: int) -> str:
    return "" if not count else f" (and so {'is 1 other record' if count == 1 else f'are {count:,} other records'})"
