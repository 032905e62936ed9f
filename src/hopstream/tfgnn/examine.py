"""Finds the examples of files that contradict their schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hopstream.errors import FormatError, SchemaError
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.graph_tensor import decode_graphs
from hopstream.tfgnn.readable import num_components_of
from hopstream.tfgnn.readout import check_readout, is_readout
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.tfrecord import RecordBlock, example_blocks

_VERB = re.compile(r" (?:has|is|adds|points) ")
_NUMBER = re.compile(r"\d+")


class Examination:
    """Reads examples in bounded memory, and says what is wrong with them."""

    def __init__(self, spec: GraphSpec, *, num_components: int = 1, prefix: str = "") -> None:
        """Examine examples of graphs of ``num_components`` each."""
        self._spec, self._num_components, self._prefix = spec, num_components, prefix
        self.num_examples = 0
        """Examples that have been looked at."""
        self.empty_paths: list[Path] = []
        """Files that have none."""

    def problems(
        self, paths: Sequence[Path], blocks_of: Callable[[Sequence[Path]], Iterator[RecordBlock]] = example_blocks,
        *, max_problems: int = 100,
    ) -> list[str]:  # fmt: skip
        """What is wrong, a line each, with file and record; a file is left where it cannot be read on.

        Of records that differ from the schema in the same way, the first is named and the others are counted.

        Args:
            paths: The files.
            blocks_of: How they are read.
            max_problems: How many to tell.
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
            except FormatError as error:  # the file itself; that of a record is caught below
                if len(found) < max_problems:
                    found[str(path), str(error)] = (str(error), 1)
        return [line + _alike(count - 1) for line, count in found.values()]

    def _problems_of(self, block: RecordBlock) -> Iterator[tuple[str, str]]:
        """The places and the texts."""
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
    """The feature that is named first, and what is said of it but for numbers."""
    match = _VERB.search(text)
    at = match.start() if match else 0
    return text[:at], _NUMBER.sub("0", text[at:])


def _alike(count: int) -> str:
    return "" if not count else f" (and so {'is 1 other record' if count == 1 else f'are {count:,} other records'})"
