"""Reads tables of examples without writing to their folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hopstream
from hopstream.graph import Graph


def read_tables(folder: Path, names: tuple[str, ...], describe: Callable[[Mapping[str, str]], dict[str, Any]]) -> Graph:
    """Read a graph from tables and a description; raw ids become keys.

    The description must be in the folder of the tables, so the tables are copied to a temporary folder.

    Args:
        folder: Folder of the tables.
        names: Names of the tables; each is a file ``<name>.csv`` or ``<name>.csv.gz``.
        describe: Returns the content of ``metadata.json``, from table name to file name.
    """
    with TemporaryDirectory(prefix="hopstream-tables-") as copies:
        files = {}
        for name in names:
            found = [path for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz") if path.exists()]
            if not found:
                raise SystemExit(f"error: {folder} has no {name}.csv and no {name}.csv.gz; --help says where to get it")
            files[name] = found[0].name
            shutil.copyfile(found[0], Path(copies) / found[0].name)
        (Path(copies) / "metadata.json").write_text(json.dumps(describe(files)))
        return hopstream.read_graph(copies)
