"""Estimates the disk and the memory that halos take, before they are made.

The number of nodes around a part is unknown before the search for them. So the estimate is an upper bound: each part
copies everything that the other parts have, or features and edges up to their budgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from hopstream.dataset.book import Entity, ends_of
from hopstream.dataset.halo_record import edge_column_names, edge_row_bytes
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import Contents, edge_folder, feature_paths, node_folder
from hopstream.engine.settings import Allotment, Needs, WorkerSettings, allot
from hopstream.preparation.halo.settings import HaloFeatures, HaloSettings
from hopstream.schema import FeatureSchema

PROCESS_BYTES = 180 << 20
"""Memory of a process that has loaded its libraries and compiled kernels."""
WORK_BYTES = 40 << 20
"""Memory besides tables of nodes: blocks that are copied, and locations of some nodes' rows."""
NUM_SETS = 3
"""Number of bitmaps, of one bit per node of the graph, that exist at a time."""
ID_BYTES, OFFSET_BYTES, HEAD_BYTES, NUMBER_BYTES = 16, 16, 136, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HaloCosts:
    """Costs of the halos of all parts.

    Attributes:
        copied_bytes: Upper bound of the bytes of copies.
        budget_bytes: Part of ``copied_bytes`` that is features or edges within a budget. A budget is used up as far as
            nodes can be sampled.
        table_bytes: Bytes of tables with a number per node while halos are made; tables that do not fit the memory go
            to files.
        work: Memory for halos; None if only the disk was estimated.
    """

    copied_bytes: int = 0
    budget_bytes: int = 0
    table_bytes: int = 0
    work: Allotment | None = None


def least_memory_bytes(num_nodes: int) -> int:
    """Return the memory that halos need for a number of nodes: a process, and bitmaps of nodes."""
    return PROCESS_BYTES + WORK_BYTES + -(-NUM_SETS * num_nodes // 8)


def halos_text(num_nodes: int) -> str:
    """Format the subject and verb of an error about too little memory."""
    return f"halos of {num_nodes} nodes need" if num_nodes else "halos need"


def halo_allotment(memory: str | None, num_nodes: int) -> Allotment:
    """Allot the memory of halos; tables of nodes get the memory above ``least_memory_bytes``.

    Args:
        memory: Most memory; None for a share of the free memory.
        num_nodes: Nodes of the graph of all types; 0 if no halo is made.

    Raises:
        SettingsError: ``memory`` is no size, or too small.
    """
    needs = Needs.of_one(least_memory_bytes(num_nodes), halos_text(num_nodes))
    return allot(memory, WorkerSettings(num_workers=0), (needs,))


def halo_costs(
    contents: Contents, settings: HaloSettings, feature_bytes: Mapping[Entity, int], *, has_savings: bool = False
) -> HaloCosts:
    """Estimate the costs of halos.

    Args:
        contents: Contents of the dataset that will be written; only the numbers of nodes and edges in its book are
            used.
        settings: What is copied.
        feature_bytes: Bytes of the copied features of all nodes of a type, or of all edges of a type and direction;
            those without any are left out.
        has_savings: Whether the savings of the halo are computed too.
    """
    book, schema = contents.book, contents.schema
    num_others = book.num_parts - 1
    if settings.is_nothing or not num_others:
        return HaloCosts()
    sizes = {t: book.num_ids(t) for t in schema.nodes}
    rows = num_files = 0
    if settings.copies_edges:
        rows = sum(ID_BYTES * n for n in sizes.values())
        num_files = 2 * len(sizes)
        for entity in book.edge_offsets:
            num_files += 2 + len(edge_column_names(contents, *entity)) + 2 * len(schema.edges[entity[0]])
            rows += OFFSET_BYTES * sizes[ends_of(*entity)[0]]
            rows += book.num_ids(entity) * edge_row_bytes(contents, entity)
            rows += feature_bytes.get(entity, 0)
    of_nodes = {t: num_bytes for t, num_bytes in feature_bytes.items() if isinstance(t, str)}
    features = num_others * sum(ID_BYTES * sizes[t] + num_bytes for t, num_bytes in of_nodes.items())
    num_files += sum(2 + 2 * len(schema.nodes[t]) for t in of_nodes)
    edges = num_others * rows
    budget, edge_budget = settings.budget_bytes, settings.edge_budget_bytes
    if budget is not None:
        features = min(features, budget * book.num_parts)
    if edge_budget is not None:
        edges = min(edges, edge_budget * book.num_parts)
    is_expanding = has_savings or edge_budget is not None
    num_tables = 0 if budget is None and not is_expanding else 3 + is_expanding
    return HaloCosts(
        copied_bytes=edges + features + book.num_parts * num_files * HEAD_BYTES,
        budget_bytes=(0 if budget is None else features) + (0 if edge_budget is None else edges),
        table_bytes=num_tables * NUMBER_BYTES * sum(sizes.values()),
    )


def feature_bytes_of(manifest: Manifest, features: HaloFeatures) -> dict[Entity, int]:
    """Return the bytes of some features of a dataset, by node type, and by edge type and direction."""
    schema = manifest.schema

    def num_bytes(folder: PurePosixPath, known: Mapping[str, FeatureSchema], names: tuple[str, ...]) -> int:
        paths = [path for name in names for path in feature_paths(folder, name, known[name])]
        return sum(manifest.files[str(path)].num_bytes for path in paths)

    parts = range(manifest.book.num_parts)
    found: dict[Entity, int] = {
        t: sum(num_bytes(node_folder(part, t), schema.nodes[t], names) for part in parts)
        for t, names in features.nodes.items()
    }
    for t, names in features.edges.items():
        for direction in manifest.directions:
            folders = [edge_folder(part, t, direction) for part in parts]
            found[t, direction] = sum(num_bytes(folder, schema.edges[t], names) for folder in folders)
    return found
