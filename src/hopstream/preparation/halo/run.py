"""Gives a finished dataset a halo, or another one, so that nobody ever sees half of it.

The new halo is written beside the old one, in folders of another number; then the manifest is replaced, which names
them; then the old one is removed. Whatever the manifest does not name is what a killed run left, and goes first.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, Unpack

import numpy as np

from hopstream.arrays import Array, FileRecord, IntArray, write_blocks
from hopstream.dataset.book import ends_of
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
from hopstream.preparation.halo.reach import Inclusion, InclusionModel, hottest, nodes_within
from hopstream.preparation.halo.settings import HaloOptions, HaloSettings
from hopstream.preparation.halo.sources import NodeBitmap, NumberTables, Parts, RowRanges, Values, chunks_of
from hopstream.schema import Direction, EdgeType
from hopstream.uris import local_path

ATTRIBUTES = {
    "indices.npy": "indices", "key.npy": "keys", "neighbor_key.npy": "neighbor_keys", "time.npy": "times",
    "weight_sums.npy": "weight_sums", "weight_order.npy": "weight_order", "weight_alias.npy": "weight_alias",
    "weight.npy": "weights",
}  # fmt: skip
"""File name to the field of ``EdgeArrays`` that it is copied from."""


class Sink(Protocol):
    """Takes the content of the files of halos, one file after the other."""

    def put(self, path: PurePosixPath, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
        """Take one file, block after block; blocks are made while they are taken."""


@dataclass(frozen=True, slots=True, eq=False)
class FileSink:
    """Writes files below a folder and keeps their records."""

    root: Path
    files: dict[str, FileRecord] = field(default_factory=dict)

    def put(self, path: PurePosixPath, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
        """Write one file."""
        self.files[str(path)] = write_blocks(self.root / path, dtype, shape, blocks)


@dataclass(frozen=True, slots=True, eq=False)
class HaloWriter:
    """Makes the files of halos of one generation."""

    parts: Parts
    generation: int
    sink: Sink

    def write(
        self,
        part: int,
        node_ids: Mapping[str, NodeBitmap | IntArray],
        features: Mapping[str, tuple[str, ...]],
        cached_ids: Mapping[str, NodeBitmap | IntArray],
    ) -> HaloCounts:
        """Write the halo of one part.

        Args:
            part: The part.
            node_ids: Node type to the nodes whose edges are copied, a set or int64[n], ascending; empty where none are.
            features: Node type to the features that are copied.
            cached_ids: Node type to the nodes whose features are copied, likewise.

        Returns:
            How much that is.
        """
        root = halo_root(part, self.generation)
        for node_type, ids in node_ids.items():
            self._write_ids(node_path(root, node_type), node_type, ids)
        edges = {}
        for entity in self.parts.book.edge_offsets if node_ids else ():
            edges[entity] = self._write_edges(edge_path(root, *entity), entity, node_ids[ends_of(*entity)[0]])
        for node_type, names in features.items():
            folder, ids = cached_path(root, node_type), cached_ids[node_type]
            self._write_ids(folder, node_type, ids)
            for name in names:
                self._write_feature(folder, node_type, name, ids)
        return HaloCounts(
            nodes={t: len(ids) for t, ids in node_ids.items()},
            edges=edges,
            cached={t: len(cached_ids[t]) for t in features},
        )

    def _write_ids(self, folder: PurePosixPath, node_type: str, nodes: NodeBitmap | IntArray) -> None:
        int64, shape = np.dtype(np.int64), (len(nodes),)
        self.sink.put(folder / "id.npy", int64, shape, chunks_of(nodes))
        keys = self.parts.fixed_blocks(node_type, [a.node_keys[node_type] for a in self.parts.arrays], nodes)
        self.sink.put(folder / "key.npy", int64, shape, keys)

    def _write_edges(
        self, folder: PurePosixPath, entity: tuple[EdgeType, Direction], nodes: NodeBitmap | IntArray
    ) -> int:
        parts, ranges = self.parts, self.parts.edge_ranges[entity]
        edges = parts.edges(entity)
        indices, edge_offsets = Values([e.indices for e in edges]), parts.book.offsets(entity)

        def starts() -> Iterator[Array]:
            for ids in chunks_of(nodes):
                of_part, first, _ = ranges.of(ids, indices)
                yield first + edge_offsets[of_part]

        num_edges = self._write_offsets(folder / "indptr.npy", ranges, indices, nodes)
        self.sink.put(folder / "edge_start.npy", np.dtype(np.int64), (len(nodes),), starts())
        for name in edge_column_names(parts.manifest, *entity):
            values = Values(_columns(edges, ATTRIBUTES[name]))
            self.sink.put(folder / name, values.dtype, (num_edges,), ranges.blocks(values, nodes))
        return num_edges

    def _write_feature(self, folder: PurePosixPath, node_type: str, name: str, nodes: NodeBitmap | IntArray) -> None:
        feature = self.parts.manifest.schema.nodes[node_type][name]
        paths, ragged = feature_paths(folder, name, feature), self.parts.ragged(node_type, name)
        if ragged is None:
            columns = [arrays.node_features[node_type][name] for arrays in self.parts.arrays]
            blocks = self.parts.fixed_blocks(node_type, columns, nodes)
            self.sink.put(paths[0], feature.numpy_dtype, (len(nodes), *feature.shape), blocks)
            return
        ranges, values = ragged
        num_elements = self._write_offsets(paths[1], ranges, values, nodes)
        shape = (num_elements, *feature.shape)
        self.sink.put(paths[0], feature.numpy_dtype, shape, ranges.blocks(values, nodes))

    def _write_offsets(
        self, path: PurePosixPath, ranges: RowRanges, values: Values, nodes: NodeBitmap | IntArray
    ) -> int:
        """Write where the items of each row begin in the halo; return how many there are."""
        total = 0

        def offsets() -> Iterator[Array]:
            nonlocal total
            yield np.zeros(1, np.int64)
            for ids in chunks_of(nodes):
                ends = total + np.cumsum(ranges.of(ids, values)[2])
                total = int(ends[-1])
                yield ends

        blocks = offsets()
        self.sink.put(path, np.dtype(np.int64), (len(nodes) + 1,), blocks)
        for _ in blocks:  # a sink need not take them all
            pass
        return total


def _columns(edges: list[EdgeArrays], attribute: str) -> list[Array]:
    return [getattr(each, attribute) for each in edges]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """How much a part's halo is expected to answer in a batch of seeds that the part owns, by the model of VIP.

    Attributes:
        remote_rows: Nodes of other parts in a batch, on average.
        saved_rows: Those of them whose features are copied.
        remote_expanded: Nodes of other parts whose neighbours are asked for, on average.
        saved_expanded: Those of them whose edges are copied.
    """

    remote_rows: float
    saved_rows: float
    remote_expanded: float
    saved_expanded: float

    @property
    def row_share(self) -> float:
        """Share of remote rows that the halo answers; 1 where there are none."""
        return self.saved_rows / self.remote_rows if self.remote_rows else 1.0

    @property
    def expanded_share(self) -> float:
        """Share of remote expansions that the halo answers; 1 where there are none."""
        return self.saved_expanded / self.remote_expanded if self.remote_expanded else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HaloReport:
    """What ``add_halo`` did.

    Attributes:
        manifest: The manifest that was written; its ``halo`` says what was copied, None where it was removed.
        savings: What each part's halo is expected to save; empty where it was removed, or nobody asked for it.
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
    """Give every part of a dataset copies of rows of other parts, so that fewer are asked for over the network.

    The halo is a cache: whoever samples a part that is here with servers for the rest gets the same batches with and
    without. A halo that is there is replaced; ``hops=0`` without features removes it. All parts must be here.

    Args:
        dataset: A dataset or its folder.
        settings: What is copied; the defaults if it is not given.
        memory: What may be taken, for example ``500MB``; None for a share of what is free. Numbers of all nodes that do
            not fit are kept in files.
        with_savings: Find out what the halo is expected to save, which takes a pass over all edges for each entry of
            ``fanouts`` and part. With a budget the passes are made anyway.
        progress: Called as ``progress("halo", done, total)`` in parts.
        on_estimate: Called once with what halos take at most, before they are made; not where they are removed.
        **options: Fields of ``HaloSettings``; they go before ``settings``.

    Returns:
        What was written, and what it is expected to save.

    Raises:
        SettingsError: A setting is outside what it accepts, the memory is too small, or the dataset was appended to;
            compact it first.
        UnknownNameError: A feature or type is not there.
        FormatError: The folder is no dataset, or a part is missing or damaged.
        ChecksumError: The manifest is not the one that was written.
        StateError: Another process changes the dataset now.
        OSError: The system failed, or the disk has no room for the budget; the dataset is as it was.
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
                f"{root} has rows that were appended, and halos cannot be made beside them; compact the dataset first "
                "(hopstream compact)"
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
    dataset: Dataset, settings: HaloSettings, features: Mapping[str, tuple[str, ...]],
    on_estimate: Callable[[HaloCosts], None] | None, allotted: Allotment, *, has_savings: bool,
) -> None:  # fmt: skip
    """Tell what halos take, and stop before a budget that the disk has no room for.

    Raises:
        OSError: It has none. It is no fault of the settings, or ``dispatch`` would throw away the parts that it wrote.
    """
    manifest = dataset.manifest
    if settings.is_nothing or manifest.book.num_parts == 1:
        return
    costs = halo_costs(manifest, settings, feature_bytes_of(manifest, features), has_savings=has_savings)
    if on_estimate is not None:
        on_estimate(replace(costs, work=allotted))
    free = shutil.disk_usage(dataset.root).free
    if costs.budget_bytes > free:
        raise OSError(
            errno.ENOSPC,
            f"budget is {settings.budget} for each of {manifest.book.num_parts} parts, {costs.budget_bytes / 1e9:.1f} "
            f"GB in all; {dataset.root} has {free / 1e9:.1f} GB free: make room, or give a smaller budget",
        )


def _replace_halo(
    dataset: Dataset, settings: HaloSettings, make: Callable[[int], tuple[Halo, tuple[Saving, ...]]]
) -> HaloReport:
    """Bring a halo that ``make`` writes, as one of another generation, into its place."""
    root, manifest, before = dataset.root, dataset.manifest, dataset.manifest.halo
    halo: Halo | None = None
    savings: tuple[Saving, ...] = ()
    try:
        if not settings.is_nothing and manifest.book.num_parts > 1:
            halo, savings = make(1 if before is None else before.generation % MAX_GENERATION + 1)
        written = replace(manifest, halo=halo)
        written.write(root)
    except BaseException:
        remove_halos(root, manifest, read_manifest(root).halo)  # the new one, where the manifest was replaced before
        raise
    remove_halos(root, manifest, halo)
    return HaloReport(manifest=written, savings=savings)


@dataclass(frozen=True, slots=True, eq=False)
class _HaloMaker:
    parts: Parts
    settings: HaloSettings
    features: Mapping[str, tuple[str, ...]]
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
        if self.with_savings or self.settings.budget is not None:
            model = InclusionModel(self.parts, self.settings, self.tables, is_expanding=self.with_savings)
        counts: list[HaloCounts] = []
        savings: list[Saving] = []
        for part in range(num_parts):
            self.progress("halo", part, num_parts)
            of_part, saving = self._write(part, writer, model)  # whose sets of nodes are gone before the next part's
            counts.append(of_part)
            savings += [saving] if saving is not None else []
        self.progress("halo", num_parts, num_parts)
        settings = self.settings
        halo = Halo(
            generation=self.generation, hops=settings.hops, features=self.features,
            budget_bytes=settings.budget_bytes, fanouts=tuple(settings.fanouts), batch_size=settings.batch_size,
            parts=tuple(counts), files=dict(sorted(sink.files.items())),
        )  # fmt: skip
        return halo, tuple(savings)

    def _write(self, part: int, writer: HaloWriter, model: InclusionModel | None) -> tuple[HaloCounts, Saving | None]:
        """Write the halo of one part; return how much that is, and what it saves where that is asked for."""
        inclusion = None if model is None else model.of(part)
        node_ids, cached = self._chosen(part, inclusion)
        counts = writer.write(part, node_ids, self.features, cached)
        if inclusion is None or not self.with_savings:
            return counts, None
        return counts, self._saving(part, inclusion, node_ids, cached)

    def _chosen(self, part: int, inclusion: Inclusion | None) -> tuple[dict[str, NodeBitmap], dict[str, NodeBitmap]]:
        """The nodes whose edges a part gets copies of, and those whose features."""
        reached = nodes_within(self.parts, part, self.settings.hops)
        budget = self.settings.budget_bytes
        if budget is None or inclusion is None:
            cached = {t: reached[t] for t in self.features}
        else:
            cached = hottest(self.parts, part, inclusion.sampled, self.features, budget)
        return reached if self.settings.hops else {}, cached

    def _saving(
        self, part: int, inclusion: Inclusion, node_ids: Mapping[str, NodeBitmap], cached: Mapping[str, NodeBitmap]
    ) -> Saving:
        totals = [0.0] * 4
        for node_type, offsets in self.parts.book.node_offsets.items():
            own = slice(int(offsets[part]), int(offsets[part + 1]))
            for at, (chances, nodes) in enumerate((
                (inclusion.sampled[node_type], cached.get(node_type)),
                (inclusion.expanded[node_type], node_ids.get(node_type)),
            )):  # fmt: skip
                totals[2 * at] += float(chances[: own.start].sum() + chances[own.stop :].sum())
                totals[2 * at + 1] += sum(float(chances[ids].sum()) for ids in nodes.chunks()) if nodes else 0.0
        return Saving(remote_rows=totals[0], saved_rows=totals[1], remote_expanded=totals[2], saved_expanded=totals[3])
