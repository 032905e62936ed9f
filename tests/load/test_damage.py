"""Checks that a loader over a damaged file names the file, whatever the damage leads to."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError
from hopstream.preparation.append.run import append
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from tests.conftest import make_typed_graph

WRITES = ("author", "writes", "paper")
CITES = "edge/paper__cites__paper/in"


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("origin") / "d"
    graph = make_typed_graph(np.random.default_rng(5))
    hopstream.write_parts(graph, root, num_parts=2, method="random", links=["author__writes__paper"])
    return root


@pytest.fixture
def root(origin: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(origin, tmp_path / "d"))


def damage(path: Path, change) -> None:
    """Change values of an array in its place."""
    array = np.load(path, mmap_mode="r+")
    before = array.copy()
    change(array)
    assert not np.array_equal(array, before)
    array.flush()


def swap(array):
    array[:2] = array[[1, 0]]


def repeat(array):
    array[1] = array[0]


def enlarge(array):
    array[1] = 1 << 29


def read_nodes(source, seeds="paper", **options) -> None:
    options = {"num_neighbors": [5, 5], "batch_size": 60, "collate": "numpy", "num_threads": 0, **options}
    with hopstream.NeighborLoader(source, seeds=seeds, **options) as loader:
        list(loader)


def read_trees(source) -> None:
    read_nodes(source, disjoint=True)


def read_train(source) -> None:
    read_nodes(source, ("paper", "train"))


def read_threaded(source) -> None:
    read_nodes(source, num_threads=2)


def read_links(source) -> None:
    options = {"num_neighbors": [5], "batch_size": 16, "collate": "numpy", "num_threads": 0}
    with hopstream.LinkNeighborLoader(source, edge_label_index=WRITES, **options) as loader:
        list(loader)


@pytest.mark.parametrize(
    ("name", "change", "read"),
    [
        ("node/paper/id_of_key.npy", repeat, read_nodes),
        ("node/paper/id_of_key.npy", swap, read_nodes),
        ("node/paper/id_of_key.npy", enlarge, read_nodes),
        ("node/paper/id_of_key.npy", swap, read_trees),
        ("node/paper/id_of_key.npy", lambda ids: ids.fill(0), read_links),
        ("node/paper/key.npy", swap, read_nodes),
        ("node/paper/splits/train.npy", enlarge, read_train),
        ("node/paper/splits/train.npy", swap, read_train),
        ("link/author__writes__paper/src_key.npy", enlarge, read_links),
        ("link/author__writes__paper/dst_key.npy", lambda keys: keys.fill(-1), read_links),
        (f"{CITES}/indices.npy", lambda ids: ids.fill(1 << 20), read_nodes),
        (f"{CITES}/indices.npy", lambda ids: ids.fill(1 << 20), read_threaded),
        (f"{CITES}/indptr.npy", lambda offsets: offsets[1:-1].fill(1 << 29), read_nodes),
    ],
)
def test_the_damaged_file_is_named(root, name, change, read):
    read(root)
    damage(root / "part-00000" / name, change)
    with pytest.raises(FormatError, match=rf"{root}/part-00000/{name}") as caught:
        read(root)
    assert "hopstream verify" in str(caught.value) or "copy the file again" in str(caught.value)


def test_an_overlay_that_names_other_rows(root):
    append(root, edges={"paper__cites__paper": ([0, 1, 2, 3], [3, 2, 1, 0])})
    (path, *_) = root.rglob("delta-00001/edge/paper__cites__paper/in/row.npy")
    damage(path, lambda rows: rows.fill(40))  # a row of another part
    with pytest.raises(FormatError, match=rf"{path}: rows lie in .*; hopstream verify finds what else is damaged"):
        read_nodes(root)


def test_a_halo_whose_ids_are_damaged(root):
    hopstream.dataset.add_halo(root, hops=1)
    (path,) = root.glob("part-00000/halo/*/node/paper/id.npy")
    with LocalStore(open_dataset(root), [0]) as store:
        assert store.open_halos()
        damage(path, swap)
        with pytest.raises(FormatError, match=rf"{path}: ids do not ascend; hopstream verify finds what else"):
            store.open_halos()


@pytest.mark.parametrize("change", [swap, repeat])
def test_servers_that_do_not_hold_the_nodes_of_their_keys(root, change):
    book = open_dataset(root).manifest.book
    away = slice(*book.node_offsets["paper"][1:3])

    def change_ids_of_others(ids):
        places = np.flatnonzero((ids >= away.start) & (ids < away.stop))[:2]
        ids[places] = change_of(ids[places])

    def change_of(ids):
        change(ids)
        return ids

    damage(root / "part-00000/node/paper/id_of_key.npy", change_ids_of_others)
    servers = [StoreServer(LocalStore(open_dataset(root), [part])) for part in (0, 1)]
    try:
        settings = hopstream.StoreSettings(prefer_local=False)
        with pytest.raises(FormatError, match=r"id_of_key\.npy .*damaged; run hopstream verify where its parts are"):
            read_nodes(",".join(server.location for server in servers), store_settings=settings)
    finally:
        for server in servers:
            server.close(1.0)
