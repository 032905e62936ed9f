"""Checks that reading some blocks of every file finds overwritten files in bounded time."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream import arrays
from hopstream.arrays import BLOCK_BYTES, MAX_BLOCKS, FileRecord, block_starts, with_blocks, write_array
from hopstream.assign.run import assign_folder
from hopstream.dataset import spot_check
from hopstream.dataset.layout import open_dataset, read_manifest
from hopstream.dataset.spot_check import check_some_blocks
from hopstream.errors import ChecksumError, FormatError, SettingsError
from hopstream.ingest.chunked import write_chunked
from hopstream.store import open_store
from hopstream.store.settings import StoreSettings
from tests.preparation.append.graphs import written as write_appended
from tests.preparation.audit.forging import OPTIONS, full_graph

NUM_LARGE = 3 * MAX_BLOCKS * BLOCK_BYTES
"""Bytes of a file in which one block in three has a checksum."""


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("origin") / "d"
    hopstream.write_parts(full_graph(3), root, direction="both", halo=hopstream.dataset.HaloSettings(hops=1), **OPTIONS)
    return root


@pytest.fixture
def root(origin, tmp_path) -> Path:
    return Path(shutil.copytree(origin, tmp_path / "d"))


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> tuple[Path, FileRecord]:
    path = tmp_path_factory.mktemp("large") / "large.npy"
    return path, write_array(path, np.arange(NUM_LARGE - 128, dtype=np.uint32).astype(np.uint8))


def overwrite(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


def test_every_file_that_was_overwritten_is_named(root, rng):
    dataset = open_dataset(root, verify="sample")
    assert dataset.sample() == []
    names = [name for name in dataset.manifest.all_files if name.startswith("part-00001/")]
    assert {name.split("/")[1] for name in names} == {"node", "edge", "link", "halo"}
    for name in names:
        path = root / name
        whole = path.read_bytes()
        overwrite(path, int(rng.integers(0, len(whole))))
        with pytest.raises(ChecksumError, match=rf"{name} has crc32c .*; the manifest says .*; copy the file again"):
            dataset.sample([1])
        path.write_bytes(whole)
    path.unlink()
    with pytest.raises(FormatError, match=f"{name} is missing"):
        open_dataset(root, verify="sample")


def test_blocks_are_spread_from_the_first_to_the_last():
    for num_bytes in (0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, MAX_BLOCKS * BLOCK_BYTES, NUM_LARGE, 10**12 + 7):
        starts = np.array(block_starts(num_bytes))
        num_all = max(1, -(-num_bytes // BLOCK_BYTES))
        assert len(starts) == min(num_all, MAX_BLOCKS) and starts[0] == 0
        assert starts[-1] == (num_all - 1) * BLOCK_BYTES and not (starts % BLOCK_BYTES).any()
        steps = np.diff(starts) // BLOCK_BYTES
        assert len(steps) == 0 or (steps.min() >= 1 and steps.max() - steps.min() <= 1)


def test_damage_in_a_sampled_block_of_a_large_file_is_found(large, tmp_path):
    (source, record), path = large, tmp_path / "large.npy"
    starts = block_starts(record.num_bytes)

    def is_found(place: int, num_blocks: int, rng_seed: int) -> bool:
        shutil.copyfile(source, path)
        overwrite(path, place)
        try:
            assert (
                check_some_blocks(
                    tmp_path, {"large.npy": record}, num_bytes=num_blocks * BLOCK_BYTES, rng_seed=rng_seed
                )
                == []
            )
        except ChecksumError as error:
            assert "large.npy has crc32c" in str(error) and "hopstream verify finds what else" in str(error)
            return True
        return False

    assert is_found(0, 0, 0) and is_found(record.num_bytes - 1, 0, 0)  # with any other blocks
    assert all(is_found(starts[number] + 99, MAX_BLOCKS, 0) for number in (1, 32, 63))
    found = [is_found(starts[20], 32, seed) for seed in range(30)]
    assert 5 < sum(found) < 25  # 30 of the 63 other blocks are drawn
    assert is_found(starts[20], 32, found.index(True)) and not is_found(starts[20], 32, found.index(False))
    assert not is_found(starts[1] - 1, MAX_BLOCKS, 0)  # between two blocks: only the checksum of the file finds it


def test_files_without_checksums_of_blocks_are_read_whole_or_named(large, root, monkeypatch, caplog):
    folder, record = large[0].parent, large[1]
    files = {"large.npy": replace(record, blocks="")}
    assert check_some_blocks(folder, files, num_bytes=record.num_bytes) == []
    assert check_some_blocks(folder, files, num_bytes=record.num_bytes - 1) == ["large.npy"]
    with pytest.raises(ChecksumError, match=r"large\.npy has crc32c"):
        check_some_blocks(folder, {"large.npy": replace(files["large.npy"], crc32c=1)}, num_bytes=record.num_bytes)
    monkeypatch.setattr(spot_check, "BLOCK_BYTES", 256)
    monkeypatch.setattr(spot_check.check_some_blocks, "__kwdefaults__", {"num_bytes": 0, "rng_seed": None})
    left_out = open_dataset(root).sample([1])
    assert left_out and all(name.startswith("part-00001/") for name in left_out)
    assert f"{len(left_out)} files have no checksums of blocks and were not sampled, {left_out[0]}" in caplog.text


@pytest.mark.parametrize(("verify", "is_seen"), [(None, False), (False, False), ("none", False), (True, True),
                                                 ("full", True), ("sample", True)])  # fmt: skip
def test_how_much_is_checked(root, verify, is_seen):
    overwrite(root / "part-00002/node/user/features/x.npy", 200)
    if is_seen:
        with pytest.raises(ChecksumError, match=r"x\.npy"):
            open_dataset(root, verify=verify)
    else:
        open_dataset(root, verify=verify)
    assert open_dataset(root, verify=None).sample([0, 1]) == []


@pytest.mark.parametrize("verify", ["some", 1, ["sample"]])
def test_unknown_verify_levels_are_refused(root, verify):
    with pytest.raises(SettingsError, match=r"verify is .*; it must be one of none, sample, full"):
        open_dataset(root, verify=verify)
    with pytest.raises(SettingsError, match=r"verify is .*; it must be one of none, sample, full"):
        StoreSettings(verify=verify)


def test_only_local_parts_are_sampled(root):
    shutil.rmtree(root / "part-00001")
    assert open_dataset(root, verify="sample").sample() == []


def test_stores_and_loaders_check_mapped_files(root):
    options = {"num_neighbors": [2], "seeds": "user", "collate": "numpy"}
    cluster = {
        "format": 1, "dataset_id": read_manifest(root).dataset_id,
        "servers": [{"location": "tcp://127.0.0.1:1", "parts": [0, 1, 2], "path": str(root)}],
    }  # fmt: skip
    (root / "cluster.json").write_text(json.dumps(cluster))
    hopstream.NeighborLoader(root, verify="sample", **options).close()
    overwrite(root / "part-00000/node/user/key.npy", 130)
    sampled = StoreSettings(verify="sample")
    for source in (root, root / "cluster.json"):
        with pytest.raises(ChecksumError, match=r"user/key\.npy"):
            open_store(source, sampled)
        for given in ({"verify": "sample"}, {"store_settings": sampled}, {"verify": "full", "rank": 0}):
            with pytest.raises(ChecksumError, match=r"user/key\.npy"):
                hopstream.NeighborLoader(source, **options, **given)
    with open_store(root) as store, pytest.raises(SettingsError, match="the source is open already"):
        hopstream.NeighborLoader(store, verify="sample", **options)


def test_every_writer_gives_checksums_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 96)
    graph = replace(full_graph(3), edge_splits={})
    assign_folder(graph, tmp_path / "owners", num_parts=3, method="random", rng_seed=2)
    write_chunked(graph, tmp_path / "chunks", num_chunks=3)
    halo, by_file = hopstream.dataset.HaloSettings(hops=1), {**OPTIONS, "method": "file"}
    sent = {name: OPTIONS[name] for name in ("time_attr", "weight_attr", "neighbor_keys")}
    hopstream.write_parts(graph, tmp_path / "whole", halo=halo, owners=tmp_path / "owners", **by_file)
    hopstream.dataset.dispatch(
        tmp_path / "chunks", tmp_path / "owners", tmp_path / "sent", halo=halo, num_workers=0, **sent
    )
    write_appended(tmp_path / "appended", num_appends=2)
    shutil.copytree(tmp_path / "appended", tmp_path / "compacted")
    hopstream.dataset.compact(tmp_path / "compacted", num_workers=0)
    hopstream.dataset.reshard(tmp_path / "whole", tmp_path / "resharded", num_parts=2, num_workers=0)
    hopstream.dataset.place(tmp_path / "whole", [tmp_path / "root"], num_workers=0)
    hopstream.dataset.pull(tmp_path / "root", tmp_path / "pulled", num_workers=0)
    for name in ("whole", "sent", "appended", "compacted", "resharded", "root", "pulled"):
        records = read_manifest(tmp_path / name).all_files
        assert max(len(record.blocks) for record in records.values()) > 8 * 5
        for path, record in records.items():
            assert record.blocks == with_blocks(replace(record, blocks=""), tmp_path / name / path).blocks, path
    whole, other = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("whole", "sent"))
    assert all(whole[field] == other[field] for field in ("files", "halo", "dataset_id"))
