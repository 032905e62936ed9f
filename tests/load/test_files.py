"""Checks that graphs are read from files that torch wrote, and nothing but values is loaded."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

import hopstream
from hopstream.cli import main
from hopstream.errors import FormatError, HopstreamError, SchemaError, SettingsError
from hopstream.ingest.objects.pyg_data import graph_from_data
from hopstream.load import files
from hopstream.load.files import read_data_file, read_torch_file
from hopstream.schema import EDGE, NODE
from tests.ingest import ogb_folders as layouts


def plain_data() -> Data:
    mask = torch.tensor([True, False, True, False])
    edge_index = torch.tensor([[0, 1, 3], [1, 2, 0]])
    return Data(x=torch.rand(4, 2), edge_index=edge_index, edge_attr=torch.rand(3, 1), train_mask=mask)


def typed_data() -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.rand(3, 2)
    data["author"].num_nodes = 2
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [2, 0, 1]])
    return data


@pytest.mark.parametrize("make", [plain_data, typed_data])
def test_every_form_of_a_processed_file(tmp_path, make):
    data = make()
    wanted = graph_from_data(data).fingerprint()
    forms = {
        "saved": (data.to_dict(), None, type(data)), "older": (data, None), "alone": data, "dict": data.to_dict(),
    }  # fmt: skip
    for name, form in forms.items():
        torch.save(form, tmp_path / f"{name}.pt")
        assert hopstream.read_graph(tmp_path / f"{name}.pt").fingerprint() == wanted, name
    InMemoryDataset.save([data], tmp_path / "data.pt")
    assert read_data_file(tmp_path / "data.pt").fingerprint() == wanted
    assert main(["ingest", str(tmp_path / "data.pt"), "--out", str(tmp_path / "p")]) == 0
    assert hopstream.read_dataset(tmp_path / "p").fingerprint() == wanted


def test_collections_and_other_files_are_refused(tmp_path):
    path = tmp_path / "data.pt"
    InMemoryDataset.save([plain_data(), plain_data()], path)
    with pytest.raises(SchemaError, match=r"holds a collection of graphs; give one of them"):
        hopstream.read_graph(path)
    for value, message in ((torch.rand(3), "holds Tensor; wanted a Data"), ((1, 2, 3, 4), "holds a tuple of 4")):
        torch.save(value, path)
        with pytest.raises(FormatError, match=message):
            hopstream.read_graph(path)
    torch.save({"x": torch.rand(3, 1)}, path)
    with pytest.raises(SchemaError, match="the graph has no edge_index"):
        hopstream.read_graph(path)
    with pytest.raises(SettingsError, match="PyG's files have no option 'ignore'"):
        hopstream.read_graph(path, ignore="all")


def test_slices_of_one_graph_are_accepted(tmp_path):
    data = plain_data()
    wanted = graph_from_data(data).fingerprint()
    ends = {name: torch.tensor([0, len(data[name])]) for name in data.to_dict()}
    torch.save((data.to_dict(), ends, Data), tmp_path / "data.pt")
    assert hopstream.read_graph(tmp_path / "data.pt").fingerprint() == wanted
    typed, slices = InMemoryDataset.collate([typed_data(), typed_data()])
    torch.save((typed.to_dict(), slices, HeteroData), tmp_path / "data.pt")
    with pytest.raises(SchemaError, match="holds a collection of graphs"):
        hopstream.read_graph(tmp_path / "data.pt")
    torch.save({"paper": {"x": torch.rand(3, 2)}, ("paper", "to", "paper"): {}}, tmp_path / "data.pt")
    with pytest.raises(FormatError, match=r"holds a dict of 'paper', \('paper', 'to', 'paper'\); wanted the result of"):
        hopstream.read_graph(tmp_path / "data.pt")


def test_error_for_a_dataset_folder_names_the_file(tmp_path):
    (tmp_path / "processed").mkdir()
    torch.save((plain_data().to_dict(), None, Data), tmp_path / "processed/data.pt")
    torch.save(None, tmp_path / "processed/pre_filter.pt")
    with pytest.raises(FormatError, match=r"is a folder of a PyG dataset; give the file in it: \S+processed/data\.pt$"):
        hopstream.read_graph(tmp_path)


@pytest.mark.parametrize("value", [
    "text", 5, None, {"a": torch.ones(4)}, torch.ones(9), np.float64(3), [1, 2], {1, 2}, torch.device("cpu"),
    torch.float16,
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_graph_level_attributes_are_left_out(tmp_path, value):
    data = plain_data()
    wanted = graph_from_data(data).fingerprint()
    data.other = value
    InMemoryDataset.save([data], tmp_path / "data.pt")
    assert hopstream.read_graph(tmp_path / "data.pt").fingerprint() == wanted


def harm(is_harmed: bool) -> None:
    HARMED.append(is_harmed)


HARMED: list[bool] = []


class Harmful:
    """Code that a pickle runs when it is loaded."""

    def __reduce__(self):
        return harm, (True,)


def test_code_in_files_is_not_executed(tmp_path):
    path = tmp_path / "data.pt"
    torch.save((plain_data().to_dict(), None, Harmful()), path)
    with pytest.raises(FormatError, match=r"data.pt contains .*\.harm, which is not read .*; wanted numbers, tensors"):
        hopstream.read_graph(path)
    assert not HARMED
    torch.load(path, weights_only=False)
    assert HARMED  # it would have
    torch.save(np.array([Harmful()]), path)
    with pytest.raises(FormatError, match="which is not read because"):
        read_torch_file(path)


def test_damaged_and_missing_files(tmp_path, rng):
    with pytest.raises(FormatError, match="is missing"):
        hopstream.read_graph(tmp_path / "none.pt")
    path = tmp_path / "data.pt"
    torch.save((plain_data().to_dict(), None, Data), path)
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"PK\3\4" + whole[4:60]):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"data.pt"):
            hopstream.read_graph(path)


def test_mag240m_with_the_files_that_torch_wrote(tmp_path, rng):
    layouts.mapped(tmp_path / "mag", rng)
    torch.save({**layouts.NUM_NODES, "num_classes": 3}, tmp_path / "mag/meta.pt")
    keys = {"train": np.array([4, 0]), "valid": np.array([1]), "test": np.array([2, 3])}
    torch.save({**keys, "test-dev": np.array([2])}, tmp_path / "mag/split_dict.pt")
    graph = hopstream.read_graph(tmp_path / "mag")
    assert {t: of.num_nodes for t, of in graph.nodes.items()} == layouts.NUM_NODES
    assert {name: found.tolist() for name, found in graph.splits["paper"].items()} == {
        "train": [0, 4], "val": [1], "test": [2, 3]
    }  # fmt: skip


@pytest.mark.parametrize("as_stored", [lambda array: array, torch.from_numpy], ids=["numpy", "torch"])
def test_links_to_predict(tmp_path, rng, as_stored):
    tmp_path = tmp_path / "ogbl_citation2"
    layouts.plain(tmp_path, rng)
    for path in (tmp_path / "split/time").iterdir():
        path.unlink()
    links = {
        name: {"edge": rng.integers(0, 9, (4, 2)), "weight": rng.random(4), "edge_neg": rng.integers(0, 9, (6, 2))}
        for name in ("train", "valid", "test")
    }
    for name, columns in links.items():
        stored = {key: as_stored(array) for key, array in columns.items()} | {"head_type": ["a", "b"]}
        torch.save(stored, tmp_path / f"split/time/{name}.pt")
    found = hopstream.graph.read_ogb_links(tmp_path)
    assert list(found) == ["train", "val", "test"] and found["val"].pop("head_type") == ["a", "b"]
    assert all(np.array_equal(found["val"][key], array) for key, array in links["valid"].items())
    graph = hopstream.read_graph(tmp_path)
    assert graph.edges[EDGE].num_edges == 14 and not graph.splits.get(NODE)
    with pytest.raises(SettingsError, match="has no folder split/"):
        hopstream.graph.read_ogb_links(tmp_path / "raw")


def test_a_flipped_byte_raises_only_hopstream_errors(tmp_path, rng):
    path = tmp_path / "data.pt"
    torch.save((plain_data().to_dict(), None, Data), path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    for place in rng.integers(0, len(whole), 300):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << int(rng.integers(8))]) + whole[place + 1 :])
        try:
            hopstream.read_graph(path)
        except HopstreamError:
            continue


def test_two_kinds_of_files_are_read_at_the_same_time(tmp_path):
    """The list of names that files may use is shared by the whole process."""
    allowed = torch.serialization.get_safe_globals()
    torch.save(plain_data(), tmp_path / "data.pt")
    torch.save(defaultdict(dict, {"a": {"x": torch.rand(3)}}), tmp_path / "feats.pt")

    def read(number: int) -> int:
        for _ in range(40):
            if number % 2:
                hopstream.read_graph(tmp_path / "data.pt")
            else:
                assert list(read_torch_file(tmp_path / "feats.pt", tensors_only=True)["a"]) == ["x"]
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(4))) == [0, 1, 2, 3]
    assert torch.serialization.get_safe_globals() == allowed
    with pytest.raises(FormatError, match="which is not read because"):
        read_torch_file(tmp_path / "data.pt", tensors_only=True)


class OfAnotherThread:
    """Names that a user allows in files while another file is read."""


@pytest.mark.parametrize("beside_others", [True, False])
def test_safe_globals_added_meanwhile_are_kept(beside_others):
    allowed = torch.serialization.get_safe_globals()
    with files._named([Data, dict], beside_others=beside_others), ThreadPoolExecutor(1) as pool:
        pool.submit(torch.serialization.add_safe_globals, [OfAnotherThread]).result()
    try:
        assert set(torch.serialization.get_safe_globals()) == {*allowed, OfAnotherThread}
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)


def test_tensors_larger_than_their_storage_are_refused(tmp_path):
    path = tmp_path / "data.pt"
    torch.save(Data(x=torch.zeros(1).expand(1 << 40), edge_index=torch.zeros(2, 1, dtype=torch.long)), path)
    with pytest.raises(FormatError, match=r"data.pt has a tensor \[1099511627776\] of torch.float32 in 4 bytes"):
        hopstream.read_graph(path)
