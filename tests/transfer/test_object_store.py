"""Checks that parts get to an object store and back, over the S3 protocol."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from hopstream.dataset.copying import delivery
from hopstream.dataset.copying.pull import pull
from hopstream.dataset.layout import open_dataset
from hopstream.errors import ChecksumError, FormatError
from hopstream.places.place import Place
from hopstream.transfer.place import place
from tests.dataset.graphs import tree_of
from tests.places.test_place import PlaceContract
from tests.transfer.conftest import files_of, without_beside

pytestmark = pytest.mark.slow
BUCKET = "graphs"


@pytest.fixture(scope="module")
def store() -> Iterator[Callable[[str], str]]:
    """An object store of this process; called with a key, it gives the key's URI."""
    server_of = pytest.importorskip("moto.server", reason="make setup installs it")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    query = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            files, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}?{query}&allow_bucket_creation=true")
            files.create_dir(BUCKET)
            yield lambda key: f"s3://{BUCKET}/{key}?{query}"
    finally:
        server.stop()


class TestObjectStore(PlaceContract):
    @pytest.fixture
    def place(self, store: Callable[[str], str], request: pytest.FixtureRequest) -> Place:
        return Place(store(request.node.name))

    def test_written_files_are_present(self, place: Place):
        """Written files are complete, also if they are larger than one request."""
        super().test_written_files_are_present(place)
        data = bytes(range(256)) * 100_000
        place.write("large.npy", lambda: [data[:10_000_001], data[10_000_001:]], len(data))
        assert b"".join(place.blocks("large.npy")) == data

    def test_objects_are_visible_only_when_complete(self, place: Place):
        seen = []

        def watched() -> Iterator[bytes]:
            for _ in range(3):
                yield bytes(8 << 20)
                seen.append(place.size("a.npy"))

        place.write("a.npy", watched, 24 << 20)
        assert seen == [None, None, None]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_parts_survive_a_round_trip_through_the_store(mag: Path, written, tmp_path: Path, store, num_workers: int):
    roots = [store(f"there-{num_workers}/m{k}") for k in range(2)]
    place(mag, roots, num_workers=num_workers)
    assert without_beside(tree_of(mag)) == written
    with pytest.raises(
        FormatError, match=rf"does not have part 1; .* lists it in s3://{BUCKET}/there-{num_workers}/m1\\?"
    ):
        pull(roots[0], tmp_path / "out", parts=[1], num_workers=0)
    for k, root in enumerate(roots):
        pull(root, tmp_path / str(k), num_workers=num_workers)
        assert without_beside(tree_of(tmp_path / str(k))) == files_of(written, (k, k + 2))
    shutil.rmtree(tmp_path / "0")
    pull(roots[0], tmp_path / "0", parts=[2], num_workers=num_workers)
    open_dataset(tmp_path / "0").verify([2])


def test_an_interrupted_move_resumes(mag: Path, written, tmp_path: Path, store, monkeypatch):
    monkeypatch.setattr(delivery, "GROUP_FILES", 3)
    roots = [store("moved/m0"), str(tmp_path / "m1")]

    def stop(stage: str, done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place(mag, roots, num_workers=0, move=True, progress=stop)
    assert Place(roots[0]).size("manifest.json") is None
    place(mag, roots, num_workers=0, move=True)
    place(mag, roots, num_workers=0, move=True)
    pull(roots[0], tmp_path / "m0", num_workers=0)
    for k in range(2):
        assert without_beside(tree_of(tmp_path / f"m{k}")) == files_of(written, (k, k + 2))
    assert not list(mag.glob("part-*"))


def test_damaged_objects_are_not_pulled(mag: Path, tmp_path: Path, store):
    root = store("damaged")
    place(mag, [root], num_workers=0)
    name = "part-00001/node/paper/key.npy"
    there = Place(root)
    data = bytearray(b"".join(there.blocks(name)))
    data[-1] ^= 1
    there.write_text(name, bytes(data))
    with pytest.raises(ChecksumError, match=rf"^s3://{BUCKET}/damaged/{name} has crc32c"):
        pull(root, tmp_path / "out", num_workers=0)
    there.remove(name)
    with pytest.raises(FormatError, match=rf"s3://{BUCKET}/damaged/{name} is missing"):
        pull(root, tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out/manifest.json").exists()


def test_store_errors_name_the_root(mag: Path, store):
    uri = store("x").replace(f"//{BUCKET}/", "//AKIA:hidden@nowhere/")
    for num_workers in (0, 1):
        with pytest.raises(OSError, match=r"^s3://nowhere/x/part-00000/.*NO_SUCH_BUCKET") as caught:
            place(mag, [uri], num_workers=num_workers)
        assert "hidden" not in "".join([str(caught.value), *caught.value.__notes__])
