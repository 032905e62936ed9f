"""How does an example read tables from a folder that stays as it is?"""

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
    """The graph that tables and a description make; raw ids become keys on the way.

    Tables are read from where their description is, so copies of them are read, in a folder that is removed.

    Args:
        folder: Where the tables are.
        names: Their names; each is a file ``<name>.csv`` or ``<name>.csv.gz``.
        describe: Gives what ``metadata.json`` is to say, from table name to file name.
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
