"""Which of many examples contradict their schema, and how?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hopstream.errors import FormatError, SchemaError
from hopstream.tfgnn.blocks import Block, record_blocks
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.graph_lists import decode_graphs
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.readable import num_components_of
from hopstream.tfgnn.readout import check_readout, is_readout
from hopstream.tfgnn.spec import GraphSpec


class Examination:
    """Reads examples and tells what is wrong with them; files are read in bounded memory."""

    def __init__(self, spec: GraphSpec, *, num_components: int = 1, prefix: str = "") -> None:
        """Examine examples of graphs of ``num_components`` each."""
        self._spec, self._num_components, self._prefix = spec, num_components, prefix
        self.num_examples = 0
        """Examples that have been looked at."""

    def problems(
        self, paths: Sequence[Path], blocks_of: Callable[[Sequence[Path]], Iterator[Block]] = record_blocks
    ) -> Iterator[str]:
        """What is wrong, a line each, with file and record; a file is left where it cannot be read on.

        Args:
            paths: The files.
            blocks_of: How they are read.
        """
        for path in paths:
            try:
                for block in blocks_of([path]):
                    yield from self._problems_of(block)
                    self.num_examples += len(block.records)
            except FormatError as error:  # the file itself; that of a record is caught below
                yield str(error)

    def _problems_of(self, block: Block) -> Iterator[str]:
        try:
            self._check(block.records)
            return
        except (FormatError, SchemaError):
            pass
        for number, record in enumerate(block.records, block.first):
            try:
                self._check([record])
            except (FormatError, SchemaError) as error:
                yield f"{block.path}: record {number}: {str(error).removeprefix('message 0: ')}{self._hint(record)}"

    def _check(self, records: Sequence[bytes]) -> None:
        wanted = self._num_components
        graphs: GraphPieces = decode_graphs(records, self._spec, num_components=wanted, prefix=self._prefix)
        for name in filter(is_readout, self._spec.node_sets):
            check_readout(graphs, name)

    def _hint(self, record: bytes) -> str:
        try:
            found = num_components_of(decode_example(record))
        except FormatError:
            return ""
        return f"; it has {found} components, wanted {self._num_components}" if found != self._num_components else ""
