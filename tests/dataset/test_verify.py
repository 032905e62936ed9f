"""Checks that damage to times, weights, neighbours and links is noticed even if checksums fit."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from hopstream.arrays import write_array
from hopstream.dataset.layout import Dataset, open_dataset, read_manifest
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import ChecksumError, FormatError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from tests.dataset.timed_graphs import RATES, timed_graph

OPTIONS = {"num_parts": 3, "method": "random", "direction": "both"}
RATES_IN, RATES_OUT = (f"part-00001/edge/user__rates__movie/{direction}" for direction in ("in", "out"))
LINK = "part-00001/link/user__rates__movie"
NEW_FILES = (
    "time.npy", "weight_sums.npy", "weight_order.npy", "weight_alias.npy",
    "neighbor_key.npy", "src_key.npy", "dst_key.npy", "train.npy",
)  # fmt: skip


@pytest.fixture
def graph(rng) -> Graph:
    return timed_graph(rng, timed=("user", "movie", RATES))


@pytest.fixture
def written(tmp_path, graph):
    write_parts(graph, tmp_path / "d", time_attr="time", weight_attr="rating", neighbor_keys=True, **OPTIONS)
    return tmp_path / "d"


def forge(root, name: str, change) -> Dataset:
    """Change one file, and the manifest so that it agrees."""
    array = np.load(root / name)
    before = array.copy()
    changed = change(array)
    array = array if changed is None else changed
    assert array.shape == before.shape and not np.array_equal(array, before)
    record = write_array(root / name, array)
    manifest = read_manifest(root)
    values = {field.name: getattr(manifest, field.name) for field in fields(Manifest) if field.init}
    Manifest(**{**values, "files": {**manifest.files, name: record}}).write(root)
    return open_dataset(root)


def test_every_new_file_is_missed_and_its_bytes_are_checked(written, rng):
    files = [path for path in sorted(written.rglob("*.npy")) if path.name in NEW_FILES and "features" not in path.parts]
    assert {path.name for path in files} == set(NEW_FILES)
    for path in files:
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[int(rng.integers(0, len(whole)))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(damaged)
        with pytest.raises(ChecksumError, match=path.name):
            open_dataset(written, verify=True)
        path.write_bytes(whole[:-1])
        with pytest.raises(FormatError, match=path.name):
            open_dataset(written).open_part(int(path.relative_to(written).parts[0][-1]))
        path.write_bytes(whole)
    open_dataset(written, verify=True)


def put(position, value):
    def change(array):
        array[position] = value

    return change


def add(position, number):
    def change(array):
        array[position] += number

    return change


def swap_ends_of_first_row(array):
    """Put the last time of a row first; rows of the graph are long and their times differ."""
    array[0], array[5] = array[5] + 100, array[0]


FORGERIES = [
    (f"{RATES_IN}/time.npy", swap_ends_of_first_row, "movie/in: times of one node do not ascend"),
    (f"{RATES_IN}/time.npy", lambda times: times - 1, "rates__movie/in: time 0 is not that of the edge or its neighbo"),
    (f"{RATES_IN}/weight_sums.npy", add(3, 1e-9), "rates__movie/in: weight sums are not the running sums"),
    (f"{RATES_IN}/weight_alias.npy", add(1, 1), "alias tables are not those of the weights"),
    (f"{RATES_IN}/weight_order.npy", put(2, 1 << 30), "weight order is not the order of the weights"),
    (f"{RATES_IN}/neighbor_key.npy", put(4, 30), r"rates__movie/in: neighbor keys lie in \d+\.\.30; they must be in 0"),
    (f"{RATES_IN}/neighbor_key.npy", lambda keys: (keys + 1) % 30, "neighbor key 0 is not the key of its neighbour"),
    (f"{RATES_OUT}/neighbor_key.npy", lambda keys: (keys + 1) % 12, "movie/out: neighbor key 0 is not the key of its"),
    (f"{LINK}/src_key.npy", put(7, -1), "part 1: links of user__rates__movie: source keys lie in -1"),
    (f"{LINK}/dst_key.npy", put(7, 12), r"links of user__rates__movie: destination keys lie in \d+\.\.12"),
    (
        f"{LINK}/src_key.npy",
        lambda keys: (keys + 1) % 30,
        r"edge key \d+ differs from the edge of this key in the links of part 1",
    ),
    (
        f"{LINK}/time.npy",
        lambda times: times + 1,
        r"edge key \d+ differs from the edge of this key in the links of part 1",
    ),
    (f"{LINK}/splits/train.npy", put(0, 0), r"split 'train' lie in 0\.\.\d+; they must be in 50\.\.99"),
    (f"{LINK}/splits/train.npy", lambda keys: keys[::-1].copy(), "split 'train' do not ascend"),
    (f"{RATES_IN}/key.npy", lambda keys: keys[::-1].copy(), "differs from the edge of this key in the links of part"),
]


@pytest.mark.parametrize(("name", "change", "message"), FORGERIES, ids=map(str, range(len(FORGERIES))))
def test_wrong_values_with_valid_checksums_are_found(written, name, change, message):
    dataset = forge(written, name, change)
    with pytest.raises(FormatError, match=message):
        dataset.verify()


def test_only_requested_parts_are_verified(written):
    """Neighbours and links of other parts are not verified."""
    dataset = forge(written, f"{LINK}/time.npy", lambda times: times + 1)
    dataset.verify([0])
    dataset.verify([2, 0])
    with pytest.raises(FormatError, match="differs from the edge of this key in the links of part 1"):
        dataset.verify([1])


def test_times_in_rows_of_one_edge_may_descend_between_rows(tmp_path):
    keys = np.arange(4)
    graph = Graph(
        nodes={"a": NodeTable(num_nodes=6)},
        edges={("a", "to", "a"): EdgeTable(src_keys=keys, dst_keys=keys, features={"t": keys[::-1].copy()})},
    )
    write_parts(graph, tmp_path, time_attr="t")
    open_dataset(tmp_path, verify=True)


def test_links_that_are_not_the_edges_cannot_be_read_back(tmp_path, graph):
    """Without edge keys links are compared with edges when they are needed, to restore the original order."""
    write_parts(graph, tmp_path, keep_edge_keys=False, time_attr="time", **OPTIONS)
    forge(tmp_path, f"{LINK}/src_key.npy", lambda keys: (keys + 1) % 30).verify()
    with pytest.raises(FormatError, match=r"part \d: links of user__rates__movie are not its edges"):
        read_dataset(tmp_path)
