"""Says how much disk and memory halos may take, before they are made.

How many nodes lie around a part is known when they have been looked for, and not before. So what is said is what halos
take at most: each part has copies of all that the others have, or of features up to the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hopstream.dataset.book import ends_of
from hopstream.dataset.halo_record import edge_column_names
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import Contents, feature_paths, node_folder
from hopstream.engine.settings import Allotment, Needs, WorkerSettings, allot
from hopstream.preparation.halo.settings import HaloSettings

PROCESS_BYTES = 180 << 20
"""What a process takes that has loaded its libraries and compiled kernels."""
WORK_BYTES = 40 << 20
"""What is taken beside tables of nodes: blocks that are copied, and where the rows of some nodes lie."""
NUM_SETS = 3
"""Sets of nodes, of a bit per node of the graph, that there are at a time."""
ID_BYTES, OFFSET_BYTES, HEAD_BYTES, NUMBER_BYTES = 16, 16, 136, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HaloCosts:
    """What halos of all parts take.

    Attributes:
        copied_bytes: Of copies, at most.
        budget_bytes: Those of ``copied_bytes`` that are features within a budget, which is filled as far as nodes
            are ever sampled.
        table_bytes: Of numbers of all nodes while halos are made, in files where they do not fit into memory.
        work: What memory they get; None where only the disk was asked for.
    """

    copied_bytes: int = 0
    budget_bytes: int = 0
    table_bytes: int = 0
    work: Allotment | None = None


def least_memory_bytes(num_nodes: int) -> int:
    """What halos of a graph with so many nodes of all types need: a process, and sets of nodes."""
    return PROCESS_BYTES + WORK_BYTES + -(-NUM_SETS * num_nodes // 8)


def halos_text(num_nodes: int) -> str:
    """What needs memory, for an error."""
    return f"halos of {num_nodes} nodes need" if num_nodes else "halos need"


def halo_allotment(memory: str | None, num_nodes: int) -> Allotment:
    """What halos get; tables of nodes get what is above ``least_memory_bytes``.

    Args:
        memory: What all may take; None for a share of what is free.
        num_nodes: Nodes of the graph of all types; 0 where no halo is made.

    Raises:
        SettingsError: It is no size, or too little to work with.
    """
    needs = Needs.of_one(least_memory_bytes(num_nodes), halos_text(num_nodes))
    return allot(memory, WorkerSettings(num_workers=0), (needs,))


def halo_costs(
    contents: Contents, settings: HaloSettings, feature_bytes: Mapping[str, int], *, has_savings: bool = False
) -> HaloCosts:
    """What halos take.

    Args:
        contents: Of the dataset, as it will be written; only the numbers of nodes and edges in its book are looked at.
        settings: What is copied.
        feature_bytes: Node type to the bytes of the features that are copied, of all nodes; of types of which any are.
        has_savings: What halos save is to be told.
    """
    book, schema = contents.book, contents.schema
    num_others = book.num_parts - 1
    if settings.is_nothing or not num_others:
        return HaloCosts()
    sizes = {t: book.num_ids(t) for t in schema.nodes}
    rows = num_files = 0
    if settings.hops:
        rows = sum(ID_BYTES * n for n in sizes.values())
        num_files = 2 * len(sizes)
        for entity in book.edge_offsets:
            dtypes = edge_column_names(contents, *entity).values()
            rows += OFFSET_BYTES * sizes[ends_of(*entity)[0]]
            rows += book.num_ids(entity) * sum(np.dtype(dtype).itemsize for dtype in dtypes)
            num_files += 2 + len(dtypes)
    features = num_others * sum(ID_BYTES * sizes[t] + num_bytes for t, num_bytes in feature_bytes.items())
    num_files += sum(2 + 2 * len(schema.nodes[t]) for t in feature_bytes)
    budget = settings.budget_bytes
    if budget is not None:
        features = min(features, budget * book.num_parts)
    num_tables = 0 if budget is None and not has_savings else 3 + has_savings
    return HaloCosts(
        copied_bytes=num_others * rows + features + book.num_parts * num_files * HEAD_BYTES,
        budget_bytes=0 if budget is None else features,
        table_bytes=num_tables * NUMBER_BYTES * sum(sizes.values()),
    )


def feature_bytes_of(manifest: Manifest, features: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Node type to the bytes of some features of all nodes of a dataset."""
    num_parts = manifest.book.num_parts
    return {
        node_type: sum(
            manifest.files[str(path)].num_bytes
            for part in range(num_parts)
            for name in names
            for path in feature_paths(node_folder(part, node_type), name, manifest.schema.nodes[node_type][name])
        )
        for node_type, names in features.items()
    }
