"""Reads, checks and writes the manifest of a dataset.

``manifest.json`` is written last, so a folder without one is not a dataset. Reading checks it: its list of files must
follow from its schema and ranges, and its fingerprint must match its content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from hopstream.arrays import FileRecord, IntArray, write_text
from hopstream.dataset.balance import PartitionReport
from hopstream.dataset.book import Delta, EdgeEntity, Entity, Overlay, PartitionBook, entity_label
from hopstream.dataset.digests import DIGEST, content_digest
from hopstream.dataset.halo_record import Halo
from hopstream.dataset.paths import MANIFEST, expected_files
from hopstream.dataset.settings import MAX_PARTS, TimeUnit
from hopstream.errors import ChecksumError, FormatError
from hopstream.graph.graph import GraphChecksums, hex_digest
from hopstream.schema import Direction, EdgeType, GraphSchema
from hopstream.uris import local_path


def deltas_to_json(book: PartitionBook) -> list[dict[str, Any]]:
    """Return a JSON value that ``deltas_from_json`` reads."""
    return [
        {
            "digest": delta.digest,
            "edges": [{"type": list(edge_type), "new": count} for edge_type, count in delta.num_edges.items()],
            "overlays": [
                {
                    "type": list(entity[0]),
                    "direction": entity[1],
                    "part": o.part,
                    "rows": o.num_rows,
                    "edges": o.num_edges,
                    "new": o.num_new,
                }
                for entity, overlays in delta.overlays.items()
                for o in overlays
            ],
        }
        for delta in book.deltas
    ]


def deltas_from_json(value: Any) -> tuple[Delta, ...]:
    """Read what ``deltas_to_json`` wrote. ``PartitionBook`` checks the deltas against its parts.

    Raises:
        FormatError: The value is something else.
    """
    try:
        return tuple(_delta(number, record) for number, record in enumerate(value, 1))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"deltas cannot be read ({error!r}): {str(value)[:200]}") from error


def _delta(number: int, record: dict[str, Any]) -> Delta:
    overlays: dict[EdgeEntity, tuple[Overlay, ...]] = {}
    for told in record["overlays"]:
        entity = (_edge_type(told["type"]), cast(Direction, told["direction"]))
        overlay = Overlay(
            delta=number, part=_count(told["part"]), num_rows=_count(told["rows"]), num_edges=_count(told["edges"]),
            num_new=_count(told["new"]),
        )  # fmt: skip
        overlays[entity] = (*overlays.get(entity, ()), overlay)
    return Delta(
        num_edges={_edge_type(e["type"]): _count(e["new"]) for e in record["edges"]}, overlays=overlays,
        digest=_digest(record["digest"]),
    )  # fmt: skip


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{32}", value):
        raise ValueError(f"{str(value)[:80]!r} is not a digest")
    return value


def _edge_type(value: Any) -> EdgeType:
    source, relation, destination = value
    return str(source), str(relation), str(destination)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is not a count")
    return value


FORMAT = 1
MAX_MANIFEST_BYTES = 1 << 30
FIELDS = (
    "dataset_id", "schema", "graph_id", "directions", "num_parts", "node_offsets", "edge_offsets", "has_edge_keys",
    "time_attr", "weight_attr", "has_neighbor_keys", "deltas", "checksums", "made_by", "report", "files",
)  # fmt: skip
"""Fields of every manifest besides its format."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Manifest:
    """Description of a dataset, complete without opening its arrays.

    Attributes:
        schema: Node types, edge types, features and splits.
        directions: The directions in which edges are stored.
        book: Ranges of ids that each part owns.
        has_edge_keys: Original edge keys are stored.
        files: Path relative to the dataset to the record of the file, for every file but the manifest and the halo.
        made_by: Version, method, rng_seed and options of the run that wrote the dataset.
        report: The edge cut and the cost of the run.
        graph_id: Fingerprint of the partitioned graph (``Graph.fingerprint``) and of ``time_attr``, which decides the
            stored order of a node's edges; the same for every partitioning of the graph.
        checksums: The checksums that form the graph's fingerprint; an append needs them.
        time_attr: The feature that holds times, which a node's edges are sorted by, or None.
        time_unit: The unit of ``time_attr`` since 1970, as numpy names it, or None if unknown. As the halo, it does not
            change the fingerprint.
        weight_attr: The edge feature that is also stored as running sums and an order, or None.
        has_neighbor_keys: Keys of neighbours are stored with edges.
        has_narrow_keys: Edge keys have 32 bits if all of a type fit, else 64. False for a dataset of an earlier
            revision, whose edge keys always have 64 bits.
        halo: The copies that parts keep, or None. It is not part of the content, so it does not change the fingerprint.
        transforms: JSON value of the fitted transforms of the tables that the features were read from, by type and
            feature, or empty. As the halo, it does not change the fingerprint.
        has_digest: False for a manifest of an earlier revision, in which no checksum covers ``made_by``, ``report`` and
            unknown fields.
        dataset_id: Fingerprint of the content: schema, ranges and every file's checksum. It excludes times, places,
            options and the report, so two machines that write the same dataset agree on it.
        all_files: ``files`` and the halo's files: every file of the dataset but the manifest.
    """

    schema: GraphSchema
    directions: tuple[Direction, ...]
    book: PartitionBook
    has_edge_keys: bool
    files: Mapping[str, FileRecord]
    made_by: Mapping[str, Any]
    report: PartitionReport
    graph_id: str
    checksums: GraphChecksums
    time_attr: str | None = None
    time_unit: TimeUnit | None = None
    weight_attr: str | None = None
    has_neighbor_keys: bool = False
    has_narrow_keys: bool = False
    halo: Halo | None = None
    transforms: Mapping[str, Any] = field(default_factory=dict)
    has_digest: bool = True
    dataset_id: str = field(init=False)
    all_files: Mapping[str, FileRecord] = field(init=False)

    def __post_init__(self) -> None:
        """Compute ``all_files`` and the fingerprint."""
        object.__setattr__(self, "all_files", {**self.files, **self.halo.files} if self.halo else self.files)
        object.__setattr__(self, "dataset_id", content_digest(self._content_to_json()))

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``manifest.json`` as a JSON value."""
        content = self._content_to_json()
        del content["files"]
        described: dict[str, Any] = {"made_by": dict(self.made_by), "report": self.report.to_json()}
        if self.time_unit is not None:
            described["time_unit"] = self.time_unit
        if self.halo is not None:
            described["halo"] = self.halo.to_json()
        if self.transforms:
            described["transforms"] = dict(self.transforms)
        files = {path: record.to_json() for path, record in self.files.items()}
        value = {"format": FORMAT, "dataset_id": self.dataset_id, **content, **described, "files": files}
        return {DIGEST: content_digest(value), **value}

    def _content_to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema.to_json(),
            "graph_id": self.graph_id,
            "directions": list(self.directions),
            "num_parts": self.book.num_parts,
            "node_offsets": {t: offsets.tolist() for t, offsets in self.book.node_offsets.items()},
            "edge_offsets": [
                {"type": list(edge_type), "direction": direction, "offsets": offsets.tolist()}
                for (edge_type, direction), offsets in self.book.edge_offsets.items()
            ],
            "has_edge_keys": self.has_edge_keys,
            "time_attr": self.time_attr,
            "weight_attr": self.weight_attr,
            "has_neighbor_keys": self.has_neighbor_keys,
            **({"has_narrow_keys": True} if self.has_narrow_keys else {}),
            "deltas": deltas_to_json(self.book),
            "checksums": self.checksums.to_json(),
            "files": {path: record.content_to_json() for path, record in self.files.items()},
        }

    def write(self, root: Path) -> None:
        """Write ``manifest.json``, one entry or file per line; it makes the folder a dataset."""
        value = self.to_json()
        files = value.pop("files")
        lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items()]
        file_lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in files.items()]
        lines.append('"files": {\n' + ",\n".join(file_lines) + "\n}")
        write_text(root / MANIFEST, "{\n" + ",\n".join(lines) + "\n}\n")


def read_manifest(root: str | Path) -> Manifest:
    """Read and check the manifest of a dataset.

    Raises:
        FormatError: There is no manifest, it has another format, or it contradicts itself.
        ChecksumError: The content does not match its fingerprint or digest.
    """
    path = local_path(root) / MANIFEST
    value = _load_json(path)
    version = value.get("format")
    if not isinstance(version, int) or isinstance(version, bool):
        raise FormatError(f"{path} has no format number; it is not the manifest of a dataset")
    if version != FORMAT:
        raise FormatError(f"{path} has format {version}; this version reads {FORMAT}")
    missing = [name for name in FIELDS if name not in value]
    if missing:
        what = ", ".join(missing)
        raise FormatError(
            f"{path} has no {what}; an earlier version wrote it, or it was edited; write the dataset again"
        )
    try:
        manifest = _from_json(value)
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        if isinstance(error, FormatError):
            raise FormatError(f"{path}: {error}") from error
        raise FormatError(f"{path} is not a manifest ({error!r}); write the dataset again") from error
    _check_files(path, manifest)
    if value.get("halo") is not None:
        try:
            manifest = replace(manifest, halo=Halo.from_json(value["halo"], manifest))
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error
    _check_hashes(path, manifest, value)
    return manifest if DIGEST in value else replace(manifest, has_digest=False)


def _check_hashes(path: Path, manifest: Manifest, value: Mapping[str, Any]) -> None:
    """Check the content against its fingerprint, and all fields against the digest, if there is one."""
    if manifest.dataset_id != value["dataset_id"]:
        raise ChecksumError(
            f"{path} has content {manifest.dataset_id}, but its dataset_id is {value['dataset_id']}; copy the file "
            "again"
        )
    got = content_digest({name: field for name, field in value.items() if name != DIGEST})
    if value.get(DIGEST, got) != got:
        raise ChecksumError(
            f"{path} has digest {got}, but declares {value[DIGEST]}: made_by, report or another field was changed; "
            "copy the file again"
        )


def _load_json(path: Path) -> dict[str, Any]:
    try:
        num_bytes = path.stat().st_size
        if num_bytes > MAX_MANIFEST_BYTES:
            raise FormatError(f"{path} is {num_bytes} bytes; a manifest has at most {MAX_MANIFEST_BYTES}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FormatError(
            f"{path} is missing; {path.parent} is not a dataset; make one with write_parts or hopstream partition"
        ) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is not JSON ({error}); copy the file again") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path} holds {type(value).__name__}; a manifest is an object")
    return value


def _from_json(value: dict[str, Any]) -> Manifest:
    schema = GraphSchema.from_json(value["schema"])
    directions = tuple(value["directions"])
    if directions not in (("in",), ("out",), ("in", "out")):
        raise FormatError(f"directions are {list(directions)}; they must be in, out or both")
    num_parts = value["num_parts"]
    if not isinstance(num_parts, int) or isinstance(num_parts, bool) or not 1 <= num_parts <= MAX_PARTS:
        raise FormatError(f"num_parts is {num_parts!r}; it must be an integer from 1 to {MAX_PARTS}")
    node_offsets = {str(t): _offsets(t, offsets) for t, offsets in value["node_offsets"].items()}
    edge_offsets = {_edge_entity(e): _offsets(_edge_entity(e), e["offsets"]) for e in value["edge_offsets"]}
    if set(node_offsets) != set(schema.nodes):
        raise FormatError(f"id ranges are for node types {sorted(node_offsets)}; the schema has {sorted(schema.nodes)}")
    if set(edge_offsets) != {(t, d) for t in schema.edges for d in directions}:
        raise FormatError("id ranges of edges do not match the schema's edge types and the directions")
    value = {"has_narrow_keys": False, **value}
    for name in ("has_edge_keys", "has_neighbor_keys", "has_narrow_keys"):
        if not isinstance(value[name], bool):
            raise FormatError(f"{name} must be true or false")
    for name in ("time_attr", "weight_attr"):
        if not isinstance(value[name], str | None):
            raise FormatError(f"{name} must be the name of a feature, or null")
    time_unit = time_unit_from_json(value.get("time_unit"))
    if not isinstance(value["dataset_id"], str) or not isinstance(value["graph_id"], str):
        raise FormatError("dataset_id and graph_id must be strings")
    return Manifest(
        schema=schema,
        directions=cast(tuple[Direction, ...], directions),
        book=PartitionBook(
            num_parts=num_parts,
            node_offsets=node_offsets,
            edge_offsets=edge_offsets,
            deltas=deltas_from_json(value["deltas"]),
        ),
        has_edge_keys=value["has_edge_keys"],
        files={str(path): FileRecord.from_json(record) for path, record in value["files"].items()},
        made_by=dict(value["made_by"]),
        report=PartitionReport.from_json(value["report"]),
        graph_id=value["graph_id"],
        checksums=GraphChecksums.from_json(value["checksums"]),
        time_attr=value["time_attr"],
        time_unit=time_unit,
        weight_attr=value["weight_attr"],
        has_neighbor_keys=value["has_neighbor_keys"],
        has_narrow_keys=value["has_narrow_keys"],
        transforms=dict(value.get("transforms", {})),
    )


def time_unit_from_json(value: object) -> TimeUnit | None:
    """Check the unit of times that a manifest or a server states, or None.

    Raises:
        FormatError: The value is something else.
    """
    if value is not None and value not in get_args(TimeUnit):
        known = ", ".join(get_args(TimeUnit))
        raise FormatError(f"time_unit is {str(value)[:100]!r}; it must be one of {known}, or null")
    return cast("TimeUnit | None", value)


def _edge_entity(value: dict[str, Any]) -> tuple[EdgeType, Direction]:
    return cast(EdgeType, tuple(value["type"])), cast(Direction, value["direction"])


def _offsets(entity: Entity, value: list[int]) -> IntArray:
    if not isinstance(value, list) or any(not isinstance(n, int) or isinstance(n, bool) for n in value):
        raise FormatError(f"{entity_label(entity)}: offsets must be integers, got {str(value)[:100]}")
    return np.array(value, np.int64)


def _check_files(path: Path, manifest: Manifest) -> None:
    """Check that the files and their shapes follow from schema and book."""
    missing = dict(manifest.files)
    for part in range(manifest.book.num_parts):
        for name, expected in expected_files(manifest, part):
            record = missing.pop(name, None)
            if record is None:
                raise FormatError(
                    f"{path} does not list {name}, which its schema and ranges require; write the dataset again"
                )
            if not expected.matches(record):
                raise FormatError(f"{path}: {name} is {record.dtype}{list(record.shape)}; it must be {expected}")
    if missing:
        raise FormatError(f"{path} lists {next(iter(missing))!r}, which is not a file of its schema")
    book = manifest.book
    for edge_type in manifest.schema.edges:
        totals = {int(book.edge_offsets[edge_type, d][book.num_base_parts]) for d in manifest.directions}
        if len(totals) > 1:
            raise FormatError(
                f"{path}: {entity_label((edge_type, 'in'))} and out hold different numbers of edges {totals}"
            )


def graph_schema(schema: GraphSchema) -> GraphSchema:
    """Return the schema of the source graph: ``edge_splits`` without types that only keep links."""
    return replace(schema, edge_splits={t: names for t, names in schema.edge_splits.items() if names})


def graph_id_of(fingerprint: str, time_attr: str | None) -> str:
    """Return a graph's fingerprint, combined with ``time_attr`` if times decide the order of edges.

    Draws depend on the stored order of edges.
    """
    if time_attr is None:
        return fingerprint
    return hex_digest(f"{fingerprint} by {time_attr}".encode())
