"""Makes the batches of one layer, and the rows that the layer makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.checks import read_integer
from hopstream.errors import SettingsError
from hopstream.graph.subgraph import Subgraph
from hopstream.kernels.gather import gather_rows, word_dtype
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.memory import address_table
from hopstream.load.batch import BatchMaker, MiniBatch, SeedBatch, SubgraphReader
from hopstream.load.columns import ColumnChoice
from hopstream.load.embeddings import Embeddings
from hopstream.load.load_settings import LoadSettings
from hopstream.load.place import Facts
from hopstream.load.service import BatchService
from hopstream.load.setup import LoaderSetup, SubgraphLoader
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SamplePlan, SeedNodes, plan_from_num_neighbors
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import Direction, EdgeType, type_label
from hopstream.store import Source
from hopstream.store.contract import MAX_COUNT
from hopstream.store.local import NO_POSITIONS

Layer = Callable[[int, str, Any], Any]
"""``layer(number, node_type, batch)``: rows for the batch's seeds, float[batch_size, width]; numbers start at 0."""
HIDDEN = "h"
"""The feature under which a batch brings the embeddings of the layer before."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Some consecutive rows of one type and part: the ids ``[first, stop)``."""

    node_type: str
    part: int
    first: int
    stop: int


class LayerLoader(SubgraphLoader):
    """Batches of one hop around consecutive nodes, for one layer at a time."""

    def __init__(
        self,
        source: Source | BatchService,
        direction: Direction,
        num_neighbors: int | Mapping[EdgeType, int] | Mapping[str, int],
        settings: LoadSettings,
    ) -> None:
        """Open the source; see ``infer_layerwise`` for the settings."""
        # Rows of the layer before are on this machine, so batches are made here, also where servers could make some.
        self._setup = setup = replace(self._open(source, direction, settings), session=None)
        try:
            self.plans = {t: _plan(setup, num_neighbors, t) for t in setup.store.schema.nodes}
            self._begin_layer([], 0, {})
        except BaseException:
            self._closer()
            raise

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self._setup.settings.batch_size

    def features(self) -> dict[str, dict[str, list[str]]]:
        """The graph's features that the layers see."""
        columns = self._setup.columns
        return {
            "node_features": {t: list(names) for t, names in columns.nodes.items()},
            "edge_features": {type_label(t): list(names) for t, names in columns.edges.items()},
        }

    def facts(self) -> Facts:
        """What decides over the neighbours."""
        return {"direction": self._setup.direction, "rng_seed": self._setup.settings.rng_seed}

    @property
    def rank(self) -> int:
        """This process among those that share the parts."""
        return self._setup.settings.own_rank

    @property
    def world_size(self) -> int:
        """How many they are."""
        return self._setup.settings.world_size

    def own_parts(self) -> list[int]:
        """The parts that this rank computes."""
        return list(range(self.rank, self._setup.store.book.num_parts, self.world_size))

    def run(
        self, embeddings: Embeddings, number: int, spans: Sequence[RowSpan], layer: Layer
    ) -> Iterator[tuple[RowSpan, Array]]:
        """The rows of some spans, in their order."""
        if not spans:
            return
        hidden = {t: _Hidden(embeddings, number, t) for t in embeddings.facts.node_offsets} if number else {}
        self._begin_layer(spans, number, hidden)
        for span, batch in zip(spans, self, strict=True):
            yield span, _to_rows(layer(number, span.node_type, batch), number, span)

    def _begin_layer(self, spans: Sequence[RowSpan], number: int, hidden: Mapping[str, _Hidden]) -> None:
        self._begin(len(spans), partial(LayerMaker, self._setup, self.plans, number, spans, hidden))


class LayerMaker(BatchMaker):
    """Makes the batches of one layer. One thread uses one maker."""

    def __init__(
        self,
        setup: LoaderSetup,
        plans: Mapping[str, SamplePlan],
        number: int,
        spans: Sequence[RowSpan],
        hidden: Mapping[str, _Hidden],
    ) -> None:
        """Make batches of the given spans; ``hidden`` are the rows of the layer before, by type."""
        columns = setup.columns
        if number:
            columns = ColumnChoice(nodes=dict.fromkeys(columns.nodes, ()), edges=columns.edges)
        self._runners = {t: PlanRunner(setup.store, plan) for t, plan in plans.items()}
        reader = SubgraphReader(setup.store, columns, False, setup.buffers)
        super().__init__(next(iter(self._runners.values())), reader, setup.convert)
        self._number, self._spans, self._hidden = number, spans, hidden
        self._rng_seed = derive_seed("layer", setup.settings.rng_seed, number)

    def _start(self, epoch: int, step: int) -> SeedBatch:
        """One hop around some consecutive nodes."""
        span = self._spans[step]
        self._runner = self._runners[span.node_type]
        ids = np.arange(span.first, span.stop, dtype=np.int64)
        return SeedBatch(
            index=step, seeds=SeedNodes(ids={span.node_type: ids}, rng_seed=self._rng_seed), seed_type=span.node_type,
            input_ids=np.arange(len(ids), dtype=np.int64),
        )  # fmt: skip

    def _read(self, subgraph: Subgraph, epoch: int, start: SeedBatch) -> MiniBatch:
        """The subgraph with the features that the layer needs: the graph's, or the rows of the layer before."""
        batch = super()._read(subgraph, self._number, start)
        if not self._number:
            return batch
        return replace(
            batch, node_features={t: {HIDDEN: of.at(subgraph.node_ids[t])} for t, of in self._hidden.items()}
        )


class _Hidden:
    """The rows of one type of the layer before, by id."""

    def __init__(self, embeddings: Embeddings, layer: int, node_type: str) -> None:
        maps = embeddings.all_rows(layer, node_type)
        first = next(iter(maps.values()), np.empty((0, 0), np.float32))
        self._width, self._dtype = first.shape[1], first.dtype
        self._word = word_dtype(max(1, self._width * self._dtype.itemsize))
        words = {p: np.ascontiguousarray(rows).reshape(-1).view(self._word) for p, rows in maps.items() if rows.size}
        self._words = words  # kept alive: the table holds addresses
        self._table = address_table([words.get(part) for part in range(embeddings.num_parts)])
        self._offsets = np.array(embeddings.facts.node_offsets[node_type], np.int64)

    def at(self, ids: IntArray) -> Array:
        """float[n, width]."""
        out = np.empty((len(ids), self._width), self._dtype)
        if out.size:
            gather_rows(
                np.ascontiguousarray(ids), self._offsets, self._table, out.reshape(len(ids), -1).view(self._word),
                NO_POSITIONS,
            )  # fmt: skip
        return out


def _plan(
    setup: LoaderSetup, num_neighbors: int | Mapping[EdgeType, int] | Mapping[str, int], node_type: str
) -> SamplePlan:
    """One hop around nodes of a type."""
    schema = setup.store.schema
    if isinstance(num_neighbors, Mapping):
        per_hop: Any = {t: [count] for t, count in num_neighbors.items()}
    else:
        per_hop = [read_integer("num_neighbors", num_neighbors, -1, MAX_COUNT)]
    return plan_from_num_neighbors(
        schema,
        per_hop,
        (node_type,),
        SamplingSettings(direction=setup.direction),
        wants_edge_ids=setup.columns.has_edge_features,
    )


def _to_rows(value: Any, number: int, span: RowSpan) -> Array:
    """What a layer returned as float[batch_size, width]."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    num_rows = span.stop - span.first
    is_rows = isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind == "f" and value.shape[1] > 0
    if not is_rows or len(value) != num_rows:
        got = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise SettingsError(
            f"layer {number + 1} of {span.node_type!r} returned {got}; wanted float[{num_rows}, width], a row for each "
            "of the batch's seeds, which are its first nodes"
        )
    return np.ascontiguousarray(value)
