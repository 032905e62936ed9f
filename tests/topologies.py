"""Places of the parts of one graph, and numbers of threads, that must make no difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from hopstream.store import open_graph
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.settings import StoreSettings
from tests.processes import ServerPool

YARDSTICK = "1 local part"
IN_MEMORY = "a graph in memory"
TOPOLOGIES = ("3 local parts", "4 local parts", "4 servers", "1 part here, 3 asked", IN_MEMORY)
NUM_THREADS = (1, 4)
"""Threads that make batches; the yardstick's are made inline."""


@dataclass(frozen=True)
class Written:
    """A graph, and the options of ``write_parts`` that it is written with."""

    graph: Graph
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """One graph in memory and in 1, 3 and 4 parts, and the processes that serve its 4 parts."""

    written: Written
    folders: Mapping[int, Path]
    locations: list[str]
    mapped: dict[int, LocalStore] = field(default_factory=dict)
    """Stores of all local parts, by number of parts: mapping files again takes longer than most tests."""

    @contextmanager
    def open(self, topology: str) -> Iterator[Store]:
        """The store of one topology; threads that ask servers end with the context."""
        if topology == IN_MEMORY:
            options = {name: self.written.options.get(name) for name in ("direction", "time_attr", "weight_attr")}
            yield open_graph(self.written.graph, **{name: value for name, value in options.items() if value})
            return
        if "local" in topology:
            num_parts = int(topology[0])
            if num_parts not in self.mapped:
                self.mapped[num_parts] = LocalStore(open_dataset(self.folders[num_parts]))
            yield self.mapped[num_parts]
            return
        with ExitStack() as stack:
            here = [] if topology == "4 servers" else [LocalStore(open_dataset(self.folders[4]), [0])]
            settings = StoreSettings(prefer_local=False)
            asked = [RemoteStore(location, settings) for location in self.locations[len(here) :]]
            yield stack.enter_context(RoutedStore([*here, *asked]))


@contextmanager
def settled(root: Path, graphs: Mapping[str, Written], pool: ServerPool) -> Iterator[dict[str, Places]]:
    """Write graphs into a folder and serve them from four processes, until the context ends."""
    folders = {name: _write(written, root / name) for name, written in graphs.items()}
    with pool.serve([of[4] for of in folders.values()], [[0], [1], [2], [3]]) as locations:
        yield {
            name: Places(graphs[name], of, found) for (name, of), found in zip(folders.items(), locations, strict=True)
        }


def _write(written: Written, root: Path) -> dict[int, Path]:
    """Write a graph; three parts are cut by key, so that some hops touch only some of the owners."""
    folders = {}
    for num_parts in (1, 3, 4):
        owners = {
            t: (np.arange(table.num_nodes) * num_parts // max(1, table.num_nodes)).astype(np.int32)
            for t, table in written.graph.nodes.items()
        }
        how = {"method": "file", "owners": owners} if num_parts == 3 else {"method": "random", "rng_seed": 5}
        folders[num_parts] = root / str(num_parts)
        write_parts(written.graph, folders[num_parts], num_parts=num_parts, **how, **written.options)
    return folders
