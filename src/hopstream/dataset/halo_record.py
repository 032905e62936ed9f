"""Records of a halo in a manifest, and the files that follow from them.

The halo is not part of the content: a dataset has the same fingerprint with and without it. So processes with and
without the halo can work together. The record has a fingerprint of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

import numpy as np

from hopstream.arrays import FileRecord
from hopstream.dataset.book import EdgeEntity, ends_of, number_dtype
from hopstream.dataset.digests import content_digest
from hopstream.dataset.paths import Contents, Expected, edge_key_dtype, expected_column, part_folder, path_name
from hopstream.errors import FormatError
from hopstream.schema import Direction, EdgeType, timed_edge_types

T = TypeVar("T")
MAX_GENERATION = 99_999


@dataclass(frozen=True, slots=True, kw_only=True)
class HaloCounts:
    """Number of rows that one part keeps copies of.

    Attributes:
        nodes: Node type to the number of nodes whose edges are copied; empty if no edges are copied.
        edges: (edge type, direction) to the number of edges of these nodes.
        cached: Node type to the number of nodes with copied features; only types with copied features.
    """

    nodes: Mapping[str, int]
    edges: Mapping[tuple[EdgeType, Direction], int]
    cached: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that ``from_json`` reads."""
        edges = [{"type": list(t), "direction": d, "count": n} for (t, d), n in self.edges.items()]
        return {"nodes": dict(self.nodes), "edges": edges, "cached": dict(self.cached)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> HaloCounts:
        """Read what ``to_json`` wrote."""
        edges = {
            (cast(EdgeType, tuple(e["type"])), cast(Direction, e["direction"])): _count(e["count"])
            for e in value["edges"]
        }
        nodes, cached = ({str(t): _count(n) for t, n in value[name].items()} for name in ("nodes", "cached"))
        return cls(nodes=nodes, edges=edges, cached=cached)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Halo:
    """The halo of a dataset.

    Attributes:
        generation: Number of the halo, part of its folders' names. A new halo is written before the old one is removed.
        hops: See ``HaloSettings``.
        features: Node type to the copied features.
        edge_features: Edge type to the copied features, without types that have none.
        budget_bytes: Most bytes of features per part, or None to copy the features of all nodes within ``hops``.
        edge_budget_bytes: Most bytes of edges per part, or None to copy the edges of all nodes within ``hops``.
        fanouts: See ``HaloSettings``.
        batch_size: See ``HaloSettings``.
        parts: Counts of each part.
        files: Path relative to the dataset to the record of the file.
        halo_id: Fingerprint of all other fields.
    """

    generation: int
    hops: int
    features: Mapping[str, tuple[str, ...]]
    edge_features: Mapping[EdgeType, tuple[str, ...]]
    budget_bytes: int | None
    edge_budget_bytes: int | None
    fanouts: tuple[int, ...]
    batch_size: int
    parts: tuple[HaloCounts, ...]
    files: Mapping[str, FileRecord]
    halo_id: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the fingerprint."""
        object.__setattr__(self, "halo_id", content_digest(self._content_to_json()))

    @property
    def copies_edges(self) -> bool:
        """Whether the halo has edges."""
        return self.hops > 0 or self.edge_budget_bytes is not None

    @property
    def bytes(self) -> tuple[int, ...]:
        """Bytes of each part's halo."""
        totals = {str(part_folder(part)): 0 for part in range(len(self.parts))}
        for name, record in self.files.items():
            totals[name.partition("/")[0]] += record.num_bytes
        return tuple(totals.values())

    @property
    def unreached(self) -> tuple[str, ...]:
        """Node types whose requested features no part copied."""
        return tuple(t for t, names in self.features.items() if names and not any(p.cached[t] for p in self.parts))

    def files_of(self, part: int) -> dict[str, FileRecord]:
        """Return the files of one part's halo."""
        root = f"{part_folder(part)}/"
        return {name: record for name, record in self.files.items() if name.startswith(root)}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``halo`` in ``manifest.json``."""
        files = {path: record.to_json() for path, record in self.files.items()}
        return {"halo_id": self.halo_id, **self._content_to_json(), "files": files}

    def _content_to_json(self) -> dict[str, Any]:
        edge_features = [{"type": list(t), "names": list(names)} for t, names in self.edge_features.items()]
        return {
            "generation": self.generation,
            "hops": self.hops,
            "features": {t: list(names) for t, names in self.features.items()},
            **({"edge_features": edge_features} if edge_features else {}),
            "budget_bytes": self.budget_bytes,
            **({} if self.edge_budget_bytes is None else {"edge_budget_bytes": self.edge_budget_bytes}),
            "fanouts": list(self.fanouts),
            "batch_size": self.batch_size,
            "parts": [counts.to_json() for counts in self.parts],
            "files": {path: record.content_to_json() for path, record in self.files.items()},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], contents: Contents) -> Halo:
        """Read what ``to_json`` wrote, and check that it fits the dataset.

        Raises:
            FormatError: The value is not a halo of this dataset, or does not match its fingerprint.
        """
        try:
            halo = cls(
                generation=_count(value["generation"], MAX_GENERATION),
                hops=_count(value["hops"]),
                features={str(t): tuple(map(str, names)) for t, names in value["features"].items()},
                edge_features={
                    cast(EdgeType, tuple(map(str, e["type"]))): tuple(map(str, e["names"]))
                    for e in value.get("edge_features", [])
                },
                budget_bytes=None if value["budget_bytes"] is None else _count(value["budget_bytes"]),
                edge_budget_bytes=_count(value["edge_budget_bytes"]) if "edge_budget_bytes" in value else None,
                fanouts=tuple(map(int, value["fanouts"])),
                batch_size=_count(value["batch_size"]),
                parts=tuple(map(HaloCounts.from_json, value["parts"])),
                files={str(path): FileRecord.from_json(record) for path, record in value["files"].items()},
            )
            given = value["halo_id"]
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"not a record of a halo ({error!r}); write the halo again") from error
        if given != halo.halo_id:
            raise FormatError(f"halo has content {halo.halo_id}, but its id is {given}; copy the manifest again")
        check_halo(halo, contents)
        return halo


def check_halo(halo: Halo, contents: Contents) -> None:
    """Raise ``FormatError`` unless a halo fits the dataset and lists exactly the expected files."""
    schema, book = contents.schema, contents.book
    if len(halo.parts) != book.num_parts:
        raise FormatError(f"halo has {len(halo.parts)} parts; the dataset has {book.num_parts}")
    _check_features(halo.features, schema.nodes)
    _check_features(halo.edge_features, schema.edges if halo.copies_edges else {})
    nodes = set(schema.nodes) if halo.copies_edges else set()
    edges = set(book.edge_offsets) if halo.copies_edges else set()
    missing = dict(halo.files)
    for part, counts in enumerate(halo.parts):
        if set(counts.nodes) != nodes or set(counts.edges) != edges or set(counts.cached) != set(halo.features):
            raise FormatError(
                f"the counts of the halo of part {part} do not match the types of the schema and the copied features"
            )
        for name, expected in _expected_halo(halo, counts, contents, part):
            record = missing.pop(name, None)
            if record is None:
                raise FormatError(f"halo does not list {name}; write the halo again")
            if not expected.matches(record):
                raise FormatError(f"halo: {name} is {record.dtype}{list(record.shape)}; it must be {expected}")
    if missing:
        raise FormatError(f"halo lists {next(iter(missing))!r}, which is not a file of the halo")


def _check_features(features: Mapping[T, tuple[str, ...]], known: Mapping[T, Mapping[str, Any]]) -> None:
    for of, names in features.items():
        if of not in known or not set(names) <= known[of].keys():
            raise FormatError(f"halo names features {list(names)} of {of!r}; the dataset does not have them to copy")


def halo_root(part: int, generation: int) -> PurePosixPath:
    """Return the folder of a part's halo."""
    return part_folder(part) / "halo" / f"{generation:05d}"


def node_path(root: PurePosixPath, node_type: str) -> PurePosixPath:
    """Return the folder of the nodes of one type whose edges are copied, in the halo of a part."""
    return root / "node" / path_name(node_type)


def edge_path(root: PurePosixPath, edge_type: EdgeType, direction: Direction) -> PurePosixPath:
    """Return the folder of the copied edges of one type and direction."""
    return root / "edge" / "__".join(map(path_name, edge_type)) / direction


def cached_path(root: PurePosixPath, node_type: str) -> PurePosixPath:
    """Return the folder of the nodes of one type with copied features."""
    return root / "cached" / path_name(node_type)


def edge_column_names(
    contents: Contents, edge_type: EdgeType, direction: Direction, features: Collection[str] = ()
) -> dict[str, str]:
    """Return the dtype of each copied edge column by file name, without those of features.

    Each column has one value per edge. Weights have a file of their own unless they are among the copied ``features``.
    """
    near_far = ends_of(edge_type, direction)
    neighbors = number_dtype(contents.book.num_ids(near_far[1])).name
    columns = {"indices.npy": neighbors}
    if contents.has_edge_keys:
        columns["key.npy"] = edge_key_dtype(contents, contents.book.num_edges(edge_type)).name
    if contents.has_neighbor_keys:
        columns["neighbor_key.npy"] = neighbors
    if edge_type in timed_edge_types(contents.schema, contents.time_attr, direction):
        columns["time.npy"] = "int64"
    known, weight_attr = contents.schema.edges[edge_type], contents.weight_attr
    if weight_attr is not None and weight_attr in known:
        columns |= {"weight_sums.npy": "float64", "weight_order.npy": "uint32", "weight_alias.npy": "uint64"}
        if weight_attr not in features:
            columns["weight.npy"] = known[weight_attr].numpy_dtype.name
    return columns


def edge_row_bytes(contents: Contents, entity: EdgeEntity) -> int:
    """Return the bytes of a copied edge of a type and direction, without features."""
    return sum(np.dtype(dtype).itemsize for dtype in edge_column_names(contents, *entity).values())


def _expected_halo(halo: Halo, counts: HaloCounts, contents: Contents, part: int) -> Iterator[tuple[str, Expected]]:
    """Yield every file of the halo of one part, with its expected content."""
    root, schema = halo_root(part, halo.generation), contents.schema
    for node_type, num_nodes in counts.nodes.items():
        for name in ("id.npy", "key.npy"):
            yield str(node_path(root, node_type) / name), Expected("int64", (num_nodes,))
    for (edge_type, direction), num_edges in counts.edges.items():
        folder = edge_path(root, edge_type, direction)
        num_nodes = counts.nodes[ends_of(edge_type, direction)[0]]
        yield str(folder / "indptr.npy"), Expected("int64", (num_nodes + 1,))
        yield str(folder / "edge_start.npy"), Expected("int64", (num_nodes,))
        names = halo.edge_features.get(edge_type, ())
        for name, dtype in edge_column_names(contents, edge_type, direction, names).items():
            yield str(folder / name), Expected(dtype, (num_edges,))
        for name in names:
            yield from expected_column(folder, name, schema.edges[edge_type][name], num_edges)
    for node_type, num_nodes in counts.cached.items():
        folder = cached_path(root, node_type)
        for name in ("id.npy", "key.npy"):
            yield str(folder / name), Expected("int64", (num_nodes,))
        for name in halo.features[node_type]:
            yield from expected_column(folder, name, schema.nodes[node_type][name], num_nodes)


def _count(value: object, high: int = 1 << 62) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise FormatError(f"halo: {value!r} is not a count")
    return value
