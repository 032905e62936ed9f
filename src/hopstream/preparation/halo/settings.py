"""Settings of the halo of a dataset's parts, and the disk and memory that halos may take.

How many nodes lie around a part is known when they have been looked for, and not before. So what is said is what halos
take at most: each part has copies of all that the others have, or of features up to the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np

from hopstream.checks import Settings, check_int, known_names
from hopstream.dataset.book import ends_of
from hopstream.dataset.halo_record import edge_column_names
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import Contents, feature_paths, node_folder
from hopstream.engine.settings import Allotment, Needs, WorkerSettings, allot, memory_bytes
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.schema import GraphSchema

MAX_HOPS = 64
MAX_FANOUT = (1 << 31) - 1
FeatureChoice = Literal["none", "all"] | str | Sequence[str]
"""``none``, ``all``, or ``type:feature`` (``type:*`` for all of a type), several joined by commas or in a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HaloSettings(Settings):
    """What each part keeps copies of. Every field is checked when the record is made.

    Attributes:
        hops: Rows of edges are copied of nodes at a distance of 1 to so many hops from nodes that the part owns, along
            the directions in which edges are stored. 0 copies none.
        features: Which features are copied: ``none``, ``all``, or ``type:feature``, where ``type:*`` is all of a type;
            several are joined by commas or in a list. None is ``none``, or ``all`` with a budget.
        budget: Features are copied of the nodes that are most likely sampled, whatever their distance, in up to so many
            bytes per part, for example ``2GiB``; None copies those of all nodes within ``hops``.
        fanouts: Neighbours per hop and edge type that training draws, -1 for all. Only the order in which nodes are
            taken within a budget, and the share that is reported, follow from it.
        batch_size: Seeds per batch of training, likewise.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    hops: int = 1
    features: FeatureChoice | None = None
    budget: str | int | None = None
    fanouts: Sequence[int] = (15, 10, 5)
    batch_size: int = 1024

    def __post_init__(self) -> None:
        """Check every field."""
        check_int("hops", self.hops, 0, MAX_HOPS)
        check_int("batch_size", self.batch_size, 1, 1 << 40)
        fanouts: object = self.fanouts
        if not isinstance(fanouts, list | tuple) or not 1 <= len(fanouts) <= MAX_HOPS:
            raise SettingsError(f"fanouts is {fanouts!r}; it must be one integer for each hop of training")
        for fanout in fanouts:
            check_int("fanouts", fanout, -1, MAX_FANOUT)
        object.__setattr__(self, "fanouts", tuple(fanouts))
        _ = self.budget_bytes, self.feature_names
        if self.budget is not None and not self.feature_names:
            raise SettingsError(
                "budget is given and features is 'none'; a budget is for features: leave one of them out"
            )
        if self.hops == 0 and self.feature_names and self.budget is None:
            raise SettingsError(
                "hops is 0 and features are to be copied of the nodes within so many hops; give hops above 0, or a "
                "budget"
            )

    @property
    def budget_bytes(self) -> int | None:
        """The budget as a number of bytes."""
        if self.budget is None:
            return None
        if isinstance(self.budget, int) and not isinstance(self.budget, bool) and self.budget >= 0:
            return self.budget
        return memory_bytes(self.budget, "budget")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What was asked for, one by one: ``type:feature`` or ``all``; empty for none."""
        chosen: object = ("all" if self.budget is not None else "none") if self.features is None else self.features
        names = chosen.split(",") if isinstance(chosen, str) else chosen
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name.strip() for name in names):
            raise SettingsError(
                f"features is {chosen!r}; it must be 'none', 'all' or names such as 'paper:feat,author:*'"
            )
        names = tuple(name.strip() for name in names)
        if names in {(), ("none",)}:
            return ()
        if names != ("all",) and not all(":" in name for name in names):
            raise SettingsError(f"features is {chosen!r}; each must be type:feature, or type:* for all of a type")
        return names

    @property
    def is_nothing(self) -> bool:
        """Nothing is copied, so that a halo which is there is removed."""
        return self.hops == 0 and not self.feature_names

    def choose(self, schema: GraphSchema) -> dict[str, tuple[str, ...]]:
        """Node type to the features that are copied, for each type of which any is; ``type:*`` may be of no feature.

        Raises:
            UnknownNameError: The graph has no such type or feature.
        """
        if self.feature_names == ("all",):
            return {t: tuple(features) for t, features in schema.nodes.items()}
        chosen: dict[str, dict[str, None]] = {}
        for text in self.feature_names:
            node_type, _, name = text.partition(":")
            if node_type not in schema.nodes:
                raise UnknownNameError(
                    f"features of {node_type!r} are to be copied, which is no node type; "
                    f"{known_names(node_type, schema.nodes)}"
                )
            known = schema.nodes[node_type]
            if name != "*" and name not in known:
                raise UnknownNameError(f"node type {node_type!r} has no feature {name!r}; {known_names(name, known)}")
            chosen.setdefault(node_type, {}).update(dict.fromkeys(known if name == "*" else [name]))
        return {t: tuple(f for f in schema.nodes[t] if f in chosen[t]) for t in schema.nodes if t in chosen}


class HaloOptions(TypedDict, total=False):
    """The fields of ``HaloSettings`` as keyword arguments of ``add_halo``."""

    hops: int
    features: FeatureChoice | None
    budget: str | int | None
    fanouts: Sequence[int]
    batch_size: int


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
        for owner in book.edge_offsets:
            dtypes = edge_column_names(contents, *owner).values()
            rows += OFFSET_BYTES * sizes[ends_of(*owner)[0]]
            rows += book.num_ids(owner) * sum(np.dtype(dtype).itemsize for dtype in dtypes)
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
