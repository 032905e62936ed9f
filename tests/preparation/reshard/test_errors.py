"""Checks errors for damaged datasets, wrong owners and wrong places, and that nothing is left."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopstream.arrays import extend_checksum
from hopstream.dataset import rows
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.errors import ChecksumError, FormatError, IdRangeError, SchemaError, SettingsError, StateError
from hopstream.preparation.reshard.reshard_job import reshard
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import community_graph
from tests.dataset.timed_graphs import timed_graph
from tests.preparation.reshard.sources import cut_small


@pytest.fixture
def old(tmp_path: Path, rng: np.random.Generator) -> Manifest:
    return write_parts(
        timed_graph(rng), tmp_path / "old", num_parts=3, method="random", time_attr="time", weight_attr="rating"
    )


def reshard_here(folder: Path, **options: object) -> Manifest:
    return reshard(folder / "old", folder / "got", **{"num_workers": 0, "num_parts": 2, "method": "hash", **options})


def test_a_flipped_byte_in_any_file_is_found_and_named(tmp_path, monkeypatch, old):
    names = [name for name, record in old.files.items() if np.prod(record.shape) and "like" not in name]
    kinds = {Path(name).name: name for name in names}
    for number, name in enumerate(kinds.values()):
        path = tmp_path / "old" / name
        before = path.read_bytes()
        damaged = bytearray(before)
        damaged[61 if number % 3 == 0 else -1] ^= 0x80  # in the header, or in the last value
        path.write_bytes(damaged)
        with pytest.raises(ChecksumError, match=path.name.replace(".", r"\.")):
            reshard_here(tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["old"]
        path.write_bytes(before)
    reshard_here(tmp_path)


def test_files_checksummed_while_read_are_not_read_again(tmp_path, monkeypatch, old):
    checked: list[str] = []
    monkeypatch.setattr(
        rows, "check_file", lambda path, record: checked.append(str(path.relative_to(tmp_path / "old")))
    )
    cut_small(monkeypatch, 30)
    reshard_here(tmp_path)
    assert sorted(checked) == sorted(rows.open_rows(tmp_path / "old").leading_files)
    assert not any(name.endswith(("indices.npy", "weight_alias.npy")) for name in checked)


def test_files_that_are_short_or_missing_are_named(tmp_path, old):
    for name in ("part-00001/edge/user__rates__movie/in/indices.npy", "part-00002/node/user/id_of_key.npy"):
        path = tmp_path / "old" / name
        before = path.read_bytes()
        path.write_bytes(before[:-8])
        with pytest.raises(FormatError, match=name):
            reshard_here(tmp_path)
        path.unlink()
        with pytest.raises(FormatError, match=f"{name} is missing"):
            reshard_here(tmp_path)
        path.write_bytes(before)
    (tmp_path / "old" / "part-00001").rename(tmp_path / "away")
    with pytest.raises(FormatError, match="part-00001 is missing; write the dataset again or copy the folder"):
        reshard_here(tmp_path)
    (tmp_path / "away").rename(tmp_path / "old" / "part-00001")
    (tmp_path / "old" / "manifest.json").unlink()
    with pytest.raises(FormatError, match="is not a dataset"):
        reshard_here(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old"]


def test_wrong_content_with_valid_checksums_does_not_crash(tmp_path, old):
    """Checksums fit, but the content leads elsewhere."""
    for name, value in [
        ("part-00000/edge/user__rates__movie/in/indices.npy", 99),
        ("part-00000/edge/user__rates__movie/in/indptr.npy", 10**9),
        ("part-00000/node/user/id_of_key.npy", 2),
        ("part-00000/node/user/key.npy", 1),
    ]:
        path = tmp_path / "old" / name
        before = path.read_bytes()
        values = np.load(path)
        values[1] = value if values[1] != value else value + 1
        np.save(path, values)
        forge(tmp_path / "old", name)
        with pytest.raises(FormatError, match=r"write the dataset again"):
            reshard_here(tmp_path)
        path.write_bytes(before)
        forge(tmp_path / "old", name)
    reshard_here(tmp_path)


def forge(root: Path, name: str) -> None:
    """Write a manifest with the checksum of a file's current content."""
    manifest = read_manifest(root)
    checksum = extend_checksum(0, np.frombuffer((root / name).read_bytes(), np.uint8))
    files = {**manifest.files, name: replace(manifest.files[name], crc32c=checksum)}
    replace(manifest, files=files).write(root)


@pytest.mark.parametrize("moment", [0.1, 0.9])
def test_a_dataset_that_is_replaced_meanwhile(tmp_path, monkeypatch, rng, old, moment):
    """A process that ignores the lock replaces the dataset; one that takes the lock is refused."""
    others, seen = timed_graph(rng), []
    cut_small(monkeypatch, 60)

    def replace_it(stage: str, done: int, total: int) -> None:
        if done >= moment * total and not seen:
            seen.append(done)
            with pytest.raises(StateError, match="by another process"):
                write_parts(others, tmp_path / "old", num_parts=3, method="random", overwrite=True)
            write_parts(others, tmp_path / "new", num_parts=3, method="random")
            shutil.rmtree(tmp_path / "old")
            (tmp_path / "new").rename(tmp_path / "old")

    with pytest.raises(FormatError, match=r"copy the file again|copy it again|was replaced|is missing"):
        reshard_here(tmp_path, progress=replace_it)
    assert seen and sorted(p.name for p in tmp_path.iterdir()) == ["old"]


def test_wrong_owners_are_named(tmp_path, old):
    owners = tmp_path / "owners"
    owners.mkdir()
    np.save(owners / "user.npy", np.zeros(30, np.int32))
    for values, error, match in [
        (None, FormatError, "neither movie.npy nor movie.txt"),
        (np.zeros(11, np.int32), SchemaError, r"movie.npy is int32\[11\]; it must be one integer for each of 12"),
        (np.zeros(12), SchemaError, "movie.npy is float64"),
        (np.full(12, 2), IdRangeError, r"movie.npy\[0\] is 2; parts are numbered 0..1"),
        (np.full(12, -1), IdRangeError, r"movie.npy\[0\] is -1"),
    ]:
        if values is not None:
            np.save(owners / "movie.npy", values)
        with pytest.raises(error, match=match):
            reshard_here(tmp_path, partitions_dir=owners, method="file")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["old", "owners"]
    (owners / "partition_meta.json").write_text('{"version": "1.0.0", "num_parts": 7, "algo_name": "mine"}')
    with pytest.raises(SettingsError, match="is for 7 parts, but num_parts is 2"):
        reshard_here(tmp_path, partitions_dir=owners, method="file")


def test_invalid_places_and_settings_are_refused(tmp_path, old):
    def refused(match: str, out: str = "got", **options: object) -> None:
        with pytest.raises(SettingsError, match=match):
            reshard(tmp_path / "old", tmp_path / out, **{"num_workers": 0, "num_parts": 2, "method": "hash", **options})
        assert sorted(p.name for p in tmp_path.iterdir()) == ["old"]

    refused("which is the dataset itself", "old", overwrite=True)
    refused(r"which lies in .*old, the dataset", "old/new")
    refused(r"which holds .*old, the dataset", ".", overwrite=True)
    refused("method is 'file', but partitions_dir is missing", method="file")
    refused("neither num_parts nor partitions_dir is given", num_parts=None)
    refused("leave one of them out", method="ldg", partitions_dir=tmp_path / "owners")
    refused("memory is 10MiB \\(10.5 MB\\); one process needs at least 240.0 MB", memory="10MiB")
    refused("memory is 'much'", memory="much")
    refused("engine is 'abacus'", engine="abacus")
    refused("num_workers is -1", num_workers=-1)
    refused("num_parts is 0", num_parts=0)
    refused("balance_edges is given, but method 'hash'", balance_edges=True)


def test_a_dataset_is_replaced_only_with_overwrite(tmp_path, old):
    first = reshard_here(tmp_path)
    with pytest.raises(SettingsError, match="holds a dataset; give overwrite=True"):
        reshard_here(tmp_path, num_parts=5)
    assert open_dataset(tmp_path / "got").manifest.dataset_id == first.dataset_id
    assert reshard_here(tmp_path, num_parts=5, overwrite=True).book.num_parts == 5
    assert open_dataset(tmp_path / "got", verify=True).manifest.book.num_parts == 5


def test_another_dataset_restarts_the_job(tmp_path, rng):
    graph = community_graph(rng, 60, 400)
    places = (tmp_path / "old", tmp_path / "got")

    def stop(stage: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    write_parts(graph, tmp_path / "old", num_parts=2, method="random")
    with pytest.raises(KeyboardInterrupt):
        reshard(*places, num_workers=0, num_parts=4, method="hash", progress=stop)
    write_parts(graph, tmp_path / "old", num_parts=5, method="random", overwrite=True, direction="out")
    assert reshard(*places, num_workers=0, num_parts=4, method="hash").directions == ("out",)
    open_dataset(tmp_path / "got", verify=True)
    assert list(tmp_path.glob(".*")) == []
