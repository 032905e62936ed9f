"""Files of embeddings of all nodes: writes them in chunks, resumes, and reads them.

```
<out>/embeddings.json                       record of graph, layers, tag and settings
<out>/keys/<type>/part-00000.npy            int64[rows], keys, ascending
<out>/layer-1/<type>/part-00000.npy         float[rows, width], in the order of the keys
<out>/layer-1/<type>/part-00000.chunks/     finished chunks of an incomplete part
```
Every file is complete: it is written under another name and renamed. Parts without nodes have no file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray, find_sorted, open_array, write_array, write_blocks, write_text
from hopstream.checks import did_you_mean
from hopstream.dataset.book import PartitionBook
from hopstream.dataset.paths import part_folder, path_name
from hopstream.errors import FormatError, IdRangeError, SettingsError, StateError, UnknownNameError
from hopstream.uris import local_path

RECORD = "embeddings.json"
FORMAT = 1
MAX_RECORD_BYTES = 1 << 26
ROWS_PER_BLOCK = 1 << 14
MAX_OFFSET = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingFacts:
    """Record of a folder of embeddings, stored as ``embeddings.json``.

    Attributes:
        graph_id: Fingerprint of the graph.
        dataset_id: Fingerprint of the dataset: rows are in the order of its parts.
        num_layers: Layers of the complete embeddings.
        node_types: Node types of the last layer.
        node_offsets: Node type to num_parts + 1 ids: part ``p`` holds the ids from offset ``p`` to offset ``p + 1``.
        tag: The user's name of the model.
        settings: Settings of sampling, and the features that were used.
    """

    graph_id: str
    dataset_id: str
    num_layers: int
    node_types: tuple[str, ...]
    node_offsets: Mapping[str, tuple[int, ...]]
    tag: str
    settings: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that ``from_json`` reads back."""
        value: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return value

    @classmethod
    def from_json(cls, where: Path, value: object) -> EmbeddingFacts:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: The value is no such record, or has another format number.
        """
        try:
            record: Any = value
            if record["format"] != FORMAT:
                raise FormatError(f"{where} has format {record['format']!r}; this version reads {FORMAT}")
            _check_offsets(where, record["node_offsets"])
            if not set(record["node_types"]) <= set(record["node_offsets"]):
                raise FormatError(f"{where} has node_types {record['node_types']!r} that have no node_offsets")
            return cls(
                graph_id=str(record["graph_id"]),
                dataset_id=str(record["dataset_id"]),
                num_layers=int(record["num_layers"]),
                node_types=tuple(map(str, record["node_types"])),
                node_offsets={str(t): tuple(map(int, offsets)) for t, offsets in record["node_offsets"].items()},
                tag=str(record["tag"]),
                settings=dict(record["settings"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{where} is not a record of embeddings ({error!r}); infer them again") from error


def _check_offsets(where: Path, node_offsets: Any) -> None:
    """Refuse offsets that no dataset can have."""
    if not isinstance(node_offsets, dict) or not node_offsets:
        raise FormatError(f"{where} has node_offsets {node_offsets!r}; wanted offsets per node type; infer them again")
    lengths = {len(offsets) for offsets in node_offsets.values()}
    for node_type, offsets in node_offsets.items():
        is_whole = all(type(offset) is int and 0 <= offset <= MAX_OFFSET for offset in offsets)
        if len(lengths) > 1 or len(offsets) < 2 or not is_whole or offsets[0] or sorted(offsets) != offsets:
            raise FormatError(
                f"{where} has node_offsets {str(offsets)[:200]} of {node_type!r}; wanted num_parts + 1 ascending "
                "integers from 0; infer them again"
            )


class Embeddings:
    """Embeddings of all nodes, mapped from disk."""

    def __init__(self, root: Path, facts: EmbeddingFacts) -> None:
        """Set folder and record; callers use ``open_embeddings``."""
        self.root = root
        self.facts = facts
        self._book = PartitionBook(
            num_parts=len(next(iter(facts.node_offsets.values()))) - 1,
            node_offsets={t: np.array(offsets, np.int64) for t, offsets in facts.node_offsets.items()},
            edge_offsets={},
        )

    @property
    def num_parts(self) -> int:
        """Parts of the dataset that the embeddings were inferred from."""
        return self._book.num_parts

    @property
    def node_types(self) -> tuple[str, ...]:
        """Node types of the last layer."""
        return self.facts.node_types

    def num_rows(self, node_type: str, part: int) -> int:
        """Return the number of nodes of a type in a part."""
        offsets = self.facts.node_offsets[node_type]
        return offsets[part + 1] - offsets[part]

    def path(self, layer: int, node_type: str, part: int) -> Path:
        """Return the path of the rows of one layer, type and part."""
        return self.root / f"layer-{layer}" / path_name(node_type) / f"{part_folder(part)}.npy"

    def keys_path(self, node_type: str, part: int) -> Path:
        """Return the path of the keys of one type and part."""
        return self.root / "keys" / path_name(node_type) / f"{part_folder(part)}.npy"

    def chunk_folder(self, layer: int, node_type: str, part: int) -> Path:
        """Return the folder of the finished chunks of an incomplete part."""
        return self.path(layer, node_type, part).with_suffix(".chunks")

    def part(self, node_type: str, part: int, layer: int | None = None) -> tuple[IntArray, Array]:
        """Return keys int64[rows] and embeddings float[rows, width] of one part, memory-mapped.

        Raises:
            UnknownNameError: There is no such layer, type or part.
            FormatError: A file is missing or damaged.
        """
        layer = self._checked(node_type, layer)
        if not 0 <= part < self.num_parts or not self.num_rows(node_type, part):
            raise UnknownNameError(f"part {part} has no nodes of type {node_type!r}; there are {self.num_parts} parts")
        keys = open_array(self.keys_path(node_type, part))
        return keys, self.rows(layer, node_type, part)

    def rows(self, layer: int, node_type: str, part: int) -> Array:
        """Return float[rows, width], one part of one layer, memory-mapped.

        Raises:
            FormatError: The file is missing or has another number of rows.
        """
        path = self.path(layer, node_type, part)
        rows = open_array(path)
        if rows.ndim != 2 or len(rows) != self.num_rows(node_type, part):
            wanted = self.num_rows(node_type, part)
            raise FormatError(f"{path} is {rows.dtype}{list(rows.shape)}; the part has {wanted} rows; infer it again")
        return rows

    def all_rows(self, layer: int, node_type: str) -> dict[int, Array]:
        """Return part to float[rows, width] of one layer and type, memory-mapped, with equal width and dtype.

        Raises:
            FormatError: A file is missing or has another number of rows, or its width or dtype differs from the first.
        """
        parts = [part for part in range(self.num_parts) if self.num_rows(node_type, part)]
        found = {part: self.rows(layer, node_type, part) for part in parts}
        for part, rows in found.items():
            first = found[parts[0]]
            if (rows.shape[1], rows.dtype) != (first.shape[1], first.dtype):
                raise FormatError(
                    f"{self.path(layer, node_type, part)} has rows of {rows.dtype}[{rows.shape[1]}]; "
                    f"{self.path(layer, node_type, parts[0]).name} has {first.dtype}[{first.shape[1]}]: they come from "
                    "different models; infer all again with overwrite=True, or in another folder"
                )
        return found

    def at(self, node_type: str, keys: IntArray, layer: int | None = None) -> Array:
        """Return float[n, width], the embeddings of nodes given by key.

        Raises:
            UnknownNameError: There is no such layer or type.
            IdRangeError: No node has the key.
            FormatError: A file is missing or damaged, or parts differ in width or dtype.
        """
        layer = self._checked(node_type, layer)
        keys = np.ascontiguousarray(keys, np.int64)
        is_found = np.zeros(len(keys), np.bool_)
        out: Array | None = None
        for part, rows in self.all_rows(layer, node_type).items():
            part_keys = open_array(self.keys_path(node_type, part))
            places = find_sorted(part_keys, keys)
            is_here = places >= 0
            if out is None:
                out = np.empty((len(keys), rows.shape[1]), rows.dtype)
            out[is_here] = rows[places[is_here]]
            is_found |= is_here
        if not is_found.all():
            position = int(np.flatnonzero(~is_found)[0])
            raise IdRangeError(f"keys[{position}] is {int(keys[position])}; no node of type {node_type!r} has this key")
        return np.empty((0, 0), np.float32) if out is None else out

    def _checked(self, node_type: str, layer: int | None) -> int:
        layer = self.facts.num_layers if layer is None else layer
        if not 1 <= layer <= self.facts.num_layers:
            raise UnknownNameError(f"layer {layer} of {self.facts.num_layers} (numbered from 1)")
        known = self.facts.node_types if layer == self.facts.num_layers else tuple(self.facts.node_offsets)
        if node_type not in known:
            meant = did_you_mean(node_type, known)
            raise UnknownNameError(f"unknown node type {node_type!r}; layer {layer} has {list(known)}{meant}")
        return layer


def open_embeddings(out: str | Path) -> Embeddings:
    """Open a folder of embeddings that ``infer_layerwise`` wrote.

    It may be incomplete: reading a missing part raises ``FormatError``.

    Raises:
        FormatError: The folder holds no embeddings.
    """
    root = local_path(out)
    path = root / RECORD
    try:
        if path.stat().st_size > MAX_RECORD_BYTES:
            raise FormatError(f"{path} is {path.stat().st_size} bytes; a record has at most {MAX_RECORD_BYTES}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FormatError(f"{path} is missing; {root} holds no embeddings") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is not JSON ({error}); infer the embeddings again") from error
    return Embeddings(root, EmbeddingFacts.from_json(path, value))


def begin_embeddings(out: Path, facts: EmbeddingFacts, *, overwrite: bool) -> Embeddings:
    """Create the folder of some embeddings, or open it to resume.

    Raises:
        SettingsError: The folder is a file, or holds other files and no embeddings.
        StateError: The folder holds embeddings of another graph, model or settings, or embeddings without a record.
        FormatError: The record of the folder cannot be read.
    """
    if overwrite and (out / RECORD).exists():
        _clear(out)
    if (out / RECORD).exists():
        found, wanted = open_embeddings(out).facts.to_json(), facts.to_json()
        for name, value in wanted.items():
            if found[name] != value:
                raise StateError(
                    f"{out} holds embeddings with {name} {str(found[name])[:200]}; these have {str(value)[:200]}; give "
                    "another folder, or overwrite=True"
                )
    else:
        strays = [path.name for path in (out / "keys", *out.glob("layer-[0-9]*")) if path.exists()]
        if strays:
            raise StateError(
                f"{out} has {', '.join(strays)} but no {RECORD}, so the model of these files is unknown; give another "
                "folder"
            )
        _refuse_foreign(out)
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / RECORD, json.dumps(facts.to_json(), indent=1) + "\n")
    return Embeddings(out, facts)


def _refuse_foreign(out: Path) -> None:
    """Refuse a file, and a folder with anything but temporary files of a killed write of the record."""
    if not out.exists():
        return
    if not out.is_dir():
        raise SettingsError(f"{out} is a file; give a folder to write")
    foreign = sorted(path.name for path in out.iterdir() if not path.name.startswith(f".{RECORD}."))
    if foreign:
        raise SettingsError(
            f"{out} holds {foreign[0]!r} and is not a folder of embeddings; move it away, or give a new or empty folder"
        )


def _clear(out: Path) -> None:
    """Remove all rows, then the record, so that rows left by a kill still have their record."""
    for folder in out.glob("layer-[0-9]*"):
        shutil.rmtree(folder)
    shutil.rmtree(out / "keys", ignore_errors=True)
    (out / RECORD).unlink()


class LayerWriter:
    """Writer of the rows of one layer, type and part in order, in chunks; resumes after the last chunk."""

    def __init__(self, embeddings: Embeddings, layer: int, node_type: str, part: int) -> None:
        """Find the finished chunks."""
        self.layer, self.node_type, self.part = layer, node_type, part
        self.num_rows = embeddings.num_rows(node_type, part)
        self._path = embeddings.path(layer, node_type, part)
        self._folder = embeddings.chunk_folder(layer, node_type, part)
        if self._path.exists():
            shutil.rmtree(self._folder, ignore_errors=True)  # left by a run that was killed between two steps
        self._chunks = self._find_chunks()
        self._rows: list[NDArray[Any]] = []
        self.done = self.num_rows if self._path.exists() else sum(len(chunk) for chunk in self._chunks)
        """Finished rows."""

    def add(self, rows: Array, rows_per_chunk: int) -> None:
        """Add the next rows; write a chunk if there are enough, and the part if it is complete."""
        self._rows.append(rows)
        pending = sum(map(len, self._rows))
        self.done += len(rows)
        if pending >= rows_per_chunk or self.done == self.num_rows:
            path = self._folder / f"{self.done - pending:012d}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_array(path, np.concatenate(self._rows))
            self._chunks.append(open_array(path))
            self._rows = []
        if self.done == self.num_rows:
            self._finish()

    @property
    def row_kind(self) -> tuple[int, np.dtype[Any]] | None:
        """Width and dtype of the finished rows, or None if there are none."""
        known = [*self._chunks, *self._rows]
        if not known and self._path.exists():
            known = [open_array(self._path)]
        return (known[0].shape[-1], known[0].dtype) if known else None

    def _find_chunks(self) -> list[Array]:
        """Find the chunks from the first row up to the first gap or misfit; later chunks are made again."""
        chunks: list[Array] = []
        done = 0
        for path in sorted(self._folder.glob("[0-9]*.npy")):
            try:
                chunk = open_array(path)
            except FormatError:
                break
            is_fitting = chunk.ndim == 2 and int(path.stem) == done and done + len(chunk) <= self.num_rows
            if not is_fitting or (chunks and (chunk.shape[1], chunk.dtype) != (chunks[0].shape[1], chunks[0].dtype)):
                break
            chunks.append(chunk)
            done += len(chunk)
        return chunks

    def _finish(self) -> None:
        first = self._chunks[0]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        blocks = (
            chunk[start : start + ROWS_PER_BLOCK]
            for chunk in self._chunks
            for start in range(0, len(chunk), ROWS_PER_BLOCK)
        )
        write_blocks(self._path, first.dtype, (self.num_rows, first.shape[1]), blocks)
        self._chunks = []
        shutil.rmtree(self._folder)
