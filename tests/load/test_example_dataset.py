"""Checks that torch's ``DataLoader`` yields each batch once, with any number of workers."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from hopstream.load.examples import ExampleDataset, ExampleLoader
from hopstream.tfgnn import record_files
from hopstream.tfgnn.graph_generator import random_graphs
from hopstream.tfgnn.graph_schema import parse_schema
from hopstream.tfgnn.graph_tensor import encode_graphs
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.tfrecord import RecordWriter, files_of

SCHEMA = """
  node_sets { key: "a" value { features { key: "x" value { dtype: DT_FLOAT } } } }
  edge_sets { key: "e" value { source: "a" target: "a" } }
  info { root_set: "a" }
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "s.pbtxt").write_text(SCHEMA)
    encoded = encode_graphs(random_graphs(GraphSpec.of_schema(parse_schema(SCHEMA)), range(23)))
    for shard in range(3):
        with RecordWriter(folder / f"s-0000{shard}-of-00003") as writer:
            for number in range(shard, 23, 3):
                writer.write(encoded[number])
    return f"{folder}/s@3"


def numbers_of(batches):
    return [batch.input_id.tolist() for batch in batches]


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_share_the_batches_of_the_loader(files, num_workers):
    options = {"shuffle": True, "window": 5, "rng_seed": 3}
    dataset = ExampleDataset(files, 4, **options)
    context = "spawn" if num_workers else None
    with ExampleLoader(files, 4, **options) as loader:
        for epoch in range(2):
            wanted = numbers_of(loader)
            dataset.set_epoch(epoch)
            got = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=context)
            assert len(got) == len(wanted) == 6
            assert numbers_of(got) == wanted
            dataset.set_epoch(epoch, next_batch=4)
            assert len(dataset) == 2 and numbers_of(dataset) == wanted[4:]


def test_each_worker_has_its_own_share(files, monkeypatch):
    from hopstream.load import examples

    class Worker:
        num_workers = 4

    dataset = ExampleDataset(files, 3, collate="numpy", transform=lambda batch: batch.input_ids.tolist())
    whole, shares = list(dataset), []
    for number in range(4):
        worker = Worker()
        worker.id = number
        monkeypatch.setattr(examples, "get_worker_info", lambda worker=worker: worker)
        shares.append(list(dataset))
    assert [shares[i % 4][i // 4] for i in range(len(whole))] == whole
    assert sum(map(len, shares)) == len(whole) == 8


def test_ranks_share_an_epoch(files):
    shares = [numbers_of(ExampleDataset(files, 2, rank=rank, world_size=2)) for rank in range(2)]
    assert len(shares[0]) == len(shares[1])
    assert sorted(n for share in shares for batch in share for n in batch) == list(range(23))


def test_persistent_workers_follow_set_epoch(files):
    options = {"shuffle": True, "collate": "numpy", "transform": input_ids}
    dataset = ExampleDataset(files, 4, **options)
    batches = DataLoader(
        dataset, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context="fork", timeout=60
    )
    got = []
    for epoch in (0, 1, 4, 4):
        dataset.set_epoch(epoch)
        got.append(list(batches))
    again = list(batches)  # the epoch was not set
    dataset.set_epoch(1, next_batch=4)
    rest = list(batches)
    batches._iterator._shutdown_workers()
    with ExampleLoader(files, 4, **options) as loader:
        wanted = [list(loader) for _ in range(5)]
    assert got == [wanted[0], wanted[1], wanted[4], wanted[4]] and wanted[0] != wanted[1]
    assert again == wanted[4] and rest == wanted[1][4:]


def input_ids(batch):
    return batch.input_ids.tolist()


def test_a_copy_in_another_process_does_not_rescan_records(files, monkeypatch):
    dataset = ExampleDataset(files, 4, shuffle=True, collate="numpy", transform=input_ids)
    dataset.set_epoch(2)
    raw = pickle.dumps(dataset)
    for name in ("_starts", "_num_records"):
        monkeypatch.setattr(record_files, name, None)
    copy = pickle.loads(raw)
    assert list(copy) == list(dataset)


def test_workers_of_compressed_files_do_not_share_places_in_files(files, tmp_path):
    paths = [tmp_path / f"z{number}" for number in range(2)]
    for path in paths:
        with RecordWriter(path, is_compressed=True) as writer:
            for record in record_files.RecordFiles(files_of(files)).read(np.arange(23)):
                writer.write(record)
    dataset = ExampleDataset(
        paths, 2, window=3, collate="numpy", transform=input_ids, schema=Path(files).parent / "s.pbtxt"
    )
    iterator = iter(dataset)
    first = [next(iterator) for _ in range(3)]  # files are open, in the middle
    batches = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert list(batches) == first + list(iterator) == [[i for i in (n, n + 1) if i < 46] for n in range(0, 46, 2)]
