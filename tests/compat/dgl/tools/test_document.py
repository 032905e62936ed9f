"""Checks that the shell blocks of DGL's page on preprocessing run with changed script names.

The test takes the page's own blocks and its own metadata, where the page is there.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.store.cluster import read_cluster

PAGES = list((Path(__file__).parents[4].parent / "shared" / "seeds").glob("002_*.txt"))
NUM_NODES = {"author": 30, "paper": 40, "institution": 5}
NUM_EDGES = {"author:writes:paper": 70, "author:affiliated_with:institution": 20, "paper:cites:paper": 90}
MACHINES = "172.31.19.1\n172.31.23.205\n"
RANDOM = "python /my/repo/dgl/tools/partition_algo/random_partition.py"
DISPATCH = "python /myrepo/dgl/tools/dispatch_data.py"
COMMANDS = (
    f"{RANDOM} --in_dir /mydata/MAG240M-LSC_chunked --out_dir /mydata/MAG240M-LSC_2parts --num_partitions 2",
    f"{DISPATCH} --in-dir /mydata/MAG240M-LSC_chunked/ --partitions-dir /mydata/MAG240M-LSC_2parts/ "
    "--out-dir /mydata/MAG_LSC_partitioned --ip-config ip_config.txt",
)


def run(command: str, root: Path) -> int:
    """Run a command of the page by the tool of its script's name, below a folder of the test."""
    _, script, *words = shlex.split(command.replace("/mydata", str(root)))
    words = [str(root / word) if word == "ip_config.txt" else word for word in words]
    return importlib.import_module(f"hopstream.compat.dgl.tools.{Path(script).stem}").main(words)


def write_graph(root: Path, metadata: dict) -> None:
    """The files that metadata names, cut unevenly."""
    rng = np.random.default_rng(1)
    folder = root / "MAG240M-LSC_chunked"

    def cut(rows: np.ndarray, files: list[str]) -> list[tuple[Path, np.ndarray]]:
        (folder / files[0]).parent.mkdir(parents=True, exist_ok=True)
        return list(zip((folder / name for name in files), np.array_split(rows, len(files)), strict=True))

    for edge_type, spec in metadata["edges"].items():
        source, _, target = edge_type.split(":")
        ends = np.stack([rng.integers(0, NUM_NODES[t], NUM_EDGES[edge_type]) for t in (source, target)], axis=1)
        for path, rows in cut(ends, spec["data"]):
            path.write_text("".join(f"{src} {dst}\n" for src, dst in rows))
    for node_type, features in metadata["node_data"].items():
        for name, spec in features.items():
            shape = (NUM_NODES[node_type], 8) if name == "feat" else (NUM_NODES[node_type],)
            for path, rows in cut(rng.random(shape, np.float32), spec["data"]):
                np.save(path, rows)
    metadata["num_nodes_per_type"] = [NUM_NODES[t] for t in metadata["node_type"]]
    metadata["num_edges_per_type"] = [NUM_EDGES[t] for t in metadata["edge_type"]]
    (folder / "metadata.json").write_text(json.dumps(metadata))
    (root / "ip_config.txt").write_text(MACHINES)


def check(root: Path) -> None:
    """Check the results of both commands: parts of nodes as on the page, and a dataset of the graph."""
    owners = {t: (root / "MAG240M-LSC_2parts" / f"{t}.txt").read_text().splitlines() for t in NUM_NODES}
    assert {t: (len(lines), set(lines)) for t, lines in owners.items()} == {
        t: (count, {"0", "1"}) for t, count in NUM_NODES.items()
    }
    out = root / "MAG_LSC_partitioned"
    graph = hopstream.read_graph(root / "MAG240M-LSC_chunked")
    assert hopstream.read_dataset(out).fingerprint() == graph.fingerprint()
    book = hopstream.dataset.read_key_book(out)
    assert book.num_parts == 2
    for node_type, lines in owners.items():
        assert book.part_of(node_type, np.arange(len(lines))).tolist() == list(map(int, lines))
    servers = read_cluster(out / "cluster.json").servers
    assert [(server.location, server.parts) for server in servers] == [
        ("tcp://172.31.19.1:30050", (0,)), ("tcp://172.31.23.205:30050", (1,))
    ]  # fmt: skip


@pytest.mark.skipif(not PAGES, reason="the page is not here")
def test_the_pages_own_commands_and_metadata(tmp_path):
    text = PAGES[0].read_text()
    blocks = re.findall(r"\.\. code-block:: (?:bash|python)\n\n((?:(?:    .*)?\n)+)", text)
    found = [" ".join(block.replace("\\\n", " ").split()) for block in blocks if "/dgl/tools/" in block]
    assert found == list(COMMANDS)
    (shown,) = [block for block in blocks if '"graph_name"' in block]
    shown = re.sub(r"#.*", "", shown)
    shown = re.sub(r'(\.(?:csv|npy)")\s+"', r'\1, "', shown)  # commas that the page forgets
    write_graph(tmp_path, json.loads(shown))
    assert (tmp_path / "MAG240M-LSC_chunked/node_data/paper-year-part4.npy").exists()
    assert [run(command, tmp_path) for command in found] == [0, 0]
    check(tmp_path)
