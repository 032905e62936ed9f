"""What do the tasks of one export share, and what does a shard hold?

Everything is in the folder of the job, which all workers see: the plan, and the keys of the seeds. What a process has
opened for one task it keeps for the next.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import IntArray, RaggedArray
from hopstream.errors import SchemaError
from hopstream.export.context import SAMPLE_ID, SEED_ID, declare_ids, sample_id_of, with_seed_ids
from hopstream.export.plan import plan_of_spec
from hopstream.export.seeds import NodeIds, read_seeds
from hopstream.export.settings import Compression, ExportedEdges, FileFormat
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.kernels.hashing import derive_seed
from hopstream.schema import EdgeType, GraphSchema, type_label
from hopstream.store import open_store
from hopstream.store.contract import MAX_TREES
from hopstream.tfgnn.graph_schema import schema_message
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.sampling_spec import parse_spec
from hopstream.tfgnn.tfrecord import shard_paths
from hopstream.tfgnn.values import FeatureValues

PLAN, SEEDS, REPEATS = "plan.json", "seeds.bin", "repeats.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """What is exported and where to; JSON values only.

    Attributes:
        source: What ``open_store`` takes.
        spec: A ``SamplingSpec`` in text form.
        stem: The path that names of shards begin with.
        num_seeds: Records in all shards.
        num_shards: Files.
        has_keys: Seeds are in a file; else they are all nodes.
        is_linked: Seeds are pairs of nodes.
        subgraph_type: Which edges a subgraph has.
        rng_seed: Seed of all randomness.
        file_format: What is written.
        compression: How it is compressed.
        leave_out: Features that are not written.
        seed_ids: Seeds' raw ids are written too.
        id_feature: The feature that holds raw ids, where one was named.
        num_threads: Threads of each process.
    """

    source: str
    spec: str
    stem: str
    num_seeds: int
    num_shards: int
    has_keys: bool
    is_linked: bool
    subgraph_type: ExportedEdges
    rng_seed: int
    file_format: FileFormat
    compression: Compression
    leave_out: tuple[str, ...]
    seed_ids: bool
    id_feature: str | None
    num_threads: int

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ExportPlan:
        """The plan that ``to_json`` wrote."""
        return cls(**{**value, "leave_out": tuple(value["leave_out"])})

    @property
    def paths(self) -> list[Path]:
        """The files that are written."""
        return shard_paths(self.stem, self.num_shards)

    def range_of(self, shard: int) -> tuple[int, int]:
        """The first seed of a shard and the one behind its last: seeds are cut evenly, in order."""
        return shard * self.num_seeds // self.num_shards, (shard + 1) * self.num_seeds // self.num_shards


class Workplace:
    """An export, seen by a task: the store, the seeds, and a maker for each thread."""

    def __init__(self, folder: Path) -> None:
        """Open what the plan names.

        Raises:
            HopstreamError: The source cannot be opened, or does not hold what the spec needs.
        """
        self.folder = folder
        self.plan = ExportPlan.from_json(json.loads((folder / PLAN).read_text(encoding="utf-8")))
        self.store = open_store(self.plan.source)
        try:
            self._sample_plan = plan_of_spec(
                parse_spec(self.plan.spec), self.store.schema, subgraph_type=self.plan.subgraph_type
            )
            self._ids = NodeIds(self.store, self._sample_plan.seed_types[0], self.plan.id_feature)
            num_columns = 2 if self.plan.is_linked else 1
            self._keys = read_seeds(folder / SEEDS, num_columns) if self.plan.has_keys else None
            self._repeats = read_seeds(folder / REPEATS) if (folder / REPEATS).exists() else None
        except BaseException:
            self.store.close()
            raise
        self._features = features_of(self.store.schema, self.plan.leave_out)
        self._makers = threading.local()

    def maker(self) -> SubgraphMaker:
        """The maker of this thread."""
        maker: SubgraphMaker | None = getattr(self._makers, "maker", None)
        if maker is None:
            maker = self._makers.maker = SubgraphMaker(self.store, self._sample_plan, self._features)
        return maker

    def make(self, first: int, last: int) -> GraphPieces:
        """The subgraphs of some seeds, by their positions among all seeds.

        A subgraph depends on its seed and on its seed's position, so neither on who makes it nor with which others.

        Args:
            first: The first position.
            last: The one behind the last; no multiple of ``MAX_TREES`` lies between.
        """
        turn, tree = divmod(first, MAX_TREES)
        rng_seed = derive_seed("export", self.plan.rng_seed, turn) if turn else self.plan.rng_seed
        keys = self.keys(first, last)
        pieces = self.maker().make(keys, rng_seed, tree)
        if not self.plan.seed_ids:
            return pieces
        if first == last:  # without any, nothing would tell that ids are strings
            none = FeatureValues(RaggedArray.from_strings([]), 0)
            return replace(pieces, context={SEED_ID: none, SAMPLE_ID: none})
        ids = self._seed_ids(keys)
        repeats = [0] * len(ids) if self._repeats is None else self._repeats[first:last].tolist()
        return with_seed_ids(pieces, ids, sample_ids=list(map(sample_id_of, ids, repeats)))

    def keys(self, first: int, last: int) -> IntArray:
        """int64[n] or int64[n, 2], the keys of some seeds."""
        return np.arange(first, last, dtype=np.int64) if self._keys is None else np.array(self._keys[first:last])

    def _seed_ids(self, keys: IntArray) -> list[bytes]:
        """Raw ids; those of links are joined."""
        if keys.ndim == 1:
            return self._ids.of_keys(keys)
        ends = [self._ids.of_keys(np.ascontiguousarray(keys[:, i])) for i in range(2)]
        return [b"%s->%s" % pair for pair in zip(*ends, strict=True)]


_OPENED: dict[str, Workplace] = {}
_OPENING = threading.Lock()


def workplace_of(args: dict[str, Any]) -> Workplace:
    """The workplace of a task's arguments; it stays open for the tasks that follow."""
    with _OPENING:
        place = _OPENED.get(args["folder"])
        if place is None:
            place = _OPENED[args["folder"]] = Workplace(Path(args["folder"]))
        return place


def close_workplace(folder: Path) -> None:
    """Let go of what tasks of this process have opened in a folder."""
    with _OPENING:
        place = _OPENED.pop(str(folder), None)
    if place is not None:
        place.store.close()


def features_of(schema: GraphSchema, leave_out: tuple[str, ...]) -> dict[str | EdgeType, tuple[str, ...]]:
    """Which features are written of each type.

    Raises:
        SchemaError: What is to be left out is not there.
    """
    owners: list[tuple[str | EdgeType, Mapping[str, Any]]] = [*schema.nodes.items(), *schema.edges.items()]
    known = [f"{type_label(owner)}.{name}" for owner, of in owners for name in of]
    unknown = [name for name in leave_out if name not in known]
    if unknown:
        raise SchemaError(f"leave_out names {unknown[0]!r}; the graph has {known}")
    return {owner: tuple(name for name in of if f"{type_label(owner)}.{name}" not in leave_out) for owner, of in owners}


def output_schema(schema: GraphSchema, leave_out: tuple[str, ...], *, has_ids: bool) -> Any:
    """The ``GraphSchema`` message of what is written.

    Raises:
        SchemaError: A feature is of a kind that TF-GNN does not store.
    """
    kept = features_of(schema, leave_out)
    message = schema_message(
        GraphSchema(
            nodes={t: {name: of[name] for name in kept[t]} for t, of in schema.nodes.items()},
            edges={t: {name: of[name] for name in kept[t]} for t, of in schema.edges.items()},
        )
    )
    if has_ids:
        declare_ids(message, SEED_ID, SAMPLE_ID)
    return message
