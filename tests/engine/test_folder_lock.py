"""Checks that one process at a time changes a dataset, even if its folder is replaced."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from hopstream.engine import atomic_folder
from hopstream.engine.atomic_folder import locked
from hopstream.errors import FormatError, StateError


def test_one_writer_or_several_readers(tmp_path):
    refused = pytest.raises(StateError, match="by another process")
    with locked(tmp_path, is_reader=True), locked(tmp_path, is_reader=True), refused, locked(tmp_path):
        pass
    with locked(tmp_path):
        for is_reader in (True, False):
            with pytest.raises(StateError, match="by another process"), locked(tmp_path, is_reader=is_reader):
                pass
    with locked(tmp_path):
        pass


def test_a_folder_that_is_replaced_while_it_is_locked(tmp_path, monkeypatch):
    root, real = tmp_path / "d", os.open
    root.mkdir()
    opened = []

    def replaced(path, flags):
        descriptor = real(path, flags)
        if not opened:
            root.rename(tmp_path / "old")
            root.mkdir()
        opened.append(descriptor)
        return descriptor

    monkeypatch.setattr(atomic_folder, "os", SimpleNamespace(**{**vars(os), "open": replaced}))
    with locked(root):
        assert len(opened) == 2 and os.fstat(opened[1]).st_ino == root.stat().st_ino


def test_paths_other_than_folders_are_refused(tmp_path):
    (tmp_path / "file").touch()
    for name in ("file", "nothing"):
        with pytest.raises(FormatError, match="is not a folder"), locked(tmp_path / name):
            pass
