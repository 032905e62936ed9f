"""Writes the pinned files: the datasets, the digests of all cases and the saved states.

``python -m tests.pinned.write`` adds what is missing and changes nothing that is there. A digest that has to change is
deleted by hand first, and the commit says why. Datasets are never written again: later revisions must open them.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path

import numpy as np

import hopstream
from hopstream.graph.graph import Graph
from tests.equality import test_ablp, test_links, test_node_modes, test_ppr, test_walks
from tests.export.worlds import write_world
from tests.grown import grow
from tests.pinned.cases import DATASETS, DIGESTS, LOADERS, RESUMED, STATES, digest, rest_of, results, state_of, unpack

TIMED = {"direction": "both", "time_attr": "time", "neighbor_keys": True}


def write_datasets(folder: Path) -> None:
    """Write every dataset in two parts."""

    def write(name: str, graph: Graph, **options: object) -> None:
        hopstream.write_parts(graph, folder / name, num_parts=2, method="random", rng_seed=5, **options)

    for name, graph in test_node_modes.GRAPHS.items():
        write(f"nodes-{name}", graph, **TIMED, weight_attr=test_node_modes.WEIGHT[name])
    for name, written in test_links.GRAPHS.items():
        write(f"links-{name}", written.graph, **written.options)
    write("anchors", test_ablp._graph(), direction="both", weight_attr="weight", neighbor_keys=True)
    for name, graph in test_ppr.make_graphs().items():
        write(f"ppr-{name}", graph, direction="both")
    for name, graph in test_walks._graphs().items():
        write(f"walks-{name}", graph, direction="both", weight_attr="weight")
    typed = test_node_modes.GRAPHS["typed"]
    write("halo", typed, **TIMED, weight_attr="stars")
    hopstream.dataset.add_halo(folder / "halo", hops=1, features="all")
    grown = grow(typed, np.random.default_rng(5))
    grown.write(folder / "grown", 2, 2, **TIMED, weight_attr="stars")
    (folder / "export").mkdir()
    write_world(folder / "export", num_parts=2)


def main() -> None:
    """Add missing datasets, digests and states."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if not DATASETS.exists():
            (folder / "new").mkdir()
            write_datasets(folder / "new")
            with tarfile.open(DATASETS, "w:xz") as archive:
                for path in sorted((folder / "new").iterdir()):
                    archive.add(path, path.name)
        unpack(folder / "datasets")
        found = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
        for case, result in results(folder / "datasets", folder / "out"):
            if case not in found:
                found[case] = digest(result())
        DIGESTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        states = json.loads(STATES.read_text()) if STATES.exists() else {}
        for case in RESUMED:
            if case not in states:
                name, new_loader = LOADERS[case]
                state = json.loads(json.dumps(state_of(new_loader(folder / "datasets" / name))))
                rest = digest(rest_of(new_loader(folder / "datasets" / name), state))
                states[case] = {"state": state, "rest": rest}
        STATES.write_text(json.dumps(states, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
