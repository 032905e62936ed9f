"""Names the files of a dataset, states their expected content, and locates parts in other folders.

Paths are computed from the schema and the partition book. They are never taken from a manifest, so no manifest can name
a file outside its dataset.

A dataset may be spread over several roots. Each root has the whole manifest and the folders of some parts.
``roots.json`` beside the manifest lists the parts of each root. It is not part of the dataset's content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np

from hopstream.arrays import FileRecord, column_paths
from hopstream.dataset.book import Overlay, PartitionBook, ends_of, number_dtype
from hopstream.dataset.digests import DIGEST, content_digest
from hopstream.errors import FormatError
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema, timed_edge_types

MANIFEST = "manifest.json"
PART_FOLDER = re.compile(r"part-\d{5}")
FOR_DGL = re.compile(r"metadata\.json|part\d+(?:/[^/]+\.dgl)?")
"""Files that ``compat.dgl`` leaves beside a dataset for DGL; not part of the dataset, but replaced with it."""
MAX_PATH_NAME = 64
"""Longer names are cut and end in a hash, so that three names and a suffix fit into the 255 bytes of a file name."""

# An underscore at an end, or after another one, could be mistaken for the "__" that joins an edge type's names.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]|^[._]|_$|(?<=_)_|\.(?=(?:values|offsets)$)")


def path_name(name: str) -> str:
    """Encode the name of a type, feature or split for a path.

    Characters other than letters, digits and ``_ . -`` are percent-encoded. Different names give different results, and
    ``"__".join`` of three results can be split again.
    """
    encoded = _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found.group().encode()), name)
    if len(encoded) <= MAX_PATH_NAME:
        return encoded
    digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return f"{encoded[: MAX_PATH_NAME - 1 - len(digest)]}~{digest}"


def part_folder(part: int) -> PurePosixPath:
    """Return the folder of a part, relative to the dataset."""
    return PurePosixPath(f"part-{part:05d}")


def node_folder(part: int, node_type: str) -> PurePosixPath:
    """Return the folder of a part's nodes of one type."""
    return part_folder(part) / "node" / path_name(node_type)


def edge_folder(part: int, edge_type: EdgeType, direction: Direction) -> PurePosixPath:
    """Return the folder of a part's edges of one type and direction."""
    return part_folder(part) / "edge" / "__".join(map(path_name, edge_type)) / direction


def overlay_folder(part: int, delta: int, edge_type: EdgeType, direction: Direction) -> PurePosixPath:
    """Return the folder of a delta's rows of a part's edges of one type and direction."""
    inside = edge_folder(part, edge_type, direction).relative_to(part_folder(part))
    return part_folder(part) / f"delta-{delta:05d}" / inside


def piece_folders(book: PartitionBook, edge_type: EdgeType, direction: Direction) -> list[PurePosixPath]:
    """Return the folder of each piece of an edge type and direction: parts, then overlays."""
    parts = [edge_folder(part, edge_type, direction) for part in range(book.num_parts)]
    overlays = book.overlays((edge_type, direction))
    return parts + [overlay_folder(o.part, o.delta, edge_type, direction) for o in overlays]


def link_folder(part: int, edge_type: EdgeType) -> PurePosixPath:
    """Return the folder of a part's links of one edge type."""
    return part_folder(part) / "link" / "__".join(map(path_name, edge_type))


def split_path(folder: PurePosixPath, split: str) -> PurePosixPath:
    """Return the file of one split, in the folder of its nodes or links."""
    return folder / "splits" / f"{path_name(split)}.npy"


def feature_paths(folder: PurePosixPath, name: str, feature: FeatureSchema) -> tuple[PurePosixPath, ...]:
    """Return the files of one feature, in the folder of its nodes or edges: one, or values and offsets."""
    return tuple(
        PurePosixPath(p.as_posix()) for p in column_paths(Path(folder / "features" / path_name(name)), feature)
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected dtype and shape of a file; None in a shape is a length that only the file states."""

    dtype: str
    shape: tuple[int | None, ...]

    def matches(self, record: FileRecord) -> bool:
        """Return whether the record's dtype and shape are as expected."""
        return (
            record.dtype == self.dtype
            and len(record.shape) == len(self.shape)
            and all(want in (None, got) and got >= 0 for want, got in zip(self.shape, record.shape, strict=True))
        )

    def __str__(self) -> str:
        """Format for messages, for example ``int64[12]``."""
        return f"{self.dtype}[{', '.join('any' if n is None else str(n) for n in self.shape)}]"


class Contents(Protocol):
    """The fields of a manifest that decide which files a dataset has."""

    @property
    def schema(self) -> GraphSchema:
        """Types, features and splits."""

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions in which edges are stored."""

    @property
    def book(self) -> PartitionBook:
        """Ranges of ids."""

    @property
    def has_edge_keys(self) -> bool:
        """Whether keys of edges are stored."""

    @property
    def time_attr(self) -> str | None:
        """The feature that holds times."""

    @property
    def weight_attr(self) -> str | None:
        """The edge feature that holds weights."""

    @property
    def has_neighbor_keys(self) -> bool:
        """Whether keys of neighbours are stored."""

    @property
    def has_narrow_keys(self) -> bool:
        """Whether edge keys have 32 bits if all of a type fit."""


def edge_key_dtype(contents: Contents, num_edges: int) -> np.dtype[Any]:
    """Return the dtype in which a dataset stores the keys of an edge type with ``num_edges`` edges."""
    return number_dtype(num_edges) if contents.has_narrow_keys else np.dtype(np.int64)


def expected_files(contents: Contents, part: int) -> Iterator[tuple[str, Expected]]:
    """Yield every file of one part with its expected content, by path relative to the dataset."""
    schema = contents.schema
    yield from expected_nodes(schema, contents.book, part)
    for edge_type in schema.edges:
        for direction in contents.directions:
            yield from expected_edges(contents, part, edge_type, direction)
            for overlay in contents.book.overlays((edge_type, direction)):
                if overlay.part == part:
                    yield from expected_overlay(contents, overlay, edge_type, direction)
    for edge_type, splits in schema.edge_splits.items():
        offsets = contents.book.link_offsets(edge_type)
        yield from expected_links(contents, part, edge_type, int(offsets[part + 1] - offsets[part]))
        for split in splits:
            yield str(split_path(link_folder(part, edge_type), split)), Expected("int64", (None,))


def expected_links(
    contents: Contents, part: int, edge_type: EdgeType, num_links: int
) -> Iterator[tuple[str, Expected]]:
    """Yield the files of a part's links of one edge type, without splits."""
    times = ["time.npy"] * (contents.time_attr in contents.schema.edges[edge_type])
    for name in ("src_key.npy", "dst_key.npy", *times):
        yield str(link_folder(part, edge_type) / name), Expected("int64", (num_links,))


def expected_nodes(schema: GraphSchema, book: PartitionBook, part: int) -> Iterator[tuple[str, Expected]]:
    """Yield the files of a part's nodes; the lengths of splits are unknown."""
    for node_type, features in schema.nodes.items():
        folder = node_folder(part, node_type)
        num_rows = _range_length(book, node_type, part)
        key_offsets = book.key_offsets(node_type)
        yield str(folder / "key.npy"), Expected("int64", (num_rows,))
        yield str(folder / "id_of_key.npy"), Expected("int64", (int(key_offsets[part + 1] - key_offsets[part]),))
        for split in schema.splits.get(node_type, ()):
            yield str(split_path(folder, split)), Expected("int64", (None,))
        for name, feature in features.items():
            yield from expected_column(folder, name, feature, num_rows)


def expected_edges(
    contents: Contents, part: int, edge_type: EdgeType, direction: Direction
) -> Iterator[tuple[str, Expected]]:
    """Yield the files of a part's edges of one type and direction."""
    book, owner_type = contents.book, ends_of(edge_type, direction)[0]
    folder = edge_folder(part, edge_type, direction)
    num_rows, num_edges = (_range_length(book, entity, part) for entity in (owner_type, (edge_type, direction)))
    yield from _expected_rows(contents, folder, (edge_type, direction), num_rows, num_edges)


def expected_overlay(
    contents: Contents, overlay: Overlay, edge_type: EdgeType, direction: Direction
) -> Iterator[tuple[str, Expected]]:
    """Yield the files of an overlay: the rows that it replaces, and the same edge files as a part."""
    folder = overlay_folder(overlay.part, overlay.delta, edge_type, direction)
    for name in ("row.npy", "node_key.npy"):
        yield str(folder / name), Expected("int64", (overlay.num_rows,))
    yield from _expected_rows(contents, folder, (edge_type, direction), overlay.num_rows, overlay.num_edges)


def _expected_rows(
    contents: Contents, folder: PurePosixPath, entity: tuple[EdgeType, Direction], num_rows: int, num_items: int
) -> Iterator[tuple[str, Expected]]:
    edge_type, direction = entity
    features, num_edges = contents.schema.edges[edge_type], (num_items,)
    neighbors = Expected(number_dtype(contents.book.num_ids(ends_of(*entity)[1])).name, num_edges)
    yield str(folder / "indptr.npy"), Expected("int64", (num_rows + 1,))
    yield str(folder / "indices.npy"), neighbors
    if contents.has_edge_keys:
        key_dtype = edge_key_dtype(contents, contents.book.num_edges(edge_type))
        yield str(folder / "key.npy"), Expected(key_dtype.name, num_edges)
    if contents.has_neighbor_keys:
        yield str(folder / "neighbor_key.npy"), neighbors
    if edge_type in timed_edge_types(contents.schema, contents.time_attr, direction):
        yield str(folder / "time.npy"), Expected("int64", num_edges)
    if contents.weight_attr in features:
        yield str(folder / "weight_sums.npy"), Expected("float64", num_edges)
        yield str(folder / "weight_order.npy"), Expected("uint32", num_edges)
        yield str(folder / "weight_alias.npy"), Expected("uint64", num_edges)
    for name, feature in features.items():
        yield from expected_column(folder, name, feature, num_items)


def expected_column(
    folder: PurePosixPath, name: str, feature: FeatureSchema, num_rows: int
) -> Iterator[tuple[str, Expected]]:
    """Yield the files of one feature, in the folder of its nodes or edges."""
    paths = feature_paths(folder, name, feature)
    dtype = feature.numpy_dtype.name
    if feature.is_fixed_width:
        yield str(paths[0]), Expected(dtype, (num_rows, *feature.shape))
    else:
        yield str(paths[0]), Expected(dtype, (None, *feature.shape))
        yield str(paths[1]), Expected("int64", (num_rows + 1,))


def _range_length(book: PartitionBook, entity: str | tuple[EdgeType, Direction], part: int) -> int:
    offsets = book.node_offsets[entity] if isinstance(entity, str) else book.edge_offsets[entity]
    return int(offsets[part + 1] - offsets[part])


ROOTS, CLUSTER = "roots.json", "cluster.json"
BESIDE_MANIFEST = (ROOTS, CLUSTER)
"""Files that may stand beside a manifest, with the locations and the servers of parts."""
TOKEN_SUFFIX = ".token"
FORMAT = 1
MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Root:
    """Root of a dataset.

    Attributes:
        uri: A local folder, or a URI of a file system or object store.
        parts: The parts whose folders are in the root, ascending.
    """

    uri: str
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Roots:
    """All roots of a dataset.

    Attributes:
        dataset_id: Fingerprint of the dataset.
        entries: The roots; a part may be in several.
    """

    dataset_id: str
    entries: tuple[Root, ...]

    def to_text(self) -> str:
        """Return the content of ``roots.json``."""
        roots = [{"uri": root.uri, "parts": list(root.parts)} for root in self.entries]
        value = {"format": FORMAT, "dataset_id": self.dataset_id, "roots": roots}
        return json.dumps({**value, DIGEST: content_digest(value)}, indent=1) + "\n"

    def uris_of(self, part: int) -> list[str]:
        """Return the roots that have a part."""
        return [root.uri for root in self.entries if part in root.parts]


def read_roots(folder: Path) -> Roots | None:
    """Read ``roots.json``; return None if the folder has none.

    Raises:
        FormatError: The file cannot be read.
    """
    path = folder / ROOTS
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FormatError(f"{path} has more than {MAX_FILE_BYTES} bytes; remove it, or place the dataset again")
        return parse_roots(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read ({error}); remove it, or place the dataset again") from error


def parse_roots(data: bytes) -> Roots:
    """Read what ``Roots.to_text`` wrote.

    Raises:
        FormatError: The text is something else.
    """
    try:
        value = json.loads(data)
        if value["format"] != FORMAT:
            raise FormatError(f"it has format {str(value['format'])[:50]}; this version reads {FORMAT}")
        if DIGEST in value and value.pop(DIGEST) != content_digest(value):
            raise FormatError(
                f"its {DIGEST} does not match its content, so it was edited; if the edit is intended, remove the "
                f"{DIGEST}"
            )
        return Roots(str(value["dataset_id"]), tuple(map(_root, value["roots"])))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise error if isinstance(error, FormatError) else FormatError(f"it lists no roots: {error!r}") from error


def _root(value: dict[str, Any]) -> Root:
    parts = value["parts"]
    if not isinstance(parts, list) or not all(type(part) is int and part >= 0 for part in parts):
        raise FormatError(f"parts are {str(parts)[:100]}; they are numbers from 0")
    return Root(str(value["uri"]), tuple(parts))


def is_here(folder: Path, part: int) -> bool:
    """Return whether a dataset's folder has the folder of a part."""
    return (folder / part_folder(part)).is_dir()


def check_is_here(folder: Path, part: int, dataset_id: str) -> None:
    """Raise ``FormatError`` if the folder of a part is missing; the error names its location if known."""
    if is_here(folder, part):
        return
    where = f"{folder / part_folder(part)} is missing"
    roots = read_roots(folder)
    uris = roots.uris_of(part) if roots is not None and roots.dataset_id == dataset_id else []
    if not uris:
        raise FormatError(f"{where}; write the dataset again or copy the folder")
    raise FormatError(
        f"{where}: {ROOTS} lists part {part} in {' and in '.join(uris)}; open it there, get it with hopstream pull, or "
        "ask the server that has it"
    )


def is_made_token(name: str, cluster_name: str = CLUSTER) -> bool:
    """Return whether a file is, by its name, a generated token for the servers of a cluster file."""
    return name.startswith(f"{cluster_name}.") and name.endswith(TOKEN_SUFFIX)
