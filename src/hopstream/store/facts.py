"""Facts about a served store: the answer of a server to ``describe``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from hopstream.arrays import IntArray
from hopstream.dataset.book import Entity, PartitionBook
from hopstream.dataset.manifest import deltas_from_json, deltas_to_json, time_unit_from_json
from hopstream.dataset.settings import TimeUnit
from hopstream.errors import FormatError, HopstreamError
from hopstream.schema import Direction, FeatureSchema, GraphSchema
from hopstream.store.contract import DATASET_FACTS, Store
from hopstream.store.wire import direction_from_json, entity_from_json, entity_to_json
from hopstream.transport.messages import Frame

MAX_PARTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Facts that a client must know about a served store before its first request.

    Attributes:
        schema: Schema of the dataset.
        book: Ranges of ids of all parts.
        directions: Edge directions that the dataset holds.
        dataset_id: Fingerprint of the dataset.
        graph_id: Fingerprint of the graph that the dataset was cut from.
        parts: The parts that the server answers for.
        max_ids: Largest number of ids that the server accepts in one request.
        path: The dataset's folder on the server's machine; None if the server did not send it.
        time_attr: See ``Store.time_attr``.
        time_unit: See ``Store.time_unit``.
        weight_attr: See ``Store.weight_attr``.
        has_neighbor_keys: See ``Store.has_neighbor_keys``.
    """

    schema: GraphSchema
    book: PartitionBook
    directions: tuple[Direction, ...]
    dataset_id: str
    graph_id: str
    parts: tuple[int, ...]
    max_ids: int
    path: Path | None = None
    time_attr: str | None = None
    time_unit: TimeUnit | None = None
    weight_attr: str | None = None
    has_neighbor_keys: bool = False

    @classmethod
    def of(
        cls, store: Store, *, max_ids: int, path: Path | None = None, parts: tuple[int, ...] | None = None
    ) -> StoreFacts:
        """Describe the dataset of a store; ``parts`` defaults to the parts of the store."""
        known = {name: getattr(store, name) for name in DATASET_FACTS}
        return cls(**known, parts=store.parts if parts is None else parts, max_ids=max_ids, path=path)

    def to_frame(self, *, has_path: bool = True) -> Frame:
        """Encode the facts: names in the header, id ranges as arrays in the order of ``owners``.

        Args:
            has_path: Include the folder.
        """
        entities: list[Entity] = [*self.book.node_offsets, *self.book.edge_offsets]
        header = {
            "schema": self.schema.to_json(),
            "directions": list(self.directions),
            "dataset": self.dataset_id,
            "graph": self.graph_id,
            "parts": list(self.parts),
            "num_parts": self.book.num_parts,
            "owners": [entity_to_json(entity) for entity in entities],
            "max_ids": self.max_ids,
            "path": str(self.path) if has_path and self.path is not None else None,
            "time_attr": self.time_attr,
            "time_unit": self.time_unit,
            "weight_attr": self.weight_attr,
            "has_neighbor_keys": self.has_neighbor_keys,
            "deltas": deltas_to_json(self.book),
        }
        ranges = [*self.book.node_offsets.values(), *self.book.edge_offsets.values()]
        return Frame(header, [np.asarray(offsets, np.int64) for offsets in ranges], is_last=True)

    @classmethod
    def from_frame(cls, frame: Frame) -> StoreFacts:
        """Read what ``to_frame`` wrote.

        Raises:
            FormatError: The frame is malformed or contradicts itself.
        """
        try:
            return cls._from_header(frame.header, frame)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, HopstreamError) and not isinstance(error, KeyError):
                raise FormatError(f"the answer to describe is invalid: {error}") from error
            raise FormatError(f"the answer to describe is invalid: {error!r}") from error

    @classmethod
    def _from_header(cls, header: dict[str, Any], frame: Frame) -> StoreFacts:
        num_parts, max_ids = int(header["num_parts"]), int(header["max_ids"])
        entities = [entity_from_json(value) for value in header["owners"]]
        if not 1 <= num_parts <= MAX_PARTS or max_ids < 1 or len(entities) != len(frame.arrays):
            raise FormatError(
                f"{num_parts} parts, max_ids {max_ids}, {len(entities)} owners and {len(frame.arrays)} arrays "
                "contradict each other"
            )
        ranges = {entity: _ranges(frame, row) for row, entity in enumerate(entities)}
        book = PartitionBook(
            num_parts=num_parts,
            node_offsets={entity: o for entity, o in ranges.items() if isinstance(entity, str)},
            edge_offsets={entity: o for entity, o in ranges.items() if not isinstance(entity, str)},
            deltas=deltas_from_json(header["deltas"]),
        )
        schema = GraphSchema.from_json(header["schema"])
        directions = tuple(direction_from_json(value) for value in header["directions"])
        wanted = {(edge_type, direction) for edge_type in schema.edges for direction in directions}
        if set(book.node_offsets) != set(schema.nodes) or set(book.edge_offsets) != wanted:
            raise FormatError(f"ranges are given for {entities}, not for the types of the schema")
        parts = tuple(int(part) for part in header["parts"])
        if not parts or list(parts) != sorted(set(parts)) or parts[0] < 0 or parts[-1] >= num_parts:
            raise FormatError(f"parts are {list(parts)[:20]}; they must be distinct, ascending, in 0..{num_parts - 1}")
        path = header["path"]
        return cls(
            schema=schema,
            book=book,
            directions=directions,
            dataset_id=frame.text("dataset"),
            graph_id=frame.text("graph"),
            parts=parts,
            max_ids=max_ids,
            path=None if path is None else Path(str(path)),
            time_attr=_attr("time_attr", header["time_attr"], [*schema.edges.values(), *schema.nodes.values()]),
            time_unit=time_unit_from_json(header.get("time_unit")),
            weight_attr=_attr("weight_attr", header["weight_attr"], [*schema.edges.values()]),
            has_neighbor_keys=_flag("has_neighbor_keys", header["has_neighbor_keys"]) or book.ids_are_keys,
        )


def _ranges(frame: Frame, index: int) -> IntArray:
    return np.array(frame.array(index, ("int64",)))


def _attr(where: str, name: object, columns: Sequence[Mapping[str, FeatureSchema]]) -> str | None:
    """Check the name of times or weights: a feature that can be such, wherever a type has it."""
    if name is None:
        return None
    found = [features[name] for features in columns if name in features] if isinstance(name, str) else []
    for feature in found:
        if not (feature.can_be_times if where == "time_attr" else feature.can_be_weights):
            raise FormatError(f"{where} is {str(name)[:100]!r}, which is {feature}; it must be one number per row")
    if not found:
        raise FormatError(f"{where} is {str(name)[:100]!r}, which is not a feature of the schema")
    return cast(str, name)


def _flag(where: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise FormatError(f"{where} is {str(value)[:100]!r}; it must be true or false")
    return value
