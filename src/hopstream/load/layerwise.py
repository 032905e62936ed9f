"""Infers embeddings of all nodes, one layer of a model after the other, over a graph of any size.

Sampling k hops around every node would compute the same embeddings again and again. Layer by layer, every node is
computed once: layer 1 from the graph's features, layer ``k`` from what layer ``k - 1`` left on disk. A run that was
killed goes on after the last chunk that it wrote.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from hopstream.arguments import called_with
from hopstream.arrays import Array, write_array
from hopstream.checks import check_seconds
from hopstream.errors import SettingsError, StoreTimeout
from hopstream.load.embeddings import RECORD, EmbeddingFacts, Embeddings, PartWriter, begin_embeddings
from hopstream.load.layer_batches import Layer, LayerLoader, RowSpan
from hopstream.load.load_settings import GraphSource, LoadSettings
from hopstream.load.loader_arguments import PYG_OPTIONS
from hopstream.sample.plan import SampleOp
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import KEY, FetchRequest, Store
from hopstream.uris import local_path

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
"""Options of other loaders that are not options here, and what to do instead."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InferenceArguments(LoadSettings, GraphSource):
    """Arguments of ``infer_layerwise``. With ``rank`` and ``world_size``, ranks share parts.

    Of a ``RemoteGraph`` neighbours and features are asked, and batches are made here: the rows of the layer before are.

    Attributes:
        layer: ``layer(number, node_type, batch)`` returns float[batch_size, width], a row for each of the batch's
            seeds, as a tensor or array. ``number`` counts from 0. Batches hold one hop; the graph's features are in
            those of layer 0, the rows of the layer before, as feature ``h``, in the others.
        out: Folder of the embeddings; see ``hopstream.load.embeddings`` for its files.
        num_layers: Layers of the model.
        num_neighbors: Neighbours per node, for all edge types or per edge type; -1 means all. Nodes draw the same ones
            in every run.
        node_types: Types that the last layer is computed for; None means all. The layers before have all types.
        direction: ``in`` follows edges backwards, as message passing needs it.
        tag: A name of the model's weights. A folder that was begun under another tag is refused.
        overwrite: Begin anew, whichever embeddings ``out`` holds; without it a run goes on where the last one stopped.
            Not with several ranks: one could remove what another has begun.
        rows_per_chunk: After so many rows, work is saved.
        wait_s: With several ranks: how long to wait for the others at the end of a layer.
        progress: Called as ``progress(stage, done, total)`` with rows of a layer. None: a line on a terminal's stderr.
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


@called_with(InferenceArguments, OTHER_OPTIONS)
def infer_layerwise(arguments: InferenceArguments) -> Embeddings:
    """Compute and write embeddings of all nodes, and go on where an earlier run stopped.

    Returns:
        The embeddings, open.

    Raises:
        SettingsError: A setting cannot be met, ``out`` holds other things than embeddings, or ``layer`` returned
            something else than a row per seed.
        StateError: ``out`` holds embeddings of another graph, tag or settings.
        FormatError: Files of ``out`` are damaged, or ranks wrote rows of several widths or dtypes.
        StoreTimeout: Another rank did not finish a layer in time.
    """
    out, num_layers, wait_s = local_path(arguments.out), arguments.num_layers, arguments.wait_s
    loader = LayerLoader(arguments.source, arguments.direction, arguments.num_neighbors, arguments)
    with loader:
        if arguments.overwrite and loader.world_size > 1:
            raise SettingsError(
                f"overwrite=True with {loader.world_size} ranks: one would remove what another has begun; remove "
                f"{out} once, before the ranks start"
            )
        facts = _facts_of(loader, num_layers, arguments.node_types, arguments.tag)
        if loader.rank:
            _wait_for_record(out, wait_s)
        embeddings = begin_embeddings(out, facts, overwrite=arguments.overwrite)
        _write_keys(loader, embeddings)
        for number in range(num_layers):
            types = facts.node_types if number == num_layers - 1 else tuple(facts.node_offsets)
            rest = _Rest(embeddings, number, types, loader.own_parts())
            report = arguments.progress or _Line(f"layer {number + 1} of {num_layers}")
            for span, rows in loader.run(embeddings, number, rest.spans(loader.batch_size), arguments.layer):
                rest.add(span, rows, arguments.rows_per_chunk)
                report(f"layer {number + 1}", rest.done, rest.total)
            _wait_for_others(embeddings, number + 1, types, wait_s)
            for node_type in types:
                embeddings.all_rows(number + 1, node_type)  # ranks have only now seen each other's rows
        return embeddings


class _Rest:
    """What of one layer this rank still has to compute."""

    def __init__(self, embeddings: Embeddings, number: int, types: Sequence[str], parts: Sequence[int]) -> None:
        self._embeddings = embeddings
        owners = [(t, p) for t in types for p in parts if embeddings.num_rows(t, p)]
        self._writers = {(t, p): PartWriter(embeddings, number + 1, t, p) for t, p in owners}
        self._offsets = embeddings.facts.node_offsets
        self._row_kinds: dict[str, tuple[str, tuple[int, np.dtype[Any]]]] = {}
        self.total = sum(writer.num_rows for writer in self._writers.values())
        self.done = sum(writer.done for writer in self._writers.values())

    def spans(self, batch_size: int) -> list[RowSpan]:
        """The batches that are left, in the order in which their rows are written."""
        return [
            RowSpan(node_type, part, first, min(first + batch_size, self._offsets[node_type][part + 1]))
            for (node_type, part), writer in self._writers.items()
            for first in range(
                self._offsets[node_type][part] + writer.done, self._offsets[node_type][part + 1], batch_size
            )
        ]

    def add(self, span: RowSpan, rows: Array, rows_per_chunk: int) -> None:
        """Keep the rows of one batch."""
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
        """Where rows of a type are already, this rank's or another's, and their width and dtype."""
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
    """Return when rank 0 has begun the folder."""
    ends = time.monotonic() + wait_s
    while not (out / RECORD).exists():
        if time.monotonic() > ends:
            raise StoreTimeout(
                f"{out / RECORD} was not there after {wait_s:.3g} s; rank 0 writes it: see whether it runs, then start "
                "this one again"
            )
        time.sleep(POLL_S)


def _write_keys(loader: LayerLoader, embeddings: Embeddings) -> None:
    """The keys of this rank's parts, so that rows can be found by key without the dataset."""
    store: Store = loader.store
    for node_type, offsets in embeddings.facts.node_offsets.items():
        for part in loader.own_parts():
            path = embeddings.keys_path(node_type, part)
            if path.exists() or not embeddings.num_rows(node_type, part):
                continue
            ids = np.arange(offsets[part], offsets[part + 1], dtype=np.int64)
            (columns,) = store.fetch([FetchRequest(owner=node_type, names=(KEY,), ids=ids)])
            write_array(path, cast(Array, columns[KEY]))


def _wait_for_others(embeddings: Embeddings, layer: int, types: Sequence[str], wait_s: float) -> None:
    """Return when every part of a layer is complete."""
    ends = time.monotonic() + wait_s
    for node_type in types:
        for part in range(embeddings.num_parts):
            path = embeddings.path(layer, node_type, part)
            while embeddings.num_rows(node_type, part) and not path.exists():
                if time.monotonic() > ends:
                    raise StoreTimeout(
                        f"{path} was not there after {wait_s:.3g} s; another rank writes it: see whether it runs, then "
                        "start this one again"
                    )
                time.sleep(POLL_S)


class _Line:
    """One line on a terminal's stderr, rewritten; nothing elsewhere."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._shown = 0.0
        self._first: int | None = None
        self._mode: Literal["quiet", "terminal"] = "terminal" if sys.stderr.isatty() else "quiet"

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        self._first = done if self._first is None else self._first
        if self._mode == "quiet" or (now - self._shown < 0.5 and done < total):
            return
        self._shown = now
        made, left_s = done - self._first, 0.0
        if made:
            left_s = (now - self._started) * (total - done) / made
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r{self._title}: {done:,} of {total:,} nodes, {left_s:.0f} s left   {end}")
        sys.stderr.flush()
