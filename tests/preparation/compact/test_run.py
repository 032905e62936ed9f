"""Checks that a compacted dataset equals one written in one go with the same owners."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.assign.owners import write_owners
from hopstream.dataset.key_book import KeyBook
from hopstream.dataset.layout import open_dataset, read_manifest
from hopstream.engine.atomic_folder import locked
from hopstream.errors import ChecksumError, SettingsError, StateError
from hopstream.preparation.append.run import append
from hopstream.preparation.audit.run import verify_dataset
from hopstream.preparation.compact import compact
from hopstream.preparation.write import write_parts
from tests.preparation.append.graphs import OPTIONS, grown_graph, written


def owners_of(root):
    """Part of each node."""
    book = KeyBook(open_dataset(root))
    return {
        t: book.part_of(t, np.arange(offsets[-1])).astype(np.int32) for t, offsets in book.ranges.node_offsets.items()
    }


@pytest.mark.parametrize(("num_parts", "num_appends"), [pytest.param(1, 3, marks=pytest.mark.slow), (2, 2)])
def test_bytes_equal_those_of_a_single_write(tmp_path, num_parts, num_appends):
    before = written(tmp_path / "d", num_parts, num_appends)
    old = owners_of(tmp_path / "d")
    manifest = compact(tmp_path / "d", num_workers=0)
    assert manifest.book.num_parts == num_parts
    assert not manifest.book.deltas
    assert manifest.graph_id == before.graph_id
    owners = owners_of(tmp_path / "d")
    for node_type, parts in old.items():
        stay = parts < num_parts
        assert owners[node_type][stay].tolist() == parts[stay].tolist()
    grown = grown_graph()
    wanted = write_parts(grown.graph, tmp_path / "one", num_parts=num_parts, method="file", owners=owners, **OPTIONS)
    assert manifest.files == wanted.files
    assert manifest.dataset_id == wanted.dataset_id == read_manifest(tmp_path / "d").dataset_id
    assert verify_dataset(tmp_path / "d", against=grown.graph).is_ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "one"]


def test_new_nodes_make_parts_even(tmp_path):
    """Three parts, one of them nearly empty, which gets most of the new nodes."""
    grown = grown_graph()
    first = grown.until(0)
    owners = {t: (np.arange(n.num_nodes) % 2).astype(np.int32) for t, n in first.nodes.items()}
    owners["user"][0] = 2
    write_parts(first, tmp_path / "d", num_parts=3, method="file", owners=owners, **OPTIONS)
    for step in (1, 2, 3):
        append(tmp_path / "d", **grown.added(step))
    compact(tmp_path / "d", num_workers=0)
    new = np.concatenate([parts[first.nodes[t].num_nodes :] for t, parts in owners_of(tmp_path / "d").items()])
    assert np.bincount(new, minlength=3)[2] > 0.7 * len(new)


def test_with_a_folder_of_owners(tmp_path):
    written(tmp_path / "d", 2, 2)
    grown = grown_graph()
    owners = {t: (np.arange(n.num_nodes) % 4).astype(np.int32) for t, n in grown.graph.nodes.items()}
    with write_owners(tmp_path / "owners", 4, "file") as (_, write):
        write(owners)
    manifest = compact(tmp_path / "d", partitions_dir=tmp_path / "owners", num_workers=0)
    wanted = write_parts(grown.graph, tmp_path / "one", num_parts=4, method="file", owners=owners, **OPTIONS)
    assert manifest.dataset_id == wanted.dataset_id


def test_more_is_appended_and_compacted(tmp_path):
    grown = grown_graph()
    write_parts(grown.until(1), tmp_path / "d", num_parts=2, method="hash", **OPTIONS)
    append(tmp_path / "d", **grown.added(2))
    compact(tmp_path / "d", num_workers=0)
    append(tmp_path / "d", **grown.added(3))
    assert read_manifest(tmp_path / "d").book.num_parts == 3
    manifest = compact(tmp_path / "d", num_workers=0)
    assert manifest.graph_id == write_parts(grown.graph, tmp_path / "one", num_parts=1, **OPTIONS).graph_id
    assert verify_dataset(tmp_path / "d", against=grown.graph).is_ok


def test_compact_does_nothing_without_deltas_and_refuses_bad_arguments(tmp_path):
    write_parts(grown_graph().until(1), tmp_path / "d", num_parts=2, method="hash", **OPTIONS)
    folder = (tmp_path / "d").stat()
    assert not compact(tmp_path / "d").book.deltas
    assert (tmp_path / "d").stat().st_ino == folder.st_ino  # there was nothing to do
    with pytest.raises(SettingsError, match="has no deltas, so there is nothing to compact"):
        compact(tmp_path / "d", partitions_dir=tmp_path / "owners")
    append(tmp_path / "d", **grown_graph().added(2))
    with locked(tmp_path / "d"), pytest.raises(StateError, match="by another process"):
        compact(tmp_path / "d")


def test_damaged_files_are_found(tmp_path):
    before = written(tmp_path / "d", 1, 2)
    for folder in ("part-00000/delta-00002", "part-00000", "part-00001"):
        path = tmp_path / "d" / folder / "edge/user__knows__user/in/features/rating.npy"
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 4]))
        with pytest.raises(ChecksumError, match=f"{folder}.*rating"):
            compact(tmp_path / "d", num_workers=0)
        path.write_bytes(whole)
    assert read_manifest(tmp_path / "d").dataset_id == before.dataset_id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]
