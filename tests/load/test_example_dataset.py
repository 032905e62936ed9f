"""Does torch's ``DataLoader`` get the loader's batches, each once, whatever the number of workers?"""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from hopstream.load.example_dataset import ExampleDataset
from hopstream.load.examples import ExampleLoader
from hopstream.tfgnn.graph_schema import parse_schema
from hopstream.tfgnn.graph_tensor import encode_graphs
from hopstream.tfgnn.random_graphs import random_graphs
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.tfrecord import RecordWriter

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
    from hopstream.load import example_dataset

    class Worker:
        num_workers = 4

    dataset = ExampleDataset(files, 3, collate="numpy", transform=lambda batch: batch.input_ids.tolist())
    whole, shares = list(dataset), []
    for number in range(4):
        worker = Worker()
        worker.id = number
        monkeypatch.setattr(example_dataset, "get_worker_info", lambda worker=worker: worker)
        shares.append(list(dataset))
    assert [shares[i % 4][i // 4] for i in range(len(whole))] == whole
    assert sum(map(len, shares)) == len(whole) == 8


def test_ranks_share_an_epoch(files):
    shares = [numbers_of(ExampleDataset(files, 2, rank=rank, world_size=2)) for rank in range(2)]
    assert len(shares[0]) == len(shares[1])
    assert sorted(n for share in shares for batch in share for n in batch) == list(range(23))
