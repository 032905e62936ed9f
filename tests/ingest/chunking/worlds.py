"""Tables of raw ids of every kind, made from a few numbers, and the expected graphs."""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.ingest.chunking.plan import ChunkLimits

SMALL = ChunkLimits(part_bytes=100, block_bytes=200, block_rows=5, bucket_bytes=150, lookup_bytes=150, num_samples=40)
"""Small limits, so that a few dozen rows make many parts, blocks and buckets."""
EMPTY_TYPES = {
    "tags": pa.list_(pa.int64()),
    "age": pa.int64(),
    "x": pa.float64(),
    "ok": pa.bool_(),
    "size": pa.int64(),
    "w": pa.int64(),
}
"""Types of Parquet columns without rows; others are strings."""
WORDS = ("", "a", "zwölf, 12", "日本 ")


@dataclass
class World:
    """A folder of tables."""

    root: Path
    rng: np.random.Generator
    nodes: dict[str, Any] = field(default_factory=dict)
    edges: list[dict[str, Any]] = field(default_factory=list)
    raw: dict[str, list[Any]] = field(default_factory=dict)

    def table(self, name: str, columns: dict[str, list[Any]], file_format: str, num_files: int) -> dict[str, Any]:
        """Write a table into files; return its entry of the JSON."""
        num_rows = len(next(iter(columns.values())))
        cuts = np.sort(self.rng.integers(0, num_rows + 1, num_files - 1)).tolist()
        names = []
        for number, (start, stop) in enumerate(zip([0, *cuts], [*cuts, num_rows], strict=True)):
            suffix = {"csv": "csv", "tsv": "tsv", "gz": "csv.gz", "parquet": "parquet"}[file_format]
            names.append(f"{name}-{number}.{suffix}")
            rows = {column: values[start:stop] for column, values in columns.items()}
            write_file(self.root / names[-1], rows, columns)
        return {"files": names}

    def write(self) -> Path:
        """Write the JSON."""
        path = self.root / "metadata.json"
        path.write_text(json.dumps({"nodes": self.nodes, "edges": self.edges}))
        return path


def write_file(path: Path, rows: dict[str, list[Any]], whole: dict[str, list[Any]]) -> None:
    """Write some rows of a table; ``whole`` determines the types of Parquet columns."""
    if path.name.endswith(".parquet"):
        types = {name: pa.array(values).type for name, values in whole.items()}
        types = {
            name: EMPTY_TYPES.get(name, pa.string()) if kind in (pa.null(), pa.list_(pa.null())) else kind
            for name, kind in types.items()
        }
        arrays = {name: pa.array(values, types[name]) for name, values in rows.items()}
        pq.write_table(pa.table(arrays), path, row_group_size=4)
        return
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",")
    writer.writerow(rows)
    writer.writerows(
        ["" if cell is None else str(cell).lower() if isinstance(cell, bool) else cell for cell in row]
        for row in zip(*rows.values(), strict=True)
    )
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)


def raw_ids(rng: np.random.Generator, kind: str, count: int) -> list[Any]:
    """Distinct raw ids of a kind: ``int``, ``string``, or ``mixed`` (strings, many like integers)."""
    numbers = rng.permutation(4 * count + 5)[:count] - count
    if kind == "int":
        return (numbers * int(rng.choice([1, 2**40]))).tolist()
    if kind == "string":
        return [f"é{n}" + "x" * (int(n) % 17) for n in numbers]
    return [str(n) if n % 3 else f"0{abs(n)}-{n}" for n in numbers.tolist()]


def make_world(
    root: Path, seed: int, kinds: tuple[str, str], formats: tuple[str, str], sizes: tuple[int, int, int],
    dirt: tuple[bool, bool],
) -> World:  # fmt: skip
    """Write tables of users, films, tags that only edges name, rooms by row number, and their edges."""
    rng = np.random.default_rng(seed)
    world = World(root, rng)
    num_users, num_films, num_edges = sizes
    has_repeats, has_dangling = dirt
    for node_type, kind, count in (("user", kinds[0], num_users), ("film", kinds[1], num_films)):
        raw = raw_ids(rng, kind, count)
        world.raw[node_type] = raw
        rows = raw + [raw[i] for i in rng.integers(0, count, 3)] if has_repeats and count else raw
        rows = [rows[i] for i in rng.permutation(len(rows))]
        columns: dict[str, list[Any]] = {
            "id": rows,
            "age": rng.integers(-9, 99, len(rows)).tolist(),
            "x": rng.integers(0, 99, len(rows)).astype(float).tolist(),
            "ok": (rng.random(len(rows)) < 0.5).tolist(),
            "words": [WORDS[i] * int(n) for i, n in zip(*rng.integers(0, len(WORDS), (2, len(rows))), strict=True)],
            "part": rng.choice(["train", "val", "test", ""], len(rows)).tolist(),
        }
        if node_type == "film" and formats[0] != "parquet":
            columns["part"] = [cell or None for cell in columns["part"]]
        if formats[0] == "parquet":
            columns["tags"] = [rng.integers(-9, 9, n).tolist() for n in rng.integers(0, 4, len(rows))]
        spec = world.table(node_type, columns, formats[0], 1 + seed % 3)
        features = {"age": "age", "ok": "ok", "pos": {"columns": ["x", "x"], "dtype": "float64"}}
        features["words"] = {"column": "words", "dtype": "string"}
        features |= {"tags": "tags"} if formats[0] == "parquet" else {}
        world.nodes[node_type] = {**spec, "id": "id", "features": features, "split": "part"}
    world.nodes["room"] = world.table("room", {"size": list(range(7))}, formats[0], 2) | {"features": ["size"]}
    world.nodes["tag"] = {"from_edges": True, "id": "name"}
    tags = raw_ids(rng, kinds[seed % 2], 20)
    for number, (src, dst) in enumerate((("user", "film"), ("film", "tag"), ("tag", "room"), ("user", "user"))):
        ends = {"user": world.raw["user"], "film": world.raw["film"], "tag": tags, "room": list(range(7))}
        columns = {}
        for name, node_type in (("a", src), ("b", dst)):
            raw = ends[node_type]
            chosen = [raw[i] for i in rng.integers(0, max(1, len(raw)), num_edges if raw else 0)]
            if has_dangling and chosen and node_type != "tag":
                for place in rng.integers(0, len(chosen), 3):
                    chosen[place] = None if rng.random() < 0.5 or isinstance(raw[0], int) else "nobody"
            columns[name] = chosen
        shortest = min(map(len, columns.values()))
        columns = {name: values[:shortest] for name, values in columns.items()}
        columns["w"] = rng.integers(0, 99, shortest).tolist()
        columns["note"] = [WORDS[i] for i in rng.integers(0, len(WORDS), shortest)]
        spec = world.table(f"edges{number}", columns, formats[1], 1 + (seed + number) % 3)
        features: dict[str, Any] = {"w": "w", "note": "note"}
        if shortest and not any(columns["note"]):  # columns of empty cells have no type
            features["note"] = {"column": "note", "dtype": "string"}
        world.edges.append({**spec, "type": [src, f"r{number}", dst], "src": "a", "dst": "b", "features": features})
    return world


def tree_of(folder: Path) -> dict[str, bytes]:
    """Path below a folder to the bytes of the file."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
