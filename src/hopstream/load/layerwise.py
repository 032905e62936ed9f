"""Layer-wise inference: computes embeddings of all nodes, one layer of a model at a time.

Sampling k hops around every node would compute the same embeddings many times. Layer by layer, every node is computed
once: layer 1 from the graph's features, layer ``k`` from the rows of layer ``k - 1`` on disk. A killed run resumes
after the last chunk that it wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from hopstream.arguments import called_with
from hopstream.arrays import Array, IntArray, write_array
from hopstream.checks import check_seconds, read_integer
from hopstream.engine.progress_line import ProgressLine
from hopstream.errors import SettingsError, StoreTimeout
from hopstream.kernels.gather import gather_rows, word_dtype
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.memory import address_table
from hopstream.load.batch import BatchMaker, ColumnChoice, Fetch, MiniBatch, SeedBatch, SubgraphReader
from hopstream.load.embeddings import RECORD, EmbeddingFacts, Embeddings, LayerWriter, begin_embeddings
from hopstream.load.epochs import Facts
from hopstream.load.load_settings import GraphSource, LoadSettings
from hopstream.load.loader_arguments import PYG_ALIASES, PYG_OPTIONS
from hopstream.load.service import BatchService
from hopstream.load.setup import LoaderSetup, SubgraphLoader
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SampleOp, SamplePlan, SeedNodes, plan_from_num_neighbors
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import Direction, EdgeType, type_label
from hopstream.store import Source
from hopstream.store.contract import KEY, MAX_COUNT, FetchRequest, Store
from hopstream.uris import local_path

Layer = Callable[[int, str, Any], Any]
"""``layer(number, node_type, batch)``: rows for the batch's seeds, float[batch_size, width]; numbers start at 0."""
HIDDEN = "h"
"""Name of the feature that holds the rows of the previous layer."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Range of rows of one type and part: the ids ``[first, stop)``."""

    node_type: str
    part: int
    first: int
    stop: int


class LayerLoader(SubgraphLoader):
    """Loader of batches of one hop around consecutive nodes, for one layer at a time."""

    def __init__(
        self,
        source: Source | BatchService,
        direction: Direction,
        num_neighbors: int | Mapping[EdgeType, int] | Mapping[str, int],
        settings: LoadSettings,
    ) -> None:
        """Open the source; see ``infer_layerwise`` for the settings."""
        # Rows of the previous layer are on this machine, so this process makes the batches, even if servers could.
        self._setup = setup = replace(self._open(source, direction, settings), session=None)
        try:
            self.plans = {t: _plan(setup, num_neighbors, t) for t in setup.store.schema.nodes}
            self._begin_layer([], 0, {})
        except BaseException:
            self._closer()
            raise

    def features(self) -> dict[str, dict[str, list[str]]]:
        """Return the names of the graph's features that the layers read, by type."""
        columns = self._setup.columns
        return {
            "node_features": {t: list(names) for t, names in columns.nodes.items()},
            "edge_features": {type_label(t): list(names) for t, names in columns.edges.items()},
        }

    def facts(self) -> Facts:
        """Return the settings that determine the sampled neighbours."""
        return {"direction": self._setup.direction, "rng_seed": self._setup.settings.rng_seed}

    @property
    def rank(self) -> int:
        """Rank of this process among those that share the parts."""
        return self._setup.settings.own_rank

    @property
    def world_size(self) -> int:
        """Number of processes that share the parts."""
        return self._setup.settings.world_size

    def own_parts(self) -> list[int]:
        """Return the parts that this rank computes."""
        return list(range(self.rank, self._setup.store.book.num_parts, self.world_size))

    def run(
        self, embeddings: Embeddings, number: int, spans: Sequence[RowSpan], layer: Layer
    ) -> Iterator[tuple[RowSpan, Array]]:
        """Compute the rows of some spans, in their order."""
        if not spans:
            return
        hidden = {t: _Hidden(embeddings, number, t) for t in embeddings.facts.node_offsets} if number else {}
        self._begin_layer(spans, number, hidden)
        for span, batch in zip(spans, self, strict=True):
            yield span, _to_rows(layer(number, span.node_type, batch), number, span)

    def _begin_layer(self, spans: Sequence[RowSpan], number: int, hidden: Mapping[str, _Hidden]) -> None:
        self._begin_steps(len(spans), partial(LayerMaker, self._setup, self.plans, number, spans, hidden))


class LayerMaker(BatchMaker[Sequence[RowSpan]]):
    """Maker of the batches of one layer."""

    def __init__(
        self,
        setup: LoaderSetup,
        plans: Mapping[str, SamplePlan],
        number: int,
        spans: Sequence[RowSpan],
        hidden: Mapping[str, _Hidden],
    ) -> None:
        """Make batches of the given spans; ``hidden`` holds the rows of the previous layer, by type."""
        columns = setup.columns
        if number:
            columns = ColumnChoice(nodes=dict.fromkeys(columns.nodes, ()), edges=columns.edges)
        self._runners = {t: PlanRunner(setup.store, plan) for t, plan in plans.items()}
        reader = SubgraphReader(setup.store, columns, False, setup.buffers)
        super().__init__(next(iter(self._runners.values())), reader, spans, setup.convert)
        self._number, self._hidden = number, hidden
        self._rng_seed = derive_seed("layer", setup.settings.rng_seed, number)

    def _start(self, epoch: int, step: int) -> SeedBatch:
        """Start from the consecutive nodes of a span."""
        span = self._inputs[step]
        self._runner = self._runners[span.node_type]
        ids = np.arange(span.first, span.stop, dtype=np.int64)
        return SeedBatch(
            index=step, seeds=SeedNodes(ids={span.node_type: ids}, rng_seed=self._rng_seed), seed_type=span.node_type,
            input_ids=np.arange(len(ids), dtype=np.int64),
        )  # fmt: skip

    def _read(self, fetch: Fetch) -> MiniBatch:
        """Fetch the batch with its node features: the graph's, or the rows of the previous layer."""
        batch, node_ids = replace(super()._read(fetch), epoch=self._number), fetch.sampled.node_ids
        if not self._number:
            return batch
        return replace(batch, node_features={t: {HIDDEN: of.at(node_ids[t])} for t, of in self._hidden.items()})


class _Hidden:
    """Rows of one type of the previous layer, by id."""

    def __init__(self, embeddings: Embeddings, layer: int, node_type: str) -> None:
        maps = embeddings.all_rows(layer, node_type)
        first = next(iter(maps.values()), np.empty((0, 0), np.float32))
        self._width, self._dtype = first.shape[1], first.dtype
        self._word = word_dtype(max(1, self._width * self._dtype.itemsize))
        words = {p: np.ascontiguousarray(rows).reshape(-1).view(self._word) for p, rows in maps.items() if rows.size}
        self._words = words  # keeps the arrays alive: the table holds their addresses
        self._table = address_table([words.get(part) for part in range(embeddings.num_parts)])
        self._offsets = np.array(embeddings.facts.node_offsets[node_type], np.int64)

    def at(self, ids: IntArray) -> Array:
        """Return float[n, width], the rows of the given ids."""
        out = np.empty((len(ids), self._width), self._dtype)
        if out.size:
            words = out.reshape(len(ids), -1).view(self._word)
            gather_rows(np.ascontiguousarray(ids), self._offsets, self._table, words)
        return out


def _plan(
    setup: LoaderSetup, num_neighbors: int | Mapping[EdgeType, int] | Mapping[str, int], node_type: str
) -> SamplePlan:
    """Make the plan of one hop around nodes of a type."""
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
    """Check a layer's result and convert it to float[batch_size, width]."""
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


Progress = Callable[[str, int, int], None]
ROWS_PER_CHUNK = 1 << 16
POLL_S = 0.05


DRAWING_OPTIONS = tuple(name for name in SamplingSettings.field_names() if name != "direction")
_ALL = "every node is computed from its whole neighbourhood, in the order of parts; leave it out"
OTHER_OPTIONS: Mapping[str, str] = {
    **PYG_OPTIONS,
    **dict.fromkeys(("shuffle", "drop_last", "remainder", "seeds", *DRAWING_OPTIONS), _ALL),
    "edge_keys": "batches are not given to the user, and layers need no keys; leave it out",
    "transform": "layer= is called with each batch",
}
"""Refused options of other loaders to remedies."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InferenceArguments(LoadSettings, GraphSource):
    """Arguments of ``infer_layerwise``. With ``rank`` and ``world_size``, ranks share parts.

    With a ``RemoteGraph`` as source, its servers give neighbours and features. This process still makes the batches,
    because the rows of the previous layer are on its machine.

    Attributes:
        layer: ``layer(number, node_type, batch)`` returns float[batch_size, width], a row for each of the batch's
            seeds, as a tensor or array. ``number`` counts from 0. Batches hold one hop. Their node features are the
            graph's in layer 0, and the rows of the previous layer, as feature ``h``, in later layers.
        out: Folder of the embeddings; see ``hopstream.load.embeddings`` for its files.
        num_layers: Layers of the model.
        num_neighbors: Neighbours per node, for all edge types or per edge type; -1 means all. Every run draws the same
            neighbours.
        node_types: Node types to compute in the last layer; None means all. Earlier layers compute all types.
        direction: ``in`` follows edges from destination to source, as message passing needs; ``out`` from source to
            destination.
        tag: Name of the model's weights. A folder that was begun with another tag is refused.
        overwrite: Remove the embeddings in ``out`` and start again; otherwise a run resumes where the last one stopped.
            Not allowed with several ranks: one rank could remove rows that another has written.
        rows_per_chunk: Rows per chunk; each chunk is saved when it is complete.
        wait_s: With several ranks: seconds to wait for the other ranks at the end of a layer.
        progress: Called as ``progress(stage, done, total)`` with numbers of rows of a layer. None writes a line to
            stderr if it is a terminal.
    """

    layer: Layer = field(kw_only=False)
    out: str | Path = field(kw_only=False)
    num_layers: int
    num_neighbors: int | Mapping[EdgeType, int] | Mapping[str, int] = -1
    node_types: Sequence[str] | None = None
    direction: Direction = "in"
    tag: str = ""
    overwrite: bool = False
    rows_per_chunk: int = ROWS_PER_CHUNK
    wait_s: float = 3600.0
    progress: Progress | None = None
    batch_size: int = 4096
    edge_keys: bool | None = False

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._read_integer("num_layers", 1, 64)
        self._read_integer("rows_per_chunk", 1)
        check_seconds("wait_s", self.wait_s)


@called_with(InferenceArguments, OTHER_OPTIONS, PYG_ALIASES)
def infer_layerwise(arguments: InferenceArguments) -> Embeddings:
    """Compute and write embeddings of all nodes; resume where an earlier run stopped.

    Returns:
        The open embeddings.

    Raises:
        SettingsError: A setting cannot be met, ``out`` holds other files than embeddings, or ``layer`` did not return
            one row per seed.
        StateError: ``out`` holds embeddings of another graph, tag or settings.
        FormatError: Files of ``out`` are damaged, or ranks wrote rows of different widths or dtypes.
        StoreTimeout: Another rank did not finish a layer in time.
    """
    out, num_layers, wait_s = local_path(arguments.out), arguments.num_layers, arguments.wait_s
    loader = LayerLoader(arguments.source, arguments.direction, arguments.num_neighbors, arguments)
    with loader:
        if arguments.overwrite and loader.world_size > 1:
            raise SettingsError(
                f"overwrite=True cannot be used with {loader.world_size} ranks, because one rank would remove the "
                f"files of another; remove {out} once, before the ranks start"
            )
        facts = _facts_of(loader, num_layers, arguments.node_types, arguments.tag)
        if loader.rank:
            _wait_for_record(out, wait_s)
        embeddings = begin_embeddings(out, facts, overwrite=arguments.overwrite)
        _write_keys(loader, embeddings)
        for number in range(num_layers):
            types = facts.node_types if number == num_layers - 1 else tuple(facts.node_offsets)
            rest = _Rest(embeddings, number, types, loader.own_parts())
            title = f"layer {number + 1} of {num_layers}"
            report = arguments.progress or ProgressLine(title, lambda done: f"{done:,} nodes")
            for span, rows in loader.run(embeddings, number, rest.spans(loader.batch_size), arguments.layer):
                rest.add(span, rows, arguments.rows_per_chunk)
                report(f"layer {number + 1}", rest.done, rest.total)
            _wait_for_others(embeddings, number + 1, types, wait_s)
            for node_type in types:
                embeddings.all_rows(number + 1, node_type)  # checks that the rows of all ranks match
        return embeddings


class _Rest:
    """Remaining rows of one layer on this rank."""

    def __init__(self, embeddings: Embeddings, number: int, types: Sequence[str], parts: Sequence[int]) -> None:
        self._embeddings = embeddings
        owners = [(t, p) for t in types for p in parts if embeddings.num_rows(t, p)]
        self._writers = {(t, p): LayerWriter(embeddings, number + 1, t, p) for t, p in owners}
        self._offsets = embeddings.facts.node_offsets
        self._row_kinds: dict[str, tuple[str, tuple[int, np.dtype[Any]]]] = {}
        self.total = sum(writer.num_rows for writer in self._writers.values())
        self.done = sum(writer.done for writer in self._writers.values())

    def spans(self, batch_size: int) -> list[RowSpan]:
        """Return the remaining batches, in the order in which their rows are written."""
        return [
            RowSpan(node_type, part, first, min(first + batch_size, self._offsets[node_type][part + 1]))
            for (node_type, part), writer in self._writers.items()
            for first in range(
                self._offsets[node_type][part] + writer.done, self._offsets[node_type][part + 1], batch_size
            )
        ]

    def add(self, span: RowSpan, rows: Array, rows_per_chunk: int) -> None:
        """Check and write the rows of one batch."""
        writer = self._writers[span.node_type, span.part]
        own = rows.shape[1], rows.dtype
        if span.node_type not in self._row_kinds:
            self._row_kinds[span.node_type] = self._find_rows(writer.layer, span.node_type) or ("the first batch", own)
        where, (width, dtype) = self._row_kinds[span.node_type]
        if own != (width, dtype):
            raise SettingsError(
                f"layer {writer.layer} of {span.node_type!r} returned rows of {rows.dtype}[{rows.shape[1]}] for part "
                f"{span.part}; {where} has {dtype}[{width}]; a layer has one width and dtype: infer another model "
                "under another tag, in another folder or with overwrite=True"
            )
        writer.add(rows, rows_per_chunk)
        self.done += len(rows)

    def _find_rows(self, layer: int, node_type: str) -> tuple[str, tuple[int, np.dtype[Any]]] | None:
        """Find a part of any rank that has rows of a type; return its name, and their width and dtype."""
        for part in range(self._embeddings.num_parts):
            writer = self._writers.get((node_type, part))
            if writer is not None and writer.row_kind is not None:
                return f"part {part}", writer.row_kind
            path = self._embeddings.path(layer, node_type, part)
            if self._embeddings.num_rows(node_type, part) and path.exists():
                rows = self._embeddings.rows(layer, node_type, part)
                return f"part {part}", (rows.shape[1], rows.dtype)
        return None


def _facts_of(loader: LayerLoader, num_layers: int, node_types: Sequence[str] | None, tag: str) -> EmbeddingFacts:
    store = loader.store
    for node_type in node_types or ():
        store.schema.check_node_type(node_type)
    ops: list[SampleOp] = [op for plan in loader.plans.values() for op in plan.ops]
    return EmbeddingFacts(
        graph_id=store.graph_id,
        dataset_id=store.dataset_id,
        num_layers=num_layers,
        node_types=tuple(store.schema.nodes) if node_types is None else tuple(node_types),
        node_offsets={t: tuple(store.book.offsets(t).tolist()) for t in store.schema.nodes},
        tag=tag,
        settings={**loader.facts(), "num_neighbors": {op.name: op.count for op in ops}, **loader.features()},
    )


def _wait_for_record(out: Path, wait_s: float) -> None:
    """Wait until rank 0 has created the folder's record."""
    ends = time.monotonic() + wait_s
    while not (out / RECORD).exists():
        if time.monotonic() > ends:
            raise StoreTimeout(
                f"{out / RECORD} did not exist after {wait_s:.3g} s; rank 0 writes it: check that rank 0 runs, then "
                "start this rank again"
            )
        time.sleep(POLL_S)


def _write_keys(loader: LayerLoader, embeddings: Embeddings) -> None:
    """Write the keys of this rank's parts, so that rows can be found by key without the dataset."""
    store: Store = loader.store
    for node_type, offsets in embeddings.facts.node_offsets.items():
        for part in loader.own_parts():
            path = embeddings.keys_path(node_type, part)
            if path.exists() or not embeddings.num_rows(node_type, part):
                continue
            ids = np.arange(offsets[part], offsets[part + 1], dtype=np.int64)
            (columns,) = store.fetch([FetchRequest(entity=node_type, names=(KEY,), ids=ids)])
            write_array(path, cast(Array, columns[KEY]))


def _wait_for_others(embeddings: Embeddings, layer: int, types: Sequence[str], wait_s: float) -> None:
    """Wait until every part of a layer is complete."""
    ends = time.monotonic() + wait_s
    for node_type in types:
        for part in range(embeddings.num_parts):
            path = embeddings.path(layer, node_type, part)
            while embeddings.num_rows(node_type, part) and not path.exists():
                if time.monotonic() > ends:
                    raise StoreTimeout(
                        f"{path} did not exist after {wait_s:.3g} s; another rank writes it: check that it runs, then "
                        "start this rank again"
                    )
                time.sleep(POLL_S)
