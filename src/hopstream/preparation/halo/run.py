"""Adds a halo to a finished dataset, or replaces its halo, atomically.

The new halo is written beside the old one, in folders of another generation. Then the manifest is replaced, which names
the new folders. Then the old halo is removed. Folders that the manifest does not name are left from a killed run, and
are removed first.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, Unpack

import numpy as np

from hopstream.arrays import Array, FileRecord, IntArray, write_blocks
from hopstream.dataset.book import Entity, ends_of
from hopstream.dataset.dataset_folder import dataset_to_change, remove_halos
from hopstream.dataset.halo_record import (
    MAX_GENERATION,
    Halo,
    HaloCounts,
    cached_path,
    edge_column_names,
    edge_path,
    halo_root,
    node_path,
)
from hopstream.dataset.layout import Dataset, EdgeArrays, open_dataset
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import feature_paths
from hopstream.dataset.settings import Progress
from hopstream.engine.atomic_folder import errors_named
from hopstream.engine.machine import watched
from hopstream.engine.settings import Allotment, no_progress
from hopstream.errors import SettingsError
from hopstream.preparation.halo.costs import HaloCosts, feature_bytes_of, halo_allotment, halo_costs, least_memory_bytes
from hopstream.preparation.halo.reach import (
    Inclusion,
    InclusionModel,
    RowBytes,
    edge_bytes,
    feature_bytes,
    hottest,
    near_types,
    nodes_within,
)
from hopstream.preparation.halo.settings import HaloFeatures, HaloOptions, HaloSettings
from hopstream.preparation.halo.sources import (
    EdgesOf,
    NodeBitmap,
    NumberTables,
    Parts,
    RowRanges,
    Rows,
    Values,
    chunks_of,
)
from hopstream.schema import Direction, EdgeType
from hopstream.uris import local_path

ATTRIBUTES = {
    "indices.npy": "indices", "key.npy": "keys", "neighbor_key.npy": "neighbor_keys", "time.npy": "times",
    "weight_sums.npy": "weight_sums", "weight_order.npy": "weight_order", "weight_alias.npy": "weight_alias",
    "weight.npy": "weights",
}  # fmt: skip
"""File name to the field of ``EdgeArrays`` that it is copied from."""


class Sink(Protocol):
    """Receiver of the content of the files of halos, one file after the other."""

    def put(self, path: PurePosixPath, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
        """Take one file in blocks, which are computed on iteration."""


@dataclass(frozen=True, slots=True, eq=False)
class FileSink:
    """Writer of files below a folder, which keeps their records."""

    root: Path
    files: dict[str, FileRecord] = field(default_factory=dict)

    def put(self, path: PurePosixPath, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
        """Write one file."""
        self.files[str(path)] = write_blocks(self.root / path, dtype, shape, blocks)


@dataclass(frozen=True, slots=True, eq=False)
class HaloWriter:
    """Maker of the files of halos of one generation."""

    parts: Parts
    generation: int
    sink: Sink

    def write(
        self,
        part: int,
        node_ids: Mapping[str, NodeBitmap | IntArray],
        features: HaloFeatures,
        cached_ids: Mapping[str, NodeBitmap | IntArray],
    ) -> HaloCounts:
        """Write the halo of one part.

        Args:
            part: The part.
            node_ids: Node type to the nodes whose edges are copied, a bitmap or int64[n], ascending; empty without
                copied edges.
            features: The copied features.
            cached_ids: Node type to the nodes whose features are copied, a bitmap or int64[n], ascending.

        Returns:
            The numbers of copied rows.
        """
        root = halo_root(part, self.generation)
        for node_type, ids in node_ids.items():
            self._write_ids(node_path(root, node_type), node_type, ids)
        edges = {}
        for entity in self.parts.book.edge_offsets if node_ids else ():
            folder, names = edge_path(root, *entity), features.edges.get(entity[0], ())
            edges[entity] = self._write_edges(folder, entity, node_ids[ends_of(*entity)[0]], names)
        for node_type, names in features.nodes.items():
            folder, ids = cached_path(root, node_type), cached_ids[node_type]
            self._write_ids(folder, node_type, ids)
            for name in names:
                self._write_feature(folder, node_type, name, ids)
        return HaloCounts(
            nodes={t: len(ids) for t, ids in node_ids.items()},
            edges=edges,
            cached={t: len(cached_ids[t]) for t in features.nodes},
        )

    def _write_ids(self, folder: PurePosixPath, node_type: str, nodes: NodeBitmap | IntArray) -> None:
        int64, shape = np.dtype(np.int64), (len(nodes),)
        self.sink.put(folder / "id.npy", int64, shape, chunks_of(nodes))
        keys = self.parts.fixed_blocks(node_type, [a.node_keys[node_type] for a in self.parts.arrays], nodes)
        self.sink.put(folder / "key.npy", int64, shape, keys)

    def _write_edges(
        self, folder: PurePosixPath, entity: tuple[EdgeType, Direction], nodes: NodeBitmap | IntArray,
        features: tuple[str, ...],
    ) -> int:  # fmt: skip
        parts, ranges = self.parts, self.parts.edge_ranges[entity]
        edges = parts.edges(entity)
        indices, edge_offsets = Values([e.indices for e in edges]), parts.book.offsets(entity)

        def first_edges(ids: IntArray) -> tuple[IntArray, IntArray]:
            of_part, first, counts = ranges.of(ids, indices)
            return first + edge_offsets[of_part], counts

        num_edges = self._write_offsets(folder / "indptr.npy", ranges, indices, nodes)
        starts = (first_edges(ids)[0] for ids in chunks_of(nodes))
        self.sink.put(folder / "edge_start.npy", np.dtype(np.int64), (len(nodes),), starts)
        for name in edge_column_names(parts.manifest, *entity, features):
            values = Values(_columns(edges, ATTRIBUTES[name]))
            self.sink.put(folder / name, values.dtype, (num_edges,), ranges.blocks(values, nodes))
        for name in features:
            self._write_feature(folder, entity, name, EdgesOf(nodes, first_edges, num_edges))
        return num_edges

    def _write_feature(self, folder: PurePosixPath, entity: Entity, name: str, rows: Rows) -> None:
        feature = self.parts.manifest.schema.feature(entity if isinstance(entity, str) else entity[0], name)
        paths, ragged = feature_paths(folder, name, feature), self.parts.ragged(entity, name)
        if ragged is None:
            blocks = self.parts.fixed_blocks(entity, self.parts.columns(entity, name), rows)
            self.sink.put(paths[0], feature.numpy_dtype, (len(rows), *feature.shape), blocks)
            return
        ranges, values = ragged
        num_elements = self._write_offsets(paths[1], ranges, values, rows)
        shape = (num_elements, *feature.shape)
        self.sink.put(paths[0], feature.numpy_dtype, shape, ranges.blocks(values, rows))

    def _write_offsets(self, path: PurePosixPath, ranges: RowRanges, values: Values, rows: Rows) -> int:
        """Write the offsets of each row's items in the halo; return the number of items."""
        total = 0

        def offsets() -> Iterator[Array]:
            nonlocal total
            yield np.zeros(1, np.int64)
            for ids in chunks_of(rows):
                ends = total + np.cumsum(ranges.of(ids, values)[2])
                total = int(ends[-1])
                yield ends

        blocks = offsets()
        self.sink.put(path, np.dtype(np.int64), (len(rows) + 1,), blocks)
        for _ in blocks:  # a sink may stop early
            pass
        return total


def _columns(edges: list[EdgeArrays], attribute: str) -> list[Array]:
    return [getattr(each, attribute) for each in edges]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Mean savings of a part's halo in a batch whose seeds the part owns, by the VIP model.

    Attributes:
        remote_rows: Nodes of other parts in a batch.
        saved_rows: Remote nodes whose features are copied.
        remote_expanded: Requests for neighbours of nodes of other parts.
        saved_expanded: Requests for neighbours of remote nodes whose edges are copied.
    """

    remote_rows: float
    saved_rows: float
    remote_expanded: float
    saved_expanded: float

    @property
    def row_share(self) -> float:
        """Share of remote rows that the halo answers; 1 without remote rows."""
        return self.saved_rows / self.remote_rows if self.remote_rows else 1.0

    @property
    def expanded_share(self) -> float:
        """Share of remote expansions that the halo answers; 1 without remote expansions."""
        return self.saved_expanded / self.remote_expanded if self.remote_expanded else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HaloReport:
    """Result of ``add_halo``.

    Attributes:
        manifest: The new manifest; its ``halo`` describes the copies, or is None if the halo was removed.
        savings: Expected savings of each part's halo; empty if the halo was removed, or savings were not computed.
    """

    manifest: Manifest
    savings: tuple[Saving, ...]

    @property
    def total(self) -> Saving:
        """The sum over all parts."""
        names = Saving.__dataclass_fields__
        return Saving(**{name: sum(getattr(saving, name) for saving in self.savings) for name in names})


def add_halo(
    dataset: str | Path | Dataset, *, settings: HaloSettings | None = None, memory: str | None = None,
    with_savings: bool = True, progress: Progress | None = None,
    on_estimate: Callable[[HaloCosts], None] | None = None, **options: Unpack[HaloOptions],
) -> HaloReport:  # fmt: skip
    """Give every part of a dataset copies of rows of other parts, so that fewer rows cross the network.

    A halo is a cache: a process that samples a local part with servers for the rest gets the same batches with and
    without it. An existing halo is replaced; ``hops=0`` without features removes it. All parts must be here.

    Args:
        dataset: A dataset or its folder.
        settings: What is copied; None for the defaults.
        memory: Most memory, for example ``500MB``; None for a share of the free memory. Tables with a number per node
            that do not fit go to files.
        with_savings: Whether to compute the expected savings, which takes a pass over all edges for each entry of
            ``fanouts`` and part. With a budget these passes are made in any case.
        progress: Called as ``progress("halo", done, total)`` in parts.
        on_estimate: Called once with the upper bound of the costs, before halos are made; not called for a removal.
        **options: Fields of ``HaloSettings``; they override ``settings``.

    Returns:
        The new manifest, and the expected savings.

    Raises:
        SettingsError: A setting has an invalid value, the memory is too small, or the dataset was appended to; compact
            it first.
        UnknownNameError: A feature or type does not exist.
        FormatError: The folder is no dataset, or a part is missing or damaged.
        ChecksumError: The manifest does not match its checksum.
        StateError: Another process changes the dataset now.
        OSError: A system call failed, or the disk has no room for the budget; the dataset is unchanged.
    """
    settings = replace(settings or HaloSettings(), **options)
    root = dataset.root if isinstance(dataset, Dataset) else local_path(dataset)
    with watched(), errors_named(root), dataset_to_change(root) as work:
        work.clear()
        opened = open_dataset(root)
        features, book = settings.choose(opened.manifest.schema), opened.manifest.book
        is_made = not settings.is_nothing and book.num_parts > 1
        num_nodes = sum(map(book.num_ids, book.node_offsets)) if is_made else 0
        allotted = halo_allotment(memory, num_nodes)
        if book.deltas and not settings.is_nothing:
            raise SettingsError(
                f"{root} has appended rows, for which halos cannot be made; compact the dataset first (hopstream "
                "compact)"
            )
        _check_room(opened, settings, features, on_estimate, allotted, has_savings=with_savings)

        def make(generation: int) -> tuple[Halo, tuple[Saving, ...]]:
            tables = NumberTables(root, allotted.memory_bytes - least_memory_bytes(num_nodes))
            run = _HaloMaker(
                Parts(opened), settings, features, generation, tables, with_savings, progress or no_progress
            )
            return run.run()

        return _replace_halo(opened, settings, make)


def _check_room(
    dataset: Dataset, settings: HaloSettings, features: HaloFeatures,
    on_estimate: Callable[[HaloCosts], None] | None, allotted: Allotment, *, has_savings: bool,
) -> None:  # fmt: skip
    """Report the estimate, and refuse a budget that the disk has no room for.

    Raises:
        OSError: The disk has too little room. A ``SettingsError`` would make ``dispatch`` discard the written parts.
    """
    manifest = dataset.manifest
    if settings.is_nothing or manifest.book.num_parts == 1:
        return
    costs = halo_costs(manifest, settings, feature_bytes_of(manifest, features), has_savings=has_savings)
    if on_estimate is not None:
        on_estimate(replace(costs, work=allotted))
    free = shutil.disk_usage(dataset.root).free
    if costs.budget_bytes > free:
        budgets = {"budget": settings.budget, "edge_budget": settings.edge_budget}
        given = [f"{name} is {budget}" for name, budget in budgets.items() if budget is not None]
        raise OSError(
            errno.ENOSPC,
            f"{' and '.join(given)} for each of {manifest.book.num_parts} parts, {costs.budget_bytes / 1e9:.1f} GB in "
            f"all; {dataset.root} has {free / 1e9:.1f} GB free: make room, or give a smaller budget",
        )


def _replace_halo(
    dataset: Dataset, settings: HaloSettings, make: Callable[[int], tuple[Halo, tuple[Saving, ...]]]
) -> HaloReport:
    """Replace the halo by one of a new generation that ``make`` writes."""
    root, manifest, before = dataset.root, dataset.manifest, dataset.manifest.halo
    halo: Halo | None = None
    savings: tuple[Saving, ...] = ()
    try:
        if not settings.is_nothing and manifest.book.num_parts > 1:
            halo, savings = make(1 if before is None else before.generation % MAX_GENERATION + 1)
        written = replace(manifest, halo=halo)
        written.write(root)
    except BaseException:
        remove_halos(root, manifest, read_manifest(root).halo)  # keeps the halo of the current manifest
        raise
    remove_halos(root, manifest, halo)
    return HaloReport(manifest=written, savings=savings)


@dataclass(frozen=True, slots=True, eq=False)
class _HaloMaker:
    parts: Parts
    settings: HaloSettings
    features: HaloFeatures
    generation: int
    tables: NumberTables
    with_savings: bool
    progress: Progress

    def run(self) -> tuple[Halo, tuple[Saving, ...]]:
        """Write the halo of every part."""
        sink = FileSink(self.parts.dataset.root)
        writer = HaloWriter(self.parts, self.generation, sink)
        num_parts = self.parts.book.num_parts
        model = None
        budgets = (self.settings.budget, self.settings.edge_budget)
        if self.with_savings or any(budget is not None for budget in budgets):
            is_expanding = self.with_savings or self.settings.edge_budget is not None
            model = InclusionModel(self.parts, self.settings, self.tables, is_expanding=is_expanding)
        counts: list[HaloCounts] = []
        savings: list[Saving] = []
        for part in range(num_parts):
            self.progress("halo", part, num_parts)
            of_part, saving = self._write(part, writer, model)  # the bitmaps of a part are freed before the next part
            counts.append(of_part)
            savings += [saving] if saving is not None else []
        self.progress("halo", num_parts, num_parts)
        settings = self.settings
        halo = Halo(
            generation=self.generation, hops=settings.hops, features=self.features.nodes,
            edge_features=self.features.edges, budget_bytes=settings.budget_bytes,
            edge_budget_bytes=settings.edge_budget_bytes, fanouts=tuple(settings.fanouts),
            batch_size=settings.batch_size, parts=tuple(counts), files=dict(sorted(sink.files.items())),
        )  # fmt: skip
        return halo, tuple(savings)

    def _write(self, part: int, writer: HaloWriter, model: InclusionModel | None) -> tuple[HaloCounts, Saving | None]:
        """Write the halo of one part; return its counts, and its savings if requested."""
        inclusion = None if model is None else model.of(part)
        node_ids, cached = self._chosen(part, inclusion)
        counts = writer.write(part, node_ids, self.features, cached)
        if inclusion is None or not self.with_savings:
            return counts, None
        return counts, self._saving(part, inclusion, node_ids, cached)

    def _chosen(self, part: int, inclusion: Inclusion | None) -> tuple[dict[str, NodeBitmap], dict[str, NodeBitmap]]:
        """Return the nodes whose edges a part copies, and the nodes whose features it copies."""
        parts, settings, features = self.parts, self.settings, self.features.nodes
        budget, edge_budget = settings.budget_bytes, settings.edge_budget_bytes
        uses_hops = edge_budget is None or (budget is None and features)
        reached = nodes_within(parts, part, settings.hops) if uses_hops else {}
        node_ids = reached if settings.hops else {}
        if edge_budget is not None and inclusion is not None:
            sizes: dict[str, RowBytes] = {t: partial(edge_bytes, parts, t) for t in near_types(parts.book)}
            node_ids = {t: NodeBitmap.empty(parts.book.num_ids(t)) for t in parts.book.node_offsets}
            node_ids |= hottest(parts, part, inclusion.expanded, sizes, edge_budget, per_byte=True)
        if budget is None or inclusion is None:
            return node_ids, {t: reached[t] for t in features}
        sizes = {t: partial(feature_bytes, parts, t, names) for t, names in features.items()}
        return node_ids, hottest(parts, part, inclusion.sampled, sizes, budget)

    def _saving(
        self, part: int, inclusion: Inclusion, node_ids: Mapping[str, NodeBitmap], cached: Mapping[str, NodeBitmap]
    ) -> Saving:
        totals = [0.0] * 4
        for node_type, offsets in self.parts.book.node_offsets.items():
            own = slice(int(offsets[part]), int(offsets[part + 1]))
            for at, (chances, nodes) in enumerate((
                (inclusion.sampled[node_type], cached.get(node_type)),
                (inclusion.expanded.get(node_type), node_ids.get(node_type)),
            )):  # fmt: skip
                if chances is None:
                    continue
                totals[2 * at] += float(chances[: own.start].sum() + chances[own.stop :].sum())
                totals[2 * at + 1] += sum(float(chances[ids].sum()) for ids in nodes.chunks()) if nodes else 0.0
        return Saving(remote_rows=totals[0], saved_rows=totals[1], remote_expanded=totals[2], saved_expanded=totals[3])
